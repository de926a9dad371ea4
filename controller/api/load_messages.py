"""The messages of balancing: what brokers report of their loads, and what is proposed and begun
because of it.

No metadata: the active controller keeps it in memory. Envelope and limits are those of
`controller.api.messages`.
"""

from typing import NamedTuple
from uuid import UUID

from base.ids import NodeEpoch, NodeId, StreamEpoch
from controller.api.messages import Message

PARTITIONS_PER_REPORT_MAX = 1_000
"""The most loaded ones; the rest of a broker's partitions is summed."""
TROUBLES_PER_REPORT_MAX = 100
ERROR_CHARS_MAX = 500
"""Of an error's text in a report."""


class Load(NamedTuple):
    """Per second, whole numbers. requests: produce and fetch requests that touched it."""

    bytes_in: int
    bytes_out: int
    requests: int


class StoreRequests(NamedTuple):
    """Requests to the object store per second, by what they cost: writes and conditional writes,
    lists, reads (heads too), deletes.

    failed_s: of all of them, those that ended with an error; a refused condition and an absent key
    are errors, too.
    """

    put_s: float
    list_s: float
    get_s: float
    delete_s: float
    failed_s: float
    written_bytes_s: float


class PartitionLoad(Message, frozen=True, kw_only=True):
    """observed_ms: how long this leader has watched it."""

    topic_id: UUID
    partition: int
    leader_epoch: StreamEpoch
    load: Load
    observed_ms: int


class FailingPartition(Message, frozen=True, kw_only=True):
    """A partition that a broker is to lead and could not open. for_ms: since the first try failed.
    error: of the last one.
    """

    topic_id: UUID
    partition: int
    tries: int
    for_ms: int
    error: str


class DamagedObject(Message, frozen=True, kw_only=True):
    """An object that reads of a broker found damaged within the last hour. kind: "gone" or
    "corrupt". for_ms: since the first one.
    """

    key: str
    kind: str
    reads: int
    for_ms: int
    error: str


class Troubles(Message, frozen=True, kw_only=True):
    """What a broker cannot open or read. At most `TROUBLES_PER_REPORT_MAX` of each are named; the
    counts are of all.
    """

    failing: tuple[FailingPartition, ...] = ()
    failing_count: int = 0
    damaged: tuple[DamagedObject, ...] = ()
    damaged_count: int = 0


class ReportLoad(Message, frozen=True, kw_only=True):
    """Rates of what a broker leads, and how it answers; every few seconds. At most 1,000 items; the
    `rest_count` others are in `rest`.

    append_*_ms: from append to acknowledgement since the last report, those that still wait with
    their age; None: there was none.
    loop_lag_ms: the latest that its event loop was. store: None: it does not count them. troubles:
    None: there are none.
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
    """excluded: the broker gets nothing until it answers faster; with nothing to append it has to
    measure the store by itself.
    """

    excluded: bool


class ProposeMoves(Message, frozen=True, kw_only=True):
    """Which partitions should be led elsewhere by what was measured; changes nothing. topics: empty
    for all. -> MovesProposed.
    """

    topics: tuple[str, ...] = ()
    moves_max: int = 100


class BrokerLoad(Message, frozen=True, kw_only=True):
    """note: why the broker neither gives nor takes; empty: it does. append_*_ms, loop_lag_ms,
    store, troubles: as in its last report.
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


class ProposedMove(Message, frozen=True, kw_only=True):
    topic: str
    partition: int
    source: NodeId
    target: NodeId
    load: Load
    reason: str


class MovesProposed(Message, frozen=True, kw_only=True):
    """auto: the controller does it by itself. before, after: all brokers that are not fenced."""

    auto: bool
    moves: list[ProposedMove]
    before: list[BrokerLoad]
    after: list[BrokerLoad]


class LeaderMove(Message, frozen=True, kw_only=True):
    """The target becomes the preferred leader: it takes the source's place among the candidates, or
    changes places with it.
    """

    topic: str
    partition: int
    source: NodeId
    target: NodeId


class MoveLeaders(Message, frozen=True, kw_only=True):
    """Answered with one ItemResult each, as soon as the moves have begun. Refused: what moves, or
    is not led by its source (any more).

    At most 2,000 partitions.
    """

    moves: list[LeaderMove]
