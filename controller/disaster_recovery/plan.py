"""Compute the records of a new history from the backup and the WALs
(docs/design/disaster-recovery.md).

Ranges of all WALs are combined by offset, regardless of their writer: each stream continues at its
committed end. Fences and closes ensure that the durable ranges of different writers never overlap.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from uuid import UUID

import msgspec

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    ObjectId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
    WalStoreId,
)
from penstock.controller.backup.layout import HISTORY_GAP
from penstock.controller.managers.log_changes import clipped
from penstock.controller.managers.lost_ranges import lost_kept, objects_in, trims
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import (
    IdsReserved,
    KeptLogDropped,
    ObjectCommitted,
    ObjectPrepared,
    PartitionRecord,
    ProducerIdsAllocated,
    RangeEntry,
    Record,
    StreamClosed,
    StreamTrimmed,
    WalEnded,
    WalPlaced,
    WalRecord,
)
from penstock.controller.metadata.streams import StreamState
from penstock.controller.metadata.topics import NO_LEADER
from penstock.controller.raft.messages import Base, Endpoint, Members
from penstock.stream.format.keys import data_key
from penstock.stream.ports import IN_STORE, BrokerIncarnation, ObjectRole, StreamRange
from penstock.stream.recovery.salvage import BadSlot

IDS_SKIPPED = 1 << 32
"""Number of stream ids, object ids, producer ids and Raft indexes to skip, because they may have
been assigned after the backup.

These numbers have 64 bits.
"""

EPOCHS_SKIPPED = 1 << 20
"""Number of node epochs, leader epochs and terms to skip for the same reason.

Kafka's leader epochs have 32 bits, enough for 2,000 recoveries.
"""

EPOCH_MAX = (1 << 31) - 1
END_UNKNOWN = Offset(-1)
_FIRST_SLOT = WalSequence(0)


@dataclass(frozen=True, slots=True)
class WalkedSlot:
    sequence: WalSequence
    key: str
    size_bytes: int
    ranges: tuple[StreamRange, ...]


@dataclass(frozen=True, slots=True)
class WalkedWal:
    """The data slots of one WAL in [start, end).

    `end` is the first slot without data, or the slot of the WAL's fence. `bad` lists lost and
    damaged slots.
    """

    writer: BrokerIncarnation
    start: WalSequence
    end: WalSequence
    slots: tuple[WalkedSlot, ...]
    bad: tuple[BadSlot, ...] = ()
    store_id: WalStoreId = IN_STORE


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets [start_offset, end_offset) of a stream that were not found (or were found twice)
    although later data exists, or that were lost with a WAL store. end_offset: END_UNKNOWN if the
    end is not known.
    """

    topic: str
    partition: int
    stream_id: StreamId
    start_offset: Offset
    end_offset: Offset
    what: str


@dataclass(slots=True)
class Rebuilt:
    """The result of a rebuild: no partition has a leader, all streams are closed and all WALs have
    ended.

    `records` apply to the image of the backup. The counts are those of the ranges found in the
    WALs.
    """

    records: list[Record] = field(default_factory=list[Record])
    gaps: list[Gap] = field(default_factory=list[Gap])
    range_count: int = 0
    record_count: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Piece:
    part: RangeEntry
    slot: WalkedSlot
    writer: BrokerIncarnation


def next_base(base: Base, end: int, voters: Sequence[int]) -> Base:
    """Return the start of the new history. It is beyond the end of every log of the old history,
    because the voters' disks may contain more than the backup.
    """
    known = base.members
    ids = tuple(sorted(voters))
    endpoints = tuple(Endpoint(number, known.endpoint(number).address) for number in ids)
    members = Members(ids, endpoints=endpoints, version=known.version + EPOCHS_SKIPPED)
    return Base(base.index + IDS_SKIPPED, base.term + EPOCHS_SKIPPED, end + HISTORY_GAP, members)


def orphans_of(image: MetadataImage, data_ids: Iterable[ObjectId]) -> list[ObjectId]:
    """Return the objects in the store that were prepared after the backup.

    These are uploaded copies of WAL data, or compacted objects.
    """
    first = image.next_object_id
    return [object_id for object_id in data_ids if first <= object_id < first + IDS_SKIPPED]


def wals_to_walk(
    image: MetadataImage, listed: Iterable[BrokerIncarnation]
) -> list[tuple[BrokerIncarnation, WalSequence]]:
    """Return every WAL that has not ended, with the slot at which to start.

    A WAL that was registered after the backup is read from its first slot. Slots of a WAL that is
    removed in the image were written by a process that was paused until its fence was gone, and
    were never acknowledged.
    """
    running = [(wal.writer, wal.committed) for wal in image.nodes.running_wals()]
    unknown = [
        (writer, _FIRST_SLOT)
        for writer in set(listed)
        if writer.node_epoch >= image.next_node_epoch and image.nodes.wal(writer) is None
    ]
    return sorted(running + unknown, key=lambda item: (item[0].node_id, item[0].node_epoch))


def rebuild(
    image: MetadataImage,
    wals: Sequence[WalkedWal],
    *,
    orphans: Iterable[ObjectId],
    now_ms: Millis,
    lost: Collection[WalStoreId] = (),
) -> Rebuilt:
    """Return records that add the contents of the WALs to the image of the backup.

    `orphans` are unreferenced data objects, which are deleted after the read grace period. The
    image is not changed.

    lost: abandoned WAL stores. If one of them contained a WAL, the next leaders abort the open
    transactions, because the markers of these may be lost. They do so in every partition, because
    the backup may lack the last partitions of this WAL.
    """
    rebuilt = Rebuilt()
    taken = _take_pieces(image, wals, rebuilt)
    rebuilt.gaps += [
        Gap("", -1, StreamId(-1), Offset(0), Offset(0), str(slot.error))
        for wal in wals
        for slot in wal.bad
    ]
    first_object_id = ObjectId(image.next_object_id + IDS_SKIPPED)
    objects = _commit_slots(image, wals, taken, first_object_id, now_ms)
    next_object_id = ObjectId(first_object_id + len(objects))
    rebuilt.records += _create_wals(image, wals)
    rebuilt.records += objects
    rebuilt.records += _close_streams(image, taken)
    rebuilt.records += [
        WalEnded(wal.writer.node_id, wal.writer.node_epoch, wal.end) for wal in wals
    ]
    aborts = any(wal.store_id in lost for wal in wals)
    rebuilt.records += _depose_brokers(image, aborts=aborts)
    rebuilt.records += [
        ObjectPrepared(orphan, data_key(orphan), 0, image.end_offset)
        for orphan in sorted(set(orphans))
    ]
    rebuilt.records += _ids(image, wals, next_object_id)
    return rebuilt


def _take_pieces(
    image: MetadataImage, wals: Sequence[WalkedWal], rebuilt: Rebuilt
) -> dict[StreamId, list[_Piece]]:
    """Return the WAL pieces by stream; add gaps and totals to `rebuilt`."""
    pieces = _pieces(image, wals, rebuilt)
    chains = {
        stream.stream_id: list(_chain(image, stream, pieces.get(stream.stream_id, []), rebuilt))
        for stream in image.streams
    }
    limits = _limits(image, rebuilt.gaps)
    checkpoints = _Checkpoints(image, wals, chains)
    taken: dict[StreamId, list[_Piece]] = {}
    for stream in image.streams:
        within = _within(stream, chains[stream.stream_id], limits)
        taken[stream.stream_id] = list(checkpoints.trusted(stream, within))
        for piece in taken[stream.stream_id]:
            rebuilt.range_count += 1
            rebuilt.record_count += piece.part.record_count
            rebuilt.size_bytes += piece.part.size_bytes
    return taken


def _create_wals(image: MetadataImage, wals: Sequence[WalkedWal]) -> list[Record]:
    """Return records that create the WALs that are not in the image."""
    records: list[Record] = []
    for wal in wals:
        if image.nodes.wal(wal.writer) is None:
            node_id, node_epoch = wal.writer.node_id, wal.writer.node_epoch
            records.append(WalRecord(node_id, node_epoch, wal.start))
            if wal.store_id != IN_STORE:
                records.append(WalPlaced(node_id, node_epoch, wal.store_id))
    return records


def _commit_slots(
    image: MetadataImage,
    wals: Sequence[WalkedWal],
    taken: Mapping[StreamId, Sequence[_Piece]],
    first_object_id: ObjectId,
    now_ms: Millis,
) -> list[ObjectCommitted]:
    """Return in-place commits for all slots with used pieces, in the order of the WALs.

    Each commit uses one object id, even if the slot is already registered.
    """
    by_slot: dict[str, list[_Piece]] = {}
    for pieces in taken.values():
        for piece in pieces:
            by_slot.setdefault(piece.slot.key, []).append(piece)
    slot_pieces = [by_slot[slot.key] for wal in wals for slot in wal.slots if slot.key in by_slot]
    return [
        _in_place(image, ObjectId(object_id), pieces, now_ms)
        for object_id, pieces in enumerate(slot_pieces, first_object_id)
    ]


def _close_streams(
    image: MetadataImage, taken: Mapping[StreamId, Sequence[_Piece]]
) -> list[StreamClosed]:
    """Return records that close every open stream at its new end."""
    closed: list[StreamClosed] = []
    for stream in image.streams:
        if not stream.opened:
            continue
        pieces = taken[stream.stream_id]
        end = max(pieces[-1].part.end_offset, stream.start_offset) if pieces else stream.next_offset
        closed.append(StreamClosed(stream.stream_id, stream.epoch, end))
    return closed


def _depose_brokers(image: MetadataImage, *, aborts: bool) -> list[Record]:
    """Return records that fence every broker and leave every partition without a leader. Deleted
    topics are included, because they may have been restored after the backup, so their epochs must
    be skipped as well.

    aborts: whether the next leaders abort the open transactions.
    """
    records: list[Record] = [
        msgspec.structs.replace(node, fenced=True) for node in image.nodes if not node.fenced
    ]
    for topic in (*image.topics, *image.frozen_topics.deleted()):
        for partition in map(_leaderless, topic.partitions):
            epoch = partition.leader_epoch if aborts else partition.undeleted_epoch
            records.append(msgspec.structs.replace(partition, undeleted_epoch=epoch))
    return records


def _pieces(
    image: MetadataImage, wals: Sequence[WalkedWal], rebuilt: Rebuilt
) -> dict[StreamId, list[_Piece]]:
    """Return the ranges of the WALs by stream.

    If a stream never existed in the image, it was opened before the backup contained it. This must
    not happen, so its ranges are reported as gaps.
    """
    pieces: dict[StreamId, list[_Piece]] = {}
    for wal in wals:
        for slot in wal.slots:
            for part in slot.ranges:
                if part.stream_id >= image.next_stream_id:
                    what = f"slot {slot.key} contains a stream that is not in the backup"
                    rebuilt.gaps.append(
                        Gap("", -1, part.stream_id, part.start_offset, part.end_offset, what)
                    )
                    continue
                entry = RangeEntry(
                    part.stream_id,
                    part.start_offset,
                    part.end_offset,
                    part.record_count,
                    part.size_bytes,
                    part.max_timestamp_ms,
                )
                pieces.setdefault(part.stream_id, []).append(_Piece(entry, slot, wal.writer))
    return pieces


def _chain(
    image: MetadataImage, stream: StreamState, pieces: list[_Piece], rebuilt: Rebuilt
) -> Iterator[_Piece]:
    """Yield the consecutive pieces from the stream's committed end on.

    A piece may start after the previous end only if everything in between is trimmed.
    """
    end = stream.end_offset
    for piece in sorted(pieces, key=lambda item: (item.part.start_offset, item.part.end_offset)):
        part = piece.part
        if part.end_offset <= stream.end_offset:
            continue
        if part.start_offset < end and end > stream.end_offset:
            rebuilt.gaps.append(
                _gap(
                    image,
                    stream,
                    part.start_offset,
                    min(end, part.end_offset),
                    f"slot {piece.slot.key} contains them a second time",
                )
            )
            return
        if part.start_offset > end and not part.start_offset <= stream.start_offset:
            rebuilt.gaps.append(
                _gap(
                    image,
                    stream,
                    end,
                    part.start_offset,
                    f"the next existing one is in slot {piece.slot.key}",
                )
            )
            return
        if part.start_offset < end:
            part = clipped(part, end)
        end = part.end_offset
        yield _Piece(part, piece.slot, piece.writer)


def _limits(image: MetadataImage, gaps: Iterable[Gap]) -> dict[tuple[UUID, int], Offset]:
    """Return the start of the first WAL gap of each partition.

    Only gaps in data and txn streams count; both streams have the same offsets.
    """
    limits: dict[tuple[UUID, int], Offset] = {}
    for gap in gaps:
        stream = image.streams.get(gap.stream_id)
        if stream is not None and stream.kind != "meta":
            partition = (stream.topic_id, stream.partition)
            limits[partition] = min(limits.get(partition, gap.start_offset), gap.start_offset)
    return limits


def _within(
    stream: StreamState, chain: Sequence[_Piece], limits: Mapping[tuple[UUID, int], Offset]
) -> Sequence[_Piece]:
    """Return the pieces that a stream keeps if its partition ends at a gap.

    Data and transactions after the gap are dropped, and so are checkpoints that refer to them.
    """
    limit = limits.get((stream.topic_id, stream.partition))
    if limit is None:
        return chain
    return (
        []
        if stream.kind == "meta"
        else [piece for piece in chain if piece.part.end_offset <= limit]
    )


class _Checkpoints:
    """Determines which checkpoints after lost or damaged slots are usable: only those of partitions
    with later data in the same WAL. For any other partition, the last data may have been in such a
    slot, and a later checkpoint would include it.
    """

    def __init__(
        self,
        image: MetadataImage,
        wals: Sequence[WalkedWal],
        chains: Mapping[StreamId, Sequence[_Piece]],
    ) -> None:
        self._bad = {wal.writer: [slot.sequence for slot in wal.bad] for wal in wals if wal.bad}
        self._sound: set[tuple[UUID, int, BrokerIncarnation]] = set()
        for stream in image.streams if self._bad else ():
            if stream.kind == "data":
                self._sound |= {
                    (stream.topic_id, stream.partition, piece.writer)
                    for piece in chains[stream.stream_id]
                    if piece.slot.sequence > max(self._bad.get(piece.writer, [piece.slot.sequence]))
                }

    def trusted(self, stream: StreamState, chain: Sequence[_Piece]) -> Iterator[_Piece]:
        """Yield the usable pieces.

        For a meta stream, these are the pieces before the first unusable one; for other streams,
        all pieces.
        """
        for piece in chain:
            is_behind = piece.slot.sequence > min(
                self._bad.get(piece.writer, [piece.slot.sequence])
            )
            if (
                stream.kind == "meta"
                and is_behind
                and (stream.topic_id, stream.partition, piece.writer) not in self._sound
            ):
                return
            yield piece


def _gap(image: MetadataImage, stream: StreamState, start: Offset, end: Offset, what: str) -> Gap:
    return Gap(
        image.topic_name(stream.topic_id),
        stream.partition,
        stream.stream_id,
        start,
        end,
        f"{stream.kind} stream: {what}",
    )


def _in_place(
    image: MetadataImage, object_id: ObjectId, pieces: Sequence[_Piece], now_ms: Millis
) -> ObjectCommitted:
    """Return the commit that registers the slot as an object. A slot that is already registered
    keeps its object.
    """
    slot, writer = pieces[0].slot, pieces[0].writer
    known = image.objects.in_place(slot.key)
    return ObjectCommitted(
        object_id if known is None else known.object_id,
        slot.key,
        ObjectRole.WAL,
        slot.size_bytes,
        now_ms,
        tuple(piece.part for piece in pieces),
        writer.node_id,
        writer.node_epoch,
        slot.sequence,
    )


def _leaderless(partition: PartitionRecord) -> PartitionRecord:
    """Return the partition without a leader, which is elected when the first broker registers.

    A move in progress continues with that election.
    """
    return msgspec.structs.replace(
        partition,
        leader=NO_LEADER.node_id,
        leader_node_epoch=NO_LEADER.node_epoch,
        leader_epoch=StreamEpoch(min(partition.leader_epoch + EPOCHS_SKIPPED, EPOCH_MAX)),
    )


def _ids(image: MetadataImage, wals: Sequence[WalkedWal], next_object_id: ObjectId) -> list[Record]:
    node_epoch = max([image.next_node_epoch, *(wal.writer.node_epoch + 1 for wal in wals)])
    return [
        ProducerIdsAllocated(image.next_producer_id + IDS_SKIPPED),
        IdsReserved(
            StreamId(image.next_stream_id + IDS_SKIPPED),
            next_object_id,
            NodeEpoch(node_epoch + EPOCHS_SKIPPED),
        ),
    ]


def missing_objects(
    image: MetadataImage,
    data_ids: AbstractSet[ObjectId],
    wal_keys: AbstractSet[str],
    *,
    without: AbstractSet[ObjectId] = frozenset(),
) -> list[Gap]:
    """Return the ranges that are lost because their objects are missing in the store. without:
    objects to ignore.
    """
    gone = {
        object_id: key
        for object_id, key in _gone(image, data_ids, wal_keys).items()
        if object_id not in without
    }
    return [
        _gap(
            image,
            stream,
            entry.start_offset,
            entry.end_offset,
            f"object {gone[entry.object_id]} is not there",
        )
        for stream in (image.streams if gone else ())
        for entry in stream.entries
        if entry.object_id in gone
    ]


def gaps_of_lost_stores(
    image: MetadataImage, store_ids: Collection[WalStoreId], *, all_dead: bool = True
) -> tuple[list[Gap], list[Gap]]:
    """Return the gaps caused by the loss of WAL stores, and the intact ranges and retained deleted
    records that are removed because of this. The active controller removes these ranges from the
    index (`controller.managers.lost_ranges`). Where the data in a lost WAL ends is not known.
    all_dead: whether all brokers in the image have stopped.
    """
    gaps: list[Gap] = []
    for wal in image.nodes.running_wals():
        if wal.store_id in store_ids and (all_dead or not image.nodes.is_alive(wal.writer)):
            what = f"records in the WAL of node {wal.writer.node_id} epoch {wal.writer.node_epoch}"
            found = [
                _gap(image, stream, stream.next_offset, END_UNKNOWN, what)
                for stream in map(image.streams.known, _written_by(image, wal.writer))
                if stream.kind == "data"
            ]
            # The backup may not contain the streams that this writer opened.
            if all_dead and not found:
                found = [Gap("", -1, StreamId(-1), Offset(0), END_UNKNOWN, what)]
            gaps += found
    lost = objects_in(image, store_ids)
    gaps += [
        _gap(image, stream, entry.start_offset, entry.end_offset, "in a lost WAL store")
        for stream in (image.streams if lost else ())
        for entry in stream.entries
        if stream.kind == "data" and entry.object_id in lost
    ]
    intact = [
        _gap(
            image,
            trim.stream,
            max(entry.start_offset, trim.stream.start_offset),
            min(entry.end_offset, trim.start_offset),
            "intact, with transactions whose end is lost",
        )
        for trim in trims(image, lost)
        for entry in trim.intact
        if trim.stream.kind == "data"
    ]
    intact += [
        _gap(
            image,
            stream,
            entry.start_offset,
            entry.end_offset,
            "deleted records that could be restored",
        )
        for stream in lost_kept(image, lost)
        for entry in stream.kept_entries
        if stream.kind == "data"
    ]
    return gaps, _joined(intact)


def _written_by(image: MetadataImage, writer: BrokerIncarnation) -> list[StreamId]:
    """Return the streams that this broker has opened, or may have opened after the backup."""
    led = map(image.topics.partition, image.topics.led_by(writer))
    may_open = [item.data_stream_id for item in led if item is not None]
    return sorted({*image.streams.opened_by(writer), *may_open})


def without_missing_kept(
    image: MetadataImage, data_ids: AbstractSet[ObjectId], wal_keys: AbstractSet[str]
) -> list[KeptLogDropped]:
    """Return records that drop the retained deleted records of each partition if any of their
    objects are missing in the store. The records were deleted anyway, so this is not a gap. Apply
    this result before that of `without_missing`.
    """
    gone = _gone(image, data_ids, wal_keys)
    damaged = {
        (stream.topic_id, stream.partition)
        for stream in image.streams.keeping()
        if any(entry.object_id in gone for entry in stream.kept_entries)
    }
    return [
        KeptLogDropped(stream.stream_id, stream.start_offset)
        for stream in image.streams.keeping()
        if (stream.topic_id, stream.partition) in damaged
    ]


def without_missing(
    image: MetadataImage, missing: Sequence[Gap]
) -> tuple[list[StreamTrimmed], list[Gap]]:
    """Return records that remove missing ranges from the index, and the intact ranges that are
    removed with them.

    `missing` is the result of `missing_objects`. A log must not have gaps, so it starts after its
    last missing range; readers of removed offsets receive an out-of-range error. The data and txn
    streams of a partition start at the same offset. Without the txn stream, the aborted
    transactions would be unknown, and their records would be returned as committed.
    """
    starts: dict[StreamId, Offset] = {}
    for gap in missing:
        stream = image.streams.known(gap.stream_id)
        topic = image.topics.by_id(stream.topic_id) or image.frozen_topics.by_id(stream.topic_id)
        together = [gap.stream_id]
        if topic is not None and stream.kind != "meta":
            partition = topic.partitions[stream.partition]
            together = [partition.data_stream_id, partition.txn_stream_id]
        for stream_id in together:
            starts[stream_id] = max(starts.get(stream_id, Offset(0)), gap.end_offset)
    records: list[StreamTrimmed] = []
    given_up: list[Gap] = []
    lost = {(gap.stream_id, gap.start_offset) for gap in missing}
    for stream_id, start in sorted(starts.items()):
        stream = image.streams.known(stream_id)
        if start <= stream.start_offset:
            continue
        records.append(StreamTrimmed(stream_id, start))
        given_up += [
            _gap(
                image,
                stream,
                max(entry.start_offset, stream.start_offset),
                min(entry.end_offset, start),
                "intact, below a missing range",
            )
            for entry in stream.entries
            if entry.start_offset < start and (stream_id, entry.start_offset) not in lost
        ]
    return records, _joined(given_up)


def _joined(gaps: Iterable[Gap]) -> list[Gap]:
    """Join adjacent ranges of a stream."""
    joined: list[Gap] = []
    for gap in gaps:
        last = joined[-1] if joined else None
        if last is not None and (last.stream_id, last.end_offset) == (
            gap.stream_id,
            gap.start_offset,
        ):
            joined[-1] = replace(last, end_offset=gap.end_offset)
        else:
            joined.append(gap)
    return joined


def _gone(
    image: MetadataImage, data_ids: AbstractSet[ObjectId], wal_keys: AbstractSet[str]
) -> dict[ObjectId, str]:
    """Return the objects of these ranges that are missing in the store, with their keys."""
    return {
        state.object_id: state.key
        for state in image.objects
        if state.refs
        and (
            state.key not in wal_keys if state.wal is not None else state.object_id not in data_ids
        )
    }
