"""Planted bugs in reads near damaged objects, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

from penstock.stream.read.object_reader import ObjectReader

Patch = tuple[Any, str, Any]


def _reads_bridge_damage() -> list[Patch]:
    """A damaged block counts as one that compaction has emptied."""
    real = ObjectReader._load

    async def load(self: ObjectReader, pieces: Any) -> Any:
        return [
            b"" if isinstance(found, Exception) else found for found in await real(self, pieces)
        ]

    return [(ObjectReader, "_load", load)]


DAMAGE_MUTANTS: dict[str, Callable[[], list[Patch]]] = {"reads_bridge_damage": _reads_bridge_damage}
