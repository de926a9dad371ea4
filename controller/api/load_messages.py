"""Messages for balancing: load reports, sessions, and proposed and started moves.

Reports are not metadata; the active controller keeps them in memory.
"""

from typing import Literal, NamedTuple
from uuid import UUID

from penstock.base.ids import NodeEpoch, NodeId, StreamEpoch, StreamId
from penstock.controller.api.messages import Message

PARTITIONS_PER_REPORT_MAX = 1_000
"""Maximum number of partitions in a report. These are the busiest ones; the others are summed."""
PROBLEMS_PER_REPORT_MAX = 100
UNTUNED_PER_REPORT_MAX = 20
ERROR_CHARS_MAX = 500
"""Maximum length of an error text in a report."""


class Load(NamedTuple):
    """Rates per second, as integers. requests: produce and fetch requests for the partition."""

    bytes_in: int
    bytes_out: int
    requests: int


class StoreRequests(NamedTuple):
    """Object store requests per second, by price class: writes including conditional writes, lists,
    reads including HEAD, and deletes.

    failed_s: failed requests of all classes, including failed conditions and missing keys.
    """

    put_s: float
    list_s: float
    get_s: float
    delete_s: float
    failed_s: float
    written_bytes_s: float


class PartitionLoad(Message, frozen=True, kw_only=True):
    """The load of one partition. observed_ms: how long the current leader has measured it."""

    topic_id: UUID
    partition: int
    leader_epoch: StreamEpoch
    load: Load
    observed_ms: int


class FailingPartition(Message, frozen=True, kw_only=True):
    """A partition that a broker should lead but could not open. for_ms: time since the first failed
    attempt. error: the error of the last attempt.
    """

    topic_id: UUID
    partition: int
    tries: int
    for_ms: int
    error: str


class DamagedObject(Message, frozen=True, kw_only=True):
    """An object that a broker has found to be damaged while reading within the last hour. kind:
    "gone" or "corrupt". for_ms: time since the first such read.
    """

    key: str
    kind: str
    reads: int
    for_ms: int
    error: str


class UntunedClient(Message, frozen=True, kw_only=True):
    """A producer whose settings limit its throughput. settings: the settings to change. reason:
    what the broker has observed, and the expected gain.
    """

    client_id: str
    host: str
    settings: str
    reason: str
    for_ms: int


class ProblemLog(Message, frozen=True, kw_only=True):
    """Partitions and objects that a broker cannot open or read, at most `PROBLEMS_PER_REPORT_MAX`
    of each kind; the counts include all of them. untuned: at most `UNTUNED_PER_REPORT_MAX` clients.
    """

    failing: tuple[FailingPartition, ...] = ()
    failing_count: int = 0
    damaged: tuple[DamagedObject, ...] = ()
    damaged_count: int = 0
    untuned: tuple[UntunedClient, ...] = ()


class ReportLoad(Message, frozen=True, kw_only=True):
    """The load and latencies of a broker, reported every few seconds. It contains at most 1,000
    items; `rest` is the total load of the `rest_count` other partitions.

    append_*_ms: time from append to acknowledgment since the last report, including the age of
    pending appends; None if there were none. loop_lag_ms: maximum event loop lag. store: None if
    the broker does not count store requests. problems: None if there are none.
    """

    node_id: NodeId
    node_epoch: NodeEpoch
    items: list[PartitionLoad]
    rest: Load = Load(0, 0, 0)
    rest_count: int = 0
    append_p50_ms: float | None = None
    append_p99_ms: float | None = None
    loop_lag_ms: float = 0.0
    store: StoreRequests | None = None
    problems: ProblemLog | None = None


class LoadReported(Message, frozen=True, kw_only=True):
    """The reply to a report. excluded: the broker receives no partitions until it is faster; if it
    has no appends, it must measure the latency of the store itself. rewrite: closed streams for
    which the broker must rewrite ranges in WAL stores until the next reply.
    """

    excluded: bool
    rewrite: tuple[StreamId, ...] = ()


class ProposeMoves(Message, frozen=True, kw_only=True):
    """Propose moves based on measured loads, without starting them. topics: empty for all topics.
    Reply: MovesProposed.
    """

    topics: tuple[str, ...] = ()
    moves_max: int = 100


class BrokerSession(Message, frozen=True, kw_only=True):
    """The session of one broker, according to the active controller.

    state: "open"; "awaited" if the broker is registered but has not opened a metadata stream yet;
    "broken" if the stream broke; or "over" if the broker is being fenced. heartbeat_age_ms: time
    since its last heartbeat; None if this controller has received none. ends_in_ms: time until the
    broker is fenced if it stays silent.
    """

    state: Literal["open", "awaited", "broken", "over"]
    heartbeat_age_ms: int | None
    ends_in_ms: int


class BrokerLoad(Message, frozen=True, kw_only=True):
    """The load of one broker. note: the reason why the broker is excluded from balancing, or empty
    if it is not. append_*_ms, loop_lag_ms, store, problems: as in the broker's last report.
    session: None if it has none.
    """

    node_id: NodeId
    load: Load
    leaders: int
    note: str = ""
    append_p50_ms: float | None = None
    append_p99_ms: float | None = None
    loop_lag_ms: float | None = None
    store: StoreRequests | None = None
    problems: ProblemLog | None = None
    session: BrokerSession | None = None


class ProposedMove(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    source: NodeId
    target: NodeId
    load: Load
    reason: str


class MovesProposed(Message, frozen=True, kw_only=True):
    """Proposed moves. auto: whether the controller makes such moves on its own. before, after:
    loads of all brokers that are not fenced.
    """

    auto: bool
    moves: list[ProposedMove]
    before: list[BrokerLoad]
    after: list[BrokerLoad]


class LeaderMove(Message, frozen=True, kw_only=True):
    """Make the target the preferred leader. It replaces the source among the candidates, or swaps
    places with it if it is already a candidate.
    """

    topic: str
    partition: int
    source: NodeId
    target: NodeId


class MoveLeaders(Message, frozen=True, kw_only=True):
    """Start at most 2,000 moves. The reply contains one ItemResult per move, and is sent once the
    moves have started. A move is rejected if the partition is already moving or is not led by the
    source.
    """

    moves: list[LeaderMove]
