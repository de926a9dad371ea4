"""Run `StreamsGroup` for the group coordinator: respond to heartbeats, manage timers and write
records.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

from penstock.broker.groups.common.changes import GroupChanges
from penstock.broker.groups.common.model import JOIN_EPOCH, GroupState, HeartbeatRefused, TopicsView
from penstock.broker.groups.coordinator.journal import (
    RETRY_S,
    GroupHome,
    GroupJournal,
    durable_records,
    failed_heartbeat,
    is_refused,
    when_durable,
)
from penstock.broker.groups.coordinator.shard import Group
from penstock.broker.groups.streams.group import StreamsGroup
from penstock.broker.groups.streams.model import (
    StreamsHeartbeatRequest,
    StreamsHeartbeatResult,
    StreamsLimits,
    StreamsMember,
)
from penstock.broker.groups.streams.validation import check_streams_heartbeat
from penstock.broker.groups.streams.values import NO_TASKS, Tasks, Topology
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode

Outcome: TypeAlias = "asyncio.Future[ErrorCode]"
_HEARTBEAT: Final = apis.STREAMS_GROUP_HEARTBEAT.key


@dataclass(frozen=True, slots=True)
class StreamsGroupDescription:
    """A snapshot of a streams group, for StreamsGroupDescribe."""

    group_id: str
    state: GroupState
    epoch: int
    target_epoch: int
    topology: Topology
    members: tuple[tuple[StreamsMember, Tasks], ...]
    """Each member with its target assignment."""


class StreamsGroups:
    """Streams groups of one broker. Call all methods on the event loop."""

    def __init__(
        self,
        home: GroupHome,
        topics: TopicsView,
        limits_of: Callable[[str], StreamsLimits],
        now_ms: Callable[[], int],
    ) -> None:
        """limits_of: returns the current limits of a group."""
        self._home = home
        self._journal = GroupJournal(home, now_ms)
        self._topics = topics
        self._limits_of = limits_of
        self._now_ms = now_ms

    # --- heartbeats -------------------------------------------------------------------------------

    async def heartbeat(
        self, group_id: str, request: StreamsHeartbeatRequest, connection_id: int | None = None
    ) -> StreamsHeartbeatResult:
        """Handle StreamsGroupHeartbeat. Returns once the response is durable. Raises LateRequest.

        connection_id: see `GroupCoordinator.join`.
        """
        try:
            check_streams_heartbeat(group_id, request)
            group = self._home.find(group_id, create=request.is_joining)
            if isinstance(group, ErrorCode):
                is_leaving = request.member_epoch < JOIN_EPOCH
                if is_leaving and group is ErrorCode.GROUP_ID_NOT_FOUND:
                    self._home.admit_leave(_HEARTBEAT, group_id, request.member_id, connection_id)
                return _not_found(group, group_id, is_leaving=is_leaving)
            self._home.admit(_HEARTBEAT, group, request.member_id, connection_id)
            result, outcome = self._step(group, request)
        except HeartbeatRefused as refused:
            return _failed(refused.result.error, refused.result.message)
        code = await outcome
        if code is ErrorCode.NONE:
            return result
        failed = failed_heartbeat(code)
        return _failed(failed.error, failed.message)

    def _step(
        self, group: Group, request: StreamsHeartbeatRequest
    ) -> tuple[StreamsHeartbeatResult, Outcome]:
        """Change the group and start writing the change. Raises HeartbeatRefused."""
        streams = group.streams
        if streams is None:
            return self._begin(group, request)
        streams.limits = self._limits_of(streams.group_id)
        if request.member_epoch < JOIN_EPOCH:
            result, changes = streams.leave(request)
        else:
            result, changes = streams.heartbeat(request, self._topics, self._now_ms())
        return result, self._write(group, changes)

    def _begin(
        self, group: Group, request: StreamsHeartbeatRequest
    ) -> tuple[StreamsHeartbeatResult, Outcome]:
        """Create a streams group with its first member. It may replace an empty classic group.
        Raises HeartbeatRefused.
        """
        group_id = group.classic.group_id
        if not group.is_classic or group.has_members or not request.is_joining:
            raise HeartbeatRefused(
                ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is not a streams group."
            )
        streams = StreamsGroup(group_id, self._limits_of(group_id))
        try:
            result, changes = streams.heartbeat(request, self._topics, self._now_ms())
        except HeartbeatRefused:
            self._home.forget_unused(group)
            raise
        group.streams = streams
        group.cancel_modern_timer()
        outcome = self._write(group, changes, is_new=True)
        if is_refused(outcome):
            group.streams = None
            self._home.forget_unused(group)
        return result, outcome

    def _write(self, group: Group, changes: GroupChanges, *, is_new: bool = False) -> Outcome:
        outcome = self._journal.write(group, changes, is_new=is_new)
        self._set_timer(group)
        return outcome

    # --- timers -----------------------------------------------------------------------------------

    def _set_timer(self, group: Group, *, delay_s: float = 0.0) -> None:
        deadline_ms = None if group.streams is None else group.streams.next_deadline_ms()
        self._journal.set_timer(group, deadline_ms, self._tick, delay_s=delay_s)

    def _tick(self, group: Group) -> None:
        group.consumer_timer = None
        if group.streams is None:
            return
        group.streams.limits = self._limits_of(group.streams.group_id)
        changes = group.streams.tick(self._now_ms())
        must_retry = bool(changes.records) and is_refused(self._journal.write(group, changes))
        self._set_timer(group, delay_s=RETRY_S if must_retry else 0.0)

    def restore(self, group: Group) -> None:
        """Restore the group from its durable records."""
        group_id = group.classic.group_id
        group.streams = StreamsGroup(group_id, self._limits_of(group_id))
        group.streams.restore(durable_records(group), self._now_ms())
        self._set_timer(group)

    # --- describing -------------------------------------------------------------------------------

    async def describe(self, group_id: str) -> StreamsGroupDescription | ErrorCode:
        """Describe a streams group once its last change is durable. Returns GROUP_ID_NOT_FOUND if
        the group does not exist.
        """
        group = self._home.find(group_id, create=False, is_read=True)
        if isinstance(group, ErrorCode):
            return group
        streams = group.streams
        topology = None if streams is None else streams.described_topology
        if streams is None or topology is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        described = StreamsGroupDescription(
            group_id,
            streams.state,
            streams.epoch,
            streams.target_epoch,
            topology,
            tuple(
                (member, streams.targets.get(member.member_id, NO_TASKS))
                for member in streams.members.values()
            ),
        )
        return await when_durable(group, described)


def _failed(error: ErrorCode, message: str | None) -> StreamsHeartbeatResult:
    return StreamsHeartbeatResult(error=error, message=message)


def _not_found(code: ErrorCode, group_id: str, *, is_leaving: bool) -> StreamsHeartbeatResult:
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        kind = "Group" if is_leaving else "Streams group"
        return _failed(code, f"{kind} {group_id} not found.")
    failed = failed_heartbeat(code)
    return _failed(failed.error, failed.message)
