"""The pytest plugin as its users feel it: how long until the first test begins, and what each test
costs.
"""

import os
import subprocess
import sys
import tempfile
import time
from importlib.metadata import entry_points
from pathlib import Path
from typing import Final

from benchmarks.harness import Measure, median_of

ROUNDS: Final = 5
TESTS: Final = 100
_NOTHING: Final = "import pytest\n@pytest.mark.parametrize('number', range({tests}))\ndef test_x({fixture}number): {body}\n"


def _run(directory: Path, text: str) -> float:
    """Wall seconds of the whole pytest process."""
    (directory / "test_x.py").write_text(text)
    plugin = (
        ()
        if any(point.name == "penstock" for point in entry_points(group="pytest11"))
        else ("-p", "pytest_penstock.plugin")
    )
    command = (sys.executable, "-m", "pytest", *plugin, "-q", "-p", "no:cacheprovider", "test_x.py")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    began = time.perf_counter()
    subprocess.run(command, cwd=directory, capture_output=True, check=True, env=environment)
    return time.perf_counter() - began


def _start_s() -> tuple[float, float]:
    """From the start of the cluster's process until it answers, helpers imported: what the first
    test waits for. Wall, and CPU of both.
    """
    code = (
        "began = time.perf_counter()\n"
        "from pytest_penstock.options import Options; from pytest_penstock.process import ClusterProcess\n"
        "process = ClusterProcess(Options())\n"
        "from pytest_penstock.client import KafkaClient\n"
        "process.wait_ready(); wall = time.perf_counter() - began\n"
        "from benchmarks.start import tree_cpu_s; import os\n"
        "print(wall, tree_cpu_s(os.getpid()) - before); process.close()\n"
    )
    root = str(Path(__file__).resolve().parents[1])
    command = [sys.executable, "-c", "import pytest, time; before = time.process_time()\n" + code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    wall_s, cpu_s = map(float, done.stdout.split())
    return wall_s, cpu_s


def plugin() -> list[Measure]:
    """Walls of whole pytest runs, with and without the fixture, in alternating pairs: nothing is
    left out. The median pair counts.
    """
    starts = [_start_s() for _ in range(ROUNDS)]
    whole: list[float] = []
    empty: list[float] = []
    used: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for _ in range(ROUNDS):
            bare_s = _run(directory, _NOTHING.format(tests=1, fixture="", body="pass"))
            one_s = _run(directory, _NOTHING.format(tests=1, fixture="penstock, ", body="pass"))
            many_bare_s = _run(directory, _NOTHING.format(tests=TESTS, fixture="", body="pass"))
            many_s = _run(
                directory, _NOTHING.format(tests=TESTS, fixture="penstock, ", body="pass")
            )
            topics_s = _run(
                directory,
                _NOTHING.format(
                    tests=TESTS, fixture="penstock, ", body="penstock.topic('orders', 3)"
                ),
            )
            whole.append(one_s - bare_s)
            empty.append((many_s - one_s - (many_bare_s - bare_s)) / (TESTS - 1) * 1_000)
            used.append((topics_s - one_s - (many_bare_s - bare_s)) / (TESTS - 1) * 1_000)
    return [
        Measure(
            "pytest fixture: cluster's process until ready, helpers imported",
            median_of([wall_s for wall_s, _ in starts]),
            "s",
            1.0,
            "lower",
            note=f"CPU {median_of([cpu_s for _, cpu_s in starts]):.2f} s",
        ),
        Measure(
            "pytest run of one test: with the fixture - without",
            median_of(whole),
            "s",
            1.0,
            "lower",
            note="start, test, end",
        ),
        Measure(
            "pytest fixture: a test that uses nothing of it", median_of(empty), "ms", 30.0, "lower"
        ),
        Measure(
            "pytest fixture: a test with a topic of 3 partitions",
            median_of(used),
            "ms",
            30.0,
            "lower",
        ),
    ]
