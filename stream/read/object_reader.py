"""Read committed ranges of streams from objects, with caches for indexes and blocks, merged GETs,
and read-ahead for sequential readers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar, cast

from penstock.base.buffers import Buffer
from penstock.base.errors import StreamError
from penstock.base.ids import Offset
from penstock.base.log import get_logger
from penstock.objectstore.errors import ObjectNotFound, ObjectStoreError, RangeNotSatisfiable
from penstock.objectstore.ports import ObjectStore
from penstock.protocol.batch.header import may_be_as_young
from penstock.stream.cache.block_cache import BlockCache, BlockKey, LoadedValue, LoadingCache
from penstock.stream.errors import NotContiguous, ObjectCorrupt
from penstock.stream.format.block_walk import Piece, batches_since, cut
from penstock.stream.format.decoder import (
    NeedMore,
    ObjectIndex,
    check_block,
    is_intact,
    parse_tail,
)
from penstock.stream.format.layout import TAIL_BYTES
from penstock.stream.ports import ObjectRange
from penstock.stream.read.joined_gets import JoinedGets
from penstock.stream.read.read_ahead import ReadAhead, Reader
from penstock.stream.read.timestamp_reader import TimestampReader

Replan = Callable[[int, int], Sequence[ObjectRange]]
"""Returns ranges from an offset on, with about this many bytes in total."""

_log = get_logger(__name__)
_T = TypeVar("_T")
_INT64_MAX = (1 << 63) - 1
_GAP_BYTES = 128 << 10
"""Reading this many unneeded bytes costs less than another GET."""

LOADED_BYTES_MAX: Final = 4 << 20
LOADED_RECORDS_MAX: Final = 2_000
"""Limits of a read from memory, which does not yield to other tasks. The read ends after the block
in which it reaches one of the limits. Each record may be a batch of its own, which takes 1 us.
"""

_STEP_RECORDS_MAX: Final = 8_192
"""A read yields to the event loop after the block in which it reaches this many records."""

_AHEAD_PART: Final = 2
"""All windows together may use up to half of the block cache. The rest is for blocks that were
already read, because other consumers may need them next.
"""

_FULL_ENOUGH: Final = 7 / 8
"""A read ends before a block if less than an eighth of the block would fit into the response,
because the rest of that block may be evicted before the consumer's next request.
"""

_SHARED_PART = 8
"""The blocks of one GET may share memory if they use at most an eighth of the block cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReaderConfig:
    index_cache_bytes_max: int = 32 << 20
    """Size of the index cache. An index takes 68 bytes per block, so the indexes of about 400,000
    blocks fit.
    """

    whole_bytes_max: int = 1 << 20
    """Objects up to this size are read whole with their index: one GET serves all their streams,
    which helps when a failover opens many partitions. A single reader of a small stream receives
    its first bytes about 10 ms later, but saves the second GET.
    """

    get_bytes_max: int = 4 << 20
    """Neighboring blocks up to this size are read with one GET. A larger value results in fewer
    GETs (0.4 USD per million) but increases the time to the first byte.
    """

    gets_in_flight_max: int = 32
    read_bytes_max: int = 64 << 20
    """Maximum size of one read, regardless of the caller's request."""

    read_ahead_bytes_min: int = 512 << 10
    read_ahead_bytes_max: int = 16 << 20
    """Maximum window size of one reader: reading 100 MB/s with GETs that take 100 ms requires 10 MB
    in flight.
    """

    readers_max: int = 1_024
    """Maximum number of tracked sequential readers."""

    read_ahead_tasks_max: int = 64
    """Maximum number of concurrent read-ahead tasks, up to four per reader. There is no read-ahead
    for additional readers.
    """


class ObjectReader:
    """Reads the objects of all streams. There is one per process.

    Reads return whole batches, in offset order and inside the committed ranges, from blocks with
    matching checksums. Errors are raised only by a read that begins at the damaged, missing or
    unreachable object; earlier reads return the intact batches before it. After ObjectNotFound, the
    caller plans again from the metadata. Memory in flight is at most gets_in_flight_max x
    get_bytes_max (plus one block each).
    """

    def __init__(
        self, store: ObjectStore, block_cache: BlockCache, config: ObjectReaderConfig | None = None
    ) -> None:
        self._store = store
        self._blocks = block_cache
        self._config = config or ObjectReaderConfig()
        self._indexes: LoadingCache[str, ObjectIndex] = LoadingCache(
            self._config.index_cache_bytes_max
        )
        self._gets = asyncio.Semaphore(self._config.gets_in_flight_max)
        self._joined = JoinedGets(
            self._get, gap_bytes_max=_GAP_BYTES, get_bytes_max=self._config.get_bytes_max
        )
        self._read_ahead = ReadAhead(
            bytes_min=self._config.read_ahead_bytes_min,
            bytes_max=self._config.read_ahead_bytes_max,
            total_bytes_max=block_cache.bytes_max // _AHEAD_PART,
            readers_max=self._config.readers_max,
        )
        self._tasks: set[asyncio.Task[None]] = set()

    async def read(
        self,
        ranges: Sequence[ObjectRange],
        start: int,
        max_bytes: int,
        min_one: bool = True,
        *,
        end_offset: int = _INT64_MAX,
        replan: Replan | None = None,
    ) -> list[memoryview]:
        """Read whole batches, starting with the one that contains `start`, at most max_bytes. Each
        view contains one or more batches.

        ranges: ranges of one stream, contiguous and in order; the first one contains `start`.
        min_one: return the first batch regardless of its size. end_offset: omit batches that begin
        there or later. replan: for read-ahead, which otherwise ends with `ranges`. Returns [] only
        if max_bytes is too small or compaction has left no batch.
        """
        _check_ranges(ranges, start)
        max_bytes = min(max_bytes, self._config.read_bytes_max)
        batches: list[memoryview] = []
        at = start
        walked_records = 0
        while not batches and at < min(ranges[-1].range.end_offset, end_offset):
            pieces = await self._plan(ranges, at, end_offset, max_bytes)
            assert pieces, f"no block for offset {at} of {ranges[0].range}"
            blocks = await self._load(pieces)
            position, left_bytes = at, max_bytes
            for piece, data in zip(pieces, blocks, strict=True):
                if isinstance(data, Exception):
                    if not batches and position == at:
                        raise data
                    break
                if walked_records >= _STEP_RECORDS_MAX:
                    walked_records = 0
                    await asyncio.sleep(0)
                walked_records += piece.block.record_count
                first = min_one and not batches
                view, position, whole = cut(
                    piece, data, position, end_offset, left_bytes, min_one=first
                )
                if view:
                    batches.append(view)
                    left_bytes -= len(view)
                if not whole:
                    return self._returned(ranges, start, position, batches, replan)
            at = position
        return self._returned(ranges, start, at, batches, replan)

    def read_loaded(
        self,
        ranges: Sequence[ObjectRange],
        start: int,
        max_bytes: int,
        end_offset: int,
        replan: Replan | None = None,
    ) -> list[memoryview] | None:
        """Like `read`, but read only blocks in memory, for a sequential reader. Return None if
        there are none.

        Raises ObjectCorrupt.
        """
        batches, position = self.read_kept(ranges, start, max_bytes, end_offset)
        if batches and self._read_ahead.knows(ranges[0].range.stream_id, start, position):
            return self._returned(ranges, start, position, batches, replan)
        return None

    def read_kept(
        self, ranges: Sequence[ObjectRange], start: int, max_bytes: int, end_offset: int
    ) -> tuple[list[memoryview], int]:
        """Like `read`, but read only blocks in memory, at most LOADED_BYTES_MAX. Return the batches
        and their end offset, without any batches if the first block is not in memory.

        Raises ObjectCorrupt.
        """
        batches: list[memoryview] = []
        position, left_bytes = start, min(max_bytes, LOADED_BYTES_MAX)
        left_records = LOADED_RECORDS_MAX
        for piece, data in self._loaded(ranges, start, end_offset):
            if batches and (left_bytes <= 0 or left_records <= 0):
                break
            view, position, whole = cut(
                piece, data, position, end_offset, left_bytes, min_one=not batches
            )
            left_records -= piece.block.record_count
            if view:
                batches.append(view)
                left_bytes -= len(view)
            if not whole:
                break
        return batches, position

    def _loaded(
        self, ranges: Sequence[ObjectRange], start: int, end_offset: int
    ) -> Iterator[tuple[Piece, Buffer]]:
        """Yield contiguous blocks from `start`, as long as they are in memory."""
        at = start
        for source in ranges:
            index = self._indexes.kept(source.key)
            if index is None or not source.range.start_offset <= at < source.range.end_offset:
                return
            for piece in _pieces_of(index, source, at, end_offset):
                data = self._blocks.kept((source.key, piece.block.position))
                if data is None:
                    return
                yield piece, data
            at = source.range.end_offset

    async def offset_for_timestamp(
        self,
        ranges: Sequence[ObjectRange],
        timestamp_ms: int,
        search: TimestampReader,
        start_offset: int = 0,
    ) -> tuple[int, int] | None:
        """Return (offset, timestamp) of the first record at start_offset or later with at least
        this timestamp, or None.

        ranges: as for `read`, but ranges with an older max timestamp may be omitted. Opens one
        block after another until the record is found. Because of the max timestamps in metadata,
        indexes and batch headers, a second block is rarely needed. Raises ObjectCorrupt,
        ObjectNotFound and errors of the store for any block that may contain the record, because a
        later record would be the wrong result.
        """
        for source in ranges:
            wanted = source.range
            if wanted.end_offset <= start_offset or not may_be_as_young(
                wanted.max_timestamp_ms, wanted.record_count, timestamp_ms
            ):
                continue
            for piece in await self.pieces(source, max(start_offset, source.range.start_offset)):
                if not may_be_as_young(
                    piece.block.max_timestamp_ms, piece.block.record_count, timestamp_ms
                ):
                    continue
                (block,) = await self._load([piece])
                if isinstance(block, Exception):
                    raise block
                for batch in batches_since(piece, block, timestamp_ms, start_offset):
                    found = await search.first_record(batch, timestamp_ms, start_offset)
                    if found is not None:
                        return found
        return None

    async def newest_timestamp(
        self,
        ranges: Sequence[ObjectRange],
        search: TimestampReader,
        start_offset: int,
        end_offset: int,
    ) -> int:
        """Return the newest timestamp of the records of [start_offset, end_offset), -1 if there are
        none.

        Reads only blocks whose newest timestamp is unknown or that cross an end. Raises the errors
        of `offset_for_timestamp`.
        """
        newest_ms = -1
        for source in ranges:
            for piece in await self.pieces(source, start_offset, end_offset):
                block = piece.block
                if (
                    start_offset <= piece.block.start_offset
                    and block.end_offset <= end_offset
                    and piece.start_offset == block.start_offset
                    and piece.end_offset == block.end_offset
                    and (block.max_timestamp_ms >= 0 or not block.record_count)
                ):
                    newest_ms = max(newest_ms, block.max_timestamp_ms)
                    continue
                (data,) = await self._load([piece])
                if isinstance(data, Exception):
                    raise data
                for batch in batches_since(piece, data, newest_ms + 1, start_offset):
                    found = await search.newest(batch, start_offset, end_offset)
                    newest_ms = max(newest_ms, found)
        return newest_ms

    async def index(self, source: ObjectRange) -> ObjectIndex:
        """Return the index of an object, from the cache or with one GET (two if it has more than
        962 blocks).
        """
        return await self._indexes.get(source.key, lambda _: self._load_index(source))

    def cache_object(self, key: str, index: ObjectIndex, data: Buffer) -> None:
        """Cache an object that was read whole for another purpose, so that its next reader does not
        need a GET.
        """
        self._indexes.put(key, index, index.size_bytes)
        self._cache_blocks(key, index, data)

    async def idle(self) -> None:
        """Wait until no read-ahead is in flight."""
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        """Cancel read-ahead and loads, and close the block cache. Callers of `read` receive
        CancelledError.
        """
        for task in self._tasks:
            task.cancel()
        await self.idle()
        await self._indexes.close()
        await self._blocks.close()
        await self._joined.close()

    # --- planning ---------------------------------------------------------------------------------

    async def _plan(
        self, ranges: Sequence[ObjectRange], start: int, end_offset: int, max_bytes: int
    ) -> list[Piece]:
        """Plan about max_bytes of blocks from `start`, not counting partially needed blocks.

        Stops before an object whose index cannot be read; raises the error if this is the first
        object.
        """
        wanted: list[ObjectRange] = []
        bytes_wanted = 0
        for source in ranges:
            if source.range.end_offset <= start:
                continue
            if source.range.start_offset >= end_offset or (wanted and bytes_wanted >= max_bytes):
                break
            # Most of the first range may lie before `start`, so only later ranges count.
            bytes_wanted += source.range.size_bytes if wanted else 0
            wanted.append(source)
        pieces: list[Piece] = []
        bytes_planned = 0
        for found in await _each(self.pieces(source, start, end_offset) for source in wanted):
            if isinstance(found, Exception):
                if not pieces:
                    raise found
                return pieces
            for piece in found:
                if pieces and bytes_planned >= max_bytes * _FULL_ENOUGH:
                    return pieces
                is_whole = bool(pieces) or start <= piece.start_offset
                bytes_planned += piece.block.size_bytes if is_whole else 0
                pieces.append(piece)
        return pieces

    async def pieces(
        self, source: ObjectRange, start: int = 0, end_offset: int = _INT64_MAX
    ) -> list[Piece]:
        """Return the blocks of the range from `start`. Raises ObjectCorrupt if the object does not
        contain the whole committed range.
        """
        return _pieces_of(await self.index(source), source, start, end_offset)

    # --- loading ----------------------------------------------------------------------------------

    async def _load(self, pieces: Sequence[Piece]) -> list[Buffer | Exception]:
        """Return each block, or its error."""
        groups = self._groups(pieces, 0)
        return [
            data
            for blocks in await asyncio.gather(*map(self._load_group, groups))
            for data in blocks
        ]

    def _groups(self, pieces: Sequence[Piece], gap_bytes_max: int) -> list[list[Piece]]:
        """Group neighboring blocks of one object that are at most gap_bytes_max apart. Each group
        is one GET, of at most get_bytes_max or one block.
        """
        groups: list[list[Piece]] = []
        key, start, end = "", 0, 0
        for piece in pieces:
            position = piece.block.position
            block_end = position + piece.block.size_bytes
            near = piece.source.key == key and 0 <= position - end <= gap_bytes_max
            if not near or block_end - start > self._config.get_bytes_max:
                groups.append([])
                key, start = piece.source.key, position
            groups[-1].append(piece)
            end = block_end
        return groups

    async def load_uncached(self, pieces: Sequence[Piece]) -> list[Buffer]:
        """Read blocks of one object in order, one GET after another, bypassing the cache: a rewrite
        should not evict blocks that readers need.

        The blocks of one GET share its memory unless more than half of it would be unneeded:
        copying takes 0.3 ms per MB.
        """
        loaded: list[Buffer] = []
        for group in self._groups(pieces, _GAP_BYTES):
            data, positions = await self._get_group(group)
            wanted_bytes = sum(piece.block.size_bytes for piece in group)
            is_shared = 2 * wanted_bytes >= len(data)
            for piece, at in zip(group, positions, strict=True):
                block = _part(data, at, piece.block.size_bytes, is_shared=is_shared)
                check_block(piece.block, block, piece.source.key)
                loaded.append(block)
        return loaded

    async def _load_group(self, group: Sequence[Piece]) -> list[Buffer | Exception]:
        by_key = {(piece.source.key, piece.block.position): piece for piece in group}

        async def load(keys: Sequence[BlockKey]) -> Sequence[LoadedValue[Buffer] | Exception]:
            return await self._get_blocks([by_key[key] for key in keys])

        return await self._blocks.get_each(list(by_key), load)

    async def _get_blocks(
        self, pieces: Sequence[Piece]
    ) -> Sequence[LoadedValue[Buffer] | Exception]:
        """Return each block, or ObjectCorrupt. Raises errors that affect all blocks."""
        data, positions = await self._get_group(pieces)
        wanted_bytes = sum(piece.block.size_bytes for piece in pieces)
        is_shared = wanted_bytes == len(data) and self._may_share(data)
        blocks: list[LoadedValue[Buffer] | Exception] = []
        for piece, at in zip(pieces, positions, strict=True):
            block = _part(data, at, piece.block.size_bytes, is_shared=is_shared)
            try:
                check_block(piece.block, block, piece.source.key)
            except ObjectCorrupt as error:
                blocks.append(error)
            else:
                blocks.append(LoadedValue(block, len(block), is_shared))
        return blocks

    def _may_share(self, data: Buffer) -> bool:
        """Return whether the cache may keep blocks that share these bytes, and evict them together.
        Copying them would take 0.3 ms of CPU per MB, but would allow a small cache to keep some of
        them.
        """
        return len(data) <= self._blocks.bytes_max // _SHARED_PART

    async def _get_group(self, pieces: Sequence[Piece]) -> tuple[Buffer, list[int]]:
        """Return bytes that contain these blocks of one object, and the position of each block."""
        source, start = pieces[0].source, pieces[0].block.position
        end = pieces[-1].block.position + pieces[-1].block.size_bytes
        data, shift = await self._joined.get(source, start, end - start)
        return data, [piece.block.position - start + shift for piece in pieces]

    async def _load_index(self, source: ObjectRange) -> list[LoadedValue[ObjectIndex]]:
        size_bytes = source.object_size_bytes
        position = (
            0 if size_bytes <= self._config.whole_bytes_max else max(0, size_bytes - TAIL_BYTES)
        )
        tail = await self._get(source, position, size_bytes - position)
        index = parse_tail(tail, size_bytes, source.key)
        if isinstance(index, NeedMore):
            position = index.position
            tail = await self._get(source, position, size_bytes - position)
            index = parse_tail(tail, size_bytes, source.key)
        if isinstance(index, NeedMore):
            # Objects are immutable, so the footer cannot change between two reads.
            raise ObjectCorrupt(source.key, position, "the footer changed between two reads")
        if position == 0:
            self._cache_blocks(source.key, index, tail)
        return [LoadedValue(index, index.size_bytes)]

    def _cache_blocks(self, key: str, index: ObjectIndex, data: Buffer) -> None:
        """Cache the blocks of an object that was read whole.

        Damaged blocks are skipped, so that only their own readers fail.
        """
        is_shared = self._may_share(data)
        blocks: dict[BlockKey, Buffer] = {}
        for entry in index.blocks():
            block = _part(data, entry.position, entry.size_bytes, is_shared=is_shared)
            if is_intact(entry, block):
                blocks[key, entry.position] = block
        if is_shared:
            self._blocks.put_shared(blocks, len(data))
            return
        for block_key, block in blocks.items():
            self._blocks.put(block_key, block, len(block))

    async def _get(self, source: ObjectRange, start: int, length: int) -> Buffer:
        if length <= 0:
            raise ObjectCorrupt(
                source.key,
                start,
                f"an object size of {source.object_size_bytes} bytes is impossible",
            )
        try:
            async with self._gets:
                data = await self._store.get_range(source.key, start, length)
        except ObjectNotFound:
            # The error of the store may contain the key with a prefix.
            raise ObjectNotFound(source.key) from None
        except RangeNotSatisfiable:
            raise ObjectCorrupt(
                source.key,
                start,
                f"is shorter than the {source.object_size_bytes} bytes that were committed",
            ) from None
        if len(data) != length:
            raise ObjectCorrupt(
                source.key, start, f"the store returned {len(data)} of {length} requested bytes"
            )
        return data

    # --- reading ahead ----------------------------------------------------------------------------

    def _returned(
        self,
        ranges: Sequence[ObjectRange],
        start: int,
        next_offset: int,
        batches: list[memoryview],
        replan: Replan | None,
    ) -> list[memoryview]:
        """Record a read, and start read-ahead for its reader if it is due."""
        reader = self._read_ahead.on_read(
            ranges[0].range.stream_id, start, next_offset, asyncio.get_running_loop().time()
        )
        if reader is None or len(self._tasks) >= self._config.read_ahead_tasks_max:
            return batches
        if replan is not None:
            ranges = replan(next_offset, 2 * reader.window_bytes)
        if not ranges or max(next_offset, reader.ahead_until) >= ranges[-1].range.end_offset:
            return batches
        reader.is_busy = True
        task = asyncio.ensure_future(self._fetch_ahead(ranges, next_offset, reader))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return batches

    async def _fetch_ahead(self, ranges: Sequence[ObjectRange], start: int, reader: Reader) -> None:
        """Fill the cache ahead of a reader, and load the indexes of the following objects, so that
        their blocks take one round trip instead of two. Errors are only logged, because the reader
        will encounter them itself.
        """
        try:
            try:
                pieces = await self._plan(ranges, start, _INT64_MAX, reader.window_bytes)
                if pieces:
                    reader.ahead_from, reader.ahead_until = start, pieces[-1].block.end_offset
            finally:
                reader.is_busy = False
            following = _following(ranges, pieces, reader.window_bytes)
            loaded, _ = await asyncio.gather(self._load(pieces), _each(map(self.index, following)))
            _all_of(loaded)
        except ObjectNotFound:
            return
        except (ObjectStoreError, StreamError) as error:
            _log.warning(
                "read_ahead_failed",
                stream_id=ranges[0].range.stream_id,
                offset=start,
                error=str(error),
            )


def _following(
    ranges: Sequence[ObjectRange], pieces: Sequence[Piece], size_bytes: int
) -> list[ObjectRange]:
    """Return the ranges after the pieces, up to this many bytes."""
    found: list[ObjectRange] = []
    for source in ranges:
        if not pieces or size_bytes <= 0:
            break
        if source.range.start_offset >= pieces[-1].block.end_offset:
            size_bytes -= source.range.size_bytes
            found.append(source)
    return found


def _pieces_of(index: ObjectIndex, source: ObjectRange, start: int, end_offset: int) -> list[Piece]:
    """See `ObjectReader.pieces`."""
    stream_id, wanted = source.stream_id_in_object, source.range
    if not index.holds(stream_id, wanted.start_offset, wanted.end_offset):
        raise ObjectCorrupt(source.key, 0, f"does not contain the committed range {wanted}")
    blocks = index.blocks_of(
        stream_id, max(start, wanted.start_offset), min(end_offset, wanted.end_offset)
    )
    return [Piece(source, block) for block in blocks]


async def _each(calls: Iterable[Awaitable[_T]]) -> list[_T | Exception]:
    """Run all calls concurrently. Return the result or the error of each. A cancelled call cancels
    the caller.
    """
    results = await asyncio.gather(*calls, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, Exception):
            raise result
    return cast("list[_T | Exception]", results)


def _part(data: Buffer, at: int, size_bytes: int, *, is_shared: bool) -> Buffer:
    """Return a part of the bytes that were read. Unless it is shared, it does not keep the rest in
    memory.
    """
    if at == 0 and size_bytes == len(data):
        return data
    part = memoryview(data)[at : at + size_bytes]
    return part if is_shared else bytes(part)


def _all_of(loaded: Iterable[_T | Exception]) -> list[_T]:
    """Return all values. Raises the first error among them."""
    found: list[_T] = []
    for item in loaded:
        if isinstance(item, Exception):
            raise item
        found.append(item)
    return found


def _check_ranges(ranges: Sequence[ObjectRange], start: int) -> None:
    stream_id, expected = ranges[0].range.stream_id, ranges[0].range.start_offset
    if not expected <= start < ranges[0].range.end_offset:
        raise NotContiguous(stream_id, Offset(start), expected)
    for source in ranges:
        if source.range.stream_id != stream_id or source.range.start_offset != expected:
            raise NotContiguous(stream_id, expected, source.range.start_offset)
        expected = source.range.end_offset
