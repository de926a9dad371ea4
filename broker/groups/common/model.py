"""Values shared by several group protocols."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from penstock.protocol.error_codes import ErrorCode

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
"""The epoch in the last heartbeat of a member that leaves."""
STATIC_LEAVE_EPOCH: Final = -2
"""The epoch of a static member that leaves temporarily and returns with the same instance id."""

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""Partitions by topic id. No topic has an empty set."""
NOTHING: Final[Assignment] = {}


class GroupState(Enum):
    """Names as in DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    """Only for consumer groups (KIP-848) and streams groups (KIP-1071), like the next one."""
    RECONCILING = "Reconciling"
    NOT_READY = "NotReady"
    """A streams group whose topology does not have valid topics yet."""
    STABLE = "Stable"
    DEAD = "Dead"


class GroupType(Enum):
    """Names as in ListGroups."""

    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"
    STREAMS = "streams"


class TopicsView(Protocol):
    """The topics of the cluster, as seen by groups."""

    @property
    def version(self) -> int:
        """Return a number that increases when a topic or a partition is created or deleted."""
        ...

    def matching(self, expression: str) -> frozenset[str]:
        """Return the names of the topics that match completely and that the client of this step may
        describe. Raises RegexInvalid.
        """
        ...

    def id_of(self, name: str) -> UUID | None: ...

    def name_of(self, topic_id: UUID) -> str | None: ...

    def is_gone(self, topic_id: UUID) -> bool:
        """Return True for a topic that neither exists nor can be restored."""
        ...

    def partition_count(self, topic_id: UUID) -> int:
        """Return 0 for a topic that does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """None: as in the last response."""


class HeartbeatRefused(Exception):
    """Raised for a heartbeat that changes nothing, with its error."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.result = HeartbeatResult(error, message)
