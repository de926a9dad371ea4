"""Security settings per listener in one broker, as in its TOML file: certificates of different CAs,
client certificates on some listeners, and a different SASL mechanism on each. Clients are
unmodified.
"""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from kafka import KafkaProducer
from structlog.testing import capture_logs

from penstock.broker import self_check
from penstock.broker.network.client_connection import Connection
from penstock.broker.security.config import SecurityConfig
from penstock.broker.security.tls import SecurityFileInvalid
from penstock.broker.self_check import UnreachableAsAdvertised
from penstock.deploy.local.certificates import Authority
from penstock.deploy.node.config.load import load
from penstock.deploy.private_files import write_private
from tests.support.clients import TIMEOUT_S, read_records
from tests.support.cluster import Cluster
from tests.support.secure_cluster import SecureFiles, create_user
from tests.support.waiting import until

USER, PASSWORD = "alice", "the password of alice"
HOSTS = ("127.0.0.1", "localhost")
PROTOCOLS = {
    "SCRAM": "SASL_SSL",
    "PLAIN": "SASL_SSL",
    "PARTNERS": "SSL",
    "PUBLIC": "SSL",
    "BOTH": "SASL_SSL",
}
LISTENERS = tuple(f"{name}://127.0.0.1:0" for name in PROTOCOLS)
CONFIG = """
listeners = "{listeners}"
listener.security.protocol.map = "{protocols}"
ssl.keystore.location = "{directory}/broker.pem"
ssl.truststore.location = "{directory}/ca.pem"
ssl.client.auth = "required"
ssl.reload.interval.ms = 100
sasl.users.file = "{directory}/users"
sasl.inter.broker.username = "broker"
connection.failed.authentication.delay.ms = 10
listener.name.scram.sasl.enabled.mechanisms = ["SCRAM-SHA-512"]
listener.name.plain.sasl.enabled.mechanisms = "PLAIN"
listener.name.plain.connections.max.reauth.ms = "1h"
listener.name.partners.ssl.keystore.location = "{directory}/partners.pem"
listener.name.partners.ssl.key.password = "of the key"
listener.name.partners.ssl.truststore.location = "{directory}/partners.ca.pem"
listener.name.partners.ssl.principal.mapping.rules = "RULE:^CN=(.*)$/partner-$1/"
listener.name.public.ssl.keystore.location = "{directory}/public.pem"
listener.name.public.ssl.client.auth = "none"
listener.name.public.ssl.enabled.protocols = "TLSv1.3"
listener.name.both.ssl.client.auth = "required"
"""


class Files(SecureFiles):
    """Files for the listeners. PARTNERS has a certificate of a public CA and trusts clients of the
    partners' CA.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.public, self.partners = Authority.make("public CA"), Authority.make("partners' CA")
        self.trusted_by_clients = directory / "public.ca.pem"
        self.trusted_by_clients.write_bytes(self.public.pem)
        (directory / "partners.ca.pem").write_bytes(self.partners.pem)
        self.renew("partners", password="of the key")
        self.renew("public")

    def renew(self, listener: str, password: str = "") -> None:
        issued = self.public.issue("broker", hosts=HOSTS, password=password)
        write_private(self.directory / f"{listener}.pem", issued.keystore)


def security(files: Files) -> SecurityConfig:
    """Return the settings that a broker reads from its TOML file."""
    path = files.directory / "penstock.toml"
    protocols = ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items())
    path.write_text(
        CONFIG.format(directory=files.directory, listeners=",".join(LISTENERS), protocols=protocols)
    )
    return load("broker", ("--store", "file:x", "--config", str(path)), {}).part(SecurityConfig)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path / "security")


@pytest.fixture
async def cluster(tmp_path: Path, files: Files) -> AsyncIterator[Cluster]:
    async with Cluster(
        tmp_path, security=security(files), listeners=LISTENERS, advertised_check="strict"
    ) as cluster:
        await create_user(cluster, USER, PASSWORD)
        yield cluster


def properties(cluster: Cluster, listener: str, ca: Path, **more: Any) -> dict[str, Any]:
    return {
        "bootstrap.servers": f"127.0.0.1:{cluster.broker.server.ports[listener]}",
        "security.protocol": "SSL",
        "ssl.ca.location": str(ca),
        "log_level": 0,
    } | {name.replace("_", "."): value for name, value in more.items()}


def as_user(mechanism: str) -> dict[str, str]:
    return {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": mechanism,
        "sasl_username": USER,
        "sasl_password": PASSWORD,
    }


def certificate(path: Path) -> dict[str, str]:
    return {"ssl_certificate_location": str(path), "ssl_key_location": str(path)}


async def produce(config: dict[str, Any]) -> Producer:
    """Produce one acknowledged record. Return the producer, still connected."""

    def run() -> Producer:
        producer = Producer(config)
        errors: list[Any] = []
        producer.produce("t", b"x", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(TIMEOUT_S) == 0
        assert errors == [None]
        return producer

    return await asyncio.to_thread(run)


async def refused(config: dict[str, Any]) -> str:
    """Return the client's error when it cannot connect."""
    reported: list[str] = []

    def run() -> None:
        admin = AdminClient(config | {"error_cb": lambda error: reported.append(error.str())})
        deadline = time.monotonic() + TIMEOUT_S
        while not reported and time.monotonic() < deadline:
            admin.poll(0.05)

    await asyncio.to_thread(run)
    assert reported, "the client got in, or got no response"
    return reported[0]


def principals(cluster: Cluster, listener: str) -> set[str]:
    connections: set[Connection] = cluster.broker.server._connections
    return {str(each.principal) for each in connections if each.listener == listener}


async def test_each_listener_accepts_only_its_own_mechanisms(
    cluster: Cluster, files: Files
) -> None:
    ports = cluster.broker.server.ports
    for listener, mechanism, other in (
        ("SCRAM", "SCRAM-SHA-512", "PLAIN"),
        ("PLAIN", "PLAIN", "SCRAM-SHA-512"),
    ):
        config = properties(cluster, listener, files.truststore, **as_user(mechanism))
        producer = await produce(config)
        assert principals(cluster, listener) == {f"User:{USER}"}
        assert len(producer) == 0
        reason = await refused(config | {"sasl.mechanism": other})
        assert f"Unsupported SASL mechanism: broker's supported mechanisms: {mechanism}" in reason

    def kafka_python() -> None:
        settings: dict[str, Any] = {
            "bootstrap_servers": f"127.0.0.1:{ports['PLAIN']}",
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_plain_username": USER,
            "sasl_plain_password": PASSWORD,
        }
        producer = KafkaProducer(**settings, ssl_cafile=str(files.truststore))
        producer.send("t", b"x").get(TIMEOUT_S)
        producer.close()

    await asyncio.to_thread(kafka_python)


async def test_each_listener_uses_its_own_certificates(cluster: Cluster, files: Files) -> None:
    """Credentials of one listener are rejected by the others."""
    partner = certificate(files.client("p1", authority=files.partners))
    member = certificate(files.client("m1"))
    public_ca = files.trusted_by_clients
    for listener, ca, shown, user in (
        ("PARTNERS", public_ca, partner, "User:partner-p1"),
        ("PUBLIC", public_ca, {}, "User:ANONYMOUS"),
        ("BOTH", files.truststore, member | as_user("SCRAM-SHA-256"), f"User:{USER}"),
    ):
        producer = await produce(properties(cluster, listener, ca, **shown))
        assert principals(cluster, listener) == {user}
        assert len(producer) == 0
    access = cluster.broker.access
    for listener, ca, shown in (
        ("PARTNERS", public_ca, member),
        ("PARTNERS", public_ca, {}),
        ("BOTH", files.truststore, partner | as_user("SCRAM-SHA-256")),
        ("BOTH", files.truststore, as_user("SCRAM-SHA-256")),
    ):
        before = access.failed_count
        await refused(properties(cluster, listener, ca, **shown))
        assert access.failed_count > before, (listener, shown)
    reported = await refused(properties(cluster, "PUBLIC", files.truststore))
    assert "certificate" in reported
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        await serial(cluster, "PUBLIC", files, highest=ssl.TLSVersion.TLSv1_2)
    await serial(cluster, "SCRAM", files, highest=ssl.TLSVersion.TLSv1_2)


async def serial(
    cluster: Cluster,
    listener: str,
    files: Files,
    highest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3,
) -> str:
    """Return the serial number of the certificate that a listener presents."""
    context = ssl.create_default_context(cafile=str(files.truststore))
    context.load_verify_locations(files.trusted_by_clients)
    context.maximum_version = highest
    port = cluster.broker.server.ports[listener]
    async with asyncio.timeout(TIMEOUT_S):
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        return str(writer.get_extra_info("peercert")["serialNumber"])
    finally:
        writer.close()


async def test_certificates_of_one_listener_are_reloaded_without_a_restart(
    cluster: Cluster, files: Files
) -> None:
    """Invalid files of another listener do not prevent the reload."""
    watched = cluster.broker.access.files
    before = {name: await serial(cluster, name, files) for name in PROTOCOLS}
    with capture_logs() as logs:
        (files.directory / "partners.pem").write_bytes(b"broken")
        await until(lambda: watched.refused_count == 1)
    (refusal,) = [line["reason"] for line in logs if line["event"] == "security_files_rejected"]
    assert "listener PARTNERS: ssl.keystore.location=" in refusal
    files.renew("public")
    await until(lambda: watched.reload_count == 1)
    after = {name: await serial(cluster, name, files) for name in PROTOCOLS}
    assert {name for name in PROTOCOLS if before[name] != after[name]} == {"PUBLIC"}
    await produce(properties(cluster, "PUBLIC", files.trusted_by_clients))
    assert (watched.reload_count, watched.refused_count) == (1, 1)


async def test_clients_see_listener_settings_but_no_secrets(cluster: Cluster, files: Files) -> None:
    admin = AdminClient(properties(cluster, "PUBLIC", files.trusted_by_clients))
    broker = ConfigResource(ConfigResource.Type.BROKER, "0")

    def describe() -> dict[str, Any]:
        return dict(admin.describe_configs([broker])[broker].result(TIMEOUT_S))

    found = await asyncio.to_thread(describe)
    prefix = "listener.name."
    assert found[f"{prefix}plain.sasl.enabled.mechanisms"].value == "PLAIN"
    assert found[f"{prefix}plain.connections.max.reauth.ms"].value == "3600000"
    assert found[f"{prefix}public.ssl.client.auth"].value == "none"
    secret = found[f"{prefix}partners.ssl.key.password"]
    assert (secret.value, secret.is_sensitive, secret.is_read_only) == (None, True, True)
    assert found["ssl.client.auth"].value == "required"


async def test_error_in_a_certificate_file_names_the_listener(tmp_path: Path, files: Files) -> None:
    (files.directory / "public.pem").unlink()
    with pytest.raises(SecurityFileInvalid, match=r"public\.pem: No such file"):
        async with Cluster(tmp_path, security=security(files), listeners=LISTENERS):
            pass
    (files.directory / "public.pem").write_bytes(b"no PEM")
    with pytest.raises(SecurityFileInvalid, match=r"listener PUBLIC: ssl\.keystore\.location="):
        async with Cluster(tmp_path, security=security(files), listeners=LISTENERS):
            pass


async def test_certificate_of_a_listener_must_contain_its_advertised_host(
    tmp_path: Path, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes listeners with client certificates, where the broker can check only the TLS
    handshake.
    """
    monkeypatch.setattr(self_check, "CHECK_S", 0.3)
    issued = files.public.issue("broker", hosts=["elsewhere.example"], password="of the key")
    write_private(files.directory / "partners.pem", issued.keystore)
    with pytest.raises(UnreachableAsAdvertised, match=r"PARTNERS.* the certificate does not fit"):
        async with Cluster(
            tmp_path, security=security(files), listeners=LISTENERS, advertised_check="strict"
        ):
            pass


async def test_inter_broker_connections_use_the_settings_of_their_listener(tmp_path: Path) -> None:
    """Transaction markers go to the other broker, whose certificate is trusted only by the settings
    of that listener.
    """
    files = Files(tmp_path / "security")
    issued = files.partners.issue("broker", hosts=HOSTS)
    write_private(files.directory / "between.pem", issued.keystore)
    own = {
        "listener.security.protocol.map": "BETWEEN:SSL,CLIENTS:SASL_SSL",
        "inter.broker.listener.name": "BETWEEN",
        "listener.name.between.ssl.keystore.location": f"{files.directory}/between.pem",
        "listener.name.between.ssl.truststore.location": f"{files.directory}/partners.ca.pem",
        "listener.name.between.ssl.client.auth": "required",
        "ssl.keystore.location": str(files.keystore),
        "sasl.users.file": str(files.users),
    }
    listeners = ("CLIENTS://127.0.0.1:0", "BETWEEN://127.0.0.1:0")
    arguments = [part for name, value in own.items() for part in ("--set", f"{name}={value}")]
    loaded = load(
        "broker", ("--store", "file:x", "--listeners", ",".join(listeners), *arguments), {}
    )
    async with Cluster(
        tmp_path,
        brokers=2,
        security=loaded.part(SecurityConfig),
        listeners=listeners,
        advertised_check="strict",
    ) as cluster:
        await create_user(cluster, USER, PASSWORD)
        config = properties(cluster, "CLIENTS", files.truststore, **as_user("SCRAM-SHA-512"))

        def transact() -> None:
            admin = AdminClient(config)
            admin.create_topics([NewTopic("t", 4)])["t"].result(TIMEOUT_S)
            producer = Producer(config | {"transactional.id": "id", "linger.ms": 0})
            producer.init_transactions(TIMEOUT_S)
            producer.begin_transaction()
            for partition in range(4):
                producer.produce("t", b"x", partition=partition)
            producer.commit_transaction(TIMEOUT_S)
            consumer = Consumer(config | {"group.id": "g", "isolation.level": "read_committed"})
            consumer.assign([TopicPartition("t", index, 0) for index in range(4)])
            try:
                assert len(read_records(consumer, 4)) == 4
            finally:
                consumer.close()

        await asyncio.to_thread(transact)
        assert principals(cluster, "BETWEEN") == {"User:CN=broker"}
