"""Consumers with `client.rack` get new records from a broker in their rack, which reads them from
the leader's WAL slots.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.base.ids import NodeId
from penstock.broker.node import Broker
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.recent_brokers import LISTED_S
from penstock.broker.tail import links, redirects, session
from penstock.controller.api.messages import AlterReassignments, PartitionTarget
from penstock.deploy.clients.wire import WireClient
from penstock.objectstore.faults import (
    Fault,
    FaultConfig,
    FaultRule,
    FaultyStore,
    Latency,
    Selection,
)
from penstock.objectstore.memory import MemoryStore
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen.fetch import FetchPartition, FetchRequest, FetchTopic
from penstock.stream.config import StreamConfig
from tests.support.clients import (
    PATIENT_TRANSACTION,
    TIMEOUT_S,
    confluent_consumer,
    create_topic,
    produce,
    read_records,
)
from tests.support.cluster import Cluster
from tests.support.conversation import send_request
from tests.support.waiting import until

TOPIC = "t"
RACKS = ("a", "b", "c")
"""Racks of brokers 0, 1 and 2."""


SLOTS = Selection(frozenset({"get_range", "get_tail"}), "wal/")


@dataclass
class World:
    cluster: Cluster
    stores: dict[int, FaultyStore]
    """Each broker's view of the store."""

    @property
    def leader(self) -> Broker:
        return self.cluster.brokers[self.cluster.leader_of(TOPIC)]

    @property
    def near(self) -> Broker:
        """The broker in the consumer's rack."""
        return self.cluster.brokers[(self.leader.node_id + 1) % len(RACKS)]

    @property
    def led(self) -> Partition:
        found = self.leader.partitions.get(TOPIC, 0)
        assert isinstance(found, Partition)
        return found

    def consumer(self, isolation_level: str = "read_uncommitted") -> Consumer:
        consumer = confluent_consumer(
            self.cluster.bootstrap,
            "g",
            client_rack=self.near.config.rack,
            isolation_level=isolation_level,
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        return consumer

    async def until_followed(self) -> None:
        """Wait until the leader redirects consumers to the broker in the rack."""
        leader, near = self.leader, self.near
        await until(lambda: near.tails.counts().down == 0)
        await until(lambda: leader.tail_followers.has(near.node_id))

    async def until_reported(self, end: int) -> None:
        """Wait until the broker in the rack serves the log up to this offset."""
        rack, epoch = self.near.config.rack or "", self.led.leader_epoch

        async def is_reported() -> bool:
            return await fetch(self, 0, epoch, rack) == (0, end, True)

        await until(is_reported)

    async def produce(self, *values: bytes) -> None:
        await asyncio.to_thread(self._produce, values)

    def _produce(self, values: tuple[bytes, ...]) -> None:
        producer = Producer({"bootstrap.servers": self.cluster.bootstrap})
        for value in values:
            producer.produce(TOPIC, value, partition=0)
        assert producer.flush(TIMEOUT_S) == 0


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """Start a cluster without uploads, so the whole topic is in WAL slots. Delayed requests end
    once the store is configured without latencies.
    """
    stream = StreamConfig(wal_linger_ms=0, block_age_max_ms=600_000)
    shared = MemoryStore()
    stores: dict[int, FaultyStore] = {}

    async def until_fast(_latency_s: float, node_id: int) -> None:
        await until(lambda: not stores[node_id].config.latencies, 3 * TIMEOUT_S)

    for node_id in range(len(RACKS)):
        sleep = partial(until_fast, node_id=node_id)
        stores[node_id] = FaultyStore(shared, Random(node_id), sleep=sleep)
    async with Cluster(
        tmp_path, brokers=0, stream_config=stream, store=shared, stores=stores
    ) as cluster:
        for node_id, rack in enumerate(RACKS):
            await cluster.start_broker(node_id, rack=rack)
        await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC, 1)
        await cluster.until_served(TOPIC)
        world = World(cluster, stores)
        await world.until_followed()
        yield world


def values(first: int, count: int) -> list[bytes]:
    return [b"order-%d" % number for number in range(first, first + count)]


async def read(consumer: Consumer, count: int, timeout_s: float = TIMEOUT_S) -> list[bytes]:
    messages = await asyncio.to_thread(read_records, consumer, count, timeout_s)
    return [message.value() or b"" for message in messages]


async def test_new_records_are_served_by_the_broker_in_the_rack(world: World) -> None:
    consumer = world.consumer()
    for number in range(5):
        sent = values(10 * number, 10)
        await world.produce(*sent)
        assert await read(consumer, 10) == sent
    assert world.led.records_out == 0, "the leader sent none"
    assert world.near.partitions.committed_reads.records == 50
    assert world.near.storage.committed_end(world.led.log.data.stream_id) == 0
    await asyncio.to_thread(consumer.close)


async def test_read_committed_consumers_get_only_committed_records_of_a_tail(world: World) -> None:
    def begin(producer: Producer, sent: list[bytes]) -> None:
        producer.begin_transaction()
        for value in sent:
            producer.produce(TOPIC, value, partition=0)
        assert producer.flush(TIMEOUT_S) == 0

    def transactional(name: str) -> Producer:
        settings = {"bootstrap.servers": world.cluster.bootstrap, "transactional.id": name}
        producer = Producer(settings | PATIENT_TRANSACTION)
        producer.init_transactions(TIMEOUT_S)
        return producer

    consumer = world.consumer("read_committed")
    open_one, other = (
        await asyncio.to_thread(transactional, "open"),
        await asyncio.to_thread(transactional, "other"),
    )
    await world.produce(*values(0, 5))
    await asyncio.to_thread(begin, open_one, values(10, 5))
    await asyncio.to_thread(begin, other, values(20, 5))
    await asyncio.to_thread(other.abort_transaction, TIMEOUT_S)
    await asyncio.to_thread(begin, other, values(30, 5))
    await asyncio.to_thread(other.commit_transaction, TIMEOUT_S)
    assert await read(consumer, 5) == values(0, 5)
    assert await asyncio.to_thread(consumer.poll, 1.0) is None, "a transaction is open"
    await asyncio.to_thread(open_one.commit_transaction, TIMEOUT_S)
    assert await read(consumer, 10) == values(10, 5) + values(30, 5)
    assert world.led.records_out == 0
    await asyncio.to_thread(consumer.close)


async def test_rack_reads_continue_after_an_upload(world: World) -> None:
    consumer = world.consumer()
    await world.produce(*values(0, 10))
    assert await read(consumer, 10) == values(0, 10)
    await world.produce(*values(10, 10))
    await world.leader.storage.upload()
    await world.produce(*values(20, 10))
    assert await read(consumer, 20) == values(10, 20)
    late = world.consumer()
    assert await read(late, 30) == values(0, 30)
    assert world.led.records_out == 0
    for each in (consumer, late):
        await asyncio.to_thread(each.close)


async def test_records_of_new_partitions_do_not_wait_for_a_pending_tail_request(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = world.consumer()
    await world.produce(*values(0, 10))
    assert await read(consumer, 10) == values(0, 10)
    monkeypatch.setattr(session, "WAIT_MS", 1_000 * 2 * TIMEOUT_S)
    monkeypatch.setattr(links, "RESPONSE_MAX_S", 3 * TIMEOUT_S)
    await world.produce(*values(10, 10))
    assert await read(consumer, 10) == values(10, 10), "now the link waits for long"
    await asyncio.to_thread(create_topic, world.cluster.bootstrap, "other", 3)
    await asyncio.to_thread(produce, world.cluster.bootstrap, "other", values(0, 9), range(3))
    other = world.consumer()
    other.assign([TopicPartition("other", at, 0) for at in range(3)])
    assert sorted(await read(other, 9)) == values(0, 9)
    for each in (consumer, other):
        await asyncio.to_thread(each.close)


async def fetch(
    world: World, offset: int, epoch: int, rack: str, max_wait_ms: int = 100
) -> tuple[int, int, bool]:
    """Return the error code, the high watermark, and whether the response contains records."""
    requested = FetchPartition(0, epoch, offset, partition_max_bytes=1 << 20)
    topic = FetchTopic(world.led.topic_id, partitions=[requested])
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1, topics=[topic], rack_id=rack)
    address = f"127.0.0.1:{world.near.port}"
    response = await asyncio.to_thread(send_request, address, apis.FETCH, request)
    (found,) = response["responses"][0]["partitions"]
    return found["error_code"], found["high_watermark"], bool(found["records"])


async def test_broker_with_outdated_metadata_returns_no_records_and_no_error(world: World) -> None:
    """After an error, a client waits half a second before it fetches again."""
    await world.produce(*values(0, 10))
    rack, epoch = world.near.config.rack or "", world.led.leader_epoch
    assert await fetch(world, 0, epoch + 1, rack) == (0, -1, False), "its image is outdated"

    await world.until_reported(10)
    assert await fetch(world, 10, epoch, rack) == (0, 10, False)
    for offset, asked_epoch, asked_rack in ((11, epoch, rack), (0, epoch, ""), (0, epoch, "x")):
        code, _, has_records = await fetch(world, offset, asked_epoch, asked_rack)
        assert (code, has_records) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, False)


async def test_broker_in_the_rack_returns_consumers_to_the_leader(world: World) -> None:
    await world.produce(*values(0, 10))
    near, rack = world.near, world.near.config.rack or ""
    (other,) = set(world.cluster.brokers.values()) - {world.leader, near}

    def preferred(broker: Broker, version: int, rack: str) -> int:
        past_the_end = FetchPartition(0, fetch_offset=11, partition_max_bytes=1 << 20)
        by_name = FetchTopic(topic=TOPIC, partitions=[past_the_end])
        by_id = FetchTopic(world.led.topic_id, partitions=[past_the_end])
        request = FetchRequest(
            max_wait_ms=2_000,
            min_bytes=1,
            topics=[by_name if version < 13 else by_id],
            rack_id=rack,
        )
        with WireClient(f"127.0.0.1:{broker.port}") as client:
            response: Any = client.send_request(apis.FETCH, request, object, version=version)
        (result,) = response.responses[0].partitions
        assert result.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        return int(result.preferred_read_replica)

    for version in range(10, 18):
        found = [
            await asyncio.to_thread(preferred, broker, version, requested)
            for broker, requested in ((near, rack), (near, ""), (near, "x"), (other, rack))
        ]
        assert found == [world.leader.node_id if version >= 11 else -1, -1, -1, -1]


async def test_consumer_that_mistakes_a_follower_for_the_leader_returns_to_the_leader(
    world: World,
) -> None:
    """librdkafka makes this mistake if it refreshes its metadata during a redirect, which is almost
    certain with many partitions, a refresh interval of 10 ms, and threads slowed down by debug
    logs. In that state, NOT_LEADER_OR_FOLLOWER alone has no effect.
    """
    count, bootstrap, near = 150, world.cluster.bootstrap, world.near
    await asyncio.to_thread(create_topic, bootstrap, "many", count)
    logger = logging.getLogger("rdkafka")
    logger.setLevel(logging.CRITICAL)
    consumer = confluent_consumer(
        bootstrap,
        "g",
        client_rack=near.config.rack,
        topic_metadata_refresh_interval_ms=10,
        debug="topic,fetch",
        logger=logger,
    )
    consumer.assign([TopicPartition("many", at, 0) for at in range(count)])
    for first in (0, count):
        sent = values(first, count)
        await asyncio.to_thread(produce, bootstrap, "many", sent, range(count))
        assert sorted(await read(consumer, count)) == sorted(sent)
        world.stores[near.node_id].config = UNREADABLE["denied"]
    assert near.partitions.committed_reads.records
    await asyncio.to_thread(consumer.close)


async def test_fetch_does_not_wait_for_a_slow_wal_slot(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client may have allowed it to wait for minutes."""
    monkeypatch.setattr(links, "SLOT_READ_MAX_S", 0.3)
    await world.produce(*values(0, 10))
    rack, epoch = world.near.config.rack or "", world.led.leader_epoch
    await world.until_reported(10)
    world.stores[world.near.node_id].config = UNREADABLE["slow"]
    waiting = asyncio.create_task(fetch(world, 10, epoch, rack, max_wait_ms=300_000))
    await world.produce(*values(10, 10))
    async with asyncio.timeout(TIMEOUT_S):
        code, _, has_records = await waiting
    assert (code, has_records) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, False)


async def test_consumer_continues_after_the_partition_moves(world: World) -> None:
    consumer = world.consumer()
    await world.produce(*values(0, 10))
    assert await read(consumer, 10) == values(0, 10)
    before = world.leader.node_id
    await world.cluster.stop_broker(before)
    await world.cluster.until_served(TOPIC)
    await world.produce(*values(10, 10))
    assert await read(consumer, 10) == values(10, 10)
    await asyncio.to_thread(consumer.close)


@pytest.mark.parametrize("who", ["leader", "near"])
async def test_consumer_misses_no_record_when_a_broker_is_killed(world: World, who: str) -> None:
    """If no fetch is in flight when the broker in the rack dies, librdkafka returns to the leader
    only when that broker is no longer listed.
    """
    consumer = world.consumer()
    await world.produce(*values(0, 10))
    assert await read(consumer, 10) == values(0, 10)
    await world.cluster.kill_broker(getattr(world, who).node_id)
    await world.cluster.until_served(TOPIC)
    await world.produce(*values(10, 10))
    assert await read(consumer, 10, LISTED_S + TIMEOUT_S) == values(10, 10)
    await asyncio.to_thread(consumer.close)


UNREADABLE = {
    "denied": FaultConfig(rules=(FaultRule(Fault.DENIED, 1.0, SLOTS),)),
    "damaged": FaultConfig(rules=(FaultRule(Fault.TRUNCATED, 1.0, SLOTS),)),
    "slow": FaultConfig(latencies=(Latency(1, 1, SLOTS),)),
}


@pytest.mark.parametrize("backoff_s", [0.05, 2.0])
@pytest.mark.parametrize("fault", UNREADABLE)
async def test_leader_serves_records_that_the_broker_in_the_rack_cannot_read(
    world: World, fault: str, backoff_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader has the records in memory. Once the broker in the rack has read the slots, it
    serves consumers again.
    """
    monkeypatch.setattr(links, "BACKOFF_S", backoff_s)
    consumer, store = world.consumer(), world.stores[world.near.node_id]
    for first in (0, 30):  # the slots become unreadable twice
        await world.produce(*values(first, 10))
        assert await read(consumer, 10) == values(first, 10)
        before = world.led.records_out
        with monkeypatch.context() as patch:
            patch.setattr(links, "SLOT_READ_MAX_S", 0.3)
            store.config = UNREADABLE[fault]
            await world.produce(*values(first + 10, 10))
            assert await read(consumer, 10) == values(first + 10, 10)
        assert world.led.records_out == before + 10
        store.config = FaultConfig()
        await world.until_followed()
        with monkeypatch.context() as patch:
            patch.setattr(redirects, "REDIRECT_INTERVAL_S", 0.0)
            await world.produce(*values(first + 20, 10))
            assert await read(consumer, 10) == values(first + 20, 10)
        assert world.led.records_out == before + 10, "the rack serves the consumer again"
    await asyncio.to_thread(consumer.close)


@pytest.mark.parametrize("fault", ["denied", "slow"])
async def test_new_leader_serves_consumers_while_the_broker_in_the_rack_cannot_read(
    world: World, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new leader also serves them until the broker in the rack has read the slots."""
    monkeypatch.setattr(links, "SLOT_READ_MAX_S", 0.3)
    consumer, near, before = world.consumer(), world.near.node_id, world.leader.node_id
    await world.produce(*values(0, 10))
    assert await read(consumer, 10) == values(0, 10)
    world.stores[near].config = UNREADABLE[fault]
    await world.produce(*values(10, 10))
    assert await read(consumer, 10) == values(10, 10)
    (after,) = set(range(len(RACKS))) - {near, before}
    target = PartitionTarget(topic=TOPIC, partition=0, replicas=[NodeId(after)])
    await world.leader.client.alter_reassignments(AlterReassignments(partitions=[target]))
    await until(lambda: world.cluster.leader_of(TOPIC) == after)
    await world.cluster.until_served(TOPIC)
    for first in (20, 30):
        await world.produce(*values(first, 10))
        assert await read(consumer, 10) == values(first, 10)
    leader = world.cluster.brokers[after]
    assert world.led.records_out >= 10
    world.stores[near].config = FaultConfig()
    await until(lambda: leader.tail_followers.has(near))
    await asyncio.to_thread(consumer.close)


async def test_restarted_broker_in_the_rack_that_still_cannot_read_gets_no_consumers(
    world: World,
) -> None:
    consumer, near = world.consumer(), world.near
    await world.produce(*values(0, 10))
    assert await read(consumer, 10) == values(0, 10)
    store = world.stores[near.node_id]
    store.config = UNREADABLE["denied"]
    await world.cluster.stop_broker(near.node_id)
    await world.produce(*values(10, 10))
    assert await read(consumer, 10, LISTED_S + TIMEOUT_S) == values(10, 10)
    await world.cluster.start_broker(near.node_id, rack=near.config.rack)
    tries = store.injected[Fault.DENIED]
    await world.produce(*values(20, 10))
    assert await read(consumer, 10) == values(20, 10)
    late = world.consumer()
    assert await read(late, 30) == values(0, 30), "a new consumer is served, too"
    await until(lambda: store.injected[Fault.DENIED] > tries)
    await until(lambda: not world.leader.tail_followers.has(near.node_id))
    store.config = FaultConfig()
    await world.until_followed()
    await world.produce(*values(30, 10))
    assert await read(consumer, 10) == values(30, 10)
    for each in (consumer, late):
        await asyncio.to_thread(each.close)


async def test_broker_that_cannot_read_slots_gets_no_consumers(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The retry backoff is short."""
    monkeypatch.setattr(links, "BACKOFF_S", 0.05)
    leader, near = world.leader, world.near
    store = world.stores[near.node_id]
    consumer = world.consumer()
    await world.produce(*values(0, 10))
    assert await read(consumer, 10) == values(0, 10)
    store.config = UNREADABLE["denied"]
    await world.produce(*values(10, 10))
    assert await read(consumer, 10) == values(10, 10)
    await until(lambda: not leader.tail_followers.has(near.node_id))
    tries = store.injected[Fault.DENIED]
    await until(lambda: store.injected[Fault.DENIED] >= tries + 3)
    assert not leader.tail_followers.has(near.node_id)
    await world.leader.storage.upload()  # then the slots are not needed anymore
    await world.until_followed()
    await asyncio.to_thread(consumer.close)


@pytest.mark.parametrize("fault", [Fault.DENIED, Fault.TRUNCATED])
async def test_leader_serves_objects_that_the_broker_in_the_rack_cannot_read(
    world: World, fault: Fault
) -> None:
    await world.produce(*values(0, 10))
    await world.leader.storage.upload()
    everything = Selection(frozenset({"get", "get_range", "get_tail"}))
    world.stores[world.near.node_id].config = FaultConfig(
        rules=(FaultRule(fault, 1.0, everything),)
    )
    consumer = world.consumer()
    assert await read(consumer, 10) == values(0, 10)
    assert world.led.records_out == 10
    await asyncio.to_thread(consumer.close)


async def test_leader_redirects_each_consumer_once(world: World) -> None:
    """Once per connection and partition within a minute, in all Fetch versions with a
    rack field.
    """
    bootstrap, leader = world.cluster.bootstrap, world.leader.node_id
    await asyncio.to_thread(create_topic, bootstrap, "many", 6)
    await asyncio.to_thread(produce, bootstrap, "many", values(0, 24), range(6))
    topic = world.leader.image.topics.by_name("many")
    assert topic is not None
    first, second = [at for at in range(6) if world.cluster.leader_of("many", at) == leader][:2]
    rack = world.near.config.rack or ""

    def fetch(client: WireClient, version: int, at: int, session: tuple[int, int]) -> Any:
        requested = FetchPartition(at, fetch_offset=0, partition_max_bytes=1 << 20)
        by_name = FetchTopic(topic="many", partitions=[requested])
        by_id = FetchTopic(topic.topic_id, partitions=[requested])
        request = FetchRequest(
            max_wait_ms=100,
            min_bytes=1,
            session_id=session[0],
            session_epoch=session[1],
            topics=[by_name if version < 13 else by_id],
            rack_id=rack,
        )
        return client.send_request(apis.FETCH, request, object, version=version)

    def fetch_twice(version: int, epoch: int) -> None:
        with WireClient(f"127.0.0.1:{world.leader.port}") as client:
            for at in (first, second):
                sent = fetch(client, version, at, (0, epoch))
                (result,) = sent.responses[0].partitions
                assert (result.preferred_read_replica, result.records) == (world.near.node_id, b"")
                session = (sent.session_id, 1) if epoch == 0 else (0, epoch)
                for _ in range(2):
                    response = fetch(client, version, at, session)
                    (result,) = response.responses[0].partitions
                    assert result.preferred_read_replica == -1
                    assert result.records
                    session = (session[0], session[1] + 1) if epoch == 0 else session

    for version in range(11, 18):
        for epoch in (-1, 0):
            await asyncio.to_thread(fetch_twice, version, epoch)
