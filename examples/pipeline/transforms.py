"""The transformations of the pipeline: functions from DataFrame to DataFrame, without I/O and
settings. Streams, backfill and unit tests use the same functions.
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import StringType, StructField, StructType

from pipeline import schemas

RAW = schemas.load("flight")
CLEAN = schemas.load("clean_flight")
CARRIER = schemas.load("carrier")

ORIGINS = ("EWR", "JFK", "LGA")
_ERROR = "_error"


def checked(records: DataFrame, decoded: Column | None = None) -> DataFrame:
    """Add the column `event`, the parsed value of the raw topic, and `problem`, the reason why the
    record is not a valid flight, or null.

    decoded: values decoded by a schema registry, with the reason in `_error`. None: the values are
    JSON.
    """
    event, reason = decoded, f.col("event")[_ERROR]
    if event is None:
        fields = StructType([*RAW.fields.fields, StructField(_ERROR, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _ERROR}
        event = f.from_json(f.col("value").cast("string"), fields, options)
        reason = f.lit("not JSON with the fields of flight.json")
    known = records.withColumn("event", event)
    return known.withColumn("problem", _problem(f.col("event"), reason))


def _problem(event: Column, reason: Column) -> Column:
    """Return the first rule that is violated, or null. reason: why a value cannot be parsed."""
    rules = [
        (f.col("value").isNull(), "no value"),
        (event.isNull() | event[_ERROR].isNotNull(), reason),
        *((event[name].isNull(), f"no {name}") for name in RAW.required),
        (~event["origin"].isin(*ORIGINS), "the origin is not an airport of New York"),
        (event["distance"] <= 0, "the distance is not positive"),
    ]
    return f.coalesce(*(f.when(violated, f.lit(why)) for violated, why in rules))


def flights(checked_records: DataFrame) -> DataFrame:
    """Return the valid flights, with the columns of clean_flight.json."""
    event = f.col("event")
    valid = checked_records.where(f.col("problem").isNull())
    scheduled = event["time_hour"] + f.make_interval(mins=event["minute"].cast("int"))
    return valid.select(
        f.concat_ws(
            "-",
            event["carrier"],
            event["flight"].cast("string"),
            f.date_format(event["time_hour"], "yyyyMMdd'T'HH"),
        ).alias("flight_id"),
        event["carrier"].alias("carrier"),
        event["origin"].alias("origin"),
        event["dest"].alias("dest"),
        scheduled.alias("scheduled"),
        event["dep_delay"].isNull().alias("is_canceled"),
        event["dep_delay"].alias("dep_delay"),
        event["arr_delay"].alias("arr_delay"),
        event["distance"].alias("distance"),
    )


def clean_records(checked_records: DataFrame, topic: str) -> DataFrame:
    """Return the valid flights as records of the topic of clean flights."""
    names = CLEAN.fields.fieldNames()
    return flights(checked_records).select(
        f.lit(topic).alias("topic"),
        f.col("carrier").cast("binary").alias("key"),
        f.to_json(f.struct(*names)).cast("binary").alias("value"),
        f.col("scheduled").alias("timestamp"),
        f.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers"),
    )


def dead_letters(checked_records: DataFrame, topic: str) -> DataFrame:
    """Return the rejected records, unchanged, with the reason and their position as headers."""

    def header(name: str, value: Column) -> Column:
        return f.struct(
            f.lit(name).alias("key"), value.cast("string").cast("binary").alias("value")
        )

    position = f.concat_ws("-", "topic", f.col("partition"), f.col("offset"))
    return checked_records.where(f.col("problem").isNotNull()).select(
        f.lit(topic).alias("topic"),
        "key",
        "value",
        "timestamp",
        f.array(header("problem", f.col("problem")), header("position", position)).alias("headers"),
    )


def routed(records: DataFrame, clean: str, dead: str, decoded: Column | None = None) -> DataFrame:
    """Return the records of both topics, for one transaction per micro-batch."""
    known = checked(records, decoded)
    return clean_records(known, clean).unionByName(dead_letters(known, dead))


def events(records: DataFrame) -> DataFrame:
    """Parse the topic of clean flights, and keep the position of each record."""
    value = f.from_json(f.col("value").cast("string"), CLEAN.fields)
    return records.select(
        value.alias("event"),
        f.col("partition").alias("log_partition"),
        f.col("offset").alias("log_offset"),
    ).select("event.*", "log_partition", "log_offset")


def hourly(flown: DataFrame) -> DataFrame:
    """Aggregate flights by hour of scheduled departure and carrier. A stream needs a watermark on
    `scheduled` first.
    """
    return (
        flown.groupBy(f.window("scheduled", "1 hour"), "carrier")
        .agg(
            f.count("*").alias("flights"),
            f.count_if("is_canceled").alias("canceled"),
            f.sum("dep_delay").alias("delay_minutes"),
            f.avg("dep_delay").alias("mean_delay"),
        )
        .select(
            f.col("window.start").alias("hour"),
            "carrier",
            "flights",
            "canceled",
            "delay_minutes",
            "mean_delay",
        )
    )


def carriers(records: DataFrame) -> DataFrame:
    """Return the last record of each carrier. A record without a value deletes its carrier."""
    last = f.max_by(f.struct("value", "offset"), "offset").alias("last")
    name = f.from_json(f.col("last.value").cast("string"), CARRIER.fields)["name"]
    return (
        records.groupBy(f.col("key").cast("string").alias("carrier"))
        .agg(last)
        .select("carrier", name.alias("name"), f.col("last.offset").alias("log_offset"))
    )
