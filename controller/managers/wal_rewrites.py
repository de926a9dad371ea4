"""Find ranges in WAL stores that no leader rewrites, because they belong to snapshots, to deleted
topics or to partitions without a leader.
"""

from bisect import bisect_right
from itertools import chain
from typing import Final

from penstock.base.ids import StreamId
from penstock.controller.metadata.image import MetadataImage

STREAMS_MAX: Final = 1_000
"""Maximum number of streams per job."""
FROM_START: Final = StreamId(-1)


def closed_in_wal_stores(
    image: MetadataImage, after: StreamId = FROM_START
) -> tuple[StreamId, ...]:
    """Return closed streams whose logs refer to WAL stores, at most `STREAMS_MAX`. They are sorted
    by id, starting after `after` and wrapping around to the lowest id. This takes O(n log n) for n
    streams in WAL stores.
    """
    ids = sorted(image.objects.streams_in_wal_stores())
    at = bisect_right(ids, after)
    found: list[StreamId] = []
    for stream_id in chain(ids[at:], ids[:at]):
        stream = image.streams.get(stream_id)
        if (
            stream is not None
            and not stream.opened
            and image.first_in_wal_store(stream_id) is not None
        ):
            found.append(stream_id)
            if len(found) == STREAMS_MAX:
                break
    return tuple(found)
