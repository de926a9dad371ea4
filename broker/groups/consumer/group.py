"""One consumer group (KIP-848), as a pure state machine."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import cast
from uuid import UUID

from penstock.base.regular_expressions import RegexInvalid, check_regex
from penstock.broker.groups.common.changes import GroupChanges, apply_in_order
from penstock.broker.groups.common.deadlines import Deadlines
from penstock.broker.groups.common.metadata_hash import metadata_hash_of
from penstock.broker.groups.common.model import (
    JOIN_EPOCH,
    NOTHING,
    STATIC_LEAVE_EPOCH,
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
from penstock.broker.groups.consumer.assignors import Subscriber, assign
from penstock.broker.groups.consumer.model import (
    ConsumerLimits,
    ConsumerMember,
    CurrentAssignment,
    HeartbeatRequest,
    MemberMetadata,
    MemberState,
    ResolvedRegex,
)
from penstock.broker.groups.consumer.reconciliation import is_subset, reconcile, union
from penstock.broker.groups.consumer.records import GroupEpoch
from penstock.protocol.error_codes import ErrorCode

_RESTORED_IN_ORDER = (
    ConsumerRecordKind.GROUP,
    ConsumerRecordKind.MEMBER,
    ConsumerRecordKind.CURRENT,
    ConsumerRecordKind.TARGET,
    ConsumerRecordKind.TARGET_EPOCH,
    ConsumerRecordKind.REGEX,
)


class ConsumerGroup:
    """A consumer group. Attributes are read-only for callers, except the limits.

    The group epoch increases when a subscription, the set of members or a subscribed topic changes.
    A target assignment is then computed for that epoch, and each member reconciles with its target
    in its own heartbeats. Each change is a record. A step applies its records immediately and
    returns them; another broker restores the group from the same records.

    A partition has at most one owner. The target epoch never exceeds the group epoch, and a member
    epoch never exceeds the target epoch. Rejected and undone steps change nothing.

    `heartbeat` and `leave` return a response that is valid once the records of `GroupChanges` are
    durable, or raise HeartbeatRefused.
    """

    def __init__(self, group_id: str, limits: ConsumerLimits) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.metadata_hash = 0
        self.target_epoch = 0
        self.members: dict[str, ConsumerMember] = {}
        self.static_members: dict[str, str] = {}
        """Member ids by instance id."""
        self.targets: dict[str, Assignment] = {}
        self.regexes: dict[str, ResolvedRegex] = {}
        self.limits = limits
        """May be replaced between two steps."""
        self._owners: dict[UUID, dict[int, str]] = {}
        """The owner of each partition, until it has revoked it."""
        self.deadlines = Deadlines()
        self._topics_version = -1
        self._regexes_version = -1
        """The topics version with which all regular expressions were last matched."""
        self._regexes_ms = 0
        """The time at which all regular expressions were last matched."""

    # --- heartbeats -------------------------------------------------------------------------------

    def heartbeat(
        self,
        request: HeartbeatRequest,
        topics: TopicsView,
        now_ms: int,
        changes: GroupChanges | None = None,
    ) -> tuple[HeartbeatResult, GroupChanges]:
        """Handle the heartbeat of a member that joins or stays. Raises HeartbeatRefused.

        changes: earlier changes of the group in the same step.
        """
        changes = changes or GroupChanges(self)
        try:
            return self._heartbeat(request, topics, now_ms, changes), changes
        except HeartbeatRefused:
            changes.undo()
            raise

    def _heartbeat(
        self, request: HeartbeatRequest, topics: TopicsView, now_ms: int, changes: GroupChanges
    ) -> HeartbeatResult:
        self.check_size(request.member_id)
        member = self._admit(request, changes)
        member_id = member.member_id
        metadata = _updated(member.metadata, request)
        self.reconcile_member(
            member,
            metadata,
            request.owned,
            changes,
            topics=topics,
            now_ms=now_ms,
            has_client=True,
            sent_epoch=request.member_epoch,
        )
        self.touch(member_id, now_ms)
        current = self.members[member_id].current
        is_logged = request.is_full or current.assigned != member.current.assigned
        return HeartbeatResult(
            member_id=member_id,
            member_epoch=current.epoch,
            heartbeat_interval_ms=self.limits.heartbeat_interval_ms,
            assignment=current.assigned if is_logged else None,
        )

    def reconcile_member(
        self,
        member: ConsumerMember,
        metadata: MemberMetadata,
        owned: Assignment | None,
        changes: GroupChanges,
        *,
        topics: TopicsView,
        now_ms: int,
        has_client: bool = False,
        sent_epoch: int = JOIN_EPOCH,
    ) -> None:
        """Update a member, start a new group epoch if necessary, and reconcile the member with its
        target.

        member: the previous state of the member. has_client: whether this step was caused by a
        client, whose permissions apply when regular expressions are matched. sent_epoch: the member
        epoch in the heartbeat. Raises HeartbeatRefused.
        """
        member_id = member.member_id
        if member_id not in self.members or metadata != member.metadata:
            changes.put(ConsumerRecordKind.MEMBER, metadata, member_id)
        has_new_regex = metadata.subscribed_regex != member.metadata.subscribed_regex
        has_new_subscription = (
            has_new_regex or metadata.subscribed_names != member.metadata.subscribed_names
        )
        if has_new_regex:
            self._replace_regex(
                member.metadata.subscribed_regex, metadata.subscribed_regex, changes
            )
        is_bumped = has_new_subscription or self.epoch == 0
        if has_client and (has_new_regex or self._are_regexes_old(topics, now_ms)):
            self._resolve_regexes(topics, now_ms, changes)
        self._update_epoch(topics, changes, is_bumped=is_bumped)
        if self.epoch > self.target_epoch:
            self._update_targets(topics, changes)
        self._reconcile(
            member_id,
            owned,
            topics,
            now_ms,
            changes,
            has_new_subscription=has_new_subscription,
            sent_epoch=sent_epoch,
        )

    def check_size(self, member_id: str) -> None:
        if len(self.members) >= self.limits.members_max and member_id not in self.members:
            raise HeartbeatRefused(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                "The consumer group has reached its maximum capacity of"
                f" {self.limits.members_max} members.",
            )

    def _admit(self, request: HeartbeatRequest, changes: GroupChanges) -> ConsumerMember:
        """Return the previous state of the member, or a new one."""
        if request.instance_id is not None:
            return self._admit_static(request, request.instance_id, changes)
        member = self.members.get(request.member_id)
        if member is None:
            if request.member_epoch != JOIN_EPOCH:
                raise self.unknown(request.member_id)
            return ConsumerMember(request.member_id)
        _check_epoch(member, request)
        return member

    def _admit_static(
        self, request: HeartbeatRequest, instance_id: str, changes: GroupChanges
    ) -> ConsumerMember:
        if request.member_epoch != JOIN_EPOCH:
            member = self.static(instance_id, request.member_id)
            _check_epoch(member, request)
            return member
        known = self.static_members.get(instance_id)
        if known is None:
            return self.members.get(request.member_id) or ConsumerMember(request.member_id)
        is_away = self.members[known].current.epoch == STATIC_LEAVE_EPOCH
        if not is_away and self.members[known].metadata.classic is None:
            if known == request.member_id:  # the first response was lost; Kafka rejects the retry
                return self.members[known]
            raise HeartbeatRefused(
                ErrorCode.UNRELEASED_INSTANCE_ID,
                f"Static member {request.member_id} with instance id {instance_id} cannot join the"
                f" group because the instance id is owned by {known} member.",
            )
        return self.replace_static(self.members[known], request.member_id, changes)

    def replace_static(
        self, old: ConsumerMember, member_id: str, changes: GroupChanges
    ) -> ConsumerMember:
        """Transfer the partitions of a static member that left temporarily to its new
        incarnation.
        """
        target = self.targets.get(old.member_id, NOTHING)
        self._remove(old.member_id, changes)
        current = replace(old.current, epoch=JOIN_EPOCH, previous_epoch=JOIN_EPOCH)
        changes.put(ConsumerRecordKind.MEMBER, old.metadata, member_id)
        changes.put(ConsumerRecordKind.TARGET, target, member_id)
        changes.put(ConsumerRecordKind.CURRENT, current, member_id)
        return self.members[member_id]

    def static(self, instance_id: str, member_id: str) -> ConsumerMember:
        known = self.static_members.get(instance_id)
        if known is None:
            raise HeartbeatRefused(
                ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown."
            )
        if known != member_id:
            raise HeartbeatRefused(
                ErrorCode.FENCED_INSTANCE_ID,
                f"Static member {member_id} with instance id {instance_id} was fenced by member"
                f" {known}.",
            )
        return self.members[known]

    def unknown(self, member_id: str) -> HeartbeatRefused:
        return HeartbeatRefused(
            ErrorCode.UNKNOWN_MEMBER_ID,
            f"Member {member_id} is not a member of group {self.group_id}.",
        )

    # --- subscriptions and the group epoch --------------------------------------------------------

    def _replace_regex(self, old: str, new: str, changes: GroupChanges) -> None:
        """Check a new regular expression, and delete the old one if no other member uses it."""
        if new:
            try:
                check_regex(new)
            except RegexInvalid as error:
                raise HeartbeatRefused(
                    ErrorCode.INVALID_REGULAR_EXPRESSION,
                    f"SubscribedTopicRegex `{new}` is not a valid regular expression: {error}.",
                ) from error
        self._drop_unused_regex(old, changes)

    def unresolved_regexes(
        self, request: HeartbeatRequest, topics: TopicsView, now_ms: int
    ) -> set[str]:
        """Return the regular expressions that the next heartbeat must match with topics."""
        found: set[str] = set()
        if self._are_regexes_old(topics, now_ms):
            found.update(member.metadata.subscribed_regex for member in self.members.values())
        if request.subscribed_regex not in self.regexes:
            found.add(request.subscribed_regex or "")
        return found - {""}

    def _drop_unused_regex(self, regex: str, changes: GroupChanges) -> None:
        if regex in self.regexes and not any(
            member.metadata.subscribed_regex == regex for member in self.members.values()
        ):
            changes.put(ConsumerRecordKind.REGEX, None, regex)

    def _are_regexes_old(self, topics: TopicsView, now_ms: int) -> bool:
        """Return True if topics have changed, or if the permissions on them may have changed."""
        is_due = now_ms - self._regexes_ms >= self.limits.regex_refresh_interval_ms
        return self._regexes_version != topics.version or (bool(self.regexes) and is_due)

    def _resolve_regexes(self, topics: TopicsView, now_ms: int, changes: GroupChanges) -> None:
        """Match new regular expressions with the topics, or all regular expressions if the results
        are outdated.
        """
        are_old = self._are_regexes_old(topics, now_ms)
        used = {member.metadata.subscribed_regex for member in self.members.values()}
        for regex in sorted(name for name in used if name):
            known = self.regexes.get(regex)
            if known is None or are_old:
                found = topics.matching(regex)
                if known is None or known.topics != found:
                    value = ResolvedRegex(found, topics.version, now_ms)
                    changes.put(ConsumerRecordKind.REGEX, value, regex)
        if are_old:
            self._regexes_version, self._regexes_ms = topics.version, now_ms

    def _update_epoch(self, topics: TopicsView, changes: GroupChanges, *, is_bumped: bool) -> None:
        """Start a new group epoch if a subscription or its topics have changed."""
        is_bumped = is_bumped or any(
            key.kind is ConsumerRecordKind.REGEX for key, _ in changes.records
        )
        if not is_bumped and self._topics_version == topics.version:
            return
        metadata_hash = metadata_hash_of(self.subscribed_names(), topics)
        if is_bumped or metadata_hash != self.metadata_hash:
            value = GroupEpoch(self.epoch + 1, metadata_hash)
            changes.put(ConsumerRecordKind.GROUP, value)
        self._topics_version = topics.version

    def refresh(self, topics: TopicsView) -> GroupChanges:
        """Start a new group epoch if the topics have changed. Heartbeats of members with the
        consumer protocol do this as well.
        """
        changes = GroupChanges(self)
        self._update_epoch(topics, changes, is_bumped=False)
        return changes

    def subscribed_names(self) -> set[str]:
        """Return the topics that the group subscribes to, including topics that do not exist."""
        names: set[str] = set()
        for member in self.members.values():
            names.update(member.metadata.subscribed_names)
        for regex in self.regexes.values():
            names |= regex.topics
        return names

    def _topics_of(self, metadata: MemberMetadata, topics: TopicsView) -> frozenset[UUID]:
        """Return the ids of the member's topics that exist."""
        names = set(metadata.subscribed_names)
        regex = self.regexes.get(metadata.subscribed_regex)
        if regex is not None:
            names |= regex.topics
        found = (topics.id_of(name) for name in names)
        return frozenset(topic_id for topic_id in found if topic_id is not None)

    # --- targets ----------------------------------------------------------------------------------

    @property
    def assignor(self) -> str:
        """Return the assignor requested by most members, or the default."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            name = member.metadata.server_assignor
            if name in self.limits.assignors:
                votes[name] = votes.get(name, 0) + 1
        if not votes:
            return self.limits.assignors[0]
        return max(sorted(votes), key=lambda name: votes[name])

    def _update_targets(self, topics: TopicsView, changes: GroupChanges) -> None:
        """Compute the target assignment for the current group epoch."""
        shared: dict[tuple[tuple[str, ...], str], frozenset[UUID]] = {}
        subscribers: list[Subscriber] = []
        for member in self.members.values():
            metadata = member.metadata
            key = (metadata.subscribed_names, metadata.subscribed_regex)
            if key not in shared:
                shared[key] = self._topics_of(metadata, topics)
            previous = self.targets.get(member.member_id, NOTHING)
            subscribers.append(
                Subscriber(member.member_id, metadata.instance_id, shared[key], previous)
            )
        counts = {
            topic: topics.partition_count(topic) for some in shared.values() for topic in some
        }
        for member_id, target in assign(self.assignor, subscribers, counts).items():
            if self.targets.get(member_id) != target:
                changes.put(ConsumerRecordKind.TARGET, target, member_id)
        changes.put(ConsumerRecordKind.TARGET_EPOCH, self.epoch)

    # --- reconciliation ---------------------------------------------------------------------------

    def _reconcile(
        self,
        member_id: str,
        owned: Assignment | None,
        topics: TopicsView,
        now_ms: int,
        changes: GroupChanges,
        *,
        has_new_subscription: bool,
        sent_epoch: int,
    ) -> None:
        member = self.members[member_id]
        if not has_new_subscription and member.current.is_reconciled_to(self.target_epoch):
            return
        is_repeated = JOIN_EPOCH < sent_epoch < member.current.epoch
        current = reconcile(
            member.current,
            self.targets.get(member_id, NOTHING),
            self.target_epoch,
            # A member that has not received its epoch has not received the request to revoke
            # partitions either, so the partitions that it reports are not a response to that
            # request.
            owned=None if is_repeated else owned,
            subscribed=self._topics_of(member.metadata, topics),
            is_owned=lambda topic, index: index in self._owners.get(topic, ()),
            has_new_subscription=has_new_subscription,
        )
        if is_repeated:
            # Tolerate several lost responses in a row. Kafka fences the member after the second
            # one.
            current = replace(current, previous_epoch=member.current.previous_epoch)
        if current == member.current:
            return
        changes.put(ConsumerRecordKind.CURRENT, current, member_id)
        # Classic members have deadlines for JoinGroup and SyncGroup instead.
        is_timed = member.metadata.classic is None
        if current.state is MemberState.UNREVOKED_PARTITIONS and is_timed:
            self._await_revocation(member_id, now_ms)
        else:
            self.deadlines.revoked(member_id)

    # --- leaving ----------------------------------------------------------------------------------

    def leave(
        self, request: HeartbeatRequest, topics: TopicsView
    ) -> tuple[HeartbeatResult, GroupChanges]:
        """Handle the last heartbeat of a member that leaves, permanently or as a static member
        temporarily. Raises HeartbeatRefused.
        """
        if request.instance_id is None:
            member = self.members.get(request.member_id)
            if member is None:
                raise self.unknown(request.member_id)
        else:
            member = self.static(request.instance_id, request.member_id)
        result = HeartbeatResult(member_id=member.member_id, member_epoch=request.member_epoch)
        changes = GroupChanges(self)
        if request.member_epoch == STATIC_LEAVE_EPOCH and request.instance_id is not None:
            current = replace(member.current, epoch=STATIC_LEAVE_EPOCH, pending_revocation=NOTHING)
            changes.put(ConsumerRecordKind.CURRENT, current, member.member_id)
            self.deadlines.revoked(member.member_id)
        else:
            self.fence([member.member_id], topics, changes)
        return result, changes

    def fence(self, member_ids: Sequence[str], topics: TopicsView, changes: GroupChanges) -> None:
        for member_id in member_ids:
            regex = self.members[member_id].metadata.subscribed_regex
            self._remove(member_id, changes)
            self._drop_unused_regex(regex, changes)
        self._update_epoch(topics, changes, is_bumped=True)

    def _remove(self, member_id: str, changes: GroupChanges) -> None:
        changes.put(ConsumerRecordKind.CURRENT, None, member_id)
        changes.put(ConsumerRecordKind.TARGET, None, member_id)
        changes.put(ConsumerRecordKind.MEMBER, None, member_id)
        self.deadlines.remove(member_id)

    # --- timers -----------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """Return when `tick` is due next, or None if there are no members."""
        return self.deadlines.next_ms()

    def touch(self, member_id: str, now_ms: int) -> None:
        """Restart the session timeout of a member."""
        classic = self.members[member_id].metadata.classic
        timeout_ms = (
            self.limits.session_timeout_ms if classic is None else classic.session_timeout_ms
        )
        self.deadlines.await_heartbeat(member_id, now_ms + timeout_ms)

    def await_join(self, member_id: str, now_ms: int) -> None:
        """Start the rebalance timeout of a classic member that must rejoin."""
        self.deadlines.await_join(member_id, self._rebalance_deadline_ms(member_id, now_ms))

    def await_sync(self, member_id: str, now_ms: int) -> None:
        """Start the rebalance timeout of a classic member that has joined and must sync."""
        self.touch(member_id, now_ms)
        self.deadlines.await_sync(member_id, self._rebalance_deadline_ms(member_id, now_ms))

    def synced(self, member_id: str, now_ms: int) -> None:
        self.deadlines.synced(member_id)
        self.touch(member_id, now_ms)

    def _await_revocation(self, member_id: str, now_ms: int) -> None:
        deadline_ms = self._rebalance_deadline_ms(member_id, now_ms)
        self.deadlines.await_revocation(member_id, deadline_ms)

    def _rebalance_deadline_ms(self, member_id: str, now_ms: int) -> int:
        return now_ms + self.members[member_id].metadata.rebalance_timeout_ms

    def is_waiting(self, member_id: str) -> bool:
        """Return True if another member still owns a partition of this member's target."""
        assigned = self.members[member_id].current.assigned
        return any(
            index in self._owners.get(topic, ())
            for topic, indexes in self.targets.get(member_id, NOTHING).items()
            for index in indexes - assigned.get(topic, frozenset())
        )

    @property
    def is_classic(self) -> bool:
        """Return True if there are members, and all use the classic protocol."""
        members = self.members.values()
        return bool(members) and all(member.metadata.classic is not None for member in members)

    def tick(self, topics: TopicsView, now_ms: int) -> GroupChanges:
        """Remove members that have not sent a heartbeat, or have not revoked their partitions, in
        time.
        """
        changes = GroupChanges(self)
        if late := self.deadlines.passed(now_ms):
            self.fence(sorted(late), topics, changes)
        return changes

    def reset(self, deadlines: Deadlines) -> None:
        """Restore the deadlines to an earlier copy, and check the topics again in the next
        heartbeat.
        """
        self.deadlines = deadlines
        self._topics_version = self._regexes_version = -1

    # --- offsets ----------------------------------------------------------------------------------

    def check_commit(
        self, member_id: str, epoch: int, *, supports_epochs: bool = True
    ) -> ErrorCode:
        """Check whether this caller may commit offsets. A caller that is not a member (epoch -1)
        may commit while the group has no members.

        supports_epochs: False for a request version without member epochs, which only classic
        members may use.
        """
        if epoch < 0 and not self.members:
            return ErrorCode.NONE
        member = self.members.get(member_id)
        if not supports_epochs and member is not None and member.metadata.classic is None:
            return ErrorCode.UNSUPPORTED_VERSION
        return self._check_member(member_id, epoch)

    def check_fetch(self, member_id: str | None, epoch: int) -> ErrorCode:
        """Check whether this caller may read offsets. Administrators send no member id."""
        if member_id is None and epoch < 0:
            return ErrorCode.NONE
        return self._check_member(member_id or "", epoch)

    def _check_member(self, member_id: str, epoch: int) -> ErrorCode:
        member = self.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if epoch == member.current.epoch:
            return ErrorCode.NONE
        is_classic = member.metadata.classic is not None
        return ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH

    # --- records ----------------------------------------------------------------------------------

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.target_epoch:
            return GroupState.ASSIGNING
        members = self.members.values()
        is_stable = all(member.current.is_reconciled_to(self.target_epoch) for member in members)
        return GroupState.STABLE if is_stable else GroupState.RECONCILING

    def value(self, key: ConsumerRecordKey) -> ConsumerValue | None:
        """Return the current value of the key, or None."""
        member = self.members.get(key.name)
        match key.kind:
            case ConsumerRecordKind.GROUP:
                return GroupEpoch(self.epoch, self.metadata_hash)
            case ConsumerRecordKind.MEMBER:
                return None if member is None else member.metadata
            case ConsumerRecordKind.TARGET_EPOCH:
                return self.target_epoch
            case ConsumerRecordKind.TARGET:
                return self.targets.get(key.name)
            case ConsumerRecordKind.CURRENT:
                return None if member is None else member.current
            case ConsumerRecordKind.REGEX:
                return self.regexes.get(key.name)
            case _:
                return None

    def apply(self, key: ConsumerRecordKey, value: ConsumerValue | None) -> None:
        """Apply one record. A value of None is a tombstone."""
        name = key.name
        match key.kind:
            case ConsumerRecordKind.GROUP:
                group = cast("GroupEpoch", value or GroupEpoch(0, 0))
                self.epoch, self.metadata_hash = group.epoch, group.metadata_hash
            case ConsumerRecordKind.MEMBER:
                self._apply_member(name, cast("MemberMetadata | None", value))
            case ConsumerRecordKind.TARGET_EPOCH:
                self.target_epoch = cast("int", value or 0)
            case ConsumerRecordKind.TARGET:
                self.targets.pop(name, None)
                if value is not None:
                    self.targets[name] = cast("Assignment", value)
            case ConsumerRecordKind.CURRENT:
                self._apply_current(name, cast("CurrentAssignment | None", value))
            case ConsumerRecordKind.REGEX:
                self.regexes.pop(name, None)
                if value is not None:
                    self.regexes[name] = cast("ResolvedRegex", value)
            case _:
                pass

    def _apply_member(self, member_id: str, metadata: MemberMetadata | None) -> None:
        known = self.members.get(member_id)
        instance_id = known.metadata.instance_id if known is not None else None
        if instance_id is not None and self.static_members.get(instance_id) == member_id:
            del self.static_members[instance_id]
        if metadata is None:
            self._apply_current(member_id, None)
            self.members.pop(member_id, None)
            return
        self.members[member_id] = replace(known or ConsumerMember(member_id), metadata=metadata)
        if metadata.instance_id is not None:
            self.static_members[metadata.instance_id] = member_id

    def _apply_current(self, member_id: str, current: CurrentAssignment | None) -> None:
        """Replace the current assignment of a member. A record for an unknown member has no
        effect.
        """
        member = self.members.get(member_id)
        if member is None:
            return
        for owned in (member.current.assigned, member.current.pending_revocation):
            for topic, indexes in owned.items():
                owners = self._owners.get(topic, {})
                for index in indexes:
                    if owners.get(index) == member_id:
                        del owners[index]
        current = current or CurrentAssignment()
        for owned in (current.assigned, current.pending_revocation):
            for topic, indexes in owned.items():
                self._owners.setdefault(topic, {}).update(dict.fromkeys(indexes, member_id))
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
            is_timed = member.metadata.classic is None
            if member.current.state is MemberState.UNREVOKED_PARTITIONS and is_timed:
                self._await_revocation(member_id, now_ms)

    def check_invariants(self) -> None:
        """Check the invariants. Tests call this after every event."""
        owners: dict[UUID, dict[int, str]] = {}
        for member_id, member in self.members.items():
            current = member.current
            assert current.epoch <= self.target_epoch, (member_id, current)
            for owned in (current.assigned, current.pending_revocation):
                for topic, indexes in owned.items():
                    assert indexes, "a topic without partitions"
                    for index in indexes:
                        owner = owners.setdefault(topic, {}).setdefault(index, member_id)
                        assert owner == member_id, f"{topic}-{index} has two owners"
        assert {t: o for t, o in self._owners.items() if o} == owners
        assert self.target_epoch <= self.epoch
        assert set(self.targets) <= set(self.members)
        assert self.deadlines.member_ids == set(self.members)
        for instance_id, member_id in self.static_members.items():
            assert self.members[member_id].metadata.instance_id == instance_id


def _check_epoch(member: ConsumerMember, request: HeartbeatRequest) -> None:
    """Reject a member epoch other than the current one. Epochs since the previous one are accepted
    if the member owns no partition that another member may receive, because the responses with
    later epochs may have been lost. The epoch of a joining member is always accepted.
    """
    current, epoch = member.current, request.member_epoch
    if epoch in {JOIN_EPOCH, current.epoch}:
        return
    # Kafka fences a member that did not receive the request to revoke partitions.
    if JOIN_EPOCH < current.previous_epoch <= epoch < current.epoch and is_subset(
        request.owned, union(current.assigned, current.pending_revocation)
    ):
        return
    size = "greater" if epoch > current.epoch else "smaller"
    raise HeartbeatRefused(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {size} member epoch ({epoch}) than the one known by the"
        f" group coordinator ({current.epoch}). The member must abandon all its partitions and"
        " rejoin.",
    )


def _updated(known: MemberMetadata, request: HeartbeatRequest) -> MemberMetadata:
    names = request.subscribed_names
    return MemberMetadata(
        instance_id=known.instance_id if request.instance_id is None else request.instance_id,
        rack_id=known.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_names=known.subscribed_names if names is None else tuple(sorted(set(names))),
        subscribed_regex=known.subscribed_regex
        if request.subscribed_regex is None
        else request.subscribed_regex,
        rebalance_timeout_ms=known.rebalance_timeout_ms
        if request.rebalance_timeout_ms == -1
        else request.rebalance_timeout_ms,
        server_assignor=known.server_assignor
        if request.server_assignor is None
        else request.server_assignor,
    )
