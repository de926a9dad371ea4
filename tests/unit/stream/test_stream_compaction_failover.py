"""After a failover, the new leader compacts the WAL objects of the dead one, with real controller,
storage, recovery and compaction.
"""

import asyncio
from pathlib import Path
from random import Random
from uuid import UUID

from penstock.base.ids import Millis, Offset, WalSequence
from penstock.controller.api import messages as m
from penstock.controller.metadata.topics import PartitionKey
from penstock.objectstore.errors import ObjectNotFound
from penstock.stream.cache.block_cache import BlockCache
from penstock.stream.compaction.compactor import Compactor
from penstock.stream.format.keys import wal_key
from penstock.stream.ports import IN_STORE, ObjectRole, OpenStream
from penstock.stream.read.object_reader import ObjectReader
from penstock.stream.recovery.recoverer import recover_wal
from penstock.stream.storage import Storage, StreamHandle
from tests.support.controller_cluster import Broker, Cluster
from tests.support.stream_storage import FAST, NOW_MS, entry, offsets
from tests.support.waiting import until

PARTITIONS = 3


def storage_of(cluster: Cluster, broker: Broker) -> Storage:
    return Storage(
        cluster.store,
        broker.metadata,
        broker.node,
        FAST,
        now_ms=lambda: NOW_MS,
        rng=Random(1),
        on_fenced=lambda _error: None,
    )


async def open_led(broker: Broker, topic_id: UUID, storage: Storage) -> list[StreamHandle]:
    records = [
        broker.image.topics.partition(PartitionKey(topic_id, partition))
        for partition in range(PARTITIONS)
    ]
    mine = [
        record for record in records if record is not None and record.leader == broker.node.node_id
    ]
    handles = await storage.open_streams(
        [OpenStream(record.data_stream_id, record.leader_epoch) for record in mine]
    )
    opened = [handle for handle in handles if isinstance(handle, StreamHandle)]
    assert len(opened) == len(mine)
    return opened


async def append(storage: Storage, handle: StreamHandle, count: int) -> None:
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    batch = entry(handle.stream_id, handle.next_offset, count)
    storage.append(
        [batch], lambda error: done.set_result(None) if error is None else done.set_exception(error)
    )
    await done


async def test_the_next_owner_compacts_the_wal_objects_of_the_dead_one(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "controller", read_grace_ms=50, janitor_interval_ms=50)
    await cluster.start()
    try:
        dead, alive = await cluster.broker(), await cluster.broker()
        created = await dead.client.create_topics(
            m.CreateTopics(topics=[m.NewTopic(name="orders", partitions=PARTITIONS)])
        )
        topic_id = created.topics[0].topic_id
        assert topic_id is not None
        old, new = storage_of(cluster, dead), storage_of(cluster, alive)
        inherited = await open_led(dead, topic_id, old)
        assert inherited
        for _ in range(4):
            for handle in inherited:
                await append(old, handle, 5)
        await old.abandon()
        await dead.stop()
        await until(lambda: alive.image.nodes.wal(dead.node).recoverer == alive.node)
        await recover_wal(
            cluster.store,
            alive.metadata,
            dead.node,
            WalSequence(0),
            recoverer=alive.node,
            now_ms=Millis(0),
            config=FAST,
        )
        handles = await open_led(alive, topic_id, new)
        assert {handle.stream_id for handle in inherited} <= {
            handle.stream_id for handle in handles
        }

        reader = ObjectReader(cluster.store, BlockCache(1 << 20))
        compactor = Compactor(
            cluster.store,
            alive.metadata,
            reader,
            alive.node,
            owned=lambda: handles,
            now_ms=lambda: NOW_MS,
        )
        report = await compactor.run_round()
        assert report is not None
        assert report.source_count == 4 * len(inherited)
        assert await compactor.run_round() is None
        for handle in inherited:
            (compacted,) = alive.metadata.objects(handle.stream_id, Offset(0), Offset(1 << 60), 10)
            assert compacted.role != ObjectRole.WAL
            assert offsets(
                await new.reader.read(handle.stream_id, Offset(0), handle.confirmed_offset, 1 << 20)
            ) == list(range(20))

        slot = wal_key(dead.node, WalSequence(0), IN_STORE)

        async def is_deleted() -> bool:
            try:
                await cluster.store.head(slot)
            except ObjectNotFound:
                return True
            return False

        await until(is_deleted)
        await reader.close()
        await new.abandon()
    finally:
        await cluster.stop()
