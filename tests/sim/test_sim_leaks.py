"""Measure leftovers in the bucket after logs have lost records in every way: `LEAK_MINUTES=60
pytest tests/sim/test_sim_leaks.py` simulates an hour.
"""

import os

from tests.sim.leaks import RATIO_MAX
from tests.sim.world import World

MINUTES = float(os.environ.get("LEAK_MINUTES", "1"))


def test_everything_that_is_deleted_gives_its_bytes_back() -> None:
    world = World(0, "leaks", chaos_s=60 * MINUTES)
    outcome = world.run()
    assert outcome.violation is None
    assert world.leak is not None
    assert world.leak.referred_bytes
    assert world.leak.ratio <= RATIO_MAX
    assert world.metadata.image.next_node_epoch > len(list(world.metadata.image.nodes.wals())), (
        "no WAL was forgotten"
    )
