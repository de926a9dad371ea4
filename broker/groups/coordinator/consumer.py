"""Run `ConsumerGroup` for the group coordinator: respond to heartbeats, keep timers and write
records.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.base.regular_expressions import RegexInvalid
from penstock.broker.coordination.connection_order import STATIC_JOIN
from penstock.broker.coordination.log import KeyValue
from penstock.broker.groups.classic.embedded import CONSUMER_PROTOCOL, MalformedEmbedded
from penstock.broker.groups.classic.group import ClassicGroup
from penstock.broker.groups.classic.model import (
    JoinRequest,
    JoinResult,
    Member,
    SyncRequest,
    SyncResult,
)
from penstock.broker.groups.common.changes import GroupChanges
from penstock.broker.groups.common.model import (
    JOIN_EPOCH,
    NOTHING,
    Assignment,
    GroupState,
    HeartbeatRefused,
    HeartbeatResult,
    TopicsView,
)
from penstock.broker.groups.common.records import (
    ConsumerRecordKey,
    ConsumerRecordKind,
    encode_consumer_key,
)
from penstock.broker.groups.common.topics import DescribableTopics, ImageTopics
from penstock.broker.groups.consumer.classic_members import (
    downgraded,
    heartbeat_classic,
    join_classic,
    leave_classic,
    sync_classic,
    upgraded,
)
from penstock.broker.groups.consumer.group import ConsumerGroup
from penstock.broker.groups.consumer.model import ConsumerLimits, ConsumerMember, HeartbeatRequest
from penstock.broker.groups.consumer.validation import check_heartbeat
from penstock.broker.groups.coordinator.journal import (
    RETRY_S,
    GroupHome,
    GroupJournal,
    append_step,
    durable_records,
    encoded,
    failed_heartbeat,
    is_refused,
    when_durable,
)
from penstock.broker.groups.coordinator.shard import Group, consumer_tombstones, emptied
from penstock.broker.groups.offsets.records import (
    GroupKey,
    GroupSnapshot,
    encode_group_key,
    encode_group_value,
)
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode

_HEARTBEAT: Final = apis.CONSUMER_GROUP_HEARTBEAT.key


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescription:
    """A snapshot of a consumer group, for ConsumerGroupDescribe."""

    group_id: str
    state: GroupState
    epoch: int
    target_epoch: int
    assignor: str
    members: tuple[tuple[ConsumerMember, Assignment], ...]
    """Each member with its target assignment."""


class ConsumerCoordinator:
    """Consumer groups of one broker. Call all methods on the event loop.

    A response is sent only after the records that it depends on are durable, including those of
    earlier heartbeats. If an append is rejected, its changes are undone; if it fails later, the
    partition is reloaded from its log.
    """

    def __init__(
        self,
        home: GroupHome,
        topics: ImageTopics,
        limits_of: Callable[[str], ConsumerLimits],
        now_ms: Callable[[], int],
        new_member_id: Callable[[str], str],
    ) -> None:
        """limits_of: returns the current limits of a group."""
        self._home = home
        self._journal = GroupJournal(home, now_ms)
        self._new_member_id = new_member_id
        self._topics = topics
        self._limits_of = limits_of
        self._now_ms = now_ms

    # --- heartbeats -------------------------------------------------------------------------------

    async def heartbeat(
        self,
        group_id: str,
        request: HeartbeatRequest,
        version: int,
        may_describe: Callable[[str], bool] | None = None,
        connection_id: int | None = None,
    ) -> HeartbeatResult:
        """Handle ConsumerGroupHeartbeat. Returns once the response is durable. Raises LateRequest.

        version: the request version. Version 0 members receive an id when they join. may_describe:
        returns whether the client may describe a topic; None permits all topics. connection_id: see
        `GroupCoordinator.join`.
        """
        topics = DescribableTopics(self._topics, may_describe) if may_describe else self._topics
        try:
            check_heartbeat(group_id, request, version, self._limits_of(group_id).assignors)
            sender = request.member_id
            if not request.member_id and request.member_epoch == JOIN_EPOCH:
                request = replace(request, member_id=self._new_member_id(request.client_id))
            await self._match_topics(group_id, request, topics)
            group = self._home.find(group_id, create=request.member_epoch == JOIN_EPOCH)
            if isinstance(group, ErrorCode):
                is_leaving = request.member_epoch < JOIN_EPOCH
                if is_leaving and group is ErrorCode.GROUP_ID_NOT_FOUND:
                    self._home.admit_leave(_HEARTBEAT, group_id, sender, connection_id)
                return _not_found(group, group_id, is_leaving=is_leaving)
            if request.member_epoch == JOIN_EPOCH:
                self._home.admit(STATIC_JOIN, group, request.instance_id or "", connection_id)
            self._home.admit(_HEARTBEAT, group, sender, connection_id)
            result, outcome = self._step(group, request, topics)
        except HeartbeatRefused as refused:
            return refused.result
        code = await outcome
        return result if code is ErrorCode.NONE else failed_heartbeat(code)

    async def _match_topics(
        self, group_id: str, request: HeartbeatRequest, topics: ImageTopics | DescribableTopics
    ) -> None:
        """Match regular expressions with thousands of topics, and check the permissions on these
        topics, in slices that do not delay other requests. The heartbeat then uses the cached
        results.
        """
        group = self._home.find(group_id, create=False, is_read=True)
        consumer = None if isinstance(group, ErrorCode) else group.consumer
        if consumer is None:
            wanted = {request.subscribed_regex or ""} - {""}
        else:
            wanted = consumer.unresolved_regexes(request, self._topics, self._now_ms())
        regexes = self._topics.regexes
        try:
            for _ in range(regexes.slices_max(len(wanted))):
                if not regexes.work(sorted(wanted)):
                    break
                await asyncio.sleep(0)
            if isinstance(topics, DescribableTopics):
                for _ in topics.check_in_slices(wanted):
                    await asyncio.sleep(0)
        except RegexInvalid:
            return  # the heartbeat will be rejected

    def _step(
        self, group: Group, request: HeartbeatRequest, topics: TopicsView
    ) -> tuple[HeartbeatResult, "asyncio.Future[ErrorCode]"]:
        """Change the group and start writing the change. Raises HeartbeatRefused."""
        if group.consumer is None:
            return self._begin(group, request, topics)
        consumer = self._current(group)
        if request.member_epoch >= JOIN_EPOCH:
            result, changes = consumer.heartbeat(request, topics, self._now_ms())
        else:
            result, changes = consumer.leave(request, topics)
        outcome = self._write_or_downgrade(group, consumer, changes)
        self._set_timer(group)
        return result, outcome

    def _current(self, group: Group) -> ConsumerGroup:
        """Return the consumer group, with its limits updated."""
        assert group.consumer is not None
        group.consumer.limits = self._limits_of(group.consumer.group_id)
        return group.consumer

    def _begin(
        self, group: Group, request: HeartbeatRequest, topics: TopicsView
    ) -> tuple[HeartbeatResult, "asyncio.Future[ErrorCode]"]:
        """Create a consumer group with its first member. It replaces a classic group. Raises
        HeartbeatRefused.
        """
        group_id = group.classic.group_id
        consumer = ConsumerGroup(group_id, self._limits_of(group_id))
        try:
            changes = self._upgraded(group, consumer, request)
            result, changes = consumer.heartbeat(request, topics, self._now_ms(), changes)
        except HeartbeatRefused:
            self._home.forget_unused(group)
            raise
        group.consumer = consumer
        outcome = self._write(group, changes, is_new=True)
        if not outcome.done() or outcome.result() is ErrorCode.NONE:
            self._home.retire_classic(group)
        self._set_timer(group)
        return result, outcome

    def _upgraded(
        self, group: Group, consumer: ConsumerGroup, request: HeartbeatRequest
    ) -> GroupChanges:
        """Convert the members of the classic group. Raises HeartbeatRefused."""
        classic = group.classic
        refused = HeartbeatRefused(
            ErrorCode.GROUP_ID_NOT_FOUND, f"Group {classic.group_id} is not a consumer group."
        )
        if request.member_epoch != JOIN_EPOCH or not group.is_classic:
            raise refused
        if not classic.members:
            return GroupChanges(consumer)
        is_possible = (
            consumer.limits.may_upgrade
            and classic.protocol_type == CONSUMER_PROTOCOL
            and classic.protocol is not None
            and len(classic.members) <= consumer.limits.members_max
        )
        if not is_possible:
            raise refused
        try:
            changes = upgraded(classic, consumer, self._topics)
        except MalformedEmbedded as error:
            raise refused from error
        for member_id in consumer.members:
            consumer.touch(member_id, self._now_ms())
        return changes

    # --- classic members --------------------------------------------------------------------------

    async def join(self, group: Group, request: JoinRequest) -> JoinResult:
        """Handle JoinGroup for a classic member of a consumer group."""
        consumer = self._current(group)
        try:
            result, changes = join_classic(
                consumer, request, self._new_member_id, self._topics, self._now_ms()
            )
        except HeartbeatRefused as refused:
            return JoinResult(error=refused.result.error, member_id=request.member_id)
        if request.instance_id is None:
            outcome = self._write(group, changes)
        else:  # the member may have replaced the last member with the consumer protocol
            outcome = self._write_or_downgrade(group, consumer, changes)
        self._set_timer(group)
        code = await outcome
        return result if code is ErrorCode.NONE else JoinResult(error=failed_heartbeat(code).error)

    async def sync(self, group: Group, request: SyncRequest) -> SyncResult:
        """Handle SyncGroup for a classic member of a consumer group."""
        consumer = self._current(group)
        try:
            result = sync_classic(consumer, request, self._topics, self._now_ms())
        except HeartbeatRefused as refused:
            return SyncResult(error=refused.result.error)
        finally:
            self._set_timer(group)
        code = await self._write(group, GroupChanges(consumer))
        return result if code is ErrorCode.NONE else SyncResult(error=failed_heartbeat(code).error)

    def heartbeat_classic(self, group: Group, member: tuple[str, str | None, int]) -> ErrorCode:
        """Handle Heartbeat for a classic member, given as (member id, instance id, generation)."""
        consumer = self._current(group)
        changes = consumer.refresh(self._topics)
        if changes.records:
            self._write(group, changes)
        try:
            error = heartbeat_classic(consumer, *member, self._now_ms())
        except HeartbeatRefused as refused:
            return refused.result.error
        self._set_timer(group)
        if self._may_downgrade(consumer):
            self._downgrade(group, consumer, GroupChanges(consumer))
            return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    async def leave(
        self, group: Group, members: Sequence[tuple[str, str | None]]
    ) -> ErrorCode | list[ErrorCode]:
        """Handle LeaveGroup for members, given as (member id, instance id). Returns once the
        response is durable.
        """
        consumer = self._current(group)
        errors, changes = leave_classic(consumer, members, self._topics)
        code = await self._write_or_downgrade(group, consumer, changes)
        return errors if code is ErrorCode.NONE else failed_heartbeat(code).error

    def _may_downgrade(self, consumer: ConsumerGroup) -> bool:
        return (
            consumer.limits.may_downgrade
            and consumer.is_classic
            and len(consumer.members) <= consumer.limits.classic_members_max
        )

    def _write_or_downgrade(
        self, group: Group, consumer: ConsumerGroup, changes: GroupChanges
    ) -> "asyncio.Future[ErrorCode]":
        """Write a step. The group becomes classic if no members with the consumer protocol are
        left.
        """
        if changes.records and self._may_downgrade(consumer):
            return self._downgrade(group, consumer, changes)
        return self._write(group, changes)

    def _downgrade(
        self, group: Group, consumer: ConsumerGroup, changes: GroupChanges
    ) -> "asyncio.Future[ErrorCode]":
        """Continue as a classic group, in the generation before members left."""
        is_bumped = any(key.kind is ConsumerRecordKind.GROUP for key, _ in changes.records)
        generation = consumer.epoch - is_bumped
        members = downgraded(consumer, self._topics)
        record = _classic_record(group.classic, generation, members, self._now_ms())
        records = [*encoded(changes), *_all_tombstones(group, consumer), record]

        def durable() -> None:
            group.consumer_records.clear()
            group.record = record[1]

        outcome = append_step(self._home, group, changes, records, durable)
        if not is_refused(outcome):
            group.consumer = group.consumer_append = None
            self._home.take_over(group, generation, members)
        return outcome

    def make_classic(self, group: Group) -> ErrorCode:
        """Convert an empty consumer or streams group to a classic group, unless the log rejects the
        records.
        """
        if group.is_classic:
            return ErrorCode.NONE
        records = consumer_tombstones(group)
        outcome = append_step(
            self._home, group, emptied(group), records, group.consumer_records.clear
        )
        if is_refused(outcome):
            return outcome.result()
        group.consumer = group.streams = None
        group.cancel_modern_timer()
        return ErrorCode.NONE

    # --- records ----------------------------------------------------------------------------------

    def _write(
        self, group: Group, changes: GroupChanges, *, is_new: bool = False
    ) -> "asyncio.Future[ErrorCode]":
        outcome = self._journal.write(group, changes, is_new=is_new)
        if is_new and is_refused(outcome):
            group.consumer = None
            self._home.forget_unused(group)
        return outcome

    def restore(self, group: Group) -> None:
        """Restore the group from its durable records."""
        group_id = group.classic.group_id
        group.consumer = ConsumerGroup(group_id, self._limits_of(group_id))
        group.consumer.restore(durable_records(group), self._now_ms())
        self._set_timer(group)

    # --- timers -----------------------------------------------------------------------------------

    def _set_timer(self, group: Group, *, delay_s: float = 0.0) -> None:
        deadline_ms = None if group.consumer is None else group.consumer.next_deadline_ms()
        self._journal.set_timer(group, deadline_ms, self._tick, delay_s=delay_s)

    def _tick(self, group: Group) -> None:
        group.consumer_timer = None
        if group.consumer is None:
            return
        consumer = self._current(group)
        changes = consumer.tick(self._topics, self._now_ms())
        outcome = self._write_or_downgrade(group, consumer, changes) if changes.records else None
        must_retry = outcome is not None and is_refused(outcome)
        self._set_timer(group, delay_s=RETRY_S if must_retry else 0.0)

    # --- describing -------------------------------------------------------------------------------

    async def describe(self, group_id: str) -> ConsumerGroupDescription | ErrorCode:
        """Describe a consumer group once its last change is durable. Returns GROUP_ID_NOT_FOUND if
        the group does not exist.
        """
        group = self._home.find(group_id, create=False, is_read=True)
        if isinstance(group, ErrorCode):
            return group
        consumer = group.consumer
        # Epoch 0 means that the deletion of the group is in flight.
        if consumer is None or consumer.epoch == 0:
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
        return await when_durable(group, described)


def _all_tombstones(group: Group, consumer: ConsumerGroup) -> list[KeyValue]:
    """Return the tombstones for a consumer group and its members."""
    of_member = (ConsumerRecordKind.CURRENT, ConsumerRecordKind.TARGET, ConsumerRecordKind.MEMBER)
    keys = [
        encode_consumer_key(ConsumerRecordKey(kind, consumer.group_id, member_id))
        for member_id in consumer.members
        for kind in of_member
    ]
    others = [record for record in consumer_tombstones(group) if record[0] not in keys]
    return [*((key, None) for key in keys), *others]


def _classic_record(
    empty: ClassicGroup, generation: int, members: Sequence[Member], now_ms: int
) -> tuple[bytes, bytes]:
    """Return the record of the classic group, in the generation before its members rejoin."""
    protocol = empty.vote(members)
    snapshot = GroupSnapshot(CONSUMER_PROTOCOL, generation, protocol, None, now_ms, tuple(members))
    return encode_group_key(GroupKey(empty.group_id)), encode_group_value(snapshot)


def _not_found(code: ErrorCode, group_id: str, *, is_leaving: bool) -> HeartbeatResult:
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        kind = "Group" if is_leaving else "Consumer group"
        return HeartbeatResult(code, f"{kind} {group_id} not found.")
    return failed_heartbeat(code)
