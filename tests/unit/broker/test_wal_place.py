"""When a broker moves its WAL back to its WAL store."""

import pytest

from penstock.broker.background.wal_place import (
    RELAPSE_S,
    RETURN_AFTER_MAX_S,
    ReturnPolicy,
)

WAIT_S = 30.0


def returned_after_s(policy: ReturnPolicy, since: float, *, failed_at: float = -1.0) -> float:
    """Leave the WAL store at this time, and return the seconds until the WAL returns.

    failed_at: seconds after which a probe fails.
    """
    policy.left(since)
    waited_s = 0.0
    while not policy.probed(since + waited_s, works=waited_s != failed_at):
        waited_s += 5.0
    policy.returned(since + waited_s)
    return waited_s


@pytest.mark.parametrize(("failed_at", "waited_s"), [(-1.0, 30.0), (0.0, 35.0), (20.0, 55.0)])
def test_a_wal_returns_after_a_while_without_failed_probes(
    failed_at: float, waited_s: float
) -> None:
    assert returned_after_s(ReturnPolicy(WAIT_S), 0.0, failed_at=failed_at) == waited_s


def test_a_wal_waits_longer_after_each_failure_soon_after_its_return() -> None:
    policy, now, waits = ReturnPolicy(WAIT_S), 0.0, list[float]()
    for _ in range(8):
        waits.append(returned_after_s(policy, now))
        now += waits[-1] + RELAPSE_S - 1
    assert waits == [30, 60, 120, 240, 480, 960, RETURN_AFTER_MAX_S, RETURN_AFTER_MAX_S]
    assert returned_after_s(policy, now + 2) == WAIT_S
