"""Read transaction events from the txn streams of partitions, like other slices.

Invariant: events are returned in offset order, each once, and only if their batch overlaps the
slices. Does not plan. Source: `stream.format.transaction_log`.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from penstock.lake.fetch.fetcher import Fetch, IndexCache
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.fetch.slices import Slice
from penstock.objectstore.ports import ObjectStore
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import iter_headers
from penstock.stream.errors import ObjectCorrupt
from penstock.stream.format.decoder import check_block
from penstock.stream.format.transaction_log import (
    AbortedTransaction,
    AbortedWithin,
    TransactionEventAt,
    decode_events,
)

_CONFIG = ReadConfig(part_bytes_max=1 << 20, index_cache_bytes_max=4 << 20)
"""Events are small and scattered, and little is read ahead, because a read ends at the first event
that decides the range.
"""


class TransactionEvents:
    """Reads events from one store, and caches the indexes of the objects."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._indexes = IndexCache(_CONFIG.index_cache_bytes_max)

    async def last(self, slices: Sequence[Slice], end_offset: int) -> TransactionEventAt | None:
        """Return the last event below `end_offset`. Raise ObjectGone, ReadError, ObjectCorrupt or
        the store's errors, like `aborted`.
        """
        last: TransactionEventAt | None = None
        async with aclosing(self._read(slices)) as batches:
            async for events in batches:
                last = next(
                    (found for found in reversed(events) if found.offset < end_offset), last
                )
        return last

    async def aborted(
        self, slices: Sequence[Slice], start_offset: int, end_offset: int
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap [start, end).

        `slices` cover the txn stream from `start` to its end. Only as many slices as needed are
        read.
        """
        within = AbortedWithin(start_offset, end_offset)
        async with aclosing(self._read(slices)) as batches:
            async for events in batches:
                within.take(events)
                if within.is_complete:
                    break
        return within.by_first_offset()

    async def _read(
        self, slices: Sequence[Slice]
    ) -> AsyncGenerator[list[TransactionEventAt], None]:
        fetch = Fetch(self._store, slices, _CONFIG, self._indexes)
        try:
            while (fetched := await fetch.next()) is not None:
                for piece in fetched.part.pieces:
                    data, part = fetched.block(piece), piece.slice
                    check_block(piece.block, data, part.key)
                    try:
                        for at, header in iter_headers(data):
                            if (
                                header.next_offset > part.start_offset
                                and header.base_offset < part.end_offset
                            ):
                                yield decode_events(data[at : at + header.size_bytes])
                    except BatchCorrupt as error:
                        raise ObjectCorrupt(part.key, piece.block.position, str(error)) from None
        finally:
            await fetch.close()
