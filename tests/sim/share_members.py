"""Members of a share group that subscribe, send heartbeats, leave and die.

A member is fenced only after a session timeout, and an assigned partition has a state at the share
coordinator. At the end, every partition is assigned, all members are in one epoch, and a new
coordinator changes neither. Source: KIP-932.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.groups.share.state.model import SharePartitionKey
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import read_share_group_state_summary as summing
from penstock.protocol.gen import share_group_heartbeat as wire
from tests.sim.checkers import Part
from tests.sim.connections import NoResponse
from tests.sim.groups import LATE_MEMBERS, RETRIED, Asker
from tests.sim.owners import check_new_coordinator

if TYPE_CHECKING:
    from tests.sim.world import World

JOINING: Final = frozenset({"share_groups", LATE_MEMBERS})
_GROUP: Final = "q0"
_MEMBERS_COUNT: Final = 3
_AT_END_COUNT: Final = 2
_LEAVE_EPOCH: Final = -1
_SHARE_KEY_TYPE: Final = 2
_FIND_VERSION: Final = 6
_LOST_MAX: Final = 2
"""After this many consecutive lost responses, the coordinator may be two epochs ahead."""
_FENCED: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})


@dataclass(frozen=True, slots=True)
class Named:
    """The group that an `Asker` queries."""

    name: str


@dataclass(slots=True, eq=False)
class ShareLife:
    """A member from its first heartbeat until it leaves, dies or is fenced."""

    member_id: str
    epoch: int = 0
    assigned: set[Part] = field(default_factory=set[Part])
    heard_s: float = 0.0
    lost_count: int = 0


class StateAsker(Asker):
    """A client with a connection to a share coordinator."""

    KEY_TYPE = _SHARE_KEY_TYPE
    FIND_VERSION = _FIND_VERSION

    async def epoch_of(self, topic_id: Any, index: int) -> int | None:
        """Return the state epoch; 0 without a state, None without a response. Raises NoResponse."""
        request = summing.ReadShareGroupStateSummaryRequest(
            _GROUP, [summing.ReadStateSummaryData(topic_id, [summing.PartitionData(index, -1)])]
        )
        response = await self.send_request(
            apis.READ_SHARE_GROUP_STATE_SUMMARY,
            1,
            request,
            lambda found: int(found.results[0].partitions[0].error_code),
        )
        found = response.results[0].partitions[0]
        return None if found.error_code else int(found.state_epoch)


class ShareSubscriber(Asker):
    """A client that is one member after another."""

    def __init__(self, world: "World", name: str) -> None:
        super().__init__(world, Named(_GROUP), name)
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
        if is_alive and rng.random() < 0.7:
            request = wire.ShareGroupHeartbeatRequest(_GROUP, life.member_id, _LEAVE_EPOCH)
            with contextlib.suppress(NoResponse):
                await self.send_request(
                    apis.SHARE_GROUP_HEARTBEAT, 1, request, lambda a: a.error_code
                )

    @property
    def _session_s(self) -> float:
        return self.world.coordination.shares.session_timeout_ms / 1_000

    def begin(self) -> ShareLife:
        self._lives_count += 1
        return ShareLife(f"{self.name}.{self._lives_count}", heard_s=self.now_s())

    async def beat(self, life: ShareLife) -> bool:
        """Send a heartbeat. Return False if the member is fenced."""
        sent_s = self.now_s()
        request = wire.ShareGroupHeartbeatRequest(_GROUP, life.member_id, life.epoch)
        if life.epoch == 0 or life.lost_count:
            request.subscribed_topic_names = sorted({topic for topic, _ in self.world.parts})
        try:
            connection = await self._coordinator()
            response = await self.send_request(
                apis.SHARE_GROUP_HEARTBEAT,
                1,
                request,
                lambda reply: int(reply.error_code),
                connection=connection,
            )
        except NoResponse:
            life.lost_count += 1
            return True
        code, message = ErrorCode(response.error_code), response.error_message
        if code in RETRIED:
            return True
        # A process that was replaced while still running may lag by one session timeout.
        is_old = connection.broker in self.world.zombies
        if code in _FENCED:
            is_silent = self.now_s() - life.heard_s >= self._session_s
            if not is_old and not is_silent and life.lost_count < _LOST_MAX:
                self.world.fail(f"{life.member_id} is fenced by {code.name}: {message}")
            return False
        if code is not ErrorCode.NONE:
            self.world.fail(f"{life.member_id} gets {code.name}: {message}")
        if not is_old:
            life.heard_s, life.lost_count = sent_s, 0
        life.epoch = response.member_epoch
        if response.assignment is not None:
            await self._take(life, response.assignment)
        return True

    async def _take(self, life: ShareLife, assignment: wire.Assignment) -> None:
        ids = {self._topic_id(name): name for name, _ in self.world.parts}
        life.assigned = {
            (ids[topic.topic_id], index)
            for topic in assignment.topic_partitions
            for index in topic.partitions
        }
        self.world.trace("given", life.member_id, life.epoch, sorted(life.assigned))
        if life.assigned:
            await self._check_state(self.rng.choice(sorted(life.assigned)))

    async def _check_state(self, part: Part) -> None:
        topic_id = self._topic_id(part[0])
        key = SharePartitionKey(_GROUP, topic_id, part[1])
        asker = StateAsker(self.world, Named(key.coordinator_key), f"{self.name} of {part}")
        with contextlib.suppress(NoResponse):
            if await asker.epoch_of(topic_id, part[1]) == 0:
                self.world.fail(f"{self.name} is given {part}, which has no state")

    def _topic_id(self, name: str) -> Any:
        topic = self.world.metadata.image.topics.by_name(name)
        assert topic is not None
        return topic.topic_id


class ShareMembers:
    """One share group with some members; empty in other scenarios."""

    def __init__(self, world: "World") -> None:
        self._world = world
        count = _MEMBERS_COUNT if world.scenario in JOINING else 0
        self._members = [ShareSubscriber(world, f"sharer{number}") for number in range(count)]

    def run(self, stop: asyncio.Event) -> list[Any]:
        return [member.run(stop) for member in self._members]

    async def check(self) -> None:
        """Let new members settle, then replace the coordinators."""
        if not self._members:
            return
        members = [
            ShareSubscriber(self._world, f"last sharer{number}") for number in range(_AT_END_COUNT)
        ]
        lives = [(member, member.begin()) for member in members]
        await check_new_coordinator(
            self._world,
            _GROUP,
            self._world.coordination.shares.session_timeout_ms,
            is_settled=lambda: self._settled(lives),
            held=lambda: [(life.epoch, sorted(life.assigned)) for _, life in lives],
        )

    async def _settled(self, lives: list[tuple[ShareSubscriber, ShareLife]]) -> bool:
        """Send heartbeats. Return whether all members are in one epoch and together have all
        partitions.
        """
        for member, life in lives:
            if not await member.beat(life):
                life.epoch, life.assigned = 0, set()
        read = set().union(*(life.assigned for _, life in lives))
        return read == set(self._world.parts) and len({life.epoch for _, life in lives}) == 1
