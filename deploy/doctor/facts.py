"""What was gathered of a deployment, as values: what the judge judges.

Invariant: pure, frozen; times in milliseconds, wall clock of this machine unless said otherwise.
What could not be gathered is None, and why stands beside it: never a made-up value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from controller.api.load_messages import Troubles
from controller.api.messages import ControllerStatus, QuorumStatus
from stream.ports import BrokerIncarnation


@dataclass(frozen=True, slots=True)
class ClockSpan:
    """By how much the clock of `who` is ahead of that of `reference`: somewhere in [min, max],
    negative is behind.
    """

    who: str
    reference: str
    ahead_min_ms: float
    ahead_max_ms: float

    @property
    def off_ms(self) -> float:
        """What is certain."""
        if self.ahead_min_ms > 0:
            return self.ahead_min_ms
        return min(self.ahead_max_ms, 0.0)


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """error: why it cannot be used. ignored: what a conditional write did that it must not.
    latencies_ms: by operation.
    """

    url: str
    error: str = ""
    ignored: str = ""
    latencies_ms: Mapping[str, tuple[float, ...]] | None = None
    clock: ClockSpan | None = None
    cluster_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ControllerFacts:
    """status None: no answer. clock: against this machine."""

    address: str
    status: ControllerStatus | None
    clock: ClockSpan | None = None


@dataclass(frozen=True, slots=True)
class QuorumFacts:
    """quorum None: nobody leads, or no answer. notes, troubles: what the leader says of brokers by
    their id.
    """

    addresses: str
    controllers: tuple[ControllerFacts, ...]
    quorum: QuorumStatus | None
    notes: Mapping[int, str]
    troubles: Mapping[int, Troubles] = field(default_factory=dict[int, Troubles])


@dataclass(frozen=True, slots=True)
class ListenerFacts:
    """Where clients are sent, and what was found there. answered: (node id, cluster id); node id
    -1: another one.
    """

    node_id: int
    name: str
    address: str
    problem: str = ""
    answered: tuple[int, str] | None = None


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    node_id: int
    node_epoch: int
    fenced: bool
    version: str
    listeners: tuple[tuple[str, str], ...]
    """(name, host:port), the first is the brokers' own."""


@dataclass(frozen=True, slots=True)
class MoveFacts:
    source: int
    target: int
    started_ms: int


@dataclass(frozen=True, slots=True)
class FailingFacts:
    """A partition that its leader cannot open. error: of the last try."""

    topic: str
    partition: int
    node_id: int
    tries: int
    for_ms: int
    error: str


@dataclass(frozen=True, slots=True)
class UnreadableFacts:
    """An object that the metadata refer to and brokers could not read. ranges: offsets of streams
    that lie in it.
    """

    key: str
    kind: str
    node_ids: tuple[int, ...]
    reads: int
    error: str
    ranges: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WalFacts:
    """A WAL that has not ended."""

    writer: BrokerIncarnation
    committed: int
    is_alive: bool
    recoverer: BrokerIncarnation


@dataclass(frozen=True, slots=True)
class ClusterSeen:
    """One look at the metadata. leaderless, hanging: by (topic, partition)."""

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

    @property
    def may_be_passing(self) -> bool:
        """Something that is normal for a moment: another look, a little later, tells."""
        return bool(
            self.leaderless or self.hanging or any(not wal.is_alive for wal in self.wals.values())
        )


@dataclass(frozen=True, slots=True)
class BackupFacts:
    """end_offset: of the chain. committed_offset: before it was read, -1: not known. newest_ms:
    store's clock, 0: there is none.

    snapshot_offset -1: none. objects_after: of the chain behind the newest snapshot.
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
    """published_ms: 0: there is none. is_behind: it lacked, at two looks, what the metadata had at
    the first.
    """

    published_ms: int
    version: int
    is_behind: bool
    lease_count: int
    lease_prefix: str
    now_ms: int
