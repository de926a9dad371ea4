"""A cluster on each store: its first record, a broker that is killed amid records, and Spark beside
live brokers. `make test` runs the first test on a directory, moto and versitygw.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.demo import clients
from penstock.deploy.demo.delays import delays_in
from penstock.deploy.demo.flights import Flight, read_flights
from penstock.deploy.demo.record_count import Tally
from penstock.deploy.local.handle import LocalCluster
from tests.support.dev_cluster import penstock
from tests.support.store_servers import CLOUDS, S3_NAMES, SECRET_KEY, store_server

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]


@pytest.fixture(
    params=["file", *S3_NAMES, *(pytest.param(name, marks=pytest.mark.long) for name in CLOUDS)]
)
def store_url(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    # There `penstock dev` keeps the metadata of a store with a URL.
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    if request.param == "file":
        yield f"file:{tmp_path}/store"
        return
    with store_server(request.param, tmp_path) as server:
        yield server.new_url()


def on(store_url: str) -> LocalCluster:
    return LocalCluster(("--store", store_url, "--log-level", "error"))


def produce_around_a_crash(cluster: LocalCluster, flights: list[Flight]) -> None:
    """Produce the flights, and kill a broker when half of them are acknowledged."""
    # The flights are of 2013, and retention deletes by the time of the records.
    Kafka(cluster.bootstrap).create_topic("flights", 4, -1, {"retention.ms": "-1"})
    half = len(flights) // 2
    clients.produce(cluster.bootstrap, "flights", flights[:half], lambda _: None)
    killed = cluster.brokers()[:1]
    cluster.kill(killed)
    clients.produce(cluster.bootstrap, "flights", flights[half:], lambda _: None)
    cluster.wait_for_new(killed)


def test_the_first_record_and_all_others_survive_their_broker(store_url: str) -> None:
    flights = list(read_flights(4_000))
    sent = Tally()
    for flight in flights:
        sent.add(*flight)
    with on(store_url) as cluster:
        assert SECRET_KEY not in cluster.ready_line
        assert penstock(cluster, "produce", "greetings", given="hello\n").returncode == 0
        asked = ("consume", "greetings", "--from-beginning", "--max-messages", "1")
        assert penstock(cluster, *asked).stdout == "hello\n"
        produce_around_a_crash(cluster, flights)
        read = clients.consume(
            cluster.bootstrap, "flights", len(flights), lambda _: None, lambda: None
        )
    assert read == sent


@pytest.mark.long
def test_spark_reads_beside_live_brokers_what_one_left(store_url: str, tmp_path: Path) -> None:
    flights = list(read_flights(20_000))
    with on(store_url) as cluster:
        produce_around_a_crash(cluster, flights)
        done = subprocess.run(
            [sys.executable, str(ROOT / "docs" / "examples" / "flights_spark.py")],
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
            cwd=tmp_path,
            env=os.environ
            | {
                "STORE": cluster.state().store_url,
                "PYTHONPATH": str(ROOT),
                "PYSPARK_PYTHON": sys.executable,
            },
        )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
    lines = done.stdout.splitlines()
    for item in delays_in(flights):
        assert any(item.carrier in line and f" {item.flights}|" in line for line in lines), (
            f"not {item.flights} flights of {item.carrier}:\n{done.stdout}"
        )
