"""Run ad hoc SQL on the tables of a warehouse: DuckDB over the rows of the tables in the query.

Invariant: the bytes read are bounded, and a table is read as of one version. Table names may
include the namespace. DuckDB has no network access and does not load extensions.
"""

from typing import Any

from penstock.lake.table.errors import InvalidTable
from penstock.lake.table.pyarrow_untyped import Table
from penstock.lake.table.warehouse import Warehouse

BYTES_MAX = 2 << 30
"""Maximum size of the files of one table; their rows take a few times as much memory."""


def query(warehouse: Warehouse, sql: str, bytes_max: int = BYTES_MAX) -> Table:
    """Return the result as an Arrow table. Raise InvalidTable for an invalid query or unknown
    tables.
    """
    import duckdb

    known = warehouse.tables()
    connection = duckdb.connect(
        config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    )
    try:
        for name in known:
            if _is_named(name, sql):
                rows = warehouse.read(name, bytes_max)
                space, _, short = name.rpartition(".")
                connection.register(short, rows)
                if space:
                    connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{space}"')
                    connection.execute(
                        f'CREATE VIEW "{space}"."{short}" AS SELECT * FROM "{short}"'  # noqa: S608
                    )
        response: Any = connection.sql(sql)
        if response is None:
            raise InvalidTable("this is not a query: it has no result")
        return response.to_arrow_table()
    except duckdb.Error as error:
        raise InvalidTable(f"{error}; tables are: {', '.join(known) or 'none'}") from None
    finally:
        connection.close()


def _is_named(name: str, sql: str) -> bool:
    """Return whether the text contains the name anywhere. Reading an unneeded table is only slow,
    but a missing one would be an error.
    """
    return name.rpartition(".")[2].lower() in sql.lower()
