"""Raw sockets produce and fetch in every version and send invalid requests; records survive a
restart. test_clients_matrix.py tests real clients.
"""

import asyncio
import struct
from pathlib import Path
from typing import Any
from uuid import UUID

from confluent_kafka import OFFSET_BEGINNING, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.protocol import apis
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import fetch as wire_fetch
from penstock.protocol.gen import produce as wire_produce
from penstock.stream.config import StreamConfig
from tests.support.attacker import Attacker
from tests.support.clients import TIMEOUT_S, confluent_consumer, create_topic, read_records
from tests.support.cluster import Cluster


async def create(cluster: Cluster) -> None:
    await asyncio.to_thread(create_topic, cluster.bootstrap, "t")
    await cluster.until_served("t")


async def test_linger_does_not_delay_a_record_that_the_client_waits_for(tmp_path: Path) -> None:
    """With these settings, lingering would delay the second record by a minute."""
    waits = {"wal_linger_ms": 60_000, "wal_linger_idle_ms": 60_000, "wal_put_interval_ms": 60_000}
    async with Cluster(tmp_path, stream_config=StreamConfig(**waits)) as cluster:
        await create(cluster)

        def run() -> None:
            producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
            for _ in range(3):
                producer.produce("t", b"value")
                assert producer.flush(TIMEOUT_S) == 0

        await asyncio.to_thread(run)


async def test_restart_keeps_all_records_in_order(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await create(cluster)

        def produce(first: int) -> None:
            producer = Producer(
                {"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True}
            )
            for at in range(first, first + 100):
                producer.produce("t", b"%d" % at)
            assert producer.flush(TIMEOUT_S) == 0

        await asyncio.to_thread(produce, 0)
        await cluster.stop_broker(0)
        await cluster.start_broker(0)
        await cluster.until_served("t")
        await asyncio.to_thread(produce, 100)

        def read() -> list[int]:
            consumer = confluent_consumer(cluster.bootstrap, "g")
            consumer.assign([TopicPartition("t", 0, OFFSET_BEGINNING)])
            messages = read_records(consumer, 200)
            consumer.close()
            return [int(message.value() or b"") for message in messages]

        assert await asyncio.to_thread(read) == list(range(200))


# --- raw sockets ----------------------------------------------------------------------------------


async def call(cluster: Cluster, api: apis.ApiSpec, version: int, request: Any) -> Any:
    async with Attacker.connected(cluster.broker.port) as client:
        return await client.send_request(api, version, request)


async def produce_raw(
    cluster: Cluster, topic: str, records: bytes | None, version: int = 9, acks: int = -1
) -> Any:
    data = [
        wire_produce.TopicProduceData(
            name=topic, partition_data=[wire_produce.PartitionProduceData(0, records)]
        )
    ]
    request = wire_produce.ProduceRequest(acks=acks, timeout_ms=180_000, topic_data=data)
    return (await call(cluster, apis.PRODUCE, version, request)).responses[0].partition_responses[0]


async def fetch_raw(cluster: Cluster, topic: str, offset: int, version: int = 12) -> Any:
    topic_id: UUID | None = None
    if version >= 13:
        state = cluster.broker.image.topics.by_name(topic)
        topic_id = None if state is None else state.topic_id
    partitions = [
        wire_fetch.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    ]
    request = wire_fetch.FetchRequest(
        topics=[wire_fetch.FetchTopic(topic_id=topic_id, topic=topic, partitions=partitions)]
    )
    return (await call(cluster, apis.FETCH, version, request)).responses[0].partitions[0]


def sound() -> bytearray:
    return encode_batch([Record(0, 1_000, b"k", b"v"), Record(1, 1_000, b"k", b"w")])


async def test_every_produce_version_is_served(cluster: Cluster) -> None:
    await create(cluster)
    for at, version in enumerate(range(3, 12)):
        found = await produce_raw(cluster, "t", bytes(sound()), version)
        assert (found.error_code, found.base_offset) == (0, 2 * at), version


async def test_every_fetch_version_is_served(cluster: Cluster) -> None:
    await create(cluster)
    await produce_raw(cluster, "t", bytes(sound()))
    expected = sound()
    struct.pack_into(">qii", expected, 0, 0, len(expected) - 12, 0)
    for version in range(4, 17):
        found = await fetch_raw(cluster, "t", 0, version)
        assert (found.error_code, found.high_watermark) == (0, 2), version
        assert bytes(found.records) == expected, version
        assert bytes((await fetch_raw(cluster, "t", 2, version)).records) == b"", version
        beyond = await fetch_raw(cluster, "t", 3, version)
        assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE, version


async def test_invalid_batches_are_rejected_without_being_stored(cluster: Cluster) -> None:
    await create(cluster)
    corrupt, old = sound(), sound()
    corrupt[-1] ^= 1
    old[16] = 1
    codes = [
        (await produce_raw(cluster, "t", records)).error_code
        for records in (
            bytes(corrupt),
            bytes(old),
            bytes(sound() + sound()),
            bytes(sound()[:-3]),
            b"",
            None,
        )
    ]
    assert codes == [ErrorCode.CORRUPT_MESSAGE] + [ErrorCode.INVALID_RECORD] * 5
    assert (
        await produce_raw(cluster, "t", bytes(sound()), acks=5)
    ).error_code == ErrorCode.INVALID_REQUIRED_ACKS
    assert (
        await produce_raw(cluster, "nowhere", bytes(sound()))
    ).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await produce_raw(cluster, "t", bytes(sound()))).base_offset == 0


async def test_deleted_topic_is_unknown_and_a_new_topic_of_that_name_is_empty(
    cluster: Cluster,
) -> None:
    await create(cluster)
    await produce_raw(cluster, "t", bytes(sound()))

    def delete() -> None:
        # In a variable, so that the client lives until the response arrives.
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.delete_topics(["t"])["t"].result(TIMEOUT_S)

    await asyncio.to_thread(delete)
    assert (await fetch_raw(cluster, "t", 0)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (
        await produce_raw(cluster, "t", bytes(sound()))
    ).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await create(cluster)
    assert (await fetch_raw(cluster, "t", 0)).high_watermark == 0
