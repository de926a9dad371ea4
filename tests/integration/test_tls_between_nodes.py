"""A cluster of processes whose nodes and commands use mutual TLS."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.deploy.clients.state_file import ProcessState
from penstock.deploy.local.handle import LocalCluster
from penstock.deploy.node import lifeline
from tests.support.certs import Authority, CertFiles, replace
from tests.support.dev_cluster import DevCluster
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, wait_until

BROKER = "penstock-broker"
RECORDS = 20


def toml(files: CertFiles) -> str:
    return "\n".join(f'{name} = "{value}"' for name, value in files.settings.items())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "certs")


@pytest.fixture
def nodes(authority: Authority) -> dict[str, CertFiles]:
    """The certificate files of all brokers and of all controllers."""
    return {
        "broker": authority.make(BROKER),
        "controller": authority.make("penstock-controller"),
    }


@pytest.fixture
def cluster(tmp_path: Path, nodes: Mapping[str, CertFiles]) -> Iterator[LocalCluster]:
    """Start three controllers and two brokers with TLS."""
    config = tmp_path / "penstock.toml"
    config.write_text("\n".join(f"[{role}]\n{toml(files)}" for role, files in nodes.items()))
    store = ["--store", f"file:{tmp_path / 'store'}"]
    size = ["--controllers", "3", "--brokers", "2"]
    with DevCluster([*size, *store, "--config", str(config)]) as cluster:
        yield cluster


class Cli:
    """Runs `penstock` as an operator with this certificate, or without TLS if None."""

    def __init__(self, controllers: str, files: CertFiles | None) -> None:
        self._environment = os.environ | {"PENSTOCK_CONTROLLER": controllers}
        self._environment |= files.environment if files is not None else {}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = (sys.executable, "-P", "-m", "penstock.deploy.cli", *arguments)
        return subprocess.run(
            command,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def leader(self) -> int:
        done = self.run("quorum", "describe", "--json")
        return json.loads(done.stdout)["leader_id"] if done.returncode == 0 else -1


def produce(bootstrap: str, first: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    errors: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            errors.append(error)

    for number in range(first, first + RECORDS):
        producer.produce("t", str(number), on_delivery=delivered)
    assert producer.flush(PATIENCE_S) == 0
    assert not errors


def consume(bootstrap: str, count: int) -> set[int]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["t"])
    found: set[int] = set()

    def read() -> bool:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            found.add(int(message.value() or b""))
        return len(found) >= count

    wait_until(read)
    consumer.close()
    return found


def controller(cluster: LocalCluster, node_id: int) -> ProcessState:
    return next(item for item in cluster.state().of_role("controller") if item.node_id == node_id)


def test_records_moves_and_failovers_work_while_the_ca_is_replaced(
    cluster: LocalCluster, authority: Authority, nodes: Mapping[str, CertFiles], tmp_path: Path
) -> None:
    admin = authority.make("penstock-admin")
    controllers, bootstrap = cluster.state().controller, cluster.bootstrap
    cli = Cli(controllers, admin)
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([NewTopic("t", 1)])["t"].result(PATIENCE_S)
    produce(bootstrap, 0)

    plan = tmp_path / "plan.json"
    for target in (0, 1):
        part = {"topic": "t", "partition": 0, "replicas": [target]}
        plan.write_text(json.dumps({"version": 1, "partitions": [part]}))
        arguments = ("--reassignment-json-file", str(plan), "--bootstrap", bootstrap)
        assert cli.run("reassign", "execute", *arguments).returncode == 0
        wait_until(lambda target=target: _leader(client) == target)
    would = cli.run("quorum", "remove", "2", "--dry-run")
    assert would.stdout.endswith("); voters would be [0,1]\n"), would.stderr
    assert "not a member" in cli.run("quorum", "remove", "7", "--dry-run").stderr
    traced = cli.run("reassign", "trace", "t-0")
    assert "elected broker 1" in traced.stdout, traced.stderr

    # Replace all certificates by those of another CA, in three steps.
    other = Authority(tmp_path / "other", "other")
    both = tmp_path / "both.pem"
    both.write_bytes(authority.pem + other.pem)
    for files in (*nodes.values(), admin):
        replace(files.ca, both.read_bytes())
    for role, files in (*nodes.items(), ("admin", admin)):
        new = other.make(f"penstock-{role}", ca=both)
        replace(files.key, new.key.read_bytes())
        replace(files.certificate, new.certificate.read_bytes())
    for files in (*nodes.values(), admin):
        replace(files.ca, other.pem)

    starts = {item.node_id: item.starts for item in cluster.brokers()}
    for _ in range(2):
        leader = wait_until(lambda: (found := cli.leader()) >= 0 and (found,))[0]
        killed = controller(cluster, leader)
        cluster.kill([killed], signal.SIGKILL)
        cluster.wait_for_new([killed])
    produce(bootstrap, RECORDS)
    assert consume(bootstrap, 2 * RECORDS) == set(range(2 * RECORDS))
    assert {item.node_id: item.starts for item in cluster.brokers()} == starts


def _leader(client: AdminClient) -> int:
    partitions: dict[int, Any] = client.list_topics("t", timeout=PATIENCE_S).topics["t"].partitions
    return partitions[0].leader if partitions else -1


def test_controllers_accept_only_certificates_of_nodes_and_admins(
    cluster: LocalCluster, authority: Authority, tmp_path: Path
) -> None:
    controllers = cluster.state().controller
    other = Authority(tmp_path / "other", "other")
    reasons = {
        "if it uses TLS, set": None,
        "controller.ssl.broker.names": authority.make("alice"),
        "ConfirmMetadata is for broker": authority.make("penstock-admin"),
        "refuses this side's certificate": other.make(BROKER, ca=authority.file),
        "expired at": authority.make(BROKER, file="old", days=(-5, -1)),
        "not of broker 9": authority.make(f"{BROKER}-8"),
    }
    for reason, files in reasons.items():
        for registration_ms in (1_500, 10_000, 60_000):  # slow machines need longer
            log = _broker_log(tmp_path, controllers, files, registration_ms)
            if reason in log:
                break
        assert reason in log, (reason, log)
    for reason, files, command in (
        ("if it uses TLS, set", None, ("nodes",)),
        ("controller.ssl.admin.names", authority.make("bob"), ("quorum", "describe")),
    ):
        refused = Cli(controllers, files).run(*command)
        assert refused.returncode == 1
        assert reason in refused.stderr, (command, refused.stderr)
    assert [item.node_id for item in cluster.brokers()] == [0, 1]


def _broker_log(
    directory: Path, controllers: str, files: CertFiles | None, registration_ms: int
) -> str:
    """Run broker 9 until it gives up; return its log."""
    flags = {
        "store": f"file:{directory / 'store' / 'objects'}",
        "node-id": "9",
        "listeners": f"127.0.0.1:{free_port()}",
        "controller-quorum-bootstrap-servers": controllers,
        "registration-timeout-ms": str(registration_ms),
    }
    command = [sys.executable, "-P", "-m", "penstock.deploy.cli", "broker"]
    for name, value in flags.items():
        command += [f"--{name}", value]
    environment = os.environ | {lifeline.PARENT_VARIABLE: str(os.getpid())}
    environment |= files.environment if files is not None else {}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "broker_start_failed" in done.stderr
    return done.stderr
