"""`penstock quotas` against real brokers."""

import asyncio
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from penstock.deploy.cli.app import app
from penstock.deploy.errors import UsageError
from penstock.protocol.client.errors import KafkaFailed
from tests.support.cluster import Cluster


async def run(cluster: Cluster, *arguments: str) -> str:
    def invoke() -> Any:
        return CliRunner().invoke(app, ["quotas", *arguments, "--bootstrap", cluster.bootstrap])

    result = await asyncio.to_thread(invoke)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return str(result.stdout)


async def test_quotas_are_set_listed_and_deleted(cluster: Cluster) -> None:
    shown = await run(
        cluster, "set", "--user", "alice", "producer_byte_rate=1000000", "request_percentage=12.5"
    )
    for text in ("user alice", "producer_byte_rate", "1,000,000", "12.5"):
        assert text in shown
    both = "--user", "<default>", "--client-id", "app"
    await run(cluster, "set", *both, "consumer_byte_rate=2e6")
    await run(cluster, "set", "--ip", "10.0.0.1", "connection_creation_rate=5")
    alice = {"producer_byte_rate": 1e6, "request_percentage": 12.5}
    every = [
        {"entity": {"ip": "10.0.0.1"}, "quotas": {"connection_creation_rate": 5.0}},
        {"entity": {"client-id": "app", "user": None}, "quotas": {"consumer_byte_rate": 2e6}},
        {"entity": {"user": "alice"}, "quotas": alice},
    ]
    assert json.loads(await run(cluster, "list", "--json")) == every
    assert json.loads(await run(cluster, "list", *both, "--json")) == every[1:2]
    assert "user <default>, client-id app" in await run(cluster, "list")
    requested = ("delete", "--user", "alice", "request_percentage")
    would = await run(cluster, *requested, "--dry-run")
    assert would == "would delete request_percentage of user alice\n"
    left = [{"entity": {"user": "alice"}, "quotas": {"producer_byte_rate": 1e6}}]
    assert json.loads(await run(cluster, *requested, "--dry-run", "--json")) == left
    all_of_alice = ("delete", "--user", "alice", "--dry-run", "--json")
    assert json.loads(await run(cluster, *all_of_alice)) == []
    assert json.loads(await run(cluster, "list", "--json")) == every
    assert json.loads(await run(cluster, *requested, "--json")) == left
    assert json.loads(await run(cluster, "delete", "--user", "alice", "--json")) == []
    assert len(json.loads(await run(cluster, "list", "--json"))) == 2


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("set", "producer_byte_rate=1"), UsageError, "specify an entity"),
        (("set", "--ip", "10.0.0.1", "--user", "a", "x=1"), UsageError, "--ip cannot be combined"),
        (("set", "--user", "a", "producer_byte_rate"), UsageError, "use QUOTA=NUMBER"),
        (("set", "--user", "a", "nope=1"), KafkaFailed, "Invalid configuration key nope"),
        (("set", "--user", "a", "producer_byte_rate=0"), KafkaFailed, "must be greater than 0"),
        (("delete",), UsageError, "specify an entity"),
        (("delete", "--user", "a"), UsageError, "user a has no quota"),
        (("delete", "--user", "a", "x"), UsageError, "user a has no quota x"),
    ],
    ids=str,
)
@pytest.mark.asyncio(loop_scope="module")
async def test_invalid_quota_arguments_are_explained(
    shared_cluster: Cluster, arguments: tuple[str, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await run(shared_cluster, *arguments)
