"""Decode JSON values with a JSON Schema.

Decoding is strict: a number is not accepted as a string, nor a fraction as an integer (1.0 is one),
and a missing required member is an error. Other members are omitted. msgspec validates and builds
the row in one step. Source: JSON Schema 2020-12.
"""

import datetime as dt
import types
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from typing import Annotated, Any, Final, NotRequired, TypedDict, cast

import msgspec

from penstock.lake.arrow.pyarrow_untyped import DataType, pa
from penstock.lake.table.errors import InvalidSchema
from penstock.lake.table.json_references import JsonSchemas
from penstock.lake.table.writers import FindSchema, SchemaSource, Writers
from penstock.protocol.registry.model import StoredSchema
from penstock.protocol.registry.wire_format import SchemaKey

_typed_dict: Any = TypedDict
"""Untyped, because these types are created at runtime."""

_INT64: Final = msgspec.Meta(ge=-(2**63), le=2**63 - 1)
_FLOAT32: Final = msgspec.Meta(ge=-3.4028235e38, le=3.4028235e38)
"""Maximum 32-bit float; larger numbers would become infinite."""


_EXACT_MAX: Final = 1 << 53
"""A number with a decimal point may have been rounded to this one or larger ones."""


class _TimeOfDay(dt.time):
    """A time without a UTC offset, or with offset 0. Other offsets are errors, because columns have
    no offset.
    """


class _Int64(int):
    """A number without a fraction, which JSON may write as 1.0."""

    bits = 63


class _Int32(_Int64):
    bits = 31


def _converted(kind: Any, found: Any) -> Any:  # noqa: ANN401 - of msgspec
    """Return a JSON value as one of the types above. Raise ValueError."""
    if issubclass(kind, _Int64):
        if isinstance(found, float) and found.is_integer() and abs(found) < _EXACT_MAX:
            found = int(found)
        if type(found) is not int or not -(1 << kind.bits) <= found < 1 << kind.bits:
            raise ValueError(f"expected an integer of {kind.bits + 1} bits, got {found}")
        return kind(found)
    assert kind is _TimeOfDay
    time = msgspec.convert(found, dt.time)
    if time.utcoffset():
        raise ValueError(f"expected a time in UTC, got {found}")
    return _TimeOfDay(time.hour, time.minute, time.second, time.microsecond)


_SCALARS: Final[dict[tuple[str, str], tuple[Any, Any]]] = {
    ("string", ""): (str, pa.string()),
    ("string", "date-time"): (
        Annotated[dt.datetime, msgspec.Meta(tz=True)],
        pa.timestamp("us", tz="UTC"),
    ),
    ("string", "date"): (dt.date, pa.date32()),
    ("string", "time"): (_TimeOfDay, pa.time64("us")),
    ("string", "base64"): (bytes, pa.binary()),
    ("integer", ""): (Annotated[int, _INT64], pa.int64()),
    ("integer", "int32"): (Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)], pa.int32()),
    ("number", ""): (float, pa.float64()),
    ("number", "float"): (Annotated[float, _FLOAT32], pa.float32()),
    ("number", "decimal"): (Decimal, pa.decimal128(38, 9)),
    ("boolean", ""): (bool, pa.bool_()),
}
_WITH_POINT: Final[dict[Any, Any]] = {
    _SCALARS["integer", ""][0]: _Int64,
    _SCALARS["integer", "int32"][0]: _Int32,
}
"""The types of integers that may have a decimal point. They are several times as slow."""


_TYPE_NAMES: Final[tuple[tuple[Any, str], ...]] = (
    (type(None), "null"),
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)
_DEPTH_MAX: Final = 32
_TYPES_MAX: Final = 20_000
_Json = dict[str, Any]


class JsonDecoder:
    errors = (msgspec.DecodeError, UnicodeDecodeError, ValueError, RecursionError)

    def __init__(self, columns: SchemaSource, find: FindSchema | None = None) -> None:
        """`find` returns the schema with the given id, which must be a JSON Schema."""
        references: dict[str, _Json] = {}
        if isinstance(columns, StoredSchema):
            references = {name: _document(text) for name, text in columns.references}
        root = _document(columns.text if isinstance(columns, StoredSchema) else columns)
        kind, self.struct = _Types(root, references, {}).root()
        self._decoder = _decoder_of(kind)
        self._with_point: Callable[[], msgspec.json.Decoder[_Json]] = cache(
            lambda: _decoder_of(_Types(root, references, _WITH_POINT).root()[0])
        )
        self._writers = None if find is None else Writers("json", find, lambda _: True)

    def row(self, value: memoryview, schema_id: SchemaKey | None) -> dict[str, Any]:
        if schema_id is not None and self._writers is not None:
            self._writers.of(schema_id)
        try:
            return self._decoder.decode(value)
        except msgspec.ValidationError as error:
            if "got `float`" not in str(error):
                raise
        return self._with_point().decode(value)  # 1.0 is an integer, too


def _decoder_of(kind: Any) -> msgspec.json.Decoder[_Json]:  # noqa: ANN401 - of msgspec
    return msgspec.json.Decoder(kind, dec_hook=_converted)


def _document(text: bytes | str) -> _Json:
    try:
        parsed = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidSchema(f"the schema is not JSON: {error}") from None
    return cast("_Json", parsed) if isinstance(parsed, dict) else {}


def _are_names(value: Any) -> bool:  # noqa: ANN401 - JSON
    return isinstance(value, list) and all(isinstance(item, str) for item in cast("Any", value))


def _is_null(schema: Any) -> bool:  # noqa: ANN401 - JSON
    """Return whether only null is valid. Other keywords such as `title`, which Confluent's
    serializers add, are allowed.
    """
    if not isinstance(schema, dict):
        return False
    found = cast("_Json", schema)
    return (found.get("type") or _types_of_constants(found)) in ("null", ["null"])


def _types_of_constants(schema: _Json) -> list[str]:
    """Return the types of the values in `enum` or `const`, for a schema without `type`."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return []
    listed: list[Any] = cast("Any", values)
    found = {
        next(name for kinds, name in _TYPE_NAMES if isinstance(value, kinds)) for value in listed
    }
    return sorted(found - {"integer"} if {"integer", "number"} <= found else found)


class _Types:
    """Converts a schema. `references`: other documents, by the name used in `$ref`. `replaced`:
    types of msgspec, by the usual ones.
    """

    def __init__(
        self, root: _Json, references: dict[str, _Json], replaced: Mapping[Any, Any]
    ) -> None:
        self._root = root
        self._replaced = replaced
        self._schemas = JsonSchemas(root, references)
        self._types_left = _TYPES_MAX

    def root(self) -> tuple[Any, DataType]:
        """Return the type of msgspec and of Arrow. Raise InvalidSchema."""
        schema, document = self._schemas.target(self._root, "", "$")
        if schema.get("type") != "object":
            raise InvalidSchema(
                "the schema must be a JSON Schema with type 'object' at the top: its properties"
                " become columns"
            )
        return self._object(schema, document, "$", 0)

    def _object(self, schema: _Json, document: str, path: str, depth: int) -> tuple[Any, DataType]:
        properties = schema.get("properties")
        if not isinstance(properties, dict):
            raise InvalidSchema(
                f"{path}: an object needs 'properties'; one with any members is a map:"
                " 'additionalProperties' with a type"
            )
        required: Any = schema.get("required", [])
        if not _are_names(required):
            raise InvalidSchema(f"{path}: 'required' must be a list of property names")
        members: dict[str, Any] = {}
        fields: list[Any] = []
        for name, member in cast("_Json", properties).items():
            kind, column = self._type(member, document, f"{path}.{name}", depth + 1)
            members[name] = kind if name in required else NotRequired[kind]
            fields.append(pa.field(name, column))
        return _typed_dict("Row", members), pa.struct(fields)

    def _type(
        self,
        parsed: Any,  # noqa: ANN401 - JSON
        document: str,
        path: str,
        depth: int,
    ) -> tuple[Any, DataType]:
        self._types_left -= 1
        if depth > _DEPTH_MAX or self._types_left < 0:
            raise InvalidSchema(
                f"{path}: types that contain themselves, or are nested deeper than {_DEPTH_MAX},"
                " cannot become a column"
            )
        if not isinstance(parsed, dict):
            raise InvalidSchema(f"{path}: must be an object with a 'type'")
        schema, document = self._schemas.target(cast("_Json", parsed), document, path)
        for keyword in ("oneOf", "anyOf"):
            if "type" not in schema and isinstance(schema.get(keyword), list):
                return self._nullable(schema[keyword], document, path, depth)
        names = schema.get("type") or _types_of_constants(schema)
        listed = cast("list[str]", names) if isinstance(names, list) else [cast("str", names)]
        solid = [name for name in listed if name != "null"]
        if len(solid) != 1 or not _are_names(solid):
            raise InvalidSchema(
                f"{path}: type {names!r} cannot become a column: use one type, or one and 'null'"
            )
        kind, column = self._solid(solid[0], schema, document, path, depth)
        return (kind | None if len(listed) > 1 else kind), column

    def _nullable(
        self, choices: list[Any], document: str, path: str, depth: int
    ) -> tuple[Any, DataType]:
        solid = [choice for choice in choices if not _is_null(choice)]
        if len(solid) != 1:
            raise InvalidSchema(
                f"{path}: a choice of types cannot become a column: use one type and null"
            )
        kind, column = self._type(solid[0], document, path, depth + 1)
        return (kind | None if len(choices) > 1 else kind), column

    def _solid(
        self, name: str, schema: _Json, document: str, path: str, depth: int
    ) -> tuple[Any, DataType]:
        if name == "object" and "properties" in schema:
            return self._object(schema, document, path, depth)
        if name == "object":
            if not isinstance(schema.get("additionalProperties"), dict):
                raise InvalidSchema(
                    f"{path}: an object needs 'properties', or 'additionalProperties' with a type"
                    " for a map"
                )
            kind, column = self._type(
                schema["additionalProperties"], document, f"{path}.*", depth + 1
            )
            return types.GenericAlias(dict, (str, kind)), pa.map_(pa.string(), column)
        if name == "array":
            kind, column = self._type(schema.get("items"), document, f"{path}[]", depth + 1)
            return types.GenericAlias(list, (kind,)), pa.list_(pa.field("element", column))
        detail = str(schema.get("contentEncoding") or schema.get("format") or "")
        found = _SCALARS.get((name, detail)) or _SCALARS.get((name, ""))
        if found is None:
            raise InvalidSchema(
                f"{path}: type {name!r} is not one of"
                f" {', '.join(sorted({scalar for scalar, _ in _SCALARS}))}, object, array"
            )
        kind, column = found
        return self._replaced.get(kind, kind), column
