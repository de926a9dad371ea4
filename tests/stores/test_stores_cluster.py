"""A cluster on servers that are not mocks: produce, failover, consume, and Spark beside live
brokers.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.clients.kafka import Kafka
from deploy.demo import clients
from deploy.demo.delays import delays_in
from deploy.demo.flights import read_flights
from deploy.local.handle import LocalCluster
from tests.support.s3_servers import s3_server

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 20_000

pytestmark = [pytest.mark.system, pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(params=["versitygw", "minio", "file"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "file":
        yield f"file:{tmp_path}/store"
        return
    with s3_server(request.param, tmp_path) as server:
        yield server.new_url()


def test_records_survive_their_broker_and_spark_reads_beside_the_others(
    store_url: str, tmp_path: Path
) -> None:
    flights = list(read_flights(RECORDS))
    with LocalCluster(("--store", store_url, "--log-level", "error")) as cluster:
        bootstrap = cluster.bootstrap
        # The flights are of 2013, and retention deletes by the time of the records.
        Kafka(bootstrap).create_topic("flights", 4, -1, {"retention.ms": "-1"})
        half = RECORDS // 2
        sent = clients.produce(bootstrap, "flights", flights[:half], lambda _: None).count
        killed = cluster.brokers()[:1]
        cluster.kill(killed)
        sent += clients.produce(bootstrap, "flights", flights[half:], lambda _: None).count
        assert sent == RECORDS
        cluster.wait_for_new(killed)
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
