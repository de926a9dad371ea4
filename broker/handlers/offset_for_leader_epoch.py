"""OffsetForLeaderEpoch (KIP-320): return the end offset of a leader epoch, which clients use to
detect truncation. Penstock never truncates logs.
"""

from itertools import islice
from typing import Final

from penstock.broker.errors import ErrorCode
from penstock.broker.handlers.fetch.fetch_target import check_leader_epoch
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.authorization import undescribed_topics
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.lease import wait_led
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import listed, sliced
from penstock.protocol.gen.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
    decode_request,
)

_WAIT_OPEN_S: Final = 2.0
"""How long a request waits for partitions that this broker is opening, because clients send it
right after a leader change.
"""


async def handle_offset_for_leader_epoch(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, decode_request)
    deadline = ctx.received_at + _WAIT_OPEN_S
    denied = await undescribed_topics(node, ctx, (topic.topic for topic in request.topics))
    every = ((topic.topic, wanted) for topic in request.topics for wanted in topic.partitions)
    found = iter(
        [
            EpochEndOffset(ErrorCode.TOPIC_AUTHORIZATION_FAILED, wanted.partition)
            if name in denied
            else await _response(node, deadline, name, wanted)
            async for name, wanted in sliced(every)
        ]
    )
    topics = await listed(
        OffsetForLeaderTopicResult(topic.topic, list(islice(found, len(topic.partitions))))
        for topic in request.topics
    )
    return encode_response(ctx, OffsetForLeaderEpochResponse(topics=topics))


async def _response(
    node: Node, deadline: float, topic_name: str, wanted: OffsetForLeaderPartition
) -> EpochEndOffset:
    response = EpochEndOffset(partition=wanted.partition)
    partition = await wait_led(node, topic_name, wanted.partition, deadline)
    if not isinstance(partition, Partition):
        response.error_code = partition
        return response
    response.error_code = check_leader_epoch(partition.leader_epoch, wanted.current_leader_epoch)
    if response.error_code == ErrorCode.NONE:
        # Use the high watermark, not the log end offset, because records above it may still be lost
        # if this broker fails.
        epochs = partition.log.epochs
        response.leader_epoch, response.end_offset = epochs.end_offset(
            wanted.leader_epoch, partition.high_watermark
        )
    return response
