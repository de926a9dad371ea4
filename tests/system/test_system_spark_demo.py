"""`penstock demo --spark` and the Spark example, as users run them: as processes, after all brokers
have ended.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from penstock import scan
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.demo import clients
from penstock.deploy.demo.delays import Delay, delays_in, difference
from penstock.deploy.demo.flights import Flight, read_flights
from penstock.lake.manifest.errors import UnknownPartition
from tests.support.dev_cluster import DevCluster
from tests.support.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 20_000
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
PNG = b"\x89PNG\r\n\x1a\n"

pytestmark = pytest.mark.system


def test_spark_reads_the_rows_of_the_input_file_from_the_bucket(tmp_path: Path) -> None:
    command = (
        sys.executable,
        "-P",
        "-m",
        "penstock.deploy.cli",
        "demo",
        "--spark",
        "--records",
        str(RECORDS),
    )
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        cwd=tmp_path,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
    assert done.stdout.splitlines()[-1] == f"demo: OK {RECORDS} records"
    assert (tmp_path / "flights.png").read_bytes().startswith(PNG)


def is_named(store_url: str) -> bool:
    """Return whether the manifest contains the topic, about 1 s after its creation."""
    try:
        scan(store_url, "flights", columns=["key"])
    except UnknownPartition:
        return False
    return True


def test_example_runs_without_brokers(tmp_path: Path) -> None:
    with DevCluster(("--brokers", "1", "--no-restart", "--log-level", "error")) as cluster:
        state = cluster.state()
        Kafka(state.bootstrap).create_topic("flights", 2, -1, {})
        sent = clients.produce(state.bootstrap, "flights", read_flights(RECORDS), lambda _: None)
        cluster.kill(cluster.brokers())
        cluster.wait_until(
            lambda state: state.of_role("broker")[0].phase == "stopped",
            PATIENCE_S,
            "the end of the broker",
        )
        cluster.wait_until(
            lambda state: is_named(state.store_url), PATIENCE_S, "a manifest that names the topic"
        )
        assert scan(state.store_url, "flights", columns=["key"]).to_table().num_rows == sent.count
        environment = ENVIRONMENT | {"STORE": state.store_url}
        command = (sys.executable, str(ROOT / "docs" / "examples" / "flights_spark.py"))
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
            cwd=tmp_path,
            env=environment,
        )
    assert done.returncode == 0, done.stdout[-4_000:] + done.stderr[-4_000:]
    for item in delays_in(read_flights(RECORDS)):
        assert any(
            item.carrier in line
            and f" {item.flights}|" in line
            and str(item.mean_minutes)[:8] in line
            for line in done.stdout.splitlines()
        )
    assert (tmp_path / "flights.png").read_bytes().startswith(PNG)
    assert "│ UA" in done.stdout, "DuckDB over the same log"


def test_demo_without_java_prints_the_install_command(tmp_path: Path) -> None:
    environment = {name: value for name, value in ENVIRONMENT.items() if name != "JAVA_HOME"} | {
        "PATH": str(tmp_path)
    }
    command = (sys.executable, "-P", "-m", "penstock.deploy.cli", "demo", "--spark")
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 1
    assert done.stdout.startswith("demo: FAILED Spark needs Java 17")


def test_demo_compares_every_digit_of_the_results() -> None:
    flights = [
        Flight(b"UA", 0, b'{"carrier":"UA","dep_delay":%s}' % delay)
        for delay in (b"3", b"null", b"-1")
    ]
    found = delays_in(flights)
    assert found == [Delay("UA", 3, 2, 2, 1.0)]
    assert difference(found, found) == ""
    for changed in (
        Delay("UA", 3, 2, 2, 1.0000000000000002),
        Delay("UA", 4, 2, 2, 1.0),
        Delay("AA", 3, 2, 2, 1.0),
    ):
        assert difference(found, [changed])
    assert difference(found, [])
