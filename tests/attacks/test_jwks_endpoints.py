"""Token key endpoints with arbitrary responses: the client gets an authentication error, the log
contains the reason, and known keys stay in use.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Self

import pytest
from structlog.testing import capture_logs

from penstock.broker.security.keys import DOCUMENT_BYTES_MAX, TokenKeys
from penstock.protocol.sasl.mechanisms import bearer_message
from tests.support.attacker import Attacker
from tests.support.cluster import Cluster
from tests.support.secure_cluster import secure_cluster
from tests.support.stream_server import StreamServer
from tests.support.token_issuer import TokenIssuer
from tests.support.waiting import PATIENCE_S, until

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
READ_TIMEOUT_S = 0.5
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def responding_with(response: bytes) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        writer.close()

    return serve


def endless(head: bytes, piece: bytes, pause_s: float = 0.0) -> Serve:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        while not writer.is_closing():
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause_s)

    return serve


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


def document(body: bytes) -> Serve:
    return responding_with(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def keys(*items: Any) -> Serve:
    return document(json.dumps({"keys": items}).encode())


ODD = {"kty": ["RSA"], "n": {}, "e": 1, "kid": None, "alg": [1], "use": {}}
HOSTILE: dict[str, Serve] = {
    "no HTTP": responding_with(b"SSH-2.0-OpenSSH_9.6\r\n\x00\xff" * 50),
    "nothing": responding_with(b""),
    "silence": silence,
    "half a body": responding_with(HEAD + b"Content-Length: 1000\r\n\r\n{"),
    "endless body": endless(HEAD + b"\r\n", b"x" * 65_536),
    "endless header": endless(HEAD, b"X: " + b"y" * 4_000 + b"\r\n"),
    "endless header line": endless(HEAD + b"X: ", b"y" * 65_536),
    "slow body": endless(HEAD + b"\r\n", b" ", 0.05),
    "slow header": endless(HEAD + b"X: ", b"y", 0.05),
    "huge": document(b'{"keys":[]}' + b" " * DOCUMENT_BYTES_MAX),
    "gzip": responding_with(HEAD + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b"),
    "an error": responding_with(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n"),
    "no JSON": document(b"<html>"),
    "no object": document(b"[]"),
    "keys of another type": document(b'{"keys":{"a":1}}'),
    "deep nesting": document(b'{"keys":' + b"[" * 200_000),
    "no Unicode": document(b'{"keys":"\xff"}'),
    "long numbers": document(b'{"keys":' + b"9" * 10_000 + b"}"),
}
WITHOUT_KEYS: dict[str, Serve] = {
    "odd types": keys(ODD, 1, None, [], "key", {"kty": "EC", "crv": 7, "x": [], "y": {}}),
    "odd numbers": keys({"kty": "RSA", "n": "", "e": ""}, {"kty": "RSA", "n": "AA", "e": "AA"}),
    "deep key": keys({"kty": "RSA", "n": [[[[{}]]]], "e": "AQAB"}),
}


class Endpoint:
    """A JWKS endpoint with configured responses."""

    def __init__(self) -> None:
        self.serve: Serve = silence
        self.asked_count = 0
        self._server = StreamServer(self._serve)

    async def __aenter__(self) -> Self:
        self.url = f"http://127.0.0.1:{self._server.open()}/jwks"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked_count += 1
        await self.serve(reader, writer)


@pytest.fixture
async def endpoint() -> AsyncIterator[Endpoint]:
    async with Endpoint() as endpoint:
        yield endpoint


@pytest.fixture
async def cluster(tmp_path: Path, endpoint: Endpoint) -> AsyncIterator[Cluster]:
    settings = {
        "sasl_enabled_mechanisms": ("OAUTHBEARER", "SCRAM-SHA-512"),
        "sasl_jwks_endpoint_url": endpoint.url,
        "sasl_oauth_expected_audience": ("kafka",),
        "ssl_keystore_location": "",
        "ssl_truststore_location": "",
    }
    async with secure_cluster(tmp_path, "SASL_PLAINTEXT", security=settings) as cluster:
        yield cluster


def keys_of(cluster: Cluster) -> TokenKeys:
    found = cluster.broker.access.listener("SASL_PLAINTEXT").keys
    assert found is not None
    found._unknown_interval_s = 0.0
    found._read_timeout_s = PATIENCE_S
    return found


async def log_in(cluster: Cluster, token: str) -> bool:
    """Return whether the broker accepts the login. Fails if it does not respond."""
    async with Attacker.connected(cluster.broker.port) as client:
        response = await client.log_in("OAUTHBEARER", bearer_message(token))
        if b"invalid_token" in response.auth_bytes:
            response = await client.token(b"\x01")
            assert response.error_code == 58
            return False
        assert response.error_code == 0
        return True


async def test_the_login_fails_whatever_the_endpoint_returns(
    cluster: Cluster, endpoint: Endpoint
) -> None:
    found, issuer = keys_of(cluster), TokenIssuer()
    unknown = issuer.token("unknown")
    for name, serve in HOSTILE.items():
        endpoint.serve, asked_count = serve, endpoint.asked_count
        found._read_timeout_s = READ_TIMEOUT_S
        with capture_logs() as logs:
            assert not await log_in(cluster, unknown), name
        assert endpoint.asked_count > asked_count, name
        failures = [line for line in logs if line["event"] == "jwks_fetch_failed"]
        assert failures, f"{name}: no line in the log"
        assert all(line["reason"] for line in failures), name
        assert not [line for line in logs if line["event"] == "authentication_error"], name
    found._read_timeout_s = PATIENCE_S
    for name, serve in WITHOUT_KEYS.items():
        endpoint.serve = serve
        assert not await log_in(cluster, unknown), name
        assert not found._keys, name
    endpoint.serve = document(issuer.document())
    assert await log_in(cluster, issuer.token())


async def test_known_keys_stay_valid_after_a_failed_refresh(
    cluster: Cluster, endpoint: Endpoint
) -> None:
    found, issuer = keys_of(cluster), TokenIssuer()
    endpoint.serve = document(issuer.document())
    assert await log_in(cluster, issuer.token())
    found._read_timeout_s = READ_TIMEOUT_S
    for name in ("no HTTP", "slow body", "deep nesting", "keys of another type"):
        endpoint.serve = HOSTILE[name]
        assert not await log_in(cluster, issuer.token("unknown")), name
        assert await log_in(cluster, issuer.token()), name


async def test_redirects_of_the_endpoint_are_not_followed(
    cluster: Cluster, endpoint: Endpoint
) -> None:
    """A redirect must not choose which keys are trusted."""
    keys_of(cluster)
    issuer = TokenIssuer()
    async with Endpoint() as elsewhere:
        elsewhere.serve = document(issuer.document())
        for status in (b"301 Moved", b"302 Found", b"307 Temporary Redirect"):
            location = elsewhere.url.encode()
            endpoint.serve = responding_with(
                b"HTTP/1.1 %s\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % (status, location)
            )
            with capture_logs() as logs:
                assert not await log_in(cluster, issuer.token())
            assert "not followed" in next(line["reason"] for line in logs if "reason" in line)
        assert elsewhere.asked_count == 0


async def test_the_key_refresh_continues_after_the_client_disconnects(
    cluster: Cluster, endpoint: Endpoint
) -> None:
    """Otherwise anyone could block all logins by repeatedly triggering a refresh and disconnecting
    before the response.
    """
    found, issuer = keys_of(cluster), TokenIssuer()
    found._unknown_interval_s, found._read_timeout_s = 3_600.0, PATIENCE_S
    requested, go_on = asyncio.Event(), asyncio.Event()
    response = document(issuer.document())

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        requested.set()
        await go_on.wait()
        await response(reader, writer)

    endpoint.serve = late
    async with Attacker.connected(cluster.broker.port) as stranger:
        login = asyncio.create_task(
            stranger.log_in("OAUTHBEARER", bearer_message(issuer.token("unknown")))
        )
        await requested.wait()
        login.cancel()
    await until(lambda: not cluster.broker.server.connection_count)
    go_on.set()
    assert await log_in(cluster, issuer.token())
    assert endpoint.asked_count == 1
