"""Track the published state of each partition, and the version in which it was written. The next
version is computed from the ledger and the image.

Capturing takes 1 us per entry and 10 us per partition, and encoding takes 1 us per entry.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from uuid import UUID

from penstock.base.ids import Offset, StreamId
from penstock.controller.active.manifest.changes import ManifestChanges
from penstock.controller.metadata.frozen_topics import FrozenTopic
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.internal_topics import INTERNAL_TOPICS
from penstock.controller.metadata.log_entry import LogEntry
from penstock.controller.metadata.objects import ObjectsImage
from penstock.controller.metadata.streams import StreamState
from penstock.controller.metadata.topics import PartitionKey, PartitionMetadata, TopicState
from penstock.stream.format.manifest.codec import Draft, encode_entries, encode_shard
from penstock.stream.format.manifest.model import (
    INLINE_ENTRIES_MAX,
    PAGE_ENTRIES_MAX,
    PARTITIONS_PER_SHARD,
    Entries,
    PageRef,
    PartitionEntry,
    SectionRef,
    Shard,
    StreamEntry,
    TopicEntry,
)

VERSIONS_MAX = 32
"""Maximum number of manifest objects that a root may refer to.

With a higher limit, each change rewrites fewer bytes, but a new reader must read more objects.
"""

_ENTRIES_PER_PARTITION = 10
"""Capturing a partition takes as long as capturing this many entries, 10 us."""

_ENTRIES_NEVER = Entries.empty(0)
_NOWHERE = SectionRef(0, 0, 0, 0, 0)
_KINDS = frozenset({"data", "txn"})
"""Kinds of streams in the manifest. Meta streams are read only by brokers."""


@dataclass(slots=True)
class _Page:
    """Consecutive entries in a section of their own. `entries` is set until the page is written."""

    ref: PageRef
    entries: Entries | None

    @staticmethod
    def of(entries: Entries) -> "_Page":
        totals = sum(entries.record_counts), sum(entries.sizes_bytes), entries.max_timestamp_ms
        return _Page(
            PageRef(entries.start_offset, entries.end_offset, len(entries), *totals, _NOWHERE),
            entries,
        )

    def write(self, draft: Draft) -> None:
        assert self.entries is not None, "written already"
        ref = self.ref
        section = draft.add(encode_entries(self.entries))
        self.ref = PageRef(
            ref.start_offset,
            ref.end_offset,
            ref.entry_count,
            ref.record_count,
            ref.size_bytes,
            ref.max_timestamp_ms,
            section,
        )
        self.entries = None


@dataclass(slots=True)
class _Stream:
    stream_id: int = -1
    log_start: int = 0
    end_offset: int = 0
    pages: list[_Page] = field(default_factory=list[_Page])
    inline: Entries = _ENTRIES_NEVER

    def entry(self) -> StreamEntry:
        return StreamEntry(
            self.stream_id,
            self.log_start,
            self.end_offset,
            tuple(page.ref for page in self.pages),
            self.inline,
        )

    def drop_pages_of(self, versions: AbstractSet[int]) -> bool:
        """Drop the pages stored in these versions, so that their entries are captured again. Return
        whether any were dropped.
        """
        kept = [page for page in self.pages if page.ref.section.version not in versions]
        if len(kept) == len(self.pages):
            return False
        self.pages = kept
        return True

    def drop_pages_between(self, low: int, high: int) -> None:
        """Drop the pages that overlap [low, high), so that their entries are captured again."""
        self.pages = [
            page
            for page in self.pages
            if page.ref.end_offset <= low or page.ref.start_offset >= high
        ]


@dataclass(slots=True)
class _Partition:
    leader: int = -1
    leader_epoch: int = -1
    data: _Stream = field(default_factory=_Stream)
    txn: _Stream = field(default_factory=_Stream)

    @property
    def streams(self) -> tuple[_Stream, _Stream]:
        return self.data, self.txn

    def entry(self, number: int) -> PartitionEntry:
        return PartitionEntry(
            number, self.leader, self.leader_epoch, self.data.entry(), self.txn.entry()
        )

    def drop_pages_of(self, versions: AbstractSet[int]) -> bool:
        """Like `_Stream.drop_pages_of`, for both streams."""
        dropped = [stream.drop_pages_of(versions) for stream in self.streams]
        return any(dropped)


@dataclass(slots=True)
class _Shard:
    partitions: list[_Partition] = field(default_factory=list[_Partition])
    section: SectionRef = _NOWHERE


@dataclass(slots=True)
class _Topic:
    name: str
    configs: dict[str, str]
    shards: list[_Shard] = field(default_factory=list[_Shard])
    entry: TopicEntry | None = None
    """The topic's entry in the root, or None if it must be rebuilt."""

    def of(self, number: int) -> _Partition:
        return self.shards[number // PARTITIONS_PER_SHARD].partitions[number % PARTITIONS_PER_SHARD]

    def make_room(self, count: int) -> None:
        """Append partitions until there are `count` of them. Partitions are never removed."""
        have = (
            PARTITIONS_PER_SHARD * (len(self.shards) - 1) + len(self.shards[-1].partitions)
            if self.shards
            else 0
        )
        for number in range(have, count):
            if number % PARTITIONS_PER_SHARD == 0:
                self.shards.append(_Shard())
            self.shards[-1].partitions.append(_Partition())


class Ledger:
    """The ledger of one active controller. The first capture includes everything.

    The pages and inline entries of a clean partition are equal to the image at the last capture. A
    written page is kept until its offsets are rewritten or its version is emptied. Each `capture`
    includes at most about `entries_max` entries, to limit the time between two batches of the
    writer. Partitions that change in the meantime become dirty again, so the last call determines
    the published state.
    """

    def __init__(self) -> None:
        self._topics: dict[UUID, _Topic] = {}
        self._dirty: dict[tuple[UUID, int], set[int]] = {}
        """Shards that must be written again, each with the partitions that must be captured for
        it.
        """
        self._to_write: list[tuple[UUID, int]] = []
        self._pages_to_write: list[_Page] = []
        self.changed = False
        """Whether anything differs from the last root."""

    def absorb(self, changes: ManifestChanges, image: MetadataImage, version: int) -> None:
        """Mark changes as dirty. Like `capture`, call this between two batches of the writer.

        `image` contains these changes. `version` is the version being written.
        """
        self.changed |= changes.wals
        if changes.everything:
            self._topics.clear()
            self._dirty.clear()
            self.changed = True
            for topic in (*image.topics, *image.frozen_topics):
                self._add_topic(topic.topic_id, image)
            return
        for topic_id in changes.topic_ids:
            self._add_topic(topic_id, image)
        for name in changes.configured_topics:
            self._configure(name, image)
        for key in changes.partitions:
            self._touch(key, image)
        for stream_id in changes.stream_ids:
            stream = image.streams.get(stream_id)
            if stream is not None and stream.kind in _KINDS:
                self._touch(PartitionKey(stream.topic_id, stream.partition), image)
        for stream_id, (low, high) in changes.rewritten.items():
            self._drop_rewritten(stream_id, low, high, image)
        if self._dirty:
            self._empty_versions(version)

    def capture(self, image: MetadataImage, entries_max: int) -> bool:
        """Capture dirty partitions of the image, with about `entries_max` entries.

        Return True if all dirty partitions are captured. The manifest then represents this moment.
        """
        taken = 0
        while self._dirty:
            (topic_id, index), numbers = next(iter(self._dirty.items()))
            topic, state = self._topics[topic_id], _described(image, topic_id)
            assert state is not None, f"topic {topic_id} was removed, but its shards are dirty"
            while numbers:
                if taken >= entries_max:
                    return False
                number = next(iter(numbers))
                more, whole = self._capture_partition(
                    topic.of(number), state.partitions[number], image, max(1, entries_max - taken)
                )
                taken += more + _ENTRIES_PER_PARTITION
                if whole:
                    numbers.discard(number)
            del self._dirty[topic_id, index]
            self._to_write.append((topic_id, index))
        return True

    def write(self, draft: Draft) -> Iterator[None]:
        """Add the captured data to the draft. Yield after each section, which takes at most a few
        milliseconds.
        """
        pages, self._pages_to_write = self._pages_to_write, []
        for page in pages:
            page.write(draft)
            yield
        shards, self._to_write = self._to_write, []
        for topic_id, index in shards:
            topic = self._topics[topic_id]
            shard, first = topic.shards[index], index * PARTITIONS_PER_SHARD
            entries = tuple(
                partition.entry(number) for number, partition in enumerate(shard.partitions, first)
            )
            shard.section = draft.add(encode_shard(Shard(topic_id, first, entries)))
            topic.entry = None
            yield

    def topic_entries(self) -> tuple[TopicEntry, ...]:
        """Return the topic entries for the root. Call this after all captured data has been
        written.
        """
        return tuple(
            topic.entry or self._entry(topic_id, topic) for topic_id, topic in self._topics.items()
        )

    def versions(self) -> "Counter[int]":
        """Return the number of referenced bytes in the object of each version."""
        found: Counter[int] = Counter()
        for topic in self._topics.values():
            for shard in topic.shards:
                found[shard.section.version] += shard.section.stored_bytes
                for page in (
                    page
                    for partition in shard.partitions
                    for stream in partition.streams
                    for page in stream.pages
                ):
                    found[page.ref.section.version] += page.ref.section.stored_bytes
        del found[_NOWHERE.version]
        return found

    # --- dirty marks ------------------------------------------------------------------------------

    def _add_topic(self, topic_id: UUID, image: MetadataImage) -> None:
        state = _described(image, topic_id)
        self.changed = True
        if state is None:
            if self._topics.pop(topic_id, None) is not None:
                self._dirty = {
                    key: numbers for key, numbers in self._dirty.items() if key[0] != topic_id
                }
            return
        name, configs = (
            (state.full_name, state.configs)
            if isinstance(state, FrozenTopic)
            else (state.name, image.configs.topic(state.name))
        )
        if topic_id not in self._topics or self._topics[topic_id].name != name:
            self._topics[topic_id] = _Topic(name, dict(configs))
            for number in range(len(state.partitions)):
                self._touch(PartitionKey(topic_id, number), image)

    def _drop_rewritten(
        self, stream_id: StreamId, low: Offset, high: Offset, image: MetadataImage
    ) -> None:
        """Drop the pages in [low, high), whose objects were replaced."""
        stream = image.streams.get(stream_id)
        if stream is not None and stream.kind in _KINDS and stream.topic_id in self._topics:
            partition = self._topics[stream.topic_id].of(stream.partition)
            rewritten = partition.data if stream.kind == "data" else partition.txn
            rewritten.drop_pages_between(low, high)

    def _configure(self, name: str, image: MetadataImage) -> None:
        state = image.topics.by_name(name)
        topic = None if state is None else self._topics.get(state.topic_id)
        if topic is not None:
            topic.configs, topic.entry = dict(image.configs.topic(name)), None
            self.changed = True

    def _touch(self, key: PartitionKey, image: MetadataImage) -> None:
        state = _described(image, key.topic_id)
        if state is None:
            return
        if key.topic_id not in self._topics:
            self._add_topic(key.topic_id, image)
            return
        topic = self._topics[key.topic_id]
        topic.make_room(len(state.partitions))
        self.changed = True
        self._dirty.setdefault((key.topic_id, key.partition // PARTITIONS_PER_SHARD), set()).add(
            key.partition
        )

    def _empty_versions(self, version: int) -> None:
        """Mark the contents of the smallest versions as dirty, so that the root refers to fewer
        versions.

        On average, this rewrites 1 / VERSIONS_MAX of all bytes.
        """
        emptied = self._versions_to_empty(version)
        if not emptied:
            return
        for topic_id, topic in self._topics.items():
            for index, shard in enumerate(topic.shards):
                first = index * PARTITIONS_PER_SHARD
                dirty = [
                    number
                    for number, partition in enumerate(shard.partitions, first)
                    if partition.drop_pages_of(emptied)
                ]
                if dirty or shard.section.version in emptied:
                    self._dirty.setdefault((topic_id, index), set()).update(dirty)

    def _versions_to_empty(self, version: int) -> AbstractSet[int]:
        """Return the smallest versions, so that VERSIONS_MAX remain without them.

        `version` is the version being written. It is counted, but not emptied.
        """
        sizes = self.versions()
        del sizes[version]
        surplus = len(sizes) + 1 - VERSIONS_MAX
        if surplus <= 0:
            return frozenset()
        smallest_first = sorted(sizes, key=lambda stored: sizes[stored])
        return frozenset(smallest_first[:surplus])

    # --- capturing --------------------------------------------------------------------------------

    def _capture_partition(
        self,
        partition: _Partition,
        state: PartitionMetadata,
        image: MetadataImage,
        entries_max: int,
    ) -> tuple[int, bool]:
        """Capture one partition. Return the number of captured entries, and whether the capture is
        complete.
        """
        taken = 0
        for captured, stream_id in (
            (partition.data, state.data_stream_id),
            (partition.txn, state.txn_stream_id),
        ):
            stream = image.streams.get(stream_id)
            assert stream is not None, (
                f"partition {state.topic_id}-{state.partition} has no stream {stream_id}"
            )
            more, whole = self._capture_stream(captured, stream, image, entries_max - taken)
            taken += more
            if not whole:
                return taken, False
        partition.leader, partition.leader_epoch = state.leader, state.leader_epoch
        return taken, True

    def _capture_stream(
        self, captured: _Stream, stream: StreamState, image: MetadataImage, entries_max: int
    ) -> tuple[int, bool]:
        """Capture one stream. The return value is that of `_capture_partition`.

        Valid pages are kept, and the entries outside of them are captured.
        """
        entries = stream.entries
        kept = [page for page in captured.pages if page.ref.end_offset > stream.start_offset]
        taken = 0
        pages: list[_Page] = []
        at = 0
        for index, page in enumerate(kept):
            low, high = _index(entries, page.ref.start_offset), _index(entries, page.ref.end_offset)
            if at < low and pages and pages[-1].ref.entry_count + low - at <= PAGE_ENTRIES_MAX // 2:
                at = _index(entries, pages.pop().ref.start_offset)
            for cut in _cuts(at, low):
                if taken >= entries_max:
                    captured.pages = pages + kept[index:]
                    return taken, False
                pages.append(self._new_page(entries[cut[0] : cut[1]], image.objects))
                taken += cut[1] - cut[0]
            pages.append(page)
            at = high
        while len(entries) - at > INLINE_ENTRIES_MAX:
            if (
                pages
                and at - _index(entries, pages[-1].ref.start_offset) + len(entries) - at
                <= PAGE_ENTRIES_MAX
            ):
                at = _index(entries, pages.pop().ref.start_offset)
            if taken >= entries_max:
                captured.pages = pages
                return taken, False
            end = min(at + PAGE_ENTRIES_MAX, len(entries))
            pages.append(self._new_page(entries[at:end], image.objects))
            taken += end - at
            at = end
        captured.inline = (
            _entries(entries[at:], image.objects)
            if at < len(entries)
            else Entries.empty(stream.end_offset)
        )
        captured.pages = pages
        captured.stream_id, captured.log_start, captured.end_offset = (
            stream.stream_id,
            stream.start_offset,
            stream.end_offset,
        )
        return taken + len(entries) - at, True

    def _new_page(self, entries: list[LogEntry], objects: ObjectsImage) -> _Page:
        page = _Page.of(_entries(entries, objects))
        self._pages_to_write.append(page)
        return page

    @staticmethod
    def _entry(topic_id: UUID, topic: _Topic) -> TopicEntry:
        count = sum(len(shard.partitions) for shard in topic.shards)
        topic.entry = TopicEntry(
            topic.name,
            topic_id,
            count,
            tuple(shard.section for shard in topic.shards),
            topic.configs,
            topic.name in INTERNAL_TOPICS,
        )
        return topic.entry


def _described(image: MetadataImage, topic_id: UUID) -> TopicState | FrozenTopic | None:
    """Return the topic or snapshot topic, or None for a deleted topic, which is not in the
    manifest.
    """
    topic = image.topics.by_id(topic_id)
    if topic is not None:
        return topic
    frozen = image.frozen_topics.by_id(topic_id)
    return None if frozen is None or frozen.is_deleted else frozen


def _entries(found: list[LogEntry], objects: ObjectsImage) -> Entries:
    """Copy the entries into columns. The copy has no references to the image."""
    bounds = array("q", [entry.start_offset for entry in found])
    bounds.append(found[-1].end_offset)
    states = [state for entry in found if (state := objects.get(entry.object_id)) is not None]
    assert len(states) == len(found), "a log refers to an object that does not exist"
    return Entries(
        bounds,
        array("q", [entry.record_count for entry in found]),
        array("q", [entry.size_bytes for entry in found]),
        array("q", [entry.max_timestamp_ms for entry in found]),
        array("q", [state.size_bytes for state in states]),
        array("q", [entry.stored_stream_id for entry in found]),
        bytes([state.role for state in states]),
        [state.key for state in states],
    )


def _index(entries: list[LogEntry], offset: int) -> int:
    """Return the index of the first entry that starts at or after `offset`."""
    return bisect_left(entries, offset, key=_start)


def _start(entry: LogEntry) -> int:
    return entry.start_offset


def _cuts(low: int, high: int) -> list[tuple[int, int]]:
    """Split [low, high) into pages of about the same size."""
    count = -(-(high - low) // PAGE_ENTRIES_MAX)
    return [
        (low + (high - low) * i // count, low + (high - low) * (i + 1) // count)
        for i in range(count)
    ]
