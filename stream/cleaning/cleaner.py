"""Clean one data stream: map the keys of its dirty part, then replace ranges with rewritten ones
without superseded records. Modeled on Kafka's `LogCleaner.Cleaner`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Protocol

from penstock.base.clock import WallClock
from penstock.base.ids import Millis, Offset, StreamId, WalSequence
from penstock.base.yielding import in_turns
from penstock.objectstore.ports import ObjectStore
from penstock.protocol.batch.compression import DECOMPRESSED_BYTES_MAX
from penstock.protocol.batch.control import decode_marker
from penstock.protocol.batch.errors import BatchCorrupt, BatchTooLarge
from penstock.protocol.batch.header import BatchHeader, iter_headers
from penstock.stream.cleaning.batches import (
    PlainRecords,
    RecordPosition,
    RecordSpan,
    all_records,
    checked_records,
    fillers,
    filter_records,
    is_mapped_by_offset,
    map_keys,
    may_keep_records,
    plain_records,
    with_records,
)
from penstock.stream.cleaning.dense_ranges import DenseParts
from penstock.stream.cleaning.key_map import KeyMap
from penstock.stream.cleaning.transactions import CleanedTransactions
from penstock.stream.compaction.compactor import OwnedStream
from penstock.stream.compaction.plan import Compaction, Output, check_outputs, replaced_by
from penstock.stream.compaction.rewrite import everything, read_entries
from penstock.stream.errors import ObjectCorrupt, StreamFenced
from penstock.stream.format.builder import Entry, RunEntry, StreamRun, build_steps
from penstock.stream.format.layout import NO_SEQUENCE
from penstock.stream.format.transaction_log import AbortedTransaction
from penstock.stream.ports import (
    BrokerIncarnation,
    CommitObjects,
    NewObject,
    ObjectRange,
    ObjectRole,
    PreparedObject,
)
from penstock.stream.read.object_reader import ObjectReader

_RECORDS_PER_SLICE: Final = 1_000
"""Records processed between two yields to the event loop: at most about 1 ms."""

_SLICE_S: Final = 0.001
_INT64_MAX: Final = (1 << 63) - 1

_Entries = list[tuple[ObjectRange, Entry]]
_IsNeeded = Callable[[Offset, Offset], bool]
"""Returns whether the block with these offsets must be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerConfig:
    """The limits of cleaning in one process."""

    key_map_bytes_max: int = 128 << 20
    bytes_per_s_max: int = 32 << 20
    """Maximum number of bytes read and written per second; 0 for no limit."""

    group_bytes_max: int = 8 << 20
    """Size of the ranges that are replaced together. Joining the body of a PUT blocks the event
    loop for 0.3 ms per MiB.
    """

    page_ranges: int = 256
    decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX
    """Maximum decompressed size of one batch. A larger batch ends the pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningTask:
    """One pass over one log.

    start: the log start. dirty_from: no key occurs twice below it. end: records from this offset on
    are not changed. young_from_ms: the pass ends before a batch that may have a newer timestamp
    (`min.compaction.lag.ms`); None if there is no such limit. tombstones_kept_ms:
    `delete.retention.ms`.
    """

    stream_id: StreamId
    start: Offset
    dirty_from: Offset
    end: Offset
    young_from_ms: Millis | None
    tombstones_kept_ms: int
    aborted: Sequence[AbortedTransaction] = ()


@dataclass(slots=True)
class CleaningReport:
    """The result of a pass. clean_end: no key occurs twice below it. clean_bytes: the size of the
    log below it. is_map_full: the pass ended before `CleaningTask.end`, because the key map was
    full.
    """

    clean_end: Offset
    clean_bytes: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    removed_records: int = 0
    kept_records: int = 0
    is_map_full: bool = False
    took_s: float = 0.0


class CleaningMetadata(Protocol):
    """The part of `stream.ports.StreamMetadata` that a cleaner uses."""

    async def prepare_objects(self, count: int) -> list[PreparedObject]: ...

    async def commit(self, commit: CommitObjects) -> None: ...

    def objects(
        self, stream_id: StreamId, start_offset: Offset, end_offset: Offset, limit: int
    ) -> list[ObjectRange]: ...


class LogCleaner:
    """Cleans one log at a time.

    Ranges are replaced from the start of the log to its end. Each replacement is committed before
    the next range is read, so a tombstone is never removed before the records that it deletes. A
    replacement covers the same offsets as before. Only offsets below `CleaningTask.end` change:
    everything below it must be below the last stable offset and covered by a producer checkpoint. A
    failed pass leaves behind only replaced ranges and prepared objects, which expire; the next pass
    starts from the beginning. A damaged object ends the pass; nothing is skipped.

    Memory: the key map, twice `group_bytes_max`, and the remaining records of one range. Cost: one
    read of the dirty part, one of the blocks with remaining records, and one write of changed
    ranges.

    owned: returns the streams that are open here. turn: held during a replacement, because object
    compaction uses the same ranges. forget: called after a replacement, to drop cached data of the
    stream below an offset. Otherwise, a reader could receive an old value from the cache after the
    tombstone was removed.
    """

    def __init__(
        self,
        store: ObjectStore,
        metadata: CleaningMetadata,
        reader: ObjectReader,
        writer: BrokerIncarnation,
        *,
        owned: Callable[[], Iterable[OwnedStream]],
        turn: asyncio.Lock,
        forget: Callable[[StreamId, Offset], None],
        now_ms: WallClock,
        config: CleanerConfig | None = None,
    ) -> None:
        self._store = store
        self._metadata = metadata
        self._reader = reader
        self._writer = writer
        self._owned = owned
        self._turn = turn
        self._forget = forget
        self._now_ms = now_ms
        self._config = config or CleanerConfig()
        self._pace = _Pace(self._config.bytes_per_s_max)

    def reconfigure(self, config: CleanerConfig) -> None:
        """Change the limits. The byte rate limit also applies to a running pass."""
        self._config = config
        self._pace.change(config.bytes_per_s_max)

    async def clean(self, task: CleaningTask) -> CleaningReport:
        """Run one pass. Raises ObjectCorrupt, NotContiguous, BatchTooLarge, StreamFenced, and
        errors of the store and the controller.
        """
        began = self._pace.begin()
        keys, dense = KeyMap(self._config.key_map_bytes_max, task.dirty_from), DenseParts()
        transactions = CleanedTransactions(task.aborted)
        report = CleaningReport(task.dirty_from)
        report.clean_end = await self._map_keys(task, keys, dense, transactions, report)
        for _ in keys.complete():
            await self._pace.turn()
        if report.clean_end <= task.start:
            return report
        rewriter = _Rewriter(
            keys,
            dense,
            transactions,
            report,
            self._pace,
            now_ms=self._now_ms(),
            tombstones_kept_ms=task.tombstones_kept_ms,
            decompressed_bytes_max=self._config.decompressed_bytes_max,
        )
        at = task.start
        while at < report.clean_end:
            async with self._turn:
                at = await self._exchange(task, at, rewriter, report)
        report.took_s = asyncio.get_running_loop().time() - began
        return report

    # --- reading ----------------------------------------------------------------------------------

    async def _map_keys(
        self,
        task: CleaningTask,
        keys: KeyMap,
        dense: DenseParts,
        transactions: CleanedTransactions,
        report: CleaningReport,
    ) -> Offset:
        """Map the keys of the dirty part. Return the offset at which the map is full or a record is
        too young, at most `task.end`.
        """
        at = task.dirty_from
        while at < task.end:
            group = self._group(task.stream_id, at, task.end)
            for reading in await self._reads(group, report):
                for batch, header, source in _batches(await reading):
                    if header.next_offset <= at:
                        continue
                    if await self._is_behind(header, source, task):
                        return at
                    if not (
                        header.is_control
                        or not header.record_count
                        or transactions.is_aborted(header)
                    ):
                        try:
                            is_mapped = await self._map_batch(batch, header, keys)
                        except BatchCorrupt as error:
                            raise _unusable(source, header, error) from None
                        if not is_mapped:
                            report.is_map_full = True
                            return at
                        keys.limit()
                        if is_mapped_by_offset(header, keys) and not header.is_transactional:
                            dense.add(at, Offset(header.next_offset), header.partition_leader_epoch)
                    at = Offset(header.next_offset)
                    await self._pace.handled(header.size_bytes)
        return at

    async def _is_behind(
        self, header: BatchHeader, source: ObjectRange, task: CleaningTask
    ) -> bool:
        """Return whether the pass ends before this batch. If its timestamp is unknown, the creation
        time of its object is used, as Kafka uses the age of the segment.
        """
        if task.young_from_ms is None or header.next_offset > task.end:
            return header.next_offset > task.end
        newest_ms = header.index_timestamp_ms
        if newest_ms < 0 and header.record_count:
            newest_ms = (await self._reader.index(source)).header.created_ms
        return newest_ms > task.young_from_ms

    async def _map_batch(self, batch: memoryview, header: BatchHeader, keys: KeyMap) -> bool:
        """Add the keys of a batch. Return False if the map is full. The map may then contain some
        keys of the batch; older records with these keys may still be removed, because the batch is
        durable.
        """
        plain = plain_records(batch, header, self._config.decompressed_bytes_max)
        done = RecordPosition()
        while left := header.record_count - done.number:
            before = done
            done = map_keys(plain, header, done, min(left, _RECORDS_PER_SLICE), keys)
            if done == before:
                return False
            await self._pace.turn()
        return True

    def _group(self, stream_id: StreamId, start: Offset, end: Offset) -> tuple[ObjectRange, ...]:
        """Return the next ranges to read together, of which there is at least one."""
        ranges = self._metadata.objects(stream_id, start, end, self._config.page_ranges)
        if not ranges:
            raise StreamFenced(stream_id, f"no object contains offset {start}")
        size_bytes = count = 0
        for source in ranges:
            size_bytes += source.range.size_bytes
            if count and size_bytes > self._config.group_bytes_max:
                break
            count += 1
        return tuple(ranges[:count])

    async def _reads(
        self,
        group: Sequence[ObjectRange],
        report: CleaningReport,
        is_needed: _IsNeeded = everything,
    ) -> Iterator[Awaitable[_Entries]]:
        """Return the reads of the ranges, to be awaited in order. A large range is read in parts,
        so that its entries are released early and parsed while they are in the CPU cache.
        """
        start, end = group[0].range.start_offset, group[-1].range.end_offset
        borders, part_bytes = [start], 0
        # Only a group of a single range may exceed the limit.
        for piece in await self._reader.pieces(group[0]) if len(group) == 1 else ():
            part_bytes += piece.block.size_bytes
            if part_bytes > self._config.group_bytes_max and piece.start_offset > start:
                borders.append(piece.start_offset)
                part_bytes = piece.block.size_bytes
        return (
            self._read(group, report, _inside(*part, is_needed))
            for part in pairwise((*borders, end))
        )

    async def _read(
        self, group: Sequence[ObjectRange], report: CleaningReport, is_needed: _IsNeeded
    ) -> _Entries:
        found = await read_entries(self._reader, [Compaction(tuple(group))], is_needed=is_needed)
        entries = [
            (source, entry)
            for source in group
            for entry in found.get(
                (source.key, source.range.stream_id, source.range.start_offset), ()
            )
        ]
        report.read_bytes += sum(len(entry.payload) for _, entry in entries)
        return entries

    # --- writing ----------------------------------------------------------------------------------

    async def _exchange(
        self, task: CleaningTask, at: Offset, rewriter: "_Rewriter", report: CleaningReport
    ) -> Offset:
        """Clean and replace the next ranges. Return their end."""
        stream_id = task.stream_id
        group = self._group(stream_id, at, report.clean_end)
        end = group[-1].range.end_offset
        reads = await self._reads(group, report, rewriter.is_needed)
        rewriter.start_group(self._now_ms())
        cleaned = await rewriter.clean(reads, group[0].range.start_offset, end)
        if cleaned is None:
            return end
        output = Output(ObjectRole.STREAM, (Compaction(group),))
        built = await in_turns(
            build_steps(
                output.role,
                self._writer,
                WalSequence(NO_SEQUENCE),
                self._now_ms(),
                [StreamRun(stream_id, cleaned)],
            )
        )
        check_outputs([output], [built.ranges])
        self._check_owned(stream_id)
        (target,) = await self._metadata.prepare_objects(1)
        await self._store.put(target.key, built.chunks)
        await self._pace.handled(built.size_bytes)
        self._check_owned(stream_id)
        new = NewObject(target.object_id, target.key, output.role, built.size_bytes, built.ranges)
        try:
            await self._metadata.commit(
                CommitObjects(
                    objects=(new,),
                    replaced=replaced_by([output]),
                    cleaned_end=task.end,
                    tombstones_kept_ms=task.tombstones_kept_ms,
                )
            )
        finally:  # without a response, the commit may still have succeeded
            self._forget(stream_id, end)
        report.written_bytes += built.size_bytes
        return end

    def _check_owned(self, stream_id: StreamId) -> None:
        """Raise StreamFenced if this process no longer has the stream open. The controller checks
        again at the commit.
        """
        if all(stream.stream_id != stream_id for stream in self._owned()):
            raise StreamFenced(stream_id, "the stream was closed during log compaction")


def _inside(start: Offset, end: Offset, is_needed: _IsNeeded) -> _IsNeeded:
    """Return whether a block is needed and begins in this part."""

    def is_needed_here(block_start: Offset, block_end: Offset) -> bool:
        return start <= block_start < end and is_needed(block_start, block_end)

    return is_needed_here


def _batches(entries: _Entries) -> Iterator[tuple[memoryview, BatchHeader, ObjectRange]]:
    """Yield each batch with its range."""
    for source, entry in entries:
        view = memoryview(entry.payload)
        for position, header in iter_headers(view):
            yield view[position : position + header.size_bytes], header, source


def _unusable(source: ObjectRange, header: BatchHeader, error: BatchCorrupt) -> Exception:
    """Return the error with which an unreadable batch ends the pass."""
    if isinstance(error, BatchTooLarge):
        return BatchTooLarge(f"the batch at offset {header.base_offset}: {error}")
    return ObjectCorrupt(source.key, 0, str(error))


class _Rewriter:
    """The second half of a pass: selects the remaining records of each batch."""

    def __init__(
        self,
        keys: KeyMap,
        dense: DenseParts,
        transactions: CleanedTransactions,
        report: CleaningReport,
        pace: "_Pace",
        *,
        now_ms: Millis,
        tombstones_kept_ms: int,
        decompressed_bytes_max: int,
    ) -> None:
        self._decompressed_bytes_max = decompressed_bytes_max
        self._keys = keys
        self._dense = dense
        self._transactions = transactions
        self._report = report
        self._pace = pace
        self._clean_end = report.clean_end
        self._now_ms = now_ms
        self._tombstones_kept_ms = tombstones_kept_ms
        self._horizon_ms = now_ms

    def start_group(self, now_ms: Millis) -> None:
        """Start with the next ranges. Their tombstones are kept from now on, because DeleteRecords
        may have removed earlier ranges from the log since the pass began.
        """
        self._horizon_ms = Millis(min(now_ms + self._tombstones_kept_ms, _INT64_MAX))

    def is_needed(self, start: Offset, end: Offset) -> bool:
        """Return False if the map alone shows that no record of this part remains."""
        return self._dense.leader_epoch(start, end) is None or bool(self._keys.held(start, end))

    async def clean(
        self, reads: Iterator[Awaitable[_Entries]], start: Offset, end: Offset
    ) -> list[Entry] | None:
        """Return the remaining entries of [start, end), or None if nothing is removed. Blocks that
        are not needed may be missing. Raises ObjectCorrupt.
        """
        result = _Output(start)
        at, changed, dirty_bytes, read_bytes = start, False, 0, 0
        for reading in reads:
            for batch, header, source in _batches(await reading):
                if header.base_offset > at:
                    changed = True
                    self._drop(at, Offset(header.base_offset), result)
                at = Offset(header.next_offset)
                read_bytes += len(batch)
                kept: memoryview | bytearray | None = batch
                if header.base_offset < self._clean_end:
                    try:
                        kept = await self._clean_batch(batch, header)
                    except BatchCorrupt as error:
                        raise _unusable(source, header, error) from None
                else:
                    dirty_bytes += len(batch)
                if kept is not batch and header.record_count:
                    changed = True
                result.add(header, kept)
                await self._pace.handled(header.size_bytes)
        if at < end:
            changed = True
            self._drop(at, end, result)
        cleaned = result.finish(end) if changed else None
        left_bytes = read_bytes if cleaned is None else sum(len(item.payload) for item in cleaned)
        self._report.clean_bytes += left_bytes - dirty_bytes
        return cleaned

    def _drop(self, start: Offset, end: Offset, result: "_Output") -> None:
        """Skip neighboring dense parts without remaining records, which were not read."""
        self._report.removed_records += end - start
        leader_epoch = self._dense.leader_epoch(Offset(end - 1), end)
        assert leader_epoch is not None, f"[{start}, {end}) was read as dense"
        result.drop(leader_epoch)

    async def _clean_batch(
        self, batch: memoryview, header: BatchHeader
    ) -> memoryview | bytearray | None:
        """Return the batch, a reduced batch, or None if no record remains."""
        report, count = self._report, header.record_count
        if not count:
            return None
        if header.is_control:
            return self._clean_marker(batch, header)
        if self._transactions.is_aborted(header):
            report.removed_records += count
            return None
        self._transactions.on_records(header)
        if not may_keep_records(header, self._keys):
            report.removed_records += count
            return None
        # Mapping verified the CRC of every batch from the start of the map to `_clean_end`, and
        # this read verified the CRC of its block.
        is_checked = header.base_offset >= self._keys.start_offset
        read_records = checked_records if is_checked else plain_records
        plain = read_records(batch, header, self._decompressed_bytes_max)
        kept = await self._kept(plain, header)
        report.removed_records += count - len(kept)
        report.kept_records += len(kept)
        needs_delete_horizon = header.delete_horizon_ms is None and any(
            span.is_tombstone for span in kept
        )
        if not kept:
            return None
        if len(kept) == count and not needs_delete_horizon:
            return batch
        return with_records(
            batch, header, plain, kept, self._horizon_ms if needs_delete_horizon else None
        )

    async def _kept(self, plain: PlainRecords, header: BatchHeader) -> list[RecordSpan]:
        kept: list[RecordSpan] = []
        done = RecordPosition()
        while left := header.record_count - done.number:
            more, done = filter_records(
                plain, header, done, min(left, _RECORDS_PER_SLICE), self._keys
            )
            kept += more
            await self._pace.turn()
        horizon_ms = header.delete_horizon_ms
        if horizon_ms is not None and self._now_ms >= horizon_ms:
            return [span for span in kept if not span.is_tombstone]
        return kept

    def _clean_marker(
        self, batch: memoryview, header: BatchHeader
    ) -> memoryview | bytearray | None:
        marker = decode_marker(batch, header.producer_id, header.producer_epoch)
        if not marker.committed or not self._transactions.on_commit(header.producer_id):
            return batch
        horizon_ms = header.delete_horizon_ms
        if horizon_ms is None:
            plain = plain_records(batch, header)
            return with_records(batch, header, plain, all_records(plain, header), self._horizon_ms)
        return None if self._now_ms >= horizon_ms else batch


class _Output:
    """The entries of a new object. Gaps are filled with empty batches."""

    def __init__(self, start: Offset) -> None:
        self._entries: list[Entry] = []
        self._end = start
        self._leader_epoch = -1

    def add(self, header: BatchHeader, kept: memoryview | bytearray | None) -> None:
        if kept is None:
            self.drop(header.partition_leader_epoch)
            return
        self._fill(Offset(header.base_offset))
        if isinstance(kept, bytearray):
            header = next(iter_headers(kept))[1]
        self._end = Offset(header.next_offset)
        self._entries.append(RunEntry.of_batch(kept, header))

    def drop(self, leader_epoch: int) -> None:
        """Omit batches. leader_epoch: the epoch of the last one, used for the empty batches that
        fill the gap.
        """
        self._leader_epoch = leader_epoch

    def finish(self, end: Offset) -> list[Entry]:
        self._fill(end)
        return self._entries

    def _fill(self, end: Offset) -> None:
        for filled_end, payload in fillers(self._end, end, self._leader_epoch):
            self._entries.append(RunEntry.of_batch(payload, next(iter_headers(payload))[1]))
            self._end = filled_end


class _Pace:
    """Limits the byte rate, and yields to the event loop."""

    def __init__(self, bytes_per_s_max: int) -> None:
        self._bytes_per_s_max = bytes_per_s_max
        self._bytes = 0
        self._began = 0.0
        self._slice_end = 0.0
        self._now: Callable[[], float]
        """Cached, because `asyncio.get_running_loop` makes a system call."""

    def change(self, bytes_per_s_max: int) -> None:
        """Change the limit. Bytes handled before the change are not counted against it."""
        if bytes_per_s_max != self._bytes_per_s_max:
            self._bytes_per_s_max = bytes_per_s_max
            self.begin()

    def begin(self) -> float:
        """Start a pass. Return the current event loop time."""
        self._bytes = 0
        self._now = asyncio.get_running_loop().time
        self._began = self._now()
        return self._began

    async def turn(self) -> None:
        """Yield to the event loop after a slice of work."""
        if self._now() >= self._slice_end:
            await asyncio.sleep(0)
            self._slice_end = self._now() + _SLICE_S

    async def handled(self, size_bytes: int) -> None:
        """Count bytes that were read or written, and pause if they exceed the rate. This is called
        for every batch, so client requests wait for at most one batch.
        """
        self._bytes += size_bytes
        now = self._now()
        pause_s = 0.0
        if self._bytes_per_s_max:
            pause_s = self._began + self._bytes / self._bytes_per_s_max - now
        if pause_s >= _SLICE_S or now >= self._slice_end:
            await asyncio.sleep(max(0.0, pause_s))
            self._slice_end = self._now() + _SLICE_S
