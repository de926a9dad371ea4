"""Gauges while something is wrong: what waits shows with its age, and is gone when it is over; totals outlive their partitions."""

import asyncio
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.cluster import Cluster, until

from broker.health import BrokerHealth, StoreProbe
from broker.node import Broker
from controller.health import ControllerHealth
from controller.main import ControllerServer
from deploy.metrics import table
from deploy.metrics.broker import BrokerReader
from deploy.metrics.controller import ControllerReader
from deploy.metrics.table import Metric
from objectstore.errors import Unavailable
from objectstore.histogram import Latencies
from objectstore.memory import MemoryStore
from objectstore.metered import MeteredStore, StoreMeter
from objectstore.ports import Body
from objectstore.retry import RetryingStore


class GatedStore(MemoryStore):
    """Conditional writes below `closed` wait until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = ""
        self.opened = asyncio.Event()

    async def put_if_absent(self, key: str, body: Body) -> str:
        if self.closed and key.startswith(self.closed):
            await self.opened.wait()
        return await super().put_if_absent(key, body)


async def put() -> None: ...


def of_broker(broker: Broker) -> dict[tuple[Metric, tuple[str, ...]], float | Latencies]:
    health = BrokerHealth()
    health.started(broker, StoreProbe(put))
    return {(metric, labels): value for metric, labels, value in BrokerReader(health)()}


def of_controller(server: ControllerServer | None) -> dict[tuple[Metric, tuple[str, ...]], float | Latencies]:
    assert server is not None
    return {(metric, labels): value for metric, labels, value in ControllerReader(ControllerHealth(server))()}


def produce(bootstrap: str, producer: Producer) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})  # held until the answer is here: its futures die with it
    admin.create_topics([NewTopic("orders", 2, 1)])["orders"].result(20)
    for number in range(10):
        producer.produce("orders", b"x" * 100, partition=number % 2)
    producer.poll(0)


async def test_appends_that_wait_for_the_store_show_until_they_are_acknowledged(tmp_path: Path) -> None:
    store = GatedStore()
    async with Cluster(tmp_path, store=store) as cluster:
        broker = cluster.broker
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        await asyncio.to_thread(produce, cluster.bootstrap, producer)
        assert await asyncio.to_thread(producer.flush, 20) == 0
        assert of_broker(broker)[table.WAL_WAITING_AGE, ()] == 0
        store.closed = "wal/"
        producer.produce("orders", b"y" * 1_000, partition=0)
        producer.poll(0)
        await until(lambda: of_broker(broker)[table.WAL_IN_FLIGHT, ()] == 1)
        told = of_broker(broker)
        waiting, age = told[table.WAL_WAITING, ()], told[table.WAL_WAITING_AGE, ()]
        assert not isinstance(waiting, Latencies)
        assert not isinstance(age, Latencies)
        assert waiting > 1_000
        assert age > 0
        store.opened.set()
        assert await asyncio.to_thread(producer.flush, 20) == 0
        told = of_broker(broker)
        assert (told[table.WAL_WAITING, ()], told[table.WAL_WAITING_AGE, ()], told[table.WAL_IN_FLIGHT, ()]) == (0, 0, 0)
        backlog, limit = told[table.WAL_BACKLOG, ()], told[table.WAL_BACKLOG_MAX, ()]
        assert not isinstance(backlog, Latencies)
        assert backlog > 1_000
        assert limit == broker.stream_config.log_cache_bytes_max


async def test_totals_outlive_their_partitions(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        broker = cluster.broker
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        await asyncio.to_thread(produce, cluster.bootstrap, producer)
        assert await asyncio.to_thread(producer.flush, 20) == 0
        before = of_broker(broker)
        assert before[table.PRODUCED_RECORDS, ()] == 10
        assert before[table.PARTITIONS, ("serving",)] == before[table.OPENED, ()] == 2
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        await asyncio.to_thread(admin.delete_topics(["orders"])["orders"].result, 20)
        await until(lambda: of_broker(broker)[table.CLOSED, ()] == 2)
        after = of_broker(broker)
        assert after[table.PARTITIONS, ("serving",)] == 0
        for metric in (table.PRODUCED_RECORDS, table.PRODUCED_BYTES, table.OPENED):
            assert after[metric, ()] == before[metric, ()]


async def test_metadata_that_the_store_lacks_have_an_age(tmp_path: Path) -> None:
    store = GatedStore()
    async with Cluster(tmp_path, store=store) as cluster:
        await until(lambda: of_controller(cluster.controller)[table.BACKUP_RECORDS, ()] == 0)
        assert of_controller(cluster.controller)[table.BACKUP_AGE, ()] == 0
        store.closed = "meta/"
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        creating = admin.create_topics([NewTopic("orders", 1, 1)])["orders"]
        await until(lambda: of_controller(cluster.controller)[table.BACKUP_RECORDS, ()] != 0)
        await until(lambda: of_controller(cluster.controller)[table.BACKUP_AGE, ()] != 0)
        store.opened.set()
        await asyncio.to_thread(creating.result, 20)
        await until(lambda: of_controller(cluster.controller)[table.BACKUP_RECORDS, ()] == 0)
        assert of_controller(cluster.controller)[table.BACKUP_AGE, ()] == 0


async def test_every_attempt_of_a_repeated_request_is_counted() -> None:
    class Flaky(MemoryStore):
        failures = 2

        async def put(self, key: str, body: Body) -> str:
            if self.failures:
                self.failures -= 1
                raise Unavailable("put", key, "busy")
            return await super().put(key, body)

    meter = StoreMeter()
    store = RetryingStore(MeteredStore(Flaky(), meter))
    await store.put("a", b"123")
    stats = meter.snapshot().operations["put"]
    assert (stats.count, dict(stats.errors), stats.written_bytes) == (3, {"Unavailable": 2}, 3)
