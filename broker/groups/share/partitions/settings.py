"""What a share group decides for its share partitions, and the limits of the broker.

Must not: look settings up (`broker.node` passes a function that does).
Source: Kafka `GroupConfig`, `ShareGroupConfig`; KIP-932.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.broker.groups.share.partitions.window import WindowLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupConfig:
    """The configs of one share group."""

    lock_duration_ms: int = 30_000
    """How long a member has a record before others may get it."""
    begins_earliest: bool = False
    """A share partition without a state begins at the log start, else at the end."""
    begins_ms_ago: int | None = None
    """It begins with the records of this last stretch of time instead."""
    reads_committed: bool = False
    """Members get no records of aborted transactions, and none of open ones."""
    limits: WindowLimits = field(default_factory=WindowLimits)

    @property
    def lock_duration_s(self) -> float:
        return self.lock_duration_ms / 1_000


ShareConfigs: TypeAlias = Callable[[str], ShareGroupConfig]
"""Returns the current configs of a group."""


@dataclass(slots=True)
class ShareCounts:
    """What the share partitions of a broker have done since its start."""

    delivered: int = 0
    """Records given to members, each time."""
    expired: int = 0
    """Records whose lock ended before their member acknowledged them."""
    failed_writes: int = 0
