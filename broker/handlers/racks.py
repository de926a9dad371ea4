"""Choose a broker in the rack of a client for reads that are cold here (KIP-392).

Every broker reads an object at the same cost, so nothing speaks for the leader then; bytes that
stay in a rack cost no transfer between zones. What the leader has in memory it serves itself: a
record is there long before it is in an object.
Invariant: only live brokers are named, and one partition's readers in one rack get the same one
while the brokers stay the same, so that its block cache helps them all. Pure.
Source: KIP-392; Kafka `RackAwareReplicaSelector`.
"""

from typing import Final
from uuid import UUID

from crc32c import crc32c

from penstock.base.ids import NodeId, Offset, StreamId
from penstock.controller.metadata.image import MetadataImage

COMMITTED_BYTES_MIN: Final = 1 << 20
"""How much of the log behind an offset must be in objects. A client that is sent away needs one
more request now, and one more when it comes back at the end of the committed part.
"""

_RANGES_MAX: Final = 16


def broker_in_rack(
    image: MetadataImage, rack: str, topic_id: UUID, partition: int
) -> NodeId | None:
    """Return the broker in this rack that serves cold reads of the partition, or None."""
    found = sorted(
        node.node_id
        for node in image.nodes
        if node.rack == rack and not node.fenced and not node.draining
    )
    if not found:
        return None
    return found[(crc32c(topic_id.bytes) + partition) % len(found)]


def is_far_behind(image: MetadataImage, data_stream_id: StreamId, offset: Offset) -> bool:
    """Return whether `COMMITTED_BYTES_MIN` of the log behind this offset are in objects, or all of
    `_RANGES_MAX` ranges. Costs a few microseconds.
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
