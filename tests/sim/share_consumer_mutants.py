"""Planted bugs in the leaders of share partitions, for `tests.sim.mutants`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from penstock.broker.groups.share.partitions.partition import SharePartition
from penstock.broker.groups.share.partitions.spans import ACQUIRED, UNCHANGED, Span
from penstock.broker.groups.share.partitions.window import ShareWindow
from penstock.broker.groups.share.state.model import AVAILABLE
from penstock.protocol.error_codes import ErrorCode

Patch = tuple[Any, str, Any]


def _acknowledged_before_stored() -> list[Patch]:
    real = SharePartition._written

    def written(self: SharePartition, changes: Any) -> Any:
        real(self, changes)
        return ErrorCode.NONE

    return [(SharePartition, "_written", written)]


def _locks_given_twice() -> list[Patch]:
    def is_available(self: Span) -> bool:
        return self.state in (AVAILABLE, ACQUIRED) and self.target == UNCHANGED

    return [(Span, "is_available", property(is_available))]


def _stored_states_forgotten() -> list[Patch]:
    """A new leader starts at the start offset, but forgets acknowledgments above it."""
    real = ShareWindow.__init__

    def init(self: ShareWindow, start_offset: int, limits: Any, batches: Any = ()) -> None:
        real(self, start_offset, limits, ())

    return [(ShareWindow, "__init__", init)]


def _start_offsets_forgotten() -> list[Patch]:
    real = SharePartition._read_window

    async def read_window(self: SharePartition) -> ShareWindow:
        window = await real(self)
        return ShareWindow(self.partition.log_start_offset, window.limits)

    return [(SharePartition, "_read_window", read_window)]


def _gaps_taken_for_done() -> list[Patch]:
    """Records that members of an old leader had acquired are skipped."""
    real = ShareWindow.__init__

    def init(self: ShareWindow, start_offset: int, limits: Any, batches: Any = ()) -> None:
        known, end = [], start_offset
        for batch in batches:
            known.append(replace(batch, first_offset=min(end, batch.first_offset)))
            end = batch.last_offset + 1
        real(self, start_offset, limits, known)

    return [(ShareWindow, "__init__", init)]


SHARE_CONSUMER_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "acknowledged_before_stored": _acknowledged_before_stored,
    "locks_given_twice": _locks_given_twice,
    "stored_share_states_forgotten": _stored_states_forgotten,
    "share_start_offsets_forgotten": _start_offsets_forgotten,
    "gaps_taken_for_done": _gaps_taken_for_done,
}
