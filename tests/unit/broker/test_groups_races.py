"""Commits, deletions, expiry and compaction while appends are in flight: the visible offsets equal
those that the next coordinator loads.
"""

import asyncio
import itertools
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.broker.coordination.compaction import CompactionLimits
from penstock.broker.coordination.log import TransactionalProducer
from penstock.broker.groups.classic.model import GroupLimits
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.offsets.offsets import GroupOffsets, TopicPartition
from penstock.broker.groups.offsets.records import CommittedOffset
from penstock.protocol.error_codes import ErrorCode
from tests.support.coordinator_log import MemoryLog

NOW_MS = 1_700_000_000_000
OLD_MS = NOW_MS - GroupLimits().offsets_retention_ms - 1
EAGER = CompactionLimits(
    log_bytes_min=1, factor=1, slice_count=1, slices_in_flight_max=2, wait_s=0.1, retry_interval_s=0
)
KEY = ("t", 0)
ANYBODY = ("", None, -1)


async def coordinator_on(
    log: MemoryLog, compaction: CompactionLimits | None = None
) -> GroupCoordinator:
    coordinator = GroupCoordinator(
        log, GroupLimits(), now_ms=lambda: NOW_MS, new_member_id=str, compaction=compaction
    )
    for partition in range(log.partition_count):
        coordinator.partition_opened(partition)
    while coordinator.fetch_offsets("g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # noqa: ASYNC110
        await asyncio.sleep(0)
    return coordinator


def visible(coordinator: GroupCoordinator) -> dict[TopicPartition, int]:
    found = coordinator.fetch_offsets("g")
    assert isinstance(found, GroupOffsets), found
    return {key: value.offset for key, value in found.committed.items()}


async def after_a_reload(log: MemoryLog) -> dict[TopicPartition, int]:
    coordinator = await coordinator_on(log)
    found = visible(coordinator)
    coordinator.close()
    return found


async def committing(
    coordinator: GroupCoordinator, offset: int, commit_ms: int = NOW_MS, key: TopicPartition = KEY
) -> asyncio.Task[ErrorCode]:
    """Start a commit; return once it is appended or rejected."""

    async def commit() -> ErrorCode:
        return (
            await coordinator.commit_offsets(
                "g", "", None, -1, {key: CommittedOffset(offset, -1, "", commit_ms)}
            )
        )[key]

    task = asyncio.create_task(commit())
    await asyncio.sleep(0)
    return task


async def deleting(coordinator: GroupCoordinator) -> asyncio.Task[ErrorCode]:
    task = asyncio.create_task(coordinator.delete_group("g"))
    await asyncio.sleep(0)
    return task


async def deleting_offset(
    coordinator: GroupCoordinator, key: TopicPartition = KEY
) -> asyncio.Task[dict[TopicPartition, ErrorCode] | ErrorCode]:
    task = asyncio.create_task(coordinator.delete_offsets("g", [key]))
    await asyncio.sleep(0)
    return task


async def staging(
    coordinator: GroupCoordinator, offset: int
) -> asyncio.Task[dict[TopicPartition, ErrorCode]]:
    offsets = {KEY: CommittedOffset(offset, -1, "", NOW_MS)}
    task = asyncio.create_task(
        coordinator.commit_transactional_offsets("g", ANYBODY, TransactionalProducer(7, 0), offsets)
    )
    await asyncio.sleep(0)
    return task


async def test_deleting_an_offset_in_flight_keeps_a_later_commit() -> None:
    log = MemoryLog(1)
    coordinator = await coordinator_on(log)
    assert await (await committing(coordinator, 1, key=("t", 1))) is ErrorCode.NONE
    log.hold = True
    commit, deletion = await committing(coordinator, 2), await deleting_offset(coordinator)
    log.release(count=1)
    assert visible(coordinator) == {("t", 1): 1, KEY: 2}
    assert not deletion.done(), "the response waits for the tombstone"
    log.release()
    assert (await commit, await deletion) == (ErrorCode.NONE, {KEY: ErrorCode.NONE})
    assert visible(coordinator) == await after_a_reload(log) == {("t", 1): 1}
    log.hold = True
    deletion = await deleting_offset(coordinator, ("t", 1))
    commit = await committing(coordinator, 3, key=("t", 1))
    log.release()
    assert (await commit, await deletion) == (ErrorCode.NONE, {("t", 1): ErrorCode.NONE})
    assert visible(coordinator) == await after_a_reload(log) == {("t", 1): 3}
    coordinator.close()


async def test_a_deleted_pending_offset_does_not_reappear() -> None:
    for is_first in (True, False):
        log = MemoryLog(1)
        coordinator = await coordinator_on(log)
        assert await (await committing(coordinator, 1)) is ErrorCode.NONE
        log.hold = True
        if is_first:
            staged, deletion = await staging(coordinator, 9), await deleting_offset(coordinator)
        else:
            deletion, staged = await deleting_offset(coordinator), await staging(coordinator, 9)
        log.release()
        assert (await staged, await deletion) == ({KEY: ErrorCode.NONE}, {KEY: ErrorCode.NONE})
        assert visible(coordinator) == await after_a_reload(log) == {}
        log.append_marker(
            0,
            7,
            committed=True,
            done=lambda _, coordinator=coordinator: coordinator.complete_transaction(0, 7, True),
        )
        log.release()
        expected = {} if is_first else {KEY: 9}
        assert visible(coordinator) == await after_a_reload(log) == expected
        coordinator.close()


async def test_an_offset_with_a_commit_in_flight_does_not_expire() -> None:
    log = MemoryLog(1)
    coordinator = await coordinator_on(log)
    first = await committing(coordinator, 1, OLD_MS)
    assert await first is ErrorCode.NONE
    log.hold = True
    second = await committing(coordinator, 2)
    coordinator.expire()
    log.release()
    assert await second is ErrorCode.NONE
    assert visible(coordinator) == await after_a_reload(log) == {KEY: 2}
    coordinator.close()


async def test_a_commit_after_the_expiry_of_its_group_is_visible() -> None:
    log = MemoryLog(1)
    coordinator = await coordinator_on(log)
    assert await (await committing(coordinator, 1, OLD_MS)) is ErrorCode.NONE
    log.hold = True
    coordinator.expire()
    commit = await committing(coordinator, 2)
    log.release(count=1)
    log.release()
    assert await commit is ErrorCode.NONE
    assert visible(coordinator) == await after_a_reload(log) == {KEY: 2}
    coordinator.close()


async def test_a_commit_in_flight_is_deleted_with_its_group() -> None:
    log = MemoryLog(1)
    coordinator = await coordinator_on(log)
    assert await (await committing(coordinator, 1, key=("t", 1))) is ErrorCode.NONE
    log.hold = True
    commit, deletion = await committing(coordinator, 2), await deleting(coordinator)
    log.release()
    assert (await commit, await deletion) == (ErrorCode.NONE, ErrorCode.NONE)
    assert visible(coordinator) == await after_a_reload(log) == {}
    coordinator.close()


async def test_a_commit_after_the_deletion_of_its_group_is_visible() -> None:
    log = MemoryLog(1)
    coordinator = await coordinator_on(log)
    assert await (await committing(coordinator, 1)) is ErrorCode.NONE
    log.hold = True
    deletion, commit = await deleting(coordinator), await committing(coordinator, 2)
    log.release(count=1)
    assert await deletion is ErrorCode.NONE
    log.release()
    assert await commit is ErrorCode.NONE
    assert visible(coordinator) == await after_a_reload(log) == {KEY: 2}
    coordinator.close()


async def test_transactional_offsets_after_a_deletion_are_visible_after_the_marker() -> None:
    log = MemoryLog(1)
    coordinator = await coordinator_on(log)
    assert await (await committing(coordinator, 1)) is ErrorCode.NONE
    log.hold = True
    deletion = await deleting(coordinator)
    producer = TransactionalProducer(7, 0)
    staged = asyncio.create_task(
        coordinator.commit_transactional_offsets(
            "g", ANYBODY, producer, {KEY: CommittedOffset(9, -1, "", NOW_MS)}
        )
    )
    await asyncio.sleep(0)
    log.release(count=1)
    log.release()
    assert (await deletion, await staged) == (ErrorCode.NONE, {KEY: ErrorCode.NONE})
    log.append_marker(
        0, 7, committed=True, done=lambda _: coordinator.complete_transaction(0, 7, True)
    )
    log.release()
    assert visible(coordinator) == await after_a_reload(log) == {KEY: 9}
    coordinator.close()


steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["commit", "old commit"]), st.integers(0, 2)),
        st.tuples(st.sampled_from(["stage", "delete offset"]), st.integers(0, 2)),
        st.tuples(
            st.sampled_from(
                ["commit transaction", "abort transaction", "delete", "expire", "turn"]
            ),
            st.just(0),
        ),
        st.tuples(st.just("release"), st.integers(1, 3)),
    ),
    max_size=40,
)


@settings(deadline=None)
@given(steps)
def test_visible_entries_equal_those_of_a_reload(actions: list[tuple[str, int]]) -> None:
    asyncio.run(_act(actions, itertools.count(1)))


async def _act(actions: list[tuple[str, int]], numbers: Iterator[int]) -> None:
    log = MemoryLog(1)
    coordinator = await coordinator_on(log, EAGER)
    log.hold = True
    producer, tasks = TransactionalProducer(7, 0), list[asyncio.Task[object]]()
    for action, at in actions:
        key = ("t", at)
        match action:
            case "commit" | "old commit":
                tasks.append(
                    await committing(
                        coordinator, next(numbers), OLD_MS if "old" in action else NOW_MS, key
                    )
                )
            case "stage":
                offsets = {key: CommittedOffset(next(numbers), -1, "", NOW_MS)}
                tasks.append(
                    asyncio.create_task(
                        coordinator.commit_transactional_offsets("g", ANYBODY, producer, offsets)
                    )
                )
            case "commit transaction" | "abort transaction":
                is_commit = action == "commit transaction"
                done = lambda _, is_commit=is_commit: coordinator.complete_transaction(  # noqa: E731
                    0, 7, is_commit
                )
                log.append_marker(0, 7, committed=is_commit, done=done)
            case "delete offset":
                tasks.append(await deleting_offset(coordinator, key))
            case "delete":
                tasks.append(await deleting(coordinator))
            case "expire":
                coordinator.expire()
            case "release":
                log.release(count=at)
        await asyncio.sleep(0)
    while not all(task.done() for task in tasks):
        log.release()
        await asyncio.sleep(0)
    log.release()
    assert visible(coordinator) == await after_a_reload(log)
    for _ in range(20):
        log.release()
        await asyncio.sleep(0)
        assert visible(coordinator) == await after_a_reload(log)
    coordinator.close()
