"""Remove ranges in lost WAL stores from the log index. See docs/design/lost-wal-stores.md.

Empty batches replace lost data, because a missing offset always indicates damage. A txn stream is
trimmed up to its last lost event. For client topics, the data stream is trimmed with it, because
its aborted transactions are unknown. A meta stream is trimmed up to its last lost checkpoint.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from penstock.base.ids import Millis, ObjectId, Offset, StreamId, WalStoreId
from penstock.controller.api.messages import CommitObject, ReplacedItem, Status
from penstock.controller.managers.log_changes import LogChanges, prepared
from penstock.controller.managers.log_replacement import NewRange, replace_ranges
from penstock.controller.managers.result import Refused
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.internal_topics import INTERNAL_TOPICS
from penstock.controller.metadata.log_entry import LogEntry
from penstock.controller.metadata.records import (
    KeptLogDropped,
    Record,
    StreamTrimmed,
)
from penstock.controller.metadata.streams import StreamState
from penstock.stream.format.keys import parse_wal_key

PARTS_MAX: Final = 500
"""Maximum number of replaced ranges or trimmed streams per transaction."""
ENTRIES_MAX: Final = 10_000
"""Maximum number of log entries that a transaction replaces: about 0.2 MB of metadata records."""


class LostPart(NamedTuple):
    """Adjacent lost ranges of one data stream."""

    stream_id: StreamId
    entries: tuple[LogEntry, ...]

    @property
    def start_offset(self) -> Offset:
        return self.entries[0].start_offset

    @property
    def end_offset(self) -> Offset:
        return self.entries[-1].end_offset

    @property
    def max_timestamp_ms(self) -> Millis:
        """The latest timestamp of the lost ranges, so that retention treats later records as before
        the loss.
        """
        return Millis(max(entry.max_timestamp_ms for entry in self.entries))


@dataclass(frozen=True, slots=True)
class Trim:
    """A stream to be trimmed to `start_offset`. intact: removed ranges that are not lost."""

    stream: StreamState
    start_offset: Offset
    intact: tuple[LogEntry, ...]


def objects_in(image: MetadataImage, store_ids: Collection[WalStoreId]) -> set[ObjectId]:
    """Return the referenced objects in these WAL stores. This takes O(objects committed in
    place).
    """
    return {
        state.object_id
        for state in image.objects.placed()
        if state.refs
        and (slot := parse_wal_key(state.key)) is not None
        and slot.wal_store in store_ids
    }


def trims(image: MetadataImage, lost: Collection[ObjectId]) -> Iterator[Trim]:
    """Yield the streams that must be trimmed because these objects are lost. This takes O(log
    entries).

    The data of internal topics is kept, because coordinators load all records and markers and never
    read the txn stream (`broker.coordination.log`).
    """
    starts: dict[StreamId, Offset] = {}
    for stream in image.streams if lost else ():
        if stream.kind == "data":
            continue
        start = max((entry.end_offset for entry in _lost(stream, lost)), default=None)
        if start is None:
            continue
        starts[stream.stream_id] = start
        if stream.kind == "txn" and (data_id := _client_data(image, stream)) is not None:
            starts[data_id] = start
    for stream_id, start in sorted(starts.items()):
        found = image.streams.get(stream_id)
        if found is not None and start > found.start_offset:
            intact = [
                entry
                for entry in found.entries
                if entry.start_offset < start and entry.object_id not in lost
            ]
            yield Trim(found, start, tuple(intact))


def lost_parts(
    image: MetadataImage, lost: Collection[ObjectId], trimmed: Mapping[StreamId, Offset]
) -> Iterator[LostPart]:
    """Yield the lost parts of data streams that are not trimmed. This takes O(log entries)."""
    for stream in image.streams if lost else ():
        if stream.kind != "data":
            continue
        part: list[LogEntry] = []
        for entry in _lost(stream, lost):
            if entry.end_offset <= trimmed.get(stream.stream_id, stream.start_offset):
                continue
            if part and part[-1].end_offset != entry.start_offset:
                yield LostPart(stream.stream_id, tuple(part))
                part = []
            part.append(entry)
        if part:
            yield LostPart(stream.stream_id, tuple(part))


def lost_kept(image: MetadataImage, lost: Collection[ObjectId]) -> list[StreamState]:
    """Return the streams whose retained deleted records must be dropped: all streams of a partition
    that lost some of these records.
    """
    keeping = list(image.streams.keeping()) if lost else []
    damaged = {
        (stream.topic_id, stream.partition)
        for stream in keeping
        if any(entry.object_id in lost for entry in stream.kept_entries)
    }
    return [stream for stream in keeping if (stream.topic_id, stream.partition) in damaged]


def trim_lost(image: MetadataImage, store_ids: Collection[WalStoreId]) -> list[Record]:
    """Return records that trim streams and drop lost retained records, which were deleted anyway.
    Each call returns a limited number; call again while it returns records.
    """
    lost = objects_in(image, store_ids)
    if not lost:
        return []
    dropped: list[Record] = [
        KeptLogDropped(stream.stream_id, stream.start_offset) for stream in lost_kept(image, lost)
    ]
    if dropped:
        return dropped[:PARTS_MAX]
    # Trim data streams first: without the txn stream, the transactions in them would be unknown.
    found = sorted(trims(image, lost), key=lambda item: item.stream.kind)
    return [StreamTrimmed(item.stream.stream_id, item.start_offset) for item in found[:PARTS_MAX]]


def parts_to_replace(image: MetadataImage, store_ids: Collection[WalStoreId]) -> list[LostPart]:
    """Return lost parts, at most one per stream, because an object contains only one range per
    stream. They have at most ENTRIES_MAX entries; the last part may be shortened.
    """
    lost = objects_in(image, store_ids)
    first: dict[StreamId, LostPart] = {}
    room = ENTRIES_MAX
    for part in islice(lost_parts(image, lost, {}), PARTS_MAX):
        if part.stream_id not in first:
            first[part.stream_id] = part._replace(entries=part.entries[:room])
            room -= len(first[part.stream_id].entries)
        if not room:
            break
    return [first[stream_id] for stream_id in sorted(first)]


def replace_lost(
    image: MetadataImage, item: CommitObject, parts: Sequence[LostPart], now_ms: Millis
) -> list[Record]:
    """Return records that replace lost parts with the ranges of an object with empty batches. Skips
    parts that have changed in the meantime. Raises Refused if all parts have changed, so that the
    caller waits before it writes another object. Also raises Refused if the object is no longer
    prepared.
    """
    assert item.object_id is not None, "the object is prepared"
    if prepared(image, item, item.object_id).was_committed:
        return []
    changes = LogChanges(image, now_ms)
    changes.commit_prepared(item, item.object_id, ())
    by_stream = {part.stream_id: part for part in item.ranges}
    refused = Refused(Status.INVALID_REQUEST, "the lost parts were trimmed or deleted meanwhile")
    replaced: list[Record] = []
    for part in parts:
        stream = image.streams.get(part.stream_id)
        if stream is None:
            continue
        sources = [
            ReplacedItem(
                stream_id=part.stream_id,
                object_id=entry.object_id,
                start_offset=entry.start_offset,
                end_offset=entry.end_offset,
            )
            for entry in part.entries
        ]
        new = [NewRange(item.object_id, by_stream[part.stream_id])]
        try:
            replaced += replace_ranges(stream, sources, new, Offset(0))
        except Refused as error:
            refused = error
    if not replaced:
        raise refused
    return changes.records + replaced


def _lost(stream: StreamState, lost: Collection[ObjectId]) -> list[LogEntry]:
    return [entry for entry in stream.entries if entry.object_id in lost]


def _client_data(image: MetadataImage, stream: StreamState) -> StreamId | None:
    """Return the data stream of the same partition, or None if the topic is internal or unknown."""
    topic = image.topics.by_id(stream.topic_id) or image.frozen_topics.by_id(stream.topic_id)
    if topic is None or topic.name in INTERNAL_TOPICS:
        return None
    return topic.partitions[stream.partition].data_stream_id
