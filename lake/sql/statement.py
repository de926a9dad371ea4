"""The state of a running statement: its offsets, progress, values that do not fit, and the reason
why it was stopped.

Invariant: DuckDB reads each table with one thread at a time, but several tables concurrently, so a
lock protects shared state.
"""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any

from penstock.lake.arrow.topic_scan import Scan
from penstock.lake.fetch.errors import ReadError
from penstock.lake.fetch.unreadable import RAISE, UnreadableRecords
from penstock.lake.sql.errors import SqlError, canceled, time_limit_exceeded

OnProgress = Callable[[int, int], None]
"""Called with the numbers of records read and planned so far."""


@dataclass(slots=True)
class MisfitReport:
    """Values of one column that are returned as NULL because they do not fit its type."""

    topic: str
    column: str
    kind: str
    count: int
    place: tuple[int, int]
    """Partition and offset of the first reported value."""

    reason: str = ""

    def __str__(self) -> str:
        partition, offset = self.place
        because = f": {self.reason}" if self.reason else ""
        what = (
            "cannot be decoded, and give NULLs"
            if self.column == "_value"
            else f"of {self.column} do not fit {self.kind} and are NULL"
        )
        return (
            f"{self.topic}: {self.count:,} values {what}, the first at partition {partition},"
            f" offset {offset}{because}"
        )


@dataclass
class Statement:
    """A running statement."""

    open_scan: Callable[[str], Scan]
    """Opens a table by its name in DuckDB, and fixes its offsets."""

    strict: bool = False
    cancel: Event | None = None
    deadline_s: float | None = None
    """Deadline on the clock of `time.monotonic`."""

    on_progress: OnProgress | None = None
    is_closed: bool = False
    failure: BaseException | None = None
    """The exception of a reader. DuckDB would pass on only its text."""

    on_error: str = RAISE
    """How to handle records that cannot be read."""

    misfits: dict[tuple[str, str], MisfitReport] = field(
        default_factory=dict[tuple[str, str], MisfitReport]
    )
    unreadable: dict[str, UnreadableRecords] = field(default_factory=dict[str, UnreadableRecords])
    """The skipped unreadable records, by topic."""

    _scans: dict[str, Scan] = field(default_factory=dict[str, Scan])
    _planned: int = 0
    _read: int = 0
    _lock: Lock = field(default_factory=Lock)

    def scan_of(self, name: str) -> Scan:
        """Return the scan of a table, which is the same for each call."""
        with self._lock:
            scan = self._scans.get(name)
            if scan is None:
                scan = self._scans[name] = self.open_scan(name)
        return scan

    def watched(self, batches: Generator[Any, None, None]) -> Iterator[Any]:
        """Yield batches until the statement is stopped, and store the errors of reading."""
        try:
            with closing(batches):
                for batch in batches:
                    if self.is_closed:
                        return
                    self.check()
                    yield batch
        except Exception as error:
            self.failure = self.failure or error
            raise

    def leave_out(self, error: ReadError) -> None:
        """Count unreadable records. Raise the error if they must not be skipped."""
        if self.on_error == RAISE:
            raise error
        with self._lock:
            found = self.unreadable.setdefault(error.topic, UnreadableRecords())
        found.add(error)

    def warnings(self) -> list[str]:
        """Return the warnings about the rows read so far."""
        with self._lock:
            left_out = [str(item) for _, item in sorted(self.unreadable.items())]
            return left_out + [str(item) for item in self.misfits.values()]

    def check(self) -> None:
        """Raise SqlStopped if the statement is canceled or takes too long."""
        if self.cancel is not None and self.cancel.is_set():
            raise canceled()
        if self.deadline_s is not None and time.monotonic() > self.deadline_s:
            raise time_limit_exceeded()

    def plan(self, records: int) -> None:
        with self._lock:
            self._planned += records

    def advance(self, records: int) -> None:
        with self._lock:
            self._read += records
        if self.on_progress is not None:
            self.on_progress(self._read, self._planned)

    def report(self, found: MisfitReport) -> None:
        """Count values that do not fit. Raise SqlError if `strict`."""
        with self._lock:
            known = self.misfits.setdefault((found.topic, found.column), found)
            if known is not found:
                known.count += found.count
        if self.strict:
            raise SqlError(f"{known}; without strict this is a warning")
