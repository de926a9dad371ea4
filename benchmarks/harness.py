"""Shared parts of all benchmarks: processes, results with targets, and a table.

If a target is a ratio, the figure is relative to a limit that is measured in the same run. A missed
target is shown and does not fail the run.
"""

import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

RESULTS = Path(__file__).parent / "results.jsonl"


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of the table. `limit`: divisor of `value` if the target is a ratio,
    otherwise None.
    """

    name: str
    value: float
    unit: str
    bar: float
    better: Literal["higher", "lower"]
    limit: float | None = None
    note: str = ""

    @property
    def figure(self) -> float:
        return self.value if self.limit is None else self.value / self.limit

    @property
    def passed(self) -> bool:
        return self.figure >= self.bar if self.better == "higher" else self.figure <= self.bar


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """Controls a process of `benchmarks.server`."""

    def __init__(self, **options: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.server", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        word, _, port = self._process.stdout.readline().strip().partition(" ")
        if word != "ready":
            raise RuntimeError("benchmarks.server did not start; run it by hand to see why")
        self.bootstrap = f"127.0.0.1:{port}"

    def send_request(self, command: str = "stats") -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        response: dict[str, Any] = json.loads(self._process.stdout.readline())
        return response

    def stop(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@contextmanager
def server(**options: object) -> Iterator[ServerProcess]:
    process = ServerProcess(**options)
    try:
        yield process
    finally:
        process.stop()


@contextmanager
def sink(keystore: str = "") -> Iterator[str]:
    """Run the bare sink, with TLS if there is a keystore; yield its bootstrap address."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sink", str(port), *([keystore] if keystore else [])],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def moto() -> Iterator[str]:
    """Run a moto S3 server with a bucket; yield its store URL."""
    port = free_port()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "penstock.deploy.local.moto_store",
            "--bucket",
            "bench",
            "--port",
            str(port),
        ],
        stderr=subprocess.DEVNULL,
    )
    try:
        endpoint = f"http://127.0.0.1:{port}"
        _wait_for(f"{endpoint}/bench?list-type=2")
        yield f"s3://bench?endpoint={endpoint}"
    finally:
        process.kill()
        process.wait()


def _wait_for(url: str) -> None:
    """Wait until the URL responds, for at most 30 s."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=5).close()
        except urllib.error.HTTPError as response:
            response.close()
            return
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError(f"{url} did not respond within 30 s")


def quantile(values: Sequence[float], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(q * len(ordered)))]


def median_of(values: Sequence[float]) -> float:
    return statistics.median(values)


def machine() -> str:
    return (
        f"{os.cpu_count()} vCPU {_cpu_model()}, {platform.system()} {platform.machine()}, CPython"
        f" {platform.python_version()}"
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def table_of(measures: Sequence[Measure]) -> Table:
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


def record(measures: Sequence[Measure], date: str) -> None:
    """Append the run as one JSON line, for comparison with other runs. The file is not
    committed.
    """
    row = {
        "date": date,
        "machine": machine(),
        "measures": [{**asdict(m), "figure": m.figure, "passed": m.passed} for m in measures],
    }
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")
