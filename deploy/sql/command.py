"""Run statements for `penstock sql` and write their rows; Ctrl-C cancels the running statement."""

import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self, TypeVar

from penstock.base.errors import ExpectedError
from penstock.deploy.errors import print_error
from penstock.deploy.output import Format, Progress, counted, remark
from penstock.deploy.sql.forms import print_batches, print_rows, write_parquet
from penstock.lake.sql.errors import SqlError, canceled, time_limit_exceeded
from penstock.lake.sql.process_limits import limit_memory, out_of_memory
from penstock.lake.sql.session import Session, SessionOptions
from penstock.lake.sql.tokens import statements_of

if TYPE_CHECKING:
    from penstock.lake.sql.result import SqlResult

STOP_GRACE_S: Final = 2.0
"""How long a statement may take to stop after Ctrl-C or its time limit."""
_INTERRUPTED: Final = 130
TABLE_ROWS_MAX: Final = 1_000
"""Maximum number of rows of a table on the terminal."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class RowOutput:
    """How rows are written: as a table by default. `max_rows` is None if it was not given."""

    output: Format = Format.TABLE
    parquet: Path | None = None
    max_rows: int | None = None

    @property
    def is_table(self) -> bool:
        return self.output is Format.TABLE and self.parquet is None

    @property
    def rows_max(self) -> int | None:
        return TABLE_ROWS_MAX if self.max_rows is None and self.is_table else self.max_rows


class Command:
    """The session of one command. Use as a context manager.

    Invariants: a statement runs in a thread, because DuckDB does not return to Python until it has
    rows; the main thread waits and receives the signal. Stdout contains only rows. Running
    functions cannot be interrupted: if a statement continues after its time limit or Ctrl-C, the
    whole command exits, including its prompt.
    """

    def __init__(
        self, store: str, options: SessionOptions, form: RowOutput, max_seconds: float | None = None
    ) -> None:
        self.session = Session(store, options)
        self._form = form
        self._max_seconds = max_seconds
        self._thread = ThreadPoolExecutor(1, "penstock-sql")
        if options.memory_limit:
            limit_memory(self.session.memory_limit_bytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()
        self.session.close()

    def run_all(self, sql: str) -> None:
        """Run statements in order. Raises SqlError, ExpectedError and the errors of
        `Session.run`.
        """
        statements = statements_of(sql)
        if not statements:
            raise ExpectedError("there is no statement: enter SQL, such as 'SHOW TABLES'")
        for statement in statements:
            self.run(statement)

    def run(self, statement: str) -> None:
        """Run one statement and write its rows."""
        self.wait_for(lambda: self._run(statement), self._max_seconds)

    def wait_for(self, work: Callable[[], _T], max_seconds: float | None = None) -> _T:
        """Run a function in the thread. Ctrl-C stops its statement, and is re-raised."""
        future = self._thread.submit(work)
        try:
            if max_seconds is not None:
                self._end_unless_done(future, max_seconds, time_limit_exceeded(), 1)
            return future.result()
        except KeyboardInterrupt:
            self.session.interrupt()
            self._end_unless_done(future, 0.0, canceled(), _INTERRUPTED)
            raise
        except MemoryError:
            raise out_of_memory() from None

    def _end_unless_done(
        self, future: "Future[_T]", seconds: float, why: SqlError, status: int
    ) -> None:
        """Wait until the statement has stopped; exit the process if it does not."""
        wait((future,), seconds + STOP_GRACE_S)
        if not future.done():
            self.session.remove_files()
            print_error(why)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)

    def _run(self, statement: str) -> None:
        with Progress("read", None, "records") as progress:
            seen = 0

            def show(read: int, planned: int) -> None:
                nonlocal seen
                progress.expect(planned)
                progress.advance(read - seen)
                seen = read

            result = self.session.run(
                statement,
                max_rows=self._form.rows_max,
                max_seconds=self._max_seconds,
                on_progress=show,
            )
            with result:
                write = self._writer(result)
        write()
        for warning in result.warnings:
            remark(f"warning: {warning}")
        if result.is_truncated:
            rows = counted(self._form.rows_max or 0, "row")
            remark(f"only the first {rows}; --max-rows shows more")

    def _writer(self, result: "SqlResult") -> Callable[[], None]:
        """Write rows as they arrive. Return the work to do after the progress bar is removed: a
        table needs all rows first.
        """
        if self._form.is_table:
            table = result.arrow()
            return lambda: print_rows(table)
        if self._form.parquet is not None:
            rows = write_parquet(result, self._form.parquet)
            path = self._form.parquet
            return lambda: remark(f"wrote {counted(rows, 'row')} to {path}")
        print_batches(self._form.output, result.columns, result.batches())
        return lambda: None
