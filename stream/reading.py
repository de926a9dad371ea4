"""Reads across memory and objects: the log cache first, committed objects for what is older.

Invariant: what is returned begins with the batch that holds the offset and has no gap; data is either in the cache (until it is committed)
or in the metadata's ranges, so a place that neither knows is an error, never skipped. An object that compaction removed under a read is
planned anew. Must not cache anything itself. Source: AutoMQ `S3Storage.read0`; traps 21, 24 and 26 of its notes.
"""

from objectstore.errors import ObjectNotFound
from stream.batch.header import Buffer, batch_span
from stream.batch.records import first_record_at_or_after
from stream.config import StreamConfig
from stream.errors import OffsetOutOfRange
from stream.ids import Millis, Offset, StreamId
from stream.log_cache import LogCache
from stream.object_reader import ObjectReader
from stream.ports import ObjectRange, StreamMetadata

_REPLANS_MAX = 5


class StreamReader:
    def __init__(self, cache: LogCache, metadata: StreamMetadata, objects: ObjectReader, config: StreamConfig) -> None:
        self._cache = cache
        self._metadata = metadata
        self._objects = objects
        self._plan_max = config.read_plan_objects_max

    async def read(self, stream_id: StreamId, offset: Offset, end_offset: Offset, max_bytes: int) -> list[Buffer]:
        """See Storage.read."""
        replans = 0
        while offset < end_offset:
            cached = self._cache.read(stream_id, offset, end_offset, max_bytes)
            if cached is not None:
                return cached
            ranges = self._plan(stream_id, offset, end_offset)
            try:
                batches = await self._objects.read(ranges, offset, max_bytes, end_offset=end_offset)
            except ObjectNotFound:
                replans += 1
                if replans > _REPLANS_MAX:
                    raise
                continue
            if batches:
                return [*batches]
            offset = ranges[-1].range.end_offset
        return []

    async def offset_for_timestamp(
        self, stream_id: StreamId, timestamp_ms: int, start_offset: Offset, end_offset: Offset
    ) -> tuple[Offset, Millis] | None:
        """See Storage.offset_for_timestamp. Ranges that are too old are skipped by the metadata's timestamps, without I/O."""
        offset, replans = start_offset, 0
        found: tuple[int, int] | None = None
        while found is None and offset < end_offset:
            cached_from = self._cache.start_of(stream_id)
            cold_end = end_offset if cached_from is None else min(end_offset, cached_from)
            ranges = self._metadata.objects(stream_id, offset, cold_end, self._plan_max) if offset < cold_end else []
            if not ranges:
                found = self._timestamp_in_cache(stream_id, timestamp_ms, offset)
                break
            try:
                found = await self._objects.offset_for_timestamp(ranges, timestamp_ms, offset)
            except ObjectNotFound:
                replans += 1
                if replans > _REPLANS_MAX:
                    raise
                continue
            offset = max(offset, ranges[-1].range.end_offset)
        return None if found is None or found[0] >= end_offset else (Offset(found[0]), Millis(found[1]))

    def _timestamp_in_cache(self, stream_id: StreamId, timestamp_ms: int, offset: Offset) -> tuple[int, int] | None:
        """Entries and batches know their newest timestamp, so hardly more than one is decoded."""
        for entry in self._cache.entries_after(stream_id, offset):
            if entry.max_timestamp_ms < timestamp_ms or entry.end_offset <= offset:
                continue
            payload, at = memoryview(entry.payload), 0
            while at < len(payload):
                found = first_record_at_or_after(payload[at:], timestamp_ms, from_offset=offset)
                if found is not None:
                    return found
                at += batch_span(payload, at).size_bytes
        return None

    def _plan(self, stream_id: StreamId, offset: Offset, end_offset: Offset) -> list[ObjectRange]:
        ranges = self._metadata.objects(stream_id, offset, end_offset, self._plan_max)
        if not ranges or ranges[0].range.start_offset > offset:
            known = ranges[0].range.start_offset if ranges else self._metadata.committed_end(stream_id)
            raise OffsetOutOfRange(stream_id, offset, known, end_offset)
        return ranges
