"""Planted bugs of the rewrite of ranges in WAL stores, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

import penstock.controller.active.wal_rewrites as wal_rewrites
from penstock.controller.active.wal_rewrites import WalRewrites
from penstock.stream.compaction.compactor import Compactor

Patch = tuple[Any, str, Any]


async def _nothing(*_: Any) -> None:
    """Rewrite nothing."""


def _ranges_stay_in_wal_stores() -> list[Patch]:
    return [(Compactor, "run_wal_store_round", _nothing)]


def _ranges_without_a_leader_stay() -> list[Patch]:
    return [(WalRewrites, "assigned_to", lambda _, reporter: ())]


def _jobs_stay_with_dead_brokers() -> list[Patch]:
    return [(wal_rewrites, "_TERM_S", 1e9)]


WAL_REWRITE_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "ranges_stay_in_wal_stores": _ranges_stay_in_wal_stores,
    "ranges_without_a_leader_stay": _ranges_without_a_leader_stay,
    "jobs_stay_with_dead_brokers": _jobs_stay_with_dead_brokers,
}
