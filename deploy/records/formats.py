"""Convert keys and values to text and back: text, JSON, hex, Base64, Avro, Protobuf.

Avro and Protobuf are converted to and from JSON. With a schema registry, bytes start with
Confluent's frame (`protocol.registry.wire_format`). Bytes in another format raise BadRecord.
"""

import base64
import binascii
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import msgspec

from penstock.base.errors import ExpectedError
from penstock.base.extras import install_hint
from penstock.broker.schemas.language import CompiledSchema, ReferencedSchema, compile_schema
from penstock.deploy.errors import UsageError
from penstock.deploy.records.json_numbers import named, parse_large
from penstock.protocol.registry.model import CannotCheck, SchemaInvalid
from penstock.protocol.registry.wire_format import (
    FRAME_BYTES,
    MAGIC,
    SchemaKey,
    frame,
    indexes,
    path_of,
    split_value,
)

if TYPE_CHECKING:
    from penstock.protocol.registry.by_id import SchemasById
    from penstock.protocol.registry.model import StoredSchema

_WHOLE: Final = "value"
"""The field name that refers to a whole Avro value."""


class RecordFormat(StrEnum):
    """The format of a key or value."""

    TEXT = "text"
    JSON = "json"
    HEX = "hex"
    BASE64 = "base64"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class BadRecord(ExpectedError):
    """Raised if a key or value is not in its format."""


class RecordCodec(Protocol):
    """`decode` returns a string or, if `is_json`, a JSON value; `encode` takes a string, which is
    JSON if `is_json`. Both raise BadRecord. header: the record's header with the schema of the
    value, if there is one.
    """

    is_json: ClassVar[bool]

    def decode(self, data: bytes, header: bytes | None = None, /) -> Any: ...  # noqa: ANN401 - a value of JSON

    def encode(self, text: str) -> bytes: ...


class TextCodec:
    """UTF-8 text; other bytes are escaped."""

    is_json: ClassVar = False

    def decode(self, data: bytes, _: bytes | None = None) -> str:
        return data.decode("utf-8", "backslashreplace")

    def encode(self, text: str) -> bytes:
        return text.encode("utf-8", "surrogateescape")


class JsonCodec:
    """JSON, stored unchanged. With a schema registry, bytes may begin with a frame, which is
    distinguishable because JSON never begins with a zero byte.
    """

    is_json: ClassVar = True

    def __init__(self, *, may_be_framed: bool = False) -> None:
        self._may_be_framed = may_be_framed

    def decode(self, data: bytes, header: bytes | None = None) -> Any:  # noqa: ANN401 - a value of JSON
        if self._may_be_framed and header is None and data[:1] == bytes([MAGIC]):
            data = data[FRAME_BYTES:]
        try:
            try:
                return msgspec.json.decode(data)
            except msgspec.ValidationError:  # a number exceeds the range of a float
                return parse_large(data)
        except (msgspec.DecodeError, ValueError, RecursionError) as error:
            raise BadRecord(f"it is not JSON: {error}") from None

    def encode(self, text: str) -> bytes:
        data = text.encode("utf-8", "surrogateescape")
        self.decode(data)
        return data


class HexCodec:
    """Hexadecimal digits; spaces between bytes are ignored on input."""

    is_json: ClassVar = False

    def decode(self, data: bytes, _: bytes | None = None) -> str:
        return data.hex()

    def encode(self, text: str) -> bytes:
        try:
            return bytes.fromhex(text)
        except ValueError as error:
            raise BadRecord(f"it is not hexadecimal: {error}") from None


class Base64Codec:
    """Base64 with `+` and `/`."""

    is_json: ClassVar = False

    def decode(self, data: bytes, _: bytes | None = None) -> str:
        return base64.b64encode(data).decode()

    def encode(self, text: str) -> bytes:
        try:
            return base64.b64decode(text.strip(), validate=True)
        except (binascii.Error, ValueError) as error:
            raise BadRecord(f"it is not Base64: {error}") from None


class AvroCodec:
    """Avro's binary encoding, with one schema or with the schemas of a registry."""

    is_json: ClassVar = True

    def __init__(self, schema: bytes | None, registry: "SchemasById | None", subject: str) -> None:
        """schema: the text of an .avsc file. subject: `encode` uses its newest schema."""
        try:
            import fastavro
        except ImportError as error:
            raise _missing(error) from None
        self._avro: Any = fastavro
        self._given = None if schema is None else self._parsed(schema)
        self._registry, self._subject = registry, subject
        self._by_id: dict[SchemaKey, tuple[Any, Any]] = {}
        self._newest_id: int | None = None

    def decode(self, data: bytes, header: bytes | None = None) -> Any:  # noqa: ANN401 - a value of JSON
        given = self._given
        if self._registry is not None:
            key, data = _unframed(data, header)
            try:
                given = self._schema(self._registry, key)
            except UsageError as error:
                raise BadRecord(f"schema {key} cannot be used: {error}") from None
        assert given is not None, "there is a schema or a registry"
        read, schema = given
        stream = BytesIO(data)
        try:
            value = read(stream, schema, None)[_WHOLE]
        except Exception as error:  # noqa: BLE001 - fastavro raises what Python does with bad bytes
            raise BadRecord(f"it does not match the Avro schema: {error}") from None
        if stream.tell() != len(data):
            raise BadRecord("bytes are left over: it was written with another Avro schema")
        return named(msgspec.to_builtins(value, builtin_types=(), str_keys=True))

    def encode(self, text: str) -> bytes:
        value = JsonCodec().decode(text.encode("utf-8", "surrogateescape"))
        head, given = b"", self._given
        if self._registry is not None:
            if self._newest_id is None:
                with _registry_errors():
                    self._newest_id, _ = self._registry.newest(self._subject)
            given = self._schema(self._registry, self._newest_id)
            head = frame(self._newest_id)
        assert given is not None, "there is a schema or a registry"
        stream = BytesIO()
        try:
            self._avro.schemaless_writer(stream, given[1], {_WHOLE: value})
        except Exception as error:  # noqa: BLE001 - fastavro raises what Python does with bad values
            raise BadRecord(f"it does not match the Avro schema: {error!r}") from None
        return head + stream.getvalue()

    def _schema(self, registry: "SchemasById", key: SchemaKey) -> tuple[Any, Any]:
        if key not in self._by_id:
            found = _stored(registry, key)
            if found.type != "AVRO":
                raise UsageError(f"the schema is of type {found.type}")
            references = [text for _, text in found.references]
            self._by_id[key] = self._parsed(found.text.encode(), references)
        return self._by_id[key]

    def _parsed(self, content: bytes, references: Sequence[str] = ()) -> tuple[Any, Any]:
        """Return fastavro's reader function, and a record whose only field has the schema: its
        encoding is the same, and fastavro only resolves references within records. references: each
        after the schemas that it references.
        """
        from penstock.protocol.registry.avro_indexes import refuse_negative_indexes
        from penstock.protocol.registry.avro_recursion import reader_of

        named: dict[str, Any] = {}
        try:
            for text in references:
                self._avro.parse_schema(msgspec.json.decode(text), named_schemas=named)
            field = {"name": _WHOLE, "type": msgspec.json.decode(content)}
            record = {"type": "record", "name": "penstock_value", "fields": [field]}
            schema = self._avro.parse_schema(record, named_schemas=named)
            for kind in named.values():
                refuse_negative_indexes(kind)
            return reader_of(schema, named), schema
        except Exception as error:  # noqa: BLE001 - fastavro raises what Python does with bad schemas
            raise UsageError(f"the schema is not an Avro schema: {error}") from None


class ProtobufCodec:
    """Protobuf, with a descriptor set (`protoc --include_imports --descriptor_set_out=FILE`) or the
    schemas of a registry.
    """

    is_json: ClassVar = True

    def __init__(
        self, schema: bytes | None, message: str, registry: "SchemasById | None", subject: str
    ) -> None:
        """message: full name; empty for the first message of a registered schema. subject: `encode`
        uses its newest schema, or only its id if a schema is given.
        """
        try:
            from google.protobuf import json_format  # type: ignore[import-untyped,unused-ignore]
        except ImportError as error:
            raise _missing(error) from None
        self._json: Any = json_format
        self._descriptor = None if schema is None else _descriptor(schema, message)
        self._message = message
        self._registry, self._subject = registry, subject
        self._writer: tuple[bytes, Any] | None = None
        self._by_id: dict[SchemaKey, CompiledSchema] = {}

    def decode(self, data: bytes, header: bytes | None = None) -> Any:  # noqa: ANN401 - a value of JSON
        if self._registry is not None:
            return self._registered(self._registry, *_unframed(data, header))
        try:
            message = _class_of(self._descriptor).FromString(data)
            return self._json.MessageToDict(message, preserving_proto_field_name=True)
        except Exception as error:  # noqa: BLE001 - protobuf has several errors, by implementation
            raise BadRecord(f"it is not Protobuf of this message: {error}") from None

    def _registered(self, registry: "SchemasById", key: SchemaKey, data: bytes) -> Any:  # noqa: ANN401 - a value of JSON
        """Decode a value with the registered schema and the message in its frame."""
        compiled = self._by_id.get(key)
        if compiled is None:
            found = _stored(registry, key)
            references = [ReferencedSchema(*reference) for reference in found.references]
            try:
                compiled = compile_schema(found.type.lower(), found.text, references)
            except SchemaInvalid as error:
                raise BadRecord(f"schema {key} cannot be used: {error}") from None
            except CannotCheck as error:
                raise ExpectedError(str(error)) from None
            self._by_id[key] = compiled
        try:
            validator, payload = compiled.framed(data)
            return validator.value(payload)
        except Exception as error:  # noqa: BLE001 - protobuf has several errors, by implementation
            raise BadRecord(f"it is not Protobuf of schema {key}: {error}") from None

    def encode(self, text: str) -> bytes:
        if self._writer is None:
            self._writer = self._new_writer()
        head, kind = self._writer
        try:
            return head + bytes(self._json.Parse(text, kind()).SerializeToString())
        except Exception as error:  # noqa: BLE001 - protobuf has several errors, by implementation
            raise BadRecord(f"it does not match the message: {error}") from None

    def _new_writer(self) -> tuple[bytes, Any]:
        """Return the bytes before each value, and the class of the message."""
        if self._registry is None:
            return b"", _class_of(self._descriptor)
        with _registry_errors():
            number, stored = self._registry.newest(self._subject)
        descriptor = self._descriptor
        if descriptor is None:
            descriptor = _registered_descriptor(stored, self._message)
        return frame(number) + indexes(path_of(descriptor)), _class_of(descriptor)


def _descriptor(schema: bytes, message: str) -> Any:  # noqa: ANN401 - generated at run time
    """Return the descriptor of a message in a descriptor set. Raises UsageError."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet  # type: ignore[import-untyped,unused-ignore]
    from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped,unused-ignore]

    pool: Any = DescriptorPool()
    try:
        for file in FileDescriptorSet.FromString(schema).file:
            pool.Add(file)
        return pool.FindMessageTypeByName(message)
    except KeyError:
        raise UsageError(f"--message {message!r} is not in the descriptor set") from None
    except Exception as error:  # noqa: BLE001 - protobuf has several errors, by implementation
        raise UsageError(f"--schema is not a descriptor set: {error}") from None


def _registered_descriptor(stored: "StoredSchema", message: str) -> Any:  # noqa: ANN401 - generated at run time
    """Return the descriptor of a message, by default of the first message. Raises UsageError."""
    from penstock.protocol.registry.protobuf_files import load_protobuf

    try:
        pool, file = load_protobuf(stored.text, stored.references)
        if message:
            return pool.FindMessageTypeByName(message)
        return next(iter(file.message_types_by_name.values()))
    except (KeyError, StopIteration):
        raise UsageError(f"--message {message!r} is not in the registered schema") from None
    except (SchemaInvalid, CannotCheck) as error:
        raise UsageError(f"the registered schema cannot be used: {error}") from None


def _class_of(descriptor: Any) -> Any:  # noqa: ANN401 - generated at run time
    from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped,unused-ignore]

    return GetMessageClass(descriptor)


_PLAIN: Final[dict[RecordFormat, Callable[[], RecordCodec]]] = {
    RecordFormat.TEXT: TextCodec,
    RecordFormat.HEX: HexCodec,
    RecordFormat.BASE64: Base64Codec,
}


def codec(
    wanted: RecordFormat,
    *,
    schema: bytes | None = None,
    message: str = "",
    registry: "SchemasById | None" = None,
    subject: str = "",
) -> RecordCodec:
    """Return the codec for a format. Raises UsageError; ExpectedError for a missing package."""
    if wanted in _PLAIN:
        return _PLAIN[wanted]()
    if wanted is RecordFormat.JSON:
        return JsonCodec(may_be_framed=registry is not None)
    if wanted is RecordFormat.AVRO:
        if schema is None and registry is None:
            raise UsageError("format avro needs --schema FILE.avsc or --schema-registry URL")
        return AvroCodec(schema, registry, subject)
    if (registry is None and schema is None) or (schema is not None and not message):
        raise UsageError(
            "format protobuf needs --schema FILE, a descriptor set of `protoc --include_imports"
            " --descriptor_set_out=FILE`, and --message package.Name; or --schema-registry URL"
        )
    return ProtobufCodec(schema, message, registry, subject)


def _stored(registry: "SchemasById", key: SchemaKey) -> "StoredSchema":
    """Return a schema. Raises BadRecord if its id is not registered, and ExpectedError if this
    cannot be determined.
    """
    from penstock.protocol.registry.model import NotRegistered

    with _registry_errors():
        try:
            return registry.find(key)
        except NotRegistered as error:
            raise BadRecord(str(error)) from None


@contextmanager
def _registry_errors() -> Generator[None]:
    """Convert schema registry errors to ExpectedError."""
    from penstock.protocol.registry.model import RegistryError

    try:
        yield
    except RegistryError as error:
        raise ExpectedError(str(error)) from None


def _unframed(data: bytes, header: bytes | None) -> tuple[SchemaKey, bytes]:
    """Return the id or GUID of the schema, and the bytes after the frame."""
    try:
        return split_value(data, header)
    except ValueError as error:
        raise BadRecord(str(error)) from None


def _missing(error: ImportError) -> ExpectedError:
    return ExpectedError(f"the package {error.name} is missing: {install_hint('schemas')}")
