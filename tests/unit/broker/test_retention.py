"""Log start offsets: retention by time and by size."""

from random import Random

import pytest

from penstock.base.ids import Millis, ObjectId, Offset
from penstock.broker.background.retention import RetentionDuty
from penstock.broker.partition.retention import Retention, allows_delete_records, retained_from
from penstock.controller.metadata.log_entry import LogEntry
from penstock.protocol.batch.header import merged_newest
from penstock.protocol.error_codes import ErrorCode
from tests.support.partition_harness import NOW, batch

DAY_MS = 86_400_000


def entries(*ranges):
    """Return ranges of 10 offsets: (size in bytes, newest timestamp)."""
    return [
        LogEntry(Offset(10 * at), Offset(10 * at + 10), ObjectId(at), 10, size, Millis(newest_ms))
        for at, (size, newest_ms) in enumerate(ranges)
    ]


def start_of(log, *, age_ms=-1, size_bytes=-1, committed_ms=NOW):
    return retained_from(log, Retention(age_ms, size_bytes), NOW, lambda _: committed_ms)


def test_ranges_are_deleted_when_their_newest_record_exceeds_the_retention_time():
    log = entries((1, NOW - 300), (1, NOW - 200), (1, NOW - 100))
    assert start_of(log, age_ms=200) == 10
    assert start_of(log, age_ms=199) == 20
    assert start_of(log, age_ms=0) == 30
    assert start_of(log, age_ms=300) is None
    assert start_of(log) is None


def test_an_old_range_after_a_newer_one_is_kept():
    assert start_of(entries((1, NOW), (1, NOW - 300)), age_ms=100) is None


def test_ranges_are_deleted_while_the_remaining_size_reaches_the_retention_size():
    log = entries((100, NOW), (50, NOW), (30, NOW))
    assert start_of(log, size_bytes=81) is None
    assert start_of(log, size_bytes=80) == 10
    assert start_of(log, size_bytes=31) == 10
    assert start_of(log, size_bytes=30) == 20
    assert start_of(log, size_bytes=0) == 30


def test_records_without_a_timestamp_have_the_age_of_their_object():
    log = entries((1, -1), (1, NOW))
    assert start_of(log, age_ms=100, committed_ms=NOW - 101) == 10
    assert start_of(log, age_ms=100, committed_ms=NOW - 100) is None


def test_a_range_emptied_by_log_compaction_does_not_keep_older_records():
    empty = LogEntry(Offset(0), Offset(10), ObjectId(9), 0, 61, Millis(-1))
    log = [empty, *entries((1, NOW), (1, NOW - 300), (1, NOW))[1:]]
    assert start_of(log, age_ms=200) == 20
    assert start_of(log, age_ms=300) is None
    assert start_of([empty], age_ms=0, size_bytes=0) is None


@pytest.mark.parametrize(
    ("known_ms", "committed_ms", "expected"),
    [
        (NOW + 50, NOW - 500, None),
        (NOW - 500, NOW - 50, None),
        (NOW - 500, NOW - 101, 10),
        (-1, NOW - 101, 10),
        (-1, NOW - 100, None),
    ],
)
def test_ranges_with_and_without_timestamps_are_deleted_when_both_are_old(
    known_ms, committed_ms, expected
):
    newest_ms = merged_newest([(known_ms, 1), (-1, 1)])
    log = entries((1, newest_ms), (1, NOW))
    assert start_of(log, age_ms=100, committed_ms=committed_ms) == expected


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, Retention(7 * DAY_MS, -1)),
        ({"retention.ms": "-1"}, Retention(-1, -1)),
        ({"retention.ms": "5", "retention.bytes": "6"}, Retention(5, 6)),
        ({"cleanup.policy": "compact", "retention.ms": "5"}, Retention(-1, -1)),
        ({"cleanup.policy": "compact,delete", "retention.ms": "5"}, Retention(5, -1)),
        ({"cleanup.policy": "", "retention.ms": "5"}, Retention(-1, -1)),
    ],
)
def test_the_retention_policy_comes_from_topic_configs(configs, expected):
    assert Retention.from_configs(configs) == expected
    assert allows_delete_records(configs) == (configs.get("cleanup.policy") != "compact")


# --- brokers --------------------------------------------------------------------------------------


async def written(harness, brokers, topic, *timestamps_ms):
    """Commit one range of two records for each timestamp. Returns the leader."""
    leader = brokers[0]
    for at, timestamp_ms in enumerate(timestamps_ms):
        leader = brokers[at % 2]
        await harness.hand_over(topic, leader)
        response = await leader.produce(topic, batch(b"a", b"b", timestamp=timestamp_ms))
        assert response.error_code == 0
    leader = brokers[len(timestamps_ms) % 2]
    await harness.hand_over(topic, leader)
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


async def test_a_check_trims_expired_records_and_reports_consumers(harness, pair):
    harness.topic("t")
    leader = await written(harness, pair, "t", NOW - 8 * DAY_MS, NOW - 6 * DAY_MS)
    duty = duty_of(leader)
    await duty.check()
    assert duty.trimmed_partitions == 1
    found = await leader.fetch("t")
    assert (found.error, found.log_start) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1)
    assert (await leader.fetch("t", 2)).log_start == 2
    assert (await leader.list_offsets("t", -2)).offset == 2
    assert (await leader.fetch("t", 2)).values == [b"a", b"b"]
    await duty.check()
    assert duty.trimmed_partitions == 1


async def test_a_changed_config_applies_from_the_next_check_on(harness, pair):
    harness.topic("t")
    leader = await written(harness, pair, "t", NOW, NOW)
    duty = duty_of(leader)
    await duty.check()
    assert (await leader.fetch("t")).log_start == 0
    harness.configure("t", "retention.bytes", "1")
    await duty.check()
    assert (await leader.fetch("t", 2)).log_start == 2
    harness.configure("t", "retention.bytes", "0")
    await duty.check()
    assert (await leader.fetch("t", 4)).log_start == 4


async def test_retention_does_not_apply_to_a_compacted_topic(harness, pair):
    harness.topic("t", **{"cleanup.policy": "compact", "retention.ms": "1"})
    partition = await harness.hand_over("t", pair[0])
    await duty_of(pair[0]).check()
    assert partition.log_start_offset == 0


async def test_a_partition_that_cannot_be_trimmed_does_not_stop_the_others(harness, pair):
    for name in ("s", "t"):
        harness.topic(name)
        await written(harness, pair, name, NOW - 8 * DAY_MS, NOW)
    leader = pair[0]
    partition = await leader.opened("s")
    harness.image.streams.known(partition.log.data.stream_id).epoch += 1
    duty = duty_of(leader)
    await duty.check()
    assert (duty.trimmed_partitions, duty.failed_partitions) == (1, 1)
    assert (await leader.fetch("t", 2)).log_start == 2
    harness.image.streams.known(partition.log.data.stream_id).epoch -= 1
