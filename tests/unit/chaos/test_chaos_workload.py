"""A chaos run in which clients or links were idle cannot pass."""

import pytest

from tests.chaos.workload import idle_work
from tests.support.anomalies import Outcome

FINISHED = {"transactions sender": {Outcome.OK: 3, Outcome.FAIL: 1}}
COUNTS = [("commits", 7), ("polls", 9)]
LINKS = {
    ("broker", "broker"): 1,
    ("broker", "controller"): 3,
    ("controller", "controller"): 2,
    ("clients", "broker"): 8,
}


def test_a_run_in_which_all_clients_were_active_passes() -> None:
    assert idle_work(FINISHED, COUNTS, LINKS) == []
    assert idle_work(FINISHED, COUNTS, None) == []


@pytest.mark.parametrize("link", LINKS)
def test_an_unused_link_is_reported(link: tuple[str, str]) -> None:
    assert idle_work(FINISHED, COUNTS, {**LINKS, link: 0}) == [
        f"connections from {link[0]} to {link[1]}"
    ]


def test_idle_clients_are_reported() -> None:
    assert idle_work({"transactions sender": {Outcome.OK: 3, Outcome.INFO: 5}}, COUNTS, None) == [
        "fail transactions sender"
    ]
    assert idle_work(FINISHED, [("commits", 0)], None) == ["commits"]
