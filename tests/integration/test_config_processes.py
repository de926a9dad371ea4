"""Configuration of real broker processes: equivalent flags, environment variables and files,
several named listeners, and detection of unreachable advertised addresses.
"""

import asyncio
import json
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, ConfigResource

from penstock.base.listeners import Listener
from penstock.broker import self_check
from penstock.broker.self_check import UnreachableAsAdvertised
from penstock.objectstore.directory import DirectoryStore
from tests.support.broker_process import broker_process
from tests.support.cluster import Cluster
from tests.support.conversation import alter_configs
from tests.support.stream_server import StreamServer
from tests.support.waiting import PATIENCE_S, until

TIMEOUT_S = PATIENCE_S
COMMAND = (sys.executable, "-P", "-m", "penstock.deploy.cli", "broker")
SETTINGS = {
    "wal.bulk.max.bytes": "2MiB",
    "num.partitions": "3",
    "fetch.max.bytes": "1MiB",
    "compaction.interval.ms": "9s",
}
EXPECTED = {
    "wal.bulk.max.bytes": "2097152",
    "num.partitions": "3",
    "fetch.max.bytes": "1048576",
    "compaction.interval.ms": "9000",
}


async def ready_port(broker: asyncio.subprocess.Process) -> int:
    assert broker.stderr is not None
    seen: list[str] = []
    async with asyncio.timeout(TIMEOUT_S):
        while line := (await broker.stderr.readline()).decode():
            seen.append(line)
            if '"broker_started"' in line:
                return int(json.loads(line)["port"])
    raise AssertionError("".join(seen))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Start a controller and one broker on a directory store, so that other processes can join."""
    async with Cluster(tmp_path, store=DirectoryStore(str(tmp_path / "store"))) as running:
        yield running


def given(node_id: int, directory: Path, controller: str) -> dict[str, str]:
    needed = {
        "store": f"file:{directory / 'store'}", "node.id": str(node_id), "listeners": "127.0.0.1:0",
        "controller.quorum.bootstrap.servers": controller,
    }  # fmt: skip
    return needed | SETTINGS


async def test_flags_environment_variables_and_file_configure_a_broker_equally(
    cluster: Cluster, tmp_path: Path
) -> None:
    assert cluster.controller is not None
    environments: list[dict[str, str]] = []
    commands: list[tuple[str, ...]] = []
    for number, way in enumerate(("flags", "variables", "file"), start=5):
        texts = given(number, tmp_path, cluster.controller.address)
        flags = tuple(
            part for name, text in texts.items() for part in ("--" + name.replace(".", "-"), text)
        )
        variables = {
            "PENSTOCK_" + name.replace(".", "_").upper(): text for name, text in texts.items()
        }
        file = tmp_path / "broker.toml"
        if way == "file":
            file.write_text("\n".join(f'{name} = "{text}"' for name, text in texts.items()))
        commands.append({"flags": flags, "variables": (), "file": ("--config", str(file))}[way])
        environments.append(variables if way == "variables" else {})
    processes = [
        await asyncio.create_subprocess_exec(
            *COMMAND, *command, env=os.environ | environment, stderr=asyncio.subprocess.PIPE
        )
        for command, environment in zip(commands, environments, strict=True)
    ]
    try:
        ports = [await ready_port(process) for process in processes]
        for node_id, port in enumerate(ports, start=5):
            assert await asyncio.to_thread(described, port, node_id) == EXPECTED
    finally:
        for process in processes:
            process.terminate()
        codes = [(await process.communicate(), process.returncode)[1] for process in processes]
    assert codes == [0, 0, 0]


def described(port: int, node_id: int) -> dict[str, str]:
    admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
    resource = ConfigResource(ConfigResource.Type.BROKER, str(node_id))
    found = admin.describe_configs([resource], broker=node_id)[resource].result(TIMEOUT_S)
    assert [found[name].is_read_only for name in ("node.id", "max.connections")] == [True, False]
    assert (
        found["node.id"].value,
        found["max.connections"].value,
        found["max.connections"].is_default,
    ) == (str(node_id), "10000", True)
    return {name: found[name].value for name in EXPECTED}


async def test_log_level_changes_while_a_broker_runs(cluster: Cluster, tmp_path: Path) -> None:
    """A level change is logged by a module of `penstock.broker`."""
    assert cluster.controller is not None
    flags = [
        part
        for name, text in given(5, tmp_path, cluster.controller.address).items()
        for part in ("--" + name.replace(".", "-"), text)
    ]
    broker = await asyncio.create_subprocess_exec(*COMMAND, *flags, stderr=asyncio.subprocess.PIPE)
    try:
        address = f"127.0.0.1:{await ready_port(broker)}"
        for changes in (
            {"penstock.broker": "ERROR"},
            {"penstock.stream": "DEBUG"},
            {"penstock.broker.handlers": "DEBUG"},
            {"penstock.broker.handlers": None},
            {"penstock.broker": None},
        ):
            response = await asyncio.to_thread(alter_configs, address, (8, "5"), changes)
            assert response == (0, None)
    finally:
        broker.terminate()
        _, stderr = await broker.communicate()
    lines = [json.loads(line) for line in stderr.splitlines()]
    changed = [line for line in lines if line["event"] == "log_level_changed"]
    assert [(line["logger"], line["log_level"]) for line in changed] == [
        ("penstock.broker.handlers", "DEBUG"),
        ("penstock.broker", "INFO"),
    ]


@pytest.mark.parametrize(
    ("arguments", "environment", "told"),
    [
        (
            ("--num-partition", "1"),
            {},
            (
                "error: command line: unknown setting '--num-partition'; did you mean"
                " --num-partitions?"
            ),
        ),
        (
            (),
            {"PENSTOCK_NUM_PARTITION": "1"},
            "error: environment: unknown setting 'PENSTOCK_NUM_PARTITION'; did you mean",
        ),
        (
            ("--set", "num.partitions=many"),
            {},
            "error: --set num.partitions: num.partitions='many' is not allowed: a whole number",
        ),
    ],
)
def test_invalid_setting_exits_with_status_2_and_one_line(
    arguments: tuple[str, ...], environment: dict[str, str], told: str
) -> None:
    command = (*COMMAND, "--store", "file:/nowhere", *arguments)
    done = subprocess.run(
        command,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(told)
    assert done.stderr.count("\n") == 1


async def test_clients_get_the_advertised_addresses_of_the_listener_that_they_use(
    tmp_path: Path,
) -> None:
    listeners: dict[str, Any] = {
        "listeners": ("PLAINTEXT://127.0.0.1:0", "EXTERNAL://127.0.0.1:0"),
        "advertised_listeners": ("EXTERNAL://localhost:{port}",),
    }
    async with Cluster(tmp_path, brokers=2, **listeners) as cluster:
        inner = {
            node_id: f"127.0.0.1:{broker.server.ports['PLAINTEXT']}"
            for node_id, broker in cluster.brokers.items()
        }
        outer = {
            node_id: f"localhost:{broker.server.ports['EXTERNAL']}"
            for node_id, broker in cluster.brokers.items()
        }
        for addresses in (inner, outer):
            assert await asyncio.to_thread(brokers_as_told, addresses[1]) == addresses
        assert await asyncio.to_thread(produced, outer[1]) == 10


def brokers_as_told(bootstrap: str) -> dict[int, str]:
    found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=TIMEOUT_S).brokers
    return {node_id: f"{broker.host}:{broker.port}" for node_id, broker in found.items()}


def produced(bootstrap: str) -> int:
    """Return the number of acknowledged records through this listener. The other broker leads some
    of the partitions.
    """
    acknowledged: list[object] = []
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(10):
        producer.produce(
            f"t{number}",
            b"x",
            on_delivery=lambda error, message: (
                acknowledged.append(message) if error is None else None
            ),
        )
    assert producer.flush(TIMEOUT_S) == 0
    return len(acknowledged)


async def test_broker_with_an_unreachable_advertised_address_warns_and_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(self_check, "CHECK_S", 0.3)
    with structlog.testing.capture_logs() as logs:
        async with Cluster(tmp_path, advertised_listeners=("127.0.0.1:1",)) as cluster:
            await until(
                lambda: any(line["event"] == "advertised_address_unreachable" for line in logs)
            )
            assert cluster.broker.can_write()
    reported = next(
        line["reason"] for line in logs if line["event"] == "advertised_address_unreachable"
    )
    assert (
        "listener PLAINTEXT advertises 127.0.0.1:1, where this broker cannot reach itself: "
        in reported
    )
    assert "Set advertised.listeners to PLAINTEXT://host:port as clients see it" in reported


async def test_strict_broker_does_not_start_with_an_unreachable_advertised_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path, brokers=0) as cluster:
        assert (
            await cluster.start_broker(
                1, advertised_check="strict", advertised_listeners=("localhost:{port}",)
            )
        ).can_write()
        monkeypatch.setattr(self_check, "CHECK_S", 0.3)
        with pytest.raises(UnreachableAsAdvertised):
            await cluster.start_broker(
                2, advertised_check="strict", advertised_listeners=("127.0.0.1:1",)
            )


async def test_strict_broker_does_not_start_if_no_kafka_server_is_at_its_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(self_check, "CHECK_S", 0.1)
    monkeypatch.setattr(self_check, "_ATTEMPT_S", PATIENCE_S)

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)

    async def speak_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1_000)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    for response, message in (
        (hang_up, "closed the connection without a response"),
        (speak_http, "does not speak the Kafka protocol"),
    ):
        server = StreamServer(response)
        try:
            with pytest.raises(UnreachableAsAdvertised, match=message):
                await self_check.check([Listener("A", "127.0.0.1", server.open())])
        finally:
            server.close()


async def test_broker_with_an_unauthenticated_public_listener_needs_explicit_permission(
    cluster: Cluster, tmp_path: Path
) -> None:
    """127.1 resolves to 127.0.0.1, but the broker treats it as a host name, not as loopback."""
    assert cluster.controller is not None
    texts = given(5, tmp_path, cluster.controller.address) | {"listeners": "127.1:0"}
    flags = [part for name, text in texts.items() for part in (f"--{name.replace('.', '-')}", text)]
    refused = await asyncio.create_subprocess_exec(*COMMAND, *flags, stderr=asyncio.subprocess.PIPE)
    _, stderr = await refused.communicate()
    assert refused.returncode == 2
    assert b"the listener PLAINTEXT://127.1:0 is open to other machines" in stderr
    broker = await asyncio.create_subprocess_exec(
        *COMMAND, *flags, "--allow-insecure", stderr=asyncio.subprocess.PIPE
    )
    assert broker.stderr is not None
    seen: list[str] = []
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while '"broker_started"' not in "".join(seen):
                seen.append((await broker.stderr.readline()).decode())
    finally:
        broker.terminate()
        await broker.communicate()
    warnings = [json.loads(line) for line in seen if '"listener_insecure"' in line]
    assert [line["listener"] for line in warnings] == ["PLAINTEXT://127.1:0"]


async def test_secure_broker_without_tls_to_controllers_needs_explicit_permission(
    cluster: Cluster, tmp_path: Path
) -> None:
    """127.1 resolves to 127.0.0.1, but the broker treats it as a host name, not as loopback."""
    assert cluster.controller is not None
    users = tmp_path / "users"
    users.write_text("broker:a-password\n")
    settings = {
        "listeners": "SASL_PLAINTEXT://127.1:0",
        "sasl.users.file": str(users),
        "sasl.inter.broker.username": "broker",
        "controller.quorum.bootstrap.servers": f"{cluster.controller.address},c1.invalid:9093",
    }
    flags = [
        part
        for name, text in (given(5, tmp_path, cluster.controller.address) | settings).items()
        for part in (f"--{name.replace('.', '-')}", text)
    ]
    refused = await asyncio.create_subprocess_exec(*COMMAND, *flags, stderr=asyncio.subprocess.PIPE)
    _, stderr = await refused.communicate()
    assert refused.returncode == 2
    assert b"the controllers c1.invalid:9093 are not on loopback" in stderr
    allowed = {"allow.insecure": "true"} | settings
    async with broker_process(cluster, f"file:{tmp_path / 'store'}", allowed) as broker:
        (warning,) = broker.events("listener_insecure", "controllers_insecure")
        assert warning["event"] == "controllers_insecure"
        assert warning["controllers"] == ["c1.invalid:9093"]


async def test_nodes_disable_core_dumps(cluster: Cluster, tmp_path: Path) -> None:
    """The soft limit becomes 1 byte; the hard limit is unchanged, so operators can raise it."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    expected = (0 if hard == 0 else 1, hard)
    controller = await asyncio.create_subprocess_exec(
        *(*COMMAND[:-1], "controller", "--store", f"file:{tmp_path / 'other'}"),
        *("--metadata-log-dir", str(tmp_path / "metadata")),
        stderr=asyncio.subprocess.PIPE,
    )
    assert controller.stderr is not None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while b'"controller_started"' not in (line := await controller.stderr.readline()):
                assert line, "the controller has ended"
        assert resource.prlimit(controller.pid, resource.RLIMIT_CORE) == expected
    finally:
        controller.terminate()
        await controller.communicate()
    async with broker_process(cluster, f"file:{tmp_path / 'store'}", {}) as broker:
        assert resource.prlimit(broker.pid, resource.RLIMIT_CORE) == expected
