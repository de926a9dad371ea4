"""Count the bytes that a parked fetch waits for, like Kafka's `DelayedFetch`. Partitions call
`progressed` when their high watermark advances.
"""

from collections.abc import Callable


class FetchWait:
    __slots__ = ("_missing_bytes", "_wake", "reads_committed")

    def __init__(
        self, missing_bytes: int, wake: Callable[[], None], *, reads_committed: bool = False
    ) -> None:
        """reads_committed: count appended bytes only if they are stable. While transactions are
        open, the fetch is woken when the last stable offset advances.
        """
        self.reads_committed = reads_committed
        self._missing_bytes = max(1, missing_bytes)
        self._wake: Callable[[], None] | None = wake

    def progressed(self, size_bytes: int) -> None:
        """Count bytes that have become readable in one of the partitions."""
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self.interrupt()

    def interrupt(self) -> None:
        """Wake the fetch now, because of an error or because everything must be checked again."""
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()
