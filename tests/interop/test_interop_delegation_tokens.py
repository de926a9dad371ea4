"""Delegation tokens: Kafka and Penstock give the same responses, and Java clients log
in with them.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kafka import LIGHT_JVM, kafka
from penstock.base.acls import STANDARD_AUTHORIZER, Operation, PatternType, Permission, ResourceType
from penstock.base.scram import ScramMechanism
from penstock.protocol import apis
from penstock.protocol.gen import create_acls, describe_acls
from penstock.protocol.gen import create_delegation_token as creating
from penstock.protocol.gen import describe_delegation_token as describing
from penstock.protocol.gen import expire_delegation_token as expiring
from penstock.protocol.gen import renew_delegation_token as renewing
from penstock.protocol.sasl.mechanisms import plain_message
from penstock.protocol.sasl.scram import ScramClient
from tests.support.attacker import Attacker
from tests.support.cluster import Cluster
from tests.support.java import JavaHome
from tests.support.secure_cluster import secure_cluster
from tests.support.waiting import until

pytestmark = pytest.mark.long

KEY = "a key of all brokers"
USERS = {name: f"{name} secret" for name in ("admin", "alice", "bob", "carol", "stranger")}
DAY_MS = 86_400_000
SASL_FAILED, OWNER_MISMATCH = 58, 63
TOKENS = "org.apache.kafka.tools.DelegationTokenCommand"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
SUPER_USERS = "User:admin;User:ANONYMOUS"


@pytest.fixture(scope="module")
def peer(java: JavaHome) -> Iterator[int]:
    """Run Kafka and return the port of its SASL listener."""
    settings = {
        "delegation.token.secret.key": KEY,
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": SUPER_USERS,
    }
    with kafka(settings, users=USERS, jvm=LIGHT_JVM) as process:
        yield process.sasl_port


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    users = tmp_path / "users"
    users.write_text("".join(f"{user}:{password}\n" for user, password in USERS.items()))
    users.chmod(0o600)
    security = {
        "delegation_token_secret_key": KEY,
        "authorizer": STANDARD_AUTHORIZER,
        "super_users": f"{SUPER_USERS};User:broker",
        "sasl_users_file": str(users),
        "sasl_inter_broker_username": "admin",
    }
    async with secure_cluster(tmp_path, "SASL_PLAINTEXT", security=security) as cluster:
        yield cluster


class Side:
    """Kafka or Penstock. Stores the created tokens by name."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.tokens: dict[str, Any] = {}

    async def send_request(
        self, user: str, api: apis.ApiSpec, version: int, request: object
    ) -> Any:
        """Send a request as a user, or with the token of this name."""
        async with Attacker.connected(self.port) as client:
            if user in self.tokens:
                token = self.tokens[user]
                login = ScramClient(
                    ScramMechanism.SCRAM_SHA_512,
                    token.token_id,
                    base64.b64encode(token.hmac).decode(),
                    nonce="nonce",
                    by_token=True,
                )
                challenge = await client.log_in("SCRAM-SHA-512", login.first())
                if challenge.error_code:
                    return challenge.error_code
                done = await client.token(login.final(bytes(challenge.auth_bytes)))
            else:
                done = await client.log_in("PLAIN", plain_message(user, USERS[user]))
            if done.error_code:
                return done.error_code
            return await client.send_request(api, version, request)

    async def create(
        self, name: str, user: str, *renewers: str, owner: str = "", lifetime_ms: int = -1
    ) -> tuple[object, ...]:
        found = [creating.CreatableRenewers(*renewer.split(":")) for renewer in renewers]
        request = creating.CreateDelegationTokenRequest(
            "User" if owner else None, owner or None, found, lifetime_ms
        )
        response = await self.send_request(user, apis.CREATE_DELEGATION_TOKEN, 3, request)
        if isinstance(response, int):
            return (response,)
        self.tokens[name] = response
        if not response.error_code:
            await until(lambda: self._is_known(name))
        return (
            response.error_code,
            response.principal_type,
            response.principal_name,
            response.token_requester_principal_type,
            response.token_requester_principal_name,
            min(response.issue_timestamp_ms, 1),
            response.expiry_timestamp_ms - response.issue_timestamp_ms,
            response.max_timestamp_ms - response.issue_timestamp_ms,
            len(response.token_id) > 0,
            len(response.hmac),
        )

    async def renew(self, name: str, user: str, period_ms: int) -> tuple[object, ...]:
        request = renewing.RenewDelegationTokenRequest(self._hmac(name), period_ms)
        response = await self.send_request(user, apis.RENEW_DELEGATION_TOKEN, 2, request)
        return response.error_code, self._after_issue(name, response.expiry_timestamp_ms)

    async def expire(self, name: str, user: str, period_ms: int) -> tuple[object, ...]:
        request = expiring.ExpireDelegationTokenRequest(self._hmac(name), period_ms)
        response = await self.send_request(user, apis.EXPIRE_DELEGATION_TOKEN, 2, request)
        return response.error_code, self._after_issue(name, response.expiry_timestamp_ms)

    async def describe(self, user: str, *owners: str, all_: bool = False) -> object:
        request = describing.DescribeDelegationTokenRequest(
            None
            if all_
            else [describing.DescribeDelegationTokenOwner("User", owner) for owner in owners]
        )
        response = await self.send_request(user, apis.DESCRIBE_DELEGATION_TOKEN, 3, request)
        if isinstance(response, int):
            return response
        names = {token.token_id: name for name, token in self.tokens.items() if token.token_id}
        return response.error_code, sorted(
            (
                names[token.token_id],
                token.principal_name,
                token.token_requester_principal_name,
                token.hmac == self.tokens[names[token.token_id]].hmac,
                sorted(renewer.principal_name for renewer in token.renewers),
            )
            for token in response.tokens
        )

    def _hmac(self, name: str) -> bytes:
        return self.tokens[name].hmac if name in self.tokens else b"of nothing"

    def _after_issue(self, name: str, time_ms: int) -> int:
        """Return a time as whole minutes after the creation of the token; -1 without a time."""
        if time_ms <= 0:
            return time_ms
        return round((time_ms - self.tokens[name].issue_timestamp_ms) / 60_000)

    async def allow(self, user: str, kind: ResourceType, name: str, operation: Operation) -> None:
        acl = create_acls.AclCreation(
            kind, name, PatternType.LITERAL, f"User:{user}", "*", operation, Permission.ALLOW
        )
        request = create_acls.CreateAclsRequest([acl])
        response = await self.send_request("admin", apis.CREATE_ACLS, 3, request)
        assert not response.results[0].error_code
        requested = describe_acls.DescribeAclsRequest(
            kind, name, PatternType.LITERAL, None, None, operation, Permission.ANY
        )

        async def is_there() -> bool:
            response = await self.send_request("admin", apis.DESCRIBE_ACLS, 3, requested)
            return bool(response.resources)

        await until(is_there)

    async def _is_known(self, name: str) -> bool:
        """Return whether both controller and broker have the token, which Kafka's get
        with a delay.
        """
        code, _ = await self.renew(name, "stranger", -1)
        return code == OWNER_MISMATCH and await self.describe(name, all_=True) != SASL_FAILED


async def conversation(side: Side) -> list[object]:
    """Return a side's responses to a sequence of requests."""
    said: list[object] = []
    say = said.append
    say(await side.create("a", "alice"))
    say(await side.create("b", "alice", "User:bob", "User:bob", lifetime_ms=2 * DAY_MS))
    say(await side.create("short", "alice", lifetime_ms=3_600_000))
    say(await side.create("zero", "alice", lifetime_ms=0))
    say(await side.create("group", "alice", "Group:x"))
    say(await side.create("other", "alice", owner="bob"))
    say(await side.create("of-bob", "admin", owner="bob"))
    say(await side.create("nested", "a"))
    say(await side.renew("nothing", "alice", -1))
    say(await side.renew("b", "carol", -1))
    say(await side.renew("b", "bob", 3_600_000))
    say(await side.renew("b", "alice", 365 * DAY_MS))
    say(await side.renew("b", "alice", 0))
    say(await side.renew("a", "a", -1))
    say(await side.describe("alice", all_=True))
    say(await side.describe("alice"))
    say(await side.describe("bob", all_=True))
    say(await side.describe("carol", all_=True))
    say(await side.describe("admin", all_=True))
    say(await side.describe("admin", "bob"))
    say(await side.describe("admin", "admin", "carol"))
    say(await side.describe("a", all_=True))
    say(await side.describe("of-bob", all_=True))
    await side.allow("carol", ResourceType.USER, "User:bob", Operation.DESCRIBE_TOKENS)
    say(await side.describe("carol", all_=True))
    token_id = side.tokens["zero"].token_id
    await side.allow("carol", ResourceType.DELEGATION_TOKEN, token_id, Operation.DESCRIBE)
    say(await side.describe("carol", all_=True))
    say(await side.describe("carol", "alice"))
    say(await side.create("granted", "carol", owner="bob"))
    await side.allow("carol", ResourceType.USER, "User:bob", Operation.CREATE_TOKENS)
    say(await side.create("granted", "carol", "User:alice", owner="bob", lifetime_ms=99 * DAY_MS))
    say(await side.renew("granted", "carol", -1))
    say(await side.expire("nothing", "alice", -1))
    say(await side.expire("a", "bob", -1))
    say(await side.expire("a", "alice", 7_200_000))
    say(await side.expire("a", "alice", -1))
    say(await side.expire("a", "alice", -1))
    say(await side.describe("a", all_=True))
    say(await side.expire("short", "alice", 0))
    await asyncio.sleep(0.1)
    say(await side.renew("short", "alice", -1))
    say(await side.expire("short", "alice", 60_000))
    return said


async def test_token_requests_get_the_responses_of_kafka(peer: int, cluster: Cluster) -> None:
    ours, kafkas = Side(cluster.broker.port), Side(peer)
    expected = await conversation(kafkas)
    for number, (wanted, found) in enumerate(zip(expected, await conversation(ours), strict=True)):
        assert found == wanted, f"response {number}"


async def test_java_tool_and_clients_use_tokens(
    java: JavaHome, cluster: Cluster, tmp_path: Path
) -> None:
    """kafka-delegation-tokens creates a token for alice, a producer logs in with it, and the tool
    lists, renews and expires it.
    """
    alice = tmp_path / "alice.properties"
    alice.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required"
        f' username="alice" password="{USERS["alice"]}";\n'
    )
    ours = Side(cluster.broker.port)
    await ours.allow("alice", ResourceType.TOPIC, "orders", Operation.ALL)

    async def run(main: str, *arguments: str) -> str:
        done = await asyncio.to_thread(
            java.tool, main, "--bootstrap-server", cluster.bootstrap, *arguments
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    async def tokens(*arguments: str) -> str:
        return await run(TOKENS, "--command-config", str(alice), *arguments)

    made = await tokens(
        "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:bob"
    )
    token_id, hmac = made.splitlines()[-1].split()[:2]
    assert token_id in await tokens("--describe", "--owner-principal", "User:alice")
    by_token = tmp_path / "token.properties"
    by_token.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-256\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required"
        f' username="{token_id}" password="{hmac}" tokenauth="true";\n'
    )
    sent = await run(
        VERIFIABLE_PRODUCER, "--topic", "orders", "--max-messages", "10", "--command-config",
        str(by_token),
    )  # fmt: skip
    assert '"acked":10' in sent
    assert "New expiry date" in await tokens("--renew", "--renew-time-period", "-1", "--hmac", hmac)
    assert "Completed expire operation" in await tokens(
        "--expire", "--expiry-time-period", "-1", "--hmac", hmac
    )
    assert token_id not in await tokens("--describe", "--owner-principal", "User:alice")
