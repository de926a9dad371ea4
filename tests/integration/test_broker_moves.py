"""Planned partition moves as unmodified clients see them: no record is lost, duplicated or
reordered when a process dies or hangs during the move.
"""

import asyncio
import itertools
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient
from kafka.errors import (
    ElectionNotNeededError,
    InvalidReplicationAssignmentError,
    NoReassignmentInProgressError,
)

from penstock.base.ids import NodeId
from penstock.controller.api.messages import (
    AlterReassignments,
    CreateTopics,
    MoveTrace,
    NewTopic,
    PartitionTarget,
    TraceMove,
)
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import Body
from tests.support.cluster import Cluster
from tests.support.steady import SteadyProducer
from tests.support.waiting import PATIENCE_S, until

TIMEOUT_S = PATIENCE_S


class GatedStore:
    """A broker's connection to the shared store, which can hold PUTs."""

    def __init__(self, shared: MemoryStore) -> None:
        self._shared = shared
        self.is_open = asyncio.Event()
        self.is_open.set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared, name)

    async def put_if_absent(self, key: str, body: Body) -> str:
        await self.is_open.wait()
        return await self._shared.put_if_absent(key, body)


async def create(cluster: Cluster, name: str, *candidates: int, partitions: int = 1) -> None:
    row = [NodeId(node_id) for node_id in candidates]
    await cluster.broker.client.create_topics(
        CreateTopics(topics=[NewTopic(name=name, assignment=[row] * partitions)])
    )
    for index in range(partitions):
        await cluster.until_served(name, index)


async def move(cluster: Cluster, topic: str, *replicas: int, partition: int = 0) -> None:
    target = PartitionTarget(
        topic=topic, partition=partition, replicas=[NodeId(node_id) for node_id in replicas]
    )
    items = (
        await cluster.broker.client.alter_reassignments(AlterReassignments(partitions=[target]))
    ).items
    assert not items[0].status, items[0].detail


async def consume(bootstrap: str, topic: str, count: int, **settings: Any) -> list[int]:
    async with (
        asyncio.timeout(TIMEOUT_S),
        AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", **settings
        ) as consumer,
    ):
        return [int((await consumer.getone()).value) for _ in range(count)]


async def test_moves_under_load_lose_duplicate_and_reorder_no_record(tmp_path: Path) -> None:
    async with Cluster(tmp_path, brokers=3) as cluster:
        await create(cluster, "t", 0)
        producer = SteadyProducer(cluster.bootstrap, "t")
        async with AIOKafkaConsumer(
            "t", bootstrap_servers=cluster.bootstrap, auto_offset_reset="earliest"
        ) as consumer:
            seen: list[int] = []
            for target in itertools.islice(itertools.cycle((1, 2, 0)), 9):
                await producer.until_acknowledged(40)
                await move(cluster, "t", target)
                await until(lambda target=target: cluster.leader_of("t") == target)
                seen.append(int((await asyncio.wait_for(consumer.getone(), TIMEOUT_S)).value))
            await producer.until_acknowledged(40)
            sent = await producer.stop()
            assert producer.acknowledged == list(range(sent))
            async with asyncio.timeout(TIMEOUT_S):
                while len(seen) < sent:
                    seen.append(int((await consumer.getone()).value))
            assert seen == list(range(sent))
        assert await consume(cluster.bootstrap, "t", sent) == list(range(sent))
        record = cluster.broker.image.topics.by_name("t").partitions[0]
        assert (record.leader_epoch, record.replicas) == (9, (0,))


async def test_admin_clients_alter_list_and_cancel_reassignments_and_elect_leaders(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    gate = GatedStore(store)
    async with Cluster(
        tmp_path,
        brokers=3,
        store=store,
        stores={0: gate},
        controller_settings={"move_timeout_ms": 600_000},  # the move waits until it is canceled
    ) as cluster:
        await create(cluster, "t", 0)
        t = TopicPartition("t", 0)
        producer = SteadyProducer(cluster.bootstrap, "t")
        await producer.until_acknowledged(5)
        admin = await asyncio.to_thread(KafkaAdminClient, bootstrap_servers=cluster.bootstrap)
        try:
            assert await asyncio.to_thread(admin.list_partition_reassignments) == {}
            gate.is_open.clear()
            assert await asyncio.to_thread(admin.alter_partition_reassignments, {t: [1, 2]}) == {
                t: None
            }
            ongoing = await asyncio.to_thread(admin.list_partition_reassignments)
            assert ongoing == {
                t: {"replicas": [1, 2, 0], "adding_replicas": [1, 2], "removing_replicas": [0]}
            }
            assert (
                await asyncio.to_thread(admin.list_partition_reassignments, {"t": [0, 5], "u": [0]})
                == ongoing
            )
            assert await asyncio.to_thread(admin.alter_partition_reassignments, {t: None}) == {
                t: None
            }
            assert await asyncio.to_thread(admin.list_partition_reassignments) == {}
            response = await asyncio.to_thread(
                admin.alter_partition_reassignments, {t: None, TopicPartition("t", 9): [1]}
            )
            assert response[t] is NoReassignmentInProgressError
            gate.is_open.set()
            await until(lambda: cluster.leader_of("t") == 0)
            response = await asyncio.to_thread(admin.alter_partition_reassignments, {t: [77]})
            assert response[t] is InvalidReplicationAssignmentError
            assert await asyncio.to_thread(admin.alter_partition_reassignments, {t: [2, 0]}) == {
                t: None
            }
            assert cluster.leader_of("t") == 0, "it is still a candidate"
            await asyncio.to_thread(admin.elect_leaders, 0, {"t": [0]})
            await until(lambda: cluster.leader_of("t") == 2)
            response = await asyncio.to_thread(
                admin.elect_leaders, 0, {"t": [0]}, raise_errors=False
            )
            assert response.replica_election_results[0][1][0][1] == ElectionNotNeededError.errno
        finally:
            await asyncio.to_thread(admin.close)
        sent = await producer.stop()
        assert await consume(cluster.bootstrap, "t", sent) == list(range(sent))


async def test_hanging_source_of_a_move_is_fenced_and_its_partition_recovered(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    gate = GatedStore(store)
    async with Cluster(
        tmp_path,
        brokers=3,
        store=store,
        stores={1: gate},
        controller_settings={"move_timeout_ms": 1_500},
    ) as cluster:
        await create(cluster, "t", 1)
        producer = SteadyProducer(cluster.bootstrap, "t")
        await producer.until_acknowledged(20)
        gate.is_open.clear()
        await move(cluster, "t", 2)
        hung = cluster.brokers.pop(1)
        async with asyncio.timeout(TIMEOUT_S):
            assert "fenced" in await hung.ended
        await hung.abandon()
        await until(lambda: cluster.leader_of("t") == 2)
        await producer.until_acknowledged(20)
        gate.is_open.set()
        sent = await producer.stop()
        assert producer.acknowledged == list(range(sent))
        assert await consume(cluster.bootstrap, "t", sent) == list(range(sent))


async def test_partition_survives_a_crash_of_the_source_or_target_during_a_move(
    tmp_path: Path,
) -> None:
    store = MemoryStore()
    gate = GatedStore(store)
    async with Cluster(tmp_path, brokers=4, store=store, stores={1: gate}) as cluster:
        await create(cluster, "t", 1)
        producer = SteadyProducer(cluster.bootstrap, "t")
        await producer.until_acknowledged(20)
        gate.is_open.clear()
        await move(cluster, "t", 2, 3)
        await cluster.kill_broker(2)
        await cluster.kill_broker(1)
        gate.is_open.set()
        await until(lambda: cluster.leader_of("t") in (0, 3))
        await producer.until_acknowledged(20)
        sent = await producer.stop()
        assert producer.acknowledged == list(range(sent))
        assert await consume(cluster.bootstrap, "t", sent) == list(range(sent))


async def test_rolling_restart_under_load_fails_no_produce_request(tmp_path: Path) -> None:
    async with Cluster(tmp_path, brokers=3) as cluster:
        await create(cluster, "t", 0, 1, 2, partitions=12)
        producer = SteadyProducer(cluster.bootstrap, "t", partitions=12)
        for node_id in (0, 1, 2):
            await producer.until_acknowledged(100)
            await cluster.stop_broker(node_id)
            await producer.until_acknowledged(100)
            await cluster.start_broker(node_id)
        await producer.until_acknowledged(100)
        sent = await producer.stop()
        seen = await consume(cluster.bootstrap, "t", sent)
        assert sorted(seen) == list(range(sent))
        for partition in range(12):
            assert [number for number in seen if number % 12 == partition] == list(
                range(partition, sent, 12)
            ), "in order"
        assert not [
            wal
            for wal in cluster.broker.image.nodes.running_wals()
            if not cluster.broker.image.nodes.is_alive(wal.writer)
        ]


async def test_stopping_broker_redirects_clients_after_its_partitions_have_moved(
    tmp_path: Path,
) -> None:
    async with Cluster(tmp_path, brokers=2, shutdown_redirect_ms=60_000) as cluster:
        await create(cluster, "t", 1, 0)
        leaving = cluster.brokers.pop(1)
        stopping = asyncio.create_task(leaving.stop())
        await until(lambda: cluster.leader_of("t") == 0)
        async with AIOKafkaProducer(bootstrap_servers=f"127.0.0.1:{leaving.port}") as producer:
            sent = await producer.send_and_wait("t", b"0")
        assert sent.offset == 0
        assert not stopping.done()
        stopping.cancel()
        await asyncio.wait([stopping])
        await leaving.abandon()


async def test_moves_survive_a_controller_restart(tmp_path: Path) -> None:
    store = MemoryStore()
    gate = GatedStore(store)
    async with Cluster(tmp_path, brokers=3, store=store, stores={1: gate}) as cluster:
        await create(cluster, "t", 1)
        producer = SteadyProducer(cluster.bootstrap, "t")
        await producer.until_acknowledged(20)
        gate.is_open.clear()
        await move(cluster, "t", 2)
        await cluster.stop_controller()
        gate.is_open.set()
        await cluster.start_controller()
        await until(lambda: cluster.leader_of("t") == 2)
        await producer.until_acknowledged(20)
        sent = await producer.stop()
        assert await consume(cluster.bootstrap, "t", sent) == list(range(sent))


async def test_trace_of_a_finished_move_lists_its_steps(tmp_path: Path) -> None:
    async with Cluster(tmp_path, brokers=2) as cluster:
        await create(cluster, "t", 1)
        await move(cluster, "t", 0)
        topic = cluster.broker.image.topics.by_name("t")
        assert topic is not None
        async with asyncio.timeout(TIMEOUT_S):
            items: list[MoveTrace] = []
            while len(items) < 2:
                items = (
                    await cluster.broker.client.trace_move(
                        TraceMove(topic_id=topic.topic_id, partition=0)
                    )
                ).items
        assert {
            (item.node_id, item.timing.gave_up, item.timing.leader_epoch) for item in items
        } == {(1, True, 0), (0, False, 1)}


async def test_unmodified_admin_client_alters_topic_configs(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        await create(cluster, "t", 0)

        def alter(*entries: ConfigEntry) -> dict[str, str]:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
            resource = ConfigResource(ResourceType.TOPIC, "t", incremental_configs=list(entries))
            admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)
            requested = ConfigResource(ResourceType.TOPIC, "t")
            found: dict[str, Any] = admin.describe_configs([requested])[requested].result(TIMEOUT_S)
            return {name: entry.value for name, entry in found.items()}

        def entry(name: str, value: str | None, operation: AlterConfigOpType) -> ConfigEntry:
            return ConfigEntry(name, value, incremental_operation=operation)

        configs = await asyncio.to_thread(
            alter,
            entry("retention.ms", "5000", AlterConfigOpType.SET),
            entry("cleanup.policy", "compact", AlterConfigOpType.APPEND),
        )
        assert (configs["retention.ms"], configs["cleanup.policy"]) == ("5000", "delete,compact")
        configs = await asyncio.to_thread(
            alter,
            entry("retention.ms", None, AlterConfigOpType.DELETE),
            entry("cleanup.policy", "delete", AlterConfigOpType.SUBTRACT),
        )
        assert (configs["retention.ms"], configs["cleanup.policy"]) == ("604800000", "compact")
