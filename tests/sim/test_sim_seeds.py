"""Run a seed or two of every scenario; `make sim` runs hundreds, to find new bugs.

The seeds that find planted bugs are among them: a seed that fails without its bug is a false alarm
and finds nothing.
"""

from typing import Final

import pytest

from tests.sim.mutant_seeds import FIRST_SEED, SCENARIO
from tests.sim.overtaken import COPIES_MIN, OVERTAKEN
from tests.sim.scenarios import SCENARIOS
from tests.sim.world import World

_FAULTS_S: Final = 4.0
"""How long faults go on where no planted bug needs more, in virtual time. Drawn times are up to
28 s.
"""
_SHOWN_COUNT: Final = 100
"""Events of a failed run."""
_RECORDED: Final = {(scenario, FIRST_SEED.get(name, 0)) for name, scenario in SCENARIO.items()}


def _runs() -> list[tuple[str, int]]:
    """Return scenarios and seeds: those that find planted bugs, and 0 where there are none."""
    others = SCENARIOS.keys() - {scenario for scenario, _ in _RECORDED}
    return sorted(_RECORDED | {(scenario, 0) for scenario in others})


@pytest.mark.costly("a cluster runs for minutes of virtual time")
@pytest.mark.parametrize(("scenario", "seed"), _runs())
def test_nothing_acknowledged_is_lost_and_everything_heals(scenario: str, seed: int) -> None:
    faults_s = None if (scenario, seed) in _RECORDED else _FAULTS_S
    outcome = World(seed, scenario, chaos_s=faults_s).run()
    assert outcome.violation is None, "\n".join([outcome.violation, *outcome.tail[-_SHOWN_COUNT:]])
    if scenario == OVERTAKEN:  # whose clients the checker does not see
        assert min(outcome.reorderings.values()) >= COPIES_MIN
        return
    assert outcome.acked_count, "the clients wrote nothing"
    assert outcome.read_count, "no record was read"
