"""Decode JSON values with a JSON Schema: `type`, `properties`, `required`, `items`,
`additionalProperties` (as a map), `format`, `contentEncoding`.

Invariant: strict. A number is not accepted as a string, nor a fraction as an integer, and a missing
required member is an error. Members that are not in the schema are omitted. Must not do I/O.
Source: JSON Schema 2020-12; msgspec checks and builds the row in one step.
"""

import datetime as dt
import types
from decimal import Decimal
from typing import Annotated, Any, Final, NotRequired, TypedDict, cast

import msgspec

from penstock.lake.arrow.pyarrow_untyped import DataType, pa
from penstock.lake.table.errors import InvalidSchema

_typed_dict: Any = TypedDict
"""Types here are made at run time; type checkers know only those in the source."""

_INT64: Final = msgspec.Meta(ge=-(2**63), le=2**63 - 1)
_SCALARS: Final[dict[tuple[str, str], tuple[Any, Any]]] = {
    ("string", ""): (str, pa.string()),
    ("string", "date-time"): (
        Annotated[dt.datetime, msgspec.Meta(tz=True)],
        pa.timestamp("us", tz="UTC"),
    ),
    ("string", "date"): (dt.date, pa.date32()),
    ("string", "time"): (dt.time, pa.time64("us")),
    ("string", "base64"): (bytes, pa.binary()),
    ("integer", ""): (Annotated[int, _INT64], pa.int64()),
    ("integer", "int32"): (Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)], pa.int32()),
    ("number", ""): (float, pa.float64()),
    ("number", "float"): (float, pa.float32()),
    ("number", "decimal"): (Decimal, pa.decimal128(38, 9)),
    ("boolean", ""): (bool, pa.bool_()),
}


class JsonDecoder:
    errors = (msgspec.DecodeError, UnicodeDecodeError, ValueError)

    def __init__(self, schema: bytes) -> None:
        try:
            parsed = msgspec.json.decode(schema)
        except msgspec.DecodeError as error:
            raise InvalidSchema(f"the schema is not JSON: {error}") from None
        if not isinstance(parsed, dict) or cast("dict[str, Any]", parsed).get("type") != "object":
            raise InvalidSchema(
                "the schema must be a JSON Schema with type 'object' at the top: its properties"
                " become columns"
            )
        kind, self.struct = _object(cast("dict[str, Any]", parsed), "$")
        self._decoder: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(kind)

    def row(self, value: memoryview, schema_id: int | None) -> dict[str, Any]:
        return self._decoder.decode(value)


def _object(parsed: dict[str, Any], path: str) -> tuple[Any, DataType]:
    properties = parsed.get("properties")
    if not isinstance(properties, dict):
        raise InvalidSchema(
            f"{path}: an object needs 'properties'; one with any members is a map:"
            " 'additionalProperties' with a type"
        )
    required = set(cast("list[str]", parsed.get("required", ())))
    members: dict[str, Any] = {}
    fields: list[Any] = []
    for name, member in cast("dict[str, Any]", properties).items():
        kind, column = _type(member, f"{path}.{name}")
        members[name] = kind if name in required else NotRequired[kind]
        fields.append(pa.field(name, column))
    return _typed_dict("Row", members), pa.struct(fields)


def _type(parsed: Any, path: str) -> tuple[Any, DataType]:  # noqa: ANN401 - JSON
    if not isinstance(parsed, dict):
        raise InvalidSchema(f"{path}: must be an object with a 'type'")
    schema = cast("dict[str, Any]", parsed)
    names = schema.get("type")
    listed = cast("list[str]", names) if isinstance(names, list) else [cast("str", names)]
    solid = [name for name in listed if name != "null"]
    if len(solid) != 1:
        raise InvalidSchema(
            f"{path}: type {names!r} cannot become a column: give one type, or one and 'null'"
        )
    kind, column = _solid(solid[0], schema, path)
    return (kind | None if len(listed) > 1 else kind), column


def _solid(name: str, schema: dict[str, Any], path: str) -> tuple[Any, DataType]:
    if name == "object" and "properties" in schema:
        return _object(schema, path)
    if name == "object":
        if not isinstance(schema.get("additionalProperties"), dict):
            raise InvalidSchema(
                f"{path}: an object needs 'properties', or 'additionalProperties' with a type for"
                " a map"
            )
        kind, column = _type(schema["additionalProperties"], f"{path}.*")
        return types.GenericAlias(dict, (str, kind)), pa.map_(pa.string(), column)
    if name == "array":
        kind, column = _type(schema.get("items"), f"{path}[]")
        return types.GenericAlias(list, (kind,)), pa.list_(pa.field("element", column))
    detail = str(schema.get("contentEncoding") or schema.get("format") or "")
    found = _SCALARS.get((name, detail)) or _SCALARS.get((name, ""))
    if found is None:
        raise InvalidSchema(
            f"{path}: type {name!r} is none of"
            f" {', '.join(sorted({scalar for scalar, _ in _SCALARS}))}, object, array"
        )
    return found
