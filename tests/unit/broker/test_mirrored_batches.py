"""Mirror appends over real storage: source offsets, exactly-once, and no other writers."""

import asyncio

import pytest

from penstock.broker.handlers.txn_markers import LedMarkers
from penstock.broker.partition.validation import TopicRules
from penstock.controller.metadata.topic_configs import MIRROR_FINISHED, MIRROR_SOURCE, VALUE_SCHEMA
from penstock.protocol.batch.control import Marker
from penstock.protocol.batch.header import CONTROL_MASK, TRANSACTIONAL_MASK, iter_headers
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.error_codes import ErrorCode
from penstock.stream.cleaning.batches import fillers
from tests.support.partition_harness import NOW, batch, transactional

SOURCE = "cluster/topic"


def at(offset: int, *values: bytes, last: int | None = None, **fields: int) -> bytes:
    records = [Record(offset + n, NOW + n, b"k", value) for n, value in enumerate(values)]
    return bytes(encode_batch(records, base_offset=offset, last_offset=last, **fields))


def gap(start: int, end: int) -> bytes:
    return b"".join(bytes(filler) for _, filler in fillers(start, end, -1))


async def mirrored_topic(harness, *node_ids: int):
    brokers = [await harness.broker(node_id) for node_id in node_ids]
    harness.topic("t", **{MIRROR_SOURCE: SOURCE})
    await brokers[0].opened("t")
    return brokers


def offsets(found):
    return [(record.offset, record.value) for record in found.records]


async def test_batches_keep_their_offsets_and_repeated_batches_are_not_appended(harness):
    (broker,) = await mirrored_topic(harness, 1)

    async def send(records: bytes):
        response = await broker.produce("t", records, mirror_source=SOURCE)
        return ErrorCode(response.error_code), response.base_offset

    first = gap(0, 5) + at(5, b"a", b"b") + at(7, b"c", last=9)
    assert await send(first) == (ErrorCode.NONE, 0)
    assert await send(first) == (ErrorCode.NONE, 0)
    # A second mirror starts at an earlier offset and has more records.
    assert await send(at(7, b"c", last=9) + at(10, b"d")) == (ErrorCode.NONE, 10)
    assert (await send(at(12, b"f")))[0] == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await send(gap(11, 20)))[0] == ErrorCode.NONE
    found = await broker.fetch("t", 0)
    assert offsets(found) == [(5, b"a"), (6, b"b"), (7, b"c"), (10, b"d")]
    assert found.high_watermark == 20
    assert found.records[1].timestamp_ms == NOW + 1
    spans = [(h.base_offset, h.next_offset) for _, h in iter_headers(found.raw.records)]
    assert spans == [(0, 5), (5, 7), (7, 10), (10, 11), (11, 20)]


async def test_the_next_leader_continues_at_the_same_offset(harness):
    one, two = await mirrored_topic(harness, 1, 2)
    await one.produce("t", gap(0, 3) + at(3, b"a", last=7), mirror_source=SOURCE)
    await one.crash()
    await harness.fail_over(one, two)
    await two.opened("t")
    again = gap(0, 3) + at(3, b"a", last=7) + at(8, b"b")
    assert (await two.produce("t", again, mirror_source=SOURCE)).base_offset == 8
    assert offsets(await two.fetch("t", 0)) == [(3, b"a")]
    assert offsets(await two.fetch("t", 8)) == [(8, b"b")]


async def test_only_the_mirror_can_write_until_it_is_finished(harness):
    (broker,) = await mirrored_topic(harness, 1)
    refused = await broker.produce("t", batch(b"x"))
    assert (refused.error_code, "finish" in refused.error_message) == (
        ErrorCode.POLICY_VIOLATION,
        True,
    )
    other = await broker.produce("t", at(0, b"a"), mirror_source="other/topic")
    assert other.error_code == ErrorCode.POLICY_VIOLATION
    assert await broker.mark("t", 7, commit=True) == ErrorCode.NONE
    assert (await broker.fetch("t", 0)).high_watermark == 0, "the marker takes no offset"
    assert (await broker.produce("t", at(0, b"a"), mirror_source=SOURCE)).error_code == 0
    harness.configure("t", MIRROR_FINISHED, "true")
    late = await broker.produce("t", at(1, b"b"), mirror_source=SOURCE)
    assert late.error_code == ErrorCode.POLICY_VIOLATION
    assert (await broker.produce("t", batch(b"x"))).base_offset == 1
    assert (await broker.produce("t", transactional(7, 0, b"y"))).base_offset == 2
    assert await broker.mark("t", 7, commit=True) == ErrorCode.NONE
    assert [offset for offset, _ in offsets(await broker.fetch("t", 0))] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (b"", ErrorCode.INVALID_RECORD),
        (b"\0" * 70, ErrorCode.CORRUPT_MESSAGE),
        (at(0, b"a") + at(2, b"b"), ErrorCode.INVALID_RECORD),
        (at(0, b"a", producer_id=1, producer_epoch=0, base_sequence=0), ErrorCode.INVALID_RECORD),
        (at(0, b"a", attributes=TRANSACTIONAL_MASK), ErrorCode.INVALID_RECORD),
        (at(0, b"a", attributes=CONTROL_MASK), ErrorCode.INVALID_RECORD),
        (at(0, b"a", attributes=5), ErrorCode.UNSUPPORTED_COMPRESSION_TYPE),
        (at(0, b"a") + at(1, b"b")[:-1] + b"!", ErrorCode.CORRUPT_MESSAGE),
    ],
)
async def test_requests_with_a_forbidden_batch_are_rejected_as_a_whole(harness, records, code):
    (broker,) = await mirrored_topic(harness, 1)
    response = await broker.produce("t", records, mirror_source=SOURCE)
    assert ErrorCode(response.error_code) == code
    assert (await broker.produce("t", at(0, b"a"), mirror_source=SOURCE)).base_offset == 0


async def test_a_transaction_with_a_mirrored_topic_is_not_completed_in_one_group(harness):
    """The mirrored topic takes no marker, so that the group would be rejected, but only after the
    batches of the mirror in flight are durable. The end of the transaction would fail until then.
    """
    (broker,) = await mirrored_topic(harness, 1)
    harness.topic("other")
    await broker.opened("other")
    marker, markers = Marker(7, 0, False, 3, 10), LedMarkers(broker)
    assert markers.parts(marker, [("other", 0), ("t", 0)], 0) is None
    assert markers.parts(marker, [("other", 0)], 0) == [(await broker.opened("other"), marker)]
    assert await broker.mark("t", 7, commit=False, coordinator_epoch=3) == ErrorCode.NONE


async def test_two_concurrent_mirrors_append_each_batch_once(harness):
    (broker,) = await mirrored_topic(harness, 1)
    batches = [at(number, b"%d" % number) for number in range(20)]

    async def mirror(size: int):
        position = 0
        while position < len(batches):
            records = b"".join(batches[position : position + size])
            response = await broker.produce("t", records, mirror_source=SOURCE)
            assert response.error_code in {0, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER}
            position += 0 if response.error_code else size

    await asyncio.gather(mirror(2), mirror(5))
    assert await broker.values("t") == [b"%d" % number for number in range(20)]


def test_mirrored_records_are_not_validated_again() -> None:
    configs = {VALUE_SCHEMA.schema: '{"type": "integer"}', MIRROR_SOURCE: SOURCE}
    assert TopicRules.from_configs(configs).schemas is None
    assert TopicRules.from_configs(configs | {MIRROR_FINISHED: "true"}).schemas is not None
