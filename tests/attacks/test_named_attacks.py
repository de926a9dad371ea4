"""Attacks known from other brokers, one test per CVE class. Forged tokens and impersonation by
authzid are in `test_forged_logins`.
"""

import asyncio
import contextlib
import os
import signal
import tracemalloc
import urllib.request
from pathlib import Path

import pytest

from penstock.base.acls import STANDARD_AUTHORIZER, Operation, PatternType, Permission, ResourceType
from penstock.base.scram import ScramMechanism
from penstock.broker.errors import ErrorCode
from penstock.broker.network.connection import RECEIVE_BYTES
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.messages import CreateAcls, CreateTopics, DeleteAcls, NewTopic
from penstock.controller.metadata.acls import AclFilter
from penstock.controller.metadata.configs import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE
from penstock.controller.metadata.records import AclEntry
from penstock.objectstore.directory import DirectoryStore
from penstock.protocol import apis
from penstock.protocol.batch.compression import Compression, compress
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.gen import (
    create_topics,
    describe_configs,
    get_telemetry_subscriptions,
    push_telemetry,
)
from penstock.protocol.sasl.mechanisms import plain_message
from penstock.protocol.sasl.scram import ScramClient
from tests.support.attacker import Attacker
from tests.support.broker_process import broker_process
from tests.support.cluster import Cluster
from tests.support.conversation import alter_configs
from tests.support.ports import free_port
from tests.support.secure_cluster import (
    BROKER_PASSWORD,
    BROKER_USER,
    SecureFiles,
    create_user,
    secure_cluster,
)
from tests.support.waiting import PATIENCE_S, until

LOADED = (
    "file:/etc/passwd",
    "/tmp/evil.py",
    "http://127.0.0.1:1/evil",
    "com.sun.security.auth.module.JndiLoginModule",
    "os.system",
    "ldap://127.0.0.1:1/x",
)
"""Configs that made other brokers load code or read files when a client set them."""

STRANGERS = 50
"""Unauthenticated connections."""

ALLOWED_BYTES = 524_288
"""The default of `sasl.server.max.receive.size`."""

DECLARED_BYTES = 100_000_000
"""The frame size that an unauthenticated client declares. It sends 100 bytes of it."""

TRACED_BYTES_MAX = 8 << 20
"""What the broker and the test allocate besides the frames."""

BATCH = encode_batch([Record(0, 1_700_000_000_000, b"k", b"v")])


@pytest.mark.parametrize("key", [71, 72], ids=["GetTelemetrySubscriptions", "PushTelemetry"])
async def test_telemetry_apis_are_disabled_without_a_receiver(tmp_path: Path, key: int) -> None:
    """CVE class: brokers that decompress or parse metrics pushed by clients (KIP-714)."""
    async with Cluster(tmp_path) as cluster, Attacker.connected(cluster.broker.port) as attacker:
        frame = key.to_bytes(2, "big") + bytes(2) + (1).to_bytes(4, "big") + b"\xff\xff\x00"
        attacker.send(len(frame).to_bytes(4, "big") + frame + bytes(1_000))
        assert await attacker.frame() is None


@pytest.mark.parametrize("compression", [each for each in Compression if each])
async def test_decompression_bombs_in_pushed_metrics_use_little_memory(
    tmp_path: Path, compression: Compression
) -> None:
    """CVE class: as above. 64 MiB of zeros, compressed."""
    bomb = compress(compression, bytes(64 << 20))
    receiver = "http://127.0.0.1:1"
    async with (
        Cluster(
            tmp_path, client_metrics_otlp_endpoint=receiver, telemetry_max_bytes=16 << 20
        ) as cluster,
        Attacker.connected(cluster.broker.port) as attacker,
    ):
        requested = get_telemetry_subscriptions.GetTelemetrySubscriptionsRequest()
        subscription = await attacker.send_request(apis.GET_TELEMETRY_SUBSCRIPTIONS, 0, requested)
        request = push_telemetry.PushTelemetryRequest(
            subscription.client_instance_id,
            subscription.subscription_id,
            compression_type=compression,
            metrics=bomb,
        )
        tracemalloc.start()
        try:
            response = await attacker.send_request(apis.PUSH_TELEMETRY, 0, request)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert response.error_code == ErrorCode.INVALID_RECORD
        assert peak_bytes <= TRACED_BYTES_MAX + 8 * len(bomb)
        assert cluster.broker.client_metrics is not None
        assert not cluster.broker.client_metrics.sender.counts.waiting_bytes


async def test_no_client_settable_config_loads_code_or_files(tmp_path: Path) -> None:
    """CVE class: JNDI and class loading by remotely altered configs (CVE-2023-25194 and later).
    Tries every alterable config.
    """
    async with Cluster(tmp_path) as cluster, Attacker.connected(cluster.broker.port) as attacker:
        await cluster.broker.client.create_topics(CreateTopics(topics=[NewTopic(name="t")]))
        tried = 0
        for resource in ((TOPIC_RESOURCE, "t"), (BROKER_RESOURCE, "0"), (GROUP_RESOURCE, "g")):
            requested = describe_configs.DescribeConfigsResource(*resource, None)
            request = describe_configs.DescribeConfigsRequest([requested])
            (found,) = (await attacker.send_request(apis.DESCRIBE_CONFIGS, 4, request)).results
            names = [item.name for item in found.configs if not item.read_only]
            assert names, resource
            for name in names:
                for value in LOADED:
                    code, reported = await asyncio.to_thread(
                        alter_configs, cluster.bootstrap, resource, {name: value}
                    )
                    assert code in {ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST}, (
                        f"{name}={value} is accepted: {reported}"
                    )
                    tried += 1
    assert tried > 200


async def test_topic_names_cannot_escape_the_store_directory(tmp_path: Path) -> None:
    """CVE class: path traversal. The store is a directory, and no file appears outside of it."""
    store = tmp_path / "inner" / "store"
    async with (
        Cluster(tmp_path / "inner", store=DirectoryStore(str(store))) as cluster,
        Attacker.connected(cluster.broker.port) as attacker,
    ):
        for name in ("..", ".", "../../etc/passwd", "a/b", "/etc/passwd", "a\\b", "a\0b"):
            topic = create_topics.CreatableTopic(name, 1, 1)
            request = create_topics.CreateTopicsRequest([topic], timeout_ms=PATIENCE_S * 1_000)
            (result,) = (await attacker.send_request(apis.CREATE_TOPICS, 7, request)).topics
            assert result.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION, name
            assert (await attacker.produce(name, BATCH)).error_code, name
    assert os.listdir(tmp_path) == ["inner"]
    files = [name for _, _, names in os.walk(store) for name in names]
    assert files
    assert not [name for name in files if "passwd" in name]


def acl() -> AclEntry:
    return AclEntry(
        ResourceType.TOPIC,
        PatternType.LITERAL,
        "t",
        "User:ANONYMOUS",
        "*",
        Operation.WRITE,
        Permission.ALLOW,
    )


async def test_removed_acls_stay_removed_after_restarts(tmp_path: Path) -> None:
    """CVE class: ACLs that reappear when the log is read again. An open connection loses the right
    at once, and it stays removed when the controller restarts from its snapshot and log, for old
    and new brokers.
    """
    security = SecurityConfig(authorizer=STANDARD_AUTHORIZER)
    settings = {"snapshot_records": 10}
    async with Cluster(tmp_path, security=security, controller_settings=settings) as cluster:
        client = cluster.broker.client
        await client.create_topics(CreateTopics(topics=[NewTopic(name="t")]))
        await cluster.until_served("t")
        async with Attacker.connected(cluster.broker.port) as user:

            async def may_write() -> bool:
                code = (await user.produce("t", BATCH)).error_code
                assert code in {ErrorCode.NONE, ErrorCode.TOPIC_AUTHORIZATION_FAILED}
                return code == ErrorCode.NONE

            for _ in range(3):
                await client.create_acls(CreateAcls(acls=[acl()]))
                assert await may_write()
                await client.delete_acls(DeleteAcls(filters=[AclFilter()]))
                assert not await may_write()
        await cluster.stop_controller()
        await cluster.start_controller()
        await cluster.start_broker(1)
        for broker in cluster.brokers.values():
            assert not list(broker.image.acls), broker


@pytest.mark.parametrize("receive_bytes_max", [ALLOWED_BYTES, DECLARED_BYTES])
async def test_unauthenticated_clients_cannot_make_the_broker_allocate_memory(
    tmp_path: Path, receive_bytes_max: int
) -> None:
    """CVE class: allocation of the size that an unauthenticated client declares. Frames above
    `sasl.server.max.receive.size` close the connection. For others, the broker allocates only what
    has arrived, even if that limit is high.
    """
    security = {
        "ssl_keystore_location": "",
        "ssl_truststore_location": "",
        "authentication_timeout_ms": 600_000,
        "sasl_receive_bytes_max": receive_bytes_max,
    }
    async with (
        secure_cluster(tmp_path, "SASL_PLAINTEXT", security=security) as cluster,
        contextlib.AsyncExitStack() as opened,
    ):
        server = cluster.broker.server
        tracemalloc.start()
        opened.callback(tracemalloc.stop)
        held = []
        for number in range(STRANGERS):
            declared = DECLARED_BYTES if number % 2 else ALLOWED_BYTES
            stranger = await opened.enter_async_context(Attacker.connected(server.port))
            stranger.send(declared.to_bytes(4, "big") + bytes(100))
            if declared > receive_bytes_max:
                assert await stranger.frame() is None
            else:
                held.append(stranger)
        await until(lambda: server.unauthenticated_count == len(held))
        await until(lambda: server.memory.buffered_bytes >= len(held) * 100)
        assert server.memory.buffered_bytes <= len(held) * RECEIVE_BYTES
        _, peak_bytes = tracemalloc.get_traced_memory()
        assert peak_bytes <= STRANGERS * RECEIVE_BYTES + TRACED_BYTES_MAX
        user = await opened.enter_async_context(Attacker.connected(server.port))
        response = await user.log_in("PLAIN", plain_message(BROKER_USER, BROKER_PASSWORD))
        assert response.error_code == ErrorCode.NONE
        assert server.unauthenticated_count == len(held)


@pytest.mark.parametrize("mechanism", ScramMechanism)
async def test_scram_messages_cannot_be_replayed(tmp_path: Path, mechanism: ScramMechanism) -> None:
    """CVE class: SCRAM without a check of the nonce or of the proof (CVE-2024-56128)."""
    plain = {"ssl_keystore_location": "", "ssl_truststore_location": ""}
    async with secure_cluster(tmp_path, "SASL_PLAINTEXT", security=plain) as cluster:
        await create_user(cluster, "alice", "secret", mechanism)

        async def log_in(final: bytes | None = None, password: str = "secret") -> tuple[int, bytes]:
            """Return the error code and the final SCRAM message of the client."""
            async with Attacker.connected(cluster.broker.port) as user:
                client = ScramClient(mechanism, "alice", password, nonce="chosen")
                response = await user.log_in(mechanism.name.replace("_", "-"), client.first())
                sent = final or client.final(response.auth_bytes)
                return (await user.token(sent)).error_code, sent

        code, recorded = await log_in()
        assert code == ErrorCode.NONE
        assert (await log_in(recorded))[0] == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert (await log_in(password="wrong"))[0] == ErrorCode.SASL_AUTHENTICATION_FAILED
        without_proof = recorded.partition(b",p=")[0]
        for forged in (without_proof, without_proof + b",p=", without_proof + b",p=AAAA"):
            assert (await log_in(forged))[0] == ErrorCode.SASL_AUTHENTICATION_FAILED


async def test_broker_output_contains_no_secrets(tmp_path: Path) -> None:
    """CVE class: credentials in logs, configs, metrics, stack dumps and process titles."""
    secret = "a-secret-of-nobody-else"
    files = SecureFiles(tmp_path / "security")
    files.users.write_text(f"{BROKER_USER}:{BROKER_PASSWORD}\nalice:{secret}\n")
    health = free_port()
    settings = {
        "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "sasl.users.file": str(files.users),
        "sasl.inter.broker.username": BROKER_USER,
        "ssl.key.password": f"{secret}-key",
        "ssl.keystore.location": str(files.keystore),
        "health.listener": f"127.0.0.1:{health}",
        "log.level": "debug",
    }
    store = tmp_path / "store"
    shown: list[str] = []
    async with (
        Cluster(tmp_path, brokers=0, store=DirectoryStore(str(store))) as cluster,
        broker_process(cluster, f"file:{store}", settings) as broker,
        Attacker.connected(broker.port) as user,
    ):
        assert not (await user.log_in("PLAIN", plain_message("alice", secret))).error_code
        requested = describe_configs.DescribeConfigsResource(BROKER_RESOURCE, "7", None)
        request = describe_configs.DescribeConfigsRequest(
            [requested], include_synonyms=True, include_documentation=True
        )
        shown.append(str(await user.send_request(apis.DESCRIBE_CONFIGS, 4, request)))
        for wrong in (secret + "-wrong", secret[:-1]):
            async with Attacker.connected(broker.port) as other:
                await other.log_in("PLAIN", plain_message("alice", wrong))

        def metrics() -> str:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{health}/metrics", timeout=PATIENCE_S
            ) as got:
                return str(got.read())

        shown.append(await asyncio.to_thread(metrics))
        for name in ("cmdline", "comm"):
            path = Path(f"/proc/{broker.pid}/{name}")
            shown.append(await asyncio.to_thread(path.read_text))
        os.kill(broker.pid, signal.SIGQUIT)
        await until(lambda: any("most recent call first" in line for line in broker.lines))
        await until(lambda: len(broker.events("authentication_failed")) == 2)
    shown += broker.lines
    assert "sasl.users.file" in shown[0]
    for text in shown:
        assert secret[:-1] not in text, text
        assert BROKER_PASSWORD not in text, text
