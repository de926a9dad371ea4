"""Requests leave no reference cycles for the cyclic garbage collector.

A cycle would keep the bytes of a request until the next collection, and that collection would
traverse tens of thousands of objects while all clients wait.
"""

import asyncio
import gc
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from tests.support.clients import PATIENT_TRANSACTION
from tests.support.cluster import Cluster
from tests.support.waiting import PATIENCE_S

TIMEOUT_S = PATIENCE_S
REPEATS = 40
OURS = ("broker.", "stream.", "objectstore.", "controller.")


@contextmanager
def garbage() -> Generator[Counter[str]]:
    """Disable the collector; on exit, count objects of Penstock that a collection finds, by class
    or function.
    """
    found: Counter[str] = Counter()
    gc.collect()
    gc.freeze()  # skip older objects: after other tests, scanning them takes seconds
    gc.disable()
    try:
        yield found
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        found.update(name for name in map(_name_of, gc.garbage) if name.startswith(OURS))
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        gc.collect()


def _name_of(found: object) -> str:
    named = found if hasattr(found, "__qualname__") else type(found)
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"


def use(bootstrap: str) -> None:
    """Send each request of a producer, a group consumer and an admin client many times."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": "t", "linger.ms": 0}
        | PATIENT_TRANSACTION
    )
    producer.init_transactions(TIMEOUT_S)
    plain = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for _ in range(REPEATS):
        plain.produce("t", b"value", partition=0)
        assert plain.flush(TIMEOUT_S) == 0
    for _ in range(REPEATS // 4):
        producer.begin_transaction()
        producer.produce("t", b"value", partition=0)
        producer.commit_transaction(TIMEOUT_S)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "g",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 10,
        }
    )
    place = TopicPartition("t", 0, 0)
    consumer.assign([place])
    for number in range(REPEATS):
        consumer.seek(TopicPartition("t", 0, number))
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        consumer.commit(offsets=[TopicPartition("t", 0, number)], asynchronous=False)
        consumer.get_watermark_offsets(place, TIMEOUT_S)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for _ in range(REPEATS):
        admin.list_topics(timeout=TIMEOUT_S)
        admin.list_offsets({place: OffsetSpec.latest()})[place].result(TIMEOUT_S)


async def test_requests_leave_no_reference_cycles(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        await asyncio.to_thread(admin.create_topics([NewTopic("t", 1, 1)])["t"].result, TIMEOUT_S)
        await cluster.until_served("t", 0)
        await asyncio.to_thread(use, cluster.bootstrap)
        with garbage() as found:
            await asyncio.to_thread(use, cluster.bootstrap)
    often = {name: count for name, count in found.items() if count >= REPEATS // 5}
    assert not often, f"left to the collector: {often}"
