"""DescribeProducers: return the producer states of partitions from their leaders (KIP-664),
including batches that are not durable yet. Administrators use this API to find hanging
transactions. Leader candidates of a partition forward the request to its leader. Forwarded requests
have no client id, and a request without a client id is not forwarded again.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from penstock.base.acls import Operation
from penstock.base.ids import NodeId
from penstock.broker.errors import ErrorCode
from penstock.broker.handlers.txn_markers import led_partition
from penstock.broker.network.peers import PeerConnections, PeerGone
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.authorization import find_denied_topics, is_broker
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import Slices
from penstock.controller.metadata.topic_names import is_topic_name
from penstock.protocol import apis
from penstock.protocol.errors import WireError
from penstock.protocol.gen.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
    decode_request,
)

PRODUCERS_MAX: Final = 100_000
"""Maximum number of producers in one response, about 4 MB: ten times as many as one partition
retains by default. Partitions beyond the limit fail with NOT_LEADER_OR_FOLLOWER, so that clients
request them again.
"""
_NOT_LEADER: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_REQUEST_TIMEOUT_S: Final = 5.0


async def handle_describe_producers(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, decode_request)
    response = DescribeProducersResponse(topics=[])
    topics: list[TopicResponse] = []
    described_count = 0
    slices = Slices()
    names = () if is_broker(node, ctx) else {topic.name for topic in request.topics}
    denied = await find_denied_topics(node, ctx, Operation.READ, names)
    for topic in request.topics:
        partitions: list[PartitionResponse] = []
        for index in topic.partition_indexes:
            found = (
                _refused(index, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                if topic.name in denied
                else _describe(node, topic.name, index, described_count)
            )
            partitions.append(found)
            described_count += len(found.active_producers)
            if slices.is_over:
                await slices.turn()
        topics.append(TopicResponse(topic.name, partitions))
    if ctx.client_id is not None:
        await _query_leaders(node, topics)
    response.topics = topics
    return encode_response(ctx, response)


async def _query_leaders(node: Node, topics: Sequence[TopicResponse]) -> None:
    """Query the leaders of partitions for which this broker is only a candidate, and fill in their
    responses.
    """
    wanted: dict[NodeId, dict[tuple[str, int], PartitionResponse]] = {}
    for topic in topics:
        state = node.image.topics.by_name(topic.name)
        for part in topic.partitions:
            if state is None or part.error_code != _NOT_LEADER:
                continue
            record = state.partitions[part.partition_index]
            if node.node_id in record.replicas and record.leader != node.node_id:
                leader = wanted.setdefault(NodeId(record.leader), {})
                leader[topic.name, part.partition_index] = part
    if not wanted:
        return
    peers = node.connect_peers()
    try:
        async with asyncio.timeout(_REQUEST_TIMEOUT_S):
            await asyncio.gather(
                *(_send_request(peers, leader, parts) for leader, parts in wanted.items())
            )
    except TimeoutError:
        return
    finally:
        peers.close()


async def _send_request(
    peers: PeerConnections, leader: NodeId, parts: Mapping[tuple[str, int], PartitionResponse]
) -> None:
    indexes: dict[str, list[int]] = {}
    for name, index in parts:
        indexes.setdefault(name, []).append(index)
    request = DescribeProducersRequest([TopicRequest(*item) for item in indexes.items()])
    try:
        response = await peers.send_request(
            leader, apis.DESCRIBE_PRODUCERS, 0, request, DescribeProducersResponse
        )
    except (PeerGone, OSError, EOFError, WireError):
        return
    for topic in response.topics:
        for found in topic.partitions:
            part = parts[topic.name, found.partition_index]
            part.error_code, part.error_message = found.error_code, found.error_message
            part.active_producers = found.active_producers


def _describe(node: Node, topic: str, index: int, described_count: int) -> PartitionResponse:
    if not is_topic_name(topic):
        return _refused(index, ErrorCode.INVALID_TOPIC_EXCEPTION)
    found = led_partition(node, (topic, index))
    if not isinstance(found, Partition):
        return _refused(index, found)
    producers = found.log.producers
    if described_count and described_count + len(producers) > PRODUCERS_MAX:
        return _refused(index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    return PartitionResponse(
        index, active_producers=[ProducerState(*producer) for producer in producers.active()]
    )


def _refused(index: int, code: ErrorCode) -> PartitionResponse:
    return PartitionResponse(index, code, code.message)
