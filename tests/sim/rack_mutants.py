"""Planted bugs of reads from brokers that do not lead, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

from penstock.broker.partition.committed_reader import CommittedPartition
from penstock.broker.tail.partition import TailPartition, TailView

Patch = tuple[Any, str, Any]


def _open_transactions_are_read() -> list[Patch]:
    async def last_stable_offset(self: CommittedPartition) -> Any:
        return self.committed_end

    return [(CommittedPartition, "last_stable_offset", last_stable_offset)]


def _aborted_transactions_are_not_told() -> list[Patch]:
    async def read_aborted(self: CommittedPartition, start: Any, end: Any) -> Any:
        return []

    return [(CommittedPartition, "read_aborted", read_aborted)]


def _open_transactions_of_a_tail_are_read() -> list[Patch]:
    def readable_end(self: TailPartition, *, committed: bool) -> Any:
        return self.end_offset

    return [(TailPartition, "readable_end", readable_end)]


def _aborted_transactions_of_a_tail_are_not_told() -> list[Patch]:
    def aborted_within(self: TailView, start: Any, end: Any) -> Any:
        return []

    return [(TailView, "aborted_within", aborted_within)]


RACK_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "open_transactions_are_read_near": _open_transactions_are_read,
    "aborted_transactions_are_not_told_near": _aborted_transactions_are_not_told,
    "open_transactions_of_a_tail_are_read": _open_transactions_of_a_tail_are_read,
    "aborted_transactions_of_a_tail_are_not_told": _aborted_transactions_of_a_tail_are_not_told,
}
