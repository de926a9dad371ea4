"""A few seeds of every scenario at every run of the tests; thousands at night with `python -m tests.sim`."""

import pytest

from tests.sim.scenarios import SCENARIOS
from tests.sim.world import World

SEEDS_EACH = 2


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_acknowledged_is_lost_and_everything_heals(scenario: str) -> None:
    for seed in range(SEEDS_EACH):
        outcome = World(seed, scenario).run()
        assert outcome.violation is None, f"python -m tests.sim --seed {seed} --scenario {scenario}: {outcome.violation}"
        assert outcome.acked_count, "the clients wrote nothing"
        assert outcome.read_count, "nobody read anything"


def test_balancing_moves_partitions_and_excludes_brokers_in_the_simulation() -> None:
    events: list[str] = []
    for seed in range(SEEDS_EACH, SEEDS_EACH + 4):
        outcome = World(seed, "balance").run()
        assert outcome.violation is None, f"python -m tests.sim --seed {seed} --scenario balance: {outcome.violation}"
        events += outcome.tail
    assert any("partition_balanced" in event for event in events)
    assert any("broker_excluded" in event for event in events)
