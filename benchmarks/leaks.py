"""Measure leftovers in the bucket of a simulated cluster whose logs lose records in all possible
ways. A leak appears as bytes that the metadata does not reference.
"""

import os
from typing import Final

from benchmarks.harness import Measure
from tests.sim.leaks import RATIO_MAX
from tests.sim.world import World

MINUTES: Final = float(os.environ.get("BENCH_LEAK_MINUTES", "2"))
"""Simulated minutes; the target is defined for 60."""

_SEED: Final = 0


def leaks() -> list[Measure]:
    """Simulate `BENCH_LEAK_MINUTES`, wait for all grace periods, and list the bucket."""
    world = World(_SEED, "leaks", chaos_s=60 * MINUTES)
    outcome = world.run()
    if outcome.violation is not None or world.leak is None:
        raise RuntimeError(f"seed {_SEED} of the scenario leaks: {outcome.violation}")
    leak = world.leak
    return [
        Measure(
            f"bytes in the bucket after {MINUTES:g} simulated minutes / what metadata refer to",
            leak.bucket_bytes,
            "bytes",
            RATIO_MAX,
            "lower",
            leak.referred_bytes,
        )
    ]
