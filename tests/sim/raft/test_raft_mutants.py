"""The test of the simulator: bugs planted on purpose are found within a bounded number of seeds."""

from collections.abc import Iterable

import pytest
from raft_world import MUTANTS, CommitsOldTerms, Knobs, Violation, World, stage_figure_8

SEEDS_MAX = 100
FIGURE_8 = Knobs(
    voters=5, drop=0.1, duplicate=0.0, fsync_ms_max=10, crash=0.0, partition=0.0, snapshot=0.0, coup=0.9, propose=0.9,
    append_count_max=1, inflight_count_max=1, restart_ms_max=6_000,
)  # fmt: skip
FIGURE_8_SEEDS_MAX = 600


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    core_type, on_disk, knobs = MUTANTS[name]
    assert _finding(World(seed, core_type, knobs, on_disk) for seed in range(SEEDS_MAX)) is not None


def test_the_bug_of_figure_8_is_found_when_leaders_die_young() -> None:
    """M2, staged: unstaged it takes chance some hundred to some thousand seeds."""
    worlds = (World(seed, CommitsOldTerms, FIGURE_8, staged=stage_figure_8) for seed in range(FIGURE_8_SEEDS_MAX))
    assert _finding(worlds, 8_000) is not None


@pytest.mark.parametrize("seed", range(20))
def test_the_unharmed_core_holds_there(seed: int) -> None:
    World(seed, knobs=FIGURE_8, staged=stage_figure_8).play(8_000)


def _finding(worlds: Iterable[World], duration_ms: int = 20_000) -> str | None:
    for world in worlds:
        try:
            world.play(duration_ms)
        except (Violation, AssertionError) as error:
            return str(error)
    return None
