"""Handle DeleteRecords: move the log start of partitions forward.

Invariants: an answer names only a log start that is committed metadata. The log start never goes
back, and is at most the high watermark. Every partition gets its own answer.
Source: KIP-107; Kafka `ReplicaManager.deleteRecords`, `UnifiedLog.maybeIncrementLogStartOffset`.
"""

import asyncio
from typing import Final

from base.ids import Offset
from broker.coordination.internal_topics import INTERNAL_TOPICS
from broker.errors import ErrorCode, code_of
from broker.handlers.dispatch import encode_response
from broker.handlers.lease import still_leads, wait_led
from broker.handlers.node import Node
from broker.network.request import RequestContext, Response
from broker.partition.partition import Partition
from broker.partition.retention import is_deletable
from broker.wire import framing
from broker.wire.gen.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
    decode_request,
)

_HIGH_WATERMARK: Final = -1
_NO_LOW_WATERMARK: Final = -1
_AT_ONCE_COUNT: Final = 64
_TIMEOUT_MS_MAX: Final = 60_000
_WAIT_OPEN_S: Final = 2.0
"""How long a request waits for partitions that this broker is just opening."""


async def handle_delete_records(node: Node, ctx: RequestContext) -> Response:
    """Answer when each partition has its new log start or an error."""
    request = framing.decode_body(decode_request, ctx.frame, ctx.body_offset, ctx.api_version)
    deadline = ctx.received_at + min(max(request.timeout_ms, 0), _TIMEOUT_MS_MAX) / 1_000
    limit = asyncio.Semaphore(_AT_ONCE_COUNT)

    async def answer(
        topic_name: str, wanted: DeleteRecordsPartition
    ) -> DeleteRecordsPartitionResult:
        async with limit:
            found = await _delete(node, ctx.received_at, deadline, topic_name, wanted)
        if isinstance(found, ErrorCode):
            return DeleteRecordsPartitionResult(wanted.partition_index, _NO_LOW_WATERMARK, found)
        return DeleteRecordsPartitionResult(wanted.partition_index, found, ErrorCode.NONE)

    async with asyncio.TaskGroup() as group:
        topics = [
            (topic.name, [group.create_task(answer(topic.name, item)) for item in topic.partitions])
            for topic in request.topics
        ]
    results = [
        DeleteRecordsTopicResult(name, [task.result() for task in tasks]) for name, tasks in topics
    ]
    return encode_response(ctx, DeleteRecordsResponse(topics=results))


async def _delete(
    node: Node, received_at: float, deadline: float, topic_name: str, wanted: DeleteRecordsPartition
) -> Offset | ErrorCode:
    """Return the log start after the deletion."""
    if topic_name in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    partition = await wait_led(
        node, topic_name, wanted.partition_index, min(deadline, received_at + _WAIT_OPEN_S)
    )
    if not isinstance(partition, Partition):
        return partition
    if not is_deletable(node.image.configs.topic(topic_name)):
        return ErrorCode.POLICY_VIOLATION
    high_watermark = partition.high_watermark
    start = high_watermark if wanted.offset == _HIGH_WATERMARK else Offset(wanted.offset)
    if not 0 <= start <= high_watermark:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    if start > partition.log_start_offset:
        try:
            async with asyncio.timeout_at(deadline):
                await node.partitions.trim(partition, start)
        except Exception as error:  # noqa: BLE001 - every partition gets its own answer
            return code_of(error)
    if not still_leads(node, partition):
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return partition.log_start_offset
