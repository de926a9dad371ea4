"""Authentication of unmodified clients over real sockets with SCRAM, PLAIN, OAuth tokens and client
certificates.
"""

import asyncio
import os
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from cryptography.hazmat.primitives.asymmetric import rsa
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

from penstock.base.scram import ScramMechanism
from penstock.broker.network.client_connection import Connection
from penstock.deploy.local.certificates import Authority
from penstock.protocol import apis, framing
from penstock.protocol.codecs import CODECS
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import api_versions, metadata, sasl_authenticate, sasl_handshake
from penstock.protocol.primitives import MAX_ELEMENTS_COUNT
from tests.support.clients import TIMEOUT_S, read_records
from tests.support.cluster import Cluster
from tests.support.in_thread import in_thread
from tests.support.secure_cluster import SecureFiles, create_user, secure_cluster
from tests.support.token_issuer import TokenIssuer
from tests.support.waiting import until

USER, PASSWORD = "alice", "a secret, =with signs="
MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN")


@pytest.fixture
async def cluster(tmp_path: Path, files: SecureFiles) -> AsyncIterator[Cluster]:
    async with secure_cluster(tmp_path, "SASL_SSL", "SASL_PLAINTEXT", files=files) as cluster:
        await create_user(cluster, USER, PASSWORD)
        yield cluster


def address(cluster: Cluster, listener: str) -> str:
    return f"127.0.0.1:{cluster.broker.server.ports[listener]}"


def properties(cluster: Cluster, listener: str, files: SecureFiles, **more: Any) -> dict[str, Any]:
    named = {name.replace("_", "."): value for name, value in more.items()}
    return {
        "bootstrap.servers": address(cluster, listener),
        "security.protocol": listener,
        "ssl.ca.location": str(files.truststore),
        "log_level": 0,
    } | named


def sasl_properties(
    cluster: Cluster, files: SecureFiles, mechanism: str, password: str = PASSWORD
) -> dict[str, Any]:
    return properties(
        cluster,
        "SASL_SSL",
        files,
        sasl_mechanism=mechanism,
        sasl_username=USER,
        sasl_password=password,
    )


def produced(config: dict[str, Any], count: int = 1, size: int = 10) -> Producer:
    """Produce records and check that all are acknowledged. Return the producer, still connected."""
    producer = Producer(config)
    errors: list[Any] = []
    for _ in range(count):
        producer.produce("t", b"x" * size, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert errors == [None] * count
    return producer


def refusal(config: dict[str, Any]) -> str:
    """Return the reason why a client fails to authenticate."""
    found: list[str] = []
    admin = AdminClient(config | {"error_cb": lambda error: found.append(error.str())})
    deadline = time.monotonic() + TIMEOUT_S
    while not found and time.monotonic() < deadline:
        admin.poll(0.05)
    assert found, "the client got in, or got no response"
    return found[0]


def principals(cluster: Cluster) -> set[str]:
    connections: set[Connection] = cluster.broker.server._connections
    return {str(connection.principal) for connection in connections}


# --- users ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_confluent_kafka_authenticates_with_a_password(
    cluster: Cluster, files: SecureFiles, mechanism: str
) -> None:
    """Records of 1 MB pass through TLS unchanged in both directions."""
    config = sasl_properties(cluster, files, mechanism)
    producer = await asyncio.to_thread(produced, config, 8, 900_000)
    assert f"User:{USER}" in principals(cluster)
    assert len(producer) == 0

    def read() -> list[bytes | None]:
        consumer = Consumer(config | {"group.id": "g", "enable.auto.commit": False})
        consumer.assign([TopicPartition("t", 0, 0)])
        try:
            return [message.value() for message in read_records(consumer, 8)]
        finally:
            consumer.close()

    assert await asyncio.to_thread(read) == [b"x" * 900_000] * 8


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("listener", ["SASL_SSL", "SASL_PLAINTEXT"])
async def test_python_clients_authenticate_with_a_password(
    cluster: Cluster, files: SecureFiles, mechanism: str, listener: str
) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": address(cluster, listener),
        "security_protocol": listener,
        "sasl_mechanism": mechanism,
        "sasl_plain_username": USER,
        "sasl_plain_password": PASSWORD,
    }
    context = ssl.create_default_context(cafile=str(files.truststore))
    aio = AIOKafkaProducer(**settings, ssl_context=context if listener == "SASL_SSL" else None)
    await aio.start()
    try:
        await aio.send_and_wait("t", b"aiokafka")
    finally:
        await aio.stop()

    def kafka_python() -> None:
        producer = KafkaProducer(**settings, ssl_cafile=str(files.truststore))
        producer.send("t", b"kafka-python").get(TIMEOUT_S)
        producer.close()

    await asyncio.to_thread(kafka_python)


@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_wrong_password_is_rejected(
    cluster: Cluster, files: SecureFiles, mechanism: str
) -> None:
    reason = await asyncio.to_thread(
        refusal, sasl_properties(cluster, files, mechanism, "something else")
    )
    assert "Authentication failed" in reason
    assert cluster.broker.access.failed_count


async def test_changed_and_deleted_users_cannot_use_old_passwords(
    cluster: Cluster, files: SecureFiles
) -> None:
    """PLAIN caches verified passwords, but drops the cached password when the user changes."""
    config = sasl_properties(cluster, files, "PLAIN")
    await asyncio.to_thread(produced, config)
    await create_user(cluster, USER, "new")
    assert "Authentication failed" in await asyncio.to_thread(refusal, config)
    await asyncio.to_thread(produced, config | {"sasl.password": "new"})


async def test_users_in_the_password_file_take_precedence_over_metadata(
    cluster: Cluster, files: SecureFiles
) -> None:
    """The right to alter users does not cover the inter-broker user."""
    await create_user(cluster, "broker", "stolen", ScramMechanism.SCRAM_SHA_256)
    config = sasl_properties(cluster, files, "SCRAM-SHA-256") | {"sasl.username": "broker"}
    refused = await asyncio.to_thread(refusal, config | {"sasl.password": "stolen"})
    assert "Authentication failed" in refused
    await asyncio.to_thread(produced, config | {"sasl.password": "broker secret"})


@in_thread
def test_unknown_mechanism_is_rejected_with_the_enabled_ones(cluster: Cluster) -> None:
    with connect(cluster) as raw:
        request = sasl_handshake.SaslHandshakeRequest("GSSAPI")
        response = raw.send_request(apis.SASL_HANDSHAKE, 1, request)
        assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
        assert tuple(response.mechanisms) == MECHANISMS
        raw.expect_end()


# --- raw protocol --------------------------------------------------------------------------------


class Raw:
    """A plaintext connection that can send arbitrary bytes."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, frame: bytes) -> None:
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self) -> bytes:
        (size,) = struct.unpack(">i", self._exactly(4))
        return self._exactly(size)

    def send_request(self, api: apis.ApiSpec, version: int, request: object) -> Any:
        codec = CODECS[api.key]
        self.socket.sendall(
            framing.encode_request_frame(api, version, 1, codec.encode_request, request)
        )
        frame = self.receive()
        _, at = framing.parse_response_header(api, version, frame)
        return framing.decode_body(codec.decode_response, frame, at, version, MAX_ELEMENTS_COUNT)

    def expect_end(self) -> None:
        """Check that the broker closes the connection without sending another byte."""
        with suppress(ConnectionResetError):
            assert self.socket.recv(1) == b""

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.socket.recv(count - len(data))
            assert piece, "the broker closed the connection"
            data += piece
        return data


def connect(cluster: Cluster, listener: str = "SASL_PLAINTEXT") -> Raw:
    return Raw(cluster.broker.server.ports[listener])


def plain_handshake(version: int) -> tuple[apis.ApiSpec, int, object]:
    return apis.SASL_HANDSHAKE, version, sasl_handshake.SaslHandshakeRequest("PLAIN")


def token(data: bytes, version: int = 2) -> tuple[apis.ApiSpec, int, object]:
    return apis.SASL_AUTHENTICATE, version, sasl_authenticate.SaslAuthenticateRequest(data)


GOOD = f"\0{USER}\0{PASSWORD}".encode()


async def test_sasl_handshake_v0_is_followed_by_tokens_without_headers(cluster: Cluster) -> None:
    def talk() -> None:
        with connect(cluster) as raw:
            assert raw.send_request(*plain_handshake(0)).error_code == 0
            raw.send(GOOD)
            assert raw.receive() == b""
            assert raw.send_request(apis.METADATA, 9, metadata.MetadataRequest(None)).brokers
        with connect(cluster) as raw:
            raw.send_request(*plain_handshake(0))
            raw.send(b"\0alice\0wrong")
            raw.expect_end()

    await asyncio.to_thread(talk)
    assert set(cluster.broker.server.requests.responses) <= set(apis.APIS)


@pytest.mark.parametrize("version", [0, 1, 2])
@in_thread
def test_only_api_versions_may_precede_authentication(cluster: Cluster, version: int) -> None:
    with connect(cluster) as raw:
        listed = raw.send_request(apis.API_VERSIONS, 2, api_versions.ApiVersionsRequest())
        assert {17, 36} <= {api.api_key for api in listed.api_keys}
        assert raw.send_request(*plain_handshake(1)).error_code == 0
        response = raw.send_request(*token(GOOD, version))
        assert (response.error_code, response.session_lifetime_ms) == (0, 0)
        again = raw.send_request(*token(GOOD, version))
        assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE
    for first in ((), (plain_handshake(1),)):
        with connect(cluster) as raw:
            for requested in first:
                raw.send_request(*requested)
            codec = CODECS[apis.METADATA.key].encode_request
            raw.socket.sendall(
                framing.encode_request_frame(
                    apis.METADATA, 9, 1, codec, metadata.MetadataRequest(None)
                )
            )
            raw.expect_end()


@in_thread
def test_authentication_failures_use_the_error_codes_of_kafka(cluster: Cluster) -> None:
    for wrong, text in (
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0ghost\0wrong", "Authentication failed: Invalid username or password"),
        (b"x", "due to invalid credentials with SASL mechanism PLAIN"),
    ):
        with connect(cluster) as raw:
            raw.send_request(*plain_handshake(1))
            response = raw.send_request(*token(wrong))
            assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
            assert text in response.error_message
            raw.expect_end()


GARBAGE = (
    b"GET / HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(100),
    struct.pack(">i", -1),
    struct.pack(">i", 524_289),
    struct.pack(">i", 6) + b"\xff" * 6,
    struct.pack(">i", 2) + b"\x00\x11",
    struct.pack(">i", 14) + struct.pack(">hhihi", 17, 1, 1, -1, 1 << 30),
)


@pytest.mark.parametrize("listener", ["SASL_PLAINTEXT", "SASL_SSL"])
async def test_garbage_before_authentication_closes_the_connection(
    cluster: Cluster, listener: str
) -> None:
    def talk(garbage: bytes) -> None:
        with connect(cluster, listener) as raw:
            raw.socket.sendall(garbage)
            raw.socket.shutdown(socket.SHUT_WR)
            while True:
                try:
                    if not raw.socket.recv(1_000):  # a TLS alert
                        return
                except ConnectionResetError:
                    return

    for garbage in GARBAGE:
        await asyncio.to_thread(talk, garbage)
        await until(lambda: not cluster.broker.server.unauthenticated_count)


async def test_unauthenticated_connections_are_limited_in_time_and_number(tmp_path: Path) -> None:
    """A connection that does not authenticate in time is closed, even during a TLS handshake. Above
    the maximum count, each new connection replaces the oldest.
    """
    listeners = ("SASL_PLAINTEXT", "SASL_SSL", "SSL")
    limits = {"authentication_timeout_ms": 400, "unauthenticated_connections_max": 3}
    async with secure_cluster(tmp_path / "time", *listeners, security=limits) as cluster:
        held = [connect(cluster, listener) for listener in listeners]
        for raw in held:
            raw.socket.sendall(b"\x16")
        for raw in held:
            await asyncio.to_thread(raw.expect_end)
            raw.socket.close()
        await until(lambda: not cluster.broker.server.unauthenticated_count)
    limits["authentication_timeout_ms"] = 600_000
    async with secure_cluster(tmp_path / "number", *listeners, security=limits) as cluster:
        server = cluster.broker.server
        held = [connect(cluster) for _ in range(3)]
        await until(lambda: server.unauthenticated_count == 3)
        held.append(connect(cluster))
        await asyncio.to_thread(held[0].expect_end)
        assert server.unauthenticated_count == 3
        for raw in held:
            raw.socket.close()


async def test_sessions_expire_unless_clients_reauthenticate(
    tmp_path: Path, files: SecureFiles
) -> None:
    limits = {"connections_max_reauth_ms": 8_000}
    async with secure_cluster(
        tmp_path, "SASL_PLAINTEXT", "SASL_SSL", security=limits, files=files
    ) as cluster:
        await create_user(cluster, USER, PASSWORD)
        await create_user(cluster, "bob", "b")

        def talk() -> None:
            requested = (apis.METADATA, 9, metadata.MetadataRequest(None))
            with connect(cluster) as raw, connect(cluster) as changing, connect(cluster) as idle:
                for one in (raw, changing, idle):
                    one.send_request(*plain_handshake(1))
                    assert one.send_request(*token(GOOD)).session_lifetime_ms == 8_000
                assert raw.send_request(*plain_handshake(1)).error_code == 0
                assert raw.send_request(*token(GOOD)).session_lifetime_ms == 8_000
                assert raw.send_request(*requested).brokers
                changing.send_request(*plain_handshake(1))
                refused = changing.send_request(*token(b"\0bob\0b"))
                assert refused.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
                assert "Cannot change principals" in refused.error_message
                changing.expect_end()
                end = time.monotonic() + 8.1
                while time.monotonic() < end:  # the idle connection's session has expired by then
                    time.sleep(end - time.monotonic())
                codec = CODECS[apis.METADATA.key].encode_request
                idle.socket.sendall(
                    framing.encode_request_frame(apis.METADATA, 9, 1, codec, requested[2])
                )
                idle.expect_end()

        await asyncio.to_thread(talk)


# --- certificates ---------------------------------------------------------------------------------

RULES = "RULE:^CN=(.*),OU=Services$/svc-$1/L, RULE:^CN=([a-z]+)$/$1/"


def certificate(path: Path) -> dict[str, str]:
    return {"ssl.certificate.location": str(path), "ssl.key.location": str(path)}


async def test_client_certificates_map_to_principals(tmp_path: Path, files: SecureFiles) -> None:
    settings = {"ssl_client_auth": "required", "ssl_principal_mapping_rules": RULES}
    async with secure_cluster(tmp_path, "SSL", security=settings, files=files) as cluster:
        base = properties(cluster, "SSL", files)
        for path, user in (
            (files.client("Orders", unit="Services"), "User:svc-orders"),
            (files.client("alice"), "User:alice"),
        ):
            producer = await asyncio.to_thread(produced, base | certificate(path))
            assert user in principals(cluster)
            assert len(producer) == 0
        other = Authority.make("another CA")
        access = cluster.broker.access
        assert not access.failed_count
        for shown in (
            certificate(files.client("UPPER")),
            certificate(files.client("eve", authority=other)),
            {},
        ):
            before, admin = access.failed_count, AdminClient(base | shown)
            await until(lambda before=before: access.failed_count > before)
            with pytest.raises(KafkaException):
                await asyncio.to_thread(admin.list_topics, timeout=2)
        with connect(cluster, "SSL") as raw:
            before = access.failed_count
            raw.socket.sendall(b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: access.failed_count > before)


async def test_clients_verify_the_broker_certificate(tmp_path: Path, files: SecureFiles) -> None:
    async with secure_cluster(tmp_path, "SSL", files=files) as cluster:
        files.truststore.write_bytes(Authority.make("another CA").pem)
        config = properties(cluster, "SSL", files)
        assert "certificate" in await asyncio.to_thread(refusal, config)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
async def test_old_tls_versions_are_refused(tmp_path: Path, files: SecureFiles) -> None:
    async with secure_cluster(tmp_path, "SSL", files=files) as cluster:

        def version(highest: ssl.TLSVersion) -> str | None:
            context = ssl.create_default_context(cafile=str(files.truststore))
            context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
            context.maximum_version = highest
            context.set_ciphers("ALL:@SECLEVEL=0")
            with (
                connect(cluster, "SSL") as raw,
                context.wrap_socket(raw.socket, server_hostname="localhost") as wrapped,
            ):
                return wrapped.version()

        assert await asyncio.to_thread(version, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
        assert await asyncio.to_thread(version, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await asyncio.to_thread(version, ssl.TLSVersion.TLSv1_1)


async def test_certificate_files_are_reloaded_when_they_change(
    tmp_path: Path, files: SecureFiles
) -> None:
    """A broken file is ignored; a valid one applies to new connections."""
    async with secure_cluster(tmp_path, "SSL", files=files) as cluster:
        watched = cluster.broker.access.files

        def serial() -> str:
            context = ssl.create_default_context(cafile=str(files.truststore))
            with (
                connect(cluster, "SSL") as raw,
                context.wrap_socket(raw.socket, server_hostname="localhost") as wrapped,
            ):
                return str((wrapped.getpeercert() or {})["serialNumber"])

        first = await asyncio.to_thread(serial)
        files.keystore.write_bytes(b"-----BEGIN CERTIFICATE-----\nbroken\n")
        await until(lambda: watched.refused_count == 1)
        assert await asyncio.to_thread(serial) == first
        files.renew_keystore()
        await until(lambda: watched.reload_count == 1)
        assert await asyncio.to_thread(serial) != first
        os.utime(files.keystore)
        await watched.refresh()
        assert (watched.reload_count, watched.refused_count) == (1, 1)


# --- tokens ---------------------------------------------------------------------------------------


def with_token(cluster: Cluster, files: SecureFiles, given: str) -> dict[str, Any]:
    def refresh(_config: str) -> tuple[str, float]:
        return given, time.time() + 60

    config = properties(cluster, "SASL_SSL", files, sasl_mechanism="OAUTHBEARER")
    return config | {"oauth_cb": refresh}


async def test_oauth_tokens_are_accepted_across_key_rotation(
    tmp_path: Path, files: SecureFiles
) -> None:
    async with TokenIssuer() as issuer:
        settings = {
            "sasl_enabled_mechanisms": ("OAUTHBEARER", "SCRAM-SHA-512"),
            "sasl_jwks_endpoint_url": f"http://127.0.0.1:{issuer.port}/jwks",
            "sasl_oauth_expected_audience": ("kafka",),
            "sasl_oauth_expected_issuer": "us",
        }
        async with secure_cluster(tmp_path, "SASL_SSL", security=settings, files=files) as cluster:
            keys = cluster.broker.access.listener("SASL_SSL").keys
            assert keys is not None
            keys._unknown_interval_s = 0.0

            async def use(given: str) -> Producer:
                return await asyncio.to_thread(produced, with_token(cluster, files, given))

            producer = await use(issuer.token())
            assert "User:carol" in principals(cluster)
            assert len(producer) == 0
            asked_count = issuer.request_count
            await use(issuer.token())
            assert issuer.request_count == asked_count, "keys are remembered"
            issuer.keys = {"two": rsa.generate_private_key(public_exponent=65_537, key_size=2_048)}
            await use(issuer.token("two"))
            assert issuer.request_count == asked_count + 1
            now = int(time.time())
            for wrong in (
                issuer.token("one"),
                issuer.token("two", exp=now - 60),
                issuer.token("two", aud="other"),
                issuer.token("two", iss="them"),
            ):
                config = with_token(cluster, files, wrong)
                assert "invalid_token" in await asyncio.to_thread(refusal, config)


async def test_oauth_keys_can_come_from_a_file(tmp_path: Path, files: SecureFiles) -> None:
    issuer = TokenIssuer()
    path = tmp_path / "jwks.json"
    path.write_bytes(issuer.document())
    settings = {
        "sasl_enabled_mechanisms": ("OAUTHBEARER", "SCRAM-SHA-512"),
        "sasl_jwks_endpoint_url": f"file:{path}",
        "sasl_oauth_expected_audience": ("kafka",),
    }
    async with secure_cluster(tmp_path, "SASL_SSL", security=settings, files=files) as cluster:
        config = with_token(cluster, files, issuer.token())
        await asyncio.to_thread(produced, config)


async def test_python_clients_authenticate_with_oauth_tokens(
    tmp_path: Path, files: SecureFiles
) -> None:
    issuer = TokenIssuer()
    path = tmp_path / "jwks.json"
    path.write_bytes(issuer.document())
    given = issuer.token()

    class AioToken(AioTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return given

    class Token(AbstractTokenProvider):  # type: ignore[misc]
        def token(self) -> str:
            return given

    security = {
        "sasl_enabled_mechanisms": ("OAUTHBEARER", "SCRAM-SHA-512"),
        "sasl_jwks_endpoint_url": f"file:{path}",
        "sasl_oauth_expected_audience": ("kafka",),
    }
    async with secure_cluster(tmp_path, "SASL_SSL", security=security, files=files) as cluster:
        settings: dict[str, Any] = {
            "bootstrap_servers": address(cluster, "SASL_SSL"),
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "OAUTHBEARER",
        }
        context = ssl.create_default_context(cafile=str(files.truststore))
        aio = AIOKafkaProducer(
            **settings, ssl_context=context, sasl_oauth_token_provider=AioToken()
        )
        await aio.start()
        try:
            await aio.send_and_wait("t", b"aiokafka")
            assert "User:carol" in principals(cluster)
        finally:
            await aio.stop()

        def kafka_python() -> None:
            producer = KafkaProducer(
                **settings, ssl_cafile=str(files.truststore), sasl_oauth_token_provider=Token()
            )
            producer.send("t", b"kafka-python").get(TIMEOUT_S)
            producer.close()

        await asyncio.to_thread(kafka_python)


# --- between brokers ------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
async def test_transactions_and_moves_work_between_sasl_brokers(
    tmp_path: Path, files: SecureFiles, mechanism: str
) -> None:
    """Transaction markers go to other brokers. Brokers authenticate to each other, with sessions
    that expire after one second.
    """
    settings = {
        "sasl_mechanism_inter_broker_protocol": mechanism,
        "connections_max_reauth_ms": 1_000,
    }
    async with secure_cluster(
        tmp_path, "SASL_SSL", brokers=2, security=settings, files=files
    ) as cluster:
        await create_user(cluster, USER, PASSWORD)
        await _check_transactions(cluster, sasl_properties(cluster, files, "SCRAM-SHA-256"))


async def test_transactions_and_moves_work_between_brokers_with_certificates(
    tmp_path: Path, files: SecureFiles
) -> None:
    """Brokers without a SASL user use the principal of their certificate."""
    settings = {
        "ssl_client_auth": "required",
        "authorizer": "StandardAuthorizer",
        "super_users": "User:CN=broker;User:CN=alice",
    }
    async with secure_cluster(
        tmp_path, "SSL", brokers=2, security=settings, files=files
    ) as cluster:
        client = certificate(files.client("alice"))
        await _check_transactions(cluster, properties(cluster, "SSL", files) | client)


async def _check_transactions(cluster: Cluster, config: dict[str, Any]) -> None:
    """Commit transactions over partitions of both brokers, then move all partitions to one."""

    def transact(number: int) -> None:
        producer = Producer(config | {"transactional.id": f"id-{number}", "linger.ms": 0})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for partition in range(4):
            producer.produce("t", b"x", partition=partition)
        producer.commit_transaction(TIMEOUT_S)

    def create() -> None:
        admin = AdminClient(config)
        admin.create_topics([NewTopic("t", 4)])["t"].result(TIMEOUT_S)

    def read(count: int) -> int:
        consumer = Consumer(config | {"group.id": "g", "isolation.level": "read_committed"})
        consumer.assign([TopicPartition("t", index, 0) for index in range(4)])
        try:
            return len(read_records(consumer, count))
        finally:
            consumer.close()

    await asyncio.to_thread(create)
    for number in range(3):
        await asyncio.to_thread(transact, number)
    assert await asyncio.to_thread(read, 12) == 12
    await cluster.stop_broker(1)
    await asyncio.to_thread(transact, 9)
    assert await asyncio.to_thread(read, 16) == 16
