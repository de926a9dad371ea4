"""A running DuckDB statement: its batches, its end, and its errors with Penstock's messages."""

from collections.abc import Callable, Iterator
from threading import Timer
from typing import Any

import duckdb

from penstock.lake.arrow.pyarrow_untyped import RecordBatch, Schema, pa
from penstock.lake.sql.errors import SqlError, SqlStopped
from penstock.lake.sql.statement import Statement

ROWS_PER_BATCH = 65_536

Explain = Callable[[duckdb.Error], SqlError]
"""Converts a DuckDB error to one that mentions topics and columns."""


class RunningStatement:
    """A running statement. Close it, or read it to its end."""

    def __init__(
        self,
        connection: Any,  # noqa: ANN401 - DuckDB is untyped here
        sql: str,
        statement: Statement,
        explain: Explain,
        seconds: float | None,
    ) -> None:
        """Raise SqlError, or the errors of reading a topic."""
        self._connection = connection
        self._statement = statement
        self._explain = explain
        self.is_truncated = False
        self._timer = Timer(seconds, connection.interrupt) if seconds is not None else None
        self._reader: Any = None
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        try:
            relation = connection.sql(sql)
            self._reader = (
                relation.to_arrow_reader(ROWS_PER_BATCH) if relation is not None else None
            )
        except duckdb.Error as error:
            self.close()
            raise self._error(error) from None
        except BaseException:
            self.close()
            raise
        self.schema: Schema = pa.schema([]) if self._reader is None else self._reader.schema

    def warnings(self) -> list[str]:
        return self._statement.warnings()

    def batches(self) -> Iterator[RecordBatch]:
        """Yield the rows. Raises the errors of the constructor, or SqlStopped."""
        while self._reader is not None:
            try:
                self._statement.check()
                batch = self._reader.read_next_batch()
            except StopIteration:
                break
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                raise self._error(error) from None
            yield batch
        self._reader = None
        self.close()

    def close(self) -> None:
        """Stop the statement. This may be called more than once."""
        if self._timer is not None:
            self._timer.cancel()
        self._statement.is_closed = True
        reader, self._reader = self._reader, None
        if reader is not None:
            # DuckDB continues to read until its buffers are full; an interrupt stops it.
            self._connection.interrupt()
            try:
                reader.close()
            except (duckdb.Error, pa.ArrowException, OSError):
                return

    def _error(self, error: Exception) -> BaseException:
        """Return the error of a topic reader, the reason why the statement was stopped, or DuckDB's
        error with Penstock's message.
        """
        if self._statement.failure is not None:
            return self._statement.failure
        try:
            self._statement.check()
        except SqlStopped as stopped:
            return stopped
        if isinstance(error, duckdb.InterruptException) or "INTERRUPT" in str(error):
            return SqlStopped("the statement was interrupted")
        return self._explain(error) if isinstance(error, duckdb.Error) else SqlError(str(error))
