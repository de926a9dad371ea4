"""Exactly-once processing while processes are killed: a transactional producer in the middle of a
transaction, and the broker that coordinates it.
"""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.broker.coordination.internal_topics import TRANSACTIONS_TOPIC
from penstock.broker.coordination.shards import partition_for
from penstock.deploy.local.handle import LocalCluster
from tests.support.clients import TIMEOUT_S, confluent_consumer, create_topic, produce, read_records
from tests.support.dev_cluster import on_files
from tests.support.transformer import INPUT, OUTPUT

pytestmark = pytest.mark.system

RECORDS_COUNT: Final = 60
"""Number of records in each of the two input partitions."""
SUPPORT: Final = Path(__file__).parents[1] / "support"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with on_files(tmp_path, "--brokers", "3") as cluster:
        create_topic(cluster.bootstrap, INPUT, 2)
        create_topic(cluster.bootstrap, OUTPUT, 2)
        yield cluster


class Program:
    """One run of the transformer process."""

    def __init__(self, bootstrap: str, partition: int, hold: int = 0) -> None:
        self.name = f"transformer-{partition}"
        arguments = (bootstrap, self.name, str(partition), str(RECORDS_COUNT), str(hold))
        self.process = subprocess.Popen(
            (sys.executable, SUPPORT / "transformer.py", *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def until(self, told: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(told):
                return
        raise AssertionError(f"{self.name} ended with {self.process.wait()} before it was {told}")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._close()

    def finish(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.read()
        assert self.process.wait() == 0, f"{self.name} has not finished"
        self._close()

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    started: list[Program] = []
    yield started
    for program in started:
        if program.process.poll() is None:
            program.kill()


def coordinator_of(bootstrap: str, transactional_id: str) -> int:
    partitions = (
        AdminClient({"bootstrap.servers": bootstrap})
        .list_topics(TRANSACTIONS_TOPIC, TIMEOUT_S)
        .topics[TRANSACTIONS_TOPIC]
        .partitions
    )
    return int(partitions[partition_for(transactional_id, len(partitions))].leader)


def test_each_input_record_is_transformed_exactly_once(
    cluster: LocalCluster, programs: list[Program]
) -> None:
    bootstrap = cluster.bootstrap
    expected = [b"%d" % number for number in range(2 * RECORDS_COUNT)]
    produce(bootstrap, INPUT, expected, (0, 1))
    first, second = Program(bootstrap, 0, hold=3), Program(bootstrap, 1, hold=3)
    programs += [first, second]
    first.until("holding")
    second.until("holding")
    first.kill()
    victims = [
        broker
        for broker in cluster.brokers()
        if broker.node_id == coordinator_of(bootstrap, second.name)
    ]
    cluster.kill(victims)
    again = Program(bootstrap, 0, hold=3)
    programs.append(again)
    second.go_on()
    again.until("holding")
    cluster.wait_for_new(victims)
    victims = [
        broker
        for broker in cluster.brokers()
        if broker.node_id == coordinator_of(bootstrap, again.name)
    ]
    again.go_on()
    again.until("committed")
    cluster.kill(victims)
    again.finish()
    second.finish()
    cluster.wait_for_new(victims)
    consumer = confluent_consumer(
        bootstrap, "reader", enable_auto_commit=False, isolation_level="read_committed"
    )
    consumer.assign([TopicPartition(OUTPUT, partition, 0) for partition in (0, 1)])
    values = [message.value() for message in read_records(consumer, len(expected))]
    more = consumer.consume(1, 1.0)
    consumer.close()
    assert sorted(values) == sorted(expected)
    assert more == []
