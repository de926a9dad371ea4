"""One task of a log compaction job: its output and its errors."""

from dataclasses import replace

from penstock.base.ids import Millis, ObjectId, Offset, StreamId
from penstock.lake.cleaning.job import PassTask, run_pass
from penstock.objectstore.memory import MemoryStore
from penstock.protocol.batch.header import iter_headers
from penstock.protocol.batch.records import Record, decode_records, encode_batch
from penstock.stream.cache.block_cache import BlockCache
from penstock.stream.cleaning.cleaner import CleanerConfig, CleaningTask
from penstock.stream.cleaning.key_map import ENTRY_BYTES_MAX
from penstock.stream.ports import ObjectRange, ObjectRole, PreparedObject
from penstock.stream.read.object_reader import ObjectReader
from tests.support.reader_objects import build

OBJECTS = 6
KEYS = 4
"""Each object contains each key once."""


async def task_of(store: MemoryStore, *, keys: int = KEYS, keys_max: int = 100) -> PassTask:
    ranges: list[ObjectRange] = []
    for number in range(OBJECTS):
        first = number * KEYS
        records = [
            Record(first + at, Millis(5), b"%d" % ((first + at) % keys), b"%d" % number * 99)
            for at in range(KEYS)
        ]
        built = build({1: [encode_batch(records, base_offset=first)]})
        await store.put(f"data/{number}", built.chunks)
        ranges.append(
            ObjectRange(
                ObjectId(-1),
                f"data/{number}",
                ObjectRole.STREAM_SET,
                built.size_bytes,
                built.ranges[0],
            )
        )
    end = Offset(OBJECTS * KEYS)
    log = CleaningTask(
        stream_id=StreamId(1),
        start=Offset(0),
        dirty_from=Offset(0),
        end=end,
        young_from_ms=None,
        tombstones_kept_ms=0,
    )
    targets = tuple(PreparedObject(ObjectId(at), f"new/{at}") for at in range(OBJECTS))
    config = CleanerConfig(
        key_map_bytes_max=keys_max * ENTRY_BYTES_MAX, bytes_per_s_max=0, group_bytes_max=1
    )
    return PassTask(0, log, tuple(ranges), targets, config, Millis(7), 1_000)


def now_ms() -> Millis:
    return Millis(0)


async def keys_of(store: MemoryStore) -> list[str]:
    return [info.key async for info in store.list("new/")]


async def test_a_pass_writes_objects_and_commits_nothing() -> None:
    store = MemoryStore()
    task = await task_of(store)
    result = await run_pass(store, task, now_ms)
    assert (result.clean_end, result.is_map_full, result.is_stale) == (OBJECTS * KEYS, False, False)
    spans = [
        (item.new.ranges[0].start_offset, item.new.ranges[0].end_offset, len(item.sources))
        for item in result.exchanges
    ]
    assert spans == [(at * KEYS, (at + 1) * KEYS, 1) for at in range(OBJECTS - 1)]
    assert [item.new.ranges[0].record_count for item in result.exchanges] == [0] * (OBJECTS - 1)
    assert await keys_of(store) == [item.new.key for item in result.exchanges]
    new = result.exchanges[0].new
    found = ObjectRange(new.object_id, new.key, new.role, new.size_bytes, new.ranges[0])
    (data,) = await ObjectReader(store, BlockCache(1)).read([found], 0, 1 << 20)
    assert decode_records(data) == []
    assert [header.next_offset for _, header in iter_headers(data)] == [KEYS]


async def test_every_attempt_writes_the_same_objects() -> None:
    store = MemoryStore()
    task = await task_of(store)
    first = await run_pass(store, task, now_ms)
    written = [await store.get(key) for key in await keys_of(store)]
    assert await run_pass(store, task, lambda: Millis(900)) == first
    assert [await store.get(key) for key in await keys_of(store)] == written


async def test_a_full_map_ends_the_pass_early() -> None:
    store = MemoryStore()
    task = await task_of(store, keys=2 * KEYS, keys_max=KEYS)
    result = await run_pass(store, task, now_ms)
    assert (result.clean_end, result.is_map_full, result.exchanges) == (KEYS, True, ())
    task = replace(task, log=replace(task.log, dirty_from=result.clean_end))
    result = await run_pass(store, task, now_ms)
    assert (result.clean_end, result.is_map_full) == (2 * KEYS, True)


async def test_records_written_before_the_deadline_are_used() -> None:
    store = MemoryStore()
    task = await task_of(store)
    times = iter((0, 1_000, 1_001))
    result = await run_pass(store, task, lambda: Millis(next(times)))
    assert (result.clean_end, result.is_stale, len(result.exchanges)) == (None, True, 2)
    assert await keys_of(store) == ["new/0", "new/1"]


async def test_a_missing_object_makes_the_pass_stale() -> None:
    store = MemoryStore()
    task = await task_of(store)
    await store.delete(["data/3"])
    result = await run_pass(store, task, now_ms)
    assert (result.clean_end, result.is_stale, result.exchanges) == (None, True, ())


async def test_damage_is_reported_and_nothing_is_written() -> None:
    store = MemoryStore()
    task = await task_of(store)
    body = bytearray(await store.get("data/3"))
    body[100] ^= 1
    await store.put("data/3", bytes(body))
    result = await run_pass(store, task, now_ms)
    assert (result.clean_end, result.is_stale, result.exchanges) == (None, False, ())
    assert "data/3" in result.detail


async def test_only_records_below_the_end_change() -> None:
    store = MemoryStore()
    task = await task_of(store)
    task = replace(task, log=replace(task.log, end=Offset(3 * KEYS)))
    result = await run_pass(store, task, now_ms)
    assert result.clean_end == 3 * KEYS
    assert [item.new.ranges[0].end_offset for item in result.exchanges] == [KEYS, 2 * KEYS]
