"""Measure latency and bytes of consuming new records in the rack, compared with consuming from the
leader.

`python -m benchmarks.rack_tails [--put-ms 30] [--get-ms 15] [--rate 200] [--seconds 20]` runs three
brokers in three racks and two librdkafka consumers, with and without a rack, in one process.
"""

import argparse
import asyncio
import statistics
import tempfile
import threading
import time
from pathlib import Path
from random import Random
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition

from penstock.broker.node import Broker
from penstock.objectstore.faults import FaultConfig, FaultyStore, Latency, Selection
from penstock.objectstore.memory import MemoryStore
from tests.support.clients import create_topic
from tests.support.cluster import Cluster
from tests.support.waiting import until

_TOPIC: Final = "t"
_RACKS: Final = ("a", "b", "c")
_WARM_SHARE: Final = 0.25
"""Share of the records that are not measured, because consumers are still finding their broker."""
_TAIL_ONES: Final = 99


def slow(store: MemoryStore, put_ms: float, get_ms: float) -> FaultyStore:
    gets = Selection(frozenset({"get", "get_range", "get_tail"}))
    return FaultyStore(
        store,
        Random(1),
        FaultConfig(latencies=(Latency(get_ms, get_ms, gets), Latency(put_ms, put_ms))),
    )


class Reader(threading.Thread):
    """A consumer of all partitions. Each value starts with the time of its record."""

    def __init__(self, bootstrap: str, rack: str, partitions: int, count: int) -> None:
        super().__init__(daemon=True)
        settings: dict[str, Any] = {"client.rack": rack} if rack else {}
        settings |= {
            "bootstrap.servers": bootstrap,
            "group.id": rack or "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(_TOPIC, at, 0) for at in range(partitions)])
        self._count = count
        self.took_ms: list[float] = []

    def run(self) -> None:
        while len(self.took_ms) < self._count:
            message = self._consumer.poll(1.0)
            if message is not None:
                sent_s = float((message.value() or b"").split(b" ", 1)[0])
                self.took_ms.append((time.monotonic() - sent_s) * 1_000)
        self._consumer.close()

    def figures(self) -> tuple[float, float]:
        """Return p50 and p99 in milliseconds."""
        counted = self.took_ms[int(_WARM_SHARE * self._count) :]
        return statistics.median(counted), statistics.quantiles(counted, n=100)[_TAIL_ONES - 1]


def produce(bootstrap: str, options: argparse.Namespace) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    padding = bytes(options.value_bytes)
    began, count = time.monotonic(), int(options.rate * options.seconds)
    for number in range(count):
        time.sleep(max(0.0, began + number / options.rate - time.monotonic()))
        producer.produce(
            _TOPIC, b"%.6f " % time.monotonic() + padding, partition=number % options.partitions
        )
        producer.poll(0)
    producer.flush()


def sent_bytes(brokers: list[Broker]) -> tuple[int, int]:
    """Return the batch bytes sent by leaders, and those sent by other brokers."""
    by_leaders = sum(partition.bytes_out for broker in brokers for partition in broker.partitions)
    return by_leaders, sum(broker.partitions.committed_reads.size_bytes for broker in brokers)


async def measure(options: argparse.Namespace, folder: Path) -> None:
    shared = MemoryStore()
    stores = {at: slow(shared, options.put_ms, options.get_ms) for at in range(len(_RACKS))}
    async with Cluster(folder, brokers=0, store=shared, stores=stores) as cluster:
        for node_id, rack in enumerate(_RACKS):
            await cluster.start_broker(node_id, rack=rack)
        await asyncio.to_thread(create_topic, cluster.bootstrap, _TOPIC, options.partitions)
        await cluster.until_served(_TOPIC)
        brokers = list(cluster.brokers.values())
        leader = cluster.leader_of(_TOPIC)
        near = cluster.brokers[(leader + 1) % len(_RACKS)]
        await until(lambda: cluster.brokers[leader].tail_followers.has(near.node_id))
        count = int(options.rate * options.seconds)
        rack = "" if options.without_rack else near.config.rack or ""
        readers = [
            Reader(cluster.bootstrap, each, options.partitions, count)
            for each in ("", rack)
            for _ in range(options.consumers)
        ]
        for reader in readers:
            reader.start()
        began_s = time.thread_time()
        await asyncio.to_thread(produce, cluster.bootstrap, options)
        await until(lambda: not any(reader.is_alive() for reader in readers))
        cpu_s = time.thread_time() - began_s
        for where, reader in (("of leaders", readers[0]), ("in the rack", readers[-1])):
            p50_ms, p99_ms = reader.figures()
            print(f"{where:12} p50 {p50_ms:.0f}, p99 {p99_ms:.0f} ms")
        print(f"CPU of all brokers: {cpu_s / options.seconds:.2f} cores")
        by_leaders, by_others = sent_bytes(brokers)
        print(f"MB of batches: {by_leaders / 1e6:.1f} by leaders, {by_others / 1e6:.1f} by others")
        for reader in readers:
            await asyncio.to_thread(reader.join)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--put-ms", type=float, default=30.0)
    parser.add_argument("--get-ms", type=float, default=15.0)
    parser.add_argument(
        "--consumers",
        type=int,
        default=1,
        help="consumers in the rack; the same number reads from the leaders",
    )
    parser.add_argument(
        "--without-rack", action="store_true", help="let all consumers read from the leaders"
    )
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--value-bytes", type=int, default=1_000)
    parser.add_argument("--rate", type=float, default=200.0, help="records a second")
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(options, Path(folder)))


if __name__ == "__main__":
    main()
