# ruff: noqa: T201 - it talks to whoever runs it
"""`python -m tests.sim --seeds 200 [--seed N] [--scenario S]`: run seeds, tell how fast, and how to run a failing one again."""

import argparse
import sys
import time
from collections.abc import Iterable

from tests.sim.scenarios import SCENARIOS
from tests.sim.world import Outcome, World

NAMES = list(SCENARIOS)


def scenario_of(seed: int) -> str:
    return NAMES[seed % len(NAMES)]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sim")
    parser.add_argument("--seeds", type=int, default=100, help="how many seeds to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one only and show its last events")
    parser.add_argument("--scenario", choices=NAMES, help="default: by the seed")
    parser.add_argument("--tail", type=int, default=60, help="events to show of a failing seed")
    parser.add_argument("--grep", default="", help="of these, only the lines with this in them")
    parser.add_argument("--verbose", action="store_true", help="a line for each seed")
    args = parser.parse_args()
    seeds = [args.seed] if args.seed is not None else range(args.first, args.first + args.seeds)
    failed = run(seeds, args.scenario, args.tail, args.grep, verbose=args.verbose)
    return 1 if failed else 0


def run(seeds: Iterable[int], scenario: str | None, tail: int, grep: str, *, verbose: bool = False) -> int:
    began = time.monotonic()
    count = failed = steps = acked = read = 0
    virtual_s = 0.0
    for seed in seeds:
        outcome = World(seed, scenario or scenario_of(seed)).run()
        count += 1
        virtual_s += outcome.virtual_s
        steps += outcome.steps
        acked += outcome.acked_count
        read += outcome.read_count
        if outcome.violation is not None:
            failed += 1
            show(outcome, tail if failed == 1 else 0, grep, scenario)
        if verbose:
            print(
                f"seed {seed} {outcome.scenario}: {outcome.steps} steps, {outcome.virtual_s:.0f} virtual s, {outcome.acked_count} acks",
                flush=True,
            )
        if count % 20 == 0:
            print(f"... {count} seeds, {count / (time.monotonic() - began):.1f}/s, {failed} failed", flush=True)
    took_s = time.monotonic() - began
    print(
        f"{count} seeds in {took_s:.1f} s ({count / took_s:.1f}/s), {virtual_s:.0f} virtual s ({virtual_s / took_s:.0f}x), "
        f"{steps} steps, {acked} records acknowledged, {read} read, {failed} failed"
    )
    return failed


def show(outcome: Outcome, tail: int, grep: str, scenario: str | None) -> None:
    for line in [line for line in outcome.tail if grep in line][-tail:] if tail else []:
        print("   ", line[:300])
    print(f"seed {outcome.seed} ({outcome.scenario}) after {outcome.virtual_s:.3f} s: {outcome.violation}"[:1500])
    chosen = f" --scenario {scenario}" if scenario else ""
    print(f"    again: python -m tests.sim --seed {outcome.seed}{chosen}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
