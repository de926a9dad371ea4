"""Test the transformations on small DataFrames."""

import json
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pipeline import transforms
from pipeline.config import CLEAN, DEAD

FLIGHT: dict[str, Any] = {
    "carrier": "UA",
    "flight": 1545,
    "tailnum": "N14228",
    "origin": "EWR",
    "dest": "IAH",
    "time_hour": "2013-01-01T10:00:00Z",
    "minute": 15,
    "dep_delay": 2,
    "arr_delay": 11,
    "air_time": 227,
    "distance": 1400,
    "year": 2013,
}
SCHEDULED = datetime(2013, 1, 1, 10, 15, tzinfo=UTC)
RECORD = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp"


def records(spark: SparkSession, *values: bytes | None) -> DataFrame:
    rows = [
        (b"UA", value, "flights.raw", 1, offset, SCHEDULED) for offset, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, RECORD)


def raw(**changes: object) -> bytes:
    return json.dumps(FLIGHT | changes).encode()


def test_a_record_is_checked_and_routed(spark: SparkSession) -> None:
    cases: list[tuple[bytes | None, str | None]] = [
        (raw(), None),
        (raw(dep_delay=None, arr_delay=None, air_time=None, tailnum=None), None),
        (raw(new_field="of a newer producer"), None),
        (None, "no value"),
        (b"", "not JSON with the fields of flight.json"),
        (raw()[:40], "not JSON with the fields of flight.json"),
        (b"[1]", "not JSON with the fields of flight.json"),
        (raw(distance="far"), "not JSON with the fields of flight.json"),
        (raw(time_hour="noon"), "not JSON with the fields of flight.json"),
        (raw(carrier=None), "no carrier"),
        (raw(minute=None), "no minute"),
        (raw(origin="BOS"), "the origin is not an airport of New York"),
        (raw(distance=0), "the distance is not positive"),
    ]
    found = transforms.routed(records(spark, *(value for value, _ in cases)), CLEAN, DEAD).collect()
    clean = [row for row in found if row.topic == CLEAN]
    assert [json.loads(row.value) for row in clean[:2]] == [
        {
            "flight_id": "UA-1545-20130101T10",
            "carrier": "UA",
            "origin": "EWR",
            "dest": "IAH",
            "scheduled": "2013-01-01T10:15:00.000Z",
            "is_canceled": is_canceled,
            "distance": 1400,
            **delays,
        }
        for is_canceled, delays in ((False, {"dep_delay": 2, "arr_delay": 11}), (True, {}))
    ]
    assert len(clean) == 3
    dead = [row for row in found if row.topic == DEAD]
    headers = [{item.key: item.value.decode() for item in row.headers} for row in dead]
    assert headers == [
        {"problem": problem, "position": f"flights.raw-1-{offset}"}
        for offset, (_, problem) in enumerate(cases)
        if problem
    ]
    assert [row.value for row in dead] == [value for value, problem in cases if problem]


def test_clean_records_are_parsed_again(spark: SparkSession) -> None:
    known = transforms.checked(records(spark, raw(), raw(flight=7)))
    clean = transforms.clean_records(known, CLEAN).selectExpr(
        "*", "0 AS partition", "monotonically_increasing_id() AS offset"
    )
    names = transforms.CLEAN.fields.fieldNames()
    assert (
        transforms.events(clean).select(names).collect()
        == transforms.flights(known).select(names).collect()
    )


def test_flights_are_aggregated_by_hour_and_carrier(spark: SparkSession) -> None:
    flown = transforms.flights(
        transforms.checked(
            records(
                spark,
                raw(dep_delay=10),
                raw(dep_delay=-4, minute=59),
                raw(dep_delay=None),
                raw(carrier="AA", dep_delay=None),
                raw(time_hour="2013-01-01T11:00:00Z", minute=0),
            )
        )
    )
    assert sorted(tuple(row)[1:] for row in transforms.hourly(flown).collect()) == [
        ("AA", 1, 1, None, None),
        ("UA", 1, 0, 2, 2.0),
        ("UA", 3, 1, 6, 3.0),
    ]


def test_the_last_record_of_a_carrier_is_used(spark: SparkSession) -> None:
    rows = [
        (b"US", b'{"name": "US Airways"}', "carriers", 0, 0, SCHEDULED),
        (b"UA", b'{"name": "United"}', "carriers", 0, 1, SCHEDULED),
        (b"US", b'{"name": "American"}', "carriers", 0, 2, SCHEDULED),
        (b"UA", None, "carriers", 0, 3, SCHEDULED),
    ]
    found = transforms.carriers(spark.createDataFrame(rows, RECORD)).collect()
    assert sorted(map(tuple, found)) == [("UA", None, 3), ("US", "American", 2)]
