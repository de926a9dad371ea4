"""Which streams may not be opened yet, because the backup does not know them: what was written to
them could not be found again. Pure.

Invariant: for a stream that may be missing in the backup an offset is told that covers its
creation. Stream ids rise with the metadata offset of their creation. Must not wait: the caller
does. Source: ADR 0013.
"""

from collections import deque

from base.ids import StreamId
from controller.metadata.records import MetadataOffset

_COVERED = MetadataOffset(0)


class NewStreams:
    def __init__(self, next_stream_id: StreamId, offset: MetadataOffset) -> None:
        """What a controller that begins to lead knows: everything so far was created below
        `offset`.
        """
        self._created: deque[tuple[StreamId, MetadataOffset]] = deque([(next_stream_id, offset)])

    def created(self, next_stream_id: StreamId, offset: MetadataOffset) -> None:
        """Streams below `next_stream_id` were created below `offset`."""
        self._created.append((next_stream_id, offset))

    def needed(self, stream_id: StreamId, covered: MetadataOffset) -> MetadataOffset:
        """How far the backup has to reach before the stream is opened, now that it reaches to
        `covered`.
        """
        while self._created and self._created[0][1] <= covered:
            self._created.popleft()
        return next(
            (offset for next_stream_id, offset in self._created if stream_id < next_stream_id),
            _COVERED,
        )
