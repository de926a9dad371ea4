"""`penstock topics delete`, `undelete` and `list --deleted` against a real cluster."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.protocol.client.errors import KafkaFailed
from tests.integration.test_undelete import read
from tests.support.cli import Cli
from tests.support.clients import create_topic, produce
from tests.support.cluster import Cluster

GRACE_S = 3_600

pytestmark = pytest.mark.cluster(
    brokers=1, controller_settings={"delete_grace_ms": GRACE_S * 1_000}
)


async def test_deleted_topic_is_listed_undeleted_and_deleted_permanently(
    cluster: Cluster, tmp_path: Path
) -> None:
    bootstrap, cli = cluster.bootstrap, Cli(cluster, tmp_path)
    await asyncio.to_thread(create_topic, bootstrap, "orders", 2)
    await asyncio.to_thread(produce, bootstrap, "orders", [b"kept"])
    assert json.loads(await cli.run("topics", "list", "--deleted", "--json")) == []
    first = await cli.run("topics", "delete", "--yes", "orders")
    assert first.startswith("deleted orders; until 20")
    assert first.endswith("Z `penstock topics undelete orders` brings it back\n")
    (found,) = json.loads(await cli.run("topics", "list", "--deleted", "--json"))
    assert (found["name"], found["partitions"]) == ("orders", 2)
    assert found["until"] in first
    assert found["usd_month"] == found["bytes"] / 1e9 * 0.023
    assert "USD/month" in await cli.run("topics", "list", "--deleted")
    deleted, until = (datetime.fromisoformat(found[name]) for name in ("deleted", "until"))
    assert (until - deleted).total_seconds() == GRACE_S
    assert until > datetime.now(UTC)
    assert found["topic_id"] in await cli.run("topics", "list", "--deleted")
    assert "orders" not in await cli.run("topics", "list")

    response = json.loads(await cli.run("topics", "undelete", "orders", "--as", "again", "--json"))
    del response["took_ms"]
    assert response == {
        "name": "again",
        "deleted_name": "orders",
        "topic_id": found["topic_id"],
        "partitions": 2,
    }
    await cluster.until_served("again")
    assert await asyncio.to_thread(read, bootstrap, 1, "again") == [b"kept"]

    again = json.loads(await cli.run("topics", "delete", "--yes", "again", "--json"))
    assert (again["name"], again["topic_id"]) == ("again", found["topic_id"])
    full_name = f"again@{found['topic_id']}"
    out = await cli.run("topics", "undelete", full_name)
    assert out.startswith("undeleted again with 2 partitions in ")
    await cli.run("topics", "delete", "--yes", "again")
    assert (
        await cli.run("topics", "delete", "--yes", full_name) == f"removed {full_name} for good\n"
    )
    with pytest.raises(KafkaFailed, match="no deleted topic has the name or id 'again'"):
        await cli.run("topics", "undelete", "again")


async def test_topic_without_a_grace_period_is_deleted_immediately(
    cluster: Cluster, tmp_path: Path
) -> None:
    cli, bootstrap = Cli(cluster, tmp_path), cluster.bootstrap
    await asyncio.to_thread(create_topic, bootstrap, "t", 1, penstock_delete_grace_ms="0")
    assert await cli.run("topics", "delete", "--yes", "t") == "deleted t\n"
    assert "(nothing)" in await cli.run("topics", "list", "--deleted")
    with pytest.raises(KafkaFailed, match="topic 't' does not exist"):
        await cli.run("topics", "delete", "--yes", "t")


async def test_undelete_by_name_restores_the_topic_deleted_last(
    cluster: Cluster, tmp_path: Path
) -> None:
    cli, bootstrap = Cli(cluster, tmp_path), cluster.bootstrap
    for value in (b"first", b"second"):
        await asyncio.to_thread(create_topic, bootstrap, "t", 1)
        await asyncio.to_thread(produce, bootstrap, "t", [value])
        await cli.run("topics", "delete", "--yes", "t")
    first, second = json.loads(await cli.run("topics", "list", "--deleted", "--json"))
    await cli.run("topics", "undelete", "t")
    with pytest.raises(KafkaFailed, match="topic 't' exists: undelete"):
        await cli.run("topics", "undelete", first["topic_id"])
    await cli.run("topics", "undelete", first["topic_id"], "--as", "old")
    assert second["topic_id"] != first["topic_id"]
    await cluster.until_served("t")
    await cluster.until_served("old")
    assert await asyncio.to_thread(read, bootstrap, 1, "t") == [b"second"]
    assert await asyncio.to_thread(read, bootstrap, 1, "old") == [b"first"]
