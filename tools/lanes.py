"""Measure the targets of `make test`, and compare their CPU seconds with tests/cpu_budget.toml.
Repeat a few failed tests once, and list those that passed then.

python -m tools.lanes run TARGET COMMAND...
python -m tools.lanes report
"""

import json
import resource
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[1]
BUDGET: Final = ROOT / "tests" / "cpu_budget.toml"
MEASURED: Final = ROOT / ".make" / "lanes"
REPEATED_MAX: Final = 10
"""If more tests of a command fail, none is repeated: then the change under test is broken."""


def run(target: str, command: list[str]) -> int:
    """Run a command of the target, record its resource usage, and return its exit status.

    If at most REPEATED_MAX tests of pytest fail, they run once more, one after another. A test that
    passes then is reported as flaky, and does not fail the target.
    """
    began_s = time.monotonic()
    measured: dict[str, Any] = {"flaky": []}
    if Path(command[0]).name == "pytest" and "no:cacheprovider" not in command:
        status, measured["flaky"] = _run_tests(command, MEASURED.parent / "pytest" / target)
    else:
        status = _run(command)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    measured |= {"wall": time.monotonic() - began_s, "cpu": used.ru_utime + used.ru_stime}
    MEASURED.mkdir(parents=True, exist_ok=True)
    with (MEASURED / target).open("a") as file:
        file.write(json.dumps(measured) + "\n")
    return status


def _run_tests(command: list[str], cache: Path) -> tuple[int, list[str]]:
    """Return the exit status, and the tests that passed only when they were repeated."""
    shutil.rmtree(cache, ignore_errors=True)
    command = [*command, "-o", f"cache_dir={cache}"]
    status = _run(command)
    path = cache / "v" / "cache" / "lastfailed"
    if status != pytest.ExitCode.TESTS_FAILED or not path.exists():
        return status, []
    failed = sorted(json.loads(path.read_text()))
    if len(failed) > REPEATED_MAX:
        return status, []
    print("repeating", *failed, sep="\n  ", flush=True)  # noqa: T201
    alone = ["-n", "0"] if "-n" in command else []
    status = _run([*command, "--last-failed", *alone])
    return status, [] if status else failed


def _run(command: list[str]) -> int:
    with subprocess.Popen(command) as process:  # noqa: S603
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda received, _: process.send_signal(received))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal also sends it to the command
        status = process.wait()
    return status if status >= 0 else 128 - status


def report() -> str:
    """Return a table of all measured targets, and a list of flaky tests."""
    budget: dict[str, int] = tomllib.loads(BUDGET.read_text())
    lines = [f"{'target':<14}{'wall s':>8}{'CPU s':>8}{'budget':>8}"]
    totals: dict[str, float] = defaultdict(float)
    flaky: list[str] = []
    for path in sorted(MEASURED.glob("*")):
        runs = [json.loads(line) for line in path.read_text().splitlines()]
        wall, cpu = (sum(run[kind] for run in runs) for kind in ("wall", "cpu"))
        flaky += [test for run in runs for test in run["flaky"]]
        allowed = budget.get(path.name, 0)
        totals["cpu"] += cpu
        totals["budget"] += allowed
        over = "  over budget" if cpu > allowed else ""
        lines.append(f"{path.name:<14}{wall:8.0f}{cpu:8.0f}{allowed:8}{over}")
    lines.append(f"{'all':<14}{'':8}{totals['cpu']:8.0f}{totals['budget']:8.0f}")
    if flaky:
        lines += ["flaky tests, which passed only when they were repeated:", *flaky]
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
