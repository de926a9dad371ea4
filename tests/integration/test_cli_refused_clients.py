"""Commands that use librdkafka report immediately why the brokers reject the client."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.base.scram import SCRAM_BY_NAME
from penstock.deploy.cli.app import app
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.clients.security import read_file
from penstock.protocol.client.errors import AuthenticationRefused, KafkaFailed
from tests.support.clients import create_topic
from tests.support.cluster import Cluster
from tests.support.secure_cluster import BROKER_USER, SecureFiles, create_user, secure_cluster
from tests.support.waiting import PATIENCE_S

SCRAM = "SCRAM-SHA-256"
COMMANDS = {
    "produce": ("produce", "orders", "--value", "x"),
    "consume": ("consume", "orders", "--from-beginning", "--until-end"),
    "group": ("consume", "orders", "--group", "g", "--timeout", "180"),
    "create": ("topics", "create", "new"),
    "delete-records": ("topics", "delete-records", "orders", "--all", "--yes"),
}
FAULTS = {
    "password": (
        "SASL_SSL",
        {"sasl.username": BROKER_USER, "sasl.password": "a guess"},
        f"^user 'broker': Authentication failed .* invalid credentials with SASL mechanism {SCRAM}",
    ),
    "user": (
        "SASL_SSL",
        {"sasl.username": "nobody", "sasl.password": "a guess"},
        f"^user 'nobody': Authentication failed .* invalid credentials with SASL mechanism {SCRAM}",
    ),
    "mechanism": (
        "SASL_SSL",
        {"sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p"},
        "^user 'u': the brokers have no PLAIN; use one of SCRAM-SHA-256",
    ),
    "certificate": ("SSL", {}, "it refuses this side's certificate, or wants one"),
    "CA": ("SSL", {"ssl.ca.location": "other.pem"}, "no trusted CA signed its certificate"),
    "client without TLS": ("SSL", {"security.protocol": "PLAINTEXT"}, "set security.protocol=SSL"),
    "server without TLS": ("PLAINTEXT", {"security.protocol": "SSL"}, "its port does not use TLS"),
}


@pytest.fixture
async def cluster(tmp_path: Path, files: SecureFiles) -> AsyncIterator[Cluster]:
    security = {
        "ssl_client_auth": "required",
        "sasl_enabled_mechanisms": (SCRAM,),
        "connections_max_reauth_ms": 1_000,
    }
    async with secure_cluster(
        tmp_path, "PLAINTEXT", "SASL_SSL", "SSL", security=security, files=files
    ) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, "orders", 1)
        yield cluster


def client_file(files: SecureFiles, properties: dict[str, str]) -> Path:
    (files.directory / "other.pem").write_bytes(SecureFiles(files.directory / "o").authority.pem)
    known = {"sasl.mechanism": SCRAM, "ssl.ca.location": str(files.truststore)} | properties
    if known["ssl.ca.location"] == "other.pem":
        known["ssl.ca.location"] = str(files.directory / "other.pem")
    path = files.directory / "client.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in known.items()))
    return path


def run(address: str, config: Path, *arguments: str) -> str:
    """Run a command and raise its error."""
    given = [*arguments, "--bootstrap", address, "--command-config", str(config)]
    result = CliRunner().invoke(app, given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


@pytest.mark.parametrize("command", COMMANDS)
async def test_command_reports_why_brokers_reject_the_client(
    cluster: Cluster, files: SecureFiles, command: str
) -> None:
    for listener, properties, reason in FAULTS.values():
        config = client_file(files, {"security.protocol": listener} | properties)
        address = f"127.0.0.1:{cluster.broker.server.ports[listener]}"
        with pytest.raises(KafkaFailed, match=reason):
            await asyncio.to_thread(run, address, config, *COMMANDS[command])


@pytest.mark.parametrize("client", ["producer", "consumer"])
async def test_running_client_ends_when_brokers_reject_its_reauthentication(
    cluster: Cluster, files: SecureFiles, client: str
) -> None:
    """With `connections.max.reauth.ms`, librdkafka authenticates again every second."""
    await create_user(cluster, "alice", "first", SCRAM_BY_NAME[SCRAM])
    login = {"sasl.username": "alice", "sasl.password": "first"}
    config = client_file(files, {"security.protocol": "SASL_SSL"} | login)
    address = f"127.0.0.1:{cluster.broker.server.ports['SASL_SSL']}"
    kafka = await asyncio.to_thread(Kafka, address, read_file(config))

    def use() -> None:
        if client == "producer":
            producer = kafka.producer()
            while not is_over.is_set():
                producer.produce("orders", b"x")
                producer.flush(1.0)
                accepted.set()
            return
        consumer = kafka.consumer(group_id="g")
        consumer.subscribe(["orders"])
        while not is_over.is_set():
            consumer.poll(1.0)
            accepted.set()

    accepted, is_over = threading.Event(), threading.Event()
    using = asyncio.create_task(asyncio.to_thread(use))
    try:
        await asyncio.to_thread(accepted.wait, PATIENCE_S)
        await create_user(cluster, "alice", "second", SCRAM_BY_NAME[SCRAM])
        with pytest.raises(AuthenticationRefused, match=f"user 'alice': .* mechanism {SCRAM}"):
            await asyncio.wait_for(asyncio.shield(using), PATIENCE_S)
    finally:
        is_over.set()
