"""Recompute months of the aggregates from the raw topic, after a change of the rules or to count
flights that arrived after the watermark. Reads only the bucket, so no broker needs to run.
"""

from datetime import UTC, datetime

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pipeline import config as names
from pipeline import streams, tables, transforms
from pipeline.config import Config


def run(spark: SparkSession, config: Config, since: str, until: str) -> None:
    """Replace the months from `since` (inclusive) to `until` (exclusive), such as 2013-01 and
    2013-03, in one commit.

    Choose months that the streams have completed: the streams do not replace rows of a backfill.
    """
    begin, end = (datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC) for month in (since, until))
    raw = (
        spark.read.format("penstock")
        .option("store", config.store)
        .option("subscribe", names.RAW)
        .option("kafka.isolation.level", "read_committed")
        .load()
        .where(f.col("timestamp").between(begin, end))  # skips blocks of other months
    )
    flown = transforms.flights(transforms.checked(raw, streams.decoded(config))).where(
        (f.col("scheduled") >= begin) & (f.col("scheduled") < end)
    )
    transforms.hourly(flown).writeTo(tables.HOURLY).overwrite(
        (f.col("hour") >= begin) & (f.col("hour") < end)
    )
