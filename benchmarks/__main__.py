"""Run `make bench`: measure all targets or the named ones, print a table, and append the results to
benchmarks/results.jsonl.
"""

import argparse
import signal
import sys
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from benchmarks.bars import BARS
from benchmarks.harness import Measure, machine, record


def table_of(measures: list[Measure]) -> Table:
    table = Table(title=machine(), title_justify="left")
    for column in ("measure", "value", "limit", "figure", "bar", ""):
        table.add_column(column, justify="left" if column == "measure" else "right")
    for m in measures:
        limit = "" if m.limit is None else f"{m.limit:,.0f} {m.unit}"
        sign = "≥" if m.better == "higher" else "≤"
        verdict = "[green]ok[/]" if m.passed else "[red]missed[/]"
        name = f"{m.name} ({m.note})" if m.note else m.name
        table.add_row(
            name, f"{m.value:,.1f} {m.unit}", limit, f"{m.figure:.2f}", f"{sign} {m.bar:g}", verdict
        )
    return table


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
