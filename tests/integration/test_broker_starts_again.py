"""A broker restarts within its process after its session has expired, and loses no records."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from penstock.broker import main
from penstock.broker.config import BrokerConfig
from penstock.broker.incarnations import may_restart
from penstock.controller.api.client import ControllerClient
from penstock.controller.metadata.nodes import NodeState
from penstock.deploy.local.in_process import InProcessBroker
from penstock.deploy.local.plan import ProcessPlan
from penstock.objectstore.url import open_store
from penstock.stream.compaction.plan import CompactionConfig
from penstock.stream.config import StreamConfig
from tests.support.clients import confluent_consumer, create_topic, produce, read_records
from tests.support.cluster import SHORT_SESSION, Cluster
from tests.support.fault_store import Link
from tests.support.ports import free_ports
from tests.support.waiting import PATIENCE_S, until

TOPIC = "t"


class World:
    """A controller, a network link to it, and a second broker whose metadata image shows the
    effects.
    """

    def __init__(self, cluster: Cluster, link: Link, port: int) -> None:
        self.cluster, self.link, self.port = cluster, link, port
        self.address = link.open()

    @property
    def node(self) -> NodeState | None:
        """The broker behind the link, according to the other broker's metadata image."""
        return next((node for node in self.cluster.broker.image.nodes if node.node_id == 1), None)

    async def until_alive(self, after_epoch: int = -1) -> int:
        def is_alive() -> bool:
            node = self.node
            return node is not None and not node.fenced and node.node_epoch > after_epoch

        await until(is_alive)
        assert self.node is not None
        return self.node.node_epoch

    async def cut_until_fenced(self) -> None:
        self.link.cut()
        await until(lambda: self.node is not None and self.node.fenced)
        self.link.heal()


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    # Brokers get the controller's own address from the quorum, and that address bypasses the link.
    monkeypatch.setattr(ControllerClient, "learn", lambda *_: None)
    store = open_store(f"file:{tmp_path / 'store'}")
    async with Cluster(tmp_path, store=store, controller_settings=SHORT_SESSION) as cluster:
        assert cluster.controller is not None
        link = Link(cluster.controller.port)
        yield World(cluster, link, free_ports(1)[0])
        link.close()
    await store.close()


@asynccontextmanager
async def as_process(world: World, tmp_path: Path) -> AsyncIterator[None]:
    """Run the main function of a broker process."""
    config = BrokerConfig(
        node_id=1, listeners=(f"127.0.0.1:{world.port}",), controllers=(world.address,)
    )
    url = f"file:{tmp_path / 'store'}"
    task = asyncio.ensure_future(main.serve(config, url, StreamConfig(), CompactionConfig()))
    try:
        yield
        assert not task.done(), "the process continues"
        os.kill(os.getpid(), signal.SIGTERM)
        assert await task == main.EXIT_OK
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def in_one_process(world: World, tmp_path: Path) -> AsyncIterator[None]:
    """Run a broker as `penstock dev --store memory` does."""
    flags = ("--node-id", "1", "--listeners", f"127.0.0.1:{world.port}")
    flags += ("--controller-quorum-bootstrap-servers", world.address)
    command = ("-m", "deploy.cli", "broker", *flags)
    plan = ProcessPlan("broker", 1, "127.0.0.1", world.port, command, {"PENSTOCK_STORE": "memory:"})
    host = InProcessBroker(plan, world.cluster.store)
    async with AsyncExitStack() as stack:
        await host.start(stack)
        try:
            yield
        finally:
            await host.stop()


Run = Callable[[World, Path], AbstractAsyncContextManager[None]]


@pytest.mark.parametrize("run", [as_process, in_one_process])
async def test_broker_restarts_in_its_process_after_its_session_expired(
    world: World, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "RESTART_LIFE_S", 0.0)
    async with run(world, tmp_path):
        epoch = await world.until_alive()
        bootstrap = f"{world.cluster.bootstrap},127.0.0.1:{world.port}"
        await asyncio.to_thread(create_topic, bootstrap, TOPIC, 2)
        values = [b"%d" % number for number in range(100)]
        await asyncio.to_thread(
            produce, bootstrap, TOPIC, values[:50], range(2), enable_idempotence=True
        )
        for turn in range(2):  # the second expiry must not differ
            await world.cut_until_fenced()
            epoch = await world.until_alive(epoch)
            more = values[50 + 25 * turn : 75 + 25 * turn]
            await asyncio.to_thread(
                produce, bootstrap, TOPIC, more, range(2), enable_idempotence=True
            )
        consumer = confluent_consumer(bootstrap, "g")
        consumer.assign([TopicPartition(TOPIC, at, 0) for at in range(2)])
        messages = await asyncio.to_thread(read_records, consumer, 100)
        assert sorted(message.value() or b"" for message in messages) == sorted(values)
        await asyncio.to_thread(consumer.close)


async def test_broker_replaced_by_another_process_does_not_restart(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        first = await cluster.start_broker(1)
        await cluster.start_broker(1)
        async with asyncio.timeout(PATIENCE_S):
            await first.ended
            assert not await may_restart(first)
        await first.abandon()


async def test_broker_with_an_expired_session_may_restart(world: World) -> None:
    broker = await world.cluster.start_broker(
        1, controllers=(world.address,), listeners=(f"127.0.0.1:{world.port}",)
    )
    await world.until_alive()
    await world.cut_until_fenced()
    async with asyncio.timeout(PATIENCE_S):
        await broker.ended
        assert await may_restart(broker)
