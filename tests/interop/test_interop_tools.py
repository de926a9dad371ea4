"""Kafka's command line tools for configs, and for deleting, compacting and moving logs. The
expected output is that of Kafka 4.2 for the same commands.
"""

import asyncio
import json
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from penstock.broker.partition.partition import Partition
from penstock.stream.config import StreamConfig
from tests.support.clients import TIMEOUT_S, create_topic
from tests.support.cluster import Cluster
from tests.support.java_tools import ToolRunner
from tests.support.waiting import until

TOPIC, COMPACTED = "orders", "accounts"
CONFIGS = "kafka.admin.ConfigCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
TOPICS = "org.apache.kafka.tools.TopicCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
VALUE = b"v" * 1_000

# The cluster uploads within 50 ms and looks for dirty logs ten times per second.
pytestmark = pytest.mark.cluster(
    brokers=2,
    first_id=0,
    stream_config=StreamConfig(wal_linger_ms=0, block_age_max_ms=50, wal_delete_grace_ms=500),
    log_cleaner_backoff_ms=100,
)


class Tools:
    """Kafka's tools with the address of a cluster."""

    def __init__(self, runner: ToolRunner, cluster: Cluster) -> None:
        self._runner = runner
        self._bootstrap = ("--bootstrap-server", cluster.bootstrap)

    async def run(self, main: str, *arguments: str) -> str:
        """Return the output of the tool, which must succeed."""
        done = await asyncio.to_thread(self._runner.run, main, (*self._bootstrap, *arguments))
        assert done.exit_code == 0, done.output
        return done.output

    async def refused(self, main: str, *arguments: str) -> str:
        """Return the output of the tool, which must fail."""
        done = await asyncio.to_thread(self._runner.run, main, (*self._bootstrap, *arguments))
        assert done.exit_code != 0, done.output
        return done.output

    async def set_of(self, *arguments: str) -> dict[str, str]:
        """Return the topic's own configs as kafka-configs shows them."""
        shown = await self.run(CONFIGS, *_of(TOPIC), "--describe", *arguments)
        pairs = (line.split()[0] for line in shown.splitlines()[1:])
        return dict(pair.split("=", 1) for pair in pairs)

    async def offsets(self, when: str) -> list[str]:
        return sorted((await self.run(OFFSETS, "--topic", TOPIC, "--time", when)).split())


def _of(topic: str) -> tuple[str, ...]:
    return ("--entity-type", "topics", "--entity-name", topic)


@pytest.mark.long
async def test_kafka_tools_set_and_describe_topic_configs(
    cluster: Cluster, tools: ToolRunner
) -> None:
    kafka = Tools(tools, cluster)
    created = {"retention.ms": "1000000", "segment.bytes": "2000000"}
    flags = [item for pair in created.items() for item in ("--config", "=".join(pair))]
    await kafka.run(TOPICS, "--create", "--topic", TOPIC, "--partitions", "2", *flags)
    described = await kafka.run(TOPICS, "--describe", "--topic", TOPIC)
    line = next(line for line in described.splitlines() if "PartitionCount: 2" in line)
    assert sorted(line.rpartition("Configs: ")[2].split(",")) == [
        "retention.ms=1000000",
        "segment.bytes=2000000",
    ]
    alter = (CONFIGS, *_of(TOPIC), "--alter")
    added = "retention.bytes=-2,cleanup.policy=[compact,delete],segment.ms=100000"
    more = "min.compaction.lag.ms=5,internal.segment.bytes=1000"
    await kafka.run(*alter, "--add-config", f"{added},{more}")
    everything = created | {
        "retention.bytes": "-2",
        "cleanup.policy": "compact,delete",
        "segment.ms": "100000",
        "min.compaction.lag.ms": "5",
        "internal.segment.bytes": "1000",
    }
    assert await kafka.set_of() == everything
    await kafka.run(*alter, "--delete-config", ",".join(everything.keys() - created.keys()))
    assert await kafka.set_of() == created
    defaults = await kafka.set_of("--all")
    assert defaults["cleanup.policy"] == "delete"
    assert "internal.segment.bytes" not in defaults, "Kafka shows it only where it is set"
    for wrong in ("retention.ms=soon", "remote.storage.enable=true", "retention.mss=5"):
        refused = await kafka.refused(*alter, "--add-config", wrong)
        assert "InvalidConfigurationException" in refused
    assert await kafka.set_of() == created
    missing = await kafka.refused(CONFIGS, *_of("none"), "--alter", "--add-config", "segment.ms=5")
    assert "UnknownTopicOrPartitionException" in missing


def _fill(bootstrap: str, now_ms: int) -> None:
    """Write 8 records with two keys to each topic; the sixth record has the newest timestamp."""
    create_topic(bootstrap, TOPIC, 2)
    create_topic(bootstrap, COMPACTED, 1, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(8):
        timestamp_ms = now_ms + (500 if number == 5 else number)
        for topic in (TOPIC, COMPACTED):
            producer.produce(
                topic,
                b"%d " % number + VALUE,
                b"key %d" % (number % 2),
                partition=0,
                timestamp=timestamp_ms,
            )
    assert producer.flush(TIMEOUT_S) == 0


async def test_kafka_tools_list_and_delete_records(
    cluster: Cluster, tools: ToolRunner, tmp_path: Path
) -> None:
    kafka = Tools(tools, cluster)
    await asyncio.to_thread(_fill, cluster.bootstrap, time.time_ns() // 1_000_000)
    requested = [
        {"topic": TOPIC, "partition": 0, "offset": 3},
        {"topic": TOPIC, "partition": 1, "offset": 1},
        {"topic": COMPACTED, "partition": 0, "offset": 1},
    ]
    path = tmp_path / "offsets.json"
    path.write_text(json.dumps({"version": 1, "partitions": requested}))
    deleted = await kafka.run(DELETE_RECORDS, "--offset-json-file", str(path))
    assert f"partition: {TOPIC}-0\tlow_watermark: 3\n" in deleted
    assert f"partition: {TOPIC}-1\terror: org.apache.kafka.common.errors.OffsetOutOf" in deleted
    assert f"partition: {COMPACTED}-0\terror: org.apache.kafka.common.errors.Policy" in deleted

    assert await kafka.offsets("earliest") == [f"{TOPIC}:0:3", f"{TOPIC}:1:0"]
    assert await kafka.offsets("latest") == [f"{TOPIC}:0:8", f"{TOPIC}:1:0"]
    assert await kafka.offsets("max-timestamp") == [f"{TOPIC}:0:5"]
    assert await kafka.offsets("earliest-local") == [f"{TOPIC}:0:3", f"{TOPIC}:1:0"]
    assert await kafka.offsets("latest-tiered") == []

    found = await kafka.run(LOG_DIRS, "--describe", "--topic-list", TOPIC)
    brokers = json.loads(found.splitlines()[-1])["brokers"]
    sizes = {
        part["partition"]: part["size"]
        for broker in brokers
        for directory in broker["logDirs"]
        for part in directory["partitions"]
    }
    assert len(brokers) == 2
    assert sizes.keys() == {f"{TOPIC}-0", f"{TOPIC}-1"}
    assert sizes[f"{TOPIC}-1"] == 0 < 5 * len(VALUE) <= sizes[f"{TOPIC}-0"]


@pytest.mark.long
async def test_kafka_tools_move_a_partition_and_elect_its_leader(
    cluster: Cluster, tools: ToolRunner, tmp_path: Path
) -> None:
    kafka = Tools(tools, cluster)
    await kafka.run(TOPICS, "--create", "--topic", TOPIC, "--replica-assignment", "0:1,0:1")
    path = tmp_path / "moves.json"
    requested = [
        {"topic": TOPIC, "partition": 0, "replicas": [1, 0]},
        {"topic": TOPIC, "partition": 1, "replicas": [1]},
    ]
    path.write_text(json.dumps({"version": 1, "partitions": requested}))
    execute = ("--execute", "--reassignment-json-file", str(path))
    assert "Successfully started" in await kafka.run(REASSIGN, *execute)
    # A leader that remains a replica stays the leader, as in Kafka.
    await until(lambda: [cluster.leader_of(TOPIC, index) for index in range(2)] == [0, 1])
    assert "No partition reassignments found." in await kafka.run(REASSIGN, "--list")
    elect = ("--election-type", "preferred", "--topic", TOPIC, "--partition", "0")
    elected = await kafka.run(ELECT, *elect)
    assert f"Successfully completed leader election (PREFERRED) for partitions {TOPIC}-0" in elected
    await until(lambda: cluster.leader_of(TOPIC) == 1)
    described = await kafka.run(TOPICS, "--describe", "--topic", TOPIC)
    assert "Partition: 0\tLeader: 1\tReplicas: 1,0\tIsr: 1,0" in described
    assert "Partition: 1\tLeader: 1\tReplicas: 1\tIsr: 1" in described


async def test_kafka_console_consumer_reads_a_compacted_topic(
    cluster: Cluster, tools: ToolRunner
) -> None:
    await asyncio.to_thread(_fill, cluster.bootstrap, time.time_ns() // 1_000_000)

    def is_cleaned() -> bool:
        found = cluster.brokers[cluster.leader_of(COMPACTED)].partitions.get(COMPACTED, 0)
        return isinstance(found, Partition) and found.log.cleaned.end == found.high_watermark

    await until(is_cleaned)
    leader = cluster.leader_of(COMPACTED)
    # The leader still has the removed records in its log cache, so restart it.
    await cluster.stop_broker(leader)
    await cluster.start_broker(leader)
    await cluster.until_served(COMPACTED)
    shown = await Tools(tools, cluster).run(
        CONSUMER,
        *("--topic", COMPACTED, "--from-beginning", "--max-messages", "2"),
        *("--timeout-ms", str(TIMEOUT_S * 1_000)),
        *("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true"),
    )
    rows = [line.split("\t") for line in shown.splitlines() if line.startswith("Offset:")]
    assert [row[:2] for row in rows] == [["Offset:6", "key 0"], ["Offset:7", "key 1"]]
    assert [row[2].split()[0] for row in rows] == ["6", "7"]
