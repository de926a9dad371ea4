"""Planted bugs in reads from brokers that are not the leader, for `tests.sim.mutants`."""

from collections.abc import Callable
from typing import Any

from penstock.broker.partition.committed_reader import CommittedPartition
from penstock.broker.partition.transactions import Transactions
from penstock.broker.requests.leader_hints import LeaderHints
from penstock.broker.tail import followers
from penstock.broker.tail.partition import TailPartition, TailView
from penstock.broker.tail.redirects import RedirectTable

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


def _aborts_at_the_begin_of_a_tail_are_not_told() -> list[Patch]:
    def aborted_since(self: Transactions, offset: Any, end_offset: Any) -> Any:
        tail = real(self, offset, end_offset)
        kept = [item for item in tail.transactions if item.last_offset > offset]
        return tail._replace(transactions=kept)

    real = Transactions.aborted_since
    return [(Transactions, "aborted_since", aborted_since)]


def _consumers_are_not_returned_to_the_leader() -> list[Patch]:
    def current_leader(self: LeaderHints, topic_name: str, index: int) -> None:
        return None

    return [(LeaderHints, "current_leader", current_leader)]


def _returned_consumers_are_redirected() -> list[Patch]:
    def has_returned(self: RedirectTable, key: Any, now: float) -> bool:
        return False

    return [(RedirectTable, "has_returned", has_returned)]


def _brokers_that_back_off_get_consumers() -> list[Patch]:
    return [(followers, "LEAVES_BYTES", -1)]


RACK_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "open_transactions_are_read_near": _open_transactions_are_read,
    "aborted_transactions_are_not_told_near": _aborted_transactions_are_not_told,
    "open_transactions_of_a_tail_are_read": _open_transactions_of_a_tail_are_read,
    "aborted_transactions_of_a_tail_are_not_told": _aborted_transactions_of_a_tail_are_not_told,
    "aborts_at_the_begin_of_a_tail_are_not_told": _aborts_at_the_begin_of_a_tail_are_not_told,
    "consumers_are_not_returned_to_the_leader": _consumers_are_not_returned_to_the_leader,
    "returned_consumers_are_redirected": _returned_consumers_are_redirected,
    "brokers_that_back_off_get_consumers": _brokers_that_back_off_get_consumers,
}
