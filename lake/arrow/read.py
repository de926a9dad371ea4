"""Read slices as Arrow batches, which are fetched on the event loop and decoded in a thread at the
same time. The compiled kernels do not hold the GIL.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from weakref import WeakKeyDictionary

from penstock.lake.arrow.columns import DEFAULT
from penstock.lake.arrow.decode import Aborted, Decoder, Place
from penstock.lake.arrow.pyarrow_untyped import RecordBatch
from penstock.lake.fetch.errors import ObjectGone, ReadError
from penstock.lake.fetch.fetcher import Fetch, Fetched, IndexCache
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.fetch.parts import Piece, blocks_within
from penstock.lake.fetch.slices import Slice
from penstock.lake.fetch.times import ALL_TIMES, TimeBounds
from penstock.lake.fetch.unreadable import OnUnreadable, raise_unreadable
from penstock.objectstore.ports import ObjectStore
from penstock.stream.errors import ObjectCorrupt
from penstock.stream.format.decoder import check_block
from penstock.stream.format.transaction_log import AbortedTransaction

AbortedByStream = Mapping[int, Sequence[AbortedTransaction]]
"""Aborted transactions by stream id, whose records are skipped; empty for `read_uncommitted`."""

_index_caches: WeakKeyDictionary[ObjectStore, IndexCache] = WeakKeyDictionary()


def index_cache(store: ObjectStore, config: ReadConfig) -> IndexCache:
    """Return the index cache of the store. Indexes are small, and every task that reads the object
    needs them.
    """
    cache = _index_caches.get(store)
    if cache is None:
        cache = _index_caches[store] = IndexCache(config.index_cache_bytes_max)
    return cache


async def read_slices(
    store: ObjectStore,
    slices: Sequence[Slice],
    columns: Sequence[str] = DEFAULT,
    aborted: AbortedByStream | None = None,
    config: ReadConfig | None = None,
    *,
    times: TimeBounds = ALL_TIMES,
    on_unreadable: OnUnreadable = raise_unreadable,
) -> AsyncGenerator[RecordBatch, None]:
    """Yield the records of all slices. Call `aclose` on the iterator if it is not exhausted.

    Blocks and batches without records within `times` may be skipped; records of other blocks and
    batches are not filtered. Raises ObjectGone (plan again), ReadError (damage), errors raised by
    `on_unreadable`, errors of the store, and ValueError for unknown columns.
    """
    config = config or ReadConfig()
    size_bytes = sum(part.size_bytes for part in slices)
    decoder = await asyncio.to_thread(
        Decoder, columns, config, size_bytes=size_bytes, on_unreadable=on_unreadable
    )
    work = PartDecoder(decoder, aborted, times)
    fetch = Fetch(store, slices, config, index_cache(store, config), wanted=blocks_within(times))
    gone: ObjectGone | None = None
    try:
        while True:
            try:
                fetched = await fetch.next()
            except ObjectGone as error:
                gone, fetched = error, None
            batches = work.decode(fetched) if fetched else decoder.flush()
            while (batch := await asyncio.to_thread(next, batches, None)) is not None:
                yield batch
            if fetched is None:
                break
    finally:
        await fetch.close()
    if gone is not None:
        raise gone


class PartDecoder:
    """A decoder, and the aborted transactions of streams. Serves one thread at a time.

    Invariant: rows are returned slice by slice in the given order, in offset order within a slice,
    and no offset is returned twice. If an object is missing, all rows before it are returned first,
    so that a new plan can continue there. Memory: about three parts and three Arrow batches.
    """

    def __init__(
        self, decoder: Decoder, aborted: AbortedByStream | None, times: TimeBounds
    ) -> None:
        self._decoder = decoder
        self._aborted = {
            stream_id: Aborted(transactions) for stream_id, transactions in (aborted or {}).items()
        }
        self._nothing = Aborted()
        self._times = times

    def decode(self, fetched: Fetched) -> Iterator[RecordBatch]:
        """Yield Arrow batches as they fill up. Raise ReadError."""
        for _, data, place, aborted in self._checked(fetched):
            yield from self._decoder.decode(data, place, aborted, self._times)

    def count(self, fetched: Fetched) -> Iterator[tuple[int, int]]:
        """Yield, for each block, the position of its slice and the number of wanted records. Raise
        ReadError.
        """
        for piece, data, place, aborted in self._checked(fetched):
            yield piece.ordinal, self._decoder.count(data, place, aborted, self._times)

    def _checked(self, fetched: Fetched) -> Iterator[tuple[Piece, memoryview, Place, Aborted]]:
        """Yield the blocks of a part after verifying their checksums."""
        for piece in fetched.part.pieces:
            slice_, block, data = piece.slice, piece.block, fetched.block(piece)
            try:
                check_block(block, data, slice_.key)
            except ObjectCorrupt as error:
                raise ReadError(
                    slice_.key, slice_.topic, slice_.partition, block.start_offset, str(error)
                ) from None
            place = Place(
                slice_.key,
                slice_.topic,
                slice_.partition,
                block.start_offset,
                block.end_offset,
                slice_.start_offset,
                slice_.end_offset,
            )
            yield piece, data, place, self._aborted.get(slice_.stream_id, self._nothing)
