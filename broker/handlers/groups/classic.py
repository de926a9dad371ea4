"""Classic consumer group APIs: convert wire messages for `GroupCoordinator`, which implements the
rules. Kafka's `KafkaApis` defines the differences between versions.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Final
from uuid import UUID

from penstock.base.acls import Operation, ResourceType
from penstock.broker.errors import kafka_error
from penstock.broker.groups.classic.model import JoinRequest, Protocol, SyncRequest
from penstock.broker.groups.common.model import GroupState
from penstock.broker.groups.coordinator.descriptions import GroupDescription
from penstock.broker.groups.offsets.offsets import GroupOffsets, TopicPartition
from penstock.broker.groups.offsets.records import CommittedOffset
from penstock.broker.groups.offsets.topics import stores_ids
from penstock.broker.handlers.groups.commit_topics import (
    CommitTopics,
    begin_read,
    is_refreshed,
    settled,
)
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import (
    allows_cluster,
    allows_group,
    check_group,
    describes_group,
    find_denied_topics,
    is_broker,
    operations,
    record_change,
    undescribed_topics,
)
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import each_once, sliced
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_fetch,
    sync_group,
)

_FIRST_WITH_PROTOCOL: Final = 5
"""The first version of SyncGroup that contains the protocol."""
_FIRST_WITHOUT_PROTOCOL: Final = 7
"""The first version of JoinGroup without a protocol in error responses."""
_FIRST_WITH_MEMBER_EPOCH: Final = 9
"""The first version of OffsetCommit for consumer group members (KIP-848)."""
_FIRST_WITH_GROUP_ERROR: Final = 2
"""The first version of OffsetFetch with a group-level error."""
_FIRST_WITH_TOPIC_IDS: Final = 10
"""The first version of OffsetCommit and OffsetFetch with topic ids instead of names."""
_FIRST_WITH_UNKNOWN_GROUPS: Final = 6
"""The first version of DescribeGroups with an error for unknown groups (KIP-1043)."""


async def handle_join_group(node: Node, ctx: RequestContext) -> Response:
    """JoinGroup (11). The coordinator parks the request until the rebalance completes. Up to
    version 3, a member without an id is admitted immediately (KIP-394 applies from version 4 on).
    """
    request = decoded(ctx, join_group.decode_request)
    version = ctx.api_version
    if not allows_group(node, ctx, Operation.READ, request.group_id):
        refused = join_group.JoinGroupResponse(
            error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED,
            protocol_name=None if version >= _FIRST_WITHOUT_PROTOCOL else "",
        )
        return encode_response(ctx, refused)
    await node.groups.ready(request.group_id)
    ctx.waits()
    result = await node.groups.join(
        request.group_id,
        JoinRequest(
            member_id=request.member_id,
            instance_id=request.group_instance_id,
            client_id=ctx.client_id or "",
            client_host=f"/{ctx.connection.peer_host}",
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms
            if version >= 1
            else request.session_timeout_ms,
            protocol_type=request.protocol_type,
            protocols=tuple(
                Protocol(offered.name, bytes(offered.metadata)) for offered in request.protocols
            ),
            needs_known_member_id=version >= 4,
            understands_skip=version >= 9,
        ),
        ctx.connection.id,
    )
    response = join_group.JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol
        if version >= _FIRST_WITHOUT_PROTOCOL
        else result.protocol or "",
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[join_group.JoinGroupResponseMember(*member) for member in result.members],
    )
    return encode_response(ctx, response)


async def handle_sync_group(node: Node, ctx: RequestContext) -> Response:
    """SyncGroup (14). Followers wait until the leader's assignment is durable."""
    request = decoded(ctx, sync_group.decode_request)
    if ctx.api_version >= _FIRST_WITH_PROTOCOL and (
        request.protocol_type is None or request.protocol_name is None
    ):
        # Kafka rejects such a request before it checks ACLs.
        raise kafka_error(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    check_group(node, ctx, Operation.READ, request.group_id)
    await node.groups.ready(request.group_id)
    ctx.waits()
    result = await node.groups.sync(
        request.group_id,
        SyncRequest(
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            request.protocol_type,
            request.protocol_name,
            {item.member_id: bytes(item.assignment) for item in request.assignments},
        ),
        ctx.connection.id,
    )
    response = sync_group.SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )
    return encode_response(ctx, response)


async def handle_heartbeat(node: Node, ctx: RequestContext) -> Response:
    """Heartbeat (12)."""
    request = decoded(ctx, heartbeat.decode_request)
    check_group(node, ctx, Operation.READ, request.group_id)
    await node.groups.ready(request.group_id)
    error = node.groups.heartbeat(
        request.group_id, request.member_id, request.group_instance_id, request.generation_id
    )
    response = heartbeat.HeartbeatResponse(error_code=error)
    return encode_response(ctx, response)


async def handle_leave_group(node: Node, ctx: RequestContext) -> Response:
    """LeaveGroup (13), for one member up to version 2, and for a list of members from version 3
    on.
    """
    request = decoded(ctx, leave_group.decode_request)
    check_group(node, ctx, Operation.READ, request.group_id)
    single = ctx.api_version < 3
    identities = (
        [(request.member_id, None)]
        if single
        else [(member.member_id, member.group_instance_id) for member in request.members]
    )
    await node.groups.ready(request.group_id)
    outcome = await node.groups.leave(request.group_id, identities, ctx.connection.id)
    if isinstance(outcome, ErrorCode):
        response = leave_group.LeaveGroupResponse(error_code=outcome)
    elif single:
        response = leave_group.LeaveGroupResponse(error_code=outcome[0])
    else:
        responses = zip(identities, outcome, strict=True)
        members = [
            leave_group.MemberResponse(member_id, instance_id, error)
            for (member_id, instance_id), error in responses
        ]
        response = leave_group.LeaveGroupResponse(members=members)
    return encode_response(ctx, response)


async def handle_offset_commit(node: Node, ctx: RequestContext) -> Response:
    """OffsetCommit (8). Unknown topics and partitions are rejected individually."""
    request = decoded(ctx, offset_commit.decode_request)
    if not allows_group(node, ctx, Operation.READ, request.group_id):
        return encode_response(ctx, _refused_commit(request, ErrorCode.GROUP_AUTHORIZATION_FAILED))
    names = [_name_of(node, ctx, topic.topic_id, topic.name) for topic in request.topics]
    denied = await find_denied_topics(
        node, ctx, Operation.READ, (name for name in names if name is not None)
    )
    await node.groups.ready(request.group_id)
    found = CommitTopics(node, request.group_id, request.member_id)
    offsets = _offsets_to_commit(node, request, _ids_to_commit(request, names, denied, found))
    results: Mapping[TopicPartition, ErrorCode] = {}
    if offsets or not denied:
        read = begin_read(node) if found.needs_read else None
        results = await _commit(node, ctx, request, offsets)
        results = await settled(node, results, offsets, read)
    topics = [
        offset_commit.OffsetCommitResponseTopic(
            topic.topic_id,
            topic.name,
            [
                offset_commit.OffsetCommitResponsePartition(
                    partition.partition_index,
                    _commit_code(ctx, results, denied, name, partition.partition_index),
                )
                for partition in topic.partitions
            ],
        )
        for topic, name in zip(request.topics, names, strict=True)
    ]
    response = offset_commit.OffsetCommitResponse(topics=topics)
    return encode_response(ctx, response)


async def _commit(
    node: Node,
    ctx: RequestContext,
    request: offset_commit.OffsetCommitRequest,
    offsets: dict[TopicPartition, CommittedOffset],
) -> Mapping[TopicPartition, ErrorCode]:
    return await node.groups.commit_offsets(
        request.group_id,
        request.member_id,
        request.group_instance_id,
        request.generation_id_or_member_epoch,
        offsets,
        supports_epochs=ctx.api_version >= _FIRST_WITH_MEMBER_EPOCH,
        connection_id=ctx.connection.id,
    )


def _commit_code(
    ctx: RequestContext,
    results: Mapping[TopicPartition, ErrorCode],
    denied: AbstractSet[str],
    name: str | None,
    index: int,
) -> ErrorCode:
    if name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if name in denied:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    code = results.get((name, index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    if code is ErrorCode.UNKNOWN_TOPIC_ID and ctx.api_version < _FIRST_WITH_TOPIC_IDS:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return code


def _refused_commit(
    request: offset_commit.OffsetCommitRequest, code: ErrorCode
) -> offset_commit.OffsetCommitResponse:
    return offset_commit.OffsetCommitResponse(
        topics=[
            offset_commit.OffsetCommitResponseTopic(
                topic.topic_id,
                topic.name,
                [
                    offset_commit.OffsetCommitResponsePartition(partition.partition_index, code)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _name_of(node: Node, ctx: RequestContext, topic_id: UUID | None, name: str) -> str | None:
    """Return the name of a requested topic, or None if no topic has this id."""
    if ctx.api_version < _FIRST_WITH_TOPIC_IDS:
        return name
    return None if topic_id is None else _current_name(node, topic_id)


def _ids_to_commit(
    request: offset_commit.OffsetCommitRequest,
    names: Sequence[str | None],
    denied: AbstractSet[str],
    found: CommitTopics,
) -> list[UUID | None]:
    """Return the id of each topic, or None if its offsets cannot be committed. names: the names of
    the topics in the request. denied: topics that the client may not read.
    """
    return [
        None if name is None or name in denied else topic.topic_id or found.id_of(name)
        for topic, name in zip(request.topics, names, strict=True)
    ]


def _offsets_to_commit(
    node: Node, request: offset_commit.OffsetCommitRequest, topic_ids: Sequence[UUID | None]
) -> dict[TopicPartition, CommittedOffset]:
    """Return the offsets of the request, without unknown topics and partitions."""
    now_ms, stored = node.now_ms(), stores_ids(node.image)
    offsets: dict[TopicPartition, CommittedOffset] = {}
    for topic, topic_id in zip(request.topics, topic_ids, strict=True):
        known = None if topic_id is None else node.image.topics.by_id(topic_id)
        if known is None:
            continue
        for partition in topic.partitions:
            if not 0 <= partition.partition_index < len(known.partitions):
                continue
            offsets[known.name, partition.partition_index] = CommittedOffset(
                partition.committed_offset,
                partition.committed_leader_epoch,
                partition.committed_metadata or "",
                now_ms,
                topic_id,
                stored,
            )
    return offsets


async def handle_offset_fetch(node: Node, ctx: RequestContext) -> Response:
    """OffsetFetch (9), for one group up to version 7, and for several groups from version 8 on.
    Null topics select all committed offsets of the group.

    Unknown groups and partitions return offset -1 and error 0. If the client requires stable
    offsets, partitions whose offset an open transaction may change return UNSTABLE_OFFSET_COMMIT
    (KIP-447).
    """
    request = decoded(ctx, offset_fetch.decode_request)
    by_name = ctx.api_version < _FIRST_WITH_TOPIC_IDS
    by_name = by_name or any(group.topics is None for group in request.groups)
    is_fresh = await is_refreshed(begin_read(node)) if by_name else True
    if ctx.api_version >= 8:
        groups = [
            await _fetch_group(
                node,
                ctx,
                group,
                request.require_stable,
                (group.member_id, group.member_epoch),
                is_fresh=is_fresh,
            )
            async for group in sliced(_named_once(request.groups))
        ]
        response = offset_fetch.OffsetFetchResponse(groups=groups)
    else:
        group = await _fetch_group(
            node, ctx, request, request.require_stable, (None, -1), is_fresh=is_fresh
        )
        topics = [
            offset_fetch.OffsetFetchResponseTopic(
                topic.name,
                [
                    offset_fetch.OffsetFetchResponsePartition(
                        part.partition_index,
                        part.committed_offset,
                        part.committed_leader_epoch,
                        part.metadata,
                        # Versions 0 and 1 have no top-level error code, so each partition reports
                        # the error.
                        part.error_code
                        if ctx.api_version >= _FIRST_WITH_GROUP_ERROR
                        else group.error_code or part.error_code,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in group.topics
        ]
        response = offset_fetch.OffsetFetchResponse(topics=topics, error_code=group.error_code)
    return encode_response(ctx, response)


def _named_once(
    groups: Sequence[offset_fetch.OffsetFetchRequestGroup],
) -> Iterable[offset_fetch.OffsetFetchRequestGroup]:
    """Return the groups without duplicates."""
    return {group.group_id: group for group in reversed(groups)}.values()


async def _fetch_group(
    node: Node,
    ctx: RequestContext,
    request: offset_fetch.OffsetFetchRequest | offset_fetch.OffsetFetchRequestGroup,
    require_stable: bool,
    member: tuple[str | None, int],
    *,
    is_fresh: bool,
) -> offset_fetch.OffsetFetchResponseGroup:
    """is_fresh: whether the image contains all topics that existed when the request arrived."""
    group_id, topics = request.group_id, request.topics
    found: GroupOffsets | ErrorCode = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if describes_group(node, ctx, group_id):
        await node.groups.ready(group_id, ctx.received_at)
        found = ErrorCode.COORDINATOR_NOT_AVAILABLE
        if is_fresh:
            found = node.groups.fetch_offsets(group_id, *member)
    error = found if isinstance(found, ErrorCode) else ErrorCode.NONE
    if error is not ErrorCode.NONE and ctx.api_version >= _FIRST_WITH_GROUP_ERROR:
        return offset_fetch.OffsetFetchResponseGroup(group_id, [], error)
    offsets = GroupOffsets() if isinstance(found, ErrorCode) else found
    if topics is None:
        by_name: dict[str, list[int]] = {}
        for topic, partition in offsets.under_names(partial(_current_name, node)).committed:
            by_name.setdefault(topic, []).append(partition)
        wanted = [(_id_of(node, topic), topic, indexes) for topic, indexes in by_name.items()]
        hidden = await find_denied_topics(node, ctx, Operation.DESCRIBE, by_name, logs=False)
        if hidden and not is_broker(node, ctx):
            wanted = [item for item in wanted if item[1] not in hidden]
    else:
        wanted = _requested(topics)
    names = [_name_of(node, ctx, topic_id, name) for topic_id, name, _ in wanted]
    denied = await undescribed_topics(node, ctx, (name for name in names if name is not None))
    if any(_was_restored(node, name) for name in names):
        # `OffsetSweep` moves offsets to the new name of a restored topic only after a while.
        offsets = offsets.under_names(partial(_current_name, node))
    responses = [
        offset_fetch.OffsetFetchResponseTopics(
            topic_id,
            requested_name,
            _refused_offsets(indexes, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if name in denied
            else _fetched(
                offsets,
                name,
                # The topic may have been recreated since its name was looked up.
                topic_id or _id_of(node, requested_name),
                indexes,
                require_stable=require_stable,
            ),
        )
        for (topic_id, requested_name, indexes), name in zip(wanted, names, strict=True)
    ]
    return offset_fetch.OffsetFetchResponseGroup(group_id, responses, error)


def _id_of(node: Node, name: str) -> UUID | None:
    topic = node.image.topics.by_name(name)
    return None if topic is None else topic.topic_id


def _current_name(node: Node, topic_id: UUID) -> str | None:
    topic = node.image.topics.by_id(topic_id)
    return None if topic is None else topic.name


def _was_restored(node: Node, name: str | None) -> bool:
    topic = None if name is None else node.image.topics.by_name(name)
    return topic is not None and any(part.undeleted_epoch >= 0 for part in topic.partitions)


def _requested(
    topics: Sequence[offset_fetch.OffsetFetchRequestTopic | offset_fetch.OffsetFetchRequestTopics],
) -> list[tuple[UUID | None, str, list[int]]]:
    """Return the id, name and partitions of each topic, without duplicates."""
    found: dict[tuple[UUID | None, str], list[int]] = {}
    for topic in topics:
        topic_id = getattr(topic, "topic_id", None)
        found.setdefault((topic_id, topic.name), []).extend(topic.partition_indexes)
    return [(*named, indexes) for named, indexes in found.items()]


def _fetched(
    offsets: GroupOffsets,
    name: str | None,
    topic_id: UUID | None,
    indexes: Sequence[int],
    *,
    require_stable: bool,
) -> list[offset_fetch.OffsetFetchResponsePartitions]:
    if name is None:
        return _refused_offsets(indexes, ErrorCode.UNKNOWN_TOPIC_ID)
    return [
        _committed_partition(offsets, (name, index), topic_id, require_stable=require_stable)
        for index in indexes
    ]


def _refused_offsets(
    indexes: Sequence[int], code: ErrorCode
) -> list[offset_fetch.OffsetFetchResponsePartitions]:
    return [
        offset_fetch.OffsetFetchResponsePartitions(index, -1, -1, "", code) for index in indexes
    ]


def _committed_partition(
    offsets: GroupOffsets, key: TopicPartition, topic_id: UUID | None, *, require_stable: bool
) -> offset_fetch.OffsetFetchResponsePartitions:
    if require_stable and offsets.is_unstable(key, topic_id):
        return offset_fetch.OffsetFetchResponsePartitions(
            key[1], -1, -1, "", ErrorCode.UNSTABLE_OFFSET_COMMIT
        )
    committed = None if topic_id is None else offsets.of_topic(key, topic_id)
    if committed is None:
        return offset_fetch.OffsetFetchResponsePartitions(key[1], -1, -1, "")
    return offset_fetch.OffsetFetchResponsePartitions(
        key[1], committed.offset, committed.leader_epoch, committed.metadata
    )


async def handle_list_groups(node: Node, ctx: RequestContext) -> Response:
    """ListGroups (16): return the groups that this broker coordinates, in slices. Clients send this
    request to every broker.
    """
    request = decoded(ctx, list_groups.decode_request)
    states = {state.lower() for state in request.states_filter}
    types = {kind.lower() for kind in request.types_filter}
    sees_all = allows_cluster(node, ctx, Operation.DESCRIBE, logs=False) or is_broker(node, ctx)
    groups = [
        list_groups.ListedGroup(
            group.group_id, group.protocol_type, group.state.value, group.type.value
        )
        async for group in sliced(node.groups.list_groups())
        if (not states or group.state.value.lower() in states)
        and (not types or group.type.value in types)
        and (sees_all or allows_group(node, ctx, Operation.DESCRIBE, group.group_id, logs=False))
    ]
    response = list_groups.ListGroupsResponse(groups=groups)
    return encode_response(ctx, response)


async def handle_describe_groups(node: Node, ctx: RequestContext) -> Response:
    """DescribeGroups (15)."""
    request = decoded(ctx, describe_groups.decode_request)
    groups: list[describe_groups.DescribedGroup] = []
    async for group_id in each_once(request.groups):
        if not allows_group(node, ctx, Operation.DESCRIBE, group_id):
            groups.append(_described(group_id, ErrorCode.GROUP_AUTHORIZATION_FAILED))
            continue
        await node.groups.ready(group_id, ctx.received_at)
        described: GroupDescription | ErrorCode | str = node.groups.describe_group(group_id)
        if ctx.api_version >= _FIRST_WITH_UNKNOWN_GROUPS:
            described = node.groups.unknown_group(group_id) or described
        group = _described(group_id, described)
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = operations(node, ctx, ResourceType.GROUP, group_id)
        groups.append(group)
    response = describe_groups.DescribeGroupsResponse(groups=groups)
    return encode_response(ctx, response)


def _described(
    group_id: str, group: GroupDescription | ErrorCode | str
) -> describe_groups.DescribedGroup:
    """Describe a group for the response. group: the group, or an error message if there is no such
    classic group.
    """
    if isinstance(group, str):
        return describe_groups.DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=group,
            group_id=group_id,
            group_state=GroupState.DEAD.value,
        )
    if isinstance(group, ErrorCode):
        return describe_groups.DescribedGroup(error_code=group, group_id=group_id)
    return describe_groups.DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=[describe_groups.DescribedGroupMember(*member) for member in group.members],
    )


async def handle_delete_groups(node: Node, ctx: RequestContext) -> Response:
    """DeleteGroups (42). Only groups without members can be deleted."""
    request = decoded(ctx, delete_groups.decode_request)
    results: list[delete_groups.DeletableGroupResult] = []
    async for group_id in each_once(request.groups_names):
        if not allows_group(node, ctx, Operation.DELETE, group_id):
            code = ErrorCode.GROUP_AUTHORIZATION_FAILED
            results.append(delete_groups.DeletableGroupResult(group_id, code))
            continue
        await node.groups.ready(group_id, ctx.received_at)
        results.append(
            delete_groups.DeletableGroupResult(group_id, await node.groups.delete_group(group_id))
        )
    deleted = [result.group_id for result in results if not result.error_code]
    record_change(node, ctx, "groups_deleted", deleted)
    response = delete_groups.DeleteGroupsResponse(results=results)
    return encode_response(ctx, response)
