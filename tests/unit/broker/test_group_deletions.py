"""Members join while the tombstones of their empty group are in flight: the next coordinator loads
the group that they joined.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.broker.groups.classic.model import SyncRequest
from penstock.broker.groups.consumer.model import HeartbeatRequest
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.share.model import ShareHeartbeatRequest
from penstock.broker.groups.streams.model import StreamsHeartbeatRequest
from penstock.protocol.error_codes import ErrorCode
from tests.support.group_coordinators import JOINING, TOPOLOGY, Coordinators, group_of
from tests.support.waiting import until

Beat = Callable[[GroupCoordinator, str, int], Awaitable[Any]]


class Groups:
    """The current coordinator of a log."""

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators
        self.log = coordinators.log

    async def fail_over(self) -> Any:
        """Return the group as loaded by the next coordinator."""
        self.coordinator = await self._coordinators.next(
            streams={"initial_rebalance_delay_ms": 60_000}
        )
        return self.coordinator.find("g", create=False)

    async def begin(self, trigger: str) -> asyncio.Task[ErrorCode]:
        """Keep the tombstones of the group in flight, and nothing else."""
        if trigger == "expiry":
            self.log.hold = True
            self.coordinator.expire()
            return asyncio.create_task(asyncio.sleep(0, ErrorCode.NONE))
        deletion = asyncio.create_task(self.coordinator.delete_group("g"))
        self.log.hold = True
        while not any(value is None for _, batch, _ in self.log.held for _, value in batch.records):
            self.log.release()
            await asyncio.sleep(0)
        return deletion

    def end(self, code: ErrorCode = ErrorCode.NONE, count: int | None = None) -> None:
        self.log.hold = False
        self.log.release(code, count)
        self.log.release()


async def consumer(coordinator: GroupCoordinator, member_id: str, epoch: int) -> Any:
    """Join with a pattern that matches no topic yet."""
    request = HeartbeatRequest(member_id, epoch)
    if epoch == 0:
        request = HeartbeatRequest(
            member_id, 0, rebalance_timeout_ms=60_000, owned={}, subscribed_names=()
        )
    return await coordinator.consumers.heartbeat("g", request, 1)


async def streams(coordinator: GroupCoordinator, member_id: str, epoch: int) -> Any:
    request = StreamsHeartbeatRequest(member_id=member_id, member_epoch=epoch)
    if epoch == 0:
        request = StreamsHeartbeatRequest(
            member_id=member_id,
            member_epoch=0,
            topology=TOPOLOGY,
            process_id=member_id,
            rebalance_timeout_ms=60_000,
            active={},
            standby={},
            warmup={},
        )
    return await coordinator.streams.heartbeat("g", request)


async def share(coordinator: GroupCoordinator, member_id: str, epoch: int) -> Any:
    names = ("t",) if epoch == 0 else None
    request = ShareHeartbeatRequest(member_id, epoch, subscribed_names=names)
    return await coordinator.shares.heartbeat("g", request)


@pytest.fixture
async def groups(coordinators: Coordinators) -> Groups:
    started = Groups(coordinators)
    await started.fail_over()
    return started


CASES = [
    (consumer, "DeleteGroups"),
    (consumer, "expiry"),
    (streams, "DeleteGroups"),
    (streams, "expiry"),
    (share, "DeleteGroups"),  # share groups do not expire
]


async def emptied(groups: Groups, beat: Beat) -> int:
    """Let members join and leave. Returns the epoch of the now empty group."""
    for number in range(3):
        joined = await beat(groups.coordinator, f"m{number}", 0)
        assert joined.error is ErrorCode.NONE
        await beat(groups.coordinator, f"m{number}", -1)
    await until(lambda: not groups.coordinator.shares.is_busy)
    return int(group_of(groups.coordinator).modern.epoch)


@pytest.mark.parametrize(("beat", "trigger"), CASES)
async def test_a_member_that_joins_during_the_deletion_starts_a_new_group(groups, beat, trigger):
    before = await emptied(groups, beat)
    deletion = await groups.begin(trigger)
    joining = asyncio.create_task(beat(groups.coordinator, "m", 0))
    await asyncio.sleep(0)
    groups.end()
    joined = await joining
    assert (await deletion, joined.error) == (ErrorCode.NONE, ErrorCode.NONE)
    await until(lambda: not groups.coordinator.shares.is_busy)
    known = group_of(groups.coordinator).modern
    found = (await groups.fail_over()).modern
    found.check_invariants()
    assert (found.epoch, found.target_epoch) == (known.epoch, known.target_epoch)
    assert joined.member_epoch < before
    assert found.members["m"].current == known.members["m"].current
    assert (await beat(groups.coordinator, "m", joined.member_epoch)).error is ErrorCode.NONE


@pytest.mark.parametrize(("beat", "trigger"), CASES)
@pytest.mark.parametrize("is_immediate", [False, True])
async def test_a_failed_deletion_changes_nothing(groups, beat, trigger, is_immediate, monkeypatch):
    before = await emptied(groups, beat)
    if is_immediate and beat is not share:
        monkeypatch.setattr(
            groups.log, "append", lambda _1, _2, done, **_: done(ErrorCode.NOT_COORDINATOR)
        )
        groups.coordinator.expire()
        code = await groups.coordinator.delete_group("g")
        monkeypatch.undo()
        assert code is ErrorCode.NOT_COORDINATOR
    else:
        deletion = await groups.begin(trigger)
        joining = asyncio.create_task(beat(groups.coordinator, "m", 0))
        await asyncio.sleep(0)
        groups.end(ErrorCode.NOT_COORDINATOR)
        assert (await joining).error is ErrorCode.NOT_COORDINATOR
        expected = ErrorCode.NOT_COORDINATOR if trigger == "DeleteGroups" else ErrorCode.NONE
        assert await deletion is expected
        await groups.coordinator.ready("g")
    assert group_of(groups.coordinator).modern.epoch == before
    assert (await beat(groups.coordinator, "m", 0)).error is ErrorCode.NONE
    (await groups.fail_over()).modern.check_invariants()


@pytest.mark.parametrize("beat", [consumer, streams, share])
async def test_a_group_that_is_being_deleted_is_not_described(groups, beat):
    await emptied(groups, beat)
    deletion = await groups.begin("DeleteGroups")
    for described in (groups.coordinator.consumers, groups.coordinator.streams):
        assert await described.describe("g") is ErrorCode.GROUP_ID_NOT_FOUND
    assert await groups.coordinator.shares.describe("g") is ErrorCode.GROUP_ID_NOT_FOUND
    groups.end()
    assert await deletion is ErrorCode.NONE
    assert groups.coordinator.list_groups() == []


@pytest.mark.parametrize("trigger", ["DeleteGroups", "expiry"])
async def test_a_classic_member_that_joins_during_the_deletion_stays(groups, trigger):

    async def join() -> Any:
        joined = await groups.coordinator.join("g", JOINING)
        syncing = SyncRequest(
            joined.member_id, None, joined.generation, "consumer", "range", {joined.member_id: b"x"}
        )
        assert (await groups.coordinator.sync("g", syncing)).error is ErrorCode.NONE
        return joined

    first = await join()
    await groups.coordinator.leave("g", [(first.member_id, None)])
    await until(lambda: not group_of(groups.coordinator).appends_count)
    deletion = await groups.begin(trigger)
    joining = asyncio.create_task(join())
    await until(lambda: len(groups.log.held) > 1)
    groups.end()
    joined = await joining
    assert await deletion is ErrorCode.NONE
    found = (await groups.fail_over()).classic
    assert list(found.members) == [joined.member_id]
