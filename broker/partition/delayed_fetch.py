"""Count the bytes that a parked fetch waits for.

Invariant: a fetch wakes once, when the bytes that became readable since it parked reach the missing
number, or on a problem in one of its partitions. There is no polling: partitions call `progressed`
when their high watermark advances.
Must not: read data or know time; the caller owns the deadline.
Source: Kafka `DelayedFetch`.
"""

from collections.abc import Callable


class FetchWait:
    __slots__ = ("_missing_bytes", "_wake", "reads_committed")

    def __init__(
        self, missing_bytes: int, wake: Callable[[], None], *, reads_committed: bool = False
    ) -> None:
        """reads_committed: appended bytes count only if they are stable. While transactions are
        open, the last stable offset wakes the fetch instead.
        """
        self.reads_committed = reads_committed
        self._missing_bytes = max(1, missing_bytes)
        self._wake: Callable[[], None] | None = wake

    def progressed(self, size_bytes: int) -> None:
        """Count bytes that became readable in one of the partitions."""
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self.interrupt()

    def interrupt(self) -> None:
        """Wake the fetch now: there is an error, or all bytes are available."""
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()
