"""Planted bugs in the producer states of partitions, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from penstock.base.ids import Offset
from penstock.broker.partition.producer_state import ProducerSnapshot, ProducerState

Patch = tuple[Any, str, Any]
FEW_PRODUCERS: Final = 100
"""Number of producers that a partition with such a bug remembers. A script writes a
batch for each.
"""


def _few_producers_remembered() -> list[Patch]:
    """A partition forgets the longest inactive producer beyond a small number."""
    real = ProducerState.__init__

    def init(self: ProducerState, producers_count_max: int = FEW_PRODUCERS) -> None:
        real(self, min(producers_count_max, FEW_PRODUCERS))

    return [(ProducerState, "__init__", init)]


def _few_producers_stored() -> list[Patch]:
    """A checkpoint contains only the producers that wrote last."""
    real = ProducerState.snapshot

    def snapshot(self: ProducerState, offset: Offset) -> ProducerSnapshot:
        found = real(self, offset)
        return msgspec.structs.replace(found, producers=found.producers[-FEW_PRODUCERS:])

    return [(ProducerState, "snapshot", snapshot)]


PRODUCER_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "few_producers_remembered": _few_producers_remembered,
    "few_producers_stored": _few_producers_stored,
}
