"""Concurrent alterations and deletions of the states of a share group, also while members join. The
test controls how long requests to the share coordinator are in flight.
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from penstock.broker.groups.common.model import HeartbeatRefused
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.coordinator.share import CHANGES_MAX
from penstock.broker.groups.share.state.model import (
    ANY_EPOCH,
    NO_START_OFFSET,
    SharePartitionKey,
    ShareStateError,
)
from penstock.protocol.error_codes import ErrorCode
from tests.support.group_coordinators import TOPIC_ID
from tests.support.share_states import MemoryShareStates
from tests.support.waiting import until
from tests.unit.broker.test_share_groups import join, joined, send, share_of

KEY = SharePartitionKey("g", TOPIC_ID, 0)
CHOSEN = {TOPIC_ID: ("t", frozenset([0]))}
PART = (TOPIC_ID, 0)


@dataclass(eq=False)
class Call:
    name: str
    epoch: int
    may_go_on: asyncio.Event = field(default_factory=asyncio.Event)


class SlowShareStates(MemoryShareStates):
    """Holds each call that initializes or deletes a state until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.in_flight: list[Call] = []
        self.is_slow = False

    async def _travel(self, name: str, epoch: int) -> None:
        call = Call(name, epoch)
        self.in_flight.append(call)
        if self.is_slow:
            await call.may_go_on.wait()
        self.in_flight.remove(call)

    async def initialize(
        self, key: SharePartitionKey, *, state_epoch: int, start_offset: int
    ) -> None:
        await self._travel("initialize", state_epoch)
        await super().initialize(key, state_epoch=state_epoch, start_offset=start_offset)

    async def delete(self, key: SharePartitionKey, *, state_epoch: int = ANY_EPOCH) -> None:
        await self._travel("delete", state_epoch)
        await super().delete(key, state_epoch=state_epoch)

    async def next_call(self, name: str) -> Call:
        await until(lambda: [call.name for call in self.in_flight] == [name])
        return self.in_flight[0]


@pytest.fixture
def states() -> SlowShareStates:
    return SlowShareStates()


@pytest.fixture
async def coordinator(coordinators):
    return await coordinators.next(partitions=1)


async def empty(coordinator, states) -> None:
    """Let a member join and leave."""
    await joined(coordinator, "a")
    await send(coordinator, "a", -1)
    states.is_slow = True


def deleting(coordinator: GroupCoordinator) -> "asyncio.Task[Any]":
    return asyncio.create_task(coordinator.shares.delete_offsets("g", [TOPIC_ID]))


def altering(coordinator: GroupCoordinator, offset: int) -> "asyncio.Task[Any]":
    return asyncio.create_task(coordinator.shares.alter_offsets("g", CHOSEN, {PART: offset}))


async def test_a_repeated_deletion_does_not_delete_the_state_of_new_members(states, coordinator):
    await empty(coordinator, states)
    first = deleting(coordinator)
    call = await states.next_call("delete")
    second = deleting(coordinator)
    await join(coordinator, "b")
    states.is_slow = False
    call.may_go_on.set()
    assert await first == {TOPIC_ID: ErrorCode.NONE}
    with pytest.raises(HeartbeatRefused) as refused:
        await second
    assert refused.value.result.error is ErrorCode.NON_EMPTY_GROUP
    await joined(coordinator, "b")
    assert states.states.get(KEY) is not None


async def test_a_repeated_group_deletion_waits_for_the_records_of_the_first(
    states, log, coordinator
):
    await empty(coordinator, states)
    first = asyncio.create_task(coordinator.delete_group("g"))
    call = await states.next_call("delete")
    second = asyncio.create_task(coordinator.delete_group("g"))
    third = asyncio.create_task(coordinator.delete_group("g"))
    log.hold = True
    call.may_go_on.set()
    await until(lambda: bool(log.held))
    log.release()  # the states have been deleted
    await until(lambda: any(value is None for held in log.held for _, value in held[1].records))
    assert states.in_flight == [], "another deletion is under way before the group is deleted"
    joining = asyncio.create_task(join(coordinator, "b"))
    await asyncio.sleep(0)
    log.hold = states.is_slow = False
    log.release()
    assert await first is ErrorCode.NONE
    assert (await joining).error is ErrorCode.NONE
    for later in (second, third):
        assert await later is ErrorCode.NON_EMPTY_GROUP
    await joined(coordinator, "b")
    assert states.states.get(KEY) is not None


async def test_an_alteration_waits_for_a_deletion(states, coordinator):
    await empty(coordinator, states)
    deletion = deleting(coordinator)
    call = await states.next_call("delete")
    alteration = altering(coordinator, 7)
    states.is_slow = False
    call.may_go_on.set()
    assert await deletion == {TOPIC_ID: ErrorCode.NONE}
    assert await alteration == {PART: ErrorCode.NONE}
    assert states.states.summary(KEY).start_offset == 7
    await joined(coordinator, "b")
    assert states.states.summary(KEY).start_offset == 7


async def test_an_initialization_in_flight_does_not_undo_an_alteration(states, coordinator):
    states.is_slow = True
    await join(coordinator, "a")
    call = await states.next_call("initialize")
    await send(coordinator, "a", -1)
    alteration = altering(coordinator, 7)
    states.is_slow = False
    call.may_go_on.set()
    assert await alteration == {PART: ErrorCode.NONE}
    await until(lambda: not coordinator.shares.is_busy)
    assert states.states.summary(KEY).start_offset == 7


async def test_alterations_run_in_the_order_of_arrival(states, coordinator):
    await empty(coordinator, states)
    first, second = altering(coordinator, 7), altering(coordinator, 8)
    for alteration in (first, second):
        (await states.next_call("initialize")).may_go_on.set()
        assert await alteration == {PART: ErrorCode.NONE}
    assert states.states.summary(KEY).start_offset == 8


async def test_a_deletion_starts_after_its_epoch_is_durable(states, log, coordinator):
    """Otherwise the next coordinator might use the same epoch, and a late copy of the deletion
    would delete the new state.
    """
    await empty(coordinator, states)
    log.hold = True
    deletion = deleting(coordinator)
    await until(lambda: bool(log.held))
    durable = share_of(coordinator).epoch
    joining = asyncio.create_task(join(coordinator, "b"))
    await until(lambda: share_of(coordinator).epoch > durable)
    log.release(count=1)
    call = await states.next_call("delete")
    assert call.epoch == durable
    log.hold = states.is_slow = False
    log.release()
    call.may_go_on.set()
    await asyncio.wait([deletion, joining])


async def test_members_do_not_initialize_states_in_the_epoch_of_a_deletion(states, coordinator):
    """A late copy of the deletion would delete their states."""
    await empty(coordinator, states)
    states.states.initialize(KEY, 40, 1_000, 0)
    deletion = deleting(coordinator)
    call = await states.next_call("delete")
    await join(coordinator, "b")
    epoch = share_of(coordinator).epoch
    call.may_go_on.set()
    assert await deletion == {TOPIC_ID: ErrorCode.NON_EMPTY_GROUP}
    assert share_of(coordinator).epoch == epoch
    states.is_slow = False
    await joined(coordinator, "b")
    assert states.states.summary(KEY).state_epoch > 40


async def test_the_number_of_waiting_changes_is_limited(states, coordinator):
    await empty(coordinator, states)
    waiting = [deleting(coordinator) for _ in range(CHANGES_MAX)]
    call = await states.next_call("delete")
    with pytest.raises(HeartbeatRefused, match="the maximum; retry later") as refused:
        await deleting(coordinator)
    assert refused.value.result.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    call.may_go_on.set()
    assert await asyncio.gather(*waiting) == [{TOPIC_ID: ErrorCode.NONE}] + [{}] * (CHANGES_MAX - 1)


async def fail_alteration(coordinator, states) -> int:
    """Return the epoch of a failed alteration, a copy of which may still arrive."""
    await empty(coordinator, states)
    states.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    alteration = altering(coordinator, 7)
    call = await states.next_call("initialize")
    call.may_go_on.set()
    assert await alteration == {PART: ErrorCode.COORDINATOR_NOT_AVAILABLE}
    return call.epoch


def consume(states: SlowShareStates) -> None:
    """Write as the leader that members consume from."""
    found, _ = states.states.read(KEY, 1, 0)
    states.states.write(
        KEY,
        state_epoch=found.state_epoch,
        leader_epoch=1,
        start_offset=100,
        delivery_complete_count=0,
        batches=[],
        now_ms=0,
    )


@pytest.mark.parametrize("fails_over", [False, True])
async def test_a_late_copy_of_a_failed_alteration_does_not_reset_a_state_in_use(
    states, coordinator, coordinators, fails_over
):
    epoch = await fail_alteration(coordinator, states)
    if fails_over:
        coordinator = await coordinators.next(partitions=1)
    await join(coordinator, "b")
    share = share_of(coordinator)
    await until(lambda: not coordinator.shares.is_busy)
    await send(coordinator, "b", share.members["b"].current.epoch)
    assert share.members["b"].current.assigned == {}, "a copy may still reset the state"
    await until(lambda: not coordinator.shares.is_busy)
    states.error, states.is_slow = ErrorCode.NONE, False
    await joined(coordinator, "b")
    assert share.members["b"].current.assigned == {TOPIC_ID: frozenset([0])}
    consume(states)
    with pytest.raises(ShareStateError) as refused:
        states.states.initialize(KEY, epoch, 7, 0)
    assert refused.value.code is ErrorCode.FENCED_STATE_EPOCH
    assert states.states.summary(KEY).start_offset == 100


async def test_members_wait_for_an_alteration_in_flight(states, coordinator):
    await empty(coordinator, states)
    alteration = altering(coordinator, 7)
    call = await states.next_call("initialize")
    await join(coordinator, "b")
    share = share_of(coordinator)
    await send(coordinator, "b", share.members["b"].current.epoch)
    assert share.members["b"].current.assigned == {}
    call.may_go_on.set()
    assert await alteration == {PART: ErrorCode.NONE}
    await send(coordinator, "b", share.members["b"].current.epoch)
    assert share.members["b"].current.assigned == {TOPIC_ID: frozenset([0])}
    assert states.states.summary(KEY).start_offset == 7


async def test_a_missing_state_is_initialized_after_a_failed_alteration(states, coordinator):
    await fail_alteration(coordinator, states)
    states.states.delete(KEY)
    states.error, states.is_slow = ErrorCode.NONE, False
    await joined(coordinator, "b")
    assert states.states.summary(KEY).start_offset == NO_START_OFFSET
    assert states.states.get(KEY) is not None


async def test_deleting_a_group_also_deletes_states_whose_initialization_failed(
    states, coordinator
):
    """The initialization may arrive when a new group uses the same id."""
    states.error, states.is_slow = ErrorCode.COORDINATOR_NOT_AVAILABLE, True
    await join(coordinator, "a")
    call = await states.next_call("initialize")
    call.may_go_on.set()
    await until(lambda: not coordinator.shares.is_busy)
    await send(coordinator, "a", -1)
    states.error, states.is_slow = ErrorCode.NONE, False
    assert await coordinator.delete_group("g") is ErrorCode.NONE
    await joined(coordinator, "b")
    assert share_of(coordinator).epoch > call.epoch
    consume(states)
    with pytest.raises(ShareStateError) as refused:
        states.states.initialize(KEY, call.epoch, 0, 0)
    assert refused.value.code is ErrorCode.FENCED_STATE_EPOCH
