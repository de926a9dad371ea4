"""An image as records: replaying them into a fresh image gives an equal one, id counters included.

Invariant: only live facts are written; the size follows the image, not its history. A record holds at most `RANGES_PER_RECORD_MAX` ranges.
Must not store anything: where records go is the caller's business. Source: KRaft `ImageWriter`.
"""

from collections.abc import Iterable, Iterator
from itertools import islice

from controller.metadata.image import MetadataImage
from controller.metadata.nodes import WalState
from controller.metadata.objects import ObjectPhase, ObjectState
from controller.metadata.records import (
    ClusterRecord,
    ConfigRecord,
    IdsReserved,
    KeyValueRecord,
    ObjectCommitted,
    ObjectDestroyed,
    ObjectPrepared,
    ProducerIdsAllocated,
    RangeEntry,
    Record,
    StreamClosed,
    StreamCreated,
    StreamOpened,
    StreamTrimmed,
    TopicRecord,
    WalEnded,
    WalRecord,
)
from controller.metadata.streams import StreamState
from stream.ids import Millis, ObjectId

RANGES_PER_RECORD_MAX = 1_000


def snapshot_records(image: MetadataImage) -> Iterator[Record]:
    """All of it, lazily; the image must not change meanwhile."""
    yield ClusterRecord(image.cluster_id)
    yield IdsReserved(image.next_stream_id, image.next_object_id, image.next_node_epoch)
    yield ProducerIdsAllocated(image.next_producer_id)
    yield from image.nodes
    for wal in image.nodes.wals():
        yield from _wal(wal)
    for topic in image.topics:
        yield TopicRecord(topic.topic_id, topic.name)
        yield from topic.partitions
    for stream in image.streams:
        yield from _stream(stream)
    yield from _objects(image)
    for resource_type, resource_name, name, value in image.configs.items():
        yield ConfigRecord(resource_type, resource_name, name, value)
    for key, data in image.kv.items():
        yield KeyValueRecord(key, data)


def snapshot_chunks(image: MetadataImage, records_max: int) -> Iterator[list[Record]]:
    """The same in lists of at most `records_max` records."""
    return _chunks(snapshot_records(image), records_max)


def _chunks(records: Iterable[Record], size: int) -> Iterator[list[Record]]:
    iterator = iter(records)
    while chunk := list(islice(iterator, size)):
        yield chunk


def _wal(wal: WalState) -> Iterator[Record]:
    node_id, node_epoch = wal.writer.node_id, wal.writer.node_epoch
    yield WalRecord(node_id, node_epoch, wal.committed, wal.recoverer.node_id, wal.recoverer.node_epoch)
    if wal.end is not None:
        yield WalEnded(node_id, node_epoch, wal.end)


def _stream(stream: StreamState) -> Iterator[Record]:
    """Before the objects, whose ranges then fill the index: a range below the start would not be indexed."""
    yield StreamCreated(stream.stream_id, stream.topic_id, stream.partition, stream.kind)
    if stream.epoch < 0:
        return
    opened = StreamOpened(stream.stream_id, stream.epoch, stream.node_id, stream.node_epoch)
    yield opened
    yield StreamClosed(stream.stream_id, stream.epoch, stream.end_offset)
    if stream.opened:
        yield opened
    if stream.start_offset:
        yield StreamTrimmed(stream.stream_id, stream.start_offset)


def _objects(image: MetadataImage) -> Iterator[Record]:
    ranges: dict[ObjectId, list[RangeEntry]] = {}
    for stream in image.streams:
        for entry in stream.entries:
            part = RangeEntry(
                stream.stream_id, entry.start_offset, entry.end_offset, entry.record_count, entry.size_bytes, entry.max_timestamp_ms
            )
            ranges.setdefault(entry.object_id, []).append(part)
    for state in image.objects:
        yield from _object(state, ranges.get(state.object_id, []))


def _object(state: ObjectState, ranges: list[RangeEntry]) -> Iterator[Record]:
    destroyed = state.phase == ObjectPhase.DESTROYED
    before_ms = Millis(0) if destroyed else state.since_ms
    if not state.was_committed:
        yield ObjectPrepared(state.object_id, state.key, before_ms)
    else:
        for at in range(0, max(len(ranges), 1), RANGES_PER_RECORD_MAX):
            yield _committed(state, before_ms, tuple(ranges[at : at + RANGES_PER_RECORD_MAX]))
    if destroyed:
        yield ObjectDestroyed(state.object_id, state.since_ms)


def _committed(state: ObjectState, committed_ms: Millis, ranges: tuple[RangeEntry, ...]) -> ObjectCommitted:
    plain = ObjectCommitted(state.object_id, state.key, state.role, state.size_bytes, committed_ms, ranges)
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
