"""ListOffsets: the special timestamps in every version, as Kafka 4.2 returns them."""

import asyncio

import pytest

from penstock.base.ids import Offset
from penstock.broker.handlers.list_offsets import handle_list_offsets
from penstock.protocol import apis
from penstock.protocol.batch.header import parse_header, patch_times
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import list_offsets as wire
from tests.support.partition_harness import NOW, batch, transactional


@pytest.fixture
async def one(harness):
    return await harness.leading("t", partitions=2)


@pytest.mark.parametrize(
    ("timestamp", "first_version", "expected"),
    [
        (-1, 1, (5, -1)),
        (-2, 1, (2, -1)),
        (-3, 7, (3, NOW + 300)),
        (-4, 8, (2, -1)),
        (-5, 9, (-1, -1)),
        (-6, 11, (-1, -1)),
        (-7, 12, None),
        (-100, 12, None),
        (NOW, 1, (3, NOW + 300)),
    ],
)
async def test_special_timestamps_require_the_same_versions_as_in_kafka(
    one, timestamp, first_version, expected
):
    """The log is trimmed up to offset 2; the record there is older than one of the deleted ones."""
    await one.produce("t", batch(b"a", b"b", timestamp=NOW + 900))
    await one.produce("t", batch(b"c", timestamp=NOW - 100))
    await one.produce("t", batch(b"d", b"e", timestamp=NOW + 300))
    assert await one.partitions.trim_all([(await one.opened("t"), Offset(2))]) == [None]
    for version in range(1, 12):
        found = await one.list_offsets("t", timestamp, version=version)
        if version < first_version:
            assert (found.error_code, found.offset) == (ErrorCode.UNSUPPORTED_VERSION, -1)
        else:
            assert (found.error_code, found.offset, found.timestamp) == (0, *expected)
            has_epoch = version >= 4 and found.offset >= 0
            assert found.leader_epoch == (0 if has_epoch else -1)


async def test_an_unknown_special_timestamp_is_rejected_before_the_partition_lookup(one):
    for timestamp in (-7, -8):
        found = await one.list_offsets("none", timestamp, version=11)
        assert found.error_code == ErrorCode.UNSUPPORTED_VERSION


async def test_a_partition_that_is_requested_twice_is_returned_once(one):
    await one.produce("t", batch(b"a"))
    part = wire.ListOffsetsPartition
    request = wire.ListOffsetsRequest(
        topics=[
            wire.ListOffsetsTopic("t", [part(0, -1, -1), part(1, -1, -1), part(0, -1, -2)]),
            wire.ListOffsetsTopic("t", [part(9, -1, -1)]),
        ]
    )
    response = await handle_list_offsets(one, one.context(apis.LIST_OFFSETS, 11, request))
    (topic,) = one.decode_response(apis.LIST_OFFSETS, 11, response).topics
    assert [(found.partition_index, found.error_code) for found in topic.partitions] == [
        (0, ErrorCode.INVALID_REQUEST),
        (1, 0),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]


async def test_a_lookup_stops_at_the_timeout_of_the_request(one, monkeypatch):
    async def never(*_args):
        await asyncio.Event().wait()

    monkeypatch.setattr(type(one.storage), "offset_for_timestamp", never)
    request = wire.ListOffsetsRequest(
        topics=[wire.ListOffsetsTopic("t", [wire.ListOffsetsPartition(0, -1, NOW)])],
        timeout_ms=10,
    )
    response = await handle_list_offsets(one, one.context(apis.LIST_OFFSETS, 10, request))
    (found,) = one.decode_response(apis.LIST_OFFSETS, 10, response).topics[0].partitions
    assert found.error_code == ErrorCode.REQUEST_TIMED_OUT


async def test_read_committed_lookups_return_the_newest_stable_record(one):
    await one.produce("t", batch(b"a", timestamp=NOW - 100))
    await one.produce("t", transactional(8, 0, b"x"))
    uncommitted = await one.list_offsets("t", -3)
    assert (uncommitted.offset, uncommitted.timestamp) == (1, NOW)
    committed = await one.list_offsets("t", -3, isolation_level=1)
    assert (committed.offset, committed.timestamp) == (0, NOW - 100)
    assert (await one.list_offsets("t", -1, isolation_level=1)).offset == 1


# --- records without timestamps, and headers that contradict the records --------------------------

NONE = -1
LOGS = {
    "none": [[NONE], [NONE, NONE]],
    "between": [[10], [NONE, NONE], [30], [NONE], [20, 5]],
    "within": [[NONE, 20], [NONE], [10, NONE]],
    "hidden": [[10], [(20, 40)], [30], [NONE], [(7, 35, 3)]],
    "hidden last": [[10], [NONE], [(5, 90)]],
}
"""Timestamps in milliseconds of the records of each batch. A tuple: the header contains -1."""


def stored(times):
    is_hidden = isinstance(times, tuple)
    at_ms = [time if time == NONE else NOW + time for time in times]
    data = bytearray(encode_batch([Record(at, ms, None, b"v") for at, ms in enumerate(at_ms)]))
    if is_hidden:
        patch_times(data, 0, parse_header(data)._replace(max_timestamp_ms=NONE))
    return bytes(data)


def expected(times, timestamp, start, end):
    """Return (offset, timestamp) of the first record of [start, end) at or after the timestamp."""
    rows = [(offset, time if time == NONE else NOW + time) for offset, time in enumerate(times)][
        start:end
    ]
    wanted = max(time for _, time in rows) if timestamp == -3 else timestamp
    return next((row for row in rows if row[1] >= wanted), (-1, -1))


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("start", [0, 1])
async def test_lookups_by_timestamp_with_unknown_timestamps(harness, pair, name, start):
    """In memory, in WAL slots, in one object, and with the log start inside a batch."""
    one, two = pair
    harness.topic("t", **{"record.validation": "header"})
    harness.lead("t", one)
    leader, times = one, []
    for parts in LOGS[name]:
        for part in parts if isinstance(parts[0], tuple) else [parts]:
            assert (await leader.produce("t", stored(part))).error_code == 0
            times += part

    async def check():
        for at in (-3, 0, NOW, NOW + 1, NOW + 20, NOW + 31, NOW + 40, NOW + 99):
            found = await leader.list_offsets("t", at)
            wanted = expected(times, at, start, None)
            assert (found.error_code, found.offset, found.timestamp) == (0, *wanted), at

    if start:
        assert await one.partitions.trim_all([(await one.opened("t"), Offset(start))]) == [None]
    await check()
    await leader.storage.upload()
    await check()
    leader = two
    await harness.hand_over("t", two)
    await check()


async def test_the_newest_stable_record_of_a_range_that_continues_after_the_last_stable_offset(
    harness, pair
):
    one, two = pair
    harness.topic("t")
    harness.lead("t", one)
    await one.produce("t", batch(b"a", b"b", timestamp=NOW + 5))
    await one.produce("t", transactional(8, 0, b"x"))
    await one.produce("t", batch(b"c", timestamp=NOW + 9))
    await harness.hand_over("t", two)
    for isolation_level, wanted in ((0, (3, NOW + 9)), (1, (0, NOW + 5))):
        found = await two.list_offsets("t", -3, isolation_level=isolation_level)
        assert (found.offset, found.timestamp) == wanted
