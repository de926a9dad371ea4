"""A Kafka Streams application in Java joins a stream with a compacted table exactly once. It is
killed during the join, loses its local state, and restores the table from the compacted topic.
"""

import asyncio
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from penstock.broker.partition.partition import Partition
from penstock.stream.config import StreamConfig
from tests.support.clients import POLL_S, TIMEOUT_S, checked, create_topic
from tests.support.cluster import Cluster
from tests.support.java import JavaHome, wait_while_running
from tests.support.waiting import until, wait_until

ORDERS, CUSTOMERS, NAMED = "orders", "customers", "named"
PARTITIONS = 2
CUSTOMERS_COUNT = 20
ORDERS_COUNT = 1_500
"""Number of orders before the kill, and after it."""
KILLED_AT = 100
STRANGER, GONE = b"stranger", b"customer 0"
HOUR_MS = 3_600_000
Row = tuple[bytes, bytes | None]


@pytest.fixture(scope="session")
def table_join(java: JavaHome) -> JavaHome:
    java.compile(Path(__file__).parent / "streams" / "TableJoin.java")
    return java


# The cluster uploads within 50 ms, and looks for dirty logs and expired transactions
# ten times per second.
pytestmark = pytest.mark.cluster(
    brokers=2,
    stream_config=StreamConfig(wal_linger_ms=0, block_age_max_ms=50, wal_delete_grace_ms=500),
    log_cleaner_backoff_ms=100,
    group_min_session_timeout_ms=500,
    transaction_abort_timed_out_transaction_cleanup_interval_ms=100,
)


class Shop:
    """Writes customers and orders with given timestamps: an order is joined with the customer's
    name at its time.
    """

    def __init__(self) -> None:
        self.expected: dict[bytes, bytes] = {}
        self._names: dict[bytes, bytes] = {}
        self._time_ms = 1_700_000_000_000

    def rename(self, bootstrap: str, version: int) -> None:
        """Give every customer a new name. From version 2 on, the first customer has none."""
        customers: list[Row] = []
        for number in range(CUSTOMERS_COUNT):
            key = b"customer %d" % number
            name = None if key == GONE and version >= 2 else b"name-%d-%d" % (number, version)
            self._names[key] = name or b"null"
            customers.append((key, name))
        self._write(bootstrap, CUSTOMERS, customers)

    def order(self, bootstrap: str, prefix: bytes) -> None:
        keys = [*self._names, STRANGER]
        orders: list[Row] = []
        for number in range(ORDERS_COUNT):
            key, value = keys[number % len(keys)], b"%s%d" % (prefix, number)
            self.expected[value] = self._names.get(key, b"null")
            orders.append((key, value))
        self._write(bootstrap, ORDERS, orders)

    def _write(self, bootstrap: str, topic: str, rows: list[Row]) -> None:
        self._time_ms += HOUR_MS
        producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
        for key, value in rows:
            partition = sum(key) % PARTITIONS
            producer.produce(topic, value, key, partition, timestamp=self._time_ms)
        assert producer.flush(TIMEOUT_S) == 0


class Joined:
    """Reads the committed output of the application from the beginning."""

    def __init__(self, bootstrap: str) -> None:
        self.values: list[bytes] = []
        self._ended: set[int] = set()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "reader",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
            }
        )
        self._consumer.assign([TopicPartition(NAMED, index, 0) for index in range(PARTITIONS)])

    def has(self, count: int) -> bool:
        """Read available records; return whether there are `count`."""
        self._poll()
        return len(self.values) >= count

    def is_at_end(self) -> bool:
        """Read available records; return whether there are no more."""
        self._poll()
        return len(self._ended) == PARTITIONS

    def _poll(self) -> None:
        for message in self._consumer.consume(1_000, POLL_S):
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                self._ended.add(message.partition())
                continue
            self.values.append(checked(message).value() or b"")

    def close(self) -> None:
        self._consumer.close()


@pytest.mark.long
async def test_stream_is_joined_with_a_compacted_table(
    cluster: Cluster, table_join: JavaHome, tmp_path: Path
) -> None:
    shop = Shop()
    await asyncio.to_thread(_open, cluster.bootstrap, shop)
    await until(lambda: all(_is_cleaned(cluster, index) for index in range(PARTITIONS)))
    # The leaders still have the removed records in their log caches, so restart them.
    for node_id in list(cluster.brokers):
        await cluster.stop_broker(node_id)
        await cluster.start_broker(node_id)
    for topic in (CUSTOMERS, ORDERS, NAMED):
        for index in range(PARTITIONS):
            await cluster.until_served(topic, index)
    named = await asyncio.to_thread(_join, cluster.bootstrap, shop, table_join, tmp_path)
    assert len(named) == 2 * ORDERS_COUNT
    assert dict(value.split(b" ", 1) for value in named) == shop.expected


def _open(bootstrap: str, shop: Shop) -> None:
    create_topic(
        bootstrap,
        CUSTOMERS,
        PARTITIONS,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="0",
    )
    for topic in (ORDERS, NAMED):
        create_topic(bootstrap, topic, PARTITIONS)
    for version in range(3):
        shop.rename(bootstrap, version)
    shop.order(bootstrap, b"early-")


def _is_cleaned(cluster: Cluster, index: int) -> bool:
    leader = cluster.brokers.get(cluster.leader_of(CUSTOMERS, index))
    found = None if leader is None else leader.partitions.get(CUSTOMERS, index)
    return isinstance(found, Partition) and found.log.cleaned.end == found.high_watermark


def _join(bootstrap: str, shop: Shop, java: JavaHome, directory: Path) -> list[bytes]:
    """Run the application and return its output."""
    log, state = directory / "join.log", directory / "state"
    arguments = ("TableJoin", bootstrap, "join", str(state))
    with closing(Joined(bootstrap)) as joined:

        def run_until(count: int) -> None:
            with java.application(*arguments, log=log) as process:
                wait_while_running(process, log, lambda: joined.has(count))
                process.kill()
                process.wait(TIMEOUT_S)
            shutil.rmtree(state)

        run_until(KILLED_AT)
        assert not joined.has(ORDERS_COUNT), "the application was not killed while it joined"
        run_until(ORDERS_COUNT)
        # Compact only now, because compaction removes the old names, which a restored table would
        # then lack.
        shop.rename(bootstrap, 3)
        shop.order(bootstrap, b"late-")
        run_until(2 * ORDERS_COUNT)
    # Read again from the start: a duplicate would follow the other records.
    with closing(Joined(bootstrap)) as joined:
        wait_until(joined.is_at_end)
        return joined.values
