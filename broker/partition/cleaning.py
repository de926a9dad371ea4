"""Decide which compacted logs are due for log compaction. Pure.

Penstock has no segments, so a pass may compact everything up to the last stable offset.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.base.ids import Millis
from penstock.controller.metadata.topic_configs import TOPIC_CONFIGS, cleanup_policies

_DIRTY_RATIO: Final = "min.cleanable.dirty.ratio"
_MIN_LAG_MS: Final = "min.compaction.lag.ms"
_MAX_LAG_MS: Final = "max.compaction.lag.ms"
_TOMBSTONES_MS: Final = "delete.retention.ms"


@dataclass(frozen=True, slots=True)
class CleaningPolicy:
    """The configs of a compacted topic."""

    dirty_ratio_min: float
    lag_ms_min: int
    lag_ms_max: int
    tombstones_kept_ms: int

    @classmethod
    def from_configs(cls, configs: Mapping[str, str]) -> "CleaningPolicy | None":
        """Return the policy of a topic, or None if `cleanup.policy` does not contain compact."""
        if "compact" not in cleanup_policies(configs):
            return None

        def value(name: str) -> str:
            return configs.get(name, TOPIC_CONFIGS[name].default)

        return cls(
            float(value(_DIRTY_RATIO)),
            int(value(_MIN_LAG_MS)),
            int(value(_MAX_LAG_MS)),
            int(value(_TOMBSTONES_MS)),
        )


@dataclass(frozen=True, slots=True)
class DirtyPart:
    """The part of a log of `log_bytes` that is not compacted yet. since_ms: when this broker first
    detected it.
    """

    log_bytes: int
    dirty_bytes: int
    since_ms: Millis

    def plus(self, size_bytes: int) -> "DirtyPart":
        """Return the dirty part after appending this many bytes."""
        return DirtyPart(self.log_bytes + size_bytes, self.dirty_bytes + size_bytes, self.since_ms)

    @property
    def ratio(self) -> float:
        return self.dirty_bytes / self.log_bytes if self.log_bytes else 0.0


def is_due(dirty: DirtyPart, policy: CleaningPolicy, now_ms: Millis) -> bool:
    """Return whether a log is due for compaction. As in Kafka, it is due if the fraction of bytes
    appended since the last pass exceeds `min.cleanable.dirty.ratio`, or if a record has been
    waiting for longer than `max.compaction.lag.ms` (KIP-354).

    Records younger than `min.compaction.lag.ms` are not compacted, so a log that became dirty more
    recently than that is not due.
    """
    if dirty.dirty_bytes <= 0:
        return False
    waited_ms = now_ms - dirty.since_ms
    if waited_ms < policy.lag_ms_min:
        return False
    return dirty.ratio > policy.dirty_ratio_min or waited_ms > policy.lag_ms_max
