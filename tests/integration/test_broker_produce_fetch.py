"""Real clients produce with idempotence through a crash, and look up offsets by time; raw sockets
send every version and invalid requests. test_clients_matrix.py tests all codecs.
"""

import asyncio
import struct
import threading
from pathlib import Path
from typing import Any
from uuid import UUID

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.protocol import apis
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.codecs import CODECS
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import fetch as wire_fetch
from penstock.protocol.gen import produce as wire_produce
from penstock.protocol.primitives import Reader, Writer
from penstock.stream.config import StreamConfig
from tests.support.cluster import Cluster
from tests.support.waiting import PATIENCE_S

TIMEOUT_S = PATIENCE_S


async def create(cluster: Cluster, name: str, partitions: int = 1, **config: str) -> None:
    def administer() -> None:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(TIMEOUT_S)

    await asyncio.to_thread(administer)
    for index in range(partitions):
        await cluster.until_served(name, index)


def consume(bootstrap: str, partition: TopicPartition, count: int) -> list[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 100,
        }
    )
    try:
        consumer.assign([partition])
        messages: list[Any] = []
        while len(messages) < count:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"{len(messages)} of {count} came"
            assert message.error() is None, message.error()
            messages.append(message)
        return messages
    finally:
        consumer.close()


async def test_linger_does_not_delay_a_record_that_the_client_waits_for(tmp_path: Path) -> None:
    """With these settings, lingering would delay the second record by a minute."""
    waits = {"wal_linger_ms": 60_000, "wal_linger_idle_ms": 60_000, "wal_put_interval_ms": 60_000}
    async with Cluster(tmp_path, stream_config=StreamConfig(**waits)) as cluster:
        await create(cluster, "t")

        def run() -> None:
            producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
            for _ in range(3):
                producer.produce("t", b"value")
                assert producer.flush(TIMEOUT_S) == 0

        await asyncio.to_thread(run)


async def test_client_looks_up_offsets_for_times_and_watermarks(cluster: Cluster) -> None:
    await create(cluster, "t")

    def run() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
        for at in range(10):
            producer.produce("t", b"%d" % at, timestamp=1_000_000 + at * 10)
        assert producer.flush(TIMEOUT_S) == 0
        consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
        times = [TopicPartition("t", 0, time) for time in (0, 1_000_045, 1_000_091)]
        found = [consumer.offsets_for_times([time], timeout=TIMEOUT_S)[0].offset for time in times]
        assert found[:2] == [0, 5]
        assert found[2] in {-1, 10}  # librdkafka returns "end"
        assert consumer.get_watermark_offsets(TopicPartition("t", 0), timeout=TIMEOUT_S) == (0, 10)
        consumer.close()

    await asyncio.to_thread(run)


async def test_producer_receives_errors_for_refused_records(cluster: Cluster) -> None:
    await create(cluster, "small", **{"max.message.bytes": "1000"})
    await create(cluster, "compacted", **{"cleanup.policy": "compact"})

    def error_of(topic: str, value: bytes, key: bytes | None) -> str:
        errors: list[Any] = []
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "message.timeout.ms": 5_000})
        producer.produce(topic, value, key, on_delivery=lambda error, _: errors.append(error))
        producer.flush(TIMEOUT_S)
        return "" if errors[0] is None else str(errors[0].name())

    assert await asyncio.to_thread(error_of, "small", b"x" * 2_000, None) == "MSG_SIZE_TOO_LARGE"
    assert await asyncio.to_thread(error_of, "small", b"x", None) == ""
    assert await asyncio.to_thread(error_of, "compacted", b"x", None) == "INVALID_RECORD"
    assert await asyncio.to_thread(error_of, "compacted", b"x", b"k") == ""


async def test_idempotent_producer_writes_no_duplicates_through_a_leader_crash(
    tmp_path: Path,
) -> None:
    count = 3_000
    async with Cluster(tmp_path, brokers=2) as cluster:
        await create(cluster, "t", 2)
        victim = cluster.leader_of("t", 0)
        bootstrap = cluster.bootstrap
        some_delivered = threading.Event()

        def produce() -> int:
            failed: list[Any] = []
            delivered = 0

            def on_delivery(error: Any, _: Any) -> None:
                nonlocal delivered
                delivered += 1
                if error is not None:
                    failed.append(error)
                if delivered > count // 10:
                    some_delivered.set()

            producer = Producer(
                {
                    "bootstrap.servers": bootstrap,
                    "enable.idempotence": True,
                    "linger.ms": 1,
                    "batch.num.messages": 10,
                }
            )
            for at in range(count):
                producer.produce("t", b"%d" % at, partition=at % 2, on_delivery=on_delivery)
                producer.poll(0.0005)
            left = producer.flush(PATIENCE_S)
            assert not failed, failed[0]
            return left

        producing = asyncio.create_task(asyncio.to_thread(produce))
        await asyncio.to_thread(some_delivered.wait, TIMEOUT_S)
        await cluster.kill_broker(victim)
        assert await producing == 0
        for index in range(2):
            messages = await asyncio.to_thread(
                consume, cluster.bootstrap, TopicPartition("t", index, OFFSET_BEGINNING), count // 2
            )
            assert [int(message.value()) for message in messages] == list(range(index, count, 2))


async def test_restart_keeps_all_records_in_order(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await create(cluster, "t")

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
        messages = await asyncio.to_thread(
            consume, cluster.bootstrap, TopicPartition("t", 0, OFFSET_BEGINNING), 200
        )
        assert [int(message.value()) for message in messages] == list(range(200))


# --- raw sockets ----------------------------------------------------------------------------------


async def call(cluster: Cluster, api: apis.ApiSpec, version: int, request: Any) -> Any:
    """Send one request with Penstock's codec on a new connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.broker.port)
    body = Writer()
    body += struct.pack(">hhih", api.key, version, 77, -1)
    if api.is_flexible(version):
        body.append(0)
    CODECS[api.key].encode_request(body, request, version)
    writer.write(struct.pack(">i", len(body)) + body)
    async with asyncio.timeout(TIMEOUT_S):
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        response = Reader(await reader.readexactly(size), 5 if api.is_flexible(version) else 4)
    writer.close()
    await writer.wait_closed()
    return CODECS[api.key].decode_response(response, version)


async def produce_raw(
    cluster: Cluster, topic: str, records: bytes | None, version: int = 9, acks: int = -1
) -> Any:
    data = [
        wire_produce.TopicProduceData(
            name=topic, partition_data=[wire_produce.PartitionProduceData(0, records)]
        )
    ]
    request = wire_produce.ProduceRequest(acks=acks, timeout_ms=5_000, topic_data=data)
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
    await create(cluster, "t")
    for at, version in enumerate(range(3, 12)):
        found = await produce_raw(cluster, "t", bytes(sound()), version)
        assert (found.error_code, found.base_offset) == (0, 2 * at), version


async def test_every_fetch_version_is_served(cluster: Cluster) -> None:
    await create(cluster, "t")
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
    await create(cluster, "t")
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
    await create(cluster, "t")
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
    await create(cluster, "t")
    assert (await fetch_raw(cluster, "t", 0)).high_watermark == 0
