"""Object compaction: the log reads the same before and after, WAL objects are released, foreign
streams are never touched, and any doubt stops it.
"""

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from penstock.protocol.batch.header import parse_header
from penstock.protocol.batch.records import Record, encode_batch
from penstock.stream.cache.block_cache import BlockCache
from penstock.stream.compaction.compactor import Compactor
from penstock.stream.compaction.plan import (
    Compaction,
    CompactionConfig,
    check_outputs,
    plan_round,
    plan_stream,
    replaced_by,
)
from penstock.stream.compaction.rewrite import read_entries
from penstock.stream.errors import NotContiguous, ObjectCorrupt, RangesReplaced, StreamFenced
from penstock.stream.format.builder import RunEntry, StreamRun, build_object
from penstock.stream.format.layout import NO_SEQUENCE
from penstock.stream.ports import (
    BrokerIncarnation,
    CommitObjects,
    NewObject,
    ObjectRange,
    ObjectRole,
    PreparedObject,
    StreamRange,
)
from penstock.stream.read.object_reader import ObjectReader
from tests.sim.loop import VirtualLoop
from tests.support.waiting import until

WRITER = BrokerIncarnation(NodeId(1), NodeEpoch(1))
SMALL = CompactionConfig(
    small_bytes_max=1_000,
    small_count_min=4,
    object_bytes_max=6_000,
    round_bytes_max=20_000,
    stream_object_bytes_min=5_000,
    page_ranges=8,
)


def source(
    start: int,
    end: int,
    size_bytes: int = 100,
    role: ObjectRole = ObjectRole.STREAM_SET,
    stream_id: int = 1,
) -> ObjectRange:
    part = StreamRange(
        StreamId(stream_id), Offset(start), Offset(end), end - start, size_bytes, Millis(0)
    )
    return ObjectRange(ObjectId(start), f"data/{start}", role, size_bytes + 200, part)


def chain(*parts: tuple[int, ObjectRole], stream_id: int = 1) -> list[ObjectRange]:
    return [
        source(10 * i, 10 * i + 10, size_bytes, role, stream_id)
        for i, (size_bytes, role) in enumerate(parts)
    ]


WAL, SET = ObjectRole.WAL, ObjectRole.STREAM_SET


@pytest.mark.parametrize(
    ("parts", "first", "count", "settled"),
    [
        ([(100, WAL)], 0, 1, 0),
        ([(5_000, WAL)], 0, 1, 0),
        ([(100, SET)] * 3, 0, 0, 0),
        ([(100, SET)] * 4, 0, 4, 0),
        ([(2_000, SET), (100, SET)], 0, 0, 10),
        ([(2_000, SET), (100, WAL), (100, SET)], 10, 1, 10),
        ([(100, SET), (2_000, SET)], 0, 0, 20),
        ([(100, SET), (100, WAL), (100, SET), (100, WAL), (2_000, SET)], 0, 5 - 1, 0),
        ([(100, SET), (100, WAL), (2_000, SET), (100, WAL)], 10, 1, 0),
        # rewriting the large one is not worthwhile for 40 bytes
        ([(900, SET)] + [(10, SET)] * 4, 10, 4, 0),
        ([(900, SET)] + [(10, SET)] * 3, 0, 0, 0),
        ([(3_000, WAL), (2_900, WAL), (200, WAL)], 0, 2, 0),  # the maximum size of an object
        ([(900, SET), (5_500, WAL), (900, SET), (900, SET)], 10, 1, 0),
        ([(2_000, SET)] * 3, 0, 0, 30),
    ],
)
def test_which_objects_are_worth_rewriting(
    parts: list[tuple[int, ObjectRole]], first: int, count: int, settled: int
) -> None:
    plan = plan_stream(chain(*parts), SMALL)
    assert plan.settled_offset == settled
    assert (
        (plan.compaction.start_offset, len(plan.compaction.sources)) == (first, count)
        if plan.compaction
        else count == 0
    )


PARTS = st.lists(
    st.tuples(st.integers(61, 8_000), st.sampled_from([WAL, SET, ObjectRole.STREAM])),
    min_size=1,
    max_size=30,
)


@given(st.dictionaries(st.integers(1, 20), PARTS, min_size=1, max_size=8))
def test_rounds_are_limited_and_cover_the_replaced_ranges(
    logs: dict[int, list[tuple[int, ObjectRole]]],
) -> None:
    plans = [
        plan_stream(chain(*parts, stream_id=stream_id), SMALL) for stream_id, parts in logs.items()
    ]
    compactions = [plan.compaction for plan in plans if plan.compaction is not None]
    outputs = plan_round(compactions, SMALL)
    taken = [compaction for output in outputs for compaction in output.compactions]
    assert bool(taken) == bool(compactions)
    assert set(taken) <= set(compactions)
    assert len({compaction.stream_id for compaction in taken}) == len(taken)
    assert (
        len(taken) == 1
        or sum(compaction.size_bytes for compaction in taken) <= SMALL.round_bytes_max
    )
    for output in outputs:
        assert [compaction.stream_id for compaction in output.compactions] == sorted(
            compaction.stream_id for compaction in output.compactions
        )
        assert (
            len(output.compactions) == 1
            or sum(compaction.size_bytes for compaction in output.compactions)
            <= SMALL.object_bytes_max
        )
    cover = [
        tuple(
            StreamRange(
                compaction.stream_id,
                compaction.start_offset,
                compaction.end_offset,
                0,
                0,
                Millis(0),
            )
            for compaction in output.compactions
        )
        for output in outputs
    ]
    check_outputs(outputs, cover)
    assert len(replaced_by(outputs)) == sum(len(compaction.sources) for compaction in taken)


@given(PARTS)
def test_repeated_compaction_terminates(parts: list[tuple[int, ObjectRole]]) -> None:
    ranges = chain(*parts)
    total = sum(item.range.size_bytes for item in ranges)
    for _ in range(200):
        compaction = plan_stream(ranges, SMALL).compaction
        if compaction is None:
            break
        at = ranges.index(compaction.sources[0])
        compacted = source(compaction.start_offset, compaction.end_offset, compaction.size_bytes)
        ranges = [*ranges[:at], compacted, *ranges[at + len(compaction.sources) :]]
    else:
        pytest.fail("still compacting")
    assert not any(item.role == WAL for item in ranges)
    assert sum(item.range.size_bytes for item in ranges) == total


def test_inconsistent_plans_are_rejected() -> None:
    with pytest.raises(NotContiguous):
        plan_stream([source(0, 10), source(11, 20)], SMALL)
    with pytest.raises(NotContiguous):
        plan_stream([source(0, 10), source(10, 20, stream_id=2)], SMALL)
    outputs = plan_round([Compaction((source(0, 10, role=WAL), source(10, 20, role=WAL)))], SMALL)
    good = StreamRange(StreamId(1), Offset(0), Offset(20), 20, 200, Millis(0))
    check_outputs(outputs, [(good,)])
    for field, value in (
        ("start_offset", 1),
        ("end_offset", 19),
        ("end_offset", 21),
        ("stream_id", 2),
    ):
        with pytest.raises(NotContiguous):
            check_outputs(outputs, [(replace(good, **{field: value}),)])
    with pytest.raises(ValueError, match="zip"):
        check_outputs(outputs, [(good, good)])
    with pytest.raises(ValueError, match="small_count_min"):
        CompactionConfig(small_count_min=0)


@dataclass
class Owned:
    stream_id: StreamId
    start_offset: Offset = Offset(0)  # noqa: RUF009 - an int


class Metadata:
    """The two lookups and the exchange, with the checks of the controller."""

    def __init__(self) -> None:
        self.logs: dict[StreamId, list[ObjectRange]] = {}
        self.commits: list[CommitObjects] = []
        self.closed: set[StreamId] = set()
        self.next_id = 1_000

    def objects(
        self, stream_id: StreamId, start_offset: Offset, end_offset: Offset, limit: int
    ) -> list[ObjectRange]:
        log = self.logs[stream_id]
        return [
            item
            for item in log
            if item.range.end_offset > start_offset and item.range.start_offset < end_offset
        ][:limit]

    def committed_end(self, stream_id: StreamId) -> Offset:
        return self.logs[stream_id][-1].range.end_offset

    def first_in_wal_store(self, stream_id: StreamId) -> Offset | None:
        starts = [
            item.range.start_offset for item in self.logs[stream_id] if item.key.startswith("wals/")
        ]
        return starts[0] if starts else None

    def is_closed(self, stream_id: StreamId) -> bool:
        return stream_id in self.closed

    def wal_store_bytes(self) -> int:
        log = [item for items in self.logs.values() for item in items]
        return sum(item.range.size_bytes for item in log if item.key.startswith("wals/"))

    async def prepare_objects(self, count: int) -> list[PreparedObject]:
        self.next_id += count
        return [
            PreparedObject(ObjectId(self.next_id - i), f"data/{self.next_id - i}")
            for i in range(count)
        ]

    async def commit(self, commit: CommitObjects) -> None:
        assert not commit.closes
        assert commit.wal_committed is None
        new = {part.stream_id: (item, part) for item in commit.objects for part in item.ranges}
        assert sum(len(item.ranges) for item in commit.objects) == len(new)
        for stream_id, (item, part) in new.items():
            gone = [entry for entry in commit.replaced if entry.stream_id == stream_id]
            assert (gone[0].start_offset, gone[-1].end_offset) == (
                part.start_offset,
                part.end_offset,
            )
            log = self.logs[stream_id]
            names = [
                (entry.object_id, entry.range.start_offset, entry.range.end_offset) for entry in log
            ]
            at = names.index((gone[0].object_id, gone[0].start_offset, gone[0].end_offset))
            assert names[at : at + len(gone)] == [
                (entry.object_id, entry.start_offset, entry.end_offset) for entry in gone
            ]
            log[at : at + len(gone)] = [self.entry(item, part)]
        assert {entry.stream_id for entry in commit.replaced} == set(new)
        self.commits.append(commit)

    @staticmethod
    def entry(item: NewObject, part: StreamRange) -> ObjectRange:
        assert item.object_id is not None
        return ObjectRange(item.object_id, item.key, item.role, item.size_bytes, part)


class CompactionHarness:
    """Streams of two nodes in shared WAL objects: 1 to 3 belong to us, 4 to another node."""

    def __init__(self) -> None:
        self.store: MemoryStore = MemoryStore()
        self.metadata = Metadata()
        self.reader = ObjectReader(self.store, BlockCache(1 << 20))
        self.owned = [Owned(StreamId(i)) for i in (1, 2, 3)]
        self.assigned = list[StreamId]()
        self.in_memory: dict[tuple[StreamId, Offset, Offset], list[RunEntry]] = {}
        self.compactor = Compactor(
            self.store,
            self.metadata,  # the parts that compaction uses
            self.reader,
            WRITER,
            owned=lambda: self.owned,
            now_ms=lambda: Millis(5),
            cached=lambda *requested: self.in_memory.get(requested),
            assigned=lambda: self.assigned,
            config=SMALL,
        )

    async def wal_object(
        self,
        sequence: int,
        batches: int,
        role: ObjectRole = WAL,
        *,
        in_memory: bool = False,
        root: str = "wal/",
    ) -> None:
        runs: list[StreamRun] = []
        for stream_id in (1, 2, 3, 4):
            log = self.metadata.logs.setdefault(StreamId(stream_id), [])
            base = log[-1].range.end_offset if log else 0
            entries: list[RunEntry] = []
            for i in range(batches):
                records = [
                    Record(base + 2 * i + j, 1_000 * base + i, None, b"%d" % (base + i) * 20)
                    for j in range(2)
                ]
                batch = encode_batch(records, base_offset=base + 2 * i)
                entries.append(RunEntry.of_batch(bytes(batch), parse_header(batch)))
            runs.append(StreamRun(StreamId(stream_id), entries))
            if in_memory and stream_id != 4:
                self.in_memory[
                    StreamId(stream_id), entries[0].base_offset, entries[-1].end_offset
                ] = entries
        number = WalSequence(sequence if role == WAL else NO_SEQUENCE)
        built = build_object(role, WRITER, number, Millis(0), runs, block_bytes_max=300)
        key = f"{root}1/1/{sequence:020d}"
        await self.store.put(key, built.chunks)
        for part in built.ranges:
            self.metadata.logs[part.stream_id].append(
                ObjectRange(ObjectId(sequence), key, role, built.size_bytes, part)
            )

    async def log(self, stream_id: int) -> bytes:
        reader = ObjectReader(self.store, BlockCache(1 << 20))
        ranges = self.metadata.logs[StreamId(stream_id)]
        data = b"".join(await reader.read(ranges, ranges[0].range.start_offset, 1 << 20))
        await reader.close()
        return data


async def test_wal_ranges_are_compacted_and_the_log_is_unchanged() -> None:
    harness = CompactionHarness()
    for sequence in range(6):
        await harness.wal_object(sequence, 3)
    before = [await harness.log(stream_id) for stream_id in (1, 2, 3, 4)]
    foreign = list(harness.metadata.logs[StreamId(4)])
    report = await harness.compactor.run_round()
    assert report is not None
    assert (report.stream_count, report.source_count) == (3, 18)
    assert await harness.compactor.run_round() is None
    for stream_id in (1, 2, 3):
        (compacted,) = harness.metadata.logs[StreamId(stream_id)]
        assert compacted.role != WAL
        assert compacted.range.record_count == 36
    assert harness.metadata.logs[StreamId(4)] == foreign
    assert [await harness.log(stream_id) for stream_id in (1, 2, 3, 4)] == before


async def test_records_in_memory_are_not_read_from_the_store() -> None:
    harness = CompactionHarness()
    for sequence in range(6):
        await harness.wal_object(sequence, 3, in_memory=sequence > 1)
    before = [await harness.log(stream_id) for stream_id in (1, 2, 3)]
    await harness.store.delete([f"wal/1/1/{sequence:020d}" for sequence in range(2, 6)])
    report = await harness.compactor.run_round()
    assert report is not None
    assert (report.stream_count, report.source_count) == (3, 18)
    assert [await harness.log(stream_id) for stream_id in (1, 2, 3)] == before


class SlowStore(MemoryStore):
    """Count concurrent reads."""

    def __init__(self) -> None:
        super().__init__()
        self.under_way = self.under_way_max = 0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.under_way += 1
        self.under_way_max = max(self.under_way_max, self.under_way)
        try:
            await asyncio.sleep(0.002)
            return await super().get_range(key, start, length)
        finally:
            self.under_way -= 1


@pytest.mark.parametrize(("throttled", "at_once"), [(False, 4), (True, 1)])
async def test_a_throttled_reader_reads_one_object_at_a_time(throttled: bool, at_once: int) -> None:
    """PUTs of clients would queue up behind these GETs."""
    harness = CompactionHarness()
    harness.store = store = SlowStore()
    for sequence in range(8):
        await harness.wal_object(sequence, 3)
    reader = ObjectReader(store, BlockCache(1))
    compaction = Compaction(tuple(harness.metadata.logs[StreamId(1)]))
    entries = await read_entries(reader, [compaction], throttled=throttled)
    assert len(entries) == 8
    assert store.under_way_max == at_once
    await reader.close()


async def test_only_the_committed_part_of_an_object_is_compacted() -> None:
    harness = CompactionHarness()
    await harness.wal_object(0, 9)
    log = harness.metadata.logs[StreamId(1)]
    part = replace(log[0].range, start_offset=Offset(4), end_offset=Offset(12))
    log[0] = replace(log[0], range=part)
    before = await harness.log(1)
    await harness.compactor.run_round()
    (compacted,) = harness.metadata.logs[StreamId(1)]
    assert (
        compacted.range.start_offset,
        compacted.range.end_offset,
        compacted.range.record_count,
    ) == (
        4,
        12,
        8,
    )
    assert compacted.range.size_bytes == len(before)
    assert await harness.log(1) == before


async def test_a_large_stream_gets_its_own_object() -> None:
    harness = CompactionHarness()
    await harness.wal_object(0, 60)
    before = await harness.log(2)
    while await harness.compactor.run_round() is not None:
        pass
    assert harness.metadata.logs[StreamId(2)][0].role == ObjectRole.STREAM
    assert await harness.log(2) == before


async def test_long_logs_are_scanned_page_by_page() -> None:
    harness = CompactionHarness()
    for sequence in range(30):
        await harness.wal_object(sequence, 12, SET)  # too large to be rewritten
    for sequence in range(30, 32):
        await harness.wal_object(sequence, 1)
    before = await harness.log(3)
    while await harness.compactor.run_round() is not None:
        pass
    assert len(harness.metadata.logs[StreamId(3)]) == 31
    assert await harness.log(3) == before


async def test_a_higher_limit_for_small_ranges_applies_to_the_whole_log() -> None:
    harness = CompactionHarness()
    for sequence in range(4):
        await harness.wal_object(sequence, 12, SET)  # too large to be rewritten
    assert await harness.compactor.run_round() is None
    harness.compactor.config = replace(SMALL, small_bytes_max=6_000)
    assert await harness.compactor.run_round() is not None
    assert len(harness.metadata.logs[StreamId(3)]) < 4


async def test_a_stream_that_is_closed_meanwhile_is_dropped_from_the_round() -> None:
    harness = CompactionHarness()
    await harness.wal_object(0, 3)
    before = [await harness.log(stream_id) for stream_id in (1, 2, 3)]
    prepare = harness.metadata.prepare_objects

    async def prepare_and_lose(count: int) -> list[PreparedObject]:
        harness.owned = [owned for owned in harness.owned if owned.stream_id != 2]
        return await prepare(count)

    harness.metadata.prepare_objects = prepare_and_lose
    report = await harness.compactor.run_round()
    assert report is not None
    assert (report.stream_count, harness.compactor.counts.sources) == (2, 2)
    assert {entry.stream_id for entry in harness.metadata.commits[0].replaced} == {1, 3}
    assert [await harness.log(stream_id) for stream_id in (1, 2, 3)] == before


async def test_a_stream_whose_ranges_are_replaced_meanwhile_is_dropped_from_the_round() -> None:
    """`penstock compact` replaces ranges of streams that are open in brokers."""
    harness = CompactionHarness()
    await harness.wal_object(0, 3)
    commit = harness.metadata.commit
    (old,) = harness.metadata.logs[StreamId(2)]

    async def replace_and_reject(request: CommitObjects) -> None:
        if StreamId(2) in {item.stream_id for item in request.replaced}:
            harness.metadata.logs[StreamId(2)] = [replace(old, object_id=ObjectId(99))]
            raise RangesReplaced("stream 2: object 0 does not hold [0, 6) any more")
        await commit(request)

    harness.metadata.commit = replace_and_reject
    report = await harness.compactor.run_round()
    assert report is not None
    assert (report.stream_count, harness.compactor.counts.conflicts) == (2, 1)
    assert {entry.stream_id for entry in harness.metadata.commits[0].replaced} == {1, 3}
    assert harness.metadata.logs[StreamId(2)] == [replace(old, object_id=ObjectId(99))]


def test_damage_suspends_streams_and_the_rest_continues() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(compact_around_damage())


async def compact_around_damage() -> None:
    harness = CompactionHarness()
    await harness.wal_object(0, 3)
    bad = bytearray(await harness.store.get("wal/1/1/00000000000000000000"))
    bad[60] ^= 1
    whole = await harness.store.get("wal/1/1/00000000000000000000")
    await harness.store.put("wal/1/1/00000000000000000000", bad)
    good = CompactionHarness()
    await good.wal_object(7, 3)
    (entry,) = good.metadata.logs[StreamId(3)]
    harness.metadata.logs[StreamId(3)] = [entry]
    await harness.store.put(entry.key, await good.store.get(entry.key))
    with pytest.raises(ObjectCorrupt):
        await harness.compactor.run_round()
    assert harness.metadata.commits == []
    assert await harness.compactor.run_round() is not None
    assert {item.stream_id for item in harness.metadata.commits[0].replaced} == {3}
    assert await harness.compactor.run_round() is None
    await harness.store.put("wal/1/1/00000000000000000000", whole)
    await asyncio.sleep(60)
    assert await harness.compactor.run_round() is not None
    assert {item.stream_id for item in harness.metadata.commits[1].replaced} == {1, 2}


async def test_a_gap_in_the_data_is_never_bridged() -> None:
    harness = CompactionHarness()
    holed = [encode_batch([Record(base, 0, None, b"v")], base_offset=base) for base in (0, 2)]
    entries = [RunEntry.of_batch(bytes(batch), parse_header(batch)) for batch in holed]
    entries[0] = replace(entries[0], end_offset=entries[1].base_offset)
    built = build_object(WAL, WRITER, WalSequence(0), Millis(0), [StreamRun(StreamId(1), entries)])
    await harness.store.put("wal/1/1/00000000000000000000", built.chunks)
    harness.metadata.logs[StreamId(1)] = [
        ObjectRange(
            ObjectId(1), "wal/1/1/00000000000000000000", WAL, built.size_bytes, built.ranges[0]
        )
    ]
    harness.owned = harness.owned[:1]
    with pytest.raises(NotContiguous):
        await harness.compactor.run_round()
    assert await harness.compactor.run_round() is None
    assert harness.metadata.commits == []


def keys(harness: CompactionHarness, stream_id: int) -> list[str]:
    return [item.key[:5] for item in harness.metadata.logs[StreamId(stream_id)]]


async def test_ranges_in_a_wal_store_are_rewritten_first_wherever_they_are() -> None:
    harness = CompactionHarness()
    for sequence in range(30):
        await harness.wal_object(sequence, 12, SET)
    await harness.wal_object(30, 1, root="wals/1/")
    await harness.wal_object(31, 12, SET)
    for sequence in range(32, 34):
        await harness.wal_object(sequence, 1, root="wals/1/")
    await harness.wal_object(34, 1)
    before = await harness.log(3)
    assert await harness.compactor.run_wal_store_round() is not None
    assert keys(harness, 3) == ["wal/1"] * 30 + ["data/", "wal/1", "wals/", "wals/", "wal/1"]
    assert await harness.compactor.run_wal_store_round() is not None
    assert await harness.compactor.run_wal_store_round() is None
    assert keys(harness, 3) == ["wal/1"] * 30 + ["data/", "wal/1", "data/"]
    assert keys(harness, 4).count("wals/") == 3, "the stream of another node was rewritten"
    assert await harness.log(3) == before
    assert harness.compactor.counts.from_wal_stores_bytes > 0


async def test_ranges_in_a_wal_store_do_not_stop_the_compaction_of_others() -> None:
    """All objects of the WAL store are missing here."""
    harness = CompactionHarness()
    for sequence in range(6):
        await harness.wal_object(sequence, 1)
    await harness.wal_object(6, 1, root="wals/1/")
    await harness.store.delete([f"wals/1/1/1/{6:020d}"])
    with pytest.raises(ObjectNotFound):
        await harness.compactor.run_wal_store_round()
    assert await harness.compactor.run_wal_store_round() is None, "tried again at once"
    harness.owned = [*harness.owned, Owned(StreamId(4))]
    assert keys(harness, 4) == ["wal/1"] * 6 + ["wals/"]
    assert await harness.compactor.run_round() is not None
    assert keys(harness, 4) == ["data/", "wals/"]
    with pytest.raises(ObjectNotFound):
        await harness.compactor.run_wal_store_round()
    assert keys(harness, 4) == ["data/", "wals/"]


async def test_ranges_in_a_wal_store_are_found_between_two_compactions() -> None:
    harness = CompactionHarness()
    harness.compactor.config = replace(SMALL, interval_ms=3_600_000, wal_store_interval_ms=1)
    await harness.wal_object(0, 1, SET)
    counts = harness.compactor.counts
    began = counts.settled_at
    running = asyncio.create_task(harness.compactor.run())
    try:
        await until(lambda: counts.settled_at > began)
        await harness.wal_object(1, 1, root="wals/1/")
        await until(lambda: "wals/" not in keys(harness, 1))
    finally:
        running.cancel()


async def test_setting_a_shorter_interval_ends_the_pause() -> None:
    harness = CompactionHarness()
    compactor = harness.compactor
    hour_ms = 3_600_000
    compactor.config = replace(SMALL, interval_ms=hour_ms, wal_store_interval_ms=hour_ms)
    await harness.wal_object(0, 1, SET)
    began = compactor.counts.settled_at
    running = asyncio.create_task(compactor.run())
    try:
        await until(lambda: compactor.counts.settled_at > began)
        await harness.wal_object(1, 1, root="wals/1/")
        compactor.config = replace(compactor.config, wal_store_interval_ms=1)
        await until(lambda: "wals/" not in keys(harness, 1))
        await harness.wal_object(2, 1)
        compactor.config = replace(compactor.config, interval_ms=1)
        await until(lambda: keys(harness, 1)[-1] == "data/")
    finally:
        running.cancel()


async def test_an_assignment_may_end_during_the_round() -> None:
    """Reads are throttled, so a round may take longer than the assignment and would
    never finish.
    """
    harness = CompactionHarness()
    for sequence in range(3):
        await harness.wal_object(sequence, 1, root="wals/1/")
    harness.owned, harness.assigned = [], [StreamId(4)]
    harness.metadata.closed = {StreamId(4)}
    prepare = harness.metadata.prepare_objects

    async def end_the_assignment(count: int) -> list[PreparedObject]:
        harness.assigned = []
        return await prepare(count)

    harness.metadata.prepare_objects = end_the_assignment
    assert await harness.compactor.run_wal_store_round() is not None
    assert keys(harness, 4) == ["data/"]


async def closed_in_a_wal_store() -> CompactionHarness:
    """Return a harness with closed streams 3 and 4 assigned to it."""
    harness = CompactionHarness()
    await harness.wal_object(0, 1, root="wals/1/")
    harness.owned, harness.assigned = [], [StreamId(3), StreamId(4)]
    harness.metadata.closed = {StreamId(3), StreamId(4)}
    return harness


@pytest.mark.parametrize("step", ["get_range", "put", "commit"])
async def test_a_stream_that_is_opened_during_the_round_is_dropped_from_it(step: str) -> None:
    harness = await closed_in_a_wal_store()
    place = harness.metadata if step == "commit" else harness.store
    original = getattr(place, step)

    async def open_a_stream(*arguments: Any) -> Any:
        if StreamId(4) in harness.metadata.closed:
            harness.metadata.closed.remove(StreamId(4))
            # the controller rejects it, and the local metadata is updated afterwards
            if step == "commit":
                raise StreamFenced(StreamId(3), "the metadata name another closed stream")
        return await original(*arguments)

    setattr(place, step, open_a_stream)
    assert await harness.compactor.run_wal_store_round() is not None
    assert (keys(harness, 3), keys(harness, 4)) == (["data/"], ["wals/"])
    assert await harness.compactor.run_wal_store_round() is None


async def test_a_round_ends_when_all_its_streams_are_opened() -> None:
    harness = await closed_in_a_wal_store()
    prepare = harness.metadata.prepare_objects

    async def open_the_streams(count: int) -> list[PreparedObject]:
        harness.metadata.closed.clear()
        return await prepare(count)

    harness.metadata.prepare_objects = open_the_streams
    assert await harness.compactor.run_wal_store_round() is None
    assert harness.metadata.commits == []
    assert (keys(harness, 3), keys(harness, 4)) == (["wals/"], ["wals/"])


async def test_a_commit_that_is_rejected_for_an_unknown_reason_is_not_repeated() -> None:
    harness = await closed_in_a_wal_store()

    async def reject(commit: CommitObjects) -> None:
        raise error

    harness.metadata.commit = reject
    for error in (StreamFenced(StreamId(3), "no change shows why"), RangesReplaced("nor here")):
        with pytest.raises(type(error)):
            await harness.compactor.run_wal_store_round()


async def test_ranges_outside_of_the_wal_store_are_not_rewritten() -> None:
    harness = CompactionHarness()
    await harness.wal_object(0, 1, root="wals/1/")
    for sequence in range(1, 7):
        await harness.wal_object(sequence, 1, SET)
    harness.owned, harness.assigned = [], [StreamId(4)]
    harness.metadata.closed = {StreamId(4)}
    assert await harness.compactor.run_wal_store_round() is not None
    assert keys(harness, 4) == ["data/"] + ["wal/1"] * 6
