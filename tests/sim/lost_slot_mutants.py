"""Planted bugs in the handling of lost and damaged WAL slots, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

import penstock.lake.manifest.plan as plan
import penstock.lake.manifest.view as view
from penstock.lake.manifest.plan import TailRange
from penstock.lake.manifest.tail import WalTails, _Cursor
from penstock.stream.recovery.later_slots import SlotsBehind
from penstock.stream.recovery.salvage import Salvage

Patch = tuple[Any, str, Any]


def _hole_fenced_although_later_slots_prove_it() -> list[Patch]:
    """The first free slot counts as the end, without a LIST of later slots."""

    async def proof_of(_: SlotsBehind, __: Any) -> str:
        return ""

    return [(SlotsBehind, "proof_of", proof_of)]


def _slots_after_a_hole_always_prove_it() -> list[Patch]:
    """PUTs in flight count as acknowledged slots."""
    real = SlotsBehind.proof_of

    async def proof_of(self: SlotsBehind, hole: Any) -> str:
        return await real(self, hole) or (
            "slots after it" if any(slot > hole for slot in self._listed) else ""
        )

    return [(SlotsBehind, "proof_of", proof_of)]


def _doubtful_partitions_handed_over() -> list[Patch]:
    return [(Salvage, "losses", lambda _self, _accepted=(): iter(()))]


def _readers_bridge_holes() -> list[Patch]:
    """Ranges of a stream are joined although offsets between them are missing."""

    def joined_tail(position: int, found: Any) -> list[TailRange]:
        joined: list[TailRange] = []
        for item in sorted(found, key=plan._start):
            if item.end_offset > position:
                joined.append(
                    item
                    if item.start_offset >= position
                    else plan._clipped(item, position, item.end_offset)
                )
                position = item.end_offset
        return joined

    async def lost(self: _Cursor, _: float, __: Any) -> Any:
        """Continue the walk after every hole that is followed by a slot."""
        for ahead in range(1, 8):
            index = await self._read(self._next + ahead)
            if index is not None:
                self._next = self._next + ahead
                return index
        return None

    return [(view, "joined_tail", joined_tail), (_Cursor, "_read_missing", lost)]


def _readers_end_at_a_lost_slot() -> list[Patch]:
    async def lost(_: _Cursor, __: float, ___: Any) -> Any:
        return None

    return [(_Cursor, "_read_missing", lost)]


def _readers_do_not_doubt() -> list[Patch]:
    return [(WalTails, "bad_slot_for", lambda _self, _leader, _stream_id, _end: None)]


LOST_SLOT_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "hole_fenced_although_later_slots_prove_it": _hole_fenced_although_later_slots_prove_it,
    "slots_after_a_hole_always_prove_it": _slots_after_a_hole_always_prove_it,
    "doubtful_partitions_handed_over": _doubtful_partitions_handed_over,
    "readers_bridge_holes": _readers_bridge_holes,
    "readers_end_at_a_lost_slot": _readers_end_at_a_lost_slot,
    "readers_do_not_doubt": _readers_do_not_doubt,
}
