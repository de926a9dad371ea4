"""Types for ids, epochs and offsets, so that the type checker rejects, for example, a node epoch in
place of a stream epoch.

All are 64-bit signed on disk and on the wire, except for NodeId (32-bit). Offsets of a data stream
are Kafka offsets. Ranges are half-open.
"""

from typing import NewType

NodeId = NewType("NodeId", int)
NodeEpoch = NewType("NodeEpoch", int)
"""Identifies one start of a broker. It increases with every registration; older epochs of the same
node are fenced.
"""

StreamId = NewType("StreamId", int)
StreamEpoch = NewType("StreamEpoch", int)
"""The leader epoch of the partition whose leader opened the stream."""

ObjectId = NewType("ObjectId", int)
Offset = NewType("Offset", int)
WalSequence = NewType("WalSequence", int)
"""The number of a WAL slot of one (node, node epoch), contiguous from 0."""

WalStoreId = NewType("WalStoreId", int)
"""The number of a WAL store, counted from 1; 0 is the cluster's own store."""

Millis = NewType("Millis", int)
"""Wall-clock milliseconds since 1970, UTC."""
