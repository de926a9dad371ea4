# ruff: noqa: T201 - a command line program
"""`python -m tests.sim.raft --seeds 200 [--seed N]`: run the simulator of the Raft core, print its
speed, and print the command that repeats a failed seed.
"""

import argparse
import sys
import time
from collections.abc import Iterable

from tests.sim.raft.raft_world import World

PROGRESS_SEEDS = 200


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim.raft")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one only")
    args = parser.parse_args()
    return (
        1
        if run([args.seed] if args.seed is not None else range(args.first, args.first + args.seeds))
        else 0
    )


def run(seeds: Iterable[int]) -> int:
    """Run the seeds and return the number of failures."""
    began = time.monotonic()
    count = failed = entries = versions = virtual_ms = 0
    for seed in seeds:
        world = World(seed)
        try:
            world.play()
        except AssertionError as error:
            failed += 1
            print(
                f"seed {seed}: {error}\n    knobs: {world.knobs}\n    again: python -m"
                f" tests.sim.raft --seed {seed}",
                flush=True,
            )
        count += 1
        entries += world.last_committed
        versions += world.checks.members.version
        virtual_ms += world.now_ms
        if count % PROGRESS_SEEDS == 0:
            print(
                f"... {count} seeds of Raft, {count / (time.monotonic() - began):.1f}/s, {failed}"
                " failed",
                flush=True,
            )
    took_s = time.monotonic() - began
    print(
        f"{count} seeds of Raft in {took_s:.1f} s ({count / took_s:.1f}/s),"
        f" {virtual_ms / 1_000:.0f} virtual s, {entries} entries committed, {versions} changes of"
        f" members, {failed} failed"
    )
    return failed


if __name__ == "__main__":
    sys.exit(main())
