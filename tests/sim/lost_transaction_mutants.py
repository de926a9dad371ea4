"""Planted bugs in transactions in lost WAL stores, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

import penstock.broker.coordination.log as coordinator_log
import penstock.broker.partition.log as partition_log
import penstock.controller.disaster_recovery.plan as plan
import penstock.controller.managers.failover as failover
import penstock.controller.managers.lost_ranges as lost_ranges
from penstock.base.ids import Offset
from penstock.broker.partition.log import PartitionLog
from penstock.broker.partition.transactions import Transactions
from penstock.broker.transactions.machine import Transaction

Patch = tuple[Any, str, Any]

_NO_EPOCH = -2
"""An epoch that no batch has."""


def _markers_in_lost_wals_awaited() -> list[Patch]:
    """Transactions whose marker was in a lost WAL stay open."""
    real = failover._hand_over

    def hand_over(*args: Any, is_lost: bool = False) -> int:
        del is_lost
        return real(*args)

    return [(failover, "_hand_over", hand_over)]


def _markers_in_lost_wals_recovered() -> list[Patch]:
    """A recovery expects markers in WALs that are lost."""
    real = plan._depose_brokers
    return [(plan, "_depose_brokers", lambda image, **_: real(image, aborts=False))]


def _offsets_of_internal_topics_trimmed() -> list[Patch]:
    return [(lost_ranges, "INTERNAL_TOPICS", frozenset[str]())]


def _markers_in_lost_ranges_awaited() -> list[Patch]:
    """Transactions whose marker was in a lost range are open after a scan."""
    return [(partition_log, "LOST_LEADER_EPOCH", _NO_EPOCH)]


def _offsets_below_lost_ranges_unstable() -> list[Patch]:
    return [(coordinator_log, "LOST_LEADER_EPOCH", _NO_EPOCH)]


def _open_offsets_dropped() -> list[Patch]:
    """A coordinator treats transactions that are open across a lost range as aborted."""
    return [(Transactions, "unsettled", lambda _: frozenset[Offset]())]


def _epochs_given_out_again() -> list[Patch]:
    def needs_producer_id(self: Transaction, _: Any) -> bool:
        return self.is_new

    return [(Transaction, "needs_producer_id", needs_producer_id)]


def _open_transactions_without_events() -> list[Patch]:
    return [(PartitionLog, "lacks_event", False)]


LOST_TRANSACTION_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "markers_in_lost_wals_awaited": _markers_in_lost_wals_awaited,
    "markers_in_lost_wals_recovered": _markers_in_lost_wals_recovered,
    "offsets_of_internal_topics_trimmed": _offsets_of_internal_topics_trimmed,
    "markers_in_lost_ranges_awaited": _markers_in_lost_ranges_awaited,
    "offsets_below_lost_ranges_unstable": _offsets_below_lost_ranges_unstable,
    "open_offsets_dropped": _open_offsets_dropped,
    "epochs_given_out_again_after_a_loss": _epochs_given_out_again,
    "open_transactions_without_events": _open_transactions_without_events,
}
