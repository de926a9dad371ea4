"""Group configs and broker limits of share partitions (KIP-932)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from penstock.broker.groups.share.partitions.window import WindowLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupConfig:
    """The configs of one share group."""

    lock_duration_ms: int = 30_000
    """How long a record stays locked for a member."""
    begins_earliest: bool = False
    """Whether a share partition without a state starts at the log start; otherwise it starts at the
    end.
    """
    begins_ms_ago: int | None = None
    """If set, the share partition starts at the first record of this most recent period instead."""
    reads_committed: bool = False
    """Whether members receive only records outside of aborted and open transactions."""
    limits: WindowLimits = field(default_factory=WindowLimits)

    @property
    def lock_duration_s(self) -> float:
        return self.lock_duration_ms / 1_000


ShareConfigs: TypeAlias = Callable[[str], ShareGroupConfig]
"""Returns the current configs of a group."""


@dataclass(slots=True)
class ShareCounts:
    """Counters of the share partitions of a broker."""

    delivered: int = 0
    """Records delivered to members, including redeliveries."""
    expired: int = 0
    """Records whose lock expired before the member acknowledged them."""
    failed_writes: int = 0
