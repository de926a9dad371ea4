"""Run `penstock demo`: write real records, kill every broker, and read every record back.

Invariant: ends with `demo: OK N records` only if every record of the file was read back once and
unchanged; otherwise with `demo: FAILED`. Uses only the cluster and clients that users have.
"""

import csv
import time
from collections.abc import Generator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Column, Table

from penstock.base.errors import ExpectedError
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.clients.state_file import ClusterState
from penstock.deploy.demo import bucket, clients
from penstock.deploy.demo.flights import RECORDS, find_file, read_flights
from penstock.deploy.demo.record_count import Tally
from penstock.deploy.local import moto_store
from penstock.deploy.local.handle import LocalCluster
from penstock.deploy.output import size
from penstock.objectstore.url import redact_url

TOPIC: Final = "flights"
PARTITIONS: Final = 6
CONFIGS: Final = {"retention.ms": "-1"}
"""Unlimited retention: the flights are from 2013, older than the default of 7 days."""
BROKERS: Final = 2


class Demo:
    """The demo. limit: number of records to use. store: as for `penstock dev`."""

    def __init__(self, limit: int, console: Console, store: str = "moto") -> None:
        self._limit = min(limit, RECORDS)
        self._console = console
        self._store = store

    def run(self) -> bool:
        """Run the demo, and return True if all records were read back."""
        try:
            self._check()
            server = "an S3 server (moto), " if self._store == "moto" else ""
            with self._step(
                f"Starting {server}a controller and two brokers, each in its own process"
            ):
                cluster = LocalCluster(self._arguments()).__enter__()
            try:
                problem = self._run_on(cluster)
            finally:
                cluster.close()
        except ExpectedError as error:
            problem = str(error)
        self._console.print(
            f"demo: FAILED {problem}" if problem else f"demo: OK {self._limit} records",
            style="bold",
            highlight=False,
            markup=False,
            soft_wrap=True,  # so that a command in the message can be copied
        )
        return not problem

    def _arguments(self) -> tuple[str, ...]:
        """Return the arguments of `penstock dev`."""
        return ("--brokers", str(BROKERS), "--log-level", "error", "--store", self._store)

    def _check(self) -> None:
        """Check that all packages are installed. Raises ExpectedError."""
        find_file()
        if self._store == "moto":
            moto_store.check_installed()

    def _run_on(self, cluster: LocalCluster) -> str:
        sent = self._produce(self._create_topic(cluster).bootstrap)
        killed_at = self._kill(cluster)
        received = self._consume(cluster.bootstrap, killed_at)
        self._show_bucket(cluster, sent)
        self._show_carriers(sent, received)
        return sent.difference(received)

    def _create_topic(self, cluster: LocalCluster) -> ClusterState:
        """Create the topic, and return the state of the cluster."""
        state = cluster.state()
        bucket_url = redact_url(state.store_url)
        self._note(f"clients connect to {state.bootstrap}; the bucket is {bucket_url}")
        with self._step(f"Creating topic {TOPIC} with {PARTITIONS} partitions"):
            Kafka(state.bootstrap).create_topic(TOPIC, PARTITIONS, -1, CONFIGS)
        return state

    def _produce(self, bootstrap: str) -> Tally:
        what = (
            f"Producing {self._limit:,} flights with confluent-kafka (acks=all, idempotent, gzip)"
        )
        with self._bar(what) as (progress, task):
            began = time.monotonic()
            sent = clients.produce(
                bootstrap,
                TOPIC,
                read_flights(self._limit),
                lambda done: progress.update(task, completed=done),
            )
            took_s = time.monotonic() - began
        self._done(what)
        self._note(f"{sent.count:,} acknowledged in {took_s:.1f} s: {_rate(sent, took_s)}")
        return sent

    def _kill(self, cluster: LocalCluster) -> float:
        brokers = cluster.brokers()
        pids = ", ".join(str(broker.pid) for broker in brokers)
        with self._step(
            f"Killing every broker with SIGKILL (pids {pids}): nothing is flushed, and no"
            " broker has a disk"
        ):
            killed_at = time.monotonic()
            cluster.kill(brokers)
            state = cluster.wait_for_new(brokers)
        fresh = ", ".join(str(broker.pid) for broker in state.of_role("broker"))
        self._note(
            f"new brokers (pids {fresh}) serve {time.monotonic() - killed_at:.1f} s after"
            " the kill; all their data come from the bucket"
        )
        return killed_at

    def _consume(self, bootstrap: str, killed_at: float) -> Tally:
        first_at = 0.0

        def first() -> None:
            nonlocal first_at
            first_at = time.monotonic()

        what = "Consuming everything with kafka-python from the new brokers"
        with self._bar(what) as (progress, task):
            received = clients.consume(
                bootstrap,
                TOPIC,
                self._limit,
                lambda done: progress.update(task, completed=done),
                first,
            )
            took_s = time.monotonic() - (first_at or killed_at)
        self._done(what)
        waited_s = max(first_at - killed_at, 0)
        self._note(
            f"first record {waited_s:.1f} s after the kill; {received.count:,} in {took_s:.1f} s:"
            f" {_rate(received, took_s)}"
        )
        return received

    def _show_bucket(self, cluster: LocalCluster, sent: Tally) -> None:
        with self._step("Listing the bucket"):
            state = cluster.state()
            shares = bucket.shares_of(state)
            counts = bucket.request_counts(state) if self._store == "moto" else {}
        columns = (Column(title, justify="right") for title in ("objects", "bytes"))
        table = Table("objects in the bucket", *columns, header_style="bold")
        for share in shares:
            table.add_row(share.name, f"{share.objects:,}", size(share.size_bytes))
        self._console.print(table)
        if not counts:
            return
        puts, gets = counts.get("PUT", 0), counts.get("GET", 0)
        written, uncompressed = size(counts.get("PUT_bytes", 0)), size(sent.value_bytes)
        self._note(
            f"{puts:,} PUTs carried {written} ({uncompressed} of JSON before compression);"
            f" {gets:,} GETs"
        )

    def _show_carriers(self, sent: Tally, received: Tally) -> None:
        names = airlines()
        counts = (Column(title, justify="right") for title in ("in the file", "from the brokers"))
        table = Table("carrier", "name", *counts, "", header_style="bold")
        for key, count in sent.count_by_key.most_common():
            back = received.count_by_key[key]
            table.add_row(
                key,
                names.get(key, ""),
                f"{count:,}",
                f"{back:,}",
                "[green]equal" if back == count else "[red]DIFFERENT",
            )
        self._console.print(table)

    # --- how it looks -----------------------------------------------------------------------------

    @contextmanager
    def _step(self, what: str) -> Generator[None]:
        with self._console.status(what):
            yield
        self._done(what)

    @contextmanager
    def _bar(self, what: str) -> Generator[tuple[Progress, TaskID]]:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self._console, transient=True) as progress:
            yield progress, progress.add_task(what.partition(" (")[0], total=self._limit)

    def _done(self, what: str) -> None:
        self._console.print(f"[green]✓[/green] {what}", highlight=False)

    def _note(self, what: str) -> None:
        self._console.print(f"  {what}", style="dim", highlight=False)


def _rate(tally: Tally, took_s: float) -> str:
    return (
        f"{tally.count / took_s:,.0f} records/s, {tally.value_bytes / took_s / 1e6:.1f} MB/s of"
        " JSON"
    )


def airlines() -> dict[str, str]:
    """Return the names of the carriers, from the same package."""
    path: Path = find_file().with_name("airlines.csv")
    with path.open(newline="", encoding="utf-8") as file:
        return {row["carrier"]: row["name"] for row in islice(csv.DictReader(file), 1_000)}
