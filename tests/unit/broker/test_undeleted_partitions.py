"""How brokers handle partitions of a topic that is deleted and restored."""

import asyncio

import pytest

from penstock.broker.errors import ErrorCode
from tests.support.partition_harness import batch, idempotent, transactional
from tests.support.waiting import until

GRACE_MS = 60_000


@pytest.fixture
async def cluster(harness):
    return harness, await harness.broker(0), await harness.broker(1)


async def led(harness, leader):
    harness.topic("t")
    harness.lead("t", leader)
    return await leader.opened("t")


def has_open_stream(harness):
    return any(stream.opened for stream in harness.image.streams)


async def test_the_leader_commits_everything_when_its_topic_is_deleted(cluster):
    harness, leader, other = cluster
    await led(harness, leader)
    responses = [leader.start_produce({("t", 0): idempotent(n, b"%d" % n)}) for n in range(20)]
    await asyncio.gather(*responses[:10])
    harness.delete("t", GRACE_MS)
    late = await leader.produce("t", batch(b"late"))
    assert late.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    found = [response[("t", 0)] for response in await asyncio.gather(*responses)]
    await until(lambda: not has_open_stream(harness))
    harness.undelete("t", "u")
    await harness.hand_over("u", other)
    assert [item.error_code for item in found] == [0] * 20
    assert await other.values("u") == [b"%d" % n for n in range(20)]
    repeated = await other.produce("u", idempotent(19, b"19"))
    assert (repeated.error_code, repeated.base_offset) == (0, 19)
    assert (await other.produce("u", idempotent(20, b"20"))).base_offset == 20


async def test_no_record_is_lost_if_the_leader_dies_before_closing(cluster):
    harness, leader, other = cluster
    await led(harness, leader)
    for number in range(5):
        assert (await leader.produce("t", idempotent(number, b"%d" % number))).error_code == 0
    await leader.crash()
    harness.delete("t", GRACE_MS)
    harness.undelete("t", "t")
    assert harness.record("t").leader == -1
    await harness.fail_over(leader, other)
    assert harness.record("t").leader == other.me.node_id
    await other.opened("t")
    assert await other.values("t") == [b"%d" % number for number in range(5)]
    assert (await other.produce("t", idempotent(5, b"5"))).base_offset == 5


async def test_the_wal_of_a_deleted_topic_is_recovered_before_the_topic_is_restored(cluster):
    harness, leader, other = cluster
    await led(harness, leader)
    assert (await leader.produce("t", idempotent(0, b"0"))).error_code == 0
    await leader.crash()
    harness.delete("t", GRACE_MS)
    await harness.fail_over(leader, other)
    assert not has_open_stream(harness)
    harness.undelete("t", "t")
    await other.opened("t")
    assert await other.values("t") == [b"0"]


@pytest.mark.parametrize("dies", [False, True])
async def test_open_transactions_are_aborted_and_their_producers_fenced(cluster, dies):
    harness, leader, other = cluster
    await led(harness, leader)
    assert (await leader.produce("t", transactional(7, 0, b"open"))).error_code == 0
    assert (await leader.produce("t", transactional(8, 0, b"done"))).error_code == 0
    assert (await leader.mark("t", 8, commit=True)) == 0
    harness.delete("t", GRACE_MS)
    await until(lambda: not has_open_stream(harness))
    harness.undelete("t", "t")
    await harness.hand_over("t", leader)
    reader = leader
    if dies:
        await leader.crash()
        await harness.fail_over(leader, other)
        harness.lead("t", other)
        reader = other
        await other.opened("t")
    refused = await reader.produce("t", transactional(7, 1, b"more"))
    assert refused.error_code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await reader.produce("t", transactional(8, 1, b"next"))).error_code == 0
    assert (await reader.mark("t", 8, commit=True)) == 0
    assert (await reader.produce("t", transactional(7, 0, b"anew", epoch=1))).error_code == 0
    assert (await reader.mark("t", 7, 1, commit=True)) == 0
    assert await reader.committed("t") == [b"done", b"next", b"anew"]


async def test_only_transactions_open_at_the_deletion_are_aborted(cluster):
    harness, leader, other = cluster
    await led(harness, leader)
    assert (await leader.produce("t", batch(b"before"))).error_code == 0
    harness.delete("t", GRACE_MS)
    await until(lambda: not has_open_stream(harness))
    harness.undelete("t", "t")
    partition = await harness.hand_over("t", leader)
    assert (await leader.produce("t", transactional(7, 0, b"open", b"too"))).error_code == 0
    await leader.partitions.trim(partition, 2)
    await harness.hand_over("t", other)
    assert (await other.produce("t", transactional(7, 2, b"more"))).error_code == 0
    assert (await other.mark("t", 7, commit=True)) == 0
    assert await other.committed("t", 2) == [b"too", b"more"]


async def test_a_restored_topic_is_not_served_under_a_name_taken_by_a_new_topic(cluster):
    """The broker sees the deletion, the restoration and a new topic with that name at once."""
    harness, leader, _ = cluster
    noticing = await harness.broker(3, notice_ms=5_000)
    await led(harness, noticing)
    assert (await noticing.produce("t", batch(b"old"))).error_code == 0
    with harness.at_once():
        harness.delete("t", GRACE_MS)
        harness.undelete("t", "u")
        harness.topic("t")
        harness.lead("t", leader)
    response = await noticing.produce("t", batch(b"stray"))
    assert response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await until(lambda: harness.record("u").leader >= 0)
    by_id = {broker.me.node_id: broker for broker in cluster[1:]} | {3: noticing}
    there = by_id[harness.record("u").leader]
    await there.opened("u")
    assert await there.values("u") == [b"old"]
