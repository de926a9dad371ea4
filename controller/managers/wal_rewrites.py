"""Find ranges in WAL stores that no leader rewrites: those of snapshots, deleted topics and
partitions without a leader.
"""

from typing import Final

from penstock.base.ids import StreamId
from penstock.controller.metadata.image import MetadataImage

STREAMS_MAX: Final = 1_000
"""Streams of one job."""


def _refers(image: MetadataImage, stream_id: StreamId) -> bool:
    return image.first_in_wal_store(stream_id) is not None


def closed_in_wal_stores(image: MetadataImage) -> tuple[StreamId, ...]:
    """Return closed streams whose logs refer to WAL stores, at most `STREAMS_MAX`. O(streams in
    WAL stores).
    """
    found: list[StreamId] = []
    for stream_id in image.objects.streams_in_wal_stores():
        stream = image.streams.get(stream_id)
        if stream is not None and not stream.opened and _refers(image, stream_id):
            found.append(stream_id)
            if len(found) == STREAMS_MAX:
                break
    return tuple(found)
