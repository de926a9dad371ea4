"""Planted bugs in the rewrite of ranges in WAL stores, for `tests.sim.mutants`."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import penstock.controller.active.wal_rewrites as wal_rewrites
import penstock.controller.api.stream_metadata as stream_metadata
import penstock.stream.compaction.compactor as compactor
from penstock.base.ids import StreamId
from penstock.controller.active.wal_rewrites import WalRewrites
from penstock.stream.compaction.compactor import Compactor
from penstock.stream.compaction.plan import Output

Patch = tuple[Any, str, Any]


async def _nothing(*_: Any) -> None:
    """Rewrite nothing."""


def _ranges_stay_in_wal_stores() -> list[Patch]:
    return [(Compactor, "run_wal_store_round", _nothing)]


def _ranges_without_a_leader_stay() -> list[Patch]:
    return [(WalRewrites, "assigned_to", lambda _, reporter: ())]


def _jobs_stay_with_dead_brokers() -> list[Patch]:
    return [(wal_rewrites, "_TERM_S", 1e9)]


def _rounds_given_up_for_one_stream() -> list[Patch]:
    original = compactor._parts_of

    def whole_or_nothing(
        outputs: Sequence[Output], stream_ids: Collection[StreamId]
    ) -> tuple[Output, ...]:
        parts = original(outputs, stream_ids)
        return parts if parts == tuple(outputs) else ()

    return [(compactor, "_parts_of", whole_or_nothing)]


def _turns_wait_for_the_wal_store() -> list[Patch]:
    return [(Compactor, "_reach", _nothing)]


def _wal_stores_read_without_backoff() -> list[Patch]:
    return [(compactor, "_PAUSE_MAX_S", 0.0)]


def _jobs_begin_at_the_first_stream() -> list[Patch]:
    original = wal_rewrites.closed_in_wal_stores
    return [(wal_rewrites, "closed_in_wal_stores", lambda image, _: original(image))]


def _retained_records_fill_the_wal_store() -> list[Patch]:
    return [
        (stream_metadata, "rewritable_bytes", lambda image: image.objects.wal_store_bytes),
    ]


WAL_REWRITE_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "ranges_stay_in_wal_stores": _ranges_stay_in_wal_stores,
    "ranges_without_a_leader_stay": _ranges_without_a_leader_stay,
    "jobs_stay_with_dead_brokers": _jobs_stay_with_dead_brokers,
    "jobs_begin_at_the_first_stream": _jobs_begin_at_the_first_stream,
    "retained_records_fill_the_wal_store": _retained_records_fill_the_wal_store,
    "rounds_given_up_for_one_stream": _rounds_given_up_for_one_stream,
    "turns_wait_for_the_wal_store": _turns_wait_for_the_wal_store,
    "wal_stores_read_without_backoff": _wal_stores_read_without_backoff,
}
