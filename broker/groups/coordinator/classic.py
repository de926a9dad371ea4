"""Run `ClassicGroup` for the group coordinator: park requests, keep timers and write records."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar

from penstock.broker.coordination.log import KeyValue
from penstock.broker.groups.classic.group import ClassicGroup
from penstock.broker.groups.classic.model import (
    CompleteJoin,
    CompleteSync,
    Effect,
    GroupLimits,
    JoinRequest,
    JoinResult,
    Member,
    PersistGroup,
    SyncRequest,
    SyncResult,
    Token,
)
from penstock.broker.groups.common.model import GroupState
from penstock.broker.groups.coordinator.journal import GroupHome
from penstock.broker.groups.coordinator.shard import Group
from penstock.broker.groups.offsets.records import (
    GroupKey,
    GroupSnapshot,
    decode_group_value,
    encode_group_key,
    encode_group_value,
)
from penstock.protocol.error_codes import ErrorCode

Result = TypeVar("Result", JoinResult, SyncResult)


class ClassicGroups:
    """Classic groups of one broker. Call all methods on the event loop.

    Each parked request is completed exactly once, when the rebalance completes or when this broker
    stops coordinating the group.
    """

    def __init__(
        self,
        home: GroupHome,
        limits: GroupLimits,
        now_ms: Callable[[], int],
        new_member_id: Callable[[str], str],
    ) -> None:
        self.limits = limits
        """The limits of groups created from now on."""
        self._home = home
        self._now_ms = now_ms
        self._new_member_id = new_member_id
        self._joins: dict[Token, asyncio.Future[JoinResult]] = {}
        self._syncs: dict[Token, asyncio.Future[SyncResult]] = {}
        self._next_token = 0

    def new(self, group_id: str) -> ClassicGroup:
        return ClassicGroup(group_id, self.limits, self._new_member_id)

    def restore(self, group: Group) -> None:
        """Restore the group from its record. Its members must rejoin."""
        assert group.record is not None
        snapshot = decode_group_value(group.record)
        group.classic.restore(
            generation=snapshot.generation,
            protocol_type=snapshot.protocol_type or None,
            protocol=snapshot.protocol,
            leader=snapshot.leader,
            members=snapshot.members,
            now_ms=self._now_ms(),
        )
        group.emptied_ms = snapshot.state_timestamp_ms
        if snapshot.members:
            self._apply(group, group.classic.request_rejoin(self._now_ms()))

    def unload(self, group: Group) -> None:
        """Complete parked requests with NOT_COORDINATOR."""
        self._apply(group, group.classic.unload())

    # --- requests ---------------------------------------------------------------------------------

    async def join(self, group: Group, request: JoinRequest) -> JoinResult:
        """Wait until the rebalance completes."""
        token, future = self._new_waiter(self._joins)
        self._apply(group, group.classic.join(request, token, self._now_ms()))
        self._home.forget_unused(group)
        try:
            return await future
        finally:
            self._joins.pop(token, None)

    async def sync(self, group: Group, request: SyncRequest) -> SyncResult:
        """Wait for the assignment of the leader."""
        token, future = self._new_waiter(self._syncs)
        self._apply(group, group.classic.sync(request, token, self._now_ms()))
        try:
            return await future
        finally:
            self._syncs.pop(token, None)

    def heartbeat(
        self, group: Group, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        error = group.classic.heartbeat(member_id, instance_id, generation, self._now_ms())
        self._set_timer(group)
        return error

    def leave(self, group: Group, members: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Remove members, given as (member id, instance id). Return one error per member."""
        errors: list[ErrorCode] = []
        for member_id, instance_id in members:
            error, effects = group.classic.leave(member_id, instance_id, self._now_ms())
            errors.append(error)
            self._apply(group, effects)
        return errors

    def check_commit(
        self, group: Group, member: tuple[str, str | None, int], *, transactional: bool
    ) -> ErrorCode:
        """Return an error unless the member may commit offsets. member: (member id, instance id,
        generation).
        """
        error = group.classic.check_commit(*member, self._now_ms(), transactional=transactional)
        self._set_timer(group)
        return error

    # --- protocol changes -------------------------------------------------------------------------

    def retire(self, group: Group) -> None:
        """Make the parked members rejoin, and empty the classic group."""
        self._apply(group, group.classic.unload(ErrorCode.REBALANCE_IN_PROGRESS))
        group.classic = self.new(group.classic.group_id)

    def take_over(self, group: Group, generation: int, members: Sequence[Member]) -> None:
        """Continue another group as a classic group, whose members must rejoin."""
        self._apply(group, group.classic.take_over(generation, members, self._now_ms()))

    # --- effects of the state machine -------------------------------------------------------------

    def _new_waiter(
        self, waiting: dict[Token, asyncio.Future[Result]]
    ) -> tuple[Token, asyncio.Future[Result]]:
        self._next_token += 1
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        waiting[self._next_token] = future
        return self._next_token, future

    def _apply(self, group: Group, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case CompleteJoin(token, result):
                    joining = self._joins.get(token)
                    if joining is not None and not joining.done():
                        joining.set_result(result)
                case CompleteSync(token, result):
                    syncing = self._syncs.get(token)
                    if syncing is not None and not syncing.done():
                        syncing.set_result(result)
                case PersistGroup(generation):
                    self._persist(group, generation)
        self._set_timer(group)

    def _persist(self, group: Group, generation: int) -> None:
        classic = group.classic
        if classic.state is GroupState.EMPTY:
            group.emptied_ms = self._now_ms()
        snapshot = GroupSnapshot(
            classic.protocol_type or "",
            classic.generation,
            classic.protocol,
            classic.leader,
            self._now_ms(),
            tuple(classic.members.values()),
        )
        record: KeyValue = (
            encode_group_key(GroupKey(classic.group_id)),
            encode_group_value(snapshot),
        )

        def done(error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                group.record = record[1]
            self._apply(group, classic.assignment_persisted(generation, error, self._now_ms()))

        self._home.begin_append(group, [record], done)

    def _set_timer(self, group: Group) -> None:
        """Set the group's only timer to the next deadline of the state machine."""
        deadline_ms = (
            group.classic.next_deadline_ms() if group.classic.state is not GroupState.DEAD else None
        )
        if group.timer is not None:
            group.timer.cancel()
            group.timer = None
        if deadline_ms is not None:
            delay_s = max(0, deadline_ms - self._now_ms()) / 1000
            group.timer = asyncio.get_running_loop().call_later(delay_s, self._tick, group)

    def _tick(self, group: Group) -> None:
        group.timer = None
        self._apply(group, group.classic.tick(self._now_ms()))
        self._home.forget_unused(group)
