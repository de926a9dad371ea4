"""Measure Spark and the Arrow reader: `python -m benchmarks.spark [--bytes 2GB] [--only scan,...]`.

The scan reads incompressible 1 KB rows from a store of local files, compared with Parquet files of
the same rows. Both alternate, and ratios are medians over the rounds. `ceiling` measures a Python
data source that does no work.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from benchmarks.ceiling import CeilingSource
from benchmarks.decode import Decoding
from benchmarks.harness import Measure, quantile, record, table_of
from benchmarks.manifest import planning
from benchmarks.spark_rounds import (
    CONSOLE,
    CORES,
    Turns,
    parsed_bytes,
    spark_session,
    until_settled,
    write_parquet,
)
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.local.handle import LocalCluster
from penstock.lake.fetch.limits import ReadConfig

TOPIC: Final = "bench"
PARTITIONS: Final = 4
VALUE_BYTES: Final = 1_024
WARM_UPS: Final = 8
"""Scan rounds that are not counted, because Spark's JVM is still compiling: C2 alone takes a tenth
of the CPU time in the third round and 2 to 5 % from the eighth on.
"""
ROUNDS: Final = 5

TASK_BYTES: Final = 128 << 20
CONSUME_TIMEOUT_S: Final = 600.0
FRESH_RECORDS: Final = 6_000
FRESH_PER_S: Final = 200
FRESH_TIMEOUT_S: Final = 60.0


def produce(bootstrap: str, count: int) -> None:
    """Produce values that are windows of one pool of noise: incompressible and cheap to
    generate.
    """
    pool = Random(7).randbytes(4 << 20)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "acks": "all",
            "linger.ms": 50,
            "batch.size": 1_000_000,
            "queue.buffering.max.kbytes": 1 << 18,
        }
    )
    for number in range(count):
        at = number * 2_654_435_761 % (len(pool) - VALUE_BYTES)
        while True:
            try:
                producer.produce(
                    TOPIC, pool[at : at + VALUE_BYTES], b"key-%011d" % number, number % PARTITIONS
                )
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1_000 == 0:
            producer.poll(0)
    if producer.flush(300):
        raise RuntimeError("not everything was acknowledged within 300 s")


def consume(bootstrap: str, ends: dict[int, int], *, tuned: bool) -> int:
    """Sum the value lengths through the broker, record by record, as in the client's documentation.

    tuned: librdkafka does not pause for 1 s whenever its queue is full, which may take most of the
    time of a consumer with default settings.
    """
    hasty = {"fetch.queue.backoff.ms": 5}
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            **(hasty if tuned else {}),
        }
    )
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in ends])
        left, total_bytes, deadline = sum(ends.values()), 0, time.monotonic() + CONSUME_TIMEOUT_S
        while left:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                total_bytes += len(message.value() or b"")
                left -= 1
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{left:,} records did not come within {CONSUME_TIMEOUT_S:.0f} s"
                )
    finally:
        consumer.close()
    return total_bytes


def measured_scan(size_bytes: int, between: Callable[[], None]) -> list[Measure]:
    """Measure scans. between: called between rounds, for measurements throughout the run."""

    count = size_bytes // VALUE_BYTES
    directory = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        arguments = (
            "--store",
            f"file:{directory / 'store'}",
            "--brokers",
            "1",
            "--log-level",
            "error",
        )
        with LocalCluster(arguments) as cluster:
            state = cluster.state()
            Kafka(state.bootstrap).create_topic(TOPIC, PARTITIONS, -1, {})
            CONSOLE.print(f"producing {count:,} records of {VALUE_BYTES} bytes")
            produce(state.bootstrap, count)
            ends = {
                item.partition: item.end_offset
                for item in until_settled(state.store_url, TOPIC, count)
            }
            (directory / "parquet").mkdir()
            write_parquet(state.store_url, TOPIC, directory / "parquet", PARTITIONS)
            pid = cluster.brokers()[0].pid
            assert pid is not None
            turns = Turns(pid, directory)
            with spark_session() as spark:
                scans = Scans(spark, state.store_url, directory / "parquet", count)
                for _ in range(WARM_UPS):
                    scans.take(turns, counts=False)
                # The sides alternate, because the machine is twice as fast in some minutes as in
                # others.
                for _ in range(ROUNDS):
                    scans.take(turns)
                    turns.take(
                        "consumer",
                        lambda: consume(state.bootstrap, ends, tuned=False),
                        count * VALUE_BYTES,
                    )
                    turns.take(
                        "tuned consumer",
                        lambda: consume(state.bootstrap, ends, tuned=True),
                        count * VALUE_BYTES,
                    )
                    between()
    finally:
        shutil.rmtree(directory)
    return _scan_measures(turns, count * VALUE_BYTES)


class Scans:
    """The topic, the same rows as Parquet, and prepared batches, in one Spark session."""

    def __init__(self, spark: SparkSession, store_url: str, parquet: Path, count: int) -> None:
        self._spark = spark
        self._store_url = store_url
        self._parquet = str(parquet)
        self._count = count
        spark.dataSource.register(CeilingSource)

    def take(self, turns: Turns, *, counts: bool = True) -> None:
        total_bytes = self._count * VALUE_BYTES
        turns.take("ceiling", lambda: _bytes_in(self._ceiling()), total_bytes, counts=counts)
        turns.take(
            "ceiling, value", lambda: _bytes_in(self._ceiling("value")), total_bytes, counts=counts
        )
        turns.take(
            "parquet",
            lambda: _bytes_in(self._spark.read.parquet(self._parquet)),
            total_bytes,
            counts=counts,
        )
        turns.take("full", lambda: _bytes_in(self._log()), total_bytes, counts=counts)
        turns.take("value", lambda: _bytes_in(self._log("value")), total_bytes, counts=counts)
        turns.take(
            "two columns",
            lambda: _rows_in(self._log("partition,offset")),
            self._count,
            counts=counts,
        )

    def _log(self, columns: str = "") -> DataFrame:
        reader = (
            self._spark.read.format("penstock")
            .option("store", self._store_url)
            .option("subscribe", TOPIC)
        )
        return (reader.option("columns", columns) if columns else reader).load()

    def _ceiling(self, columns: str = "") -> DataFrame:
        tasks = -(-self._count * VALUE_BYTES // TASK_BYTES)
        reader = (
            self._spark.read.format("ceiling").option("rows", self._count).option("tasks", tasks)
        )
        reader = reader.option("value_bytes", VALUE_BYTES).option(
            "batch_bytes", ReadConfig().batch_bytes_max
        )
        return (reader.option("columns", columns) if columns else reader).load()


def _bytes_in(rows: DataFrame) -> int:
    return int(rows.selectExpr("sum(length(value))").collect()[0][0])


def _rows_in(rows: DataFrame) -> int:
    return int(rows.selectExpr("count(partition + offset)").collect()[0][0])


def _scan_measures(turns: Turns, size_bytes: int) -> list[Measure]:
    def speed(name: str) -> float:
        return size_bytes / turns.took_s(name) / 1e6

    def compared(what: str, name: str, other: str, bar: float, note: str = "") -> Measure:
        return Measure(
            what, speed(name), "MB/s", bar, "higher", speed(name) / turns.faster(name, other), note
        )

    what = f"scan of {size_bytes / 1e9:.1f} GB of 1 KB records, local[{CORES}], sum(length(value))"
    tuned = (
        f"with fetch.queue.backoff.ms=5: {speed('tuned consumer'):,.0f} MB/s; ready-made batches:"
        f" {speed('ceiling'):,.0f} MB/s"
    )
    return [
        compared(f"{what} / the same from Parquet", "full", "parquet", 0.5),
        compared("the same, with columns=value / Parquet", "value", "parquet", 0.5),
        compared(
            "the same scan / confluent-kafka counting through the broker",
            "full",
            "consumer",
            3,
            tuned,
        ),
        compared("the same, with columns=value / that consumer", "value", "consumer", 3),
        compared(
            "the same, with columns=value / ready-made batches of it",
            "value",
            "ceiling, value",
            0.6,
        ),
        Measure(
            "broker's CPU during that scan",
            turns.broker_share("full") * 100,
            "% of a core",
            5,
            "lower",
        ),
        compared("scan of two columns / the full scan", "two columns", "full", 1.5),
    ]


# --- freshness ------------------------------------------------------------------------------------


class Sightings:
    """When each record was acknowledged and when a micro-batch received it, in seconds of one
    clock.
    """

    def __init__(self) -> None:
        self.acknowledged: dict[bytes, float] = {}
        self.seen: dict[bytes, float] = {}

    def on_delivery(self, error: object, message: Any) -> None:  # noqa: ANN401 - a message of the client
        if error is None:
            self.acknowledged[message.key()] = time.monotonic()

    def on_batch(self, rows: DataFrame, _batch_id: int) -> None:
        keys = [bytes(row[0]) for row in rows.select("key").collect()]
        now = time.monotonic()
        for key in keys:
            self.seen.setdefault(key, now)


def measured_freshness() -> list[Measure]:
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as checkpoint,
        LocalCluster(("--brokers", "1", "--log-level", "error")) as cluster,
        spark_session() as spark,
    ):
        state = cluster.state()
        Kafka(state.bootstrap).create_topic(TOPIC, PARTITIONS, -1, {})
        until_settled(state.store_url, TOPIC, 0)
        sightings = Sightings()
        rows = (
            spark.readStream.format("penstock")
            .option("store", state.store_url)
            .option("subscribe", TOPIC)
        )
        rows = rows.option("startingOffsets", "earliest").option("columns", "key")
        query = (
            rows.load()
            .writeStream.foreachBatch(sightings.on_batch)
            .trigger(processingTime="1 second")
            .option("checkpointLocation", checkpoint)
            .start()
        )
        producer = Producer({"bootstrap.servers": state.bootstrap, "acks": "all", "linger.ms": 5})
        try:
            _warm_up(producer, sightings)
            _send_steadily(producer, sightings)
        finally:
            query.stop()
    late_s = [
        sightings.seen[key] - at
        for key, at in sightings.acknowledged.items()
        if key.startswith(b"r")
    ]
    note = (
        f"{len(late_s):,} records, median {quantile(late_s, 0.5):.2f} s, worst {max(late_s):.2f} s"
    )
    return [
        Measure(
            "acknowledged to visible in a 1-second micro-batch, p99",
            quantile(late_s, 0.99),
            "s",
            3,
            "lower",
            note=note,
        )
    ]


def _warm_up(producer: Producer, sightings: Sightings) -> None:
    """Run the first micro-batches, which start workers and load code."""
    for number in range(3):
        key = b"warm-%d" % number
        producer.produce(TOPIC, b"", key, on_delivery=sightings.on_delivery)
        producer.flush(30)
        _until_seen(sightings, {key}, 3 * FRESH_TIMEOUT_S)


def _send_steadily(producer: Producer, sightings: Sightings) -> None:
    began, keys = time.monotonic(), [b"r%d" % number for number in range(FRESH_RECORDS)]
    for number, key in enumerate(keys):
        while (wait_s := began + number / FRESH_PER_S - time.monotonic()) > 0:
            producer.poll(wait_s)
        producer.produce(
            TOPIC, b"x" * 100, key, number % PARTITIONS, on_delivery=sightings.on_delivery
        )
    producer.flush(30)
    _until_seen(sightings, set(keys), FRESH_TIMEOUT_S)


def _until_seen(sightings: Sightings, keys: set[bytes], timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while missing := len(keys - sightings.seen.keys()):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{missing:,} records were not seen within {timeout_s:.0f} s")
        time.sleep(0.05)


# --- the run --------------------------------------------------------------------------------------

PARTS: Final = ("decode", "planning", "scan", "freshness")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument(
        "--bytes", type=parsed_bytes, default="2GB", help="bytes to scan (default: 2GB)"
    )
    parser.add_argument(
        "--only", default=",".join(PARTS), help=f"parts to measure: {', '.join(PARTS)}"
    )
    arguments = parser.parse_args()
    chosen, measures = arguments.only.split(","), list[Measure]()
    decoding = Decoding() if "decode" in chosen else None
    works: dict[str, Callable[[], list[Measure]]] = {
        "planning": planning,
        "scan": lambda: measured_scan(arguments.bytes, decoding.take if decoding else lambda: None),
        "freshness": measured_freshness,
    }
    if unknown := [name for name in chosen if name not in PARTS]:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    for name in chosen:
        CONSOLE.print(f"measuring {name} ...")
        if decoding:
            decoding.take()  # throughout the run
        if name in works:
            measures += works[name]()
    if decoding:
        measures = decoding.measures() + measures
    Console(width=160).print(table_of(measures))
    record(measures, datetime.now(UTC).isoformat(timespec="seconds"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
