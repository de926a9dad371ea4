"""WriteTxnMarkers: a transaction coordinator sends the outcome of a transaction to the leaders of
the transaction's partitions (KIP-98, KIP-890).
"""

import asyncio
from collections.abc import Iterable, Iterator
from typing import TypeAlias

from penstock.base.acls import Operation
from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC
from penstock.broker.errors import ErrorCode
from penstock.broker.network.request import RequestContext, Response
from penstock.broker.partition.append import AppendOutcome, PartitionAppend
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.authorization import allows_cluster, record_change
from penstock.broker.requests.dispatch import encode_response
from penstock.broker.requests.long_requests import decoded
from penstock.broker.requests.node import Node
from penstock.broker.requests.yielding import SLICE_COUNT, listed, sliced
from penstock.broker.transactions.model import EPOCH_PER_TRANSACTION
from penstock.protocol.batch.control import NO_SERIAL, Marker
from penstock.protocol.gen.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
    decode_request,
)

TopicPartition: TypeAlias = tuple[str, int]
Codes: TypeAlias = dict[TopicPartition, ErrorCode]


async def handle_write_txn_markers(node: Node, ctx: RequestContext) -> Response:
    request = decoded(ctx, decode_request)
    if not allows_cluster(node, ctx, Operation.ALTER, logs=False) and not allows_cluster(
        node, ctx, Operation.CLUSTER_ACTION
    ):
        results = await listed(
            _result(item, dict.fromkeys(_partitions(item), ErrorCode.CLUSTER_AUTHORIZATION_FAILED))
            for item in request.markers
        )
        return encode_response(ctx, WriteTxnMarkersResponse(markers=results))
    started = await listed(
        (item, start_marker(node, _marker(item), wanted, item.transaction_version))
        for item in request.markers
        for wanted in _slices(_partitions(item))
    )
    codes: dict[int, Codes] = {}
    async for item, future in sliced(started):
        codes.setdefault(id(item), {}).update(await future)
    ended = await listed(
        _ended_text(item, key)
        for item in request.markers
        if item.serial <= NO_SERIAL  # not from a coordinator
        for key, code in codes[id(item)].items()
        if not code
    )
    record_change(node, ctx, "transactions_ended", ended)
    results = await listed(_result(item, codes[id(item)]) for item in request.markers)
    return encode_response(ctx, WriteTxnMarkersResponse(markers=results))


def start_marker(
    node: Node, marker: Marker, wanted: Iterable[TopicPartition], version: int = 0
) -> "asyncio.Future[Codes]":
    """End the producer's transaction in the given partitions that this broker leads. When this
    returns, the markers have been appended in one group; they are durable when the future
    completes.

    A marker whose serial is not above that of the producer's last ended transaction is a late copy:
    it receives the same response and changes nothing. A marker without a serial comes from an
    administrator, who may end any transaction with the producer's epoch unless a later coordinator
    has written a marker here. In `__consumer_offsets`, the offsets of the transaction are committed
    or dropped even if the requester no longer waits.

    After NOT_LEADER_OR_FOLLOWER, the requester should refresh its metadata and retry.
    INVALID_PRODUCER_EPOCH and TRANSACTION_COORDINATOR_FENCED mean that a newer producer or
    coordinator has written to the partition.

    version: the version of the transaction. From version 2 on, the marker must have a later epoch
    than the transaction that it ends (KIP-890).
    """
    done: asyncio.Future[Codes] = asyncio.get_running_loop().create_future()
    codes: Codes = {}
    has_next_epoch = version >= EPOCH_PER_TRANSACTION
    parts: list[tuple[Partition, Marker]] = []
    for key in dict.fromkeys(wanted):
        found = _led_partition(node, marker, key, has_next_epoch=has_next_epoch)
        if isinstance(found, Partition):
            parts.append((found, marker))
        else:
            codes[key] = found

    def settled(group: PartitionAppend) -> None:
        for (partition, _), outcome in zip(parts, group.outcomes, strict=True):
            codes[partition.topic_name, partition.index] = outcome.code
            _complete_offsets(node, marker, partition, outcome)
        if not done.done():
            done.set_result(codes)

    PartitionAppend(settled).run(node.storage, parts, node.now_ms())
    return done


class LedMarkers:
    """Implements `broker.transactions.states.LocalMarkers`."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def parts(
        self, marker: Marker, partitions: Iterable[TopicPartition], version: int
    ) -> list[tuple[Partition, Marker]] | None:
        has_next_epoch = version >= EPOCH_PER_TRANSACTION
        parts: list[tuple[Partition, Marker]] = []
        for key in sorted(partitions):
            found = _led_partition(self._node, marker, key, has_next_epoch=has_next_epoch)
            if not isinstance(found, Partition) or found.log.producers.is_repeated(marker):
                return None
            if found.log.rules.mirror_source:
                return None  # a mirror never accepts a marker without records
            parts.append((found, marker))
        return parts

    def written(self, marker: Marker, parts: Iterable[tuple[Partition, Marker]]) -> None:
        for partition, _ in parts:
            if partition.topic_name == OFFSETS_TOPIC:
                self._node.groups.complete_transaction(
                    partition.index, marker.producer_id, marker.committed
                )


def led_partition(node: Node, key: TopicPartition) -> Partition | ErrorCode:
    """Return the partition if this broker leads it, without waiting. If the partition is not open
    here, the error makes the requester refresh its metadata.
    """
    found = node.partitions.get(*key)
    if isinstance(found, Partition) and node.can_write():
        return found
    if isinstance(found, Partition) or found is ErrorCode.LEADER_NOT_AVAILABLE:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return found


def _led_partition(
    node: Node, marker: Marker, key: TopicPartition, *, has_next_epoch: bool
) -> Partition | ErrorCode:
    if marker.producer_id < 0 or marker.producer_epoch < 0:
        return ErrorCode.INVALID_REQUEST
    found = led_partition(node, key)
    if (
        has_next_epoch
        and isinstance(found, Partition)
        and found.log.producers.is_ended_by_next_epoch(marker)
    ):
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return found


def _complete_offsets(
    node: Node, marker: Marker, partition: Partition, outcome: AppendOutcome
) -> None:
    """Commit or drop the offsets of the transaction, the first time its marker is durable."""
    if outcome.code is not ErrorCode.NONE or outcome.is_repetition:
        return
    if partition.topic_name == OFFSETS_TOPIC:
        node.groups.complete_transaction(partition.index, marker.producer_id, marker.committed)


def _marker(item: WritableTxnMarker) -> Marker:
    return Marker(
        item.producer_id,
        item.producer_epoch,
        item.transaction_result,
        item.coordinator_epoch,
        item.serial,
    )


def _partitions(item: WritableTxnMarker) -> list[TopicPartition]:
    return [(topic.name, index) for topic in item.topics for index in topic.partition_indexes]


def _slices(partitions: list[TopicPartition]) -> Iterator[list[TopicPartition]]:
    """Yield the partitions in slices, one per event loop iteration; one empty slice if there are
    none.
    """
    wanted = list(dict.fromkeys(partitions))
    for at in range(0, len(wanted) or 1, SLICE_COUNT):
        yield wanted[at : at + SLICE_COUNT]


def _ended_text(item: WritableTxnMarker, key: TopicPartition) -> str:
    outcome = "committed" if item.transaction_result else "aborted"
    return f"{outcome} producer {item.producer_id} epoch {item.producer_epoch} in {key[0]}-{key[1]}"


def _result(item: WritableTxnMarker, codes: Codes) -> WritableTxnMarkerResult:
    topics = [
        WritableTxnMarkerTopicResult(
            topic.name,
            [
                WritableTxnMarkerPartitionResult(index, codes[topic.name, index])
                for index in topic.partition_indexes
            ],
        )
        for topic in item.topics
    ]
    return WritableTxnMarkerResult(item.producer_id, topics)
