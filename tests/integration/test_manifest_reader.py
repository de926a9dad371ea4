"""A reader with access to the store only sees every acknowledged record, and the same rows while
brokers lead, die or upload.
"""

from pathlib import Path

from penstock.base.ids import NodeId
from penstock.controller.api.messages import (
    AlterReassignments,
    CreateTopics,
    NewTopic,
    PartitionTarget,
)
from penstock.lake.manifest.plan import OffsetRange
from penstock.objectstore.ports import ObjectStore
from penstock.stream.config import StreamConfig
from penstock.stream.format.keys import WAL_ROOT
from tests.support.ack_recorder import AioLoad, check
from tests.support.cluster import Cluster
from tests.support.store_reader import Follower
from tests.support.waiting import until

PARTITIONS = [0, 1, 2]
FAST_UPLOADS = StreamConfig(wal_linger_ms=0, block_age_max_ms=400, wal_delete_grace_ms=3_000)
"""Brokers upload data and delete WAL slots within the duration of a test."""


async def create(cluster: Cluster) -> None:
    await cluster.broker.client.create_topics(
        CreateTopics(topics=[NewTopic(name="t", partitions=len(PARTITIONS))])
    )
    for partition in PARTITIONS:
        await cluster.until_served("t", partition)


async def test_acknowledged_records_stay_visible_through_uploads_a_crash_and_a_move(
    tmp_path: Path,
) -> None:
    async with Cluster(
        tmp_path,
        brokers=3,
        stream_config=FAST_UPLOADS,
    ) as cluster:
        await create(cluster)
        follower = Follower(cluster.store, "t", PARTITIONS)
        async with AioLoad(cluster.bootstrap, "t", PARTITIONS) as load:
            await load.until_acknowledged(100)
            await follower.until_seen(load)
            early, rows = dict(follower.ends), await follower.log()
            assert {
                partition: [offset for offset, _ in found] for partition, found in rows.items()
            } == {partition: list(range(end)) for partition, end in early.items()}
            victim = cluster.leader_of("t", 0)
            await cluster.kill_broker(victim)
            await until(lambda: cluster.leader_of("t", 0) not in {victim, -1})
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
            assert log[partition][:end] == rows[partition], (
                "the rows of a range of offsets never change"
            )
        fresh = Follower(cluster.store, "t", PARTITIONS)
        await fresh.until_seen(load)
        assert await fresh.log() == log


async def test_idle_reader_sends_few_requests_and_active_one_reads_only_new_slots(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path, brokers=2) as cluster:
        await create(cluster)
        counted = CountedStore(cluster.store)
        follower = Follower(counted, "t", PARTITIONS)
        async with AioLoad(cluster.bootstrap, "t", PARTITIONS) as load:
            await load.until_acknowledged(50)
        await follower.until_seen(load)
        slices = await follower.view.plan(
            [OffsetRange("t", partition, 0, end) for partition, end in follower.ends.items()]
        )
        bodies = follower.view.bodies_of(slices)
        assert bodies, "slots are read once"
        assert bodies.keys() <= {part.key for part in slices if part.key.startswith(WAL_ROOT)}
        assert all([await cluster.store.get(key) == body for key, body in bodies.items()])
        before = counted.calls
        for _ in range(10):
            await follower.look()
        assert counted.calls - before <= 10 * (1 + 2 * 17), (
            "one GET for the manifest, a read-ahead for each WAL at most"
        )
        before = counted.calls
        for _ in range(10):
            await follower.look()
        assert counted.calls - before == 10 * 3


class CountedStore:
    """A store that counts requests by kind."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.calls = 0

    def __getattr__(self, name: str) -> object:
        self.calls += 1
        return getattr(self._store, name)
