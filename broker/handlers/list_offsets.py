"""ListOffsets: return the earliest or latest offset, the newest timestamp, or the first record at
or after a timestamp. Offsets are between the log start and the high watermark, or the last stable
offset for committed reads. If all timestamps are earlier, the offset is -1, without an error.
Brokers that fork a topic use this API to find fork points (`broker.handlers.topics.forks`).
"""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.base.acls import Operation
from penstock.base.ids import Offset
from penstock.broker.errors import ErrorCode, code_of
from penstock.broker.handlers.fetch.fetch_target import check_leader_epoch
from penstock.broker.handlers.topics.forks import handle_fork_points, is_fork_point_request
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.authorization import check_cluster, undescribed_topics
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.lease import led_now, still_leads, wait_led
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import gathered, sliced
from penstock.protocol.gen.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
    decode_request,
)
from penstock.protocol.offset_specs import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)

_NOT_TIERED: Final = (LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
"""Special timestamps for offsets that exist only with tiered storage."""
_FIRST_VERSIONS: Final = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version in which a client may send each negative timestamp: -1 latest, -2 earliest, -3
newest timestamp, -4 earliest local, which is the log start, -5 latest tiered and -6 earliest
pending upload. Earlier versions fail with UNSUPPORTED_VERSION.
"""
_READ_COMMITTED: Final = 1
_ISOLATION_LEVELS: Final = frozenset({0, _READ_COMMITTED})
_CONSUMER: Final = -1
"""The replica id of consumers."""
_LOOKUPS_AT_ONCE_COUNT: Final = 8
_LOOKUP_MAX_S: Final = 30.0
_WAIT_OPEN_S: Final = 2.0
"""How long a request waits for partitions that this broker is opening."""


async def handle_list_offsets(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, decode_request)
    if is_fork_point_request(request.topics):
        check_cluster(node, ctx, Operation.CLUSTER_ACTION)
        return await handle_fork_points(node, ctx, request)
    names = {topic.name for topic in request.topics}
    denied = await undescribed_topics(node, ctx, names)
    limit = asyncio.Semaphore(_LOOKUPS_AT_ONCE_COUNT)
    # As in Kafka, replicas and debugging consumers see open transactions.
    committed = request.isolation_level == _READ_COMMITTED and request.replica_id == _CONSUMER
    timeout_s = _LOOKUP_MAX_S
    if request.timeout_ms > 0:
        timeout_s = min(timeout_s, request.timeout_ms / 1_000)

    responses: dict[str, dict[int, ListOffsetsPartitionResponse]] = {
        topic.name: {} for topic in request.topics
    }
    pending: dict[tuple[str, int], ListOffsetsPartition] = {}
    async for name, wanted in sliced(_wanted(request.topics)):
        index, of_topic = wanted.partition_index, responses[name]
        if index in of_topic:
            of_topic[index] = ListOffsetsPartitionResponse(index, ErrorCode.INVALID_REQUEST)
            pending.pop((name, index), None)
            continue
        of_topic[index] = response = ListOffsetsPartitionResponse(index)
        if request.isolation_level not in _ISOLATION_LEVELS:
            response.error_code = ErrorCode.UNKNOWN_SERVER_ERROR  # as in Kafka
        elif name in denied:
            response.error_code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not _has_timestamp(ctx.api_version, wanted.timestamp):
            response.error_code = ErrorCode.UNSUPPORTED_VERSION
        else:
            partition = led_now(node, name, index)
            if partition is None or not _fill_in(response, partition, wanted, committed=committed):
                pending[name, index] = wanted

    async def look_up(name: str, wanted: ListOffsetsPartition) -> None:
        async with limit:
            await _look_up(
                node,
                name,
                wanted,
                responses[name][wanted.partition_index],
                committed=committed,
                open_deadline=ctx.received_at + _WAIT_OPEN_S,
                timeout_s=timeout_s,
            )

    await gathered(look_up(name, wanted) for (name, _), wanted in pending.items())
    topics = [
        ListOffsetsTopicResponse(name, list(of_topic.values()))
        for name, of_topic in responses.items()
    ]
    return encode_response(ctx, ListOffsetsResponse(topics=topics))


def _wanted(topics: Sequence[ListOffsetsTopic]) -> Iterator[tuple[str, ListOffsetsPartition]]:
    return ((topic.name, wanted) for topic in topics for wanted in topic.partitions)


def _has_timestamp(version: int, timestamp: int) -> bool:
    """Return whether this request version supports the timestamp."""
    if timestamp >= 0:
        return True
    first = _FIRST_VERSIONS.get(timestamp)
    return first is not None and version >= first


async def _look_up(
    node: Node,
    topic_name: str,
    wanted: ListOffsetsPartition,
    response: ListOffsetsPartitionResponse,
    *,
    committed: bool,
    open_deadline: float,
    timeout_s: float,
) -> None:
    """Wait until the partition is open, search its records if necessary, and fill in the
    response.
    """
    partition = await wait_led(node, topic_name, wanted.partition_index, open_deadline)
    if _fill_in(response, partition, wanted, committed=committed):
        return
    assert isinstance(partition, Partition), "only partitions are searched"
    try:
        async with asyncio.timeout(timeout_s):
            found = await _search(node, partition, wanted.timestamp, _end(partition, committed))
    except Exception as error:  # noqa: BLE001 - report the error of one partition, respond for the others
        response.error_code = code_of(error)
        return
    if not still_leads(node, partition):
        response.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
    elif found is not None:
        response.offset, response.timestamp = found
        response.leader_epoch = partition.log.epochs.epoch_at(found[0])


def _fill_in(
    response: ListOffsetsPartitionResponse,
    partition: Partition | ErrorCode,
    wanted: ListOffsetsPartition,
    *,
    committed: bool,
) -> bool:
    """Set an error or the start or end offset of a partition. Return False if the records must be
    searched.
    """
    if not isinstance(partition, Partition):
        response.error_code = partition
        return True
    response.error_code = check_leader_epoch(partition.leader_epoch, wanted.current_leader_epoch)
    if response.error_code != ErrorCode.NONE or wanted.timestamp in _NOT_TIERED:
        return True
    if wanted.timestamp == LATEST:
        offset = _end(partition, committed)
    elif wanted.timestamp in (EARLIEST, EARLIEST_LOCAL):
        offset = partition.log_start_offset
    else:
        return False
    response.offset, response.leader_epoch = offset, partition.log.epochs.epoch_at(offset)
    return True


def _end(partition: Partition, committed: bool) -> Offset:
    return partition.last_stable_offset if committed else partition.high_watermark


async def _search(
    node: Node, partition: Partition, timestamp_ms: int, end_offset: Offset
) -> tuple[Offset, int] | None:
    """Return (offset, timestamp) of a record below `end_offset`, or None.

    For timestamp -3, Kafka may return a record below the log start, and a committed read returns
    nothing if the newest record belongs to an open transaction. Here, the newest readable record is
    returned.
    """
    stream_id = partition.log.data.stream_id
    if timestamp_ms == MAX_TIMESTAMP:
        return await node.storage.newest_timestamp(stream_id, end_offset)
    return await node.storage.offset_for_timestamp(stream_id, timestamp_ms, end_offset)
