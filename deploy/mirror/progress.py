"""Progress records of a mirror with translated offsets.

They are written to a compacted topic of the target, in the transactions that append the records.
Each segment of a partition's map is a separate record: every offset can be translated for as long
as the topic exists. Invariant: fields are only ever added at the end, with defaults. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from penstock.deploy.mirror.translation import OffsetMap, Segment
from penstock.protocol.batch.records import Record
from penstock.protocol.client.brokers import Partition

_BEGUN: Final = -2
_FINISHED: Final = -1
"""Replaces the partition in the keys of records which state that the mirror of a topic has begun or
finished.
"""


class SegmentKey(msgspec.Struct, frozen=True):
    topic: str
    id: str
    partition: int
    source: int


class SegmentValue(msgspec.Struct, frozen=True):
    target: int
    count: int
    next_source: int
    target_id: str = ""
    """In a record which states that the mirror of a topic has begun: the topic's id at the
    target.
    """


@dataclass(slots=True)
class Progress:
    """The progress: the map of each partition, the ids of each topic at the source and the target,
    and the topics whose mirror has ended. The progress of former topics of the same name, which
    were deleted at the source or the target, is omitted.
    """

    maps: dict[Partition, OffsetMap] = field(default_factory=dict[Partition, OffsetMap])
    topic_ids: dict[str, str] = field(default_factory=dict[str, str])
    target_ids: dict[str, str] = field(default_factory=dict[str, str])
    """Ids are empty if the target does not use them, or if an older version began the mirror."""
    finished: set[str] = field(default_factory=set[str])

    def map_of(self, key: Partition) -> OffsetMap:
        return self.maps.setdefault(key, OffsetMap())

    def begin(self, topic: str, topic_id: str, target_id: str) -> None:
        """Discard the progress of former topics of this name."""
        for key in [key for key in self.maps if key[0] == topic]:
            del self.maps[key]
        self.finished.discard(topic)
        self.topic_ids[topic], self.target_ids[topic] = topic_id, target_id

    def has_begun(self, topic: str, topic_id: str, target_id: str) -> bool:
        """Return whether the progress belongs to the topic with these ids."""
        return self.topic_ids.get(topic) == topic_id and self.is_written_to(topic, target_id)

    def is_written_to(self, topic: str, target_id: str) -> bool:
        """Return whether the progress belongs to the topic with this id in the target cluster."""
        return topic in self.topic_ids and self.target_ids.get(topic, "") in {"", target_id}


def segment_record(key: Partition, topic_id: str, segment: Segment, now_ms: int) -> Record:
    return _record(
        SegmentKey(key[0], topic_id, key[1], segment.source),
        SegmentValue(segment.target, segment.count, segment.next_source),
        now_ms,
    )


def finished_record(topic: str, topic_id: str, now_ms: int) -> Record:
    return _record(SegmentKey(topic, topic_id, _FINISHED, 0), SegmentValue(0, 0, 0), now_ms)


def begun_record(topic: str, topic_id: str, target_id: str, now_ms: int) -> Record:
    return _record(SegmentKey(topic, topic_id, _BEGUN, 0), SegmentValue(0, 0, 0, target_id), now_ms)


def _record(key: SegmentKey, value: SegmentValue, now_ms: int) -> Record:
    return Record(0, now_ms, msgspec.json.encode(key), msgspec.json.encode(value))


def read_progress(records: Iterable[Record]) -> Progress:
    """Return the progress in the records of a progress topic. Raises ValueError if a mirror did not
    write them.
    """
    found = Progress()
    segments: dict[str, dict[int, dict[int, Segment]]] = {}
    for record in records:
        key, value = _decoded(record)
        if key.partition == _BEGUN or key.id != found.topic_ids.get(key.topic):
            found.begin(key.topic, key.id, value.target_id)
            segments[key.topic] = {}
        if key.partition == _FINISHED:
            found.finished.add(key.topic)
        if key.partition < 0:
            continue
        segments[key.topic].setdefault(key.partition, {})[key.source] = Segment(
            key.source, value.target, value.count, value.next_source
        )
    for topic, partitions in segments.items():
        for index, items in partitions.items():
            found.maps[topic, index] = OffsetMap(items[source] for source in sorted(items))
    return found


def _decoded(record: Record) -> tuple[SegmentKey, SegmentValue]:
    try:
        return (
            msgspec.json.decode(record.key or b"", type=SegmentKey),
            msgspec.json.decode(record.value or b"", type=SegmentValue),
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(
            f"the record at offset {record.offset} is not from a mirror: {error}"
        ) from None
