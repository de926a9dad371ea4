"""The pytest plugin's cluster and helper methods, with real clients: operations of a test, and
isolation of the next test.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from confluent_kafka import Producer, TopicPartition

from penstock.testing import Penstock, PenstockCluster, PenstockError
from penstock.testing.client import KafkaClient, RecordsMissing
from penstock.testing.options import Options
from penstock.testing.process import ClusterProcess
from tests.support.clients import confluent_consumer, read_records
from tests.support.dev_cluster import is_gone
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.system


class InterruptedWait(BaseException):
    """Interrupts a call from a signal handler."""


class Run:
    """One cluster for this file. `test` and `end` isolate tests as the plugin does."""

    def __init__(self) -> None:
        self.process = ClusterProcess(Options())
        try:
            self.process.wait_ready()
        except BaseException:
            self.process.close()
            raise
        self.client = KafkaClient(self.process.bootstrap_servers)
        self.cluster = PenstockCluster(self.process, self.client)

    def test(self) -> Penstock:
        return Penstock(self.process, self.client, "some test")

    def close(self) -> None:
        self.client.close()
        self.process.close()


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    run = Run()
    yield run
    run.close()


@pytest.fixture
def cluster(run: Run) -> Iterator[Penstock]:
    cluster = run.test()
    yield cluster
    cluster.end()


def test_clients_consume_records_of_helper_methods(cluster: Penstock) -> None:
    cluster.topic("words", 3)
    there = cluster.produce(
        "words", "a", b"b", None, key="k", headers={"h": "1", "empty": None}, timestamp_ms=1_000
    )
    consumer = confluent_consumer(cluster.bootstrap_servers, "readers")
    consumer.subscribe(["words"])
    messages = read_records(consumer, 3)
    consumer.close()
    assert [(message.partition(), message.offset()) for message in messages] == there
    assert [(message.key(), message.value()) for message in messages] == [
        (b"k", b"a"),
        (b"k", b"b"),
        (b"k", None),
    ]
    assert {tuple(message.headers() or ()) for message in messages} == {
        (("h", b"1"), ("empty", None))
    }
    assert {message.timestamp()[1] for message in messages} == {1_000}


def test_helper_methods_consume_records_of_clients(cluster: Penstock) -> None:
    cluster.topic("words", 4)
    producer = Producer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "partitioner": "murmur2_random",
            "compression.type": "lz4",
        }
    )
    keys = [f"key {number}" for number in range(200)]
    for key in keys:
        producer.produce("words", key.upper(), key, headers={"h": "1"})
    assert producer.flush(PATIENCE_S) == 0
    theirs = cluster.consume("words", 200)
    assert {(record.key, record.value) for record in theirs} == {
        (key.encode(), key.upper().encode()) for key in keys
    }
    assert {tuple(record.headers.items()) for record in theirs} == {(("h", b"1"),)}
    ours = {key: cluster.produce("words", "again", key=key)[0].partition for key in keys}
    assert ours == {(record.key or b"").decode(): record.partition for record in theirs}, (
        "keys go where Java puts them"
    )


def test_produce_splits_batches_and_consume_returns_all_available_records(
    cluster: Penstock,
) -> None:
    cluster.topic("big", 2)
    values = [bytes([65 + number]) * 200_000 for number in range(12)]
    there = cluster.produce("big", *values)
    assert [position.partition for position in there] == [0, 1] * 6
    assert [position.offset for position in there] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    assert [record.value for record in cluster.consume("big", 1)] == values[0::2] + values[1::2]


def test_each_test_starts_without_topics_and_groups_of_earlier_tests(run: Run) -> None:
    run.cluster.topic("stays")
    run.cluster.produce("stays", "x")
    first = run.test()
    first.topic("orders", 2)
    first.produce("orders", "1", "2", "3", "4", partition=0)
    first.produce("orders", "5")
    producer = Producer({"bootstrap.servers": first.bootstrap_servers})
    producer.produce("made-by-a-client", "x")
    assert producer.flush(PATIENCE_S) == 0
    consumer = confluent_consumer(first.bootstrap_servers, "shop")
    consumer.subscribe(["orders"])
    read_records(consumer, 5)
    consumer.commit(asynchronous=False)
    consumer.close()
    first.end()

    second = run.test()
    with pytest.raises(PenstockError, match=r"topic 'made-by-a-client' does not exist"):
        second.consume("made-by-a-client")
    second.topic("orders", 1)
    second.produce("orders", "new")
    consumer = confluent_consumer(second.bootstrap_servers, "shop")
    assert consumer.committed([TopicPartition("orders", 0)], PATIENCE_S)[0].offset < 0, (
        "the group's offsets went with the group"
    )
    consumer.subscribe(["orders"])
    assert [message.value() for message in read_records(consumer, 1)] == [b"new"]
    consumer.close()
    assert [record.value for record in second.consume("stays")] == [b"x"]
    second.end()


def test_acknowledged_records_survive_a_crash(cluster: Penstock) -> None:
    cluster.topic("events", 2)
    there = cluster.produce("events", *map(str, range(10)))
    port = int(cluster.bootstrap_servers.split(",")[0].rpartition(":")[2])
    cluster.kill_broker(0)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
    there += cluster.produce("events", *map(str, range(10, 20)))
    cluster.restart_broker(0)
    socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()
    records = {
        (record.partition, record.offset): record.text for record in cluster.consume("events", 20)
    }
    assert records == {position: str(number) for number, position in enumerate(there)}


def test_next_test_starts_with_all_brokers_and_without_faults(run: Run) -> None:
    first = run.test()
    first.kill_broker(0)
    faults = first.store_faults(down=True)
    faults.__enter__()
    first.end()
    second = run.test()
    faults.__exit__(None, None, None)
    second.topic("t", 2)
    assert len(second.produce("t", "a", "b")) == 2
    second.kill_broker(0)
    with pytest.raises(PenstockError, match="broker 0 is already down"):
        second.kill_broker(0)
    second.end()


def test_store_that_loses_responses_causes_no_duplicates(cluster: Penstock) -> None:
    cluster.topic("events", 2)
    with cluster.store_faults(
        error_rate=0.3, lost_response_rate=0.3, operations=["put"], seed=1
    ) as faults:
        for number in range(40):
            cluster.produce("events", str(number))
    assert min(faults.injected["throttled"], faults.injected["lost_response"]) > 0
    assert [record.text for record in cluster.consume("events")] == [
        str(number) for number in range(40)
    ]


def test_store_outage_delays_acknowledgments(cluster: Penstock) -> None:
    cluster.topic("events")
    with (
        cluster.store_faults(down=True),
        pytest.raises(PenstockError, match="timed out"),
    ):
        cluster.produce("events", "1", timeout_s=0.3)
    cluster.produce("events", "2")
    assert [record.text for record in cluster.consume("events")][-1] == "2"


def test_consume_reports_missing_records(cluster: Penstock) -> None:
    cluster.topic("few", 2)
    cluster.produce("few", "a", "b", "c")
    with pytest.raises(
        RecordsMissing,
        match=(
            r"topic 'few': 3 of 5 records arrived within 8 s \(read up to offsets"
            r" \{0: 2, 1: 1\}"
        ),
    ) as missing:
        cluster.consume("few", 5, timeout_s=8)
    assert [record.text for record in missing.value.records] == ["a", "c", "b"]


def test_invalid_calls_are_explained(run: Run, cluster: Penstock) -> None:
    cluster.topic("orders", 2)
    wrong_type = cast("int", "0")
    mistakes = {
        "topic 'order' does not exist; did you mean 'orders'": lambda: cluster.consume("order"),
        r"topic 'xyz' does not exist; create it first: penstock.topic\('xyz'\)": lambda: (
            cluster.produce("xyz", "1")
        ),
        "topic 'orders' was not created: .*exists": lambda: cluster.topic("orders"),
        "topic 'orders' has no partition 2: partitions are 0 to 1": lambda: cluster.produce(
            "orders", "1", partition=2
        ),
        "has no value": lambda: cluster.produce("orders"),
        "broker 7 does not exist: ids are 0 to 1": lambda: cluster.kill_broker(7),
        "wrong type: Expected `int`, got `str`": lambda: cluster.kill_broker(wrong_type),
        "did you mean retention.ms": lambda: cluster.topic("t", config={"retention.m": 1}),
        r"error_rate=2\) is not allowed: 0.0 to 1.0": lambda: cluster.store_faults(
            error_rate=2
        ).__enter__(),
        r"operations=\['write'\]\) is not allowed: put, get, list, delete": lambda: (
            cluster.store_faults(operations=["write"]).__enter__()
        ),
    }
    for message, mistake in mistakes.items():
        with pytest.raises(PenstockError, match=message):
            mistake()
    over = run.test()
    over.end()
    with pytest.raises(PenstockError, match="belongs to the test some test, which has ended"):
        over.topic("late")


def test_port_in_use_is_reported(cluster: Penstock) -> None:
    port = int(cluster.bootstrap_servers.split(",")[1].rpartition(":")[2])
    cluster.kill_broker(1)
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", port))
        squatter.listen()
        with pytest.raises(
            PenstockError,
            match=f"broker 1 cannot restart: another process has taken port {port} on 127.0.0.1",
        ):
            cluster.restart_broker(1)


def test_dead_cluster_is_reported_with_its_log() -> None:
    process = ClusterProcess(Options(brokers=1))
    process.wait_ready()
    cluster = PenstockCluster(process, KafkaClient(process.bootstrap_servers))
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(PenstockError, match="the Penstock cluster of this test run"):
        cluster.kill_broker(0)
    cluster._client.close()
    process.close()
    assert not Path(process.directory).exists()


def test_interrupted_wait_for_a_response_does_not_shift_later_ones(run: Run) -> None:
    """As by the signal of pytest-timeout."""

    def interrupt(_number: int, _frame: object) -> None:
        raise InterruptedWait

    before = signal.signal(signal.SIGALRM, interrupt)
    os.kill(run.process.pid, signal.SIGSTOP)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(InterruptedWait):
            run.cluster.restart_broker(0)
    finally:
        os.kill(run.process.pid, signal.SIGCONT)
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(PenstockError, match="broker 7 does not exist"):
        run.cluster.restart_broker(7)


def test_cluster_ends_with_its_test_run() -> None:
    code = (
        "import os\n"
        "from penstock.testing.options import Options\n"
        "from penstock.testing.process import ClusterProcess\n"
        "process = ClusterProcess(Options(brokers=1))\n"
        "process.wait_ready()\n"
        "print(process.pid, process.directory, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    pid, directory = done.stdout.split()
    wait_until(lambda: is_gone(int(pid)))
    assert done.returncode == -signal.SIGKILL
    assert not Path(directory).exists()
