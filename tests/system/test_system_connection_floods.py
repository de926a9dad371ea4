"""With 10,000 idle connections to one broker and hundreds to its health listener, clients still log
in, probes get responses, and brokers reach each other.
"""

import contextlib
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.metered_cluster import MeteredCluster
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.system

FLOOD = {"127.0.0.2": 5_000} | {f"127.0.1.{number}": 500 for number in range(1, 11)}
"""Number of connections that each address opens to the client listener."""
SILENT = 300
"""Number of connections to the health listener, which allows 64."""
LOGIN_S = PATIENCE_S
"""Unauthenticated connections stay open for longer, so a client that waited for their end would not
log in.
"""
SETTINGS = ("authentication.timeout.ms=10min",)
FILES = sum(FLOOD.values()) + SILENT + 1_000


@pytest.fixture
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < FILES:
        pytest.skip(f"the hard limit of open files is {hard}, {FILES} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, FILES), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def flooded(port: int, health: int) -> Iterator[None]:
    with contextlib.ExitStack() as opened:
        requested = [(port, host) for host, count in FLOOD.items() for _ in range(count)]
        requested += SILENT * [(health, "127.0.0.2")]
        for target, host in requested:
            address = ("127.0.0.1", target)
            opened.enter_context(
                socket.create_connection(address, PATIENCE_S, source_address=(host, 0))
            )
        yield


class Probes:
    """Sends liveness probes continuously from an address of its own, as a kubelet does."""

    def __init__(self, port: int) -> None:
        self.responses: list[bytes] = []
        self._port = port
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._send_request, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _send_request(self) -> None:
        while not self._is_over.wait(0.05):
            try:
                with socket.create_connection(("127.0.0.1", self._port), PATIENCE_S) as probe:
                    probe.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
                    self.responses.append(probe.recv(100).partition(b"\r\n")[0])
            except OSError as error:
                self.responses.append(repr(error).encode())


def commit(config: dict[str, Any], number: int) -> None:
    """Write to a partition of each broker in one transaction. The coordinator sends markers to the
    other broker, the first time over a new connection.
    """
    producer = Producer(config | {"transactional.id": f"flood-{number}"})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for partition in (0, 1):
        producer.produce("t", str(number), partition=partition)
    producer.commit_transaction(PATIENCE_S)


def committed(config: dict[str, Any]) -> set[tuple[int, bytes]]:
    consumer = Consumer(
        config | {"group.id": "g", "isolation.level": "read_committed", "enable.auto.commit": False}
    )
    consumer.assign([TopicPartition("t", partition, 0) for partition in (0, 1)])
    found: set[tuple[int, bytes]] = set()

    def read() -> bool:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            found.add((message.partition() or 0, bytes(message.value() or b"")))
        return len(found) == 2 * TRANSACTIONS

    wait_until(read)
    consumer.close()
    return found


TRANSACTIONS = 4
"""Enough transactional ids to have coordinators on both brokers."""


@pytest.mark.costly("opens 10,000 connections")
@pytest.mark.usefixtures("many_files")
def test_ten_thousand_idle_connections_do_not_lock_out_other_clients(tmp_path: Path) -> None:
    with MeteredCluster(
        tmp_path, brokers=2, controllers=1, secure=True, settings=SETTINGS
    ) as cluster:
        config = cluster.admin.properties() | {"bootstrap.servers": cluster.bootstrap}
        first = config | {"bootstrap.servers": cluster.bootstrap.split(",")[0]}
        topic = NewTopic("t", 2, replica_assignment=[[0], [1]])
        admin = AdminClient(config)
        admin.create_topics([topic])["t"].result(PATIENCE_S)
        port, health = int(first["bootstrap.servers"].rpartition(":")[2]), cluster.ports["broker 0"]
        with Probes(health) as probes, flooded(port, health):
            for _ in range(5):
                assert AdminClient(first).list_topics(timeout=LOGIN_S).brokers
            for number in range(TRANSACTIONS):
                commit(config, number)
            assert len(committed(config)) == 2 * TRANSACTIONS
        assert set(probes.responses) == {b"HTTP/1.1 200 OK"}
