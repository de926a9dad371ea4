"""A controller with sockets, its manifest in a store, and what a reader's lease keeps its janitor from."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.controller_cluster import Cluster, until, until_async

from controller.main import ControllerServer
from controller.rpc import messages as m
from objectstore.errors import ObjectNotFound
from objectstore.memory import MemoryStore
from objectstore.ports import ObjectInfo
from stream.ids import Millis, Offset
from stream.manifest.leases import HeldLease
from stream.manifest.view import ClusterView
from stream.ports import CommitObjects, NewObject, ObjectRole, OpenStream, StreamRange


class ListedStore(MemoryStore):
    lease_list_count = 0

    async def list(self, prefix: str, **bounds: Any) -> AsyncIterator[ObjectInfo]:
        self.lease_list_count += prefix.startswith("leases/")
        async for info in super().list(prefix, **bounds):
            yield info


async def test_a_lease_keeps_destroyed_objects_until_it_is_released(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "controller", read_grace_ms=1, janitor_interval_ms=20, manifest_interval_ms=10)
    store = cluster.store = ListedStore()
    cluster.server = ControllerServer(cluster.config, store)
    await cluster.start()
    try:
        broker = await cluster.broker()
        await broker.client.create_topics(m.CreateTopics(topics=[m.NewTopic(name="orders", partitions=1)]))
        found = broker.image.topics.by_name("orders")
        assert found is not None
        stream = OpenStream(found.partitions[0].data_stream_id, found.partitions[0].leader_epoch)
        await broker.metadata.open_streams([stream])
        targets = await broker.metadata.prepare_objects(2)
        for number, target in enumerate(targets):
            held = StreamRange(stream.stream_id, Offset(5 * number), Offset(5 * number + 5), 5, 100, Millis(1))
            await store.put(target.key, b"bytes")
            item = NewObject(target.object_id, target.key, ObjectRole.STREAM, 5, (held,))
            await broker.metadata.commit(CommitObjects(objects=(item,)))
        view = ClusterView(store)

        async def offsets() -> tuple[int, int]:
            await view.refresh()
            state = (await view.partitions(["orders"]))[0]
            return state.log_start, state.committed_end

        await until(lambda: len(store._keys) >= 3)
        await until_async(offsets, (0, 10))
        lease = HeldLease(store, view.cluster_id, uuid4(), "test")
        await lease.create(view.root, 3_600_000)
        await broker.metadata.trim_stream(stream.stream_id, stream.epoch, Offset(5))
        await until_async(offsets, (5, 10))
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
