"""Kafka 4.2's Java producer and consumer while partitions move and brokers are killed."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from penstock.base.ids import NodeId
from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.controller.api.messages import AlterReassignments, PartitionTarget
from tests.support.clients import confluent_consumer, create_topic, produce, read_records
from tests.support.cluster import Cluster
from tests.support.java import JavaHome
from tests.support.waiting import PATIENCE_S, until

TOPIC, GROUP = "java", "java"
ENDED_S = PATIENCE_S


@pytest.fixture(scope="session")
def clients(java: JavaHome) -> JavaHome:
    java.compile(Path(__file__).parent / "clients" / "Clients.java")
    return java


# The coordinators' topics have one partition each.
pytestmark = pytest.mark.cluster(
    brokers=3,
    offsets_topic_num_partitions=1,
    transaction_state_log_num_partitions=1,
    transaction_abort_timed_out_transaction_cleanup_interval_ms=50,
)


class Program:
    """A run of the Java program `Clients`, with events at given counts of its output lines."""

    def __init__(self, java: JavaHome, log: Path) -> None:
        self._java = java
        self._log = log

    async def run(
        self,
        *arguments: str,
        word: str,
        at: tuple[int, ...],
        happens: Callable[[], Awaitable[object]],
    ) -> list[list[str]]:
        """Return the lines that start with `word`, without it. The program must succeed."""
        with self._java.application("Clients", *arguments, log=self._log) as process:
            for count in at:
                await until(
                    lambda count=count: (
                        len(self._lines(word)) >= count or process.poll() is not None
                    )
                )
                assert process.poll() is None, self._log.read_text()
                await happens()
            await until(lambda: process.poll() is not None, ENDED_S)
            assert process.returncode == 0, self._log.read_text()
        return self._lines(word)

    def _lines(self, word: str) -> list[list[str]]:
        lines = self._log.read_text().splitlines()
        return [line.split()[1:] for line in lines if line.startswith(f"{word} ")]


@pytest.fixture
def program(clients: JavaHome, tmp_path: Path) -> Program:
    return Program(clients, tmp_path / "clients.log")


def _read(bootstrap: str, partition: int, count: int) -> list[int]:
    """Return the numbers up to the last stable offset; check that there are `count`."""
    consumer = confluent_consumer(
        bootstrap, "reader", isolation_level="read_committed", enable_auto_commit=False
    )
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0)])
        return [int(message.value() or b"-1") for message in read_records(consumer, count)]
    finally:
        consumer.close()


def _committed(bootstrap: str, *partitions: int) -> list[int]:
    consumer = confluent_consumer(bootstrap, GROUP)
    try:
        requested = [TopicPartition(TOPIC, partition) for partition in partitions]
        return [found.offset for found in consumer.committed(requested, ENDED_S)]
    finally:
        consumer.close()


async def test_idempotent_producer_survives_a_partition_move(
    cluster: Cluster, program: Program
) -> None:
    await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC)
    await cluster.until_served(TOPIC)
    targets = itertools.cycle(sorted(cluster.brokers, key=lambda node: node == _leader(cluster)))

    async def move() -> None:
        target = next(targets)
        wanted = PartitionTarget(topic=TOPIC, partition=0, replicas=[NodeId(target)])
        requested = AlterReassignments(partitions=[wanted])
        items = (await cluster.broker.client.alter_reassignments(requested)).items
        assert not items[0].status, items[0].detail
        await until(lambda: _leader(cluster) == target)

    count, at = 800, (50, 150, 250, 350, 450, 550)
    acknowledged = await program.run(
        *("produce", cluster.bootstrap, TOPIC, str(count)),
        word="acknowledged",
        at=at,
        happens=move,
    )
    assert [int(line[0]) for line in acknowledged] == list(range(count))
    assert await asyncio.to_thread(_read, cluster.bootstrap, 0, count) == list(range(count))


def _leader(cluster: Cluster, topic: str = TOPIC) -> int:
    return cluster.leader_of(topic)


@pytest.mark.long
async def test_transactional_producer_survives_a_kill_of_its_coordinator(
    cluster: Cluster, program: Program
) -> None:
    await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC, 2)
    await cluster.until_served(TOPIC)

    async def kill() -> None:
        victim = _leader(cluster, TRANSACTIONS_TOPIC)
        await cluster.kill_broker(victim)
        await until(lambda: _leader(cluster, TRANSACTIONS_TOPIC) not in {victim, -1})
        await cluster.start_broker(victim)

    count = 120
    committed = await program.run(
        *("transact", cluster.bootstrap, TOPIC, str(count)),
        word="committed",
        at=(20, 70),
        happens=kill,
    )
    assert [int(line[0]) for line in committed] == list(range(count))
    for partition in range(2):
        found = await asyncio.to_thread(_read, cluster.bootstrap, partition, count)
        assert found == list(range(count))
    assert await asyncio.to_thread(_committed, cluster.bootstrap, 0) == [count]


@pytest.mark.long
async def test_group_member_survives_a_kill_of_its_coordinator(
    cluster: Cluster, program: Program
) -> None:
    """A member of the consumer protocol continues from its position and reads each record once."""
    count, partitions = 1_200, 4
    await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC, partitions)
    values = [b"%d" % number for number in range(count)]
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values, partitions=range(partitions))

    async def kill() -> None:
        victim = _leader(cluster, OFFSETS_TOPIC)
        await cluster.kill_broker(victim)
        await until(lambda: _leader(cluster, OFFSETS_TOPIC) not in {victim, -1})
        await cluster.start_broker(victim)

    read = await program.run(
        *("consume", cluster.bootstrap, TOPIC, str(count)),
        word="read",
        at=(50,),
        happens=kill,
    )
    assert sorted(int(value) for _, _, value in read) == list(range(count))
    for index in range(partitions):
        offsets = [int(offset) for partition, offset, _ in read if int(partition) == index]
        assert offsets == list(range(count // partitions))
    found = await asyncio.to_thread(_committed, cluster.bootstrap, *range(partitions))
    assert found == [count // partitions] * partitions
