"""Random heartbeats, alterations and deletions of one share group, while requests to the share
coordinator are lost, delayed or repeated, and both coordinators fail over. A state that a member
uses is never reset or deleted, and in the end a member is assigned the partition.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from penstock.broker.groups.common.model import HeartbeatRefused
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.share.group import ShareGroup
from penstock.broker.groups.share.model import ShareHeartbeatRequest
from penstock.broker.groups.share.state.machine import EncodedRecord, ShareStates
from penstock.broker.groups.share.state.model import (
    ANY_EPOCH,
    SharePartitionKey,
    ShareStateError,
    ShareStateSummary,
)
from penstock.protocol.error_codes import ErrorCode
from tests.sim.mutants import planted
from tests.support.coordinator_log import MemoryLog
from tests.support.group_coordinators import TOPIC_ID, Coordinators
from tests.support.share_states import MemoryShareStates

KEY = SharePartitionKey("g", TOPIC_ID, 0)
STEPS = 80
SEEDS = 300
BUGS = (
    "changes_of_share_states_overlap",
    "failed_alterations_not_fenced",
    "unfinished_alterations_forgotten",
    "deletions_of_share_states_without_epoch",
)


class Violation(Exception):
    pass


class OwnedLog(MemoryLog):
    """The log from the view of one coordinator of the group; a former coordinator cannot append."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__()
        self.log, self.is_owned, self.durable = log, True, log.durable

    def append(self, partition: int, records: Any, done: Any, **options: Any) -> None:
        if self.is_owned:
            self.log.append(partition, records, done, **options)
        else:
            done(ErrorCode.NOT_COORDINATOR)


class DisorderlyStates(MemoryShareStates):
    """The share coordinator, its log, and an unreliable network in front of it."""

    def __init__(self, rng: random.Random, is_in_use: Callable[[], bool]) -> None:
        super().__init__()
        self._rng = rng
        self._is_in_use = is_in_use
        self.log: list[EncodedRecord] = []
        self.on_the_way: list[Callable[[], Sequence[EncodedRecord]]] = []
        """Copies of requests that arrive later."""
        self.is_calm = False
        self.violation: str | None = None

    async def _pass(self, count_max: int) -> None:
        for _ in range(self._rng.randrange(count_max)):
            await asyncio.sleep(0)

    async def _change(self, change: Callable[[], Sequence[EncodedRecord]]) -> None:
        if self.is_calm:
            self._carry_out(change)
            return
        await self._pass(self._rng.choice((4, 4, 100)))
        if self._rng.random() < 0.4:
            self.on_the_way.append(change)
        if self._rng.random() < 0.6:
            self._carry_out(change)
            if self._rng.random() < 0.7:
                return
        await self._pass(30)
        raise ShareStateError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _carry_out(self, change: Callable[[], Sequence[EncodedRecord]]) -> None:
        before = self.states.get(KEY)
        self.log += change()
        after = self.states.get(KEY)
        if before is None or not self._is_in_use():
            return
        if after is None or after.current.start_offset != before.current.start_offset:
            self.violation = "a state in use is reset or deleted"

    def deliver_late(self) -> None:
        if self.on_the_way:
            late = self.on_the_way.pop(self._rng.randrange(len(self.on_the_way)))
            with suppress(ShareStateError):
                self._carry_out(late)

    def consume(self) -> None:
        """Advance the start offset, as the partition leader does while members consume."""
        stored = self.states.get(KEY)
        if stored is None:
            raise Violation("a state in use does not exist")
        self.log.append(self._write(stored.current.state_epoch, stored.current.start_offset + 1))

    def _write(self, state_epoch: int, start_offset: int) -> EncodedRecord:
        return self.states.write(
            KEY,
            state_epoch=state_epoch,
            leader_epoch=ANY_EPOCH,
            start_offset=start_offset,
            delivery_complete_count=0,
            batches=(),
            now_ms=0,
        )

    def load(self) -> None:
        restored = ShareStates(500)
        for record in self.log:
            restored.replay(*record)
        self.states = restored

    async def initialize(
        self, key: SharePartitionKey, *, state_epoch: int, start_offset: int
    ) -> None:
        def change() -> Sequence[EncodedRecord]:
            record = self.states.initialize(key, state_epoch, start_offset, 0)
            return () if record is None else (record,)

        await self._change(change)

    async def write(self, key: SharePartitionKey, *, state_epoch: int, **named: Any) -> None:
        await self._change(lambda: (self._write(state_epoch, named["start_offset"]),))

    async def delete(self, key: SharePartitionKey, *, state_epoch: int = ANY_EPOCH) -> None:
        await self._change(lambda: self.states.delete(key, state_epoch))

    async def summary(self, key: SharePartitionKey, leader_epoch: int = -1) -> ShareStateSummary:
        await self._pass(4)
        return self.states.summary(key)


class Run:
    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._log = MemoryLog()
        self._states = DisorderlyStates(self._rng, self._is_in_use)
        self._epochs: dict[str, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._all: list[GroupCoordinator] = []
        self._begin()

    def _begin(self) -> None:
        self._owned = OwnedLog(self._log)
        self._now = Coordinators(self._owned, self._states).start(partitions=1)
        self._all.append(self._now)

    def _share(self) -> ShareGroup | None:
        group = self._now.find("g", create=False)
        return None if isinstance(group, ErrorCode) else group.share

    def _is_in_use(self) -> bool:
        share = self._share()
        return share is not None and any(m.current.assigned for m in share.members.values())

    async def _beat(self, member_id: str) -> None:
        request = ShareHeartbeatRequest(
            member_id, self._epochs.get(member_id, 0), subscribed_names=("t",)
        )
        result = await self._now.shares.heartbeat("g", request)
        if result.error is ErrorCode.NONE:
            self._epochs[member_id] = result.member_epoch
        else:
            self._epochs.pop(member_id, None)

    async def _leave(self, member_id: str) -> None:
        self._epochs.pop(member_id, None)
        await self._now.shares.heartbeat("g", ShareHeartbeatRequest(member_id, -1))

    def _start(self, request: Awaitable[Any]) -> None:
        async def ask() -> None:
            with suppress(HeartbeatRefused):
                await request

        task = asyncio.get_running_loop().create_task(ask())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fail_over(self) -> None:
        self._owned.is_owned = False
        if self._rng.random() < 0.5:
            self._now.close()  # otherwise the leader continues for now
        self._begin()
        await self._now.ready("g")

    async def _step(self) -> None:
        shares, member_id = self._now.shares, self._rng.choice("ab")
        match self._rng.randrange(20):
            case 0 | 1 | 2 | 3 | 4:
                self._start(self._beat(member_id))
            case 5 | 6 | 7:
                self._start(self._leave(member_id))
            case 8 | 9:
                offsets = {(TOPIC_ID, 0): self._rng.randrange(5)}
                chosen = {TOPIC_ID: ("t", frozenset([0]))}
                self._start(shares.alter_offsets("g", chosen, offsets))
            case 10 | 11:
                self._start(shares.delete_offsets("g", [TOPIC_ID]))
            case 12:
                self._start(self._now.delete_group("g"))
            case 13 | 14 | 15:
                self._states.deliver_late()
            case 16 | 17:
                if self._is_in_use():
                    self._states.consume()
            case 18:
                self._states.load()
            case _:
                await self._fail_over()
        for _ in range(self._rng.randrange(12)):
            await asyncio.sleep(0)
        self._check()

    def _check(self) -> None:
        if self._states.violation is not None:
            raise Violation(self._states.violation)

    async def run(self) -> None:
        await self._now.ready("g")
        try:
            for _ in range(STEPS):
                await self._step()
            await self._come_to_rest()
        finally:
            for coordinator in self._all:
                coordinator.close()
            for task in list(self._tasks):
                task.cancel()

    async def _come_to_rest(self) -> None:
        self._states.is_calm = True
        await asyncio.gather(*self._tasks)
        while self._states.on_the_way:
            self._states.deliver_late()
        self._check()
        for _ in range(10):
            await self._beat("a")
            while self._now.shares.is_busy:  # noqa: ASYNC110 - nothing waits for real time
                await asyncio.sleep(0)
        if not self._is_in_use():
            raise Violation("no member gets the partition")
        self._states.consume()


async def run_all(seeds: range = range(SEEDS)) -> None:
    for seed in seeds:
        try:
            await Run(seed).run()
        except Violation as violation:
            raise Violation(f"seed {seed}: {violation}") from None


@pytest.mark.costly("many short runs: in most of them no order of events matters")
async def test_states_in_use_are_never_reset_or_deleted() -> None:
    await run_all()


@pytest.mark.parametrize("bug", BUGS)
async def test_planted_bugs_are_found(bug: str) -> None:
    with planted(bug), pytest.raises(Violation):
        await run_all()
