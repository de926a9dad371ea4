"""Random requests to the coordinator of one group. Its log becomes durable later, fails, or moves
to the next coordinator. Without appends in flight, the coordinator's state equals the state in the
log.
"""

import asyncio
import itertools
import random
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from penstock.broker.coordination.log import Done
from penstock.broker.groups.classic.model import GroupLimits, SyncRequest
from penstock.broker.groups.consumer.model import HeartbeatRequest
from penstock.broker.groups.coordinator import janitor
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.coordinator.shard import Group
from penstock.broker.groups.offsets.records import CommittedOffset
from penstock.broker.groups.share.model import ShareHeartbeatRequest
from penstock.broker.groups.streams.model import StreamsHeartbeatRequest, StreamsLimits
from penstock.protocol.error_codes import ErrorCode
from tests.support.coordinator_log import MemoryLog
from tests.support.group_coordinators import JOINING, TOPOLOGY, image_with
from tests.support.share_states import MemoryShareStates

KEY = ("t", 0)
KINDS = (
    ("consumer",),
    ("streams",),
    ("share",),
    ("consumer", "classic"),
    ("consumer", "classic", "streams", "share"),
)
SEEDS_PER_KIND = 24
STEPS = 60
RETENTION_MS = GroupLimits().offsets_retention_ms


class Log(MemoryLog):
    rejects = False
    """Appends are rejected immediately, as when too many bytes are in flight."""

    def append(self, partition: int, records: Any, done: Done, **options: Any) -> None:
        if self.rejects:
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            super().append(partition, records, done, **options)


class World:
    def __init__(self, seed: int, kinds: Sequence[str]) -> None:
        self.rng = random.Random(f"{seed}/{kinds}")
        self._kinds = kinds
        self.log = Log(1)
        self.log.hold = True
        self._now_ms = 1_700_000_000_000
        self._numbers = itertools.count()
        self._states = MemoryShareStates()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._epochs: dict[str, int] = {}
        self._classic_ids: dict[str, str] = {}
        self.coordinator = self._next()

    def _next(self) -> GroupCoordinator:
        coordinator = GroupCoordinator(
            self.log,
            GroupLimits(initial_rebalance_delay_ms=0),
            now_ms=lambda: self._now_ms,
            new_member_id=lambda prefix: f"{prefix}-{next(self._numbers)}",
            share_states=self._states,
            streams_limits=lambda _: StreamsLimits(
                initial_rebalance_delay_ms=self.rng.choice((0, 60_000))
            ),
        )
        coordinator.topics.reset(image_with(4))
        coordinator.partition_opened(0)
        return coordinator

    # --- requests ---------------------------------------------------------------------------------

    def send(self) -> None:
        """Start a random request."""
        coordinator, choice = self.coordinator, self.rng.random()
        if choice < 0.7:
            self._start(getattr(self, f"_{self.rng.choice(self._kinds)}")(self.rng.choice("ab")))
        elif choice < 0.8:
            self._start(coordinator.delete_group("g"))
        elif choice < 0.85:
            self._now_ms += self.rng.choice((20_000, RETENTION_MS + 1))
            coordinator.expire()
        elif choice < 0.95:
            member = self.rng.choice(("", "a", "b"))
            epoch = self._epochs.get(member, -1)
            offset = CommittedOffset(self.rng.randrange(9), -1, "", self._now_ms)
            self._start(coordinator.commit_offsets("g", member, None, epoch, {KEY: offset}))
        else:
            self._start(coordinator.delete_offsets("g", [KEY]))

    def _start(self, request: Coroutine[Any, Any, Any]) -> None:
        self._tasks.add(asyncio.create_task(request))

    def _epoch_of(self, member: str, *leaving: int) -> int:
        return self.rng.choice((0, 0, *leaving, *[self._epochs.get(member, 0)] * 2))

    async def _consumer(self, member: str) -> None:
        instance = self.rng.choice((None, None, "i"))
        member = f"{member} static" if instance else member
        epoch = self._epoch_of(member, -2 if instance else -1, -1)
        names = self.rng.choice(((), ("t",))) if epoch == 0 or self.rng.random() < 0.3 else None
        request = HeartbeatRequest(
            member,
            epoch,
            instance_id=instance,
            rebalance_timeout_ms=60_000 if epoch == 0 else -1,
            owned={} if epoch == 0 or self.rng.random() < 0.5 else None,
            subscribed_names=names,
        )
        self._keep(member, await self.coordinator.consumers.heartbeat("g", request, 1))

    async def _streams(self, member: str) -> None:
        epoch = self._epoch_of(member, -1)
        is_first = epoch == 0
        tasks = {} if is_first or self.rng.random() < 0.5 else None
        request = StreamsHeartbeatRequest(
            member_id=member,
            member_epoch=epoch,
            topology=TOPOLOGY if is_first else None,
            process_id=member if is_first else None,
            rebalance_timeout_ms=60_000 if is_first else -1,
            active=tasks,
            standby=tasks,
            warmup=tasks,
        )
        self._keep(member, await self.coordinator.streams.heartbeat("g", request))

    async def _share(self, member: str) -> None:
        epoch = self._epoch_of(member, -1)
        names = ("t",) if epoch == 0 else None
        request = ShareHeartbeatRequest(member, epoch, subscribed_names=names)
        self._keep(member, await self.coordinator.shares.heartbeat("g", request))

    def _keep(self, member: str, result: Any) -> None:
        if result.error is ErrorCode.NONE:
            self._epochs[member] = result.member_epoch

    async def _classic(self, name: str) -> None:
        member_id, choice = self._classic_ids.get(name, ""), self.rng.random()
        if choice < 0.3:
            self._classic_ids.pop(name, None)
            await self.coordinator.leave("g", [(member_id, None)])
            return
        if choice < 0.5:
            self.coordinator.heartbeat("g", member_id, None, self._epochs.get(name, 0))
            return
        joining = replace(JOINING, member_id=member_id, needs_known_member_id=choice < 0.8)
        joined = await self.coordinator.join("g", joining)
        if joined.error in {ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED}:
            self._classic_ids[name] = joined.member_id
        elif joined.error is ErrorCode.UNKNOWN_MEMBER_ID:
            self._classic_ids.pop(name, None)
        if joined.error is ErrorCode.NONE:
            self._epochs[name] = joined.generation
            assignments = {member[0]: b"" for member in joined.members}
            syncing = SyncRequest(
                joined.member_id, None, joined.generation, "consumer", "range", assignments
            )
            await self.coordinator.sync("g", syncing)

    # --- the log ----------------------------------------------------------------------------------

    async def pass_time(self, turns: int) -> None:
        """Let started requests and callbacks run."""
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in [task for task in self._tasks if task.done()]:
            self._tasks.remove(task)
            if not task.cancelled():  # a coordinator that closes cancels deletions of share states
                task.result()

    async def fail_appends(self) -> None:
        self.log.release(ErrorCode.NOT_COORDINATOR)
        await self.coordinator.ready("g")

    async def fail_over(self) -> None:
        """Let some of the appends in flight become durable, and let the next coordinator load the
        log.
        """
        self.log.release(count=self.rng.randrange(len(self.log.held) + 1))
        lost, self.log.held = self.log.held, []
        self.coordinator.close()
        for _, _, done in lost:
            done(ErrorCode.NOT_COORDINATOR)
        self.coordinator = self._next()
        await self.coordinator.ready("g")
        _checked(self.coordinator)

    async def compare(self) -> None:
        """Let everything become durable, and compare the group with the state that another
        coordinator loads.
        """
        self.log.rejects = False
        for _ in range(20):
            while self.log.held or self.coordinator.shares.is_busy:
                self.log.release()
                await self.pass_time(4)
            await self.pass_time(1)
        other = self._next()
        await other.ready("g")
        found, loaded = _checked(self.coordinator), _checked(other)
        other.close()
        assert found is None or found.modern is None or found.record is None
        assert _described(found) == _described(loaded)

    async def close(self) -> None:
        self.coordinator.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _checked(coordinator: GroupCoordinator) -> Group | None:
    group = coordinator.find("g", create=False)
    if not isinstance(group, Group):
        return None
    if group.modern is not None:
        group.modern.check_invariants()
    return group


def _described(group: Group | None) -> dict[str, Any]:
    """Return the state that a coordinator must not lose. A classic rebalance is only in memory."""
    if group is None:
        return {}
    found: dict[str, Any] = {"record": group.record, "records": group.consumer_records}
    found["offsets"] = {key: value.offset for key, value in group.offsets.committed.items()}
    modern: Any = group.modern
    if modern is not None:
        found |= {"type": type(modern), "epoch": modern.epoch, "target": modern.target_epoch}
        found["members"] = {
            member_id: (member.metadata, member.current, modern.targets.get(member_id))
            for member_id, member in modern.members.items()
        }
        for name in ("static_members", "regexes", "topology", "partitions"):
            found[name] = getattr(modern, name, None)
    return {name: value for name, value in found.items() if value}


async def run_all(kinds: Sequence[str]) -> None:
    for seed in range(SEEDS_PER_KIND):
        await _run(seed, kinds)


async def _run(seed: int, kinds: Sequence[str]) -> None:
    world = World(seed, kinds)
    await world.coordinator.ready("g")
    try:
        for _ in range(STEPS):
            world.log.rejects = world.rng.random() < 0.1
            world.send()
            await world.pass_time(world.rng.randrange(6))
            choice = world.rng.random()
            if choice < 0.3:
                world.log.release(count=world.rng.randrange(3))
                await world.pass_time(world.rng.randrange(4))
            elif choice < 0.34:
                await world.fail_appends()
            elif choice < 0.4:
                await world.fail_over()
            elif choice < 0.5:
                await world.compare()
        await world.compare()
    finally:
        await world.close()


@pytest.mark.parametrize("kinds", KINDS, ids="+".join)
async def test_the_log_contains_the_state_of_the_coordinator(kinds: Sequence[str]) -> None:
    await run_all(kinds)


@pytest.mark.parametrize("kinds", KINDS[:3], ids="+".join)
async def test_a_planted_bug_is_found(
    kinds: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member that joins while the tombstones are in flight continues in the old group's epoch."""
    monkeypatch.setattr(janitor, "emptied", lambda _group: None)
    with pytest.raises(AssertionError):
        await run_all(kinds)
