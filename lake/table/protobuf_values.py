"""Decode Protobuf values by a descriptor set (`protoc --include_imports --descriptor_set_out=FILE`)
and the name of a message.

Invariants: columns have the names of fields in the .proto file. An unset field with presence is
null, one without is its default. Enums are their names, or their numbers as text if a number has no
name. `Timestamp` becomes a timestamp. Unknown fields are left out. An unsigned 64-bit number beyond
the signed range is an error of its row. Must not do I/O. Source: Protobuf descriptor.proto.
"""

import datetime as dt
from typing import Any, Final

from google.protobuf.descriptor_pb2 import FileDescriptorSet  # type: ignore[import-untyped,unused-ignore]
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped,unused-ignore]
from google.protobuf.message import DecodeError  # type: ignore[import-untyped,unused-ignore]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped,unused-ignore]

from penstock.lake.arrow.pyarrow_untyped import DataType, pa
from penstock.lake.table.errors import InvalidSchema

_DEPTH_MAX: Final = 32
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MESSAGE: Final = 10
_SCALARS: Final[dict[int, Any]] = {
    1: pa.int32(),
    2: pa.int64(),
    3: pa.int64(),
    4: pa.int64(),
    5: pa.float64(),
    6: pa.float32(),
    7: pa.bool_(),
    8: pa.string(),
}
"""Types by FieldDescriptor.cpp_type; 9 is string or bytes."""

_BYTES_TYPE: Final = 12
_STRING: Final = 9


class ProtobufDecoder:
    """Decode values of one message. If they are `framed`, Confluent's schema id is followed by the
    indexes of the message within its file.
    """

    errors = (DecodeError, ValueError, OverflowError)

    def __init__(self, schema: bytes, message: str, *, framed: bool) -> None:
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
            descriptor: Any = pool.FindMessageTypeByName(message)
        except KeyError:
            known = sorted(
                f"{file.package}.{kind.name}".lstrip(".")
                for file in files.file
                for kind in file.message_type
            )
            raise InvalidSchema(
                f"the descriptor set has no message {message!r}; it has {', '.join(known)[:500]}"
            ) from None
        self._class: Any = GetMessageClass(descriptor)
        self._framed = framed
        self.struct: DataType = _struct(descriptor, message, 0)

    def row(self, value: memoryview) -> dict[str, Any]:
        data = bytes(value)
        return _row(self._class.FromString(data[_indexes_end(data) :] if self._framed else data))


def _indexes_end(data: bytes) -> int:
    """Return the end of Confluent's indexes: a zigzag varint count, then so many indexes. A single
    0 means the first message.
    """
    count, at = _zigzag(data, 0)
    for _ in range(count):
        _, at = _zigzag(data, at)
    return at


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
        if field.message_type.full_name == _TIMESTAMP:
            return pa.timestamp("us", tz="UTC")
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
    if field.message_type.full_name == _TIMESTAMP:
        return _EPOCH + dt.timedelta(seconds=value.seconds, microseconds=value.nanos // 1_000)
    return _row(value)


def _is_map(field: Any) -> bool:  # noqa: ANN401
    return field.message_type is not None and field.message_type.GetOptions().map_entry
