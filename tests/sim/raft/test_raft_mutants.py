"""The test of the simulator: bugs planted on purpose are found within a bounded number of seeds."""

from collections.abc import Iterable

import pytest
from raft_world import MUTANTS, CommitsOldTerms, Knobs, Violation, World

SEEDS_MAX = 100
FIGURE_8 = Knobs(
    voters=5, drop=0.1, duplicate=0.0, fsync_ms_max=10, crash=0.0, partition=0.0, snapshot=0.0, coup=0.8, propose=0.9,
    append_count_max=1, inflight_count_max=1,
)  # fmt: skip
FIGURE_8_SEEDS_MAX = 400


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    core_type, on_disk, knobs = MUTANTS[name]
    assert _finding(World(seed, core_type, knobs, on_disk) for seed in range(SEEDS_MAX)) is not None


def test_the_bug_of_figure_8_is_found_when_leaders_die_young() -> None:
    assert _finding(World(seed, CommitsOldTerms, FIGURE_8) for seed in range(FIGURE_8_SEEDS_MAX)) is not None


def _finding(worlds: Iterable[World]) -> str | None:
    for world in worlds:
        try:
            world.play()
        except (Violation, AssertionError) as error:
            return str(error)
    return None
