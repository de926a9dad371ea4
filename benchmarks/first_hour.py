"""Time the steps of a new user's first hour: `python -m benchmarks.first_hour [STEP ...]`.

Each step follows the README and tutorials in an empty directory, in processes with a clean
environment. With `--cold`, packages are downloaded instead of taken from the caches of uv and pip.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
TIMEOUT_S: Final = 900.0
_POLL_INTERVAL_S: Final = 0.02
_RECORDS: Final = 1_000
_TEST: Final = """
from confluent_kafka import Producer


def test_greeting_arrives(penstock):
    penstock.topic("greetings")
    producer = Producer({"bootstrap.servers": penstock.bootstrap_servers})
    producer.produce("greetings", "hello Ada")
    producer.flush(10)
    assert [record.text for record in penstock.consume("greetings", count=1)] == ["hello Ada"]
"""
_SPARK: Final = """
import os, sys
from pyspark.sql import SparkSession
from penstock.spark import register

os.environ["PYSPARK_PYTHON"] = sys.executable
spark = SparkSession.builder.master("local[2]").getOrCreate()
register(spark)
log = spark.read.format("penstock").options(store="file:data/objects", subscribe="orders").load()
print("count", log.count())
spark.stop()
"""


class StepFailed(Exception):
    """A command of a step failed, or did not print the expected output."""


@dataclass(frozen=True)
class Timed:
    """One step. bar_s: the target. took_s: None if it could not run."""

    step: str
    bar_s: float
    took_s: float | None
    commands: int
    note: str = ""


class Machine:
    """Directories and environment of a new user. cold: whether package caches are empty."""

    def __init__(self, home: Path, *, cold: bool) -> None:
        self.home = home
        self.clone = home / "penstock"
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "PENSTOCK_", "VIRTUAL_ENV", "SPARK_", "PYSPARK_"))
        } | {"HOME": str(home), "XDG_RUNTIME_DIR": str(home)}
        caches = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        if not cold:
            self._environment |= {
                "UV_CACHE_DIR": str(caches / "uv"),
                # Registries without caching headers would send PySpark again.
                "UV_OFFLINE": "1",
                "PIP_CACHE_DIR": str(caches / "pip"),
            }

    def path_with(self, environment: Path) -> dict[str, str]:
        """Return the environment variables of a shell in which the virtual environment
        is active.
        """
        return self._environment | {"PATH": f"{environment / 'bin'}:{self._environment['PATH']}"}

    def run(self, line: str, directory: Path, environment: Path | None = None) -> str:
        """Run a shell command and return its output. Raises StepFailed."""
        variables = self.path_with(environment) if environment else self._environment
        done = subprocess.run(
            ("bash", "-c", line),
            cwd=directory,
            env=variables,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise StepFailed(f"{line}: {(done.stdout + done.stderr)[-2_000:]}")
        return done.stdout

    @contextmanager
    def dev(self, directory: Path, environment: Path, *arguments: str) -> Generator[dict[str, str]]:
        """Run `penstock dev`. Yield the contents of its ready line."""
        log = directory / "dev.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                (str(environment / "bin" / "penstock"), "dev", *arguments),
                cwd=directory,
                env=self.path_with(environment),
                stdout=output,
                stderr=output,
            )
        try:
            while "ready:" not in (text := log.read_text()):
                if process.poll() is not None:
                    raise StepFailed(f"penstock dev ended: {text[-2_000:]}")
                time.sleep(_POLL_INTERVAL_S)
            line = next(line for line in text.splitlines() if line.startswith("ready:"))
            yield dict(word.split("=", 1) for word in line.split()[1:])
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)

    def empty(self, name: str) -> Path:
        directory = self.home / name
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        return directory

    def developed(self) -> Path:
        """Return the environment that `make venv` creates in the clone."""
        if not (self.clone / ".venv" / ".installed").exists():
            shutil.rmtree(self.clone, ignore_errors=True)
            self.run(f"git clone --quiet --branch {_branch()} {ROOT} penstock", self.home)
            self.run("make venv", self.clone)
        return self.clone / ".venv"


def _branch() -> str:
    command = ("git", "-C", str(ROOT), "rev-parse", "--abbrev-ref", "HEAD")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def first_record(machine: Machine) -> Timed:
    """Clone, install, start, and read the first record back, as in the README."""
    shutil.rmtree(machine.clone, ignore_errors=True)
    began = time.monotonic()
    environment = machine.developed()
    installed_s = time.monotonic() - began
    with machine.dev(machine.clone, environment, "--port", "0"):
        machine.run("penstock topics create orders --partitions 3", machine.clone, environment)
        machine.run("echo hello | penstock produce orders", machine.clone, environment)
        seen = machine.run(
            "penstock consume orders --from-beginning --max-messages 1", machine.clone, environment
        )
        took_s = time.monotonic() - began
    if "hello" not in seen:
        raise StepFailed(f"the record did not come back: {seen!r}")
    note = f"`make venv` with all of its packages {installed_s:.1f} s"
    return Timed("clone to first record", 180, took_s, 8, note)


def ready(machine: Machine) -> Timed:
    """Measure the first start after `pip install` into a new environment."""
    machine.developed()
    directory = machine.empty("ready")
    began = time.monotonic()
    machine.run(
        f"python3 -m venv .venv && .venv/bin/pip install --quiet '{machine.clone}[local]'",
        directory,
    )
    installed_s = time.monotonic() - began
    took: list[float] = []
    for _ in range(2):
        began = time.monotonic()
        with machine.dev(directory, directory / ".venv", "--port", "0"):
            took.append(time.monotonic() - began)
    note = f"`pip install` {installed_s:.1f} s before it; the second start {took[1]:.1f} s"
    return Timed("installed to ready", 5, took[0], 3, note)


def console(machine: Machine) -> Timed:
    """Open the console of a cluster with records, until its page has the first chart data."""
    environment, directory = machine.developed(), machine.empty("console")
    with machine.dev(directory, environment, "--port", "0", "--console-port", "0") as found:
        began = time.monotonic()
        with urllib.request.urlopen(found["console"], timeout=TIMEOUT_S) as page:
            text = page.read().decode()
        live = text.partition('data-live="')[2].partition('"')[0].replace("&amp;", "&")
        if not live or "data-chart" not in text:
            raise StepFailed("the first page of the console has no charts")
        with urllib.request.urlopen(found["console"].rstrip("/") + live, timeout=60) as events:
            for line in events:
                if line.startswith((b"event: sample",)):
                    break
        took_s = time.monotonic() - began
    return Timed(
        "console with live charts", 10, took_s, 1, "from the first request to the first data"
    )


def _orders(machine: Machine, directory: Path, environment: Path) -> None:
    """Write records to the topic `orders` in `data`, and stop the cluster."""
    with machine.dev(directory, environment, "--port", "0", "--store", "file:data"):
        machine.run("penstock topics create orders --partitions 2", directory, environment)
        line = f"seq {_RECORDS} | penstock produce orders"
        machine.run(line, directory, environment)


def sql(machine: Machine) -> Timed:
    """Query a topic with SQL, without brokers."""
    environment, directory = machine.developed(), machine.empty("sql")
    _orders(machine, directory, environment)
    began = time.monotonic()
    line = "penstock sql 'SELECT count(*) AS n FROM orders' --store file:data/objects --json"
    seen = machine.run(line, directory, environment)
    took_s = time.monotonic() - began
    if str(_RECORDS) not in seen:
        raise StepFailed(f"SQL did not count {_RECORDS} records: {seen!r}")
    return Timed("SQL result", 10, took_s, 1)


def pytest(machine: Machine) -> Timed:
    """Run the first test of the tutorial."""
    environment, directory = machine.developed(), machine.empty("test")
    (directory / "test_greetings.py").write_text(_TEST)
    began = time.monotonic()
    seen = machine.run("pytest -q", directory, environment)
    took_s = time.monotonic() - began
    if "1 passed" not in seen:
        raise StepFailed(seen)
    return Timed("pytest test green", 30, took_s, 1)


def spark(machine: Machine) -> Timed:
    """Count the records of a topic with Spark, without brokers."""
    environment, directory = machine.developed(), machine.empty("spark")
    _orders(machine, directory, environment)
    (directory / "count.py").write_text(_SPARK)
    began = time.monotonic()
    seen = machine.run("python count.py", directory, environment)
    took_s = time.monotonic() - began
    if f"count {_RECORDS}" not in seen:
        raise StepFailed(f"Spark did not count {_RECORDS} records: {seen!r}")
    return Timed("Spark count", 60, took_s, 1)


def helm(machine: Machine) -> Timed:
    """Install the chart on the API server of `make kubernetes`, where it is available."""
    step, bar_s = "helm install", 180.0
    binaries = os.environ.get("PENSTOCK_KUBERNETES", "")
    if not binaries:
        return Timed(step, bar_s, None, 1, "not run: PENSTOCK_KUBERNETES is not set")
    from tests.support.kubernetes import Kubernetes

    with Kubernetes(Path(binaries), machine.empty("kubernetes")) as servers:
        began = time.monotonic()
        values = {"store.bucket": "records", "security.allowInsecure": True}
        servers.helm("install", values)
        servers.until(
            lambda: len(servers.names("v1/pods")) >= 6, "brokers and controllers are admitted"
        )
        took_s = time.monotonic() - began
    return Timed(step, bar_s, took_s, 1, "until all pods are admitted; there are no nodes")


STEPS: Final[dict[str, Callable[[Machine], Timed]]] = {
    "clone": first_record,
    "ready": ready,
    "console": console,
    "sql": sql,
    "pytest": pytest,
    "spark": spark,
    "helm": helm,
}


def table(results: list[Timed]) -> str:
    """Return the results as Markdown."""
    lines = ["| step | commands | bar, s | took, s | |", "|---|---|---|---|---|"]
    for item in results:
        took = "" if item.took_s is None else f"{item.took_s:.1f}"
        lines.append(f"| {item.step} | {item.commands} | {item.bar_s:.0f} | {took} | {item.note} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.first_hour", description=__doc__)
    parser.add_argument(
        "steps", nargs="*", help=f"steps to measure: {', '.join(STEPS)} (default: all)"
    )
    parser.add_argument("--cold", action="store_true", help="start with empty uv and pip caches")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--home", type=Path, help="directory to use; it is kept for later steps")
    given = parser.parse_args()
    if unknown := set(given.steps) - set(STEPS):
        parser.error(f"unknown step {min(unknown)}: choose of {', '.join(STEPS)}")
    home = given.home or Path(tempfile.mkdtemp(prefix="penstock-first-hour-"))
    home.mkdir(parents=True, exist_ok=True)
    machine = Machine(home, cold=given.cold)
    results: list[Timed] = []
    try:
        for name in given.steps or STEPS:
            print(f"{name} ...", file=sys.stderr, flush=True)
            results.append(STEPS[name](machine))
            print(table(results[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    finally:
        if given.home is None:
            shutil.rmtree(home)
    load = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the end"
    if given.json:
        print(json.dumps({"load": load, "steps": [asdict(item) for item in results]}, indent=1))
    else:
        print(table(results), load, sep="\n\n")
    if any(item.took_s is not None and item.took_s > item.bar_s for item in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
