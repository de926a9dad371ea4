"""Members of a streams group (KIP-1071) that join, receive tasks, commit, leave and die.

Each topic is a subtopology, so a task is a partition. No member gets an active task that another
member has, unless that one timed out; members are fenced only after timeouts, and cannot commit
afterwards. `OffsetHistory` checks commits.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import streams_group_heartbeat as wire
from tests.sim.checkers import Part
from tests.sim.connections import NoResponse
from tests.sim.groups import LATE_MEMBERS, RETRIED, Asker, ConsumerGroup
from tests.sim.owners import Life, Ownership, check_new_coordinator

if TYPE_CHECKING:
    from tests.sim.nodes import SimBroker
    from tests.sim.world import World

STREAMING: Final = frozenset({"streams_groups", LATE_MEMBERS})
_MEMBERS_COUNT: Final = 4
_AT_END_COUNT: Final = 3
_LEAVE_EPOCH: Final = -1
_COMMIT_VERSION: Final = 9
_FENCED: Final = frozenset(
    {
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
        # After all sessions and offsets have expired, the group is deleted.
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
_STALE: Final = frozenset({ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})
_STRUCK_SHARE: Final = 0.1


class StreamsThread(Asker):
    """A client that is one member after another."""

    def __init__(self, world: "World", group: ConsumerGroup, owners: Ownership, name: str) -> None:
        super().__init__(world, group, name)
        self._owners = owners
        self._lives_count = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._live(stop)
            await asyncio.sleep(self.rng.uniform(0.02, 0.5))

    async def _live(self, stop: asyncio.Event) -> None:
        rng, life = self.rng, self.begin()
        end_s = self.now_s() + rng.choice((2.0, 6.0, 20.0))
        is_alive = True
        while is_alive and not stop.is_set() and self.now_s() < end_s:
            is_alive = await self.beat(life)
            # Some pause for so long that they are considered dead, and then continue.
            pause_s = rng.uniform(0.02, 0.4)
            await asyncio.sleep(pause_s if rng.random() < 0.97 else 1.5 * self._session_s)
            if is_alive and rng.random() < 0.5:
                await self._commit(life)
        self._owners.ended(life)
        if is_alive and rng.random() < 0.7:
            with contextlib.suppress(NoResponse):
                await self._send_request(self._request(life, _LEAVE_EPOCH))

    @property
    def _session_s(self) -> float:
        return self.world.coordination.streams.session_timeout_ms / 1_000

    def begin(self) -> Life:
        self._lives_count += 1
        life = Life(f"{self.name}.{self._lives_count}", heard_s=self.now_s())
        self._owners.began(life)
        return life

    async def beat(self, life: Life) -> bool:
        """Send a heartbeat. Return False if the member is fenced."""
        life.owned -= life.revoked
        life.revoked = set()
        sent_s, owned = self.now_s(), set(life.owned)
        try:
            connection = await self._coordinator()
            response = await self._send_request(self._request(life, life.epoch), connection)
        except NoResponse:
            life.lost_count += 1
            life.is_reported = False
            return True
        code, message = ErrorCode(response.error_code), response.error_message
        if code in RETRIED:
            return True
        # A process that was replaced while still running may lag by one session timeout, so the
        # member was not fenced for its silence.
        is_old = connection.broker in self.world.zombies
        if code in _FENCED:
            if not is_old and not self._owners.is_silent(life):
                self.world.fail(f"{life.member_id} is fenced by {code.name}: {message}")
            return False
        if code is not ErrorCode.NONE:
            self.world.fail(f"{life.member_id} gets {code.name}: {message}")
        if not is_old:
            life.heard_s, life.lost_count = sent_s, 0
        life.epoch = response.member_epoch
        life.is_reported = owned == life.owned
        if response.active_tasks is not None:
            self._take(life, response.active_tasks)
            if self.rng.random() < _STRUCK_SHARE:
                self._strike(connection.broker)
        return True

    async def _send_request(
        self, request: wire.StreamsGroupHeartbeatRequest, connection: Any = None
    ) -> Any:
        """Send a request. Raises NoResponse."""
        return await self.send_request(
            apis.STREAMS_GROUP_HEARTBEAT,
            0,
            request,
            lambda response: int(response.error_code),
            connection=connection,
        )

    def _strike(self, coordinator: "SimBroker") -> None:
        """Crash a coordinator that has just assigned tasks."""
        world = self.world
        if not world.calm and world.brokers.get(coordinator.node_id) is coordinator:
            world.later(0, world.crash, coordinator, self.rng.choice((0.01, 1.0)))

    def _request(self, life: Life, epoch: int) -> wire.StreamsGroupHeartbeatRequest:
        """Return a full request if the coordinator may lack the member's state."""
        request = wire.StreamsGroupHeartbeatRequest(
            self.group.name,
            life.member_id,
            epoch,
            active_tasks=None,
            standby_tasks=None,
            warmup_tasks=None,
            client_tags=None,
            task_offsets=None,
            task_end_offsets=None,
        )
        if epoch == 0:
            topics = sorted({topic for topic, _ in self.world.parts})
            request.topology = wire.Topology(0, [wire.Subtopology(name, [name]) for name in topics])
            request.rebalance_timeout_ms = self.world.coordination.rebalance_ms
            request.process_id = self.name
        if epoch >= 0 and (epoch == 0 or life.lost_count or not life.is_reported):
            held = sorted(life.owned) if epoch else []
            request.active_tasks = [wire.TaskIds(topic, [index]) for topic, index in held]
            request.standby_tasks = request.warmup_tasks = []
        return request

    def _take(self, life: Life, tasks: Any) -> None:
        parts: set[Part] = {
            (item.subtopology_id, index) for item in tasks for index in item.partitions
        }
        if parts != life.owned:
            life.is_reported = False
        self.world.trace("given", life.member_id, life.epoch, sorted(parts))
        life.revoked = life.owned - parts
        self._owners.given(life, parts | life.revoked)

    async def _commit(self, life: Life) -> None:
        parts = sorted(life.owned & set(self.group.parts))
        if not parts:
            return
        was_replaced = life.is_replaced
        try:
            code = await self.commit(
                parts, life.member_id, life.epoch, version=_COMMIT_VERSION, refusals=_STALE
            )
        except NoResponse:
            return
        if was_replaced and code is ErrorCode.NONE:
            self.world.fail(f"{life.member_id} commits after others were given its tasks")


class StreamsMembers:
    """One streams group with some members; empty in other scenarios."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._members: list[StreamsThread] = []
        if world.scenario not in STREAMING:
            return
        group = ConsumerGroup(world, "s0")
        limits = world.coordination
        silence_ms = min(limits.streams.session_timeout_ms, limits.rebalance_ms)
        self._group, self._owners = group, Ownership(world, group.name, silence_ms / 1_000)
        self._members = [self._member(f"thread{number}") for number in range(_MEMBERS_COUNT)]

    def _member(self, name: str) -> StreamsThread:
        return StreamsThread(self._world, self._group, self._owners, name)

    def run(self, stop: asyncio.Event) -> list[Any]:
        return [member.run(stop) for member in self._members]

    async def check(self) -> None:
        """Let new members settle, then replace the coordinators."""
        if not self._members:
            return
        members = [self._member(f"last{number}") for number in range(_AT_END_COUNT)]
        lives = [(member, member.begin()) for member in members]
        await check_new_coordinator(
            self._world,
            self._group.name,
            self._world.coordination.streams.session_timeout_ms,
            is_settled=lambda: self._settled(lives),
            held=lambda: [(life.epoch, sorted(life.owned)) for _, life in lives],
        )

    async def _settled(self, lives: list[tuple[StreamsThread, Life]]) -> bool:
        """Send heartbeats. Return whether all members are in one epoch and together
        have all tasks.
        """
        for member, life in lives:
            if not await member.beat(life):
                life.epoch, life.owned, life.is_reported = 0, set(), False
        owned = [part for _, life in lives for part in life.owned]
        return sorted(owned) == sorted(self._world.parts) and (
            len({life.epoch for _, life in lives}) == 1
        )
