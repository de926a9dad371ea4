"""Batch queries give what a Kafka consumer gets through the brokers."""

from collections.abc import Sequence

import pytest
from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from support.threaded_cluster import Row, ThreadedCluster

PARTITIONS = 3
T0_MS = 1_700_000_000_000


def reader(spark: SparkSession, cluster: ThreadedCluster, **options: object) -> DataFrameReader:
    given = {"store": cluster.store_url, "subscribe": "flights", **options}
    return spark.read.format("penstock").options(**{name: str(value) for name, value in given.items()})


def rows_of(frame: DataFrame) -> list[Row]:
    """As the consumer gives them."""
    rows: list[Row] = []
    for row in frame.collect():
        headers = None if row["headers"] is None else tuple((item["key"], _bytes(item["value"])) for item in row["headers"])
        timestamp_ms = int(row["timestamp"].timestamp() * 1_000)
        place = row["topic"], row["partition"], row["offset"]
        rows.append((_bytes(row["key"]), _bytes(row["value"]), *place, timestamp_ms, row["timestampType"], headers))
    return sorted(rows, key=lambda row: row[2:5])


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


@pytest.fixture(scope="module")
def consumed(cluster: ThreadedCluster) -> Sequence[Row]:
    cluster.create("flights", PARTITIONS)
    count = 0
    for codec in ("none", "lz4", "zstd", "gzip", "snappy"):
        count += cluster.produce(
            [
                {
                    "topic": "flights",
                    "partition": number % PARTITIONS,
                    "key": None if number % 7 == 0 else b"k%d" % number,
                    "value": None if number % 11 == 0 else b"%s-%d" % (codec.encode(), number) * 5,
                    "timestamp": T0_MS + number * 1_000,
                    "headers": [("a", b"%d" % number), ("b", None)] if number % 5 == 0 else None,
                }
                for number in range(300)
            ],
            **{"compression.type": codec},
        )
    return cluster.consume("flights", PARTITIONS, count)


def test_rows_are_those_of_a_consumer(spark: SparkSession, cluster: ThreadedCluster, consumed: Sequence[Row]) -> None:
    assert rows_of(reader(spark, cluster, includeHeaders="true").load()) == list(consumed)
