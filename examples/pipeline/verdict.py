"""Compare the rows that the pipeline wrote with the records that were sent."""

from collections.abc import Mapping
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from pipeline import config as names
from pipeline import tables, transforms
from pipeline.config import Config
from pipeline.replay import HOUR_MS, Sent


class Counts(NamedTuple):
    """Row counts. expected: rows that were sent. distinct: distinct keys of the rows that were
    found.
    """

    what: str
    expected: int
    found: int
    distinct: int

    @property
    def is_right(self) -> bool:
        return self.expected == self.found == self.distinct


def of_streams(spark: SparkSession, config: Config, sent: Sent, carriers: int) -> list[Counts]:
    """Count the rows that the streams wrote, which must equal the sent records."""
    clean = transforms.events(topic(spark, config, names.CLEAN))
    headers = f.map_from_entries("headers")
    dead = topic(spark, config, names.DEAD).select(headers["position"].alias("position"))
    return [
        _counts("flights in the clean topic", sent.valid, clean, "flight_id"),
        _counts("records in the dead letter topic", sent.bad, dead, "position"),
        _counts("flights in Iceberg", sent.valid, spark.table(tables.EVENTS), "flight_id"),
        _counts("carriers in Iceberg", carriers, spark.table(tables.CARRIERS), "carrier"),
    ]


def of_hours(spark: SparkSession, expected: Mapping[tuple[int, str], int]) -> list[Counts]:
    """Count hours and their flights after a backfill of everything."""
    hourly = spark.table(tables.HOURLY)
    found = {
        (int(row.hour.timestamp() * 1_000) // HOUR_MS, row.carrier): row.flights
        for row in hourly.collect()
    }
    same = sum(count for key, count in expected.items() if found.get(key) == count)
    total = hourly.agg(f.coalesce(f.sum("flights"), f.lit(0))).first()[0]
    return [
        _counts("hours of carriers in Iceberg", len(expected), hourly, "hour", "carrier"),
        Counts("flights in these hours", sum(expected.values()), total, same),
    ]


def topic(spark: SparkSession, config: Config, name: str) -> DataFrame:
    return (
        spark.read.format("penstock")
        .option("store", config.store)
        .option("subscribe", name)
        .option("kafka.isolation.level", "read_committed")
        .option("includeHeaders", "true")
        .load()
    )


def _counts(what: str, expected: int, rows: DataFrame, *key: str) -> Counts:
    found, distinct = rows.agg(f.count("*"), f.count_distinct(*key)).first()
    return Counts(what, expected, found, distinct)
