"""Check partition fields against a schema, and split rows by their partition values.

Invariants: values follow the Iceberg specification, so that they are equal to those of Spark: days
and hours are in UTC and rounded down even before 1970, and buckets use the 32-bit Murmur3 hash.
Null is a separate partition. Rows keep their order. There is no I/O. Source: Iceberg spec,
"Partition Transforms".
"""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final
from urllib.parse import quote

import numpy as np
import pyiceberg_core  # type: ignore[import-untyped]

from penstock.base.partition_spec import (
    IDENTITY,
    TIME_TRANSFORMS,
    WIDTH_TRANSFORMS,
    PartitionField,
)
from penstock.lake.arrow.pyarrow_untyped import Array, Schema, Table, pa, pc
from penstock.lake.table.errors import InvalidTable
from penstock.lake.table.model import Group, group_order

_types: Any = pa.types
_core: Any = pyiceberg_core
_NAMES_SHOWN: Final = 30
_PATH_BYTES_MAX: Final = 150
"""Longer values are truncated in directory names, which file systems limit to 255 bytes."""

NULL_DIRECTORY: Final = "__HIVE_DEFAULT_PARTITION__"

_SMALL: Final = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}

_DATES: Final = frozenset({"year", "month", "day", "bucket", IDENTITY})
_WIDE: Final = frozenset({*WIDTH_TRANSFORMS, IDENTITY})
_NONE: Final = frozenset[str]()
_ALLOWED: Final[Sequence[tuple[Callable[[Any], bool], frozenset[str]]]] = (
    (_types.is_timestamp, _DATES | {"hour"}),
    (_types.is_date, _DATES),
    (_types.is_time, frozenset({"bucket", IDENTITY})),
    (_types.is_fixed_size_binary, frozenset({"bucket"})),
    (_types.is_boolean, frozenset({IDENTITY})),
    (_types.is_integer, _WIDE),
    (_types.is_decimal, _WIDE),
    (lambda kind: _types.is_string(kind) or _types.is_large_string(kind), _WIDE),
    (lambda kind: _types.is_binary(kind) or _types.is_large_binary(kind), _WIDE),
)
"""The allowed transforms of each type. Iceberg also allows `identity` for floating-point values,
where NaN and negative zero are ambiguous, and for fixed binary values, where Iceberg 1.12 in Spark
cannot read the manifest.
"""


def check_partition_fields(fields: Sequence[PartitionField], schema: Schema) -> None:
    """Raise InvalidTable if a column is missing or has a type that its transform does not accept,
    or if a partition field has the name of a column.
    """
    for field in fields:
        _, kind = _found(field, schema)
        allowed = next((allowed for is_kind, allowed in _ALLOWED if is_kind(kind)), _NONE)
        if not allowed:
            raise InvalidTable(
                f"partitioning {field}: tables cannot be partitioned by the type {kind} of"
                f" {field.column}{_inner_hint(field, kind)}"
            )
        if field.transform not in allowed:
            order = [*TIME_TRANSFORMS, *WIDTH_TRANSFORMS, IDENTITY]
            raise InvalidTable(
                f"partitioning {field}: {field.column} has the type {kind}; use"
                f" {', '.join(name for name in order if name in allowed)}"
            )
        if field.transform != IDENTITY and field.name in schema.names:
            raise InvalidTable(
                f"partitioning {field}: the partition field {field.name} would have the name of a"
                " column; partition by that column, or rename it"
            )


def split_rows(rows: Table, fields: Sequence[PartitionField]) -> Iterator[tuple[Group, Table]]:
    """Yield the rows of each group of partition values. Cost: one hash of the values, and one copy
    of the rows if there are several groups.
    """
    if not rows.num_rows:
        return
    if not fields:
        yield (), rows
        return
    names = [str(index) for index in range(len(fields))]
    columns = [_values(field, rows) for field in fields]
    positions = pa.array(np.arange(rows.num_rows, dtype=np.int64))
    found = (
        pa.Table.from_arrays([*columns, positions], [*names, "row"])
        .group_by(names, use_threads=False)
        .aggregate([("row", "list")])
    )
    groups = list(zip(*(found.column(name).to_pylist() for name in names), strict=True))
    if len(groups) == 1:
        yield groups[0], rows
        return
    lists = found.column("row_list").combine_chunks()
    for index in sorted(range(len(groups)), key=lambda index: group_order(groups[index])):
        yield groups[index], rows.take(lists[index].values)


def unfit_rows(
    rows: Table, fields: Sequence[PartitionField], schema: Schema
) -> list[tuple[int, str]]:
    """Return the index and the reason of each row whose partition value has more digits than its
    column in the table with this schema, such as that of truncate(50, c) for -99.99 in
    decimal(4, 2): Iceberg cannot store it.
    """
    found: dict[int, str] = {}
    for field in fields:
        path, kind = _found(field, schema)
        if field.transform != "truncate" or not _types.is_decimal(kind):
            continue
        if path[0] not in rows.column_names:
            continue  # the column was removed from the schema of the values
        column = rows.select(path[:1]).cast(pa.schema([schema.field(path[0])]))
        values = _values(field, column)
        lowest = Decimal((1, (9,) * kind.precision, -kind.scale))
        unfit = pc.indices_nonzero(pc.less(values, pa.scalar(lowest, kind)))
        for row, value in zip(unfit.to_pylist(), values.take(unfit).to_pylist(), strict=True):
            reason = f"partitioning {field}: {value} has more digits than {kind}"
            found[row] = f"{reason}; widen {field.column}, or partition by bucket"
    return list(found.items())


def directory_of(field: PartitionField, value: Any, schema: Schema) -> str:  # noqa: ANN401 - of any type
    """Return a value as the name of a directory."""
    if value is None:
        return NULL_DIRECTORY
    text = _text_of(field, value, schema)
    while len(quoted := quote(text, safe="")) > _PATH_BYTES_MAX:
        text = text[: len(text) * 3 // 4]
    return quoted


def _values(field: PartitionField, rows: Table) -> Array:
    source = _column(field, rows)
    if field.transform == IDENTITY:
        values = source
    else:
        width = (field.width,) if field.transform in WIDTH_TRANSFORMS else ()
        values = getattr(_core.transform, field.transform)(source, *width)
    return iceberg_numbers(values)


def _column(field: PartitionField, rows: Table) -> Array:
    path, _ = _found(field, rows.schema)
    column = rows.column(path[0])
    array = pa.concat_arrays(column.chunks)
    found = pc.struct_field(array, path[1:]) if len(path) > 1 else array
    small = _SMALL.get(found.type)  # the transforms do not support the large types
    return found if small is None else found.cast(small)


def iceberg_numbers(values: Array) -> Array:
    """Return times as the numbers that Iceberg stores."""
    kind = values.type
    if _types.is_date32(kind) or _types.is_time32(kind):
        return values.cast(pa.int32())
    return values.cast(pa.int64()) if _types.is_temporal(kind) else values


def _found(field: PartitionField, schema: Schema) -> tuple[list[str], Any]:
    """Return the names on the path from the column to the field, and the type of the field. Column
    names may contain dots.
    """
    if field.column in schema.names:
        return [field.column], schema.field(field.column).type
    parts = field.column.split(".")
    kind: Any = schema.field(parts[0]).type if parts[0] in schema.names else None
    for part in parts[1:]:
        if not _types.is_struct(kind) or kind.get_field_index(part) < 0:
            kind = None
            break
        kind = kind.field(part).type
    if kind is None:
        leaves = list(_leaves(schema))
        shown = ", ".join(leaves[:_NAMES_SHOWN]) + (", ..." if len(leaves) > _NAMES_SHOWN else "")
        raise InvalidTable(f"partitioning {field}: {field.column} is unknown; use one of {shown}")
    return parts, kind


def _leaves(fields: Any, prefix: str = "") -> Iterator[str]:  # noqa: ANN401 - a schema or a struct
    for field in fields:
        if _types.is_struct(field.type):
            yield from _leaves(field.type, f"{prefix}{field.name}.")
        else:
            yield f"{prefix}{field.name}"


def _inner_hint(field: PartitionField, kind: Any) -> str:  # noqa: ANN401 - pyarrow is untyped
    if not _types.is_struct(kind):
        return ""
    return f"; use one of its fields, such as {next(_leaves(kind, f'{field.column}.'), '')}"


def _text_of(field: PartitionField, value: Any, schema: Schema) -> str:  # noqa: ANN401 - of any type
    if field.transform in _PERIODS:
        return _PERIODS[field.transform](value)
    if field.transform != "bucket":
        _, kind = _found(field, schema)
        if _types.is_date(kind):
            return _day(value)
        if _types.is_timestamp(kind):
            return f"{_day(value // _DAY_US)}T{_time(value % _DAY_US)}"
        if _types.is_time(kind):
            return _time(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


_DAY_US: Final = 86_400_000_000
_EPOCH: Final = dt.date(1970, 1, 1).toordinal()


def _day(days: int) -> str:
    ordinal = days + _EPOCH
    is_date = 1 <= ordinal <= dt.date.max.toordinal()
    return dt.date.fromordinal(ordinal).isoformat() if is_date else str(days)


def _time(value_us: int) -> str:
    seconds, fraction_us = divmod(value_us, 1_000_000)
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction_us:06}"


_PERIODS: Final[Mapping[str, Callable[[int], str]]] = {
    "day": _day,
    "hour": lambda hours: f"{_day(hours // 24)}-{hours % 24:02}",
    "month": lambda months: f"{1970 + months // 12:04}-{months % 12 + 1:02}",
    "year": lambda years: str(1970 + years),
}
