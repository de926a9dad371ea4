"""This version continues with the bucket of a release: once with controllers that start from their
disks, once with controllers rebuilt from the bucket alone.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock import scan
from penstock.base.clock import wall_ms
from penstock.base.ids import NodeId
from penstock.controller.api.messages import AlterReassignments, PartitionTarget
from penstock.controller.disaster_recovery.recovery import Recovery, cluster_ids
from penstock.controller.metadata.features import METADATA_VERSION, SUPPORTED
from penstock.deploy.clients.features import listed_features
from penstock.deploy.clients.wire import WireClient
from penstock.lake.arrow.cluster import StoreCluster
from penstock.objectstore.url import open_store
from tests.formats.clients import committed_offsets, consumed
from tests.formats.generate import HERE
from tests.formats.record_release import GRACE_MS, SHARE_GROUP, STREAM, join_share_group
from tests.support.clients import TIMEOUT_S, create_topic, produce
from tests.support.cluster import Cluster
from tests.support.conversation import describe_configs_of
from tests.support.reader_objects import rows_of
from tests.support.share_client import ShareMember
from tests.support.waiting import until, wait_until
from tests.unit.formats.test_formats_releases import RELEASES
from tests.unit.formats.test_formats_vectors import COLUMNS, check_rows, expected_of, row_json_of

Parts = list[tuple[str, dict[str, Any]]]


@pytest.fixture(params=[(release, way) for release in RELEASES for way in ("disks", "bucket")])
async def continued(
    request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[tuple[Cluster, str, dict[str, Any]]]:
    """Start a cluster of this version on data of a release. Yields the cluster, the store URL, and
    the expected data.
    """
    release, controllers_from = request.param
    for folder in ("bucket", "controller"):
        shutil.copytree(HERE / release / folder, tmp_path / folder)
    url = f"file:{tmp_path}/bucket"
    store = open_store(url)
    (cluster_id,) = await cluster_ids(store)
    if controllers_from == "bucket":
        shutil.rmtree(tmp_path / "controller")
        report = await Recovery(store, cluster_id, now_ms=wall_ms).run(force=True)
        assert report.gaps == []
        assert report.new_offset is not None
    cluster = Cluster(
        tmp_path,
        brokers=2,
        store=store,
        stream_config=STREAM,
        controller_settings={"cluster_id": cluster_id, "delete_grace_ms": GRACE_MS},
        offsets_retention_minutes=2**31 - 1,  # the release may be old
    )
    async with cluster:
        yield cluster, url, expected_of(HERE / release / "expected.json")
    await store.close()


async def test_cluster_continues_with_the_data_of_a_release(
    continued: tuple[Cluster, str, dict[str, Any]],
) -> None:
    cluster, url, expected = continued
    parts = [
        (topic["name"], partition)
        for topic in expected["topics"]
        for partition in topic["partitions"]
    ]
    for topic, partition in parts:
        await cluster.until_served(topic, partition["partition"])
    await asyncio.to_thread(check_brokers, cluster, expected, parts)
    await asyncio.to_thread(write, cluster.bootstrap, parts)
    await move(cluster, "orders", 1)
    await asyncio.to_thread(check_old_and_new, cluster, url, parts)
    for broker in cluster.brokers.values():
        await broker.storage.upload()
    await asyncio.to_thread(check_old_and_new, cluster, url, parts)
    await asyncio.to_thread(check_what_was_kept, cluster, url, expected)


def check_brokers(cluster: Cluster, expected: dict[str, Any], parts: Parts) -> None:
    """Check records, committed offsets, share group states, features and configs."""
    servers = cluster.bootstrap
    for topic, partition in parts:
        found = consumed(servers, topic, partition["partition"])
        assert found == partition, f"{topic}: {found}"
    for group, offsets in expected["groups"].items():
        assert committed_offsets(servers, group) == offsets
    member_id = join_share_group(cluster)
    leader = f"127.0.0.1:{cluster.brokers[cluster.leader_of('jobs')].port}"
    with closing(ShareMember(leader, SHARE_GROUP, member_id)) as member:
        acquired = member.acquired(("jobs", 0), max_wait_ms=20_000)
        assert [list(item) for item in acquired] == expected["share"]["acquired"]
    for kind, name, config, value in expected["configs"]:
        address = next(
            f"127.0.0.1:{broker.port}"
            for number, broker in cluster.brokers.items()
            if name in {"", str(number)} or not name.isdecimal()
        )
        assert describe_configs_of(address, (kind, name), config)[config]["value"] == value
    with WireClient(servers.split(",")[0]) as client:
        later = {feature.name: 0 for feature in SUPPORTED} | expected["features"]
        later[METADATA_VERSION.name] = METADATA_VERSION.max_level
        assert {item.name: item.level for item in listed_features(client)} == later


def write(servers: str, parts: Parts) -> None:
    """Write a record to every partition, and an aborted transaction to one."""
    for topic, partition in parts:
        producer = Producer({"bootstrap.servers": servers, "compression.type": "zstd"})
        producer.produce(topic, b"new", b"new key", partition=partition["partition"])
        assert producer.flush(TIMEOUT_S) == 0
    # The release has used this transactional id.
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "id 2 0"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce("payments", b"aborted", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    producer.abort_transaction(TIMEOUT_S)


async def move(cluster: Cluster, topic: str, partition: int) -> None:
    target = NodeId(1 - cluster.leader_of(topic, partition))
    requested = PartitionTarget(topic=topic, partition=partition, replicas=[target])
    client = cluster.broker.client
    (item,) = (await client.alter_reassignments(AlterReassignments(partitions=[requested]))).items
    assert not item.status, item.detail
    await until(lambda: cluster.leader_of(topic, partition) == target)
    await cluster.until_served(topic, partition)


def published(cluster: Cluster, url: str) -> None:
    """Return when the manifest contains all current metadata."""
    end = cluster.broker.image.end_offset
    wait_until(lambda: StoreCluster(url, "").newest_root().metadata_offset >= end)


def check_old_and_new(cluster: Cluster, url: str, parts: Parts) -> None:
    """Check that store readers and consumers get the records of both versions."""
    published(cluster, url)
    now = [(topic, consumed(cluster.bootstrap, topic, old["partition"])) for topic, old in parts]
    for (topic, old), (_, new) in zip(parts, now, strict=True):
        count = len(old["rows"])
        assert new["rows"][:count] == old["rows"]
        assert bytes.fromhex(new["rows"][count]["value"]) == b"new"
        stable = topic != "open"
        assert (new["last_stable_offset"] > old["end_offset"]) == stable
        rows = 1 if topic != "payments" else 2
        assert len(new["rows"]) == count + rows
    check_rows(url, now)


def check_what_was_kept(cluster: Cluster, url: str, expected: dict[str, Any]) -> None:
    """Check that snapshots, deleted topics and deleted records exist and can be restored."""
    servers = cluster.bootstrap
    (snapshot,) = expected["snapshots"]
    name = f"{snapshot['name']}@{snapshot['snapshot']}"
    for partition in snapshot["partitions"]:
        assert rows_of_snapshot(url, snapshot, partition["partition"]) == partition["rows"]
    create_topic(servers, "restored", -1, penstock_fork_source=name)
    kept, deleted = expected["kept"], expected["deleted"]
    create_topic(servers, deleted["name"], -1, penstock_undelete=deleted["name"])
    create_topic(
        servers,
        "whole",
        -1,
        penstock_fork_source=kept["name"],
        penstock_fork_deleted_records="true",
    )
    for topic, requested in (("restored", snapshot), (deleted["name"], deleted), ("whole", kept)):
        produce(servers, topic, [b"after"])
        for partition in requested["partitions"]:
            found = consumed(servers, topic, partition["partition"])
            assert found["rows"][: len(partition["rows"])] == partition["rows"]
            published(cluster, url)
            check_rows(url, [(topic, found)])


def rows_of_snapshot(url: str, snapshot: dict[str, Any], partition: int) -> list[dict[str, Any]]:
    found = scan(
        url,
        snapshot["name"],
        snapshot=snapshot["snapshot"],
        partitions=[partition],
        columns=COLUMNS,
    )
    return [row_json_of(row) for row in rows_of(found.to_table())]
