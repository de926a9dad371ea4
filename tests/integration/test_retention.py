"""Records deleted by age, by size and on request, as seen by three client libraries, by store
readers and in the object store.
"""

import asyncio
import time

import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition as AioTopicPartition
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as PyTopicPartition

from penstock.stream.config import StreamConfig
from tests.support.clients import TIMEOUT_S, confluent_consumer, create_topic, read_records
from tests.support.cluster import Cluster
from tests.support.waiting import wait_until

TOPIC = "clicks"
COUNT = 30
DAY_MS = 86_400_000

# The cluster uploads within 50 ms, checks retention 10 times per second, and deletes objects within
# a second.
pytestmark = pytest.mark.cluster(
    brokers=2,
    stream_config=StreamConfig(wal_linger_ms=0, block_age_max_ms=50, wal_delete_grace_ms=500),
    controller_settings={
        "read_grace_ms": 500,
        "janitor_interval_ms": 200,
        "maintenance_interval_ms": 200,
    },
    log_retention_check_interval_ms=100,
    group_min_session_timeout_ms=500,
)


def fill(bootstrap: str, *, timestamp_ms: int, first: int = 0) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    for index in range(first, first + COUNT):
        producer.produce(TOPIC, b"%d" % index, partition=0, timestamp=timestamp_ms)
    assert producer.flush(TIMEOUT_S) == 0


def watermarks(bootstrap: str) -> tuple[int, int] | None:
    consumer = confluent_consumer(bootstrap, "w")
    try:
        return consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), TIMEOUT_S)
    finally:
        consumer.close()


async def test_expired_records_and_their_objects_are_deleted(cluster: Cluster) -> None:
    now_ms = time.time_ns() // 1_000_000

    def run() -> None:
        create_topic(cluster.bootstrap, TOPIC, 1)
        fill(cluster.bootstrap, timestamp_ms=now_ms - 8 * DAY_MS)
        wait_until(lambda: watermarks(cluster.bootstrap) == (COUNT, COUNT))
        fill(cluster.bootstrap, timestamp_ms=now_ms, first=COUNT)
        consumer = confluent_consumer(cluster.bootstrap, "g", auto_offset_reset="earliest")
        consumer.subscribe([TOPIC])
        first = read_records(consumer, 1)[0]
        assert (first.offset(), first.value()) == (COUNT, b"%d" % COUNT)
        consumer.close()

    await asyncio.to_thread(run)
    await cluster.until_janitor_done()
    image = cluster.broker.image
    topic = image.topics.by_name(TOPIC)
    assert topic is not None
    stream = image.streams.known(topic.partitions[0].data_stream_id)
    assert stream.start_offset == COUNT


async def test_delete_records_works_with_three_client_libraries(cluster: Cluster) -> None:
    def with_confluent() -> None:
        create_topic(cluster.bootstrap, TOPIC, 1)
        fill(cluster.bootstrap, timestamp_ms=time.time_ns() // 1_000_000)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        (future,) = admin.delete_records([TopicPartition(TOPIC, 0, 10)]).values()
        assert future.result(TIMEOUT_S).low_watermark == 10
        (future,) = admin.delete_records([TopicPartition(TOPIC, 0, COUNT + 1)]).values()
        with pytest.raises(KafkaException) as caught:
            future.result(TIMEOUT_S)
        assert caught.value.args[0].code() == KafkaError.OFFSET_OUT_OF_RANGE
        assert watermarks(cluster.bootstrap) == (10, COUNT)

    def with_kafka_python() -> None:
        part = PyTopicPartition(TOPIC, 0)
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
        assert admin.delete_records({part: 12})[part]["low_watermark"] == 12
        admin.close()
        consumer = KafkaConsumer(
            bootstrap_servers=cluster.bootstrap.split(","), auto_offset_reset="earliest"
        )
        consumer.assign([part])
        consumer.seek(part, 3)
        found = wait_until(lambda: consumer.poll(500))
        assert found[part][0].offset == 12
        consumer.close()

    await asyncio.to_thread(with_confluent)
    await asyncio.to_thread(with_kafka_python)
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    await admin.start()
    part = AioTopicPartition(TOPIC, 0)
    assert await admin.delete_records({part: RecordsToDelete(before_offset=-1)}) == {part: COUNT}
    await admin.close()
    assert await asyncio.to_thread(watermarks, cluster.bootstrap) == (COUNT, COUNT)


async def test_log_start_offset_survives_moves_and_crashes(cluster: Cluster) -> None:
    def run() -> None:
        create_topic(cluster.bootstrap, TOPIC, 1)
        fill(cluster.bootstrap, timestamp_ms=time.time_ns() // 1_000_000)
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        (future,) = admin.delete_records([TopicPartition(TOPIC, 0, 10)]).values()
        assert future.result(TIMEOUT_S).low_watermark == 10

    await asyncio.to_thread(run)
    topic = cluster.broker.image.topics.by_name(TOPIC)
    assert topic is not None
    await cluster.kill_broker(topic.partitions[0].leader)

    def found() -> bool:
        try:
            return watermarks(cluster.bootstrap) == (10, COUNT)
        except KafkaException:  # no leader yet
            return False

    await asyncio.to_thread(wait_until, found)
