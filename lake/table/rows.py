"""Kafka records to rows of the table and of its dead letters, and rows by day and by key.

Invariants: columns that begin with _ say where a row comes from; every record is a row or a dead
letter. Of a key the highest offset of its partition wins, a tombstone removes it. Must not do I/O.
Source: Confluent Tableflow and Aiven's Iceberg topics.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lake.arrow.columns import HEADER
from lake.arrow.pyarrow_untyped import (
    Array,
    RecordBatch,
    Schema,
    pa,
)
from lake.table.pyarrow_untyped import Table, pc
from lake.table.values import ValueDecoder

PARTITION: Final = "_partition"
OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
KEY: Final = "_key"
_NAMES: Final = {
    "topic": "_topic",
    "partition": PARTITION,
    "offset": OFFSET,
    "timestamp": TIMESTAMP,
    "key": KEY,
    "headers": "_headers",
}
_TYPES: Final = {
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "key": pa.binary(),
    "headers": pa.list_(pa.field("element", HEADER)),
}
READ: Final = ("topic", "partition", "offset", "timestamp", "key", "value")
_REJECT_NAMES: Final = ("topic", "partition", "offset", "timestamp", "key", "value")
REJECTS: Final[Schema] = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("error", pa.string()),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
    ]
)
"""Of the dead letter table: where the record lies, why it is no row, and its bytes as they are."""

NO_KEY: Final = "the record has no key, and rows are upserted by key"
_DAY_US: Final = 86_400_000_000


class Rows(NamedTuple):
    good: Table
    rejects: Table


def read_columns(*, headers: bool) -> tuple[str, ...]:
    """What to read of each record."""
    return (*READ, "headers") if headers else READ


def row_schema(values: Schema, *, headers: bool) -> Schema:
    """Of the table."""
    names = [name for name in read_columns(headers=headers) if name != "value"]
    return pa.schema([*(pa.field(_NAMES[name], _TYPES[name]) for name in names), *values])


def rows_of(
    batch: RecordBatch, decoder: ValueDecoder, *, headers: bool, keyed: bool, rejects_from: int
) -> Rows:
    """keyed: records without a key are dead letters. rejects_from: dead letters below are left out,
    they are in their table already.
    """
    decoded = decoder.decode(batch.column("value"))
    schema = row_schema(decoder.schema, headers=headers)
    kept = batch if decoded.good is None else batch.take(pa.array(decoded.good, pa.int64()))
    origin = [kept.column(name) for name in read_columns(headers=headers) if name != "value"]
    good = pa.Table.from_arrays(
        [*origin, *(decoded.columns[field.name] for field in decoder.schema)], schema=schema
    )
    rejects = [_rejects(batch, decoded.errors)] if decoded.errors else []
    if keyed and good.column(KEY).null_count:
        keyless = kept.filter(pc.is_null(kept.column("key")))
        rejects.append(_rejects(keyless, [(index, NO_KEY) for index in range(keyless.num_rows)]))
        good = good.filter(pc.is_valid(good.column(KEY)))
    found = pa.concat_tables(rejects) if rejects else REJECTS.empty_table()
    if found.num_rows:
        found = found.filter(pc.greater_equal(found.column("offset"), rejects_from)).sort_by(
            "offset"
        )
    return Rows(good, found)


def tombstones(batch: RecordBatch) -> Array:
    """Offsets of the records without a value."""
    return batch.column("offset").filter(pc.is_null(batch.column("value")))


def newest_by_key(rows: Table) -> Table:
    """The last row of every key. rows: of one partition, every one with a key."""
    last = rows.group_by(KEY).aggregate([(OFFSET, "max")])
    return rows.filter(pc.is_in(rows.column(OFFSET), value_set=last.column(f"{OFFSET}_max")))


def by_day(rows: Table) -> Iterator[tuple[int, Table]]:
    """Rows by the days of their timestamps, counted from 1970 in UTC; the order within a day is
    kept.
    """
    days = days_of(rows.column(TIMESTAMP))
    found = pc.unique(days).to_pylist()
    for day in sorted(found):
        yield day, rows if len(found) == 1 else rows.filter(pc.equal(days, day))


def days_of(timestamps: Array) -> Array:
    """Rounded down, before 1970 too, as Iceberg's day transform does."""
    counts = timestamps.cast(pa.int64())
    days = pc.divide(counts, _DAY_US)
    return pc.subtract(
        days, pc.cast(pc.less(pc.subtract(counts, pc.multiply(days, _DAY_US)), 0), pa.int64())
    )


def _rejects(batch: RecordBatch, errors: Sequence[tuple[int, str]]) -> Table:
    found = batch.take(pa.array([index for index, _ in errors], pa.int64()))
    columns = {name: found.column(name) for name in _REJECT_NAMES}
    columns["error"] = pa.array([reason for _, reason in errors], pa.string())
    return pa.Table.from_arrays([columns[field.name] for field in REJECTS], schema=REJECTS)
