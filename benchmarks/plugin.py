"""Measure the pytest plugin: time until the first test starts, and cost per test."""

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
_MODULE: Final = """\
import pytest
@pytest.mark.parametrize('number', range({tests}))
def test_x({fixture}number): {body}
"""


def _run(directory: Path, text: str) -> float:
    """Return the wall seconds of a whole pytest process."""
    (directory / "test_x.py").write_text(text)
    plugin = (
        ()
        if any(point.name == "penstock" for point in entry_points(group="pytest11"))
        else ("-p", "penstock.testing.plugin")
    )
    command = (sys.executable, "-m", "pytest", *plugin, "-q", "-p", "no:cacheprovider", "test_x.py")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    began = time.perf_counter()
    subprocess.run(command, cwd=directory, capture_output=True, check=True, env=environment)
    return time.perf_counter() - began


def _start_s() -> tuple[float, float]:
    """Measure from the start of the cluster's process until it responds and the helpers are
    imported, which the first test waits for. Return wall seconds, and CPU seconds of both
    processes.
    """
    code = (
        "began = time.perf_counter()\n"
        "from penstock.testing.options import Options\n"
        "from penstock.testing.process import ClusterProcess\n"
        "process = ClusterProcess(Options())\n"
        "from penstock.testing.client import KafkaClient\n"
        "process.wait_ready(); wall = time.perf_counter() - began\n"
        "from benchmarks.start import tree_cpu_s; import os\n"
        "print(wall, tree_cpu_s(os.getpid()) - before); process.close()\n"
    )
    root = str(Path(__file__).resolve().parents[1])
    command = [sys.executable, "-c", "import pytest, time; before = time.process_time()\n" + code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    wall_s, cpu_s = map(float, done.stdout.split())
    return wall_s, cpu_s


def _pair(directory: Path) -> tuple[float, float, float]:
    """Return the costs of a run in seconds, and of an idle test and of a test with a
    topic in ms.
    """

    def run(tests: int, *, fixture: str = "penstock, ", body: str = "pass") -> float:
        return _run(directory, _MODULE.format(tests=tests, fixture=fixture, body=body))

    bare_s = run(1, fixture="")
    one_s = run(1)
    many_bare_s = run(TESTS, fixture="")
    many_s = run(TESTS)
    topics_s = run(TESTS, body="penstock.topic('orders', 3)")
    per_test_ms = 1_000 / (TESTS - 1)
    return (
        one_s - bare_s,
        (many_s - one_s - (many_bare_s - bare_s)) * per_test_ms,
        (topics_s - one_s - (many_bare_s - bare_s)) * per_test_ms,
    )


def plugin() -> list[Measure]:
    """Measure whole pytest runs with and without the fixture in alternating pairs; report the
    median pair.
    """
    starts = [_start_s() for _ in range(ROUNDS)]
    with tempfile.TemporaryDirectory() as name:
        whole, empty, used = zip(*(_pair(Path(name)) for _ in range(ROUNDS)), strict=True)
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
            "pytest fixture: a test that uses nothing of it",
            median_of(empty),
            "ms",
            30.0,
            "lower",
        ),
        Measure(
            "pytest fixture: a test with a topic of 3 partitions",
            median_of(used),
            "ms",
            30.0,
            "lower",
        ),
    ]
