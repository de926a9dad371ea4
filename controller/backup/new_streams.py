"""Determine which streams must not be opened yet because the backup does not contain them. A
recovery would not find the data written to such streams. See docs/design/disaster-recovery.md.
"""

from collections import deque

from penstock.base.ids import StreamId
from penstock.controller.metadata.records import MetadataOffset

_COVERED = MetadataOffset(0)


class NewStreams:
    def __init__(self, next_stream_id: StreamId, offset: MetadataOffset) -> None:
        """Initialize the state for a new active controller: all existing streams were created below
        `offset`. Stream ids increase with the metadata offset of their creation.
        """
        self._created: deque[tuple[StreamId, MetadataOffset]] = deque([(next_stream_id, offset)])

    def created(self, next_stream_id: StreamId, offset: MetadataOffset) -> None:
        """Record that streams below `next_stream_id` were created below `offset`."""
        self._created.append((next_stream_id, offset))

    def needed(self, stream_id: StreamId, covered: MetadataOffset) -> MetadataOffset:
        """Return the offset that the backup must reach before the stream is opened.

        covered: the current end of the backup.
        """
        while self._created and self._created[0][1] <= covered:
            self._created.popleft()
        return next(
            (offset for next_stream_id, offset in self._created if stream_id < next_stream_id),
            _COVERED,
        )
