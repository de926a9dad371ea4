"""Members of groups whose connections are cut again and again, as by a bad network: they reconnect
and go on, without an error and without a rebalance.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tests.support.clients import checked, create_topic, produce
from tests.support.cluster import Cluster
from tests.support.stream_server import StreamServer
from tests.support.waiting import until

TOPIC = "t"
PARTITIONS = 4
CUTS = 5


class CuttingProxy:
    """A TCP proxy in front of a broker, whose connections a test can cut."""

    def __init__(self) -> None:
        self.target_port = 0
        self.cut_count = 0
        self._connections: set[asyncio.StreamWriter] = set()
        self._server = StreamServer(self._relay)

    def start(self) -> int:
        return self._server.open()

    def stop(self) -> None:
        self._server.close()

    def cut(self) -> None:
        """Reset all connections."""
        for writer in list(self._connections):
            self.cut_count += 1
            writer.transport.abort()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, their_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        ends = {writer, their_writer}
        self._connections |= ends
        try:
            await asyncio.gather(_pump(reader, their_writer), _pump(theirs, writer))
        finally:
            self._connections -= ends
            for end in ends:
                end.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


class CutCluster:
    def __init__(self, cluster: Cluster, proxy: CuttingProxy, bootstrap: str) -> None:
        self.cluster = cluster
        self.proxy = proxy
        self.bootstrap = bootstrap

    async def write(self) -> None:
        """Write a record into each partition, past the proxy."""
        await asyncio.to_thread(
            produce,
            f"127.0.0.1:{self.proxy.target_port}",
            TOPIC,
            [b"v"] * PARTITIONS,
            range(PARTITIONS),
        )


@pytest.fixture
async def cut(tmp_path: Path) -> AsyncIterator[CutCluster]:
    proxy = CuttingProxy()
    async with Cluster(tmp_path, brokers=0) as cluster:
        port = proxy.start()
        address = f"127.0.0.1:{port}"
        broker = await cluster.start_broker(
            0, advertised_listeners=(address,), advertised_check="off"
        )
        proxy.target_port = broker.port
        await asyncio.to_thread(create_topic, address, TOPIC, PARTITIONS)
        yield CutCluster(cluster, proxy, address)
        proxy.stop()


class Members:
    """Two consumers of one group. Each polls and commits what it got."""

    def __init__(self) -> None:
        self.assignments_count = 0
        self.committed = [0, 0]
        """How many records each has committed."""
        self.errors: list[str] = []


async def go_through_cuts(cut: CutCluster, members: Members) -> None:
    """Cut all connections, and wait until both members have committed more, again and again."""
    await until(lambda: members.assignments_count >= 2 or members.errors)
    await cut.write()
    await until(lambda: min(members.committed) > 0 or members.errors)
    settled = members.assignments_count
    for _ in range(CUTS):
        cut.proxy.cut()
        before = list(members.committed)
        await cut.write()
        await until(
            lambda before=before: all(map(int.__lt__, before, members.committed)) or members.errors
        )
    assert not members.errors
    assert cut.proxy.cut_count >= 2 * CUTS
    assert members.assignments_count == settled, "there was a rebalance"


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_librdkafka_goes_on(cut: CutCluster, protocol: str) -> None:
    members, stop = Members(), threading.Event()

    def on_assign(_consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
        members.assignments_count += 1

    def run(number: int) -> None:
        settings = {
            "bootstrap.servers": cut.bootstrap,
            "group.id": "g",
            "group.protocol": protocol,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "reconnect.backoff.ms": 10,
            "reconnect.backoff.max.ms": 50,
            "topic.metadata.refresh.interval.ms": 1_000,
        }
        consumer = Consumer(settings)
        consumer.subscribe([TOPIC], on_assign=on_assign)
        try:
            while not stop.is_set():
                message = consumer.poll(0.1)
                if message is None:
                    continue
                checked(message)
                _commit(consumer, message)
                members.committed[number] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, the test fails
            members.errors.append(repr(error))
        finally:
            consumer.close()

    threads = [asyncio.create_task(asyncio.to_thread(run, number)) for number in range(2)]
    try:
        await go_through_cuts(cut, members)
    finally:
        stop.set()
        await asyncio.gather(*threads)
    assert not members.errors


def _commit(consumer: Consumer, message: Message) -> None:
    """Commit, again if the connection breaks meanwhile: librdkafka leaves that to its user."""
    for _ in range(CUTS):
        try:
            consumer.commit(message, asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._TRANSPORT:
                raise
        else:
            return


async def test_aiokafka_goes_on(cut: CutCluster) -> None:
    members = Members()

    class Listener(ConsumerRebalanceListener):
        async def on_partitions_revoked(self, revoked: Any) -> None:
            pass

        async def on_partitions_assigned(self, assigned: Any) -> None:
            members.assignments_count += 1

    async def run(number: int) -> None:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=cut.bootstrap,
            group_id="g",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            retry_backoff_ms=50,
        )
        consumer.subscribe([TOPIC], listener=Listener())
        await consumer.start()
        try:
            async for _ in consumer:
                await consumer.commit()
                members.committed[number] += 1
        finally:
            await consumer.stop()

    tasks = [asyncio.create_task(run(number)) for number in range(2)]
    try:
        await go_through_cuts(cut, members)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended
