"""Derive the columns of a topic, from its schema or from a sample of its records.

Invariant: samples are bounded, and contain the oldest and the newest records of the largest
partitions. System columns begin with `_` and take precedence over fields of the same name, which
are still in `_value`.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Final

from penstock.lake.arrow.columns import TYPES
from penstock.lake.arrow.pyarrow_untyped import DataType, Schema, pa
from penstock.lake.arrow.topic_scan import Scan
from penstock.lake.sql.inference import JsonType, infer
from penstock.lake.sql.json_values import JsonColumn, arrow_type
from penstock.lake.sql.pruning import OFFSET, PARTITION, TIMESTAMP
from penstock.lake.table.registry import decoder_of, with_newest
from penstock.lake.table.values import RAW, ValueFormat
from penstock.protocol.registry.by_id import schemas_of
from penstock.protocol.registry.model import NotRegistered
from penstock.protocol.registry.wire_format import SchemaKey, split_value, value_header

KEY: Final = "_key"
HEADERS: Final = "_headers"
VALUE: Final = "_value"
HIDDEN: Final = (HEADERS, VALUE)
"""System columns that exist only in statements that mention them."""

SAMPLED_PARTITIONS_MAX: Final = 4
SAMPLED_RECORDS_MAX: Final = 250
"""Maximum number of sampled records at each end of a partition."""

_IDS_MAX: Final = 4
"""Maximum number of schema ids of sampled values that are looked up."""

_WIDE_OFFSETS: Final = 100_000
"""Number of offsets read at each end if the outermost ones have no records with a value, as after
log compaction.
"""

SOURCES: Final = {
    PARTITION: "partition",
    OFFSET: "offset",
    TIMESTAMP: "timestamp",
    KEY: "key",
    HEADERS: "headers",
    VALUE: "value",
}
"""The column of the scan for each system column."""


@dataclass(frozen=True, slots=True)
class TopicSchema:
    """The columns of a topic, without hidden ones."""

    schema: Schema
    json: Mapping[str, JsonColumn]
    """The columns that are fields of JSON values."""

    value_format: ValueFormat = RAW
    """The format of the other columns that are not system columns. If it is RAW, the column `value`
    contains the value.
    """

    def with_hidden(self, names: Sequence[str]) -> Schema:
        """Return the schema with these hidden columns added."""
        fields = [pa.field(name, TYPES[SOURCES[name]]) for name in HIDDEN if name in names]
        return pa.schema([*self.schema, *fields])


def schema_of(
    scan: Scan,
    value_format: ValueFormat | None = None,
    framed_format: ValueFormat | None = None,
) -> TopicSchema:
    """Return the columns of a topic. `framed_format`: used for topics without a format if most
    sampled values have schemas in its registry. Raise InvalidSchema, RegistryError, or the errors
    of reading.
    """
    sample = _sample(scan, may_be_framed=value_format is None and framed_format is not None)
    keys, values = sample.keys, sample.values
    if framed_format is not None and _are_framed(sample, framed_format):
        value_format = framed_format
    system = [
        pa.field(PARTITION, TYPES["partition"]),
        pa.field(OFFSET, TYPES["offset"]),
        pa.field(TIMESTAMP, TYPES["timestamp"]),
        pa.field(KEY, _text_type(keys)),
    ]
    if value_format is not None:
        value_format = with_newest(value_format)
        found = decoder_of(value_format).schema
        fields = [field for field in found if field.name.lower() not in SOURCES]
        return TopicSchema(pa.schema([*system, *fields]), {}, value_format)
    sampled = infer(values)
    columns = _json_columns(sampled.fields) if sampled.objects else []
    # A few invalid values do not matter: JSON columns are omitted only if most values are not JSON
    # objects.
    if not columns or sampled.objects < sampled.others + sampled.invalid:
        return TopicSchema(pa.schema([*system, pa.field("value", _text_type(values))]), {})
    fields = [pa.field(column.name, arrow_type(column.kind)) for column in columns]
    return TopicSchema(pa.schema([*system, *fields]), {column.name: column for column in columns})


def _json_columns(fields: Sequence[tuple[str, JsonType]]) -> list[JsonColumn]:
    """Return unique column names: DuckDB ignores case, so a number is appended to later duplicates,
    such that the result is not the name of another field.
    """
    taken, given = set(SOURCES), {field.lower() for field, _ in fields}
    columns: list[JsonColumn] = []
    for field, kind in fields:
        if not field or "\0" in field or field.lower() in SOURCES:
            continue
        name, number = field, 0
        while name.lower() in taken or (number and name.lower() in given):
            number += 1
            name = f"{field}_{number}"
        taken.add(name.lower())
        columns.append(JsonColumn(name, field, kind))
    return columns


class _Sample:
    """Keys and values of sampled records, and the ids or GUIDs of the schemas of framed values."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: list[bytes] = []
        self.schemas: list[SchemaKey] = []


def _sample(scan: Scan, *, may_be_framed: bool) -> _Sample:
    """Return the oldest and the newest records."""
    fullest = sorted(scan.offsets.items(), key=lambda item: item[1][0] - item[1][1])
    chosen = [item for item in fullest[:SAMPLED_PARTITIONS_MAX] if item[1][0] < item[1][1]]
    columns = ("key", "value", "headers") if may_be_framed else ("key", "value")
    sample = _Sample()
    for width in (SAMPLED_RECORDS_MAX, _WIDE_OFFSETS):
        oldest = {number: (start, min(start + width, end)) for number, (start, end) in chosen}
        newest = {number: (max(oldest[number][1], end - width), end) for number, (_, end) in chosen}
        for part in (oldest, newest):
            for record in _records(scan, part, columns, is_wide=width > SAMPLED_RECORDS_MAX):
                if record["key"] is not None:
                    sample.keys.append(record["key"])
                if record["value"] is not None:
                    sample.values.append(record["value"])
                    if may_be_framed:
                        sample.schemas.extend(_schema_of(record))
        if sample.values:
            break
    return sample


def _records(
    scan: Scan, offsets: Mapping[int, tuple[int, int]], columns: tuple[str, ...], *, is_wide: bool
) -> Iterator[dict[str, Any]]:
    """Yield a bounded number of records in a range of each partition. All ranges are one scan,
    whose requests run concurrently; large ranges are read only until there are enough records.
    """
    parts = [{number: part} for number, part in offsets.items()] if is_wide else [offsets]
    for part in parts:
        left = SAMPLED_RECORDS_MAX * len(part)
        with closing(scan.narrowed(part, columns).batches()) as batches:
            for batch in batches:
                rows = batch.slice(0, left)
                yield from rows.to_pylist()
                left -= rows.num_rows
                if not left:
                    break


def _schema_of(record: Mapping[str, Any]) -> list[SchemaKey]:
    """Return the schema id or GUID in the headers or before the value, if there is one."""
    headers = record["headers"] or ()
    with suppress(ValueError):
        header = value_header((item["key"], item["value"]) for item in headers)
        return [split_value(record["value"], header)[0]]
    return []


def _are_framed(sample: _Sample, framed_format: ValueFormat) -> bool:
    """Return whether most values have a schema id and the registry contains one of the most
    frequent ids. The registry is checked because 8-byte integers also begin with zeros. Raise
    RegistryError.
    """
    if 2 * len(sample.schemas) <= len(sample.values) or framed_format.registry is None:
        return False
    find = schemas_of(framed_format.registry).finder()
    for key, _ in Counter(sample.schemas).most_common(_IDS_MAX):
        with suppress(NotRegistered):
            find(key)
            return True
    return False


def _text_type(sample: Sequence[bytes]) -> DataType:
    """Return VARCHAR if all bytes are UTF-8, otherwise BLOB."""
    try:
        for item in sample:
            item.decode()
    except UnicodeDecodeError:
        return pa.binary()
    return pa.string()
