"""Convert an image to records. Applying them to an empty image results in an equal image, including
the id counters.

The records describe only the current state, so their number depends on the image, not on its
history.
"""

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from itertools import islice

from penstock.base.ids import Millis, ObjectId, WalSequence
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.nodes import WalState
from penstock.controller.metadata.objects import ObjectPhase, ObjectState
from penstock.controller.metadata.records import (
    AclRecord,
    ClusterRecord,
    ConfigRecord,
    FrozenTopicRecord,
    IdsReserved,
    KeyValueRecord,
    NodeRecord,
    ObjectCommitted,
    ObjectDestroyed,
    ObjectPrepared,
    PartitionRecord,
    ProducerIdsAllocated,
    RangeEntry,
    Record,
    StreamClosed,
    StreamCreated,
    StreamOpened,
    StreamTrimmed,
    TopicRecord,
    WalEnded,
    WalPlaced,
    WalRecord,
    WalStoreDrain,
    WalStoreLost,
    WalStoreRecord,
)
from penstock.controller.metadata.streams import StreamState
from penstock.stream.ports import IN_STORE

RANGES_PER_RECORD_MAX = 1_000


@dataclass(frozen=True, slots=True)
class ImageCopy:
    """The contents of an image at one offset. All states are copied or immutable, so the records
    can be created in chunks while the image changes.

    The copy takes about 0.5 us per stream and object.
    """

    firsts: list[Record]
    """Records that occur only once."""
    nodes: list[NodeRecord]
    wal_stores: list[WalStoreRecord]
    wals: list[WalState]
    topics: list[tuple[TopicRecord | FrozenTopicRecord, list[PartitionRecord]]]
    streams: list[StreamState]
    objects: list[ObjectState]
    lasts: list[Record]
    """Records for configs, features, ACLs, users, delegation tokens, quotas, keys, and drained or
    lost WAL stores.
    """

    @staticmethod
    def of(image: MetadataImage) -> "ImageCopy":
        """Copy the image."""
        firsts: list[Record] = [
            ClusterRecord(image.cluster_id),
            IdsReserved(image.next_stream_id, image.next_object_id, image.next_node_epoch),
            ProducerIdsAllocated(image.next_producer_id),
        ]
        streams = list(map(copy, image.streams))
        for stream in streams:
            # Copy empty lists as well, because the image appends to them.
            stream.entries = stream.entries.copy()
        topics: list[tuple[TopicRecord | FrozenTopicRecord, list[PartitionRecord]]] = [
            (TopicRecord(topic.topic_id, topic.name), topic.partitions.copy())
            for topic in image.topics
        ]
        topics += [(topic.record(), topic.partitions.copy()) for topic in image.frozen_topics]
        lasts: list[Record] = [ConfigRecord(*config) for config in image.configs.items()]
        lasts += image.features.records()
        lasts += map(AclRecord, image.acls)
        lasts += image.scram.records()
        lasts += image.delegation_tokens
        lasts += image.quotas.records()
        lasts += [KeyValueRecord(key, data) for key, data in image.kv.items()]
        # These must follow the WALs, because a WAL cannot be placed in an ended store.
        lasts += [WalStoreDrain(*drain) for drain in image.nodes.drains()]
        lasts += [WalStoreLost(store.store_id) for store in image.nodes.lost_wal_stores()]
        return ImageCopy(
            firsts,
            list(image.nodes),
            list(image.nodes.all_wal_stores()),
            list(map(copy, image.nodes.wals())),
            topics,
            streams,
            list(map(copy, image.objects)),
            lasts,
        )

    def records(self) -> Iterator[Record]:
        """Yield all records lazily."""
        yield from self.firsts
        yield from self.nodes
        yield from self.wal_stores
        for wal in self.wals:
            yield from _wal(wal)
        for topic, partitions in self.topics:
            yield topic
            yield from partitions
        ranges: dict[ObjectId, list[RangeEntry]] = {}
        for stream in self.streams:
            yield from _stream(stream)
            _record_ranges(stream, ranges)
        for state in self.objects:
            yield from _object(state, ranges.pop(state.object_id, []))
        yield from self.lasts

    def chunks(self, records_max: int) -> Iterator[list[Record]]:
        """Yield all records in lists of at most `records_max`."""
        records = self.records()
        while chunk := list(islice(records, records_max)):
            yield chunk


def _wal(wal: WalState) -> Iterator[Record]:
    node_id, node_epoch = wal.writer.node_id, wal.writer.node_epoch
    if wal.store_id != IN_STORE or wal.left:
        yield WalRecord(node_id, node_epoch, WalSequence(0))
        yield WalPlaced(node_id, node_epoch, wal.store_id, wal.left)
    yield WalRecord(
        node_id, node_epoch, wal.committed, wal.recoverer.node_id, wal.recoverer.node_epoch
    )
    if wal.end is not None:
        yield WalEnded(node_id, node_epoch, wal.end)


def _stream(stream: StreamState) -> Iterator[Record]:
    """Yield the records of one stream.

    They must precede the objects, whose ranges fill the index. If the start of the log is already
    set, ranges below it are not indexed.
    """
    yield StreamCreated(
        stream.stream_id, stream.topic_id, stream.partition, stream.kind, stream.cleaned_end
    )
    opened = StreamOpened(stream.stream_id, stream.epoch, stream.node_id, stream.node_epoch)
    if stream.epoch >= 0:
        yield opened
    if stream.end_offset or stream.epoch >= 0:  # a fork has a log even before it is opened
        yield StreamClosed(stream.stream_id, stream.epoch, stream.end_offset)
    if stream.opened:
        yield opened
    if stream.kept_offset:
        yield StreamTrimmed(stream.stream_id, stream.kept_offset)
    for trim in stream.kept.trims if stream.kept is not None else ():
        yield StreamTrimmed(stream.stream_id, trim.end_offset, trim.grace)


def _record_ranges(stream: StreamState, ranges: dict[ObjectId, list[RangeEntry]]) -> None:
    """Add the stream's entries to `ranges`, grouped by object."""
    for entry in (*stream.kept_entries, *stream.entries):
        part = RangeEntry(
            stream.stream_id,
            entry.start_offset,
            entry.end_offset,
            entry.record_count,
            entry.size_bytes,
            entry.max_timestamp_ms,
            entry.stored_stream_id,
        )
        ranges.setdefault(entry.object_id, []).append(part)


def _object(state: ObjectState, ranges: list[RangeEntry]) -> Iterator[Record]:
    destroyed = state.phase == ObjectPhase.DESTROYED
    before_ms = Millis(0) if destroyed else state.since_ms
    if not state.was_committed:
        yield ObjectPrepared(state.object_id, state.key, state.ttl_ms, state.since)
    else:
        for at in range(0, max(len(ranges), 1), RANGES_PER_RECORD_MAX):
            yield _committed(state, before_ms, tuple(ranges[at : at + RANGES_PER_RECORD_MAX]))
    if destroyed:
        yield ObjectDestroyed(state.object_id, state.since_ms, state.since)


def _committed(
    state: ObjectState, committed_ms: Millis, ranges: tuple[RangeEntry, ...]
) -> ObjectCommitted:
    plain = ObjectCommitted(
        state.object_id, state.key, state.role, state.size_bytes, committed_ms, ranges
    )
    if state.wal is None:
        return plain
    return ObjectCommitted(
        plain.object_id,
        plain.key,
        plain.role,
        plain.size_bytes,
        committed_ms,
        ranges,
        state.wal.node_id,
        state.wal.node_epoch,
        state.wal_sequence,
    )
