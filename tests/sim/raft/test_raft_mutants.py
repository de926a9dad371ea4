"""Test the simulator: it finds planted bugs within a bounded number of seeds."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from penstock.controller.raft.core import RaftCore
from tests.sim.raft.checks import Violation
from tests.sim.raft.raft_mutants import (
    CHANGING,
    LOSING,
    MUTANTS,
    CommitsOldTerms,
    HeartbeatsWaitForDisk,
    VotesForOldDisk,
    stage_figure_8,
)
from tests.sim.raft.raft_world import CoreType, Knobs, World

SEEDS_MAX = 100
CALM = Knobs(
    voters=3,
    drop=0.0,
    duplicate=0.0,
    crash=0.0,
    partition=0.0,
    snapshot=0.0,
    delay_ms_max=5,
)
FIGURE_8 = Knobs(
    voters=5,
    drop=0.1,
    duplicate=0.0,
    fsync_ms_max=10,
    crash=0.0,
    partition=0.0,
    snapshot=0.0,
    coup=0.9,
    propose=0.9,
    append_count_max=1,
    inflight_count_max=1,
    restart_ms_max=6_000,
)
FIGURE_8_SEEDS_MAX = 600


@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_bug_is_found(name: str) -> None:
    core_type, on_disk, knobs = MUTANTS[name]
    assert _finding(World(seed, core_type, knobs, on_disk) for seed in range(SEEDS_MAX)) is not None


def test_the_bug_of_figure_8_is_found_when_leaders_die_young() -> None:
    """M2 with a staged start; without it the search takes hundreds to thousands of seeds."""
    worlds = (
        World(seed, CommitsOldTerms, FIGURE_8, staged=stage_figure_8)
        for seed in range(FIGURE_8_SEEDS_MAX)
    )
    assert _finding(worlds, 8_000) is not None


@pytest.mark.parametrize("seed", range(20))
def test_the_unharmed_core_holds_there(seed: int) -> None:
    World(seed, knobs=FIGURE_8, staged=stage_figure_8).play(8_000)


def test_a_new_disk_that_votes_for_the_old_one_is_found() -> None:
    worlds = (
        World(seed, VotesForOldDisk, LOSING, hears_impostors=True) for seed in range(SEEDS_MAX)
    )
    assert _finding(worlds) is not None


@pytest.mark.parametrize("knobs", [CHANGING, LOSING], ids=["changing", "losing"])
def test_the_unharmed_core_keeps_one_configuration(knobs: Knobs) -> None:
    changed = 0
    for seed in range(10):
        world = World(seed, knobs=knobs)
        world.play()
        changed += world.checks.members.version
    assert changed > 30, "quorums that hardly change prove nothing"


def test_leadership_leaves_a_slow_disk_and_does_not_return_at_once() -> None:
    knobs = replace(CALM, fsync_ms_max=5, slow_disk=0)
    left = 0
    for seed in range(6):
        world = World(seed, knobs=knobs)
        led: list[int] = []
        while world.now_ms < 20_000:
            world.run(world.now_ms + 50)
            world._work(always=True)
            led += [
                node.id for node in world.nodes if node.core is not None and node.core.is_leader
            ]
        left += led[0] == 0
        assert led[-1] != 0
        assert sum(a != b for a, b in pairwise(led)) <= 1, "it moves once, not to and fro"
    assert left, "0 must have led at first in some runs"


def test_a_leader_stays_when_no_disk_is_better() -> None:
    knobs = replace(CALM, fsync_ms_max=400)
    for seed in range(3):
        world = World(seed, knobs=knobs)
        world.run(3_000)
        terms: set[int] = set()
        while world.now_ms < 20_000:
            world.run(world.now_ms + 50)
            world._work(always=True)
            terms |= {
                node.core.term
                for node in world.nodes
                if node.core is not None and node.core.is_leader
            }
        assert len(terms) == 1


def test_a_leader_stays_when_the_disk_of_the_last_follower_stalls() -> None:
    """One of three voters is down, and the disk of another takes three election timeouts for each
    write. If that voter's heartbeat responses waited for the disk, the leader would step down, and
    no vote for another candidate would come in time.
    """
    epochs, committed = _with_a_stalling_follower(RaftCore)
    assert epochs == 1
    assert committed > 5
    assert _with_a_stalling_follower(HeartbeatsWaitForDisk) == (1, 0)


def _with_a_stalling_follower(core_type: CoreType) -> tuple[int, int]:
    """Return how many epochs had a leader in half a minute, and how many entries were committed."""
    knobs = replace(CALM, fsync_ms_max=5)
    world = World(0, core_type, knobs)
    world.run(3_000)
    (leader,) = (node for node in world.nodes if node.core is not None and node.core.is_leader)
    follower, other = (node for node in world.nodes if node is not leader)
    other.crash()
    knobs.slow_disk, knobs.slow_fsync_ms = follower.id, (3_000, 3_000)
    before = world.last_committed
    epochs: set[int] = set()
    while world.now_ms < 33_000:
        world.run(world.now_ms + 50)
        world._work(always=True)
        epochs |= {
            node.core.term for node in world.nodes if node.core is not None and node.core.is_leader
        }
    return len(epochs), world.last_committed - before


def _finding(worlds: Iterable[World], duration_ms: int = 20_000) -> str | None:
    for world in worlds:
        try:
            world.play(duration_ms)
        except (Violation, AssertionError) as error:
            return str(error)
    return None
