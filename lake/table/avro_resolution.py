"""Complete fastavro's schema resolution: decode defaults, handle fields that match both a name and
an alias, reject numbers that would become times of another unit, and keep all digits. Pure.
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple, cast

import fastavro.read

from penstock.lake.arrow.pyarrow_untyped import DataType, pa
from penstock.lake.table.errors import InvalidSchema

LOGICAL: Final[dict[tuple[str, str], DataType]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time64("us"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
    ("long", "local-timestamp-millis"): pa.timestamp("us"),
    ("long", "local-timestamp-micros"): pa.timestamp("us"),
}
"""The column type of each logical type. fastavro converts units only between logical types with the
same column type.
"""

_DIGITS_MAX: Final = 1_000
"""Number of digits that exceeds every decimal column."""

_logical_readers: Final[Any] = cast("Any", fastavro.read).LOGICAL_READERS


class ParsedSchema(NamedTuple):
    """A record schema as fastavro uses it, and its named types."""

    schema: dict[str, Any]
    named: dict[str, Any]


def decode_defaults(columns: ParsedSchema) -> None:
    """Replace the JSON defaults of fields with the values that fastavro would decode from bytes,
    because it returns defaults unchanged. Raise InvalidSchema.
    """
    fields = [field for kind in columns.named.values() for field in kind.get("fields", ())]
    try:
        values = [_default(one["type"], one.get("default"), columns.named) for one in fields]
    except (TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
        raise InvalidSchema(f"a default of the schema does not fit its type: {error}") from None
    for field, value in zip(fields, values, strict=True):
        if "default" in field:
            field["default"] = value


def _default(kind: Any, value: Any, named: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
    """Return a default as a Python value. Fields missing in the default of a record have their own
    defaults.
    """
    if value is None:
        return None
    solid = [one for one in _choices(kind) if one not in ("null", {"type": "null"})]
    schema = _solid(solid[0] if solid else "null", named)
    name = schema["type"]
    if name == "array":
        return [_default(schema["items"], item, named) for item in value]
    if name == "map":
        return {key: _default(schema["values"], item, named) for key, item in value.items()}
    if name == "record":
        return {
            field["name"]: _default(
                field["type"], value.get(field["name"], field.get("default")), named
            )
            for field in schema["fields"]
        }
    if name in {"bytes", "fixed"}:
        value = value.encode("iso-8859-1")
    convert = _logical_readers.get(f"{name}-{schema.get('logicalType')}")
    return value if convert is None else convert(value, schema, None)


def prepare_writer(writer: ParsedSchema, columns: ParsedSchema) -> None:
    """Rename fields of the writer that fastavro would read into a column to which another field of
    the writer belongs. Raise InvalidSchema if a number would become a time or vice versa, because
    Avro's schema resolution ignores units.
    """
    _Pairs(writer.named, columns.named).check(writer.schema, columns.schema, "")


class _Pairs:
    def __init__(self, written: dict[str, Any], wanted: dict[str, Any]) -> None:
        self._written, self._wanted = written, wanted
        self._seen: set[tuple[str, str]] = set()

    def check(self, written: Any, wanted: Any, path: str) -> None:  # noqa: ANN401 - JSON
        for one in _choices(written):
            for other in _choices(wanted):
                self._check_pair(_solid(one, self._written), _solid(other, self._wanted), path)

    def _check_pair(self, one: dict[str, Any], other: dict[str, Any], path: str) -> None:
        kinds = {one["type"], other["type"]}
        if one.get("logicalType") == "decimal":
            one["precision"] = _DIGITS_MAX  # fastavro rounds values with more digits
        if kinds <= {"int", "long"}:
            if _column_type(one) != _column_type(other):
                shown = (kind.get("logicalType") or kind["type"] for kind in (one, other))
                raise InvalidSchema(f"{path}: {' cannot become '.join(shown)}")
        elif kinds == {"record"}:
            pair = one["name"], other["name"]
            if pair not in self._seen and _names(one) & _names(other):
                self._seen.add(pair)
                for source, field in _field_pairs(one, other):
                    self.check(source["type"], field["type"], f"{path}.{field['name']}")
        elif kinds == {"array"}:
            self.check(one["items"], other["items"], f"{path}[]")
        elif kinds == {"map"}:
            self.check(one["values"], other["values"], f"{path}.*")


def _choices(kind: Any) -> list[Any]:  # noqa: ANN401 - JSON
    return [*kind] if isinstance(kind, list) else [kind]


def _column_type(kind: dict[str, Any]) -> DataType | None:
    return LOGICAL.get((kind["type"], str(kind.get("logicalType"))))


def _names(record: dict[str, Any]) -> set[str]:
    """Return the names of a type without namespaces, because fastavro compares only these."""
    names = (record["name"], *record.get("aliases", ()))
    return {name.rpartition(".")[2] for name in names}


def _field_pairs(
    writer: dict[str, Any], columns: dict[str, Any]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield pairs of a writer's field and the column that is read from it, which has its name or,
    if no field has the column's name, its first alias. Rename other fields that match an alias.
    """
    written = {field["name"]: field for field in writer["fields"]}
    own = {field["name"] for field in columns["fields"]}
    for field in columns["fields"]:
        aliases = (alias for alias in field.get("aliases", ()) if alias not in own)
        found = [written.pop(name) for name in (field["name"], *aliases) if name in written]
        if found:
            yield found[0], field
        for other in found[1:]:
            other["name"] = f"-{other['name']}"  # not a valid name, so no field matches it


def _solid(kind: Any, named: dict[str, Any]) -> dict[str, Any]:  # noqa: ANN401 - JSON
    """Return a non-union type in object form."""
    found: Any = named.get(kind, {"type": kind}) if isinstance(kind, str) else kind
    while isinstance(found["type"], dict):
        found = found["type"]
    return cast("dict[str, Any]", found)
