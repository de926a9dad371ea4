"""Infer columns from sampled JSON values.

Invariants: the result depends only on the samples. Conflicting types become VARCHAR, which can
contain the text of any JSON value, so every sample fits the type of its column. Integers that
DOUBLE would round conflict with fractions, as do numbers that DOUBLE cannot represent. There is no
I/O.
"""

import json
import math
import re
import sys
from calendar import monthrange
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

COLUMNS_MAX: Final = 1_000
"""Maximum number of columns of a topic. Additional fields are only in `_value`."""

NESTED_FIELDS_MAX: Final = 200
"""Maximum number of fields of an object that becomes a STRUCT. An object with more fields is
probably a map whose keys are data, and becomes VARCHAR.
"""

DEPTH_MAX: Final = 8
"""Maximum number of STRUCT and list levels in a column; deeper values become VARCHAR."""

_INT64: Final = range(-(1 << 63), 1 << 63)
_BEYOND: Final = 1 << 64
"""Larger integers count as DOUBLE, because programs such as JavaScript write all digits of a
floating-point number.
"""
_HOUR: Final = r"(?:[01]\d|2[0-3])"
TIME: Final = rf"\d{{4}}-\d\d-\d\d[T ]{_HOUR}:[0-5]\d:[0-5]\d(?:\.\d{{1,6}})?"
ZONE: Final = rf"(?:Z|[+-]{_HOUR}(?::?[0-5]\d)?)"
"""Text becomes a TIMESTAMP if it matches TIME, and a TIMESTAMPTZ if a zone follows."""
_TIMESTAMP: Final = re.compile(f"{TIME}({ZONE})?", re.ASCII)


class ListOf(NamedTuple):
    """The type of a list."""

    item: "JsonType"


class StructOf(NamedTuple):
    """The type of an object: names and types of its fields."""

    fields: tuple[tuple[str, "JsonType"], ...]


JsonType: TypeAlias = str | ListOf | StructOf
"""NULL (only nulls so far), BOOLEAN, BIGINT, DOUBLE, TIMESTAMP, TIMESTAMPTZ, VARCHAR, or a
nested type. While samples are joined, also `_EXACT`.
"""

_EXACT: Final = "exact integer"
"""BIGINT with at least one integer that DOUBLE cannot represent exactly."""


class InferredSchema(NamedTuple):
    """The fields of the sampled values, and the numbers of JSON objects, other JSON values, and
    values that are not JSON.
    """

    fields: tuple[tuple[str, JsonType], ...]
    objects: int
    others: int
    invalid: int


def infer(values: Iterable[bytes]) -> InferredSchema:
    """Return the fields of JSON objects, in the order of their first appearance."""
    fields: dict[str, JsonType] = {}
    objects = others = invalid = 0
    for value in values:
        try:
            parsed: Any = json.loads(value, parse_float=fraction)
        except (ValueError, RecursionError):
            invalid += 1
            continue
        if not isinstance(parsed, dict):
            others += 1
            continue
        objects += 1
        for name, item in cast("dict[str, Any]", parsed).items():
            if name in fields or len(fields) < COLUMNS_MAX:
                fields[name] = _joined(fields.get(name, "NULL"), _type_of(item, 1))
    return InferredSchema(
        tuple((name, _final(kind)) for name, kind in fields.items()), objects, others, invalid
    )


def structure_fits(structure: Any, kind: JsonType) -> bool:  # noqa: ANN401 - parsed JSON
    """Return whether values with this structure, from DuckDB's `json_structure`, fit into a column
    of this type without loss. Integers beyond 63 bits are not detected.
    """
    if structure == "NULL" or kind == "VARCHAR":
        return True
    if isinstance(kind, ListOf):
        return isinstance(structure, list) and all(
            structure_fits(item, kind.item) for item in cast("Any", structure)
        )
    if isinstance(kind, StructOf):
        known = dict(kind.fields)
        return isinstance(structure, dict) and all(
            name not in known or structure_fits(item, known[name])
            for name, item in cast("dict[str, Any]", structure).items()
        )
    return structure in _FITTING.get(kind, ())


def text_holds_fraction(structure: Any, kind: JsonType) -> bool:  # noqa: ANN401 - parsed JSON
    """Return whether values with this structure may contain fractions in VARCHAR. DuckDB reports
    lists of mixed types as JSON.
    """
    if kind == "VARCHAR":
        text = json.dumps(structure)
        return "DOUBLE" in text or "JSON" in text
    if isinstance(kind, ListOf) and isinstance(structure, list):
        return any(text_holds_fraction(item, kind.item) for item in cast("Any", structure))
    if isinstance(kind, StructOf) and isinstance(structure, dict):
        known = dict(kind.fields)
        return any(
            name in known and text_holds_fraction(item, known[name])
            for name, item in cast("dict[str, Any]", structure).items()
        )
    return bool(structure == "JSON")


def value_fits(value: Any, kind: JsonType) -> bool:  # noqa: ANN401 - parsed JSON
    """Return whether a value fits into a column of this type without loss. This is needed in
    addition to `structure_fits`, because DuckDB reports `{}` and lists of mixed types as JSON, and
    does not distinguish large integers.
    """
    if value is None or kind == "VARCHAR":
        return True
    if isinstance(kind, ListOf):
        return isinstance(value, list) and all(
            value_fits(item, kind.item) for item in cast("Any", value)
        )
    if isinstance(kind, StructOf):
        known = dict(kind.fields)
        return isinstance(value, dict) and all(
            name not in known or value_fits(item, known[name])
            for name, item in cast("dict[str, Any]", value).items()
        )
    if isinstance(value, bool):
        return kind == "BOOLEAN"
    if isinstance(value, int) and kind == "DOUBLE":
        return abs(value) <= sys.float_info.max and (abs(value) >= _BEYOND or is_exact(value))
    return (kind == "BIGINT" and isinstance(value, int) and value in _INT64) or (
        kind == "DOUBLE" and isinstance(value, float)
    )


_FITTING: Final = {
    "BOOLEAN": ("BOOLEAN",),
    "BIGINT": ("BIGINT", "UBIGINT"),
    "DOUBLE": ("DOUBLE", "BIGINT", "UBIGINT"),
}


def _type_of(value: Any, depth: int) -> JsonType:  # noqa: ANN401 - parsed JSON
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "BOOLEAN"
    if isinstance(value, int):
        if value not in _INT64:
            return "VARCHAR"
        return "BIGINT" if is_exact(value) else _EXACT
    if isinstance(value, float):
        return "DOUBLE"
    if isinstance(value, str):
        return _type_of_text(value) if depth == 1 else "VARCHAR"
    if depth > DEPTH_MAX:
        return "VARCHAR"
    if isinstance(value, list):
        item: JsonType = "NULL"
        for one in cast("Any", value):
            item = _joined(item, _type_of(one, depth + 1))
        return ListOf(item)
    fields = cast("dict[str, Any]", value)
    return _struct([(name, _type_of(item, depth + 1)) for name, item in fields.items()])


def fraction(text: str) -> float | str:
    """Parse a fraction of a JSON value. A number that would become infinite remains text."""
    number = float(text)
    return number if math.isfinite(number) else text


def is_exact(number: int) -> bool:
    """Return whether a 64-bit integer can be stored in a DOUBLE without rounding."""
    return int(float(number)) == number


def _type_of_text(text: str) -> JsonType:
    found = _TIMESTAMP.fullmatch(text)
    if found is None or not _is_date(*map(int, text[:10].split("-"))):
        return "VARCHAR"
    return "TIMESTAMPTZ" if found[1] else "TIMESTAMP"


def _is_date(year: int, month: int, day: int) -> bool:
    """Return whether the date exists. MySQL's zero date, 0000-00-00, does not."""
    return year >= 1 and 1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]


def _struct(fields: Sequence[tuple[str, JsonType]]) -> JsonType:
    """Return a STRUCT, which may have no fields until samples are joined, or VARCHAR if DuckDB does
    not support these fields.
    """
    names = {name.lower() for name, _ in fields}
    if len(names) < len(fields) or len(fields) > NESTED_FIELDS_MAX or "" in names:
        return "VARCHAR"
    return "VARCHAR" if any("\0" in name for name in names) else StructOf(tuple(fields))


def _joined(one: JsonType, other: JsonType) -> JsonType:
    """Return the common type of two types."""
    if one == "NULL":
        return other
    if other == "NULL":
        return one
    if one == other:
        return one
    if {one, other} == {"BIGINT", "DOUBLE"}:
        return "DOUBLE"
    if {one, other} == {"BIGINT", _EXACT}:
        return _EXACT
    if isinstance(one, ListOf) and isinstance(other, ListOf):
        return ListOf(_joined(one.item, other.item))
    if isinstance(one, StructOf) and isinstance(other, StructOf):
        fields = dict(one.fields)
        for name, kind in other.fields:
            fields[name] = _joined(fields.get(name, "NULL"), kind)
        return _struct(list(fields.items()))
    return "VARCHAR"


def _final(kind: JsonType) -> JsonType:
    """Return the type of a column: VARCHAR if all values were null or `{}`."""
    if isinstance(kind, ListOf):
        return ListOf(_final(kind.item))
    if isinstance(kind, StructOf):
        fields = tuple((name, _final(item)) for name, item in kind.fields)
        return StructOf(fields) if fields else "VARCHAR"
    if kind == _EXACT:
        return "BIGINT"
    return "VARCHAR" if kind == "NULL" else kind
