"""Record validation keeps batches in order, uses no sequence numbers for rejected batches, and
corrects timestamps.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from penstock.broker.errors import ErrorCode
from penstock.protocol import apis, framing
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.header import iter_headers
from penstock.protocol.batch.records import Record, decode_records, encode_batch
from penstock.protocol.codecs import CODECS
from penstock.protocol.gen import fetch, produce
from penstock.protocol.primitives import MAX_ELEMENTS_COUNT
from tests.support.attacker import Attacker
from tests.support.cluster import Cluster
from tests.support.record_cases import Case, field, record

NOW_MS = 1_700_000_000_000
IN_FLIGHT = 5
TOPIC = "t"
VERSION = 9

pytestmark = pytest.mark.cluster(topics={TOPIC: 1})


def numbered(
    number: int, *, producer: int, codec: Compression = Compression.NONE, size_bytes: int = 10
) -> bytes:
    """Return a batch with this producer id and sequence number."""
    value = b"%d-%d-" % (producer, number) + bytes(size_bytes)
    return bytes(
        encode_batch(
            [Record(0, NOW_MS, b"k", value)],
            producer_id=producer,
            producer_epoch=0,
            base_sequence=number,
            compression=codec,
        )
    )


def unreadable(number: int, *, producer: int, codec: Compression = Compression.NONE) -> bytes:
    """Return such a batch in which a record has a header without a key."""
    data = record(value=field(bytes(150_000)), headers=field(None) * 2, header_count=1)
    header = {"producer_id": producer, "producer_epoch": 0, "base_sequence": number}
    return Case("", data, 1, header).batch(codec, NOW_MS)


def frame_of(batch: bytes, correlation_id: int) -> bytes:
    part = produce.PartitionProduceData(0, memoryview(batch))
    data = produce.TopicProduceData(name=TOPIC, partition_data=[part])
    request = produce.ProduceRequest(acks=-1, timeout_ms=180_000, topic_data=[data])
    encode = CODECS[apis.PRODUCE.key].encode_request
    return bytes(
        framing.encode_request_frame(apis.PRODUCE, VERSION, correlation_id, encode, request)
    )


async def next_response(attacker: Attacker) -> Any:
    frame = await attacker.frame()
    assert frame is not None
    _, at = framing.parse_response_header(apis.PRODUCE, VERSION, frame)
    decode = CODECS[apis.PRODUCE.key].decode_response
    body: Any = framing.decode_body(decode, frame, at, VERSION, MAX_ELEMENTS_COUNT)
    return body.responses[0].partition_responses[0]


async def send_all(cluster: Cluster, batches: Sequence[bytes]) -> list[tuple[int, int]]:
    """Send the batches with five requests in flight. Return the error codes and offsets."""
    found: list[tuple[int, int]] = []
    async with Attacker.connected(cluster.broker.port) as attacker:
        for number, batch in enumerate(batches):
            if number >= IN_FLIGHT:
                response = await next_response(attacker)
                found.append((response.error_code, response.base_offset))
            attacker.send(frame_of(batch, number))
        while len(found) < len(batches):
            response = await next_response(attacker)
            found.append((response.error_code, response.base_offset))
    return found


async def stored(cluster: Cluster) -> list[Record]:
    requested = fetch.FetchPartition(0, fetch_offset=0, partition_max_bytes=100 << 20)
    request = fetch.FetchRequest(
        max_bytes=100 << 20, topics=[fetch.FetchTopic(topic=TOPIC, partitions=[requested])]
    )
    async with Attacker.connected(cluster.broker.port) as attacker:
        response = await attacker.send_request(apis.FETCH, 12, request)
    records = bytes(response.responses[0].partitions[0].records)
    return [
        record
        for at, header in iter_headers(records)
        for record in decode_records(records[at : at + header.size_bytes])
    ]


async def test_batches_validated_inline_and_in_threads_keep_their_order(cluster: Cluster) -> None:
    """Three idempotent producers, each with five requests in flight: reordered batches would get
    OUT_OF_ORDER_SEQUENCE_NUMBER.
    """
    codecs = (Compression.ZSTD, Compression.NONE, Compression.GZIP, Compression.NONE)
    batches = [
        [
            numbered(
                number,
                producer=producer,
                codec=codecs[(number + producer) % len(codecs)],
                size_bytes=150_000 if codecs[(number + producer) % len(codecs)] else 10,
            )
            for number in range(40)
        ]
        for producer in range(3)
    ]
    found = await asyncio.gather(*(send_all(cluster, own) for own in batches))
    for own in found:
        assert [code for code, _ in own] == [0] * 40
        offsets = [offset for _, offset in own]
        assert offsets == sorted(offsets)
    values = [record.value or b"" for record in await stored(cluster)]
    for producer in range(3):
        numbers = [int(value.split(b"-")[1]) for value in values if value[:2] == b"%d-" % producer]
        assert numbers == list(range(40))


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
async def test_rejected_batch_uses_no_sequence_number(cluster: Cluster, codec: Compression) -> None:
    """As in Kafka, later batches are out of order until the sequence number is sent with other
    records.
    """
    batches = [numbered(number, producer=7) for number in range(4)]
    found = await send_all(
        cluster, [batches[0], unreadable(1, producer=7, codec=codec), *batches[2:]]
    )
    assert [code for code, _ in found] == [
        ErrorCode.NONE,
        ErrorCode.INVALID_RECORD,
        *[ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER] * 2,
    ]
    assert await send_all(cluster, batches) == [(0, 0), (0, 1), (0, 2), (0, 3)]


async def test_rejected_first_batch_opens_no_transaction(cluster: Cluster) -> None:
    """The last stable offset stays at the end of the log."""
    header = {"producer_id": 5, "producer_epoch": 0, "base_sequence": 0, "flags": 0x10}
    data = record(headers=field(None) * 2, header_count=1)
    bad = Case("", data, 1, header).batch(Compression.NONE, NOW_MS)
    found = await send_all(cluster, [bad, numbered(0, producer=6)])
    assert found[0][0] in (
        ErrorCode.INVALID_RECORD,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
    partition = cluster.broker.partitions.get(TOPIC, 0)
    assert not isinstance(partition, ErrorCode)
    assert partition.last_stable_offset == partition.high_watermark == 1


async def test_batch_with_wrong_header_timestamps_is_stored_with_those_of_its_records(
    cluster: Cluster,
) -> None:
    """sarama 1.43 writes such batches. Lookups by time find the records, and no timestamp is too
    new.
    """
    batch = Case("", record() + record(1, ms=5), 2, {"max_timestamp": -1, "flags": 8}).batch(
        Compression.LZ4, NOW_MS
    )
    assert await send_all(cluster, [batch]) == [(0, 0)]
    assert [record.timestamp_ms for record in await stored(cluster)] == [NOW_MS, NOW_MS + 5]
