"""The metadata records in the controller's log, from which the image is built. Managers have
validated them, so applying one cannot fail. **Stored: never reuse a tag, never reorder or remove a
field; new fields go to the end with a default.**
"""

from typing import NewType
from uuid import UUID

import msgspec

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
    WalStoreId,
)
from penstock.stream.ports import OWN_STREAM

MetadataOffset = NewType("MetadataOffset", int)
"""Position in the metadata log: the number of preceding records."""

ControllerEpoch = NewType("ControllerEpoch", int)
"""Raft term of the active controller."""


class _Record(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Base class of records: immutable, and encoded as [tag, field, field, ...].

    Records contain no cycles, so the garbage collector does not track them.
    """


class ClusterRecord(_Record, tag="cluster", frozen=True, gc=False):
    cluster_id: str
    """Name of the cluster, part of the keys of its metadata."""


class TopicRecord(_Record, tag="topic", frozen=True, gc=False):
    topic_id: UUID
    """Never reused, not even for a topic with the same name."""
    name: str
    """The topic's name, unique among topics that are not frozen."""


class TopicRemoved(_Record, tag="topic-removed", frozen=True, gc=False):
    """Removes a topic with its partitions and configs. Other records remove the streams."""

    topic_id: UUID
    """The removed topic."""


class GroupOffsets(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The committed offsets of a consumer group for one topic of a snapshot."""

    group: str
    """Id of the group."""
    offsets: tuple[tuple[int, Offset], ...]
    """By partition, in order; partitions without an offset are omitted."""


class FrozenTopicRecord(_Record, tag="frozen-topic", frozen=True, gc=False):
    """Creates an immutable topic that no broker serves: a snapshot topic, or a deleted topic that
    can be restored.

    The records of its partitions follow, without leaders. Other records create its streams.
    """

    topic_id: UUID
    """Id of the frozen topic. A snapshot topic has an id of its own."""
    name: str
    """Name of the topic, without the name of the snapshot."""
    snapshot: str
    """Name of the snapshot; empty for a deleted topic."""
    configs: tuple[tuple[str, str], ...]
    """Configs that were set, as pairs of name and value."""
    since_ms: Millis
    """Wall clock of the active controller, for information: no decision depends on it."""
    keep_ms: int
    """Time after which the topic is removed; -1: never.

    The active controller measures it with its monotonic clock; each new leader starts over.
    """
    offset: MetadataOffset
    """End of the log before the transaction that froze the topic."""
    group_offsets: tuple[GroupOffsets, ...] = ()
    """Committed group offsets when the snapshot was created, ordered by group name."""


class TopicDeleted(_Record, tag="topic-deleted", frozen=True, gc=False):
    """Turns a topic with its partitions, configs and streams into a frozen topic. Its leaders close
    the streams. The last three fields are those of FrozenTopicRecord.
    """

    topic_id: UUID
    """The topic that was deleted."""
    since_ms: Millis
    """Time of the deletion, for information."""
    keep_ms: int
    """How long the topic can be restored; -1: without a limit."""
    offset: MetadataOffset
    """End of the log before the transaction that deleted the topic."""


class TopicUndeleted(_Record, tag="topic-undeleted", frozen=True, gc=False):
    """Restores a deleted topic, under any name. The records of its partitions follow, and elect
    leaders.
    """

    topic_id: UUID
    """The deleted topic, which keeps its id."""
    name: str
    """Its new name."""


class FrozenTopicRemoved(_Record, tag="frozen-topic-removed", frozen=True, gc=False):
    """Removes a frozen topic with its partitions and configs. Other records remove the streams."""

    topic_id: UUID
    """The removed topic."""


class Move(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last planned change of a partition's leader. It is in progress until `elected_ms` is set.

    Times are from the controller's clock.
    """

    source: NodeId
    """The leader when the move began."""
    target: NodeId
    """The intended leader; after the election, the elected one."""
    started_ms: Millis
    """Start time of the move, for information."""
    deadline_ms: Millis
    """The deadline, for information only.

    The active controller fences a source according to its own monotonic clock, starting from the
    time at which it first saw the move.
    """
    elected_ms: Millis = Millis(0)
    """Time at which the target was elected; 0: not yet."""
    leader_epoch: StreamEpoch = StreamEpoch(-1)
    """The leader epoch that began with the election."""


class ForkPoint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The point at which a forked partition branches off from its source, and the state of the
    source's log that the first leader of the fork needs.
    """

    source_topic_id: UUID
    """The source topic of the fork, which may no longer exist."""
    end_offset: Offset
    """The part of the source's log below this offset also belongs to the fork."""
    scan_offset: Offset
    """No transaction that began below this offset was open at `end_offset`."""
    epochs: tuple[tuple[StreamEpoch, Offset], ...]
    """The newest leader epochs below `end_offset`, each with its start offset."""


class PartitionRecord(_Record, tag="partition", frozen=True, gc=False):
    """The whole state of one partition. A later record for the same partition replaces it.

    `replicas` lists the leader candidates in order; the first one is preferred. A `leader` and
    `leader_node_epoch` of -1 mean that there is no leader. A broker may serve the partition only if
    both leader and leader_node_epoch are its own.
    """

    topic_id: UUID
    """The topic of the partition."""
    partition: int
    """Number of the partition in its topic, from 0."""
    replicas: tuple[NodeId, ...]
    """Node ids of the candidates, the preferred leader first."""
    leader: NodeId
    """Node id of the leader; -1: none."""
    leader_node_epoch: NodeEpoch
    """Node epoch of the leader incarnation that may serve the partition; -1: none."""
    leader_epoch: StreamEpoch
    """Increases with each election. Also the stream epoch of the three streams."""
    meta_stream_id: StreamId
    """The stream of the partition's checkpoints."""
    data_stream_id: StreamId
    """The stream of the records, whose offsets are Kafka's."""
    txn_stream_id: StreamId
    """The stream of transaction outcomes, at the offsets of the data stream
    (`stream.format.transaction_log`).

    It is empty until the first transaction.
    """
    target_replicas: tuple[NodeId, ...] | None = None
    """The candidates after a leader change; set only while the change is in progress.

    The partition then has no leader until the source has closed the streams.
    """
    move: Move | None = None
    """The last planned leader change; nil: there was none."""
    fork: ForkPoint | None = None
    """Set if the partition began as a fork."""
    undeleted_epoch: StreamEpoch = StreamEpoch(-1)
    """The first leader epoch after the topic was last restored, or after the newest records were
    lost with a WAL store; -1: neither has happened. Transactions that were open at that time are
    aborted.
    """

    @property
    def stream_ids(self) -> tuple[StreamId, StreamId, StreamId]:
        """Return the ids of the streams, which are opened and closed together."""
        return self.meta_stream_id, self.data_stream_id, self.txn_stream_id


class NodeListener(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The advertised address of one listener. `host` has the same meaning as in NodeRecord."""

    name: str
    """Name of the listener in the broker's settings."""
    host: str
    """Advertised host."""
    port: int
    """Advertised TCP port."""


class FeatureRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The supported levels of one feature, both ends included."""

    name: str
    """Name of the feature, for example `transaction.version`."""
    min_level: int
    """Lowest supported level."""
    max_level: int
    """Highest supported level."""

    def contains(self, level: int) -> bool:
        return self.min_level <= level <= self.max_level

    @property
    def shown(self) -> str:
        """Return the range in the form of Kafka's error messages, for example `0-2`."""
        return f"{self.min_level}-{self.max_level}"


class NodeRecord(_Record, tag="node", frozen=True, gc=False):
    """A broker's registration. It replaces any earlier registration of the same node; a higher
    node_epoch fences a lower one.
    """

    node_id: NodeId
    """Id of the broker, which stays the same across restarts."""
    node_epoch: NodeEpoch
    """Number of this start, unique in the cluster."""
    incarnation_id: UUID
    """Generated by the broker at startup; a retried registration contains the same id."""
    host: str
    """Advertised host. If it is empty, clients use the local address of their own connection."""
    port: int
    """Advertised TCP port."""
    machine_host: str
    """Address of this broker on its controller connection. It identifies brokers that share a
    machine.
    """
    rack: str | None
    """Location of the broker (`broker.rack`); nil: unknown."""
    fenced: bool
    """Whether the broker is fenced: its session has ended, and it must not serve or lead any
    partition.
    """
    draining: bool = False
    """Whether the broker is about to leave and is no longer elected leader."""
    other_listeners: tuple[NodeListener, ...] = ()
    """All listeners except the first, which `host` and `port` describe."""
    version: str = ""
    """Version of the broker's software."""
    wal_delete_grace_ms: int = 60_000
    """How long the broker keeps WAL slots after their commit."""
    features: tuple[FeatureRange, ...] = ()
    """The features supported by the broker, without `wal.store.version` if its WAL store may have
    ended; none: the broker's version predates features.
    """


class NodeRemoved(_Record, tag="node-removed", frozen=True, gc=False):
    node_id: NodeId
    """The broker whose registration is removed."""


class WalRecord(_Record, tag="wal", frozen=True, gc=False):
    """The WAL of one incarnation of a broker. Recovery starts at slot `committed`.

    `recoverer` and `recoverer_epoch` identify the broker incarnation that must recover the WAL.
    Both are -1 while the writer is alive or no recoverer is assigned.
    """

    node_id: NodeId
    """Node id of the writer."""
    node_epoch: NodeEpoch
    """Node epoch of the writer."""
    committed: WalSequence
    """First slot that may contain uncommitted ranges; it never decreases."""
    recoverer: NodeId = NodeId(-1)
    """Node id of the broker that must recover the WAL; -1: none."""
    recoverer_epoch: NodeEpoch = NodeEpoch(-1)
    """Node epoch of the same broker; -1: none."""


class WalStoreRecord(_Record, tag="wal-store", frozen=True, gc=False):
    """Adds a WAL store, which becomes the current one: brokers open their WALs in it."""

    store_id: WalStoreId
    """Number of the store, from 1."""
    uuid: UUID
    """Identifies the store by its contents: the UUID in its identity object."""
    url: str
    """URL without credentials, for information: no process opens it."""


class WalStoreLost(_Record, tag="wal-store-lost", frozen=True, gc=False):
    """An operator has abandoned a WAL store: no process uses it again, regardless of its contents.
    Its WALs end at their committed slots.
    """

    store_id: WalStoreId
    """Number of the WAL store."""


class WalStoreDrain(_Record, tag="wal-store-drain", frozen=True, gc=False):
    """Brokers move their WALs from a WAL store to the cluster's own store, or back. Once nothing
    refers to the WAL store, it ends: no process uses it again.
    """

    store_id: WalStoreId
    """Number of the WAL store."""
    state: int
    """0: brokers open their WALs in it. 1: they move them to the cluster's own store. 2: it has
    ended.
    """


class WalPlaced(_Record, tag="wal-placed", frozen=True, gc=False):
    """The WAL is in this store from its committed slot on. Without this record, a WAL is in the
    cluster's own store.
    """

    node_id: NodeId
    """Node id of the writer."""
    node_epoch: NodeEpoch
    """Node epoch of the writer."""
    store_id: WalStoreId
    """The WAL store; 0: the cluster's own store."""
    left: tuple[WalStoreId, ...] = ()
    """Stores that may contain earlier slots."""


class WalEnded(_Record, tag="wal-ended", frozen=True, gc=False):
    """Ends a WAL that was recovered (or closed cleanly) up to `end`.

    It is no longer needed except for objects that ranges refer to.
    """

    node_id: NodeId
    """Node id of the writer."""
    node_epoch: NodeEpoch
    """Node epoch of the writer."""
    end: WalSequence
    """First slot without data; after a recovery it contains the fence."""


class WalRemoved(_Record, tag="wal-removed", frozen=True, gc=False):
    """Removes a WAL that ended long ago, after all its slots and its fence were deleted."""

    node_id: NodeId
    """Node id of the writer."""
    node_epoch: NodeEpoch
    """Node epoch of the writer."""


class StreamCreated(_Record, tag="stream", frozen=True, gc=False):
    """Creates a closed stream, with epoch -1, at offset 0. `kind` is "meta", "data" or "txn"."""

    stream_id: StreamId
    """Id of the stream, never used again."""
    topic_id: UUID
    """The topic that the stream belongs to."""
    partition: int
    """The partition that the stream belongs to."""
    kind: str
    """Its contents: `meta`, `data` or `txn`."""
    cleaned_end: Offset = Offset(0)
    """See `ranges-replaced`. Only snapshots set it."""


class StreamForked(_Record, tag="stream-forked", frozen=True, gc=False):
    """Copies the log of another stream up to `end_offset` to a new stream: the start offset, and
    the ranges with their object references.
    """

    stream_id: StreamId
    """The new stream, which is still empty."""
    source_id: StreamId
    """The stream whose log is copied."""
    end_offset: Offset
    """At most the committed end of the source, and not inside a batch."""
    with_kept: bool = False
    """Whether the fork starts with the retained records of the source, which are below the source's
    start.
    """


class StreamOpened(_Record, tag="stream-opened", frozen=True, gc=False):
    """Starts a new range of ownership at the stream's end, or keeps the current one if owner and
    epoch are the same.
    """

    stream_id: StreamId
    """The stream that is opened."""
    epoch: StreamEpoch
    """Stream epoch of the owner; commits with a lower epoch are rejected."""
    node_id: NodeId
    """Node id of the owner."""
    node_epoch: NodeEpoch
    """Node epoch of the owner."""


class StreamClosed(_Record, tag="stream-closed", frozen=True, gc=False):
    stream_id: StreamId
    """The closed stream: nothing can be committed until it is opened."""
    epoch: StreamEpoch
    """The stream epoch that ends."""
    end_offset: Offset
    """Committed end of the stream."""


class TrimGrace(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How long a fork can restore records removed by a trim.

    Its age is measured from `offset`, the end of the log before the trim. `since_ms` is the wall
    clock time of the active controller at the trim, for information only.
    """

    offset: MetadataOffset
    """End of the log before the transaction that trimmed."""
    since_ms: Millis
    """Time of the trim, for information."""
    keep_ms: int
    """How long the removed records are kept; -1: without a limit."""


class StreamTrimmed(_Record, tag="stream-trimmed", frozen=True, gc=False):
    """Sets a new start offset. Ranges of objects that lie completely below it are dropped, with
    their references to objects, or retained.
    """

    stream_id: StreamId
    """The stream that is trimmed."""
    start_offset: Offset
    """First remaining offset; it never decreases."""
    grace: TrimGrace | None = None
    """Set if the removed records are retained. Otherwise, records retained by earlier trims are
    dropped as well.
    """


class KeptLogDropped(_Record, tag="kept-log-dropped", frozen=True, gc=False):
    """Drops retained records removed by trims up to `end_offset`."""

    stream_id: StreamId
    """The stream whose retained records are dropped."""
    end_offset: Offset
    """Start of the stream after the last of these trims."""


class StreamRemoved(_Record, tag="stream-removed", frozen=True, gc=False):
    stream_id: StreamId
    """The removed stream, with its ranges and their references."""


class RangeEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One stream's part of an object: the fields of `stream.ports.StreamRange`, and the stream id
    under which the object contains the range (`stream.ports.ObjectRange`).
    """

    stream_id: StreamId
    """The stream that the range belongs to."""
    start_offset: Offset
    """Offset of the first record."""
    end_offset: Offset
    """Offset after the last record."""
    record_count: int
    """Number of records. After log compaction, this is less than the number of offsets."""
    size_bytes: int
    """Size of the range in the object, in bytes."""
    max_timestamp_ms: Millis
    """Highest max timestamp of the batches in the range; -1: no batch has one."""
    stored_stream_id: StreamId = OWN_STREAM
    """Stream id under which the object contains the range; -1: the stream's own id. A fork refers
    to the objects of its source.
    """


class ObjectPrepared(_Record, tag="object-prepared", frozen=True, gc=False):
    object_id: ObjectId
    """Id of the object, never used again."""
    key: str
    """Key of the object in the store."""
    ttl_ms: int
    """Time after which the prepared object expires.

    The active controller measures it with its monotonic clock; each new leader starts over.
    """
    offset: MetadataOffset
    """End of the log before the transaction that prepared the object."""


class ObjectCommitted(_Record, tag="object", frozen=True, gc=False):
    """Adds the ranges to their streams and advances the ends of the streams, which never
    decrease.
    """

    object_id: ObjectId
    """Id of the object."""
    key: str
    """Key of the object in the store."""
    role: int
    """Layout of the object: 1 WAL, 2 stream-set, 3 stream."""
    size_bytes: int
    """Size of the whole object, in bytes."""
    committed_ms: Millis
    """Time of the commit, for information."""
    ranges: tuple[RangeEntry, ...]
    """The committed ranges; the object may contain more."""
    wal_node_id: NodeId = NodeId(-1)
    """These three fields identify the WAL slot of the object; they are set for WAL objects
    committed in place.
    """
    wal_node_epoch: NodeEpoch = NodeEpoch(-1)
    """See wal node id; -1: no slot."""
    wal_sequence: WalSequence = WalSequence(-1)
    """See wal node id; -1: no slot."""


class RangesReplaced(_Record, tag="ranges-replaced", frozen=True, gc=False):
    """A compaction: entries of one stream are replaced in the index with `object_id`, whose range
    is `replacement`.
    """

    stream_id: StreamId
    """The stream whose ranges are replaced."""
    removed_object_ids: tuple[ObjectId, ...]
    """Objects that contained the range until now."""
    object_id: ObjectId
    """The object that contains the range from now on."""
    replacement: RangeEntry
    """The range in the new object."""
    cleaned_end: Offset = Offset(0)
    """Set by log compaction, which has removed records that are superseded by later records below
    this offset.
    """


class ObjectDestroyed(_Record, tag="object-destroyed", frozen=True, gc=False):
    """Destroys an object without references. Its bytes are deleted from the store after the read
    grace period.
    """

    object_id: ObjectId
    """The object without references."""
    destroyed_ms: Millis
    """Wall clock of the active controller, for information only."""
    offset: MetadataOffset
    """End of the log before the transaction that destroyed the object.

    A manifest of this end or a later one does not list the object.
    """


class ObjectRemoved(_Record, tag="object-removed", frozen=True, gc=False):
    """Removes an object whose bytes are deleted from the store."""

    object_id: ObjectId
    """The removed object."""


class ProducerIdsAllocated(_Record, tag="producer-ids", frozen=True, gc=False):
    """Marks producer ids below `next_producer_id` as allocated."""

    next_producer_id: int
    """Lowest producer id that is not allocated."""


class IdsReserved(_Record, tag="ids", frozen=True, gc=False):
    """Marks all ids below these as used. Written only by snapshots, because the ids of removed
    objects, streams and nodes must not be reused.

    Otherwise, the counters are derived from the records: the highest id so far + 1. Node epochs are
    cluster-wide, so that the WAL prefix of a node that left and returned is always new.
    """

    next_stream_id: StreamId
    """Stream ids below this are used."""
    next_object_id: ObjectId
    """Object ids below this are used."""
    next_node_epoch: NodeEpoch
    """Node epochs below this are used."""


class ConfigRecord(_Record, tag="config", frozen=True, gc=False):
    """One dynamic config. `resource_type` has Kafka's numbers (2 topic, 4 broker, 32 group); the
    empty broker name means all brokers. A `value` of None removes the config.
    """

    resource_type: int
    """2 topic, 4 broker, 32 group."""
    resource_name: str
    """Name of the topic or group, or node id in decimal; empty: all brokers."""
    name: str
    """Name of the config, for example `retention.ms`."""
    value: str | None
    """Value in Kafka's form; nil: the config is removed."""


class AclEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Allows or denies a principal from a host one operation on the resources that match a pattern.

    The numbers are Kafka's (`base.acls`).
    """

    resource_type: int
    """2 topic, 3 group, 4 cluster, 5 transactional id, 6 delegation token, 7 user."""
    pattern_type: int
    """3: the name of a resource, or `*` for all. 4: a prefix of names."""
    resource_name: str
    """Name or prefix; `kafka-cluster` for the cluster."""
    principal: str
    """For example `User:alice`; `User:*` for everyone."""
    host: str
    """Address of the client; `*` for all."""
    operation: int
    """2 all, 3 read, 4 write, 5 create, 6 delete, 7 alter, 8 describe, 9 cluster action, 10
    describe configs, 11 alter configs, 12 idempotent write, 13 create tokens, 14 describe tokens,
    15 two-phase commit.
    """
    permission: int
    """2 deny, 3 allow."""


class AclRecord(_Record, tag="acl", frozen=True, gc=False):
    """Adds an ACL."""

    acl: AclEntry
    """The added ACL."""


class AclRemoved(_Record, tag="acl-removed", frozen=True, gc=False):
    """Removes an ACL."""

    acl: AclEntry
    """The removed ACL, which must exist."""


class FeatureRecord(_Record, tag="feature", frozen=True, gc=False):
    """Finalizes the level of one feature; 0 disables it."""

    name: str
    """Name of the feature, for example `transaction.version`."""
    level: int
    """The new level."""
    topic_ids: bytes = b""
    """For an upgrade of `offsets.version`: the ids of all existing topics, including deleted ones,
    16 bytes each.
    """


class ScramCredentialRecord(_Record, tag="scram", frozen=True, gc=False):
    """Sets the SCRAM credential of a user for one mechanism."""

    user: str
    """Name of the user."""
    mechanism: int
    """Kafka's number: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""
    salt: bytes
    """Salt of the password."""
    stored_key: bytes
    """StoredKey of RFC 5802. Together with the salt and the iterations, it allows guessing
    passwords.
    """
    server_key: bytes
    """ServerKey of RFC 5802, which a server uses to prove that it has the credential."""
    iterations: int
    """Iterations of the hash, 4,096 to 16,384."""


class ScramCredentialRemoved(_Record, tag="scram-removed", frozen=True, gc=False):
    """Removes the SCRAM credential of a user for one mechanism."""

    user: str
    """Name of the user."""
    mechanism: int
    """Kafka's number, as in the record that set it."""


class DelegationTokenRecord(_Record, tag="delegation-token", frozen=True, gc=False):
    """Sets a delegation token (KIP-48). Brokers derive its secret from its id."""

    token_id: str
    """Unique id of the token."""
    owner: str
    """The principal of clients that log in with the token, for example `User:alice`."""
    requester: str
    """The principal that created the token."""
    renewers: tuple[str, ...]
    """Principals other than the owner that may renew and expire the token."""
    issue_ms: Millis
    """Creation time of the token."""
    expiry_ms: Millis
    """Time at which the token expires unless it is renewed."""
    max_ms: Millis
    """The latest expiry time that renewals can set."""


class DelegationTokenRemoved(_Record, tag="delegation-token-removed", frozen=True, gc=False):
    """Removes a delegation token."""

    token_id: str
    """Id of the token."""


class QuotaRecord(_Record, tag="quota", frozen=True, gc=False):
    """Sets or removes one quota of an entity."""

    entity: tuple["QuotaTarget", ...]
    """The components of the quota entity, ordered by type."""
    key: str
    """Kafka's name of the quota, for example `producer_byte_rate`."""
    value: float | None
    """The limit, in the unit of the quota; nil: the quota is removed."""


class QuotaTarget(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One component of a quota entity. A user with a client id has two."""

    type: str
    """`client-id`, `ip` or `user`."""
    name: str | None
    """Name of the user, client or address; nil: the default for all names without a quota of their
    own.
    """


class KeyValueRecord(_Record, tag="kv", frozen=True, gc=False):
    """Sets one key. A `value` of None removes the key."""

    key: str
    """Any name."""
    value: bytes | None
    """Any bytes; nil: the key is removed."""


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
    | WalStoreRecord
    | WalStoreLost
    | WalStoreDrain
    | WalPlaced
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
    | AclRecord
    | AclRemoved
    | ScramCredentialRecord
    | ScramCredentialRemoved
    | DelegationTokenRecord
    | DelegationTokenRemoved
    | QuotaRecord
    | KeyValueRecord
)
