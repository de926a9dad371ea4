"""Streaming queries read every record once, also after a crash."""

import re
import shutil
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

from penstock.lake.spark.progress import SourceLag
from penstock.spark import lag, lag_listener
from tests.support.spark_session import needs_limits
from tests.support.streaming_queries import until_begun, until_ended
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import wait_until

Place = tuple[int, int]


def reader(
    spark: SparkSession, cluster: ThreadedCluster, topic: str, **options: object
) -> DataStreamReader:
    given = {
        "store": cluster.store_url,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "columns": "partition,offset",
        **options,
    }
    return spark.readStream.format("penstock").options(
        **{name: str(value) for name, value in given.items()}
    )


def drain(frame: DataFrame, directory: Path) -> StreamingQuery:
    """Run a query that writes all currently available records to Parquet files."""
    writing = (
        frame.writeStream.format("parquet")
        .option("path", str(directory / "out"))
        .option("checkpointLocation", str(directory / "check"))
    )
    return until_ended(writing.trigger(availableNow=True).start)


def written(spark: SparkSession, directory: Path) -> list[Place]:
    return sorted(
        (row["partition"], row["offset"])
        for row in spark.read.parquet(str(directory / "out")).collect()
    )


def fill(cluster: ThreadedCluster, topic: str, partitions: int, count: int) -> None:
    cluster.produce(
        {"topic": topic, "partition": number % partitions, "value": b"%d" % number * 20}
        for number in range(count)
    )


def all_of(partitions: int, ends: int) -> list[Place]:
    return [(partition, offset) for partition in range(partitions) for offset in range(ends)]


@needs_limits
def test_records_of_old_and_new_partitions_arrive_once_in_limited_batches(
    spark: SparkSession, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.create("steps", 2)
    fill(cluster, "steps", 2, 400)
    query = drain(reader(spark, cluster, "steps", maxOffsetsPerTrigger=150).load(), tmp_path)
    assert [step["numInputRows"] for step in query.recentProgress if step["numInputRows"]] == [
        150,
        150,
        100,
    ]
    behind = [lag(step)[0] for step in query.recentProgress if step["numInputRows"]]
    assert [item["partitions"]["steps"] for item in behind] == [
        {"0": 125, "1": 125},
        {"0": 50, "1": 50},
        {"0": 0, "1": 0},
    ]
    ended = query.recentProgress[0]["sources"][0]["endOffset"]
    assert re.fullmatch(r'\{"steps": \{"0": 75, "1": 75\}, "steps#[0-9a-f-]{36}": \{\}\}', ended)
    assert written(spark, tmp_path) == all_of(2, 200)
    cluster.grow("steps", 3)
    wait_until(lambda: len(cluster.look("steps").bounds) == 3)
    fill(cluster, "steps", 3, 600)
    drain(reader(spark, cluster, "steps", maxBytesPerTrigger=15_000).load(), tmp_path)
    assert written(spark, tmp_path) == sorted(
        [(partition, offset) for partition in range(2) for offset in range(400)]
        + [(2, offset) for offset in range(200)]
    )


def test_table_is_streamed_and_its_lag_reported(
    spark: SparkSession, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.create("table", 1)
    fill(cluster, "table", 1, 20)
    options = f"store '{cluster.store_url}', subscribe 'table', columns 'partition,offset'"
    spark.sql(
        f"create table streamed using penstock options ({options}, startingOffsets 'earliest')"
    )
    reported: list[tuple[str, SourceLag]] = []
    listener = lag_listener(lambda name, item: reported.append((name, item)))
    spark.streams.addListener(listener)
    try:
        query = drain(spark.readStream.table("streamed"), tmp_path)
        wait_until(lambda: bool(reported))
    finally:
        spark.streams.removeListener(listener)
    assert written(spark, tmp_path) == all_of(1, 20)
    none = {
        "partitions": {"table": {"0": 0}},
        "avgOffsetsBehindLatest": 0.0,
        "maxOffsetsBehindLatest": 0,
        "minOffsetsBehindLatest": 0,
    }
    assert reported[0] == (str(query.id), none)


def test_crash_before_the_first_commit_replays_the_same_rows(
    spark: SparkSession, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """The query starts at `latest`. After the crash Spark asks again where it starts, when the
    latest offset has changed.
    """
    cluster.create("crash", 1)
    fill(cluster, "crash", 1, 20)
    seen: dict[int, list[list[int]]] = {}

    def keep(frame: DataFrame, batch_id: int) -> None:
        rows = sorted(row["offset"] for row in frame.collect())
        seen.setdefault(batch_id, []).append(rows)

    def start() -> StreamingQuery:
        given = reader(spark, cluster, "crash", startingOffsets="latest", queryId="crash")
        writing = (
            given.load()
            .writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(tmp_path / "check"))
        )
        return writing.trigger(processingTime="200 milliseconds").start()

    query = until_begun(
        start, lambda: any(key.endswith("/crash/start") for key in cluster.keys("spark/"))
    )
    try:
        fill(cluster, "crash", 1, 30)
        wait_until(lambda: sum(len(rows[0]) for rows in seen.values()) == 30)
    finally:
        query.stop()
    first = {batch_id: rows[0] for batch_id, rows in seen.items()}
    assert sorted(offset for rows in first.values() for offset in rows) == list(range(20, 50))
    shutil.rmtree(tmp_path / "check" / "commits")
    for path in (tmp_path / "check" / "offsets").iterdir():
        if path.name.lstrip(".").split(".")[0] != "0":
            path.unlink()
    fill(cluster, "crash", 1, 5)
    query = until_begun(start, lambda: any(54 in rows[-1] for rows in seen.values()))
    query.stop()
    assert seen[0] == [first[0], first[0]], (
        "the first micro-batch must be the same as before the crash"
    )
    later = [offset for batch_id, rows in seen.items() if batch_id > 0 for offset in rows[-1]]
    assert sorted(first[0] + later) == list(range(20, 55))


def test_starting_at_latest_requires_a_query_id(
    spark: SparkSession, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.create("volatile", 1)
    with pytest.raises(StreamingQueryException, match="set the option 'queryId' to a unique name"):
        drain(reader(spark, cluster, "volatile", startingOffsets="latest").load(), tmp_path)
