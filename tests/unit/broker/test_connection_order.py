"""Detection of late requests, with limited memory."""

import tracemalloc
from functools import partial

import pytest

from penstock.broker.coordination.connection_order import ConnectionOrder, LateRequest


def test_a_request_on_an_older_connection_counts_as_late() -> None:
    order = ConnectionOrder()
    order.admit("tid", 7, 0, 1)
    order.admit("tid", 7, 0, 3)
    with pytest.raises(
        LateRequest,
        match=r"connection \(1\) is older than the producer's current one \(3\)",
    ):
        order.admit("tid", 7, 0, 1)
    with pytest.raises(LateRequest):
        order.admit("tid", 7, 0, 2)
    order.admit("tid", 7, 0, 3)
    order.admit("tid", 7, 0, 4)


@pytest.mark.parametrize("other", [("another", 7, 0), ("tid", 8, 0), ("tid", 7, 1)])
def test_names_producers_and_epochs_are_tracked_separately(other: tuple[str, int, int]) -> None:
    order = ConnectionOrder()
    order.admit("tid", 7, 0, 3)
    order.admit(*other, 1)


def test_the_least_recently_active_producer_is_evicted() -> None:
    order = ConnectionOrder(entries_max=2)
    order.admit("a", 1, 0, 5)
    order.admit("b", 2, 0, 5)
    order.admit("a", 1, 0, 6)
    order.admit("c", 3, 0, 5)
    assert len(order) == 2
    order.admit("b", 2, 0, 1)
    with pytest.raises(LateRequest):
        order.admit("c", 3, 0, 1)


def test_an_advancing_commit_is_late_after_offsets_moved_back() -> None:
    order = ConnectionOrder()
    commit = partial(order.admit_commit, "g", "m")
    commit(5, advances=False, moves_back=False)
    commit(3, advances=True, moves_back=False)
    for advances in (False, True):
        commit(4, advances=True, moves_back=False)
        with pytest.raises(LateRequest, match=r"connection \(4\) is older .* current one \(5\)"):
            commit(4, advances=False, moves_back=advances)
    commit(5, advances=False, moves_back=True)
    with pytest.raises(LateRequest):
        commit(4, advances=True, moves_back=False)
    commit(5, advances=True, moves_back=False)
    order.admit_commit("g", "other", 4, advances=True, moves_back=False)
    order.admit_commit("g", "", 1, advances=False, moves_back=True)


def test_a_backward_move_is_remembered_while_its_member_commits() -> None:
    order = ConnectionOrder(entries_max=4)
    order.admit_commit("g", "m", 5, advances=False, moves_back=True)
    for number in range(9):
        order.admit_commit("g", "m", 5, advances=True, moves_back=False)
        order.admit("tid", number, 0, 5)
    with pytest.raises(LateRequest):
        order.admit_commit("g", "m", 4, advances=True, moves_back=False)


def test_long_names_do_not_occupy_memory() -> None:
    order = ConnectionOrder()
    ids = ["m" * 32_767, "m" * 32_766 + "n"]
    tracemalloc.start()
    for number in range(100):
        for member in ids:
            order.admit_member(11, f"{number}" * 10_000, member, 5)
            order.admit_commit(f"{number}" * 10_000, member, 5, advances=False, moves_back=True)
        order.admit(f"{number}" * 10_000, 7, 0, 5)
    assert tracemalloc.get_traced_memory()[0] < 1_000_000
    tracemalloc.stop()
    assert len(order) == 100 * (2 + 4 + 1)
    for member in ids:
        with pytest.raises(LateRequest):
            order.admit_member(11, "7" * 10_000, member, 4)
