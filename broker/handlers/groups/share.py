"""Share group APIs (KIP-932): convert wire messages for `ShareGroups`, which implements
the rules.
"""

from penstock.base.acls import Operation
from penstock.broker.groups.common.model import Assignment
from penstock.broker.groups.coordinator.share import ShareGroupDescription
from penstock.broker.groups.share.assignor import SIMPLE
from penstock.broker.groups.share.model import ShareHeartbeatRequest, ShareMember
from penstock.broker.handlers.groups.descriptions import describe_groups
from penstock.broker.handlers.share.requests import are_shares_on
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import (
    check_group,
    check_topics,
)
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import share_group_describe as describing
from penstock.protocol.gen import share_group_heartbeat as heartbeats


async def handle_share_group_heartbeat(node: Node, ctx: RequestContext) -> Response:
    """ShareGroupHeartbeat (76): join a share group, remain a member, or leave."""
    request = decoded(ctx, heartbeats.decode_request)
    if not are_shares_on(node):
        return encode_response(
            ctx,
            heartbeats.ShareGroupHeartbeatResponse(
                error_code=ErrorCode.UNSUPPORTED_VERSION, error_message=None, member_id=None
            ),
        )
    names = request.subscribed_topic_names
    check_group(node, ctx, Operation.READ, request.group_id)
    await check_topics(node, ctx, Operation.DESCRIBE, names or ())
    await node.groups.ready(request.group_id)
    result = await node.groups.shares.heartbeat(
        request.group_id,
        ShareHeartbeatRequest(
            request.member_id,
            request.member_epoch,
            ctx.client_id or "",
            f"/{ctx.connection.peer_host}",
            request.rack_id,
            None if names is None else tuple(names),
        ),
        ctx.connection.id,
    )
    response = heartbeats.ShareGroupHeartbeatResponse(
        error_code=result.error,
        error_message=result.message,
        member_id=result.member_id,
        member_epoch=result.member_epoch,
        heartbeat_interval_ms=result.heartbeat_interval_ms,
        assignment=None if result.assignment is None else _assigned(result.assignment),
    )
    return encode_response(ctx, response)


def _assigned(assignment: Assignment) -> heartbeats.Assignment:
    return heartbeats.Assignment(
        [
            heartbeats.TopicPartitions(topic_id, sorted(indexes))
            for topic_id, indexes in assignment.items()
        ]
    )


async def handle_share_group_describe(node: Node, ctx: RequestContext) -> Response:
    """ShareGroupDescribe (77)."""
    request = decoded(ctx, describing.decode_request)
    if not are_shares_on(node):
        code = ErrorCode.UNSUPPORTED_VERSION
        groups = [
            describing.DescribedGroup(error_code=code, error_message=None, group_id=group_id)
            for group_id in request.group_ids
        ]
        return encode_response(ctx, describing.ShareGroupDescribeResponse(groups=groups))

    async def describe(group_id: str) -> describing.DescribedGroup | ErrorCode:
        found = await node.groups.shares.describe(group_id)
        return found if isinstance(found, ErrorCode) else _described(node, found)

    groups = await describe_groups(
        node,
        ctx,
        request.group_ids,
        describe,
        kind="share group",
        refused=describing.DescribedGroup,
        topic_names=_topic_names,
        with_operations=request.include_authorized_operations,
        serves_brokers=True,
    )
    return encode_response(ctx, describing.ShareGroupDescribeResponse(groups=groups))


def _topic_names(group: describing.DescribedGroup) -> set[str]:
    names: set[str] = set()
    for member in group.members:
        names.update(member.subscribed_topic_names)
        if member.assignment is not None:
            names.update(topic.topic_name for topic in member.assignment.topic_partitions)
    return names


def _described(node: Node, group: ShareGroupDescription) -> describing.DescribedGroup:
    return describing.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.target_epoch,
        assignor_name=SIMPLE,
        members=[_member(node, member) for member in group.members],
    )


def _member(node: Node, member: ShareMember) -> describing.Member:
    metadata = member.metadata
    return describing.Member(
        member_id=member.member_id,
        rack_id=metadata.rack_id,
        member_epoch=member.current.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.subscribed_names),
        assignment=_named(node, member.current.assigned),
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
