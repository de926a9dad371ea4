"""Log compaction as seen by three client libraries and store readers."""

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.structs import TopicPartition as AioTopicPartition
from confluent_kafka import Producer, TopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PyTopicPartition

from penstock import scan
from penstock.broker.partition.partition import Partition
from penstock.stream.config import StreamConfig
from tests.support.clients import TIMEOUT_S, confluent_consumer, create_topic
from tests.support.cluster import Cluster
from tests.support.conversation import alter_configs
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import wait_until

TOPIC = "accounts"
TOPIC_RESOURCE = 2
KEYS = 7
ROUNDS = 6
BASE_MS = 1_700_000_000_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

COMPACT = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0"}
State = dict[bytes, bytes]

# The cluster uploads within 50 ms and looks for dirty logs ten times per second.
pytestmark = pytest.mark.cluster(
    brokers=2,
    stream_config=StreamConfig(wal_linger_ms=0, block_age_max_ms=50, wal_delete_grace_ms=500),
    log_cleaner_backoff_ms=100,
)


def fill(bootstrap: str) -> State:
    """Write each key in each round, with every codec, some in aborted transactions, and delete the
    last key. Return the newest values.
    """
    state: State = {}
    for number in range(ROUNDS):
        codec = CODECS[number % len(CODECS)]
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec})
        for key in range(KEYS):
            state[b"%d" % key] = b"%d of round %d " % (key, number) * 9
            producer.produce(TOPIC, state[b"%d" % key], b"%d" % key, partition=0)
        assert producer.flush(TIMEOUT_S) == 0
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
    producer.init_transactions(TIMEOUT_S)
    for is_committed in (False, True, False):
        producer.begin_transaction()
        for key in (b"0", b"1"):
            producer.produce(TOPIC, b"transaction %d" % is_committed, key, partition=0)
        if is_committed:
            state |= {b"0": b"transaction 1", b"1": b"transaction 1"}
            producer.commit_transaction(TIMEOUT_S)
        else:
            producer.flush(TIMEOUT_S)
            producer.abort_transaction(TIMEOUT_S)
    last = b"%d" % (KEYS - 1)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(TOPIC, None, last, partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    del state[last]
    return state


async def compacted(cluster: Cluster) -> int:
    """Wait until the whole log is clean. Return its end offset."""
    broker = await cluster.until_served(TOPIC)
    partition = broker.partitions.get(TOPIC, 0)
    assert isinstance(partition, Partition)
    async with asyncio.timeout(TIMEOUT_S):
        while partition.log.cleaned.end < partition.high_watermark:  # noqa: ASYNC110 - the cleaner's work
            await asyncio.sleep(0.05)
    assert broker.cleaner.failures == 0
    return partition.high_watermark


def by_confluent(bootstrap: str, end: int) -> list[tuple[bytes, bytes | None]]:
    consumer = confluent_consumer(bootstrap, "c", enable_partition_eof=True)
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[tuple[bytes, bytes | None]] = []

    def is_at_end() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.append((message.key(), message.value()))
        return consumer.position([TopicPartition(TOPIC, 0)])[0].offset == end

    wait_until(is_at_end)
    consumer.close()
    return found


def by_kafka_python(bootstrap: str, end: int) -> list[tuple[bytes, bytes | None]]:
    part = PyTopicPartition(TOPIC, 0)
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    consumer.assign([part])
    found: list[tuple[bytes, bytes | None]] = []

    def is_at_end() -> bool:
        for records in consumer.poll(500).values():
            found.extend((record.key, record.value) for record in records)
        return consumer.position(part) == end

    wait_until(is_at_end)
    consumer.close()
    return found


async def by_aiokafka(bootstrap: str, end: int) -> list[tuple[bytes, bytes | None]]:
    part = AioTopicPartition(TOPIC, 0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
    )
    await consumer.start()
    consumer.assign([part])
    found: list[tuple[bytes, bytes | None]] = []
    async with asyncio.timeout(TIMEOUT_S):
        while await consumer.position(part) < end:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += [(record.key, record.value) for record in records]
    await consumer.stop()
    return found


async def test_clients_read_only_the_newest_values_of_a_compacted_topic(cluster: Cluster) -> None:
    bootstrap = cluster.bootstrap

    def run() -> State:
        create_topic(bootstrap, TOPIC, 1, **COMPACT)
        return fill(bootstrap)

    state = await asyncio.to_thread(run)
    leader = cluster.leader_of(TOPIC)
    end = await compacted(cluster)
    # The leader still has the removed records in its log cache, so restart it.
    await cluster.stop_broker(leader)
    await cluster.start_broker(leader)
    await cluster.until_served(TOPIC)
    bootstrap = cluster.bootstrap
    found = [
        await asyncio.to_thread(by_confluent, bootstrap, end),
        await asyncio.to_thread(by_kafka_python, bootstrap, end),
        await by_aiokafka(bootstrap, end),
    ]
    for records in found:
        keys = [key for key, _ in records]
        assert len(keys) == len(set(keys)), "an older record is left"
        assert {key: value for key, value in records if value is not None} == state
    assert found[0] == found[1] == found[2]


def test_store_readers_read_the_same_compacted_records(tmp_path: Path) -> None:
    with ThreadedCluster(tmp_path) as cluster:
        create_topic(cluster.bootstrap, TOPIC, 1, **COMPACT)
        state = fill(cluster.bootstrap)
        cluster.compact(TOPIC)

        def scanned() -> list[tuple[bytes, bytes | None]]:
            table = scan(cluster.store_url, TOPIC).to_table()
            return list(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))

        wait_until(lambda: len(scanned()) == KEYS)
        found = scanned()
        assert {key: value for key, value in found if value is not None} == state


def test_counts_and_time_ranges_of_a_compacted_log_are_exact(tmp_path: Path) -> None:
    """The records of a batch have timestamps in arbitrary order, and most of them are deleted."""
    with ThreadedCluster(tmp_path) as cluster:
        create_topic(cluster.bootstrap, TOPIC, 1, **COMPACT)
        rng = Random(5)
        for codec in CODECS:
            cluster.produce(
                [
                    {
                        "topic": TOPIC,
                        "partition": 0,
                        "key": b"%d" % rng.randrange(60),
                        "value": b"v" * 50,
                        "timestamp": BASE_MS + rng.randrange(1_000),
                    }
                    for _ in range(40)
                ],
                **{"compression.type": codec, "linger.ms": 50},
            )
        fill(cluster.bootstrap)
        cluster.compact(TOPIC)

        def is_compacted() -> bool:
            keys = scan(cluster.store_url, TOPIC, columns=["key"]).to_table()["key"].to_pylist()
            return len(keys) == len(set(keys))

        wait_until(is_compacted)
        check_times(cluster.store_url)


def check_times(store_url: str) -> None:
    """Compare counts, lookups by time and time ranges with the result of a full scan."""
    committed = scan(store_url, TOPIC, isolation_level="read_committed")
    assert committed.count() == committed.to_table().num_rows
    table = scan(store_url, TOPIC, columns=["offset", "timestamp"]).to_table()
    rows = [
        (offset, int(at.timestamp() * 1_000))
        for offset, at in zip(
            table["offset"].to_pylist(), table["timestamp"].to_pylist(), strict=True
        )
    ]
    end = scan(store_url, TOPIC).offsets[0][1]
    assert len(rows) < end
    for late_ms in (0, 1, 250, 251, 700, 999, 1_000, 10**9):
        moment = datetime.fromtimestamp((BASE_MS + late_ms) / 1_000, UTC)
        first = next((offset for offset, at in rows if at >= BASE_MS + late_ms), end)
        assert scan(store_url, TOPIC, start=moment).offsets[0] == (first, end)
        before = scan(store_url, TOPIC, end=moment, columns=["offset"])
        assert before.to_table()["offset"].to_pylist() == [at for at, _ in rows if at < first]
        assert before.count() == before.to_table().num_rows
        older = scan(store_url, TOPIC, until=moment, columns=["offset"])
        expected = [offset for offset, at in rows if at < BASE_MS + late_ms]
        assert older.to_table()["offset"].to_pylist() == expected
        newer = scan(store_url, TOPIC, since=moment, columns=["key"])
        assert newer.to_table().column_names == ["key"]
        assert older.count() == len(expected)
        assert newer.count() == newer.to_table().num_rows == len(rows) - len(expected)


async def test_small_log_is_compacted_before_its_regular_upload(tmp_path: Path) -> None:
    """The log may be compacted only after all records have been written."""
    stream = StreamConfig(wal_linger_ms=0, block_age_max_ms=3_600_000)
    config = {"cleanup_policy": "compact", "max_compaction_lag_ms": "3600000"}
    async with Cluster(
        tmp_path, brokers=1, stream_config=stream, log_cleaner_backoff_ms=100
    ) as cluster:

        def run() -> None:
            create_topic(cluster.bootstrap, TOPIC, 1, **config)
            producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 0})
            for number in range(5):
                producer.produce(TOPIC, b"%d" % number, b"key", partition=0)
                assert producer.flush(TIMEOUT_S) == 0
            changed = {"max.compaction.lag.ms": "100"}
            assert alter_configs(cluster.bootstrap, (TOPIC_RESOURCE, TOPIC), changed) == (0, None)

        await asyncio.to_thread(run)
        end = await compacted(cluster)
        found = await asyncio.to_thread(by_confluent, cluster.bootstrap, end)
        assert found == [(b"key", b"4")]
        assert cluster.broker.cleaner.uploads >= 1
