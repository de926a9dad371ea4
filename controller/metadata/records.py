"""The metadata records: the controller's log holds them, and the image adds them up.

Records are facts that a manager has validated, so applying one cannot fail. `msgspec` encodes them
as msgpack arrays: a tag (the record's name), then the fields in order. **Records are stored: never
reuse a tag, never reorder or remove a field; new fields go to the end with a default.**
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
from stream.ports import OWN_STREAM

MetadataOffset = NewType("MetadataOffset", int)
"""Position in the metadata log, which counts records from 0."""

ControllerEpoch = NewType("ControllerEpoch", int)
"""Raft term of the active controller."""


class _Record(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base class of records: frozen, and encoded as [tag, field, field, ...].

    Records contain no cycles, so the garbage collector does not track them.
    """


class ClusterRecord(_Record, tag="cluster", frozen=True, gc=False):
    cluster_id: str


class TopicRecord(_Record, tag="topic", frozen=True, gc=False):
    topic_id: UUID
    name: str


class TopicRemoved(_Record, tag="topic-removed", frozen=True, gc=False):
    """Removes a topic with its partitions and configs. Other records remove the streams."""

    topic_id: UUID


class GroupOffsets(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The offsets that a consumer group had committed for one topic of a snapshot."""

    group: str
    offsets: tuple[tuple[int, Offset], ...]
    """By partition, in order; partitions without one are left out."""


class FrozenTopicRecord(_Record, tag="frozen-topic", frozen=True, gc=False):
    """Creates a topic that no broker serves and that does not change: a topic of a snapshot, or a
    deleted topic that can come back.

    The records of its partitions follow, without leaders. Other records create its streams.
    """

    topic_id: UUID
    name: str
    snapshot: str
    """Name of the snapshot; empty for a deleted topic."""
    configs: tuple[tuple[str, str], ...]
    since_ms: Millis
    """Wall clock of the active controller, for information: no decision depends on it."""
    keep_ms: int
    """Time after which the topic is removed, -1 for never.

    The active controller measures it by its monotonic clock, and each new leader starts again.
    """
    offset: MetadataOffset
    """End of the log before the transaction that froze the topic."""
    group_offsets: tuple[GroupOffsets, ...] = ()
    """What consumer groups had committed when the snapshot was created, in order of their names."""


class TopicDeleted(_Record, tag="topic-deleted", frozen=True, gc=False):
    """Makes a topic a frozen one, with its partitions, configs and streams. Its leaders close the
    streams. The last three fields are those of FrozenTopicRecord.
    """

    topic_id: UUID
    since_ms: Millis
    keep_ms: int
    offset: MetadataOffset


class TopicUndeleted(_Record, tag="topic-undeleted", frozen=True, gc=False):
    """Makes a deleted topic a normal one again, under any name. The records of its partitions
    follow, which elect leaders.
    """

    topic_id: UUID
    name: str


class FrozenTopicRemoved(_Record, tag="frozen-topic-removed", frozen=True, gc=False):
    """Removes a frozen topic with its partitions and configs. Other records remove the streams."""

    topic_id: UUID


class Move(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last planned change of a partition's leader. It is under way until `elected_ms` is set.

    Times come from the controller's clock.
    """

    source: NodeId
    """The leader when the move began."""
    target: NodeId
    """The intended leader; after the election, the elected one."""
    started_ms: Millis
    deadline_ms: Millis
    """The deadline, for information only.

    The active controller fences a source by its own monotonic clock, starting from when it first
    saw the move.
    """
    elected_ms: Millis = Millis(0)
    leader_epoch: StreamEpoch = StreamEpoch(-1)
    """The leader epoch that began with the election."""


class ForkPoint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a forked partition left its source, and what its first leader needs to know of the
    source's log.
    """

    source_topic_id: UUID
    end_offset: Offset
    """The source's log below this offset is the fork's as well."""
    scan_offset: Offset
    """No transaction that began below this offset was open at `end_offset`."""
    epochs: tuple[tuple[StreamEpoch, Offset], ...]
    """The leader epochs below `end_offset`, each with its start offset."""


class PartitionRecord(_Record, tag="partition", frozen=True, gc=False):
    """The whole state of one partition. A later record of the same partition replaces it.

    `replicas` lists the leader candidates in order; the first one is preferred. A `leader` and
    `leader_node_epoch` of -1 mean that there is no leader. A broker may serve the partition only if
    leader *and* leader_node_epoch are its own.
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
    """The stream of transaction outcomes, at the offsets of the data stream
    (`stream.format.transaction_log`).

    It is empty until the first transaction.
    """
    target_replicas: tuple[NodeId, ...] | None = None
    """The candidates after a change of leader; set only while the change is under way.

    The partition then has no leader until the source has closed the streams.
    """
    move: Move | None = None
    fork: ForkPoint | None = None
    """Set if the partition began as a fork."""
    undeleted_epoch: StreamEpoch = StreamEpoch(-1)
    """The first leader epoch since the topic last came back after its deletion; -1: it never did.
    Transactions that were open then are aborted.
    """

    @property
    def stream_ids(self) -> tuple[StreamId, StreamId, StreamId]:
        """Return the ids of the streams, which are opened and closed together."""
        return self.meta_stream_id, self.data_stream_id, self.txn_stream_id


class NodeListener(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The advertised address of one listener. `host` has the meaning that it has in NodeRecord."""

    name: str
    host: str
    port: int


class FeatureRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The levels of one feature that a node supports, both ends included."""

    name: str
    min_level: int
    max_level: int

    def contains(self, level: int) -> bool:
        return self.min_level <= level <= self.max_level

    @property
    def shown(self) -> str:
        """Return the range as in Kafka's error messages, for example `0-2`."""
        return f"{self.min_level}-{self.max_level}"


class NodeRecord(_Record, tag="node", frozen=True, gc=False):
    """A broker's registration. It replaces the earlier one of the same node; a higher node_epoch
    fences a lower one.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    incarnation_id: UUID
    host: str
    """Advertised host. If it is empty, clients use the local address of their own connection."""
    port: int
    machine_host: str
    """Address of this broker as its controller connection shows it. It identifies brokers that
    share a machine.
    """
    rack: str | None
    fenced: bool
    draining: bool = False
    """The broker is about to leave and is no longer elected leader of any partition."""
    other_listeners: tuple[NodeListener, ...] = ()
    """All listeners except the first, which `host` and `port` describe."""
    version: str = ""
    """Version of the broker's software, as the broker reported it."""
    wal_delete_grace_ms: int = 60_000
    """How long the broker keeps WAL slots after their commit."""
    features: tuple[FeatureRange, ...] = ()
    """The features that the broker supports; none: it is older than features."""


class NodeRemoved(_Record, tag="node-removed", frozen=True, gc=False):
    node_id: NodeId


class WalRecord(_Record, tag="wal", frozen=True, gc=False):
    """The WAL of one incarnation of a broker. Recovery starts at slot `committed`.

    `recoverer` and `recoverer_epoch` name the broker incarnation that has to recover the WAL. Both
    are -1 while the writer lives or no recoverer is chosen.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    committed: WalSequence
    recoverer: NodeId = NodeId(-1)
    recoverer_epoch: NodeEpoch = NodeEpoch(-1)


class WalEnded(_Record, tag="wal-ended", frozen=True, gc=False):
    """Ends a WAL that was recovered (or closed cleanly) up to `end`.

    Nothing in this WAL matters any more except objects that ranges refer to.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    end: WalSequence


class WalRemoved(_Record, tag="wal-removed", frozen=True, gc=False):
    """Forgets a WAL that ended long ago, after all its slots and its fence were deleted."""

    node_id: NodeId
    node_epoch: NodeEpoch


class StreamCreated(_Record, tag="stream", frozen=True, gc=False):
    """Creates a stream that is closed, with epoch -1, at offset 0. `kind` is "meta", "data" or
    "txn".
    """

    stream_id: StreamId
    topic_id: UUID
    partition: int
    kind: str


class StreamForked(_Record, tag="stream-forked", frozen=True, gc=False):
    """Gives a new stream the log of another one below `end_offset`: its start, and its ranges with
    their references to objects.
    """

    stream_id: StreamId
    source_id: StreamId
    end_offset: Offset
    """At most the committed end of the source, and no batch lies across it."""
    with_kept: bool = False
    """The fork begins where the source's kept log does, below its start."""


class StreamOpened(_Record, tag="stream-opened", frozen=True, gc=False):
    """Begins a new range of ownership at the stream's end, or keeps the current one if owner and
    epoch are the same.
    """

    stream_id: StreamId
    epoch: StreamEpoch
    node_id: NodeId
    node_epoch: NodeEpoch


class StreamClosed(_Record, tag="stream-closed", frozen=True, gc=False):
    stream_id: StreamId
    epoch: StreamEpoch
    end_offset: Offset


class TrimGrace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How long a fork can bring back what a trim cuts off.

    Its age is measured from `offset`, the end of the log before the trim. `since_ms` is the wall
    clock of the active controller then, for information only.
    """

    offset: MetadataOffset
    since_ms: Millis
    keep_ms: int


class StreamTrimmed(_Record, tag="stream-trimmed", frozen=True, gc=False):
    """Sets a new start offset. Ranges of objects that lie wholly below it are dropped, with their
    references to objects, or kept.
    """

    stream_id: StreamId
    start_offset: Offset
    grace: TrimGrace | None = None
    """Set if what it cuts off is kept. If not, what earlier trims cut off is dropped as well."""


class KeptLogDropped(_Record, tag="kept-log-dropped", frozen=True, gc=False):
    """Drops what trims up to `end_offset` cut off and kept."""

    stream_id: StreamId
    end_offset: Offset


class StreamRemoved(_Record, tag="stream-removed", frozen=True, gc=False):
    stream_id: StreamId


class RangeEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One stream's part of an object. It has the same fields as `stream.ports.StreamRange`, and the
    stream under which the object holds it (`stream.ports.ObjectRange`).
    """

    stream_id: StreamId
    start_offset: Offset
    end_offset: Offset
    record_count: int
    size_bytes: int
    max_timestamp_ms: Millis
    stored_stream_id: StreamId = OWN_STREAM


class ObjectPrepared(_Record, tag="object-prepared", frozen=True, gc=False):
    object_id: ObjectId
    key: str
    ttl_ms: int
    """Time after which the prepared object expires.

    The active controller measures it by its monotonic clock, and each new leader starts again.
    """
    offset: MetadataOffset
    """End of the log before the transaction that prepared the object."""


class ObjectCommitted(_Record, tag="object", frozen=True, gc=False):
    """Adds the ranges to their streams and moves the streams' ends up to them (never down)."""

    object_id: ObjectId
    key: str
    role: int
    size_bytes: int
    committed_ms: Millis
    ranges: tuple[RangeEntry, ...]
    wal_node_id: NodeId = NodeId(-1)
    """These three fields say which slot of which WAL the object is; they are set for WAL objects
    committed in place.
    """
    wal_node_epoch: NodeEpoch = NodeEpoch(-1)
    wal_sequence: WalSequence = WalSequence(-1)


class RangesReplaced(_Record, tag="ranges-replaced", frozen=True, gc=False):
    """Compacts: entries of one stream leave the index in favor of `object_id`, whose range is
    `replacement`.
    """

    stream_id: StreamId
    removed_object_ids: tuple[ObjectId, ...]
    object_id: ObjectId
    replacement: RangeEntry


class ObjectDestroyed(_Record, tag="object-destroyed", frozen=True, gc=False):
    """Destroys an object that has no references. Its bytes are deleted from the store after the
    read grace.
    """

    object_id: ObjectId
    destroyed_ms: Millis
    """Wall clock of the active controller, for information: no decision depends on it."""
    offset: MetadataOffset
    """End of the log before the transaction that destroyed the object.

    A manifest of this end or a later one does not name the object.
    """


class ObjectRemoved(_Record, tag="object-removed", frozen=True, gc=False):
    """Removes an object whose bytes are deleted from the store."""

    object_id: ObjectId


class ProducerIdsAllocated(_Record, tag="producer-ids", frozen=True, gc=False):
    """Marks producer ids below `next_producer_id` as allocated."""

    next_producer_id: int


class IdsReserved(_Record, tag="ids", frozen=True, gc=False):
    """Marks ids below these as used. Only snapshots write it, because ids of removed things must
    not be used again.

    Elsewhere the counters follow from the records: the highest id so far + 1. Node epochs are
    cluster-wide, so that the WAL prefix of a node that left and came back is always a new one.
    """

    next_stream_id: StreamId
    next_object_id: ObjectId
    next_node_epoch: NodeEpoch


class ConfigRecord(_Record, tag="config", frozen=True, gc=False):
    """One dynamic config. `resource_type` is Kafka's (2 topic, 4 broker, 32 group); the empty name
    of a broker stands for all of them. A `value` of None removes the config.
    """

    resource_type: int
    resource_name: str
    name: str
    value: str | None


class FeatureRecord(_Record, tag="feature", frozen=True, gc=False):
    """Finalizes the level of one feature; 0 switches it off."""

    name: str
    level: int


class KeyValueRecord(_Record, tag="kv", frozen=True, gc=False):
    """Sets one key. A `value` of None removes the key."""

    key: str
    value: bytes | None


Record = (
    ClusterRecord
    | TopicRecord
    | TopicRemoved
    | FrozenTopicRecord
    | TopicDeleted
    | TopicUndeleted
    | FrozenTopicRemoved
    | PartitionRecord
    | NodeRecord
    | NodeRemoved
    | WalRecord
    | WalEnded
    | WalRemoved
    | StreamCreated
    | StreamForked
    | StreamOpened
    | StreamClosed
    | StreamTrimmed
    | KeptLogDropped
    | StreamRemoved
    | ObjectPrepared
    | ObjectCommitted
    | RangesReplaced
    | ObjectDestroyed
    | ObjectRemoved
    | ProducerIdsAllocated
    | IdsReserved
    | ConfigRecord
    | FeatureRecord
    | KeyValueRecord
)
