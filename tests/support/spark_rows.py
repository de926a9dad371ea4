"""Convert Spark rows to the form of a Kafka consumer's records."""

from pyspark.sql import DataFrame

from tests.support.threaded_cluster import Row


def rows_of(frame: DataFrame) -> list[Row]:
    """Return the rows sorted by partition and offset. The frame must include headers."""
    rows: list[Row] = []
    for row in frame.collect():
        headers = (
            None
            if row["headers"] is None
            else tuple((item["key"], _bytes(item["value"])) for item in row["headers"])
        )
        timestamp_ms = int(row["timestamp"].timestamp() * 1_000)
        place = row["topic"], row["partition"], row["offset"]
        rows.append(
            (
                _bytes(row["key"]),
                _bytes(row["value"]),
                *place,
                timestamp_ms,
                row["timestampType"],
                headers,
            )
        )
    return sorted(rows, key=lambda row: row[2:5])


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)
