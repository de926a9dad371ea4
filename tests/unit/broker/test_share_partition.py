"""A share partition responds only after a change is stored, and a change that could not be stored
has no effect.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from penstock.base.ids import Millis, Offset
from penstock.broker.groups.share.partitions import partition as share_partition
from penstock.broker.groups.share.partitions.partition import SharePartition
from penstock.broker.groups.share.partitions.partitions import SharePartitions
from penstock.broker.groups.share.partitions.settings import ShareGroupConfig
from penstock.broker.groups.share.partitions.spans import ACCEPT, RELEASE, RENEW, Acknowledgement
from penstock.broker.groups.share.partitions.window import AcquireOptions, Bounds, WindowLimits
from penstock.broker.groups.share.state.model import SharePartitionKey
from penstock.broker.partition.partition import Partition
from penstock.protocol.error_codes import ErrorCode
from tests.sim.loop import VirtualLoop
from tests.support.share_states import MemoryShareStates
from tests.support.waiting import until

GROUP, TOPIC_ID = "workers", UUID(int=7)
KEY = SharePartitionKey(GROUP, TOPIC_ID, 0)
OPTIONS = AcquireOptions(500, 500)
LOCK_MS = 200


@dataclass
class LogEnds:
    """The part of a partition that a share partition uses."""

    topic_id: UUID = TOPIC_ID
    topic_name: str = "jobs"
    index: int = 0
    leader_epoch: int = 3
    log_start_offset: int = 0
    high_watermark: int = 100
    last_stable_offset: int = 90
    log: Any = field(default_factory=lambda: SimpleNamespace(data=SimpleNamespace(stream_id=1)))


class Timestamps:
    found: tuple[Offset, int] | None = None

    async def offset_for_timestamp(self, *_: object) -> tuple[Offset, int] | None:
        return self.found


class Leader:
    """The share partitions of one broker over a shared store."""

    def __init__(self, states: MemoryShareStates, **config: Any) -> None:
        self.states = states
        self.ends = LogEnds()
        self.timestamps = Timestamps()
        settings: dict[str, Any] = {"lock_duration_ms": 60_000, "begins_earliest": True} | config
        self.shares = SharePartitions(
            states,
            lambda _: ShareGroupConfig(**settings),
            cast("Any", self.timestamps),
            lambda: Millis(1_000_000),
        )

    def load(self) -> SharePartition:
        return self.shares.load(GROUP, cast("Partition", self.ends))

    async def loaded(self) -> SharePartition:
        share = self.load()
        await until(lambda: share.window is not None or share.error_code)
        return share


async def new_states() -> MemoryShareStates:
    found = MemoryShareStates()
    await found.initialize(KEY, state_epoch=1, start_offset=-1)
    return found


@pytest.fixture
async def states() -> MemoryShareStates:
    return await new_states()


def virtual(
    test: Callable[[MemoryShareStates], Coroutine[Any, Any, None]],
) -> Callable[[], None]:
    """Run a test of lock durations in virtual time."""

    async def run() -> None:
        await test(await new_states())

    def wrapped() -> None:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(run())

    return wrapped


@pytest.fixture
async def leader(states: MemoryShareStates) -> AsyncIterator[Leader]:
    found = Leader(states)
    yield found
    found.shares.close()


def acquire(share: SharePartition, member: str, first: int, end: int) -> list[tuple[int, int, int]]:
    return [tuple(item) for item in share.acquire(member, [Bounds(first, end)], first, OPTIONS)]


async def outcome(found: "ErrorCode | asyncio.Future[ErrorCode]") -> ErrorCode:
    return found if isinstance(found, ErrorCode) else await found


async def test_an_acknowledgement_is_confirmed_after_it_is_stored(leader: Leader) -> None:
    share = await leader.loaded()
    assert acquire(share, "a", 0, 10) == [(0, 9, 1)]
    leader.states.may_go_on.clear()
    response = share.acknowledge("a", [Acknowledgement(0, 4, [ACCEPT])])
    assert isinstance(response, asyncio.Future)
    await until(lambda: leader.states.calls[-1] == "write")
    again = share.acknowledge("a", [Acknowledgement(4, 5, [ACCEPT])])
    assert again is ErrorCode.INVALID_RECORD_STATE
    assert not response.done()
    leader.states.may_go_on.set()
    assert await response is ErrorCode.NONE
    assert leader.states.states.summary(KEY).start_offset == 5


async def test_acknowledgements_that_arrive_during_a_write_share_the_next_one(
    leader: Leader,
) -> None:
    share = await leader.loaded()
    for first in range(0, 50, 10):
        acquire(share, f"m{first}", first, first + 10)
    leader.states.may_go_on.clear()
    before = len(leader.states.calls)
    responses = [share.acknowledge("m40", [Acknowledgement(40, 49, [ACCEPT])])]
    await until(lambda: len(leader.states.calls) > before)
    responses += [
        share.acknowledge(f"m{first}", [Acknowledgement(first, first + 9, [ACCEPT])])
        for first in (10, 20, 30)
    ]
    leader.states.may_go_on.set()
    assert {await outcome(response) for response in responses} == {ErrorCode.NONE}
    assert leader.states.calls[before:] == ["write", "write"]
    state = await leader.states.read(KEY, 3)
    assert [(item.first_offset, item.last_offset) for item in state.batches] == [(10, 49)]
    assert leader.states.states.summary(KEY).delivery_complete_count == 40


@virtual
async def test_a_failed_write_leaves_the_records_locked(states: MemoryShareStates) -> None:
    leader = Leader(states, lock_duration_ms=LOCK_MS)
    share = await leader.loaded()
    acquire(share, "a", 0, 10)
    states.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    response = await outcome(share.acknowledge("a", [Acknowledgement(0, 9, [ACCEPT])]))
    assert response is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert acquire(share, "b", 0, 10) == []
    states.error = ErrorCode.NONE
    await until(lambda: acquire(share, "b", 0, 10) == [(0, 9, 2)])
    assert await outcome(share.acknowledge("b", [Acknowledgement(0, 9, [ACCEPT])])) == 0
    leader.shares.close()


@virtual
async def test_locks_expire_even_if_the_change_cannot_be_stored(states: MemoryShareStates) -> None:
    leader = Leader(states, lock_duration_ms=LOCK_MS)
    share = await leader.loaded()
    acquire(share, "a", 0, 10)
    states.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    await until(lambda: acquire(share, "b", 0, 10) == [(0, 9, 2)])
    leader.shares.close()


@pytest.mark.parametrize("deliveries_max", [5, 2])
async def test_deliveries_that_could_not_be_stored_are_stored_later(
    states: MemoryShareStates, monkeypatch: pytest.MonkeyPatch, deliveries_max: int
) -> None:
    """Another window, like one after a reload, continues with their delivery counts."""
    monkeypatch.setattr(share_partition, "LOAD_RETRY_MAX_S", 0.01)
    limits = WindowLimits(deliveries_max=deliveries_max)
    leader = Leader(states, lock_duration_ms=LOCK_MS, limits=limits)
    share = await leader.loaded()
    acquire(share, "a", 0, 10)
    states.error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    await until(lambda: bool(acquire(share, "b", 0, 10)))
    await until(lambda: share.window is not None and not share.window.locked_count)
    leader.shares.drop_group(GROUP)
    assert len(leader.shares) == 1, "it has more than is stored"
    states.error = ErrorCode.NONE
    await until(lambda: share.is_idle)
    leader.shares.drop_group(GROUP)
    assert len(leader.shares) == 0
    found = acquire(await leader.loaded(), "c", 0, 10)
    assert found == ([(0, 9, 3)] if deliveries_max > 2 else [])
    leader.shares.close()


@virtual
async def test_a_renewed_lock_lasts_longer(states: MemoryShareStates) -> None:
    leader = Leader(states, lock_duration_ms=LOCK_MS)
    share = await leader.loaded()
    acquire(share, "a", 0, 10)
    for _ in range(6):
        await asyncio.sleep(LOCK_MS / 2_000)
        assert share.acknowledge("a", [Acknowledgement(0, 9, [RENEW])]) is ErrorCode.NONE
    assert acquire(share, "b", 0, 10) == []
    leader.shares.close()


async def test_an_older_leader_cannot_acknowledge(states: MemoryShareStates) -> None:
    old, new = Leader(states), Leader(states)
    new.ends.leader_epoch = 4
    before = await old.loaded()
    acquire(before, "a", 0, 10)
    after = await new.loaded()
    assert acquire(after, "b", 0, 10) == [(0, 9, 1)]
    response = await outcome(before.acknowledge("a", [Acknowledgement(0, 9, [ACCEPT])]))
    assert response is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert before.window is None
    assert before.error_code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await outcome(after.acknowledge("b", [Acknowledgement(0, 9, [ACCEPT])])) == 0
    old.shares.close()
    new.shares.close()


async def test_a_reset_state_replaces_the_old_one(leader: Leader) -> None:
    """As with `kafka-share-groups --reset-offsets`."""
    share = await leader.loaded()
    acquire(share, "a", 0, 10)
    await leader.states.initialize(KEY, state_epoch=2, start_offset=50)
    response = await outcome(share.acknowledge("a", [Acknowledgement(0, 9, [ACCEPT])]))
    assert response is ErrorCode.NOT_LEADER_OR_FOLLOWER
    leader.shares.drop(share)
    window = (await leader.loaded()).window
    assert window is not None
    assert window.start_offset == 50


async def test_a_deleted_group_cannot_acknowledge(leader: Leader) -> None:
    share = await leader.loaded()
    acquire(share, "a", 0, 10)
    await leader.states.delete(KEY)
    response = await outcome(share.acknowledge("a", [Acknowledgement(0, 9, [ACCEPT])]))
    assert response is ErrorCode.UNKNOWN_SERVER_ERROR
    assert share.window is None


async def test_losing_the_partition_completes_waiting_appends(leader: Leader) -> None:
    share = await leader.loaded()
    acquire(share, "a", 0, 10)
    leader.states.may_go_on.clear()
    response = share.acknowledge("a", [Acknowledgement(0, 9, [ACCEPT])])
    await until(lambda: leader.states.calls[-1] == "write")
    leader.shares.on_leader_change("jobs", 0, opened=False)
    assert await outcome(response) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert len(leader.shares) == 0
    leader.states.may_go_on.set()


async def test_the_state_is_loaded_once_its_coordinator_is_available(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_partition, "LOAD_RETRY_S", 0.01)
    leader.states.error = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    share = leader.load()
    await until(lambda: leader.states.calls.count("read") > 2)
    assert share.error_code is ErrorCode.NONE
    assert leader.load() is share
    leader.states.error = ErrorCode.NONE
    await until(lambda: share.window is not None)


@pytest.mark.parametrize(
    ("config", "found", "expected"),
    [
        ({"begins_earliest": True}, None, 5),
        ({"begins_earliest": False}, None, 100),
        ({"begins_earliest": False, "reads_committed": True}, None, 90),
        ({"begins_ms_ago": 60_000}, (Offset(42), 1), 42),
        ({"begins_ms_ago": 60_000}, None, 100),
    ],
)
async def test_the_first_start_offset_is_stored(
    states: MemoryShareStates,
    config: dict[str, Any],
    found: tuple[Offset, int] | None,
    expected: int,
) -> None:
    leader = Leader(states, **config)
    leader.timestamps.found = found
    leader.ends.log_start_offset = 5
    await leader.loaded()
    assert states.states.summary(KEY).start_offset == expected
    leader.shares.close()


async def test_a_group_is_dropped_once_it_has_no_locked_records(states: MemoryShareStates) -> None:
    leader = Leader(states, limits=WindowLimits(deliveries_max=1))
    share = await leader.loaded()
    acquire(share, "a", 0, 10)
    leader.shares.drop_group(GROUP)
    assert len(leader.shares) == 1
    assert await outcome(share.acknowledge("a", [Acknowledgement(0, 9, [RELEASE])])) == 0
    leader.shares.drop_group(GROUP)
    assert len(leader.shares) == 0
    # The delivery was also the last permitted one.
    assert states.states.summary(KEY).start_offset == 10
