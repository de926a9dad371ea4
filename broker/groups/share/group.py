"""One share group (KIP-932), as a pure state machine.

It works like a consumer group (`broker.groups.consumer.group`), with two differences: several
members may read a partition, so members do not wait for each other, and only partitions with a
state at the share coordinator are assigned.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import cast
from uuid import UUID

from penstock.broker.groups.common.changes import GroupChanges, apply_in_order
from penstock.broker.groups.common.deadlines import Deadlines
from penstock.broker.groups.common.metadata_hash import metadata_hash_of
from penstock.broker.groups.common.model import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
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
    ConsumerValue,
)
from penstock.broker.groups.share.assignor import ShareSubscriber, assign_shared
from penstock.broker.groups.share.model import (
    ShareHeartbeatRequest,
    ShareLimits,
    ShareMember,
    indexes_of,
    with_partitions,
    without_partitions,
    without_topics,
)
from penstock.broker.groups.share.values import (
    NamedPartitions,
    ShareAssignment,
    ShareEpoch,
    ShareMetadata,
    SharePartitions,
)
from penstock.protocol.error_codes import ErrorCode

_RESTORED_IN_ORDER = (
    ConsumerRecordKind.SHARE_GROUP,
    ConsumerRecordKind.SHARE_MEMBER,
    ConsumerRecordKind.SHARE_CURRENT,
    ConsumerRecordKind.SHARE_TARGET,
    ConsumerRecordKind.SHARE_TARGET_EPOCH,
    ConsumerRecordKind.SHARE_PARTITIONS,
)


class ShareGroup:
    """A share group. Attributes are read-only for callers.

    Target assignments contain only partitions in `initialized` that are not in `initializing`. The
    target epoch never exceeds the group epoch, and a member epoch never exceeds the target epoch.
    Rejected and undone steps change nothing.

    `heartbeat` and `leave` return a response that is valid once the records of `GroupChanges` are
    durable, or raise HeartbeatRefused.
    """

    def __init__(self, group_id: str, limits: ShareLimits) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Assignment] = {}
        self.partitions = SharePartitions()
        self.limits = limits
        """May be replaced when the configs of the group change."""
        self.deadlines = Deadlines()
        self._busy: NamedPartitions = {}
        """Partitions whose states this coordinator is initializing."""
        self._busy_deleting: set[UUID] = set()
        """Topics whose states this coordinator is deleting."""
        self._topics_version = -1

    # --- heartbeats -------------------------------------------------------------------------------

    def heartbeat(
        self, request: ShareHeartbeatRequest, topics: TopicsView, now_ms: int
    ) -> tuple[HeartbeatResult, GroupChanges]:
        """Handle the heartbeat of a member that joins or stays. Raises HeartbeatRefused."""
        self._check_size(request.member_id)
        member = self._admit(request)
        changes = GroupChanges(self)
        member_id = member.member_id
        is_pending = self._has_unassigned(topics)
        metadata = _updated(member.metadata, request)
        if member_id not in self.members or metadata != member.metadata:
            changes.put(ConsumerRecordKind.SHARE_MEMBER, metadata, member_id)
        is_resubscribed = metadata.subscribed_names != member.metadata.subscribed_names
        self._update_epoch(topics, changes, is_bumped=is_resubscribed or is_pending)
        if self.epoch > self.target_epoch:
            self._update_targets(topics, changes)
        self._reconcile(request, topics, changes, is_resubscribed=is_resubscribed)
        self.touch(member_id, now_ms)
        current = self.members[member_id].current
        is_logged = request.is_full or current.assigned != member.current.assigned
        result = HeartbeatResult(
            member_id=member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=self.limits.heartbeat_interval_ms,
            assignment=current.assigned if is_logged else None,
        )
        return result, changes

    def _check_size(self, member_id: str) -> None:
        if len(self.members) >= self.limits.members_max and member_id not in self.members:
            raise HeartbeatRefused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                "The share group has reached its maximum capacity of"
                f" {self.limits.members_max} members.",
            )

    def _admit(self, request: ShareHeartbeatRequest) -> ShareMember:
        """Return the previous state of the member, or a new one."""
        member = self.members.get(request.member_id)
        if member is None:
            if request.member_epoch != JOIN_EPOCH:
                raise self._unknown(request.member_id)
            return ShareMember(request.member_id)
        _check_epoch(member, request.member_epoch)
        return member

    def _unknown(self, member_id: str) -> HeartbeatRefused:
        return HeartbeatRefused(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member {member_id} is not a member of group {self.group_id}.",
        )

    # --- the group epoch and targets --------------------------------------------------------------

    def subscribed_names(self) -> set[str]:
        """Return the topics that the group subscribes to, including topics that do not exist."""
        return {
            name for member in self.members.values() for name in member.metadata.subscribed_names
        }

    def _has_unassigned(self, topics: TopicsView) -> bool:
        """Return True if an initialized partition of a subscribed topic has no reader yet."""
        if not self.members:
            return False
        subscribed = self.subscribed_names()
        read: dict[UUID, frozenset[int]] = {}
        for target in self.targets.values():
            for topic_id, indexes in target.items():
                read[topic_id] = read.get(topic_id, frozenset()) | indexes
        return any(
            topics.name_of(topic_id) in subscribed and read.get(topic_id) != indexes
            for topic_id, indexes in self._settled().items()
        )

    def _update_epoch(self, topics: TopicsView, changes: GroupChanges, *, is_bumped: bool) -> None:
        if not is_bumped and self._topics_version == topics.version:
            return
        self._drop_deleted(topics, changes)
        metadata_hash = metadata_hash_of(self.subscribed_names(), topics)
        if is_bumped or metadata_hash != self.metadata_hash:
            changes.put(ConsumerRecordKind.SHARE_GROUP, ShareEpoch(self.epoch + 1, metadata_hash))
        self._topics_version = topics.version

    def _drop_deleted(self, topics: TopicsView, changes: GroupChanges) -> None:
        """Remove permanently deleted topics. The share coordinator deletes their states."""
        known = self.partitions
        gone = [
            topic_id
            for topic_id in {*known.initializing, *known.initialized, *known.deleting}
            if topics.is_gone(topic_id)
        ]
        if gone:
            left = SharePartitions(
                without_topics(known.initializing, gone),
                without_topics(known.initialized, gone),
                {key: name for key, name in known.deleting.items() if key not in gone},
            )
            changes.put(ConsumerRecordKind.SHARE_PARTITIONS, left)

    def _update_targets(self, topics: TopicsView, changes: GroupChanges) -> None:
        """Compute the target assignment for the current group epoch."""
        subscribers = [
            ShareSubscriber(
                member.member_id,
                _ids(member.metadata.subscribed_names, topics),
                self.targets.get(member.member_id, NOTHING),
            )
            for member in self.members.values()
        ]
        for member_id, target in assign_shared(subscribers, self._assignable(topics)).items():
            if self.targets.get(member_id) != target:
                changes.put(ConsumerRecordKind.SHARE_TARGET, target, member_id)
        changes.put(ConsumerRecordKind.SHARE_TARGET_EPOCH, self.epoch)

    def _assignable(self, topics: TopicsView) -> Assignment:
        return {
            topic_id: indexes
            for topic_id, indexes in self._settled().items()
            if topics.name_of(topic_id) is not None
        }

    def _settled(self) -> Assignment:
        """Return the partitions whose state may be used, because no alteration of it is pending."""
        known = self.partitions
        return indexes_of(without_partitions(known.initialized, indexes_of(known.initializing)))

    def _reconcile(
        self,
        request: ShareHeartbeatRequest,
        topics: TopicsView,
        changes: GroupChanges,
        *,
        is_resubscribed: bool,
    ) -> None:
        member_id, sent_epoch = request.member_id, request.member_epoch
        member = self.members[member_id]
        current = member.current
        if current.epoch == self.target_epoch and not is_resubscribed:
            return
        subscribed = _ids(member.metadata.subscribed_names, topics)
        target = self.targets.get(member_id, NOTHING)
        assigned = {topic: indexes for topic, indexes in target.items() if topic in subscribed}
        if current.epoch != self.target_epoch:
            # Tolerate several lost responses in a row. Kafka fences the member after the second
            # one.
            is_repeated = JOIN_EPOCH < sent_epoch < current.epoch
            previous = current.previous_epoch if is_repeated else current.epoch
            current = ShareAssignment(self.target_epoch, previous, assigned)
        else:
            current = replace(current, assigned=assigned)
        if current != member.current:
            changes.put(ConsumerRecordKind.SHARE_CURRENT, current, member_id)

    # --- leaving ----------------------------------------------------------------------------------

    def leave(self, member_id: str, topics: TopicsView) -> tuple[HeartbeatResult, GroupChanges]:
        """Handle the last heartbeat of a member that leaves. Raises HeartbeatRefused."""
        if member_id not in self.members:
            raise self._unknown(member_id)
        changes = GroupChanges(self)
        self._fence([member_id], topics, changes)
        return HeartbeatResult(member_id=member_id, member_epoch=LEAVE_EPOCH), changes

    def _fence(self, member_ids: Sequence[str], topics: TopicsView, changes: GroupChanges) -> None:
        for member_id in member_ids:
            changes.put(ConsumerRecordKind.SHARE_CURRENT, None, member_id)
            changes.put(ConsumerRecordKind.SHARE_TARGET, None, member_id)
            changes.put(ConsumerRecordKind.SHARE_MEMBER, None, member_id)
            self.deadlines.remove(member_id)
        self._update_epoch(topics, changes, is_bumped=True)

    # --- states of partitions ---------------------------------------------------------------------

    def begin_initialization(self, topics: TopicsView, changes: GroupChanges) -> NamedPartitions:
        """Record the subscribed partitions without a usable state as initializing, and return them.
        They include partitions that an earlier coordinator was initializing. The caller must
        initialize their states, or settle those that already exist.
        """
        busy, settled = indexes_of(self._busy), self._settled()
        missing: dict[UUID, tuple[str, frozenset[int]]] = {}
        for name in sorted(self.subscribed_names()):
            topic_id = topics.id_of(name)
            if topic_id is None or topic_id in self._busy_deleting:
                continue
            indexes = frozenset(range(topics.partition_count(topic_id)))
            for known in (busy, settled):
                indexes -= known.get(topic_id, frozenset())
            if indexes:
                missing[topic_id] = (name, indexes)
        before = self.partitions
        value = replace(
            before,
            initializing=with_partitions(before.initializing, missing),
            deleting={key: name for key, name in before.deleting.items() if key not in missing},
        )
        if value != before:
            changes.put(ConsumerRecordKind.SHARE_PARTITIONS, value)
        self._busy = with_partitions(self._busy, missing)
        return missing

    def raise_epoch(self, above: int) -> GroupChanges:
        """Start a group epoch higher than both the current one and `above`."""
        changes = GroupChanges(self)
        value = ShareEpoch(max(self.epoch, above) + 1, self.metadata_hash)
        changes.put(ConsumerRecordKind.SHARE_GROUP, value)
        return changes

    def begin_alteration(self, chosen: NamedPartitions) -> GroupChanges:
        """Start a new epoch in which the caller initializes these states with new start offsets.
        Existing states are kept until then, but their partitions are not assigned to members. If
        the outcome of the alteration is unknown, a newer epoch must be started first.
        """
        changes = GroupChanges(self)
        changes.put(ConsumerRecordKind.SHARE_GROUP, ShareEpoch(self.epoch + 1, self.metadata_hash))
        known = self.partitions
        value = replace(known, initializing=with_partitions(known.initializing, chosen))
        if value != known:
            changes.put(ConsumerRecordKind.SHARE_PARTITIONS, value)
        self._busy = with_partitions(self._busy, chosen)
        return changes

    def end_initialization(self, done: NamedPartitions, failed: NamedPartitions) -> GroupChanges:
        """Record which states exist now. The failed ones remain recorded as initializing, because
        their request may still take effect: the next heartbeat retries them, and a deletion
        includes them.
        """
        changes = GroupChanges(self)
        self._busy = without_partitions(self._busy, indexes_of(with_partitions(done, failed)))
        known = self.partitions
        noted = {  # excludes topics that have been deleted in the meantime
            topic_id: value for topic_id, value in done.items() if topic_id in known.initializing
        }
        value = replace(
            known,
            initializing=without_partitions(known.initializing, indexes_of(done)),
            initialized=with_partitions(known.initialized, noted),
        )
        if value != known:
            changes.put(ConsumerRecordKind.SHARE_PARTITIONS, value)
        return changes

    def give_up(self, missing: NamedPartitions) -> None:
        """Forget an initialization that has failed, so that a later heartbeat can start it
        again.
        """
        self._busy = without_partitions(self._busy, indexes_of(missing))

    def begin_deletion(self, topic_ids: Iterable[UUID] | None = None) -> GroupChanges:
        """Record that the caller deletes the states of these topics, or of all topics if None."""
        known = self.partitions
        named = with_partitions(known.initialized, known.initializing)
        wanted = None if topic_ids is None else set(topic_ids)
        chosen = [key for key in named if wanted is None or key in wanted]
        changes = GroupChanges(self)
        self._busy_deleting |= {*chosen, *known.deleting} & (wanted or {*chosen, *known.deleting})
        if chosen:
            value = SharePartitions(
                without_topics(known.initializing, chosen),
                without_topics(known.initialized, chosen),
                {**known.deleting, **{key: named[key][0] for key in chosen}},
            )
            changes.put(ConsumerRecordKind.SHARE_PARTITIONS, value)
        return changes

    def give_up_deletion(self, topic_ids: Iterable[UUID] | None) -> None:
        """Allow heartbeats to initialize states of these topics again, or of all topics if None."""
        self._busy_deleting -= self._busy_deleting if topic_ids is None else set(topic_ids)

    def end_deletion(self, done: Iterable[UUID]) -> GroupChanges:
        """Record the topics whose states were deleted. Call `give_up_deletion` first."""
        gone, known = set(done), self.partitions
        left = {key: name for key, name in known.deleting.items() if key not in gone}
        changes = GroupChanges(self)
        if left != known.deleting:
            changes.put(ConsumerRecordKind.SHARE_PARTITIONS, replace(known, deleting=left))
        return changes

    # --- timers -----------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due next, or None if there are no members."""
        return self.deadlines.next_ms()

    def touch(self, member_id: str, now_ms: int) -> None:
        """Restart the session timeout of a member."""
        self.deadlines.await_heartbeat(member_id, now_ms + self.limits.session_timeout_ms)

    def tick(self, topics: TopicsView, now_ms: int) -> GroupChanges:
        """Remove members that have not sent a heartbeat in time."""
        changes = GroupChanges(self)
        if late := self.deadlines.passed(now_ms):
            self._fence(sorted(late), topics, changes)
        return changes

    def reset(self, deadlines: Deadlines) -> None:
        """Restore the deadlines to an earlier copy, and check the topics again in the next
        heartbeat.
        """
        self.deadlines = deadlines
        self._topics_version = -1

    # --- records ----------------------------------------------------------------------------------

    @property
    def state(self) -> GroupState:
        return GroupState.STABLE if self.members else GroupState.EMPTY

    def value(self, key: ConsumerRecordKey) -> ConsumerValue | None:
        """Return the current value of the key, or None."""
        member = self.members.get(key.name)
        match key.kind:
            case ConsumerRecordKind.SHARE_GROUP:
                return ShareEpoch(self.epoch, self.metadata_hash)
            case ConsumerRecordKind.SHARE_MEMBER:
                return None if member is None else member.metadata
            case ConsumerRecordKind.SHARE_TARGET_EPOCH:
                return self.target_epoch
            case ConsumerRecordKind.SHARE_TARGET:
                return self.targets.get(key.name)
            case ConsumerRecordKind.SHARE_CURRENT:
                return None if member is None else member.current
            case ConsumerRecordKind.SHARE_PARTITIONS:
                return self.partitions
            case _:
                return None

    def apply(self, key: ConsumerRecordKey, value: ConsumerValue | None) -> None:
        """Apply one record. A value of None is a tombstone."""
        name = key.name
        match key.kind:
            case ConsumerRecordKind.SHARE_GROUP:
                group = cast("ShareEpoch", value or ShareEpoch())
                self.epoch, self.metadata_hash = group.epoch, group.metadata_hash
            case ConsumerRecordKind.SHARE_MEMBER:
                self._apply_member(name, cast("ShareMetadata | None", value))
            case ConsumerRecordKind.SHARE_TARGET_EPOCH:
                self.target_epoch = cast("int", value or 0)
            case ConsumerRecordKind.SHARE_TARGET:
                self.targets.pop(name, None)
                if value is not None:
                    self.targets[name] = cast("Assignment", value)
            case ConsumerRecordKind.SHARE_CURRENT:
                self._apply_current(name, cast("ShareAssignment | None", value))
            case ConsumerRecordKind.SHARE_PARTITIONS:
                self.partitions = cast("SharePartitions", value or SharePartitions())
            case _:
                pass

    def _apply_member(self, member_id: str, metadata: ShareMetadata | None) -> None:
        if metadata is None:
            self.members.pop(member_id, None)
            return
        known = self.members.get(member_id) or ShareMember(member_id)
        self.members[member_id] = replace(known, metadata=metadata)

    def _apply_current(self, member_id: str, current: ShareAssignment | None) -> None:
        """Replace the current assignment of a member. A record for an unknown member has no
        effect.
        """
        member = self.members.get(member_id)
        if member is not None:
            self.members[member_id] = replace(member, current=current or ShareAssignment())

    def restore(
        self, records: Iterable[tuple[ConsumerRecordKey, ConsumerValue]], now_ms: int
    ) -> None:
        """Restore the state from these records, in any order. All session timeouts restart, so that
        members have time to find the new coordinator.
        """
        apply_in_order(self, records, _RESTORED_IN_ORDER)
        for member_id in self.members:
            self.touch(member_id, now_ms)

    def check_invariants(self) -> None:
        """Check the invariants. Tests call this after every event."""
        settled = self._settled()
        for member_id, member in self.members.items():
            assert member.current.epoch <= self.target_epoch, (member_id, member.current)
            assert all(member.current.assigned.values()), "a topic without partitions"
        assert self.target_epoch <= self.epoch
        assert set(self.targets) <= set(self.members)
        assert self.deadlines.member_ids == set(self.members)
        if self.target_epoch == self.epoch:
            for target in self.targets.values():
                for topic_id, indexes in target.items():
                    assert indexes <= settled.get(topic_id, frozenset()), (topic_id, indexes)


def check_share_heartbeat(group_id: str, request: ShareHeartbeatRequest) -> None:
    """Validate a heartbeat before the group is looked up. Raises HeartbeatRefused with
    INVALID_REQUEST.
    """
    _require(bool(request.member_id.strip()), "MemberId can't be empty.")
    _require(bool(group_id.strip()), "GroupId can't be empty.")
    _require(request.rack_id is None or bool(request.rack_id.strip()), "RackId can't be empty.")
    if request.member_epoch == JOIN_EPOCH:
        _require(
            bool(request.subscribed_names), "SubscribedTopicNames must be set in first request."
        )
    else:
        _require(request.member_epoch >= LEAVE_EPOCH, "MemberEpoch is invalid.")


def _require(is_met: bool, message: str) -> None:
    if not is_met:
        raise HeartbeatRefused(ErrorCode.INVALID_REQUEST, message)


def _check_epoch(member: ShareMember, epoch: int) -> None:
    """Reject a member epoch other than the current one. Epochs since the previous one are accepted,
    because the responses with later epochs may have been lost. The epoch of a joining member is
    always accepted.
    """
    current = member.current
    is_repeated = JOIN_EPOCH < current.previous_epoch <= epoch < current.epoch
    if epoch in {JOIN_EPOCH, current.epoch} or is_repeated:
        return
    rejoin = "The member must abandon all its partitions and rejoin."
    if epoch > current.epoch:
        raise HeartbeatRefused(
            ErrorCode.FENCED_MEMBER_EPOCH,
            f"The share group member has a greater member epoch ({epoch}) than the one known by"
            f" the group coordinator ({current.epoch}). {rejoin}",
        )
    raise HeartbeatRefused(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The share group member has a smaller member epoch ({epoch}) than the one known by the"
        f" group coordinator ({current.epoch}), and it does not match the previous member epoch"
        f" ({current.previous_epoch}). {rejoin}",
    )


def _updated(known: ShareMetadata, request: ShareHeartbeatRequest) -> ShareMetadata:
    names = request.subscribed_names
    return ShareMetadata(
        known.rack_id if request.rack_id is None else request.rack_id,
        request.client_id,
        request.client_host,
        known.subscribed_names if names is None else tuple(sorted(set(names))),
    )


def _ids(names: Iterable[str], topics: TopicsView) -> frozenset[UUID]:
    """Return the ids of the topics that exist."""
    found: Mapping[str, UUID | None] = {name: topics.id_of(name) for name in names}
    return frozenset(topic_id for topic_id in found.values() if topic_id is not None)
