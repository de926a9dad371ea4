"""Share groups at the group coordinator, over an in-memory log and in-memory states: joins,
sessions, initialization, failover, deletion.
"""

import asyncio
from typing import Any

import pytest

from penstock.broker.groups.classic.model import JoinRequest, Protocol
from penstock.broker.groups.common.model import (
    GroupState,
    GroupType,
    HeartbeatRefused,
    HeartbeatResult,
)
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.share.group import ShareGroup
from penstock.broker.groups.share.model import ShareHeartbeatRequest
from penstock.broker.groups.share.state.model import (
    NO_START_OFFSET,
    SharePartitionKey,
    ShareStateError,
    StateBatch,
)
from penstock.protocol.error_codes import ErrorCode
from tests.sim.loop import VirtualLoop
from tests.support.group_coordinators import TOPIC_ID, Coordinators, image_with
from tests.support.waiting import PATIENCE_S, until

ALL = {TOPIC_ID: frozenset(range(4))}


async def send(
    coordinator: GroupCoordinator, member_id: str, epoch: int, **fields: Any
) -> HeartbeatResult:
    await coordinator.ready("g")
    request = ShareHeartbeatRequest(member_id, epoch, **fields)
    return await coordinator.shares.heartbeat("g", request)


async def join(coordinator: GroupCoordinator, member_id: str) -> HeartbeatResult:
    return await send(coordinator, member_id, 0, subscribed_names=("t",))


def share_of(coordinator: GroupCoordinator) -> ShareGroup:
    group = coordinator.find("g", create=False)
    assert not isinstance(group, ErrorCode), group
    assert group.share is not None
    group.share.check_invariants()
    return group.share


async def joined(coordinator: GroupCoordinator, *member_ids: str) -> None:
    """Let members join, and send heartbeats until all partitions are assigned."""
    for member_id in member_ids:
        result = await join(coordinator, member_id)
        assert result.error is ErrorCode.NONE, result
    share = share_of(coordinator)
    await until(lambda: not share.partitions.initializing)
    for member_id in member_ids * 2:
        await send(coordinator, member_id, share.members[member_id].current.epoch)
    share.check_invariants()


async def test_partitions_are_assigned_once_they_have_a_state(states, coordinator):
    states.may_go_on.clear()
    first = await join(coordinator, "a")
    assert (first.member_epoch, first.assignment) == (1, {})
    again = await send(coordinator, "a", 1)
    assert (again.member_epoch, again.assignment) == (1, None)
    await until(lambda: states.calls == ["initialize"] * 4)
    await send(coordinator, "a", 1)
    states.may_go_on.set()
    await until(lambda: not share_of(coordinator).partitions.initializing)
    assert len(states.calls) == 4, "once for each partition"
    reported = await send(coordinator, "a", 1)
    assert (reported.member_epoch, reported.assignment) == (2, ALL)
    summary = states.states.summary(SharePartitionKey("g", TOPIC_ID, 0))
    assert (summary.state_epoch, summary.start_offset) == (1, NO_START_OFFSET)
    assert (await send(coordinator, "a", 2)).assignment is None


async def test_failed_initializations_are_retried(states, coordinator):
    states.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    await join(coordinator, "a")
    await until(lambda: not coordinator.shares.is_busy)
    assert share_of(coordinator).partitions.initialized == {}
    states.error = ErrorCode.NONE
    await send(coordinator, "a", 1)
    await until(lambda: bool(share_of(coordinator).partitions.initialized))
    assert (await send(coordinator, "a", 1)).assignment == ALL


async def test_the_next_coordinator_completes_an_initialization(states, coordinator, coordinators):
    states.may_go_on.clear()
    await join(coordinator, "a")
    states.calls = []
    following = await coordinators.next()
    assert share_of(following).partitions.initializing
    states.may_go_on.set()
    await send(following, "a", 1)
    await until(lambda: not share_of(following).partitions.initializing)
    assert states.calls == ["initialize"] * 4
    assert (await send(following, "a", 1)).assignment == ALL


async def test_a_failover_does_not_cause_a_rebalance(coordinator, coordinators):
    await joined(coordinator, "a", "b")
    before = share_of(coordinator)
    following = await coordinators.next()
    restored = share_of(following)
    assert restored is not before
    assert restored.members == before.members
    assert restored.targets == before.targets
    assert (restored.epoch, restored.partitions) == (before.epoch, before.partitions)
    for member_id, member in before.members.items():
        reported = await send(following, member_id, member.current.epoch)
        assert (reported.member_epoch, reported.assignment) == (member.current.epoch, None)


async def test_a_heartbeat_response_waits_for_durability(log, states, coordinator):
    task = await log.holding(join(coordinator, "a"))
    assert (task.done(), states.calls) == (False, [])
    log.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert (await task).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    log.hold = False
    assert (await send(coordinator, "a", 1)).error is ErrorCode.GROUP_ID_NOT_FOUND
    assert states.calls == [], "nothing that is not noted is initialized"
    await joined(coordinator, "a")


def test_silent_members_are_removed() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(remove_silent_members())


async def remove_silent_members() -> None:
    coordinator = await Coordinators().next(share={"session_timeout_ms": 1_000})
    await joined(coordinator, "a", "b")
    share = share_of(coordinator)
    members = set(share.members)

    async def beat() -> None:
        while "b" in share.members:
            await send(coordinator, "a", share.members["a"].current.epoch)
            await asyncio.sleep(0.01)

    await asyncio.wait_for(beat(), PATIENCE_S)
    assert members == {"a", "b"}
    reported = await send(
        coordinator, "a", share.members["a"].current.epoch, subscribed_names=("t",)
    )
    assert reported.assignment == ALL
    coordinator.close()


async def test_members_share_partitions(coordinators):
    coordinator = await coordinators.next(share={"members_max": 6})
    await joined(coordinator, *(f"m{number}" for number in range(6)))
    for member in share_of(coordinator).members.values():
        assert len(member.current.assigned[TOPIC_ID]) in {1, 2}
    assert (await join(coordinator, "more")).error is ErrorCode.GROUP_MAX_SIZE_REACHED


async def test_a_member_may_miss_several_responses(coordinator):
    await joined(coordinator, "a")
    epoch = share_of(coordinator).members["a"].current.epoch
    for number in range(3):
        await join(coordinator, f"m{number}")
        repeated = await send(coordinator, "a", epoch)
        assert (repeated.error, repeated.member_epoch) == (ErrorCode.NONE, epoch + number + 1)
    refused = await send(coordinator, "a", epoch - 1)
    assert refused.error is ErrorCode.FENCED_MEMBER_EPOCH


async def test_new_partitions_are_initialized_and_assigned(coordinator):
    await joined(coordinator, "a")
    coordinator.topics.reset(image_with(6))
    share = share_of(coordinator)
    await send(coordinator, "a", share.members["a"].current.epoch)
    await until(lambda: not share.partitions.initializing)
    await send(coordinator, "a", share.members["a"].current.epoch)
    assert share.members["a"].current.assigned == {TOPIC_ID: frozenset(range(6))}


async def test_a_deleted_topic_is_unassigned_and_its_group_becomes_stable(coordinator):
    await joined(coordinator, "a")
    coordinator.topics.reset(type(image_with(1))())
    share = share_of(coordinator)
    for _ in range(3):
        await send(coordinator, "a", share.members["a"].current.epoch)
    epoch = share.epoch
    assert (share.members["a"].current.assigned, share.partitions.initialized) == ({}, {})
    await send(coordinator, "a", epoch)
    assert share.epoch == epoch


async def test_deleting_a_group_deletes_its_states(states, coordinator, coordinators):
    await joined(coordinator, "a")
    assert await coordinator.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
    await send(coordinator, "a", -1)
    states.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await coordinator.delete_group("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.list_groups()[0].type is GroupType.SHARE, "it is still there"
    states.error = ErrorCode.NONE
    assert len(states.states) == 4
    assert await coordinator.delete_group("g") is ErrorCode.NONE
    assert len(states.states) == 0
    assert await coordinator.delete_group("g") is ErrorCode.GROUP_ID_NOT_FOUND
    following = await coordinators.next()
    assert following.list_groups() == []


async def test_the_next_coordinator_completes_a_deletion(states, coordinator, coordinators):
    await joined(coordinator, "a")
    await send(coordinator, "a", -1)
    states.may_go_on.clear()
    task = asyncio.create_task(coordinator.delete_group("g"))
    await until(lambda: "delete" in states.calls)
    task.cancel()
    coordinator.close()
    states.may_go_on.set()
    following = await coordinators.next()
    assert await following.delete_group("g") is ErrorCode.NONE
    assert len(states.states) == 0


async def test_a_group_whose_states_were_deleted_initializes_new_ones(states, coordinator):
    """A member joins after a deletion that failed halfway."""
    await joined(coordinator, "a")
    await send(coordinator, "a", -1)
    key = SharePartitionKey("g", TOPIC_ID, 0)
    states.states.write(
        key,
        state_epoch=1,
        leader_epoch=0,
        start_offset=5,
        delivery_complete_count=0,
        batches=[StateBatch(5, 9, 2, 1)],
        now_ms=0,
    )
    states.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert await coordinator.delete_group("g") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    states.error = ErrorCode.NONE
    await joined(coordinator, "b")
    assert share_of(coordinator).partitions.deleting == {}
    assert states.states.summary(key).start_offset == NO_START_OFFSET


async def test_a_new_group_starts_after_the_epoch_of_the_deleted_one(states, coordinator):
    """Therefore late requests of the deleted group do not affect it."""
    await joined(coordinator, "a", "b")
    for member_id in "ab":
        await send(coordinator, member_id, -1)
    before = share_of(coordinator).epoch
    assert await coordinator.delete_group("g") is ErrorCode.NONE
    await joined(coordinator, "c")
    share = share_of(coordinator)
    assert share.epoch > before
    assert share.members["c"].current.assigned == ALL
    key = SharePartitionKey("g", TOPIC_ID, 0)
    with pytest.raises(ShareStateError):
        states.states.delete(key, before)
    assert states.states.summary(key).state_epoch > before


async def test_a_group_deletes_states_of_later_epochs(states, coordinator):
    await joined(coordinator, "a")
    await send(coordinator, "a", -1)
    states.states.initialize(SharePartitionKey("g", TOPIC_ID, 0), 40, 1_000, 0)
    assert await coordinator.delete_group("g") is ErrorCode.NONE
    assert len(states.states) == 0


async def test_states_left_over_from_an_earlier_group_are_replaced(states, coordinator):
    key = SharePartitionKey("g", TOPIC_ID, 2)
    states.states.initialize(key, 40, 1_000, 0)
    await joined(coordinator, "a")
    assert share_of(coordinator).members["a"].current.assigned == ALL
    summary = states.states.summary(key)
    assert (summary.state_epoch, summary.start_offset) == (41, NO_START_OFFSET)


async def test_a_deletion_waits_for_initializations(states, coordinator):
    states.may_go_on.clear()
    await join(coordinator, "a")
    await until(lambda: len(states.calls) == 4)
    await send(coordinator, "a", -1)
    task = asyncio.create_task(coordinator.delete_group("g"))
    await asyncio.sleep(0.01)
    assert states.calls == ["initialize"] * 4
    states.may_go_on.set()
    assert await task is ErrorCode.NONE
    assert len(states.states) == 0


async def test_a_deletion_completes_after_the_client_disconnects(states, coordinator):
    await joined(coordinator, "a")
    await send(coordinator, "a", -1)
    states.may_go_on.clear()
    task = asyncio.create_task(coordinator.shares.delete_offsets("g", [TOPIC_ID]))
    await until(lambda: "delete" in states.calls)
    task.cancel()
    states.may_go_on.set()
    await until(lambda: len(states.states) == 0)
    await joined(coordinator, "b")
    assert share_of(coordinator).members["b"].current.assigned == ALL


async def test_an_initialization_completes_after_the_joining_member_disconnects(log, coordinator):
    task = await log.holding(join(coordinator, "a"))
    task.cancel()
    await asyncio.wait([task])
    log.hold = False
    log.release()
    await until(lambda: bool(share_of(coordinator).partitions.initialized))
    await joined(coordinator, "b")
    assert share_of(coordinator).members["b"].current.assigned


@pytest.mark.parametrize("call", ["initialize", "delete"])
async def test_a_coordinator_retries_after_its_lease_was_in_doubt(log, states, coordinator, call):
    task: asyncio.Task[Any] | None = None
    if call == "delete":
        await joined(coordinator, "a")
        await send(coordinator, "a", -1)
    states.may_go_on.clear()
    if call == "delete":
        task = asyncio.create_task(coordinator.shares.delete_offsets("g", [TOPIC_ID]))
    else:
        await join(coordinator, "a")
    await until(lambda: states.calls[-4:] == [call] * 4)
    log.can_write = False
    states.may_go_on.set()
    if task is not None:
        with pytest.raises(HeartbeatRefused):
            await task
    await until(lambda: not coordinator.shares.is_busy)
    log.can_write = True
    await joined(coordinator, "b")
    assert share_of(coordinator).partitions.initialized[TOPIC_ID][1] == ALL[TOPIC_ID]


async def test_offsets_of_an_empty_group_can_be_altered(states, coordinator):
    chosen = {TOPIC_ID: ("t", frozenset([0, 1]))}
    offsets = {(TOPIC_ID, 0): 5, (TOPIC_ID, 1): 6}
    key = SharePartitionKey("g", TOPIC_ID, 0)
    done = dict.fromkeys(offsets, ErrorCode.NONE)
    assert await coordinator.shares.alter_offsets("g", chosen, offsets) == done
    assert states.states.summary(key).start_offset == 5
    await joined(coordinator, "a")
    assert share_of(coordinator).members["a"].current.assigned == ALL
    assert states.states.summary(key).start_offset == 5, "joining changes nothing"
    await send(coordinator, "a", -1)
    before = states.states.summary(key)
    assert (
        await coordinator.shares.alter_offsets("g", chosen, {**offsets, (TOPIC_ID, 0): 2}) == done
    )
    after = states.states.summary(key)
    assert after.start_offset == 2
    assert after.state_epoch > before.state_epoch, "leaders with the old state are fenced"
    states.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    refused = dict.fromkeys(offsets, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert await coordinator.shares.alter_offsets("g", chosen, offsets) == refused
    states.error = ErrorCode.NONE
    assert states.states.summary(key).start_offset == 2
    await joined(coordinator, "b")
    assert states.states.summary(key).start_offset == 2, "a failed alteration loses nothing"


async def test_share_groups_never_expire(coordinator):
    await joined(coordinator, "a")
    await send(coordinator, "a", -1)
    coordinator.expire()
    await asyncio.sleep(0)
    (listed,) = coordinator.list_groups()
    assert (listed.type, listed.state) == (GroupType.SHARE, GroupState.EMPTY)


async def test_a_group_cannot_have_two_types(coordinator):
    await joined(coordinator, "a")
    await send(coordinator, "a", -1)
    request = JoinRequest(
        "", None, "c", "/h", 10_000, 10_000, "consumer", (Protocol("range", b""),), False
    )
    assert (await coordinator.join("g", request)).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    described = coordinator.describe_group("g")
    assert not isinstance(described, ErrorCode)
    assert described.state is GroupState.DEAD
    assert share_of(coordinator).members == {}
