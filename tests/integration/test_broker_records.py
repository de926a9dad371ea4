"""Records in an in-process cluster: three client libraries consume what each of them produces."""

import asyncio
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicPartition
from kafka import KafkaConsumer, KafkaProducer

from tests.support.cluster import Cluster
from tests.support.waiting import PATIENCE_S

TIMEOUT_S = PATIENCE_S

pytestmark = pytest.mark.cluster(brokers=2)


def values(first: int, count: int) -> list[bytes]:
    return [b"value-%d" % index for index in range(first, first + count)]


def produce_with_confluent(
    bootstrap: str, topic: str, records: list[bytes], **settings: object
) -> None:
    failed: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5} | settings)
    for value in records:
        producer.produce(
            topic, value, partition=0, on_delivery=lambda error, _: error and failed.append(error)
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert failed == []


def consume_with_confluent(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while len(found) < count:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None, f"{len(found)} of {count} came"
        assert message.error() is None, message.error()
        assert message.offset() == len(found)
        found.append(message.value() or b"")
    consumer.close()
    return found


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
async def test_confluent_kafka_round_trip(cluster: Cluster, codec: str) -> None:
    records = values(0, 500)
    await asyncio.to_thread(
        produce_with_confluent, cluster.bootstrap, "t", records, **{"compression.type": codec}
    )
    assert await asyncio.to_thread(consume_with_confluent, cluster.bootstrap, "t", 500) == records


async def test_idempotent_producer_round_trip(cluster: Cluster) -> None:
    records = values(0, 300)
    await asyncio.to_thread(
        produce_with_confluent, cluster.bootstrap, "t", records, **{"enable.idempotence": True}
    )
    assert await asyncio.to_thread(consume_with_confluent, cluster.bootstrap, "t", 300) == records


@pytest.mark.parametrize("acks", [0, 1, "all"])
async def test_kafka_python_round_trip(cluster: Cluster, acks: int | str) -> None:
    def run() -> list[bytes]:
        producer = KafkaProducer(
            bootstrap_servers=cluster.bootstrap.split(","), acks=acks, enable_idempotence=False
        )
        for value in values(0, 100):
            producer.send("t", value, partition=0)
        producer.flush(TIMEOUT_S)
        producer.close()
        consumer = KafkaConsumer(
            "t",
            bootstrap_servers=cluster.bootstrap.split(","),
            auto_offset_reset="earliest",
            consumer_timeout_ms=TIMEOUT_S * 1_000,
        )
        found: list[bytes] = []
        for message in consumer:
            found.append(message.value)
            if len(found) == 100:
                break
        consumer.close()
        return found

    assert await asyncio.to_thread(run) == values(0, 100)


async def test_aiokafka_round_trip_in_a_group(cluster: Cluster) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=cluster.bootstrap, enable_idempotence=True
    ) as producer:
        for value in values(0, 100):
            await producer.send_and_wait("t", value, partition=0)
    group = f"group-{uuid4()}"
    settings = {
        "bootstrap_servers": cluster.bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    async with AIOKafkaConsumer("t", **settings) as consumer:
        async with asyncio.timeout(TIMEOUT_S):
            found = [(await consumer.getone()).value for _ in range(60)]
        assert found == values(0, 60)
        await consumer.commit()
    async with AIOKafkaConsumer("t", **settings) as consumer, asyncio.timeout(TIMEOUT_S):
        assert [(await consumer.getone()).value for _ in range(40)] == values(60, 40)
