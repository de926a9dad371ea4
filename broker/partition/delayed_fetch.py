"""How much a parked fetch still waits for.

Invariant: it wakes once, when the bytes that became readable since it parked reach what was
missing, or when something went wrong with one of its partitions. Nobody polls: partitions call
`progressed` as their high watermark moves.
Must not: read data or know time; the shell owns the deadline.
Source: Kafka `DelayedFetch`.
"""

from collections.abc import Callable


class FetchWait:
    __slots__ = ("_missing_bytes", "_wake", "reads_committed")

    def __init__(
        self, missing_bytes: int, wake: Callable[[], None], *, reads_committed: bool = False
    ) -> None:
        """reads_committed: what is appended counts only if it is stable; where transactions are
        open, the moving of their end wakes it.
        """
        self.reads_committed = reads_committed
        self._missing_bytes = max(1, missing_bytes)
        self._wake: Callable[[], None] | None = wake

    def progressed(self, size_bytes: int) -> None:
        """So many more bytes became readable in one of the partitions."""
        self._missing_bytes -= size_bytes
        if self._missing_bytes <= 0:
            self.interrupt()

    def interrupt(self) -> None:
        """Look again now: an error is to be told, or all bytes are there."""
        wake, self._wake = self._wake, None
        if wake is not None:
            wake()
