"""Conversion of rows to records, and the decision whether a batch has already been written."""

import pickle
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from penstock.lake.spark.sink.errors import InvalidRow, StaleWrite, WriteFailed
from penstock.lake.spark.sink.rows import check_rows, records
from penstock.lake.spark.sink.transaction import WriteId, is_written

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
MOMENT = datetime(2026, 11, 21, 23, 0, 0, 123_999, tzinfo=UTC)


def test_all_columns_and_column_slices_are_converted() -> None:
    batch = pa.record_batch({
        "value": pa.array([b"skipped", b"v", None]),
        "key": pa.array(["skipped", None, "ü"], pa.string()),
        "topic": pa.array(["skipped", "a", "b"]),
        "partition": pa.array([7, None, 3], pa.int32()),
        "timestamp": pa.array([MOMENT, MOMENT, None], pa.timestamp("us", tz="Europe/Berlin")),
        "headers": pa.array([[("x", b"x")], [("h", b"1"), ("h", None)], None], HEADERS),
        "offset": pa.array([1, 2, 3]),
    }).slice(1)  # fmt: skip
    check_rows(batch, None)
    moment_ms = int(MOMENT.timestamp() * 1_000)
    assert list(records(batch, None)) == [
        ("a", b"v", None, -1, moment_ms, [("h", b"1"), ("h", None)]),
        ("b", None, "ü".encode(), 3, 0, None),
    ]
    assert [record[0] for record in records(batch, "other")] == ["other", "other"]


def test_a_value_column_alone_and_numeric_timestamps_are_converted() -> None:
    batch = pa.record_batch({"value": pa.array(["v", "w"]), "timestamp": pa.array([1.5, None])})
    assert list(records(batch, "t")) == [
        ("t", b"v", None, -1, 1_500, None),
        ("t", b"w", None, -1, 0, None),
    ]


@pytest.mark.parametrize(("column", "values", "text"), [
    ("topic", pa.array(["a", None]),
     "null topic present in the data. Use the topic option for setting a default topic."),
    ("partition", pa.array([0, -3], pa.int32()),
     "Invalid partition: -3. Partition number should always be non-negative or null."),
    ("timestamp", pa.array([1.0, -1.0]),
     "Invalid timestamp: -1000. Timestamp should always be non-negative or null."),
    ("timestamp", pa.array([1.0, 0.0]),
     "Invalid timestamp: 0. librdkafka would replace it with the current time"),
    ("timestamp", pa.array([None, MOMENT.fromtimestamp(0, UTC)], pa.timestamp("us", tz="UTC")),
     "Invalid timestamp: 0."),
    ("headers", pa.array([[], [(None, b"1")]], HEADERS), "Null header keys are not permitted"),
    ("headers", pa.array([[], [None]], HEADERS), "Null header keys are not permitted"),
])  # fmt: skip
def test_rows_that_cannot_be_records_are_rejected(column: str, values: pa.Array, text: str) -> None:
    columns = {"topic": pa.array(["a", "b"]), "value": pa.array([b"", b""]), column: values}
    with pytest.raises(InvalidRow, match=text):
        check_rows(pa.record_batch(columns), None)


@pytest.mark.parametrize(("found", "written"), [
    (None, False),
    (WriteId("q", 4, "q"), False),
    (WriteId("q", 4, "other"), False),
    (WriteId("q", 5, "q"), True),
])  # fmt: skip
def test_a_batch_is_written_once(found: WriteId | None, written: bool) -> None:
    assert is_written(found, WriteId("q", 5, "q")) is written


@pytest.mark.parametrize(("found", "text"), [
    (WriteId("q", 6, "q"), "batch 5 is older than batch 6, which was committed already"),
    (WriteId("q", 5, "other"), "batch 5 was committed already by other"),
    (WriteId("q", 5, ""), "batch 5 was committed already by an unknown writer"),
])  # fmt: skip
def test_a_write_that_might_duplicate_or_lose_records_is_rejected(
    found: WriteId, text: str
) -> None:
    with pytest.raises(StaleWrite, match=text):
        is_written(found, WriteId("q", 5, "q"))


def test_errors_can_be_pickled() -> None:
    error = pickle.loads(pickle.dumps(WriteFailed("t", 3, "too large")))
    assert (str(error), error.topic, error.partition, error.reason) == (
        "topic t partition 3: too large",
        "t",
        3,
        "too large",
    )
    assert str(WriteFailed("t", -1, "unknown")) == "topic t: unknown"
