"""ListOffsets: return the earliest or latest offset, the newest timestamp, or the first record at
or after a timestamp.

Invariant: an offset in the response is at or below the high watermark; for committed reads, the
last stable offset. A timestamp after all records gives offset -1 without an error. The response
contains nothing that a later leader may already have made untrue.
Cost: -1 and -2 are answered immediately. A timestamp is looked up in the metadata image, then in
the index of one object and in one batch.
Source: Kafka `ReplicaManager.fetchOffset`; KIP-79, KIP-734.
"""

import asyncio
from typing import Final

from base.ids import Offset
from broker.errors import ErrorCode, code_of
from broker.handlers.dispatch import encode_response
from broker.handlers.fetch import check_leader_epoch
from broker.handlers.lease import still_leads, wait_led
from broker.handlers.node import Node
from broker.network.request import RequestContext, Response
from broker.partition.partition import Partition
from broker.wire import framing
from broker.wire.gen.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
    decode_request,
)

_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_READ_COMMITTED: Final = 1
_LOOKUPS_AT_ONCE_COUNT: Final = 8
_LOOKUP_MAX_S: Final = 30.0
_WAIT_OPEN_S: Final = 2.0
"""How long a request waits for partitions that this broker is opening."""


async def handle_list_offsets(node: Node, ctx: RequestContext) -> Response:
    request = framing.decode_body(decode_request, ctx.frame, ctx.body_offset, ctx.api_version)
    limit = asyncio.Semaphore(_LOOKUPS_AT_ONCE_COUNT)

    committed = request.isolation_level == _READ_COMMITTED

    async def answer(topic_name: str, wanted: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
        async with limit:
            return await _answer(
                node, ctx.received_at + _WAIT_OPEN_S, topic_name, wanted, committed=committed
            )

    lookups = [
        (topic.name, [asyncio.ensure_future(answer(topic.name, item)) for item in topic.partitions])
        for topic in request.topics
    ]
    try:
        topics = [
            ListOffsetsTopicResponse(name, [await task for task in tasks])
            for name, tasks in lookups
        ]
    finally:
        for _, tasks in lookups:
            for task in tasks:
                task.cancel()
    return encode_response(ctx, ListOffsetsResponse(topics=topics))


async def _answer(
    node: Node, deadline: float, topic_name: str, wanted: ListOffsetsPartition, *, committed: bool
) -> ListOffsetsPartitionResponse:
    response = ListOffsetsPartitionResponse(wanted.partition_index)
    partition = await wait_led(node, topic_name, wanted.partition_index, deadline)
    if not isinstance(partition, Partition):
        response.error_code = partition
        return response
    response.error_code = check_leader_epoch(partition, wanted.current_leader_epoch)
    if response.error_code != ErrorCode.NONE:
        return response
    try:
        async with asyncio.timeout(_LOOKUP_MAX_S):
            found = await _find(
                node,
                partition,
                wanted.timestamp,
                partition.last_stable_offset if committed else partition.high_watermark,
            )
    except Exception as error:  # noqa: BLE001 - report the error of one partition, answer the others
        response.error_code = code_of(error)
        return response
    if not still_leads(node, partition):
        response.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif isinstance(found, ErrorCode):
        response.error_code = found
    elif found is not None:
        response.offset, response.timestamp = found
        response.leader_epoch = partition.log.epochs.epoch_at(found[0])
    return response


async def _find(
    node: Node, partition: Partition, timestamp_ms: int, end_offset: Offset
) -> tuple[Offset, int] | ErrorCode | None:
    """Return (offset, timestamp or -1) of a record below `end_offset`; None if there is none."""
    if timestamp_ms == _LATEST:
        return end_offset, -1
    if timestamp_ms in (_EARLIEST, _EARLIEST_LOCAL):
        return partition.log_start_offset, -1
    if timestamp_ms == _LATEST_TIERED:
        return None
    if timestamp_ms == _MAX_TIMESTAMP:
        return await node.storage.newest_timestamp(partition.log.data.stream_id, end_offset)
    if timestamp_ms < 0:
        return ErrorCode.INVALID_REQUEST if timestamp_ms < _LATEST else None
    return await node.storage.offset_for_timestamp(
        partition.log.data.stream_id, timestamp_ms, end_offset
    )
