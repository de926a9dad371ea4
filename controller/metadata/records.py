"""The metadata records: what the controller's log holds and what the image adds up.

Records are facts, already validated by a manager; applying one cannot fail. Encoded as msgpack
arrays by `msgspec`: a tag (the record's name), then the fields in order. **Stored: never reuse a
tag, never reorder or remove a field; new fields go to the end with a default.**
Source: Kafka `metadata/src/main/resources/common/metadata/*.json` and AutoMQ's S3 records.
"""

from typing import NewType
from uuid import UUID

import msgspec

from base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
)

MetadataOffset = NewType("MetadataOffset", int)
"""Position in the metadata log; one per record, from 0."""

ControllerEpoch = NewType("ControllerEpoch", int)
"""Raft term of the active controller."""


class _Record(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base: frozen, encoded as [tag, field, field, ...]. Without cycles, so the collector need not
    look at them.
    """


class ClusterRecord(_Record, tag="cluster", frozen=True, gc=False):
    cluster_id: str


class TopicRecord(_Record, tag="topic", frozen=True, gc=False):
    topic_id: UUID
    name: str


class TopicRemoved(_Record, tag="topic-removed", frozen=True, gc=False):
    """Takes its partitions and configs with it. Streams are removed by their own records."""

    topic_id: UUID


class Move(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last planned change of a partition's leader. Under way until `elected_ms` is set. Times
    are the controller's.
    """

    source: NodeId
    """Who led when it began."""
    target: NodeId
    """Who is to lead; afterwards, who was elected."""
    started_ms: Millis
    deadline_ms: Millis
    """For people. The active controller fences a source by its own monotonic clock, from when it
    first saw the move.
    """
    elected_ms: Millis = Millis(0)
    leader_epoch: StreamEpoch = StreamEpoch(-1)
    """The leader epoch that the election began."""


class PartitionRecord(_Record, tag="partition", frozen=True, gc=False):
    """The whole state of one partition; a later record of the same partition replaces it.

    replicas: leader candidates in order, the first is preferred. leader -1 / leader_node_epoch -1:
    nobody leads. A broker may serve only if leader *and* leader_node_epoch are its own.
    """

    topic_id: UUID
    partition: int
    replicas: tuple[NodeId, ...]
    leader: NodeId
    leader_node_epoch: NodeEpoch
    leader_epoch: StreamEpoch
    meta_stream_id: StreamId
    data_stream_id: StreamId
    txn_stream_id: StreamId
    """What became of transactions, at the offsets of the data stream
    (`stream.format.transaction_log`). Empty until the first one.
    """
    target_replicas: tuple[NodeId, ...] | None = None
    """Set while the leader is being changed: the candidates afterwards. Nobody leads then, until
    the source has closed the streams.
    """
    move: Move | None = None

    @property
    def stream_ids(self) -> tuple[StreamId, StreamId, StreamId]:
        """Opened and closed together."""
        return self.meta_stream_id, self.data_stream_id, self.txn_stream_id


class NodeListener(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where the clients of one listener are told to go. host: as in NodeRecord."""

    name: str
    host: str
    port: int


class NodeRecord(_Record, tag="node", frozen=True, gc=False):
    """A broker's registration. Replaces the earlier one of the same node; a higher node_epoch
    fences the lower.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    incarnation_id: UUID
    host: str
    """Advertised host; empty: the local address of the client's own connection."""
    port: int
    machine_host: str
    """Address of this broker as its controller connection has it; tells which brokers share a
    machine.
    """
    rack: str | None
    fenced: bool
    draining: bool = False
    """It is about to leave: it is elected for nothing any more."""
    other_listeners: tuple[NodeListener, ...] = ()
    """All but the first, whose are `host` and `port`."""
    version: str = ""
    """Of the software that it runs, as it said itself."""
    wal_delete_grace_ms: int = 60_000
    """How long it keeps WAL slots after their commit."""


class NodeRemoved(_Record, tag="node-removed", frozen=True, gc=False):
    node_id: NodeId


class WalRecord(_Record, tag="wal", frozen=True, gc=False):
    """The WAL of one incarnation of a broker. Recovery starts at slot `committed`.

    recoverer: the (node, epoch) that was asked to recover it; -1 while its writer lives or nobody
    has been asked.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    committed: WalSequence
    recoverer: NodeId = NodeId(-1)
    recoverer_epoch: NodeEpoch = NodeEpoch(-1)


class WalEnded(_Record, tag="wal-ended", frozen=True, gc=False):
    """Recovered (or closed cleanly) up to `end`: nothing in this WAL matters any more except
    objects that ranges refer to.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    end: WalSequence


class StreamCreated(_Record, tag="stream", frozen=True, gc=False):
    """kind: "meta", "data", "txn". Created closed, epoch -1, at offset 0."""

    stream_id: StreamId
    topic_id: UUID
    partition: int
    kind: str


class StreamOpened(_Record, tag="stream-opened", frozen=True, gc=False):
    """Begins a new range of ownership at the stream's end (or keeps the current one, if owner and
    epoch are the same).
    """

    stream_id: StreamId
    epoch: StreamEpoch
    node_id: NodeId
    node_epoch: NodeEpoch


class StreamClosed(_Record, tag="stream-closed", frozen=True, gc=False):
    stream_id: StreamId
    epoch: StreamEpoch
    end_offset: Offset


class StreamTrimmed(_Record, tag="stream-trimmed", frozen=True, gc=False):
    """New start offset. Ranges of objects wholly below it are dropped, and with them references to
    objects.
    """

    stream_id: StreamId
    start_offset: Offset


class StreamRemoved(_Record, tag="stream-removed", frozen=True, gc=False):
    stream_id: StreamId


class RangeEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One stream's part of an object. Same fields as `stream.ports.StreamRange`."""

    stream_id: StreamId
    start_offset: Offset
    end_offset: Offset
    record_count: int
    size_bytes: int
    max_timestamp_ms: Millis


class ObjectPrepared(_Record, tag="object-prepared", frozen=True, gc=False):
    object_id: ObjectId
    key: str
    ttl_ms: int
    """It expires when it was prepared for so long; measured by the active controller's monotonic
    clock, anew by each leader.
    """
    offset: MetadataOffset
    """Where the log ended before the transaction that prepared it."""


class ObjectCommitted(_Record, tag="object", frozen=True, gc=False):
    """Adds the ranges to their streams and moves the streams' ends up to them (never down)."""

    object_id: ObjectId
    key: str
    role: int
    size_bytes: int
    committed_ms: Millis
    ranges: tuple[RangeEntry, ...]
    wal_node_id: NodeId = NodeId(-1)
    """For WAL objects committed in place: which slot of which WAL the object is."""
    wal_node_epoch: NodeEpoch = NodeEpoch(-1)
    wal_sequence: WalSequence = WalSequence(-1)


class RangesReplaced(_Record, tag="ranges-replaced", frozen=True, gc=False):
    """Compaction: these entries of one stream leave the index in favor of `object_id`, whose range
    is in `replacement`.
    """

    stream_id: StreamId
    removed_object_ids: tuple[ObjectId, ...]
    object_id: ObjectId
    replacement: RangeEntry


class ObjectDestroyed(_Record, tag="object-destroyed", frozen=True, gc=False):
    """Nothing refers to it; bytes are deleted from the store after the read grace."""

    object_id: ObjectId
    destroyed_ms: Millis
    """By the wall clock of the controller that led, for people: nothing is decided by it."""
    offset: MetadataOffset
    """Where the log ended before the transaction that destroyed it: a manifest of this end or a
    later one does not name it.
    """


class ObjectRemoved(_Record, tag="object-removed", frozen=True, gc=False):
    """The bytes are gone from the store."""

    object_id: ObjectId


class ProducerIdsAllocated(_Record, tag="producer-ids", frozen=True, gc=False):
    """Producer ids below `next_producer_id` belong to somebody."""

    next_producer_id: int


class IdsReserved(_Record, tag="ids", frozen=True, gc=False):
    """Ids below these were given out once. Only snapshots write it: what was removed since must not
    be named again.

    Elsewhere the counters follow from the records: highest id seen + 1. Node epochs are
    cluster-wide, so that the WAL prefix of a node that left and came back is always a new one.
    """

    next_stream_id: StreamId
    next_object_id: ObjectId
    next_node_epoch: NodeEpoch


class ConfigRecord(_Record, tag="config", frozen=True, gc=False):
    """One dynamic config. resource_type as in Kafka (2 topic, 4 broker); value None removes it."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


class KeyValueRecord(_Record, tag="kv", frozen=True, gc=False):
    """value None removes the key."""

    key: str
    value: bytes | None


Record = (
    ClusterRecord
    | TopicRecord
    | TopicRemoved
    | PartitionRecord
    | NodeRecord
    | NodeRemoved
    | WalRecord
    | WalEnded
    | StreamCreated
    | StreamOpened
    | StreamClosed
    | StreamTrimmed
    | StreamRemoved
    | ObjectPrepared
    | ObjectCommitted
    | RangesReplaced
    | ObjectDestroyed
    | ObjectRemoved
    | ProducerIdsAllocated
    | IdsReserved
    | ConfigRecord
    | KeyValueRecord
)
