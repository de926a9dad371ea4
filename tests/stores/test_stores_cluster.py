"""A cluster on each store: a broker is killed between records, a consumer, `scan` and Spark must
return all records, and `penstock demo` runs. `A+B` has data in A and WALs in B. `make test` runs
failover and scan on a directory, moto and versitygw.
"""

import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from penstock import scan
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.demo import clients
from penstock.deploy.demo.flights import RECORDS, read_flights
from penstock.deploy.demo.record_count import Tally
from penstock.deploy.local.handle import LocalCluster
from tests.support.dev_cluster import PENSTOCK, DevCluster, penstock
from tests.support.spark_session import spark_session
from tests.support.store_servers import (
    CLOUDS,
    S3_NAMES,
    SECRET_KEY,
    WAL_PAIRS,
    StoreServer,
    store_server,
)
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.system

FLIGHTS: Final = 4_000
LONG: Final = [pytest.param(name, marks=pytest.mark.long) for name in CLOUDS]
PAIRS: Final = [pytest.param(name, marks=pytest.mark.long) for name in WAL_PAIRS]
DEMO_S: Final = 500


@dataclass(frozen=True)
class Survivor:
    """A cluster that has lost a broker, and the records produced before and after."""

    cluster: LocalCluster
    sent: Tally


@pytest.fixture(scope="module", autouse=True)
def _data_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a temporary folder for the metadata that `penstock dev` keeps for a store with a URL, and
    a time limit for busy machines.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))
        patch.setattr(clients, "SILENCE_S", PATIENCE_S)
        yield


@pytest.fixture(scope="module", params=["file", *S3_NAMES, *LONG, *PAIRS])
def stores(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[StoreServer]]:
    """Run the store, and the WAL store if it is a different one."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(store_server(name, tmp_path_factory.mktemp(name)))
            for name in request.param.split("+")
        ]


@pytest.fixture(scope="module")
def survivor(stores: list[StoreServer]) -> Iterator[Survivor]:
    """Produce half of the flights, kill a broker, and produce the other half."""
    store, *wal_store = (server.new_url() for server in stores)
    more = ("--wal-store", *wal_store) if wal_store else ()
    with DevCluster(("--store", store, *more, "--log-level", "error")) as cluster:
        # The flights have timestamps of 2013, by which retention would delete them.
        Kafka(cluster.bootstrap).create_topic("flights", 4, -1, {"retention.ms": "-1"})
        flights = list(read_flights(FLIGHTS))
        sent = Tally()
        for flight in flights:
            sent.add(*flight)
        half = len(flights) // 2
        clients.produce(cluster.bootstrap, "flights", flights[:half], lambda _: None)
        killed = cluster.brokers()[:1]
        cluster.kill(killed)
        clients.produce(cluster.bootstrap, "flights", flights[half:], lambda _: None)
        cluster.wait_for_new(killed)
        yield Survivor(cluster, sent)


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    with spark_session() as session:
        yield session


def test_failover_loses_no_record(survivor: Survivor) -> None:
    cluster = survivor.cluster
    assert SECRET_KEY not in cluster.ready_line
    assert penstock(cluster, "produce", "greetings", given="hello\n").returncode == 0
    requested = ("consume", "greetings", "--from-beginning", "--max-messages", "1")
    assert penstock(cluster, *requested).stdout == "hello\n"
    read = clients.consume(cluster.bootstrap, "flights", FLIGHTS, lambda _: None, lambda: None)
    assert read == survivor.sent


def test_scan_returns_all_records(survivor: Survivor) -> None:
    state = survivor.cluster.state()
    columns = ("key", "timestamp", "value")
    found = scan(state.store_url, "flights", columns=columns, wal_store=state.wal_store_url)
    read = Tally()
    for row in found.to_table().to_pylist():
        read.add(row["key"], round(row["timestamp"].timestamp() * 1_000), row["value"])
    assert read == survivor.sent


@pytest.mark.long
@pytest.mark.costly("the JVM, and the Python workers of the executors")
def test_spark_returns_all_records(survivor: Survivor, spark: SparkSession) -> None:
    """Computes the totals in executors while the brokers run."""
    state = survivor.cluster.state()
    options = {"store": state.store_url, "subscribe": "flights"}
    if state.wal_store_url:
        options["wal_store"] = state.wal_store_url
    log = spark.read.format("penstock").options(**options).load()
    text = f.crc32(f.concat("key", "value")).bitwiseXOR(f.unix_millis("timestamp"))
    rows = (
        log.groupBy(f.col("key").cast("string").alias("carrier"))
        .agg(
            f.count("*").alias("count"),
            f.sum(f.length("value")).alias("size_bytes"),
            f.sum(text).alias("checksum"),
        )
        .collect()
    )
    assert survivor.sent == Tally(
        count=sum(row["count"] for row in rows),
        value_bytes=sum(row["size_bytes"] for row in rows),
        checksum=sum(row["checksum"] for row in rows),
        count_by_key=Counter({row["carrier"]: row["count"] for row in rows}),
    )


@pytest.mark.long
@pytest.mark.costly("all flights, through brokers that are killed")
def test_demo_reads_back_all_flights(stores: list[StoreServer], tmp_path: Path) -> None:
    if len(stores) > 1:
        pytest.skip("the demo has no WAL store")
    done = subprocess.run(
        (*PENSTOCK, "demo", "--store", stores[0].new_url()),
        capture_output=True,
        text=True,
        timeout=DEMO_S,
        check=False,
        cwd=tmp_path,
    )
    lines = done.stdout.splitlines()
    assert lines[-1:] == [f"demo: OK {RECORDS} records"], done.stdout + done.stderr
    shown = {
        cells[0]: cells[-3:]
        for line in lines
        if "equal" in line and (cells := line.replace("│", " ").split())
    }
    counts = Counter(flight.key.decode() for flight in read_flights(RECORDS))
    assert shown == {
        carrier: [f"{count:,}", f"{count:,}", "equal"] for carrier, count in counts.items()
    }
