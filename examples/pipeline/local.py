"""`make pipeline`: run the pipeline on this machine with real brokers and real Spark, kill brokers
and the driver with SIGKILL while it runs, and compare the written rows with the sent events.
"""

import argparse
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import Thread

from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from penstock.deploy.demo.story import airlines
from penstock.deploy.local.handle import LocalCluster
from pipeline import backfill, lag, quality, registry, session, streams, tables, verdict
from pipeline.config import Config
from pipeline.replay import RENAMED, Replay, create_topics, events
from pipeline.verdict import Counts

HOME = Path(__file__).resolve().parent
PROGRESS_S = 600.0
"""Timeout for a driver to start and commit a micro-batch, and for a broker to restart, on a busy
machine.
"""
PASSES = 5

console = Console(highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(prog="make pipeline")
    parser.add_argument("--flights", type=int, default=30_000, help="336776 are all of 2013")
    parser.add_argument("--kills", type=int, default=1, help="kills of brokers, and of the driver")
    parser.add_argument("--master", default="local[2]", help="or spark://HOST:PORT")
    parser.add_argument("--directory", type=Path, help="keep store, tables and checkpoints here")
    given = parser.parse_args()
    os.environ["SPARK_CONF_DIR"] = str(HOME / "conf")
    os.environ["PYTHONPATH"] = os.pathsep.join((str(HOME.parent), os.environ.get("PYTHONPATH", "")))
    with ExitStack() as stack:
        temporary = tempfile.TemporaryDirectory(prefix="penstock-pipeline-")
        directory = (given.directory or Path(stack.enter_context(temporary))).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        arguments = ("--brokers", "2", "--store", f"file:{directory}", "--log-level", "error")
        cluster = stack.enter_context(LocalCluster(arguments))
        schema_registry = stack.enter_context(registry.serving())
        config = configured(cluster, directory, given.master, schema_registry)
        step(f"two brokers at {config.bootstrap}, the bucket is {config.store}")
        step(f"a schema registry at {schema_registry}")
        create_topics(config.bootstrap)
        replay = Replay(config.bootstrap, schema_registry)
        replay.send_carriers(airlines())
        driver = Driver(config, directory / "driver.log")
        run_with_kills(cluster, driver, replay, given.flights, given.kills)
        replay.send_carriers(dict([RENAMED]))
        spark = session.start(config)
        stack.callback(spark.stop)
        return finish(spark, cluster, config, replay)


def configured(cluster: LocalCluster, directory: Path, master: str, schema_registry: str) -> Config:
    state = cluster.state()
    return Config(
        store=state.store_url,
        bootstrap=state.bootstrap,
        warehouse=(directory / "warehouse").as_uri(),
        checkpoints=(directory / "checkpoints").as_uri(),
        master=master,
        schema_registry=schema_registry,
        trigger="1 second",
    )


def run_with_kills(
    cluster: LocalCluster, driver: "Driver", replay: Replay, flights: int, kills: int
) -> None:
    """Send the events in parts. Kill a broker or the driver while each part is being processed."""
    stream, config = events(flights), driver.config
    size = flights // (2 * kills + 1) + 1
    driver.start()
    try:
        for number in range(2 * kills):
            before = lag.commit_count(config, "events")
            part = itertools.islice(stream, size)
            sending = Thread(target=replay.send, args=(part,), daemon=True)
            sending.start()
            wait(lambda known=before: driver.alive and lag.commit_count(config, "events") > known)
            if number % 2:
                driver.kill()
                driver.start()
                step(f"killed the driver ({number // 2 + 1} of {kills}), and started another one")
            else:
                victim = cluster.brokers()[number // 2 % 2]
                cluster.kill([victim])
                cluster.wait_for_new([victim], PROGRESS_S)
                step(f"killed broker {victim.node_id} ({number // 2 + 1} of {kills}); it is back")
            sending.join()
        replay.send(stream)
        step(f"sent {replay.sent.valid:,} flights and {replay.sent.bad:,} invalid records")
        wait(lambda: driver.alive and lag.behind(config, "refine") == 0)
    finally:
        driver.kill()


def finish(spark: SparkSession, cluster: LocalCluster, config: Config, replay: Replay) -> int:
    """Drain the streams, then check everything from the bucket without a broker."""
    tables.create(spark)
    drain(spark, config)
    behind = sum(lag.behind(config, name) for name in streams.QUERIES)
    step(f"started a last driver, which drained the streams: they are {behind:,} records behind")
    cluster.close()
    found = verdict.of_streams(spark, config, replay.sent, len(airlines()))
    before = spark.table(tables.HOURLY).count()
    backfill.run(spark, config, "2013-01", "2014-02")
    step(
        "stopped the brokers, and computed the hours again from the bucket:"
        f" {before:,} before, {spark.table(tables.HOURLY).count():,} now"
    )
    found += verdict.of_hours(spark, replay.sent.hours)
    show(found)
    violations = {rule: count for rule, count in quality.violations(spark).items() if count}
    step(f"data-quality checks: {violations or f'all {len(quality.CHECKS)} passed'}")
    name = spark.table(tables.CARRIERS).where(f"carrier = '{RENAMED[0]}'").first()["name"]
    is_right = all(item.is_right for item in found) and not violations and name == RENAMED[1]
    console.print(f"pipeline: {'OK' if is_right else 'FAILED'}", style="bold")
    return int(not is_right)


def drain(spark: SparkSession, config: Config) -> None:
    """Run each query until it has read everything. A transaction ends shortly after its
    micro-batch, so a query may need another pass.
    """
    for name in streams.QUERIES:
        for _ in range(PASSES):
            if not lag.behind(config, name):
                break
            streams.drain(spark, config, [name])


def show(found: list[Counts]) -> None:
    table = Table(header_style="bold")
    table.add_column("rows")
    for title in ("expected", "found", "distinct"):
        table.add_column(title, justify="right")
    table.add_column("")
    for item in found:
        numbers = (f"{number:,}" for number in item[1:])
        table.add_row(item.what, *numbers, "[green]equal" if item.is_right else "[red]DIFFERENT")
    console.print(table)


class Driver:
    """A driver in a separate process group: Python and its JVM."""

    def __init__(self, config: Config, log: Path) -> None:
        self.config = config
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = (sys.executable, "-m", "pipeline.main", "run")
        environment = os.environ | self.config.to_environment()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, process_group=0
            )

    @property
    def alive(self) -> bool:
        """Return True. Raise SystemExit with the end of the log if the driver has ended."""
        if self._process is None or self._process.poll() is not None:
            raise SystemExit(f"the driver ended:\n{self._log.read_text()[-5_000:]}")
        return True

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def wait(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PROGRESS_S
    while not reached():
        if time.monotonic() > deadline:
            raise SystemExit(f"no progress within {PROGRESS_S:.0f} s")
        time.sleep(0.2)


def step(text: str) -> None:
    console.print(f"[green]✓[/green] {text}")


if __name__ == "__main__":
    sys.exit(main())
