"""The columns that readers return, with exactly the Arrow types that Spark's `to_arrow_schema`
derives from the schema of `format("kafka")`.

Source: Spark `KafkaRecordToRowConverter.kafkaSchema`.
"""

from collections.abc import Sequence
from typing import Final

from penstock.lake.arrow.pyarrow_untyped import Array, DataType, Schema, pa
from penstock.stream.format.manifest.model import split_name

HEADER: Final = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
FIELDS: Final = (
    pa.field("key", pa.binary()),
    pa.field("value", pa.binary()),
    pa.field("topic", pa.string()),
    pa.field("partition", pa.int32()),
    pa.field("offset", pa.int64()),
    pa.field("timestamp", pa.timestamp("us", tz="UTC")),
    pa.field("timestampType", pa.int32()),
    pa.field("headers", pa.list_(pa.field("element", HEADER))),
)
TYPES: Final[dict[str, DataType]] = {field.name: field.type for field in FIELDS}
NAMES: Final = tuple(TYPES)
DEFAULT: Final = NAMES[:-1]
"""All columns except headers, which must be requested (`includeHeaders`)."""

_WEIGHTS: Final = {
    "key": 4,
    "value": 4,
    "topic": 4,
    "partition": 4,
    "offset": 8,
    "timestamp": 8,
    "timestampType": 4,
    "headers": 4,
}
_VALUES_MAX: Final = 16
"""Number of cached topic and partition columns; a task rarely reads more partitions than this at a
time.
"""

_TOPIC: Final = 0
"""Fields of a run: topic, partition, and its first row."""
_PARTITION: Final = 1
_START: Final = 2


def arrow_schema(columns: Sequence[str] = DEFAULT, *, views: bool = False) -> Schema:
    """Return the schema of these columns, in this order. Raise ValueError for unknown columns.

    With `views`, key and value have the type `binary_view`.

    Invariant: every field is nullable, as in Spark; `timestamp` counts microseconds in UTC; headers
    are null for a record without headers. Spark checks only the first batch, and crashes in the JVM
    if a later one has a different type, so all batches are built here.
    """
    unknown = [name for name in columns if name not in NAMES]
    if unknown or not columns or len(set(columns)) != len(columns):
        raise ValueError(
            f"columns {list(columns)}: choose at least one, without duplicates, of"
            f" {', '.join(NAMES)}"
        )
    fields = (FIELDS[NAMES.index(name)] for name in columns)
    return pa.schema(
        [
            field.with_type(pa.binary_view()) if views and field.type == pa.binary() else field
            for field in fields
        ]
    )


def row_bytes(columns: Sequence[str], topic: str) -> int:
    """Return the size of a row without key, value and headers, in bytes."""
    return sum(_WEIGHTS[name] for name in columns) + (
        len(topic.encode()) if "topic" in columns else 0
    )


class Places:
    """Build the columns `topic` and `partition` of Arrow batches, which consist of a few runs of
    rows of the same partition.
    """

    __slots__ = ("_columns", "_rows_max", "_runs")

    def __init__(self, rows_max: int) -> None:
        self._rows_max = rows_max
        self._runs: list[tuple[str, int, int]] = []
        self._columns: dict[str | int, Array] = {}

    def begin(self, row: int, topic: str, partition: int) -> None:
        """Assign rows to a partition, from this row until the next call. For a snapshot, `topic`
        becomes the name of the original topic.
        """
        topic, _ = split_name(topic)
        last = self._runs[-1] if self._runs else None
        if last is None or last[_PARTITION] != partition or last[_TOPIC] != topic:
            if last is not None and last[_START] == row:
                self._runs.pop()
            self._runs.append((topic, partition, row))

    def take(self, arrays: dict[str, Array], columns: Sequence[str], rows: int) -> None:
        """Add the requested columns of the next `rows` rows. Subsequent rows belong to the last
        partition.
        """
        if "topic" in columns:
            arrays["topic"] = self._column(_TOPIC, rows)
        if "partition" in columns:
            arrays["partition"] = self._column(_PARTITION, rows)
        topic, partition, _row = self._runs[-1]
        self._runs = [(topic, partition, 0)]

    def _column(self, field: int, rows: int) -> Array:
        """Return a column; `field` is _TOPIC or _PARTITION."""
        if len(self._runs) == 1:
            return self._same(self._runs[0][field], rows)
        ends = [run[_START] for run in self._runs[1:]] + [rows]
        return pa.concat_arrays(
            [
                self._same(run[field], end - run[_START])
                for run, end in zip(self._runs, ends, strict=True)
            ]
        )

    def _same(self, value: str | int, rows: int) -> Array:
        """Return a column with one value in all rows: a slice of a cached column of maximum
        length.
        """
        column = self._columns.get(value)
        if column is None:
            if len(self._columns) >= _VALUES_MAX:
                self._columns.pop(next(iter(self._columns)))
            kind = pa.string() if isinstance(value, str) else pa.int32()
            column = self._columns[value] = pa.repeat(pa.scalar(value, kind), self._rows_max)
        return column.slice(0, rows)


def readable_names(names: Array) -> Array:
    """Return header keys as text. Bytes that are not UTF-8 are replaced by U+FFFD, as in Kafka's
    Java client.
    """
    try:
        names.validate(full=True)
    except pa.ArrowInvalid:
        raw = names.view(pa.binary()).to_pylist()
        return pa.array([name.decode("utf-8", "replace") for name in raw], pa.string())
    return names
