"""Run SQL on topics if the installation supports it, each statement in a separate process.

Limits of each statement: `ROWS_MAX` rows of `BYTES_MAX`, `SECONDS_MAX`, `MEMORY_LIMIT` and
`SPILL_LIMIT`.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from threading import Event
from typing import Final

from penstock.deploy.console.bucket import need_store
from penstock.deploy.errors import UsageError

ROWS_MAX: Final = 500
BYTES_MAX: Final = 4 << 20
SECONDS_MAX: Final = 30.0
MEMORY_LIMIT: Final = "1GB"
SPILL_LIMIT: Final = "10GB"
CELL_CHARS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class StatementResult:
    """Cells are strings, or None for NULL. numbers: whether each column is numeric."""

    columns: list[str]
    numbers: list[bool]
    rows: list[list[str | None]]
    is_truncated: bool
    warnings: list[str]


def is_available() -> bool:
    """Return whether statements can run here."""
    return all(find_spec(name) is not None for name in ("duckdb", "pyarrow", "numpy"))


def run_statement(store: str, query: str, cancel: Event, *, wal_store: str = "") -> StatementResult:
    """Run one statement until it is canceled. Raises UsageError with the reason. Blocks."""
    need_store(store)
    from penstock.lake.sql.api import sql
    from penstock.lake.sql.errors import SqlError

    try:
        with sql(
            query,
            store=store,
            wal_store=wal_store,
            max_rows=ROWS_MAX,
            max_seconds=SECONDS_MAX,
            max_bytes=BYTES_MAX,
            cancel=cancel,
            memory_limit=MEMORY_LIMIT,
            temp_limit=SPILL_LIMIT,
            on_error="skip",
        ) as result:
            rows, columns = result.rows(), result.columns
            truncated, warnings = result.is_truncated, result.warnings
    except SqlError as error:
        raise UsageError(str(error)) from None
    numbers = [
        any(row[at] is not None for row in rows)
        and all(isinstance(row[at], int | float | None) for row in rows)
        for at in range(len(columns))
    ]
    return StatementResult(
        columns, numbers, [[_cell(value) for value in row] for row in rows], truncated, warnings
    )


def _cell(value: object) -> str | None:
    if value is None:
        return None
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= CELL_CHARS_MAX else text[:CELL_CHARS_MAX] + " …"
