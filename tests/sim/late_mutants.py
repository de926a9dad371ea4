"""Planted bugs that delayed messages expose, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

import penstock.broker.groups.coordinator.group_coordinator as groups
import penstock.broker.transactions.coordinator as transactions
from penstock.broker.coordination.connection_order import ConnectionOrder
from penstock.broker.partition.append import PartitionAppend
from penstock.broker.partition.producer_state import ProducerState
from penstock.broker.transactions.states import TransactionStates
from penstock.protocol.batch.control import Marker
from penstock.protocol.error_codes import ErrorCode

Patch = tuple[Any, str, Any]


def _late_markers_end_what_is_open() -> list[Patch]:
    return [(ProducerState, "is_repeated", lambda _self, _marker: False)]


def _late_markers_settle_offsets() -> list[Patch]:
    """Late markers are not appended, but the group ends the transaction whose offsets it holds."""
    real = PartitionAppend._await_repetition

    def await_repetition(
        self: PartitionAppend, partition: Any, known: Any, batch: Any, outcome: Any
    ) -> None:
        real(self, partition, known, batch, outcome)
        outcome.is_repetition = False

    return [(PartitionAppend, "_await_repetition", await_repetition)]


def _serials_begin_anew() -> list[Patch]:
    """Each transaction has the serial number of the first one."""
    real = TransactionStates._send_markers

    def run(
        self: TransactionStates, state: Any, transaction: Any, effect: Any, _serial: int
    ) -> None:
        real(self, state, transaction, effect, 0)

    return [(TransactionStates, "_send_markers", run)]


class _AnyOrder(ConnectionOrder):
    """Accepts requests on connections of any age."""

    def admit(self, name: str, producer_id: int, producer_epoch: int, connection_id: int) -> None:
        pass


def _late_ends_are_carried_out() -> list[Patch]:
    return [(transactions, "ConnectionOrder", _AnyOrder)]


def _late_offsets_are_carried_out() -> list[Patch]:
    """These appear only with version 1 producers; epochs protect version 2."""
    return [(groups, "ConnectionOrder", _AnyOrder)]


def _markers_of_older_coordinators_count() -> list[Patch]:
    """Markers of older coordinators end open transactions, regardless of the current coordinator's
    state.
    """
    real = ProducerState.check_marker

    def check(self: ProducerState, marker: Marker) -> ErrorCode | None:
        code = real(self, marker)
        return None if code is ErrorCode.TRANSACTION_COORDINATOR_FENCED else code

    return [(ProducerState, "check_marker", check)]


LATE_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "late_markers_end_what_is_open": _late_markers_end_what_is_open,
    "late_markers_settle_offsets": _late_markers_settle_offsets,
    "serials_begin_anew": _serials_begin_anew,
    "late_ends_are_carried_out": _late_ends_are_carried_out,
    "late_offsets_are_carried_out": _late_offsets_are_carried_out,
    "markers_of_older_coordinators_count": _markers_of_older_coordinators_count,
}
