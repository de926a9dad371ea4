"""Names for the numbers that travel through the system, so that a node epoch is never passed as a
stream epoch.

All are 64-bit signed on disk and on the wire except NodeId (32-bit). Offsets of a data stream *are*
Kafka offsets. Ranges are half-open.
"""

from typing import NewType

NodeId = NewType("NodeId", int)
NodeEpoch = NewType("NodeEpoch", int)
"""One start of one broker. Grows with every registration; an older epoch of the same node is
fenced.
"""

StreamId = NewType("StreamId", int)
StreamEpoch = NewType("StreamEpoch", int)
"""The leader epoch of the partition whose leader opened the stream."""

ObjectId = NewType("ObjectId", int)
Offset = NewType("Offset", int)
WalSequence = NewType("WalSequence", int)
"""Number of a WAL slot of one (node, node epoch); contiguous from 0."""

Millis = NewType("Millis", int)
"""Wall-clock milliseconds since 1970, UTC."""
