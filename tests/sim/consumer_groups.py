"""Members of KIP-848 groups that subscribe, commit, leave and die, partly as classic members.

No member gets a partition of another member that has not timed out. Members are fenced only after
timeouts, and cannot commit afterwards. At the end, every partition has one owner, and a new
coordinator changes nothing.
"""

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, Final

from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import consumer_group_heartbeat as wire
from tests.sim.classic_subscribers import (
    CHAOS_FACTOR,
    LIVES_S,
    ClassicSubscriber,
    Migration,
)
from tests.sim.connections import NoResponse
from tests.sim.groups import LATE_MEMBERS, RETRIED, Asker, ConsumerGroup
from tests.sim.owners import Life, Ownership, check_new_coordinator

if TYPE_CHECKING:
    from tests.sim.nodes import SimBroker
    from tests.sim.world import World

SUBSCRIBING: Final = frozenset({"consumer_groups", LATE_MEMBERS})
_MEMBERS_COUNT: Final = 4
_AT_END_COUNT: Final = 3
_VERSION: Final = 1
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
_REGEX_SHARE: Final = 0.4


class Subscriber(Asker):
    """A client that is one member after another."""

    def __init__(
        self,
        world: "World",
        group: ConsumerGroup,
        owners: Ownership,
        name: str,
        migration: Migration,
    ) -> None:
        super().__init__(world, group, name)
        self._owners = owners
        self._lives_count = 0
        self._migration = migration
        self._classic = ClassicSubscriber(world, group, owners, f"classic {name}")

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if self._migration.is_classic(self.now_s()):
                await self._classic.live(stop)
            else:
                await self._live(stop)
            await asyncio.sleep(self.rng.uniform(0.02, 0.5))

    async def _live(self, stop: asyncio.Event) -> None:
        rng, life = self.rng, self.begin()
        end_s = self.now_s() + rng.choice(LIVES_S if self._migration.is_on else (2.0, 6.0, 20.0))
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
            await self._leave(life)

    @property
    def _session_s(self) -> float:
        return self.world.coordination.consumers.session_timeout_ms / 1_000

    def begin(self) -> Life:
        self._lives_count += 1
        life = Life(
            f"{self.name}.{self._lives_count}",
            heard_s=self.now_s(),
            has_regex=self.rng.random() < _REGEX_SHARE,
        )
        self._owners.began(life)
        return life

    async def beat(self, life: Life) -> bool:
        """Send a heartbeat. Return False if the member is fenced."""
        life.owned -= life.revoked
        life.revoked = set()
        sent_s, owned = self.now_s(), set(life.owned)
        try:
            connection = await self._coordinator()
            response = await self.send_request(
                apis.CONSUMER_GROUP_HEARTBEAT,
                _VERSION,
                self._request(life),
                lambda response: int(response.error_code),
                connection=connection,
            )
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
        if self._migration.is_on and code is ErrorCode.GROUP_ID_NOT_FOUND:
            # The group is classic now, or cannot be upgraded yet.
            if not is_old and life.epoch and not self._owners.is_silent(life):
                self.world.fail(f"{life.member_id} gets {code.name}: {message}")
            return False
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
        if response.assignment is not None:
            self._take(life, response.assignment)
            if self.rng.random() < _STRUCK_SHARE:
                self._strike(connection.broker)
        return True

    def _strike(self, coordinator: "SimBroker") -> None:
        """Crash a coordinator that has just assigned partitions."""
        world = self.world
        if not world.calm and world.brokers.get(coordinator.node_id) is coordinator:
            world.later(0, world.crash, coordinator, self.rng.choice((0.01, 1.0)))

    def _request(self, life: Life) -> wire.ConsumerGroupHeartbeatRequest:
        """Return a full request if the coordinator may lack the member's state."""
        request = wire.ConsumerGroupHeartbeatRequest(
            group_id=self.group.name, member_id=life.member_id, member_epoch=life.epoch
        )
        request.topic_partitions = None
        if life.epoch == 0 or life.lost_count:
            request.rebalance_timeout_ms = self.world.coordination.rebalance_ms
            names = sorted({topic for topic, _ in self.world.parts})
            request.subscribed_topic_names = [] if life.has_regex else names
            request.subscribed_topic_regex = "|".join(names) if life.has_regex else None
        if life.epoch == 0 or life.lost_count or not life.is_reported:
            request.topic_partitions = [
                wire.TopicPartitions(self._topic_id(topic), [index]) for topic, index in life.owned
            ]
        return request

    def _topic_id(self, name: str) -> Any:
        topic = self.world.metadata.image.topics.by_name(name)
        assert topic is not None
        return topic.topic_id

    def _take(self, life: Life, assignment: wire.Assignment) -> None:
        names = {self._topic_id(name): name for name, _ in self.world.parts}
        parts = {
            (names[topic.topic_id], index)
            for topic in assignment.topic_partitions
            for index in topic.partitions
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
            self.world.fail(f"{life.member_id} commits after others were given its partitions")

    async def _leave(self, life: Life) -> None:
        request = wire.ConsumerGroupHeartbeatRequest(
            group_id=self.group.name, member_id=life.member_id, member_epoch=_LEAVE_EPOCH
        )
        request.topic_partitions = None
        with contextlib.suppress(NoResponse):
            await self.send_request(
                apis.CONSUMER_GROUP_HEARTBEAT,
                _VERSION,
                request,
                lambda response: response.error_code,
            )


class ConsumerGroups:
    """One group with some members; empty in other scenarios."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._members: list[Subscriber] = []
        if world.scenario not in SUBSCRIBING:
            return
        group = ConsumerGroup(world, "c0")
        limits = world.coordination
        silence_ms = min(limits.consumers.session_timeout_ms, limits.rebalance_ms)
        self._group, self._owners = group, Ownership(world, group.name, silence_ms / 1_000)
        self._migration = Migration(world.seed)
        if self._migration.is_on:
            # A protocol change takes several rounds of all members.
            world.chaos_s *= CHAOS_FACTOR
        self._members = [
            Subscriber(world, group, self._owners, f"subscriber{number}", self._migration)
            for number in range(_MEMBERS_COUNT)
        ]

    def run(self, stop: asyncio.Event) -> list[Any]:
        return [member.run(stop) for member in self._members]

    async def check(self) -> None:
        """Let new members settle, then replace the coordinators."""
        if not self._members:
            return
        classic_count = self._migration.at_end_count
        members = [
            Subscriber(self._world, self._group, self._owners, f"last{number}", self._migration)
            for number in range(_AT_END_COUNT - classic_count)
        ]
        lives = [(member, member.begin()) for member in members]
        stop = asyncio.Event()
        classic: list[Life] = []
        staying: list[asyncio.Task[None]] = []
        for number in range(classic_count):
            member = ClassicSubscriber(self._world, self._group, self._owners, f"lastc{number}")
            classic.append(member.begin())
            staying.append(self._world.loop.create_task(member.stay(classic[-1], stop)))
        await self._check(lives, classic)
        stop.set()
        await asyncio.gather(*staying)

    async def _check(self, lives: list[tuple[Subscriber, Life]], classic: list[Life]) -> None:
        every = [*(life for _, life in lives), *classic]
        await check_new_coordinator(
            self._world,
            self._group.name,
            self._world.coordination.consumers.session_timeout_ms,
            is_settled=lambda: self._settled(lives, every),
            held=lambda: [(life.epoch, sorted(life.owned)) for life in every],
            may_change=not lives,  # those of a classic group
        )

    async def _settled(self, lives: list[tuple[Subscriber, Life]], every: list[Life]) -> bool:
        """Send heartbeats. Return whether all members are in one epoch and own all partitions.

        every: these members and the classic ones, which send heartbeats on their own.
        """
        for member, life in lives:
            if not await member.beat(life):
                life.epoch, life.owned, life.is_reported = 0, set(), False
        owned = [part for life in every for part in life.owned]
        return sorted(owned) == sorted(self._world.parts) and (
            len({life.epoch for life in every}) == 1
        )
