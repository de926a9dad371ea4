"""A reader with nothing but the store sees every acknowledged record, and the same rows whoever leads, dies or merges meanwhile."""

import asyncio
from pathlib import Path

from support.ack_recorder import AioLoad, Load, check, number_of
from support.cluster import Cluster, until

from controller.rpc.messages import AlterReassignments, CreateTopics, NewTopic, PartitionTarget
from objectstore.errors import ObjectNotFound
from objectstore.ports import ObjectStore
from stream.batch.records import decode_records
from stream.block_cache import BlockCache
from stream.config import StreamConfig
from stream.ids import Millis, NodeId, ObjectId, Offset, StreamId
from stream.manifest.plan import OffsetRange
from stream.manifest.view import ClusterView
from stream.object_reader import ObjectReader
from stream.ports import ObjectRange, ObjectRole, StreamRange
from stream.reader.slices import Slice

PARTITIONS = [0, 1, 2]
MERGING = StreamConfig(wal_linger_ms=0, block_age_max_ms=400, wal_delete_grace_ms=3_000)
"""So that data is merged, and WAL slots are deleted, while the test looks."""


async def read(store: ObjectStore, slices: list[Slice]) -> dict[int, list[tuple[int, int]]]:
    """(offset, number) of every record of every slice, by partition."""
    found: dict[int, list[tuple[int, int]]] = {partition: [] for partition in PARTITIONS}
    reader = ObjectReader(store, BlockCache(32 << 20))
    for item in slices:
        start, end = item.start_offset, item.end_offset
        held = StreamRange(StreamId(item.stream_id), Offset(start), Offset(end), item.record_count, item.size_bytes, Millis(0))
        source = ObjectRange(ObjectId(0), item.key, ObjectRole.STREAM, item.object_size_bytes, held)
        position = start
        while position < end:
            for batch in await reader.read([source], position, 1 << 20, end_offset=end):
                for record in decode_records(batch):
                    if position <= record.offset < end:
                        assert record.value is not None
                        found[item.partition].append((record.offset, number_of(record.value)))
                        position = record.offset + 1
    await reader.close()
    return found


class Follower:
    """Looks at the store alone. What it has seen never goes back."""

    def __init__(self, store: ObjectStore) -> None:
        self.store = store
        self.view = ClusterView(store)
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self.moment = (0, 0)

    async def look(self) -> dict[int, int]:
        """-> the ends of now."""
        root = await self.view.refresh()
        assert root.moment >= self.moment
        self.moment = root.moment
        if not self.view.topics("t"):
            return self.ends
        ends = {state.partition: state.end_offset for state in await self.view.partitions(["t"])}
        assert all(ends[partition] >= end for partition, end in self.ends.items()), (self.ends, ends)
        self.ends = ends
        return ends

    async def until_seen(self, load: Load) -> None:
        """Everything that was acknowledged when this was called."""
        acknowledged = {partition: max((offset for _, offset in acks), default=-1) for partition, acks in load.acks.items()}
        async with asyncio.timeout(20):
            ends = await self.look()
            while any(ends[partition] <= offset for partition, offset in acknowledged.items()):
                await asyncio.sleep(0.01)  # a pace: the store is looked at, there is nothing to wait on
                ends = await self.look()

    async def log(self) -> dict[int, list[tuple[int, int]]]:
        """All rows up to the ends that were seen; planned anew when objects went meanwhile, as readers do."""
        wanted = [OffsetRange("t", partition, 0, end) for partition, end in self.ends.items()]
        for _ in range(5):
            try:
                return await read(self.store, await self.view.plan(wanted))
            except ObjectNotFound:
                await self.view.refresh()
        raise AssertionError("objects of a fresh plan are gone again and again")


async def create(cluster: Cluster) -> None:
    await cluster.broker.client.create_topics(CreateTopics(topics=[NewTopic(name="t", partitions=len(PARTITIONS))]))
    for partition in PARTITIONS:
        await cluster.until_served("t", partition)


async def test_what_was_acknowledged_is_seen_through_merges_a_kill_and_a_move(tmp_path: Path) -> None:
    async with Cluster(tmp_path, brokers=3, stream_config=MERGING, controller_settings={"session_timeout_ms": 2_000}) as cluster:
        await create(cluster)
        follower = Follower(cluster.store)
        async with AioLoad(cluster.bootstrap, "t", PARTITIONS) as load:
            await load.until_acknowledged(100)
            await follower.until_seen(load)
            early, rows = dict(follower.ends), await follower.log()
            assert {partition: [offset for offset, _ in found] for partition, found in rows.items()} == {
                partition: list(range(end)) for partition, end in early.items()
            }
            victim = cluster.leader_of("t", 0)
            await cluster.kill_broker(victim)
            await until(lambda: cluster.leader_of("t", 0) not in {victim, -1}, 30)
            await load.until_acknowledged(30)
            await follower.until_seen(load)
            source = cluster.leader_of("t", 1)
            target = next(node_id for node_id in cluster.brokers if node_id != source)
            move = PartitionTarget(topic="t", partition=1, replicas=[NodeId(target)])
            await cluster.broker.client.alter_reassignments(AlterReassignments(partitions=[move]))
            await until(lambda: cluster.leader_of("t", 1) == target)
            await load.until_acknowledged(30)
            await follower.until_seen(load)
        await follower.until_seen(load)
        log = await follower.log()
        check(load, log)
        for partition, end in early.items():
            assert log[partition][:end] == rows[partition], "the rows of a range of offsets never change"
        fresh = Follower(cluster.store)
        await fresh.until_seen(load)
        assert await fresh.log() == log


async def test_an_idle_reader_asks_for_next_to_nothing_and_a_running_one_for_new_slots_only(tmp_path: Path) -> None:
    async with Cluster(tmp_path, brokers=2) as cluster:
        await create(cluster)
        counted = CountedStore(cluster.store)
        follower = Follower(counted)  # type: ignore[arg-type]
        async with AioLoad(cluster.bootstrap, "t", PARTITIONS) as load:
            await load.until_acknowledged(50)
        await follower.until_seen(load)
        before = counted.calls
        for _ in range(10):
            await follower.look()
        assert counted.calls - before <= 10 * (1 + 2 * 17), "one GET for the manifest, a read-ahead for each WAL at most"
        before = counted.calls
        for _ in range(10):
            await follower.look()
        assert counted.calls - before == 10 * 3


class CountedStore:
    """Counts requests of all kinds."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.calls = 0

    def __getattr__(self, name: str) -> object:
        self.calls += 1
        return getattr(self._store, name)
