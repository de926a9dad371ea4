"""Decode Protobuf values with a descriptor set (`protoc --include_imports
--descriptor_set_out=FILE`)
and the name of a message.

Invariants: columns have the names of fields in the .proto file. An unset field with presence is
null, and one without presence has its default. Unknown fields are omitted. Must not do I/O. Source:
Protobuf descriptor.proto, and the wire format of Confluent's schema registry.
"""

import datetime as dt
from collections.abc import Sequence
from typing import Any, Final

from google.protobuf import json_format  # type: ignore[import-untyped,unused-ignore]
from google.protobuf.descriptor_pb2 import FileDescriptorSet  # type: ignore[import-untyped,unused-ignore]
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped,unused-ignore]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped,unused-ignore]

from penstock.lake.arrow.pyarrow_untyped import DataType, pa
from penstock.lake.table.errors import InvalidSchema

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
"""Types by FieldDescriptor.cpp_type; 9 is string or bytes."""

_INTEGERS: Final = {1, 2, 3, 4}
_FLOATS: Final = {5, 6}
_BYTES_TYPE: Final = 12
_STRING: Final = 9


class ProtobufDecoder:
    """Decode values of one message. Framed values identify their schema and message: Confluent's
    schema id is followed by the indexes of the message in its file.
    """

    errors = (DecodeError, ValueError, OverflowError, KeyError)

    def __init__(
        self, schema: bytes, message: str, schemas: Sequence[tuple[int, bytes]] = ()
    ) -> None:
        """`schemas` contains the schema of values by id."""
        self._columns = _message(schema, message)
        self._class: Any = GetMessageClass(self._columns)
        self._writers: dict[int, tuple[Any, list[int]]] = {}
        for number, content in schemas:
            same = content == schema
            written = self._class if same else GetMessageClass(_message(content, message))
            self._writers[number] = written, _path_of(written.DESCRIPTOR)
        self.struct: DataType = _struct(self._columns, message, 0)

    def row(self, value: memoryview, schema_id: int | None) -> dict[str, Any]:
        data = bytes(value)
        if schema_id is None:
            return _row(self._class.FromString(data))
        writer, wanted = self._writers[schema_id]
        path, at = _indexes(data)
        if path != wanted:
            raise ValueError(
                f"the value is another message of schema {schema_id}, with the indexes {path}"
            )
        row = _row(writer.FromString(data[at:]))
        is_same = writer is self._class
        return row if is_same else _resolved(row, writer.DESCRIPTOR, self._columns)


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
    """Return a row of the writer's fields with the names of the columns. A field without a column
    of its name was renamed if the column with its number is not a field of the writer. Fields
    missing in the writer's schema have their defaults.
    """
    found: dict[str, Any] = {}
    for field in columns.fields:
        name = field.name
        source = writer.fields_by_name.get(name) or writer.fields_by_number.get(field.number)
        if source is not None and source.name != name and source.name in columns.fields_by_name:
            source = None  # a number that was reused
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
    """Return the compatibility class of a field: numbers of different sizes are compatible."""
    kind = field.cpp_type
    kind = "integer" if kind in _INTEGERS else "float" if kind in _FLOATS else kind
    if field.cpp_type == _STRING:
        kind = field.type
    special = field.cpp_type == _MESSAGE and _is_special(field.message_type)
    return kind, field.is_repeated, field.message_type.full_name if special else _is_map(field)


def _path_of(descriptor: Any) -> list[int]:  # noqa: ANN401
    """Return the indexes of a message in its file, outermost message first."""
    path: list[int] = []
    while descriptor is not None:
        outer = descriptor.containing_type
        siblings = (
            descriptor.file.message_types_by_name.values() if outer is None else outer.nested_types
        )
        path.insert(0, [kind.full_name for kind in siblings].index(descriptor.full_name))
        descriptor = outer
    return path


def _indexes(data: bytes) -> tuple[list[int], int]:
    """Return Confluent's indexes, and the position after them: a zigzag varint count, then that
    many indexes. A single 0 means the first message.
    """
    count, at = _zigzag(data, 0)
    if not 0 <= count <= _DEPTH_MAX:
        raise ValueError("the value does not begin with the indexes of its message")
    path: list[int] = []
    for _ in range(count):
        index, at = _zigzag(data, at)
        path.append(index)
    return path or [0], at


def _zigzag(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(data) or shift > 28:
            raise ValueError("the value does not begin with the indexes of its message")
        number |= (data[at] & 0x7F) << shift
        at, shift, more = at + 1, shift + 7, data[at] & 0x80
        if not more:
            return (number >> 1) ^ -(number & 1), at


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
