"""Run ad hoc SQL on the tables of a warehouse: DuckDB over the rows of the tables in the query.

Invariant: the bytes read are bounded, and a table is read as of one version. Table names may
include the namespace. This is required if the namespace is not `default` and another one has a
table with this name. DuckDB has no network access and does not load extensions.
"""

from collections import Counter
from typing import Any

from penstock.lake.arrow.pyarrow_untyped import Table
from penstock.lake.table.errors import InvalidTable
from penstock.lake.table.warehouse import Warehouse, qualified

BYTES_MAX = 2 << 30
"""Maximum size of the files of one table; their rows take a few times as much memory."""


def query(warehouse: Warehouse, sql: str) -> Table:
    """Return the result as an Arrow table. Raise InvalidTable for an invalid query or unknown
    tables.
    """
    import duckdb

    known = warehouse.tables()
    uses = Counter(_short(name) for name in known)
    connection = duckdb.connect(
        config={
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        }
    )
    try:
        for number, name in enumerate(known):
            # Reading an unneeded table is merely slow, whereas a missing one would be an error.
            if _short(name) in sql.lower():
                rows = f"table {number}"
                connection.register(rows, warehouse.read(name, BYTES_MAX))
                space, _, short = name.rpartition(".")
                spaces = {space or "main"}
                if uses[_short(name)] == 1 or name == qualified(short):
                    spaces.add("main")
                for schema in map(_quoted, spaces):
                    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}")
                    connection.execute(
                        f"CREATE VIEW {schema}.{_quoted(short)} AS FROM main.{_quoted(rows)}"
                    )
        response: Any = connection.sql(sql)
        if response is None:
            raise InvalidTable("this is not a query: it has no result")
        return response.to_arrow_table()
    except duckdb.Error as error:
        raise InvalidTable(f"{error}; tables are: {', '.join(known) or 'none'}") from None
    finally:
        connection.close()


def _short(name: str) -> str:
    """Return the name without its namespace, in lowercase, because SQL ignores case."""
    return name.rpartition(".")[2].lower()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
