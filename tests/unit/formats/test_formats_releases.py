"""Every version can read the buckets of all releases: with `scan`, and as metadata."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.base.clock import wall_ms
from penstock.controller.backup.layout import splice, unpack
from penstock.controller.backup.log import BackupLog
from penstock.controller.backup.snapshots import LoadedSnapshot, SnapshotStore
from penstock.controller.disaster_recovery.recovery import Recovery, cluster_ids
from penstock.controller.metadata.codec import decode_record
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import Record
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.memory import MemoryStore
from penstock.stream.errors import FormatUnknown
from penstock.stream.format.decoder import parse_header
from penstock.stream.format.keys import (
    backup_key,
    parse_backup_key,
    parse_cluster_id,
    parse_data_key,
    parse_wal_key,
    snapshot_prefix,
)
from penstock.stream.format.manifest.model import in_snapshot
from penstock.stream.ports import ObjectRole
from penstock.topic_list import topics
from tests.formats.generate import HERE
from tests.sim.loop import VirtualLoop
from tests.support.newer_formats import with_metadata_version
from tests.unit.formats.test_formats_vectors import (
    bucket_of,
    check_rows,
    expected_of,
)

RELEASES = sorted(path.parent.name for path in HERE.glob("[0-9]*/expected.json"))
RECORDS = {
    "cluster",
    "topic",
    "topic-removed",
    "frozen-topic",
    "topic-deleted",
    "topic-undeleted",
    "frozen-topic-removed",
    "partition",
    "node",
    "node-removed",
    "wal",
    "wal-ended",
    "wal-removed",
    "stream",
    "stream-forked",
    "stream-opened",
    "stream-closed",
    "stream-trimmed",
    "kept-log-dropped",
    "stream-removed",
    "object-prepared",
    "object",
    "ranges-replaced",
    "object-destroyed",
    "object-removed",
    "producer-ids",
    "config",
    "feature",
    "kv",
}
"""Types of metadata records in the log of 1.0; another type, `ids`, occurs only in the snapshot."""


def test_releases_are_found() -> None:
    assert RELEASES


@pytest.mark.parametrize("release", RELEASES)
def test_scanning_the_bucket_of_a_release(release: str, tmp_path: Path) -> None:
    """The rows are those that consumers read from brokers of that release."""
    shutil.copytree(HERE / release / "bucket", tmp_path / "bucket")
    url = f"file:{tmp_path}/bucket"
    expected = expected_of(HERE / release / "expected.json")
    known = {topic.name: topic for topic in topics(url)}
    assert sorted(known) == sorted(topic["name"] for topic in expected["topics"])
    for topic in expected["topics"]:
        found = known[topic["name"]]
        assert str(found.topic_id) == topic["topic_id"]
        assert found.is_internal == topic["is_internal"]
        assert {name: found.configs[name] for name in topic["configs"]} == topic["configs"]
        check_rows(url, [(topic["name"], partition) for partition in topic["partitions"]])
    for topic in expected["snapshots"]:
        name = in_snapshot(topic["name"], topic["snapshot"])
        check_rows(url, [(name, partition) for partition in topic["partitions"]])


def log_of(bucket: dict[str, bytes]) -> list[Record]:
    (cluster_id,) = {name for key in bucket if (name := parse_cluster_id(key)) is not None}
    log = [
        unpack(key, first, cluster_id, data)
        for key, data in sorted(bucket.items())
        if (first := parse_backup_key(cluster_id, key)) is not None
    ]
    return [decode_record(record) for record in splice(log, 0).records]


async def store_of(bucket: dict[str, bytes]) -> tuple[MemoryStore, str]:
    """Return a store with these objects, and its cluster id."""
    store = MemoryStore()
    for key, data in bucket.items():
        await store.put(key, data)
    (cluster_id,) = await cluster_ids(store)
    return store, cluster_id


async def snapshot_of(bucket: dict[str, bytes]) -> LoadedSnapshot | None:
    store, cluster_id = await store_of(bucket)
    return await SnapshotStore(store, cluster_id, kept=2).load_newest()


def run(coroutine: Any) -> Any:
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.close()


@pytest.mark.parametrize("release", RELEASES)
def test_loading_the_metadata_of_a_release(release: str) -> None:
    """The log from its start and the log after the snapshot result in the same topics and logs."""
    bucket = bucket_of(HERE / release / "bucket")
    expected = expected_of(HERE / release / "expected.json")
    records = log_of(bucket)
    whole = MetadataImage()
    whole.apply_all(records)
    loaded = run(snapshot_of(bucket))
    assert loaded is not None
    loaded.image.apply_all(records[loaded.offset :])
    for image in (whole, loaded.image):
        image.check_invariants()
        said = {str(topic.topic_id): topic.name for topic in image.topics}
        assert said == {topic["topic_id"]: topic["name"] for topic in expected["topics"]}
        frozen = {(topic.name, topic.snapshot) for topic in image.frozen_topics}
        assert frozen == {("orders", "nightly"), (expected["deleted"]["name"], "")}
        assert sum(stream.kept is not None for stream in image.streams) == 1
    assert whole == loaded.image


async def test_an_older_version_does_not_recover_metadata_of_a_newer_one() -> None:
    """The metadata contains an unknown record type or a newer snapshot: nothing is written, not
    even fences.
    """
    store, cluster_id = await store_of(bucket_of(HERE / RELEASES[-1] / "bucket"))
    log = BackupLog(store, cluster_id)
    last = await log.read((await log.listed()).first_offsets[-1])
    strange = msgspec.Raw(msgspec.msgpack.encode(["from-a-later-version", 7]))
    item = msgspec.structs.replace(last, first_offset=last.end_offset, records=[strange])
    await log.put(item)
    before = {info.key async for info in store.list("")}
    with pytest.raises(FormatUnknown, match="'from-a-later-version'"):
        await Recovery(store, cluster_id, now_ms=wall_ms).run(force=True, accept_loss=True)
    await store.delete([backup_key(cluster_id, item.first_offset)])
    before.discard(backup_key(cluster_id, item.first_offset))
    (key,) = {info.key async for info in store.list(snapshot_prefix(cluster_id))}
    await store.put(key, with_metadata_version(await store.get(key), 3))
    with pytest.raises(FormatUnknown, match=f"{key} has format version 3"):
        await Recovery(store, cluster_id, now_ms=wall_ms).run(force=True, accept_loss=True)
    assert {info.key async for info in store.list("")} == before


def test_the_bucket_of_release_1_0_uses_every_part_of_the_formats() -> None:
    bucket = bucket_of(HERE / "1.0" / "bucket")
    assert {record.__struct_config__.tag for record in log_of(bucket)} >= RECORDS
    roles: Counter[ObjectRole] = Counter()
    for key, data in bucket.items():
        if parse_wal_key(key) is not None or parse_data_key(key) is not None:
            roles[parse_header(data, key).role] += 1
    assert set(roles) == set(ObjectRole)
    assert named_in_the_manifest(bucket) == {1, 2, 3}


def named_in_the_manifest(bucket: dict[str, bytes]) -> set[int]:
    """Return the roles of the objects listed in the newest manifest."""

    async def found() -> set[int]:
        view = ClusterView((await store_of(bucket))[0])
        await view.refresh()
        logs = [log for topic in view.topics() for log in await view.committed(topic.name)]
        return {role for log in logs for run in log.runs for role in run.roles}

    roles: set[int] = run(found())
    return roles
