"""Transactions with unmodified clients: atomicity over topics and offsets, fencing of zombies,
invisible aborted records, and timeouts.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from aiokafka.errors import ProducerFenced
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.support.clients import (
    PATIENT_TRANSACTION,
    TIMEOUT_S,
    confluent_consumer,
    create_topic,
    produce,
    read_records,
)
from tests.support.cluster import Cluster
from tests.support.in_thread import in_thread
from tests.support.waiting import wait_until

RECORDS_COUNT = 60


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    settings: dict[str, Any] = {
        "transaction_abort_timed_out_transaction_cleanup_interval_ms": 50,
        "group_min_session_timeout_ms": 1_000,
    }
    async with Cluster(tmp_path, brokers=2, **settings) as cluster:
        yield cluster
        # Free producers that are still referenced by tracebacks now, while their brokers live.
        gc.collect()


def transactional(bootstrap: str, transactional_id: str, **settings: Any) -> Producer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
        | PATIENT_TRANSACTION
        | named
    )
    producer.init_transactions(TIMEOUT_S)
    return producer


def committed_values(
    bootstrap: str, topic: str, count: int, partitions: int = 1
) -> list[bytes | None]:
    """Return the values that a read_committed consumer gets up to the last stable offset; check
    that there are `count`.
    """
    consumer = confluent_consumer(
        bootstrap, "reader", isolation_level="read_committed", enable_auto_commit=False
    )
    try:
        assigned = [TopicPartition(topic, index, 0) for index in range(partitions)]
        consumer.assign(assigned)
        values = [message.value() for message in read_records(consumer, count)] if count else []
        return values
    finally:
        consumer.close()


def transform(bootstrap: str, input_topic: str, outputs: tuple[str, str]) -> int:
    """Consume, transform and produce in transactions. Every third one is aborted and repeated.
    Return the aborted values.
    """
    consumer = confluent_consumer(
        bootstrap, "g", enable_auto_commit=False, isolation_level="read_committed"
    )
    consumer.subscribe([input_topic])
    producer = transactional(bootstrap, "transformer")
    done_count = aborted_count = attempts_count = 0
    while done_count < RECORDS_COUNT:
        messages = [message for message in consumer.consume(7, 0.5) if not message.error()]
        if not messages:
            continue
        attempts_count += 1
        is_abort = attempts_count % 3 == 0
        producer.begin_transaction()
        for message in messages:
            value = message.value()
            assert value is not None
            for output in outputs:
                producer.produce(output, value.upper(), partition=0)
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), TIMEOUT_S
        )
        if is_abort:
            producer.abort_transaction(TIMEOUT_S)
            aborted_count += 1
            _rewind(consumer, messages)
        else:
            producer.commit_transaction(TIMEOUT_S)
            done_count += len(messages)
    consumer.close()
    return aborted_count


def _rewind(consumer: Consumer, messages: list[Message]) -> None:
    first: dict[tuple[str, int], int] = {}
    for message in messages:
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        first.setdefault((topic, partition), offset)
    for (topic, partition), offset in first.items():
        consumer.seek(TopicPartition(topic, partition, offset))


@in_thread
def test_consume_transform_produce_is_exactly_once_over_topics_and_offsets(
    cluster: Cluster,
) -> None:
    bootstrap = cluster.bootstrap
    for topic, partitions in (("in", 2), ("out-a", 1), ("out-b", 1)):
        create_topic(bootstrap, topic, partitions)
    produce(
        bootstrap, "in", (b"v%d" % number for number in range(RECORDS_COUNT)), partitions=(0, 1)
    )
    assert transform(bootstrap, "in", ("out-a", "out-b")) > 0, "aborts are part of the test"
    expected = sorted(b"V%d" % number for number in range(RECORDS_COUNT))
    for output in ("out-a", "out-b"):
        assert (
            sorted(value or b"" for value in committed_values(bootstrap, output, RECORDS_COUNT))
            == expected
        )
    consumer = confluent_consumer(bootstrap, "g")
    offsets = consumer.committed([TopicPartition("in", 0), TopicPartition("in", 1)], TIMEOUT_S)
    consumer.close()
    assert [part.offset for part in offsets] == [RECORDS_COUNT // 2] * 2


@in_thread
def test_zombie_producer_is_fenced_and_its_open_transaction_aborted(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap
    create_topic(bootstrap, "t")
    zombie = transactional(bootstrap, "tid")
    zombie.begin_transaction()
    zombie.produce("t", b"zombie")
    assert zombie.flush(TIMEOUT_S) == 0
    successor = transactional(bootstrap, "tid")
    successor.begin_transaction()
    successor.produce("t", b"successor")
    successor.commit_transaction(TIMEOUT_S)
    with pytest.raises(KafkaException) as caught:
        zombie.commit_transaction(TIMEOUT_S)
    assert caught.value.args[0].fatal()
    zombie_again = transactional(bootstrap, "other")
    zombie_again.begin_transaction()
    zombie_again.produce("t", b"last")
    zombie_again.commit_transaction(TIMEOUT_S)
    assert committed_values(bootstrap, "t", 2) == [b"successor", b"last"]


@in_thread
def test_transaction_that_times_out_is_aborted_and_its_producer_fenced(
    cluster: Cluster,
) -> None:
    bootstrap = cluster.bootstrap
    create_topic(bootstrap, "t")
    slow = transactional(bootstrap, "slow", transaction_timeout_ms=1_000)
    slow.begin_transaction()
    slow.produce("t", b"late")
    assert slow.flush(TIMEOUT_S) == 0
    produce(bootstrap, "t", [b"plain"])
    assert committed_values(bootstrap, "t", 1) == [b"plain"], (
        "the last stable offset moves once the coordinator has aborted"
    )
    with pytest.raises(KafkaException):
        slow.commit_transaction(TIMEOUT_S)


@in_thread
def test_offsets_of_an_open_transaction_are_unstable_until_it_ends(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap
    create_topic(bootstrap, "t")
    produce(bootstrap, "t", [b"1", b"2", b"3"])
    owner = confluent_consumer(bootstrap, "g", enable_auto_commit=False)
    owner.subscribe(["t"])
    read_records(owner, 2)
    producer = transactional(bootstrap, "tid")
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [TopicPartition("t", 0, 2)], owner.consumer_group_metadata(), TIMEOUT_S
    )
    watcher = confluent_consumer(bootstrap, "g", isolation_level="read_committed")
    with pytest.raises(KafkaException):  # require_stable: retried until the client times out
        watcher.committed([TopicPartition("t", 0)], 0.5)
    producer.abort_transaction(TIMEOUT_S)
    assert wait_until(lambda: watcher.committed([TopicPartition("t", 0)], TIMEOUT_S)[0].offset < 0)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [TopicPartition("t", 0, 2)], owner.consumer_group_metadata(), TIMEOUT_S
    )
    producer.commit_transaction(TIMEOUT_S)
    assert wait_until(lambda: watcher.committed([TopicPartition("t", 0)], TIMEOUT_S)[0].offset == 2)
    owner.close()
    watcher.close()


async def test_aiokafka_commits_aborts_and_is_fenced(cluster: Cluster) -> None:
    await asyncio.to_thread(create_topic, cluster.bootstrap, "t", 2)
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap, transactional_id="aio"
    ) as producer:
        async with producer.transaction():
            await producer.send_and_wait("t", b"one", partition=0)
            await producer.send_and_wait("t", b"two", partition=1)
            await producer.send_offsets_to_transaction({AioTopicPartition("t", 0): 1}, "aio-group")
        await producer.begin_transaction()
        await producer.send_and_wait("t", b"never", partition=0)
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait("t", b"three", partition=0)
        async with AIOKafkaProducer(
            bootstrap_servers=cluster.bootstrap, transactional_id="aio"
        ) as successor:
            async with successor.transaction():
                await successor.send_and_wait("t", b"four", partition=0)
            with pytest.raises(ProducerFenced):
                async with producer.transaction():
                    await producer.send_and_wait("t", b"zombie", partition=0)
    consumer = AIOKafkaConsumer(
        "t",
        bootstrap_servers=cluster.bootstrap,
        group_id="aio-group",
        isolation_level="read_committed",
        auto_offset_reset="earliest",
    )
    async with consumer:
        values: list[bytes | None] = []
        async with asyncio.timeout(TIMEOUT_S):
            while len(values) < 3:
                values.append((await consumer.getone()).value)
    assert sorted(value or b"" for value in values) == [b"four", b"three", b"two"], (
        "the group's offset is behind the first"
    )


@in_thread
def test_transactions_are_listed_and_described(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap
    create_topic(bootstrap, "t")
    producer = transactional(bootstrap, "tid")
    producer.begin_transaction()
    producer.produce("t", b"x")
    assert producer.flush(TIMEOUT_S) == 0
    listed = [
        found for broker in cluster.brokers.values() for found in broker.transactions.listed()
    ]
    assert [(found.transactional_id, found.state.label, found.partitions) for found in listed] == [
        ("tid", "Ongoing", frozenset({("t", 0)}))
    ]
    producer.commit_transaction(TIMEOUT_S)
    wait_until(
        lambda: (
            [
                f.state.label
                for broker in cluster.brokers.values()
                for f in broker.transactions.listed()
            ]
            == ["CompleteCommit"]
        )
    )
    assert (
        "__transaction_state"
        in AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=TIMEOUT_S).topics
    )
