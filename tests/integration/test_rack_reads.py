"""Consumers with `client.rack` read records that the leader does not have in memory from a broker
in their rack (KIP-392): none are lost, duplicated or aborted. `test_rack_tails` covers new records.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.broker.config import LEADER_ALONE, RACK_AWARE
from penstock.broker.handlers.fetch.racks import COMMITTED_BYTES_MIN
from penstock.broker.partition.committed_reader import CommittedReads
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.recent_brokers import LISTED_S
from penstock.stream.config import StreamConfig
from tests.support.clients import (
    PATIENT_TRANSACTION,
    TIMEOUT_S,
    confluent_consumer,
    create_topic,
    read_records,
)
from tests.support.cluster import Cluster

TOPIC = "t"
VALUE_BYTES = 1_000
COUNT = 3 * COMMITTED_BYTES_MIN // VALUE_BYTES
RACKS = ("a", "b", "c")
"""Racks of brokers 0, 1 and 2."""


def fill(bootstrap: str) -> list[bytes]:
    """Write transactions, of which every third is aborted. Return the committed values."""
    create_topic(bootstrap, TOPIC, 1)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": "x", "batch.size": 50_000}
    )
    producer.init_transactions(TIMEOUT_S)
    committed: list[bytes] = []
    for number in range(6):
        producer.begin_transaction()
        values = [b"%d/%d " % (number, at) + bytes(VALUE_BYTES) for at in range(COUNT // 6)]
        for value in values:
            producer.produce(TOPIC, value, partition=0)
            producer.poll(0)
        if number % 3 == 2:
            producer.flush(TIMEOUT_S)
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
            committed += values
    return committed


@dataclass
class World:
    """A cluster with one topic."""

    cluster: Cluster
    leader: int = -1

    @property
    def near(self) -> int:
        """The broker in the consumer's rack."""
        return (self.leader + 1) % len(RACKS)

    @property
    def far(self) -> int:
        return (self.leader + 2) % len(RACKS)

    def reads(self, node_id: int) -> CommittedReads:
        return self.cluster.brokers[node_id].partitions.committed_reads

    async def cool(self, selector: str = RACK_AWARE) -> None:
        """Restart the leader, so that its successor has no records in memory."""
        before = self.cluster.leader_of(TOPIC)
        await self.cluster.stop_broker(before)
        await self.cluster.start_broker(before, rack=RACKS[before], replica_selector=selector)
        await self.cluster.until_served(TOPIC)
        self.leader = self.cluster.leader_of(TOPIC)

    def consumer(self, rack: str | None = None) -> Consumer:
        consumer = confluent_consumer(
            self.cluster.bootstrap,
            "g",
            client_rack=RACKS[self.near] if rack is None else rack,
            max_partition_fetch_bytes=1 << 18,
            isolation_level="read_committed",
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        return consumer


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[World]:
    stream = StreamConfig(wal_linger_ms=0, block_age_max_ms=100)
    selector = getattr(request, "param", RACK_AWARE)
    async with Cluster(tmp_path, brokers=0, stream_config=stream) as cluster:
        for node_id, rack in enumerate(RACKS):
            await cluster.start_broker(node_id, rack=rack, replica_selector=selector)
        yield World(cluster)


async def values_of(consumer: Consumer, count: int, timeout_s: float = TIMEOUT_S) -> list[bytes]:
    messages = await asyncio.to_thread(read_records, consumer, count, timeout_s)
    return [message.value() or b"" for message in messages]


def send(bootstrap: str, *values: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for value in values:
        producer.produce(TOPIC, value, partition=0)
    assert producer.flush(TIMEOUT_S) == 0


async def test_cold_records_are_served_by_the_broker_in_the_rack(world: World) -> None:
    written = await asyncio.to_thread(fill, world.cluster.bootstrap)
    await world.cool()
    consumer = world.consumer()
    assert await values_of(consumer, len(written)) == written
    assert world.reads(world.near).size_bytes > COMMITTED_BYTES_MIN
    assert world.reads(world.leader).sent >= 1
    partition = world.cluster.brokers[world.leader].partitions.get(TOPIC, 0)
    assert isinstance(partition, Partition)
    assert partition.bytes_out < VALUE_BYTES * len(written) / 4, "the leader served little"
    assert world.reads(world.far).served == 0

    await asyncio.to_thread(send, world.cluster.bootstrap, b"new", b"newer")
    assert await values_of(consumer, 2) == [b"new", b"newer"]
    await asyncio.to_thread(consumer.close)


async def test_consumer_returns_to_the_leader_when_the_broker_in_its_rack_dies(
    world: World,
) -> None:
    """Without a fetch in flight at that moment, librdkafka returns only when the broker is no
    longer listed (`broker.requests.recent_brokers`).
    """
    written = await asyncio.to_thread(fill, world.cluster.bootstrap)
    await world.cool()
    consumer = world.consumer()
    found = await values_of(consumer, 10)
    assert world.reads(world.near).served
    await world.cluster.kill_broker(world.near)
    found += await values_of(consumer, len(written) - 10, LISTED_S + TIMEOUT_S)
    assert found == written
    await asyncio.to_thread(consumer.close)


@pytest.mark.parametrize("where", ["", "nowhere", "with the leader"])
async def test_leader_serves_consumers_without_another_broker_in_their_rack(
    world: World, where: str
) -> None:
    written = await asyncio.to_thread(fill, world.cluster.bootstrap)
    await world.cool()
    consumer = world.consumer(RACKS[world.leader] if where == "with the leader" else where)
    assert await values_of(consumer, len(written)) == written
    assert world.reads(world.leader).sent == 0
    await asyncio.to_thread(consumer.close)


@pytest.mark.parametrize("world", [LEADER_ALONE], indirect=True)
async def test_leader_selector_ignores_racks(world: World) -> None:
    written = await asyncio.to_thread(fill, world.cluster.bootstrap)
    await world.cool(LEADER_ALONE)
    consumer = world.consumer()
    assert await values_of(consumer, len(written)) == written
    assert world.reads(world.leader).sent == 0
    await asyncio.to_thread(consumer.close)


async def test_open_transaction_limits_rack_reads(world: World) -> None:
    written = await asyncio.to_thread(fill, world.cluster.bootstrap)
    producer = Producer(
        {"bootstrap.servers": world.cluster.bootstrap, "transactional.id": "open"}
        | PATIENT_TRANSACTION
    )
    later = [b"open %d" % number + bytes(VALUE_BYTES) for number in range(2_000)]

    def begin() -> None:
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for value in later:
            producer.produce(TOPIC, value, partition=0)
        assert producer.flush(TIMEOUT_S) == 0

    await asyncio.to_thread(begin)
    await world.cool()
    consumer = world.consumer()
    assert await values_of(consumer, len(written)) == written
    assert await asyncio.to_thread(consumer.poll, 1.0) is None
    await asyncio.to_thread(producer.commit_transaction, TIMEOUT_S)
    assert await values_of(consumer, len(later)) == later
    await asyncio.to_thread(consumer.close)
