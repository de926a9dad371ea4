"""Random runs of the Raft core: many seeds run without a violation, and the same seed twice gives
the same run.
"""

import os

import pytest

from tests.sim.raft.raft_world import World

SEEDS = int(os.environ.get("SEEDS", "200"))
SHARDS = 8


@pytest.mark.parametrize("shard", range(SHARDS))
def test_seeds_hold_every_invariant(shard: int) -> None:
    committed = 0
    for seed in range(shard, SEEDS, SHARDS):
        world = World(seed)
        world.play()
        committed += world.last_committed
    assert committed > 20 * SEEDS / SHARDS, "runs in which nothing happens prove nothing"


def test_the_same_seed_gives_the_same_run() -> None:
    traces: list[tuple[int, int]] = []
    for _ in range(2):
        world = World(42)
        world.play()
        traces.append((world.trace, world.last_committed))
    assert traces[0] == traces[1]
    assert traces[0][1] > 0
