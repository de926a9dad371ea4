"""OffsetDelete (KIP-496): delete committed offsets of a group.

Nonexistent partitions are rejected individually. A group-level error is returned without
partitions.
"""

from penstock.base.acls import Operation
from penstock.broker.groups.offsets.offsets import TopicPartition
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import check_group, find_denied_topics, record_change
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
    decode_request,
)


async def handle_offset_delete(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, decode_request)
    check_group(node, ctx, Operation.DELETE, request.group_id)
    denied = await find_denied_topics(
        node, ctx, Operation.READ, (topic.name for topic in request.topics)
    )
    await node.groups.ready(request.group_id)
    wanted = [item for item in _existing(node, request) if item[0] not in denied]
    results = await node.groups.delete_offsets(request.group_id, wanted)
    if isinstance(results, ErrorCode):
        return encode_response(ctx, OffsetDeleteResponse(error_code=results))
    deleted = dict.fromkeys(name for (name, _), code in results.items() if not code)
    record_change(node, ctx, "offsets_deleted", [f"{request.group_id}: {name}" for name in deleted])
    topics = [
        OffsetDeleteResponseTopic(
            topic.name,
            [
                OffsetDeleteResponsePartition(
                    part.partition_index,
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED
                    if topic.name in denied
                    else results.get(
                        (topic.name, part.partition_index), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    ),
                )
                for part in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    return encode_response(ctx, OffsetDeleteResponse(topics=topics))


def _existing(node: Node, request: OffsetDeleteRequest) -> list[TopicPartition]:
    counts = {
        topic.name: 0 if found is None else len(found.partitions)
        for topic in request.topics
        for found in [node.image.topics.by_name(topic.name)]
    }
    return [
        (topic.name, part.partition_index)
        for topic in request.topics
        for part in topic.partitions
        if 0 <= part.partition_index < counts[topic.name]
    ]
