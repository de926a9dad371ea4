"""Convert the rows of an Arrow batch to arguments of `Producer.produce`. Type checkers treat
Arrow's objects as Any.

Invariant: columns are checked and converted to lists as a whole. Invalid rows are found before any
record of the batch is produced. Source: Spark `KafkaRowWriter#sendRow`, Kafka `ProducerRecord`.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Final, NamedTuple

from penstock.lake.arrow.pyarrow_untyped import (
    Array,
    RecordBatch,
    pa,
    pc,
)
from penstock.lake.spark.sink.errors import InvalidRow

_TIMESTAMP_MS: Final = pa.timestamp("ms", tz="UTC")
Headers = list[tuple[str, str | bytes | None]]


class Record(NamedTuple):
    """The arguments of `Producer.produce` in order. Partition -1 means any partition, timestamp 0
    means now.
    """

    topic: str
    value: bytes | None
    key: bytes | None
    partition: int
    timestamp_ms: int
    headers: Headers | None


def check_rows(batch: RecordBatch, topic: str | None) -> None:
    """Check that every row is a valid record; `topic` is the option. Raise InvalidRow."""
    if topic is None and _column(batch, "topic").null_count:
        raise InvalidRow(
            "null topic present in the data. Use the topic option for setting a default topic."
        )
    if (least := _least(_column(batch, "partition"))) < 0:
        raise InvalidRow(
            f"Invalid partition: {least}. Partition number should always be non-negative or null."
        )
    times_ms = _milliseconds(_column(batch, "timestamp"))
    if (least := _least(times_ms)) < 0:
        raise InvalidRow(
            f"Invalid timestamp: {least}. Timestamp should always be non-negative or null."
        )
    if times_ms is not None and pc.any(pc.equal(times_ms, 0)).as_py():
        raise InvalidRow(
            "Invalid timestamp: 0. librdkafka would replace it with the current time, for which"
            " null is also valid: set a later timestamp or null."
        )
    headers = _column(batch, "headers")
    if headers is not None:
        pairs = headers.flatten()
        if pairs.null_count or pc.struct_field(pairs, "key").null_count:
            raise InvalidRow("a header has no key: Null header keys are not permitted")


def records(batch: RecordBatch, topic: str | None) -> Iterator[tuple[Any, ...]]:
    """Yield the fields of Record as plain tuples, because there is one per row. The rows have
    already been checked. The option `topic` overrides the column.
    """
    return zip(
        repeat(topic, batch.num_rows) if topic is not None else _column(batch, "topic").to_pylist(),
        _bytes(_column(batch, "value")),
        _bytes(_column(batch, "key")),
        _numbers(_column(batch, "partition"), -1),
        _numbers(_milliseconds(_column(batch, "timestamp")), 0),
        _headers(_column(batch, "headers")),
        strict=False,  # parts without a column are repeated endlessly
    )


def _column(batch: RecordBatch, name: str) -> Array:
    """Return the column, or None if it does not exist."""
    index = batch.schema.get_field_index(name)
    return None if index < 0 else batch.column(index)


def _least(column: Array) -> int:
    least = None if column is None else pc.min(column).as_py()
    return 0 if least is None else int(least)


def _milliseconds(column: Array) -> Array:
    if column is None:
        return None
    if pa.types.is_floating(column.type):  # in seconds, as in Spark's casts
        return pc.floor(pc.multiply(column, 1_000.0)).cast(pa.int64(), safe=False)
    return column.cast(_TIMESTAMP_MS, safe=False).cast(pa.int64())


def _bytes(column: Array) -> Iterable[bytes | None]:
    return repeat(None) if column is None else column.cast(pa.binary()).to_pylist()


def _numbers(column: Array, default: int) -> Iterable[int]:
    return repeat(default) if column is None else column.fill_null(default).to_pylist()


def _headers(column: Array) -> Iterable[Headers | None]:
    if column is None or column.null_count == len(column):
        return repeat(None)
    pairs = column.flatten()
    keys, values = (pc.struct_field(pairs, name).to_pylist() for name in ("key", "value"))
    return _cut(list(zip(keys, values, strict=True)), pc.list_value_length(column).to_pylist())


def _cut(pairs: Headers, lengths: Sequence[int | None]) -> Iterator[Headers | None]:
    begin = 0
    for length in lengths:
        end = begin + (length or 0)
        yield None if length is None else pairs[begin:end]
        begin = end
