"""A Kafka Streams application counts words while it is stopped, killed and scaled.

It runs with the classic protocol and with streams groups (KIP-1071). Streams trims its repartition
topic with DeleteRecords, and restores its state from a compacted changelog topic.
"""

import asyncio
import shutil
import signal
import struct
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from penstock.broker.partition.partition import Partition
from penstock.stream.config import StreamConfig
from tests.support.clients import POLL_S, TIMEOUT_S, checked, create_topic, produce
from tests.support.cluster import SHORT_SESSION, Cluster
from tests.support.conversation import alter_configs
from tests.support.java import JavaHome, wait_while_running
from tests.support.streams_groups import GROUP, talk_to_coordinator
from tests.support.waiting import until, wait_until

PARTITIONS = 2
WORDS = [b"w%d" % number for number in range(40)]
LINES = [b" ".join(WORDS[first % 40 :: 1 + first % 7]) for first in range(2_000)]
TOTAL = sum(len(line.split()) for line in LINES)
EXPECTED = Counter(word for line in LINES for word in line.split())
APPLICATION = "counter"
REPARTITION = f"{APPLICATION}-words-repartition"
CHANGELOG = f"{APPLICATION}-counts-changelog"
HASTY = {
    "group_streams_min_heartbeat_interval_ms": 100,
    "group_streams_heartbeat_interval_ms": 300,
    "group_streams_min_session_timeout_ms": 500,
    "group_streams_session_timeout_ms": 6_000,
    "group_streams_initial_rebalance_delay_ms": 0,
}
"""Broker settings: killed members of streams groups lose their tasks after 6 s."""


@pytest.fixture(scope="session")
def word_count(java: JavaHome) -> JavaHome:
    java.compile(Path(__file__).parent / "streams" / "WordCount.java")
    return java


def _cluster(directory: Path, **settings: Any) -> Cluster:
    """Create two brokers that upload within 50 ms, and look for dirty logs and expired transactions
    ten times per second.
    """
    stream = StreamConfig(wal_linger_ms=0, block_age_max_ms=50, wal_delete_grace_ms=500)
    return Cluster(
        directory,
        brokers=2,
        stream_config=stream,
        log_cleaner_backoff_ms=100,
        group_min_session_timeout_ms=500,
        transaction_abort_timed_out_transaction_cleanup_interval_ms=100,
        **HASTY,
        **settings,
    )


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with _cluster(tmp_path / "cluster") as cluster:
        yield cluster


@pytest.fixture
async def short_session_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A cluster in which the partitions of a killed broker are taken over within 3 s."""
    async with _cluster(tmp_path / "cluster", controller_settings=SHORT_SESSION) as cluster:
        yield cluster


class WordReader:
    """Reads a topic of words and counts from the beginning. newest: the last count of each word."""

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
        """Read available records; return whether `count` words were counted, some perhaps twice."""
        self._poll()
        return sum(self.newest.values()) >= total

    def has_counted(self, expected: Mapping[bytes, int]) -> bool:
        """Read available records; return whether every word was counted at least as often."""
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


@pytest.mark.costly("applications of Kafka Streams run in JVMs of their own")
@pytest.mark.parametrize(
    ("first", "second", "guarantee", "end"),
    [
        ("streams", "streams", "exactly_once_v2", signal.SIGKILL),
        ("classic", "classic", "exactly_once_v2", signal.SIGKILL),
        *(
            pytest.param(*values, marks=pytest.mark.long)
            for values in (
                ("classic", "classic", "at_least_once", signal.SIGTERM),
                ("classic", "classic", "at_least_once", signal.SIGKILL),
                ("classic", "streams", "exactly_once_v2", signal.SIGTERM),
                ("streams", "classic", "at_least_once", signal.SIGTERM),
            )
        ),
    ],
)
async def test_words_are_counted_exactly_across_restarts(
    cluster: Cluster,
    word_count: JavaHome,
    tmp_path: Path,
    first: str,
    second: str,
    guarantee: str,
    end: signal.Signals,
) -> None:
    """first, second: the group protocols before and after the restart."""
    modes = (guarantee, first, second)
    counts = await asyncio.to_thread(_count, cluster.bootstrap, word_count, tmp_path, modes, end)
    if (guarantee, end) == ("at_least_once", signal.SIGKILL):
        assert counts.keys() == EXPECTED.keys()
        assert all(counts[word] >= count for word, count in EXPECTED.items())
    else:
        assert counts == EXPECTED
    await until(lambda: all(_is_cleaned(cluster, index) for index in range(PARTITIONS)))
    # The leaders still have the removed records in their log caches, so restart them.
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
    bootstrap: str,
    java: JavaHome,
    directory: Path,
    modes: tuple[str, str, str],
    end: signal.Signals,
) -> dict[bytes, int]:
    """Return the final counts. modes: the processing guarantee, and the first and second group
    protocol.
    """
    guarantee, first, second = modes
    for topic in ("lines", "totals"):
        create_topic(bootstrap, topic, PARTITIONS)
    produce(bootstrap, "lines", LINES, partitions=range(PARTITIONS), linger_ms=5)
    log, state = directory / "streams.log", directory / "state"
    arguments = ("WordCount", bootstrap, APPLICATION, str(state), guarantee)
    with closing(WordReader(bootstrap, "totals")) as reader:
        with java.application(*arguments, first, log=log) as process:
            wait_while_running(process, log, lambda: reader.has(TOTAL // 10))
            process.send_signal(end)
            process.wait(TIMEOUT_S)
        assert not reader.has_counted(EXPECTED), "the application was not stopped while it counted"
        shutil.rmtree(state)
        if first != second:
            with closing(talk_to_coordinator(bootstrap, APPLICATION)) as talk:
                wait_until(lambda: talk.listed(APPLICATION)[0]["group_state"] == "Empty")
        with java.application(*arguments, second, log=log) as process:
            wait_while_running(process, log, lambda: reader.has_counted(EXPECTED))
            wait_while_running(process, log, lambda: _is_purged(bootstrap))
            process.terminate()
            process.wait(TIMEOUT_S)
    with closing(WordReader(bootstrap, "totals")) as reader:
        return reader.read_all()


@pytest.mark.long
async def test_words_are_counted_exactly_while_instances_are_started_and_killed(
    short_session_cluster: Cluster, word_count: JavaHome, tmp_path: Path
) -> None:
    """Each instance has standby tasks of another. One is killed, the broker that coordinates the
    group is killed, and one is stopped: each word is counted once.
    """
    cluster = short_session_cluster
    parts = [LINES[at::4] for at in range(4)]
    crew = Crew(word_count, cluster.bootstrap, tmp_path)
    for topic in ("lines", "totals"):
        await asyncio.to_thread(create_topic, cluster.bootstrap, topic, PARTITIONS)
    standbys = {"streams.num.standby.replicas": "1"}
    await asyncio.to_thread(alter_configs, cluster.bootstrap, (GROUP, APPLICATION), standbys)
    try:
        crew.start("a")
        await asyncio.to_thread(crew.add, parts[0])
        await asyncio.to_thread(crew.until, lambda: crew.reader.has(crew.total // 3))
        crew.start("b")
        await asyncio.to_thread(crew.until_shared, 2)
        await asyncio.to_thread(crew.add, parts[1])
        await asyncio.to_thread(crew.end, "a", signal.SIGKILL)
        crew.start("c")
        await asyncio.to_thread(crew.until_shared, 2)
        coordinator = await asyncio.to_thread(crew.coordinator)
        await cluster.kill_broker(coordinator)
        await asyncio.to_thread(crew.add, parts[2], cluster.bootstrap)
        await asyncio.to_thread(crew.until, lambda: crew.reader.has_counted(crew.expected))
        await cluster.start_broker(coordinator)
        await asyncio.to_thread(crew.add, parts[3], cluster.bootstrap)
        await asyncio.to_thread(crew.end, "b", signal.SIGTERM)
        await asyncio.to_thread(crew.until, lambda: crew.reader.has_counted(crew.expected))
        await asyncio.to_thread(crew.end, "c", signal.SIGTERM)
    finally:
        crew.close()
    with closing(WordReader(cluster.bootstrap, "totals")) as reader:
        assert await asyncio.to_thread(reader.read_all) == EXPECTED


class Crew:
    """Instances of the application, by name, in one streams group."""

    def __init__(self, java: JavaHome, bootstrap: str, directory: Path) -> None:
        self.expected: Counter[bytes] = Counter()
        self.reader = WordReader(bootstrap, "totals")
        self._java = java
        self._bootstrap = bootstrap
        self._directory = directory
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = ExitStack()
        self._stack.callback(self.reader.close)

    @property
    def total(self) -> int:
        return self.expected.total()

    def start(self, name: str) -> None:
        state = str(self._directory / name)
        arguments = ("WordCount", self._bootstrap, APPLICATION, state, "exactly_once_v2", "streams")
        application = self._java.application(*arguments, log=self._log(name))
        self._running[name] = self._stack.enter_context(application)

    def _log(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def end(self, name: str, how: signal.Signals) -> None:
        process = self._running.pop(name)
        process.send_signal(how)
        process.wait(TIMEOUT_S)

    def add(self, lines: list[bytes], bootstrap: str = "") -> None:
        self.expected.update(word for line in lines for word in line.split())
        brokers = bootstrap or self._bootstrap
        produce(brokers, "lines", lines, partitions=range(PARTITIONS), linger_ms=5)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition; fail if an instance ends."""
        name, process = next(iter(self._running.items()))
        wait_while_running(process, self._log(name), condition)

    def until_shared(self, count: int) -> None:
        """Wait until `count` members have active and standby tasks."""
        with closing(talk_to_coordinator(self._bootstrap, APPLICATION)) as talk:

            def is_shared() -> bool:
                described = talk.describe(APPLICATION)
                tasks = [member["assignment"] for member in described["members"]]
                return (
                    described["group_state"] == "Stable"
                    and len(tasks) == count
                    and all(found["active"] and found["standby"] for found in tasks)
                )

            self.until(is_shared)

    def coordinator(self) -> int:
        """Return the id of the broker that coordinates the group."""
        with closing(talk_to_coordinator(self._bootstrap, APPLICATION)) as talk:
            return talk.coordinator(APPLICATION)[0]

    def close(self) -> None:
        self._stack.close()


def _is_purged(bootstrap: str) -> bool:
    """Return whether Streams has deleted all processed records of its repartition topic. Its purge
    lags one interval behind its commits.
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
    """Check that the changelog is short and contains the state that Streams would restore."""
    resource = ConfigResource(ConfigResource.Type.TOPIC, CHANGELOG)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    configs = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    assert configs["cleanup.policy"].value == "compact"

    with closing(WordReader(bootstrap, CHANGELOG)) as reader:
        assert reader.read_all() == counts
        assert reader.records == len(counts)
