"""Start the measured systems: Apache Kafka 4.2, and Penstock over each of its stores.

A system is a context manager that stops all processes at its end, even after an error. Both have
default settings, except that groups do not wait for more members before their first rebalance. A
system with several brokers has one controller in a separate process.
"""

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from benchmarks import harness, kafka
from benchmarks.beside_kafka.node import Node
from penstock.deploy.local import bytecode
from penstock.deploy.local.plan import ClusterOptions, ProcessPlan, plan_cluster
from penstock.deploy.local.ports import find_ports
from penstock.deploy.node.lifeline import PARENT_VARIABLE

KAFKA: Final = "kafka"
MEMORY: Final = "memory"
FILE: Final = "file"
MOTO: Final = "moto"
VERSITYGW: Final = "versitygw"
DURABILITY: Final[Mapping[str, str]] = {
    KAFKA: (
        "acknowledged when it is in the page cache of the in-sync replicas (one replica in rows"
        " with one broker, three in rows with three); not on disk, because Kafka does not fsync"
    ),
    MEMORY: "acknowledged when it is in the store in memory, which ends with the process",
    FILE: "acknowledged when it is in a file of the `file:` store",
    MOTO: "acknowledged when the S3 server moto, a Python process on this machine, has it",
    VERSITYGW: "acknowledged when the S3 server versitygw on this machine has it",
}
SYSTEMS: Final = tuple(DURABILITY)
_CONTROLLER_ID: Final = 100
_BUCKET: Final = "bench"
_KEYS: Final = {"AWS_ACCESS_KEY_ID": "bench", "AWS_SECRET_ACCESS_KEY": "bench-secret"}
_VERSITYGW_BINARY: Final = Path(__file__).parents[2] / "build" / "s3-servers" / "versitygw"
_SERVER_START_S: Final = 20.0


class SystemMissing(Exception):
    """Raised if this machine does not meet the requirements of a system."""


@dataclass(slots=True)
class System:
    """A running system. name: one of SYSTEMS. brokers: by node id. directory: for its output."""

    name: str
    bootstrap: str
    brokers: dict[int, Node]
    directory: Path
    controllers: list[Node] = field(default_factory=list[Node])
    topics_count: int = 0

    @property
    def is_kafka(self) -> bool:
        return self.name == KAFKA

    @property
    def survives(self) -> bool:
        """Return whether records survive a stop of all brokers."""
        return self.name != MEMORY

    @property
    def nodes(self) -> list[Node]:
        """Return the brokers and controllers, whose CPU and memory are measured."""
        return [*self.brokers.values(), *self.controllers]

    @property
    def node(self) -> Node:
        """Return the first broker."""
        return next(iter(self.brokers.values()))

    def new_topic(self) -> str:
        """Return an unused name."""
        self.topics_count += 1
        return f"bench-{self.topics_count}"

    def start_brokers(self) -> None:
        for node in self.brokers.values():
            node.start()

    def kill_brokers(self) -> None:
        for node in self.brokers.values():
            node.process.kill()
        for node in self.brokers.values():
            node.kill()

    def until_served(self) -> None:
        for node, address in zip(self.brokers.values(), self.bootstrap.split(","), strict=True):
            try:
                kafka.until_served(node.process, address)
            except RuntimeError as error:
                raise RuntimeError(f"{error}: {node.tail()}") from None

    def forget_pages(self) -> None:
        """Remove the system's files from the page cache, so that reads are cold."""
        os.sync()
        for path in self.directory.rglob("*"):
            if path.is_file():
                descriptor = os.open(path, os.O_RDONLY)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(descriptor)


@contextmanager
def running(
    name: str, brokers: int = 1, settings: Sequence[str] = (), *, is_started: bool = True
) -> Iterator[System]:
    """Run a system. settings: additional settings of Penstock nodes, as KEY=VALUE. is_started:
    whether to start its nodes and wait for them. Raises SystemMissing.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        if name == KAFKA:
            system = _kafka(directory, brokers)
        elif name == MEMORY:
            system = _penstock_in_memory(directory, brokers)
        else:
            store, keys = stack.enter_context(_store(name, directory))
            system = _penstock(name, directory, brokers, store, keys, settings)
        for node in system.nodes:
            stack.callback(node.kill)
        if is_started:
            for node in (*system.controllers, *system.brokers.values()):
                node.start()
            system.until_served()
        yield system


def _kafka(directory: Path, brokers: int) -> System:
    try:
        class_path = kafka.prepared()
    except kafka.KafkaMissing as error:
        raise SystemMissing(str(error)) from None
    replicas = str(min(brokers, 3))
    common = {
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
    }

    def node(name: str, values: Mapping[str, str]) -> Node:
        command = kafka.server_command(class_path, directory / f"{name}.properties", values)
        return Node(command, directory / f"{name}.log", os.environ)

    ports = _ports(brokers + 1)
    addresses = [f"127.0.0.1:{port}" for port in ports[:brokers]]
    if brokers == 1:
        values = kafka.single_node(ports[0], directory / "data") | common
        return System(KAFKA, addresses[0], {1: node("kafka", values)}, directory)
    quorum = f"127.0.0.1:{ports[-1]}"
    common |= {
        "controller.quorum.voters": f"{_CONTROLLER_ID}@{quorum}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    }
    controller = common | {
        "process.roles": "controller",
        "node.id": str(_CONTROLLER_ID),
        "listeners": f"CONTROLLER://{quorum}",
        "log.dirs": str(directory / "controller"),
    }
    nodes = {
        number: node(
            f"broker-{number}",
            common
            | {
                "process.roles": "broker",
                "node.id": str(number),
                "listeners": f"PLAINTEXT://{address}",
                "log.dirs": str(directory / f"data-{number}"),
            },
        )
        for number, address in enumerate(addresses)
    }
    return System(KAFKA, ",".join(addresses), nodes, directory, [node("controller", controller)])


def _ports(count: int) -> list[int]:
    """Return free ports outside the ephemeral range."""
    found = find_ports(ClusterOptions(brokers=count, port=0, store=MEMORY), Random())
    return list(found.brokers)


def _environment(keys: Mapping[str, str]) -> dict[str, str]:
    return bytecode.environment(os.environ) | {PARENT_VARIABLE: str(os.getpid())} | dict(keys)


def _penstock_in_memory(directory: Path, brokers: int) -> System:
    if brokers != 1:
        raise SystemMissing("brokers that share a store in memory are one process")
    port = _ports(1)[0]
    arguments = ("dev", "--store", MEMORY, "--brokers", "1", "--port", str(port))
    command = (sys.executable, "-P", "-m", "penstock.deploy.cli", *arguments)
    state = ("--state-file", str(directory / "state.json"))
    node = Node((*command, *state), directory / "penstock.log", _environment({}))
    return System(MEMORY, f"127.0.0.1:{port}", {0: node}, directory)


def _penstock(
    name: str,
    directory: Path,
    brokers: int,
    store: str,
    keys: Mapping[str, str],
    settings: Sequence[str],
) -> System:
    options = ClusterOptions(
        brokers=brokers,
        port=0,
        store=store,
        settings=tuple(settings),
        # `penstock dev` would choose other values; this measures the defaults of Penstock.
        given=frozenset({"broker.session.timeout.ms", "broker.session.grace.ms"}),
    )
    plan = plan_cluster(options, find_ports(options, Random()), str(directory / "controller"))
    environment = _environment(keys)

    def node(process: ProcessPlan) -> Node:
        command = (sys.executable, "-P", *process.arguments)
        log = directory / f"{process.role}-{process.node_id}.log"
        return Node(command, log, {**environment, **process.environment})

    nodes = {process.node_id or 0: node(process) for process in plan.of_role("broker")}
    controllers = [node(process) for process in plan.of_role("controller")]
    return System(name, plan.bootstrap, nodes, directory, controllers)


@contextmanager
def _store(name: str, directory: Path) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the URL of the store and the environment variables with which nodes authenticate."""
    if name == FILE:
        yield f"file:{directory / 'store'}", {}
    elif name == MOTO:
        with harness.moto() as url:
            yield url, {}
    else:
        with _versitygw(directory) as url:
            yield url, _KEYS


@contextmanager
def _versitygw(directory: Path) -> Iterator[str]:
    if not _VERSITYGW_BINARY.exists():
        raise SystemMissing(
            "there is no versitygw: `tools/ensure-s3-servers.sh versitygw` compiles it with Go"
        )
    bucket = directory / "versitygw" / _BUCKET
    bucket.mkdir(parents=True)
    address = f"127.0.0.1:{harness.free_port()}"
    environment = os.environ | {
        "ROOT_ACCESS_KEY": _KEYS["AWS_ACCESS_KEY_ID"],
        "ROOT_SECRET_KEY": _KEYS["AWS_SECRET_ACCESS_KEY"],
    }
    command = (str(_VERSITYGW_BINARY), "--quiet", "--port", address, "posix", str(bucket.parent))
    server = Node(command, directory / "versitygw.log", environment)
    server.start()
    try:
        _until_open(address, server)
        yield f"s3://{_BUCKET}?endpoint=http://{address}"
    finally:
        server.kill()


def _until_open(address: str, server: Node) -> None:
    import socket

    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + _SERVER_START_S
    while time.monotonic() < deadline and server.process.poll() is None:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    raise RuntimeError(f"versitygw did not start: {server.tail()}")
