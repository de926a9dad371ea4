"""DeleteRecords (KIP-107): advance the log start of partitions, at most to the high watermark.

Responses contain a log start only after it is committed to the metadata. The controller retains
deleted records for the topic's grace period, during which a fork can restore them.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Final, TypeAlias

from penstock.base.acls import Operation
from penstock.base.errors import StreamError
from penstock.base.ids import Offset
from penstock.broker.coordination.internal_topics import INTERNAL_TOPICS
from penstock.broker.errors import ErrorCode, code_of
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.partition.partition import Partition
from penstock.broker.partition.retention import allows_delete_records
from penstock.broker.requests.authorization import find_denied_topics, record_change
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.lease import led_now, still_leads, wait_led
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import gathered, listed
from penstock.controller.api.errors import ControllerError
from penstock.controller.metadata.topic_configs import DELETE_GRACE
from penstock.protocol.gen.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
    DeleteRecordsTopicResult,
    decode_request,
)

_HIGH_WATERMARK: Final = -1
_NO_LOW_WATERMARK: Final = -1
_TIMEOUT_MS_MIN: Final = 1_000
_TIMEOUT_MS_MAX: Final = 60_000
_WAIT_OPEN_S: Final = 2.0
"""How long a request waits for partitions that this broker is opening."""

_Found: TypeAlias = tuple[Partition, Offset] | ErrorCode


async def handle_delete_records(node: Node, ctx: RequestContext) -> Response:
    """Respond when each partition has its new log start or an error. The request costs one WAL
    flush for all partitions.

    The timeout is at least 1 s. In Kafka, requests with a timeout of 0 succeed, because the leader
    advances the log start before it checks the timeout.
    """
    request = decoded(ctx, decode_request)
    timeout_ms = min(max(request.timeout_ms, _TIMEOUT_MS_MIN), _TIMEOUT_MS_MAX)
    deadline = ctx.received_at + timeout_ms / 1_000
    open_deadline = min(deadline, ctx.received_at + _WAIT_OPEN_S)
    wanted = _offsets(request.topics)
    denied = await find_denied_topics(node, ctx, Operation.DELETE, wanted)
    named = [
        (name, index, offset)
        for name, offsets in wanted.items()
        for index, offset in offsets.items()
    ]
    at_once = await listed(_find(node, *item, is_denied=item[0] in denied) for item in named)
    opened = iter(
        await gathered(
            _find_opening(node, open_deadline, *item)
            for item, start in zip(named, at_once, strict=True)
            if start is None
        )
    )
    found = [next(opened) if start is None else start for start in at_once]
    failed = await _trim(
        node, deadline, [item for item in found if not isinstance(item, ErrorCode)]
    )
    results = iter(
        await listed(
            _result(node, index, start, failed)
            for (_, index, _), start in zip(named, found, strict=True)
        )
    )
    topics = [
        DeleteRecordsTopicResult(name, list(islice(results, len(offsets))))
        for name, offsets in wanted.items()
    ]
    trimmed = [
        f"{topic.name}-{part.partition_index} to {part.low_watermark}"
        for topic in topics
        for part in topic.partitions
        if not part.error_code
    ]
    record_change(node, ctx, "records_deleted", trimmed)
    return encode_response(ctx, DeleteRecordsResponse(topics=topics))


def _offsets(topics: Iterable[DeleteRecordsTopic]) -> dict[str, dict[int, int]]:
    """Return the requested offset by topic and partition, in the order of the request.

    As in Kafka 4.2, repeated topics are merged, the last offset of a partition is used, and topics
    without partitions are omitted from the response.
    """
    offsets: dict[str, dict[int, int]] = {}
    for topic in topics:
        for item in topic.partitions:
            offsets.setdefault(topic.name, {})[item.partition_index] = item.offset
    return offsets


def _find(
    node: Node, topic_name: str, index: int, offset: int, *, is_denied: bool
) -> _Found | None:
    """Return the partition and its new log start, or None if this broker is opening the
    partition.
    """
    if is_denied:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    topic = node.image.topics.by_name(topic_name)
    if topic is None or not 0 <= index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic_name in INTERNAL_TOPICS:
        return ErrorCode.INVALID_TOPIC_EXCEPTION
    partition = led_now(node, topic_name, index)
    return None if partition is None else _start(node, partition, offset)


async def _find_opening(
    node: Node, open_deadline: float, topic_name: str, index: int, offset: int
) -> _Found:
    return _start(node, await wait_led(node, topic_name, index, open_deadline), offset)


def _start(node: Node, partition: Partition | ErrorCode, offset: int) -> _Found:
    """Return the partition and its new log start."""
    if not isinstance(partition, Partition):
        return partition
    if not allows_delete_records(node.image.configs.topic(partition.topic_name)):
        return ErrorCode.POLICY_VIOLATION
    high_watermark = partition.high_watermark
    start = high_watermark if offset == _HIGH_WATERMARK else Offset(offset)
    if not 0 <= start <= high_watermark:
        return ErrorCode.OFFSET_OUT_OF_RANGE
    return partition, start


async def _trim(
    node: Node, deadline: float, starts: Sequence[tuple[Partition, Offset]]
) -> dict[Partition, ErrorCode]:
    """Advance the log starts. Return the errors."""
    ahead = [
        (partition, start) for partition, start in starts if start > partition.log_start_offset
    ]
    if not ahead:
        return {}
    try:
        async with asyncio.timeout_at(deadline):
            errors = await node.partitions.trim_all(ahead, keep=_may_come_back(node, ahead))
    except (StreamError, ControllerError, OSError, TimeoutError) as error:
        errors = [error] * len(ahead)
    return {
        partition: code_of(error)
        for (partition, _), error in zip(ahead, errors, strict=True)
        if error is not None
    }


def _may_come_back(node: Node, starts: Sequence[tuple[Partition, Offset]]) -> bool:
    """Return whether any of these topics may retain deleted records. The controller makes the
    decision, but no upload is needed if this returns False.
    """
    return any(
        node.image.configs.topic(partition.topic_name).get(DELETE_GRACE) != "0"
        for partition, _ in starts
    )


def _result(
    node: Node,
    index: int,
    found: _Found,
    failed: Mapping[Partition, ErrorCode],
) -> DeleteRecordsPartitionResult:
    if isinstance(found, ErrorCode):
        return DeleteRecordsPartitionResult(index, _NO_LOW_WATERMARK, found)
    partition, start = found
    if partition.log_start_offset < start:
        error = failed.get(partition, ErrorCode.UNKNOWN_SERVER_ERROR)
        return DeleteRecordsPartitionResult(index, _NO_LOW_WATERMARK, error)
    if not still_leads(node, partition):
        error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        return DeleteRecordsPartitionResult(index, _NO_LOW_WATERMARK, error)
    return DeleteRecordsPartitionResult(index, partition.log_start_offset, ErrorCode.NONE)
