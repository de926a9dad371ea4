"""Convert keys and values to text and back: text, JSON, hex, Base64, Avro, Protobuf.

Avro and Protobuf are converted to and from JSON. With a schema registry, bytes begin with
Confluent's frame: a zero, the id of the schema in 4 bytes and, for Protobuf, the indexes of the
message.

Invariant: `decode(encode(text))` is equivalent to `text`. Bytes that are not in the format raise
BadRecord.
"""

import base64
import binascii
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from penstock.base.errors import ExpectedError
from penstock.base.extras import install_hint
from penstock.broker.schemas.language import (
    CannotCheck,
    CompiledSchema,
    ReferencedSchema,
    SchemaInvalid,
    compile_schema,
)
from penstock.deploy.errors import UsageError

if TYPE_CHECKING:
    from penstock.broker.schemas.registry import SchemaRegistry

_MAGIC: Final = 0
_FRAME_BYTES: Final = 5
_WHOLE: Final = "value"
"""The field that stands for a whole Avro value."""


class RecordFormat(StrEnum):
    """The format of a key or a value."""

    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    BASE64 = "base64"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class BadRecord(ExpectedError):
    """A key or a value is not in its format."""


class RecordCodec(Protocol):
    """`decode` returns a string or a JSON value; `encode` takes a string. Both raise BadRecord."""

    def decode(self, data: bytes) -> Any: ...  # noqa: ANN401 - a value of JSON

    def encode(self, text: str) -> bytes: ...


class TextCodec:
    """UTF-8; other bytes are escaped."""

    def decode(self, data: bytes) -> str:
        return data.decode("utf-8", "backslashreplace")

    def encode(self, text: str) -> bytes:
        return text.encode("utf-8", "surrogateescape")


class JsonCodec:
    """JSON, stored unchanged."""

    def decode(self, data: bytes) -> Any:  # noqa: ANN401 - a value of JSON
        try:
            return msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadRecord(f"it is not JSON: {error}") from None

    def encode(self, text: str) -> bytes:
        data = text.encode("utf-8", "surrogateescape")
        self.decode(data)
        return data


class HexCodec:
    """Hexadecimal digits; spaces between bytes are ignored on input."""

    def decode(self, data: bytes) -> str:
        return data.hex()

    def encode(self, text: str) -> bytes:
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            raise BadRecord(f"it is not hexadecimal: {error}") from None


class Base64Codec:
    """Base64 with `+` and `/`."""

    def decode(self, data: bytes) -> str:
        return base64.b64encode(data).decode()

    def encode(self, text: str) -> bytes:
        try:
            return base64.b64decode(text.strip(), validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadRecord(f"it is not Base64: {error}") from None


class AvroCodec:
    """Avro's binary encoding, with one schema or with the schemas of a registry."""

    def __init__(
        self, schema: bytes | None, registry: "SchemaRegistry | None", subject: str
    ) -> None:
        """schema: the text of an .avsc file. subject: `encode` uses its newest schema."""
        try:
            import fastavro
        except ImportError as error:
            raise _missing(error) from None
        self._avro: Any = fastavro
        self._given = None if schema is None else self._parsed(schema)
        self._registry, self._subject = registry, subject
        self._by_id: dict[int, Any] = {}
        self._newest_id: int | None = None

    def decode(self, data: bytes) -> Any:  # noqa: ANN401 - a value of JSON
        schema = self._given
        if self._registry is not None:
            number, data = _unframed(data)
            schema = self._schema(self._registry, number)
        stream = BytesIO(data)
        try:
            value = self._avro.schemaless_reader(stream, schema, None)[_WHOLE]
        except Exception as error:  # noqa: BLE001 - fastavro raises what Python does with bad bytes
            raise BadRecord(f"it is not Avro of this schema: {error}") from None
        if stream.tell() != len(data):
            raise BadRecord("bytes are left over: it is Avro of another schema")
        return msgspec.to_builtins(value, builtin_types=(), str_keys=True)

    def encode(self, text: str) -> bytes:
        value = JsonCodec().decode(text.encode("utf-8", "surrogateescape"))
        frame, schema = b"", self._given
        if self._registry is not None:
            if self._newest_id is None:
                self._newest_id = _newest_id(self._registry, self._subject)
            schema = self._schema(self._registry, self._newest_id)
            frame = _frame(self._newest_id)
        stream = BytesIO()
        try:
            self._avro.schemaless_writer(stream, schema, {_WHOLE: value})
        except Exception as error:  # noqa: BLE001 - fastavro raises what Python does with bad values
            raise BadRecord(f"it does not match the Avro schema: {error!r}") from None
        return frame + stream.getvalue()

    def _schema(self, registry: "SchemaRegistry", number: int) -> Any:  # noqa: ANN401 - fastavro's
        if number not in self._by_id:
            with _registry_errors():
                found = registry.by_id(number)
            references = [text for _, text in found.references]
            self._by_id[number] = self._parsed(found.text.encode(), references)
        return self._by_id[number]

    def _parsed(self, content: bytes, references: Sequence[str] = ()) -> Any:  # noqa: ANN401 - fastavro has no type for schemas
        """Return a record whose only field has the schema: its encoding is the same, and fastavro
        only resolves references within records. references: each after the ones that it refers to.
        """
        named: dict[str, Any] = {}
        try:
            for text in references:
                self._avro.parse_schema(msgspec.json.decode(text), named_schemas=named)
            field = {"name": _WHOLE, "type": msgspec.json.decode(content)}
            record = {"type": "record", "name": "penstock_value", "fields": [field]}
            return self._avro.parse_schema(record, named_schemas=named)
        except Exception as error:  # noqa: BLE001 - fastavro raises what Python does with bad schemas
            raise UsageError(f"the schema is not an Avro schema: {error}") from None


class ProtobufCodec:
    """Protobuf, with a descriptor set (`protoc --include_imports --descriptor_set_out=FILE`)."""

    def __init__(
        self, schema: bytes, message: str, registry: "SchemaRegistry | None", subject: str
    ) -> None:
        """message: full name. registry: source of the schema id that `encode` writes."""
        try:
            from google.protobuf import json_format  # type: ignore[import-untyped,unused-ignore]
            from google.protobuf.descriptor_pb2 import FileDescriptorSet  # type: ignore[import-untyped,unused-ignore]
            from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped,unused-ignore]
            from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise _missing(error) from None
        self._json: Any = json_format
        pool: Any = DescriptorPool()
        try:
            for file in FileDescriptorSet.FromString(schema).file:
                pool.Add(file)
            descriptor: Any = pool.FindMessageTypeByName(message)
        except KeyError:
            raise UsageError(f"--message {message!r} is not in the descriptor set") from None
        except Exception as error:  # noqa: BLE001 - protobuf has several errors, by implementation
            raise UsageError(f"--schema is not a descriptor set: {error}") from None
        self._class: Any = GetMessageClass(descriptor)
        self._path = _path_of(descriptor)
        self._registry, self._subject = registry, subject
        self._id: int | None = None
        self._by_id: dict[int, CompiledSchema] = {}

    def decode(self, data: bytes) -> Any:  # noqa: ANN401 - a value of JSON
        if self._registry is not None:
            return self._registered(self._registry, *_unframed(data))
        try:
            message = self._class.FromString(data)
            return self._json.MessageToDict(message, preserving_proto_field_name=True)
        except Exception as error:  # noqa: BLE001 - protobuf has several errors, by implementation
            raise BadRecord(f"it is not Protobuf of this message: {error}") from None

    def _registered(self, registry: "SchemaRegistry", number: int, data: bytes) -> Any:  # noqa: ANN401 - a value of JSON
        """Decode a value with the registered schema and the message in its frame."""
        compiled = self._by_id.get(number)
        if compiled is None:
            with _registry_errors():
                found = registry.by_id(number)
            references = [ReferencedSchema(*reference) for reference in found.references]
            try:
                compiled = compile_schema(found.type.lower(), found.text, references)
            except (SchemaInvalid, CannotCheck) as error:
                raise BadRecord(f"schema {number} cannot be used: {error}") from None
            self._by_id[number] = compiled
        try:
            validator, payload = compiled.framed(data)
            return validator.value(payload)
        except Exception as error:  # noqa: BLE001 - protobuf has several errors, by implementation
            raise BadRecord(f"it is not Protobuf of schema {number}: {error}") from None

    def encode(self, text: str) -> bytes:
        try:
            data = bytes(self._json.Parse(text, self._class()).SerializeToString())
        except Exception as error:  # noqa: BLE001 - protobuf has several errors, by implementation
            raise BadRecord(f"it does not match the message: {error}") from None
        if self._registry is None:
            return data
        if self._id is None:
            self._id = _newest_id(self._registry, self._subject)
        return _frame(self._id) + _encoded_path(self._path) + data


_PLAIN: Final[dict[RecordFormat, Callable[[], RecordCodec]]] = {
    RecordFormat.TEXT: TextCodec,
    RecordFormat.JSON: JsonCodec,
    RecordFormat.HEX: HexCodec,
    RecordFormat.BASE64: Base64Codec,
}


def codec(
    wanted: RecordFormat,
    *,
    schema: bytes | None = None,
    message: str = "",
    registry: "SchemaRegistry | None" = None,
    subject: str = "",
) -> RecordCodec:
    """Return the codec of a format. Raises UsageError; ExpectedError for a missing package."""
    if wanted in _PLAIN:
        return _PLAIN[wanted]()
    if wanted is RecordFormat.AVRO:
        if schema is None and registry is None:
            raise UsageError("format avro needs --schema FILE.avsc or --schema-registry URL")
        return AvroCodec(schema, registry, subject)
    if schema is None or not message:
        raise UsageError(
            "format protobuf needs --schema FILE, a descriptor set of `protoc --include_imports"
            " --descriptor_set_out=FILE`, and --message package.Name"
        )
    return ProtobufCodec(schema, message, registry, subject)


def _newest_id(registry: "SchemaRegistry", subject: str) -> int:
    with _registry_errors():
        return registry.newest_id(subject)


@contextmanager
def _registry_errors() -> Generator[None]:
    """Convert schema registry errors to ExpectedError."""
    from penstock.broker.schemas.registry import RegistryError

    try:
        yield
    except RegistryError as error:
        raise ExpectedError(str(error)) from None


def _frame(number: int) -> bytes:
    return bytes([_MAGIC]) + number.to_bytes(4, "big")


def _unframed(data: bytes) -> tuple[int, bytes]:
    """Return the schema id, and the bytes after the frame."""
    if len(data) < _FRAME_BYTES or data[0] != _MAGIC:
        raise BadRecord("it does not begin with a zero and the id of a schema")
    return int.from_bytes(data[1:_FRAME_BYTES], "big"), data[_FRAME_BYTES:]


def _path_of(descriptor: Any) -> list[int]:  # noqa: ANN401 - generated at run time
    """Return the indexes of a message in its file, outermost first."""
    path: list[int] = []
    while descriptor is not None:
        outer = descriptor.containing_type
        among = (
            outer.nested_types
            if outer is not None
            else list(descriptor.file.message_types_by_name.values())
        )
        names = [item.name for item in among]
        path.insert(0, names.index(descriptor.name))
        descriptor = outer
    return path


def _encoded_path(path: list[int]) -> bytes:
    """Return the indexes as zigzag varints; a single 0 stands for the first message."""
    if path == [0]:
        return b"\0"
    return b"".join(_varint(number << 1) for number in (len(path), *path))


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes(found) + bytes([number])


def _missing(error: ImportError) -> ExpectedError:
    return ExpectedError(f"the package {error.name} is missing: {install_hint('schemas')}")
