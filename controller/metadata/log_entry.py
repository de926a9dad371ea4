"""One entry of the log index, which locates a range."""

import msgspec

from penstock.base.ids import Millis, ObjectId, Offset, StreamId
from penstock.stream.ports import OWN_STREAM


class LogEntry(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One range of one stream in one object. An entry takes 60 to 100 bytes of memory for up to 64
    MiB of log.
    """

    start_offset: Offset
    end_offset: Offset
    object_id: ObjectId
    record_count: int
    size_bytes: int
    max_timestamp_ms: Millis
    stored_stream_id: StreamId = OWN_STREAM
