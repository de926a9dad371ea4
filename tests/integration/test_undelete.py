"""Deleted topics can be restored with all acknowledged records until their grace period ends."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.controller.api.messages import CreateTopics, DeleteTopics, NewTopic
from penstock.controller.metadata.frozen_topics import FrozenTopic
from penstock.controller.metadata.topic_configs import UNDELETE
from tests.support.clients import TIMEOUT_S, confluent_consumer, create_topic, produce, read_records
from tests.support.cluster import Cluster, deleting_cluster
from tests.support.in_thread import in_thread
from tests.support.waiting import until, wait_until

TOPIC = "orders"
PARTITIONS = 2
COUNT = 200


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Start a cluster that keeps deleted topics for an hour."""
    async with deleting_cluster(
        tmp_path,
        delete_grace_ms=3_600_000,
        group_min_session_timeout_ms=1_000,
        auto_create_topics_enable=False,
    ) as cluster:
        yield cluster


class Writer:
    """An idempotent producer that writes numbers to one partition until it is stopped or its topic
    is deleted. `acknowledged` contains the acknowledged numbers.
    """

    def __init__(self, bootstrap: str, partition: int) -> None:
        settings = {"enable.idempotence": True, "message.timeout.ms": 15_000, "linger.ms": 1}
        self._producer = Producer({"bootstrap.servers": bootstrap} | settings)
        self._partition = partition
        self.acknowledged: list[bytes] = []
        self.failed = 0
        self._next = 0

    def _delivered(self, error: object, message: Message) -> None:
        value = message.value()
        if error is None and value is not None:
            self.acknowledged.append(value)
        else:
            self.failed += 1

    def write(self, count: int) -> None:
        """Write `count` records and wait for their responses."""
        for _ in range(count):
            self._producer.produce(
                TOPIC,
                b"%d" % self._next,
                partition=self._partition,
                on_delivery=self._delivered,
            )
            self._next += 1
            self._producer.poll(0)
        assert self._producer.flush(TIMEOUT_S) == 0

    def write_until_it_fails(self) -> None:
        while not self.failed:
            self.write(5)


def delete(bootstrap: str, name: str = TOPIC) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([name])[name].result(TIMEOUT_S)


def undelete(bootstrap: str, requested: str = TOPIC, name: str = TOPIC) -> None:
    create_topic(bootstrap, name, -1, penstock_undelete=requested)


def read(bootstrap: str, count: int, topic: str = TOPIC, partition: int = 0) -> list[bytes | None]:
    """Read exactly `count` values, which must reach the end of the partition."""
    consumer = confluent_consumer(bootstrap, "r")
    part = TopicPartition(topic, partition, 0)
    consumer.assign([part])
    found = read_records(consumer, count)
    assert (
        consumer.get_watermark_offsets(part, TIMEOUT_S)[1] == found[-1].offset() + 1 if found else 0
    )
    consumer.close()
    return [message.value() for message in found]


async def deleted(cluster: Cluster) -> FrozenTopic:
    """Return the deleted topic once every broker lists it."""

    def known() -> bool:
        return all(len(broker.image.frozen_topics) for broker in cluster.brokers.values())

    await until(known)
    (found,) = cluster.broker.image.frozen_topics.deleted()
    return found


async def test_undeleted_topic_has_all_acknowledged_records_and_clients_continue(
    cluster: Cluster,
) -> None:
    bootstrap = cluster.bootstrap

    def run() -> None:
        create_topic(bootstrap, TOPIC, PARTITIONS, retention_ms="777777777")
        consumer = confluent_consumer(bootstrap, "g", enable_auto_commit=False)
        consumer.subscribe([TOPIC])
        writers = [Writer(bootstrap, partition) for partition in range(PARTITIONS)]
        for writer in writers:
            writer.write(COUNT)
        read_records(consumer, COUNT)
        consumer.commit(asynchronous=False)
        positions = [
            max(0, part.offset)
            for part in consumer.committed(
                [TopicPartition(TOPIC, number) for number in range(PARTITIONS)], TIMEOUT_S
            )
        ]
        consumer.close()
        threads = [
            threading.Thread(target=writer.write_until_it_fails, daemon=True) for writer in writers
        ]
        for thread in threads:
            thread.start()
        wait_until(lambda: all(len(writer.acknowledged) > COUNT + 20 for writer in writers))
        delete(bootstrap)
        for thread in threads:
            thread.join()
        before = [list(writer.acknowledged) for writer in writers]
        undelete(bootstrap)
        for partition, writer in enumerate(writers):
            # Records sent while the topic was deleted are absent: they were not acknowledged.
            assert read(bootstrap, len(before[partition]), partition=partition) == before[partition]
            writer.failed = 0
            writer.write(10)
            assert (writer.failed, len(writer.acknowledged)) == (0, len(before[partition]) + 10)
        consumer = confluent_consumer(bootstrap, "g")
        consumer.subscribe([TOPIC])
        rest = sum(len(writer.acknowledged) for writer in writers) - sum(positions)
        messages = read_records(consumer, rest)
        for partition, writer in enumerate(writers):
            values = [item.value() for item in messages if item.partition() == partition]
            assert values == writer.acknowledged[positions[partition] :]
        consumer.close()

    await asyncio.to_thread(run)
    assert cluster.broker.image.configs.topic(TOPIC) == {"retention.ms": "777777777"}


@pytest.mark.parametrize("undeleted_first", [True, False])
async def test_topic_is_restored_although_its_leader_died_before_closing_it(
    cluster: Cluster, undeleted_first: bool
) -> None:
    bootstrap = cluster.bootstrap
    await asyncio.to_thread(create_topic, bootstrap, TOPIC, 1)
    values = [b"%d" % number for number in range(COUNT)]
    await asyncio.to_thread(produce, bootstrap, TOPIC, values)
    await cluster.until_served(TOPIC)
    leader = cluster.leader_of(TOPIC)
    # The leader dies before it sees the deletion, so only its WAL contains the records.
    await cluster.kill_broker(leader)
    bootstrap = cluster.bootstrap
    # An admin client might wait for the dead broker, so send its requests from the other broker.
    client, topic = cluster.broker.client, cluster.broker.image.topics.by_name(TOPIC)
    assert topic is not None
    await client.delete_topics(DeleteTopics(topic_ids=[topic.topic_id]), timeout_s=TIMEOUT_S)
    frozen = await deleted(cluster)
    if not undeleted_first:
        streams = cluster.broker.image.streams
        await until(
            lambda: (
                not any(
                    streams.known(stream_id).opened for stream_id in frozen.partitions[0].stream_ids
                )
            )
        )
    returning = NewTopic(name=TOPIC, configs={UNDELETE: TOPIC})
    response = await client.create_topics(CreateTopics(topics=[returning]), timeout_s=TIMEOUT_S)
    assert response.topics[0].topic_id == topic.topic_id
    await cluster.until_served(TOPIC)
    assert await asyncio.to_thread(read, bootstrap, COUNT) == values
    await asyncio.to_thread(produce, bootstrap, TOPIC, [b"more"])
    assert await asyncio.to_thread(read, bootstrap, COUNT + 1) == [*values, b"more"]
    assert cluster.leader_of(TOPIC) != leader


@in_thread
def test_topic_is_restored_under_another_name_if_its_name_is_taken(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap
    create_topic(bootstrap, TOPIC)
    produce(bootstrap, TOPIC, [b"first"])
    delete(bootstrap)
    create_topic(bootstrap, TOPIC)
    produce(bootstrap, TOPIC, [b"second"])
    with pytest.raises(KafkaException, match="undelete 'orders' under another name"):
        undelete(bootstrap)
    undelete(bootstrap, name="orders-first")
    assert read(bootstrap, 1, "orders-first") == [b"first"]
    assert read(bootstrap, 1) == [b"second"]
    with pytest.raises(KafkaException, match="no deleted topic has the name or id 'orders'"):
        undelete(bootstrap, name="other")


async def test_topic_is_restored_after_a_controller_failover(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap
    await asyncio.to_thread(create_topic, bootstrap, TOPIC)
    await asyncio.to_thread(produce, bootstrap, TOPIC, [b"kept"])
    await asyncio.to_thread(delete, bootstrap)
    await cluster.stop_controller()
    await cluster.start_controller()
    await asyncio.to_thread(undelete, bootstrap)
    assert await asyncio.to_thread(read, bootstrap, 1) == [b"kept"]


@pytest.mark.parametrize("way", ["grace", "purge"])
async def test_objects_are_deleted_after_the_grace_period_or_a_permanent_deletion(
    cluster: Cluster, way: str
) -> None:
    bootstrap = cluster.bootstrap
    own = {"penstock_delete_grace_ms": "3000" if way == "grace" else "-1"}

    def create() -> None:
        create_topic(bootstrap, TOPIC, 1, **own)
        produce(bootstrap, TOPIC, [b"x" * 1_000] * COUNT)
        delete(bootstrap)

    await asyncio.to_thread(create)
    frozen = await deleted(cluster)
    image = cluster.broker.image
    stream_id = frozen.partitions[0].data_stream_id
    await until(lambda: not image.streams.known(stream_id).opened)
    assert sum(state.refs for state in image.objects)
    if way == "purge":
        await asyncio.to_thread(delete, bootstrap, f"{TOPIC}@{frozen.topic_id}")
    await until(lambda: image.streams.get(stream_id) is None)
    await until(lambda: not any(state.refs for state in image.objects))
    await cluster.until_janitor_done()
    with pytest.raises(KafkaException, match="no deleted topic"):
        await asyncio.to_thread(undelete, bootstrap)
