"""`penstock tokens`, and clients that log in with delegation tokens."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from typer.testing import CliRunner

from penstock.base.scram import ScramMechanism
from penstock.broker.errors import ErrorCode
from penstock.deploy.cli.app import app
from penstock.protocol import apis
from penstock.protocol.gen import create_delegation_token as creating
from penstock.protocol.gen import describe_delegation_token as describing
from penstock.protocol.gen import metadata
from penstock.protocol.sasl.mechanisms import plain_message
from penstock.protocol.sasl.scram import ScramClient
from tests.support.attacker import Attacker
from tests.support.cluster import Cluster
from tests.support.secure_cluster import BROKER_PASSWORD, BROKER_USER, create_user, secure_cluster
from tests.support.waiting import until

KEY = "a key of all brokers"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    security = {"delegation_token_secret_key": KEY}
    async with secure_cluster(tmp_path, "SASL_PLAINTEXT", security=security, brokers=2) as cluster:
        await create_user(cluster, "bob", "bob secret")
        yield cluster


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return _config(tmp_path, BROKER_USER, BROKER_PASSWORD)


def _config(directory: Path, user: str, password: str) -> Path:
    path = directory / f"{user}.properties"
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.username={user}\nsasl.password={password}\n"
    )
    return path


async def run(cluster: Cluster, config: Path, *arguments: str, fails: bool = False) -> str:
    done = await asyncio.to_thread(
        CliRunner().invoke,
        app,
        ["--command-config", str(config), "tokens", *arguments, "--bootstrap", cluster.bootstrap],
    )
    assert (done.exit_code != 0) == fails, done.output
    return str(done.exception) if fails else done.output


async def log_in(client: Attacker, token: dict[str, Any]) -> Any:
    login = ScramClient(
        ScramMechanism.SCRAM_SHA_512,
        token["token_id"],
        token["password"],
        nonce="nonce",
        by_token=True,
    )
    challenge = await client.log_in("SCRAM-SHA-512", login.first())
    return await client.token(login.final(bytes(challenge.auth_bytes)))


async def accepted(port: int, token: dict[str, Any]) -> bool:
    async with Attacker.connected(port) as client:
        return not (await log_in(client, token)).error_code


async def test_token_is_accepted_by_every_broker_until_it_is_expired(
    cluster: Cluster, config: Path, tmp_path: Path
) -> None:
    with capture_logs() as logs:
        made = await run(cluster, config, "create", "--renewer", "bob", "--output", "json")
    token = json.loads(made)
    (line,) = [line for line in logs if line["event"] == "admin_change"]
    assert line["change"] == "delegation_token_created"
    assert line["resources"] == [f"{token['token_id']} of User:{BROKER_USER}"]
    assert token["password"] not in str(logs)
    ports = [broker.port for broker in cluster.brokers.values()]
    for port in ports:
        await until(lambda port=port: accepted(port, token))
    bob = _config(tmp_path, "bob", "bob secret")
    for reader in (config, bob):
        assert token["token_id"] in await run(cluster, reader, "list")
    refused = await run(cluster, config, "expire", token["token_id"], fails=True)
    assert "Confirm with --yes" in refused
    renewed = await run(cluster, bob, "renew", token["token_id"], "--period", "2h", "-o", "json")
    assert json.loads(renewed)["expires"] < token["expires"]
    assert "would expire" in await run(cluster, config, "expire", token["token_id"], "--dry-run")
    assert "expired token" in await run(cluster, config, "expire", token["token_id"], "--yes")
    for port in ports:

        async def refused(port: int = port) -> bool:
            return not await accepted(port, token)

        await until(refused)
    unknown = await run(cluster, config, "renew", token["token_id"], fails=True)
    assert "does not exist, or you may not describe it" in unknown


async def test_connection_authenticated_by_a_token_closes_when_the_token_expires(
    cluster: Cluster, config: Path
) -> None:
    token = json.loads(await run(cluster, config, "create", "--max-lifetime", "3s", "-o", "json"))
    port = cluster.broker.port
    async with Attacker.connected(port) as client:
        done = await log_in(client, token)
        assert 0 < done.session_lifetime_ms <= 3_000
        nested = creating.CreateDelegationTokenRequest(max_lifetime_ms=-1)
        response = await client.send_request(apis.CREATE_DELEGATION_TOKEN, 3, nested)
        assert response.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED

        async def closed() -> bool:
            return await client.exchange(apis.METADATA, 12, metadata.MetadataRequest([])) is None

        await until(closed)
    assert not await accepted(port, token)


async def test_unusual_names_of_token_owners_and_renewers_are_accepted(cluster: Cluster) -> None:
    async with Attacker.connected(cluster.broker.port) as client:
        login = plain_message(BROKER_USER, BROKER_PASSWORD)
        assert not (await client.log_in("PLAIN", login)).error_code

        async def create(kind: str, name: str, *renewers: str) -> int:
            request = creating.CreateDelegationTokenRequest(
                kind, name, [creating.CreatableRenewers("User", each) for each in renewers], -1
            )
            return int(
                (await client.send_request(apis.CREATE_DELEGATION_TOKEN, 3, request)).error_code
            )

        for kind in ("Group", "", "User:"):
            assert await create(kind, "alice") == ErrorCode.INVALID_PRINCIPAL_TYPE
        assert not await create("User", "a:b", "", "c:d")
        response = await client.send_request(
            apis.DESCRIBE_DELEGATION_TOKEN, 3, describing.DescribeDelegationTokenRequest(None)
        )
        (token,) = response.tokens
        assert (token.principal_type, token.principal_name) == ("User", "a:b")
        assert [renewer.principal_name for renewer in token.renewers] == ["", "c:d"]


async def test_tokens_require_a_secret_key_and_an_authenticated_client(
    tmp_path: Path, config: Path
) -> None:
    async with secure_cluster(tmp_path / "off", "SASL_PLAINTEXT", "PLAINTEXT") as cluster:
        error = await run(cluster, config, "create", fails=True)
        assert "DELEGATION_TOKEN_AUTH_DISABLED" in error
        plain = cluster.broker.server.ports["PLAINTEXT"]
        async with Attacker.connected(plain) as client:
            request = creating.CreateDelegationTokenRequest(max_lifetime_ms=-1)
            response = await client.send_request(apis.CREATE_DELEGATION_TOKEN, 3, request)
            assert response.error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
            assert response.max_timestamp_ms == -1
