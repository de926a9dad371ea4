"""Run a seed or two of every scenario; `make sim` runs hundreds, to find new bugs.

The seeds that find planted bugs are among them: a seed that fails without its bug is a false alarm
and finds nothing.
"""

import pytest

from tests.sim.mutant_seeds import FIRST_SEED, SCENARIO
from tests.sim.overtaken import COPIES_MIN, OVERTAKEN
from tests.sim.scenarios import SCENARIOS
from tests.sim.world import World


def _runs() -> list[tuple[str, int]]:
    """Return scenarios and seeds: those that find planted bugs, and 0 where there are none."""
    found: dict[str, set[int]] = {scenario: set() for scenario in SCENARIOS}
    for name, scenario in SCENARIO.items():
        found[scenario].add(FIRST_SEED.get(name, 0))
    return sorted((scenario, seed) for scenario, seeds in found.items() for seed in seeds or {0})


@pytest.mark.costly("faults go on for a minute of virtual time")
@pytest.mark.parametrize(("scenario", "seed"), _runs())
def test_nothing_acknowledged_is_lost_and_everything_heals(scenario: str, seed: int) -> None:
    outcome = World(seed, scenario).run()
    assert outcome.violation is None, (
        f"python -m tests.sim --seed {seed} --scenario {scenario}: {outcome.violation}"
    )
    if scenario == OVERTAKEN:  # whose clients the checker does not see
        assert min(outcome.reorderings.values()) >= COPIES_MIN
        return
    assert outcome.acked_count, "the clients wrote nothing"
    assert outcome.read_count, "nobody read anything"
