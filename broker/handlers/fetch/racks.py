"""Select a broker in the rack of a client for cold reads (KIP-392). Pure.

Every broker reads objects at the same cost, and traffic within a zone is free. Recent records,
however, are in the leader's memory long before they are in objects.
"""

from typing import Final
from uuid import UUID

from crc32c import crc32c

from penstock.base.ids import NodeId, Offset, StreamId
from penstock.controller.metadata.image import MetadataImage

COMMITTED_BYTES_MIN: Final = 1 << 20
"""Committed bytes required after an offset for a redirect. A redirect costs the client two more
requests: one now, and one when it returns at the end of the committed records.
"""

_RANGES_MAX: Final = 16


def broker_in_rack(
    image: MetadataImage, rack: str, topic_id: UUID, partition: int
) -> NodeId | None:
    """Return the live broker in this rack that serves cold reads of the partition, or None. As long
    as the set of brokers does not change, all readers in a rack are assigned the same broker, so
    that they share its block cache.
    """
    found = sorted(
        node.node_id
        for node in image.nodes
        if node.rack == rack and not node.fenced and not node.draining
    )
    if not found:
        return None
    return found[(crc32c(topic_id.bytes) + partition) % len(found)]


def is_far_behind(image: MetadataImage, data_stream_id: StreamId, offset: Offset) -> bool:
    """Return whether at least `COMMITTED_BYTES_MIN` or `_RANGES_MAX` ranges of the log after this
    offset are in objects. This takes a few microseconds.
    """
    stream = image.streams.get(data_stream_id)
    if stream is None or offset >= stream.end_offset:
        return False
    size_bytes = 0.0
    ranges = image.find_ranges(data_stream_id, offset, stream.end_offset, _RANGES_MAX)
    for source in ranges:
        part = source.range
        share = (part.end_offset - max(offset, part.start_offset)) / (
            part.end_offset - part.start_offset
        )
        size_bytes += share * part.size_bytes
    return size_bytes >= COMMITTED_BYTES_MIN or len(ranges) == _RANGES_MAX
