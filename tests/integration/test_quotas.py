"""Quotas with unmodified clients: throttled clients get a throttle time, wait and complete all
requests, while others are not slowed down.

The quota window of these brokers is short: a client may use one second of its quota at once.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, Producer, ThrottleEvent

from penstock.broker.errors import ErrorCode
from penstock.broker.node import Broker
from penstock.protocol import apis
from penstock.protocol.gen import alter_client_quotas as altering
from penstock.protocol.gen import create_partitions, create_topics, delete_topics, metadata
from penstock.protocol.gen import describe_client_quotas as describing
from tests.support.clients import produce
from tests.support.cluster import Cluster
from tests.support.conversation import send_request
from tests.support.waiting import PATIENCE_S, until

BYTES_PER_S = 1_000_000
RECORD = bytes(100_000)

pytestmark = pytest.mark.cluster(quota_window_num=2, topics={"t": 1})


async def set_quota(
    cluster: Cluster, entity: dict[str, str | None], key: str, value: float
) -> None:
    """Set a quota and wait until all brokers apply it."""
    entry = altering.EntryData(
        [altering.EntityData(kind, name) for kind, name in entity.items()],
        [altering.OpData(key, value)],
    )
    response = await asyncio.to_thread(
        send_request,
        cluster.bootstrap.partition(",")[0],
        apis.ALTER_CLIENT_QUOTAS,
        altering.AlterClientQuotasRequest([entry]),
    )
    assert [item["error_code"] for item in response["entries"]] == [0]
    await until(lambda: all(has_quota(broker, key, value) for broker in cluster.brokers.values()))


def has_quota(broker: Broker, key: str, value: float) -> bool:
    return any(values.get(key) == value for _, values in broker.image.quotas.items())


class Sender:
    """A librdkafka producer that records throttle times."""

    def __init__(self, bootstrap: str, client_id: str) -> None:
        self.waits_s: list[float] = []
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": client_id,
                "batch.num.messages": 1,
                "max.in.flight": 1,
                "throttle_cb": self._note,
            }
        )

    def _note(self, event: ThrottleEvent) -> None:
        self.waits_s.append(event.throttle_time)

    def send(self, count: int) -> float:
        """Return the seconds until all records are acknowledged."""
        began = time.monotonic()
        failed: list[Any] = []
        for _ in range(count):
            self._producer.produce(
                "t", RECORD, on_delivery=lambda error, _: error and failed.append(error)
            )
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_S) == 0
        assert not failed
        return time.monotonic() - began


async def test_producer_is_throttled_to_its_quota(cluster: Cluster) -> None:
    """Of 4 MB, 1 MB is sent at once and the rest at 1 MB/s. The other client is not throttled, and
    no connection is closed.
    """
    await set_quota(cluster, {"client-id": "slow"}, "producer_byte_rate", BYTES_PER_S)
    slow, fast = Sender(cluster.bootstrap, "slow"), Sender(cluster.bootstrap, "fast")
    slow_s, _ = await asyncio.gather(
        asyncio.to_thread(slow.send, 40), asyncio.to_thread(fast.send, 200)
    )
    assert slow_s > 1.5
    assert max(slow.waits_s) > 0
    assert not any(fast.waits_s)
    assert cluster.broker.quotas.throttles["producer_byte_rate"].count > 0
    assert cluster.broker.server.closed_count == 0


async def test_client_that_ignores_the_throttle_time_is_muted(cluster: Cluster) -> None:
    """aiokafka ignores the throttle time, so the broker stops reading from its connection."""
    await set_quota(cluster, {"user": None}, "producer_byte_rate", BYTES_PER_S)
    producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap, client_id="hasty")
    await producer.start()
    began = time.monotonic()
    for _ in range(40):
        await producer.send_and_wait("t", RECORD)
    assert time.monotonic() - began > 1.5
    await producer.stop()
    assert cluster.broker.server.closed_count == 0


async def test_consumer_is_throttled_to_its_quota(cluster: Cluster) -> None:
    await asyncio.to_thread(produce, cluster.bootstrap, "t", [RECORD] * 40)
    await set_quota(cluster, {"client-id": "slow"}, "consumer_byte_rate", BYTES_PER_S)
    waits_s: list[float] = []

    def consume() -> float:
        consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "group.id": "g",
                "client.id": "slow",
                "auto.offset.reset": "earliest",
                "throttle_cb": lambda event: waits_s.append(event.throttle_time),
            }
        )
        began = time.monotonic()
        consumer.subscribe(["t"])
        count = 0
        while count < 40:
            message = consumer.poll(1)
            assert time.monotonic() - began < PATIENCE_S
            if message is not None and message.error() is None:
                assert message.value() == RECORD
                count += 1
        consumer.close()
        return time.monotonic() - began

    assert await asyncio.to_thread(consume) > 1.5
    assert max(waits_s) > 0
    assert cluster.broker.quotas.throttles["consumer_byte_rate"].count > 0


async def test_request_percentage_quota_throttles_requests(cluster: Cluster) -> None:
    await set_quota(cluster, {"user": "ANONYMOUS"}, "request_percentage", 0.001)
    request = metadata.MetadataRequest(None)
    waits_ms: list[int] = []

    async def is_throttled() -> bool:
        response = await asyncio.to_thread(send_request, cluster.bootstrap, apis.METADATA, request)
        waits_ms.append(response["throttle_time_ms"])
        return waits_ms[-1] > 0

    await until(is_throttled)
    assert waits_ms[-1] <= 1_000
    assert cluster.broker.quotas.throttles["request_percentage"].count > 0


async def test_quotas_persist_across_restarts(tmp_path: Path) -> None:
    async with Cluster(tmp_path, quota_window_num=2) as cluster:
        await set_quota(cluster, {"user": "a", "client-id": None}, "request_percentage", 12.5)
        await set_quota(cluster, {"ip": "10.0.0.1"}, "connection_creation_rate", 7)
        await cluster.stop_controller()
        await cluster.start_controller()
        await cluster.kill_broker(0)
        await cluster.start_broker(0)
        response = await asyncio.to_thread(
            send_request,
            cluster.bootstrap,
            apis.DESCRIBE_CLIENT_QUOTAS,
            describing.DescribeClientQuotasRequest(),
        )
        found = {
            tuple((part["entity_type"], part["entity_name"]) for part in entry["entity"]): [
                (value["key"], value["value"]) for value in entry["values"]
            ]
            for entry in response["entries"]
        }
        assert found == {
            (("client-id", None), ("user", "a")): [("request_percentage", 12.5)],
            (("ip", "10.0.0.1"),): [("connection_creation_rate", 7)],
        }
        assert cluster.broker.quotas.is_active


async def test_brokers_share_the_controller_mutation_quota(tmp_path: Path) -> None:
    """The quota is 0.01 mutations per second, and one change creates two partitions, so the next
    change has to wait for minutes at any broker. Automatic topic creation counts too, and is
    refused without a wait.
    """
    async with Cluster(tmp_path, brokers=2, num_partitions=2) as cluster:
        first, second = (f"127.0.0.1:{broker.port}" for broker in cluster.brokers.values())
        await set_quota(cluster, {"user": None}, "controller_mutation_rate", 0.01)
        assert await created_on_demand(first, "a") == [ErrorCode.NONE]
        assert await created_on_demand(second, "b") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
        topic = create_topics.CreatableTopic("b", 1, 1, [], [])
        more = create_partitions.CreatePartitionsTopic("a", 3, None)
        gone = delete_topics.DeleteTopicState("a", None)
        for api, request, items in (
            (apis.CREATE_TOPICS, create_topics.CreateTopicsRequest([topic]), "topics"),
            (
                apis.CREATE_PARTITIONS,
                create_partitions.CreatePartitionsRequest([more], 10_000),
                "results",
            ),
            (
                apis.DELETE_TOPICS,
                delete_topics.DeleteTopicsRequest([gone], timeout_ms=10_000),
                "responses",
            ),
        ):
            response = await asyncio.to_thread(send_request, second, api, request)
            codes = [item["error_code"] for item in response[items]]
            assert codes == [ErrorCode.THROTTLING_QUOTA_EXCEEDED], api.name
            assert response["throttle_time_ms"] > 60_000
        topics = cluster.broker.image.topics
        assert [(topic.name, len(topic.partitions)) for topic in topics] == [("a", 2)]


async def created_on_demand(address: str, name: str) -> list[int]:
    request = metadata.MetadataRequest([metadata.MetadataRequestTopic(None, name)], True)
    response = await asyncio.to_thread(send_request, address, apis.METADATA, request)
    assert response["throttle_time_ms"] == 0
    return [topic["error_code"] for topic in response["topics"]]
