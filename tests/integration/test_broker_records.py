"""Records that kafka-python produces with each value of acks."""

import asyncio

import pytest
from kafka import KafkaConsumer, KafkaProducer

from tests.support.cluster import Cluster
from tests.support.waiting import PATIENCE_S

TIMEOUT_S = PATIENCE_S

pytestmark = pytest.mark.cluster(brokers=2)


def values(first: int, count: int) -> list[bytes]:
    return [b"value-%d" % index for index in range(first, first + count)]


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
