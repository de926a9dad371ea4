"""Slices from a store to Arrow: requested ranges, remaining records if an object is missing,
damage, threads and forks.
"""

import asyncio
import os
import pickle
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from penstock.lake.arrow.columns import arrow_schema
from penstock.lake.arrow.read import read_slices
from penstock.lake.arrow.read_sync import read_slices_sync
from penstock.lake.fetch.errors import ObjectGone, ReadError
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.fetch.slices import Slice
from penstock.lake.fetch.times import TimeBounds
from penstock.objectstore.errors import DeadlineExceeded
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.url import open_store
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.header import TRANSACTIONAL_MASK
from penstock.protocol.batch.records import Record, encode_batch
from penstock.stream.format.transaction_log import AbortedTransaction
from tests.support.reader_objects import ALL, WatchedStore, build, put_object, row_of, rows_of


def batches_of(
    first: int, count: int, *, per_batch: int = 5, size: int = 100, seed: int = 0, **options: Any
) -> list[bytearray]:
    """Return batches of `count` records starting at offset `first`."""
    rng = Random(seed + first)
    found: list[bytearray] = []
    for base in range(first, first + count, per_batch):
        records = [
            Record(base + i, 1_000 * (base + i), b"%d" % (base + i), rng.randbytes(size))
            for i in range(per_batch)
        ]
        found.append(
            encode_batch(
                records, base_offset=base, compression=rng.choice(list(Compression)), **options
            )
        )
    return found


async def collect(batches: AsyncIterator[pa.RecordBatch]) -> pa.Table:
    return pa.Table.from_batches([batch async for batch in batches], schema=arrow_schema(ALL))


async def offsets(
    store: MemoryStore, slices: Sequence[Slice], **options: Any
) -> list[tuple[int, int]]:
    table = await collect(read_slices(store, slices, ALL, **options))
    return list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))


async def take(batches: AsyncIterator[pa.RecordBatch], found: list[tuple[int, int]]) -> None:
    """Collect all rows up to the first error."""
    async for batch in batches:
        found += zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)


def take_sync(batches: Iterator[pa.RecordBatch], found: list[int]) -> None:
    for batch in batches:
        found += batch["offset"].to_pylist()


async def test_rows_of_many_objects_and_partitions_are_in_slice_order() -> None:
    store, slices = MemoryStore(), list[Slice]()
    for number in range(6):
        slices += await put_object(
            store,
            f"data/{number}",
            {stream: batches_of(number * 50, 50, seed=stream) for stream in (1, 4, 9)},
        )
    ordered = sorted(slices, key=lambda s: s.stream_id)
    assert await offsets(store, ordered) == [
        (stream, offset) for stream in (1, 4, 9) for offset in range(300)
    ]
    assert await offsets(store, slices) == [
        (s.partition, offset) for s in slices for offset in range(s.start_offset, s.end_offset)
    ]


async def test_sub_ranges_add_up_to_the_whole_range() -> None:
    store, rng = MemoryStore(), Random(5)
    (whole,) = await put_object(store, "data/x", {1: batches_of(100, 400)}, block_bytes_max=3_000)
    everything = rows_of(await collect(read_slices(store, [whole], ALL)))
    assert [row[0] for row in everything] == list(range(100, 500))
    for _ in range(10):
        borders = [100, *sorted(rng.sample(range(101, 500), 4)), 500]
        pieces = [
            replace(whole, start_offset=low, end_offset=high) for low, high in pairwise(borders)
        ]
        assert rows_of(await collect(read_slices(store, pieces, ALL))) == everything


async def test_adjacent_blocks_share_a_get_and_indexes_are_cached() -> None:
    store = WatchedStore()
    streams = {1: batches_of(0, 50), 2: batches_of(0, 500, size=200), 3: batches_of(0, 50)}
    slices = await put_object(store, "data/x", streams, block_bytes_max=4_000)
    gap = sum(map(len, streams[2]))
    requested = [slices[0], slices[2]]
    expected = [(partition, offset) for partition in (1, 3) for offset in range(50)]
    for gap_bytes_max, gets in ((gap - 1, 3), (gap, 1)):
        store.gets.clear()
        # The index is read once, by the first pass.
        config = ReadConfig(gap_bytes_max=gap_bytes_max)
        assert await offsets(store, requested, config=config) == expected
        assert len(store.gets) == gets, store.gets


async def test_a_small_object_is_read_with_one_get() -> None:
    store = WatchedStore()
    slices = [
        (await put_object(store, f"wal/{n}", {1: batches_of(n * 10, 10)}))[0] for n in range(40)
    ]
    assert await offsets(store, slices) == [(1, offset) for offset in range(400)]
    assert len(store.gets) == 40


async def test_requests_in_flight_are_limited() -> None:
    store = WatchedStore()
    slices = [
        (
            await put_object(
                store, f"data/{n}", {1: batches_of(n * 200, 200, size=1_000)}, block_bytes_max=5_000
            )
        )[0]
        for n in range(4)
    ]
    part, tail = 30_000, 64 << 10
    config = ReadConfig(part_bytes_max=part, gap_bytes_max=0, gets_in_flight_max=2)
    assert len(await offsets(store, slices, config=config)) == 800
    assert max(length for _, _, length in store.gets) <= tail
    assert len(store.gets) > 4 * 3
    assert store.under_way_bytes_max <= 2 * part + 2 * tail


async def test_blocks_older_than_requested_are_not_read() -> None:
    store = WatchedStore()
    (whole,) = await put_object(store, "data/x", {1: batches_of(0, 1_000)}, block_bytes_max=2_000)
    config = ReadConfig(gap_bytes_max=0)
    found = await offsets(store, [whole], config=config, times=TimeBounds(900_000))
    assert found == [(1, offset) for offset in range(900, 1_000)]
    assert sum(length for _, _, length in store.gets[1:]) < whole.size_bytes / 5


async def test_aborted_transactions_apply_to_their_stream() -> None:
    store = MemoryStore()
    options = {
        "producer_id": 7,
        "producer_epoch": 0,
        "base_sequence": 0,
        "attributes": TRANSACTIONAL_MASK,
    }
    slices = await put_object(
        store, "data/x", {1: batches_of(0, 20, **options), 2: batches_of(0, 20, **options)}
    )
    aborted = {2: [AbortedTransaction(7, 5, 14)]}
    expected = [(1, offset) for offset in range(20)] + [
        (2, offset) for offset in range(20) if not 5 <= offset < 15
    ]
    assert await offsets(store, slices, aborted=aborted) == expected


@pytest.mark.parametrize("gone", range(3))
async def test_a_missing_object_is_reported_with_the_remaining_records(gone: int) -> None:
    store, slices = MemoryStore(), list[Slice]()
    for number in range(3):
        slices += await put_object(
            store,
            f"data/{number}",
            {1: batches_of(number * 50, 50), 2: batches_of(number * 50, 50)},
        )
    await store.delete([f"data/{gone}"])
    found: list[tuple[int, int]] = []
    with pytest.raises(ObjectGone, match=f"data/{gone} with") as raised:
        await take(read_slices(store, slices, ALL), found)
    left = [raised.value.slice, *raised.value.remaining]
    assert left == slices[2 * gone :]
    assert found == [
        (s.partition, offset)
        for s in slices[: 2 * gone]
        for offset in range(s.start_offset, s.end_offset)
    ]
    copy = pickle.loads(pickle.dumps(raised.value))
    assert (copy.slice, copy.remaining, str(copy)) == (
        raised.value.slice,
        raised.value.remaining,
        str(raised.value),
    )


async def test_an_object_that_is_deleted_while_it_is_read_is_reported() -> None:
    class Vanishing(WatchedStore):
        async def get_range(self, key: str, start: int, length: int) -> bytes:
            if len(self.gets) == 5:
                await self.delete([key])
            return await super().get_range(key, start, length)

    store = Vanishing()
    before, whole = [
        (
            await put_object(
                store,
                f"data/{n}",
                {1: batches_of(n * 400, 400, size=1_000)},
                block_bytes_max=20_000,
            )
        )[0]
        for n in range(2)
    ]
    requested = [before, replace(whole, start_offset=403, end_offset=777)]
    found: list[tuple[int, int]] = []
    with pytest.raises(ObjectGone) as raised:
        await take(
            read_slices(
                store, requested, ALL, config=ReadConfig(part_bytes_max=150_000, gap_bytes_max=0)
            ),
            found,
        )
    left = [raised.value.slice, *raised.value.remaining]
    assert len(found) > 0
    again, slices = MemoryStore(), list[Slice]()
    for n in range(2):
        slices += await put_object(again, f"other/{n}", {1: batches_of(n * 400, 400)})
    for rest in left:
        source = slices[rest.start_offset // 400]
        part = replace(source, start_offset=rest.start_offset, end_offset=rest.end_offset)
        found += await offsets(again, [part])
    assert found == [(1, offset) for offset in [*range(400), *range(403, 777)]], (
        "what was given and what was said to be left is everything once"
    )


async def test_the_error_of_damaged_data_contains_its_place() -> None:
    store = MemoryStore()
    (whole,) = await put_object(store, "data/x", {1: batches_of(0, 100)}, block_bytes_max=2_000)
    data = await store.get("data/x")
    for position, what in (
        (5_000, "checksum"),
        (len(data) - 20, "footer"),
        (len(data) - 100, "index"),
    ):
        damaged = bytearray(data)
        damaged[position] ^= 1
        await store.put(f"data/{position}", bytes(damaged))
        with pytest.raises(
            ReadError, match=rf"object data/{position}, topic-1 at offset \d+: .*{what}"
        ):
            await offsets(store, [replace(whole, key=f"data/{position}")])
    await store.put("data/short", data[:-10])
    with pytest.raises(ReadError, match="instead of"):
        await offsets(store, [replace(whole, key="data/short")])
    for other in (
        replace(whole, stream_id=2),
        replace(whole, end_offset=101),
        replace(whole, object_size_bytes=0, key="data/y"),
    ):
        with pytest.raises(ReadError):
            await offsets(store, [other])
    with pytest.raises(ReadError, match="block_bytes_max"):
        await offsets(store, [whole], config=ReadConfig(block_bytes_max=100))


async def test_store_errors_are_raised_and_no_task_is_left_running() -> None:
    class Failing(WatchedStore):
        async def get_range(self, key: str, start: int, length: int) -> bytes:
            if key == "data/2":
                raise DeadlineExceeded("get", key, 1, None)
            return await super().get_range(key, start, length)

    store = Failing()
    slices = [
        (await put_object(store, f"data/{n}", {1: batches_of(n * 50, 50)}))[0] for n in range(5)
    ]
    before = asyncio.all_tasks()
    with pytest.raises(DeadlineExceeded):
        await offsets(store, slices)
    reader = read_slices(store, slices[:2] * 20, ALL, config=ReadConfig(rows_max=10))
    async for _ in reader:
        break
    await reader.aclose()
    assert asyncio.all_tasks() == before


async def test_reading_no_slices_returns_no_rows() -> None:
    assert await offsets(MemoryStore(), []) == []


# --- without an event loop ------------------------------------------------------------------------


def directory_store(directory: Path) -> tuple[str, list[Slice]]:
    async def fill() -> list[Slice]:
        store, slices = open_store(url), list[Slice]()
        for number in range(8):
            slices += await put_object(store, f"data/{number}", {1: batches_of(number * 100, 100)})
        await store.close()
        return slices

    url = f"file:{directory}"
    return url, asyncio.run(fill())


def read_offsets(url: str, slices: Sequence[Slice], **options: Any) -> list[int]:
    found: list[int] = []
    take_sync(read_slices_sync(url, slices, ("offset",), **options), found)
    return found


def test_repeated_synchronous_reads_return_the_same_rows(tmp_path: Path) -> None:
    url, slices = directory_store(tmp_path)
    for _ in range(3):
        assert read_offsets(url, slices, config=ReadConfig(rows_max=70)) == list(range(800))
    reader = iter(read_slices_sync(url, slices, ("offset",), config=ReadConfig(rows_max=10)))
    assert next(reader)["offset"].to_pylist() == list(range(10))
    reader.close()
    (tmp_path / "data" / "5").unlink()
    found: list[int] = []
    with pytest.raises(ObjectGone) as raised:
        take_sync(read_slices_sync(url, slices, ("offset",)), found)
    assert found == list(range(500))
    assert [raised.value.slice, *raised.value.remaining] == slices[5:]


def test_objects_passed_in_memory_are_not_requested(tmp_path: Path) -> None:
    url, slices = directory_store(tmp_path)
    path = tmp_path / "data" / "5"
    bodies = {slices[5].key: path.read_bytes()}
    path.unlink()
    for _ in range(2):  # the second time, its index is cached
        assert read_offsets(url, slices, bodies=bodies) == list(range(800))
    damaged = bytearray(bodies[slices[5].key])
    damaged[len(damaged) // 4] ^= 1
    bodies[slices[5].key] = bytes(damaged)
    with pytest.raises(ReadError, match="data/5"):
        read_offsets(url, slices, bodies=bodies)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_synchronous_reads_after_a_fork(tmp_path: Path) -> None:
    url, slices = directory_store(tmp_path)
    assert read_offsets(url, slices) == list(range(800))
    child = os.fork()
    if child == 0:
        outcome = 1
        try:
            outcome = 0 if read_offsets(url, slices) == list(range(800)) else 2
        finally:
            os._exit(outcome)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert read_offsets(url, slices[3:]) == list(range(300, 800))


def test_slices_are_small_when_pickled() -> None:
    slices = [
        Slice(
            f"data/{n:08x}/{n}",
            1 << 26,
            "orders",
            n % 7,
            40 + n % 7,
            n * 100,
            n * 100 + 100,
            1 << 20,
            100,
        )
        for n in range(1_000)
    ]
    packed = pickle.dumps(slices)
    assert pickle.loads(packed) == slices
    assert len(packed) < 70 * len(slices)


def test_rows_match_the_records() -> None:
    records = [Record(i, i, None, b"v%d" % i, (("h", None),)) for i in range(10)]
    built = build({1: [encode_batch(records)]})

    async def read() -> pa.Table:
        store = MemoryStore()
        await store.put("k", built.chunks)
        return await collect(
            read_slices(store, [Slice("k", built.size_bytes, "t", 0, 1, 0, 10, 1, 10)], ALL)
        )

    assert rows_of(asyncio.run(read())) == [row_of(record) for record in records]
