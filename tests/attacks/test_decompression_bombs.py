"""Batches that decompress to many times their size: wherever a broker decompresses client data, it
stops at `decompressed.batch.max.bytes`.
"""

import asyncio
import threading
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import cramjam
import pytest
from crc32c import crc32c
from structlog.testing import capture_logs

from penstock.base import suspensions
from penstock.broker.errors import ErrorCode
from penstock.broker.partition.partition import Partition
from penstock.broker.partition.record_check import RecordCheck
from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.protocol import apis
from penstock.protocol.batch.compression import Compression, compress
from penstock.protocol.batch.header import CRC_START, HEADER, HEADER_BYTES
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.batch.walk import ERRORS_MAX
from penstock.protocol.gen import list_offsets
from penstock.stream.config import StreamConfig
from penstock.stream.read import timestamp_reader
from penstock.stream.read.timestamp_reader import SHORT_BYTES_MAX, SHORT_RECORDS_MAX
from tests.support.attacker import TIMEOUT_S, Attacker
from tests.support.cluster import Cluster
from tests.support.conversation import alter_configs
from tests.support.record_cases import number
from tests.support.waiting import PATIENCE_S, until

CAP_BYTES = 1 << 20
"""`decompressed.batch.max.bytes` of these brokers: the minimum."""

BOMB_BYTES = 64 << 20
"""The size to which a bomb decompresses without a limit."""

NOW_MS = 1_700_000_000_000
CODECS = tuple(codec for codec in Compression if codec is not Compression.NONE)
TOPIC = 2
"""The resource type of topics in config requests."""


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    stream = StreamConfig(
        wal_linger_ms=0, block_age_max_ms=50, decompressed_batch_bytes_max=CAP_BYTES
    )
    async with Cluster(tmp_path, stream_config=stream, log_cleaner_backoff_ms=100) as cluster:
        large = {"max.message.bytes": str(8 << 20)}
        topics = [
            NewTopic(name="compacted", configs={"cleanup.policy": "compact", **large}),
            NewTopic(name="checked", configs=large),
            NewTopic(name="plain", configs={"record.validation": "header", **large}),
        ]
        await cluster.broker.client.create_topics(CreateTopics(topics=topics))
        for topic in topics:
            await cluster.until_served(topic.name)
        yield cluster


def sealed(compression: Compression, payload: bytes, record_count: int) -> bytes:
    """Return a batch of arbitrary bytes as records, with a valid header and checksum."""
    head = encode_batch([Record(0, NOW_MS, b"k", b"v")])
    fields = list(HEADER.unpack_from(head))
    batch = bytearray(HEADER_BYTES) + payload
    fields[1], fields[5], fields[6] = len(batch) - 12, int(compression), record_count - 1
    fields[12] = record_count
    HEADER.pack_into(batch, 0, *fields)
    fields[4] = crc32c(memoryview(batch)[CRC_START:])
    HEADER.pack_into(batch, 0, *fields)
    return bytes(batch)


def bomb(codec: Compression) -> bytes:
    """Return a batch of one record with a value of 64 MiB."""
    records = encode_batch([Record(0, NOW_MS, b"k", bytes(BOMB_BYTES))])
    return sealed(codec, compress(codec, memoryview(records)[HEADER_BYTES:]), 1)


def xerial_bomb() -> bytes:
    block = bytes(cramjam.snappy.compress_raw(bytes(1 << 20)))
    framed = len(block).to_bytes(4, "big") + block
    payload = b"\x82SNAPPY\x00" + bytes.fromhex("00000001 00000001")
    return sealed(Compression.SNAPPY, payload + framed * (BOMB_BYTES >> 20), 1)


async def offset_at(attacker: Attacker, topic: str, timestamp_ms: int) -> tuple[int, int]:
    """Return the error code and the offset found by a lookup by timestamp."""
    requested = list_offsets.ListOffsetsPartition(0, -1, timestamp_ms)
    request = list_offsets.ListOffsetsRequest(
        -1, 0, [list_offsets.ListOffsetsTopic(topic, [requested])]
    )
    response = await attacker.send_request(apis.LIST_OFFSETS, 7, request)
    (found,) = response.topics[0].partitions
    return found.error_code, found.offset


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
async def test_producing_a_bomb_uses_memory_up_to_the_limit(
    cluster: Cluster, codec: Compression
) -> None:
    """The error makes the Java producer split the batch, and the next batch is accepted."""
    data = bomb(codec)
    async with Attacker.connected(cluster.broker.port) as attacker:
        tracemalloc.start()
        try:
            response = await attacker.produce("checked", data)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert response.error_code == ErrorCode.MESSAGE_TOO_LARGE
        assert "decompressed.batch.max.bytes" in response.error_message
        assert peak_bytes < BOMB_BYTES // 2, response
        after = await attacker.produce("checked", encode_batch([Record(0, NOW_MS, b"k", b"v")]))
        assert (after.error_code, after.base_offset) == (0, 0)


async def test_long_validation_delays_only_its_partition(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread checks large decompressed batches. The next batch of the partition waits; other
    partitions are served.
    """
    many = [Record(at, NOW_MS, b"k", bytes(1_000)) for at in range(900)]
    keyless = [*many[:-200], *(record._replace(key=None) for record in many[-200:])]
    short = encode_batch([Record(0, NOW_MS, b"k", b"v")])
    check = RecordCheck.newest_timestamp
    begun, may_go_on = threading.Event(), threading.Event()

    def held(*arguments: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            begun.set()
            may_go_on.wait(TIMEOUT_S)
        return check(*arguments)

    monkeypatch.setattr(RecordCheck, "newest_timestamp", held)
    partition = cluster.broker.partitions.get("compacted", 0)
    assert isinstance(partition, Partition)
    end = 0
    for sent, code in (
        (bomb(Compression.ZSTD), ErrorCode.MESSAGE_TOO_LARGE),
        (bytes(encode_batch(keyless, compression=Compression.ZSTD)), ErrorCode.INVALID_RECORD),
        (bytes(encode_batch(many, compression=Compression.ZSTD)), ErrorCode.NONE),
    ):
        begun.clear()
        may_go_on.clear()
        async with (
            Attacker.connected(cluster.broker.port) as first,
            Attacker.connected(cluster.broker.port) as second,
            asyncio.TaskGroup() as group,
        ):
            long = group.create_task(first.produce("compacted", sent))
            await until(begun.is_set)
            behind = group.create_task(second.produce("compacted", short))
            await until(lambda: partition.checks_count == 2)
            async with Attacker.connected(cluster.broker.port) as other:
                assert (await other.produce("plain", short)).error_code == ErrorCode.NONE
                assert (await other.produce("checked", short)).error_code == ErrorCode.NONE
            assert not long.done()
            assert not behind.done()
            may_go_on.set()
        response = long.result()
        assert response.error_code == code, response
        end += len(many) if code == ErrorCode.NONE else 0
        assert behind.result().base_offset == end
        end += 1
        if code == ErrorCode.INVALID_RECORD:
            named = [error.batch_index for error in response.record_errors]
            assert named == list(range(len(many) - 200, len(many)))[:ERRORS_MAX]


async def test_producing_a_bomb_in_xerial_snappy_blocks_uses_memory_up_to_the_limit(
    cluster: Cluster,
) -> None:
    async with Attacker.connected(cluster.broker.port) as attacker:
        response = await attacker.produce("compacted", xerial_bomb())
        assert response.error_code == ErrorCode.MESSAGE_TOO_LARGE


async def test_a_batch_of_very_many_tiny_records_is_validated(cluster: Cluster) -> None:
    """The batch has a few kilobytes, and native code checks it."""
    count = 90_000
    records = bytearray()
    for at in range(count):
        delta = number(at)
        records += number(6 + len(delta)) + b"\0\0" + delta + b"\2k\0\0"
    data = sealed(Compression.ZSTD, compress(Compression.ZSTD, records), count)
    async with Attacker.connected(cluster.broker.port) as attacker:
        response = await attacker.produce("compacted", data)
        assert response.error_code == ErrorCode.NONE, response


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.name.lower())
async def test_a_lookup_by_timestamp_returns_the_first_offset_of_a_bomb(
    cluster: Cluster, codec: Compression
) -> None:
    """In a topic without compaction, only lookups by timestamp decompress batches. The response is
    the first offset of the bomb, from memory and from an object, and later batches are found.
    """
    data = bomb(codec)
    async with Attacker.connected(cluster.broker.port) as attacker:
        assert (await attacker.produce("plain", data)).error_code == 0
        later = encode_batch([Record(0, NOW_MS + 5, b"k", b"v")])
        assert (await attacker.produce("plain", later)).error_code == 0
        tracemalloc.start()
        try:
            assert await offset_at(attacker, "plain", NOW_MS) == (0, 0)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < BOMB_BYTES // 2
        assert await offset_at(attacker, "plain", NOW_MS + 1) == (0, 1)


async def test_long_lookups_by_timestamp_run_in_a_thread(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread decodes batches with many records or much data while other clients are served."""
    search = timestamp_reader.first_record_at_or_after
    begun, may_go_on = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    def held(*arguments: Any, in_thread: bool = False, **options: Any) -> Any:
        threads.append(threading.current_thread())
        if in_thread:
            begun.set()
            may_go_on.wait(TIMEOUT_S)
        return search(*arguments, in_thread=in_thread, **options)

    monkeypatch.setattr(timestamp_reader, "first_record_at_or_after", held)
    short = encode_batch([Record(0, NOW_MS, b"k", b"v")])
    many = [Record(at, NOW_MS + 1, b"k", b"v") for at in range(SHORT_RECORDS_MAX + 1)]
    large = [Record(0, NOW_MS + 2, b"k", bytes(SHORT_BYTES_MAX))]
    zipped = encode_batch(large, compression=Compression.ZSTD)
    assert len(zipped) < SHORT_BYTES_MAX
    async with (
        Attacker.connected(cluster.broker.port) as attacker,
        Attacker.connected(cluster.broker.port) as other,
    ):
        for batch in (short, encode_batch(many), zipped):
            assert (await attacker.produce("plain", batch)).error_code == 0
        assert await offset_at(attacker, "plain", NOW_MS) == (0, 0)
        assert threads == [threading.main_thread()]
        for timestamp_ms, offset in ((NOW_MS + 1, 1), (NOW_MS + 2, 1 + len(many))):
            begun.clear()
            may_go_on.clear()
            looking = asyncio.ensure_future(offset_at(attacker, "plain", timestamp_ms))
            await until(begun.is_set)
            assert (await other.produce("compacted", short)).error_code == 0
            assert not looking.done()
            may_go_on.set()
            assert await looking == (0, offset)
            assert threads[-1] is not threading.main_thread()


async def test_compaction_logs_the_bomb_and_how_to_remove_it(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bomb written before compaction was enabled stops the compaction of its topic with a log
    event. Other topics are still compacted.
    """
    monkeypatch.setattr(suspensions, "_FIRST_S", 10.0 * PATIENCE_S)
    async with Attacker.connected(cluster.broker.port) as attacker:
        assert (await attacker.produce("plain", bomb(Compression.ZSTD))).error_code == 0
        for _ in range(2):
            await attacker.produce("compacted", encode_batch([Record(0, NOW_MS, b"k", b"v")]))
    await cluster.broker.storage.upload()
    compact = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    with capture_logs() as logs:
        for topic in ("plain", "compacted"):
            code, _ = await asyncio.to_thread(
                alter_configs, cluster.bootstrap, (TOPIC, topic), compact
            )
            assert code == 0
        cleaner = cluster.broker.cleaner
        await until(lambda: cleaner.failures == 1 and cleaner.passes == 1)
    (error,) = (line for line in logs if line["event"] == "log_cleaning_suspended")
    assert error["topic"] == "plain"
    assert "the batch at offset 0" in error["error"]
    assert "decompressed.batch.max.bytes" in error["remedy"]
    assert cleaner.removed_records == 1
