# ruff: noqa: T201 - a command line program
"""`python -m tests.sim --seeds 200 [--jobs 2] [--seed N] [--scenario S]`: run seeds, print their
speed, and print the command that repeats a failed seed.
"""

import argparse
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

from tests.sim.scenarios import SCENARIOS
from tests.sim.world import Outcome, outcome_of

_CHUNK = 5
"""Number of seeds that a process takes at a time."""

_CHUNKS_MAX = 40
"""A process ends after this many: requests that a dead broker never completed keep their world in
memory, 0.5 MB and 24 tasks each.
"""

_PROGRESS_S = 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one only and show its last events")
    parser.add_argument("--scenario", choices=list(SCENARIOS), help="default: by the seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes that run seeds")
    parser.add_argument(
        "--tail", type=int, default=60, help="events to show of the first failing seed"
    )
    parser.add_argument("--grep", default="", help="of these, only the lines with this in them")
    args = parser.parse_args()
    seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.seeds)
    return 1 if run(seeds, args.scenario, args.tail, args.grep, jobs=args.jobs) else 0


def run(seeds: Sequence[int], scenario: str | None, tail: int, grep: str, *, jobs: int = 1) -> int:
    """Run the seeds and return the number of failures."""
    began = shown = time.monotonic()
    count = failed = steps = acked = read = 0
    virtual_s = 0.0
    reorderings = Counter[str]()
    for outcome in _outcomes(seeds, scenario, jobs):
        count += 1
        virtual_s += outcome.virtual_s
        steps += outcome.steps
        acked += outcome.acked_count
        read += outcome.read_count
        reorderings.update(outcome.reorderings)
        if outcome.violation is not None:
            failed += 1
            show(outcome, tail if failed == 1 else 0, grep, scenario)
        if time.monotonic() - shown > _PROGRESS_S:
            shown = time.monotonic()
            print(
                f"... {count} of {len(seeds)} seeds, {count / (shown - began):.1f}/s, {failed}"
                " failed",
                flush=True,
            )
    took_s = time.monotonic() - began
    print(
        f"{count} seeds in {took_s:.1f} s ({count / took_s:.1f}/s with {jobs} jobs),"
        f" {virtual_s:.0f} virtual s, {steps} steps, {acked} records acknowledged, {read} read,"
        f" {failed} failed"
    )
    if reorderings:
        print("requests that arrived after later ones of their sender:")
        width = max(map(len, reorderings))
        for name, number in sorted(reorderings.items()):
            print(f"    {name:{width}} {number:7}")
    return failed


def _outcomes(seeds: Sequence[int], scenario: str | None, jobs: int) -> Iterator[Outcome]:
    if jobs == 1:
        yield from map(partial(outcome_of, scenario), seeds)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=_CHUNKS_MAX) as pool:
        yield from pool.imap_unordered(partial(outcome_of, scenario), seeds, _CHUNK)


def show(outcome: Outcome, tail: int, grep: str, scenario: str | None) -> None:
    for line in [line for line in outcome.tail if grep in line][-tail:] if tail else []:
        print("   ", line[:300])
    when = f"seed {outcome.seed} ({outcome.scenario}) after {outcome.virtual_s:.3f} s"
    print(f"{when}: {outcome.violation}"[:1500])
    chosen = f" --scenario {scenario}" if scenario else ""
    print(f"    again: python -m tests.sim --seed {outcome.seed}{chosen}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
