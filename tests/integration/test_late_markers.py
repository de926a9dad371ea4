"""With real brokers and librdkafka: a transaction marker is delayed and resent, and the delayed
copy arrives during the next transaction.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from penstock.broker.coordination.internal_topics import TRANSACTIONS_TOPIC
from penstock.protocol import apis
from tests.support.clients import (
    PATIENT_TRANSACTION,
    TIMEOUT_S,
    confluent_consumer,
    create_topic,
    read_records,
)
from tests.support.cluster import Cluster
from tests.support.stream_server import StreamServer

_SIZE_BYTES = 4
_PARTITIONS = 8
_MARKERS = apis.WRITE_TXN_MARKERS.key.to_bytes(2, "big")


class HoldingProxy:
    """A proxy in front of one broker. It holds the first connection that sends a transaction
    marker, and passes all others.
    """

    def __init__(self, release: asyncio.Event) -> None:
        self.target_port = 0
        self.held = asyncio.Event()
        self.responded = asyncio.Event()
        """The broker has executed the held request."""
        self._release = release
        self._server = StreamServer(self._relay)

    def start(self) -> int:
        return self._server.open()

    def stop(self) -> None:
        self._server.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        size = await reader.readexactly(_SIZE_BYTES)
        frame = await reader.readexactly(int.from_bytes(size, "big"))
        is_held = frame.startswith(_MARKERS) and not self.held.is_set()
        if is_held:
            self.held.set()
            await self._release.wait()
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        try:
            their_writer.write(size + frame)
            if is_held:
                await their_reader.readexactly(_SIZE_BYTES)
                self.responded.set()
            await asyncio.gather(_pump(reader, their_writer), _pump(their_reader, writer))
        finally:
            their_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


class HeldMarkers:
    def __init__(
        self, cluster: Cluster, proxies: list[HoldingProxy], release: asyncio.Event
    ) -> None:
        self.cluster = cluster
        self.proxies = proxies
        self.release = release


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[HeldMarkers]:
    release = asyncio.Event()
    proxies = [HoldingProxy(release) for _ in range(2)]
    async with Cluster(tmp_path, brokers=0) as cluster:
        for node_id, proxy in enumerate(proxies):
            port = proxy.start()
            broker = await cluster.start_broker(
                node_id, advertised_listeners=(f"127.0.0.1:{port}",), advertised_check="off"
            )
            proxy.target_port = broker.port
        yield HeldMarkers(cluster, proxies, release)
        for proxy in proxies:
            proxy.stop()


def _first_transaction(bootstrap: str) -> Producer:
    create_topic(bootstrap, "t", _PARTITIONS)
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": "tid", "linger.ms": 0}
        | PATIENT_TRANSACTION
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    return producer


def _write(producer: Producer, partition: int, value: bytes) -> None:
    producer.produce("t", value, partition=partition)
    assert producer.flush(TIMEOUT_S) == 0


def _end(producer: Producer, *, commit: bool) -> None:
    (producer.commit_transaction if commit else producer.abort_transaction)(TIMEOUT_S)


def _committed(bootstrap: str, partition: int) -> list[bytes | None]:
    """Return the values that a read_committed consumer gets, up to a final record."""
    last = Producer({"bootstrap.servers": bootstrap})
    last.produce("t", b"last", partition=partition)
    assert last.flush(TIMEOUT_S) == 0
    consumer = confluent_consumer(
        bootstrap, "reader", isolation_level="read_committed", enable_auto_commit=False
    )
    try:
        consumer.assign([TopicPartition("t", partition, 0)])
        values: list[bytes | None] = []
        while values[-1:] != [b"last"]:
            values += [message.value() for message in read_records(consumer, 1)]
        return values[:-1]
    finally:
        consumer.close()


@pytest.mark.parametrize("commit_first", [True, False])
async def test_delayed_copy_of_a_marker_does_not_end_the_next_transaction(
    held: HeldMarkers, commit_first: bool
) -> None:
    cluster, bootstrap = held.cluster, held.cluster.bootstrap
    producer = await asyncio.to_thread(_first_transaction, bootstrap)
    coordinated = cluster.broker.transactions.partition_of("tid")
    assert coordinated is not None
    coordinator = cluster.leader_of(TRANSACTIONS_TOPIC, coordinated)
    partition = next(
        index for index in range(_PARTITIONS) if cluster.leader_of("t", index) == 1 - coordinator
    )
    proxy = held.proxies[1 - coordinator]
    await asyncio.to_thread(_write, producer, partition, b"first")
    await asyncio.to_thread(_end, producer, commit=commit_first)
    async with asyncio.timeout(TIMEOUT_S):
        await proxy.held.wait()
    producer.begin_transaction()
    await asyncio.to_thread(_write, producer, partition, b"second")
    held.release.set()
    async with asyncio.timeout(TIMEOUT_S):
        await proxy.responded.wait()
    await asyncio.to_thread(_end, producer, commit=not commit_first)
    assert await asyncio.to_thread(_committed, bootstrap, partition) == [
        b"first" if commit_first else b"second"
    ]
