"""Cache of recent batches of all streams: tail reads do not access the store, and uploads do not
need GETs.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from msgspec import Struct

from penstock.base.buffers import Buffer
from penstock.base.ids import (
    Millis,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.protocol.batch.header import batch_span
from penstock.stream.config import StreamConfig
from penstock.stream.errors import NotContiguous

ENTRY_OVERHEAD_BYTES = 600
"""Memory of one entry in addition to its payload: a measured 525 bytes (the entry, its ints, the
memoryview, list slots), plus the buffer object.
"""

READ_ENTRIES_MAX: Final = 8_192
"""Maximum number of entries returned by one read. Encoding a response with this many entries (69
bytes or more each) blocks the event loop for 5 to 14 ms.
"""

_HEAD_SLACK_COUNT = 256
_JOIN_DIVISOR = 8
"""Neighboring committed blocks are merged up to this fraction of `block_bytes_max`."""


class AppendEntry(Struct, gc=False):
    """One or more whole batches of one stream with their final offsets. `payload` is never copied
    and must not change. See `BlockEntry` for the other fields.
    """

    stream_id: StreamId
    base_offset: Offset
    end_offset: Offset
    record_count: int
    min_timestamp_ms: Millis
    max_timestamp_ms: Millis
    uncompressed_bytes: int
    payload: Buffer


@dataclass(slots=True)
class BlockRun:
    """The entries of one stream in one block. A commit clears `entries`, but `_StreamLog` still
    references them.
    """

    entries: list[AppendEntry]
    entry_count: int
    payload_bytes: int
    end_offset: Offset

    @property
    def size_bytes(self) -> int:
        return self.payload_bytes + self.entry_count * ENTRY_OVERHEAD_BYTES


@dataclass(slots=True)
class CacheSegment:
    """A block: all entries between two cuts. Closing a stream in place removes it from the block
    (`LogCache.drop`), even during the upload.
    """

    opened_at: float
    end_sequence: WalSequence
    """The slot after the last one with entries in this block."""
    runs: dict[StreamId, BlockRun] = field(default_factory=dict[StreamId, BlockRun])
    slot_count: int = 0
    size_bytes: int = 0
    committed: bool = False


class _StreamLog:
    """The entries of one stream, oldest first from `head`. Entries before `head` are evicted."""

    __slots__ = ("entries", "head", "starts")

    def __init__(self) -> None:
        self.starts: list[Offset] = []
        self.entries: list[AppendEntry] = []
        self.head = 0

    def extend(self, stream_id: StreamId, entries: Sequence[AppendEntry]) -> None:
        end = self.entries[-1].end_offset if self.entries else entries[0].base_offset
        for entry in entries:
            if entry.base_offset != end:
                raise NotContiguous(stream_id, end, entry.base_offset)
            end = entry.end_offset
        self.starts.extend([entry.base_offset for entry in entries])
        self.entries.extend(entries)

    def evict(self, count: int) -> bool:
        """Drop the oldest entries. Return whether none are left."""
        self.entries[self.head : self.head + count] = [_EVICTED] * count
        self.head += count
        if self.head > _HEAD_SLACK_COUNT and self.head * 2 > len(self.entries):
            del self.starts[: self.head]
            del self.entries[: self.head]
            self.head = 0
        return self.head == len(self.entries)


_EVICTED = AppendEntry(StreamId(-1), Offset(0), Offset(0), 0, Millis(-1), Millis(-1), 0, b"")


class LogCache:
    """Recent entries by stream and block. Not thread-safe.

    The active block receives new entries, archived blocks are being uploaded, and committed blocks
    are kept for reads. Only committed blocks are evicted, oldest first. Entries are added in WAL
    order once they are durable, without gaps within a stream. `size_bytes` includes the overhead of
    every entry.

    Every method is synchronous and O(streams touched), except reads, which are O(log entries).
    """

    def __init__(self, config: StreamConfig) -> None:
        self._config = config
        self._streams: dict[StreamId, _StreamLog] = {}
        self._blocks: deque[CacheSegment] = deque()
        """Oldest first: committed blocks, then archived ones. Excludes the active block."""
        self._active: CacheSegment | None = None
        self.size_bytes = 0
        self.uncommitted_bytes = 0

    @property
    def active(self) -> CacheSegment | None:
        return self._active

    @property
    def oldest_uncommitted_at(self) -> float | None:
        """Creation time of the oldest uncommitted block; None if all are committed. This takes
        O(blocks).
        """
        waiting = next((block for block in self._blocks if not block.committed), self._active)
        return None if waiting is None else waiting.opened_at

    def add(
        self, runs: Mapping[StreamId, Sequence[AppendEntry]], end_sequence: WalSequence, now: float
    ) -> None:
        """Add the entries of a durable WAL slot. If this raises NotContiguous, nothing was added
        for the offending stream.
        """
        active = self._active
        if active is None:
            active = self._active = CacheSegment(now, end_sequence)
        active.end_sequence = end_sequence
        active.slot_count += 1
        added = 0
        for stream_id, entries in runs.items():
            log = self._streams.get(stream_id)
            if log is None:
                log = self._streams[stream_id] = _StreamLog()
            log.extend(stream_id, entries)
            payload_bytes = sum([len(entry.payload) for entry in entries])
            run = active.runs.get(stream_id)
            if run is None:
                run = active.runs[stream_id] = BlockRun([], 0, 0, Offset(0))
            run.entries.extend(entries)
            run.entry_count += len(entries)
            run.payload_bytes += payload_bytes
            run.end_offset = entries[-1].end_offset
            added += payload_bytes + len(entries) * ENTRY_OVERHEAD_BYTES
        active.size_bytes += added
        self.size_bytes += added
        self.uncommitted_bytes += added
        self._evict()

    def archive_due(self, now: float) -> bool:
        """Return whether the active block is due for upload: it is large or old, contains many
        streams, or spans many slots.
        """
        active, config = self._active, self._config
        if active is None:
            return False
        if (
            active.slot_count >= config.block_slots_max
            and len(active.runs) <= active.slot_count * config.block_streams_per_slot
        ):
            age_max_ms = config.block_slots_age_ms
        else:
            age_max_ms = config.block_age_max_ms
        return (
            active.size_bytes >= config.block_bytes_max
            or len(active.runs) >= config.block_streams_max
            or now - active.opened_at >= min(age_max_ms, config.block_age_max_ms) / 1000
        )

    def buffered_bytes(self, stream_id: StreamId) -> int:
        """Return the size of this stream's entries in the active block."""
        run = self._active.runs.get(stream_id) if self._active is not None else None
        return 0 if run is None else run.payload_bytes

    def archive(self) -> CacheSegment | None:
        """Freeze the active block and return it for upload, or None if there is none."""
        block, self._active = self._active, None
        if block is not None:
            self._blocks.append(block)
        return block

    def mark_committed(self, block: CacheSegment) -> None:
        """Mark the block as committed, so that it may be evicted. Call this in the order of
        `archive`.
        """
        index = next(i for i, candidate in enumerate(self._blocks) if not candidate.committed)
        assert self._blocks[index] is block, "blocks are committed in WAL order"
        block.committed = True
        self.uncommitted_bytes -= block.size_bytes
        for run in block.runs.values():
            run.entries = []
        if (
            index > 0
            and self._blocks[index - 1].size_bytes + block.size_bytes
            <= self._config.block_bytes_max // _JOIN_DIVISOR
        ):
            _join_blocks(self._blocks[index - 1], block)
            del self._blocks[index]
        self._evict()

    def drop(self, stream_ids: Iterable[StreamId]) -> None:
        """Drop streams that this broker no longer owns, even from blocks that are being
        uploaded.
        """
        blocks = list(self._blocks) if self._active is None else [*self._blocks, self._active]
        for stream_id in stream_ids:
            if self._streams.pop(stream_id, None) is None:
                continue
            for block in blocks:
                run = block.runs.pop(stream_id, None)
                if run is None:
                    continue
                block.size_bytes -= run.size_bytes
                self.size_bytes -= run.size_bytes
                if not block.committed:
                    self.uncommitted_bytes -= run.size_bytes

    def forget(self, stream_id: StreamId, end: Offset) -> None:
        """Drop the committed entries of a stream that begin below `end`, because log compaction has
        removed records there. This takes O(blocks + dropped entries).
        """
        log = self._streams.get(stream_id)
        for block in self._blocks:
            run = block.runs.get(stream_id)
            if log is None or not block.committed:
                return
            if run is None:
                continue
            stop = log.head + run.entry_count
            count = bisect_left(log.starts, end, log.head, stop) - log.head
            gone = log.entries[log.head : log.head + count]
            payload_bytes = sum([len(entry.payload) for entry in gone])
            run.entry_count -= count
            run.payload_bytes -= payload_bytes
            released = payload_bytes + count * ENTRY_OVERHEAD_BYTES
            block.size_bytes -= released
            self.size_bytes -= released
            if log.evict(count):
                del self._streams[stream_id]
            if run.entry_count:
                return
            del block.runs[stream_id]

    def start_of(self, stream_id: StreamId) -> Offset | None:
        """Return the first cached offset of the stream. Earlier offsets are read from objects."""
        log = self._streams.get(stream_id)
        return None if log is None else log.starts[log.head]

    def read(
        self, stream_id: StreamId, offset: int, end_offset: int, max_bytes: int
    ) -> list[Buffer] | None:
        """Read whole batches, starting with the one that contains `offset`, up to `end_offset`: at
        least one, then as many as fit into `max_bytes`, in at most READ_ENTRIES_MAX entries.

        Returns None if `offset` lies before the cached entries or the stream is not cached, and []
        if `offset` is at or after the end.
        """
        log = self._streams.get(stream_id)
        if log is None:
            return None
        at = bisect_right(log.starts, offset, log.head) - 1
        if at < log.head:
            return None
        found: list[Buffer] = []
        left_bytes = max_bytes
        entries = log.entries
        last = min(len(entries), at + READ_ENTRIES_MAX)
        while at < last:
            entry = entries[at]
            if entry.base_offset >= end_offset:
                break
            payload, complete = entry.payload, True
            if (
                entry.base_offset < offset
                or entry.end_offset > end_offset
                or len(payload) > left_bytes
            ):
                payload, complete = _cut(
                    payload, offset, end_offset, left_bytes, at_least_one=not found
                )
            if payload:
                found.append(payload)
                left_bytes -= len(payload)
            if not complete:
                break
            at += 1
        return found

    def uncommitted_bytes_of(self, stream_id: StreamId, committed_offset: Offset) -> int:
        """Return the size of the stream after `committed_offset`, without overhead. This takes
        O(uncommitted blocks).

        committed_offset: the committed end in the metadata, which may be ahead of `mark_committed`.
        """
        size_bytes = 0
        for block in (self._active, *reversed(self._blocks)):
            if block is None:
                continue
            if block.committed:
                break
            run = block.runs.get(stream_id)
            if run is not None and run.end_offset > committed_offset:
                size_bytes += run.payload_bytes
        return size_bytes

    def entries_after(self, stream_id: StreamId, offset: int) -> list[AppendEntry]:
        """Return the entries that end after `offset`, for timestamp lookups."""
        log = self._streams.get(stream_id)
        if log is None:
            return []
        return log.entries[max(log.head, bisect_right(log.starts, offset, log.head) - 1) :]

    def entries_of(self, stream_id: StreamId, start: int, end: int) -> list[AppendEntry] | None:
        """Return the entries that cover [start, end) exactly; None if any entry is missing or
        crosses a boundary.
        """
        log = self._streams.get(stream_id)
        if log is None or start >= end:
            return None
        at = bisect_left(log.starts, start, log.head)
        stop = bisect_left(log.starts, end, at)
        if at == stop or log.starts[at] != start or log.entries[stop - 1].end_offset != end:
            return None
        return log.entries[at:stop]

    def check_invariants(self) -> None:
        blocks = list(self._blocks) if self._active is None else [*self._blocks, self._active]
        assert self.size_bytes == sum(block.size_bytes for block in blocks), "bytes do not add up"
        assert self.uncommitted_bytes == sum(
            block.size_bytes for block in blocks if not block.committed
        ), "uncommitted bytes differ"
        committed = [block.committed for block in blocks]
        assert committed == sorted(committed, reverse=True), "blocks were committed out of order"
        counts: dict[StreamId, int] = {}
        for block in blocks:
            assert block.size_bytes == sum(run.size_bytes for run in block.runs.values()), (
                "a block's bytes do not add up"
            )
            for stream_id, run in block.runs.items():
                counts[stream_id] = counts.get(stream_id, 0) + run.entry_count
        assert counts == {
            stream_id: len(log.entries) - log.head for stream_id, log in self._streams.items()
        }, "entries differ"
        for log in self._streams.values():
            live = log.entries[log.head :]
            assert all(a.end_offset == b.base_offset for a, b in pairwise(live)), (
                "a gap in a stream"
            )

    def _evict(self) -> None:
        while (
            self.size_bytes > self._config.log_cache_bytes_max
            and self._blocks
            and self._blocks[0].committed
        ):
            block = self._blocks.popleft()
            self.size_bytes -= block.size_bytes
            for stream_id, run in block.runs.items():
                if self._streams[stream_id].evict(run.entry_count):
                    del self._streams[stream_id]


def _join_blocks(older: CacheSegment, newer: CacheSegment) -> None:
    """Merge two small committed blocks. Otherwise, an idle broker would collect thousands of
    them.
    """
    for stream_id, run in newer.runs.items():
        known = older.runs.get(stream_id)
        if known is None:
            older.runs[stream_id] = run
        else:
            known.entry_count += run.entry_count
            known.payload_bytes += run.payload_bytes
            known.end_offset = run.end_offset
    older.size_bytes += newer.size_bytes
    older.end_sequence = newer.end_sequence


def _cut(
    payload: Buffer, offset: int, end_offset: int, max_bytes: int, *, at_least_one: bool
) -> tuple[Buffer, bool]:
    """Return the batches of one entry that are within the limits of a read, and whether they reach
    the end of the entry.

    Most entries are a single batch, which needs only one header to be parsed.
    """
    start: int | None = None
    at = 0
    while at < len(payload):
        span = batch_span(payload, at)
        if span.base_offset >= end_offset:
            break
        if start is None and span.next_offset > offset:
            start = at
        if (
            start is not None
            and at + span.size_bytes - start > max_bytes
            and not (at_least_one and at == start)
        ):
            break
        at += span.size_bytes
    return (b"" if start is None else memoryview(payload)[start:at]), at == len(payload)
