"""Measure the targets of `make test`, and compare their CPU seconds with tests/cpu_budget.toml.

python -m tools.lanes run TARGET COMMAND...
python -m tools.lanes report
"""

import json
import resource
import signal
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
BUDGET: Final = ROOT / "tests" / "cpu_budget.toml"
MEASURED: Final = ROOT / ".make" / "lanes"


def run(target: str, command: list[str]) -> int:
    """Run a command of the target, record its resource usage, and return its exit status."""
    began_s = time.monotonic()
    with subprocess.Popen(command) as process:  # noqa: S603
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda received, _: process.send_signal(received))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal also sends it to the command
        status = process.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    measured = {"wall": time.monotonic() - began_s, "cpu": used.ru_utime + used.ru_stime}
    MEASURED.mkdir(parents=True, exist_ok=True)
    with (MEASURED / target).open("a") as file:
        file.write(json.dumps(measured) + "\n")
    return status if status >= 0 else 128 - status


def report() -> str:
    """Return a table of all measured targets."""
    budget: dict[str, int] = tomllib.loads(BUDGET.read_text())
    lines = [f"{'target':<14}{'wall s':>8}{'CPU s':>8}{'budget':>8}"]
    totals: dict[str, float] = defaultdict(float)
    for path in sorted(MEASURED.glob("*")):
        runs = [json.loads(line) for line in path.read_text().splitlines()]
        wall, cpu = (sum(run[kind] for run in runs) for kind in ("wall", "cpu"))
        allowed = budget.get(path.name, 0)
        totals["cpu"] += cpu
        totals["budget"] += allowed
        over = "  over budget" if cpu > allowed else ""
        lines.append(f"{path.name:<14}{wall:8.0f}{cpu:8.0f}{allowed:8}{over}")
    lines.append(f"{'all':<14}{'':8}{totals['cpu']:8.0f}{totals['budget']:8.0f}")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["run"] and len(arguments) > 2:
        return run(arguments[1], arguments[2:])
    if arguments == ["report"]:
        print(report())  # noqa: T201
        return 0
    print(__doc__, file=sys.stderr)  # noqa: T201
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
