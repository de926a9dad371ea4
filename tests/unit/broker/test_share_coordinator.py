"""The share coordinator over an in-memory log: durability, failover, compaction, deleted topics."""

import asyncio
from collections.abc import Iterable
from uuid import UUID

import pytest

from penstock.broker.coordination.compaction import CompactionLimits
from penstock.broker.groups.share.state.coordinator import ShareCoordinator
from penstock.broker.groups.share.state.model import (
    ACKNOWLEDGED,
    AVAILABLE,
    NO_START_OFFSET,
    SharePartitionKey,
    ShareState,
    ShareStateError,
    StateBatch,
)
from penstock.protocol.error_codes import ErrorCode
from tests.support.waiting import until

TOPIC_ID = UUID(int=7)
KEY = SharePartitionKey("g", TOPIC_ID, 0)
DONE = StateBatch(0, 9, ACKNOWLEDGED, 1)


class Topics:
    def __init__(self) -> None:
        self.known = {TOPIC_ID: 64}
        self.frozen: set[UUID] = set()

    def is_gone(self, topic_id: UUID) -> bool:
        return topic_id not in self.known and topic_id not in self.frozen

    def partition_count(self, topic_id: UUID) -> int:
        return self.known.get(topic_id, 0)


@pytest.fixture
def topics():
    return Topics()


@pytest.fixture
async def start(log, topics):
    """Return a function that starts the next coordinator of the log and closes the one before."""
    started: list[ShareCoordinator] = []

    def begin(*, updates_max=500, compaction=None):
        if started:
            started.pop().close()
        coordinator = ShareCoordinator(
            log, topics, updates_max=updates_max, now_ms=lambda: 0, compaction=compaction
        )
        for partition in range(log.partition_count):
            coordinator.partition_opened(partition)
        started.append(coordinator)
        return coordinator

    yield begin
    started.pop().close()


@pytest.fixture
async def coordinator(start):
    """Return the first coordinator, with one state."""
    coordinator = start()
    await coordinator.initialize(KEY, state_epoch=1, start_offset=NO_START_OFFSET)
    return coordinator


def write(
    coordinator: ShareCoordinator,
    batches: Iterable[StateBatch] = (DONE,),
    *,
    key: SharePartitionKey = KEY,
    epoch: int = 1,
    leader: int = 1,
    start: int = 0,
) -> "asyncio.Future[None]":
    return coordinator.write(
        key,
        state_epoch=epoch,
        leader_epoch=leader,
        start_offset=start,
        delivery_complete_count=-1,
        batches=list(batches),
    )


async def refused(work) -> ErrorCode:
    with pytest.raises(ShareStateError) as raised:
        await work
    return raised.value.code


async def pending(*works) -> list[asyncio.Future]:
    """Start these calls, and let them run as far as they get."""
    tasks = [asyncio.ensure_future(work) for work in works]
    for _ in range(10):
        await asyncio.sleep(0)
    return tasks


async def test_responses_wait_until_their_dependencies_are_durable(log, coordinator):
    log.hold = True
    tasks = await pending(
        write(coordinator),
        coordinator.read(KEY, 1),
        coordinator.summary(KEY),
        coordinator.initialize(KEY, state_epoch=1, start_offset=NO_START_OFFSET),
    )
    assert not any(task.done() for task in tasks)
    log.release()
    await asyncio.gather(*tasks)
    assert tasks[1].result() == ShareState(1, 0, 1, (DONE,))


async def test_a_write_that_failed_is_rolled_back(log, coordinator):
    log.hold = True
    (task,) = await pending(write(coordinator))
    log.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert await refused(task) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    log.hold = False
    assert (await coordinator.read(KEY, 0)).batches == ()


async def test_an_immediately_rejected_write_is_rolled_back(log, coordinator):
    append, log.append = log.append, lambda *_, **__: _[2](ErrorCode.MESSAGE_TOO_LARGE)
    assert await refused(write(coordinator)) is ErrorCode.INVALID_REQUEST
    log.append = append
    assert (await coordinator.read(KEY, 0)).batches == ()


@pytest.mark.parametrize("exists", [True, False])
async def test_an_immediately_rejected_deletion_is_rolled_back(log, start, coordinator, exists):
    if not exists:
        await coordinator.delete(KEY, state_epoch=2)
    append, log.append = log.append, lambda *args, **_: args[2](ErrorCode.NOT_COORDINATOR)
    assert await refused(coordinator.delete(KEY, state_epoch=7)) is ErrorCode.NOT_COORDINATOR
    found = await coordinator.summary(KEY)
    assert (found.state_epoch, found.deleted_epoch) == ((1, -1) if exists else (0, 2))
    log.append = append
    await coordinator.delete(KEY, state_epoch=7)
    following = start()
    assert (await following.summary(KEY)).deleted_epoch == 7


async def test_the_next_coordinator_continues_with_the_same_states(start):
    coordinator = start(updates_max=2)
    await coordinator.initialize(KEY, state_epoch=1, start_offset=NO_START_OFFSET)
    for leader in range(1, 8):
        await write(coordinator, [StateBatch(leader, leader, AVAILABLE, leader)], leader=leader)
    before = await coordinator.read(KEY, 7)
    following = start()
    assert await following.read(KEY, 7) == before
    assert await refused(following.read(KEY, 6)) is ErrorCode.FENCED_LEADER_EPOCH
    assert await refused(write(following, leader=6)) is ErrorCode.FENCED_LEADER_EPOCH


async def test_a_read_fences_the_previous_leader_even_after_a_failover(start, coordinator):
    await coordinator.read(KEY, 9)
    following = start()
    assert await refused(write(following, leader=8)) is ErrorCode.FENCED_LEADER_EPOCH


async def test_a_coordinator_that_may_have_been_replaced_returns_nothing_from_memory(
    log, coordinator
):
    log.leads_alone = False
    for work in (
        coordinator.summary(KEY),
        coordinator.read(KEY, 0),
        coordinator.delete(SharePartitionKey("other", TOPIC_ID, 0)),
        write(coordinator, key=SharePartitionKey("other", TOPIC_ID, 0)),
        write(coordinator, epoch=0),
    ):
        assert await refused(work) is ErrorCode.NOT_COORDINATOR
    await write(coordinator)  # the fence in the WAL protects appended records
    log.can_write = False
    assert await refused(write(coordinator)) is ErrorCode.NOT_COORDINATOR


async def test_missing_partitions_and_coordinators_are_errors(log, start):
    log.partition_count = 1
    coordinator = start()
    beyond = SharePartitionKey("g", TOPIC_ID, 64)
    unknown = SharePartitionKey("g", UUID(int=8), 0)
    negative = SharePartitionKey("g", TOPIC_ID, -1)
    for key, code in (
        (beyond, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (unknown, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (negative, ErrorCode.INVALID_REQUEST),
    ):
        assert await refused(coordinator.initialize(key, state_epoch=1, start_offset=0)) is code
        assert await refused(coordinator.summary(key)) is code
    log.foreign.add(0)
    coordinator.partition_closed(0)
    assert await refused(coordinator.summary(KEY)) is ErrorCode.NOT_COORDINATOR
    log.partition_count = 0
    assert await refused(coordinator.summary(KEY)) is ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("updates_max", [0, 3, 500])
async def test_a_compacted_log_restores_all_states(log, start, updates_max):
    """Writes continue during compaction, also to the partition that is being copied."""
    log.partition_count = 1
    limits = CompactionLimits(
        log_bytes_min=4_000, factor=2, slice_count=2, slices_in_flight_max=2, retry_interval_s=0.01
    )
    coordinator = start(updates_max=updates_max, compaction=limits)
    keys = [SharePartitionKey(group, TOPIC_ID, index) for group in "ab" for index in range(5)]
    for key in keys:
        await coordinator.initialize(key, state_epoch=1, start_offset=0)
    gone = keys.pop()
    await coordinator.delete(gone)

    async def use(key: SharePartitionKey) -> None:
        for offset in range(60):
            batch = StateBatch(offset, offset, ACKNOWLEDGED, offset % 3)
            await write(coordinator, [batch], key=key, start=max(0, offset - 20))

    await asyncio.gather(*map(use, keys))
    await until(lambda: log.starts.get(0, 0) > 0)
    expected = [await coordinator.read(key, 1) for key in keys]
    following = start()
    assert [await following.read(key, 1) for key in keys] == expected
    assert await refused(following.read(gone, 1)) is ErrorCode.INVALID_REQUEST


async def test_states_of_deleted_topics_are_deleted(topics, coordinator):
    del topics.known[TOPIC_ID]
    topics.frozen.add(TOPIC_ID)
    coordinator.topics_changed([TOPIC_ID])
    topics.known[TOPIC_ID] = 64
    assert (await coordinator.summary(KEY)).state_epoch == 1, "it can be undeleted"
    del topics.known[TOPIC_ID]
    topics.frozen.clear()
    coordinator.topics_changed([TOPIC_ID])
    topics.known[TOPIC_ID] = 64
    assert (await coordinator.summary(KEY)).state_epoch == 0


async def test_states_of_a_topic_deleted_without_a_leader_are_deleted(
    log, topics, start, coordinator
):
    del topics.known[TOPIC_ID]
    appended = sum(map(len, log.durable.values()))
    start()
    await until(lambda: sum(map(len, log.durable.values())) > appended)


async def test_a_damaged_record_is_skipped(log, start, coordinator):
    await write(coordinator)
    for partition in range(log.partition_count):
        log.append(partition, [(b"\0\0\0\x05x", b""), (b"\0\x09", b"later")], lambda _: None)
    await asyncio.sleep(0)
    following = start()
    assert (await following.read(KEY, 1)).batches == (DONE,)
