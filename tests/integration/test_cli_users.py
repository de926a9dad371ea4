"""`penstock users`, `penstock certs` and `--command-config` on a cluster with SASL and TLS."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from cryptography.hazmat.primitives.asymmetric import rsa
from typer.testing import CliRunner

from penstock.deploy.cli.app import app
from penstock.deploy.clients.security import ClientSecurity, parse
from penstock.deploy.errors import UsageError
from penstock.protocol.client.errors import KafkaFailed
from tests.support.cluster import Cluster
from tests.support.secure_cluster import BROKER_PASSWORD, BROKER_USER, SecureFiles, secure_cluster
from tests.support.token_issuer import TokenIssuer
from tests.support.waiting import PATIENCE_S

ASSERTING = (
    "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
    "sasl.oauthbearer.token.endpoint.url=https://id\n"
    "sasl.oauthbearer.grant.type=urn:ietf:params:oauth:grant-type:jwt-bearer\n"
)


@pytest.fixture
async def cluster(tmp_path: Path, files: SecureFiles) -> AsyncIterator[Cluster]:
    async with secure_cluster(tmp_path, "SASL_SSL", files=files) as cluster:
        yield cluster


def config_file(files: SecureFiles, user: str, password: str) -> Path:
    path = files.directory / f"{user}.properties"
    path.write_text(
        "# comment\nsecurity.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-256\n"
        f"ssl.truststore.location={files.truststore}\nssl.truststore.type=PEM\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        f'  username="{user}" password="{password}";\n'
    )
    return path


async def run(cluster: Cluster, *arguments: str, given: str = "", **environment: str) -> str:
    def invoke() -> Any:
        return CliRunner().invoke(
            app, [*arguments, "--bootstrap", cluster.bootstrap], input=given, env=environment
        )

    result = await asyncio.to_thread(invoke)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return str(result.stdout)


async def test_users_are_created_used_and_deleted(
    cluster: Cluster, files: SecureFiles, tmp_path: Path
) -> None:
    admin = ["--command-config", str(config_file(files, BROKER_USER, BROKER_PASSWORD))]
    secret = tmp_path / "password"
    secret.write_text("from the file\n")
    created = await run(
        cluster, "users", "create", "alice", *admin, "--password-file", str(secret),
        "--mechanism", "SCRAM-SHA-256",
    )  # fmt: skip
    assert "file" not in created
    await run(cluster, "users", "create", "bob", *admin, PENSTOCK_USER_PASSWORD="variable")
    await run(cluster, "users", "create", "carol", *admin, given="typed\ntyped\n")
    listed = json.loads(await run(cluster, "users", "list", "--json", *admin))
    assert listed == [
        {"name": "alice", "mechanisms": {"SCRAM-SHA-256": 4_096}},
        {"name": "bob", "mechanisms": {"SCRAM-SHA-512": 4_096}},
        {"name": "carol", "mechanisms": {"SCRAM-SHA-512": 4_096}},
    ]
    alice = str(config_file(files, "alice", "from the file"))
    await run(cluster, "topics", "create", "orders", f"--command-config={alice}")
    assert "orders" in await run(cluster, "topics", "list", PENSTOCK_COMMAND_CONFIG=alice)
    await run(cluster, "users", "delete", "alice", "--yes", *admin)
    with pytest.raises(KafkaFailed, match="invalid credentials"):
        await run(cluster, "users", "list", "--command-config", alice)
    with pytest.raises(UsageError, match="user 'alice' does not exist"):
        await run(cluster, "users", "delete", "alice", "--yes", *admin)


async def test_command_without_client_properties_fails_on_a_secure_cluster(
    cluster: Cluster,
) -> None:
    with pytest.raises(KafkaFailed):
        await run(cluster, "users", "list")


async def test_commands_verify_the_broker_certificate(
    cluster: Cluster, files: SecureFiles, tmp_path: Path
) -> None:
    other = SecureFiles(tmp_path / "other")
    config = config_file(other, BROKER_USER, BROKER_PASSWORD)
    with pytest.raises(KafkaFailed, match="no trusted CA signed its certificate"):
        await run(cluster, "users", "list", "--command-config", str(config))


def bearer_security(issuer: TokenIssuer) -> dict[str, Any]:
    return {
        "sasl_enabled_mechanisms": ("OAUTHBEARER", "SCRAM-SHA-512"),
        "sasl_jwks_endpoint_url": f"http://127.0.0.1:{issuer.port}/jwks",
        "sasl_oauth_expected_audience": ("kafka",),
    }


async def test_commands_authenticate_with_oauth_tokens(tmp_path: Path, files: SecureFiles) -> None:
    """`users` uses Penstock's own client, `topics` uses librdkafka."""
    async with TokenIssuer() as issuer:
        endpoint = f"http://127.0.0.1:{issuer.port}/token"
        client_id, _, secret = issuer.LOGIN.partition(":")
        token = tmp_path / "token"
        token.write_text(issuer.token() + "\n")
        names = {
            "kafka": f"sasl.oauthbearer.token.endpoint.url={endpoint}\n"
            f"sasl.oauthbearer.client.credentials.client.id={client_id}\n"
            f"sasl.oauthbearer.client.credentials.client.secret={secret}\n"
            "sasl.oauthbearer.scope=all of it\n",
            "jaas": f"sasl.oauthbearer.token.endpoint.url={endpoint}\nsasl.jaas.config="
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"
            f' clientId="{client_id}" clientSecret="{secret}" scope="all of it";\n',
            "librdkafka": "sasl.oauthbearer.method=oidc\n"
            f"sasl.oauthbearer.token.endpoint.url={endpoint}\n"
            f"sasl.oauthbearer.client.id={client_id}\nsasl.oauthbearer.client.secret={secret}\n"
            "sasl.oauthbearer.scope=all of it\n",
            "file": f"sasl.oauthbearer.token.endpoint.url=file:{token}\n",
        }
        head = (
            "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
            f"ssl.ca.location={files.truststore}\n"
        )
        config = tmp_path / "client.properties"
        given = ["--command-config", str(config)]
        async with secure_cluster(
            tmp_path, "SASL_SSL", security=bearer_security(issuer), files=files
        ) as cluster:
            for name, text in names.items():
                config.write_text(head + text)
                asked_count = len(issuer.forms)
                await run(cluster, "topics", "create", name, *given)
                await run(cluster, "users", "list", *given)
                assert name in await run(cluster, "topics", "list", *given)
                forms = issuer.forms[asked_count:]
                assert bool(forms) is (name != "file")
                assert set(forms) <= {"grant_type=client_credentials&scope=all+of+it"}
            settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
            admin = AdminClient(settings | parse(head + names["jaas"]).properties())
            found = await asyncio.to_thread(admin.list_topics, timeout=PATIENCE_S)
            assert names.keys() <= found.topics.keys(), "librdkafka asks the endpoint itself"
            config.write_text(head + names["kafka"].replace(secret, "a guess"))
            for command in ("topics", "users"):
                with pytest.raises(KafkaFailed, match="401 Unauthorized"):
                    await run(cluster, command, "list", *given)
            config.write_text(head + names["file"])
            token.write_text(issuer.token(aud="other"))
            with pytest.raises(KafkaFailed, match="a token from file:"):
                await run(cluster, "users", "list", *given)


async def test_commands_authenticate_with_signed_assertions(
    tmp_path: Path, files: SecureFiles
) -> None:
    """The client signs its requests to the token endpoint (KIP-1139)."""
    async with TokenIssuer() as issuer:
        text = (
            "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
            f"ssl.ca.location={files.truststore}\n"
            f"{issuer.write_assertion_files(tmp_path, passphrase='its own')}"
        )
        config = tmp_path / "client.properties"
        config.write_text(text)
        given = ["--command-config", str(config)]
        async with secure_cluster(
            tmp_path, "SASL_SSL", security=bearer_security(issuer), files=files
        ) as cluster:
            await run(cluster, "topics", "create", "t", *given)
            await run(cluster, "users", "list", *given)
            ours = issuer.assertions[:]
            settings: dict[str, Any] = {"bootstrap.servers": cluster.bootstrap, "log_level": 0}
            admin = AdminClient(settings | parse(text).properties())
            found = await asyncio.to_thread(admin.list_topics, timeout=PATIENCE_S)
            assert "t" in found.topics, "librdkafka asks the endpoint itself"
            by_librdkafka = issuer.assertions[len(ours) :]
            assert ours
            assert by_librdkafka
            for header, claims in ours:
                assert header == {"alg": "RS256", "typ": "JWT", "kid": "client-1"}
                assert claims["sub"] == "client-1"
                assert claims["team"] == 7
                assert claims["exp"] - claims["iat"] == 120
            assert len({claims["jti"] for _, claims in ours}) == len(ours)
            other = rsa.generate_private_key(public_exponent=65_537, key_size=2_048)
            issuer.write_assertion_files(tmp_path, key=other, passphrase="its own")
            with pytest.raises(KafkaFailed, match="401 Unauthorized"):
                await run(cluster, "users", "list", *given)
            (tmp_path / "key.pem").write_text("no key")
            with pytest.raises(KafkaFailed, match=r"key\.pem has no private key"):
                await run(cluster, "users", "list", *given)


def test_certs_creates_certificates_for_development(tmp_path: Path) -> None:
    arguments = ["certs", "dev", str(tmp_path), "--host", "b.example", "--client", "alice"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    assert {path.name for path in tmp_path.iterdir()} == {"ca.pem", "broker.pem", "alice.pem"}
    for name in ("broker", "alice"):
        assert (tmp_path / f"{name}.pem").stat().st_mode & 0o077 == 0
        context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        context.load_cert_chain(tmp_path / f"{name}.pem")
    again = CliRunner().invoke(app, arguments)
    assert isinstance(again.exception, UsageError)


def test_certs_creates_no_files_for_wrong_arguments(tmp_path: Path) -> None:
    wrong = CliRunner().invoke(app, ["certs", "dev", str(tmp_path), "--client", "a/b"])
    assert isinstance(wrong.exception, UsageError)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    wrong = CliRunner().invoke(app, ["certs", "dev", str(tmp_path / "file")])
    assert isinstance(wrong.exception, UsageError)
    assert "cannot be created: File exists" in str(wrong.exception)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("security.protocol=TLS", "one of PLAINTEXT, SSL"),
        ("security.protocol=SASL_SSL", "sasl.mechanism"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=u", "sasl.password"),
        ("nonsense", "line 1"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER", "token.endpoint.url"),
        (
            "security.protocol=SASL_SSL\nsasl.mechanism=OAUTHBEARER\n"
            "sasl.oauthbearer.token.endpoint.url=https://id\nsasl.oauthbearer.client.id=c",
            "client.secret",
        ),
        (f"{ASSERTING}sasl.oauthbearer.scope=s", "private.key.file"),
        (
            f"{ASSERTING}sasl.oauthbearer.assertion.file=f\n"
            "sasl.oauthbearer.assertion.algorithm=none",
            "one of RS256, ES256",
        ),
        (
            f"{ASSERTING}sasl.oauthbearer.assertion.file=f\n"
            "sasl.oauthbearer.assertion.claim.exp.seconds=-1",
            "0 to 86400",
        ),
    ],
)
def test_invalid_property_files_are_rejected(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse(text)


def test_unrelated_client_properties_are_ignored() -> None:
    assert parse("acks=all\nbootstrap.servers: x:1") == ClientSecurity()
