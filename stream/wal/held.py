"""Durable slots whose acknowledgment is held back. Pure."""

from collections import deque
from collections.abc import Sequence

from penstock.stream.wal.wal import DurableBulk


class HeldSlots:
    """A queue of slots and their total size, which counts toward the limit of unacknowledged
    bytes.
    """

    def __init__(self) -> None:
        self._bulks: deque[DurableBulk] = deque()
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._bulks)

    @property
    def first(self) -> int:
        """Number of the oldest slot, which must exist."""
        return self._bulks[0].sequence

    @property
    def end(self) -> int:
        """Number of the newest slot plus 1; 0 if the queue is empty."""
        return self._bulks[-1].sequence + 1 if self._bulks else 0

    def append(self, bulk: DurableBulk) -> None:
        self._bulks.append(bulk)
        self.size_bytes += bulk.size_bytes

    def pop_first(self) -> DurableBulk:
        bulk = self._bulks.popleft()
        self.size_bytes -= bulk.size_bytes
        return bulk

    def take_all(self) -> Sequence[DurableBulk]:
        """Remove and return all slots."""
        bulks, self._bulks, self.size_bytes = self._bulks, deque(), 0
        return bulks
