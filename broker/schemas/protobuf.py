"""Protobuf: a value must parse as its message, with all required fields and without unknown fields.

Protobuf itself skips unknown fields, as well as known fields with a different wire type, so nearly
any other message would be valid. Schemas are Base64 descriptor sets, or text that protoc compiles.
"""

from collections.abc import Sequence
from typing import Any, Final

from google.protobuf import (  # type: ignore[import-untyped,unused-ignore]
    descriptor_pb2,
    message_factory,
    unknown_fields,
)

from penstock.broker.schemas.language import ReferencedSchema, Validator
from penstock.protocol.registry.model import SchemaInvalid, brief
from penstock.protocol.registry.protobuf_files import load_protobuf

_INDEXES_MAX: Final = 32
_PATH_PARTS_MAX: Final = 100


class _ProtobufValidator:
    def __init__(self, descriptor: Any) -> None:  # noqa: ANN401 - generated at run time
        self._parse: Any = message_factory.GetMessageClass(descriptor).FromString
        self._descriptor = descriptor
        self.record_name = str(descriptor.full_name)

    def problem(self, data: bytes) -> str:
        try:
            message = self._parse(data)
        except Exception as error:  # noqa: BLE001 - protobuf has several errors, by implementation
            where = _broken_field(self._descriptor, data)
            why = brief(str(error).rpartition("': ")[2])
            return f"{where}: it is not Protobuf of {self.record_name}: {why}"
        if not message.IsInitialized():
            missing = message.FindInitializationErrors()
            return f".{brief(missing[0])}: the required field is missing"
        size = message.ByteSize()
        message.DiscardUnknownFields()
        if message.ByteSize() == size:
            return ""
        return _unknown(self._parse(data), "") or ": it has unknown fields"

    def value(self, data: bytes) -> Any:  # noqa: ANN401 - as the schema says
        from google.protobuf import json_format  # type: ignore[import-untyped,unused-ignore]

        to_dict: Any = json_format.MessageToDict
        return to_dict(self._parse(data), preserving_proto_field_name=True)


class _CompiledProtobuf:
    """All messages in one file."""

    def __init__(self, pool: Any, file: Any) -> None:  # noqa: ANN401 - descriptors
        self._pool, self._file = pool, file
        self._top: list[Any] = list(file.message_types_by_name.values())
        self._known: dict[str, _ProtobufValidator] = {}
        if not self._top:
            raise SchemaInvalid("it has no message")

    def validator(self, message: str) -> Validator:
        if not message:
            return self._of(self._top[0])
        try:
            return self._of(self._pool.FindMessageTypeByName(message))
        except KeyError:
            names = ", ".join(descriptor.full_name for descriptor in self._top)
            problem = f"there is no message {brief(message)!r}; its messages are {brief(names)}"
            raise SchemaInvalid(problem) from None

    def framed(self, data: bytes) -> tuple[Validator, bytes]:
        """Parse the message indexes, which precede the payload as zigzag varints. A single zero
        selects the first message.
        """
        count, at = _varint(data, 0)
        indexes: list[int] = []
        if not 0 <= count <= _INDEXES_MAX:
            raise SchemaInvalid(f"it begins with {count} message indexes")
        for _ in range(count):
            index, at = _varint(data, at)
            indexes.append(index)
        among, found = self._top, None
        for index in indexes or [0]:
            if not 0 <= index < len(among):
                raise SchemaInvalid(f"the schema has no message with the indexes {indexes}")
            found = among[index]
            among = list(found.nested_types)
        return self._of(found), data[at:]

    def _of(self, descriptor: Any) -> _ProtobufValidator:  # noqa: ANN401 - generated at run time
        known = self._known.get(descriptor.full_name)
        if known is None:
            known = self._known[descriptor.full_name] = _ProtobufValidator(descriptor)
        return known


def compile_text(text: str, references: Sequence[ReferencedSchema]) -> _CompiledProtobuf:
    """Compile a schema. Raises SchemaInvalid, CannotCheck."""
    named = [(reference.name, reference.schema) for reference in references]
    return _CompiledProtobuf(*load_protobuf(text, named))


def _unknown(message: Any, path: str) -> str:  # noqa: ANN401 - generated at run time
    """Return the path of the first unknown field and the reason, or "" if there is none."""
    known: dict[int, Any] = message.DESCRIPTOR.fields_by_number
    for field in unknown_fields.UnknownFieldSet(message):
        found = known.get(field.field_number)
        if found is None:
            return f"{path}: the schema has no field {field.field_number}"
        return f"{path}.{found.name}: wire type {field.wire_type} is not one of {_kind(found)}"
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for at, nested in _nested(field, value):
            problem = _unknown(nested, f"{path}.{field.name}{at}")
            if problem:
                return problem
    return ""


def _nested(field: Any, value: Any) -> list[tuple[str, Any]]:  # noqa: ANN401 - generated
    """Return the messages in a field, each with its path below the field."""
    if field.message_type.GetOptions().map_entry:
        if field.message_type.fields_by_name["value"].message_type is None:
            return []
        return [(f".{brief(str(key))}", value[key]) for key in value]
    if hasattr(value, "DESCRIPTOR"):
        return [("", value)]
    return [(f"[{at}]", item) for at, item in enumerate(value)]


def _kind(field: Any) -> str:  # noqa: ANN401 - generated at run time
    if field.message_type is not None:
        return str(field.message_type.full_name)
    return (
        str(descriptor_pb2.FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()
    )


def _broken_field(descriptor: Any, data: bytes) -> str:  # noqa: ANN401 - generated at run time
    """Return the path of the field at which parsing fails, as precisely as possible."""
    path = ""
    for _ in range(_PATH_PARTS_MAX):
        found = _first_broken(descriptor, data)
        if found is None:
            break
        field, inner = found
        path += f".{field.name}"
        if inner is None or field.message_type is None:
            break
        descriptor, data = field.message_type, inner
    return path


def _first_broken(descriptor: Any, data: bytes) -> tuple[Any, bytes | None] | None:  # noqa: ANN401
    """Return the first invalid field, with its bytes if they are complete, or None."""
    at, known = 0, descriptor.fields_by_number
    while at < len(data):
        try:
            tag, at = _unsigned(data, at)
        except SchemaInvalid:
            return None
        field, kind = known.get(tag >> 3), tag & 7
        try:
            inner, at = _content(data, at, kind)
        except SchemaInvalid:
            return None if field is None else (field, None)
        if field is None or inner is None:
            continue
        if field.message_type is not None:
            try:
                message_factory.GetMessageClass(field.message_type).FromString(inner)
            except Exception:  # noqa: BLE001 - protobuf has several errors, by implementation
                return field, inner
        elif field.type == field.TYPE_STRING:
            try:
                inner.decode()
            except UnicodeDecodeError:
                return field, inner
    return None


def _content(data: bytes, at: int, kind: int) -> tuple[bytes | None, int]:
    """Return the bytes of a field, or None for a number, and the position after the field. Raises
    SchemaInvalid.
    """
    if kind == 0:
        return None, _unsigned(data, at)[1]
    if kind == 2:
        size, at = _unsigned(data, at)
        end = at + size
    else:
        end = at + {1: 8, 5: 4}.get(kind, len(data) + 1)
    if end > len(data):
        raise SchemaInvalid("the field is cut off")
    return data[at:end] if kind == 2 else None, end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    number, at = _unsigned(data, at)
    return (number >> 1) ^ -(number & 1), at


def _unsigned(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while at < len(data) and shift <= 63:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    raise SchemaInvalid("it does not begin with the indexes of its message")
