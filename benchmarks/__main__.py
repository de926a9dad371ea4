"""Run `make bench`: measure all targets or the named ones, print a table, and append the results to
benchmarks/results.jsonl.
"""

import argparse
import signal
import sys
from datetime import UTC, datetime

from rich.console import Console

from benchmarks.bars import BARS
from benchmarks.harness import Measure, record, table_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", help=f"bars to measure: {', '.join(BARS)} (default: all)"
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # removes temporary directories
    names = parser.parse_args().names or list(BARS)
    if unknown := [name for name in names if name not in BARS]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(BARS)}")
    console, measures = Console(), list[Measure]()
    for name in names:
        with console.status(f"measuring {name} ..."):
            measures += BARS[name]()
    console.print(table_of(measures))
    record(measures, datetime.now(UTC).isoformat(timespec="seconds"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
