"""Define the messages of balancing: reports of the brokers' loads, sessions, and moves that are
proposed or begun.

Reports are not metadata: the active controller keeps them in memory. Envelope and limits are those
of `controller.api.messages`.
"""

from typing import Literal, NamedTuple
from uuid import UUID

from penstock.base.ids import NodeEpoch, NodeId, StreamEpoch
from penstock.controller.api.messages import Message

PARTITIONS_PER_REPORT_MAX = 1_000
"""Number of partitions in a report, the most loaded ones; the others are summed."""
TROUBLES_PER_REPORT_MAX = 100
ERROR_CHARS_MAX = 500
"""Longest error text in a report."""


class Load(NamedTuple):
    """Hold rates per second, as whole numbers. requests: produce and fetch requests for the
    partition.
    """

    bytes_in: int
    bytes_out: int
    requests: int


class StoreRequests(NamedTuple):
    """Hold requests to the object store per second, by price class: writes and conditional writes,
    lists, reads (with HEAD), deletes.

    failed_s: those of all classes that ended with an error; a failed condition and an absent key
    count as errors.
    """

    put_s: float
    list_s: float
    get_s: float
    delete_s: float
    failed_s: float
    written_bytes_s: float


class PartitionLoad(Message, frozen=True, kw_only=True):
    """Report the load of one partition. observed_ms: how long this leader has measured it."""

    topic_id: UUID
    partition: int
    leader_epoch: StreamEpoch
    load: Load
    observed_ms: int


class FailingPartition(Message, frozen=True, kw_only=True):
    """Name a partition that a broker should lead but could not open. for_ms: since the first
    attempt failed. error: of the last attempt.
    """

    topic_id: UUID
    partition: int
    tries: int
    for_ms: int
    error: str


class DamagedObject(Message, frozen=True, kw_only=True):
    """Name an object that a broker's reads found damaged within the last hour. kind: "gone" or
    "corrupt". for_ms: since the first such read.
    """

    key: str
    kind: str
    reads: int
    for_ms: int
    error: str


class Troubles(Message, frozen=True, kw_only=True):
    """List what a broker cannot open or read: at most `TROUBLES_PER_REPORT_MAX` of each kind; the
    counts are of all.
    """

    failing: tuple[FailingPartition, ...] = ()
    failing_count: int = 0
    damaged: tuple[DamagedObject, ...] = ()
    damaged_count: int = 0


class ReportLoad(Message, frozen=True, kw_only=True):
    """Report the load and the latency of a broker every few seconds. At most 1,000 items; `rest`
    sums the `rest_count` others.

    append_*_ms: from append to acknowledgement since the last report, with the age of appends that
    still wait; None: there was none. loop_lag_ms: longest delay of the event loop. store: None: the
    broker does not count requests. troubles: None: there are none.
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
    troubles: Troubles | None = None


class LoadReported(Message, frozen=True, kw_only=True):
    """Answer a report. excluded: the broker gets no partitions until it answers faster; without
    appends, it must measure the store by itself.
    """

    excluded: bool


class ProposeMoves(Message, frozen=True, kw_only=True):
    """Ask which partitions other brokers should lead, by the measured loads. This changes nothing.
    topics: empty for all. -> MovesProposed.
    """

    topics: tuple[str, ...] = ()
    moves_max: int = 100


class BrokerSession(Message, frozen=True, kw_only=True):
    """Describe the session of one broker, as the active controller keeps it.

    state: "open"; "awaited", registered but without a metadata stream yet; "broken", the stream
    broke; or "over", the broker is being fenced. heartbeat_age_ms: since its last heartbeat;
    None: this controller has heard none. ends_in_ms: until it is fenced, if it stays silent.
    """

    state: Literal["open", "awaited", "broken", "over"]
    heartbeat_age_ms: int | None
    ends_in_ms: int


class BrokerLoad(Message, frozen=True, kw_only=True):
    """Describe the load of one broker. note: why it takes no part in balancing; empty: it does.
    append_*_ms, loop_lag_ms, store, troubles: as in its last report. session: None: it has none.
    """

    node_id: NodeId
    load: Load
    leaders: int
    note: str = ""
    append_p50_ms: float | None = None
    append_p99_ms: float | None = None
    loop_lag_ms: float | None = None
    store: StoreRequests | None = None
    troubles: Troubles | None = None
    session: BrokerSession | None = None


class ProposedMove(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    source: NodeId
    target: NodeId
    load: Load
    reason: str


class MovesProposed(Message, frozen=True, kw_only=True):
    """Propose moves. auto: the controller makes such moves by itself. before, after: loads of all
    brokers that are not fenced.
    """

    auto: bool
    moves: list[ProposedMove]
    before: list[BrokerLoad]
    after: list[BrokerLoad]


class LeaderMove(Message, frozen=True, kw_only=True):
    """Make the target the preferred leader: it takes the source's place among the candidates, or
    swaps places with it.
    """

    topic: str
    partition: int
    source: NodeId
    target: NodeId


class MoveLeaders(Message, frozen=True, kw_only=True):
    """Move at most 2,000 partitions. The answer has one ItemResult each, as soon as the moves have
    begun. A partition that moves already, or that its source does not lead, is refused.
    """

    moves: list[LeaderMove]
