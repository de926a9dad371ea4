"""One streams group (KIP-1071), as a pure state machine.

It works like a consumer group (`broker.groups.consumer.group`), with tasks instead of partitions:
members send the topology of their application, the group determines the required topics
(`broker.groups.streams.topology`), and assigns tasks once all of these topics exist.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, cast

from penstock.broker.groups.common.changes import GroupChanges, apply_in_order
from penstock.broker.groups.common.deadlines import Deadlines
from penstock.broker.groups.common.metadata_hash import metadata_hash_of
from penstock.broker.groups.common.model import GroupState, HeartbeatRefused, TopicsView
from penstock.broker.groups.common.records import (
    ConsumerRecordKey,
    ConsumerRecordKind,
    ConsumerValue,
)
from penstock.broker.groups.offsets.offsets import TopicPartition
from penstock.broker.groups.streams.assignor import StreamsSubscriber, Task, assign_tasks
from penstock.broker.groups.streams.endpoints import endpoint_partitions
from penstock.broker.groups.streams.model import (
    Status,
    StreamsHeartbeatRequest,
    StreamsHeartbeatResult,
    StreamsLimits,
    StreamsMember,
)
from penstock.broker.groups.streams.reconciliation import is_within, reconcile
from penstock.broker.groups.streams.topology import (
    ConfiguredTopology,
    configure,
    required_topics,
    source_subtopologies,
)
from penstock.broker.groups.streams.values import (
    HOLDS_NOTHING,
    NO_TASKS,
    StreamsAssignment,
    StreamsEpoch,
    StreamsMemberState,
    StreamsMetadata,
    Tasks,
    Topology,
)
from penstock.protocol.error_codes import ErrorCode

_RESTORED_IN_ORDER = (
    ConsumerRecordKind.STREAMS_GROUP,
    ConsumerRecordKind.STREAMS_TOPOLOGY,
    ConsumerRecordKind.STREAMS_MEMBER,
    ConsumerRecordKind.STREAMS_CURRENT,
    ConsumerRecordKind.STREAMS_TARGET,
    ConsumerRecordKind.STREAMS_TARGET_EPOCH,
)
_FIRST_EPOCH: Final = 2
"""The first group epoch. Members that wait for the first assignment have epoch 1."""


class StreamsGroup:
    """A streams group. Attributes are read-only for callers, except the limits.

    A task is active on at most one member. The target epoch never exceeds the group epoch, and a
    member epoch never exceeds the target epoch, except for epoch 1 of members that wait for the
    first assignment. Rejected and undone steps produce no records.

    `heartbeat` and `leave` return a response that is valid once the records of `GroupChanges` are
    durable, or raise HeartbeatRefused.
    """

    def __init__(self, group_id: str, limits: StreamsLimits) -> None:
        self.group_id = group_id
        self.current = StreamsEpoch()
        self.target_epoch = 0
        self.topology: Topology | None = None
        self.members: dict[str, StreamsMember] = {}
        self.targets: dict[str, Tasks] = {}
        self.limits = limits
        """May be replaced when the configs of the group change."""
        self.deadlines = Deadlines()
        self.endpoint_epoch = 0
        """Increases when the tasks of a member with an endpoint change. Kept only in memory."""
        self._shutdown_by: str | None = None
        """The member that requested the shutdown of all members."""
        self._assign_at_ms: int | None = None
        """When the first assignment is due, if it is delayed."""
        self._active: dict[Task, str] = {}
        """The member that has each active task, until the member has revoked it."""
        self._standby: dict[Task, set[str]] = {}
        self._sent_over: dict[str, int] = {}
        """The connection over which each member last received its tasks. Kept only in memory."""
        self._topics_version = -1
        self._configured: ConfiguredTopology | None = None
        """The topology as configured with the topics of `_topics_version`."""

    @property
    def epoch(self) -> int:
        return self.current.epoch

    # --- heartbeats -------------------------------------------------------------------------------

    def heartbeat(
        self, request: StreamsHeartbeatRequest, topics: TopicsView, now_ms: int
    ) -> tuple[StreamsHeartbeatResult, GroupChanges]:
        """Handle the heartbeat of a member that joins or stays. Raises HeartbeatRefused."""
        changes = GroupChanges(self)
        try:
            return self._heartbeat(request, topics, now_ms, changes), changes
        except HeartbeatRefused:
            changes.undo()
            raise

    def _heartbeat(
        self,
        request: StreamsHeartbeatRequest,
        topics: TopicsView,
        now_ms: int,
        changes: GroupChanges,
    ) -> StreamsHeartbeatResult:
        is_new, was_empty = self.epoch == 0, not self.members
        before = self._admit(request)
        member_id = before.member_id
        metadata = _updated(before.metadata, request)
        is_changed = member_id not in self.members or metadata != before.metadata
        if is_changed:
            changes.put(ConsumerRecordKind.STREAMS_MEMBER, metadata, member_id)
        topology = self._update_topology(request.topology, changes)
        configured = self._update_epoch(
            topology, topics, changes, is_bumped=is_changed, owned=request.owned
        )
        if was_empty and self.limits.initial_rebalance_delay_ms and self._assign_at_ms is None:
            self._assign_at_ms = now_ms + self.limits.initial_rebalance_delay_ms
        is_delayed = self._update_targets_unless_delayed(configured, now_ms, changes)
        self._reconcile(before, request, now_ms, changes, is_delayed=is_delayed)
        self.touch(member_id, now_ms)
        if request.is_shutdown:
            self._shutdown_by = self._shutdown_by or member_id
        return self._result(
            request,
            before,
            configured,
            topics,
            changes,
            is_new=is_new,
            statuses=self._statuses(metadata, topology, configured, is_delayed=is_delayed),
        )

    def _admit(self, request: StreamsHeartbeatRequest) -> StreamsMember:
        """Return the previous state of the member, or a new one."""
        if request.is_joining and len(self.members) >= self.limits.members_max:
            raise HeartbeatRefused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                "The streams group has reached its maximum capacity of"
                f" {self.limits.members_max} members.",
            )
        member = self.members.get(request.member_id)
        if member is None:
            if not request.is_joining:
                raise self._unknown(request.member_id)
            return StreamsMember(request.member_id)
        _check_epoch(member, request)
        return member

    def _unknown(self, member_id: str) -> HeartbeatRefused:
        return HeartbeatRefused(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member {member_id} is not a member of group {self.group_id}.",
        )

    def _statuses(
        self,
        metadata: StreamsMetadata,
        topology: Topology,
        configured: ConfiguredTopology,
        *,
        is_delayed: bool,
    ) -> tuple[tuple[Status, str], ...]:
        """Return the statuses for the response to the member, in Kafka's order."""
        found: list[tuple[Status, str]] = []
        if metadata.topology_epoch < topology.epoch:
            found.append(
                (
                    Status.STALE_TOPOLOGY,
                    f"The member's topology epoch {metadata.topology_epoch} is behind the group's"
                    f" topology epoch {topology.epoch}.",
                )
            )
        if is_delayed:
            found.append(
                (
                    Status.ASSIGNMENT_DELAYED,
                    "Assignment delayed due to the configured initial rebalance delay.",
                )
            )
        if configured.problem is not None:
            found.append(configured.problem)
        if self._shutdown_by is not None:
            found.append(
                (
                    Status.SHUTDOWN_APPLICATION,
                    f"Streams group member {self._shutdown_by} encountered a fatal error and"
                    " requested a shutdown for the entire application.",
                )
            )
        return tuple(found)

    def _result(
        self,
        request: StreamsHeartbeatRequest,
        before: StreamsMember,
        configured: ConfiguredTopology,
        topics: TopicsView,
        changes: GroupChanges,
        *,
        is_new: bool,
        statuses: tuple[tuple[Status, str], ...],
    ) -> StreamsHeartbeatResult:
        member = self.members[before.member_id]
        is_changed = request.is_joining or member.current.assigned != before.current.assigned
        endpoint_epoch = self.endpoint_epoch
        if is_changed and member.metadata.endpoint is not None:
            endpoint_epoch += 1
        # Resend the tasks on a new connection, because the response may have been lost with the old
        # one. Kafka does not resend them.
        is_sent = is_changed or request.connection_id != self._sent_over.get(member.member_id)
        if request.connection_id is not None:
            self._sent_over[member.member_id] = request.connection_id
            if changes.records:
                changes.on_undo(partial(self._sent_over.pop, member.member_id, None))
        if not is_new:  # Kafka does not keep the endpoint epoch of the first heartbeat of a group
            self.endpoint_epoch = endpoint_epoch
        endpoints = None
        if endpoint_epoch != request.endpoint_epoch:
            endpoints = endpoint_partitions(self.members.values(), configured, topics)
        return StreamsHeartbeatResult(
            member_id=member.member_id,
            member_epoch=member.current.epoch,
            heartbeat_interval_ms=self.limits.heartbeat_interval_ms,
            statuses=statuses,
            tasks=member.current.assigned.without_epochs() if is_sent else None,
            endpoint_epoch=self.endpoint_epoch,
            endpoints=endpoints,
            missing_topics=configured.missing,
        )

    # --- the topology and the group epoch ---------------------------------------------------------

    def _update_topology(self, sent: Topology | None, changes: GroupChanges) -> Topology:
        """Return the topology of the group, which the first member sets."""
        known = self.topology
        if known is None:
            if sent is None:  # a group with members lacks a topology only if the log is damaged
                raise HeartbeatRefused(
                    ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.UNKNOWN_SERVER_ERROR.message
                )
            changes.put(ConsumerRecordKind.STREAMS_TOPOLOGY, sent)
            return sent
        if sent is not None and sent.epoch >= known.epoch and not sent.is_same(known):
            raise HeartbeatRefused(
                ErrorCode.INVALID_REQUEST, "Topology updates are not supported yet."
            )
        return known

    def _update_epoch(
        self,
        topology: Topology,
        topics: TopicsView,
        changes: GroupChanges,
        *,
        is_bumped: bool,
        owned: Tasks | None,
    ) -> ConfiguredTopology:
        """Start a new group epoch if an input of the assignment has changed."""
        before = self.current
        metadata_hash, configured = before.metadata_hash, self._configured
        if configured is None or self._topics_version != topics.version:
            metadata_hash = metadata_hash_of(required_topics(topology), topics)
            configured = configure(topology, topics)
            self._configured, self._topics_version = configured, topics.version
        if configured.is_ready:
            _check_tasks(owned, configured)
        validated = topology.epoch if configured.is_ready else -1
        configs = self.limits.assignment_configs
        new = StreamsEpoch(before.epoch, metadata_hash, validated, configs)
        if is_bumped or new != before:
            epoch = before.epoch + 1 if before.epoch else _FIRST_EPOCH
            changes.put(ConsumerRecordKind.STREAMS_GROUP, replace(new, epoch=epoch))
        return configured

    # --- targets ----------------------------------------------------------------------------------

    def _update_targets_unless_delayed(
        self, configured: ConfiguredTopology, now_ms: int, changes: GroupChanges
    ) -> bool:
        """Compute the target assignment for a new group epoch. Return whether the first assignment
        is delayed to wait for more members.
        """
        if self.epoch <= self.target_epoch:
            return False
        if self._assign_at_ms is not None and now_ms < self._assign_at_ms:
            return True
        self._assign_at_ms = None
        self._update_targets(configured, changes)
        return False

    def _update_targets(self, configured: ConfiguredTopology, changes: GroupChanges) -> None:
        """Compute the target assignment for the current group epoch."""
        targets = dict.fromkeys(self.members, NO_TASKS)
        if configured.is_ready:
            subscribers = [
                StreamsSubscriber(
                    member_id, member.metadata.process_id, self.targets.get(member_id, NO_TASKS)
                )
                for member_id, member in self.members.items()
            ]
            targets = assign_tasks(
                subscribers, configured.subtopologies, self.limits.standby_replicas
            )
        for member_id, target in targets.items():
            if self.targets.get(member_id) != target:
                changes.put(ConsumerRecordKind.STREAMS_TARGET, target, member_id)
        changes.put(ConsumerRecordKind.STREAMS_TARGET_EPOCH, self.epoch)

    # --- reconciliation ---------------------------------------------------------------------------

    def _reconcile(
        self,
        before: StreamsMember,
        request: StreamsHeartbeatRequest,
        now_ms: int,
        changes: GroupChanges,
        *,
        is_delayed: bool,
    ) -> None:
        member_id = before.member_id
        metadata = self.members[member_id].metadata
        is_repeated = not request.is_joining and request.member_epoch < before.current.epoch
        current = reconcile(
            before.current,
            metadata.process_id,
            NO_TASKS if is_delayed else self.targets.get(member_id, NO_TASKS),
            max(1, self.target_epoch) if is_delayed else self.target_epoch,
            # A member that has not received its epoch has not received the request to revoke tasks
            # either, so the tasks that it reports are not a response to that request.
            owned=None if is_repeated else request.owned,
            owners=self,
        )
        if is_repeated:
            # Tolerate several lost responses in a row. Kafka fences the member after the second
            # one.
            current = replace(current, previous_epoch=before.current.previous_epoch)
        if current == before.current:
            return
        changes.put(ConsumerRecordKind.STREAMS_CURRENT, current, member_id)
        if current.state is StreamsMemberState.UNREVOKED_TASKS:
            deadline_ms = now_ms + metadata.rebalance_timeout_ms
            self.deadlines.await_revocation(member_id, deadline_ms)
        else:
            self.deadlines.revoked(member_id)

    def active_process(self, subtopology_id: str, partition: int) -> str | None:
        """See `TaskOwners`."""
        member_id = self._active.get((subtopology_id, partition))
        return None if member_id is None else self.members[member_id].metadata.process_id

    def standby_processes(self, subtopology_id: str, partition: int) -> Collection[str]:
        """See `TaskOwners`."""
        members = self._standby.get((subtopology_id, partition), ())
        return {self.members[member_id].metadata.process_id for member_id in members}

    # --- leaving ----------------------------------------------------------------------------------

    def leave(
        self, request: StreamsHeartbeatRequest
    ) -> tuple[StreamsHeartbeatResult, GroupChanges]:
        """Handle the last heartbeat of a member that leaves. Raises HeartbeatRefused."""
        member_id = request.member_id
        if request.is_shutdown and self.members:  # in an empty group, it would stop the next start
            self._shutdown_by = self._shutdown_by or member_id
        if member_id not in self.members:
            raise self._unknown(member_id)
        changes = GroupChanges(self)
        self._fence([member_id], changes)
        result = StreamsHeartbeatResult(member_id=member_id, member_epoch=request.member_epoch)
        return result, changes

    def _fence(self, member_ids: Sequence[str], changes: GroupChanges) -> None:
        for member_id in member_ids:
            changes.put(ConsumerRecordKind.STREAMS_CURRENT, None, member_id)
            changes.put(ConsumerRecordKind.STREAMS_TARGET, None, member_id)
            changes.put(ConsumerRecordKind.STREAMS_MEMBER, None, member_id)
            self.deadlines.remove(member_id)
        changes.put(ConsumerRecordKind.STREAMS_GROUP, replace(self.current, epoch=self.epoch + 1))

    # --- timers -----------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due next, or None if no deadline is pending."""
        found = (self.deadlines.next_ms(), self._assign_at_ms)
        return min((at_ms for at_ms in found if at_ms is not None), default=None)

    def touch(self, member_id: str, now_ms: int) -> None:
        """Restart the session timeout of a member."""
        self.deadlines.await_heartbeat(member_id, now_ms + self.limits.session_timeout_ms)

    def tick(self, now_ms: int) -> GroupChanges:
        """Remove members that have not sent a heartbeat, or have not revoked their tasks, in time.
        Make the first assignment when it is due.
        """
        changes = GroupChanges(self)
        if late := self.deadlines.passed(now_ms):
            self._fence(sorted(late), changes)
        if self._assign_at_ms is not None and self._assign_at_ms <= now_ms:
            self._assign_at_ms = None
            is_due = bool(self.members) and self.epoch > self.target_epoch
            if is_due and self._configured is not None:
                self._update_targets(self._configured, changes)
        return changes

    def reset(self, deadlines: Deadlines) -> None:
        """Restore the deadlines to an earlier copy, and check the topics again in the next
        heartbeat.
        """
        self.deadlines = deadlines
        self._topics_version = -1

    # --- offsets ----------------------------------------------------------------------------------

    def subscribed_names(self) -> set[str]:
        """Return the source topics of the group, including topics that do not exist."""
        if not self.members or self.topology is None:
            return set()
        return set(source_subtopologies(self.topology))

    def check_commit(
        self,
        member_id: str,
        epoch: int,
        partitions: Iterable[TopicPartition],
        *,
        supports_epochs: bool = True,
    ) -> ErrorCode:
        """Check whether this caller may commit offsets of these partitions. A caller that is not a
        member (epoch -1) may commit while the group has no members. An earlier epoch is accepted if
        the member already had the tasks for these partitions in that epoch.

        supports_epochs: False for a request version without member epochs, which only classic
        members may use.
        """
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if not supports_epochs:
            return ErrorCode.UNSUPPORTED_VERSION
        if epoch == member.current.epoch:
            return ErrorCode.NONE
        if epoch > member.current.epoch or self.topology is None:
            return ErrorCode.STALE_MEMBER_EPOCH
        subtopologies = source_subtopologies(self.topology)
        held = (member.current.revoking.active, member.current.assigned.active)
        for name, index in partitions:
            key = subtopologies.get(name, "")
            since = [tasks[key][index] for tasks in held if index in tasks.get(key, ())]
            if not since or epoch < since[-1]:
                return ErrorCode.STALE_MEMBER_EPOCH
        return ErrorCode.NONE

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Check whether this caller may read offsets. Administrators send no member id."""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        member = self.members.get(member_id or "")
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        is_current = epoch == member.current.epoch
        return ErrorCode.NONE if is_current else ErrorCode.STALE_MEMBER_EPOCH

    # --- records ----------------------------------------------------------------------------------

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        topology = self.topology
        if topology is None or topology.epoch != self.current.validated_topology_epoch:
            return GroupState.NOT_READY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        members = self.members.values()
        is_stable = all(member.current.is_reconciled_to(self.target_epoch) for member in members)
        return GroupState.STABLE if is_stable else GroupState.RECONCILING

    @property
    def described_topology(self) -> Topology | None:
        """Return the topology, with partition counts if all its topics exist."""
        configured = self._configured
        if self.topology is None or configured is None or not configured.is_ready:
            return self.topology
        return Topology(
            self.topology.epoch,
            tuple(each.subtopology for each in configured.subtopologies.values()),
        )

    def value(self, key: ConsumerRecordKey) -> ConsumerValue | None:
        """Return the current value of the key, or None."""
        member = self.members.get(key.name)
        match key.kind:
            case ConsumerRecordKind.STREAMS_GROUP:
                return self.current
            case ConsumerRecordKind.STREAMS_TOPOLOGY:
                return self.topology
            case ConsumerRecordKind.STREAMS_MEMBER:
                return None if member is None else member.metadata
            case ConsumerRecordKind.STREAMS_TARGET_EPOCH:
                return self.target_epoch
            case ConsumerRecordKind.STREAMS_TARGET:
                return self.targets.get(key.name)
            case ConsumerRecordKind.STREAMS_CURRENT:
                return None if member is None else member.current
            case _:
                return None

    def apply(self, key: ConsumerRecordKey, value: ConsumerValue | None) -> None:
        """Apply one record. A value of None is a tombstone."""
        name = key.name
        match key.kind:
            case ConsumerRecordKind.STREAMS_GROUP:
                self.current = cast("StreamsEpoch", value or StreamsEpoch())
            case ConsumerRecordKind.STREAMS_TOPOLOGY:
                self.topology, self._configured = cast("Topology | None", value), None
            case ConsumerRecordKind.STREAMS_MEMBER:
                self._apply_member(name, cast("StreamsMetadata | None", value))
            case ConsumerRecordKind.STREAMS_TARGET_EPOCH:
                self.target_epoch = cast("int", value or 0)
            case ConsumerRecordKind.STREAMS_TARGET:
                self.targets.pop(name, None)
                if value is not None:
                    self.targets[name] = cast("Tasks", value)
            case ConsumerRecordKind.STREAMS_CURRENT:
                self._apply_current(name, cast("StreamsAssignment | None", value))
            case _:
                pass

    def _apply_member(self, member_id: str, metadata: StreamsMetadata | None) -> None:
        if metadata is None:
            self._apply_current(member_id, None)
            self.members.pop(member_id, None)
            self._sent_over.pop(member_id, None)
            if not self.members:
                self._shutdown_by = None
            return
        known = self.members.get(member_id) or StreamsMember(member_id)
        self.members[member_id] = replace(known, metadata=metadata)

    def _apply_current(self, member_id: str, current: StreamsAssignment | None) -> None:
        """Replace the current tasks of a member. A record for an unknown member has no effect."""
        member = self.members.get(member_id)
        if member is None:
            return
        for task, is_active in _held_tasks(member.current):
            if is_active and self._active.get(task) == member_id:
                del self._active[task]
            elif not is_active and task in self._standby:
                self._standby[task].discard(member_id)
                if not self._standby[task]:
                    del self._standby[task]
        current = current or StreamsAssignment()
        for task, is_active in _held_tasks(current):
            if is_active:
                self._active[task] = member_id
            else:
                self._standby.setdefault(task, set()).add(member_id)
        self.members[member_id] = replace(member, current=current)

    def restore(
        self, records: Iterable[tuple[ConsumerRecordKey, ConsumerValue]], now_ms: int
    ) -> None:
        """Restore the state from these records, in any order. All session timeouts restart, so that
        members have time to find the new coordinator.
        """
        apply_in_order(self, records, _RESTORED_IN_ORDER)
        for member_id, member in self.members.items():
            self.touch(member_id, now_ms)
            if member.current.state is StreamsMemberState.UNREVOKED_TASKS:
                deadline_ms = now_ms + member.metadata.rebalance_timeout_ms
                self.deadlines.await_revocation(member_id, deadline_ms)

    def check_invariants(self) -> None:
        """Check the invariants. Tests call this after every event."""
        active: dict[Task, str] = {}
        standby: dict[Task, set[str]] = {}
        for member_id, member in self.members.items():
            current = member.current
            assert current.epoch <= max(1, self.target_epoch), (member_id, current)
            assert current.state is StreamsMemberState.UNREVOKED_TASKS or (
                current.revoking == HOLDS_NOTHING
            )
            for task, is_active in _held_tasks(current):
                if is_active:
                    assert active.setdefault(task, member_id) == member_id, f"{task}: two owners"
                else:
                    standby.setdefault(task, set()).add(member_id)
        assert (active, standby) == (self._active, self._standby)
        assert self.target_epoch <= self.epoch
        assert set(self.targets) <= set(self.members)
        assert self.deadlines.member_ids == set(self.members)
        assert self.topology is not None or not self.members


def _held_tasks(current: StreamsAssignment) -> list[tuple[Task, bool]]:
    """Return the tasks that a member has or must revoke, and whether each task is active."""
    held = (current.assigned, current.revoking)
    active = [
        ((key, index), True) for part in held for key, each in part.active.items() for index in each
    ]
    standby = [
        ((key, index), False)
        for part in held
        for key, each in part.standby.items()
        for index in each
    ]
    return active + standby


def _check_epoch(member: StreamsMember, request: StreamsHeartbeatRequest) -> None:
    """Reject a member epoch other than the current one. Epochs since the previous one are accepted
    if the member has no task that another member may receive, because the responses with later
    epochs may have been lost. The epoch of a joining member is always accepted.
    """
    current, epoch = member.current, request.member_epoch
    if request.is_joining or epoch == current.epoch:
        return
    # Kafka fences a member that did not receive the request to revoke tasks.
    if 0 < current.previous_epoch <= epoch < current.epoch and is_within(
        request.owned, (current.assigned, current.revoking)
    ):
        return
    size = "greater" if epoch > current.epoch else "smaller"
    raise HeartbeatRefused(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The streams group member has a {size} member epoch ({epoch}) than the one known by the"
        f" group coordinator ({current.epoch}). The member must abandon all its partitions and"
        " rejoin.",
    )


def _check_tasks(owned: Tasks | None, configured: ConfiguredTopology) -> None:
    """Reject tasks that are not in the topology."""
    for tasks in () if owned is None else (owned.active, owned.standby):
        for key, indexes in tasks.items():
            known = configured.subtopologies.get(key)
            if known is None:
                raise HeartbeatRefused(
                    ErrorCode.INVALID_REQUEST, f"Subtopology {key} does not exist in the topology."
                )
            for index in sorted(indexes):
                if not 0 <= index < known.task_count:
                    raise HeartbeatRefused(
                        ErrorCode.INVALID_REQUEST,
                        f"Task {index} for subtopology {key} is invalid. Number of tasks for this"
                        f" subtopology: {known.task_count}",
                    )


def _updated(known: StreamsMetadata, request: StreamsHeartbeatRequest) -> StreamsMetadata:
    tags: Mapping[str, str] | None = request.client_tags
    return StreamsMetadata(
        rack_id=known.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        rebalance_timeout_ms=known.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        topology_epoch=known.topology_epoch if request.topology is None else request.topology.epoch,
        process_id=known.process_id if request.process_id is None else request.process_id,
        endpoint=known.endpoint if request.endpoint is None else request.endpoint,
        client_tags=known.client_tags if tags is None else tuple(sorted(tags.items())),
    )
