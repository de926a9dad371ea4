# ruff: noqa: T201 - a command that prints its results
"""Upgrade and scale a cluster of the chart under a load of 5 MB/s: `python -m tests.helm`.

Brokers and controllers are upgraded in turn, then brokers are scaled from 3 to 6 and to 2.
Processes run the commands of the chart. Exits with 1 if a produce request fails, or if a record is
lost or duplicated.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tests.support.chart import render
from tests.support.chart_cluster import ChartCluster

TOPIC = "bar"
PARTITIONS = 24
RECORD_BYTES = 1_000
VALUES = {
    "store.bucket": "records",
    "security.allowInsecure": True,
    "moto.enabled": True,
    "brokers.replicas": 3,
    "config.broker": {"group.initial.rebalance.delay.ms": 0},
}


class Traffic:
    """Produces and consumes at a given rate until it is stopped."""

    def __init__(self, bootstrap: str, bytes_per_s: float) -> None:
        self._bootstrap = bootstrap
        self._interval_s = RECORD_BYTES / bytes_per_s
        self._producing, self._consuming = True, True
        self.acknowledged: Counter[int] = Counter()
        self.received: defaultdict[int, set[tuple[int, int]]] = defaultdict(set)
        """The partition and offset of each number. A consumer that rejoins its group may read a
        record again, but a number at two offsets is a duplicate.
        """
        self.failed: list[KafkaError] = []
        self.sent = 0
        self.longest_pause_s = 0.0
        self._acknowledged_at = time.monotonic()
        self._threads = [
            threading.Thread(target=self._produce, daemon=True),
            threading.Thread(target=self._consume, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 5}
        )
        began = time.monotonic()
        while self._producing:
            due = int((time.monotonic() - began) / self._interval_s)
            while self.sent < due:
                producer.produce(
                    TOPIC,
                    b"%0*d" % (RECORD_BYTES, self.sent),
                    partition=self.sent % PARTITIONS,
                    on_delivery=self._delivered,
                )
                self.sent += 1
                producer.poll(0)
            producer.poll(0.005)
        producer.flush(120)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        now = time.monotonic()
        self.longest_pause_s = max(self.longest_pause_s, now - self._acknowledged_at)
        self._acknowledged_at = now
        if error is not None:
            self.failed.append(error)
        else:
            self.acknowledged[int(message.value() or b"")] += 1

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "bar",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([TOPIC])
        while self._consuming:
            for message in consumer.consume(5_000, 0.2):
                if message.error() is None:
                    self.received[int(message.value() or b"")].add(
                        (message.partition(), message.offset())
                    )
        consumer.close()

    def pause_since(self) -> float:
        """Return the longest pause since the last call."""
        found, self.longest_pause_s = self.longest_pause_s, 0.0
        return found

    def stop(self) -> None:
        self._producing = False
        self._threads[0].join()
        deadline = time.monotonic() + 120
        while len(self.received) < len(self.acknowledged) and time.monotonic() < deadline:
            time.sleep(0.1)
        self._consuming = False
        self._threads[1].join()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.helm", allow_abbrev=False)
    parser.add_argument("--bytes-per-s", type=float, default=5e6)
    requested = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as directory,
        ChartCluster(render(VALUES), Path(directory)) as cluster,
    ):
        cluster.wait_ready()
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic(TOPIC, PARTITIONS)])[TOPIC].result()
        traffic = Traffic(cluster.bootstrap, requested.bytes_per_s)
        steps = [
            ("steady", lambda: time.sleep(5)),
            ("rolling upgrade of brokers", lambda: cluster.roll("broker")),
            ("rolling upgrade of controllers", lambda: cluster.roll("controller")),
            ("scale-out 3 to 6", lambda: cluster.scale("broker", 6)),
            ("scale-in 6 to 2", lambda: cluster.scale("broker", 2)),
        ]
        for name, step in steps:
            began = time.monotonic()
            step()
            print(
                f"{name}: {time.monotonic() - began:.1f} s, longest pause of all acknowledgements"
                f" {traffic.pause_since():.2f} s"
            )
        traffic.stop()
    lost = [number for number in traffic.acknowledged if number not in traffic.received]
    repeated = sum(1 for places in traffic.received.values() if len(places) > 1)
    print(
        f"{traffic.sent:,} sent, {len(traffic.failed)} failed, {len(lost)} lost, {repeated} twice"
    )
    return (
        1 if traffic.failed or lost or repeated or len(traffic.acknowledged) != traffic.sent else 0
    )


if __name__ == "__main__":
    sys.exit(main())
