"""Decode values of each format: check which become rows, which become errors, and which schemas are
refused.
"""

import datetime as dt
import io
import json
import struct
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lake.table.errors import InvalidSchema
from penstock.lake.table.values import ValueDecoder, ValueFormat

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "flight",
    "fields": [
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "int"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "seats", "type": {"type": "map", "values": "long"}},
        {"name": "state", "type": {"type": "enum", "name": "state", "symbols": ["ON", "OFF"]}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
    ],
}
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)


def decode(
    value_format: ValueFormat, *values: bytes | None
) -> tuple[list[dict[str, Any]], list[int]]:
    """Decode the values. Return the rows and the indexes of the values that are errors."""
    decoded = ValueDecoder(value_format).decode(pa.array(values, pa.binary()))
    table = pa.table(decoded.columns)
    table.validate(full=True)
    assert len(decoded.errors) + table.num_rows == len(values)
    return table.to_pylist(), [index for index, _ in decoded.errors]


def avro(row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(AVRO), row)
    return out.getvalue()


def test_avro_values_are_decoded_or_refused() -> None:
    from decimal import Decimal

    row = {
        "carrier": "UA",
        "delay": None,
        "at": NOON,
        "tags": ["a"],
        "seats": {"x": 3},
        "state": "ON",
        "price": Decimal("12.50"),
    }
    schema = ValueFormat("avro", json.dumps(AVRO).encode())
    good = avro(row)
    rows, errors = decode(schema, good, good + b"x", good[:-1], None, b"")
    assert errors == [1, 2, 4]
    assert rows[0] | {"seats": dict(rows[0]["seats"])} == row
    assert set(rows[1].values()) == {None}
    framed = schema._replace(framed=True)
    rows, errors = decode(framed, b"\x00" + struct.pack(">I", 7) + good, good)
    assert (rows[0]["carrier"], errors) == ("UA", [1])


def descriptor_set() -> descriptor_pb2.FileDescriptorSet:
    file = descriptor_pb2.FileDescriptorProto(name="flight.proto", package="demo", syntax="proto3")
    field = descriptor_pb2.FieldDescriptorProto
    inner = file.message_type.add(name="Place")
    inner.field.add(name="code", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="NONE", number=0)
    kind.value.add(name="JET", number=1)
    flight = file.message_type.add(name="Flight")
    entry = flight.nested_type.add(name="SeatsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    flight.field.add(name="carrier", number=1, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    flight.field.add(name="number", number=2, type=field.TYPE_UINT64, label=field.LABEL_OPTIONAL)
    flight.field.add(
        name="origin",
        number=3,
        type=field.TYPE_MESSAGE,
        type_name=".demo.Place",
        label=field.LABEL_OPTIONAL,
    )
    flight.field.add(
        name="kind",
        number=4,
        type=field.TYPE_ENUM,
        type_name=".demo.Kind",
        label=field.LABEL_OPTIONAL,
    )
    flight.field.add(
        name="stops",
        number=5,
        type=field.TYPE_MESSAGE,
        type_name=".demo.Place",
        label=field.LABEL_REPEATED,
    )
    flight.field.add(
        name="seats",
        number=6,
        type=field.TYPE_MESSAGE,
        type_name=".demo.Flight.SeatsEntry",
        label=field.LABEL_REPEATED,
    )
    flight.field.add(name="raw", number=7, type=field.TYPE_BYTES, label=field.LABEL_OPTIONAL)
    return descriptor_pb2.FileDescriptorSet(file=[file])


def flight_class() -> Any:
    pool = DescriptorPool()
    for file in descriptor_set().file:
        pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("demo.Flight"))


def test_protobuf_fields_become_columns_of_the_same_name() -> None:
    flight = flight_class()
    schema = ValueFormat("protobuf", descriptor_set().SerializeToString(), "demo.Flight")
    full = flight(
        carrier="UA",
        number=7,
        origin={"code": "JFK"},
        kind=1,
        stops=[{"code": "ORD"}],
        seats={"a": 2},
        raw=b"\x00",
    )
    huge = flight(number=2**64 - 1).SerializeToString()
    rows, errors = decode(
        schema,
        full.SerializeToString(),
        flight().SerializeToString(),
        b"\xff\xff",
        huge,
        None,
        flight(kind=9).SerializeToString(),
    )
    assert errors == [2, 3]
    assert rows[0] == {
        "carrier": "UA",
        "number": 7,
        "origin": {"code": "JFK"},
        "kind": "JET",
        "stops": [{"code": "ORD"}],
        "seats": [("a", 2)],
        "raw": b"\x00",
    }
    assert rows[1] == {
        "carrier": "",
        "number": 0,
        "origin": None,
        "kind": "NONE",
        "stops": [],
        "seats": [],
        "raw": b"",
    }
    assert set(rows[2].values()) == {None}
    assert rows[3]["kind"] == "9"
    frame = b"\x00" + struct.pack(">I", 7)
    framed = schema._replace(framed=True)
    rows, errors = decode(
        framed,
        frame + b"\x00" + full.SerializeToString(),
        frame + b"\x04\x02\x00" + full.SerializeToString(),
        frame,
    )
    assert ([row["carrier"] for row in rows], errors) == (["UA", "UA"], [2])


JSON: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "small": {"type": "integer", "format": "int32"},
        "at": {"type": ["string", "null"], "format": "date-time"},
        "blob": {"type": "string", "contentEncoding": "base64"},
        "map": {"type": "object", "additionalProperties": {"type": "number"}},
        "list": {
            "type": "array",
            "items": {"type": "object", "properties": {"x": {"type": "boolean"}}},
        },
    },
}


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ('{"id": 1, "other": []}', {"id": 1}),
        ('{"id": 9223372036854775807, "small": -3}', {"id": 2**63 - 1, "small": -3}),
        ('{"id": 1, "at": "2026-03-01T12:00:00Z", "blob": "AAE="}',
         {"id": 1, "at": NOON, "blob": b"\x00\x01"}),
        ('{"id": 1, "at": null, "map": {"a": 1}, "list": [{"x": true}, {}]}',
         {"id": 1, "map": [("a", 1.0)], "list": [{"x": True}, {"x": None}]}),
        ('{"id": 9223372036854775808}', None),
        ('{"id": 1, "small": 3000000000}', None),
        ('{"id": 1.5}', None),
        ('{"id": "1"}', None),
        ('{"small": 1}', None),
        ('{"id": 1, "at": "2026-03-01T12:00:00"}', None),
        ('{"id": 1, "list": [1]}', None),
        ("[]", None),
        ("", None),
        ('{"id": 1} x', None),
    ],
)  # fmt: skip
def test_json_values_that_do_not_match_the_schema_are_errors(
    value: str, wanted: dict[str, Any] | None
) -> None:
    rows, errors = decode(ValueFormat("json", json.dumps(JSON).encode()), value.encode())
    assert errors == ([0] if wanted is None else [])
    assert rows == ([] if wanted is None else [dict.fromkeys(JSON["properties"]) | wanted])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=40), st.just(b'{"id": 3}')), max_size=8))
def test_every_value_is_a_row_or_an_error(values: list[bytes | None]) -> None:
    for schema in (
        ValueFormat("json", json.dumps(JSON).encode()),
        ValueFormat("avro", json.dumps(AVRO).encode()),
        ValueFormat("protobuf", descriptor_set().SerializeToString(), "demo.Flight", framed=True),
    ):
        rows, errors = decode(schema, *values)
        assert len(rows) + len(errors) == len(values)
        assert not any(values[index] is None for index in errors)


@pytest.mark.parametrize(
    ("value_format", "reason"),
    [
        (ValueFormat("json"), "needs a schema"),
        (ValueFormat("json", b"{"), "not JSON"),
        (ValueFormat("json", b'{"type": "array"}'), "type 'object'"),
        (
            ValueFormat(
                "json", b'{"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}'
            ),
            r"\$\.a: type",
        ),
        (
            ValueFormat(
                "json", b'{"type": "object", "properties": {"_offset": {"type": "string"}}}'
            ),
            "begin with _",
        ),
        (ValueFormat("json", b'{"type": "object", "properties": {}}'), "no fields"),
        (ValueFormat("avro", b'{"type": "nothing"}'), "Avro"),
        (ValueFormat("avro", b'"string"'), "record"),
        (
            ValueFormat(
                "avro", b'{"type":"record","name":"a","fields":[{"name":"x","type":["null","a"]}]}'
            ),
            "contain themselves",
        ),
        (ValueFormat("protobuf", b"\xff", "a"), "descriptor set"),
        (
            ValueFormat("protobuf", descriptor_set().SerializeToString(), "demo.Other"),
            "it has demo.Flight, demo.Place",
        ),
        (ValueFormat("protobuf", descriptor_set().SerializeToString()), "--message"),
    ],
)
def test_schemas_that_do_not_map_to_columns_are_refused(
    value_format: ValueFormat, reason: str
) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        ValueDecoder(value_format)
