"""Kafka Connect in distributed mode: two workers copy a file to a topic exactly once, and the topic
to another file. One worker is killed with SIGKILL.

Connect stores configs, offsets and states in three compacted topics.
"""

import asyncio
import json
import urllib.error
import urllib.request
from contextlib import ExitStack, closing
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from penstock.stream.config import StreamConfig
from tests.support.clients import POLL_S, TIMEOUT_S, checked, confluent_consumer, create_topic
from tests.support.cluster import Cluster
from tests.support.java import JavaHome, wait_while_running
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S

WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
TOPIC = "lines"
INTERNAL = {"config": "connect-configs", "offset": "connect-offsets", "status": "connect-status"}
LINES = [f"line {number}" for number in range(600)]
"""ASCII only: the file source counts characters, and skips as many bytes after a restart."""
STRINGS = "org.apache.kafka.connect.storage.StringConverter"
FILE = "org.apache.kafka.connect.file.FileStream"
ASKED_S = float(PATIENCE_S)
RETRIED = {404, 409, 500, 503}
"""Status codes of a worker that is starting or rebalancing."""

# The cluster looks for dirty logs and expired transactions ten times per second.
pytestmark = pytest.mark.cluster(
    brokers=2,
    stream_config=StreamConfig(wal_linger_ms=0, block_age_max_ms=50),
    log_cleaner_backoff_ms=100,
    group_min_session_timeout_ms=500,
    transaction_abort_timed_out_transaction_cleanup_interval_ms=100,
)


class Worker:
    """A Kafka Connect process and its REST API."""

    def __init__(self, java: JavaHome, bootstrap: str, directory: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        name = self.address.rpartition(":")[2]
        self.log = directory / f"worker-{name}.log"
        self.config = directory / f"worker-{name}.properties"
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": "connect",
            "listeners": f"http://{self.address}",
            "key.converter": STRINGS,
            "value.converter": STRINGS,
            "exactly.once.source.support": "enabled",
            "offset.flush.interval.ms": "200",
            "session.timeout.ms": "6000",
            "heartbeat.interval.ms": "500",
            # Tasks of a dead worker are reassigned immediately; the default is after five minutes.
            "scheduled.rebalance.max.delay.ms": "0",
            **{f"{kind}.storage.topic": topic for kind, topic in INTERNAL.items()},
            **{f"{kind}.storage.replication.factor": "1" for kind in INTERNAL},
            **{f"{kind}.storage.partitions": "2" for kind in ("offset", "status")},
        }
        self.config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        self._java = java

    def start(self, stack: ExitStack) -> "Popen[bytes]":
        return stack.enter_context(self._java.application(WORKER, str(self.config), log=self.log))

    def send_request(self, path: str, body: object = None) -> Any:
        """Return the response, or None while the workers rebalance or are not listening."""
        request = urllib.request.Request(f"http://{self.address}{path}")
        if body is not None:
            request.method = "PUT"
            request.data = json.dumps(body).encode()
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=ASKED_S) as response:
                return json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                if error.code not in RETRIED:
                    raise AssertionError(error.read()) from None
        except (urllib.error.URLError, TimeoutError, ConnectionError):
            pass
        return None

    def runs(self, connector: str) -> str:
        """Return the address of the worker that runs the connector's task, or "" if none does."""
        status = self.send_request(f"/connectors/{connector}/status")
        tasks = status["tasks"] if status else []
        running = [task["worker_id"] for task in tasks if task["state"] == "RUNNING"]
        return running[0] if running else ""


class Topic:
    """Reads the committed records of the topic from the beginning."""

    def __init__(self, bootstrap: str) -> None:
        self.values: list[str] = []
        self._consumer: Consumer = confluent_consumer(
            bootstrap, "reader", isolation_level="read_committed", enable_auto_commit=False
        )
        self._consumer.assign([TopicPartition(TOPIC, 0, 0)])

    def has(self, count: int) -> bool:
        """Read available records; return whether there are `count` lines by now."""
        for message in self._consumer.consume(1_000, POLL_S):
            self.values.append((checked(message).value() or b"").decode())
        return len(self.values) >= count

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.long
async def test_file_is_copied_exactly_once_although_a_worker_is_killed(
    cluster: Cluster, java: JavaHome, tmp_path: Path
) -> None:
    await asyncio.to_thread(_copy, cluster.bootstrap, java, tmp_path)
    await asyncio.to_thread(_check_internal_topics, cluster.bootstrap)


def _copy(bootstrap: str, java: JavaHome, directory: Path) -> None:
    source, sink = directory / "source.txt", directory / "sink.txt"
    half = len(LINES) // 2
    _append(source, LINES[:half])
    create_topic(bootstrap, TOPIC)
    workers = [Worker(java, bootstrap, directory) for _ in range(2)]
    by_address = {worker.address: worker for worker in workers}
    with ExitStack() as stack, closing(Topic(bootstrap)) as topic:
        processes = {worker.address: worker.start(stack) for worker in workers}
        first = workers[0]
        _until(processes, first, lambda: first.send_request("/connectors") is not None)
        connectors: dict[str, dict[str, str]] = {
            "source": {
                "connector.class": f"{FILE}SourceConnector",
                "topic": TOPIC,
                "file": str(source),
            },
            "sink": {
                "connector.class": f"{FILE}SinkConnector",
                "topics": TOPIC,
                "file": str(sink),
                "consumer.override.auto.offset.reset": "earliest",
            },
        }
        for name, config in connectors.items():
            full = config | {"tasks.max": "1"}
            _until(
                processes,
                first,
                lambda name=name, full=full: first.send_request(f"/connectors/{name}/config", full),
            )
        _until(processes, first, lambda: topic.has(half) and _lines(sink) == LINES[:half])
        victim = by_address[first.runs("source")]
        survivor = next(worker for worker in workers if worker is not victim)
        _append(source, LINES[half : half + 20])
        processes.pop(victim.address).kill()
        _append(source, LINES[half + 20 :])
        _until(processes, survivor, lambda: survivor.runs("source") == survivor.address)
        _until(processes, survivor, lambda: topic.has(len(LINES)))
        _until(processes, survivor, lambda: LINES[-1] in _lines(sink))
        assert topic.values == LINES
        # The sink may write lines again whose offsets it had not committed.
        assert list(dict.fromkeys(_lines(sink))) == LINES


def _append(path: Path, lines: list[str]) -> None:
    with path.open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _until(processes: "dict[str, Popen[bytes]]", worker: Worker, condition: Any) -> None:
    """Wait for a condition; fail if the worker ends."""
    wait_while_running(processes[worker.address], worker.log, condition)


def _check_internal_topics(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for topic in INTERNAL.values():
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        found = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
        assert found["cleanup.policy"].value == "compact"
