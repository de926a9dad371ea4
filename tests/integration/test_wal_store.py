"""Clusters with a separate WAL store, with real brokers, controllers and clients."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import TopicPartition

from penstock.base.clock import wall_ms
from penstock.base.ids import WalSequence, WalStoreId
from penstock.controller.api.errors import RecoveryRefused, RequestRefused
from penstock.controller.api.messages import FeatureUpdate, UpdateFeatures
from penstock.controller.disaster_recovery.plan import END_UNKNOWN
from penstock.controller.disaster_recovery.recovery import Recovery
from penstock.controller.metadata.features import WAL_STORE_VERSION
from penstock.deploy.doctor.lost_wal_store import abandon_wal_store
from penstock.deploy.doctor.wal_move import STORE, move_wals
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.errors import ObjectNotFound
from penstock.objectstore.faults import FaultyStore
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import ObjectInfo, ObjectTail
from penstock.stream.config import StreamConfig
from penstock.stream.errors import WalStoreWrong
from penstock.stream.ports import BrokerIncarnation
from penstock.stream.wal.slot_reader import read_slot
from penstock.stream.wal.wal_store import ConfiguredWalStore, WalStores
from tests.support.clients import confluent_consumer, create_topic, produce, read_records
from tests.support.cluster import SHORT_SESSION, Cluster
from tests.support.waiting import PATIENCE_S

TOPIC = "t"
VALUES = [b"%d" % number for number in range(5)]


async def keys_below(store: MemoryStore, prefix: str) -> list[str]:
    return [info.key async for info in store.list(prefix)]


def read(bootstrap: str, count: int) -> list[bytes | None]:
    consumer = confluent_consumer(bootstrap, "g")
    try:
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        return [message.value() for message in read_records(consumer, count)]
    finally:
        consumer.close()


def places(cluster: Cluster) -> set[int]:
    """Return the ids of the stores with the running brokers' WALs."""
    wals = [
        cluster.broker.image.nodes.wal(BrokerIncarnation(broker.node_id, broker.node_epoch))
        for broker in cluster.brokers.values()
    ]
    return {wal.store_id for wal in wals if wal is not None}


async def test_dead_broker_is_recovered_from_the_wal_store(tmp_path: Path) -> None:
    main, wals = MemoryStore(), MemoryStore()
    async with Cluster(
        tmp_path,
        brokers=2,
        store=main,
        wal_store=ConfiguredWalStore(wals, "memory:"),
        controller_settings=SHORT_SESSION,
    ) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC)
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, VALUES)
        assert places(cluster) == {1}
        assert await keys_below(main, "wal") == []
        await cluster.kill_broker((await cluster.until_served(TOPIC)).node_id)
        await cluster.until_served(TOPIC)
        assert await asyncio.to_thread(read, cluster.bootstrap, len(VALUES)) == VALUES
        view = ClusterView(main, wal_store=wals)
        async with asyncio.timeout(PATIENCE_S):
            await view.refresh()
            while not view.topics(TOPIC):
                await asyncio.sleep(0.1)
                await view.refresh()
        (state,) = await view.partitions([TOPIC])
        assert state.end_offset == len(VALUES)


async def test_cluster_starts_using_a_wal_store_after_the_feature_upgrade(tmp_path: Path) -> None:
    wals = MemoryStore()
    async with Cluster(tmp_path) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC)
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, VALUES)
        cluster.wal_store = ConfiguredWalStore(wals, "memory:")
        await cluster.stop_controller()
        await cluster.start_controller()
        await cluster.stop_broker(0)
        await cluster.start_broker(0)
        assert places(cluster) == {0}, "the WAL moved before the upgrade"
        assert await keys_below(wals, "wals/") == []
        update = FeatureUpdate(name=WAL_STORE_VERSION, level=1, type=1)
        await cluster.broker.client.update_features(UpdateFeatures(updates=[update]))
        await cluster.stop_controller()
        await cluster.start_controller()
        await cluster.stop_broker(0)
        await cluster.start_broker(0)
        assert places(cluster) == {1}
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, VALUES)
        found = await asyncio.to_thread(read, cluster.bootstrap, 2 * len(VALUES))
        assert found == VALUES + VALUES


async def test_metadata_is_rebuilt_only_with_the_wal_store(tmp_path: Path) -> None:
    main, wals = MemoryStore(), MemoryStore()
    ours = ConfiguredWalStore(wals, "memory:")
    async with Cluster(tmp_path, store=main, wal_store=ours) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC)
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, VALUES)
        cluster_id = cluster.broker.cluster_id
        await cluster.kill_broker(0)
    before = await keys_below(wals, "wals/")
    with pytest.raises(RecoveryRefused, match=r"in its WAL store 1 .* which is not configured"):
        await Recovery(main, cluster_id, now_ms=wall_ms).run(force=True)
    empty = ConfiguredWalStore(MemoryStore(), "memory:")
    with pytest.raises(WalStoreWrong, match="has no identity object"):
        await Recovery(main, cluster_id, now_ms=wall_ms, wal_store=empty).run(force=True)
    assert await keys_below(wals, "wals/") == before
    unchecked = Recovery(main, cluster_id, now_ms=wall_ms, abandon_wal_store=True)
    with pytest.raises(RecoveryRefused, match="specify the URL that it had with --wal-store"):
        await unchecked.look()
    lost = Recovery(main, cluster_id, now_ms=wall_ms, wal_store=empty, abandon_wal_store=True)
    found = await lost.look()
    assert [(gap.topic, gap.end_offset) for gap in found.gaps] == [(TOPIC, END_UNKNOWN)]
    assert found.lost_wal_stores == [1]
    with pytest.raises(RecoveryRefused, match=r"t-0 from offset \d+ on, data stream"):
        await lost.run(force=True)
    works = Recovery(main, cluster_id, now_ms=wall_ms, wal_store=ours, abandon_wal_store=True)
    with pytest.raises(RecoveryRefused, match="is not lost"):
        await works.run(force=True, accept_loss=True)
    report = await Recovery(main, cluster_id, now_ms=wall_ms, wal_store=ours).run(force=True)
    assert (report.gaps, report.record_count >= len(VALUES)) == ([], True)


class UnmountedStore(MemoryStore):
    """A store that is replaced by an empty one before it is listed."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__()
        self._real = store
        self._is_mounted = True

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        if not self._is_mounted:
            raise ObjectNotFound(key)
        return await self._real.get_tail(key, length)

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        self._is_mounted = False
        async for info in super().list(prefix, start_after=start_after, limit=limit):
            yield info


async def test_slots_are_not_given_up_if_the_wal_store_is_unmounted(tmp_path: Path) -> None:
    main, wals = MemoryStore(), MemoryStore()
    ours = ConfiguredWalStore(wals, "memory:")
    async with Cluster(tmp_path, store=main, wal_store=ours) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC)
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, VALUES)
        cluster_id = cluster.broker.cluster_id
        await cluster.stop_broker(0)
        recovery = Recovery(main, cluster_id, now_ms=wall_ms, wal_store=ours)
        async with asyncio.timeout(PATIENCE_S):
            found = await recovery.look()
            while found.wals:  # until the metadata in the store covers the end of the WAL
                await asyncio.sleep(0.1)
                found = await recovery.look()
    assert (await recovery.look()).gaps == []
    unmounted = ConfiguredWalStore(UnmountedStore(wals), "memory:")
    with pytest.raises(WalStoreWrong, match="has no identity object"):
        await Recovery(main, cluster_id, now_ms=wall_ms, wal_store=unmounted).look()


async def test_vanished_wal_is_fenced_after_its_loss_is_accepted(tmp_path: Path) -> None:
    """Its writer may still run, and must not acknowledge anything afterwards."""
    main, wals = MemoryStore(), MemoryStore()
    ours = ConfiguredWalStore(wals, "memory:")
    async with Cluster(tmp_path, store=main, wal_store=ours) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC)
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, VALUES)
        broker = cluster.broker
        cluster_id, writer = broker.cluster_id, BrokerIncarnation(broker.node_id, broker.node_epoch)
        await cluster.kill_broker(0)
    prefix = f"wals/{writer.node_id}/{writer.node_epoch}/"
    *slots, marker = await keys_below(wals, prefix)
    assert marker == f"{prefix}open"
    await wals.delete([marker])
    with pytest.raises(RecoveryRefused, match="/open is gone"):
        await Recovery(main, cluster_id, now_ms=wall_ms, wal_store=ours).run(force=True)
    recovery = Recovery(main, cluster_id, now_ms=wall_ms, wal_store=ours)
    report = await recovery.run(force=True, accept_loss=True)
    assert (len(report.gaps), report.record_count >= len(VALUES)) == (1, True)
    stores = WalStores(main, ours)
    stores.follow([WalStoreId(1)])
    fence = await read_slot(stores.store, writer, WalSequence(len(slots)), WalStoreId(1))
    assert fence is not None
    assert fence.is_fence


async def test_brokers_fall_back_to_the_main_store(tmp_path: Path) -> None:
    """A running broker moves its WAL when the WAL store fails, and a new broker starts without the
    WAL store.
    """
    wals = FaultyStore(MemoryStore(), Random(1))
    async with Cluster(
        tmp_path,
        wal_store=ConfiguredWalStore(wals, "memory:"),
        stream_config=StreamConfig(wal_linger_ms=0, wal_fallback_after_ms=500),
        controller_settings=SHORT_SESSION,
    ) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC)
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, VALUES)
        assert places(cluster) == {1}
        wals.down = True
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, VALUES)
        assert places(cluster) == {0}
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, VALUES)
        await cluster.kill_broker(0)
        await cluster.start_broker(0)
        assert places(cluster) == {0}
        await cluster.until_served(TOPIC)
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, VALUES)
        found = await asyncio.to_thread(read, cluster.bootstrap, 4 * len(VALUES))
        assert found == 4 * VALUES


async def test_cluster_continues_after_its_wal_store_was_abandoned(tmp_path: Path) -> None:
    """The records of a dead broker are lost, and nodes no longer need a WAL store."""
    wals = FaultyStore(MemoryStore(), Random(1))
    async with Cluster(
        tmp_path,
        brokers=2,
        wal_store=ConfiguredWalStore(wals, "memory:"),
        stream_config=StreamConfig(wal_linger_ms=0, wal_fallback_after_ms=500),
        controller_settings=SHORT_SESSION,
    ) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC)
        leader = await cluster.until_served(TOPIC)
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, VALUES)
        assert cluster.controller is not None
        address = f"127.0.0.1:{cluster.controller.port}"
        with pytest.raises(RequestRefused, match="is not lost"):
            await abandon_wal_store(address, None, accept=True, wait_s=PATIENCE_S)
        wals.down = True
        await cluster.kill_broker(leader.node_id)
        async with asyncio.timeout(PATIENCE_S):
            found = await abandon_wal_store(address, None, accept=False, wait_s=PATIENCE_S)
            while found.brokers:
                await asyncio.sleep(0.2)
                found = await abandon_wal_store(address, None, accept=False, wait_s=PATIENCE_S)
        assert (found.abandoned, found.dead_brokers) == (False, [leader.node_id])
        assert [(gap.topic, gap.start_offset) for gap in found.lost] == [(TOPIC, 0)]
        done = await abandon_wal_store(address, None, accept=True, wait_s=PATIENCE_S)
        assert (done.abandoned, done.done, done.lost) == (True, True, found.lost)
        await cluster.until_served(TOPIC)
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, VALUES)
        assert await asyncio.to_thread(read, cluster.bootstrap, len(VALUES)) == VALUES
        cluster.wal_store = None
        await cluster.stop_controller()
        await cluster.start_controller()
        await cluster.start_broker(leader.node_id)
        assert places(cluster) == {0}


async def test_cluster_replaces_its_wal_store(tmp_path: Path) -> None:
    """WALs move out of the first store, which is then no longer needed, and into another one."""
    first, second = FaultyStore(MemoryStore(), Random(1)), MemoryStore()
    async with Cluster(
        tmp_path,
        wal_store=ConfiguredWalStore(first, "memory:"),
        controller_settings=SHORT_SESSION,
    ) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC)
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, VALUES)
        assert places(cluster) == {1}
        assert cluster.controller is not None
        address = f"127.0.0.1:{cluster.controller.port}"
        found = await move_wals(address, STORE, wait_s=PATIENCE_S)
        assert (found.state, found.brokers_outside) == ("drained", [0])
        first.down = True
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, VALUES)
        cluster.wal_store = ConfiguredWalStore(second, "memory:other")
        await cluster.stop_broker(0)
        await cluster.start_broker(0)
        assert places(cluster) == {0}
        await cluster.stop_controller()
        await cluster.start_controller()
        await cluster.stop_broker(0)
        await cluster.start_broker(0)
        assert places(cluster) == {2}
        await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, VALUES)
        await cluster.kill_broker(0)
        await cluster.start_broker(0)
        await cluster.until_served(TOPIC)
        found_values = await asyncio.to_thread(read, cluster.bootstrap, 3 * len(VALUES))
        assert found_values == 3 * VALUES
