"""Records that DeleteRecords has deleted can be restored in a new topic until their grace period
ends.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from penstock.controller.metadata.topic_configs import DELETE_GRACE
from penstock.deploy.errors import UsageError
from tests.integration.test_undelete import read
from tests.support.cli import Cli
from tests.support.clients import TIMEOUT_S, create_topic, produce
from tests.support.cluster import Cluster, deleting_cluster
from tests.support.waiting import until

TOPIC = "orders"
VALUES = [b"%d" % number for number in range(100)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Start a cluster that keeps deleted records for an hour."""
    async with deleting_cluster(tmp_path, delete_grace_ms=3_600_000) as cluster:
        yield cluster


def delete_records(bootstrap: str, offset: int, partition: int = 0) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    part = TopicPartition(TOPIC, partition, offset)
    assert admin.delete_records([part])[part].result(TIMEOUT_S).low_watermark == offset


def bring_back(bootstrap: str, name: str) -> None:
    create_topic(
        bootstrap, name, -1, penstock_fork_source=TOPIC, penstock_fork_deleted_records="true"
    )


async def test_undelete_command_restores_deleted_records(cluster: Cluster, tmp_path: Path) -> None:
    bootstrap, cli = cluster.bootstrap, Cli(cluster, tmp_path)
    await asyncio.to_thread(create_topic, bootstrap, TOPIC, 1)
    await asyncio.to_thread(produce, bootstrap, TOPIC, VALUES)
    await cli.run("topics", "delete-records", TOPIC, "--before-offset", "60", "--yes")
    (found,) = json.loads(await cli.run("topics", "list", "--deleted", "--json"))
    assert (found["name"], found["what"], found["partitions"]) == (TOPIC, "records", 1)
    with pytest.raises(UsageError, match="--records needs --as"):
        await cli.run("topics", "undelete", TOPIC, "--records")
    response = json.loads(
        await cli.run("topics", "undelete", TOPIC, "--records", "--as", "whole", "--json")
    )
    assert response["partitions"] == [{"partition": 0, "earliest": 0, "source_earliest": 60}]
    assert await asyncio.to_thread(read, bootstrap, 100, "whole") == VALUES
    out = await cli.run("topics", "undelete", TOPIC, "--records", "--as", "again")
    assert "earliest in orders" in out


async def test_deleted_records_are_restored_after_a_broker_crash(cluster: Cluster) -> None:
    """Half of the records were only in the WAL when they were deleted."""
    bootstrap = cluster.bootstrap
    await asyncio.to_thread(create_topic, bootstrap, TOPIC, 1)
    await asyncio.to_thread(produce, bootstrap, TOPIC, VALUES[:50])
    leader = await cluster.until_served(TOPIC)
    await leader.storage.upload()
    await asyncio.to_thread(produce, bootstrap, TOPIC, VALUES[50:])
    await asyncio.to_thread(delete_records, bootstrap, 100)
    await cluster.kill_broker(leader.node_id)
    await cluster.until_served(TOPIC)
    await asyncio.to_thread(bring_back, cluster.bootstrap, "whole")
    await cluster.until_served("whole")
    assert await asyncio.to_thread(read, cluster.bootstrap, 100, "whole") == VALUES


async def test_objects_of_deleted_records_are_deleted_after_the_grace_period(
    cluster: Cluster,
) -> None:
    bootstrap = cluster.bootstrap
    await asyncio.to_thread(create_topic, bootstrap, TOPIC, 1)
    await asyncio.to_thread(produce, bootstrap, TOPIC, VALUES)
    leader = await cluster.until_served(TOPIC)
    await leader.storage.upload()
    await asyncio.to_thread(delete_records, bootstrap, 100)
    (kept,) = leader.image.streams.keeping()
    objects = {entry.object_id for entry in kept.kept_entries}
    assert objects
    assert all(leader.image.objects.get(object_id) is not None for object_id in objects)
    await asyncio.to_thread(alter_grace, bootstrap)
    await until(lambda: all(leader.image.objects.get(item) is None for item in objects))
    with pytest.raises(KafkaException, match="no deleted records that can come back"):
        await asyncio.to_thread(bring_back, bootstrap, "whole")


def alter_grace(bootstrap: str) -> None:
    """Set the topic's grace period to 0."""
    entry = ConfigEntry(DELETE_GRACE, "0", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
