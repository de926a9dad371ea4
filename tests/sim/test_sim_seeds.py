"""Run one seed of every scenario; `make sim` runs hundreds to find new bugs."""

from typing import Final

import pytest

from tests.sim.clock_mutants import HARMLESS
from tests.sim.mutants import patched
from tests.sim.overtaken import COPIES_MIN, OVERTAKEN
from tests.sim.scenarios import SCENARIOS
from tests.sim.world import World

_FAULTS_S: Final = 4.0
"""Duration of the faults in virtual time. Drawn durations are up to 28 s."""
_SHOWN_COUNT: Final = 100
"""Number of printed events of a failed run."""


@pytest.mark.costly("a cluster runs for minutes of virtual time")
@pytest.mark.parametrize("scenario", sorted(SCENARIOS))
def test_nothing_acknowledged_is_lost_and_everything_heals(scenario: str) -> None:
    outcome = World(0, scenario, chaos_s=_FAULTS_S).run()
    assert outcome.violation is None, "\n".join([outcome.violation, *outcome.tail[-_SHOWN_COUNT:]])
    if scenario == OVERTAKEN:  # the checker does not see its clients
        assert min(outcome.reorderings.values()) >= COPIES_MIN
        return
    assert outcome.acked_count, "the clients wrote nothing"
    assert outcome.read_count, "no record was read"


@pytest.mark.parametrize("name", HARMLESS)
def test_harmless_mutant_does_no_harm(name: str) -> None:
    """A mutant that no check can find, for the reason given where it is planted. If it is found one
    day, it belongs to the others.
    """
    patches, scenario = HARMLESS[name]
    with patched(patches()):
        violations = [World(seed, scenario).run().violation for seed in range(2)]
    assert violations == [None] * 2
