"""DescribeProducers: return the producers that a partition knows, from its leader. Administrators
find open transactions by it that no coordinator will end.

Offsets and epochs are as of the last batch that the leader appended, durable or not. Followers know
no producers, so only the leader answers; in Kafka every replica does.
Limits: PRODUCERS_MAX per answer, or one partition. The partitions beyond it get
NOT_LEADER_OR_FOLLOWER, upon which clients ask again for these.
Must not: change anything, or wait for partitions to open (clients retry).
Source: KIP-664; Kafka `KafkaApis.handleDescribeProducersRequest`.
"""

import asyncio
from typing import Final

from broker.errors import ErrorCode
from broker.handlers.dispatch import encode_response
from broker.handlers.metadata import is_valid_topic_name
from broker.handlers.node import Node
from broker.handlers.txn_markers import led_partition
from broker.network.request import RequestContext, Response
from broker.partition.partition import Partition
from broker.wire import framing
from broker.wire.gen.describe_producers import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
    decode_request,
)

PRODUCERS_MAX: Final = 100_000
"""Ten times what one partition remembers by default; about 4 MB."""
_PRODUCERS_PER_SLICE_COUNT: Final = 5_000
"""Producers described between two turns of the event loop: a few ms."""


async def handle_describe_producers(node: Node, ctx: RequestContext) -> Response:
    request = framing.decode_body(decode_request, ctx.frame, ctx.body_offset, ctx.api_version)
    response = DescribeProducersResponse(topics=[])
    topics: list[TopicResponse] = []
    described_count = slice_count = 0
    for topic in request.topics:
        partitions: list[PartitionResponse] = []
        for index in topic.partition_indexes:
            found = _describe(node, topic.name, index, described_count)
            partitions.append(found)
            described_count += len(found.active_producers)
            slice_count += 1 + len(found.active_producers)
            if slice_count >= _PRODUCERS_PER_SLICE_COUNT:
                slice_count = 0
                await asyncio.sleep(0)
        topics.append(TopicResponse(topic.name, partitions))
    response.topics = topics
    return encode_response(ctx, response)


def _describe(node: Node, topic: str, index: int, described_count: int) -> PartitionResponse:
    if not is_valid_topic_name(topic):
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
