"""Measure Spark queries on a topic compared with Spark's Kafka source, which reads it from the
broker, and with Parquet files of the same rows: `make bench-spark-sources`.

The records are flights as JSON. The three sources alternate, and ratios are medians over the
rounds.
"""

import argparse
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

import pyspark
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console

from benchmarks.harness import Measure, record, table_of
from benchmarks.kafka import downloaded
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
from penstock.deploy.demo.flights import read_flights
from penstock.deploy.local.handle import LocalCluster

_SOURCE: Final = ("org.apache.spark", "spark-sql-kafka-0-10_2.13", pyspark.__version__)
_HOME: Final = Path(__file__).parent.parent / "build" / "spark-kafka"

TOPIC: Final = "flights"
PARTITIONS: Final = 4
FLIGHT_BYTES: Final = 300
WARM_UPS: Final = 3
ROUNDS: Final = 5
_FLIGHT: Final = "struct<carrier: string, dep_delay: double>"


class Query(NamedTuple):
    """columns: the option `columns` of `format("penstock")`. The other sources need none: Parquet
    prunes columns, and Kafka returns whole records.
    """

    what: str
    columns: str
    run: Callable[[DataFrame], object]
    of_kafka_min: float
    of_parquet_min: float


def _all_columns(rows: DataFrame) -> object:
    lengths = "length(key) + length(value) + length(topic) + timestampType"
    return rows.selectExpr(
        f"sum({lengths} + partition + offset + unix_micros(timestamp) % 1000003)"
    ).collect()


def _delays(rows: DataFrame) -> object:
    flights = rows.selectExpr(f"from_json(string(value), '{_FLIGHT}') AS flight")
    delays = flights.groupBy("flight.carrier").agg({"flight.dep_delay": "avg"})
    return sorted((carrier, round(delay, 6)) for carrier, delay in delays.collect())


QUERIES: Final = (
    Query("full scan", "", _all_columns, 2, 0.9),
    Query("count(*)", "partition", DataFrame.count, 6, 0.5),
    Query("one column", "key", lambda rows: rows.selectExpr("sum(length(key))").collect(), 2, 0.3),
    Query("JSON group-by", "value", _delays, 1.2, 0.9),
)


def use_kafka_source() -> None:
    """Add Spark's Kafka source to all sessions of this process. They share one JVM, whose jars are
    chosen when it starts. Raises KafkaMissing.
    """
    jars = ",".join(str(jar) for jar in sorted(downloaded(_HOME, _SOURCE).glob("*.jar")))
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"--jars {jars} pyspark-shell"


def measured_sources(size_bytes: int) -> list[Measure]:
    """Measure all queries on about this many bytes of values."""
    count = size_bytes // FLIGHT_BYTES
    directory = Path(tempfile.mkdtemp(prefix="penstock-bench-"))
    try:
        store = f"file:{directory / 'store'}"
        with LocalCluster(("--store", store, "--brokers", "1", "--log-level", "error")) as cluster:
            state = cluster.state()
            Kafka(state.bootstrap).create_topic(TOPIC, PARTITIONS, -1, {"retention.ms": "-1"})
            CONSOLE.print(f"producing {count:,} flights")
            value_bytes = _produce(state.bootstrap, count)
            until_settled(state.store_url, TOPIC, count)
            parquet = directory / "parquet"
            parquet.mkdir()
            write_parquet(state.store_url, TOPIC, parquet, PARTITIONS)
            pid = cluster.brokers()[0].pid
            assert pid is not None
            turns = Turns(pid, directory)
            with spark_session() as spark:
                sources = Sources(spark, state.store_url, state.bootstrap, parquet)
                for number in range(WARM_UPS + ROUNDS):
                    _take(turns, sources, counts=number >= WARM_UPS)
    finally:
        shutil.rmtree(directory)
    return _measures(turns, value_bytes, count)


def _produce(bootstrap: str, count: int) -> int:
    """Produce flights, and return the bytes of their values."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 50})
    flights, value_bytes = list(read_flights(count)), 0
    for number, flight in enumerate(itertools.islice(itertools.cycle(flights), count)):
        while True:
            try:
                producer.produce(TOPIC, flight.value, flight.key, number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
        value_bytes += len(flight.value)
        producer.poll(0)
    if producer.flush(300):
        raise RuntimeError("not everything was acknowledged within 300 s")
    return value_bytes


class Sources:
    """The same rows from three sources."""

    def __init__(self, spark: SparkSession, store_url: str, bootstrap: str, parquet: Path) -> None:
        self._spark = spark
        self._store_url = store_url
        self._bootstrap = bootstrap
        self._parquet = str(parquet)

    def penstock(self, columns: str) -> DataFrame:
        reader = self._spark.read.format("penstock").option("store", self._store_url)
        return reader.option("subscribe", TOPIC).option("columns", columns).load()

    def kafka(self) -> DataFrame:
        reader = self._spark.read.format("kafka")
        reader = reader.option("kafka.bootstrap.servers", self._bootstrap)
        return reader.option("subscribe", TOPIC).load()

    def parquet(self) -> DataFrame:
        return self._spark.read.parquet(self._parquet)


def _take(turns: Turns, sources: Sources, *, counts: bool) -> None:
    """Run each query on each source; all three must return the same result."""
    for query in QUERIES:
        expected = query.run(sources.parquet())
        for name, rows in (
            ("parquet", sources.parquet),
            ("kafka", sources.kafka),
            ("penstock", lambda columns=query.columns: sources.penstock(columns)),
        ):
            work = lambda query=query, rows=rows: query.run(rows())  # noqa: E731
            turns.take(f"{query.what}, {name}", work, expected, counts=counts)


def _measures(turns: Turns, value_bytes: int, count: int) -> list[Measure]:
    found: list[Measure] = []
    size = f"{count:,} flights of {value_bytes / 1e6:.0f} MB, local[{CORES}]"
    for query in QUERIES:
        own, speed = f"{query.what}, penstock", 0.0
        speed = value_bytes / turns.took_s(own) / 1e6
        for other, title, bar in (
            ("kafka", "Spark's Kafka source", query.of_kafka_min),
            ("parquet", "Parquet of the same rows", query.of_parquet_min),
        ):
            name = f"{query.what}, {other}"
            note = f"{turns.took_s(own):.2f} and {turns.took_s(name):.2f} s; {size}"
            ratio = turns.faster(own, name)
            what = f"Spark: {query.what} / {title}"
            found.append(Measure(what, speed, "MB/s", bar, "higher", speed / ratio, note))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench-spark-sources", description=__doc__)
    parser.add_argument(
        "--bytes", type=parsed_bytes, default="200MB", help="bytes of values (default: 200MB)"
    )
    size_bytes = parser.parse_args().bytes
    use_kafka_source()
    measures = measured_sources(size_bytes)
    Console(width=160).print(table_of(measures))
    record(measures, datetime.now(UTC).isoformat(timespec="seconds"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
