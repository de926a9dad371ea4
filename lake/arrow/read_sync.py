"""Read slices as Arrow batches in code without an event loop, such as Spark's Python workers.

The background loop fetches while the caller decodes and works. All waits are bounded by the
deadlines of store calls.
"""

from collections.abc import Generator, Mapping, Sequence

from penstock.lake.arrow.background import background
from penstock.lake.arrow.columns import DEFAULT
from penstock.lake.arrow.decode import Decoder
from penstock.lake.arrow.pyarrow_untyped import RecordBatch
from penstock.lake.arrow.read import AbortedByStream, PartDecoder, index_cache
from penstock.lake.fetch.errors import ObjectGone
from penstock.lake.fetch.fetcher import Fetch
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.fetch.parts import Wanted, blocks_within
from penstock.lake.fetch.slices import Slice
from penstock.lake.fetch.times import ALL_TIMES, TimeBounds
from penstock.lake.fetch.unreadable import OnUnreadable, raise_unreadable

CLOSE_S = 10.0


def read_slices_sync(
    store_url: str,
    slices: Sequence[Slice],
    columns: Sequence[str] = DEFAULT,
    aborted: AbortedByStream | None = None,
    config: ReadConfig | None = None,
    *,
    times: TimeBounds = ALL_TIMES,
    bodies: Mapping[str, bytes] | None = None,
    on_unreadable: OnUnreadable = raise_unreadable,
    wal_store_url: str = "",
) -> Generator[RecordBatch, None, None]:
    """Read slices like `read.read_slices`. Close the iterator if it is not exhausted.

    `bodies` are complete objects by key.
    """
    config = config or ReadConfig()
    shared = background()
    decoder = Decoder(
        columns,
        config,
        size_bytes=sum(part.size_bytes for part in slices),
        on_unreadable=on_unreadable,
    )
    work = PartDecoder(decoder, aborted, times)
    fetch = open_fetch(
        store_url, wal_store_url, slices, config, wanted=blocks_within(times), bodies=bodies
    )
    gone: ObjectGone | None = None
    try:
        while True:
            try:
                fetched = shared.run(fetch.next())
            except ObjectGone as error:
                gone, fetched = error, None
            if fetched is None:
                break
            yield from work.decode(fetched)
        yield from decoder.flush()
    finally:
        shared.run(fetch.close(), CLOSE_S)
    if gone is not None:
        raise gone


def open_fetch(
    store_url: str,
    wal_store_url: str,
    slices: Sequence[Slice],
    config: ReadConfig,
    *,
    wanted: Wanted,
    bodies: Mapping[str, bytes] | None,
) -> Fetch:
    """Start to fetch slices on the background loop. The arguments are those of `Fetch`."""

    async def opened() -> Fetch:
        store = await background().store(store_url, wal_store_url)
        cache = index_cache(store, config)
        return Fetch(store, slices, config, cache, wanted=wanted, bodies=bodies)

    return background().run(opened())
