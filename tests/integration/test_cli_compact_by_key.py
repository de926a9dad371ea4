"""`penstock compact --by-key` against a real cluster whose brokers do not compact."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.base.errors import ExpectedError
from penstock.deploy.errors import UsageError
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.url import open_store
from penstock.stream.config import StreamConfig
from tests.integration.test_log_compaction import (
    COMPACT,
    KEYS,
    TOPIC,
    State,
    by_aiokafka,
    by_confluent,
    compacted,
    fill,
)
from tests.support.cli import Cli
from tests.support.clients import TIMEOUT_S, create_topic, produce
from tests.support.cluster import Cluster
from tests.support.waiting import until


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    stream = StreamConfig(wal_linger_ms=0, block_age_max_ms=50, wal_delete_grace_ms=500)
    store = open_store(f"file:{tmp_path / 'store'}")
    async with Cluster(
        tmp_path, brokers=2, store=store, stream_config=stream, log_cleaner_enable=False
    ) as cluster:
        yield cluster
    await store.close()


class Topic:
    """A topic and the command that compacts it."""

    def __init__(self, cluster: Cluster, directory: Path) -> None:
        self.cluster = cluster
        self.cli = Cli(cluster, directory)
        self.store_url = f"file:{directory / 'store'}"

    async def compact(self, *options: str, topic: str = TOPIC) -> str:
        return await self.cli.run("compact", topic, "--by-key", "--store", self.store_url, *options)

    async def move(self) -> None:
        """Restart the leader, which uploads all records and a checkpoint to objects."""
        leader = self.cluster.leader_of(TOPIC)
        await self.cluster.stop_broker(leader)
        await self.cluster.start_broker(leader)
        broker = await self.cluster.until_served(TOPIC)
        view = ClusterView(self.cluster.store)

        async def is_published() -> bool:
            await view.refresh()
            offsets = await view.partitions([TOPIC]) if view.topics(TOPIC) else []
            end = broker.partitions.get(TOPIC, 0).high_watermark
            return [item.committed_end for item in offsets] == [end]

        await until(is_published)

    async def check(self, state: State) -> None:
        """Check that each key has only its newest record."""
        broker = await self.cluster.until_served(TOPIC)
        end = broker.partitions.get(TOPIC, 0).high_watermark
        for found in (
            await asyncio.to_thread(by_confluent, self.cluster.bootstrap, end),
            await by_aiokafka(self.cluster.bootstrap, end),
        ):
            keys = [key for key, _ in found]
            assert len(keys) == len(set(keys)), "an older record is left"
            assert {key: value for key, value in found if value is not None} == state


@pytest.fixture
def topic(cluster: Cluster, tmp_path: Path) -> Topic:
    return Topic(cluster, tmp_path)


async def test_compaction_keeps_only_the_newest_record_of_each_key(
    cluster: Cluster, topic: Topic
) -> None:
    def run() -> State:
        create_topic(cluster.bootstrap, TOPIC, 1, **COMPACT)
        return fill(cluster.bootstrap)

    state = await asyncio.to_thread(run)
    await topic.move()
    (plan,) = json.loads(await topic.compact("--dry-run", "--json"))["partitions"]
    assert (plan["log_start"], plan["dirty_from"]) == (0, 0)
    assert plan["dirty_bytes"] == plan["log_bytes"] > 0
    report = json.loads(await topic.compact("--json"))
    (done,) = report["partitions"]
    assert done["removed_records"] > 5 * KEYS
    assert done["clean_end"] == plan["end"]
    assert (report["unresolved"], report["damaged"], done["conflicts"]) == ([], [], 0)
    await topic.move()
    await topic.check(state)
    assert "nothing to remove" in await topic.compact()

    # The next run compacts what the leader has appended since.
    def more() -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for number in range(9):
            state[b"0"] = b"more %d" % number
            producer.produce(TOPIC, state[b"0"], b"0", partition=0)
        assert producer.flush(TIMEOUT_S) == 0

    await asyncio.to_thread(more)
    await topic.move()
    assert "9 records removed" in await topic.compact("--key-map-mib", "1")
    await topic.move()
    await topic.check(state)

    # The leader's own cleaner continues from there, also after a crash.
    await cluster.kill_broker(cluster.leader_of(TOPIC))
    (survivor,) = cluster.brokers
    await cluster.stop_broker(survivor)
    await cluster.start_broker(survivor, log_cleaner_enable=True, log_cleaner_backoff_ms=100)
    await cluster.until_served(TOPIC)
    await compacted(cluster)
    await topic.check(state)


async def test_logs_that_cannot_be_compacted_are_refused(cluster: Cluster, topic: Topic) -> None:
    await asyncio.to_thread(create_topic, cluster.bootstrap, "plain", 1)
    await asyncio.to_thread(produce, cluster.bootstrap, "plain", [b"v"])

    # The manifest does not contain the new topic yet.
    with pytest.raises(
        UsageError, match=r"plain has cleanup\.policy=delete, but --by-key requires compact"
    ):
        await topic.compact(topic="plain")
    with pytest.raises(ExpectedError, match="topic 'nothing' does not exist"):
        await topic.compact(topic="nothing")
