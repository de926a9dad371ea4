"""Read the sources of compactions and build the objects that replace them: used by brokers for
their own streams, and by bulk rewrite jobs for whole topics. Nothing is committed here.

Objects depend only on their sources, writer and creation time, so repeating a build results in
identical bytes.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from penstock.base.ids import (
    Millis,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.base.yielding import in_turns
from penstock.stream.compaction.plan import Compaction, Output
from penstock.stream.format.block_walk import Piece, entry_of
from penstock.stream.format.builder import (
    BuiltObject,
    Entry,
    StreamRun,
    build_steps,
)
from penstock.stream.format.layout import NO_SEQUENCE
from penstock.stream.ports import BrokerIncarnation, ObjectRange, StreamRange
from penstock.stream.read.object_reader import ObjectReader

_OBJECTS_READ_AT_ONCE = 4
_PAUSE_MAX_S = 0.1

SourceEntries = dict[tuple[str, StreamId, Offset], list[Entry]]
"""Entries by object key, stream and first offset."""

Cached = Callable[[StreamId, Offset, Offset], Sequence[Entry] | None]
"""Returns cached entries that cover exactly this range, or None."""


def nothing_cached(stream_id: StreamId, start: Offset, end: Offset) -> None:
    """Return None, because jobs have no entries in memory."""
    del stream_id, start, end


def everything(start: Offset, end: Offset) -> bool:
    """Return True, so that every block is read."""
    del start, end
    return True


async def read_entries(
    reader: ObjectReader,
    compactions: Iterable[Compaction],
    cached: Cached = nothing_cached,
    *,
    throttled: bool = False,
    is_needed: Callable[[Offset, Offset], bool] = everything,
) -> SourceEntries:
    """Read the entries of every source: the part of each verified block that belongs to the range,
    or entries that are still in memory. Sources in the same object are read together, because their
    streams are stored side by side. The entire result is kept in memory.

    is_needed: whether to read the block with these offsets; if not, its entry is missing from the
    result.

    throttled: read objects one at a time, and pause after each for as long as the read took. This
    leaves half of the store's throughput to clients, so that their PUTs do not queue behind these
    GETs. At 30 ms per GET, this still reads 16 objects per second.

    Raises ObjectNotFound, ObjectCorrupt, NotContiguous, ObjectStoreError.
    """
    entries: SourceEntries = {}
    by_object: dict[str, list[ObjectRange]] = {}
    for compaction in compactions:
        for source in compaction.sources:
            held = source.range
            found = cached(held.stream_id, held.start_offset, held.end_offset)
            if found is None or not _is_same(found, held):
                by_object.setdefault(source.key, []).append(source)
            else:
                entries[_key(source)] = list(found)
        await asyncio.sleep(0)  # a round may contain thousands of sources
    turns, now = (
        asyncio.Semaphore(1 if throttled else _OBJECTS_READ_AT_ONCE),
        asyncio.get_running_loop().time,
    )

    async def read_object(sources: Sequence[ObjectRange]) -> None:
        async with turns:
            began, pieces = now(), list[Piece]()
            for source in sources:
                pieces += [
                    piece
                    for piece in await reader.pieces(source)
                    if is_needed(piece.start_offset, piece.end_offset)
                ]
            pieces.sort(key=lambda piece: (piece.block.position, piece.source.range.start_offset))
            for piece, data in zip(pieces, await reader.load_uncached(pieces), strict=True):
                entries.setdefault(_key(piece.source), []).append(entry_of(piece, data))
                # iterating over a block of small batches takes a millisecond
                await asyncio.sleep(0)
            if throttled:
                await asyncio.sleep(min(now() - began, _PAUSE_MAX_S))

    try:
        async with asyncio.TaskGroup() as group:
            for sources in by_object.values():
                group.create_task(read_object(sources))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return entries


async def build_output(
    output: Output, writer: BrokerIncarnation, created_ms: Millis, entries: SourceEntries
) -> BuiltObject:
    """Build the object of one output. Compare its ranges with `plan.check_outputs` before
    committing.
    """
    runs = [
        StreamRun(
            compaction.stream_id,
            [entry for source in compaction.sources for entry in entries[_key(source)]],
        )
        for compaction in output.compactions
    ]
    return await in_turns(
        build_steps(output.role, writer, WalSequence(NO_SEQUENCE), created_ms, runs)
    )


def _is_same(entries: Sequence[Entry], held: StreamRange) -> bool:
    """Return False if log compaction has removed records of the range since these entries were
    appended; using these entries would restore removed records. A missing delete horizon is
    harmless, because the next pass sets it again.
    """
    return (sum(entry.record_count for entry in entries), _size_bytes(entries)) == (
        held.record_count,
        held.size_bytes,
    )


def _size_bytes(entries: Sequence[Entry]) -> int:
    return sum(len(entry.payload) for entry in entries)


def _key(source: ObjectRange) -> tuple[str, StreamId, Offset]:
    return source.key, source.range.stream_id, source.range.start_offset
