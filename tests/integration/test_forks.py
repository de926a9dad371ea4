"""Forks, topics that start with the log of another topic, as clients and store readers see them."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock import scan
from penstock.broker.partition.partition import Partition
from penstock.lake.manifest.errors import UnknownPartition
from tests.support.clients import (
    PATIENT_TRANSACTION,
    TIMEOUT_S,
    confluent_consumer,
    create_topic,
    produce,
)
from tests.support.cluster import Cluster, deleting_cluster
from tests.support.in_thread import in_thread
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import until, wait_until

SOURCE = "orders"
FORK = "orders-test"
PARTITIONS = 3
COUNT = 60
FROM_SOURCE = {"penstock_fork_source": SOURCE}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with deleting_cluster(tmp_path) as cluster:
        yield cluster


def values(name: str, count: int = COUNT) -> list[bytes]:
    return [b"%s %d" % (name.encode(), number) for number in range(count)]


def fill(bootstrap: str, topic: str, name: str) -> None:
    produce(bootstrap, topic, values(name), partitions=range(PARTITIONS))


def expected(*names: str) -> dict[int, list[bytes]]:
    """Return the expected values of each partition after `fill` with each of these names."""
    return {
        number: [value for name in names for value in values(name)[number::PARTITIONS]]
        for number in range(PARTITIONS)
    }


def read(
    bootstrap: str, topic: str, partitions: int = PARTITIONS, isolation: str = "read_committed"
) -> dict[int, list[bytes]]:
    """Return the values of each partition from the log start offset to the end visible to the
    reader.
    """
    consumer = confluent_consumer(
        bootstrap, "r", enable_partition_eof=True, isolation_level=isolation
    )
    parts = [TopicPartition(topic, number) for number in range(partitions)]
    for part in parts:
        part.offset = consumer.get_watermark_offsets(part, TIMEOUT_S)[0]
    consumer.assign(parts)
    found: dict[int, list[bytes]] = {number: [] for number in range(partitions)}
    ended: set[int] = set()

    def is_at_end() -> bool:
        message = consumer.poll(0.2)
        if message is None:
            return False
        partition, value = message.partition(), message.value()
        assert partition is not None
        if message.error() is not None:
            ended.add(partition)
        elif value is not None:
            found[partition].append(value)
        return len(ended) == partitions

    wait_until(is_at_end)
    consumer.close()
    return found


def refusal(bootstrap: str, topic: str, **config: str) -> str:
    with pytest.raises(KafkaException) as caught:
        create_topic(bootstrap, topic, -1, **config)
    return f"{caught.value.args[0].name()} {caught.value.args[0].str()}"


async def led(cluster: Cluster, topic: str, partition: int = 0) -> Partition:
    broker = await cluster.until_served(topic, partition)
    found = broker.partitions.get(topic, partition)
    assert isinstance(found, Partition)
    return found


async def test_fork_and_source_share_objects_and_are_independent(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap

    def fork() -> None:
        create_topic(bootstrap, SOURCE, PARTITIONS, retention_ms="777777777")
        fill(bootstrap, SOURCE, "shared")
        create_topic(bootstrap, FORK, -1, **FROM_SOURCE, max_message_bytes="50000")
        assert read(bootstrap, FORK) == expected("shared")

    await asyncio.to_thread(fork)
    image = cluster.broker.image
    topics = [image.topics.by_name(name) for name in (SOURCE, FORK)]
    source, forked = [topic for topic in topics if topic is not None]
    for before, after in zip(source.partitions, forked.partitions, strict=True):
        logs = [image.streams.known(item.data_stream_id) for item in (before, after)]
        assert [entry.object_id for entry in logs[0].entries] == [
            entry.object_id for entry in logs[1].entries
        ]
        assert after.leader_epoch > before.leader_epoch
    first = image.streams.known(forked.partitions[0].data_stream_id).entries[0]
    shared = [state.key for state in image.objects if state.object_id == first.object_id]
    assert dict(image.configs.topic(FORK)) == {
        "retention.ms": "777777777",
        "max.message.bytes": "50000",
        "penstock.fork.source": SOURCE,
    }

    def diverge() -> None:
        fill(bootstrap, SOURCE, "source")
        fill(bootstrap, FORK, "fork")
        assert read(bootstrap, FORK) == expected("shared", "fork")
        assert read(bootstrap, SOURCE) == expected("shared", "source")
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_topics([SOURCE])[SOURCE].result(TIMEOUT_S)

    await asyncio.to_thread(diverge)
    # The fork now owns the objects of the source, and no broker has them in its log cache.
    for node_id in list(cluster.brokers):
        await cluster.stop_broker(node_id)
        await cluster.start_broker(node_id)
    await until(lambda: len(cluster.broker.image.topics.leaders()) > 0)
    bootstrap = cluster.bootstrap
    assert await asyncio.to_thread(read, bootstrap, FORK) == expected("shared", "fork")
    assert set(shared) <= {state.key for state in cluster.broker.image.objects if state.refs}

    def delete() -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_topics([FORK])[FORK].result(TIMEOUT_S)

    await asyncio.to_thread(delete)
    await cluster.until_janitor_done()
    image = cluster.broker.image
    # Objects may also contain committed offsets of the readers.
    internal = {topic.topic_id for topic in image.topics}
    assert {stream.topic_id for stream in image.streams} <= internal
    assert forked.topic_id not in internal


async def test_fork_aborts_transactions_open_at_its_fork_point(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap

    def run() -> None:
        create_topic(bootstrap, SOURCE, 1)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_topics(["unused"])
        writers = {
            name: Producer(
                {"bootstrap.servers": bootstrap, "transactional.id": name} | PATIENT_TRANSACTION
            )
            for name in ("early", "late")
        }
        for name, writer in writers.items():
            writer.init_transactions(TIMEOUT_S)
            writer.begin_transaction()
            writer.produce(SOURCE, f"{name} 1".encode(), partition=0)
            assert writer.flush(TIMEOUT_S) == 0
        writers["early"].commit_transaction(TIMEOUT_S)
        produce(bootstrap, SOURCE, [b"plain"])
        create_topic(bootstrap, FORK, -1, **FROM_SOURCE)
        # In the fork the open transaction is aborted, so later records are visible immediately.
        produce(bootstrap, FORK, [b"fork"])
        assert read(bootstrap, FORK, 1) == {0: [b"early 1", b"plain", b"fork"]}
        assert read(bootstrap, FORK, 1, "read_uncommitted") == {
            0: [b"early 1", b"late 1", b"plain", b"fork"]
        }
        # In the source it stays open.
        assert read(bootstrap, SOURCE, 1) == {0: [b"early 1"]}
        writers["late"].produce(SOURCE, b"late 2", partition=0)
        writers["late"].commit_transaction(TIMEOUT_S)
        assert read(bootstrap, SOURCE, 1) == {0: [b"early 1", b"late 1", b"plain", b"late 2"]}
        # The same producer writes to the fork, where it has no sequence numbers yet.
        writers["late"].begin_transaction()
        writers["late"].produce(FORK, b"late 3", partition=0)
        writers["late"].commit_transaction(TIMEOUT_S)
        assert read(bootstrap, FORK, 1) == {0: [b"early 1", b"plain", b"fork", b"late 3"]}

    await asyncio.to_thread(run)
    partition = await led(cluster, FORK)
    assert not partition.log.transactions
    # The next leader recovers the same state, with and without a checkpoint.
    node_id = cluster.leader_of(FORK)
    await cluster.kill_broker(node_id)
    await cluster.until_served(FORK)
    bootstrap = cluster.bootstrap
    assert await asyncio.to_thread(read, bootstrap, FORK, 1) == {
        0: [b"early 1", b"plain", b"fork", b"late 3"]
    }


@in_thread
def test_topic_is_forked_at_offsets_and_at_a_time(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap
    now_ms = time.time_ns() // 1_000_000
    create_topic(bootstrap, SOURCE, 2)
    writer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    for batch in range(4):
        for number in range(10):
            for partition in range(2):
                at_ms = now_ms - 60_000 + 10_000 * batch
                value = b"%d" % (10 * batch + number)
                writer.produce(SOURCE, value, partition=partition, timestamp=at_ms)
        assert writer.flush(TIMEOUT_S) == 0
    create_topic(bootstrap, "a", -1, **FROM_SOURCE, penstock_fork_offsets="0:20, 1:7")
    found = read(bootstrap, "a", 2)
    assert found[0] == [b"%d" % number for number in range(20)]
    # Batches are not split: offset 7 lies within the first batch, or a small batch starts
    # there.
    assert found[1] == [b"%d" % number for number in range(len(found[1]))]
    assert len(found[1]) <= 7
    at = str(now_ms - 60_000 + 20_000)
    create_topic(bootstrap, "b", -1, **FROM_SOURCE, penstock_fork_timestamp_ms=at)
    before = [b"%d" % number for number in range(20)]
    assert read(bootstrap, "b", 2) == {0: before, 1: before}
    # A fork of the fork, which also has records of its own.
    produce(bootstrap, "b", [b"own"])
    create_topic(bootstrap, "c", -1, penstock_fork_source="b")
    assert read(bootstrap, "c", 2) == {0: [*before, b"own"], 1: before}


async def test_invalid_forks_are_refused_with_the_reason(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap

    def run() -> None:
        create_topic(bootstrap, SOURCE, 2)
        produce(bootstrap, SOURCE, [b"x"], partitions=[0, 1])
        for config, text in {
            "penstock_fork_source=none": "UNKNOWN_TOPIC_OR_PART there is no topic 'none' to fork",
            "penstock_fork_offsets=0:1": "INVALID_CONFIG",
            "penstock_fork_source=orders penstock_fork_offsets=0": "partition:offset",
            "penstock_fork_source=orders penstock_fork_offsets=0:x": "'x' is not valid",
            "penstock_fork_source=orders penstock_fork_offsets=0:1,0:1": "each partition once",
            "penstock_fork_source=orders penstock_fork_offsets=2:1": "names partition 2",
            "penstock_fork_source=orders penstock_fork_offsets=0:9": "OFFSET_OUT_OF_RANGE orders-0",
            "penstock_fork_source=orders penstock_fork_timestamp_ms=-5": "'-5' is not valid",
            "penstock_fork_source=orders penstock_fork_timestamp_ms=1 penstock_fork_offsets=0:1": (
                "exclude each other"
            ),
            "penstock_fork_source=__consumer_offsets": "UNKNOWN_TOPIC_OR_PART",
            "penstock_fork_source=orders retention_ms=-2": "retention.ms='-2' is not valid",
        }.items():
            settings = dict(item.split("=") for item in config.split())
            assert text in refusal(bootstrap, FORK, **settings)
        with pytest.raises(KafkaException, match="as many partitions as its source: 2, not 3"):
            create_topic(bootstrap, FORK, 3, **FROM_SOURCE)

    await asyncio.to_thread(run)
    image = cluster.broker.image
    assert image.topics.by_name(FORK) is None
    assert len(image.streams) == 2 * 3


def test_store_readers_read_a_fork(tmp_path: Path) -> None:
    with ThreadedCluster(tmp_path) as cluster:
        bootstrap = cluster.bootstrap

        def scanned(topic: str) -> dict[int, list[bytes]]:
            try:
                table = scan(cluster.store_url, topic).to_table().sort_by("offset")
            except UnknownPartition:  # the manifest does not contain the topic yet
                return {}
            rows = zip(table["partition"].to_pylist(), table["value"].to_pylist(), strict=True)
            found: dict[int, list[bytes]] = {number: [] for number in range(PARTITIONS)}
            for partition, value in rows:
                found[partition].append(value)
            return found

        create_topic(bootstrap, SOURCE, PARTITIONS)
        fill(bootstrap, SOURCE, "shared")
        create_topic(bootstrap, FORK, -1, **FROM_SOURCE)
        fill(bootstrap, FORK, "fork")
        fill(bootstrap, SOURCE, "source")
        wait_until(lambda: scanned(FORK) == expected("shared", "fork"))
        assert scanned(SOURCE) == expected("shared", "source")


def test_compaction_of_a_fork_does_not_change_its_source(tmp_path: Path) -> None:
    with ThreadedCluster(tmp_path) as cluster:
        bootstrap = cluster.bootstrap
        create_topic(bootstrap, SOURCE, 1)
        writer = Producer({"bootstrap.servers": bootstrap})
        for value in values("shared"):
            writer.produce(SOURCE, value, key=b"k", partition=0)
        assert writer.flush(TIMEOUT_S) == 0
        compact = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
        create_topic(bootstrap, FORK, -1, **FROM_SOURCE, **compact)
        cluster.compact(FORK)
        assert read(bootstrap, SOURCE, 1) == {0: values("shared")}
        wait_until(lambda: scan(cluster.store_url, FORK).to_table().num_rows == 1)
        assert scan(cluster.store_url, SOURCE).to_table().num_rows == COUNT
