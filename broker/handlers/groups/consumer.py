"""Consumer group APIs (KIP-848, KIP-1099): convert wire messages for `ConsumerCoordinator`, which
implements the rules. Disabled while the level of `group.version` is 0.
"""

from collections.abc import Sequence
from typing import Final
from uuid import UUID

from penstock.base.acls import Operation
from penstock.broker.groups.common.model import Assignment, merged
from penstock.broker.groups.consumer.model import ConsumerMember, HeartbeatRequest
from penstock.broker.groups.coordinator.consumer import ConsumerGroupDescription
from penstock.broker.handlers.groups.descriptions import describe_groups
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import (
    allows_topic,
    check_group,
    check_topics,
)
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.controller.metadata.features import GROUP_VERSION
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import consumer_group_describe as describing
from penstock.protocol.gen import consumer_group_heartbeat as heartbeats

_CLASSIC_MEMBER: Final = 0
_CONSUMER_MEMBER: Final = 1
"""Member types by protocol (KIP-1099)."""
_NO_TOPIC: Final = UUID(int=0)


async def handle_consumer_group_heartbeat(node: Node, ctx: RequestContext) -> Response:
    """ConsumerGroupHeartbeat (68): join a consumer group, remain a member, or leave."""
    request = decoded(ctx, heartbeats.decode_request)
    if not _is_on(node):
        return encode_response(
            ctx,
            heartbeats.ConsumerGroupHeartbeatResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=None, member_id=None
            ),
        )
    check_group(node, ctx, Operation.READ, request.group_id)
    await check_topics(node, ctx, Operation.DESCRIBE, request.subscribed_topic_names or ())
    await node.groups.ready(request.group_id)
    result = await node.groups.consumers.heartbeat(
        request.group_id,
        HeartbeatRequest(
            request.member_id,
            request.member_epoch,
            ctx.client_id or "",
            f"/{ctx.connection.peer_host}",
            request.instance_id,
            request.rack_id,
            request.rebalance_timeout_ms,
            None
            if request.subscribed_topic_names is None
            else tuple(request.subscribed_topic_names),
            request.subscribed_topic_regex,
            request.server_assignor,
            _owned(request.topic_partitions),
        ),
        ctx.api_version,
        None
        if node.authorizer is None
        else lambda name: allows_topic(node, ctx, Operation.DESCRIBE, name, logs=False),
        connection_id=ctx.connection.id,
    )
    response = heartbeats.ConsumerGroupHeartbeatResponse(
        error_code=result.error,
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=None if result.assignment is None else _assigned(result.assignment),
    )
    return encode_response(ctx, response)


def _is_on(node: Node) -> bool:
    return node.image.features.level(GROUP_VERSION) >= 1


def _owned(topics: Sequence[heartbeats.TopicPartitions] | None) -> Assignment | None:
    if topics is None:
        return None
    return merged((topic.topic_id or _NO_TOPIC, topic.partitions) for topic in topics)


def _assigned(assignment: Assignment) -> heartbeats.Assignment:
    return heartbeats.Assignment(
        [
            heartbeats.ResponseTopicPartitions(topic_id, sorted(indexes))
            for topic_id, indexes in assignment.items()
        ]
    )


async def handle_consumer_group_describe(node: Node, ctx: RequestContext) -> Response:
    """ConsumerGroupDescribe (69)."""
    request = decoded(ctx, describing.decode_request)
    if not _is_on(node):
        groups = [
            describing.DescribedGroup(ErrorCode.UNSUPPORTED_VERSION, None, group_id)
            for group_id in request.group_ids
        ]
        return encode_response(ctx, describing.ConsumerGroupDescribeResponse(groups=groups))

    async def describe(group_id: str) -> describing.DescribedGroup | ErrorCode:
        found = await node.groups.consumers.describe(group_id)
        return found if isinstance(found, ErrorCode) else _described(node, found)

    groups = await describe_groups(
        node,
        ctx,
        request.group_ids,
        describe,
        kind="consumer group",
        refused=describing.DescribedGroup,
        topic_names=_topic_names,
        with_operations=request.include_authorized_operations,
    )
    return encode_response(ctx, describing.ConsumerGroupDescribeResponse(groups=groups))


def _topic_names(group: describing.DescribedGroup) -> set[str]:
    names: set[str] = set()
    for member in group.members:
        names.update(member.subscribed_topic_names)
        for assignment in (member.assignment, member.target_assignment):
            if assignment is not None:
                names.update(topic.topic_name for topic in assignment.topic_partitions)
    return names


def _described(node: Node, group: ConsumerGroupDescription) -> describing.DescribedGroup:
    return describing.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=group.assignor,
        members=[_member(node, member, target) for member, target in group.members],
    )


def _member(node: Node, member: ConsumerMember, target: Assignment) -> describing.Member:
    metadata = member.metadata
    return describing.Member(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.current.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.subscribed_names),
        subscribed_topic_regex=metadata.subscribed_regex,
        assignment=_named(node, member.current.assigned),
        target_assignment=_named(node, target),
        member_type=_CONSUMER_MEMBER if metadata.classic is None else _CLASSIC_MEMBER,
    )


def _named(node: Node, assignment: Assignment) -> describing.Assignment:
    """Return the partitions with topic names, without deleted topics."""
    names = {topic_id: node.groups.topics.name_of(topic_id) for topic_id in assignment}
    return describing.Assignment(
        [
            describing.TopicPartitions(topic_id, name, sorted(assignment[topic_id]))
            for topic_id, name in names.items()
            if name is not None
        ]
    )
