"""`penstock features` against a real broker."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.deploy.errors import UsageError
from penstock.protocol.client.errors import KafkaFailed
from tests.support.cli import Cli
from tests.support.cluster import Cluster


@pytest.fixture
async def cli(tmp_path: Path) -> AsyncIterator[Cli]:
    async with Cluster(tmp_path) as cluster:
        yield Cli(cluster, tmp_path)


NEWEST = {
    "group.version": 1,
    "metadata.version": 29,
    "offsets.version": 1,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}


async def levels(cli: Cli) -> dict[str, int]:
    listed = json.loads(await cli.run("features", "list", "--json"))
    return {item["name"]: item["level"] for item in listed}


async def test_feature_levels_are_listed_and_changed(cli: Cli) -> None:
    assert await levels(cli) == NEWEST
    shown = await cli.run("features", "list")
    assert "transaction.version" in shown
    assert "0 to 2" in shown
    down = ("features", "downgrade", "transaction.version=1", "group.version=0")
    assert await cli.run(*down, "--dry-run") == (
        "transaction.version can be 1\ngroup.version can be 0\n"
    )
    assert await levels(cli) == NEWEST
    assert await cli.run(*down) == "transaction.version is 1\ngroup.version is 0\n"
    assert await levels(cli) == {**NEWEST, "group.version": 0, "transaction.version": 1}
    await cli.run("features", "upgrade", "transaction.version=2", "group.version=1")
    assert await levels(cli) == NEWEST


async def test_refused_feature_changes_state_the_reason(cli: Cli) -> None:
    with pytest.raises(KafkaFailed, match="only supports versions 0-2"):
        await cli.run("features", "upgrade", "transaction.version=3")
    with pytest.raises(KafkaFailed, match="Can't downgrade the version"):
        await cli.run("features", "upgrade", "transaction.version=1")
    for wrong in ("transaction.version", "transaction.version=x", "=1", "a=99999"):
        with pytest.raises(UsageError, match="is not FEATURE=LEVEL"):
            await cli.run("features", "upgrade", wrong)
    with pytest.raises(UsageError, match="is given twice"):
        await cli.run("features", "upgrade", "a=1", "a=2")
