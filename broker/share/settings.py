"""What a share group decides for its share partitions, and the limits of the broker.

Must not: look settings up (`broker.node` passes a function that does).
Source: Kafka `GroupConfig`, `ShareGroupConfig`; KIP-932.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from broker.share.window import WindowLimits

EARLIEST: Final = "earliest"
LATEST: Final = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupConfig:
    """The configs of one share group."""

    lock_duration_ms: int = 30_000
    """How long a member has a record before others may get it."""
    reset: str = LATEST
    """Where a share partition begins that has no state yet: EARLIEST, LATEST, or by duration."""
    reset_duration_ms: int | None = None
    """Begin with the records of this last stretch of time."""
    reads_committed: bool = False
    """Members get no records of aborted transactions, and none of open ones."""
    limits: WindowLimits = WindowLimits()

    @property
    def lock_duration_s(self) -> float:
        return self.lock_duration_ms / 1_000


ShareConfigs: TypeAlias = Callable[[str], ShareGroupConfig]
"""Returns the current configs of a group."""
