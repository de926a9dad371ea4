"""Streams: their owners, and the sorted log indexes that map offsets to objects."""

from bisect import bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import msgspec

from penstock.base.ids import (
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamEpoch,
    StreamId,
)
from penstock.controller.metadata.errors import broken
from penstock.controller.metadata.kept_log import TRIMS_MAX, KeptLog, KeptTrim
from penstock.controller.metadata.log_entry import LogEntry
from penstock.controller.metadata.records import (
    KeptLogDropped,
    RangeEntry,
    StreamClosed,
    StreamCreated,
    StreamForked,
    StreamOpened,
    StreamTrimmed,
)
from penstock.stream.ports import OWN_STREAM, BrokerIncarnation

_NEVER_OPENED = StreamEpoch(-1)
_NOBODY = BrokerIncarnation(NodeId(-1), NodeEpoch(-1))
_ORIGIN = Offset(0)


def _start(entry: LogEntry) -> Offset:
    return entry.start_offset


def _forked(entry: LogEntry, source_id: StreamId, end_offset: Offset) -> LogEntry:
    """Return the entry with which a fork refers to an entry of the stream `source_id`. If the fork
    refers to only a part of the entry, the record count is rounded down, so that it never equals
    the number of offsets by accident.
    """
    end = min(entry.end_offset, end_offset)
    part, whole = end - entry.start_offset, entry.end_offset - entry.start_offset
    stored = entry.stored_stream_id
    return LogEntry(
        entry.start_offset,
        end,
        entry.object_id,
        entry.record_count * part // whole,
        -(-entry.size_bytes * part // whole),
        entry.max_timestamp_ms,
        source_id if stored == OWN_STREAM else stored,
    )


def is_cleaned_beyond(stream: "StreamState", offset: Offset) -> bool:
    """Return whether log compaction may have removed records below `offset` that later records at
    or above `offset` supersede. A fork at this offset would contain neither the removed records nor
    the later ones.
    """
    return stream.start_offset < offset < stream.cleaned_end


def _released(before: Sequence[LogEntry], after: Sequence[LogEntry]) -> list[LogEntry]:
    """Return the entries of `before` that are not in `after`."""
    left = {(entry.object_id, entry.start_offset) for entry in after}
    return [entry for entry in before if (entry.object_id, entry.start_offset) not in left]


class StreamState(msgspec.Struct, gc=False):
    """The state of one stream. Its entries are contiguous: the first one contains `start_offset`,
    the last one ends at `end_offset`. There are no entries if everything below `end_offset` is
    trimmed. `end_offset` (the committed end) never decreases. `start_offset` may be higher while
    the trimmed data is still in a WAL.

    `kind` is "meta", "data" or "txn". An `epoch` of -1 means that the stream was never opened.
    `node_id` and `node_epoch` identify the owner, or the last owner if the stream is closed.
    """

    stream_id: StreamId
    topic_id: UUID
    partition: int
    kind: str
    epoch: StreamEpoch = _NEVER_OPENED
    opened: bool = False
    node_id: NodeId = _NOBODY.node_id
    node_epoch: NodeEpoch = _NOBODY.node_epoch
    start_offset: Offset = _ORIGIN
    end_offset: Offset = _ORIGIN
    entries: list[LogEntry] = msgspec.field(default_factory=list[LogEntry])
    kept: KeptLog | None = None
    """Retained records that DeleteRecords removed and that can be restored."""
    cleaned_end: Offset = _ORIGIN
    """Log compaction has removed records below this offset that later records below this offset
    supersede.
    """

    @property
    def owner(self) -> BrokerIncarnation:
        return BrokerIncarnation(self.node_id, self.node_epoch)

    @property
    def kept_offset(self) -> Offset:
        """Return the lowest offset at which a fork can start: the start of the retained records if
        there are any, otherwise the start of the log.
        """
        return self.start_offset if self.kept is None else self.kept.start_offset

    @property
    def kept_entries(self) -> Sequence[LogEntry]:
        """Return the entries below the log start that can be restored."""
        return () if self.kept is None else self.kept.entries

    @property
    def keep_ms(self) -> int:
        """Return how long the retained records may be retained, or 0 if there are none. The last of
        `TRIMS_MAX` trims may be merged with later ones.
        """
        trims = () if self.kept is None else self.kept.trims
        longest_ms = max((trim.grace.keep_ms for trim in trims), default=0)
        return 2 * longest_ms if len(trims) == TRIMS_MAX else longest_ms

    @property
    def next_offset(self) -> Offset:
        """Return the offset at which an owner without uncommitted data continues.

        This is the committed end, or the start if it is higher.
        """
        return max(self.end_offset, self.start_offset)

    def index_of(self, offset: Offset) -> int:
        """Return the index of the last entry that starts at or below `offset`, or 0 if all start
        above it.
        """
        return max(bisect_right(self.entries, offset, key=_start) - 1, 0)

    def find(self, start: Offset, end: Offset, limit: int) -> list[LogEntry]:
        """Return at most `limit` entries that intersect [start, end), in order.

        This takes O(log n + size of the result).
        """
        found: list[LogEntry] = []
        if start >= end:
            return found
        entries = self.entries
        for index in range(self.index_of(start), len(entries)):
            entry = entries[index]
            if entry.start_offset >= end or len(found) == limit:
                break
            if entry.end_offset > start:
                found.append(entry)
        return found


@dataclass(slots=True)
class StreamsImage:
    _streams: dict[StreamId, StreamState] = field(default_factory=dict[StreamId, StreamState])
    _opened_by: dict[BrokerIncarnation, set[StreamId]] = field(
        default_factory=dict[BrokerIncarnation, set[StreamId]]
    )
    _keeping: set[StreamId] = field(default_factory=set[StreamId])
    _forks: set[StreamId] = field(default_factory=set[StreamId], compare=False)
    """All streams with entries that other streams have stored. It may contain streams whose last
    such entry was removed.
    """

    def __iter__(self) -> Iterator[StreamState]:
        return iter(self._streams.values())

    def __len__(self) -> int:
        return len(self._streams)

    def get(self, stream_id: StreamId) -> StreamState | None:
        return self._streams.get(stream_id)

    def find(self, stream_id: StreamId, start: Offset, end: Offset, limit: int) -> list[LogEntry]:
        state = self._streams.get(stream_id)
        return [] if state is None else state.find(start, end, limit)

    def has_entry(self, stream_id: StreamId, start: Offset, object_id: ObjectId) -> bool:
        """Return whether the log contains the offset in this object. Retained deleted records are
        not included.
        """
        found = self.find(stream_id, start, Offset(start + 1), 1)
        return bool(found) and found[0].object_id == object_id

    def has_opened(self, node: BrokerIncarnation) -> bool:
        """Return whether this broker incarnation owns open streams. This takes O(1)."""
        return node in self._opened_by

    def opened_by(self, node: BrokerIncarnation) -> frozenset[StreamId]:
        """Return the open streams of this incarnation, which may be dead."""
        return frozenset(self._opened_by.get(node, ()))

    def keeping(self) -> Iterator[StreamState]:
        """Yield the streams with retained deleted records."""
        return map(self.known, self._keeping)

    def sharing(self) -> list[StreamState]:
        """Return the streams that may refer to ranges of other streams or to retained deleted
        records.
        """
        return [self.known(stream_id) for stream_id in sorted(self._forks | self._keeping)]

    def create(self, record: StreamCreated) -> None:
        if record.stream_id in self._streams:
            raise broken(f"stream {record.stream_id} exists")
        self._streams[record.stream_id] = StreamState(
            record.stream_id, record.topic_id, record.partition, record.kind
        )
        self._streams[record.stream_id].cleaned_end = record.cleaned_end

    def fork(self, record: StreamForked) -> list[LogEntry]:
        """Copy the log of the source below the fork's end, and return the entries of the copy.

        If the end lies inside the last entry, the counts and bytes of this entry are reduced in
        proportion.
        """
        state, source = self.known(record.stream_id), self.known(record.source_id)
        if state.entries or state.end_offset or record.end_offset > source.end_offset:
            raise broken(
                f"stream {record.stream_id} cannot begin as a fork of {record.source_id} at"
                f" {record.end_offset}: it ends at {state.end_offset}, the source at"
                f" {source.end_offset}"
            )
        start = source.kept_offset if record.with_kept else source.start_offset
        entries = source.find(start, record.end_offset, limit=len(source.entries))
        if record.with_kept:
            known_from = entries[0].start_offset if entries else record.end_offset
            kept = (entry for entry in source.kept_entries if entry.start_offset < known_from)
            entries = [*kept, *entries]
        state.start_offset = min(start, record.end_offset)
        state.end_offset = record.end_offset
        state.cleaned_end = min(source.cleaned_end, record.end_offset)
        state.entries = [_forked(entry, source.stream_id, record.end_offset) for entry in entries]
        self._forks.add(record.stream_id)
        return state.entries

    def open(self, record: StreamOpened) -> None:
        state = self.known(record.stream_id)
        if record.epoch < state.epoch:
            raise broken(
                f"stream {record.stream_id} goes back from epoch {state.epoch} to {record.epoch}"
            )
        self._unown(state)
        state.epoch = record.epoch
        state.node_id = record.node_id
        state.node_epoch = record.node_epoch
        state.opened = True
        self._opened_by.setdefault(state.owner, set()).add(record.stream_id)

    def close(self, record: StreamClosed) -> None:
        state = self.known(record.stream_id)
        self._unown(state)
        state.opened = False
        state.end_offset = max(state.end_offset, record.end_offset)

    def remove(self, stream_id: StreamId) -> list[LogEntry]:
        """Remove the stream. Return its entries, whose references the caller must release."""
        state = self.known(stream_id)
        self._unown(state)
        self._keeping.discard(stream_id)
        self._forks.discard(stream_id)
        del self._streams[stream_id]
        return [*state.kept_entries, *state.entries]

    def trim(self, record: StreamTrimmed) -> list[LogEntry]:
        """Advance the start of the stream. Return the entries whose references the caller must
        release. With a grace period in the record, the removed records are retained. Otherwise,
        they are dropped together with all records retained earlier.
        """
        state, start = self.known(record.stream_id), record.start_offset
        if start < state.start_offset:
            raise broken(
                f"stream {record.stream_id}: start goes back from {state.start_offset} to {start}"
            )
        count = next(
            (i for i, entry in enumerate(state.entries) if entry.end_offset > start),
            len(state.entries),
        )
        cut, before = state.entries[:count], state.kept_entries
        del state.entries[:count]
        if record.grace is None:
            self._keep(state, None)
        else:
            kept = state.kept or KeptLog(state.start_offset, ())
            self._keep(state, kept.trimmed(KeptTrim(start, record.grace), cut))
        state.start_offset = start
        return _released([*before, *cut], state.kept_entries)

    def drop_kept(self, record: KeptLogDropped) -> list[LogEntry]:
        """Drop retained records that were removed by trims up to an offset. Return the entries
        whose references the caller must release.
        """
        state = self.known(record.stream_id)
        if state.kept is None:
            raise broken(f"stream {record.stream_id} retains nothing below its start")
        before = state.kept.entries
        self._keep(state, state.kept.without(record.end_offset))
        return _released(before, state.kept_entries)

    def add(self, object_id: ObjectId, part: RangeEntry) -> bool:
        """Add one range to the index and advance the end of the stream to its end.

        Return False if the range was not indexed: either the stream was removed, or the whole range
        is below the start and not retained.
        """
        state = self._streams.get(part.stream_id)
        if state is None:
            return False
        state.end_offset = max(state.end_offset, part.end_offset)
        if part.end_offset <= state.kept_offset:
            return False
        entry = LogEntry(
            part.start_offset,
            part.end_offset,
            object_id,
            part.record_count,
            part.size_bytes,
            part.max_timestamp_ms,
            part.stored_stream_id,
        )
        if part.stored_stream_id != OWN_STREAM:
            self._forks.add(part.stream_id)
        if state.kept is not None and part.end_offset <= state.start_offset:
            state.kept.load(entry)
        elif not state.entries or state.entries[-1].start_offset < entry.start_offset:
            state.entries.append(entry)
        else:
            insort(state.entries, entry, key=_start)
        return True

    def record_cleaned(self, stream_id: StreamId, cleaned_end: Offset) -> None:
        state = self.known(stream_id)
        state.cleaned_end = max(state.cleaned_end, cleaned_end)

    def drop(
        self, stream_id: StreamId, object_ids: frozenset[ObjectId], start_offset: Offset
    ) -> list[LogEntry]:
        """Remove the entries of these objects from one stream's index and return the entries.

        They are found in O(log n + dropped entries) if they are adjacent and the first one contains
        `start_offset`: a single request may replace ranges of a long log 1,000 times.
        """
        state = self.known(stream_id)
        first = last = state.index_of(start_offset)
        while last < len(state.entries) and state.entries[last].object_id in object_ids:
            last += 1
        dropped = state.entries[first:last]
        if len(dropped) == len(object_ids):
            del state.entries[first:last]
            return dropped
        dropped = [entry for entry in state.entries if entry.object_id in object_ids]
        state.entries = [entry for entry in state.entries if entry.object_id not in object_ids]
        return dropped

    def known(self, stream_id: StreamId) -> StreamState:
        state = self._streams.get(stream_id)
        if state is None:
            raise broken(f"stream {stream_id} does not exist")
        return state

    def _keep(self, state: StreamState, kept: KeptLog | None) -> None:
        state.kept = kept
        if kept is None:
            self._keeping.discard(state.stream_id)
        else:
            self._keeping.add(state.stream_id)

    def _unown(self, state: StreamState) -> None:
        if not state.opened:
            return
        streams = self._opened_by[state.owner]
        streams.discard(state.stream_id)
        if not streams:
            del self._opened_by[state.owner]
