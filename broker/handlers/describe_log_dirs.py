"""DescribeLogDirs: return the size of each partition that this broker leads (KIP-113, KIP-827).

The only log dir is the URL of the object store, without parameters. A partition is listed only by
its leader, so that a sum over all brokers counts every byte once. Right after a leader change, two
brokers or none may list the partition.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Final, TypeAlias

from penstock.base.acls import Operation
from penstock.broker.errors import ErrorCode
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.partition.storage_usage import PartitionUsage, usage_of
from penstock.broker.requests.authorization import check_cluster
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.controller.metadata.shared_ranges import SharedRanges
from penstock.controller.metadata.topics import PartitionKey
from penstock.protocol.gen.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
    decode_request,
)
from penstock.stream.ports import BrokerIncarnation

_Wanted: TypeAlias = Mapping[str, Collection[int]]
"""Requested partitions by topic."""
_ENTRIES_PER_SLICE_COUNT: Final = 5_000
"""Ranges measured between two yields to the event loop, which takes about 1 ms."""


async def handle_describe_log_dirs(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, decode_request)
    check_cluster(node, ctx, Operation.DESCRIBE)
    topics: dict[str, list[DescribeLogDirsPartition]] = {}
    measured_count = 0
    shared = await _shared_ranges(node) if request.details else SharedRanges()
    for name, key in _led(node, _wanted(request.topics)):
        usage = _measure(node, key, shared)
        if usage is not None:
            part = _described(key.partition, usage, details=request.details)
            topics.setdefault(name, []).append(part)
            measured_count += 1 + usage.object_count
        if measured_count >= _ENTRIES_PER_SLICE_COUNT:
            measured_count = 0
            await asyncio.sleep(0)
    result = DescribeLogDirsResult(
        ErrorCode.NONE, node.log_dir, [*map(DescribeLogDirsTopic, topics, topics.values())]
    )
    return encode_response(ctx, DescribeLogDirsResponse(results=[result]))


async def _shared_ranges(node: Node) -> SharedRanges:
    """Return the ranges that forks, snapshots and deleted topics refer to, as of some point in time
    during this call.
    """
    shared = SharedRanges()
    for stream in node.image.streams.sharing():
        if stream.kind == "data":
            for count in shared.learn(stream):
                if count % _ENTRIES_PER_SLICE_COUNT == 0:
                    await asyncio.sleep(0)
    return shared


def _wanted(topics: Sequence[DescribableLogDirTopic] | None) -> _Wanted | None:
    """Return the requested partitions by topic, or None if all are requested."""
    if topics is None:
        return None
    wanted: dict[str, set[int]] = {}
    for topic in topics:
        wanted.setdefault(topic.topic, set()).update(topic.partitions)
    return wanted


def _led(node: Node, wanted: _Wanted | None) -> list[tuple[str, PartitionKey]]:
    """Return the requested partitions that this broker leads, in order, with their topics. Other
    partitions are omitted without an error, as in Kafka.
    """
    topics = node.image.topics
    led = [
        (topic.name, key)
        for key in topics.led_by(BrokerIncarnation(node.node_id, node.node_epoch))
        if (topic := topics.by_id(key.topic_id)) is not None
        and (wanted is None or key.partition in wanted.get(topic.name, ()))
    ]
    return sorted(led, key=lambda found: (found[0], found[1].partition))


def _measure(node: Node, key: PartitionKey, shared: SharedRanges) -> PartitionUsage | None:
    """Return the sizes of one partition, or None if it was deleted in the meantime.

    For clients that set the tagged `details` field, the result also contains the number of objects,
    the bytes in WAL objects, and the bytes shared with other partitions.
    """
    record = node.image.topics.partition(key)
    stream = None if record is None else node.image.streams.get(record.data_stream_id)
    if stream is None:
        return None
    return usage_of(
        stream.entries,
        node.image.objects,
        node.storage.uncommitted_bytes_of(stream.stream_id, stream.end_offset),
        shared.shared_bytes(stream, node.image.streams),
    )


def _described(index: int, usage: PartitionUsage, *, details: bool) -> DescribeLogDirsPartition:
    described = DescribeLogDirsPartition(partition_index=index, partition_size=usage.size_bytes)
    if details:
        described.object_count = usage.object_count
        described.wal_bytes = usage.wal_bytes
        described.shared_bytes = usage.shared_bytes
    return described
