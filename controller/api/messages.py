"""Messages of the controller's gRPC services, encoded as msgpack by `msgspec`
(docs/design/metadata.md).

Requests have at most 4 MiB; each list has the limit noted at its field. Larger ones are rejected
with INVALID_REQUEST.
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
    """Why a request, or one of its items, was rejected. The numbers are part of the protocol: never
    reuse one.
    """

    OK = 0
    # this controller is not the active one; `detail` contains the address of the active one, if
    # known
    NOT_LEADER = 1
    INVALID_REQUEST = 2
    # the attempt contains an earlier epoch than `controller_epoch`, in which this controller leads
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
    """Base of all messages. Decoders skip unknown fields of newer peers."""


class Requester(Message, frozen=True, kw_only=True):
    """The client of a forwarded request, as authenticated by the broker.

    principal: as `User:alice`.
    """

    principal: str
    host: str
    broker_id: NodeId


class ForwardedMessage(Message, frozen=True, kw_only=True):
    """Base of requests that brokers forward for clients. The controller authorizes this client
    again (`controller.active.forwarding`).
    """

    forwarded_for: Requester | None = None
    """None: from an operator's command, or from a broker for its own needs."""


T = TypeVar("T")

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
"""Partitions that one request creates or deletes."""


class Reply(Message, Generic[T], frozen=True, kw_only=True):
    """Wraps every unary reply. offset: metadata offset (exclusive) that the caller's image must
    reach (read your writes); 0 for reads.
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
    """Register the start of a broker. The same incarnation (after a lost reply) gets the same
    reply.

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
    """Other listeners; the first one is `host` and `port`. At most 16."""
    version: str = ""
    wal_delete_grace_ms: int = 60_000
    """How long the broker keeps WAL slots after their commit, for readers of the store."""
    features: tuple[FeatureRange, ...] = ()
    """The features that the broker supports, at most 100. Older versions send none."""
    wal_store_id: WalStoreId = IN_STORE
    """The WAL store in whose identity object the broker found this id and this UUID."""
    wal_store_uuid: UUID | None = None
    wal_store_url: str = ""
    """The URL of the configured WAL store, without credentials."""
    is_wal_store_down: bool = False
    """The broker cannot reach its WAL store, and begins with a WAL in the cluster's own store."""
    is_without_wal_store: bool = False
    """The broker has no WAL store, which is allowed after the cluster has abandoned its own."""


class BrokerRegistered(Message, frozen=True, kw_only=True):
    node_id: NodeId
    node_epoch: NodeEpoch
    cluster_id: str


class UnregisterBroker(Message, frozen=True, kw_only=True):
    """Unregister a broker that has closed its streams: others lead its partitions, and its WAL
    needs no recovery. -> Progress.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    wal_end: WalSequence


class RemoveBroker(ForwardedMessage, frozen=True, kw_only=True):
    """Remove the registration of a dead broker that will not start again. -> no value."""

    node_id: NodeId


class AbandonWalStore(Message, frozen=True, kw_only=True):
    """Abandon a WAL store that is lost, with everything that only it contains. -> no value.

    uuid: of the store, so that a command for one store never applies to another.
    """

    store_id: WalStoreId
    uuid: UUID


class DrainWalStore(Message, frozen=True, kw_only=True):
    """Move the WALs from a WAL store to the cluster's own one, and end the WAL store once nothing
    refers to it. -> Progress: WALs and objects left in it; repeat until nothing remains.

    uuid: of the store. is_undone: use it again instead. is_repeated: change nothing if the store is
    used again meanwhile.
    """

    store_id: WalStoreId
    uuid: UUID
    is_undone: bool = False
    is_repeated: bool = False


class Progress(Message, frozen=True, kw_only=True):
    """The reply to a request that is split into transactions: repeat the request until nothing
    remains.
    """

    remaining: int


# --- the metadata stream (bidirectional; it is the broker's session) ------------------------------


class FollowRequest(Message, frozen=True, kw_only=True):
    """Start a stream, or send a heartbeat. The first message contains the follower and the first
    offset; later ones the applied offset.

    node_id -1: an observer (CLI, another controller) without a session. attempt: number of the
    stream among those of this follower. The first message of an earlier stream may arrive after
    that of a later one.
    """

    node_id: NodeId = NodeId(-1)
    node_epoch: NodeEpoch = NodeEpoch(-1)
    attempt: int = 0
    from_offset: MetadataOffset = MetadataOffset(0)
    applied_offset: MetadataOffset = MetadataOffset(0)
    heartbeat: int = 0
    """Number of this message on its stream, from 1; the controller returns the last one it
    received.
    """


class MetadataBatch(Message, frozen=True, kw_only=True):
    """Committed records [base_offset, base_offset + len(records)). Empty: a heartbeat.

    reset: empty the image first; the batches from this one to the first one without `snapshot` are
    a snapshot as of `base_offset`.
    """

    base_offset: MetadataOffset
    end_offset: MetadataOffset
    controller_epoch: ControllerEpoch
    records: list[msgspec.Raw] = []
    snapshot: bool = False
    reset: bool = False
    controllers: list[str] = []
    """Addresses of all controllers, at the start of a stream and after a change; empty:
    unchanged.
    """

    heard: int = 0
    """Last heartbeat received when this was sent: the follower's session lasts at least from the
    time at which that heartbeat was *sent*.
    """
    session_timeout_ms: int = 0
    """How long the session of a silent follower lasts; the follower's lease ends earlier. 0: not in
    this message.
    """
    session_grace_ms: int = 0
    """How long the session lasts after the stream broke."""
    backup_offset: MetadataOffset = MetadataOffset(0)
    """End of the metadata in the backup: data that became useless below it may be deleted. 0:
    unknown.
    """


# --- streams and objects --------------------------------------------------------------------------


class OpenStreamItem(Message, frozen=True, kw_only=True):
    stream_id: StreamId
    epoch: StreamEpoch


class OpenStreams(Message, frozen=True, kw_only=True):
    """Open streams; at most 2,000."""

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
    """Advance the start of a stream. keep: the removed part of a data stream can be restored until
    the grace period of the topic ends; it must be committed. A txn stream follows its data stream.
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
    """Carry `stream.ports.CommitObjects`: one transaction of at most 20,000 ranges and 2,000
    closes. cleaned_end: see `CommitObjects`; 0: the commit removes no records.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    objects: list[CommitObject] = []
    replaced: list[ReplacedItem] = []
    cleaned_end: Offset = Offset(0)
    closes: list[CloseItem] = []
    wal_committed: WalSequence | None = None
    moves_wal: bool = False
    """Slots from `wal_committed` on are in the store of `wal_store_id`."""
    wal_store_id: WalStoreId = IN_STORE
    wal_store_uuid: UUID | None = None


class CommitRecovered(Message, frozen=True, kw_only=True):
    """Commit the WAL of a dead writer (failed_*) for its recoverer (node_id, node_epoch). See
    `StreamMetadata.commit_recovered`. -> Progress.

    A request has at most 1,000 objects. Requests follow in slot order, with `done` in or after the
    last one. held: data streams whose partitions stay as they are, because lost or damaged slots
    may affect them; the WAL ends only when there are none.
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
    """Where one partition of a fork branches off its source, as determined by the leader of the
    source: see `records.ForkPoint`. Everything below the ends is committed, and no batch crosses
    them.
    """

    end_offset: Offset
    scan_offset: Offset
    txn_end_offset: Offset
    """End of the txn stream of the fork, at most `end_offset`."""
    epochs: list[tuple[StreamEpoch, Offset]] = []
    object_id: ObjectId = NO_OBJECT
    """The object whose range contains `end_offset`: see `stream.ports.CommittedBorder`."""


class TopicFork(Message, frozen=True, kw_only=True):
    """The source of a fork, and the fork point of each of its partitions, in order. with_kept: the
    fork begins with retained records that DeleteRecords removed from the source.
    """

    source_topic_id: UUID
    partitions: list[ForkedPartition]
    with_kept: bool = False


class NewTopic(Message, frozen=True, kw_only=True):
    """A new topic. partitions, replication_factor: -1 for the cluster's defaults. assignment:
    explicit candidates of each partition, in order. fork: the topic begins with the log of another
    one, and has its configs except for those in `configs`.

    A name with `@` is a snapshot topic, which is frozen: `fork` is required, and `group_offsets` is
    stored with it.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: list[list[NodeId]] | None = None
    configs: dict[str, str | None] = {}
    fork: TopicFork | None = None
    group_offsets: list[GroupOffsets] = []


class QuotaClient(Message, frozen=True, kw_only=True):
    """The client whose mutation quota counts. is_strict: it supports the quota error, so items
    beyond the quota are rejected; otherwise they are done, and the client is throttled.
    """

    user: str
    client_id: str
    is_strict: bool


class CreateTopics(ForwardedMessage, frozen=True, kw_only=True):
    """Create topics, with at most `PARTITIONS_PER_REQUEST_MAX` partitions. Snapshot topics are
    created together or not at all. validate_only: also counts against the quota of the client, as
    in Kafka.
    """

    topics: list[NewTopic]
    validate_only: bool = False
    client: QuotaClient | None = None
    """None: the request has no quota."""


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
    """The throttle time of the client."""


class DeleteTopics(ForwardedMessage, frozen=True, kw_only=True):
    """Delete topics. purged_ids: ids in `topic_ids` of already deleted topics to be removed
    permanently. Repeating a request does not remove a topic permanently.
    """

    topic_ids: list[UUID]
    purged_ids: list[UUID] = []
    client: QuotaClient | None = None
    """As in CreateTopics."""


class ItemResults(Message, frozen=True, kw_only=True):
    items: list[ItemResult]
    throttle_ms: int = 0
    """The throttle time of the client, if the request contains it."""


class NewPartitions(Message, frozen=True, kw_only=True):
    """Add partitions. total: the new count. assignment: candidates of the added partitions."""

    name: str
    total: int
    assignment: list[list[NodeId]] | None = None


class CreatePartitions(ForwardedMessage, frozen=True, kw_only=True):
    topics: list[NewPartitions]
    validate_only: bool = False
    client: QuotaClient | None = None
    """As in CreateTopics."""


class PartitionTarget(Message, frozen=True, kw_only=True):
    """The new candidates in order. replicas None: cancel the reassignment and restore the earlier
    candidates.
    """

    topic: str
    partition: int
    replicas: list[NodeId] | None = None


class AlterReassignments(ForwardedMessage, frozen=True, kw_only=True):
    """Reassign at most 2,000 partitions. The reply contains one ItemResult per partition and is
    sent as soon as the moves have begun. may_resize: a partition may get more or fewer candidates
    (KIP-860).
    """

    partitions: list[PartitionTarget]
    may_resize: bool = True


class PartitionName(Message, frozen=True, kw_only=True):
    topic: str
    partition: int


class ElectPreferred(ForwardedMessage, frozen=True, kw_only=True):
    """Move each of at most 2,000 partitions to its first candidate. The reply has one ItemResult
    each.
    """

    partitions: list[PartitionName]


class DrainBroker(Message, frozen=True, kw_only=True):
    """Drain a broker that is about to leave: it is no longer elected, and some of its partitions
    move to others. -> Progress.

    remaining: partitions that it leads and that are not moving yet; also 0 if no other broker can
    take them. partitions_max: at most 2,000.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    partitions_max: int


class MoveTiming(Message, frozen=True, kw_only=True):
    """One broker's part of one move, by its own clock from when it saw the change, in milliseconds.

    leader_epoch: the leader epoch before the move. gave_up: the broker is the source; otherwise it
    is the target. steps: name -> duration of the step.
    """

    topic_id: UUID
    partition: int
    leader_epoch: StreamEpoch
    gave_up: bool
    steps: dict[str, float]


class ReportMoves(Message, frozen=True, kw_only=True):
    """Report at most 2,000 moves for `penstock reassign trace`. Only the active controller keeps
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
    """List the known last moves of one partition, oldest first."""

    items: list[MoveTrace]


class ConfigChange(Message, frozen=True, kw_only=True):
    """derived_from: the stored value that `value` was derived from. If another one is stored, the
    change is rejected with CONFIG_CHANGED.
    """

    resource_type: int
    resource_name: str
    name: str
    value: str | None
    derived_from: str | msgspec.UnsetType | None = msgspec.UNSET


class ConfiguredResource(Message, frozen=True, kw_only=True):
    """A resource with configs. The type is Kafka's."""

    resource_type: int
    resource_name: str


class AlterConfigs(ForwardedMessage, frozen=True, kw_only=True):
    """Change configs. Of each resource, either all changes are made or none.

    replaced_topics: topics whose other configs are reset. replaced: other resources whose configs
    are reset. Their results follow those of the changes, in this order.
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
    """Set levels of features; all or none. At most 1,000. -> no value."""

    updates: list[FeatureUpdate]
    validate_only: bool = False


class CreateAcls(ForwardedMessage, frozen=True, kw_only=True):
    """Add ACLs. At most 10,000. -> ItemResults, one per ACL."""

    acls: list[AclEntry]


class DeleteAcls(ForwardedMessage, frozen=True, kw_only=True):
    """Remove the ACLs that match the filters. At most 1,000 filters, and 10,000 ACLs that they
    remove. -> AclsDeleted.
    """

    filters: list[AclFilter]


class DeletedAcls(Message, frozen=True, kw_only=True):
    """The ACLs removed by one filter."""

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
    """Changes nothing. Its reply contains the end of all metadata committed before the request."""


class DescribeController(Message, frozen=True, kw_only=True):
    pass


class ControllerStatus(Message, frozen=True, kw_only=True):
    cluster_id: str
    controller_id: int
    controller_epoch: ControllerEpoch
    committed_offset: MetadataOffset
    active: bool
    leader: str = ""
    """Address of the active controller; empty: unknown, or there is no other controller."""

    role: str = ""
    """leader, voter, learner, or outside: not, or no longer, a member of the quorum."""

    directory_id: str = ""
    address: str = ""
    members: list[str] = []
    """Addresses of all controllers known to this one."""

    version: str = ""
    """Version of its software."""

    now_ms: int = 0
    """Its wall clock at the time of the reply."""


# --- the quorum itself ----------------------------------------------------------------------------


class DescribeQuorum(Message, frozen=True, kw_only=True):
    """Describe the quorum; handled by the leader. -> QuorumStatus."""


class AddLearner(Message, frozen=True, kw_only=True):
    """Add a controller with an empty directory as a learner. -> ItemResult."""

    node_id: int
    address: str
    directory_id: str


class AddVoter(Message, frozen=True, kw_only=True):
    """Make a learner a voter once it has caught up; CONTROLLER_BUSY: not yet, retry. -> ItemResult.

    controller: its id, or its address.
    """

    controller: str


class RemoveController(Message, frozen=True, kw_only=True):
    """Remove a voter or learner from the quorum; a leader transfers leadership first. ->
    ItemResult.
    """

    node_id: int


class TransferLeadership(Message, frozen=True, kw_only=True):
    """Transfer leadership to another voter; -1: the one with the longest log. -> ItemResult."""

    node_id: int = -1


class QuorumMember(Message, frozen=True, kw_only=True):
    """A member, according to the leader. log_end, lag: in entries. last_*_ms: how long ago, in
    milliseconds; -1: never.
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
    """p99 of fsync to its journal; 0: unknown."""


class QuorumStatus(Message, frozen=True, kw_only=True):
    """The quorum. high_watermark, log_end: indexes of entries, each of which contains many records.
    version: of the members.
    """

    cluster_id: str
    leader_id: int
    leader_epoch: ControllerEpoch
    high_watermark: int
    log_end: int
    committed_offset: MetadataOffset
    version: int
    is_changing: bool
    """Whether a change of the members is pending."""

    members: list[QuorumMember]
