"""Reading committed ranges: the right batches, few GETs, shared caches, and rejection of damaged
data.
"""

import asyncio
import random
from dataclasses import replace
from typing import cast

import pytest

from penstock.base.buffers import Buffer
from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    ObjectId,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.objectstore.errors import ObjectNotFound
from penstock.objectstore.memory import MemoryStore
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.header import iter_headers, parse_header
from penstock.protocol.batch.records import Record, encode_batch
from penstock.stream.cache.block_cache import BlockCache
from penstock.stream.errors import NotContiguous, ObjectCorrupt
from penstock.stream.format.builder import RunEntry, StreamRun, build_object
from penstock.stream.format.decoder import verify_object
from penstock.stream.format.layout import NO_SEQUENCE
from penstock.stream.ports import BrokerIncarnation, ObjectRange, ObjectRole
from penstock.stream.read import object_reader
from penstock.stream.read.object_reader import ObjectReader, ObjectReaderConfig
from penstock.stream.read.timestamp_reader import TimestampReader

STREAM = StreamId(7)
RECORDS_PER_BATCH = 5


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.gets: list[tuple[str, int, int]] = []
        self.gives_views = False

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        self.gets.append((key, start, length))
        await asyncio.sleep(0)
        data = await super().get_range(key, start, length)
        return memoryview(data) if self.gives_views else data


def entry(
    base: int, size_bytes: int = 500, compression: Compression = Compression.NONE
) -> RunEntry:
    value = random.Random(base).randbytes(size_bytes // RECORDS_PER_BATCH)
    records = [Record(base + i, 1_000 * (base + i), None, value) for i in range(RECORDS_PER_BATCH)]
    batch = encode_batch(records, base_offset=base, compression=compression)
    return RunEntry.of_batch(bytes(batch), parse_header(batch))


async def put(
    store: MemoryStore, object_id: int, entries: list[RunEntry], *, block_bytes_max: int = 2_000
) -> ObjectRange:
    """Write an object with other streams on both sides of the stream under test."""
    other = [entry(0)]
    runs = [
        StreamRun(StreamId(3), other),
        StreamRun(STREAM, entries),
        StreamRun(StreamId(9), other),
    ]
    built = build_object(
        ObjectRole.STREAM_SET,
        BrokerIncarnation(NodeId(1), NodeEpoch(1)),
        WalSequence(NO_SEQUENCE),
        Millis(0),
        runs,
        block_bytes_max=block_bytes_max,
    )
    key = f"data/{object_id}"
    await store.put(key, built.chunks)
    return ObjectRange(
        ObjectId(object_id), key, ObjectRole.STREAM_SET, built.size_bytes, built.ranges[1]
    )


async def three_objects(
    store: MemoryStore, batches: int = 20, size_bytes: int = 500
) -> tuple[list[ObjectRange], bytes]:
    entries = [
        [entry((i * batches + j) * RECORDS_PER_BATCH, size_bytes) for j in range(batches)]
        for i in range(3)
    ]
    ranges = [await put(store, i, entries[i]) for i in range(3)]
    return ranges, b"".join(bytes(e.payload) for part in entries for e in part)


def reader_of(store: MemoryStore, **config: int) -> ObjectReader:
    return ObjectReader(store, BlockCache(64 << 20), ObjectReaderConfig(**config))


async def test_reads_from_any_offset_return_all_later_batches() -> None:
    store = CountingStore()
    ranges, everything = await three_objects(store)
    reader = reader_of(store)
    for start in range(0, 300, 7):
        first = start // 100
        read = b"".join(await reader.read(ranges[first:], start, 1 << 20))
        assert (
            read
            == everything[
                everything.index(bytes(entry(start - start % RECORDS_PER_BATCH).payload)) :
            ]
        )
    await reader.close()


async def test_reading_in_steps_returns_every_batch_once() -> None:
    store = CountingStore()
    ranges, everything = await three_objects(store)
    reader = reader_of(store)
    read, at = b"", 0
    while at < 300:
        views = await reader.read([r for r in ranges if r.range.end_offset > at], at, 1_500)
        got = b"".join(views)
        assert 0 < len(got) <= 1_500
        at = [header for _, header in iter_headers(got)][-1].next_offset
        read += got
    assert read == everything
    await reader.close()


@pytest.mark.parametrize("gives_views", [False, True])
async def test_blocks_of_one_get_share_its_memory_if_the_cache_is_large(
    gives_views: bool,
) -> None:
    store = CountingStore()
    store.gives_views = gives_views
    mine = await put(
        store, 0, [entry(at * RECORDS_PER_BATCH, 5_000) for at in range(40)], block_bytes_max=20_000
    )
    config = ObjectReaderConfig(whole_bytes_max=0)
    for cache_bytes, is_shared in ((8 * mine.object_size_bytes, True), (300_000, False)):
        reader = ObjectReader(store, BlockCache(cache_bytes), config)
        views = await reader.read([mine], 0, 1 << 20)
        assert len(views) > 5
        memories = {id(view.obj): view.obj for view in views}
        held_bytes = sum(len(cast("bytes", memory)) for memory in memories.values())
        assert len(memories) == (1 if is_shared else len(views))
        assert held_bytes == sum(map(len, views))
        assert await reader.read([mine], 0, 1 << 20) == views, "from the cache"
        await reader.close()


async def test_a_small_object_is_read_with_one_get_for_all_its_streams() -> None:
    store = CountingStore()
    mine = await put(store, 0, [entry(at * RECORDS_PER_BATCH, 5_000) for at in range(40)])
    assert mine.object_size_bytes > 100_000
    small, large = reader_of(store), reader_of(store, whole_bytes_max=100_000)
    other = replace(
        mine,
        range=replace(
            mine.range,
            stream_id=StreamId(9),
            start_offset=Offset(0),
            end_offset=Offset(RECORDS_PER_BATCH),
        ),
    )
    await asyncio.gather(small.read([mine], 0, 1 << 20), small.read([other], 0, 1 << 20))
    assert len(store.gets) == 1
    await asyncio.gather(large.read([mine], 0, 1 << 20), large.read([other], 0, 1 << 20))
    assert len(store.gets) > 2
    await small.close()
    await large.close()


def neighbor(mine: ObjectRange) -> ObjectRange:
    """Return the small stream after the one under test in the same object."""
    held = replace(
        mine.range,
        stream_id=StreamId(9),
        start_offset=Offset(0),
        end_offset=Offset(RECORDS_PER_BATCH),
    )
    return replace(mine, range=held)


async def test_streams_read_at_the_same_time_share_one_get() -> None:
    store = CountingStore()
    entries = [entry(at * RECORDS_PER_BATCH, 5_000) for at in range(40)]
    mine = await put(store, 0, entries)
    reader = reader_of(store, whole_bytes_max=100_000)
    ours, theirs = await asyncio.gather(
        reader.read([mine], 0, 1 << 20), reader.read([neighbor(mine)], 0, 1 << 20)
    )
    assert b"".join(ours) == b"".join(bytes(item.payload) for item in entries)
    assert b"".join(theirs) == bytes(entry(0).payload)
    assert len(store.gets) == 2, "the index, and all blocks"
    await reader.close()


async def test_distant_or_large_reads_are_not_merged() -> None:
    store = CountingStore()
    mine = await put(store, 0, [entry(at * RECORDS_PER_BATCH, 5_000) for at in range(80)])
    assert mine.object_size_bytes > 400_000
    for config, start in (({"get_bytes_max": 100_000}, 0), ({}, 40 * RECORDS_PER_BATCH)):
        reader = reader_of(store, whole_bytes_max=100_000, **config)
        await reader.index(mine)
        store.gets.clear()
        first = reader.read([mine], start, 2_000)
        await asyncio.gather(first, reader.read([neighbor(mine)], 0, 1 << 20))
        assert len(store.gets) == 2
        assert max(length for _, _, length in store.gets) <= 100_000
        await reader.close()


async def test_a_failed_merged_get_fails_only_requests_for_the_missing_object() -> None:
    store = CountingStore()
    mine = await put(store, 0, [entry(at * RECORDS_PER_BATCH, 5_000) for at in range(40)])
    reader = reader_of(store, whole_bytes_max=100_000)
    await reader.index(mine)
    whole = await store.get(mine.key)
    await store.put(mine.key, [bytes(whole)[: mine.range.size_bytes // 2]])
    cut, read = await asyncio.gather(
        reader.read([neighbor(mine)], 0, 1 << 20),
        reader.read([mine], 0, 10_000),
        return_exceptions=True,
    )
    assert isinstance(cut, ObjectCorrupt)
    assert not isinstance(read, BaseException)
    assert b"".join(read).startswith(bytes(entry(0, 5_000).payload))
    await reader.close()


async def test_reads_respect_byte_and_offset_limits() -> None:
    store = CountingStore()
    ranges, everything = await three_objects(store)
    reader = reader_of(store)
    batch_bytes = len(everything) // 60
    first = bytes(entry(10).payload)
    assert b"".join(await reader.read(ranges, 12, 1)) == first
    assert await reader.read(ranges, 12, 1, min_one=False) == []
    assert b"".join(await reader.read(ranges, 12, batch_bytes * 2 + 5)) == first + bytes(
        entry(15).payload
    )
    assert b"".join(await reader.read(ranges, 12, 1 << 20, end_offset=20)) == first + bytes(
        entry(15).payload
    )
    assert b"".join(await reader.read(ranges, 95, 1 << 20, end_offset=105)) == bytes(
        entry(95).payload
    ) + bytes(entry(100).payload)
    await reader.close()


async def test_only_committed_records_are_returned() -> None:
    store = CountingStore()
    whole = await put(store, 1, [entry(i * RECORDS_PER_BATCH) for i in range(20)])
    part = replace(
        whole, range=replace(whole.range, start_offset=Offset(30), end_offset=Offset(60))
    )
    reader = reader_of(store)
    found = [
        header.base_offset
        for view in await reader.read([part], 30, 1 << 20)
        for _, header in iter_headers(view)
    ]
    assert found == [30, 35, 40, 45, 50, 55]
    for start, end in ((28, 60), (30, 58)):
        torn = replace(
            whole, range=replace(whole.range, start_offset=Offset(start), end_offset=Offset(end))
        )
        with pytest.raises(ObjectCorrupt, match="across a border"):
            await reader.read([torn], start, 1 << 20)
    beyond = replace(whole, range=replace(whole.range, end_offset=Offset(105)))
    with pytest.raises(ObjectCorrupt, match="does not contain the committed range"):
        await reader.read([beyond], 30, 1 << 20)
    await reader.close()


@pytest.mark.parametrize(("max_bytes", "blocks_count"), [(1_000, 1), (2_000, 2), (4_000, 3)])
async def test_a_read_does_not_load_a_block_of_which_it_needs_little(
    max_bytes: int, blocks_count: int
) -> None:
    """The cache may have evicted the rest when the consumer comes back. max_bytes: beyond the first
    block.
    """
    store = CountingStore()
    entries = [entry(i * RECORDS_PER_BATCH, 10_000) for i in range(20)]
    size = len(entries[0].payload)
    one = await put(store, 1, entries, block_bytes_max=size)
    reader = reader_of(store, whole_bytes_max=1, get_bytes_max=size)
    await reader.index(one)
    before = len(store.gets)
    start = 10 * RECORDS_PER_BATCH if max_bytes < 4_000 else 10 * RECORDS_PER_BATCH + 1
    views = await reader.read([one], start, size + max_bytes)
    assert end_of(views) == 11 * RECORDS_PER_BATCH
    assert len(store.gets) - before == blocks_count
    await reader.close()


async def test_a_small_object_is_read_with_one_get() -> None:
    store = CountingStore()
    ranges, _ = await three_objects(store)
    reader = reader_of(store)
    await reader.read(ranges, 0, 1 << 20)
    assert len(store.gets) == 3
    await reader.close()


async def test_adjacent_blocks_are_read_with_one_get_shared_by_readers() -> None:
    store = CountingStore()
    one = await put(
        store,
        1,
        [entry(i * RECORDS_PER_BATCH, 10_000) for i in range(100)],
        block_bytes_max=100_000,
    )
    reader = reader_of(store, get_bytes_max=400_000, whole_bytes_max=100_000)
    results = await asyncio.gather(*(reader.read([one], 0, 900_000) for _ in range(5)))
    assert all(b"".join(result) == b"".join(results[0]) for result in results)
    assert len(store.gets) == 1 + 3
    assert max(length for _, _, length in store.gets) <= 400_000
    await reader.close()


async def test_blocks_are_prefetched_for_sequential_readers() -> None:
    store = CountingStore()
    entries = [entry(i * RECORDS_PER_BATCH, 10_000) for i in range(200)]
    one = await put(store, 1, entries, block_bytes_max=50_000)
    reader = reader_of(store, read_ahead_bytes_min=100_000, read_ahead_bytes_max=800_000)
    at = 0
    misses = 0
    while at < 1_000:
        before = len(store.gets)
        views = await reader.read([one], at, 50_000)
        misses += len(store.gets) > before
        at = [header for _, header in iter_headers(views[-1])][-1].next_offset
        await reader.idle()
    assert misses <= 4
    positions = [start for _, start, _ in store.gets]
    assert len(positions) == len(set(positions))
    await reader.close()


def end_of(views: list[memoryview]) -> int:
    return [header for _, header in iter_headers(views[-1])][-1].next_offset


@pytest.mark.parametrize("max_bytes", [1, 1_500, 20_000, 1 << 20])
async def test_prefetched_records_are_returned_at_once_unchanged(max_bytes: int) -> None:
    store = CountingStore()
    ranges, everything = await three_objects(store, batches=100, size_bytes=1_000)
    reader = reader_of(store, whole_bytes_max=1_000, read_ahead_bytes_min=40_000)
    read, at, loaded_count = b"", 0, 0
    while at < 1_500:
        requested = [source for source in ranges if source.range.end_offset > at]
        gets = len(store.gets)
        views = reader.read_loaded(requested, at, max_bytes, 1_500)
        if views is None:
            views = await reader.read(requested, at, max_bytes)
            await reader.idle()
        else:
            assert len(store.gets) == gets
            loaded_count += 1
        got = b"".join(views)
        assert len(got) <= max_bytes or len(list(iter_headers(got))) == 1
        read, at = read + got, end_of(views)
    assert read == everything
    assert loaded_count > 0 or max_bytes > len(everything)
    await reader.close()


async def test_a_read_of_many_records_in_memory_stops_after_a_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(object_reader, "LOADED_RECORDS_MAX", 11)
    store = CountingStore()
    entries = [entry(i * RECORDS_PER_BATCH) for i in range(20)]
    one = await put(store, 1, entries, block_bytes_max=2 * len(entries[0].payload))
    reader = reader_of(store)
    at = 0
    for _ in range(2):
        at = end_of(await reader.read([one], at, 1_500))
        await reader.idle()
    assert at % (2 * RECORDS_PER_BATCH) == 0
    views = reader.read_loaded([one], at, 1 << 20, 100)
    assert views is not None
    assert end_of(views) == at + 20, "two blocks of ten records"
    await reader.close()


class GatedStore(CountingStore):
    """Holds GETs while the gate is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        self.gets.append((key, start, length))
        await self.gate.wait()
        return await MemoryStore.get_range(self, key, start, length)


async def test_the_next_blocks_are_requested_while_others_are_in_flight() -> None:
    store = GatedStore()
    entries = [entry(i * RECORDS_PER_BATCH, 10_000) for i in range(20)]
    size = len(entries[0].payload)
    one = await put(store, 1, entries, block_bytes_max=size)
    reader = reader_of(
        store,
        whole_bytes_max=1,
        get_bytes_max=size,
        read_ahead_bytes_min=4 * size,
        read_ahead_bytes_max=4 * size,
    )
    at = 0
    for _ in range(2):
        at = end_of(await reader.read([one], at, size))
        await reader.idle()
    store.gate.clear()
    requested = [len(store.gets)]
    while (views := reader.read_loaded([one], at, size, 100)) is not None:
        at = end_of(views)
        for _ in range(5):
            await asyncio.sleep(0)
        if len(store.gets) > requested[-1]:
            requested.append(len(store.gets))
    assert len(requested) >= 3, "two more windows"
    store.gate.set()
    await reader.close()


async def test_indexes_of_the_next_objects_are_prefetched() -> None:
    store = CountingStore()
    entries = [entry(i * RECORDS_PER_BATCH, 10_000) for i in range(100)]
    ranges = [await put(store, i, entries[20 * i : 20 * i + 20]) for i in range(5)]
    reader = reader_of(store, whole_bytes_max=1, read_ahead_bytes_min=210_000)
    at = 0
    for _ in range(2):
        at = end_of(await reader.read(ranges, at, 10_000))
        await reader.idle()
    keys = [key for key, _, _ in store.gets]
    assert keys.count("data/2") == keys.count("data/3") == 1
    assert keys.count("data/4") == 0
    await reader.index(ranges[3])
    assert [key for key, _, _ in store.gets] == keys
    await reader.close()


async def test_small_ranges_are_replanned_for_prefetching() -> None:
    store = CountingStore()
    ranges, _ = await three_objects(store)
    reader = reader_of(store, whole_bytes_max=1, read_ahead_bytes_min=40_000)
    requested: list[tuple[int, int]] = []

    def replan(offset: int, size_bytes: int) -> list[ObjectRange]:
        requested.append((offset, size_bytes))
        return ranges

    at = 0
    for _ in range(2):
        at = end_of(await reader.read(ranges[:1], at, 600, replan=replan))
        await reader.idle()
    assert requested == [(at, 80_000)]
    views = reader.read_loaded(ranges, at, 1 << 20, 300)
    assert views is not None
    assert end_of(views) == 300
    await reader.close()


async def test_a_long_read_yields_to_other_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    entries = [entry(i * RECORDS_PER_BATCH) for i in range(20)]
    one = await put(store, 1, entries, block_bytes_max=2 * len(entries[0].payload))
    reader = reader_of(store)

    async def turns_of_a_read() -> int:
        reading = asyncio.ensure_future(reader.read([one], 0, 1 << 20))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
        assert end_of(await reading) == 100
        await reader.idle()
        return turns

    await turns_of_a_read()
    usual = await turns_of_a_read()
    monkeypatch.setattr(object_reader, "_STEP_RECORDS_MAX", 20)
    assert await turns_of_a_read() == usual + 4, "after each second of ten blocks but the last"
    await reader.close()


async def test_only_a_continuing_reader_gets_prefetched_records() -> None:
    """Nothing is returned after an end or a gap, or from a range that is not in memory."""
    store = CountingStore()
    ranges, everything = await three_objects(store)
    reader = reader_of(store)
    assert reader.read_loaded(ranges, 0, 10, 300) is None, "nothing is in memory"
    at = 0
    for _ in range(3):
        at = end_of(await reader.read(ranges, at, 600))
        await reader.idle()
    for start in (0, at + RECORDS_PER_BATCH):
        assert reader.read_loaded(ranges, start, 10, 300) is None, "no reader is there"
    assert reader.read_loaded(ranges, at - RECORDS_PER_BATCH, 10, 300), "a second one gets there"

    def loaded(ranges: list[ObjectRange], max_bytes: int, end_offset: int) -> int:
        nonlocal at
        views = reader.read_loaded(ranges, at, max_bytes, end_offset)
        assert views is not None
        assert everything.count(b"".join(views)) == 1
        at = end_of(views)
        return at

    assert loaded(ranges, 1 << 20, at + RECORDS_PER_BATCH) == 20, "as far as requested"
    assert loaded(ranges, 1, 300) == 25, "one batch, however large"
    assert loaded([ranges[0], ranges[2]], 1 << 20, 300) == 100, "not across a hole"
    assert reader.read_loaded([ranges[0]], at, 1, 300) is None
    await reader.close()


async def test_a_read_returns_data_before_a_missing_object_and_then_requires_a_new_plan() -> None:
    store = CountingStore()
    ranges, everything = await three_objects(store)
    await store.delete([ranges[1].key])
    reader = reader_of(store)
    assert b"".join(await reader.read(ranges, 0, 1 << 20)) == everything[: len(everything) // 3]
    with pytest.raises(ObjectNotFound) as raised:
        await reader.read(ranges[1:], ranges[1].range.start_offset, 1 << 20)
    assert raised.value.key == ranges[1].key
    assert (
        b"".join(await reader.read(ranges[2:], ranges[2].range.start_offset, 1 << 20))
        == everything[-len(everything) // 3 :]
    )
    await reader.close()


async def test_cached_records_are_returned_after_their_object_is_deleted() -> None:
    store = CountingStore()
    one = await put(
        store, 1, [entry(i * RECORDS_PER_BATCH, 10_000) for i in range(20)], block_bytes_max=20_000
    )
    reader = reader_of(store, whole_bytes_max=1_000)
    first, later = await reader.read([one], 0, 15_000), await reader.read([one], 60, 15_000)
    await store.delete([one.key])
    intact = await reader.read([one], 0, 1 << 20)
    assert b"".join(intact).startswith(b"".join(first))
    end = [header for view in intact for _, header in iter_headers(view)][-1].next_offset
    assert end < 60
    with pytest.raises(ObjectNotFound):
        await reader.read([one], end, 1 << 20)
    assert await reader.read([one], 60, 15_000) == later
    await reader.close()


async def read_on(reader: ObjectReader, ranges: list[ObjectRange], given: list[memoryview]) -> None:
    """Read until a read raises, and collect the batches."""
    at = 0
    while True:
        given += await reader.read(ranges, at, 1 << 30)
        at = [header for _, header in iter_headers(given[-1])][-1].next_offset


@pytest.mark.parametrize("size_bytes", [500, 20_000], ids=["small", "large"])
async def test_damaged_data_is_rejected(size_bytes: int) -> None:
    store = MemoryStore()
    ranges, _ = await three_objects(store, size_bytes=size_bytes)
    good = await store.get(ranges[0].key)
    rng = random.Random(5)
    blocks = verify_object(good).blocks_of(STREAM, 0, 1 << 60)
    ours = blocks[0].position
    index_position = max(
        block.position + block.size_bytes for block in verify_object(good).blocks()
    )
    positions = [ours + i for i in range(61)] + [len(good) - 1 - i for i in range(200)]
    positions += [ours + rng.randrange(ranges[0].range.size_bytes) for _ in range(50)]
    for position in positions:
        bad = bytearray(good)
        bad[position] ^= 1 << rng.randrange(8)
        await store.put(ranges[0].key, bad)
        reader = reader_of(store)
        given: list[memoryview] = []
        with pytest.raises(ObjectCorrupt):
            await read_on(reader, ranges[:1], given)
        intact = [block for block in blocks if block.position + block.size_bytes <= position]
        expected = (
            b""
            if position >= index_position
            else good[ours : ours + sum(block.size_bytes for block in intact)]
        )
        assert b"".join(given) == expected
        await reader.close()
    for cut in (0, 10, len(good) // 2, len(good) - 1):
        await store.put(ranges[0].key, good[:cut])
        reader = reader_of(store)
        with pytest.raises(ObjectCorrupt):
            await reader.read(ranges[:1], 0, 1 << 30)
        await reader.close()


async def test_damage_in_other_streams_of_the_object_is_ignored() -> None:
    store = MemoryStore()
    ranges, everything = await three_objects(store)
    bad = bytearray(await store.get(ranges[0].key))
    bad[60] ^= 1  # in the block of stream 3
    await store.put(ranges[0].key, bad)
    reader = reader_of(store)
    assert b"".join(await reader.read(ranges, 0, 1 << 20)) == everything
    await reader.close()


async def test_ranges_must_be_contiguous() -> None:
    store = MemoryStore()
    ranges, _ = await three_objects(store)
    reader = reader_of(store)
    for bad, start in (
        (ranges, 100),
        ([ranges[0], ranges[2]], 0),
        ([ranges[1]], 99),
        ([ranges[0], ranges[0]], 0),
    ):
        with pytest.raises(NotContiguous):
            await reader.read(bad, start, 100)
    await reader.close()


async def test_lookup_by_timestamp() -> None:
    store = CountingStore()
    ranges = [
        await put(
            store,
            i,
            [entry((i * 10 + j) * RECORDS_PER_BATCH, 500, Compression.ZSTD) for j in range(10)],
        )
        for i in range(3)
    ]
    reader, search = reader_of(store), TimestampReader(1 << 20)
    assert await reader.offset_for_timestamp(ranges, 0, search) == (0, 0)
    assert await reader.offset_for_timestamp(ranges, 77_000, search) == (77, 77_000)
    assert await reader.offset_for_timestamp(ranges, 76_001, search) == (77, 77_000)
    assert await reader.offset_for_timestamp(ranges[1:], 76_001, search) == (77, 77_000)
    assert await reader.offset_for_timestamp(ranges, 5_000, search, start_offset=88) == (88, 88_000)
    assert await reader.offset_for_timestamp(ranges, 150_000, search) is None
    search.close()
    await reader.close()


async def test_closing_the_reader_while_it_reads() -> None:
    store = CountingStore()
    ranges, _ = await three_objects(store)
    reader = reader_of(store)
    reading = asyncio.ensure_future(reader.read(ranges, 0, 1 << 20))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await reader.close()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_a_rewrite_keeps_little_unneeded_data_in_memory() -> None:
    store = CountingStore()
    (source, *_), everything = await three_objects(store)
    reader = reader_of(store)
    pieces = await reader.pieces(source)
    blocks = await reader.load_uncached(pieces)
    assert everything.startswith(b"".join(blocks))
    assert all(isinstance(block, memoryview) for block in blocks), "they share one GET"
    store.gets.clear()
    apart = await reader.load_uncached([pieces[0], pieces[-1]])
    assert len(store.gets) == 1
    assert apart == [blocks[0], blocks[-1]]
    assert all(isinstance(block, bytes) for block in apart), "copied, so that the rest goes"
    await reader.close()
