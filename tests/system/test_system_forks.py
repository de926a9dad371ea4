"""Snapshots and forks of compacted topics while a leader hangs contain every key."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from penstock import scan
from penstock.deploy.local.handle import LocalCluster
from penstock.lake.manifest.errors import UnknownPartition
from penstock.lake.manifest.view import ClusterView
from penstock.lake.rewrite.plan import ranges_of
from penstock.objectstore.url import open_store
from penstock.protocol.apis import CREATE_TOPICS
from penstock.protocol.gen import create_topics
from tests.support.waiting import PATIENCE_S, until, wait_until
from tests.support.wire import wire_client

pytestmark = pytest.mark.system

SETTINGS = {
    "broker.session.timeout.ms": "10min",
    "broker.session.grace.ms": "10min",
    "log.cleaner.backoff.ms": "100ms",
    # Records are uploaded only for fork points.
    "upload.block.max.age.ms": "1h",
}
OTHERS = {f"other{number}": bytes(900_000) for number in range(10)}
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    # The cleaner uploads records, too, so it waits until `clean` changes this config.
    "min.compaction.lag.ms": "3600000",
}


def write(bootstrap: str, **records: bytes) -> None:
    """Write one record per keyword argument: key=value."""
    producer = Producer({"bootstrap.servers": bootstrap})
    for key, value in records.items():
        producer.produce("t0", value, key.encode(), partition=0)
    assert producer.flush(PATIENCE_S) == 0


def clean(admin: AdminClient, topic: str) -> None:
    """Allow the cleaner to clean all records of the topic."""
    now = ConfigEntry("min.compaction.lag.ms", "0", incremental_operation=AlterConfigOpType.SET)
    changes = admin.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[now])]
    )
    for future in changes.values():
        future.result(PATIENCE_S)


def create(port: int, **forks: dict[str, str]) -> dict[str, tuple[int, str | None]]:
    """Create topics through the broker at this port. Return the error of each."""
    topics = [
        create_topics.CreatableTopic(
            name,
            -1,
            -1,
            [],
            [create_topics.CreatableTopicConfig(*config) for config in configs.items()],
        )
        for name, configs in forks.items()
    ]
    request = create_topics.CreateTopicsRequest(topics, timeout_ms=60_000)
    kind = create_topics.CreateTopicsResponse
    with wire_client(f"127.0.0.1:{port}") as client:
        response = client.send_request(CREATE_TOPICS, request, kind, timeout_s=PATIENCE_S)
    return {topic.name: (topic.error_code, topic.error_message) for topic in response.topics}


def values(store: str, topic: str, snapshot: str | None = None) -> list[bytes]:
    """Return all values of key `k`."""
    rows = scan(store, topic, snapshot=snapshot).to_table().to_pylist()
    return [row["value"] for row in rows if row["key"] == b"k"]


def in_time(store: str, topic: str, snapshot: str) -> list[bytes]:
    """Return the values of a snapshot as soon as readers see it."""
    found: list[list[bytes]] = []

    def is_found() -> bool:
        with suppress(UnknownPartition):
            found.append(values(store, topic, snapshot))
        return bool(found)

    wait_until(is_found)
    return found[0]


async def committed_end(store_url: str, topic: str) -> int:
    store = open_store(store_url)
    try:
        view = ClusterView(store, "")
        await view.refresh()
        (log,) = await view.committed(topic)
        return max((item.range.end_offset for item in ranges_of(log)), default=0)
    finally:
        await store.close()


async def test_snapshot_delayed_by_a_hanging_leader_contains_every_acknowledged_key(
    tmp_path: Path,
) -> None:
    settings = [part for item in SETTINGS.items() for part in ("--set", "=".join(item))]
    with LocalCluster(
        ["--log-level", "error", "--store", f"file:{tmp_path}", *settings]
    ) as cluster:
        store = cluster.state().store_url
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        topics = [
            NewTopic(f"t{number}", 1, replica_assignment=[[number]], config=COMPACTED)
            for number in (0, 1)
        ]
        for future in admin.create_topics(topics).values():
            await asyncio.to_thread(future.result, PATIENCE_S)
        # Write more than log compaction rewrites at once, so that no rewrite spans the fork point.
        await asyncio.to_thread(write, cluster.bootstrap, k=b"old", **OTHERS)

        async def is_only_in_the_wal() -> bool:
            with suppress(UnknownPartition):
                return await committed_end(store, "t0") == 0
            return False

        await until(is_only_in_the_wal)
        living, hung = cluster.brokers()
        source = {"penstock.fork.source": "t0"}
        requested = {"t0@s": source, "t1@s": {"penstock.fork.source": "t1"}}
        cluster.kill([hung], signal.SIGSTOP)
        try:
            request = asyncio.create_task(asyncio.to_thread(create, living.port, **requested))

            async def has_fork_point() -> bool:
                return await committed_end(store, "t0") == 1 + len(OTHERS)

            await until(has_fork_point)
            await asyncio.to_thread(write, f"127.0.0.1:{living.port}", k=b"new")
            living_admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{living.port}"})
            await asyncio.to_thread(clean, living_admin, "t0")
            uploaded = await asyncio.to_thread(create, living.port, copy=source)
            assert uploaded["copy"][0] == 0, uploaded
            await until(lambda: asyncio.to_thread(lambda: values(store, "t0") == [b"new"]))
            assert not request.done()
        finally:
            cluster.kill([hung], signal.SIGCONT)
        assert await request == {"t0@s": (0, None), "t1@s": (0, None)}
        frozen = await asyncio.to_thread(in_time, store, "t0", "s")
        assert frozen == [b"new"]
        # An earlier state has been deleted, so a fork at it is refused instead of lacking keys.
        before = {**source, "penstock.fork.offsets": "0:11"}
        code, message = (await asyncio.to_thread(create, living.port, before=before))["before"]
        assert (code, "may lack keys" in (message or "")) == (1, True), message
