"""Decode Avro values: the binary encoding without a container, one record per value.

Invariants: a value is decoded with the schema that it was written with, and converted to the schema
of the columns. Trailing or missing bytes are an error, because they suggest a different schema.
There is no I/O except through `find`. Source: Avro 1.12 specification, "Schema Resolution";
fastavro decodes.
"""

import struct
from collections.abc import Sequence
from io import BytesIO
from typing import Any, Final, cast

import fastavro
import msgspec
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType

from penstock.lake.arrow.pyarrow_untyped import DataType, pa
from penstock.lake.table.avro_resolution import (
    LOGICAL,
    ParsedSchema,
    decode_defaults,
    prepare_writer,
)
from penstock.lake.table.errors import InvalidSchema
from penstock.lake.table.writers import FindSchema, SchemaSource, Writers
from penstock.protocol.registry.avro_indexes import refuse_negative_indexes
from penstock.protocol.registry.avro_recursion import reader_of
from penstock.protocol.registry.model import StoredSchema
from penstock.protocol.registry.wire_format import SchemaKey

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
_DEPTH_MAX: Final = 32
_PRECISION_MAX: Final = 38
_read: Any = cast("Any", fastavro).schemaless_reader


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
        RecursionError,
        SchemaResolutionError,
    )

    def __init__(
        self, columns: SchemaSource, find: FindSchema | None, given: Sequence[int] = ()
    ) -> None:
        """`find` returns the schema with the given id. `given`: ids whose schemas must be valid."""
        self._columns = _parsed(columns)
        self.struct = _Types(self._columns.named).type_of(self._columns.schema, "", 0)
        decode_defaults(self._columns)
        self._writers = None if find is None else Writers("avro", find, self._writer)
        for number in given:
            assert find is not None
            _parsed(find(number))

    def _writer(self, source: SchemaSource) -> tuple[Any, dict[str, Any]]:
        writer = _parsed(source)
        prepare_writer(writer, self._columns)
        return reader_of(writer.schema, writer.named), writer.schema

    def row(self, value: memoryview, schema_id: SchemaKey | None) -> dict[str, Any]:
        # fastavro skips fields even beyond the end, so an extra byte is added to detect where a
        # record ends.
        stream = BytesIO(b"".join((value, b"\0")))
        if schema_id is None or self._writers is None:
            row = _read(stream, self._columns.schema, None)
        else:
            read, writer = self._writers.of(schema_id)
            row = read(stream, writer, self._columns.schema)
        left = len(value) - stream.tell()
        if left:
            where = f"{left} bytes are left after the record" if left > 0 else "the record is cut"
            raise ValueError(f"{where}: it was written with another schema")
        return cast("dict[str, Any]", row)


def _parsed(source: SchemaSource) -> ParsedSchema:
    """Parse a record schema. Raise InvalidSchema."""
    text: bytes | str = source.text if isinstance(source, StoredSchema) else source
    references = source.references if isinstance(source, StoredSchema) else ()
    named: dict[str, Any] = {}
    parse: Any = cast("Any", fastavro).parse_schema
    try:
        for _, reference in references:
            parse(_uuids_as_text(msgspec.json.decode(reference)), named_schemas=named)
        parsed = msgspec.json.decode(text)
        found: Any = parse(_uuids_as_text(parsed), named_schemas=named)
        for kind in named.values():
            refuse_negative_indexes(kind)
    except (
        msgspec.DecodeError,
        SchemaParseException,
        UnknownType,
        KeyError,
        TypeError,
        ValueError,
        RecursionError,
    ) as error:
        raise InvalidSchema(f"the schema is not an Avro schema: {error}") from None
    if isinstance(parsed, str) and parsed in named:
        found = named[parsed]
    if not isinstance(found, dict) or cast("dict[str, Any]", found).get("type") != "record":
        raise InvalidSchema("the schema must be an Avro record: its fields become columns")
    return ParsedSchema(cast("dict[str, Any]", found), named)


def _uuids_as_text(parsed: Any) -> Any:  # noqa: ANN401 - JSON
    """Remove the logical type `uuid` of strings from the schema, so that rows contain text."""
    if isinstance(parsed, list):
        return [_uuids_as_text(item) for item in cast("Any", parsed)]
    if not isinstance(parsed, dict):
        return parsed
    schema = cast("dict[str, Any]", parsed)
    if schema.get("type") == "string" and schema.get("logicalType") == "uuid":
        return "string"
    return {name: _uuids_as_text(item) for name, item in schema.items()}


class _Types:
    """Convert types. Named types may be referenced by name."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = dict(named)

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
            named = ((field["name"], field["type"]) for field in schema["fields"])
            return pa.struct(
                [(name, self.type_of(of, f"{path}.{name}", depth + 1)) for name, of in named]
            )
        if kind == "array":
            return pa.list_(
                pa.field("element", self.type_of(schema["items"], f"{path}[]", depth + 1))
            )
        if kind == "map":
            return pa.map_(pa.string(), self.type_of(schema["values"], f"{path}.*", depth + 1))
        logical = schema.get("logicalType")
        if logical == "decimal" and kind in {"bytes", "fixed"}:
            precision, scale = schema.get("precision"), schema.get("scale", 0)
            if (
                not isinstance(precision, int)
                or not isinstance(scale, int)
                or not 1 <= precision <= _PRECISION_MAX
            ):
                raise InvalidSchema(
                    f"{path}: a decimal of precision {precision} and scale {scale} cannot become a"
                    f" column: at most {_PRECISION_MAX} digits"
                )
            return pa.decimal128(precision, scale)
        if kind == "fixed":
            return pa.binary()
        return LOGICAL.get((kind, str(logical))) or self._of_name(kind, path, depth)
