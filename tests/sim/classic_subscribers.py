"""Classic members of a KIP-848 group that is upgraded and downgraded in the meantime.

Their assignor is eager: a member revokes everything before JoinGroup and owns what SyncGroup
returns. The leader of a classic generation assigns the partitions of all topics. Source: KIP-848
(migration), Kafka `ConsumerProtocolSubscription.json`.
"""

import asyncio
import contextlib
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.groups.classic.embedded import (
    CONSUMER_PROTOCOL,
    decode_assignment,
    encode_assignment,
)
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import heartbeat, join_group, leave_group, sync_group
from penstock.protocol.primitives import Writer
from tests.sim.checkers import Part
from tests.sim.connections import NoResponse
from tests.sim.groups import RETRIED, Asker, ConsumerGroup
from tests.sim.owners import Life, Ownership

if TYPE_CHECKING:
    from tests.sim.world import World

_PROTOCOL: Final = "range"
_WAIT_S: Final = 6.0
"""Timeout of JoinGroup and SyncGroup, which wait for other members."""
_RUNS_SHARE: Final = 0.4
_PHASE_S: Final = 2.5
LIVES_S: Final = (0.5, 1.5, 4.0)
"""Lifetime of members in such a run: the group changes its protocol when they leave."""
CHAOS_FACTOR: Final = 3


class Migration:
    """The share of classic members over time, alternating between nearly all, half and
    nearly none.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        rng = Random(f"{seed}/classic")
        self.is_on = rng.random() < _RUNS_SHARE
        self.at_end_count = rng.randint(0, 3) if self.is_on else 0
        """Classic members among those at the end."""
        self._rng = rng

    def is_classic(self, now_s: float) -> bool:
        """Draw the protocol of a new member."""
        if not self.is_on:
            return False
        phase = Random(f"{self._seed}/classic/{int(now_s / _PHASE_S)}")
        return self._rng.random() < phase.choice((0.0, 0.5, 1.0))


class ClassicSubscriber(Asker):
    """A client that is one classic member after another."""

    def __init__(self, world: "World", group: ConsumerGroup, owners: Ownership, name: str) -> None:
        super().__init__(world, group, name)
        self._owners = owners
        self._lives_count = 0
        self._version = self.rng.choice((0, 1, 3))
        """Of the subscription."""

    def begin(self) -> Life:
        self._lives_count += 1
        life = Life(f"{self.name}.{self._lives_count}", heard_s=self.now_s())
        self._owners.began(life)
        return life

    async def live(self, stop: asyncio.Event) -> None:
        """Be a member for some time; stall, leave or die."""
        life = self.begin()
        end_s = self.now_s() + self.rng.choice(LIVES_S)
        member_id = ""
        while not stop.is_set() and self.now_s() < end_s:
            member_id = await self._join(life, member_id)
            while life.owned_generation and not stop.is_set() and self.now_s() < end_s:
                is_stalled = self.rng.random() < 0.03
                pause_s = self.rng.uniform(0.02, 0.4)
                await asyncio.sleep(1.5 * self._session_s if is_stalled else pause_s)
                member_id = await self._stay(life, member_id)
        self._owners.ended(life)
        if member_id and self.rng.random() < 0.7:
            await self._leave(member_id)

    async def stay(self, life: Life, stop: asyncio.Event) -> None:
        """Be a member until the end."""
        member_id = ""
        while not stop.is_set():
            member_id = (
                await self._stay(life, member_id)
                if life.owned_generation
                else await self._join(life, member_id)
            )
            await asyncio.sleep(0.1)

    @property
    def _session_s(self) -> float:
        return self.world.coordination.consumers.session_timeout_ms / 1_000

    def _give_up(self, life: Life) -> None:
        life.owned, life.owned_generation, life.epoch = set(), False, 0

    async def _join(self, life: Life, member_id: str) -> str:
        """Join and sync once. Return the member id, or None if the client is no longer a member."""
        await asyncio.sleep(self.rng.uniform(0.01, 0.1))
        try:
            joined = await self._ask_to_join(member_id)
            code = ErrorCode(joined.error_code)
            if code is ErrorCode.MEMBER_ID_REQUIRED:
                return str(joined.member_id)
            if code is ErrorCode.NONE:
                await self._sync(life, joined)
                return str(joined.member_id)
        except NoResponse:
            return member_id
        if code is ErrorCode.UNKNOWN_MEMBER_ID:
            return ""
        if code not in RETRIED | {ErrorCode.REBALANCE_IN_PROGRESS}:
            self.world.fail(f"{life.member_id} joins and gets {code.name}")
        return member_id

    async def _ask_to_join(self, member_id: str) -> Any:
        coordination = self.world.coordination
        request = join_group.JoinGroupRequest(
            self.group.name,
            coordination.consumers.session_timeout_ms,
            coordination.rebalance_ms,
            member_id,
            None,
            CONSUMER_PROTOCOL,
            [join_group.JoinGroupRequestProtocol(_PROTOCOL, self._subscription())],
        )
        return await self.send_request(apis.JOIN_GROUP, 5, request, _code_of, timeout_s=_WAIT_S)

    def _subscription(self) -> bytes:
        """Return a subscription to all topics. The member owns nothing, because its assignor is
        eager.
        """
        names = sorted({topic for topic, _ in self.world.parts})
        writer = Writer(self._version.to_bytes(2, "big"))
        writer.length(len(names), False)
        for name in names:
            writer.string(name, False)
        writer.null(False)
        if self._version >= 1:
            writer.length(0, False)
        if self._version >= 3:
            writer += (-1).to_bytes(4, "big", signed=True)
            writer.nullable_string(None, False)
        return bytes(writer)

    async def _sync(self, life: Life, joined: Any) -> None:
        """Sync. Raises NoResponse."""
        request = sync_group.SyncGroupRequest(
            self.group.name,
            joined.generation_id,
            joined.member_id,
            assignments=self._assignments(joined),
        )
        sent_s = self.now_s()
        connection = await self._coordinator()
        response = await self.send_request(
            apis.SYNC_GROUP, 3, request, _code_of, timeout_s=_WAIT_S, connection=connection
        )
        # A replaced process may lag, and members do not trust a response that is older than their
        # session.
        is_late = self._owners.silence_s <= self.now_s() - sent_s
        if response.error_code or is_late or connection.broker in self.world.zombies:
            return
        assigned = decode_assignment(bytes(response.assignment))
        parts = {(topic, index) for topic, indexes in assigned.items() for index in indexes}
        life.heard_s, life.is_replaced = sent_s, False
        life.epoch, life.owned_generation = joined.generation_id, True
        kind = "leads" if joined.members else "follows"
        self.world.trace("synced", life.member_id, kind, life.epoch, sorted(parts))
        self._owners.given(life, parts)

    def _assignments(self, joined: Any) -> list[Any]:
        """Return an assignment of all partitions if the member leads a classic generation."""
        members = [member.member_id for member in joined.members]
        found: list[Any] = []
        for at, member in enumerate(joined.members):
            mine: dict[str, frozenset[int]] = {}
            for topic, index in sorted(self.world.parts)[at :: len(members)]:
                mine[topic] = mine.get(topic, frozenset()) | {index}
            encoded = encode_assignment(mine, bytes(member.metadata))
            found.append(sync_group.SyncGroupRequestAssignment(member.member_id, encoded))
        return found

    async def _stay(self, life: Life, member_id: str) -> str:
        """Send a heartbeat and sometimes commit. Return the member id, or None if the client is no
        longer a member.
        """
        request = heartbeat.HeartbeatRequest(self.group.name, life.epoch, member_id)
        sent_s = self.now_s()
        try:
            connection = await self._coordinator()
            response = await self.send_request(
                apis.HEARTBEAT, 3, request, _code_of, connection=connection
            )
        except NoResponse:
            return member_id
        code, is_old = ErrorCode(response.error_code), connection.broker in self.world.zombies
        if code is ErrorCode.NONE:
            if not is_old:
                life.heard_s = sent_s
            if self.rng.random() < 0.5:
                await self._commit(life, member_id)
        elif code is ErrorCode.UNKNOWN_MEMBER_ID:
            if not is_old and not self._owners.is_silent(life):
                self.world.fail(f"{life.member_id} is fenced by {code.name}")
            member_id = ""
        if code not in RETRIED | {ErrorCode.NONE}:
            self._give_up(life)
        return member_id

    async def _commit(self, life: Life, member_id: str) -> None:
        parts: list[Part] = sorted(life.owned & set(self.group.parts))
        if not parts:
            return
        was_replaced = life.is_replaced
        with contextlib.suppress(NoResponse):
            code = await self.commit(parts, member_id, life.epoch)
            if was_replaced and code is ErrorCode.NONE:
                self.world.fail(f"{life.member_id} commits after others were given its partitions")

    async def _leave(self, member_id: str) -> None:
        request = leave_group.LeaveGroupRequest(
            self.group.name, [leave_group.MemberIdentity(member_id)]
        )
        with contextlib.suppress(NoResponse):
            await self.send_request(apis.LEAVE_GROUP, 4, request, _code_of)


def _code_of(response: Any) -> int:
    return int(response.error_code)
