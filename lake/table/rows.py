"""Convert Kafka records to rows of the table and dead letters, keeping the newest row of each key.

Every record becomes a row or a dead letter. For each key of a partition, the record with the
highest offset wins; a tombstone removes the row. There is no I/O. Source: Confluent Tableflow and
Aiven's Iceberg topics.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from penstock.lake.arrow.columns import TYPES
from penstock.lake.arrow.pyarrow_untyped import Array, DataType, RecordBatch, Schema, Table, pa, pc
from penstock.lake.fetch.errors import ReadError
from penstock.lake.table.errors import InvalidSchema
from penstock.lake.table.model import PARTITION
from penstock.lake.table.values import ValueDecoder
from penstock.stream.format.manifest.model import split_name

TOPIC: Final = "_topic"
OFFSET: Final = "_offset"
TIMESTAMP: Final = "_timestamp"
KEY: Final = "_key"
READ: Final = ("topic", "partition", "offset", "timestamp", "key", "value")
REJECTS: Final[Schema] = pa.schema(
    [
        *((name, TYPES[name]) for name in ("topic", "partition", "offset", "timestamp")),
        ("error", pa.string()),
        *((name, TYPES[name]) for name in ("key", "value")),
    ]
)
"""The schema of the dead letter table: the record's position, the error, and its original bytes. A
record that cannot be read has only a position and the error.
"""

NO_KEY: Final = "the record has no key, and rows are upserted by key"


class Rows(NamedTuple):
    good: Table
    rejects: Table
    removed: Array
    """The offsets of the records that remove the rows of their key: tombstones and deletes."""


def read_columns(*, headers: bool) -> tuple[str, ...]:
    """Return the columns to read from the log."""
    return (*READ, "headers") if headers else READ


def row_schema(values: Schema, *, headers: bool, partition_column: str = PARTITION) -> Schema:
    """Return the schema of the table. Raise InvalidSchema if a field of the values has the name of
    a metadata column, in any case, because engines such as Spark ignore case, or contains a struct
    without fields, which Parquet does not support.
    """
    origin = [
        pa.field(partition_column if name == "partition" else f"_{name}", TYPES[name])
        for name in read_columns(headers=headers)
        if name != "value"
    ]
    refuse_names((field.name for field in values), (field.name for field in origin), "Penstock")
    for field in values:
        _refuse_empty(field.type, field.name)
    return pa.schema([*origin, *values])


def _refuse_empty(kind: DataType, path: str) -> None:
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            raise InvalidSchema(
                f"{path}: an object without fields cannot become a column: add a field to it,"
                " remove it from the schema, or use --format raw"
            )
        for field in kind:
            _refuse_empty(field.type, f"{path}.{field.name}")
    elif pa.types.is_map(kind):
        _refuse_empty(kind.item_type, f"{path}.*")
    elif pa.types.is_list(kind):
        _refuse_empty(kind.value_type, f"{path}[]")


def refuse_names(names: Iterable[str], reserved: Iterable[str], owner: str) -> None:
    """Raise InvalidSchema if `names` contains reserved names in any case."""
    taken = {name.lower() for name in reserved}
    if found := [name for name in names if name.lower() in taken]:
        raise InvalidSchema(
            f"fields {', '.join(found)}: {owner} uses these names for metadata columns; rename the"
            " fields, or use --format raw"
        )


def rows_of(
    batch: RecordBatch,
    decoder: ValueDecoder,
    *,
    headers: bool,
    keyed: bool,
    rejected: frozenset[int] = frozenset(),
    partition_column: str = PARTITION,
    unfit: Callable[[Table], Sequence[tuple[int, str]]] = lambda _: (),
) -> Rows:
    """Convert records to rows and dead letters. `unfit` returns the index and the reason of each
    row that the table cannot store.

    With `keyed`, records without a key are dead letters. Records at the offsets `rejected` are
    omitted, because they are already in the table of dead letters, perhaps because of a different
    schema.
    """
    read = set(batch.schema.names)
    decoded = decoder.decode(
        batch.column("value"), batch.column("headers") if "headers" in read else None
    )
    schema = row_schema(decoder.schema, headers=headers, partition_column=partition_column)
    kept = batch if decoded.good is None else batch.take(pa.array(decoded.good, pa.int64()))
    origin = [kept.column(name) for name in read_columns(headers=headers) if name != "value"]
    good = pa.Table.from_arrays(
        [*origin, *(decoded.columns[field.name] for field in decoder.schema)], schema=schema
    )
    rejects = [_rejects(batch, decoded.errors)] if decoded.errors else []
    if problems := unfit(good):
        rejects.append(_rejects(kept, problems))
        bad = {index for index, _ in problems}
        others = pa.array([row for row in range(good.num_rows) if row not in bad], pa.int64())
        good, kept = good.take(others), kept.take(others)
    if keyed and good.column(KEY).null_count:
        keyless = kept.filter(pc.is_null(kept.column("key")))
        rejects.append(_rejects(keyless, [(index, NO_KEY) for index in range(keyless.num_rows)]))
        good = good.filter(pc.is_valid(good.column(KEY)))
    found = pa.concat_tables(rejects) if rejects else REJECTS.empty_table()
    if found.num_rows:
        found = _without(found, "offset", rejected).sort_by("offset")
    good = _without(good, OFFSET, rejected)
    offsets = batch.column("offset")
    removed = pa.concat_arrays(
        [
            offsets.filter(pc.is_null(batch.column("value"))),
            offsets.take(pa.array(decoded.removed, pa.int64())),
        ]
    )
    return Rows(good, found, removed)


def _without(rows: Table, column: str, offsets: frozenset[int]) -> Table:
    if not offsets:
        return rows
    known = pc.is_in(rows.column(column), value_set=pa.array(sorted(offsets), pa.int64()))
    return rows.filter(pc.invert(known))


def unreadable_rows(errors: Sequence[ReadError], rejected: frozenset[int]) -> Table:
    """Return dead letters for offsets without a readable record: one for each error, without key
    and value.
    """
    found = [error for error in errors if error.offset not in rejected]
    columns: dict[str, list[object]] = {
        "topic": [split_name(error.topic)[0] for error in found],
        "partition": [error.partition for error in found],
        "offset": [error.offset for error in found],
        "error": [error.reason for error in found],
    }
    missing = [None] * len(found)
    arrays = [pa.array(columns.get(field.name, missing), field.type) for field in REJECTS]
    return pa.Table.from_arrays(arrays, schema=REJECTS)


def newest_by_key(rows: Table) -> Table:
    """Return the last row of every key. All rows belong to one partition and have keys. Rows may
    have equal offsets, because Kafka accepts batches with repeated offsets.
    """
    numbers = pa.array(np.arange(rows.num_rows))
    keys = pa.Table.from_arrays([rows.column(KEY), numbers], [KEY, "row"])
    last = keys.group_by(KEY).aggregate([("row", "max")])
    return rows.filter(pc.is_in(numbers, value_set=last.column("row_max")))


def _rejects(batch: RecordBatch, errors: Sequence[tuple[int, str]]) -> Table:
    found = batch.take(pa.array([index for index, _ in errors], pa.int64()))
    columns = {name: found.column(name) for name in READ}
    columns["error"] = pa.array([reason for _, reason in errors], pa.string())
    return pa.Table.from_arrays([columns[field.name] for field in REJECTS], schema=REJECTS)
