"""Decide how far to read ahead of each reader. A read that starts where an earlier read ended
belongs to the same reader.

Invariant: a first read never reads ahead. Each read that continues doubles the window up to the
limit. A reader that jumps counts as a new one. Consumers of the same offsets are one reader: those
behind the first find the blocks in the cache, and take over when it stops. At most `readers_max`
readers are remembered; the least recent one is forgotten. Must not do I/O.
Source: AutoMQ `DefaultS3BlockCache` read-ahead agents.
"""

from collections import OrderedDict
from dataclasses import dataclass

from base.ids import StreamId


@dataclass(slots=True)
class Reader:
    window_bytes: int = 0
    ahead_from: int = 0
    ahead_until: int = 0
    """The offsets [ahead_from, ahead_until) were requested ahead of time."""
    is_busy: bool = False
    """Whether its next window is being planned."""

    def is_due(self, next_offset: int) -> bool:
        """Return whether less than three quarters of its window are left behind `next_offset`: then
        up to four steps are on their way.
        """
        return not self.is_busy and next_offset >= (3 * self.ahead_from + self.ahead_until) // 4


class ReadAhead:
    def __init__(self, *, bytes_min: int, bytes_max: int, readers_max: int) -> None:
        self._bytes_min = bytes_min
        self._bytes_max = bytes_max
        self._readers_max = readers_max
        self._readers: OrderedDict[tuple[StreamId, int], Reader] = OrderedDict()

    def __len__(self) -> int:
        return len(self._readers)

    def on_read(self, stream_id: StreamId, start_offset: int, next_offset: int) -> Reader | None:
        """Note that a read returned [start, next). Return the reader to read ahead for now.

        Returns None for a new reader, and for a reader that still has most of its window before it.
        """
        reader = self._readers.pop((stream_id, start_offset), None)
        continues = reader is not None
        if reader is None:
            reader = Reader()
        else:
            self._widen(reader)
        reader = self._place(reader, stream_id, next_offset)
        return reader if continues and reader.is_due(next_offset) else None

    def knows(self, stream_id: StreamId, start_offset: int, next_offset: int) -> bool:
        """Return whether a reader continues at the start of a read, or another one has been where
        it ends.
        """
        return any((stream_id, at) in self._readers for at in (start_offset, next_offset))

    def _place(self, reader: Reader, stream_id: StreamId, next_offset: int) -> Reader:
        """Remember that a reader continues at an offset. Return the one that is remembered: of two
        that meet, the one that has read further ahead.
        """
        other = self._readers.pop((stream_id, next_offset), None)
        if other is not None and other.ahead_until >= reader.ahead_until:
            reader = other
        self._readers[(stream_id, next_offset)] = reader
        if len(self._readers) > self._readers_max:
            self._readers.popitem(last=False)
        return reader

    def _widen(self, reader: Reader) -> None:
        reader.window_bytes = min(self._bytes_max, max(self._bytes_min, 2 * reader.window_bytes))
