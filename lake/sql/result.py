"""The result of a statement: batches as they are produced, or all rows in the requested form."""

import weakref
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, cast

from penstock.lake.arrow.pyarrow_untyped import RecordBatch, Schema, Table, pa
from penstock.lake.arrow.row_times import for_python
from penstock.lake.sql.errors import SqlError

if TYPE_CHECKING:
    import polars

ROWS_KEPT: Final = "the rows were read by batches(), which reads them once"


class RowSource(Protocol):
    """A running statement, in this process or in a separate one."""

    schema: Schema
    is_truncated: bool

    def warnings(self) -> list[str]: ...

    def batches(self) -> Iterator[RecordBatch]: ...

    def close(self) -> None: ...


class SqlResult:
    """The rows of a statement, read on demand.

    Close it, use it in a `with` block, or read it to the end. The statement runs until then.

    Attributes:
        schema: The `pyarrow.Schema` of the rows.
        is_truncated: Whether `max_rows` has cut off rows; this is known once the rows have been
            read.
    """

    def __init__(self, running: RowSource, max_rows: int | None) -> None:
        """Do not call this directly; use `penstock.sql`."""
        self._running = running
        self._max_rows = max_rows
        self._table: Table | None = None
        self._is_begun = False
        self._also: Callable[[], object] | None = None
        self.schema: Schema = running.schema
        self.is_truncated = False

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    @property
    def warnings(self) -> list[str]:
        """Warnings about the rows read so far: unreadable records, and values that did not fit
        their column, with their count and the offset of one of them.
        """
        return self._running.warnings()

    def batches(self) -> Iterator[RecordBatch]:
        """Yield `pyarrow.RecordBatch`es as DuckDB produces them, once.

        Raises:
            SqlStopped: The statement was canceled or took longer than `max_seconds`.
            SqlError: The statement failed.
            ReadError, ObjectStoreError, StreamError: As for `scan`.
        """
        if self._is_begun:
            raise SqlError(ROWS_KEPT)
        self._is_begun = True
        left = self._max_rows
        try:
            for batch in self._running.batches():
                if left is not None and batch.num_rows > left:
                    self.is_truncated = True
                    if left:
                        yield batch.slice(0, left)
                    return
                if batch.num_rows:
                    yield batch
                left = None if left is None else left - batch.num_rows
            self.is_truncated = self._running.is_truncated
        finally:
            self.close()

    def arrow(self) -> Table:
        """Return all rows as a `pyarrow.Table`. Raise the errors of `batches`."""
        if self._table is None:
            self._table = pa.Table.from_batches(self.batches(), self.schema)
        return self._table

    def pandas(self) -> Any:  # noqa: ANN401 - pandas has no types of its own
        """Return all rows as a pandas data frame. Raise the errors of `batches`, and
        ModuleNotFoundError without pandas.
        """
        _require("pandas")
        return self.arrow().to_pandas()

    def polars(self) -> "polars.DataFrame":
        """Return all rows as a Polars data frame. Raise the errors of `batches`, and
        ModuleNotFoundError without Polars.
        """
        _require("polars")
        import polars

        frame: object = cast("Any", polars).from_arrow(self.arrow())
        assert isinstance(frame, polars.DataFrame), "a table becomes a frame"
        return frame

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows as tuples of Python values. Dates and timestamps after the year 9999 are
        replaced by the end of that year. Raise the errors of `batches`.
        """
        columns = [column.to_pylist() for column in for_python(self.arrow()).columns]
        return list(zip(*columns, strict=True))

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.rows())

    def owns(self, close: Callable[[], None]) -> None:
        """Register `close`, which is called when the result is closed or no longer used."""
        self._also = weakref.finalize(self, close)

    def close(self) -> None:
        """Stop the statement if it is running. Do nothing otherwise."""
        self._running.close()
        if self._also is not None:
            self._also()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _require(package: str) -> None:
    """Raise ModuleNotFoundError with the command that installs a package that is not part of any
    extra.
    """
    if find_spec(package) is None:
        raise ModuleNotFoundError(
            f"{package} is not installed: `pip install {package}`, or use arrow() or rows()",
            name=package,
        )
