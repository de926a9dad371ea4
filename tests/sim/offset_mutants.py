"""Planted bugs in leases, epochs and lookups by time, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

import penstock.broker.handlers.fetch.fetch_call as fetch_handler
import penstock.broker.handlers.list_offsets as list_handler
import penstock.broker.handlers.offset_for_leader_epoch as epoch_handler
import penstock.stream.read.timestamp_reader as reading
from penstock.broker.errors import ErrorCode
from penstock.broker.partition.append import PartitionAppend
from penstock.broker.partition.leader_epochs import LeaderEpochs
from penstock.controller.api.lease import Lease
from penstock.protocol.batch.records import decode_records
from penstock.stream.read.stream_reader import StreamReader
from tests.sim.nodes import SimBroker

Patch = tuple[Any, str, Any]


def _lease_never_ends() -> list[Patch]:
    """Once there is a session, only the controller ends it."""

    def until(self: Any) -> float:
        return float("-inf") if self._ended or self._until == float("-inf") else float("inf")

    return [(Lease, "until", property(until)), (Lease, "alone_until", property(until))]


def _ends_told_without_a_lease() -> list[Patch]:
    """Only writes require the session."""
    return [(SimBroker, "leads_alone", lambda _: True)]


def _refused_connection_is_a_proof() -> list[Patch]:
    """A rejecting firewall counts as the death of the controller."""
    return [(Lease, "alone_until", property(lambda self: self.until))]


def _sequences_judged_without_a_lease() -> list[Patch]:
    """A leader without a lease returns sequence number errors."""
    return [(PartitionAppend, "_final_or_retriable", lambda _, plan: (plan.code, plan.message))]


def _leader_epochs_ignored() -> list[Patch]:
    return [
        (module, "check_leader_epoch", lambda *_: ErrorCode.NONE)
        for module in (fetch_handler, list_handler, epoch_handler)
    ]


def _leader_epochs_not_restored() -> list[Patch]:
    def init(self: Any, _: Any = ()) -> None:
        self._entries = []

    return [(LeaderEpochs, "__init__", init)]


def _times_looked_up_in_objects_only() -> list[Patch]:
    async def nothing(*_: object) -> None:
        pass

    return [(StreamReader, "_timestamp_in_cache", nothing)]


def _first_record_of_the_batch_is_taken() -> list[Patch]:
    real = reading.first_record_at_or_after

    def first_record(batch: Any, timestamp_ms: int, **options: int) -> Any:
        found = real(batch, timestamp_ms, **options)
        if found is None:
            return None
        first = next(iter(decode_records(batch)))
        return first.offset, first.timestamp_ms

    return [(reading, "first_record_at_or_after", first_record)]


OFFSET_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "lease_never_ends": _lease_never_ends,
    "ends_told_without_a_lease": _ends_told_without_a_lease,
    "refused_connection_is_a_proof": _refused_connection_is_a_proof,
    "sequences_judged_without_a_lease": _sequences_judged_without_a_lease,
    "leader_epochs_ignored": _leader_epochs_ignored,
    "leader_epochs_not_restored": _leader_epochs_not_restored,
    "times_looked_up_in_objects_only": _times_looked_up_in_objects_only,
    "first_record_of_the_batch_is_taken": _first_record_of_the_batch_is_taken,
}
