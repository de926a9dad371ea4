"""A streaming query runs while producers send, brokers compact, a bulk rewrite runs, a broker is
killed, and partitions are reassigned.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.url import open_store
from tests.support.ack_recorder import PacedLoad, check, number_of, read_back
from tests.support.dev_cluster import penstock, requested
from tests.support.hurried_cluster import HurriedCluster
from tests.support.spark_session import limits
from tests.support.streaming_queries import could_not_connect
from tests.support.waiting import PATIENCE_S, until, wait_until

PARTITIONS = [0, 1, 2]
DEADLINE_S = PATIENCE_S


@pytest.fixture
def cluster() -> Iterator[HurriedCluster]:
    with HurriedCluster(["--brokers", "3"], compacting=True) as started:
        assert (
            penstock(
                started, "topics", "create", "t", "--partitions", str(len(PARTITIONS))
            ).returncode
            == 0
        )
        yield started


class Rows:
    """An idempotent in-memory sink that keeps the rows of each batch by its id."""

    def __init__(self) -> None:
        self._batches: dict[int, list[tuple[int, int, int]]] = {}

    def take(self, frame: DataFrame, batch_id: int) -> None:
        self._batches[batch_id] = [
            (row["partition"], row["offset"], number_of(bytes(row["value"])))
            for row in frame.collect()
        ]

    def count(self) -> int:
        return sum(map(len, list(self._batches.values())))

    def log(self) -> dict[int, list[tuple[int, int]]]:
        """Return the rows in the form of `read_back`."""
        found: dict[int, list[tuple[int, int]]] = {partition: [] for partition in PARTITIONS}
        for rows in self._batches.values():
            for partition, offset, number in rows:
                found[partition].append((offset, number))
        return {partition: sorted(rows) for partition, rows in found.items()}


def start(spark: SparkSession, store_url: str, sink: Rows, directory: Path) -> StreamingQuery:
    options = {
        "store": store_url,
        "subscribe": "t",
        "startingOffsets": "earliest",
        "columns": "partition,offset,value",
        **limits(maxOffsetsPerTrigger="3000"),
    }
    writing = (
        spark.readStream.format("penstock")
        .options(**options)
        .load()
        .writeStream.foreachBatch(sink.take)
    )
    return (
        writing.option("checkpointLocation", str(directory / "check"))
        .trigger(processingTime="500 milliseconds")
        .start()
    )


async def running(
    spark: SparkSession, store_url: str, sink: Rows, directory: Path
) -> StreamingQuery:
    """Run the query, and restart it if the Python process of its source could not connect."""
    while True:
        query = await asyncio.to_thread(start, spark, store_url, sink, directory)
        await until(lambda: bool(query.recentProgress) or not query.isActive, DEADLINE_S)  # noqa: B023 - awaited in this round
        if query.isActive:
            return query
        assert could_not_connect(query.exception()), query.exception()


async def test_query_returns_exactly_the_acknowledged_records(
    spark: SparkSession, cluster: HurriedCluster, tmp_path: Path
) -> None:
    sink, store_url = Rows(), cluster.state().store_url
    query = await running(spark, store_url, sink, tmp_path)
    try:
        async with PacedLoad(
            cluster.bootstrap,
            "t",
            PARTITIONS,
            **{"request.timeout.ms": 4_000, "socket.timeout.ms": 5_000},
        ) as load:
            await load.until_acknowledged(50)
            await brokers_compacted(store_url)
            await until(lambda: sink.count() > 0 or not query.isActive, DEADLINE_S)
            assert query.exception() is None
            killed = cluster.brokers()[0]
            cluster.kill([killed])
            await asyncio.to_thread(rewrite, cluster)
            await load.until_acknowledged(50)
            await asyncio.to_thread(cluster.wait_for_new, [killed], DEADLINE_S)
            await asyncio.to_thread(reassign, cluster, tmp_path)
            await load.until_acknowledged(50)
            await brokers_compacted(store_url)
        await until(
            lambda: sink.count() >= sum(load.sent.values()) or not query.isActive, DEADLINE_S
        )
        assert query.exception() is None
    finally:
        await asyncio.to_thread(query.stop)
    log = await read_back(cluster.bootstrap, "t", PARTITIONS)
    check(load, log)
    assert sink.log() == log, "the rows of Spark differ from those of the brokers"


def rewrite(cluster: HurriedCluster) -> None:
    """Run `penstock compact`. Brokers that compact at the same time may win every conflict at the
    end of the log; the command must then report unresolved conflicts.
    """
    done = penstock(cluster, "compact", "t", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode == 0) == (report["unresolved"] == 0), done.stderr
    assert report["damaged"] == []


def reassign(cluster: HurriedCluster, directory: Path) -> None:
    """Move each partition to the broker with the next id, and wait until that broker leads it."""
    targets = {part: (leader + 1) % 3 for part, leader in leaders_of(cluster).items()}
    plan = directory / "plan.json"
    items = [
        {"topic": "t", "partition": partition, "replicas": [target]}
        for partition, target in targets.items()
    ]
    plan.write_text(json.dumps({"version": 1, "partitions": items}))
    done = penstock(cluster, "reassign", "execute", "--reassignment-json-file", str(plan))
    assert done.returncode == 0, done.stderr
    wait_until(lambda: leaders_of(cluster) == targets)


def leaders_of(cluster: HurriedCluster) -> dict[int, int]:
    described = requested(cluster, "topics", "describe", "t")
    return {part["partition"]: part["leader"] for part in described["partitions"]}


async def brokers_compacted(store_url: str) -> None:
    """Wait until larger ranges have replaced small ones in the manifest."""
    store = open_store(store_url)
    try:
        view = ClusterView(store)
        seen: set[tuple[int, int]] = set()
        deadline = time.monotonic() + DEADLINE_S
        while True:
            await view.refresh()
            logs = await view.committed("t") if view.topics("t") else []
            now = {
                (log.partition, bound) for log in logs for run in log.runs for bound in run.bounds
            }
            if seen - now:
                return
            seen |= now
            assert time.monotonic() < deadline, "no broker has joined its small objects"
            await asyncio.sleep(0.2)
    finally:
        await store.close()
