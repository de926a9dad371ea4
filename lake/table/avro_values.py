"""Decode Avro values by the schema they were written with: the binary form without a container, one
record per value.

Invariant: a value is consumed whole. Bytes left over are an error, because Avro itself cannot
distinguish another schema's bytes from its own. Must not do I/O. Source: Avro 1.12 specification;
fastavro decodes.
"""

import struct
from io import BytesIO
from typing import Any, Final, cast

import fastavro
import msgspec
from fastavro.schema import SchemaParseException, UnknownType

from penstock.lake.arrow.pyarrow_untyped import DataType, pa
from penstock.lake.table.errors import InvalidSchema

_PRIMITIVES: Final[dict[str, Any]] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "enum": pa.string(),
}
_LOGICAL: Final[dict[tuple[str, str], Any]] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time64("us"),
    ("long", "time-micros"): pa.time64("us"),
    ("long", "timestamp-millis"): pa.timestamp("us", tz="UTC"),
    ("long", "timestamp-micros"): pa.timestamp("us", tz="UTC"),
}
_DEPTH_MAX: Final = 32
_reader: Any = cast("Any", fastavro).schemaless_reader


class AvroDecoder:
    errors = (
        ValueError,
        EOFError,
        IndexError,
        KeyError,
        TypeError,
        OverflowError,
        MemoryError,
        struct.error,
        StopIteration,
    )

    def __init__(self, schema: bytes) -> None:
        try:
            parsed = msgspec.json.decode(schema)
            self._schema: Any = cast("Any", fastavro.parse_schema(parsed))
        except (
            msgspec.DecodeError,
            SchemaParseException,
            UnknownType,
            KeyError,
            TypeError,
            ValueError,
        ) as error:
            raise InvalidSchema(f"the schema is not an Avro schema: {error}") from None
        if not isinstance(parsed, dict) or cast("dict[str, Any]", parsed).get("type") != "record":
            raise InvalidSchema("the schema must be an Avro record: its fields become columns")
        self.struct = _Types().type_of(cast("dict[str, Any]", self._schema), "", 0)

    def row(self, value: memoryview) -> dict[str, Any]:
        stream = BytesIO(value)
        row = _reader(stream, self._schema, None)
        if stream.tell() != len(value):
            raise ValueError(
                f"{len(value) - stream.tell()} bytes are left after the record: it was written with"
                " another schema"
            )
        return cast("dict[str, Any]", row)


class _Types:
    """Convert types. Named types may be used again by their names."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}

    def type_of(self, parsed: Any, path: str, depth: int) -> DataType:  # noqa: ANN401 - JSON
        if depth > _DEPTH_MAX:
            raise InvalidSchema(
                f"{path}: types that contain themselves, or are nested deeper than {_DEPTH_MAX},"
                " cannot become a column"
            )
        if isinstance(parsed, list):
            solid = [item for item in cast("Any", parsed) if item != "null"]
            if len(solid) != 1:
                raise InvalidSchema(
                    f"{path}: a union of more than one type and null cannot become a column"
                )
            return self.type_of(solid[0], path, depth)
        if isinstance(parsed, str):
            return self._of_name(parsed, path, depth)
        schema = cast("dict[str, Any]", parsed)
        kind = schema["type"]
        if isinstance(kind, list | dict):
            return self.type_of(kind, path, depth)
        if "name" in schema:
            self._named[schema["name"]] = schema
        return self._of_schema(kind, schema, path, depth)

    def _of_name(self, name: str, path: str, depth: int) -> DataType:
        if name in self._named:
            return self.type_of(self._named[name], path, depth + 1)
        found = _PRIMITIVES.get(name)
        if found is None:
            raise InvalidSchema(f"{path}: Avro type {name!r} cannot become a column")
        return found

    def _of_schema(self, kind: str, schema: dict[str, Any], path: str, depth: int) -> DataType:
        if kind == "record":
            fields = schema["fields"]
            return pa.struct(
                [
                    pa.field(
                        field["name"],
                        self.type_of(field["type"], f"{path}.{field['name']}", depth + 1),
                    )
                    for field in fields
                ]
            )
        if kind == "array":
            return pa.list_(
                pa.field("element", self.type_of(schema["items"], f"{path}[]", depth + 1))
            )
        if kind == "map":
            return pa.map_(pa.string(), self.type_of(schema["values"], f"{path}.*", depth + 1))
        logical = schema.get("logicalType")
        if logical == "decimal":
            return pa.decimal128(schema["precision"], schema.get("scale", 0))
        if logical == "uuid":
            raise InvalidSchema(
                f"{path}: logical type uuid cannot become a column; leave out logicalType"
            )
        if kind == "fixed":
            return pa.binary()
        return _LOGICAL.get((kind, str(logical))) or self._of_name(kind, path, depth)
