"""Positions and log offsets with three client libraries: seek, pause, position, watermarks, lookups
by time, lag.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as PyTopicPartition
from kafka.admin import OffsetSpec as PyOffsetSpec

from tests.support.clients import (
    POLL_S,
    TIMEOUT_S,
    Polled,
    confluent_consumer,
    create_topic,
    produce,
    read_records,
)
from tests.support.cluster import Cluster
from tests.support.in_thread import in_thread
from tests.support.waiting import wait_until

TOPIC = "clicks"
FIRST_MS = 1_700_000_000_000
STEP_MS = 1_000
COUNT = 20


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Start a cluster with a topic of two partitions. Partition 0 contains COUNT records, STEP_MS
    apart, in several batches; partition 1 is empty.
    """
    async with Cluster(tmp_path, brokers=2, group_min_session_timeout_ms=500) as cluster:

        def fill() -> None:
            create_topic(cluster.bootstrap, TOPIC, 2)
            producer = Producer({"bootstrap.servers": cluster.bootstrap, "compression.type": "lz4"})
            for index in range(COUNT):
                producer.produce(
                    TOPIC, b"%d" % index, partition=0, timestamp=FIRST_MS + index * STEP_MS
                )
                if index % 7 == 6:
                    producer.flush(TIMEOUT_S)
            assert producer.flush(TIMEOUT_S) == 0

        await asyncio.to_thread(fill)
        yield cluster


@in_thread
def test_confluent_kafka_seeks_pauses_and_looks_up_offsets(cluster: Cluster) -> None:
    consumer = confluent_consumer(
        cluster.bootstrap, "g", enable_auto_commit=False, enable_partition_eof=True
    )
    assert consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), TIMEOUT_S) == (0, COUNT)
    assert consumer.get_watermark_offsets(TopicPartition(TOPIC, 1), TIMEOUT_S) == (0, 0)
    requested = [
        TopicPartition(TOPIC, 0, time_ms) for time_ms in (0, FIRST_MS + 4 * STEP_MS - 1)
    ] + [TopicPartition(TOPIC, 1, 0)]
    times = [consumer.offsets_for_times([part], TIMEOUT_S)[0].offset for part in requested]
    assert times == [0, 4, OFFSET_END]
    after = consumer.offsets_for_times(
        [TopicPartition(TOPIC, 0, FIRST_MS + COUNT * STEP_MS)], TIMEOUT_S
    )
    assert after[0].offset == OFFSET_END
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    assert [message.value() for message in read_records(consumer, 3)] == [b"0", b"1", b"2"]
    assert consumer.position([TopicPartition(TOPIC, 0)])[0].offset == 3
    consumer.seek(TopicPartition(TOPIC, 0, 15))
    assert [message.value() for message in read_records(consumer, 5)] == [
        b"15",
        b"16",
        b"17",
        b"18",
        b"19",
    ]
    end = consumer.poll(TIMEOUT_S)
    assert (end.error().code(), end.offset()) == (KafkaError._PARTITION_EOF, COUNT)
    consumer.seek(TopicPartition(TOPIC, 0, 1))
    consumer.pause([TopicPartition(TOPIC, 0)])
    assert consumer.poll(5 * POLL_S) is None
    consumer.resume([TopicPartition(TOPIC, 0)])
    assert read_records(consumer, 1)[0].offset() == 1
    consumer.close()


@in_thread
def test_kafka_python_seeks_pauses_and_looks_up_offsets(cluster: Cluster) -> None:
    part, empty = PyTopicPartition(TOPIC, 0), PyTopicPartition(TOPIC, 1)
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap.split(","),
        group_id="g",
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_S * 1_000,
    )
    assert consumer.topics() == {TOPIC}
    assert consumer.partitions_for_topic(TOPIC) == {0, 1}
    assert consumer.beginning_offsets([part, empty]) == {part: 0, empty: 0}
    assert consumer.end_offsets([part, empty]) == {part: COUNT, empty: 0}
    found = consumer.offsets_for_times({part: FIRST_MS + 4 * STEP_MS - 1, empty: 0})
    assert (found[part].offset, found[part].timestamp, found[empty]) == (
        4,
        FIRST_MS + 4 * STEP_MS,
        None,
    )
    assert consumer.offsets_for_times({part: FIRST_MS + COUNT * STEP_MS})[part] is None
    consumer.assign([part, empty])
    assert consumer.position(part) == 0
    consumer.seek(part, 17)
    assert [next(consumer).value for _ in range(3)] == [b"17", b"18", b"19"]
    assert consumer.position(part) == COUNT
    assert consumer.highwater(part) == COUNT
    consumer.commit()
    assert consumer.committed(part) == COUNT
    consumer.pause(part)
    consumer.seek(part, 3)
    assert consumer.poll(timeout_ms=200) == {}
    consumer.resume(part)
    assert next(consumer).offset == 3
    consumer.seek_to_end(part)
    assert consumer.position(part) == COUNT
    consumer.close()


async def test_aiokafka_seeks_pauses_and_looks_up_offsets(cluster: Cluster) -> None:
    part, empty = AioTopicPartition(TOPIC, 0), AioTopicPartition(TOPIC, 1)
    settings = {"group_id": "g", "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    async with (
        AIOKafkaConsumer(bootstrap_servers=cluster.bootstrap, **settings) as consumer,
        asyncio.timeout(TIMEOUT_S),
    ):
        assert await consumer.beginning_offsets([part, empty]) == {part: 0, empty: 0}
        assert await consumer.end_offsets([part, empty]) == {part: COUNT, empty: 0}
        found = await consumer.offsets_for_times({part: FIRST_MS + 4 * STEP_MS - 1, empty: 0})
        assert (found[part].offset, found[part].timestamp, found[empty]) == (
            4,
            FIRST_MS + 4 * STEP_MS,
            None,
        )
        consumer.assign([part, empty])
        assert await consumer.position(part) == 0
        consumer.seek(part, 17)
        assert [(await consumer.getone(part)).value for _ in range(3)] == [b"17", b"18", b"19"]
        assert (await consumer.position(part), consumer.highwater(part)) == (COUNT, COUNT)
        await consumer.commit()
        assert await consumer.committed(part) == COUNT
        consumer.pause(part)
        consumer.seek(part, 3)
        assert await consumer.getmany(part, timeout_ms=200) == {}
        consumer.resume(part)
        assert (await consumer.getone(part)).offset == 3
        await consumer.seek_to_end(part)
        assert await consumer.position(part) == COUNT


@in_thread
def test_consumer_reports_its_lag(cluster: Cluster) -> None:
    """Each fetch response contains the high watermark, so a consumer computes its lag without
    another request.
    """
    consumer = confluent_consumer(cluster.bootstrap, "g")
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    read_records(consumer, 5)
    _, high = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), cached=True)
    assert high - consumer.position([TopicPartition(TOPIC, 0)])[0].offset == COUNT - 5
    produce(cluster.bootstrap, TOPIC, [b"x"] * 5)
    wait_until(
        lambda: (
            consumer.consume(1, POLL_S)
            and consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), cached=True)[1]
            == COUNT + 5
        )
    )
    consumer.close()


@in_thread
def test_admin_client_lists_offsets(cluster: Cluster) -> None:
    admin, part = (
        AdminClient({"bootstrap.servers": cluster.bootstrap}),
        TopicPartition(TOPIC, 0),
    )
    specs = {
        "earliest": OffsetSpec.earliest(),
        "latest": OffsetSpec.latest(),
        "max": OffsetSpec.max_timestamp(),
        "time": OffsetSpec.for_timestamp(FIRST_MS + STEP_MS),
    }
    found = {
        name: admin.list_offsets({part: spec})[part].result(TIMEOUT_S)
        for name, spec in specs.items()
    }
    assert {name: info.offset for name, info in found.items()} == {
        "earliest": 0,
        "latest": COUNT,
        "max": COUNT - 1,
        "time": 1,
    }
    assert (found["max"].timestamp, found["time"].timestamp) == (
        FIRST_MS + (COUNT - 1) * STEP_MS,
        FIRST_MS + STEP_MS,
    )


@in_thread
def test_kafka_python_lists_offsets_of_every_spec(cluster: Cluster) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    part = PyTopicPartition(TOPIC, 0)
    expected = {
        PyOffsetSpec.EARLIEST: 0,
        PyOffsetSpec.EARLIEST_LOCAL: 0,
        PyOffsetSpec.LATEST: COUNT,
        PyOffsetSpec.LATEST_TIERED: -1,
        PyOffsetSpec.MAX_TIMESTAMP: COUNT - 1,
    }
    found = {spec: admin.list_partition_offsets({part: spec})[part].offset for spec in expected}
    assert found == expected
    admin.close()


@pytest.mark.parametrize(("reset", "expected"), [("earliest", b"0"), ("latest", b"new")])
@in_thread
def test_out_of_range_position_is_reset_by_auto_offset_reset(
    cluster: Cluster, reset: str, expected: bytes
) -> None:
    consumer = confluent_consumer(cluster.bootstrap, "g", auto_offset_reset=reset)
    consumer.assign([TopicPartition(TOPIC, 0, COUNT + 1_000)])
    polled = Polled(consumer)

    def came() -> bool:
        # For "latest", records must be written after the reset, and no event signals it.
        if not polled.everything():
            produce(cluster.bootstrap, TOPIC, [b"new"])
        return polled.everything() != []

    polled.until(came)
    assert polled.everything()[0] == expected
    consumer.close()


async def test_consuming_while_producing_skips_and_repeats_no_record(cluster: Cluster) -> None:
    total = 3_000

    def consume() -> list[bytes | None]:
        consumer = confluent_consumer(cluster.bootstrap, "g")
        consumer.assign([TopicPartition(TOPIC, 1, 0)])
        found = read_records(consumer, total)
        consumer.close()
        assert [message.offset() for message in found] == list(range(total))
        return [message.value() for message in found]

    records = [b"%d" % index for index in range(total)]
    consuming = asyncio.create_task(asyncio.to_thread(consume))
    for first in range(0, total, 300):
        await asyncio.to_thread(
            produce, cluster.bootstrap, TOPIC, records[first : first + 300], (1,), linger_ms=1
        )
    assert await consuming == records
