"""The messages of the controller's gRPC services: typed values, encoded as msgpack by `msgspec`
(ADR 0003).

A request that changes metadata is answered only when its records are committed; the reply says up
to which metadata offset, and the caller waits until its own image has reached it (read your
writes). Every request carries the caller's (node, epoch) where it acts as a broker.
Limits: a request is at most 4 MiB; lists have the limits noted at each field; more is refused with
INVALID_REQUEST.
"""

from enum import IntEnum
from typing import Generic, TypeVar
from uuid import UUID

import msgspec

from base.ids import (
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
)
from controller.metadata.records import ControllerEpoch, MetadataOffset, NodeListener, RangeEntry


class Status(IntEnum):
    """Why a request (or one item of it) was refused. IDs go over the wire; never reuse."""

    OK = 0
    # this controller is not the active one; `detail` holds the address of the one that is, if known
    NOT_LEADER = 1
    INVALID_REQUEST = 2
    NODE_EPOCH_NOT_EXIST = 10
    NODE_EPOCH_EXPIRED = 11
    NODE_FENCED = 12
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


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base of all messages; unknown fields of newer peers are skipped."""


T = TypeVar("T")


class Reply(Message, Generic[T], frozen=True, kw_only=True):
    """Envelope of every unary reply. offset: metadata offset (exclusive) that the caller's image
    has to reach; 0 for reads.
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
    """node_id -1: the controller gives the lowest free one. Same incarnation again (lost reply):
    same answer.

    Another incarnation of the same node fences the earlier one, whose WAL is then recovered.
    """

    node_id: NodeId
    incarnation_id: UUID
    host: str
    port: int
    machine_host: str
    rack: str | None = None
    other_listeners: tuple[NodeListener, ...] = ()
    """All but the first, whose are `host` and `port`; at most 16."""
    version: str = ""
    wal_delete_grace_ms: int = 60_000
    """How long it keeps WAL slots after their commit, for readers of the store."""


class BrokerRegistered(Message, frozen=True, kw_only=True):
    node_id: NodeId
    node_epoch: NodeEpoch
    cluster_id: str


class UnregisterBroker(Message, frozen=True, kw_only=True):
    """A broker that has closed its streams leaves in order: others lead its partitions, its WAL
    needs no recovery. -> Progress.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    wal_end: WalSequence


class Progress(Message, frozen=True, kw_only=True):
    """Answer of a request whose work is cut into transactions: the same request has to be repeated
    until nothing remains.
    """

    remaining: int


# --- the metadata stream (bidirectional; it is the broker's session) ------------------------------


class FollowRequest(Message, frozen=True, kw_only=True):
    """First message names the follower and where to begin; later ones are heartbeats with what it
    has applied.

    node_id -1: an observer (CLI, another controller), no session.
    """

    node_id: NodeId = NodeId(-1)
    node_epoch: NodeEpoch = NodeEpoch(-1)
    from_offset: MetadataOffset = MetadataOffset(0)
    applied_offset: MetadataOffset = MetadataOffset(0)
    heartbeat: int = 0
    """Number of this message on its stream, from 1; the controller tells the last one that it
    heard.
    """


class MetadataBatch(Message, frozen=True, kw_only=True):
    """Committed records [base_offset, base_offset + len(records)); at most 1 MiB. Empty: a
    heartbeat.

    reset: forget the image first, the batches from here to the first one without `snapshot` are a
    snapshot as of `base_offset`.
    """

    base_offset: MetadataOffset
    end_offset: MetadataOffset
    controller_epoch: ControllerEpoch
    records: list[msgspec.Raw] = []
    snapshot: bool = False
    reset: bool = False
    controllers: list[str] = []
    """Addresses of all controllers, when a stream begins and when they have changed; empty: no
    news.
    """

    heard: int = 0
    """Last heartbeat of the follower that had been heard when this was sent: its session lasts at
    least from when that one was *sent*.
    """
    session_timeout_ms: int = 0
    """How long the session of a silent follower lasts; the follower gives up earlier by itself. 0:
    not told in this one.
    """
    session_grace_ms: int = 0
    """How long it lasts after the stream broke."""
    backup_offset: MetadataOffset = MetadataOffset(0)
    """The store has all metadata below it: what they made useless may be deleted. 0: not told."""


# --- streams and objects --------------------------------------------------------------------------


class OpenStreamItem(Message, frozen=True, kw_only=True):
    stream_id: StreamId
    epoch: StreamEpoch


class OpenStreams(Message, frozen=True, kw_only=True):
    """At most 2,000 items."""

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
    node_id: NodeId
    node_epoch: NodeEpoch
    stream_id: StreamId
    epoch: StreamEpoch
    start_offset: Offset


class PrepareObjects(Message, frozen=True, kw_only=True):
    """count at most 1,000."""

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
    """`stream.ports.CommitObjects` on the wire: one transaction. At most 20,000 ranges, 2,000
    closes.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    objects: list[CommitObject] = []
    replaced: list[ReplacedItem] = []
    closes: list[CloseItem] = []
    wal_committed: WalSequence | None = None


class CommitRecovered(Message, frozen=True, kw_only=True):
    """By the recoverer (node_id, node_epoch) for the dead writer (failed_*). See
    `StreamMetadata.commit_recovered`. -> Progress.

    At most 1,000 objects; as many requests as it takes, in slot order, `done` with or after the
    last. held: data streams whose partitions stay as they are, because slots that may concern them
    are lost or damaged; the WAL ends only with none of them.
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


class NewTopic(Message, frozen=True, kw_only=True):
    """partitions, replication_factor -1: the cluster's defaults. assignment: explicit candidates
    per partition, in order.
    """

    name: str
    partitions: int = -1
    replication_factor: int = -1
    assignment: list[list[NodeId]] | None = None
    configs: dict[str, str | None] = {}


class CreateTopics(Message, frozen=True, kw_only=True):
    """At most 10,000 partitions in one request."""

    topics: list[NewTopic]
    validate_only: bool = False


class CreatedTopic(Message, frozen=True, kw_only=True):
    name: str
    status: Status = Status.OK
    detail: str = ""
    topic_id: UUID | None = None
    partitions: int = -1
    replication_factor: int = -1


class TopicsCreated(Message, frozen=True, kw_only=True):
    topics: list[CreatedTopic]


class DeleteTopics(Message, frozen=True, kw_only=True):
    topic_ids: list[UUID]


class ItemResults(Message, frozen=True, kw_only=True):
    items: list[ItemResult]


class NewPartitions(Message, frozen=True, kw_only=True):
    """total: the count afterwards. assignment: candidates of the added ones."""

    name: str
    total: int
    assignment: list[list[NodeId]] | None = None


class CreatePartitions(Message, frozen=True, kw_only=True):
    topics: list[NewPartitions]
    validate_only: bool = False


class PartitionTarget(Message, frozen=True, kw_only=True):
    """replicas: the new candidates in order; None: stop the reassignment and go back to the
    candidates of before.
    """

    topic: str
    partition: int
    replicas: list[NodeId] | None = None


class AlterReassignments(Message, frozen=True, kw_only=True):
    """Answered with one ItemResult each, as soon as the moves have begun. At most 2,000
    partitions.
    """

    partitions: list[PartitionTarget]


class PartitionName(Message, frozen=True, kw_only=True):
    topic: str
    partition: int


class ElectPreferred(Message, frozen=True, kw_only=True):
    """Move each partition to its first candidate. Answered with one ItemResult each. At most 2,000
    partitions.
    """

    partitions: list[PartitionName]


class DrainBroker(Message, frozen=True, kw_only=True):
    """By a broker that is about to leave: it is elected for nothing any more, and some of what it
    leads moves to others. -> Progress.

    remaining: what it leads that has not begun to move; 0 also when there is nobody to move to. At
    most 2,000 partitions a request.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    partitions_max: int


class MoveTiming(Message, frozen=True, kw_only=True):
    """What one broker measured of its part of one move, by its own clock from the moment it saw the
    change, in milliseconds.

    leader_epoch: under which the partition was led by then. gave_up: it gave the partition up;
    otherwise it took it.
    steps: name -> how long this step took.
    """

    topic_id: UUID
    partition: int
    leader_epoch: StreamEpoch
    gave_up: bool
    steps: dict[str, float]


class ReportMoves(Message, frozen=True, kw_only=True):
    """For `penstock reassign trace`; kept in memory by the active controller only. At most 2,000
    items.
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
    """The last moves of one partition that are still known, oldest first."""

    items: list[MoveTrace]


class ConfigChange(Message, frozen=True, kw_only=True):
    resource_type: int
    resource_name: str
    name: str
    value: str | None


class AlterConfigs(Message, frozen=True, kw_only=True):
    """All or nothing per resource."""

    changes: list[ConfigChange]
    validate_only: bool = False


class AllocateProducerIds(Message, frozen=True, kw_only=True):
    """A block of 1,000 ids."""

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


class DescribeController(Message, frozen=True, kw_only=True):
    pass


class ControllerStatus(Message, frozen=True, kw_only=True):
    cluster_id: str
    controller_id: int
    controller_epoch: ControllerEpoch
    committed_offset: MetadataOffset
    active: bool
    leader: str = ""
    """Address of the active one as far as this one knows; empty: unknown, or alone."""

    role: str = ""
    """leader, voter, learner, or outside: no member of the quorum, or not any more."""

    directory_id: str = ""
    address: str = ""
    members: list[str] = []
    """Addresses of all controllers that this one knows."""

    version: str = ""
    """Of the software that it runs."""

    now_ms: int = 0
    """Its wall clock when it answered."""


# --- the quorum itself ----------------------------------------------------------------------------


class DescribeQuorum(Message, frozen=True, kw_only=True):
    """Answered by the leader. -> QuorumStatus."""


class AddLearner(Message, frozen=True, kw_only=True):
    """A controller with an empty directory wants the log. -> ItemResult."""

    node_id: int
    address: str
    directory_id: str


class AddVoter(Message, frozen=True, kw_only=True):
    """A learner is to vote, as soon as it has caught up; CONTROLLER_BUSY: not yet, ask again. ->
    ItemResult.

    controller: its id, or its address.
    """

    controller: str


class RemoveController(Message, frozen=True, kw_only=True):
    """A voter or learner leaves the quorum; a leader hands over first. -> ItemResult."""

    node_id: int


class TransferLeadership(Message, frozen=True, kw_only=True):
    """Another voter is to lead; -1: the one with the longest log. -> ItemResult."""

    node_id: int = -1


class QuorumMember(Message, frozen=True, kw_only=True):
    """A member as the leader sees it. log_end, lag: in entries. Times are ago, in milliseconds; -1:
    never yet.
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
    """Of its journal; 0: not known."""


class QuorumStatus(Message, frozen=True, kw_only=True):
    """high_watermark, log_end: indexes of entries, of which one holds many records. version: of the
    members.
    """

    cluster_id: str
    leader_id: int
    leader_epoch: ControllerEpoch
    high_watermark: int
    log_end: int
    committed_offset: MetadataOffset
    version: int
    is_changing: bool
    """A change of the members is not committed yet."""

    members: list[QuorumMember]
