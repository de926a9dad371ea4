"""Gauges during a fault: waiting work is reported with its age until the fault ends, and totals
survive their partitions.
"""

import asyncio
from pathlib import Path

from confluent_kafka import OFFSET_BEGINNING, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock.base.histogram import Latencies
from penstock.broker.health import BrokerHealth, StoreProbe
from penstock.broker.node import Broker
from penstock.controller.main import ControllerHealth, ControllerServer
from penstock.deploy.node.metrics import table
from penstock.deploy.node.metrics.broker import BrokerReader
from penstock.deploy.node.metrics.controller import ControllerReader
from penstock.deploy.node.metrics.table import Metric
from penstock.objectstore.errors import Unavailable
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.metered import MeteredStore, StoreMeter
from penstock.objectstore.ports import Body
from penstock.objectstore.retry import RetryingStore
from penstock.stream.config import StreamConfig
from tests.support.clients import confluent_consumer, create_topic, read_records
from tests.support.cluster import Cluster
from tests.support.waiting import (
    PATIENCE_S,
    until,
)


class GatedStore(MemoryStore):
    """A store in which conditional writes with the prefix `closed` wait until it is opened, and the
    next `wal_failures` writes of WAL slots fail.
    """

    def __init__(self) -> None:
        super().__init__()
        self.closed = ""
        self.opened = asyncio.Event()
        self.wal_failures = 0

    async def put_if_absent(self, key: str, body: Body) -> str:
        if self.wal_failures and key.startswith("wal/"):
            self.wal_failures -= 1
            raise Unavailable("put_if_absent", key, "busy")
        if self.closed and key.startswith(self.closed):
            await self.opened.wait()
        return await super().put_if_absent(key, body)


async def put() -> None: ...


Told = dict[tuple[Metric, tuple[str, ...]], float | Latencies]


def of_broker(broker: Broker) -> Told:
    health = BrokerHealth()
    health.started(broker, StoreProbe(put))
    return {(metric, labels): value for metric, labels, value in BrokerReader(health)()}


def of_controller(server: ControllerServer | None) -> Told:
    assert server is not None
    return {
        (metric, labels): value
        for metric, labels, value in ControllerReader(ControllerHealth(server))()
    }


def produce(bootstrap: str, producer: Producer) -> None:
    create_topic(bootstrap, "orders", 2)
    for number in range(10):
        producer.produce("orders", b"x" * 100, partition=number % 2)
    producer.poll(0)


async def test_appends_that_wait_for_the_store_are_reported_until_acknowledged(
    tmp_path: Path,
) -> None:
    store = GatedStore()
    async with Cluster(tmp_path, store=store) as cluster:
        broker = cluster.broker
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        await asyncio.to_thread(produce, cluster.bootstrap, producer)
        assert await asyncio.to_thread(producer.flush, PATIENCE_S) == 0
        assert of_broker(broker)[table.WAL_WAITING_AGE, ()] == 0
        store.closed = "wal/"
        producer.produce("orders", b"y" * 1_000, partition=0)
        producer.poll(0)
        await until(lambda: of_broker(broker)[table.WAL_IN_FLIGHT, ()] == 1)
        reported = of_broker(broker)
        waiting, age = reported[table.WAL_WAITING, ()], reported[table.WAL_WAITING_AGE, ()]
        assert not isinstance(waiting, Latencies)
        assert not isinstance(age, Latencies)
        assert waiting > 1_000
        assert age > 0
        store.opened.set()
        assert await asyncio.to_thread(producer.flush, PATIENCE_S) == 0
        reported = of_broker(broker)
        assert (
            reported[table.WAL_WAITING, ()],
            reported[table.WAL_WAITING_AGE, ()],
            reported[table.WAL_IN_FLIGHT, ()],
        ) == (0, 0, 0)
        backlog, limit = reported[table.WAL_BACKLOG, ()], reported[table.WAL_BACKLOG_MAX, ()]
        assert not isinstance(backlog, Latencies)
        assert backlog > 1_000
        assert limit == broker.stream_config.log_cache_bytes_max


def consume(bootstrap: str, count: int) -> None:
    consumer = confluent_consumer(bootstrap, "x", enable_auto_commit=False)
    consumer.assign([TopicPartition("orders", index, OFFSET_BEGINNING) for index in range(2)])
    read_records(consumer, count)
    consumer.close()


def number(told: Told, metric: Metric, *labels: str) -> float:
    """Return the value of a metric; for a histogram, its count."""
    found = told[metric, labels]
    return found.count if isinstance(found, Latencies) else found


async def test_uploads_and_cold_reads_are_counted(tmp_path: Path) -> None:
    store = GatedStore()
    async with Cluster(
        tmp_path, store=store, stream_config=StreamConfig(wal_linger_ms=0, block_age_max_ms=50)
    ) as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        store.wal_failures = 2
        await asyncio.to_thread(produce, cluster.bootstrap, producer)
        assert await asyncio.to_thread(producer.flush, PATIENCE_S) == 0
        assert number(of_broker(cluster.broker), table.WAL_RETRIES) == 2
        await until(lambda: of_broker(cluster.broker)[table.WAL_BACKLOG, ()] == 0)
        reported = of_broker(cluster.broker)
        assert number(reported, table.UPLOAD_OBJECTS) >= 1
        assert number(reported, table.UPLOAD_WRITTEN) > 1_000
        for step in ("prepare", "put", "commit"):
            assert number(reported, table.UPLOAD_LATENCY, step) >= 1
        assert number(reported, table.WAL_BACKLOG_AGE) == 0
        objects = of_controller(cluster.controller)
        assert number(objects, table.OBJECTS, "committed") == sum(
            number(objects, table.OBJECTS_COMMITTED, kind)
            for kind in ("stream", "stream_set", "wal")
        )
        assert number(objects, table.OBJECT_BYTES) > 1_000
        await asyncio.to_thread(consume, cluster.bootstrap, 10)
        assert number(of_broker(cluster.broker), table.LOG_CACHE_READS, "hit") >= 2
        assert number(of_broker(cluster.broker), table.LOG_CACHE_READS, "miss") == 0
        await cluster.stop_broker(0)
        await cluster.start_broker(0)
        for _ in range(2):
            await asyncio.to_thread(consume, cluster.bootstrap, 10)
        reported = of_broker(cluster.broker)
        assert number(reported, table.FETCHED_RECORDS) == 20
        assert number(reported, table.LOG_CACHE_READS, "miss") >= 2
        assert number(reported, table.BLOCK_CACHE_READS, "hit") >= 2, (
            "small objects come whole with their index"
        )
        assert number(reported, table.BLOCK_CACHE) > 1_000


async def test_totals_keep_their_values_after_partitions_are_closed(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        broker = cluster.broker
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        await asyncio.to_thread(produce, cluster.bootstrap, producer)
        assert await asyncio.to_thread(producer.flush, PATIENCE_S) == 0
        before = of_broker(broker)
        assert before[table.PRODUCED_RECORDS, ()] == 10
        assert before[table.PARTITIONS, ("serving",)] == before[table.OPENED, ()] == 2
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        await asyncio.to_thread(admin.delete_topics(["orders"])["orders"].result, PATIENCE_S)
        await until(lambda: of_broker(broker)[table.CLOSED, ()] == 2)
        after = of_broker(broker)
        assert after[table.PARTITIONS, ("serving",)] == 0
        for metric in (table.PRODUCED_RECORDS, table.PRODUCED_BYTES, table.OPENED):
            assert after[metric, ()] == before[metric, ()]


async def test_age_of_metadata_not_yet_in_the_store_is_reported(tmp_path: Path) -> None:
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
        await asyncio.to_thread(creating.result, PATIENCE_S)
        await until(lambda: of_controller(cluster.controller)[table.BACKUP_RECORDS, ()] == 0)
        assert of_controller(cluster.controller)[table.BACKUP_AGE, ()] == 0


async def test_every_attempt_of_a_retried_request_is_counted() -> None:
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
