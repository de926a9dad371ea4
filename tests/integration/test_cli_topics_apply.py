"""`penstock topics apply` and `penstock topics alter` against a cluster."""

import json
from pathlib import Path

import pytest

from penstock.base.errors import ExpectedError
from penstock.deploy.errors import UsageError
from tests.support.cli import Cli
from tests.support.cluster import Cluster


async def test_topics_apply_creates_topics_of_a_file_once(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        cli = Cli(cluster, tmp_path)
        first = cli.file(
            "topics.json",
            {"topics": [{"name": "orders", "partitions": 2}, {"name": "events"}]},
        )
        assert "would create orders: partitions=2" in await cli.run(
            "topics", "apply", first, "--dry-run"
        )
        assert cluster.leader_of("orders") == -1
        would = json.loads(await cli.run("topics", "apply", first, "--dry-run", "--json"))
        assert would[0] == {"name": "orders", "is_new": True, "partitions": 2, "configs": {}}
        said = await cli.run("topics", "apply", first)
        assert "create orders: partitions=2" in said
        assert "2 of 2 topics unchanged" in await cli.run("topics", "apply", first)
        second = cli.file(
            "more.toml",
            '[[topics]]\nname = "orders"\npartitions = 3\nconfigs = {"retention.ms" = 60000}\n',
        )
        assert "change orders: partitions=3, retention.ms=60000" in await cli.run(
            "topics", "apply", second
        )
        topic = cluster.broker.image.topics.by_name("orders")
        assert topic is not None
        assert len(topic.partitions) == 3
        described = await cli.run("configs", "describe", "--topic", "orders")
        assert "60000" in described
        assert "1 of 1 topic unchanged" in await cli.run("topics", "apply", second)
        with pytest.raises(UsageError, match="cannot be reduced to 2; nothing was changed"):
            await cli.run("topics", "apply", first)


async def test_topics_alter_adds_partitions(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        cli = Cli(cluster, tmp_path)
        await cli.run("topics", "create", "orders", "--partitions", "2")
        said = await cli.run("topics", "alter", "orders", "--partitions", "3")
        assert "orders has 3 partitions" in said
        await cluster.until_served("orders", 2)
        with pytest.raises(ExpectedError, match=r"orders.*the new total must be higher"):
            await cli.run("topics", "alter", "orders", "-p", "3")
        with pytest.raises(ExpectedError, match="no topic 'none'"):
            await cli.run("topics", "alter", "none", "-p", "3")
