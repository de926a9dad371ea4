"""Read the sources of merges, and build the objects that take their place: by a broker for its own streams, by a job for a whole topic.

Invariants: an entry is a whole block's part of its source's range, from a block whose checksum held, without a hole (`NotContiguous`); an
object is a function of its sources, its writer and its time of creation, so that whoever builds it again builds the same bytes. Must not
commit anything, nor know who owns a stream. Holds all that it reads. Source: AutoMQ `CompactionUploader`, `DataBlockReader`.
"""

import asyncio
from collections.abc import Iterable, Sequence

from stream.block_walk import Piece, entry_of
from stream.compaction.plan import Merge, Output
from stream.format.layout import NO_SEQUENCE
from stream.format.writer import BuiltObject, RunEntry, StreamRun, build_object
from stream.ids import Millis, Offset, StreamId, WalSequence
from stream.object_reader import ObjectReader
from stream.ports import ObjectRange, WalIdentity

_OBJECTS_READ_AT_ONCE = 4

SourceEntries = dict[tuple[str, StreamId, Offset], list[RunEntry]]
"""By key of the object, stream and first offset."""


async def read_entries(reader: ObjectReader, merges: Iterable[Merge]) -> SourceEntries:
    """Entries of every source. Sources that lie in one object are read together: their streams are neighbours there.

    Raises ObjectNotFound, ObjectCorrupt, NotContiguous, ObjectStoreError.
    """
    by_object: dict[str, list[ObjectRange]] = {}
    for merge in merges:
        for source in merge.sources:
            by_object.setdefault(source.key, []).append(source)
    entries: SourceEntries = {}
    turns = asyncio.Semaphore(_OBJECTS_READ_AT_ONCE)

    async def read_object(sources: Sequence[ObjectRange]) -> None:
        async with turns:
            pieces: list[Piece] = []
            for source in sources:
                pieces += await reader.pieces(source)
            pieces.sort(key=lambda piece: (piece.block.position, piece.source.range.start_offset))
            for piece, data in zip(pieces, await reader.load_uncached(pieces), strict=True):
                entries.setdefault(_key(piece.source), []).append(entry_of(piece, data))
                await asyncio.sleep(0)  # walking a block of small batches takes a millisecond

    try:
        async with asyncio.TaskGroup() as group:
            for sources in by_object.values():
                group.create_task(read_object(sources))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return entries


def build_output(output: Output, writer: WalIdentity, created_ms: Millis, entries: SourceEntries) -> BuiltObject:
    """The object of what was read. Compare its ranges with `plan.check_outputs` before anything is committed."""
    runs = [StreamRun(merge.stream_id, [entry for source in merge.sources for entry in entries[_key(source)]]) for merge in output.merges]
    return build_object(output.role, writer, WalSequence(NO_SEQUENCE), created_ms, runs)


def _key(source: ObjectRange) -> tuple[str, StreamId, Offset]:
    return source.key, source.range.stream_id, source.range.start_offset
