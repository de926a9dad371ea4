"""Planted bugs that show when leaders change while transactions end, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

from penstock.base.ids import Offset
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.partition.transactions import Transactions
from penstock.protocol.batch.control import Marker

Patch = tuple[Any, str, Any]


def _markers_lost_during_load() -> list[Patch]:
    """Loading reads up to the end of the log at its start, so offsets of a transaction that has
    ended since then remain pending. The next marker of the producer ends them with its own outcome.
    """
    real = GroupCoordinator.complete_transaction

    def complete_transaction(
        self: GroupCoordinator, partition: int, producer_id: int, committed: bool
    ) -> None:
        if self._shards.get(partition) is not None:
            real(self, partition, producer_id, committed)

    return [(GroupCoordinator, "complete_transaction", complete_transaction)]


def _last_stable_offset_passes_markers_that_are_not_durable() -> list[Patch]:
    """The last stable offset moves when another batch becomes durable before the marker. The event
    of an abort is stored with the marker and is not durable yet either. For records of an earlier
    leader, responses contain only aborts whose events are durable, so readers get aborted records.
    """
    real = Transactions.end

    def end(self: Transactions, marker: Marker, offset: Offset) -> None:
        real(self, marker, offset)
        self._ended.clear()

    return [(Transactions, "end", end)]


LOAD_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "markers_lost_during_load": _markers_lost_during_load,
    "last_stable_offset_passes_markers_that_are_not_durable": (
        _last_stable_offset_passes_markers_that_are_not_durable
    ),
}
