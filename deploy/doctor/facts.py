"""Define the gathered facts of a deployment, as values.

Invariants: pure and frozen. Unless noted otherwise, times are in milliseconds, according to the
wall clock of this machine. Missing facts are None, with the reason in another field.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.controller.api.load_messages import ProblemLog
from penstock.controller.api.messages import ControllerStatus, QuorumStatus
from penstock.stream.ports import BrokerIncarnation


@dataclass(frozen=True, slots=True)
class ClockSpan:
    """How far the clock of `who` is ahead of the clock of `reference`: between min and max;
    negative values mean that it is behind.
    """

    who: str
    reference: str
    ahead_min_ms: float
    ahead_max_ms: float

    @property
    def off_ms(self) -> float:
        """Return the part of the difference that is certain."""
        if self.ahead_min_ms > 0:
            return self.ahead_min_ms
        return min(self.ahead_max_ms, 0.0)


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """The responses of the store. error: the reason why it cannot be used. ignored: how the store
    ignored the condition of a write. latencies_ms: by operation.
    """

    url: str
    error: str = ""
    ignored: str = ""
    latencies_ms: Mapping[str, tuple[float, ...]] | None = None
    clock: ClockSpan | None = None
    cluster_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ControllerFacts:
    """The response of one controller. status: None if it did not respond. clock: compared with this
    machine's.
    """

    address: str
    status: ControllerStatus | None
    clock: ClockSpan | None = None


@dataclass(frozen=True, slots=True)
class QuorumFacts:
    """The responses of the controllers. quorum: None without a leader or a response. notes,
    problems: from the leader, by broker id. faults: the reasons by address if no controller
    responds.
    """

    addresses: str
    controllers: tuple[ControllerFacts, ...]
    quorum: QuorumStatus | None
    notes: Mapping[int, str]
    problems: Mapping[int, ProblemLog] = field(default_factory=dict[int, ProblemLog])
    faults: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class ListenerFacts:
    """The response at an advertised address. responder: (node id, cluster id); node id -1:
    unknown.
    """

    node_id: int
    name: str
    address: str
    problem: str = ""
    responder: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    node_id: int
    node_epoch: int
    fenced: bool
    version: str
    listeners: tuple[tuple[str, str], ...]
    """(name, host:port) of each; the first is the one that brokers use among themselves."""


@dataclass(frozen=True, slots=True)
class MoveFacts:
    source: int
    target: int
    started_ms: int


@dataclass(frozen=True, slots=True)
class FailingFacts:
    """A partition that its leader cannot open. error: the error of the last attempt."""

    topic: str
    partition: int
    node_id: int
    tries: int
    for_ms: int
    error: str


@dataclass(frozen=True, slots=True)
class UnreadableFacts:
    """A referenced object that brokers could not read. ranges: its offsets, by partition."""

    key: str
    kind: str
    node_ids: tuple[int, ...]
    reads: int
    error: str
    ranges: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RecordFacts:
    """Unreadable records of a partition. count: number of their offsets. first: offset and reason
    of the first ones.
    """

    topic: str
    partition: int
    count: int
    first: tuple[tuple[int, str], ...]


@dataclass(frozen=True, slots=True)
class WalFacts:
    """A WAL that has not ended."""

    writer: BrokerIncarnation
    committed: int
    is_alive: bool
    recoverer: BrokerIncarnation
    is_outside: bool = False
    """Whether the WAL is in the cluster's own store although the cluster has a WAL store."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The metadata at one moment. leaderless, hanging: by (topic, partition). moved_away: number of
    partitions that other brokers lead, by their preferred leader, if it could lead. deleted_count,
    deleted_bytes: deleted topics that can be restored, and the bytes of their ranges. kept_bytes:
    bytes of deleted records that can be restored. wal_store_bytes, wal_store_oldest_ms: size and
    oldest time of committed slots that only a WAL store contains, without deleted records.
    wal_store_rewritten_bytes: size of slots in WAL stores that are no longer referenced by any log.
    """

    cluster_id: str
    end_offset: int
    brokers: tuple[BrokerFacts, ...]
    topic_count: int
    partition_count: int
    object_count: int
    leaderless: frozenset[tuple[str, int]]
    hanging: Mapping[tuple[str, int], MoveFacts]
    moving_count: int
    wals: Mapping[BrokerIncarnation, WalFacts]
    moved_away: Mapping[int, int] = field(default_factory=dict[int, int])
    deleted_count: int = 0
    deleted_bytes: int = 0
    kept_bytes: int = 0
    wal_store_bytes: int = 0
    wal_store_oldest_ms: int | None = None
    wal_store_rewritten_bytes: int = 0

    @property
    def may_be_transient(self) -> bool:
        """Return True if a second examination must distinguish a transient state from a problem."""
        return bool(
            self.leaderless or self.hanging or any(not wal.is_alive for wal in self.wals.values())
        )


@dataclass(frozen=True, slots=True)
class BackupFacts:
    """State of the metadata backup. end_offset: end of its log. committed_offset: committed end
    before the backup was read, or -1. newest_ms: by the store's clock, or 0. snapshot_offset:
    newest snapshot, or -1. objects_after: log objects after the newest snapshot.
    """

    error: str = ""
    end_offset: int = 0
    committed_offset: int = -1
    newest_ms: int = 0
    snapshot_offset: int = -1
    objects_after: int = 0
    now_ms: int = 0


@dataclass(frozen=True, slots=True)
class ManifestFacts:
    """State of the manifest. published_ms: 0 if there is none. is_behind: whether it lacked
    metadata of the first examination in both examinations.
    """

    published_ms: int
    version: int
    is_behind: bool
    lease_count: int
    lease_prefix: str
    now_ms: int
