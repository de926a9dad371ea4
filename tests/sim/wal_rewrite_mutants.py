"""Planted bugs of the rewrite of ranges in WAL stores, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

from penstock.stream.compaction.compactor import Compactor

Patch = tuple[Any, str, Any]


async def _nothing(*_: Any) -> None:
    """Rewrite nothing."""


def _ranges_stay_in_wal_stores() -> list[Patch]:
    return [(Compactor, "run_wal_store_round", _nothing)]


WAL_REWRITE_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "ranges_stay_in_wal_stores": _ranges_stay_in_wal_stores,
}
