"""Read streams across memory and objects: the log cache first, committed objects for older data."""

import asyncio
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import structlog

from penstock.base.buffers import Buffer
from penstock.base.ids import Millis, Offset, StreamId
from penstock.objectstore.errors import ObjectNotFound
from penstock.protocol.batch.header import batch_span, iter_headers, may_be_as_young
from penstock.stream.cache.log_cache import LogCache
from penstock.stream.config import StreamConfig
from penstock.stream.errors import ObjectCorrupt, ObjectLost, ObjectMissing, OffsetOutOfRange
from penstock.stream.format.decoder import ObjectIndex
from penstock.stream.ports import NO_OBJECT, CommittedBorder, ObjectRange, StreamMetadata
from penstock.stream.read.damage import DamageKind, DamageLog
from penstock.stream.read.object_reader import ObjectReader
from penstock.stream.read.timestamp_reader import TimestampReader

_REPLANS_MAX = 5
_LOADED_OBJECTS_MAX: Final = 4
"""Maximum number of object ranges that a read from memory looks up. The lookup accounts for most of
the cost.
"""
_AHEAD_OBJECTS_MAX: Final = (4, 16, 64)
"""Numbers of object ranges to look up for read-ahead, tried one after another until the ranges
contain enough bytes: an object with many partitions contains few bytes of each.
"""
_FAILED_ATTEMPTS_MAX: Final[dict[DamageKind, int]] = {"gone": 2, "corrupt": 5}
"""Number of consecutive failed attempts at one object that prove damage. A new plan shows whether
an object is gone. The store may return wrong data several times in a row, and many clients do not
survive a corruption error.
"""

_log = structlog.get_logger(__name__)


class StreamReader:
    """Reads all streams of one process.

    Results begin with the batch that contains the offset and have no gaps: data stays in the cache
    until it is in the metadata, and an offset that is in neither raises an error. If compaction
    removes an object during a read, the read is planned again. An object counts as damaged only
    after repeated attempts, each with a new plan. damage: receives the damage that reads find.
    """

    def __init__(
        self,
        cache: LogCache,
        metadata: StreamMetadata,
        objects: ObjectReader,
        config: StreamConfig,
        damage: DamageLog | None = None,
    ) -> None:
        self._cache = cache
        self._metadata = metadata
        self._objects = objects
        self._plan_max = config.read_plan_objects_max
        self._search = TimestampReader(config.decompressed_batch_bytes_max)
        self._damage = DamageLog() if damage is None else damage

    def close(self) -> None:
        """Stop timestamp lookups."""
        self._search.close()

    async def read(
        self, stream_id: StreamId, offset: Offset, end_offset: Offset, max_bytes: int
    ) -> list[Buffer]:
        """Read whole batches, starting with the one that contains `offset`: at least one, then up
        to max_bytes, but none that begins at or after `end_offset`.

        May return less than max_bytes at the boundary between objects and memory, and before
        damage; the caller then continues at the end offset. Also reads the committed part of
        streams of other owners. Raises OffsetOutOfRange, ObjectCorrupt, ObjectMissing (ObjectLost),
        and errors of the store.
        """
        attempts = _ReadAttempts(self._damage, stream_id)
        while offset < end_offset:
            cached = self._cache.read(stream_id, offset, end_offset, max_bytes)
            if cached is not None:
                return cached
            ranges = self._plan(stream_id, offset, end_offset)
            try:
                batches = await self._objects.read(
                    ranges,
                    offset,
                    max_bytes,
                    end_offset=end_offset,
                    replan=partial(self._plan_ahead, stream_id),
                )
            except (ObjectNotFound, ObjectCorrupt) as error:
                attempts.failed(error, offset)
                continue
            if batches:
                if self._damage:
                    self._damage.forget_range(
                        stream_id,
                        offset,
                        max(header.next_offset for _, header in iter_headers(batches[-1])),
                    )
                return [*batches]
            offset = ranges[-1].range.end_offset
        return []

    def read_loaded(
        self, stream_id: StreamId, offset: Offset, end_offset: Offset, max_bytes: int
    ) -> list[memoryview] | None:
        """Like `read`, but read only read-ahead data in the block cache, for a sequential reader,
        at most 4 MiB. Return None if there is none; the caller then uses `read`.
        """
        if self._damage:
            return None  # a successful read clears damage
        ranges = self._metadata.objects(stream_id, offset, end_offset, _LOADED_OBJECTS_MAX)
        if not ranges or ranges[0].range.start_offset > offset:
            return None
        try:
            return self._objects.read_loaded(
                ranges, offset, max_bytes, end_offset, partial(self._plan_ahead, stream_id)
            )
        except ObjectCorrupt:
            return None  # `read` will find the damage again and count attempts

    async def read_tail(
        self, ranges: Sequence[ObjectRange], offset: Offset, end_offset: Offset, max_bytes: int
    ) -> list[Buffer]:
        """Like `read`, but read from the tail of a stream that another broker owns.

        ranges: contiguous and in order; the first one contains the offset. Sends one GET for each
        slot of up to 1 MiB, which also caches its other streams, and at least two for a larger one.
        Raises ObjectNotFound if a slot was uploaded and deleted in the meantime, ObjectCorrupt, and
        errors of the store.
        """
        return [*await self._objects.read(ranges, offset, max_bytes, end_offset=end_offset)]

    def read_tail_kept(
        self, ranges: Sequence[ObjectRange], offset: Offset, end_offset: Offset, max_bytes: int
    ) -> list[memoryview]:
        """Like `read_tail`, but read only slots in memory, at most 4 MiB. Return nothing if the
        first slot is not in memory or is damaged.
        """
        try:
            return self._objects.read_kept(ranges, offset, max_bytes, end_offset)[0]
        except ObjectCorrupt:
            return []  # `read_tail` will find the damage again

    async def load_tail(self, source: ObjectRange) -> None:
        """Load a slot into the read caches, with a single GET. Raises the errors of `read_tail`."""
        await self._objects.index(source)

    async def committed_border(self, stream_id: StreamId, offset: Offset) -> CommittedBorder:
        """Return the last boundary between two batches at or below a committed offset, in the
        objects: the log cache may still contain batches that log compaction has merged.

        Reads one block if the offset lies inside a range. Raises the errors of `read`.
        """
        attempts = _ReadAttempts(self._damage, stream_id)
        while True:
            ranges = self._metadata.objects(stream_id, Offset(offset - 1), offset, 1)
            if not ranges or ranges[0].range.end_offset <= offset:
                return CommittedBorder(offset, NO_OBJECT)
            source = ranges[0]
            try:
                batches = await self._objects.read([source], offset, 1)
            except (ObjectNotFound, ObjectCorrupt) as error:
                attempts.failed(error, offset)
                continue
            border = Offset(next(iter_headers(batches[0]))[1].base_offset)
            is_inside = border > source.range.start_offset
            return CommittedBorder(border, source.object_id if is_inside else NO_OBJECT)

    def cache_object(self, key: str, index: ObjectIndex, data: bytes) -> None:
        """Add an object that was read whole to the read caches. See `ObjectReader.cache_object`."""
        self._objects.cache_object(key, index, data)

    async def offset_for_timestamp(
        self, stream_id: StreamId, timestamp_ms: int, start_offset: Offset, end_offset: Offset
    ) -> tuple[Offset, Millis] | None:
        """See `Storage.offset_for_timestamp`. Older ranges are excluded by timestamps in the
        metadata, without I/O.
        """
        offset, attempts = start_offset, _ReadAttempts(self._damage, stream_id)
        found: tuple[int, int] | None = None
        while found is None and offset < end_offset:
            cached_from = self._cache.start_of(stream_id)
            cold_end = end_offset if cached_from is None else min(end_offset, cached_from)
            ranges = (
                self._metadata.objects(stream_id, offset, cold_end, self._plan_max)
                if offset < cold_end
                else []
            )
            if not ranges:
                found = await self._timestamp_in_cache(stream_id, timestamp_ms, offset)
                break
            try:
                found = await self._objects.offset_for_timestamp(
                    ranges, timestamp_ms, self._search, offset
                )
            except (ObjectNotFound, ObjectCorrupt) as error:
                attempts.failed(error, offset)
                continue
            offset = max(offset, ranges[-1].range.end_offset)
        return (
            None
            if found is None or found[0] >= end_offset
            else (Offset(found[0]), Millis(found[1]))
        )

    async def newest_timestamp(
        self, stream_id: StreamId, start_offset: Offset, end_offset: Offset
    ) -> tuple[Offset, Millis] | None:
        """See `Storage.newest_timestamp`. Uses only the metadata of a range unless its newest
        timestamp is unknown or the range crosses an end.

        The metadata may contain the timestamp of a record that is no longer in the range, because
        the range was clipped or its records were lost. If no record is found, such ranges are read.
        """
        limit_ms = sys.maxsize
        while True:
            newest_ms = await self._newest_ms(stream_id, start_offset, end_offset, limit_ms)
            found = await self.offset_for_timestamp(stream_id, newest_ms, start_offset, end_offset)
            if found is not None or not 0 <= newest_ms < limit_ms:
                return found
            limit_ms = newest_ms

    async def _newest_ms(
        self, stream_id: StreamId, start_offset: Offset, end_offset: Offset, limit_ms: int
    ) -> int:
        """Return the newest timestamp, or -1 if there are no records. The metadata of ranges
        without records, or with a timestamp of at least `limit_ms`, is not used.
        """
        newest_ms, attempts = -1, _ReadAttempts(self._damage, stream_id)
        offset = start_offset
        while offset < end_offset and (
            ranges := self._metadata.objects(stream_id, offset, end_offset, self._plan_max)
        ):
            unclear: list[ObjectRange] = []
            for source in ranges:
                part = source.range
                is_inside = start_offset <= part.start_offset and part.end_offset <= end_offset
                if is_inside and not part.record_count and part.max_timestamp_ms == -1:
                    continue
                if is_inside and part.record_count and 0 <= part.max_timestamp_ms < limit_ms:
                    newest_ms = max(newest_ms, part.max_timestamp_ms)
                else:
                    unclear.append(source)
            try:
                found = await self._objects.newest_timestamp(
                    unclear, self._search, start_offset, end_offset
                )
            except (ObjectNotFound, ObjectCorrupt) as error:
                attempts.failed(error, offset)
                continue
            newest_ms = max(newest_ms, found)
            offset = max(offset, ranges[-1].range.end_offset)
        return max(newest_ms, await self._newest_in_cache(stream_id, offset, end_offset))

    async def _newest_in_cache(
        self, stream_id: StreamId, offset: Offset, end_offset: Offset
    ) -> int:
        """Return the newest timestamp of the entries that end at or below `end_offset`, or -1 if
        there are none. Later entries may not be durable yet.
        """
        newest_ms = -1
        for entry in self._cache.entries_after(stream_id, offset):
            if not offset < entry.end_offset <= end_offset:
                continue
            if entry.base_offset >= offset and entry.max_timestamp_ms >= 0:
                newest_ms = max(newest_ms, entry.max_timestamp_ms)
                continue
            for batch in _batches_of(entry.payload):
                found = await self._search.newest(batch, offset, end_offset)
                newest_ms = max(newest_ms, found)
        return newest_ms

    async def _timestamp_in_cache(
        self, stream_id: StreamId, timestamp_ms: int, offset: Offset
    ) -> tuple[int, int] | None:
        """Find the record in the cache. Entries and batches contain their newest timestamp, so
        usually only a single batch is decoded.
        """
        for entry in self._cache.entries_after(stream_id, offset):
            if entry.end_offset <= offset or not may_be_as_young(
                entry.max_timestamp_ms, entry.record_count, timestamp_ms
            ):
                continue
            for batch in _batches_of(entry.payload):
                found = await self._search.first_record(batch, timestamp_ms, offset)
                if found is not None:
                    return found
        return None

    def _plan_ahead(self, stream_id: StreamId, offset: int, size_bytes: int) -> list[ObjectRange]:
        """See `stream.read.object_reader.Replan`."""
        end, ranges = self._metadata.committed_end(stream_id), list[ObjectRange]()
        for limit in _AHEAD_OBJECTS_MAX:
            ranges = self._metadata.objects(stream_id, Offset(offset), end, limit)
            if len(ranges) < limit or sum(one.range.size_bytes for one in ranges) >= size_bytes:
                break
        return ranges

    def _plan(self, stream_id: StreamId, offset: Offset, end_offset: Offset) -> list[ObjectRange]:
        ranges = self._metadata.objects(stream_id, offset, end_offset, self._plan_max)
        if not ranges or ranges[0].range.start_offset > offset:
            known = (
                ranges[0].range.start_offset if ranges else self._metadata.committed_end(stream_id)
            )
            raise OffsetOutOfRange(stream_id, offset, known, end_offset)
        return ranges


def _batches_of(payload: Buffer) -> Iterator[memoryview]:
    view, at = memoryview(payload), 0
    while at < len(view):
        end = at + batch_span(view, at).size_bytes
        yield view[at:end]
        at = end


class _ReadAttempts:
    """Counts the consecutive failed attempts of one read at the same object."""

    def __init__(self, damage: DamageLog, stream_id: StreamId) -> None:
        self._damage = damage
        self._stream_id = stream_id
        self._doubted: tuple[str, DamageKind] | None = None
        self._doubted_count = 0
        self._count = 0

    def failed(self, error: ObjectNotFound | ObjectCorrupt, offset: Offset) -> None:
        """Count a failed attempt. Returns normally if another attempt is worthwhile.

        Raises ObjectCorrupt, ObjectMissing or ObjectLost for damage, and `error` after too many
        attempts at different objects.
        """
        kind: DamageKind = "gone" if isinstance(error, ObjectNotFound) else "corrupt"
        now_s = asyncio.get_running_loop().time()
        self._count += 1
        self._doubted_count = self._doubted_count + 1 if self._doubted == (error.key, kind) else 1
        self._doubted = error.key, kind
        if self._doubted_count < _FAILED_ATTEMPTS_MAX[kind] and not self._damage.is_known(
            error.key, kind, now_s
        ):
            if self._count > _REPLANS_MAX:
                raise error
            return
        damage, is_due = self._damage.record(
            error.key, kind, str(error), stream_id=self._stream_id, offset=offset, now_s=now_s
        )
        if is_due:
            _log.error(
                "object_damaged",
                key=error.key,
                kind=kind,
                stream_id=self._stream_id,
                offset=offset,
                reads=damage.count,
                error=str(error),
            )
        if isinstance(error, ObjectCorrupt):
            raise error
        raise (ObjectLost if damage.is_certain else ObjectMissing)(error.key) from None
