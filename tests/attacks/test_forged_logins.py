"""Logins with forged tokens, and logins that request the identity of another user. Replayed SCRAM
exchanges are in `test_named_attacks`.
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from penstock.base.scram import SCRAM_BY_NAME
from penstock.broker.errors import ErrorCode
from penstock.broker.security import keys
from penstock.broker.security.oauthbearer import MESSAGE_BYTES_MAX
from penstock.protocol import apis
from penstock.protocol.gen import api_versions
from penstock.protocol.sasl.mechanisms import OAUTHBEARER, PLAIN, bearer_message, plain_message
from penstock.protocol.sasl.scram import ScramClient
from tests.support.attacker import TIMEOUT_S, Attacker
from tests.support.cluster import Cluster
from tests.support.secure_cluster import BROKER_USER, create_user, secure_cluster
from tests.support.token_issuer import TokenIssuer

USER, PASSWORD = "carol", "secret"
"""The user in the issuer's tokens also has a password."""


@pytest.fixture
def issuer() -> TokenIssuer:
    return TokenIssuer()


@pytest.fixture
async def cluster(tmp_path: Path, issuer: TokenIssuer) -> AsyncIterator[Cluster]:
    keys = tmp_path / "jwks.json"
    keys.write_bytes(issuer.document())
    security = {
        "ssl_keystore_location": "",
        "ssl_truststore_location": "",
        "sasl_enabled_mechanisms": (*SCRAM_BY_NAME, PLAIN, OAUTHBEARER),
        "sasl_jwks_endpoint_url": f"file:{keys}",
        "sasl_oauth_expected_audience": ("kafka",),
        "sasl_oauth_expected_issuer": "us",
    }
    async with secure_cluster(tmp_path, "SASL_PLAINTEXT", security=security) as cluster:
        await create_user(cluster, USER, PASSWORD)
        yield cluster


async def check_token_is_refused(cluster: Cluster, token: str) -> None:
    async with Attacker.connected(cluster.broker.port) as attacker:
        response = await attacker.log_in(OAUTHBEARER, bearer_message(token))
        assert response.auth_bytes == b'{"status":"invalid_token"}', token
        response = await attacker.token(b"\x01")
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await attacker.frame() is None


async def check_message_is_taken(cluster: Cluster, mechanism: str, message: bytes) -> None:
    async with Attacker.connected(cluster.broker.port) as user:
        response = await user.log_in(mechanism, message)
        assert response.error_code == ErrorCode.NONE, response
        assert b"invalid_token" not in response.auth_bytes


async def test_unsigned_tokens_are_rejected(cluster: Cluster, issuer: TokenIssuer) -> None:
    """CVE class: `alg: none`, and a token without its signature."""
    good = issuer.token()
    await check_message_is_taken(cluster, OAUTHBEARER, bearer_message(good))
    unsigned = issuer.token(algorithm="none")
    assert unsigned.endswith(".")
    for forged in (unsigned, good.rpartition(".")[0] + ".", good.rpartition(".")[0]):
        await check_token_is_refused(cluster, forged)


async def test_tokens_of_another_key_or_with_wrong_claims_are_rejected(
    cluster: Cluster, issuer: TokenIssuer
) -> None:
    """CVE class: tokens signed with another key, or by the issuer with other claims."""
    good = issuer.token()
    await check_message_is_taken(cluster, OAUTHBEARER, bearer_message(good))
    head, _, signature = good.split(".")
    claims = issuer.token(sub=BROKER_USER).split(".")[1]
    for forged in (
        TokenIssuer().token(sub=BROKER_USER),  # the key id is right
        issuer.token("unknown"),
        f"{head}.{claims}.{signature}",
    ):
        await check_token_is_refused(cluster, forged)


async def test_long_forged_tokens_do_not_delay_other_clients(
    cluster: Cluster, issuer: TokenIssuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checking a token of 467 KB once took the event loop 36 ms before its signature was verified.
    Clients with such tokens delayed others by seconds, until the broker lost its session.
    """
    is_free, checked = threading.Event(), keys.verify

    def waiting(*arguments: Any) -> Any:
        assert is_free.wait(TIMEOUT_S)
        return checked(*arguments)

    monkeypatch.setattr(keys, "verify", waiting)
    forged = TokenIssuer().token(sub="a" * (MESSAGE_BYTES_MAX // 2))
    refused = asyncio.create_task(check_token_is_refused(cluster, forged))
    async with Attacker.connected(cluster.broker.port) as other:
        for _ in range(3):
            request = api_versions.ApiVersionsRequest("other", "1")
            assert not (await other.send_request(apis.API_VERSIONS, 3, request)).error_code
            assert not refused.done()
    is_free.set()
    await refused
    longer = bearer_message(issuer.token(sub="a" * MESSAGE_BYTES_MAX))
    async with Attacker.connected(cluster.broker.port) as attacker:
        response = await attacker.log_in(OAUTHBEARER, longer)
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert await attacker.frame() is None


def login_as(mechanism: str, user: str, issuer: TokenIssuer) -> bytes:
    """Return the first SCRAM message of the user `carol`, with another user as authorization id."""
    if mechanism == PLAIN:
        return user.encode() + plain_message(USER, PASSWORD)
    if mechanism == OAUTHBEARER:
        return f"n,a={user},\x01auth=Bearer {issuer.token()}\x01\x01".encode()
    client = ScramClient(SCRAM_BY_NAME[mechanism], USER, PASSWORD, nonce="chosen")
    return client.first().replace(b"n,,", f"n,a={user},".encode(), 1)


async def test_authentication_fails_if_the_authorization_id_is_another_user(
    cluster: Cluster, issuer: TokenIssuer
) -> None:
    """CVE class: a user with valid credentials requests the rights of another one (CVE-2017-12610).
    The error is the one of Kafka, and the broker closes the connection.
    """
    for mechanism in (PLAIN, OAUTHBEARER, *SCRAM_BY_NAME):
        await check_message_is_taken(cluster, mechanism, login_as(mechanism, USER, issuer))
        async with Attacker.connected(cluster.broker.port) as attacker:
            response = await attacker.log_in(mechanism, login_as(mechanism, BROKER_USER, issuer))
            assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED, mechanism
            assert "Client requested an authorization id" in response.error_message, mechanism
            assert await attacker.frame() is None
