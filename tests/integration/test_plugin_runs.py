"""The pytest plugin in real pytest runs: documented examples, options, pytest-xdist, failure
reports and usage errors.
"""

import re
import socket
from pathlib import Path

import pytest

from tests.support.pytest_runs import ROOT, run_pytest

pytestmark = pytest.mark.system

EXAMPLES = {
    match["name"]: match["code"]
    for match in re.finditer(
        r"```python\n# (?P<name>\S+)\n(?P<code>.*?)```",
        (ROOT / "docs/reference/pytest.md").read_text(),
        re.DOTALL,
    )
}


def test_examples_of_the_reference_page_pass(tmp_path: Path) -> None:
    assert sorted(EXAMPLES) == [
        "test_async.py",
        "test_crash.py",
        "test_secure.py",
        "test_totals.py",
    ]
    # kafka-python drops the sockets of a dead broker without closing them.
    leaks = "    ignore:Exception ignored.*<socket:pytest.PytestUnraisableExceptionWarning\n"
    plain = {name: code for name, code in EXAMPLES.items() if name != "test_secure.py"}
    done = run_pytest(tmp_path, plain, "-q", ini=leaks)
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout


def test_clients_connect_to_a_secure_cluster_with_its_settings(tmp_path: Path) -> None:
    """Runs the documented example, then the other client libraries, one of them after a crash."""
    others = """
import asyncio

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from kafka import KafkaProducer


def test_kafka_python(penstock):
    penstock.topic("t")
    penstock.kill_broker(0)
    penstock.restart_broker(0)
    producer = KafkaProducer(**penstock.client_settings("kafka-python"))
    producer.send("t", b"x").get(180)
    producer.close()
    assert [record.text for record in penstock.consume("t")] == ["x"]


def test_aiokafka(penstock):
    async def send():
        async with AIOKafkaProducer(**penstock.client_settings("aiokafka")) as producer:
            await producer.send_and_wait("t", b"y")

    penstock.topic("t")
    asyncio.run(send())
    assert [record.text for record in penstock.consume("t")] == ["y"]
    assert "ScramLoginModule" in penstock.client_settings("java")["sasl.jaas.config"]


def test_strangers_are_refused(penstock):
    stranger = AdminClient({"bootstrap.servers": penstock.bootstrap_servers, "log_level": 0})
    with pytest.raises(KafkaException):
        stranger.list_topics(timeout=2)
"""
    files = {"test_secure.py": EXAMPLES["test_secure.py"], "test_others.py": others}
    done = run_pytest(tmp_path, files, "-q", ini="penstock_secure = true\n")
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
    plain = run_pytest(tmp_path, files, "-q", "test_secure.py")
    assert "1 passed" in plain.stdout
    flag = run_pytest(tmp_path, files, "-q", "--penstock-secure", "-k", "kafka_python")
    assert "1 passed" in flag.stdout


def test_each_xdist_worker_has_its_own_cluster(tmp_path: Path) -> None:
    tests = """
import os
import pathlib
import pytest

@pytest.mark.parametrize("number", range(6))
def test_same_names_everywhere(penstock, number):
    penstock.topic("orders")
    penstock.produce("orders", str(number))
    assert [record.text for record in penstock.consume("orders")] == [str(number)]
    pathlib.Path(os.environ["PYTEST_XDIST_WORKER"]).write_text(penstock.bootstrap_servers)
"""
    done = run_pytest(tmp_path, {"test_x.py": tests}, "-q", "-n", "2")
    assert done.returncode == 0, done.stdout
    ports = [set(re.findall(r":(\d+)", path.read_text())) for path in tmp_path.glob("gw*")]
    assert len(ports) == 2
    assert not ports[0] & ports[1]


def test_options_are_read_from_the_command_line_and_the_ini_file(tmp_path: Path) -> None:
    files = {
        "test_x.py": (
            """
import time

def test_three_brokers_and_slow_puts(penstock):
    assert penstock.brokers == [0, 1, 2]
    penstock.topic("t")
    began = time.monotonic()
    penstock.produce("t", "x")
    assert time.monotonic() - began >= 0.04
"""
        ),
    }
    done = run_pytest(
        tmp_path,
        files,
        "-q",
        "--penstock-brokers",
        "3",
        ini="penstock_brokers = 1\npenstock_latency = 40\n",
    )
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_invalid_options_are_usage_errors(tmp_path: Path) -> None:
    files = {"test_x.py": "def test_x(penstock): pass\n"}
    wrong = run_pytest(tmp_path, files, "--penstock-latency", "100,20")
    assert (
        wrong.returncode,
        "ERROR: --penstock-latency 100,20 is not allowed: P50 or P50,P99 in ms" in wrong.stderr,
    ) == (4, True)
    shared = run_pytest(tmp_path, files, "--penstock-port", "9092", "-n", "2")
    assert (
        shared.returncode,
        "--penstock-port cannot be used with pytest-xdist" in shared.stderr,
    ) == (4, True)
    with socket.create_server(("127.0.0.1", 0)) as squatter:
        port = squatter.getsockname()[1]
        taken = run_pytest(tmp_path, files, "-q", "--penstock-port", str(port))
    message = (
        f"port {port} on 127.0.0.1 is taken by another process; stop it, or choose another port"
        " with --penstock-port (0: any free port)"
    )
    assert (taken.returncode, message in taken.stdout) == (1, True), taken.stdout


def test_run_without_plugin_fixtures_imports_and_starts_nothing(tmp_path: Path) -> None:
    tests = """
import sys

def test_nothing_was_imported_or_started(pytestconfig):
    found = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names
    with open("imported", "a") as file:
        print(*sorted(found - {"test_x", "conftest"}), file=file)
    assert pytestconfig.pluginmanager.get_plugin("_Run")._process is None
"""
    assert "1 passed" in run_pytest(tmp_path, {"test_x.py": tests}, "-q").stdout
    plain = {"test_x.py": tests.rpartition("    assert")[0]}
    assert "1 passed" in run_pytest(tmp_path, plain, "-q", "-p", "no:penstock").stdout
    ours, without = map(str.split, (tmp_path / "imported").read_text().splitlines())
    assert set(ours) - set(without) == {"penstock", "pyspark_penstock"}
    listed = {
        "test_x.py": "def test_y(penstock): pass\n",
        "conftest.py": (
            tests.replace("def test_nothing_was_imported_or_started", "def pytest_unconfigure")
            .replace("(pytestconfig)", "(config)")
            .replace("pytestconfig.", "config.")
        ),
    }
    only = run_pytest(tmp_path, listed, "-q", "--collect-only")
    assert (only.returncode, "test_y" in only.stdout) == (0, True), only.stdout + only.stderr


def test_failure_report_contains_the_cluster_log(tmp_path: Path) -> None:
    tests = """
kept = []

def test_fails(penstock):
    kept.append(penstock)
    penstock.topic("t")
    with penstock.store_faults(down=True):
        penstock.kill_broker(0)
    penstock.restart_broker(0)
    assert False, "on purpose"

def test_uses_what_is_over(penstock):
    kept[0].topic("late")

def test_continues(penstock):
    penstock.topic("t")
    assert penstock.produce("t", "x")
"""
    done = run_pytest(tmp_path, {"test_x.py": tests}, "-q", "--penstock-log-level", "info")
    assert "2 failed, 1 passed" in done.stdout, done.stdout
    log = done.stdout.partition("Penstock's log during call")[2].partition("_______")[0]
    assert "broker_started" in log
    assert (
        "this `penstock` belongs to the test test_x.py::test_fails, which has ended" in done.stdout
    )


def test_fixture_with_too_wide_a_scope_gets_a_hint(tmp_path: Path) -> None:
    tests = """
import pytest

@pytest.fixture(scope="module")
def orders(penstock_cluster):
    return penstock_cluster.topic("orders")

@pytest.fixture(scope="module")
def wrong(penstock):
    pass

def test_the_topic_stays_first(penstock, orders):
    penstock.produce(orders, "1")

def test_the_topic_stays_second(penstock, orders):
    assert [record.text for record in penstock.consume(orders, 1)] == ["1"]

def test_wrong(wrong):
    pass
"""
    done = run_pytest(tmp_path, {"test_x.py": tests}, "-q")
    assert "2 passed, 1 error" in done.stdout, done.stdout
    assert "ScopeMismatch" in done.stdout
