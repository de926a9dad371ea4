"""Secrets that are rotated while brokers and controllers run: client CAs, token issuer keys, and
delegation tokens across a controller failover.
"""

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from typer.testing import CliRunner

from penstock.base.scram import ScramMechanism
from penstock.broker.config import BrokerConfig
from penstock.broker.node import Broker
from penstock.broker.security.keys import TokenKeys
from penstock.broker.security.tokens import TokenRules
from penstock.deploy.cli.app import app
from penstock.deploy.local.certificates import Authority
from penstock.protocol.sasl.mechanisms import AuthenticationFailed, bearer_message
from penstock.protocol.sasl.scram import ScramClient
from penstock.stream.config import StreamConfig
from tests.support.attacker import Attacker
from tests.support.controller_quorum import Quorum
from tests.support.secure_cluster import BROKER_PASSWORD, BROKER_USER, SecureFiles, secure_cluster
from tests.support.token_issuer import TokenIssuer
from tests.support.waiting import PATIENCE_S, until

API_VERSIONS = bytes.fromhex("0000000e 0012 0000 00000001 0004 74657374")

# --- client certificates --------------------------------------------------------------------------


class Client:
    """A client that authenticates with a certificate and can resume its TLS sessions."""

    def __init__(self, files: SecureFiles, shown: Path, highest: ssl.TLSVersion) -> None:
        self._context = ssl.create_default_context(cafile=str(files.directory / "broker.ca.pem"))
        self._context.load_cert_chain(shown)
        self._context.maximum_version = highest
        self.session: ssl.SSLSession | None = None

    def log_in(self, port: int, session: ssl.SSLSession | None = None) -> bool:
        raw = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        wrap = self._context.wrap_socket
        try:
            with wrap(raw, server_hostname="localhost", session=session) as client:
                client.sendall(API_VERSIONS)
                if not client.recv(4):
                    return False
                self.session = client.session
                return True
        except OSError:
            return False


@pytest.mark.parametrize("highest", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_clients_of_a_removed_ca_are_rejected_without_a_restart(
    tmp_path: Path, highest: ssl.TLSVersion
) -> None:
    """This includes clients that resume a TLS session."""
    files, other = SecureFiles(tmp_path / "security"), Authority.make("another CA")
    (files.directory / "broker.ca.pem").write_bytes(files.authority.pem)
    old = Client(files, files.client("old"), highest)
    new = Client(files, files.client("new", authority=other), highest)
    settings = {"ssl_client_auth": "required"}
    async with secure_cluster(tmp_path, "SSL", security=settings, files=files) as cluster:
        port, watched = cluster.broker.server.ports["SSL"], cluster.broker.access.files

        async def accepted(client: Client, session: ssl.SSLSession | None = None) -> bool:
            return await asyncio.to_thread(client.log_in, port, session)

        assert await accepted(old)
        assert not await accepted(new)
        files.truststore.write_bytes(files.authority.pem + other.pem)
        await until(lambda: watched.reload_count == 1)
        assert await accepted(old)
        assert await accepted(new)
        session = old.session
        files.truststore.write_bytes(other.pem)
        await until(lambda: watched.reload_count == 2)
        assert await accepted(new)
        assert not await accepted(old)
        assert not await accepted(old, session)


# --- token issuer keys ----------------------------------------------------------------------------


async def accepted_by(keys: TokenKeys, token: str) -> bool:
    try:
        return (await keys.verify(token)).user == "carol"
    except AuthenticationFailed:
        return False


async def test_tokens_are_accepted_across_a_rotation_of_issuer_keys() -> None:
    """Both keys are valid while both are published. A removed key is valid until the next read of
    the published keys.
    """
    async with TokenIssuer() as issuer:
        keys = TokenKeys(
            f"http://127.0.0.1:{issuer.port}/jwks",
            TokenRules(audiences=("kafka",), issuer="us"),
            refresh_ms=100,
            now_ms=lambda: int(time.time() * 1_000),
            unknown_interval_s=0.05,
        )
        try:
            old = issuer.token("one")
            assert await accepted_by(keys, old)
            issuer.keys["two"] = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
            await until(lambda: accepted_by(keys, issuer.token("two")))
            assert await accepted_by(keys, old)
            del issuer.keys["one"]

            async def is_refused() -> bool:
                return not await accepted_by(keys, old)

            await until(is_refused)
            assert await accepted_by(keys, issuer.token("two"))
            issuer.keys["one"] = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
            await until(lambda: accepted_by(keys, issuer.token("one")))
            assert not await accepted_by(keys, old), "another key with the old name"
        finally:
            await keys.close()


async def test_unknown_key_ids_query_the_issuer_only_once(tmp_path: Path) -> None:
    async with TokenIssuer() as issuer:
        settings = {
            "sasl_enabled_mechanisms": ("OAUTHBEARER", "SCRAM-SHA-512"),
            "sasl_jwks_endpoint_url": f"http://127.0.0.1:{issuer.port}/jwks",
            "sasl_oauth_expected_audience": ("kafka",),
            "ssl_keystore_location": "",
            "ssl_truststore_location": "",
        }
        async with secure_cluster(tmp_path, "SASL_PLAINTEXT", security=settings) as cluster:
            port = cluster.broker.port

            async def log_in(token: str) -> bool:
                async with Attacker.connected(port) as client:
                    response = await client.log_in("OAUTHBEARER", bearer_message(token))
                    return not response.error_code and b"invalid_token" not in response.auth_bytes

            assert await log_in(issuer.token())
            now = int(time.time())
            for wrong in (
                {"exp": now - 60},
                {"nbf": now + 60},
                {"iat": now + 60},
                {"aud": "other"},
                {"aud": ["other"]},
                {"aud": None},
                {"algorithm": "none"},
                {"sub": ""},
            ):
                assert not await log_in(issuer.token(**wrong)), wrong
            asked_count, began = issuer.request_count, time.monotonic()
            forged = issuer.token("unknown")
            for _ in range(10):
                given = await asyncio.gather(
                    *(log_in(forged) for _ in range(20)), log_in(issuer.token())
                )
                assert given == [False] * 20 + [True], "a client with a known key gets in"
            allowed = 1 + (time.monotonic() - began) / 10
            assert issuer.request_count - asked_count <= allowed


# --- delegation tokens ----------------------------------------------------------------------------


class QuorumCluster:
    """Three controllers and two brokers with SASL."""

    def __init__(self, directory: Path) -> None:
        self.quorum = Quorum(directory / "controllers")
        self.brokers: list[Broker] = []
        files = SecureFiles(directory / "security")
        self._security = files.config(
            delegation_token_secret_key="a key of all brokers",
            ssl_keystore_location="",
            ssl_truststore_location="",
        )

    async def start(self) -> None:
        await self.quorum.start()
        for node_id in range(2):
            config = BrokerConfig(
                node_id=node_id,
                listeners=("SASL_PLAINTEXT://127.0.0.1:0",),
                controllers=tuple(self.quorum.addresses),
            )
            stream = StreamConfig(wal_linger_ms=0)
            self.brokers.append(
                await Broker.start(config, self.quorum.store, stream, security=self._security)
            )

    async def stop(self) -> None:
        await asyncio.gather(*(broker.abandon() for broker in self.brokers))
        await self.quorum.stop()

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers)

    async def fail_over(self) -> None:
        """Stop the leader and start it again as a follower."""
        leader = await self.quorum.leader()
        await self.quorum.stop_one(leader)
        assert await self.quorum.leader() != leader
        await self.quorum.start_one(leader)


@pytest.fixture
async def quorum_cluster(tmp_path: Path) -> AsyncIterator[QuorumCluster]:
    cluster = QuorumCluster(tmp_path)
    try:
        await cluster.start()
        yield cluster
    finally:
        await cluster.stop()


async def test_delegation_tokens_survive_a_controller_failover(
    quorum_cluster: QuorumCluster, tmp_path: Path
) -> None:
    cluster, config = quorum_cluster, tmp_path / "broker.properties"
    config.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        f"sasl.username={BROKER_USER}\nsasl.password={BROKER_PASSWORD}\n"
    )

    async def run(*arguments: str) -> Any:
        common = ["--command-config", str(config), "tokens", *arguments]
        done = await asyncio.to_thread(
            CliRunner().invoke, app, [*common, "--bootstrap", cluster.bootstrap]
        )
        assert done.exit_code == 0, done.output
        return json.loads(done.output) if "json" in arguments else done.output

    async def accepted(token: dict[str, Any]) -> list[bool]:
        return [await _log_in(broker.port, token) for broker in cluster.brokers]

    token = await run("create", "-o", "json")
    short = await run("create", "--max-lifetime", "6s", "-o", "json")

    async def all_accept() -> bool:
        return await accepted(token) == [True, True]

    await until(all_accept)
    await cluster.fail_over()
    assert await accepted(token) == [True, True]
    renewed = await run("renew", token["token_id"], "--period", "1h", "-o", "json")
    assert renewed["expires"] < token["expires"]
    await cluster.fail_over()
    listed = await run("list", "-o", "json")
    (found,) = [item for item in listed if item["token_id"] == token["token_id"]]
    assert found["expires"] == renewed["expires"]

    async def is_over() -> bool:
        return await accepted(short) == [False, False]

    await until(is_over)
    assert await accepted(token) == [True, True]
    await run("expire", token["token_id"], "--yes")
    await cluster.fail_over()

    async def are_gone() -> bool:
        return await accepted(token) == [False, False]

    await until(are_gone)


async def _log_in(port: int, token: dict[str, Any]) -> bool:
    login = ScramClient(
        ScramMechanism.SCRAM_SHA_512,
        token["token_id"],
        token["password"],
        nonce="nonce",
        by_token=True,
    )
    async with Attacker.connected(port) as client:
        challenge = await client.log_in("SCRAM-SHA-512", login.first())
        return not (await client.token(login.final(bytes(challenge.auth_bytes)))).error_code
