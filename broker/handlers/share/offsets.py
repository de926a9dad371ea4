"""APIs to describe, alter and delete offsets of share groups (KIP-932, KIP-1226): convert wire
messages for `ShareGroups` and the share coordinator.
"""

import asyncio
from collections.abc import Iterable, Mapping
from uuid import UUID

from penstock.base.acls import Operation
from penstock.broker.groups.common.model import Assignment, HeartbeatRefused
from penstock.broker.groups.share.state.model import (
    NO_COUNT,
    NO_START_OFFSET,
    SharePartitionKey,
    ShareStateError,
    ShareStateSummary,
)
from penstock.broker.handlers.end_offsets import end_offsets
from penstock.broker.handlers.share.requests import are_shares_on
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import (
    allows_group,
    check_group,
    find_denied_topics,
    record_change,
)
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import listed, sliced
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import alter_share_group_offsets as altering
from penstock.protocol.gen import delete_share_group_offsets as deleting
from penstock.protocol.gen import describe_share_group_offsets as describing

_NO_DELETED: str = "There is no offset information to delete."


async def handle_describe_share_group_offsets(node: Node, ctx: RequestContext) -> Response:
    """DescribeShareGroupOffsets (90)."""
    request = decoded(ctx, describing.decode_request)
    is_on, code = are_shares_on(node), ErrorCode.UNSUPPORTED_VERSION
    groups = [
        await _describe(node, ctx, group)
        if is_on
        else describing.DescribeShareGroupOffsetsResponseGroup(group.group_id, error_code=code)
        async for group in sliced(request.groups)
    ]
    return encode_response(ctx, describing.DescribeShareGroupOffsetsResponse(groups=groups))


async def _describe(
    node: Node, ctx: RequestContext, group: describing.DescribeShareGroupOffsetsRequestGroup
) -> describing.DescribeShareGroupOffsetsResponseGroup:
    group_id = group.group_id
    if not allows_group(node, ctx, Operation.DESCRIBE, group_id):
        code = ErrorCode.GROUP_AUTHORIZATION_FAILED
        return describing.DescribeShareGroupOffsetsResponseGroup(
            group_id, error_code=code, error_message=code.message
        )
    await node.groups.ready(group_id, ctx.received_at)
    initialized = node.groups.shares.initialized(group_id)
    if isinstance(initialized, ErrorCode):
        return describing.DescribeShareGroupOffsetsResponseGroup(
            group_id, error_code=initialized, error_message=initialized.message
        )
    if group.topics is None:
        wanted = _named(node, initialized)
    else:
        wanted = [
            (topic.topic_name, node.groups.topics.id_of(topic.topic_name), list(topic.partitions))
            for topic in group.topics
        ]
    if not wanted:
        return describing.DescribeShareGroupOffsetsResponseGroup(group_id, [])
    denied = await find_denied_topics(
        node,
        ctx,
        Operation.DESCRIBE,
        (name for name, _, _ in wanted),
        logs=group.topics is not None,
    )
    refused = [
        describing.DescribeShareGroupOffsetsResponseTopic(
            name, None, [_refused_partition(index) for index in indexes]
        )
        for name, _, indexes in wanted
        if name in denied and group.topics is not None
    ]
    wanted = [item for item in wanted if item[0] not in denied]
    # Duplicates are looked up once, and partitions without a state are not looked up.
    keys = {
        SharePartitionKey(group_id, topic_id, index): None
        for _, topic_id, indexes in wanted
        if topic_id is not None
        for index in indexes
        if index in initialized.get(topic_id, ())
    }
    found: dict[SharePartitionKey, ShareStateSummary | ShareStateError] = {}
    ends: Mapping[tuple[UUID, int], int] = {}
    if keys:
        summaries = await asyncio.gather(*(_summary(node, key) for key in keys))
        found = dict(zip(keys, summaries, strict=True))
        ends = await end_offsets(node, _countable(found))
    return describing.DescribeShareGroupOffsetsResponseGroup(
        group_id,
        [
            describing.DescribeShareGroupOffsetsResponseTopic(
                name,
                topic_id,
                [
                    _partition(index, found.get(key), ends.get((key.topic_id, index)))
                    for index in indexes
                    for key in [SharePartitionKey(group_id, topic_id or UUID(int=0), index)]
                ],
            )
            for name, topic_id, indexes in wanted
        ]
        + refused,
    )


def _refused_partition(index: int) -> describing.DescribeShareGroupOffsetsResponsePartition:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return describing.DescribeShareGroupOffsetsResponsePartition(
        index, start_offset=NO_START_OFFSET, error_code=code, error_message=code.message
    )


def _named(node: Node, partitions: Assignment) -> list[tuple[str, UUID | None, list[int]]]:
    names = {topic_id: node.groups.topics.name_of(topic_id) for topic_id in partitions}
    return [
        (name, topic_id, sorted(partitions[topic_id]))
        for topic_id, name in names.items()
        if name is not None
    ]


async def _summary(node: Node, key: SharePartitionKey) -> ShareStateSummary | ShareStateError:
    try:
        return await node.share_states.summary(key)
    except ShareStateError as error:
        return error


def _countable(
    found: Mapping[SharePartitionKey, ShareStateSummary | ShareStateError],
) -> Iterable[tuple[UUID, int]]:
    """Return the partitions whose lag can be computed. The lag is the number of records after the
    start offset that are not done; it is -1 until a share-partition leader has reported how many
    are done.
    """
    return [
        (key.topic_id, key.partition)
        for key, summary in found.items()
        if isinstance(summary, ShareStateSummary)
        and summary.start_offset != NO_START_OFFSET
        and summary.delivery_complete_count != NO_COUNT
    ]


def _partition(
    index: int, found: ShareStateSummary | ShareStateError | None, end_offset: int | None
) -> describing.DescribeShareGroupOffsetsResponsePartition:
    """Return the response for one partition. A nonexistent partition has neither an offset nor an
    error.
    """
    if found is None:
        return describing.DescribeShareGroupOffsetsResponsePartition(
            index, start_offset=NO_START_OFFSET
        )
    if isinstance(found, ShareStateError):
        return describing.DescribeShareGroupOffsetsResponsePartition(
            index,
            start_offset=NO_START_OFFSET,
            error_code=found.code,
            error_message=str(found),
        )
    lag = -1
    if end_offset is not None:
        lag = max(0, end_offset - found.start_offset - found.delivery_complete_count)
    return describing.DescribeShareGroupOffsetsResponsePartition(
        index, found.start_offset, found.leader_epoch, lag
    )


async def handle_alter_share_group_offsets(node: Node, ctx: RequestContext) -> Response:
    """AlterShareGroupOffsets (91)."""
    request = decoded(ctx, altering.decode_request)
    if not are_shares_on(node):
        off = altering.AlterShareGroupOffsetsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        return encode_response(ctx, off)
    check_group(node, ctx, Operation.READ, request.group_id)
    names = (topic.topic_name for topic in request.topics)
    denied = await find_denied_topics(node, ctx, Operation.READ, names)
    await node.groups.ready(request.group_id)
    topics = node.groups.topics
    chosen: dict[UUID, tuple[str, frozenset[int]]] = {}
    offsets: dict[tuple[UUID, int], int] = {}
    for topic in request.topics:
        topic_id = None if topic.topic_name in denied else topics.id_of(topic.topic_name)
        for part in topic.partitions:
            is_valid = topic_id is not None and _problem(node, topic_id, part) is ErrorCode.NONE
            if topic_id is not None and is_valid:
                _, indexes = chosen.get(topic_id, ("", frozenset[int]()))
                chosen[topic_id] = (topic.topic_name, indexes | {part.partition_index})
                offsets[topic_id, part.partition_index] = part.start_offset
    try:
        codes = await node.groups.shares.alter_offsets(request.group_id, chosen, offsets)
    except HeartbeatRefused as refused:
        result = refused.result
        response = altering.AlterShareGroupOffsetsResponse(
            error_code=result.error, error_message=result.message
        )
        return encode_response(ctx, response)
    altered = dict.fromkeys(
        chosen[topic_id][0] for (topic_id, _), code in codes.items() if not code
    )
    record_change(
        node, ctx, "share_offsets_altered", [f"{request.group_id}: {name}" for name in altered]
    )
    responses = [
        _denied_change(topic)
        if topic.topic_name in denied
        else altering.AlterShareGroupOffsetsResponseTopic(
            topic.topic_name,
            topics.id_of(topic.topic_name),
            [
                _altered(node, topics.id_of(topic.topic_name), part, codes)
                for part in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return encode_response(ctx, altering.AlterShareGroupOffsetsResponse(responses=responses))


def _denied_change(
    topic: altering.AlterShareGroupOffsetsRequestTopic,
) -> altering.AlterShareGroupOffsetsResponseTopic:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return altering.AlterShareGroupOffsetsResponseTopic(
        topic.topic_name,
        None,
        [
            altering.AlterShareGroupOffsetsResponsePartition(
                part.partition_index, code, code.message
            )
            for part in topic.partitions
        ],
    )


def _problem(
    node: Node, topic_id: UUID, part: altering.AlterShareGroupOffsetsRequestPartition
) -> ErrorCode:
    if not 0 <= part.partition_index < node.groups.topics.partition_count(topic_id):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return ErrorCode.OFFSET_OUT_OF_RANGE if part.start_offset < 0 else ErrorCode.NONE


def _altered(
    node: Node,
    topic_id: UUID | None,
    part: altering.AlterShareGroupOffsetsRequestPartition,
    codes: Mapping[tuple[UUID, int], ErrorCode],
) -> altering.AlterShareGroupOffsetsResponsePartition:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic_id is not None:
        problem = _problem(node, topic_id, part)
        code = codes.get((topic_id, part.partition_index), problem or code)
    message = None if code is ErrorCode.NONE else code.message
    return altering.AlterShareGroupOffsetsResponsePartition(part.partition_index, code, message)


async def handle_delete_share_group_offsets(node: Node, ctx: RequestContext) -> Response:
    """DeleteShareGroupOffsets (92). Offsets can be deleted only for whole topics."""
    request = decoded(ctx, deleting.decode_request)
    if not are_shares_on(node):
        off = deleting.DeleteShareGroupOffsetsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
        return encode_response(ctx, off)
    check_group(node, ctx, Operation.DELETE, request.group_id)
    names = dict.fromkeys(topic.topic_name for topic in request.topics)
    denied = await find_denied_topics(node, ctx, Operation.READ, names)
    await node.groups.ready(request.group_id)
    known = {name: None if name in denied else node.groups.topics.id_of(name) for name in names}
    wanted = [topic_id for topic_id in known.values() if topic_id is not None]
    try:
        codes = await node.groups.shares.delete_offsets(request.group_id, wanted)
    except HeartbeatRefused as refused:
        result = refused.result
        response = deleting.DeleteShareGroupOffsetsResponse(
            error_code=result.error, error_message=result.message
        )
        return encode_response(ctx, response)
    deleted = [
        f"{request.group_id}: {name}"
        for name, topic_id in known.items()
        if topic_id is not None and codes.get(topic_id) is ErrorCode.NONE
    ]
    record_change(node, ctx, "share_offsets_deleted", deleted)
    responses = await listed(
        _refused_topic(name, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        if name in denied
        else _deleted(name, topic_id, codes)
        for name, topic_id in known.items()
    )
    return encode_response(ctx, deleting.DeleteShareGroupOffsetsResponse(responses=responses))


def _refused_topic(name: str, code: ErrorCode) -> deleting.DeleteShareGroupOffsetsResponseTopic:
    return deleting.DeleteShareGroupOffsetsResponseTopic(name, None, code, code.message)


def _deleted(
    name: str, topic_id: UUID | None, codes: Mapping[UUID, ErrorCode]
) -> deleting.DeleteShareGroupOffsetsResponseTopic:
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic_id is None:
        return _refused_topic(name, unknown)
    code = codes.get(topic_id)
    if code is None:
        return deleting.DeleteShareGroupOffsetsResponseTopic(name, None, unknown, _NO_DELETED)
    message = None if code is ErrorCode.NONE else code.message
    return deleting.DeleteShareGroupOffsetsResponseTopic(name, topic_id, code, message)
