"""Users managed with Kafka's tools and Java clients: SCRAM over TLS."""

import asyncio
import subprocess
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from penstock.base.acls import STANDARD_AUTHORIZER
from penstock.base.scram import ScramMechanism
from penstock.deploy.clients.security import read_file
from penstock.protocol import apis
from penstock.protocol.gen import alter_user_scram_credentials as altering
from penstock.protocol.gen import describe_user_scram_credentials as describing
from tests.interop.both import Both
from tests.support.clients import TIMEOUT_S
from tests.support.java import JavaHome
from tests.support.java_tools import ToolRunner
from tests.support.secure_cluster import (
    BROKER_PASSWORD,
    BROKER_USER,
    SecureFiles,
    create_user,
    secure_cluster,
)
from tests.support.token_issuer import TokenIssuer

ACLS = "org.apache.kafka.tools.AclCommand"
CONFIGS = "kafka.admin.ConfigCommand"
TOPICS = "org.apache.kafka.tools.TopicCommand"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"


def upsertion(name: str, mechanism: int = 2, iterations: int = 4_096) -> Any:
    return altering.ScramCredentialUpsertion(name, mechanism, iterations, b"salt", b"salted")


def _by_user(response: Any, *fields: str) -> list[tuple[Any, ...]]:
    """Return these fields by user. Kafka lists the mechanisms of a user in arbitrary order."""
    for item in response["results"]:
        item["credential_infos"] = sorted(
            item.get("credential_infos", ()), key=lambda info: int(info["mechanism"])
        )
    return sorted(tuple(item[field] for field in ("user", *fields)) for item in response["results"])


@pytest.mark.long
async def test_credentials_are_altered_and_described_as_by_kafka(both: Both) -> None:
    deletion, request = altering.ScramCredentialDeletion, altering.AlterUserScramCredentialsRequest
    for requested in (
        request([], [upsertion("alice"), upsertion("bob", 1, 8_192)]),
        request([], [upsertion("alice", 1)]),
        request([], [upsertion("x", 2, 4_095), upsertion("y", 2, 16_385), upsertion("z", 3)]),
        request([], [upsertion(""), upsertion("w", 0)]),
        request([], [upsertion("carol"), upsertion("carol", 1)]),
        request([deletion("bob", 1)], [upsertion("bob")]),
        request([deletion("bob", 2), deletion("ghost", 1), deletion("", 1)], []),
        request([deletion("alice", 1), deletion("alice", 2)], []),
        request([deletion("alice", 7), deletion("bob", 1)], []),
        request([], []),
    ):
        kafka, response = await both.send_request(apis.ALTER_USER_SCRAM_CREDENTIALS, requested)
        fields = ("error_code", "error_message")
        assert _by_user(response, *fields) == _by_user(kafka, *fields), requested
        for names in (None, ["alice", "bob", "ghost", "alice"], ["alice"]):
            kafka, response = await both.send_request(
                apis.DESCRIBE_USER_SCRAM_CREDENTIALS,
                describing.DescribeUserScramCredentialsRequest(
                    None if names is None else [describing.UserName(name) for name in names]
                ),
            )
            fields = ("error_code", "error_message", "credential_infos")
            assert _by_user(response, *fields) == _by_user(kafka, *fields), names
            assert response["error_code"] == kafka["error_code"]
            assert response["error_message"] == kafka["error_message"]
    for user in ("alice",):
        kafka_text, text = await both.tool(
            CONFIGS, "--describe", "--entity-type", "users", "--entity-name", user
        )
        assert text == kafka_text


def login(files: SecureFiles, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> str:
    """Return the path of a properties file with which Java clients log in over TLS."""
    path = files.directory / f"{user}-{mechanism}.properties"
    module = "scram.Scram" if mechanism.startswith("SCRAM") else "plain.Plain"
    path.write_text(
        "security.protocol=SASL_SSL\nssl.truststore.type=PEM\n"
        f"sasl.mechanism={mechanism}\nssl.truststore.location={files.truststore}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module}LoginModule required"
        f' username="{user}" password="{password}";\n'
    )
    return str(path)


async def test_kafka_acls_works_over_tls_with_scram(tools: ToolRunner, tmp_path: Path) -> None:
    """The administrator grants a user the right to produce; the user cannot grant rights."""
    files = SecureFiles(tmp_path / "security")
    security = {"authorizer": STANDARD_AUTHORIZER, "super_users": f"User:{BROKER_USER}"}
    async with secure_cluster(tmp_path, "SASL_SSL", security=security, files=files) as cluster:
        await create_user(cluster, "alice", "secret", ScramMechanism.SCRAM_SHA_512)
        admin = login(files, BROKER_USER, BROKER_PASSWORD)
        user = login(files, "alice", "secret")

        async def acls(config: str, *arguments: str) -> str:
            address = ("--bootstrap-server", cluster.bootstrap, "--command-config", config)
            done = await asyncio.to_thread(tools.run, ACLS, (*address, *arguments))
            return done.output

        given = ("--add", "--allow-principal", "User:alice", "--producer", "--topic", "t")
        assert "ClusterAuthorizationException" in await acls(user, *given)
        added = await acls(admin, *given)
        assert "principal=User:alice, host=*, operation=WRITE, permissionType=ALLOW" in added
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(files.truststore),
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "alice",
                "sasl.password": "secret",
            }
        )
        outcomes: list[object] = []
        producer.produce("t", b"x", on_delivery=lambda error, _: outcomes.append(error))
        assert await asyncio.to_thread(producer.flush, TIMEOUT_S) == 0
        assert outcomes == [None]


@pytest.mark.long
async def test_java_clients_use_scram_over_tls(java: JavaHome, tmp_path: Path) -> None:
    """kafka-configs creates a user over TLS, and the user produces."""
    files = SecureFiles(tmp_path / "security")
    async with secure_cluster(tmp_path, "SASL_SSL", files=files) as cluster:

        def tool(main: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
            return java.tool(main, "--bootstrap-server", cluster.bootstrap, *arguments)

        async def run(main: str, *arguments: str) -> str:
            done = await asyncio.to_thread(tool, main, *arguments)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout + done.stderr

        admin = login(files, BROKER_USER, BROKER_PASSWORD)
        user = ("--entity-type", "users", "--entity-name", "alice", "--command-config", admin)
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            added = f"{mechanism}=[iterations=8192,password=secret]"
            await run(CONFIGS, "--alter", "--add-config", added, *user)
        shown = await run(CONFIGS, "--describe", *user)
        assert "SCRAM-SHA-256=iterations=8192" in shown
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"):
            config = login(files, "alice", "secret", mechanism)
            topic = f"of-{mechanism}"
            await run(TOPICS, "--create", "--topic", topic, "--command-config", config)
            produced = await run(
                VERIFIABLE_PRODUCER, "--topic", topic, "--max-messages", "10",
                "--command-config", config,
            )  # fmt: skip
            assert '"acked":10' in produced
        await run(CONFIGS, "--alter", "--delete-config", "SCRAM-SHA-256", *user)
        assert "SCRAM-SHA-256" not in await run(CONFIGS, "--describe", *user)


@pytest.mark.long
async def test_java_clients_use_oauth_tokens_over_tls(java: JavaHome, tmp_path: Path) -> None:
    """Java clients read a token from a file, and authenticate as its subject."""
    files, issuer = SecureFiles(tmp_path / "security"), TokenIssuer()
    keys, token = tmp_path / "jwks.json", tmp_path / "token"
    keys.write_bytes(issuer.document())
    token.write_text(issuer.token())
    security = {
        "sasl_enabled_mechanisms": ("OAUTHBEARER", "SCRAM-SHA-512"),
        "sasl_jwks_endpoint_url": f"file:{keys}",
        "sasl_oauth_expected_audience": ("kafka",),
    }
    config = tmp_path / "client.properties"
    config.write_text(
        "security.protocol=SASL_SSL\nssl.truststore.type=PEM\nsasl.mechanism=OAUTHBEARER\n"
        f"ssl.truststore.location={files.truststore}\n"
        f"sasl.oauthbearer.token.endpoint.url=file:{token}\n"
        "sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer"
        ".OAuthBearerLoginCallbackHandler\n"
        "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
        " required;\n"
    )
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file:{token}"
    async with secure_cluster(tmp_path, "SASL_SSL", security=security, files=files) as cluster:

        def produced() -> "subprocess.CompletedProcess[str]":
            return java.tool(
                VERIFIABLE_PRODUCER, "--bootstrap-server", cluster.bootstrap, "--topic", "t",
                "--max-messages", "10", "--command-config", str(config), jvm=(allowed,),
            )  # fmt: skip

        done = await asyncio.to_thread(produced)
        assert '"acked":10' in done.stdout, done.stdout + done.stderr
        token.write_text(issuer.token(aud="other"))
        done = await asyncio.to_thread(produced)
        assert '"acked":10' not in done.stdout


@pytest.mark.long
async def test_java_clients_send_the_same_assertions(java: JavaHome, tmp_path: Path) -> None:
    """The Java client and `penstock` read the same file and send the same header and claims. Kafka
    4.2 cannot read a key with a passphrase.
    """
    files = SecureFiles(tmp_path / "security")
    async with TokenIssuer() as issuer:
        config = tmp_path / "client.properties"
        config.write_text(
            "security.protocol=SASL_SSL\nssl.truststore.type=PEM\nsasl.mechanism=OAUTHBEARER\n"
            f"ssl.truststore.location={files.truststore}\n"
            f"{issuer.write_assertion_files(tmp_path)}"
            "sasl.login.callback.handler.class=org.apache.kafka.common.security.oauthbearer"
            ".OAuthBearerLoginCallbackHandler\n"
            "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
            " required;\n"
        )
        security = {
            "sasl_enabled_mechanisms": ("OAUTHBEARER", "SCRAM-SHA-512"),
            "sasl_jwks_endpoint_url": f"http://127.0.0.1:{issuer.port}/jwks",
            "sasl_oauth_expected_audience": ("kafka",),
        }
        allowed = (
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=http://127.0.0.1:{issuer.port}/token"
        )
        files_allowed = (
            "-Dorg.apache.kafka.sasl.oauthbearer.allowed.files="
            f"{tmp_path / 'key.pem'},{tmp_path / 'template.json'}"
        )
        async with secure_cluster(tmp_path, "SASL_SSL", security=security, files=files) as cluster:
            done = await asyncio.to_thread(
                lambda: java.tool(
                    VERIFIABLE_PRODUCER, "--bootstrap-server", cluster.bootstrap, "--topic", "t",
                    "--max-messages", "10", "--command-config", str(config),
                    jvm=(allowed, files_allowed),
                )
            )  # fmt: skip
            assert '"acked":10' in done.stdout, done.stdout + done.stderr
        by_java = issuer.assertions[:]
        token = await asyncio.to_thread(read_file(config).secret)
        assert token
        (java_header, java_claims), (header, claims) = by_java[0], issuer.assertions[-1]
        assert len(issuer.assertions) == len(by_java) + 1
        assert header == java_header
        assert claims.keys() == java_claims.keys()
        for name in ("exp", "nbf"):
            distance = java_claims[name] - java_claims["iat"]
            assert claims[name] - claims["iat"] == distance
        of_once = {"iat", "exp", "nbf", "jti"}
        assert {name: claims[name] for name in claims.keys() - of_once} == {
            name: java_claims[name] for name in java_claims.keys() - of_once
        }
        assert issuer.forms[-1].partition("&")[0] in issuer.forms[0]
