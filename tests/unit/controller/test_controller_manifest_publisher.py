"""Manifest publishing writes only changes, never goes back with several publishers, is atomic under
any store fault, and deletes old versions in time.
"""

import asyncio
from collections.abc import Iterable
from random import Random
from typing import Any
from uuid import UUID

import pytest
from structlog.testing import capture_logs

from penstock.base.ids import Millis
from penstock.controller.active.leases import LeaseBook
from penstock.controller.active.manifest.publisher import ManifestPublisher, Superseded
from penstock.controller.api.messages import AlterConfigs, ConfigChange
from penstock.controller.managers.configs import alter_configs
from penstock.controller.metadata.configs import BROKER_RESOURCE, TOPIC_RESOURCE
from penstock.controller.metadata.records import ConfigRecord
from penstock.controller.metadata.topic_configs import CONFIG_DEFAULTS
from penstock.lake.manifest.errors import ManifestNotFound, ManifestRegressed, SeveralClusters
from penstock.lake.manifest.leases import HeldLease
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.manifest.sections import load_root
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.errors import ObjectNotFound, PreconditionFailed, Unavailable
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import Body
from penstock.stream.errors import ObjectCorrupt
from penstock.stream.format.keys import manifest_key, parse_manifest_key
from tests.support.managers_cluster import snapshot_of
from tests.support.newer_formats import MANIFEST_REQUIRED_AT, with_footer_field
from tests.support.published_cluster import GRACE_MS, PublishedCluster
from tests.support.waiting import until

READ_GRACE_S = 60.0
DAY_S = 86_400.0


class CountingStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.put_keys: list[str] = []

    async def put_if_absent(self, key: str, body: Body) -> str:
        self.put_keys.append(key)
        return await super().put_if_absent(key, body)


async def versions(store: MemoryStore) -> list[int]:
    parsed = [parse_manifest_key(info.key) async for info in store.list("manifest/")]
    return [found[1] for found in parsed if found is not None]


async def test_publishing_writes_only_what_has_changed() -> None:
    published, store = PublishedCluster(partitions=300), CountingStore()
    publisher = published.publisher(store, 1)
    assert await publisher.publish()
    for _ in range(3):
        assert not await publisher.publish()
    for partition in range(300):
        published.append(partition, 5)
    published.append(3, 70)
    assert await publisher.publish()
    whole = (await store.head(manifest_key("test", 2))).size_bytes
    published.append(290)
    assert await publisher.publish()
    assert (await store.head(manifest_key("test", 3))).size_bytes < whole / 3
    assert store.put_keys == [manifest_key("test", version) for version in (1, 2, 3)]
    view = ClusterView(store)
    await view.refresh()
    ends = [state.end_offset for state in await view.partitions(["t"])]
    assert ends == [{290: 60, 3: 750}.get(partition, 50) for partition in range(300)]


async def test_leases_protect_the_objects_of_an_idle_cluster() -> None:
    """A lease expires seven days after the publication of its manifest."""
    published = PublishedCluster()
    now_ms = lambda: Millis(int(published.now_s * 1_000))  # noqa: E731
    store = MemoryStore(now_ms)
    publisher = published.publisher(store, 1)
    for _ in range(9):
        await publisher.publish()
        published.now_s += DAY_S
    newest = max(await versions(store))
    root = await load_root(store, "test", newest)
    await HeldLease(store, "test", UUID(int=1), "").create(root, 60_000)
    book = LeaseBook(store, "test", now=lambda: published.now_s, now_ms=now_ms)
    assert await book.protected_from() == root.metadata_offset

    async def is_published_again() -> bool:
        return max(await versions(store)) > newest

    publishing = asyncio.create_task(publisher.run())
    await until(is_published_again)
    publishing.cancel()
    await asyncio.wait([publishing])


def appending_before_each_look(
    published: PublishedCluster, partitions: Iterable[int]
) -> list[object]:
    """Append to these partitions before each access of the publisher to the image. Return the list
    of accesses; fail after 100.
    """
    looks: list[object] = []
    (runtime,) = published.watching
    look_at = runtime.with_committed_image

    async def looking(look: Any) -> Any:
        looks.append(look)
        assert len(looks) < 100
        for partition in partitions:
            published.append(partition)
        return await look_at(look)

    runtime.with_committed_image = looking  # type: ignore[method-assign]
    return looks


async def test_many_partitions_are_captured_in_slices() -> None:
    """The controller serves brokers between the slices. Nevertheless, the version is consistent."""
    published, store = PublishedCluster(partitions=1_000), MemoryStore()
    publisher = published.publisher(store, 1)
    looks = appending_before_each_look(published, (0,))
    assert await publisher.publish()
    assert len(looks) == 4
    view = ClusterView(store)
    await view.refresh()
    ends = [state.end_offset for state in await view.partitions(["t"])]
    assert ends == [40, *[0] * 999]


async def test_publishing_terminates_while_everything_keeps_changing() -> None:
    published, store = PublishedCluster(partitions=400), MemoryStore()
    publisher = published.publisher(store, 1)
    looks = appending_before_each_look(published, range(400))
    assert await publisher.publish()
    view = ClusterView(store)
    await view.refresh()
    ends = [state.end_offset for state in await view.partitions(["t"])]
    assert ends == [10 * len(looks)] * 400


async def test_topic_configs_are_part_of_the_next_version() -> None:
    published, store = PublishedCluster(), MemoryStore()
    published.cluster.topic("__consumer_offsets")
    publisher = published.publisher(store, 1)
    await publisher.publish()

    def change(name: str, value: str | None) -> None:
        item = ConfigChange(resource_type=TOPIC_RESOURCE, resource_name="t", name=name, value=value)
        published.cluster.apply(
            alter_configs(published.cluster.image, AlterConfigs(changes=[item])).records
        )

    async def configs() -> dict[str, dict[str, str]]:
        root = await load_root(store, "test", max(await versions(store)))
        return {topic.name: topic.configs for topic in root.topics}

    assert await configs() == {"t": {}, "__consumer_offsets": {"cleanup.policy": "compact"}}
    change("cleanup.policy", "compact")
    change("retention.ms", "5000")
    assert await publisher.publish()
    assert (await configs())["t"] == {"cleanup.policy": "compact", "retention.ms": "5000"}
    change("cleanup.policy", None)
    assert await publisher.publish()
    assert (await configs())["t"] == {"retention.ms": "5000"}
    root = await load_root(store, "test", 3)
    plain, internal = root.topics
    assert root.configs_of(plain) == CONFIG_DEFAULTS | {"retention.ms": "5000"}
    assert (plain.is_internal, internal.is_internal) == (False, True)


async def test_configs_of_other_resources_do_not_change_the_manifest() -> None:
    published, store = PublishedCluster(), MemoryStore()
    publisher = published.publisher(store, 1)
    await publisher.publish()
    published.cluster.apply([ConfigRecord(BROKER_RESOURCE, "1", "a", "b")])
    assert not await publisher.publish()


async def test_planning_over_many_pages_after_compaction() -> None:
    published, store = PublishedCluster(), MemoryStore()
    publisher = published.publisher(store, 1)
    published.append(0, 3_000)
    await publisher.publish()
    published.compact(0, 1_500, 1_000)
    published.append(0, 1)
    await publisher.publish()
    view = ClusterView(store)
    await view.refresh()
    slices = await view.plan([OffsetRange("t", 0, 5, 30_005)])
    assert [item.start_offset for item in slices] == [
        5,
        *range(10, 15_000, 10),
        15_000,
        *range(25_000, 30_010, 10),
    ]
    assert (
        slices[0].end_offset,
        slices[0].size_bytes,
        slices[0].record_count,
        slices[-1].end_offset,
    ) == (10, 50, 5, 30_005)
    young = await view.plan([OffsetRange("t", 0, 0, 30_010)], timestamp_from_ms=29_991)
    assert [(item.start_offset, item.end_offset) for item in young] == [
        (29_990, 30_000),
        (30_000, 30_010),
    ]


class InterleavedStore(MemoryStore):
    """Let other tasks run during every call, and record the order of the writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    async def put_if_absent(self, key: str, body: Body) -> str:
        await asyncio.sleep(0)
        etag = await super().put_if_absent(key, body)
        self.written.append(key)
        await asyncio.sleep(0)
        return etag

    async def get_tail(self, key: str, length: int) -> Any:
        await asyncio.sleep(0)
        return await super().get_tail(key, length)


@pytest.mark.parametrize("seed", range(30))
async def test_a_deposed_leader_that_continues_publishing_never_publishes_older_state(
    seed: int,
) -> None:
    rng = Random(seed)
    published, store = PublishedCluster(), InterleavedStore()
    published.append(0, 3)
    zombie = published.publisher(store, 1)
    if rng.random() < 0.7:
        await zombie.publish()
    published.append(0, 2)
    stale = published.watching.pop()
    stale.image = snapshot_of(published.cluster.image)
    published.append(1, 2)
    leader = published.publisher(store, 2)

    async def go_on(publisher: ManifestPublisher, is_zombie: bool) -> bool:
        for _ in range(rng.randint(1, 4)):
            for _ in range(rng.randint(0, 3)):
                await asyncio.sleep(0)
            try:
                await publisher.publish()
            except Superseded:
                return True
            if not is_zombie:
                published.append(rng.randint(0, 1))
        return False

    await asyncio.gather(go_on(zombie, True), go_on(leader, False))
    await leader.publish()
    while await leader.publish():
        pass
    parsed = [parse_manifest_key(key) for key in store.written]
    roots = [await load_root(store, "test", found[1]) for found in parsed if found is not None]
    assert [root.version for root in roots] == list(range(1, len(roots) + 1))
    moments = [(root.controller_epoch, root.metadata_offset) for root in roots]
    assert moments == sorted(moments)
    assert roots[-1].moment == (2, len(roots))
    zombie._newest = -1
    with pytest.raises(Superseded):
        await zombie.publish()
    view = ClusterView(store)
    await view.refresh()
    stream_ids = [partition.data_stream_id for partition in published.cluster.partitions("t")]
    assert [state.end_offset for state in await view.partitions(["t"])] == [
        published.cluster.end(stream_id) for stream_id in stream_ids
    ]


class UncertainStore(MemoryStore):
    """PUTs fail, before or after they took effect."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[str] = []

    async def put_if_absent(self, key: str, body: Body) -> str:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "before":
            raise Unavailable("put_if_absent", key, "injected")
        etag = await super().put_if_absent(key, body)
        if fault == "after":
            raise Unavailable("put_if_absent", key, "injected")
        if fault == "repeated":
            return await super().put_if_absent(key, body)
        return etag


@pytest.mark.parametrize("fault", ["before", "after", "repeated"])
async def test_a_put_with_unknown_outcome_is_repeated_before_newer_changes(fault: str) -> None:
    published, store = PublishedCluster(), UncertainStore()
    publisher = published.publisher(store, 1)
    published.append()
    await publisher.publish()
    assert await publisher.protected_from() is not None, (
        "a reader may still work with the version before"
    )
    published.now_s += READ_GRACE_S
    assert await publisher.protected_from() is None
    assert publisher.shown_offset == published.cluster.image.end_offset
    published.append()
    assert await publisher.protected_from() is not None
    assert publisher.shown_offset < published.cluster.image.end_offset
    store.faults = [fault]
    # the retries inside the store client find the object written by an earlier attempt
    if fault == "repeated":
        assert await publisher.publish()
    else:
        with pytest.raises(Unavailable):
            await publisher.publish()
        assert await publisher.protected_from() is not None
        published.append()
        assert await publisher.publish()
        assert await publisher.protected_from() is not None, "the last append is in no version yet"
        assert await publisher.publish()
    assert publisher.shown_offset == published.cluster.image.end_offset
    assert await publisher.protected_from() is not None
    published.now_s += READ_GRACE_S
    assert await publisher.protected_from() is None
    assert sorted(await versions(store)) == list(range(1, (3 if fault == "repeated" else 4)))
    view = ClusterView(store)
    await view.refresh()
    assert (await view.partitions(["t"]))[0].end_offset == (20 if fault == "repeated" else 30)


async def test_old_versions_are_deleted_after_their_grace_period_unless_referenced() -> None:
    published, store = PublishedCluster(partitions=600), MemoryStore()
    publisher = published.publisher(store, 1)
    for turn in range(40):
        published.append(turn * 15 % 600, 1)
        assert await publisher.publish()
        await publisher._drop_old()
        published.now_s += 1
    assert len(await versions(store)) == 40
    published.now_s += GRACE_MS / 1_000
    published.append()
    await publisher.publish()
    await publisher._drop_old()
    left = await versions(store)
    assert len(left) < 10
    view = ClusterView(store)
    await view.refresh()
    assert sum(state.end_offset for state in await view.partitions(["t"])) == 410
    again = published.publisher(store, 2)
    await again.publish()
    published.now_s += GRACE_MS / 1_000
    await again._drop_old()
    assert await versions(store) == [42], "a new leader refers to nothing of the old one's"


async def test_a_view_survives_the_deletion_of_its_version() -> None:
    published, store = PublishedCluster(), MemoryStore()
    publisher = published.publisher(store, 1)
    published.append(0, 70)
    await publisher.publish()
    view, idle = ClusterView(store), ClusterView(store)
    assert (await view.refresh()).version == (await idle.refresh()).version == 1
    for _ in range(6):
        published.append(0, 70)
        await publisher.publish()
    assert (await view.refresh()).version == 7
    await store.delete([manifest_key("test", version) for version in range(1, 7)])
    assert len(await idle.plan([OffsetRange("t", 0, 0, 700)])) == 70
    assert idle.root.version == 7


async def test_a_view_rejects_missing_multiple_and_older_manifests() -> None:
    store = MemoryStore()
    with pytest.raises(ManifestNotFound):
        await ClusterView(store).refresh()
    published = PublishedCluster()
    publisher = published.publisher(store, 3)
    await publisher.publish()
    published.append()
    await publisher.publish()
    view = ClusterView(store)
    await view.refresh()
    await store.put("manifest/other/99999999999999999998", b"x")
    with pytest.raises(SeveralClusters) as several:
        await ClusterView(store).refresh()
    assert several.value.cluster_ids == ["other", "test"]
    await store.delete([manifest_key("test", 2)])
    view._newest_at = -1e9
    with pytest.raises(ManifestRegressed):
        await view.refresh()
    await store.delete([manifest_key("test", 1)])
    await published.publisher(store, 2).publish()
    for version in range(2, 5):
        published.append()
        await published.watching[-1].with_committed_image(lambda _: None)
        await store.put(manifest_key("test", version), await store.get(manifest_key("test", 1)))
    with pytest.raises(ObjectCorrupt):
        await view.refresh()


async def test_every_damaged_byte_is_detected() -> None:
    published, store = PublishedCluster(), MemoryStore()
    publisher = published.publisher(store, 1)
    published.append(0, 70)
    await publisher.publish()
    key = manifest_key("test", 1)
    whole = await store.get(key)
    requested = [OffsetRange("t", 0, 0, 700), OffsetRange("t", 1, 0, 0)]
    assert len(await _planned(store, requested)) == 70
    for at in range(16, len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << (at % 8)
        await store.put(key, bytes(damaged))
        with pytest.raises(ObjectCorrupt):
            await _planned(store, requested)
    for size in (0, 5, 59, 60, 100, len(whole) - 1):
        await store.put(key, whole[:size])
        with pytest.raises(ObjectCorrupt):
            await _planned(store, requested)


async def _planned(store: MemoryStore, requested: list[OffsetRange]) -> list[Any]:
    view = ClusterView(store, "test")
    await view.refresh()
    return await view.plan(requested)


async def test_the_next_leader_replaces_a_damaged_newest_version() -> None:
    published, store = PublishedCluster(), MemoryStore()
    await published.publisher(store, 1).publish()
    await store.put(manifest_key("test", 2), b"rubbish")
    await published.publisher(store, 2).publish()
    assert (await ClusterView(store).refresh()).version == 3
    with pytest.raises(PreconditionFailed):
        await store.put_if_absent(manifest_key("test", 3), b"")
    with pytest.raises(ObjectNotFound):
        await store.get(manifest_key("test", 4))


async def test_a_version_in_a_newer_format_is_not_overwritten() -> None:
    """An older controller waits until a newer one leads or deletes the object."""
    published, store = PublishedCluster(), MemoryStore()
    await published.publisher(store, 1).publish()
    newest = await store.get(manifest_key("test", 1))
    newer = with_footer_field(newest, MANIFEST_REQUIRED_AT, b"\x80\0\0\0")
    await store.put(manifest_key("test", 2), newer)
    publisher = published.publisher(store, 2)
    with capture_logs() as logs:
        running = asyncio.ensure_future(publisher.run())
        await until(lambda: any(entry["event"] == "manifest_publish_failed" for entry in logs))
    assert "0x80000000" in str(logs)
    assert not running.done()
    await store.delete([manifest_key("test", 2)])
    await until(lambda: publisher.shown_offset == published.cluster.image.end_offset)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert (await ClusterView(store).refresh()).version == 2
