"""Data types of consumer groups (KIP-848): members, assignments, heartbeats and their responses."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Final
from uuid import UUID

from penstock.broker.groups.common.model import JOIN_EPOCH, Assignment

UNIFORM: Final = "uniform"
RANGE: Final = "range"
ASSIGNORS: Final = (UNIFORM, RANGE)
MIGRATION_BOTH: Final = "bidirectional"


class MemberState(Enum):
    """The reconciliation state of a member. The numbers are those in the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    """The member must still revoke partitions, and keeps its epoch until then."""
    UNRELEASED_PARTITIONS = 2
    """The member waits for other members to revoke partitions."""


@dataclass(frozen=True, slots=True)
class ConsumerLimits:
    """Limits of consumer groups. Defaults are those of Kafka's `group.consumer.*` configs."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    members_max: int = (1 << 31) - 1
    assignors: tuple[str, ...] = ASSIGNORS
    """Names of the assignors that members may request; the first one is the default."""
    migration: str = MIGRATION_BOTH
    """The direction in which groups with members may change their protocol: disabled, upgrade,
    downgrade or bidirectional.
    """
    classic_members_max: int = 1_000
    """Maximum number of members of a group that is converted to classic."""
    regex_refresh_interval_ms: int = 600_000
    """How long the matches of a regular expression remain valid before permissions are checked
    again.
    """

    @property
    def may_upgrade(self) -> bool:
        return self.migration in {MIGRATION_BOTH, "upgrade"}

    @property
    def may_downgrade(self) -> bool:
        return self.migration in {MIGRATION_BOTH, "downgrade"}


@dataclass(frozen=True, slots=True)
class ClassicMetadata:
    """JoinGroup fields of a member that uses the classic protocol."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    """Name and subscription of each assignor that the member offers."""


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    """Metadata that a member reports in its heartbeats."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_names: tuple[str, ...] = ()
    """Sorted, without duplicates."""
    subscribed_regex: str = ""
    """Empty if the member subscribes without a regular expression."""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMetadata | None = None
    """None if the member uses the consumer protocol."""


@dataclass(frozen=True, slots=True)
class CurrentAssignment:
    """The partitions of a member, with the member epoch."""

    epoch: int = 0
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Assignment = field(default_factory=dict[UUID, frozenset[int]])
    pending_revocation: Assignment = field(default_factory=dict[UUID, frozenset[int]])

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch


@dataclass(frozen=True, slots=True)
class ConsumerMember:
    member_id: str
    metadata: MemberMetadata = field(default_factory=MemberMetadata)
    current: CurrentAssignment = field(default_factory=CurrentAssignment)


@dataclass(frozen=True, slots=True)
class ResolvedRegex:
    """The topics that matched a regular expression, restricted to those that the client of that
    heartbeat could describe.
    """

    topics: frozenset[str]
    version: int
    """The version of the topics (`TopicsView.version`)."""
    timestamp_ms: int


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """A heartbeat. Fields that are None or -1 are unchanged since the last heartbeat."""

    member_id: str
    member_epoch: int
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int = -1
    subscribed_names: tuple[str, ...] | None = None
    subscribed_regex: str | None = None
    server_assignor: str | None = None
    owned: Assignment | None = None

    @property
    def is_full(self) -> bool:
        """Return True if the response must contain the assignment, because the member joins or
        restarts after an error.
        """
        is_complete = (
            self.rebalance_timeout_ms != -1
            and (self.subscribed_names is not None or self.subscribed_regex is not None)
            and self.owned is not None
        )
        return self.member_epoch == JOIN_EPOCH or is_complete
