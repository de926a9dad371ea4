"""Planted bugs in prefetching readers, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

from penstock.stream.read.object_reader import ObjectReader

Patch = tuple[Any, str, Any]


def _loaded_reads_pass_over_a_block() -> list[Patch]:
    """A block that was evicted from memory counts as one without records."""
    real = ObjectReader.read_loaded

    def read_loaded(self: ObjectReader, *args: Any) -> Any:
        found = real(self, *args)
        return found[1:] if found is not None and len(found) > 1 else found

    return [(ObjectReader, "read_loaded", read_loaded)]


READ_AHEAD_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "loaded_reads_pass_over_a_block": _loaded_reads_pass_over_a_block
}
