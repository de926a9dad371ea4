"""The four streaming queries: their sources, transformations and exactly-once sinks.

Each query has its own checkpoint, so each can be stopped, changed and restarted separately.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery

from penstock.spark import from_json
from pipeline import config as names
from pipeline import tables, transforms
from pipeline.config import Config

START_S = 600.0
"""How long a query that could not start its Python process is started again."""


def refine(spark: SparkSession, config: Config) -> DataStreamWriter:
    """Write raw events to the topics of clean flights and dead letters.

    The sink writes both topics in one transaction for each micro-batch, and skips a micro-batch
    that it has committed already.
    """
    raw = records(spark, config, names.RAW)
    return (
        transforms.routed(raw, names.CLEAN, names.DEAD, decoded(config))
        .writeStream.format("penstock")
        .option("kafka.bootstrap.servers", config.bootstrap)
        .option("store", config.store)
        .option("exactlyOnce", "true")
    )


def events(spark: SparkSession, config: Config) -> DataStreamWriter:
    """Append clean flights to the table of events.

    Iceberg's sink stores query and micro-batch in the snapshot, and skips a micro-batch that it has
    committed already.
    """
    return (
        transforms.events(records(spark, config, names.CLEAN))
        .writeStream.format("iceberg")
        .outputMode("append")
        .option("fanout-enabled", "true")
    )


def hourly(spark: SparkSession, config: Config) -> DataStreamWriter:
    """Add each hour and carrier to the table of aggregates, once the watermark has passed it.

    A replayed micro-batch does not insert rows that are already in the table. Rows of a backfill
    are kept, because they include late flights.
    """
    flown = transforms.events(records(spark, config, names.CLEAN))
    return merging(
        transforms.hourly(flown.withWatermark("scheduled", config.watermark)),
        f"""
        MERGE INTO {tables.HOURLY} AS t USING batch AS s
        ON t.hour = s.hour AND t.carrier = s.carrier
        WHEN NOT MATCHED THEN INSERT *
        """,
    )


def carriers(spark: SparkSession, config: Config) -> DataStreamWriter:
    """Merge changes of carriers into the dimension. A replayed micro-batch changes nothing, because
    its offsets are not newer.
    """
    return merging(
        records(spark, config, names.CARRIERS),
        f"""
        MERGE INTO {tables.CARRIERS} AS t USING batch AS s ON t.carrier = s.carrier
        WHEN MATCHED AND s.log_offset > t.log_offset AND s.name IS NULL THEN DELETE
        WHEN MATCHED AND s.log_offset > t.log_offset THEN UPDATE SET *
        WHEN NOT MATCHED AND s.name IS NOT NULL THEN INSERT *
        """,
        transforms.carriers,
    )


QUERIES: dict[str, Callable[[SparkSession, Config], DataStreamWriter]] = {
    "refine": refine,
    "events": events,
    "hourly": hourly,
    "carriers": carriers,
}
"""The queries, in the order of their dependencies."""

TABLES = {"events": tables.EVENTS}
"""Tables by query, for queries that use Iceberg's sink."""


def start(spark: SparkSession, config: Config, name: str, **trigger: Any) -> StreamingQuery:
    """Start a query, and wait until it reads records. `trigger`: see `DataStreamWriter.trigger`; by
    default, the trigger in the settings.

    Spark waits 10 s for the Python process of a source, which is too short on a busy machine, so
    this starts one query at a time, with retries.
    """
    writer = (
        QUERIES[name](spark, config)
        .queryName(name)
        .option("checkpointLocation", f"{config.checkpoints}/{name}")
        .trigger(**(trigger or {"processingTime": config.trigger}))
    )
    deadline = time.monotonic() + START_S
    while True:
        query = writer.toTable(TABLES[name]) if name in TABLES else writer.start()
        while query.isActive and query.status["message"].startswith("Initializing"):
            time.sleep(0.1)
        could_connect = "worker failed to connect back" not in str(query.exception())
        if could_connect or time.monotonic() > deadline:
            return query
        spark.streams.resetTerminated()


def drain(spark: SparkSession, config: Config, queries: Iterable[str]) -> None:
    """Run the queries one after another, each until it has read all current records."""
    for name in queries:
        start(spark, config, name, availableNow=True).awaitTermination()


def records(spark: SparkSession, config: Config, topic: str) -> DataFrame:
    """Read a topic from the store, without records of open and aborted transactions."""
    return (
        spark.readStream.format("penstock")
        .option("store", config.store)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )


def decoded(config: Config) -> Column | None:
    """Return the values of the raw topic decoded by the schema registry, or None without one."""
    if not config.schema_registry:
        return None
    return from_json("value", f"{names.RAW}-value", config.schema_registry, mode="PERMISSIVE")


def merging(
    rows: DataFrame, merge: str, of_batch: Callable[[DataFrame], DataFrame] = lambda batch: batch
) -> DataStreamWriter:
    """Run a MERGE statement for each micro-batch, which the statement refers to as `batch`."""

    def run(batch: DataFrame, _batch_id: int) -> None:
        of_batch(batch).createOrReplaceTempView("batch")
        batch.sparkSession.sql(merge)

    return rows.writeStream.outputMode("append").foreachBatch(run)
