"""Decode Protobuf values with a descriptor set (`protoc --include_imports
--descriptor_set_out=FILE`) or a registered schema, and the name of a message.

Invariants: columns have the names of fields in the .proto file. An unset field is null if it has
presence; otherwise, it has its default value. Unknown fields are omitted.
"""

import datetime as dt
import struct
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf import json_format  # type: ignore[import-untyped,unused-ignore]
from google.protobuf.descriptor_pb2 import FileDescriptorSet  # type: ignore[import-untyped,unused-ignore]
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped,unused-ignore]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped,unused-ignore]

from penstock.lake.arrow.pyarrow_untyped import DataType, pa
from penstock.lake.table.errors import InvalidSchema
from penstock.lake.table.writers import FindSchema, SchemaSource, Writers
from penstock.protocol.registry.model import SchemaInvalid, StoredSchema
from penstock.protocol.registry.protobuf_files import load_protobuf
from penstock.protocol.registry.wire_format import SchemaKey, path_of, split_indexes

_DEPTH_MAX: Final = 32
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_JSON: Final = {
    "google.protobuf.Struct",
    "google.protobuf.Value",
    "google.protobuf.ListValue",
}
"""Recursive message types, which are stored as JSON text."""

_WRAPPERS: Final = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MESSAGE: Final = 10
_SCALARS: Final[dict[int, Any]] = {
    1: pa.int32(),
    2: pa.int64(),
    3: pa.int64(),
    4: pa.decimal128(20, 0),  # uint64
    5: pa.float64(),
    6: pa.float32(),
    7: pa.bool_(),
    8: pa.string(),
}
"""Types by FieldDescriptor.cpp_type, where 9 means string or bytes."""

_INTEGERS: Final = {1, 2, 3, 4}
_FLOATS: Final = {5, 6}
_FLOAT: Final = 6
_BYTES_TYPE: Final = 12
_STRING: Final = 9


class ProtobufDecoder:
    """Decode values of one message. Framed values identify their schema and message: Confluent's
    schema id is followed by the indexes of the message in its file.
    """

    errors = (DecodeError, ValueError, OverflowError, KeyError)

    def __init__(
        self,
        columns: SchemaSource,
        message: str,
        find: FindSchema | None,
        given: Sequence[int] = (),
    ) -> None:
        """`find` returns the schema of an id. `given`: ids whose schemas must be valid."""
        try:
            self._columns = _descriptor(columns, message)
        except SchemaInvalid as error:
            raise InvalidSchema(f"the schema is not valid: {error}") from None
        self._source = columns
        self._class: Any = GetMessageClass(self._columns)
        self._message = str(self._columns.full_name)
        self._writers = None if find is None else Writers("protobuf", find, self._writer)
        for number in given:
            assert find is not None
            _descriptor(find(number), self._message)
        self.struct: DataType = _struct(self._columns, self._message, 0)

    def _writer(self, source: SchemaSource) -> tuple[Any, list[int]]:
        """Return the class of a writer's message, and its indexes."""
        if source == self._source:
            return self._class, path_of(self._columns)
        descriptor = _descriptor(source, self._message)
        return GetMessageClass(descriptor), path_of(descriptor)

    def row(self, value: memoryview, schema_id: SchemaKey | None) -> dict[str, Any]:
        data = bytes(value)
        if schema_id is None or self._writers is None:
            return _row(self._class.FromString(data))
        writer, wanted = self._writers.of(schema_id)
        path, at = split_indexes(data)
        if path != wanted:
            raise ValueError(
                f"the value is another message of schema {schema_id}, with the indexes {path}"
            )
        row = _row(writer.FromString(data[at:]))
        is_same = writer is self._class
        return row if is_same else _resolved(row, writer.DESCRIPTOR, self._columns)


def _descriptor(source: SchemaSource, message: str) -> Any:  # noqa: ANN401 - generated at run time
    """Return the descriptor of a message, by default the first one of a registered schema. Raise
    InvalidSchema, SchemaInvalid or CannotCheck.
    """
    if not isinstance(source, StoredSchema):
        return _message(source, message)
    pool, file = load_protobuf(source.text, source.references)
    top: list[Any] = list(file.message_types_by_name.values())
    if not top:
        raise InvalidSchema("the schema has no message")
    if not message:
        return top[0]
    try:
        found: Any = pool.FindMessageTypeByName(message)
    except KeyError:
        found = None
    if found is None or found.file.name != file.name:  # the indexes refer to messages of this file
        known = ", ".join(kind.full_name for kind in top)
        raise InvalidSchema(f"the schema has no message {message!r}; it has {known[:500]}")
    return found


def _message(schema: bytes, message: str) -> Any:  # noqa: ANN401 - generated at run time
    """Return the descriptor of a message. Raise InvalidSchema."""
    pool = DescriptorPool()
    try:
        files = FileDescriptorSet.FromString(schema)
        for file in files.file:
            pool.Add(file)
    except (DecodeError, TypeError) as error:
        raise InvalidSchema(
            "the schema is not a descriptor set (protoc --include_imports"
            f" --descriptor_set_out): {error}"
        ) from None
    if not message:
        raise InvalidSchema(
            "format protobuf needs the full name of the message: --message package.Name"
        )
    try:
        return pool.FindMessageTypeByName(message)
    except KeyError:
        known = sorted(
            f"{file.package}.{kind.name}".lstrip(".")
            for file in files.file
            for kind in file.message_type
        )
        raise InvalidSchema(
            f"the descriptor set has no message {message!r}; it has {', '.join(known)[:500]}"
        ) from None


def _resolved(row: dict[str, Any], writer: Any, columns: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return a row of the writer with the field names of the columns. A column without a writer
    field of the same name is read from the field with the same number, unless that field has a
    column of its own name. Fields that are missing in the writer's schema have their default
    values.
    """
    found: dict[str, Any] = {}
    for field in columns.fields:
        name = field.name
        source = writer.fields_by_name.get(name) or writer.fields_by_number.get(field.number)
        if source is not None and source.name != name and source.name in columns.fields_by_name:
            source = None  # the field number was reused
        if source is None:
            if not field.has_presence:
                found[name] = [] if field.is_repeated else _value(field, field.default_value)
            continue
        if _kind(source) != _kind(field):
            raise ValueError(
                f"field {source.name} has another type in the schema of the value than in that of"
                " the columns"
            )
        if source.name in row:
            found[name] = _resolved_value(row[source.name], source, field)
    return found


def _resolved_value(value: Any, source: Any, field: Any) -> Any:  # noqa: ANN401
    if field.cpp_type == _FLOAT and source.cpp_type != _FLOAT:
        for item in value if field.is_repeated else [value]:
            struct.pack("<f", item)  # raises OverflowError instead of infinity
    if field.cpp_type != _MESSAGE or _is_special(field.message_type):
        return value
    writer, columns = source.message_type, field.message_type
    if _is_map(field):
        source, field = (kind.fields_by_name["value"] for kind in (writer, columns))
        return [(key, _resolved_value(item, source, field)) for key, item in value]
    if field.is_repeated:
        return [_resolved(item, writer, columns) for item in value]
    return _resolved(value, writer, columns)


def _kind(field: Any) -> tuple[Any, ...]:  # noqa: ANN401
    """Return the compatibility class of a field. Integers of different sizes are compatible, as are
    floats of different sizes.
    """
    kind = field.cpp_type
    kind = "integer" if kind in _INTEGERS else "float" if kind in _FLOATS else kind
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return "map", _kind(entry["key"]), _kind(entry["value"])
    if field.cpp_type == _STRING:
        kind = field.type
    special = field.cpp_type == _MESSAGE and _is_special(field.message_type)
    return kind, field.is_repeated, field.message_type.full_name if special else ""


def _struct(descriptor: Any, path: str, depth: int) -> DataType:  # noqa: ANN401 - generated at run time
    if depth > _DEPTH_MAX:
        raise InvalidSchema(
            f"{path}: messages that contain themselves, or are nested deeper than {_DEPTH_MAX},"
            " cannot become a column"
        )
    if not descriptor.fields and not depth:
        raise InvalidSchema(f"{path}: a message without fields has no columns")
    return pa.struct(
        [
            pa.field(field.name, _column(field, f"{path}.{field.name}", depth))
            for field in descriptor.fields
        ]
    )


def _column(field: Any, path: str, depth: int) -> DataType:  # noqa: ANN401
    if _is_map(field):
        entry = field.message_type.fields_by_name
        return pa.map_(_single(entry["key"], path, depth), _single(entry["value"], path, depth))
    column = _single(field, path, depth)
    return pa.list_(pa.field("element", column)) if field.is_repeated else column


def _single(field: Any, path: str, depth: int) -> DataType:  # noqa: ANN401
    if field.cpp_type == _MESSAGE:
        kind = field.message_type
        if kind.full_name == _TIMESTAMP:
            return pa.timestamp("us", tz="UTC")
        if kind.full_name in _JSON:
            return pa.string()
        if kind.full_name in _WRAPPERS:
            return _single(kind.fields_by_name["value"], path, depth)
        if not kind.fields:
            return pa.bool_()  # Parquet does not support structs without fields
        return _struct(field.message_type, path, depth + 1)
    if field.cpp_type == _STRING:
        return pa.binary() if field.type == _BYTES_TYPE else pa.string()
    return _SCALARS[field.cpp_type]


def _row(message: Any) -> dict[str, Any]:  # noqa: ANN401
    row: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.has_presence and not message.HasField(field.name):
            continue
        value = getattr(message, field.name)
        if _is_map(field):
            entry = field.message_type.fields_by_name["value"]
            row[field.name] = [(key, _value(entry, item)) for key, item in value.items()]
        elif field.is_repeated:
            row[field.name] = [_value(field, item) for item in value]
        else:
            row[field.name] = _value(field, value)
    return row


def _value(field: Any, value: Any) -> Any:  # noqa: ANN401
    if field.enum_type is not None:
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    if field.cpp_type != _MESSAGE:
        return value
    kind = field.message_type
    if kind.full_name in _JSON:
        return json_format.MessageToJson(value, indent=None)
    if kind.full_name in _WRAPPERS:
        return value.value
    if not kind.fields:
        return True
    if kind.full_name == _TIMESTAMP:
        return _EPOCH + dt.timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
    return _row(value)


def _is_special(kind: Any) -> bool:  # noqa: ANN401
    return kind.full_name in {_TIMESTAMP, *_JSON, *_WRAPPERS} or not kind.fields


def _is_map(field: Any) -> bool:  # noqa: ANN401
    return field.message_type is not None and field.message_type.GetOptions().map_entry
