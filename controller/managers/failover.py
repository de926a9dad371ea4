"""Failover: assign a recoverer to a dead broker's WAL, check the recoverer's commits, and elect new
leaders.
"""

from collections import Counter
from collections.abc import Collection
from heapq import nsmallest

import msgspec

from penstock.base.ids import Millis, NodeId, StreamEpoch, WalStoreId
from penstock.controller.api.messages import (
    CommitObject,
    CommitRecovered,
    Progress,
    Status,
)
from penstock.controller.managers.checks import check_node
from penstock.controller.managers.elections import ELECTIONS_PER_TRANSACTION_MAX, Elector
from penstock.controller.managers.log_changes import LogChanges, check_objects, clipped
from penstock.controller.managers.result import Refused, Result
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import WalState
from penstock.controller.metadata.records import (
    RangeEntry,
    Record,
    StreamClosed,
    WalEnded,
    WalRecord,
)
from penstock.controller.metadata.streams import StreamState
from penstock.controller.metadata.topics import (
    NO_LEADER,
    PartitionKey,
    PartitionMetadata,
    in_order,
    is_moving,
    leader_of,
)
from penstock.stream.ports import IN_STORE, BrokerIncarnation


def assign_recoveries(image: MetadataImage, live: Collection[NodeId]) -> list[Record]:
    """Assign a live broker to each WAL whose writer is dead, unless its recoverer is alive or its
    store is lost. Deterministic.

    The broker with the fewest recoveries is chosen. Ties are broken in favor of the broker that
    will lead most of the dead broker's partitions, because it caches data that it reads during
    recovery. Draining brokers are chosen only if there are no others. A WAL in a WAL store is
    recovered by brokers whose own WALs are there, if there are any, because other brokers may be
    unable to reach the store. This takes O(partitions of the dead broker + brokers).
    """
    able = [node for node in image.nodes if node.node_id in live and not node.fenced]
    alive = {node.node_id: BrokerIncarnation(node.node_id, node.node_epoch) for node in able}
    staying = [node.node_id for node in able if not node.draining] or list(alive)
    waiting = [
        wal
        for wal in image.nodes.running_wals()
        if not image.nodes.is_alive(wal.writer) and not image.nodes.is_wal_store_lost(wal.store_id)
    ]
    load: Counter[NodeId] = Counter(
        wal.recoverer.node_id
        for wal in waiting
        if alive.get(wal.recoverer.node_id) == wal.recoverer
    )
    records: list[Record] = []
    for wal in sorted(waiting, key=_writer):
        inside = [item for item in staying if _is_inside(image, alive[item], wal.store_id)]
        if not alive or (
            alive.get(wal.recoverer.node_id) == wal.recoverer
            and (not inside or _is_inside(image, wal.recoverer, wal.store_id))
        ):
            continue
        next_leaders = _count_next_leaders(image, wal.writer, frozenset(staying))
        chosen = min(
            inside or staying,
            key=lambda node_id: (load[node_id], -next_leaders[node_id], node_id),
        )
        load[chosen] += 1
        recoverer = alive[chosen]
        records.append(
            WalRecord(
                wal.writer.node_id,
                wal.writer.node_epoch,
                wal.committed,
                recoverer.node_id,
                recoverer.node_epoch,
            )
        )
    return records


def _is_inside(image: MetadataImage, node: BrokerIncarnation, store_id: WalStoreId) -> bool:
    """Return whether the broker's own WAL is in this WAL store. All brokers reach the cluster's own
    store.
    """
    wal = image.nodes.wal(node)
    return store_id == IN_STORE or (wal is not None and wal.store_id == store_id)


def _count_next_leaders(
    image: MetadataImage, dead: BrokerIncarnation, eligible: Collection[NodeId]
) -> Counter[NodeId]:
    """Count the partitions of the dead broker by their first eligible candidate."""
    next_leaders: Counter[NodeId] = Counter()
    for key in image.topics.led_by(dead):
        partition = image.topics.partition(key)
        if partition is not None:
            next_leaders.update(
                [node_id for node_id in partition.replicas if node_id in eligible][:1]
            )
    return next_leaders


def commit_recovered(
    image: MetadataImage, request: CommitRecovered, now_ms: Millis, *, live: Collection[NodeId]
) -> Result[Progress]:
    """Register slots of the dead broker's WAL as objects. With `done`, close its streams and elect
    leaders for a few thousand partitions per call, until none remain.

    Only the assigned recoverer may commit for a dead writer, and only to streams that the writer
    has open, from their committed ends on. The WAL ends in the transaction that closes its last
    stream and elects the last leader, so that another recoverer can continue if this one dies.
    Partitions that lost or damaged slots may affect are held: they have no leader, and the WAL
    remains in recovery.

    Refuses with WAL_NOT_RECOVERABLE (the caller is not the recoverer, or the WAL has already
    ended), OFFSET_NOT_MATCHED (an earlier slot is missing), NODE_* and INVALID_REQUEST. Skips
    ranges that are committed or trimmed, and ranges of streams that the writer had closed.
    """
    failed = BrokerIncarnation(request.failed_node_id, request.failed_node_epoch)
    try:
        check_node(image, BrokerIncarnation(request.node_id, request.node_epoch))
        wal = image.nodes.wal(failed)
        if wal is not None and wal.ended and request.done and wal.end == request.end:
            return Result(value=Progress(remaining=0))
        _check_recoverer(image, wal, request)
        changes = LogChanges(image, now_ms)
        for item in request.objects:
            changes.commit_in_place(item, failed, _clipped(changes, item, failed))
    except Refused as refused:
        return refused.result()
    if not request.done:
        return Result(changes.records, value=Progress(remaining=0))
    held = {
        PartitionKey(stream.topic_id, stream.partition)
        for item in request.held
        if (stream := image.streams.get(item)) is not None
    }
    remaining = _hand_over(changes, failed, Elector(image, {*live, request.node_id}), now_ms, held)
    if not remaining and not held:
        changes.records.append(WalEnded(failed.node_id, failed.node_epoch, request.end))
    return Result(changes.records, value=Progress(remaining=remaining))


def end_lost_wals(
    image: MetadataImage,
    due: Collection[BrokerIncarnation],
    now_ms: Millis,
    *,
    live: Collection[NodeId],
) -> list[Record]:
    """End WALs in lost WAL stores at their committed slots, as if their writers had died there, and
    elect new leaders. The new leaders abort the open transactions, because the transaction markers
    may be lost and coordinators do not resend them. Each call ends a limited number; call again
    while it returns records.

    due: writers whose WALs may end. They cannot acknowledge anything, because when the store was
    abandoned, no live broker used it and its leases had ended.
    """
    for writer in sorted(due):
        wal = image.nodes.wal(writer)
        if wal is None or not _is_lost(image, wal):
            continue
        changes = LogChanges(image, now_ms)
        remaining = _hand_over(changes, writer, Elector(image, live), now_ms, (), is_lost=True)
        if not remaining:
            changes.records.append(WalEnded(writer.node_id, writer.node_epoch, wal.committed))
        return changes.records
    return []


def lost_wals(image: MetadataImage) -> list[BrokerIncarnation]:
    """Return the writers of the WALs in lost WAL stores that have not ended."""
    return [wal.writer for wal in image.nodes.running_wals() if _is_lost(image, wal)]


def _is_lost(image: MetadataImage, wal: WalState) -> bool:
    return (
        not wal.ended
        and image.nodes.is_wal_store_lost(wal.store_id)
        and not image.nodes.is_alive(wal.writer)
    )


def _check_recoverer(image: MetadataImage, wal: WalState | None, request: CommitRecovered) -> None:
    check_objects(request.objects)
    name = f"the WAL of node {request.failed_node_id} epoch {request.failed_node_epoch}"
    if wal is None or wal.ended:
        raise Refused(
            Status.WAL_NOT_RECOVERABLE,
            f"{name} does not exist or has ended: there is nothing to recover",
        )
    if image.nodes.is_wal_store_lost(wal.store_id):
        raise Refused(
            Status.WAL_NOT_RECOVERABLE,
            f"{name} is in WAL store {wal.store_id}, which was abandoned",
        )
    if image.nodes.is_alive(wal.writer) or wal.recoverer != BrokerIncarnation(
        request.node_id, request.node_epoch
    ):
        raise Refused(
            Status.WAL_NOT_RECOVERABLE,
            f"{name} is not for node {request.node_id} epoch {request.node_epoch} to recover",
        )
    if request.end < wal.committed and request.done:
        raise Refused(
            Status.OFFSET_NOT_MATCHED,
            f"{name} cannot end at slot {request.end}, below its committed slot {wal.committed}",
        )


def _clipped(
    changes: LogChanges, item: CommitObject, failed: BrokerIncarnation
) -> list[RangeEntry]:
    """Return the uncommitted ranges of one slot whose streams belong to the dead writer."""
    ranges: list[RangeEntry] = []
    for part in item.ranges:
        stream = changes.image.streams.get(part.stream_id)
        if stream is None or not stream.opened or stream.owner != failed or changes.holds(part):
            continue
        taken = (
            clipped(part, changes.end_of(stream))
            if part.start_offset < changes.end_of(stream)
            else part
        )
        changes.append(stream, taken)
        ranges.append(taken)
    return ranges


def _hand_over(
    changes: LogChanges,
    failed: BrokerIncarnation,
    elector: Elector,
    now_ms: Millis,
    held: Collection[PartitionKey],
    *,
    is_lost: bool = False,
) -> int:
    """Close streams of the dead writer and elect new leaders for its partitions, up to the limit
    and without the held partitions.

    Return how many partitions remain, not counting the held ones. A partition also counts if its
    stream is open for an incarnation that no longer leads it.
    """
    image = changes.image
    streams: dict[PartitionKey, list[StreamState]] = {
        key: [] for key in image.topics.led_by(failed)
    }
    for stream_id in image.streams.opened_by(failed):
        stream = image.streams.get(stream_id)
        if stream is not None:
            streams.setdefault(PartitionKey(stream.topic_id, stream.partition), []).append(stream)
    for key in held:
        streams.pop(key, None)
    for key in nsmallest(ELECTIONS_PER_TRANSACTION_MAX, streams, key=in_order):
        for stream in sorted(streams[key], key=_stream_id):
            end = max(changes.end_of(stream), stream.start_offset)
            changes.records.append(StreamClosed(stream.stream_id, stream.epoch, end))
        partition = image.topics.partition(key)
        if partition is None:
            continue
        is_due = _is_due(partition, failed, elector)
        record = elector.elect(partition, now_ms) if is_due else partition
        if is_lost:
            # A partition that is waiting for an eligible broker will be led with the next epoch.
            epoch = record.leader_epoch + (leader_of(record) == NO_LEADER)
            record = msgspec.structs.replace(record, undeleted_epoch=StreamEpoch(epoch))
        if record is not partition:
            changes.records.append(record)
    return max(len(streams) - ELECTIONS_PER_TRANSACTION_MAX, 0)


def _is_due(partition: PartitionMetadata, failed: BrokerIncarnation, elector: Elector) -> bool:
    """Return whether to elect a leader: the dead writer led the partition, or the partition was
    moving away from it. If it was moving, it can wait for an eligible broker, but not if the writer
    led it.
    """
    return leader_of(partition) == failed or (is_moving(partition) and bool(elector.eligible))


def _writer(wal: WalState) -> tuple[int, int]:
    return wal.writer.node_id, wal.writer.node_epoch


def _stream_id(stream: StreamState) -> int:
    return stream.stream_id
