"""A Kafka Streams application in Java counts words. It is stopped or killed while it counts, loses
its local state, and is started again.

Streams deletes the records of its repartition topic by DeleteRecords, and restores its state from
its changelog topic, which log compaction keeps short.
"""

import asyncio
import shutil
import signal
import struct
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from broker.partition.partition import Partition
from stream.config import StreamConfig
from tests.support.clients import POLL_S, TIMEOUT_S, checked, create_topic, produce
from tests.support.cluster import Cluster
from tests.support.java import JavaHome, wait_while_running
from tests.support.waiting import until, wait_until

PARTITIONS = 2
WORDS = [b"w%d" % number for number in range(40)]
LINES = [b" ".join(WORDS[first % 40 :: 1 + first % 7]) for first in range(2_000)]
TOTAL = sum(len(line.split()) for line in LINES)
EXPECTED = Counter(word for line in LINES for word in line.split())
APPLICATION = "counter"
REPARTITION = f"{APPLICATION}-words-repartition"
CHANGELOG = f"{APPLICATION}-counts-changelog"


@pytest.fixture(scope="session")
def word_count(java: JavaHome) -> JavaHome:
    java.compile(Path(__file__).parent / "streams" / "WordCount.java")
    return java


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Uploads within 50 ms, looks for dirty logs and for old transactions ten times a second."""
    stream = StreamConfig(wal_linger_ms=0, block_age_max_ms=50, wal_delete_grace_ms=500)
    async with Cluster(
        tmp_path / "cluster",
        brokers=2,
        stream_config=stream,
        log_cleaner_backoff_ms=100,
        group_min_session_timeout_ms=500,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=100,
    ) as cluster:
        yield cluster


class WordReader:
    """Reads a topic of words and counts from its beginning. newest: the last count of each word."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.newest: dict[bytes, int] = {}
        self.records = 0
        self._ended: set[int] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
            }
        )
        self._consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])

    def has(self, total: int) -> bool:
        """Read on; return whether so many words were counted, some perhaps twice."""
        self._poll()
        return sum(self.newest.values()) >= total

    def has_counted(self, expected: Mapping[bytes, int]) -> bool:
        """Read on; return whether every word was counted as often, or more often."""
        self._poll()
        return all(self.newest.get(word, 0) >= count for word, count in expected.items())

    def read_all(self) -> dict[bytes, int]:
        """Read to the end; return the counts."""

        def is_at_end() -> bool:
            self._poll()
            return len(self._ended) == PARTITIONS

        wait_until(is_at_end)
        return self.newest

    def _poll(self) -> None:
        for message in self._consumer.consume(1_000, POLL_S):
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                self._ended.add(message.partition())
                continue
            checked(message)
            self.newest[message.key()] = struct.unpack(">q", message.value())[0]
            self.records += 1

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.parametrize(
    ("guarantee", "end"),
    [
        ("exactly_once_v2", signal.SIGKILL),
        pytest.param("at_least_once", signal.SIGTERM, marks=pytest.mark.long),
        pytest.param("at_least_once", signal.SIGKILL, marks=pytest.mark.long),
    ],
)
async def test_words_are_counted(
    cluster: Cluster, word_count: JavaHome, tmp_path: Path, guarantee: str, end: signal.Signals
) -> None:
    counts = await asyncio.to_thread(
        _count, cluster.bootstrap, word_count, tmp_path, guarantee, end
    )
    if (guarantee, end) == ("at_least_once", signal.SIGKILL):
        assert counts.keys() == EXPECTED.keys()
        assert all(counts[word] >= count for word, count in EXPECTED.items())
    else:
        assert counts == EXPECTED
    await until(lambda: all(_is_cleaned(cluster, index) for index in range(PARTITIONS)))
    # The leaders still have the removed records in their log caches.
    for node_id in list(cluster.brokers):
        await cluster.stop_broker(node_id)
        await cluster.start_broker(node_id)
    for index in range(PARTITIONS):
        await cluster.until_served(CHANGELOG, index)
    await asyncio.to_thread(_check_changelog, cluster.bootstrap, counts)


def _is_cleaned(cluster: Cluster, index: int) -> bool:
    """Return whether no key occurs twice in a partition of the changelog."""
    leader = cluster.brokers.get(cluster.leader_of(CHANGELOG, index))
    found = None if leader is None else leader.partitions.get(CHANGELOG, index)
    return isinstance(found, Partition) and found.log.cleaned.end == found.high_watermark


def _count(
    bootstrap: str, java: JavaHome, directory: Path, guarantee: str, end: signal.Signals
) -> dict[bytes, int]:
    """Return the counts that the application ends with."""
    for topic in ("lines", "totals"):
        create_topic(bootstrap, topic, PARTITIONS)
    produce(bootstrap, "lines", LINES, partitions=range(PARTITIONS), linger_ms=5)
    log, state = directory / "streams.log", directory / "state"
    arguments = ("WordCount", bootstrap, APPLICATION, str(state), guarantee)
    with closing(WordReader(bootstrap, "totals")) as reader:
        with java.application(*arguments, log=log) as process:
            wait_while_running(process, log, lambda: reader.has(TOTAL // 10))
            process.send_signal(end)
            process.wait(TIMEOUT_S)
        assert not reader.has_counted(EXPECTED), "the application was not stopped while it counted"
        shutil.rmtree(state)
        with java.application(*arguments, log=log) as process:
            wait_while_running(process, log, lambda: reader.has_counted(EXPECTED))
            wait_while_running(process, log, lambda: _is_purged(bootstrap))
            process.terminate()
            process.wait(TIMEOUT_S)
    with closing(WordReader(bootstrap, "totals")) as reader:
        return reader.read_all()


def _is_purged(bootstrap: str) -> bool:
    """Return whether Streams has deleted all that it has read of its repartition topic. What it
    purges lags one interval behind what it commits.
    """
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "reader"})
    try:
        bounds = [
            consumer.get_watermark_offsets(TopicPartition(REPARTITION, index), TIMEOUT_S)
            for index in range(PARTITIONS)
        ]
    finally:
        consumer.close()
    return all(low > 0 and high - low <= 1 for low, high in bounds if high > 0)


def _check_changelog(bootstrap: str, counts: dict[bytes, int]) -> None:
    """The changelog is short, and it is what Streams would restore."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, CHANGELOG)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    configs = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    assert configs["cleanup.policy"].value == "compact"

    with closing(WordReader(bootstrap, CHANGELOG)) as reader:
        assert reader.read_all() == counts
        assert reader.records == len(counts)
