"""Run a few seeds of every scenario with the tests; `python -m tests.sim` runs thousands at
night.
"""

import pytest

from tests.sim.scenarios import SCENARIOS
from tests.sim.world import World

SEEDS_EACH = 2


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_nothing_acknowledged_is_lost_and_everything_heals(scenario: str) -> None:
    for seed in range(SEEDS_EACH):
        outcome = World(seed, scenario).run()
        assert outcome.violation is None, (
            f"python -m tests.sim --seed {seed} --scenario {scenario}: {outcome.violation}"
        )
        assert outcome.acked_count, "the clients wrote nothing"
        assert outcome.read_count, "nobody read anything"
