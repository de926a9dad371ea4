"""ShareAcknowledge (KIP-932, KIP-1222): acknowledge, release or reject records of share groups.

The response is sent after the outcome has been stored. An invalid batch causes all batches of its
partition in the request to be rejected. The final request of a session releases the records that
the member has not acknowledged.
"""

from penstock.base.acls import Operation
from penstock.broker.errors import ErrorCode
from penstock.broker.groups.share.partitions.sessions import (
    FINAL_EPOCH,
    FIRST_EPOCH,
    ShareSessionKey,
    ShareSessionRefused,
    TopicIdPartition,
)
from penstock.broker.handlers.share.requests import (
    NO_TOPIC_ID,
    RENEW_FROM,
    Wanted,
    acknowledge,
    are_shares_on,
    end_session,
    find_unreadable_topics,
)
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.requests.authorization import allows_group
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.leader_hints import LeaderHints
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.protocol.gen.share_acknowledge import (
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
    decode_request,
)


async def handle_share_acknowledge(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, decode_request)
    key = ShareSessionKey(request.group_id or "", request.member_id or "")
    epoch = request.share_session_epoch
    try:
        if not are_shares_on(node):
            raise ShareSessionRefused(ErrorCode.UNSUPPORTED_VERSION)
        if not allows_group(node, ctx, Operation.READ, key.group_id):
            raise ShareSessionRefused(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if epoch == FIRST_EPOCH:
            raise ShareSessionRefused(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        node.share_sessions.admit(ctx.api_key, key, ctx.connection.id)
        session = node.share_sessions.resume(key, epoch)
    except ShareSessionRefused as refused:
        return encode_response(ctx, _refusal(refused.code))
    may_renew = ctx.api_version >= RENEW_FROM and request.is_renew_ack
    wanted = _wanted(request)
    denied = await find_unreadable_topics(node, ctx, (item for item, _ in wanted))
    codes = await acknowledge(node, session, wanted, may_renew=may_renew, denied=denied)
    if epoch == FINAL_EPOCH:
        await end_session(node, session)
    return encode_response(ctx, _response(node, ctx, key, codes))


def _refusal(code: ErrorCode) -> ShareAcknowledgeResponse:
    return ShareAcknowledgeResponse(error_code=code, error_message=code.message)


def _wanted(request: ShareAcknowledgeRequest) -> Wanted:
    return [
        (
            TopicIdPartition(topic.topic_id or NO_TOPIC_ID, partition.partition_index),
            partition.acknowledgement_batches,
        )
        for topic in request.topics
        for partition in topic.partitions
    ]


def _response(
    node: Node,
    ctx: RequestContext,
    key: ShareSessionKey,
    codes: dict[TopicIdPartition, ErrorCode],
) -> ShareAcknowledgeResponse:
    hints = LeaderHints(node, ctx)
    by_topic: dict[TopicIdPartition, list[PartitionData]] = {}
    for item, code in codes.items():
        data = PartitionData(item.partition, code, None if not code else code.message)
        if code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            topic = node.image.topics.by_id(item.topic_id)
            leader = None if topic is None else hints.current_leader(topic.name, item.partition)
            if leader is not None:
                data.current_leader = LeaderIdAndEpoch(leader.leader_id, leader.leader_epoch)
        if code:
            ctx.meter.failed(ctx.api_key, code)
        by_topic.setdefault(item._replace(partition=0), []).append(data)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=node.shares.config(key.group_id).lock_duration_ms,
        responses=[
            ShareAcknowledgeTopicResponse(item.topic_id, partitions)
            for item, partitions in by_topic.items()
        ],
        node_endpoints=[
            NodeEndpoint(item.node_id, item.host, item.port, item.rack)
            for item in hints.endpoints()
        ],
    )
