"""Where logs begin: retention by age and by size, and DeleteRecords."""

from random import Random

import pytest

from base.ids import Millis, ObjectId, Offset
from broker.handlers.delete_records import handle_delete_records
from broker.partition.retention import Retention, is_deletable, retained_from
from broker.retention_duty import RetentionDuty
from broker.wire import apis
from broker.wire.error_codes import ErrorCode
from broker.wire.gen import delete_records as wire
from controller.metadata.streams import LogEntry
from tests.support.partition_harness import (
    NOW,
    PartitionHarness,
    batch,
    idempotent,
    transactional,
)

DAY_MS = 86_400_000


def entries(*ranges):
    """Ranges of 10 offsets: (size in bytes, newest timestamp)."""
    return [
        LogEntry(Offset(10 * at), Offset(10 * at + 10), ObjectId(at), 10, size, Millis(newest_ms))
        for at, (size, newest_ms) in enumerate(ranges)
    ]


def start_of(log, *, age_ms=-1, size_bytes=-1, committed_ms=NOW):
    return retained_from(log, Retention(age_ms, size_bytes), NOW, lambda _: committed_ms)


def test_ranges_go_when_their_newest_record_is_older_than_the_topic_keeps():
    log = entries((1, NOW - 300), (1, NOW - 200), (1, NOW - 100))
    assert start_of(log, age_ms=200) == 10
    assert start_of(log, age_ms=199) == 20
    assert start_of(log, age_ms=0) == 30
    assert start_of(log, age_ms=300) is None
    assert start_of(log) is None


def test_an_old_range_behind_a_young_one_stays():
    assert start_of(entries((1, NOW), (1, NOW - 300)), age_ms=100) is None


def test_ranges_go_while_the_rest_is_as_large_as_the_topic_keeps():
    log = entries((100, NOW), (50, NOW), (30, NOW))
    assert start_of(log, size_bytes=81) is None
    assert start_of(log, size_bytes=80) == 10
    assert start_of(log, size_bytes=31) == 10
    assert start_of(log, size_bytes=30) == 20
    assert start_of(log, size_bytes=0) == 30


def test_records_without_a_timestamp_are_as_old_as_their_object():
    log = entries((1, -1), (1, NOW))
    assert start_of(log, age_ms=100, committed_ms=NOW - 101) == 10
    assert start_of(log, age_ms=100, committed_ms=NOW - 100) is None


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, Retention(7 * DAY_MS, -1)),
        ({"retention.ms": "-1"}, Retention(-1, -1)),
        ({"retention.ms": "5", "retention.bytes": "6"}, Retention(5, 6)),
        ({"cleanup.policy": "compact", "retention.ms": "5"}, Retention(-1, -1)),
        ({"cleanup.policy": "compact,delete", "retention.ms": "5"}, Retention(5, -1)),
    ],
)
def test_the_configs_of_a_topic_say_what_it_keeps(configs, expected):
    assert Retention.from_configs(configs) == expected
    assert is_deletable(configs) == (configs.get("cleanup.policy") != "compact")


# --- brokers --------------------------------------------------------------------------------------


@pytest.fixture
async def world():
    return PartitionHarness()


@pytest.fixture
async def pair(world):
    brokers = [await world.broker(1), await world.broker(2)]
    yield brokers
    for broker in brokers:
        await broker.close()


async def written(world, brokers, topic, *timestamps_ms):
    """One committed range of two records for each timestamp. Returns the leader."""
    leader = brokers[0]
    for at, timestamp_ms in enumerate(timestamps_ms):
        leader = brokers[at % 2]
        world.lead(topic, leader)
        await leader.opened(topic)
        answer = await leader.produce(topic, batch(b"a", b"b", timestamp=timestamp_ms))
        assert answer.error_code == 0
    leader = brokers[len(timestamps_ms) % 2]
    world.lead(topic, leader)
    await leader.opened(topic)
    return leader


def duty_of(broker):
    return RetentionDuty(
        lambda: broker.image,
        broker.partitions,
        broker.partitions.trim_all,
        now_ms=broker.now_ms,
        interval_s=1,
        rng=Random(1),
    )


async def test_a_check_trims_what_is_too_old_and_tells_consumers(world, pair):
    world.topic("t")
    leader = await written(world, pair, "t", NOW - 8 * DAY_MS, NOW - 6 * DAY_MS)
    duty = duty_of(leader)
    await duty.check()
    assert duty.trimmed_partitions == 1
    found = await leader.fetch("t")
    assert (found.error, found.log_start) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)
    assert (await leader.list_offsets("t", -2)).offset == 2
    assert (await leader.fetch("t", 2)).values == [b"a", b"b"]
    await duty.check()
    assert duty.trimmed_partitions == 1


async def test_a_changed_config_holds_from_the_next_check_on(world, pair):
    world.topic("t")
    leader = await written(world, pair, "t", NOW, NOW)
    duty = duty_of(leader)
    await duty.check()
    assert (await leader.fetch("t")).log_start == 0
    world.configure("t", "retention.bytes", "1")
    await duty.check()
    assert (await leader.fetch("t", 2)).log_start == 2
    world.configure("t", "retention.bytes", "0")
    await duty.check()
    assert (await leader.fetch("t", 4)).log_start == 4


async def test_a_compacted_topic_keeps_everything(world, pair):
    world.topic("t", **{"cleanup.policy": "compact", "retention.ms": "1"})
    world.lead("t", pair[0])
    partition = await pair[0].opened("t")
    await duty_of(pair[0]).check()
    assert partition.log_start_offset == 0


async def test_a_partition_that_cannot_be_trimmed_does_not_stop_the_others(world, pair):
    for name in ("s", "t"):
        world.topic(name)
        await written(world, pair, name, NOW - 8 * DAY_MS, NOW)
    leader = pair[0]
    partition = await leader.opened("s")
    world.image.streams.known(partition.log.data.stream_id).epoch += 1
    duty = duty_of(leader)
    await duty.check()
    assert (duty.trimmed_partitions, duty.failed_partitions) == (1, 1)
    assert (await leader.fetch("t", 2)).log_start == 2
    world.image.streams.known(partition.log.data.stream_id).epoch -= 1


# --- DeleteRecords --------------------------------------------------------------------------------


async def delete(broker, topic, offset, index=0, version=2, timeout_ms=5_000):
    wanted = wire.DeleteRecordsTopic(topic, [wire.DeleteRecordsPartition(index, offset)])
    context = broker.context(
        apis.DELETE_RECORDS, version, wire.DeleteRecordsRequest([wanted], timeout_ms)
    )
    response = await handle_delete_records(broker, context)
    found = broker.answer(apis.DELETE_RECORDS, version, response).topics[0].partitions[0]
    return found.error_code, found.low_watermark


@pytest.fixture
async def one(world):
    broker = await world.broker(1)
    world.topic("t")
    await broker.opened("t")
    await broker.produce("t", idempotent(0, b"a", b"b", b"c", pid=7))
    yield broker
    await broker.close()


@pytest.mark.parametrize("version", [0, 1, 2])
async def test_records_before_an_offset_are_deleted(one, version):
    assert await delete(one, "t", 2, version=version) == (0, 2)
    assert (await one.fetch("t", 1)).error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert [record.offset for record in (await one.fetch("t", 2)).records][-1] == 2


async def test_the_log_start_never_goes_back(one):
    assert await delete(one, "t", 2) == (0, 2)
    assert await delete(one, "t", 1) == (0, 2)
    assert await delete(one, "t", 0) == (0, 2)


async def test_minus_one_deletes_up_to_the_high_watermark(one):
    assert await delete(one, "t", -1) == (0, 3)
    assert (await one.produce("t", batch(b"d"))).base_offset == 3


@pytest.mark.parametrize("offset", [4, -2])
async def test_offsets_outside_of_the_log_are_refused(one, offset):
    assert await delete(one, "t", offset) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)


async def test_each_partition_has_its_own_error(one, world):
    world.topic("c", **{"cleanup.policy": "compact"})
    await one.opened("c")
    assert await delete(one, "c", 0) == (ErrorCode.POLICY_VIOLATION, -1)
    assert await delete(one, "u", 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert await delete(one, "t", 0, index=1) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert await delete(one, "__consumer_offsets", 0) == (ErrorCode.INVALID_TOPIC_EXCEPTION, -1)
    one.is_unsure = True
    assert await delete(one, "t", 1) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_a_lost_answer_of_the_controller_loses_no_log_start(one, world, monkeypatch):
    async def lost(request, *, timeout_s=0):
        world.run(real(world.image, request))
        raise TimeoutError("no answer")

    from controller.managers.streams import trim_stream as real

    async def silent(request, *, timeout_s=0):
        raise TimeoutError("no answer")

    monkeypatch.setattr(world, "trim_stream", silent)
    assert await delete(one, "t", 1) == (ErrorCode.REQUEST_TIMED_OUT, -1)
    monkeypatch.setattr(world, "trim_stream", lost)
    assert await delete(one, "t", 2) == (0, 2), "the metadata show it"
    found = await one.fetch("t", 1)
    assert (found.error, found.log_start) == (ErrorCode.OFFSET_OUT_OF_RANGE, 2)


async def test_producers_are_remembered_though_all_their_records_are_gone(one, world):
    assert await delete(one, "t", -1) == (0, 3)
    await one.crash()
    other = await world.broker(2)
    await world.fail_over(one, other)
    world.lead("t", other)
    await other.opened("t")
    repeated = await other.produce("t", idempotent(0, b"a", b"b", b"c", pid=7))
    assert (repeated.error_code, repeated.base_offset) == (0, 0)
    assert (await other.produce("t", idempotent(3, b"d", pid=7))).base_offset == 3
    await other.close()


async def test_records_of_an_open_transaction_can_be_deleted(one):
    await one.produce("t", transactional(8, 0, b"x", b"y"))
    assert await delete(one, "t", -1) == (0, 5)
    assert (await one.opened("t")).last_stable_offset == 5
    await one.produce("t", transactional(8, 2, b"z"))
    assert await one.mark("t", 8, commit=False) == 0
    await one.produce("t", batch(b"e"))
    assert await one.committed("t", 5) == [b"e"]


async def test_a_request_for_many_partitions_flushes_once(one, world, monkeypatch):
    world.topic("m", 3)
    for index in range(3):
        await one.opened("m", index)
        await one.produce("m", batch(b"a", b"b"), index=index)
    flushes = []
    real = one.storage.flush

    async def counted():
        flushes.append(None)
        await real()

    monkeypatch.setattr(one.storage, "flush", counted)
    wanted = [wire.DeleteRecordsPartition(index, index) for index in range(4)]
    context = one.context(
        apis.DELETE_RECORDS,
        2,
        wire.DeleteRecordsRequest([wire.DeleteRecordsTopic("m", wanted)], 5_000),
    )
    answer = one.answer(apis.DELETE_RECORDS, 2, await handle_delete_records(one, context))
    found = [(item.error_code, item.low_watermark) for item in answer.topics[0].partitions]
    assert found == [(0, 0), (0, 1), (0, 2), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    assert len(flushes) == 1
