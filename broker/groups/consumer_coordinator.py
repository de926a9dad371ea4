"""Run `ConsumerGroup` for the group coordinator: answer heartbeats, keep time and write records.

Invariants: an answer is given only when the records that it depends on are durable, those of
earlier heartbeats included. What a refused append has changed is taken back, and an append that
fails later makes the partition load again from its log.
Source: Kafka GroupCoordinatorService, CoordinatorRuntime.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from broker.coordination.log import Done, KeyValue
from broker.groups.consumer.group import ConsumerGroup, GroupChanges
from broker.groups.consumer.model import (
    JOIN_EPOCH,
    NOTHING,
    Assignment,
    ConsumerLimits,
    ConsumerMember,
    HeartbeatRefused,
    HeartbeatRequest,
    HeartbeatResult,
    TopicsView,
)
from broker.groups.consumer.records import (
    ConsumerRecordKey,
    ConsumerValue,
    decode_consumer_key,
    decode_consumer_value,
    encode_consumer_key,
    encode_consumer_value,
)
from broker.groups.consumer.validation import check_heartbeat
from broker.groups.model import GroupState
from broker.groups.records import GroupKey, encode_group_key
from broker.groups.state import Group, consumer_tombstones
from broker.wire.error_codes import ErrorCode

_RETRY_S: Final = 1.0
"""Pause before a timeout is tried again whose records could not be written."""
_TOO_LARGE: Final = frozenset({ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE})


class GroupHome(Protocol):
    """The coordinator that has the groups."""

    def find(self, group_id: str, *, create: bool, is_read: bool = False) -> Group | ErrorCode: ...

    def begin_append(self, group: Group, records: Sequence[KeyValue], done: Done) -> None: ...

    def reload(self, group: Group) -> None: ...

    def forget(self, group: Group) -> None: ...


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescription:
    """A snapshot of a consumer group, for ConsumerGroupDescribe."""

    group_id: str
    state: GroupState
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[tuple[ConsumerMember, Assignment], ...]
    """Each member with its target."""


class ConsumerCoordinator:
    """Consumer groups of one broker. Call all methods on the event loop."""

    def __init__(
        self,
        home: GroupHome,
        topics: TopicsView,
        limits: ConsumerLimits,
        now_ms: Callable[[], int],
    ) -> None:
        self._home = home
        self._topics = topics
        self._limits = limits
        self._now_ms = now_ms

    # --- heartbeats -------------------------------------------------------------------------------

    async def heartbeat(
        self, group_id: str, request: HeartbeatRequest, version: int
    ) -> HeartbeatResult:
        """Handle ConsumerGroupHeartbeat. The answer is durable.

        version: of the request.
        """
        try:
            check_heartbeat(group_id, request, version, self._limits.assignors)
            group = self._home.find(group_id, create=request.member_epoch == JOIN_EPOCH)
            if isinstance(group, ErrorCode):
                return _not_found(group, group_id, is_leaving=request.member_epoch < JOIN_EPOCH)
            result, outcome = self._step(group, request)
        except HeartbeatRefused as refused:
            return refused.result
        code = await outcome
        return result if code is ErrorCode.NONE else _failed(code)

    def _step(
        self, group: Group, request: HeartbeatRequest
    ) -> tuple[HeartbeatResult, "asyncio.Future[ErrorCode]"]:
        """Change the group and begin to write that. Raises HeartbeatRefused."""
        is_new = group.consumer is None
        consumer = group.consumer or self._new_consumer(group, request)
        handle = consumer.heartbeat if request.member_epoch >= JOIN_EPOCH else consumer.leave
        try:
            result, changes = handle(request, self._topics, self._now_ms())
        except HeartbeatRefused:
            if is_new and group.is_forgettable and group.record is None:
                self._home.forget(group)
            raise
        group.consumer = consumer
        outcome = self._write(group, changes, is_new=is_new)
        self._set_timer(group)
        return result, outcome

    def _new_consumer(self, group: Group, request: HeartbeatRequest) -> ConsumerGroup:
        """Return a consumer group in place of an empty classic one. Raises HeartbeatRefused."""
        is_classic = group.classic.state is not GroupState.EMPTY
        if is_classic or request.member_epoch != JOIN_EPOCH:
            raise HeartbeatRefused(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"Group {group.classic.group_id} is not a consumer group.",
            )
        return ConsumerGroup(group.classic.group_id, self._limits)

    def make_classic(self, group: Group) -> bool:
        """Prepare a group for a classic member. Returns False while it has consumer members."""
        if group.consumer is None:
            return True
        if group.consumer.members:
            return False
        records = consumer_tombstones(group)
        group.consumer = None

        def done(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                group.consumer_records.clear()
            else:
                self._home.reload(group)

        self._home.begin_append(group, records, done)
        return True

    # --- records ----------------------------------------------------------------------------------

    def _write(
        self, group: Group, changes: GroupChanges, *, is_new: bool = False
    ) -> "asyncio.Future[ErrorCode]":
        """Append the records of a step. Returns the outcome of this step and all before it."""
        outcome: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        if not changes.records:
            return _following(group.consumer_append, outcome)
        records: list[KeyValue] = [
            (encode_consumer_key(key), None if value is None else encode_consumer_value(value))
            for key, value in changes.records
        ]
        replaces_classic = is_new and (group.record is not None or group.appends_count > 0)
        classic: list[KeyValue] = []
        if replaces_classic:
            classic.append((encode_group_key(GroupKey(group.classic.group_id)), None))
        is_accepted = False

        def done(code: ErrorCode) -> None:
            outcome.set_result(code)
            if code is ErrorCode.NONE:
                _keep(group, records)
                if replaces_classic:
                    group.record = None
            elif is_accepted:
                self._home.reload(group)

        before, group.consumer_append = group.consumer_append, outcome
        self._home.begin_append(group, [*classic, *records], done)
        if outcome.done() and outcome.result() is not ErrorCode.NONE:
            changes.undo()
            group.consumer_append = before
            if is_new:
                group.consumer = None
        is_accepted = True
        return asyncio.shield(outcome)

    def restore(self, group: Group) -> None:
        """Restore the group from its durable records."""
        found: list[tuple[ConsumerRecordKey, ConsumerValue]] = []
        for key, value in group.consumer_records.items():
            decoded = decode_consumer_key(key)
            if decoded is not None:
                found.append((decoded, decode_consumer_value(decoded.kind, value)))
        group.consumer = ConsumerGroup(group.classic.group_id, self._limits)
        group.consumer.restore(found, self._now_ms())
        self._set_timer(group)

    # --- time -------------------------------------------------------------------------------------

    def _set_timer(self, group: Group, *, delay_s: float = 0.0) -> None:
        """Set the timer to the next deadline. One that fires earlier stays, and is set again when
        it has fired: each heartbeat moves a deadline.
        """
        deadline_ms = None if group.consumer is None else group.consumer.next_deadline_ms()
        if deadline_ms is None:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + max(delay_s, (deadline_ms - self._now_ms()) / 1000)
        if group.consumer_timer is not None:
            if group.consumer_timer.when() <= due:
                return
            group.consumer_timer.cancel()
        group.consumer_timer = loop.call_at(due, self._tick, group)

    def _tick(self, group: Group) -> None:
        group.consumer_timer = None
        if group.consumer is None:
            return
        changes = group.consumer.tick(self._topics, self._now_ms())
        outcome = self._write(group, changes) if changes.records else None
        is_refused = (
            outcome is not None and outcome.done() and outcome.result() is not ErrorCode.NONE
        )
        self._set_timer(group, delay_s=_RETRY_S if is_refused else 0.0)

    # --- describing -------------------------------------------------------------------------------

    async def describe(self, group_id: str) -> ConsumerGroupDescription | ErrorCode:
        """Describe a consumer group, once what is told is durable. GROUP_ID_NOT_FOUND: there is
        none.
        """
        group = self._home.find(group_id, create=False, is_read=True)
        if isinstance(group, ErrorCode):
            return group
        consumer = group.consumer
        if consumer is None:
            return ErrorCode.GROUP_ID_NOT_FOUND
        described = ConsumerGroupDescription(
            group_id,
            consumer.state,
            consumer.epoch,
            consumer.target_epoch,
            consumer.assignor,
            tuple(
                (member, consumer.targets.get(member.member_id, NOTHING))
                for member in consumer.members.values()
            ),
        )
        if group.consumer_append is not None:
            code = await asyncio.shield(group.consumer_append)
            return described if code is ErrorCode.NONE else code
        return described


def _following(
    before: "asyncio.Future[ErrorCode] | None", outcome: "asyncio.Future[ErrorCode]"
) -> "asyncio.Future[ErrorCode]":
    if before is not None:
        return asyncio.shield(before)
    outcome.set_result(ErrorCode.NONE)
    return outcome


def _keep(group: Group, records: Sequence[KeyValue]) -> None:
    """Note durable records."""
    for key, value in records:
        if value is None:
            group.consumer_records.pop(key, None)
        else:
            group.consumer_records[key] = value


def _not_found(code: ErrorCode, group_id: str, *, is_leaving: bool) -> HeartbeatResult:
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        kind = "Group" if is_leaving else "Consumer group"
        return HeartbeatResult(code, f"{kind} {group_id} not found.")
    return _failed(code)


def _failed(code: ErrorCode) -> HeartbeatResult:
    known = ErrorCode.UNKNOWN_SERVER_ERROR if code in _TOO_LARGE else code
    return HeartbeatResult(known, known.message)
