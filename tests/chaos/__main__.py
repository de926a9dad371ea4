# ruff: noqa: T201 - a command that prints its results
"""Run a real cluster under faults: `python -m tests.chaos --minutes 10 [--seed N]`.

The exit status is 0 if no check failed. The seed determines the faults but not the timing of the
processes, so a seed that failed once may need several runs to fail again.
"""

import argparse
import asyncio
import secrets
import shutil
import sys

from penstock.deploy.node import logs
from tests.chaos.run import Outcome, run
from tests.sim.mutants import MUTANTS

_SHOWN_MAX = 12


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument(
        "--minutes",
        type=float,
        default=10.0,
        help="how long new faults begin; the checks at the end come on top",
    )
    parser.add_argument("--seed", type=int, help="of the schedule of faults; default: a new one")
    parser.add_argument(
        "--keep", action="store_true", help="keep logs and history of a good run too"
    )
    parser.add_argument(
        "--planted",
        metavar="BUG",
        default="",
        choices=sorted(MUTANTS),
        help="a bug that every node gets, to see whether it is found",
    )
    parser.add_argument(
        "--client-holds",
        action="store_true",
        help="mostly hold connections of clients, so that requests arrive late",
    )
    args = parser.parse_args()
    logs.configure("error")
    seed = secrets.randbelow(1_000_000) if args.seed is None else args.seed
    print(f"3 controllers, 3 brokers; {args.minutes:g} minutes of faults, seed {seed}", flush=True)
    outcome = asyncio.run(
        run(
            args.minutes * 60,
            seed,
            lambda line: print(line, flush=True),
            args.planted,
            client_holds=args.client_holds,
        )
    )
    show(outcome)
    if outcome.violations:
        print(f"again: python -m tests.chaos --minutes {args.minutes:g} --seed {seed}")
    if outcome.violations or args.keep:
        print(f"logs and history: {outcome.directory}")
    else:
        shutil.rmtree(outcome.directory)
    return 1 if outcome.violations else 0


def show(outcome: Outcome) -> None:
    width = max((len(name) for name, _ in outcome.summary), default=0)
    for name, value in outcome.summary:
        print(f"  {name:<{width}}  {value}")
    for violation in outcome.violations[:_SHOWN_MAX]:
        print(f"  VIOLATION {violation}"[:1000])
    print(f"verdict: {'FAILED' if outcome.violations else 'OK'}, seed {outcome.seed}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
