"""Messages of the controller's gRPC services, encoded as msgpack with `msgspec`. See
docs/design/metadata.md.

A request has at most 4 MiB. The docstrings state the limits of its lists. Larger requests are
rejected with INVALID_REQUEST.
"""

from enum import IntEnum
from typing import Final, Generic, TypeVar
from uuid import UUID

import msgspec

from penstock.base.ids import (
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
    WalStoreId,
)
from penstock.controller.metadata.acls import AclFilter
from penstock.controller.metadata.records import (
    AclEntry,
    ControllerEpoch,
    FeatureRange,
    GroupOffsets,
    MetadataOffset,
    NodeListener,
    RangeEntry,
)
from penstock.stream.ports import IN_STORE, NO_OBJECT


class Status(IntEnum):
    """The reason why a request or one of its items was rejected. The numbers are part of the
    protocol and must never be reused.
    """

    OK = 0
    # This controller is not the active one. `detail` contains the address of the active one, if it
    # is known.
    NOT_LEADER = 1
    INVALID_REQUEST = 2
    # `controller_epoch` is the epoch in which this controller leads; the epoch in the attempt is
    # earlier.
    STALE_CONTROLLER_EPOCH = 3
    NODE_EPOCH_NOT_EXIST = 10
    NODE_EPOCH_EXPIRED = 11
    NODE_FENCED = 12
    NODE_IN_USE = 13
    STREAM_NOT_EXIST = 20
    STREAM_FENCED = 21
    STREAM_NOT_CLOSED = 22
    STREAM_NOT_OPENED = 23
    OFFSET_NOT_MATCHED = 24
    OBJECT_NOT_EXIST = 30
    COMPACTED_OBJECTS_NOT_FOUND = 31
    WAL_NOT_RECOVERABLE = 32
    TOPIC_EXISTS = 40
    UNKNOWN_TOPIC = 41
    INVALID_TOPIC_NAME = 42
    INVALID_PARTITIONS = 43
    INVALID_REPLICATION_FACTOR = 44
    INVALID_REPLICA_ASSIGNMENT = 45
    INVALID_CONFIG = 46
    DUPLICATE_IN_REQUEST = 47
    CONFIG_CHANGED = 48
    KEY_EXISTS = 50
    KEY_NOT_EXIST = 51
    CONTROLLER_BUSY = 60
    NO_REASSIGNMENT = 70
    ELECTION_NOT_NEEDED = 71
    PREFERRED_NOT_AVAILABLE = 72
    DUPLICATE_VOTER = 80
    VOTER_NOT_FOUND = 81
    CHANGE_PENDING = 82
    NO_MAJORITY = 83
    INVALID_FEATURE_LEVEL = 90
    DUPLICATE_RESOURCE = 110
    UNKNOWN_RESOURCE = 111
    UNACCEPTABLE_CREDENTIAL = 112
    UNSUPPORTED_MECHANISM = 113
    TOKEN_NOT_FOUND = 114
    TOKEN_OWNER_MISMATCH = 115
    TOKEN_EXPIRED = 116
    THROTTLING_QUOTA_EXCEEDED = 120
    PARTITION_LIMIT_REACHED = 121
    NOT_AUTHORIZED = 130


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base class of all messages. Decoders skip unknown fields, which newer nodes may send."""


class Requester(Message, frozen=True, kw_only=True):
    """The client of a forwarded request, as authenticated by the broker.

    principal: for example `User:alice`.
    """

    principal: str
    host: str
    broker_id: NodeId


class ForwardedMessage(Message, frozen=True, kw_only=True):
    """Base class of requests that brokers forward for clients. The controller authorizes the client
    again (`controller.active.forwarding`).
    """

    forwarded_for: Requester | None = None
    """None if the request was sent by an operator's command or by the broker on its own behalf."""


T = TypeVar("T")

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
"""Maximum number of partitions that one request may create or delete."""


class Reply(Message, Generic[T], frozen=True, kw_only=True):
    """Wraps the reply to every unary request. offset: the caller waits until its image contains
    everything below this metadata offset (read your writes); 0 for reads.
    """

    status: Status = Status.OK
    detail: str = ""
    offset: MetadataOffset = MetadataOffset(0)
    controller_epoch: ControllerEpoch = ControllerEpoch(0)
    value: T | None = None


class ItemResult(Message, frozen=True, kw_only=True):
    status: Status = Status.OK
    detail: str = ""


# --- nodes ----------------------------------------------------------------------------------------


class RegisterBroker(Message, frozen=True, kw_only=True):
    """Register a broker at its start. The same incarnation may repeat the request after a lost
    reply and receives the same reply.

    node_id -1: the controller assigns the lowest free id. Another incarnation of the same node
    fences the earlier one, whose WAL is then recovered.
    """

    node_id: NodeId
    incarnation_id: UUID
    host: str
    port: int
    machine_host: str
    rack: str | None = None
    other_listeners: tuple[NodeListener, ...] = ()
    """All listeners except the first one, which `host` and `port` describe. At most 16."""
    version: str = ""
    wal_delete_grace_ms: int = 60_000
    """How long the broker keeps WAL slots after their commit, because readers of the store may
    still need them.
    """
    features: tuple[FeatureRange, ...] = ()
    """Features supported by the broker, at most 100. Older versions send none."""
    wal_store_id: WalStoreId = IN_STORE
    """Id of the WAL store. The broker has read it from the identity object, together with the
    UUID.
    """
    wal_store_uuid: UUID | None = None
    wal_store_url: str = ""
    """URL of the configured WAL store, without credentials."""
    is_wal_store_down: bool = False
    """Whether the broker cannot reach its WAL store and therefore opens its first WAL in the
    cluster's own store.
    """
    is_without_wal_store: bool = False
    """Whether the broker is configured without a WAL store, which is allowed after the cluster has
    abandoned its WAL store.
    """
    next_node_epoch: NodeEpoch | None = None
    """The `MetadataConfirmed.next_node_epoch` received by this start of the broker. If the node has
    registered with this epoch or a later one, this request is late and is rejected. Older versions
    send None.
    """


class BrokerRegistered(Message, frozen=True, kw_only=True):
    node_id: NodeId
    node_epoch: NodeEpoch
    cluster_id: str


class UnregisterBroker(Message, frozen=True, kw_only=True):
    """Unregister a broker that has closed its streams. Other brokers lead its partitions, and its
    WAL needs no recovery. Reply: Progress.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    wal_end: WalSequence


class RemoveBroker(ForwardedMessage, frozen=True, kw_only=True):
    """Remove the registration of a dead broker that will not start again. Reply: no value."""

    node_id: NodeId


class AbandonWalStore(Message, frozen=True, kw_only=True):
    """Abandon a lost WAL store, with all data that is only in this store. Reply: no value.

    uuid: UUID of the store, so that a command for one store never applies to another.
    """

    store_id: WalStoreId
    uuid: UUID


class DrainWalStore(Message, frozen=True, kw_only=True):
    """Move the WALs from a WAL store to the cluster's own store, and end the WAL store once nothing
    refers to it. Reply: Progress with the number of WALs and objects left in it; repeat until none
    remain.

    uuid: UUID of the store. is_undone: stop draining and use the store again. is_repeated: do
    nothing if the store is in use again.
    """

    store_id: WalStoreId
    uuid: UUID
    is_undone: bool = False
    is_repeated: bool = False


class Progress(Message, frozen=True, kw_only=True):
    """The reply to a request that takes several transactions. Repeat the request until nothing
    remains.
    """

    remaining: int


# --- the metadata stream (bidirectional; it is the broker's session) ------------------------------


class FollowRequest(Message, frozen=True, kw_only=True):
    """Start a stream, or send a heartbeat. The first message contains the follower and the first
    offset, later messages contain the applied offset.

    node_id -1: an observer (a command, another controller) without a session. attempt: sequence
    number of the stream, counted by the follower, because the first message of an earlier stream
    may arrive after that of a later one.
    """

    node_id: NodeId = NodeId(-1)
    node_epoch: NodeEpoch = NodeEpoch(-1)
    attempt: int = 0
    from_offset: MetadataOffset = MetadataOffset(0)
    applied_offset: MetadataOffset = MetadataOffset(0)
    heartbeat: int = 0
    """Sequence number of this message on its stream, from 1. The controller returns the last one
    that it received.
    """


class MetadataBatch(Message, frozen=True, kw_only=True):
    """Committed records [base_offset, base_offset + len(records)). A batch without records is a
    heartbeat.

    reset: clear the image first. The batches from this one up to the first one without `snapshot`
    are a snapshot as of `base_offset`.
    """

    base_offset: MetadataOffset
    end_offset: MetadataOffset
    controller_epoch: ControllerEpoch
    records: list[msgspec.Raw] = []
    snapshot: bool = False
    reset: bool = False
    controllers: list[str] = []
    """Addresses of all controllers, sent at the start of a stream and after a change; otherwise
    empty.
    """

    heard: int = 0
    """Last heartbeat that the controller had received. The follower's session lasts for at least
    the session timeout after that heartbeat was *sent*.
    """
    session_timeout_ms: int = 0
    """How long the session of a silent follower lasts. The follower's lease ends earlier. 0 if this
    message does not contain the timeout.
    """
    session_grace_ms: int = 0
    """How long the session lasts after its stream breaks."""
    backup_offset: MetadataOffset = MetadataOffset(0)
    """End of the metadata in the backup, or 0 if it is unknown. Data that records below this offset
    made obsolete may be deleted.
    """


# --- streams and objects --------------------------------------------------------------------------


class OpenStreamItem(Message, frozen=True, kw_only=True):
    stream_id: StreamId
    epoch: StreamEpoch


class OpenStreams(Message, frozen=True, kw_only=True):
    """Open streams, at most 2,000."""

    node_id: NodeId
    node_epoch: NodeEpoch
    items: list[OpenStreamItem]


class OpenedStreamItem(Message, frozen=True, kw_only=True):
    status: Status = Status.OK
    detail: str = ""
    start_offset: Offset = Offset(0)
    end_offset: Offset = Offset(0)


class StreamsOpened(Message, frozen=True, kw_only=True):
    items: list[OpenedStreamItem]


class TrimStream(Message, frozen=True, kw_only=True):
    """Advance the start of a stream. keep: whether to retain the removed part of a data stream
    until the grace period of the topic ends, so that it can be restored; the part must be
    committed. The txn stream is retained like its data stream.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    stream_id: StreamId
    epoch: StreamEpoch
    start_offset: Offset
    keep: bool = False


class PrepareObjects(Message, frozen=True, kw_only=True):
    """Prepare objects. count: at most 1,000."""

    node_id: NodeId
    node_epoch: NodeEpoch
    count: int


class PreparedItem(Message, frozen=True, kw_only=True):
    object_id: ObjectId
    key: str


class ObjectsPrepared(Message, frozen=True, kw_only=True):
    items: list[PreparedItem]


class CommitObject(Message, frozen=True, kw_only=True):
    object_id: ObjectId | None
    key: str
    role: int
    size_bytes: int
    ranges: list[RangeEntry]


class CloseItem(Message, frozen=True, kw_only=True):
    stream_id: StreamId
    epoch: StreamEpoch
    end_offset: Offset


class ReplacedItem(Message, frozen=True, kw_only=True):
    stream_id: StreamId
    object_id: ObjectId
    start_offset: Offset
    end_offset: Offset


class Commit(Message, frozen=True, kw_only=True):
    """The message for `stream.ports.CommitObjects`: one transaction with at most 20,000 ranges and
    2,000 closes. cleaned_end, tombstones_kept_ms: see `CommitObjects`; 0 and None if the commit
    removes no records. Older versions send no tombstones_kept_ms.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    objects: list[CommitObject] = []
    replaced: list[ReplacedItem] = []
    cleaned_end: Offset = Offset(0)
    tombstones_kept_ms: int | None = None
    closes: list[CloseItem] = []
    wal_committed: WalSequence | None = None
    moves_wal: bool = False
    """Whether slots from `wal_committed` on are in the store `wal_store_id`."""
    wal_store_id: WalStoreId = IN_STORE
    wal_store_uuid: UUID | None = None


class CommitRecovered(Message, frozen=True, kw_only=True):
    """Commit the WAL of a dead writer (failed_*) on behalf of its recoverer (node_id, node_epoch).
    See `StreamMetadata.commit_recovered`. Reply: Progress.

    A request has at most 1,000 objects. Requests are sent in slot order, and the last one has
    `done` set. held: data streams of partitions that stay without a leader, because lost or damaged
    slots may affect them. The WAL only ends when no partition is held.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    failed_node_id: NodeId
    failed_node_epoch: NodeEpoch
    objects: list[CommitObject] = []
    done: bool = False
    end: WalSequence = WalSequence(0)
    held: list[StreamId] = []


# --- topics, configs, key/value, producer ids -----------------------------------------------------


class ForkedPartition(Message, frozen=True, kw_only=True):
    """The fork point of one partition, as determined by the leader of the source: see
    `records.ForkPoint`. Everything below the end offsets is committed, and no batch spans them.
    """

    end_offset: Offset
    scan_offset: Offset
    txn_end_offset: Offset
    """End of the fork's txn stream, at most `end_offset`."""
    epochs: list[tuple[StreamEpoch, Offset]] = []
    object_id: ObjectId = NO_OBJECT
    """Object whose range contains `end_offset`: see `stream.ports.CommittedBorder`."""


class TopicFork(Message, frozen=True, kw_only=True):
    """The source of a fork, and the fork points of its partitions, in order. with_kept: whether the
    fork starts with retained records that DeleteRecords removed from the source.
    """

    source_topic_id: UUID
    partitions: list[ForkedPartition]
    with_kept: bool = False


class NewTopic(Message, frozen=True, kw_only=True):
    """A new topic. partitions, replication_factor: -1 for the cluster's defaults. assignment:
    explicit candidates of each partition, in order. fork: the source whose log and configs are
    copied; `configs` overrides these configs.

    A name with `@` creates a snapshot topic, which is frozen. It requires `fork`, and
    `group_offsets` are stored with it.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: list[list[NodeId]] | None = None
    configs: dict[str, str | None] = {}
    fork: TopicFork | None = None
    group_offsets: list[GroupOffsets] = []


class QuotaClient(Message, frozen=True, kw_only=True):
    """The client whose mutation quota applies. is_strict: whether the client supports the quota
    error, so that items beyond the quota are rejected; otherwise they are accepted and the client
    is throttled.
    """

    user: str
    client_id: str
    is_strict: bool


class CreateTopics(ForwardedMessage, frozen=True, kw_only=True):
    """Create topics, with at most `PARTITIONS_PER_REQUEST_MAX` partitions. Snapshot topics are
    created together or not at all. validate_only: the request still counts toward the client's
    quota, as in Kafka.
    """

    topics: list[NewTopic]
    validate_only: bool = False
    client: QuotaClient | None = None
    """None if no quota applies."""


class CreatedTopic(Message, frozen=True, kw_only=True):
    name: str
    status: Status = Status.OK
    detail: str = ""
    topic_id: UUID | None = None
    partitions: int = -1
    replication_factor: int = -1


class TopicsCreated(Message, frozen=True, kw_only=True):
    topics: list[CreatedTopic]
    throttle_ms: int = 0
    """Throttle time of the client."""


class DeleteTopics(ForwardedMessage, frozen=True, kw_only=True):
    """Delete topics. purged_ids: ids in `topic_ids` of deleted topics that are removed permanently.
    Repeating a request does not remove a topic permanently.
    """

    topic_ids: list[UUID]
    purged_ids: list[UUID] = []
    client: QuotaClient | None = None
    """See CreateTopics."""


class ItemResults(Message, frozen=True, kw_only=True):
    items: list[ItemResult]
    throttle_ms: int = 0
    """Throttle time of the client, if the request contains a client."""


class NewPartitions(Message, frozen=True, kw_only=True):
    """Partitions to add. total: the new number of partitions. assignment: candidates of the added
    partitions.
    """

    name: str
    total: int
    assignment: list[list[NodeId]] | None = None


class CreatePartitions(ForwardedMessage, frozen=True, kw_only=True):
    topics: list[NewPartitions]
    validate_only: bool = False
    client: QuotaClient | None = None
    """See CreateTopics."""


class PartitionTarget(Message, frozen=True, kw_only=True):
    """The new candidates of a partition, in order. replicas None: cancel the reassignment and
    restore the earlier candidates.
    """

    topic: str
    partition: int
    replicas: list[NodeId] | None = None


class AlterReassignments(ForwardedMessage, frozen=True, kw_only=True):
    """Reassign at most 2,000 partitions. The reply contains one ItemResult per partition and is
    sent as soon as the moves have started. may_resize: whether the number of candidates may change
    (KIP-860).
    """

    partitions: list[PartitionTarget]
    may_resize: bool = True


class PartitionName(Message, frozen=True, kw_only=True):
    topic: str
    partition: int


class ElectPreferred(ForwardedMessage, frozen=True, kw_only=True):
    """Move each of at most 2,000 partitions to its first candidate. The reply contains one
    ItemResult per partition.
    """

    partitions: list[PartitionName]


class DrainBroker(Message, frozen=True, kw_only=True):
    """Drain a broker before it stops: it is no longer elected leader of any partition, and some of
    its partitions move to other brokers. Reply: Progress.

    remaining: number of partitions that the broker leads and that are not moving yet, or 0 if no
    other broker can lead any of them. partitions_max: at most 2,000.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    partitions_max: int


class MoveTiming(Message, frozen=True, kw_only=True):
    """Duration of the steps of one move on one broker, in milliseconds since this broker detected
    the change, according to its own clock.

    leader_epoch: the leader epoch before the move. gave_up: whether the broker is the source
    instead of the target. steps: duration of each step by its name.
    """

    topic_id: UUID
    partition: int
    leader_epoch: StreamEpoch
    gave_up: bool
    steps: dict[str, float]


class ReportMoves(Message, frozen=True, kw_only=True):
    """Report at most 2,000 moves for `penstock reassign trace`. Only the active controller stores
    them, in memory.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    items: list[MoveTiming]


class TraceMove(Message, frozen=True, kw_only=True):
    topic_id: UUID
    partition: int


class MoveTrace(Message, frozen=True, kw_only=True):
    node_id: NodeId
    received_ms: int
    timing: MoveTiming


class MoveTraces(Message, frozen=True, kw_only=True):
    """The last known moves of one partition, oldest first."""

    items: list[MoveTrace]


class ConfigChange(Message, frozen=True, kw_only=True):
    """Changes one config. derived_from: the stored value from which `value` was derived. If the
    stored value differs, the change is rejected with CONFIG_CHANGED.
    """

    resource_type: int
    resource_name: str
    name: str
    value: str | None
    derived_from: str | msgspec.UnsetType | None = msgspec.UNSET


class ConfiguredResource(Message, frozen=True, kw_only=True):
    """A resource with configs. The type is Kafka's number."""

    resource_type: int
    resource_name: str


class AlterConfigs(ForwardedMessage, frozen=True, kw_only=True):
    """Change configs. The changes of each resource are either all made or all rejected.

    replaced_topics: topics whose other configs are reset. replaced: other resources whose configs
    are reset. The reply contains the results of the changes, of the topics and of the resources, in
    this order.
    """

    changes: list[ConfigChange]
    validate_only: bool = False
    replaced_topics: list[str] = []
    replaced: list[ConfiguredResource] = []


class FeatureUpdate(Message, frozen=True, kw_only=True):
    """Set the level of one feature. type: 1 upgrade, 2 safe downgrade, 3 unsafe downgrade."""

    name: str
    level: int
    type: int


class UpdateFeatures(ForwardedMessage, frozen=True, kw_only=True):
    """Set the levels of at most 1,000 features, either all of them or none. Reply: no value."""

    updates: list[FeatureUpdate]
    validate_only: bool = False


class CreateAcls(ForwardedMessage, frozen=True, kw_only=True):
    """Add at most 10,000 ACLs. Reply: ItemResults, one per ACL."""

    acls: list[AclEntry]


class DeleteAcls(ForwardedMessage, frozen=True, kw_only=True):
    """Remove the ACLs that match the filters: at most 1,000 filters and 10,000 ACLs. Reply:
    AclsDeleted.
    """

    filters: list[AclFilter]


class DeletedAcls(Message, frozen=True, kw_only=True):
    """The ACLs that one filter removed."""

    status: Status = Status.OK
    detail: str = ""
    acls: list[AclEntry] = []


class AclsDeleted(Message, frozen=True, kw_only=True):
    items: list[DeletedAcls]


class AllocateProducerIds(Message, frozen=True, kw_only=True):
    """Allocate a block of 1,000 producer ids."""

    node_id: NodeId
    node_epoch: NodeEpoch


class ProducerIdBlock(Message, frozen=True, kw_only=True):
    first_producer_id: int
    count: int


class PutKeyValue(Message, frozen=True, kw_only=True):
    key: str
    value: bytes
    if_absent: bool = False


class GetKeyValue(Message, frozen=True, kw_only=True):
    key: str


class DeleteKeyValue(Message, frozen=True, kw_only=True):
    key: str


class KeyValue(Message, frozen=True, kw_only=True):
    key: str
    value: bytes | None


class ConfirmMetadata(Message, frozen=True, kw_only=True):
    """Request the end of all metadata committed before the request, without changing anything.
    Reply: MetadataConfirmed.
    """


class MetadataConfirmed(Message, frozen=True, kw_only=True):
    next_node_epoch: NodeEpoch
    """Epoch of the next broker that registers."""


class DescribeController(Message, frozen=True, kw_only=True):
    pass


class ControllerStatus(Message, frozen=True, kw_only=True):
    cluster_id: str
    controller_id: int
    controller_epoch: ControllerEpoch
    committed_offset: MetadataOffset
    active: bool
    leader: str = ""
    """Address of the active controller. Empty if it is unknown or there is no other controller."""

    role: str = ""
    """leader, voter or learner; outside for a controller that is not (or no longer) a member of the
    quorum.
    """

    directory_id: str = ""
    address: str = ""
    members: list[str] = []
    """Addresses of all controllers known to this one."""

    version: str = ""
    """Software version of this controller."""

    now_ms: int = 0
    """Wall clock of this controller at the time of the reply."""


# --- the quorum itself ----------------------------------------------------------------------------


class DescribeQuorum(Message, frozen=True, kw_only=True):
    """Describe the quorum. The leader handles this request. Reply: QuorumStatus."""


class AddLearner(Message, frozen=True, kw_only=True):
    """Add a controller with an empty directory as a learner. Reply: ItemResult."""

    node_id: int
    address: str
    directory_id: str


class AddVoter(Message, frozen=True, kw_only=True):
    """Make a learner a voter once it has caught up. If it has not, the request is rejected with
    CONTROLLER_BUSY and can be retried. Reply: ItemResult.

    controller: id or address of the learner.
    """

    controller: str


class RemoveController(Message, frozen=True, kw_only=True):
    """Remove a voter or learner from the quorum. A leader that is removed transfers leadership
    first. Reply: ItemResult.
    """

    node_id: int


class TransferLeadership(Message, frozen=True, kw_only=True):
    """Transfer leadership to another voter; -1 selects the one with the longest log. Reply:
    ItemResult.
    """

    node_id: int = -1


class QuorumMember(Message, frozen=True, kw_only=True):
    """A member of the quorum, as seen by the leader. log_end, lag: in entries. last_*_ms: time
    since the event, in milliseconds; -1 if it never happened.
    """

    node_id: int
    address: str
    directory_id: str
    is_voter: bool
    log_end: int
    lag: int
    last_fetch_ms: int
    last_caught_up_ms: int
    fsync_p99_us: int
    """p99 of fsync on the member's journal, or 0 if unknown."""


class QuorumStatus(Message, frozen=True, kw_only=True):
    """The state of the quorum. high_watermark, log_end: indexes of entries, each of which contains
    many records. version: version of the member list.
    """

    cluster_id: str
    leader_id: int
    leader_epoch: ControllerEpoch
    high_watermark: int
    log_end: int
    committed_offset: MetadataOffset
    version: int
    is_changing: bool
    """Whether a membership change is pending."""

    members: list[QuorumMember]
