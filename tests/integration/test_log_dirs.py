"""Topic sizes as kafka-python and `penstock topics describe --size` report them."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient

from penstock.stream.config import StreamConfig
from tests.support.cli import Cli
from tests.support.clients import create_topic, produce
from tests.support.cluster import Cluster
from tests.support.waiting import until

TOPIC, OTHER = "clicks", "views"
PARTITIONS = 4
RECORD_BYTES = 5_000

# The cluster uploads within 50 ms.
pytestmark = pytest.mark.cluster(
    brokers=2, stream_config=StreamConfig(wal_linger_ms=0, block_age_max_ms=50)
)


def describe(admin: KafkaAdminClient, requested: Any = None) -> dict[tuple[str, int], int]:
    """Return the size of each partition. Each partition must be reported by exactly one broker."""
    sizes: dict[tuple[str, int], int] = {}
    for broker in admin.describe_log_dirs(requested):
        (log_dir,) = broker["log_dirs"]
        assert (log_dir["error_code"], log_dir["log_dir"]) == (0, "memory:")
        assert (log_dir["total_bytes"], log_dir["usable_bytes"]) == (-1, -1)
        for topic in log_dir["topics"]:
            for part in topic["partitions"]:
                key = (topic["name"], part["partition_index"])
                assert key not in sizes
                assert (part["offset_lag"], part["is_future_key"]) == (0, False)
                sizes[key] = part["partition_size"]
    return sizes


def fill(cluster: Cluster) -> dict[tuple[str, int], int]:
    for topic in (TOPIC, OTHER):
        create_topic(cluster.bootstrap, topic, PARTITIONS)
    produce(cluster.bootstrap, TOPIC, [b"x" * RECORD_BYTES] * 8, partitions=range(PARTITIONS))
    produce(cluster.bootstrap, OTHER, [b"x" * RECORD_BYTES], partitions=[1])
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    try:
        sizes = describe(admin)
        assert describe(admin, {TOPIC: [1, 3]}) == {
            (TOPIC, index): sizes[TOPIC, index] for index in (1, 3)
        }
        assert describe(admin, [OTHER]) == {
            (OTHER, index): sizes[OTHER, index] for index in range(PARTITIONS)
        }
        return sizes
    finally:
        admin.close()


async def test_client_and_command_line_report_the_same_sizes(
    cluster: Cluster, tmp_path: Path
) -> None:
    sizes = await asyncio.to_thread(fill, cluster)
    for index in range(PARTITIONS):
        assert 2 * RECORD_BYTES < sizes[TOPIC, index] < 2 * RECORD_BYTES + 500
    assert {key: size > 0 for key, size in sizes.items() if key[0] == OTHER} == {
        (OTHER, index): index == 1 for index in range(PARTITIONS)
    }
    cli = Cli(cluster, tmp_path)

    async def uploaded() -> bool:
        (topic,) = json.loads(await cli.run("topics", "describe", TOPIC, "--size", "--json"))
        return all(part["size"]["wal_bytes"] == 0 for part in topic["partitions"])

    await until(uploaded)
    (topic,) = json.loads(await cli.run("topics", "describe", TOPIC, "--size", "--json"))
    stored = {
        (TOPIC, part["partition"]): part["size"]["stored_bytes"] for part in topic["partitions"]
    }
    assert stored == {key: size for key, size in sizes.items() if key[0] == TOPIC}
    assert all(part["size"]["objects"] >= 1 for part in topic["partitions"])
    assert topic["size"]["stored_bytes"] == sum(stored.values())
    assert topic["size"]["usd_month"] == pytest.approx(sum(stored.values()) / 1e9 * 0.023)

    priced = ("topics", "describe", "--size", "--storage-price", "1000000000", "--json")
    topics = {topic["name"]: topic["size"] for topic in json.loads(await cli.run(*priced))}
    assert topics[OTHER]["usd_month"] == pytest.approx(sizes[OTHER, 1])
    table = await cli.run("topics", "describe", TOPIC, "--size")
    assert "39.4 KiB" in table
    assert "WAL bytes" in table
    assert f"{TOPIC} " in await cli.run("topics", "describe", "--size")
