"""A partition over real storage: appends, closing and opening, crash and recovery, moves, and
idempotence across all of them.
"""

import asyncio

import msgspec
import pytest

from penstock.broker.network.dispatcher import CannotRespond
from penstock.broker.partition.log import LogConfig
from penstock.broker.partition.manager import PartitionStates
from penstock.broker.partition.opener import PartitionOpener
from penstock.broker.partition.partition import Partition
from penstock.broker.partition.producer_state import ProducerState
from penstock.controller.metadata.records import PartitionRecord
from penstock.protocol.error_codes import ErrorCode
from tests.support.partition_harness import NOW, batch, idempotent
from tests.support.waiting import until
from tests.unit.broker.test_log_cleaning import cleaner_of


def state_of(partition):
    log = partition.log
    return msgspec.msgpack.encode(log.producers.snapshot(log.data.next_offset)), list(
        log.epochs.entries
    )


async def test_acknowledged_records_can_be_read(harness, one):
    harness.topic("t")
    assert (await one.produce("t", batch(b"a", b"b"))).base_offset == 0
    response = await one.produce("t", batch(b"c"))
    assert (
        response.error_code,
        response.base_offset,
        response.log_start_offset,
        response.log_append_time_ms,
    ) == (0, 2, 0, -1)
    found = await one.fetch("t")
    assert found.values == [b"a", b"b", b"c"]
    assert [record.offset for record in found.records] == [0, 1, 2]
    assert found.high_watermark == 3


async def test_producer_state_is_kept_for_24_hours_however_many_others_write(harness, pair):
    """It survives log compaction, a move with a checkpoint, and a failover that replays the log."""
    one, two = pair
    harness.topic("t", **{"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"})
    partition = await harness.hand_over("t", one)
    assert (await one.produce("t", idempotent(0, b"first"))).base_offset == 0
    for pid in range(1_000, 11_200):
        assert (await one.produce("t", idempotent(0, b"other", pid=pid))).error_code == 0
    await one.partitions.checkpoint_durably(partition)
    await one.storage.upload()
    duty = cleaner_of(one)
    await duty.check()
    assert duty.removed_records == 10_200
    assert (await one.produce("t", idempotent(0, b"first"))).base_offset == 0
    moved = await harness.hand_over("t", two)
    assert (await two.produce("t", idempotent(0, b"first"))).base_offset == 0
    assert (await two.produce("t", idempotent(0, b"late", pid=9))).error_code == 0
    await two.crash()
    await harness.fail_over(two, one)
    recovered = await harness.hand_over("t", one)
    for pid, offset in ((42, 0), (1_000, 1), (11_199, 10_200), (9, 10_201)):
        value = {42: b"first", 9: b"late"}.get(pid, b"other")
        assert (await one.produce("t", idempotent(0, value, pid=pid))).base_offset == offset
    assert recovered.log_end_offset == 10_202
    assert (len(moved.log.producers), one.partitions.producers().dropped) == (10_202, 0)
    harness.now_ms += 86_400_001
    await one.partitions.checkpoint_durably(recovered)
    assert one.partitions.producers().total == 0


async def test_producers_above_the_limit_are_evicted_and_reported():
    state = ProducerState(3)
    for pid in range(5):
        state.record(
            pid, 0, 0, 1, base_offset=pid, end_offset=pid + 1, now_ms=NOW, transactional=pid == 0
        )
        state.snapshot(pid + 1)
    assert (list(state), state.dropped_count) == ([0, 3, 4], 2)


async def test_a_repeated_batch_gets_its_old_offset_after_closing_and_opening(harness, one):
    harness.topic("t")
    for at in range(7):
        assert (await one.produce("t", idempotent(at, b"%d" % at))).base_offset == at
    two = await harness.broker(2)
    moved = await harness.hand_over("t", two)
    assert moved.log_end_offset == 7
    assert (await two.produce("t", idempotent(6, b"6"))).base_offset == 6
    assert (await two.produce("t", idempotent(3, b"3"))).base_offset == 3
    assert (
        await two.produce("t", idempotent(0, b"0"))
    ).error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    assert (
        await two.produce("t", idempotent(9, b"9"))
    ).error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await two.produce("t", idempotent(7, b"7"))).base_offset == 7
    assert (await two.values("t")) == [b"%d" % at for at in range(8)]
    assert (
        await one.produce("t", idempotent(8, b"8"))
    ).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_crash_neither_loses_nor_duplicates_acknowledged_records(harness, one):
    harness.topic("t")
    for at in range(4):
        await one.produce("t", idempotent(at, b"%d" % at))
    before = state_of(await one.opened("t"))
    await one.crash()
    two = await harness.broker(2)
    await harness.fail_over(one, two)
    partition = await two.opened("t")
    producers, epochs = state_of(partition)
    assert producers == before[0]
    assert epochs == [*before[1], (1, 4)]
    assert (await two.produce("t", idempotent(3, b"3"))).base_offset == 3
    assert (await two.produce("t", idempotent(4, b"4"))).base_offset == 4
    assert (await two.values("t")) == [b"%d" % at for at in range(5)]


async def test_partitions_with_the_longest_replay_are_checkpointed_first(harness, one):
    harness.topic("t", partitions=3)
    partitions = [await one.opened("t", index) for index in range(3)]
    for index, count in enumerate((1, 8, 4)):
        for _ in range(count):
            await one.produce("t", batch(b"x" * 1_000), index)
    total_bytes = sum(partition.log.dirty_bytes for partition in partitions)
    assert (
        PartitionOpener(
            one.storage, one.now_ms, LogConfig(checkpoint_bytes=total_bytes + 1)
        ).due_checkpoints(partitions)
        == []
    )
    assert PartitionOpener(
        one.storage, one.now_ms, LogConfig(checkpoint_bytes=total_bytes)
    ).due_checkpoints(partitions) == [partitions[1]]


async def test_producer_state_expires_after_the_configured_time(harness, one):
    harness.topic("t")
    partition = await one.opened("t")
    repeated = idempotent(0, b"a")
    assert (await one.produce("t", repeated)).base_offset == 0
    harness.now_ms += 2_000
    for silent_ms, offset in ((2_000, 0), (1_999, 1)):
        one.partitions.reconfigure(producer_silent_ms=silent_ms)
        await one.partitions.checkpoint_durably(partition)
        assert (await one.produce("t", repeated)).base_offset == offset


async def test_checkpoints_of_many_partitions_yield_to_the_event_loop(harness, one):
    """A closing partition gets no checkpoint: its next leader may have started."""
    harness.topic("t", partitions=300)
    partitions = list(await asyncio.gather(*(one.opened("t", index) for index in range(300))))
    await one.start_produce({("t", index): batch(b"x") for index in range(300)})
    still_dirty: list[int] = []

    def note_dirty():
        still_dirty.append(sum(partition.log.is_dirty for partition in partitions))
        if len(still_dirty) == 1:
            partitions[-1].accepts_records = False
        asyncio.get_running_loop().call_soon(note_dirty)

    note_dirty()
    await one.partitions._opener.checkpoint(partitions)
    assert {300, 200, 100, 1} <= set(still_dirty)
    partitions[-1].accepts_records = True


async def test_recovery_after_a_checkpoint_equals_the_live_state(harness, one):
    harness.topic("t")
    partition = await one.opened("t")
    for at in range(3):
        await one.produce("t", idempotent(at, b"x", pid=1))
    await one.partitions.checkpoint_durably(partition)
    for at in range(3):
        await one.produce("t", idempotent(at, b"y", pid=2))
        await one.produce("t", batch(b"plain"))
    await one.produce("t", idempotent(3, b"x", pid=1))
    before = state_of(partition)
    await one.crash()
    two = await harness.broker(2)
    await harness.fail_over(one, two)
    restored = await two.opened("t")
    assert state_of(restored)[0] == before[0]
    assert restored.log.dirty_bytes > 0
    await two.close()
    three = await harness.broker(3)
    clean = await harness.hand_over("t", three)
    assert state_of(clean)[0] == before[0]
    assert clean.log.dirty_bytes == 0


async def test_a_repeated_batch_waits_until_the_first_copy_is_durable(harness, one):
    harness.topic("t")
    await one.opened("t")
    one.storage.stop_acknowledging()
    first = one.start_produce({("t", 0): idempotent(0, b"a")})
    again = one.start_produce({("t", 0): idempotent(0, b"a")})
    await asyncio.sleep(0.05)  # time in which neither of them may get a response
    assert not first.done()
    assert not again.done()
    assert (await one.fetch("t")).values == []
    one.storage.resume_acknowledging()
    assert [response["t", 0].base_offset for response in await asyncio.gather(first, again)] == [
        0,
        0,
    ]


async def test_a_request_is_appended_as_one_group_with_an_error_per_partition(harness, one):
    harness.topic("t", partitions=3)
    harness.topic("small", **{"max.message.bytes": "100"})
    for index in range(3):
        await one.opened("t", index)
    await one.opened("small")
    corrupt = bytearray(batch(b"x"))
    corrupt[-1] ^= 1
    parts = {
        ("t", 0): batch(b"a"),
        ("t", 1): bytes(corrupt),
        ("t", 2): batch(b"b", b"c"),
        ("t", 9): batch(b"d"),
        ("no", 0): batch(b"e"),
        ("small", 0): batch(b"v" * 200),
    }
    response = await one.start_produce(parts)
    codes = {place: result.error_code for place, result in response.items()}
    assert codes == {
        ("t", 0): 0,
        ("t", 1): ErrorCode.CORRUPT_MESSAGE,
        ("t", 2): 0,
        ("t", 9): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("no", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("small", 0): ErrorCode.MESSAGE_TOO_LARGE,
    }
    assert [(await one.fetch("t", index=index)).values for index in range(3)] == [
        [b"a"],
        [],
        [b"b", b"c"],
    ]
    harness.configure("small", "max.message.bytes", "1000")
    assert (await one.produce("small", batch(b"v" * 200))).error_code == 0


async def test_log_append_time_is_written_into_the_batch(harness, one):
    harness.topic("t", **{"message.timestamp.type": "LogAppendTime"})
    response = await one.produce("t", batch(b"a", timestamp=5))
    assert response.log_append_time_ms == NOW
    assert (await one.fetch("t")).records[0].timestamp_ms == NOW


async def test_a_repeated_batch_gets_the_append_time_of_the_original(harness, pair):
    """The next leaders return it, too: from the checkpoint or from the log."""
    one, two = pair
    harness.topic("t")
    await harness.hand_over("t", one)
    responses = [(await one.produce("t", idempotent(0, b"a", pid=7))).log_append_time_ms]
    harness.configure("t", "message.timestamp.type", "LogAppendTime")
    times = [harness.now_ms]
    responses += [(await one.produce("t", idempotent(0, b"b"))).log_append_time_ms]
    harness.now_ms += 1_000
    responses += [(await one.produce("t", idempotent(0, b"b"))).log_append_time_ms]
    await harness.hand_over("t", two)
    responses += [(await two.produce("t", idempotent(0, b"b"))).log_append_time_ms]
    times += [harness.now_ms]
    responses += [(await two.produce("t", idempotent(1, b"c"))).log_append_time_ms]
    await two.crash()
    await harness.fail_over(two, one)
    harness.now_ms += 1_000
    await harness.hand_over("t", one)
    for pid, sequence, value in ((42, 0, b"b"), (42, 1, b"c"), (7, 0, b"a")):
        response = await one.produce("t", idempotent(sequence, value, pid=pid))
        assert response.error_code == 0
        responses.append(response.log_append_time_ms)
    assert responses == [-1, *times[:1] * 3, times[1], *times, -1]


@pytest.mark.parametrize("acks", [2, -2])
async def test_invalid_acks_are_rejected(acks, harness, one):
    harness.topic("t")
    assert (
        await one.produce("t", batch(b"a"), acks=acks)
    ).error_code == ErrorCode.INVALID_REQUIRED_ACKS


async def test_acks_zero_gets_no_response_and_acks_one_waits_for_durability(harness, one):
    harness.topic("t")
    await one.opened("t")
    one.storage.stop_acknowledging()
    assert await one.start_produce({("t", 0): batch(b"a")}, acks=0) is None
    pending = one.start_produce({("t", 0): batch(b"b")}, acks=1)
    await asyncio.sleep(0.02)  # time in which it may not get a response
    assert not pending.done()
    one.storage.resume_acknowledging()
    assert (await pending)["t", 0].base_offset == 1
    assert (await one.fetch("t")).values == [b"a", b"b"]


async def test_without_a_session_produce_requests_get_not_leader(harness, one):
    harness.topic("t")
    partition = await one.opened("t")
    one.writable = False
    with pytest.raises(CannotRespond):
        await one.produce("t", batch(b"a"))
    assert partition.log_end_offset == 0


async def test_a_failed_wal_returns_a_retriable_error_and_never_an_offset(harness, one):
    harness.topic("t")
    await one.opened("t")
    one.storage.stop_acknowledging()
    pending = one.start_produce({("t", 0): batch(b"a")})

    async def is_in_the_store():
        return [info async for info in harness.store.list("wal/")]

    await until(is_in_the_store)
    await one.crash()
    response = (await pending)["t", 0]
    assert (response.error_code, response.base_offset) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)


async def test_requests_for_an_opening_partition_keep_their_order(harness, one):
    harness.refusing_opens = 2
    harness.topic("t")
    pending = [one.start_produce({("t", 0): idempotent(at, b"%d" % at)}) for at in range(5)]
    assert one.partitions.get("t", 0) is ErrorCode.LEADER_NOT_AVAILABLE
    responses = await asyncio.gather(*pending)
    assert [response["t", 0].base_offset for response in responses] == [0, 1, 2, 3, 4]


async def test_requests_get_a_retriable_error_if_the_partition_does_not_open_in_time(harness, one):
    harness.refusing_opens = 1000
    harness.topic("t")
    response = await one.produce("t", batch(b"a"), timeout_ms=20)
    assert response.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    harness.refusing_opens = 0
    await one.opened("t")
    assert (await one.fetch("t")).values == []


async def test_opening_and_closing_many_partitions_is_batched(harness, one):
    harness.topic("t", partitions=600)
    await asyncio.gather(*(one.opened("t", index) for index in range(600)))
    assert harness.open_requests == 2
    await one.start_produce({("t", index): batch(b"x") for index in range(600)})
    await one.close()
    assert not harness.image.streams.opened_by(one.me)
    assert len(harness.image.objects) <= 4
    two = await harness.broker(2)
    for index in range(600):
        harness.lead("t", two, index)
    await asyncio.gather(*(two.opened("t", index) for index in range(600)))
    assert all(partition.log.dirty_bytes == 0 for partition in two.partitions)
    assert (await two.fetch("t", index=599)).values == [b"x"]


async def test_a_broker_that_regains_the_leadership_serves_the_partition(harness, pair):
    one, two = pair
    harness.topic("t")
    leader = one if harness.record("t").leader == 1 else two
    other = two if leader is one else one
    await leader.produce("t", batch(b"a"))
    events = []
    leader.partitions.add_leader_change_listener(lambda *event: events.append(event))
    harness.lead("t", other)
    harness.lead("t", leader)
    assert leader.partitions.get("t", 0) is ErrorCode.LEADER_NOT_AVAILABLE
    partition = await leader.opened("t")
    assert partition.leader_epoch == harness.record("t").leader_epoch
    assert (await leader.values("t")) == [b"a"]
    assert events == [("t", 0, True), ("t", 0, False), ("t", 0, True)]


async def test_the_second_next_leader_accepts_requests_if_the_first_one_is_dead(harness):
    """The first candidate died after the leader. If the response were that the partition is
    opening, fetches would retry at once, without waiting.
    """
    one, two, three = [await harness.broker(number) for number in (1, 2, 3)]
    harness.topic("t")
    old = harness.record("t")
    harness.apply(
        [
            PartitionRecord(
                old.topic_id,
                0,
                (1, 2, 3),
                one.me.node_id,
                one.me.node_epoch,
                old.leader_epoch + 1,
                *old.stream_ids,
            )
        ]
    )
    await one.opened("t")
    harness.fence(one)
    harness.fence(two)
    assert three.partitions.get("t", 0) is ErrorCode.LEADER_NOT_AVAILABLE
    assert three.partitions.states().awaited == 1
    assert (await three.fetch("t", max_wait_ms=20)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    await asyncio.gather(two.crash(), three.close(), one.crash())


async def test_a_broker_that_no_longer_follows_the_metadata_returns_not_leader(harness, one):
    await one.partitions.abandon()
    harness.topic("t")
    assert one.partitions.get("t", 0) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    await one.storage.abandon()


async def test_a_deleted_topic_is_closed_and_a_new_one_with_its_name_is_empty(harness, one):
    harness.topic("t")
    await one.produce("t", batch(b"a"))
    pending = asyncio.ensure_future(one.fetch("t", offset=1, max_wait_ms=30_000))
    await asyncio.sleep(0)
    harness.delete("t")
    assert (await pending).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    harness.topic("t")
    await one.opened("t")
    found = await one.fetch("t")
    assert (found.error, found.values, found.high_watermark) == (0, [], 0)
    assert (await one.produce("t", batch(b"b"))).base_offset == 0


async def test_meta_streams_are_trimmed(harness, one):
    harness.topic("t")
    partition = await one.opened("t")
    for at in range(120):
        await one.produce("t", idempotent(at, b"x"))
        await one.partitions._opener.checkpoint([partition])
    await one.storage.flush()
    meta = partition.log.meta.handle
    assert meta.next_offset - meta.start_offset < 120
    assert harness.image.streams.get(meta.stream_id).start_offset > 0
    await one.close()
    two = await harness.broker(2)
    harness.lead("t", two)
    assert (await two.opened("t")).log.dirty_bytes == 0
    assert (await two.produce("t", idempotent(119, b"x"))).base_offset == 119


async def test_a_closing_broker_commits_everything_it_has_appended(harness, pair):
    one, two = pair
    harness.topic("t")
    leader, other = (one, two) if harness.record("t").leader == 1 else (two, one)
    await leader.opened("t")
    pending = [leader.start_produce({("t", 0): idempotent(at, b"%d" % at)}) for at in range(20)]
    harness.lead("t", other)
    responses = [(await response)["t", 0] for response in pending]
    assert [response.base_offset for response in responses] == list(range(20))
    assert (await other.opened("t")).log_end_offset == 20
    assert isinstance(other.partitions.get("t", 0), Partition)
    assert leader.partitions.states() == PartitionStates()
