# ruff: noqa: T201 - it prints what it finds
"""Print the traces of runs, to find differences between two runs of one seed.

Run `python -m tests.sim.traces --scenario calm` twice with different values of PYTHONHASHSEED and
compare the output: the first difference depends on set order, an address or the real clock.
`--hashes` prints one line per scenario.
"""

import argparse
import sys
import time
from collections.abc import Callable
from random import Random
from typing import Any, Final

_STEPS: Final = 4_000
"""Number of event loop steps, a sixth of a second. Every run contains start, load and the first
faults.
"""
_FAULTS_S: Final = 1.0


def _distorted(clock: Callable[[], float], rng: Random) -> Callable[[], float]:
    """Return a clock that jumps ahead at every call."""
    ahead_s = 0.0

    def look() -> float:
        nonlocal ahead_s
        ahead_s += 0.01 * rng.random()
        return clock() + ahead_s

    return look


def main() -> int:
    rng = Random()  # every process has different clocks
    for name in ("perf_counter", "monotonic", "time"):
        setattr(time, name, _distorted(getattr(time, name), rng))
    # Modules may capture their clock when they are imported.
    from tests.sim.scenarios import SCENARIOS
    from tests.sim.world import World

    class ShortWorld(World):
        """The beginning of a run."""

        prints = False

        def trace(self, kind: str, *parts: Any) -> None:
            if self.prints:
                print(f"{self.loop.steps} {self.loop.time():.6f} {kind} {parts}")
            super().trace(kind, *parts)
            if self.loop.steps > _STEPS:
                self.fail("long enough")

    parser = argparse.ArgumentParser(prog="python -m tests.sim.traces")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--scenario", choices=list(SCENARIOS), help="default: all")
    parser.add_argument("--hashes", action="store_true", help="print hashes of the traces alone")
    args = parser.parse_args()
    ShortWorld.prints = not args.hashes
    for name in [args.scenario] if args.scenario else SCENARIOS:
        outcome = ShortWorld(args.seed, name, chaos_s=_FAULTS_S).run()
        print(name, outcome.trace_hash, outcome.steps, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
