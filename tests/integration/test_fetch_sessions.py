"""A consumer with fetch sessions gets every record once, even if its sessions are lost."""

import asyncio
import threading

import pytest
from kafka import KafkaConsumer, TopicPartition

from tests.integration.test_broker_moves import move
from tests.support.clients import TIMEOUT_S, produce
from tests.support.cluster import Cluster
from tests.support.waiting import until

TOPIC = "orders"
PARTITIONS = 6

pytestmark = pytest.mark.cluster(brokers=2, topics={TOPIC: PARTITIONS})


class Reader:
    """Reads all partitions in a thread until `stop`. kafka-python uses fetch sessions."""

    def __init__(self, bootstrap: str) -> None:
        self.values: list[bytes] = []
        self._consumer = KafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            metadata_max_age_ms=500,
            fetch_max_wait_ms=50,
            retry_backoff_ms=20,
        )
        self._consumer.assign([TopicPartition(TOPIC, index) for index in range(PARTITIONS)])
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            for records in self._consumer.poll(100).values():
                self.values += [record.value for record in records]

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(TIMEOUT_S)
        self._consumer.close()


async def write(cluster: Cluster, first: int, count: int) -> list[bytes]:
    values = [b"%d" % number for number in range(first, first + count)]
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values, range(PARTITIONS))
    return values


async def test_every_record_is_delivered_once_while_sessions_change_and_are_lost(
    cluster: Cluster,
) -> None:
    written = await write(cluster, 0, 60)
    reader = await asyncio.to_thread(Reader, cluster.bootstrap)
    try:
        await until(lambda: len(reader.values) == len(written))
        sessions = [broker.fetch_sessions for broker in cluster.brokers.values()]
        await until(lambda: sum(each.partition_count for each in sessions) == PARTITIONS)
        # Partitions move from the session with one broker to the session with the other.
        for partition in range(PARTITIONS):
            await move(cluster, TOPIC, partition % 2, partition=partition)
        written += await write(cluster, 60, 60)
        await until(lambda: len(reader.values) == len(written))
        # All sessions are lost, as when brokers restart.
        for each in sessions:
            for session in list(each._sessions.values()):
                each._remove(session)
        written += await write(cluster, 120, 60)
        await until(lambda: len(reader.values) == len(written))
    finally:
        await asyncio.to_thread(reader.stop)
    assert sorted(reader.values, key=int) == written
