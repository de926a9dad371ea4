"""One task of a bulk rewrite: damage in transit is read again, damage in the store is reported."""

from random import Random

from penstock.base.ids import Millis, ObjectId
from penstock.lake.rewrite.job import RewriteTask, rewrite
from penstock.objectstore.faults import Fault, FaultConfig, FaultRule, FaultyStore, Selection
from penstock.objectstore.memory import MemoryStore
from penstock.protocol.batch.records import Record, encode_batch
from penstock.stream.compaction.plan import Compaction
from penstock.stream.ports import ObjectRange, ObjectRole, PreparedObject
from tests.support.reader_objects import build

TARGET = PreparedObject(ObjectId(9), "data/9")


async def put_sources(store: MemoryStore) -> RewriteTask:
    sources: list[ObjectRange] = []
    for at in range(2):
        batch = encode_batch([Record(at, Millis(5), None, b"v" * 100)], base_offset=at)
        built = build({1: [batch]})
        await store.put(f"data/{at}", built.chunks)
        sources.append(
            ObjectRange(
                ObjectId(at), f"data/{at}", ObjectRole.STREAM_SET, built.size_bytes, built.ranges[0]
            )
        )
    return RewriteTask(0, Compaction(tuple(sources)), TARGET, Millis(0), 1_000)


def now_ms() -> Millis:
    return Millis(0)


async def test_a_bit_flip_in_transit_does_not_count_as_damage() -> None:
    class Once(FaultyStore):
        async def get_range(self, key: str, start: int, length: int) -> bytes:
            try:
                return await super().get_range(key, start, length)
            finally:
                self.config = FaultConfig()

    bucket = MemoryStore()
    task = await put_sources(bucket)
    store = Once(bucket, Random(1))
    store.config = FaultConfig(
        (), (FaultRule(Fault.FLIPPED_BIT, 1.0, Selection(key_prefix="data/0")),)
    )
    result = await rewrite(store, task, now_ms)
    assert store.injected[Fault.FLIPPED_BIT] == 1
    assert result.new is not None, result.detail
    assert [(item.start_offset, item.end_offset) for item in result.new.ranges] == [(0, 2)]


async def test_damage_in_the_store_is_reported_and_nothing_is_written() -> None:
    bucket = MemoryStore()
    task = await put_sources(bucket)
    data = bytearray(await bucket.get("data/1"))
    data[60] ^= 1
    await bucket.put("data/1", bytes(data))
    result = await rewrite(bucket, task, now_ms)
    assert result.new is None
    assert not result.gone
    assert "data/1" in result.detail
    assert [info.key async for info in bucket.list("data/9")] == []


async def test_nothing_is_put_after_the_deadline() -> None:
    bucket = MemoryStore()
    task = await put_sources(bucket)
    result = await rewrite(bucket, task, lambda: Millis(1_001))
    assert result.late
    assert [info.key async for info in bucket.list("data/9")] == []
