"""A controller with sockets that publishes its manifest to a store; a reader's lease prevents
deletions by the janitor.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from penstock.base.ids import Millis, Offset, WalSequence
from penstock.controller.api import messages as m
from penstock.controller.main import ControllerServer
from penstock.lake.manifest.errors import UnknownPartition
from penstock.lake.manifest.leases import HeldLease
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.errors import ObjectNotFound, Unavailable
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import Body, ObjectInfo
from penstock.stream.format.keys import wal_key
from penstock.stream.ports import (
    IN_STORE,
    CommitObjects,
    NewObject,
    ObjectRole,
    OpenStream,
    StreamRange,
)
from tests.support.controller_cluster import Cluster
from tests.support.waiting import PATIENCE_S, until


class ListedStore(MemoryStore):
    lease_list_count = 0

    async def list(self, prefix: str, **bounds: Any) -> AsyncIterator[ObjectInfo]:
        self.lease_list_count += prefix.startswith("leases/")
        async for info in super().list(prefix, **bounds):
            yield info


async def test_a_lease_protects_destroyed_objects_until_it_is_released(tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path / "controller", read_grace_ms=1, janitor_interval_ms=20, manifest_interval_ms=10
    )
    store = cluster.store = ListedStore()
    cluster.server = ControllerServer(cluster.config, store)
    await cluster.start()
    try:
        broker = await cluster.broker()
        await broker.client.create_topics(
            m.CreateTopics(topics=[m.NewTopic(name="orders", partitions=1)])
        )
        found = broker.image.topics.by_name("orders")
        assert found is not None
        stream = OpenStream(found.partitions[0].data_stream_id, found.partitions[0].leader_epoch)
        await broker.metadata.open_streams([stream])
        targets = await broker.metadata.prepare_objects(2)
        for number, target in enumerate(targets):
            held = StreamRange(
                stream.stream_id, Offset(5 * number), Offset(5 * number + 5), 5, 100, Millis(1)
            )
            await store.put(target.key, b"bytes")
            item = NewObject(target.object_id, target.key, ObjectRole.STREAM, 5, (held,))
            await broker.metadata.commit(CommitObjects(objects=(item,)))
        view = ClusterView(store)

        async def reaches(start: int, end: int) -> bool:
            await view.refresh()
            try:
                state = (await view.partitions(["orders"]))[0]
            except UnknownPartition:  # the manifest is older than the topic
                return False
            return (state.log_start, state.committed_end) == (start, end)

        await until(lambda: len(store._keys) >= 3)
        await until(lambda: reaches(0, 10))
        lease = HeldLease(store, view.cluster_id, uuid4(), "test")
        await lease.create(view.root, 3_600_000)
        await broker.metadata.trim_stream(stream.stream_id, stream.epoch, Offset(5))
        await until(lambda: reaches(5, 10))
        await until(lambda: any(broker.image.objects.destroyed()))
        looked = store.lease_list_count
        await until(lambda: store.lease_list_count > looked + 3)
        assert await store.get(targets[0].key) == b"bytes"
        await lease.release()
        await until(lambda: len(broker.image.objects) == 1)
        with pytest.raises(ObjectNotFound):
            await store.get(targets[0].key)
        assert await store.get(targets[1].key) == b"bytes"
    finally:
        await cluster.stop()


class GatedManifests(MemoryStore):
    """A store that accepts no version of the manifest while the gate is closed."""

    is_open = True

    async def put_if_absent(self, key: str, body: Body) -> str:
        if key.startswith("manifest/") and not self.is_open:
            raise Unavailable("put_if_absent", key, "injected")
        return await super().put_if_absent(key, body)


async def test_slots_referenced_by_the_newest_manifest_are_not_deleted(
    tmp_path: Path,
) -> None:
    cluster = Cluster(
        tmp_path / "controller", read_grace_ms=1, janitor_interval_ms=20, manifest_interval_ms=10
    )
    store = cluster.store = GatedManifests()
    cluster.server = ControllerServer(cluster.config, store)
    await cluster.start()
    try:
        broker, leaving = await cluster.broker(), (await cluster.broker()).node
        left_over = wal_key(leaving, WalSequence(0), IN_STORE)
        await store.put(left_over, b"what a compaction has made useless")
        store.is_open = False
        await broker.metadata.commit(CommitObjects(wal_committed=WalSequence(3)))
        shown = asyncio.ensure_future(broker.metadata.backed_up(broker.metadata.position()))
        ended = m.UnregisterBroker(
            node_id=leaving.node_id, node_epoch=leaving.node_epoch, wal_end=WalSequence(1)
        )
        await broker.client.unregister_broker(ended)
        for number in range(10):
            await broker.client.put_key_value(m.PutKeyValue(key=f"k{number}", value=b"v"))
            # several rounds of the janitor, which must not delete anything
            await asyncio.sleep(0.02)
        assert not shown.done()
        assert await store.get(left_over)
        store.is_open = True
        await asyncio.wait_for(shown, PATIENCE_S)
        await until(lambda: left_over not in store._keys)
    finally:
        await cluster.stop()
