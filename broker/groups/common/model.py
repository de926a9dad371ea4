"""Values shared by several group protocols."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeAlias, TypeVar
from uuid import UUID

from penstock.protocol.error_codes import ErrorCode

JOIN_EPOCH: Final = 0
LEAVE_EPOCH: Final = -1
"""The member epoch in the last heartbeat of a leaving member."""
STATIC_LEAVE_EPOCH: Final = -2
"""The member epoch in the last heartbeat of a static member that leaves temporarily and will return
with the same instance id.
"""

Assignment: TypeAlias = Mapping[UUID, frozenset[int]]
"""Partitions by topic id. No topic has an empty set."""
NOTHING: Final[Assignment] = {}
_Topic = TypeVar("_Topic", UUID, str)


def merged(items: Iterable[tuple[_Topic, Iterable[int]]]) -> dict[_Topic, frozenset[int]]:
    """Return the partitions by topic. Clients may repeat a topic thousands of times, so this takes
    linear time.
    """
    found: dict[_Topic, set[int]] = {}
    for topic, indexes in items:
        found.setdefault(topic, set()).update(indexes)
    return {topic: frozenset(indexes) for topic, indexes in found.items()}


class GroupState(Enum):
    """States of a group, named as in DescribeGroups."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    """Like RECONCILING, used only by consumer groups (KIP-848) and streams groups (KIP-1071)."""
    RECONCILING = "Reconciling"
    NOT_READY = "NotReady"
    """A streams group whose topology refers to missing or invalid topics."""
    STABLE = "Stable"
    DEAD = "Dead"


class GroupType(Enum):
    """Group types, named as in ListGroups."""

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
        """Return the names of the topics that match the whole expression and that the client may
        describe. Raises RegexInvalid.
        """
        ...

    def id_of(self, name: str) -> UUID | None: ...

    def name_of(self, topic_id: UUID) -> str | None: ...

    def is_gone(self, topic_id: UUID) -> bool:
        """Return True if the topic does not exist and cannot be restored."""
        ...

    def partition_count(self, topic_id: UUID) -> int:
        """Return the partition count, or 0 if the topic does not exist."""
        ...


@dataclass(frozen=True, slots=True)
class HeartbeatResult:
    error: ErrorCode = ErrorCode.NONE
    message: str | None = None
    member_id: str | None = None
    member_epoch: int = 0
    heartbeat_interval_ms: int = 0
    assignment: Assignment | None = None
    """None if it has not changed since the last response."""


class HeartbeatRefused(Exception):
    """Raised for a rejected heartbeat, which changes nothing."""

    def __init__(self, error: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.result = HeartbeatResult(error, message)
