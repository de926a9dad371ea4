"""Measure the time until a cluster is ready, and the CPU seconds until then, which are independent
of the machine's load.

`PENSTOCK=/path/to/bin/penstock` measures another installation, such as a wheel in a fresh
environment.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.harness import Measure, median_of

ROUNDS: Final = 3
_READY_TIMEOUT_S: Final = 120


def tree_cpu_s(root: int) -> float:
    """Return the user and system time of a process and all its descendants, including ended ones.
    Linux only; elsewhere 0.
    """
    used: dict[int, tuple[int, float]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rsplit(")", 1)[1].split()
        except OSError:  # ended in the meantime
            continue
        used[int(entry.parent.name)] = (
            int(fields[1]),
            sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"),
        )
    tree = {root}
    while more := {pid for pid, (parent, _) in used.items() if parent in tree} - tree:
        tree |= more
    return sum(used[pid][1] for pid in tree if pid in used)


def dev_ready(*arguments: str) -> tuple[float, float]:
    """Return wall and CPU seconds from the command to its ready line."""
    command = os.environ.get("PENSTOCK") or str(Path(sys.executable).with_name("penstock"))
    with tempfile.TemporaryDirectory() as name:
        state = str(Path(name) / "state.json")
        began = time.perf_counter()
        process = subprocess.Popen(
            [command, "dev", "--port", "0", "--state-file", state, *arguments],
            stdout=subprocess.PIPE,
            cwd=name,
            process_group=0,
        )
        try:
            assert process.stdout is not None
            if not process.stdout.readline().startswith(b"ready:"):
                raise RuntimeError(f"{command} dev did not start; run it by hand to see why")
            return time.perf_counter() - began, tree_cpu_s(process.pid)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(_READY_TIMEOUT_S)


def ready() -> list[Measure]:
    measures: list[Measure] = []
    for what, arguments in (
        ("moto, 2 brokers: 4 processes", ()),
        ("memory: 1 process", ("--store", "memory")),
    ):
        rounds = [dev_ready(*arguments) for _ in range(ROUNDS)]
        wall_s, cpu_s = (median_of([values[at] for values in rounds]) for at in (0, 1))
        measures.append(
            Measure(
                f"penstock dev until ready ({what})",
                wall_s,
                "s",
                5.0,
                "lower",
                note=f"CPU {cpu_s:.2f} s",
            )
        )
    return measures
