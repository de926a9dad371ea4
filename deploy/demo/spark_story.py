"""Run `penstock demo --spark`: write real records, kill every broker permanently, and query the
bucket with Spark.

Invariant: ends with `demo: OK N records` only if every carrier's flights, delays and average equal
those of the file to the last digit.
"""

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Column, Table

from penstock.base.errors import ExpectedError
from penstock.deploy.demo import spark_job
from penstock.deploy.demo.delays import Delay, delays_in, difference
from penstock.deploy.demo.flights import read_flights
from penstock.deploy.demo.spark_master import SparkTarget
from penstock.deploy.demo.story import TOPIC, Demo, airlines
from penstock.deploy.local.handle import LocalCluster
from penstock.deploy.output import counted

STOP_TIMEOUT_S: Final = 10.0


class SparkDemo(Demo):
    """The demo with Spark. plot: path of the chart. store: as for `penstock dev`."""

    def __init__(
        self, limit: int, console: Console, plot: Path, master: SparkTarget, store: str
    ) -> None:
        super().__init__(limit, console, store)
        self._plot = plot.absolute()
        self._master = master

    def _arguments(self) -> tuple[str, ...]:
        return (*super()._arguments(), "--no-restart")

    def _check(self) -> None:
        super()._check()
        spark_job.check_installed()
        self._master.local_address()
        if not self._plot.parent.is_dir():
            raise ExpectedError(f"the directory {self._plot.parent} for the plot does not exist")

    def _run_on(self, cluster: LocalCluster) -> str:
        state = self._create_topic(cluster)
        self._produce(state.bootstrap)
        self._end_brokers(cluster)
        with ExitStack() as stack:
            where = self._master.url if self._master.is_cluster else "this machine"
            with self._step(f"Starting Spark on {where}"):
                spark = stack.enter_context(spark_job.spark_session(self._master))
                with spark_job.errors_explained(self._master):
                    running = spark_job.check_executors(spark, self._master, state.store_url)
            self._note(running)
            with self._step(
                'spark.read.format("penstock"): average departure delay per carrier, straight from'
                " the bucket"
            ):
                began = time.monotonic()
                with spark_job.errors_explained(self._master):
                    found = spark_job.delays_of(spark, state.store_url, TOPIC)
                took_s = time.monotonic() - began
        self._note(
            f"{counted(sum(item.flights for item in found), 'record')} in {took_s:.1f} s,"
            " including the start of Spark's Python workers"
        )
        if any(broker.phase != "stopped" for broker in cluster.brokers()):
            return "a broker is running, so this proves nothing"
        with self._step("Computing the same from the file, and comparing every digit"):
            expected = delays_in(read_flights(self._limit))
        self._show_delays(expected, found)
        with self._step(f"Drawing {self._plot}"):
            spark_job.draw(found, airlines(), self._plot)
        return difference(expected, found)

    def _end_brokers(self, cluster: LocalCluster) -> None:
        brokers = cluster.brokers()
        pids = ", ".join(str(broker.pid) for broker in brokers)
        with self._step(f"Killing every broker with SIGKILL (pids {pids}), without a restart"):
            cluster.kill(brokers)
            cluster.wait_until(
                lambda state: all(broker.phase == "stopped" for broker in state.of_role("broker")),
                STOP_TIMEOUT_S,
                "the end of the brokers",
            )
        self._note(
            "records that were not uploaded yet are in the brokers' write-ahead logs, which"
            " are also in the bucket"
        )

    def _show_delays(self, file: list[Delay], spark: list[Delay]) -> None:
        names, by_carrier = airlines(), {item.carrier: item for item in spark}
        titles = ("flights", "from the file", "Spark, from the bucket")
        table = Table(
            *("carrier", "name"),
            *(Column(title, justify="right") for title in titles),
            "",
            header_style="bold",
            title="average departure delay, minutes",
            title_justify="left",
        )
        for item in sorted(file, key=lambda item: -(item.mean_minutes or 0)):
            got = by_carrier.get(item.carrier)
            verdict = "[green]equal" if got == item else "[red]DIFFERENT"
            mean = "" if got is None else _mean_text(got)
            table.add_row(
                item.carrier,
                names.get(item.carrier, ""),
                f"{item.flights:,}",
                _mean_text(item),
                mean,
                verdict,
            )
        self._console.print(table)


def _mean_text(item: Delay) -> str:
    return "" if item.mean_minutes is None else f"{item.mean_minutes:.6f}"
