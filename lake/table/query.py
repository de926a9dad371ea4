"""SQL on the tables of a warehouse, for a look: DuckDB over the rows of the tables that the query
names.

Invariant: a look is bounded in bytes; a table is read as of one version. Tables go by their names,
with or without the namespace.
DuckDB fetches nothing by itself: no extension, no network.
"""

from typing import Any

from lake.table.errors import InvalidTable
from lake.table.pyarrow_untyped import Table
from lake.table.warehouse import Warehouse

BYTES_MAX = 2 << 30
"""Of the files of one table; their rows take a few times as much memory."""


def query(warehouse: Warehouse, sql: str, bytes_max: int = BYTES_MAX) -> Table:
    """The answer, as Arrow. Raises InvalidTable for what is no query, or of no tables that there
    are.
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
        answer: Any = connection.sql(sql)
        if answer is None:
            raise InvalidTable("this is no query: it has no answer")
        return answer.to_arrow_table()
    except duckdb.Error as error:
        raise InvalidTable(f"{error}; tables are: {', '.join(known) or 'none'}") from None
    finally:
        connection.close()


def _is_named(name: str, sql: str) -> bool:
    """Whether the text has the name anywhere: one table too many costs reading it, one too few an
    error.
    """
    return name.rpartition(".")[2].lower() in sql.lower()
