"""Measure Spark and the Arrow reader: `python -m benchmarks.spark [--bytes 2GB] [--only scan,...]`.

The scan reads incompressible 1 KB rows from a store of local files, compared with Parquet files of
the same rows. Both alternate, and ratios are medians over the rounds. `ceiling` measures a Python
data source that does no work.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from benchmarks.__main__ import table_of
from benchmarks.ceiling import CeilingSource
from benchmarks.decode import Decoding
from benchmarks.harness import Measure, quantile, record
from benchmarks.manifest import planning
from penstock import scan
from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.local.handle import LocalCluster
from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.manifest.errors import UnknownPartition
from penstock.lake.manifest.view import PartitionOffsets

TOPIC: Final = "bench"
PARTITIONS: Final = 4
VALUE_BYTES: Final = 1_024
WARM_UPS: Final = 8
"""Scan rounds that are not counted, because Spark's JVM is still compiling: C2 alone takes a tenth
of the CPU time in the third round and 2 to 5 % from the eighth on.
"""
ROUNDS: Final = 5

CORES: Final = 2
TASK_BYTES: Final = 128 << 20
ROOT: Final = Path(__file__).resolve().parents[1]
ROW_GROUP_BYTES: Final = 128 << 20
SETTLED_S: Final = 120.0
CONSUME_TIMEOUT_S: Final = 600.0
FRESH_RECORDS: Final = 6_000
FRESH_PER_S: Final = 200
FRESH_TIMEOUT_S: Final = 60.0
_CONSOLE: Final = Console(stderr=True)


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # docs/reference/spark.md recommends the Unix domain socket.
    session = (
        SparkSession.builder.master(f"local[{CORES}]")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.enabled", "false")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", str(CORES))
        .getOrCreate()
    )
    try:
        yield session
    finally:
        session.stop()


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


def until_settled(store_url: str, count: int) -> list[PartitionOffsets]:
    """Wait until everything is uploaded and committed, so that the brokers are idle."""
    cluster, deadline = StoreCluster(store_url), time.monotonic() + SETTLED_S
    while time.monotonic() < deadline:
        try:
            states = cluster.partitions(TOPIC)
        except UnknownPartition:
            states = []
        if sum(state.committed_end for state in states) == count:
            return states
        time.sleep(0.5)
    raise RuntimeError(
        f"the topic's {count:,} records are not all committed after {SETTLED_S:.0f} s"
    )


def write_parquet(store_url: str, directory: Path) -> None:
    """Write one file per partition with row groups of 128 MiB and pyarrow's other defaults."""
    for partition in range(PARTITIONS):
        rows = scan(store_url, TOPIC, partitions=[partition])
        with pq.ParquetWriter(directory / f"{partition}.parquet", rows.schema) as writer:
            group: list[Any] = []
            for batch in rows:
                group.append(batch)
                if sum(item.nbytes for item in group) >= ROW_GROUP_BYTES:
                    writer.write_table(pa.Table.from_batches(group))
                    group = []
            if group:
                writer.write_table(pa.Table.from_batches(group))


def consume(bootstrap: str, ends: dict[int, int], *, tuned: bool) -> int:
    """Sum the value lengths through the broker, record by record, as in the client's documentation.

    tuned: librdkafka does not pause for 1 s whenever its queue is full, which may be most of a
    default consumer's time.
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


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_whole(directory: Path) -> None:
    piece = bytearray(1 << 20)
    for folder, _, names in os.walk(directory):
        for name in names:
            # A broker may delete it in the meantime.
            with (
                suppress(FileNotFoundError),
                Path(folder, name).open("rb", buffering=0) as file,
            ):
                while file.readinto(piece):
                    pass


class Turns:
    """Wall times of the counted rounds, and the broker's CPU time during them. At the start of a
    turn, everything below `directory` is in the page cache; otherwise some turns read 2 GB from
    disk, because kernels with DAMON reclaim pages that were unread for a minute.
    """

    def __init__(self, pid: int, directory: Path) -> None:
        self._pid = pid
        self._directory = directory
        self._took_s: dict[str, list[float]] = {}
        self._broker_s: dict[str, list[float]] = {}

    def take(
        self, name: str, work: Callable[[], object], expected: object = None, *, counts: bool = True
    ) -> None:
        read_whole(self._directory)
        broker_s, began = cpu_s(self._pid), time.monotonic()
        response = work()
        took_s, broker_s = time.monotonic() - began, cpu_s(self._pid) - broker_s
        if response != expected:
            raise RuntimeError(f"{name}: {response} instead of {expected}")
        _CONSOLE.print(
            f"  {name}: {took_s:.2f} s, broker {broker_s / took_s:.0%} of a"
            f" core{'' if counts else ', to warm up'}"
        )
        if counts:
            self._took_s.setdefault(name, []).append(took_s)
            self._broker_s.setdefault(name, []).append(broker_s)

    def took_s(self, name: str) -> float:
        """Return the median."""
        return statistics.median(self._took_s[name])

    def faster(self, name: str, other: str) -> float:
        """Return the median over all rounds of the speed relative to the other in the
        same round.
        """
        return statistics.median(
            theirs / ours
            for ours, theirs in zip(self._took_s[name], self._took_s[other], strict=True)
        )

    def broker_share(self, name: str) -> float:
        return sum(self._broker_s[name]) / sum(self._took_s[name])


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
            _CONSOLE.print(f"producing {count:,} records of {VALUE_BYTES} bytes")
            produce(state.bootstrap, count)
            ends = {
                item.partition: item.end_offset for item in until_settled(state.store_url, count)
            }
            (directory / "parquet").mkdir()
            write_parquet(state.store_url, directory / "parquet")
            pid = cluster.brokers()[0].pid
            assert pid is not None
            turns = Turns(pid, directory)
            with spark_session() as spark:
                scans = Scans(spark, state.store_url, directory / "parquet", count)
                for _ in range(WARM_UPS):
                    scans.take(turns, counts=False)
                # Alternate, because the machine is twice as fast in some minutes as in others.
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
        until_settled(state.store_url, 0)
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
_UNITS: Final = {"KB": 10**3, "MB": 10**6, "GB": 10**9}


def _bytes(text: str) -> int:
    unit = text[-2:].upper()
    return int(float(text[:-2]) * _UNITS[unit]) if unit in _UNITS else int(text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark", description=__doc__)
    parser.add_argument("--bytes", type=_bytes, default="2GB", help="bytes to scan (default: 2GB)")
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
        _CONSOLE.print(f"measuring {name} ...")
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
