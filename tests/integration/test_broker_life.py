"""Brokers stop, crash, are fenced and lose the controller: acknowledged records survive, and
clients find the new leaders.
"""

import asyncio
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from penstock.base.clock import wall_ms
from penstock.base.ids import Millis, NodeId
from penstock.broker.config import BrokerConfig
from penstock.broker.network import peer_watch
from penstock.broker.network.peer_watch import PeerWatch
from penstock.broker.network.server import PortTaken
from penstock.broker.node import Broker
from penstock.controller.api.messages import ConfirmMetadata, CreateTopics, NewTopic
from penstock.deploy.clients.wire import WireClient
from penstock.objectstore.errors import ConditionalWritesIgnored
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import Body
from penstock.protocol import apis
from penstock.protocol.gen import metadata
from tests.support.cluster import SHORT_SESSION, Cluster
from tests.support.steady import SteadyProducer
from tests.support.waiting import PATIENCE_S, until

TIMEOUT_S = PATIENCE_S


async def create_topic(cluster: Cluster, name: str, leader: int) -> None:
    candidates = [
        NodeId(leader),
        *(NodeId(node_id) for node_id in cluster.brokers if node_id != leader),
    ]
    await cluster.broker.client.create_topics(
        CreateTopics(topics=[NewTopic(name=name, assignment=[candidates])])
    )
    await cluster.until_served(name)


async def produce(bootstrap: str, topic: str, first: int, count: int) -> None:
    async with (
        asyncio.timeout(TIMEOUT_S),
        AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer,
    ):
        for index in range(first, first + count):
            await producer.send_and_wait(topic, b"%d" % index, partition=0)


async def consume(bootstrap: str, topic: str, count: int) -> list[int]:
    async with (
        asyncio.timeout(TIMEOUT_S),
        AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
        ) as consumer,
    ):
        return [int((await consumer.getone()).value) for _ in range(count)]


async def test_graceful_stop_moves_partitions_to_another_broker(tmp_path: Path) -> None:
    async with Cluster(tmp_path, brokers=2) as cluster:
        await create_topic(cluster, "t", leader=1)
        await produce(cluster.bootstrap, "t", 0, 20)
        await cluster.stop_broker(1)
        assert (await cluster.until_served("t")).node_id == 0
        await produce(cluster.bootstrap, "t", 20, 20)
        assert await consume(cluster.bootstrap, "t", 40) == list(range(40))
        nodes = {node.node_id: node.fenced for node in cluster.broker.image.nodes}
        assert nodes.get(NodeId(1), True), "it said goodbye"
        assert not [
            wal for wal in cluster.broker.image.nodes.running_wals() if wal.writer.node_id == 1
        ], "its WAL needs no recovery"


@pytest.mark.parametrize("is_graceful", [True, False], ids=["stop", "kill"])
async def test_leader_crash_under_load_loses_and_duplicates_no_record(
    tmp_path: Path, *, is_graceful: bool
) -> None:
    async with Cluster(tmp_path, brokers=3) as cluster:
        await create_topic(cluster, "t", leader=2)
        producer = SteadyProducer(cluster.bootstrap, "t")
        await producer.until_acknowledged(200)
        await (cluster.stop_broker(2) if is_graceful else cluster.kill_broker(2))
        await producer.until_acknowledged(200)
        sent = await producer.stop()
        assert producer.acknowledged == list(range(sent))
        assert await consume(cluster.bootstrap, "t", sent) == list(range(sent))
        leader = await cluster.until_served("t")
        partition = leader.partitions.get("t", 0)
        assert not isinstance(partition, int)
        assert partition.high_watermark == sent


async def test_records_survive_a_crash_of_all_nodes(tmp_path: Path) -> None:
    async with Cluster(tmp_path, brokers=2, controller_settings=SHORT_SESSION) as cluster:
        await create_topic(cluster, "t", leader=1)
        await produce(cluster.bootstrap, "t", 0, 20)
        await cluster.kill_broker(1)
        await cluster.kill_broker(0)
        await cluster.stop_controller()
        await cluster.start_controller()
        await cluster.start_broker(0)
        await cluster.until_served("t")
        assert await consume(cluster.bootstrap, "t", 20) == list(range(20))


async def test_broker_without_a_controller_stops_writing_until_it_reconnects(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path, controller_settings=SHORT_SESSION) as cluster:
        await create_topic(cluster, "t", leader=0)
        await produce(cluster.bootstrap, "t", 0, 5)
        await cluster.stop_controller()
        await until(lambda: not cluster.broker.can_write())
        produced = asyncio.create_task(produce(cluster.bootstrap, "t", 5, 5))
        await cluster.start_controller()
        await produced
        assert await consume(cluster.bootstrap, "t", 10) == list(range(10))


async def test_replaced_broker_ends_with_the_reason(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        old = cluster.broker
        new = await cluster.start_broker(0)
        async with asyncio.timeout(TIMEOUT_S):
            reason = await old.ended
        assert "fenced" in reason
        assert not old.can_write()
        assert new.node_epoch > old.node_epoch
        await old.abandon()
        assert new.can_write()


async def test_port_in_use_fails_the_start_before_registration(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        with pytest.raises(PortTaken, match=str(cluster.broker.port)):
            await cluster.start_broker(7, listeners=(f"127.0.0.1:{cluster.broker.port}",))
        assert cluster.broker.image.nodes.get(NodeId(7)) is None


async def test_start_without_a_reachable_controller_fails_with_a_clear_error() -> None:
    config = BrokerConfig(
        listeners=("127.0.0.1:0",), controllers=("127.0.0.1:1",), registration_timeout_ms=300
    )
    with pytest.raises(TimeoutError, match=ConfirmMetadata.__name__):
        await Broker.start(config, MemoryStore())


async def test_store_that_ignores_write_conditions_is_rejected() -> None:
    class Careless(MemoryStore):
        async def put_if_absent(self, key: str, body: Body) -> str:
            return await self.put(key, body)

    with pytest.raises(ConditionalWritesIgnored):
        await Broker.start(BrokerConfig(listeners=("127.0.0.1:0",)), Careless())


async def test_coordinators_use_the_monotonic_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of the system clock must not time out members or transactions."""
    hour_ms = 3_600_000
    async with Cluster(tmp_path) as cluster:
        broker = cluster.broker
        clocks = (broker.groups._now_ms, broker.transactions._now_ms)
        before = [clock() for clock in clocks]
        monkeypatch.setattr("penstock.broker.node.wall_ms", lambda: Millis(wall_ms() + hour_ms))
        assert broker.now_ms() >= before[0] + hour_ms
        assert all(
            then <= clock() < then + hour_ms // 2
            for then, clock in zip(before, clocks, strict=True)
        )


async def test_metadata_request_waits_while_a_leader_may_be_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connections of a dying process close before its listener."""
    requested, until_certain = asyncio.Event(), PeerWatch.until_certain

    async def noted(watch: PeerWatch) -> None:
        requested.set()
        await until_certain(watch)

    monkeypatch.setattr(PeerWatch, "until_certain", noted)
    monkeypatch.setattr(peer_watch, "DOUBT_S", float(TIMEOUT_S))
    never = {"session_timeout_ms": 600_000, "session_grace_ms": 600_000}
    async with Cluster(tmp_path, brokers=2, controller_settings=never) as cluster:
        await create_topic(cluster, "t", leader=1)
        other, dying = cluster.brokers[0], cluster.brokers[1]
        await until(lambda: dying.server.connection_count)
        for connection in list(dying.server._connections):
            connection.close("its process dies")
        await until(other.peer_watch.is_in_doubt)
        response = asyncio.create_task(asyncio.to_thread(leader_by, f"127.0.0.1:{other.port}", "t"))
        async with asyncio.timeout(TIMEOUT_S):
            await requested.wait()
            await cluster.kill_broker(1)
            # Still the epoch of the dead leader: the controller has not fenced it yet.
            assert await response == (0, 0)


def leader_by(address: str, topic: str) -> tuple[int, int]:
    """Return the leader and leader epoch of the first partition."""
    request = metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name=topic)])
    with WireClient(address) as client:
        found = client.send_request(apis.METADATA, request, metadata.MetadataResponse)
    (partition,) = found.topics[0].partitions
    return partition.leader_id, partition.leader_epoch
