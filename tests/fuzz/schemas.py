"""Fuzz schema validation: record values, and topic schemas. The validation runs in a limited worker
process, so these findings cannot stop a broker, but each is a batch that kills a worker.
"""

import base64
import json
from collections.abc import Iterator

from google.protobuf.descriptor_pb2 import FileDescriptorProto

from penstock.broker.schemas.language import compile_schema
from penstock.protocol.registry.model import SchemaInvalid

ORDER_AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
            {"name": "prices", "type": {"type": "map", "values": "double"}},
        ],
    }
)
ORDER_JSON = json.dumps(
    {
        "$defs": {"name": {"type": "string", "pattern": "^[a-z]+$"}},
        "type": "object",
        "properties": {"id": {"type": "integer"}, "name": {"$ref": "#/$defs/name"}},
    }
)
ORDER_PROTO = (
    'syntax = "proto3"; message Order { int64 id = 1; Order next = 2; map<string, Order> m = 3; }'
)
_SCHEMAS = {"avro": ORDER_AVRO, "json": ORDER_JSON, "protobuf": ORDER_PROTO}
_COMPILED = {kind: compile_schema(kind, text, ()) for kind, text in _SCHEMAS.items()}


def value(data: bytes) -> None:
    """Validate the bytes as a value in each schema language, with and without message indexes."""
    for compiled in _COMPILED.values():
        compiled.validator("").problem(data)
    try:
        validator, payload = _COMPILED["protobuf"].framed(data)
    except SchemaInvalid:
        return
    validator.problem(payload)


def schema(data: bytes) -> None:
    """Compile the bytes as a schema in each language. Raises SchemaInvalid if no language accepts
    it.
    """
    text = data.decode("utf-8", "replace")
    refused = 0
    for kind in _SCHEMAS:
        try:
            compile_schema(kind, text, ()).validator("")
        except SchemaInvalid:
            refused += 1
    if refused == len(_SCHEMAS):
        raise SchemaInvalid("it is a schema of no language")


def values() -> Iterator[tuple[str, bytes]]:
    yield "json", b'{"id": 5, "name": "abc"}'
    yield "avro", b"\x0a\x04\x00\x02\x02x\x00\x02\x02p" + bytes(8) + b"\x00"
    yield "protobuf", b"\x08\x05\x12\x02\x08\x06\x1a\x07\x0a\x01k\x12\x02\x08\x07"
    yield "framed", b"\x02\x00\x08\x05"


def schemas() -> Iterator[tuple[str, bytes]]:
    for kind, text in _SCHEMAS.items():
        yield kind, text.encode()
    file = FileDescriptorProto(name="a.proto", syntax="proto3")
    file.message_type.add(name="A").field.add(name="a", number=1, type=3, label=1)
    yield "descriptor", base64.b64encode(file.SerializeToString())
