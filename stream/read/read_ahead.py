"""Decide how far to read ahead for each reader. A read that starts where an earlier read ended
belongs to the same reader. Pure.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from penstock.base.ids import StreamId

AT_WORK_S: Final = 10.0
"""A reader that is idle for this long counts as stopped, and its share is given to the others."""

_BORDERS_BYTES: Final = 2 << 20
"""A window consists of whole blocks of up to 1 MiB, so it may exceed its nominal size by two
blocks.
"""

_COUNTED_EACH_S: Final = 0.1
"""Interval at which active readers are counted. Counting 1,000 readers takes 0.1 ms."""


@dataclass(slots=True)
class Reader:
    window_bytes: int = 0
    ahead_from: int = 0
    ahead_until: int = 0
    """The offsets [ahead_from, ahead_until) were requested ahead of time."""
    read_at_s: float = 0.0
    continues: bool = False
    """Whether any read has begun where an earlier one ended."""
    is_busy: bool = False
    """Whether its next window is being planned."""

    def is_at_work(self, now_s: float) -> bool:
        return self.continues and now_s - self.read_at_s < AT_WORK_S

    def is_due(self, next_offset: int) -> bool:
        """Return whether less than three quarters of the window remain after `next_offset`, so that
        up to four steps are in flight.
        """
        return not self.is_busy and next_offset >= (3 * self.ahead_from + self.ahead_until) // 4


class ReadAhead:
    def __init__(
        self, *, bytes_min: int, bytes_max: int, total_bytes_max: int, readers_max: int
    ) -> None:
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self._total_bytes_max = total_bytes_max
        self._readers_max = readers_max
        self._at_work_count = 0
        self._counted_until_s = 0.0
        self._readers: OrderedDict[tuple[StreamId, int], Reader] = OrderedDict()

    def __len__(self) -> int:
        return len(self._readers)

    def on_read(
        self, stream_id: StreamId, start_offset: int, next_offset: int, now_s: float
    ) -> Reader | None:
        """Record a read of [start, next). Return the reader if data must now be read ahead for it.

        Returns None for a new reader, for a reader that has most of its window left, and while the
        share of each active reader is less than `bytes_min`.
        """
        self._count_at_work(now_s)
        reader = self._readers.pop((stream_id, start_offset), None)
        is_new = reader is None
        if reader is None:
            reader = Reader()
        else:
            self._at_work_count += not reader.is_at_work(now_s)
            reader.continues = True
            wider_bytes = max(self._bytes_min, 2 * reader.window_bytes)
            reader.window_bytes = min(self._share_bytes(), wider_bytes)
        reader = self._place(reader, stream_id, next_offset)
        reader.read_at_s = now_s
        is_due = reader.window_bytes > 0 and reader.is_due(next_offset)
        return reader if is_due and not is_new else None

    def knows(self, stream_id: StreamId, start_offset: int, next_offset: int) -> bool:
        """Return whether the read continues an earlier one, or another reader has reached the end
        of this read.
        """
        return any((stream_id, at) in self._readers for at in (start_offset, next_offset))

    def _place(self, reader: Reader, stream_id: StreamId, next_offset: int) -> Reader:
        """Track a reader at an offset. If two readers meet there, return the one that has read
        further ahead.
        """
        other = self._readers.pop((stream_id, next_offset), None)
        if other is not None and other.ahead_until >= reader.ahead_until:
            reader = other
        self._readers[(stream_id, next_offset)] = reader
        if len(self._readers) > self._readers_max:
            self._readers.popitem(last=False)
        return reader

    def _count_at_work(self, now_s: float) -> None:
        if now_s >= self._counted_until_s:
            self._counted_until_s = now_s + _COUNTED_EACH_S
            self._at_work_count = sum(each.is_at_work(now_s) for each in self._readers.values())

    def _share_bytes(self) -> int:
        """Return the maximum window size of each active reader, or 0 for no read-ahead."""
        share = self._total_bytes_max // max(1, self._at_work_count) - _BORDERS_BYTES
        return min(self._bytes_max, share) if share >= self._bytes_min else 0
