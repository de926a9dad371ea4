"""The Iceberg tables."""

from pyspark.sql import SparkSession

from pipeline.session import CATALOG

EVENTS = f"{CATALOG}.flights.events"
HOURLY = f"{CATALOG}.flights.hourly"
CARRIERS = f"{CATALOG}.flights.carriers"

_DDL = f"""
CREATE NAMESPACE IF NOT EXISTS {CATALOG}.flights;

CREATE TABLE IF NOT EXISTS {EVENTS} (
    flight_id string, carrier string, origin string, dest string, scheduled timestamp,
    is_canceled boolean, dep_delay bigint, arr_delay bigint, distance bigint,
    log_partition int, log_offset bigint
) USING iceberg PARTITIONED BY (months(scheduled));

CREATE TABLE IF NOT EXISTS {HOURLY} (
    hour timestamp, carrier string, flights bigint, canceled bigint, delay_minutes bigint,
    mean_delay double
) USING iceberg PARTITIONED BY (months(hour));

CREATE TABLE IF NOT EXISTS {CARRIERS} (
    carrier string, name string, log_offset bigint
) USING iceberg;
"""


def create(spark: SparkSession) -> None:
    for statement in _DDL.split(";"):
        if statement.strip():
            spark.sql(statement)
