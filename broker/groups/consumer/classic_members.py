"""Classic members of a consumer group that migrates between protocols (KIP-848).

The response to Heartbeat makes a classic member rejoin, JoinGroup reconciles it, and SyncGroup
returns its assignment. The group has no leader, and members do not wait for each other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from penstock.broker.groups.classic.embedded import (
    CONSUMER_PROTOCOL,
    EmbeddedSubscription,
    MalformedEmbedded,
    decode_assignment,
    decode_subscription,
    encode_assignment,
)
from penstock.broker.groups.classic.group import ClassicGroup
from penstock.broker.groups.classic.model import (
    JoinRequest,
    JoinResult,
    Member,
    Protocol,
    SyncRequest,
    SyncResult,
)
from penstock.broker.groups.common.changes import GroupChanges
from penstock.broker.groups.common.metadata_hash import metadata_hash_of
from penstock.broker.groups.common.model import NOTHING, Assignment, HeartbeatRefused, TopicsView
from penstock.broker.groups.common.records import ConsumerRecordKind
from penstock.broker.groups.consumer.group import ConsumerGroup
from penstock.broker.groups.consumer.model import (
    ClassicMetadata,
    ConsumerMember,
    CurrentAssignment,
    MemberMetadata,
    MemberState,
)
from penstock.broker.groups.consumer.records import GroupEpoch
from penstock.protocol.error_codes import ErrorCode


def upgraded(classic: ClassicGroup, group: ConsumerGroup, topics: TopicsView) -> GroupChanges:
    """Add the members of a classic group to a new consumer group. They keep their assignments, or,
    during an incomplete rebalance, the partitions that they owned when they joined (KIP-429).
    Raises MalformedEmbedded.
    """
    subscriptions = {
        member_id: decode_subscription(member.metadata_for(classic.protocol or ""))
        for member_id, member in classic.members.items()
    }
    names = {topic for subscription in subscriptions.values() for topic in subscription.topics}
    changes = GroupChanges(group)
    epoch = GroupEpoch(classic.generation, metadata_hash_of(names, topics))
    changes.put(ConsumerRecordKind.GROUP, epoch)
    changes.put(ConsumerRecordKind.TARGET_EPOCH, classic.generation)
    owned = _owned_by(classic, subscriptions, topics)
    for member_id, member in classic.members.items():
        subscription = subscriptions[member_id]
        assigned = owned[member_id]
        metadata = MemberMetadata(
            member.instance_id,
            subscription.rack_id,
            member.client_id,
            member.client_host,
            tuple(sorted(set(subscription.topics))),
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            classic=_classic_metadata(member.session_timeout_ms, member.protocols),
        )
        current = CurrentAssignment(
            classic.generation, classic.generation, MemberState.STABLE, assigned
        )
        changes.put(ConsumerRecordKind.MEMBER, metadata, member_id)
        changes.put(ConsumerRecordKind.TARGET, assigned, member_id)
        changes.put(ConsumerRecordKind.CURRENT, current, member_id)
    return changes


def _owned_by(
    classic: ClassicGroup,
    subscriptions: Mapping[str, EmbeddedSubscription],
    topics: TopicsView,
) -> dict[str, Assignment]:
    """Return the partitions that each member may own. If several members claim a partition, the one
    to which it is assigned takes precedence, then the one with the latest generation.
    """
    claims = [
        (member_id, _by_id(decode_assignment(member.assignment), topics))
        for member_id, member in classic.members.items()
    ]
    by_age = sorted(subscriptions.items(), key=lambda item: item[1].generation, reverse=True)
    claims += [(member_id, _by_id(said.owned, topics)) for member_id, said in by_age]
    found: dict[str, dict[UUID, frozenset[int]]] = {member_id: {} for member_id in subscriptions}
    taken: dict[UUID, frozenset[int]] = {}
    for member_id, claimed in claims:
        for topic_id, indexes in claimed.items():
            free = indexes - taken.get(topic_id, frozenset())
            if free:
                mine = found[member_id]
                mine[topic_id] = mine.get(topic_id, frozenset()) | free
                taken[topic_id] = taken.get(topic_id, frozenset()) | free
    return dict(found)


def downgraded(group: ConsumerGroup, topics: TopicsView) -> list[Member]:
    """Return the members of the classic group that continues this group, with their target
    assignments.
    """
    found: list[Member] = []
    for member in group.members.values():
        metadata, classic = member.metadata, member.metadata.classic
        assert classic is not None
        target = _by_name(group.targets.get(member.member_id, NOTHING), topics)
        found.append(
            Member(
                member.member_id,
                metadata.instance_id,
                metadata.client_id,
                metadata.client_host,
                classic.session_timeout_ms,
                metadata.rebalance_timeout_ms,
                CONSUMER_PROTOCOL,
                tuple(Protocol(*protocol) for protocol in classic.protocols),
                encode_assignment(target, classic.protocols[0][1]),
            )
        )
    return found


def join_classic(
    group: ConsumerGroup,
    request: JoinRequest,
    new_member_id: Callable[[str], str],
    topics: TopicsView,
    now_ms: int,
) -> tuple[JoinResult, GroupChanges]:
    """Handle JoinGroup. Raises HeartbeatRefused."""
    changes = GroupChanges(group)
    is_unknown = request.member_id == ""
    member_id = request.member_id or new_member_id(request.instance_id or request.client_id)
    group.check_size(member_id)
    if not _is_supported(group, request):
        raise HeartbeatRefused(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, f"Member {member_id}'s protocols are unknown."
        )
    if is_unknown and request.needs_known_member_id and request.instance_id is None:
        return JoinResult(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id), changes
    try:
        request = replace(request, member_id=member_id)
        _join(group, request, changes, is_unknown=is_unknown, topics=topics, now_ms=now_ms)
    except HeartbeatRefused:
        changes.undo()
        raise
    result = JoinResult(
        generation=group.members[member_id].current.epoch,
        protocol_type=CONSUMER_PROTOCOL,
        protocol=request.protocols[0].name,
        member_id=member_id,
    )
    return result, changes


def _join(
    group: ConsumerGroup,
    request: JoinRequest,
    changes: GroupChanges,
    *,
    is_unknown: bool,
    topics: TopicsView,
    now_ms: int,
) -> None:
    try:
        subscription = decode_subscription(request.protocols[0].metadata)
    except MalformedEmbedded as error:
        raise HeartbeatRefused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error
    known = _known(group, request, is_unknown, changes)
    metadata = replace(
        known.metadata,
        instance_id=request.instance_id or known.metadata.instance_id,
        rack_id=subscription.rack_id or known.metadata.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        subscribed_names=tuple(sorted(set(subscription.topics))),
        subscribed_regex="",
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        server_assignor=None,
        classic=_classic_metadata(request.session_timeout_ms, request.protocols),
    )
    owned = _by_id(subscription.owned, topics)
    group.reconcile_member(known, metadata, owned, changes, topics=topics, now_ms=now_ms)
    group.await_sync(known.member_id, now_ms)


def _known(
    group: ConsumerGroup, request: JoinRequest, is_unknown: bool, changes: GroupChanges
) -> ConsumerMember:
    """Return the previous state of the member. A static member replaces its earlier incarnation."""
    if request.instance_id is None:
        return group.members.get(request.member_id) or ConsumerMember(request.member_id)
    if not is_unknown:
        return group.static(request.instance_id, request.member_id)
    known = group.static_members.get(request.instance_id)
    if known is None:
        return ConsumerMember(request.member_id)
    return group.replace_static(group.members[known], request.member_id, changes)


def _is_supported(group: ConsumerGroup, request: JoinRequest) -> bool:
    """Return True if the member offers a protocol that all classic members offer."""
    if request.protocol_type != CONSUMER_PROTOCOL or not request.protocols:
        return False
    offered = [
        {name for name, _ in member.metadata.classic.protocols}
        for member in group.members.values()
        if member.metadata.classic is not None
    ]
    return any(all(item.name in names for names in offered) for item in request.protocols)


def sync_classic(
    group: ConsumerGroup, request: SyncRequest, topics: TopicsView, now_ms: int
) -> SyncResult:
    """Handle SyncGroup. Raises HeartbeatRefused."""
    member = _classic_member(group, request.member_id, request.instance_id, request.generation)
    classic = member.metadata.classic
    assert classic is not None
    protocol, subscription = classic.protocols[0]
    if request.protocol_type not in {None, CONSUMER_PROTOCOL} or request.protocol not in {
        None,
        protocol,
    }:
        raise HeartbeatRefused(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "the member uses another protocol"
        )
    is_behind = group.epoch > member.current.epoch
    if is_behind and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
        group.await_join(member.member_id, now_ms)
        raise HeartbeatRefused(ErrorCode.REBALANCE_IN_PROGRESS, "a new rebalance has begun")
    group.synced(member.member_id, now_ms)
    assigned = _by_name(member.current.assigned, topics)
    return SyncResult(
        protocol_type=CONSUMER_PROTOCOL,
        protocol=protocol,
        assignment=encode_assignment(assigned, subscription),
    )


def heartbeat_classic(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now_ms: int
) -> ErrorCode:
    """Handle Heartbeat. The error REBALANCE_IN_PROGRESS makes the member rejoin. Raises
    HeartbeatRefused.
    """
    member = _classic_member(group, member_id, instance_id, generation)
    group.touch(member_id, now_ms)
    current = member.current
    is_released = current.state is MemberState.UNRELEASED_PARTITIONS and not group.is_waiting(
        member_id
    )
    if (
        current.epoch < group.epoch
        or current.state is MemberState.UNREVOKED_PARTITIONS
        or is_released
    ):
        group.await_join(member_id, now_ms)
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def leave_classic(
    group: ConsumerGroup,
    members: Sequence[tuple[str, str | None]],
    topics: TopicsView,
) -> tuple[list[ErrorCode], GroupChanges]:
    """Handle LeaveGroup for members, given as (member id, instance id). Administrators may also
    remove members that use the consumer protocol.
    """
    changes = GroupChanges(group)
    errors: list[ErrorCode] = []
    left: list[str] = []
    for member_id, instance_id in members:
        try:
            known = (
                member_id
                if instance_id is None
                else group.static(
                    instance_id, member_id or group.static_members.get(instance_id, "")
                ).member_id
            )
            if known in left or known not in group.members:
                raise group.unknown(known)
            left.append(known)
            errors.append(ErrorCode.NONE)
        except HeartbeatRefused as refused:
            errors.append(refused.result.error)
    if left:
        group.fence(left, topics, changes)
    return errors, changes


def _classic_of(group: ConsumerGroup, member_id: str) -> ClassicMetadata | None:
    member = group.members.get(member_id)
    return None if member is None else member.metadata.classic


def _classic_member(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> ConsumerMember:
    if instance_id is not None:
        group.static(instance_id, member_id)
    if _classic_of(group, member_id) is None:
        raise group.unknown(member_id)
    member = group.members[member_id]
    if generation != member.current.epoch:
        raise HeartbeatRefused(
            ErrorCode.ILLEGAL_GENERATION,
            f"The request generation id {generation} is not equal to the member epoch"
            f" {member.current.epoch} of member {member_id}.",
        )
    return member


def _classic_metadata(session_timeout_ms: int, protocols: tuple[Protocol, ...]) -> ClassicMetadata:
    return ClassicMetadata(
        session_timeout_ms, tuple((offered.name, offered.metadata) for offered in protocols)
    )


def _by_id(partitions: Mapping[str, frozenset[int]], topics: TopicsView) -> Assignment:
    found: dict[UUID, frozenset[int]] = {}
    for name, indexes in partitions.items():
        topic_id = topics.id_of(name)
        if topic_id is not None and indexes:
            found[topic_id] = indexes
    return found


def _by_name(assignment: Assignment, topics: TopicsView) -> dict[str, frozenset[int]]:
    named = {topics.name_of(topic_id): indexes for topic_id, indexes in assignment.items()}
    return {name: indexes for name, indexes in named.items() if name is not None}
