"""Find late requests, with bounded memory."""

import pytest

from penstock.broker.coordination.connection_order import ConnectionOrder, LateRequest


def test_a_request_on_an_older_connection_is_late() -> None:
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
def test_names_producers_and_epochs_do_not_concern_each_other(other: tuple[str, int, int]) -> None:
    order = ConnectionOrder()
    order.admit("tid", 7, 0, 3)
    order.admit(*other, 1)


def test_the_producer_that_requested_longest_ago_is_forgotten() -> None:
    order = ConnectionOrder(entries_max=2)
    order.admit("a", 1, 0, 5)
    order.admit("b", 2, 0, 5)
    order.admit("a", 1, 0, 6)
    order.admit("c", 3, 0, 5)
    assert len(order) == 2
    order.admit("b", 2, 0, 1)
    with pytest.raises(LateRequest):
        order.admit("c", 3, 0, 1)
