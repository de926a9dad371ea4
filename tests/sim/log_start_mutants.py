"""Planted bugs of retention and DeleteRecords, for `tests.sim.mutants`.

Not planted: a broker that ignores a trim whose answer was lost. The log cache serves the records
below the new start until the run ends; tests/unit/broker/test_retention.py finds it.
"""

from collections.abc import Callable
from typing import Any

import broker.partition.retention as retention
from broker.partition.opener import PartitionOpener
from broker.partition.partition import Partition
from stream.storage import Storage

Patch = tuple[Any, str, Any]


def _trimmed_without_a_checkpoint() -> list[Patch]:
    """What producers wrote last is gone, and so is the memory of it."""

    async def trim_all(
        self: PartitionOpener, starts: Any, *, keep: bool = False
    ) -> list[Exception | None]:
        if keep:
            await self._storage.upload()
        for partition, start in starts:
            if start > partition.log_start_offset:
                await self._storage.trim(partition.log.data, start, keep=keep)
        return [None] * len(starts)

    return [(PartitionOpener, "trim_all", trim_all)]


def _log_start_named_before_it_is_committed() -> list[Patch]:
    real = Storage.trim

    async def trim(self: Storage, handle: Any, start_offset: Any, *, keep: bool = False) -> None:
        handle.start_offset = max(handle.start_offset, start_offset)
        await real(self, handle, start_offset, keep=keep)

    return [(Storage, "trim", trim)]


def _log_start_forgotten_at_open() -> list[Patch]:
    """As if a log always began where its first leader found it."""
    return [
        (Partition, "log_start_offset", property(lambda self: min(self.log.data.start_offset, 0)))
    ]


def _everything_is_old() -> list[Patch]:
    return [
        (retention, "_is_expired", lambda _entry, limits, _now_ms, _committed: limits.age_ms >= 0)
    ]


def _size_is_exceeded_by_the_last_range() -> list[Patch]:
    """A range goes although less than the topic keeps is left without it."""
    real = retention.retained_from

    def retained_from(entries: Any, limits: Any, now_ms: Any, committed_ms: Any) -> Any:
        start = real(entries, limits, now_ms, committed_ms)
        if limits.size_bytes < 0 or start is None:
            return start
        return next((item.end_offset for item in entries if item.end_offset > start), start)

    import broker.retention_duty as duty

    return [(duty, "retained_from", retained_from)]


LOG_START_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "trimmed_without_a_checkpoint": _trimmed_without_a_checkpoint,
    "log_start_named_before_it_is_committed": _log_start_named_before_it_is_committed,
    "log_start_forgotten_at_open": _log_start_forgotten_at_open,
    "everything_is_old": _everything_is_old,
    "size_is_exceeded_by_the_last_range": _size_is_exceeded_by_the_last_range,
}
