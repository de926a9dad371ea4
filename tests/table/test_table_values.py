"""Decode values of each format: which become rows, which become errors, and which schemas are
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
from google.protobuf import descriptor_pb2, json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lake.table.errors import InvalidSchema
from penstock.lake.table.rows import newest_by_key, row_schema
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
    """Decode the values. Return the rows and the indexes of invalid values."""
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
    framed = ValueFormat.of("avro", [(7, schema.schema)], framed=True)
    rows, errors = decode(framed, frame(7) + good, good, frame(8) + good)
    assert (rows[0]["carrier"], errors) == ("UA", [1, 2])


def test_decimal_is_ignored_for_types_that_avro_does_not_allow() -> None:
    kinds = {"a": "string", "b": "int"}
    decimal = {"logicalType": "decimal", "precision": 5, "scale": 2}
    schema = avro_record(*((name, {"type": kind} | decimal) for name, kind in kinds.items()))
    plain = avro_record(*kinds.items())
    row = {"a": "1.25", "b": 7}
    assert decode(ValueFormat("avro", schema), written(plain, row)) == ([row], [])


def frame(schema_id: int) -> bytes:
    return b"\x00" + struct.pack(">I", schema_id)


def avro_record(*fields: tuple[str, Any]) -> bytes:
    described = [{"name": name, "type": kind} for name, kind in fields]
    return json.dumps({"type": "record", "name": "sale", "fields": described}).encode()


def written(schema: bytes, row: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), row)
    return out.getvalue()


def test_framed_avro_values_are_decoded_with_the_schemas_of_their_ids() -> None:
    one = avro_record(("price", "long"), ("qty", "long"))
    two = avro_record(("qty", "long"), ("price", "long"))
    three = avro_record(("qty", "int"), ("price", "float"), ("note", "string"))
    other = avro_record(("qty", "string"), ("price", "long"))
    row = {"price": 1, "qty": 2}
    values = [
        frame(1) + written(one, row),
        frame(2) + written(two, row),
        frame(3) + written(three, row | {"note": "x"}),
        frame(4) + written(other, row | {"qty": "2"}),
        frame(5) + written(one, row),
    ]
    by_id = [(1, one), (2, two), (4, other), (3, three)]
    given: list[tuple[int | None, bytes]] = [*by_id, (None, one)]
    decoded = ValueDecoder(ValueFormat.of("avro", given, framed=True)).decode(
        pa.array(values, pa.binary())
    )
    assert pa.table(decoded.columns).to_pylist() == [row, row]
    reasons = dict(decoded.errors)
    assert reasons.keys() == {2, 3, 4}, "a float is not a long, and a string not a number"
    assert "SchemaResolutionError" in reasons[3]
    assert (
        reasons[4]
        == "ValueError: the value has schema id 5, and only these ids have schemas: 1, 2, 3, 4"
    )
    rows, errors = decode(ValueFormat.of("avro", by_id[:2], framed=True), *values)
    assert (rows, errors) == ([row, row], [2, 3, 4])


STATE: dict[str, Any] = {"type": "enum", "name": "state", "symbols": ["ON", "OFF"]}
TREE: dict[str, Any] = {
    "type": "record",
    "name": "tree",
    "fields": [{"name": "inner", "type": ["null", "tree"]}],
}


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (["null", "long"], b"\x02\x06", b"\x01\x06"),
        (["null", "long"], b"\x00", b"\x03"),
        (STATE, b"\x02", b"\x01"),
        (["null", STATE], b"\x02\x00", b"\x02\x03"),
        ({"type": "array", "items": ["null", "long"]}, b"\x02\x02\x06\x00", b"\x02\x01\x06\x00"),
        ({"type": "map", "values": STATE}, b"\x02\x02k\x00\x00", b"\x02\x02k\x01\x00"),
    ],
)
@pytest.mark.parametrize("is_recursive", [False, True], ids=["compiled", "recursive"])
def test_negative_indexes_in_avro_values_are_errors(
    kind: Any, good: bytes, bad: bytes, *, is_recursive: bool
) -> None:
    """fastavro counts them from the end of the union or enum, in both of its implementations."""
    columns = avro_record(("x", kind))
    more = [("tree", TREE)] if is_recursive else []
    writer = avro_record(("x", kind), *more)
    given: list[tuple[int | None, bytes]] = [(1, writer), (None, columns)]
    end = b"\x00" * len(more)
    values = [frame(1) + good + end, frame(1) + bad + end]
    framed = ValueFormat.of("avro", given, framed=True)
    for value_format, written_values in [
        (framed, values),
        (ValueFormat("avro", columns), [good, bad]),
    ]:
        decoded = ValueDecoder(value_format).decode(pa.array(written_values, pa.binary()))
        assert [index for index, _ in decoded.errors] == [1]
        assert "negative index" in decoded.errors[0][1]


@pytest.mark.parametrize(
    ("kind", "more"), [("string", "a longer text"), ("double", 1.5), ("boolean", True)]
)
def test_avro_values_that_end_in_a_skipped_field_are_errors(kind: str, more: Any) -> None:
    columns, writer = avro_record(("price", "long")), avro_record(("price", "long"), ("more", kind))
    value = frame(2) + written(writer, {"price": 1, "more": more})
    cut = [value[: -1 - missing] for missing in range(len(value) - 6)]
    given: list[tuple[int | None, bytes]] = [(2, writer), (None, columns)]
    rows, errors = decode(ValueFormat.of("avro", given, framed=True), value, *cut)
    assert (rows, errors) == ([{"price": 1}], list(range(1, 1 + len(cut))))


def message_set(*fields: tuple[str, int, str], name: str = "Sale", at: int = 0) -> bytes:
    """Return a descriptor set with a message at a given position in its file."""
    file = descriptor_pb2.FileDescriptorProto(name="sale.proto", package="demo", syntax="proto3")
    for number in range(at):
        file.message_type.add(name=f"Other{number}")
    message = file.message_type.add(name=name)
    kinds = descriptor_pb2.FieldDescriptorProto
    for field, number, kind in fields:
        message.field.add(
            name=field,
            number=number,
            type=kinds.Type.Value(f"TYPE_{kind}"),
            label=kinds.LABEL_OPTIONAL,
        )
    return descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()


def message_of(schema: bytes, **fields: Any) -> bytes:
    pool = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(schema).file:
        pool.Add(file)
    kind: Any = GetMessageClass(pool.FindMessageTypeByName("demo.Sale"))
    found: bytes = json_format.ParseDict(fields, kind()).SerializeToString()
    return found


def test_framed_protobuf_values_are_decoded_with_the_schemas_of_their_ids() -> None:
    one = message_set(("price", 1, "INT64"), ("qty", 2, "INT64"))
    two = message_set(("qty", 1, "INT64"), ("price", 2, "INT64"))
    renamed = message_set(("cost", 1, "INT32"), ("qty", 2, "INT64"), at=1)
    other = message_set(("price", 1, "STRING"), ("qty", 2, "INT64"))
    fewer = message_set(("price", 1, "INT64"))
    row = {"price": 1, "qty": 2}
    values = [
        frame(1) + b"\0" + message_of(one, **row),
        frame(2) + b"\0" + message_of(two, **row),
        frame(3) + b"\x02\x02" + message_of(renamed, cost=1, qty=2),
        frame(4) + b"\0" + message_of(other, price="1", qty=2),
        frame(5) + b"\0" + message_of(fewer, price=1),
        frame(3) + b"\0" + message_of(renamed, cost=1, qty=2),
        frame(6) + b"\0" + message_of(one, **row),
        frame(1) + b"\x02\x02" + message_of(one, **row),
    ]
    given: list[tuple[int | None, bytes]] = [
        (None, one), (1, one), (2, two), (3, renamed), (4, other), (5, fewer),
    ]  # fmt: skip
    value_format = ValueFormat.of("protobuf", given, "demo.Sale", framed=True)
    rows, errors = decode(value_format, *values)
    assert rows == [row, row, row, row | {"qty": 0}]
    assert errors == [3, 5, 6, 7], "other types, messages or schemas"


def test_framed_json_values_may_have_any_id_unless_ids_are_configured() -> None:
    schema = json.dumps(JSON).encode()
    values = [frame(1) + b'{"id": 1}', frame(2) + b'{"id": 2}', b'{"id": 3}']
    rows, errors = decode(ValueFormat("json", schema, framed=True), *values)
    assert ([row["id"] for row in rows], errors) == ([1, 2], [2])
    rows, errors = decode(ValueFormat.of("json", [(2, schema)], framed=True), *values)
    assert ([row["id"] for row in rows], errors) == ([2], [0, 2])


@pytest.mark.parametrize(
    ("given", "framed", "reason"),
    [
        ([(None, b"a"), (None, b"b")], True, "specify one schema"),
        ([(1, b"a"), (1, b"b")], True, "different ids"),
        ([(1, b"a")], False, "add --framed"),
    ],
)
def test_ambiguous_schemas_are_refused(
    given: list[tuple[int | None, bytes]], framed: bool, reason: str
) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        ValueFormat.of("avro", given, framed=framed)


@pytest.mark.parametrize(
    ("kind", "value", "column", "read"),
    [
        ({"type": "string", "logicalType": "uuid"}, "3D45F0AC-bad", pa.string(), "3D45F0AC-bad"),
        (["null", {"type": "string", "logicalType": "uuid"}], None, pa.string(), None),
        ({"type": "fixed", "size": 2, "name": "f"}, b"ab", pa.binary(), b"ab"),
        (
            {"type": "fixed", "size": 16, "name": "u", "logicalType": "uuid"},
            b"a" * 16,
            pa.binary(),
            b"a" * 16,
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-millis"},
            5,
            pa.timestamp("us"),
            dt.datetime(1970, 1, 1, 0, 0, 0, 5_000),  # noqa: DTZ001 - a local time
        ),
        (
            {"type": "long", "logicalType": "local-timestamp-micros"},
            5,
            pa.timestamp("us"),
            dt.datetime(1970, 1, 1, 0, 0, 0, 5),  # noqa: DTZ001 - a local time
        ),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 5, pa.int64(), 5),
        (
            {"type": "int", "logicalType": "time-millis"},
            5,
            pa.time64("us"),
            dt.time(0, 0, 0, 5_000),
        ),
        ({"type": "int", "logicalType": "date"}, 5, pa.date32(), dt.date(1970, 1, 6)),
        (
            {"type": "array", "items": {"type": "string", "logicalType": "uuid"}},
            ["x"],
            pa.list_(pa.field("element", pa.string())),
            ["x"],
        ),
    ],
)
def test_avro_types_become_columns(kind: Any, value: Any, column: Any, read: Any) -> None:
    plain: Any = json.loads(json.dumps(kind).replace('"logicalType"', '"ignored"'))
    schema = avro_record(("x", kind))
    decoder = ValueDecoder(ValueFormat("avro", schema))
    assert decoder.schema.field("x").type == column
    rows, errors = decode(
        ValueFormat("avro", schema), written(avro_record(("x", plain)), {"x": value})
    )
    assert (rows, errors) == ([{"x": read}], [])


def test_protobuf_types_become_columns() -> None:
    from google.protobuf import duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2

    modules: list[Any] = [duration_pb2, empty_pb2, struct_pb2, timestamp_pb2, wrappers_pb2]
    file = descriptor_pb2.FileDescriptorProto(name="sale.proto", package="demo", syntax="proto3")
    file.dependency.extend(module.DESCRIPTOR.name for module in modules)
    message = file.message_type.add(name="Sale")
    kinds = descriptor_pb2.FieldDescriptorProto
    types = {
        "data": "Struct",
        "any": "Value",
        "items": "ListValue",
        "at": "Timestamp",
        "took": "Duration",
        "gone": "Empty",
        "name": "StringValue",
        "huge": "UInt64Value",
    }
    for number, (name, kind) in enumerate(types.items(), 1):
        message.field.add(
            name=name,
            number=number,
            type=kinds.TYPE_MESSAGE,
            type_name=f".google.protobuf.{kind}",
            label=kinds.LABEL_OPTIONAL,
        )
    for number, kind in enumerate(("UINT64", "FIXED64", "UINT32"), 20):
        message.field.add(
            name=kind.lower(),
            number=number,
            type=kinds.Type.Value(f"TYPE_{kind}"),
            label=kinds.LABEL_REPEATED,
        )
    files = [descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
             for module in modules]  # fmt: skip
    schema = descriptor_pb2.FileDescriptorSet(file=[*files, file]).SerializeToString()
    full = message_of(
        schema,
        data={"a": [1, "x"]},
        any=1.5,
        items=[True],
        at="1970-01-01T00:00:01Z",
        took="2.000000003s",
        gone={},
        name="",
        huge=2**64 - 1,
        uint64=[2**64 - 1],
        fixed64=[2**63],
        uint32=[2**32 - 1],
    )
    rows, errors = decode(ValueFormat("protobuf", schema, "demo.Sale"), full, message_of(schema))
    assert errors == []
    assert json.loads(rows[0].pop("data")) == {"a": [1, "x"]}
    assert rows[0] == {
        "any": "1.5",
        "items": "[true]",
        "at": dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC),
        "took": {"seconds": 2, "nanos": 3},
        "gone": True,
        "name": "",
        "huge": 2**64 - 1,
        "uint64": [2**64 - 1],
        "fixed64": [2**63],
        "uint32": [2**32 - 1],
    }
    assert {rows[1][name] for name in types} == {None}


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
    assert errors == [2]
    assert rows.pop(2)["number"] == 2**64 - 1
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
    framed = ValueFormat.of("protobuf", [(7, schema.schema)], "demo.Flight", framed=True)
    rows, errors = decode(
        framed,
        frame(7) + b"\x02\x02" + full.SerializeToString(),
        frame(7) + b"\x04\x02\x00" + full.SerializeToString(),
        frame(7),
        frame(7) + b"\x01",
        frame(7) + b"\x00" + full.SerializeToString(),
    )
    assert ([row["carrier"] for row in rows], errors) == (["UA"], [1, 2, 3, 4])


JSON: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "integer"},
        "small": {"type": "integer", "format": "int32"},
        "at": {"type": ["string", "null"], "format": "date-time"},
        "daily": {"type": ["string", "null"], "format": "time"},
        "blob": {"type": "string", "contentEncoding": "base64"},
        "map": {"type": "object", "additionalProperties": {"type": "number"}},
        "list": {
            "type": "array",
            "items": {"type": "object", "properties": {"x": {"type": "boolean"}}},
        },
    },
}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('{"id": 1, "other": []}', {"id": 1}),
        ('{"id": 9223372036854775807, "small": -3}', {"id": 2**63 - 1, "small": -3}),
        ('{"id": 1, "at": "2026-03-01T12:00:00Z", "blob": "AAE="}',
         {"id": 1, "at": NOON, "blob": b"\x00\x01"}),
        ('{"id": 1, "at": null, "map": {"a": 1}, "list": [{"x": true}, {}]}',
         {"id": 1, "map": [("a", 1.0)], "list": [{"x": True}, {"x": None}]}),
        ('{"id": 1, "daily": "12:30:00.5"}', {"id": 1, "daily": dt.time(12, 30, 0, 500_000)}),
        ('{"id": 1, "daily": "12:30:00Z"}', {"id": 1, "daily": dt.time(12, 30)}),
        ('{"id": 1, "daily": null}', {"id": 1}),
        ('{"id": 1, "daily": "12:30:00+02:00"}', None),
        ('{"id": 1, "daily": "12:30"}', None),
        ('{"id": 1, "daily": 45000}', None),
        ('{"id": 9223372036854775808}', None),
        ('{"id": 1, "small": 3000000000}', None),
        ('{"id": 1.0, "small": -2e3, "daily": "12:30:00"}',
         {"id": 1, "small": -2_000, "daily": dt.time(12, 30)}),
        ('{"id": -9007199254740991.0}', {"id": 1 - 2**53}),
        ('{"id": 9007199254740993.0}', None),
        ('{"id": 1.0, "small": 3e9}', None),
        ('{"id": 1.0, "at": 1}', None),
        ('{"id": true, "small": 1.0}', None),
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
    value: str, expected: dict[str, Any] | None
) -> None:
    rows, errors = decode(ValueFormat("json", json.dumps(JSON).encode()), value.encode())
    assert errors == ([0] if expected is None else [])
    assert rows == ([] if expected is None else [dict.fromkeys(JSON["properties"]) | expected])


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ({"type": ["integer", "null"]}, "1.0", 1),
        ({"type": ["integer", "null"]}, "null", None),
        ({"type": ["integer", "null"], "format": "int32"}, "-2.0", -2),
        ({"type": "array", "items": {"type": ["integer", "null"]}}, "[1.0, null, 2]", [1, None, 2]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, '{"x": 1.0}', [("x", 1)]),
    ],
)
def test_integers_with_a_decimal_point_may_be_nullable_or_nested(
    kind: dict[str, Any], value: str, expected: object
) -> None:
    schema = {"type": "object", "properties": {"a": kind}}
    rows, errors = decode(
        ValueFormat("json", json.dumps(schema).encode()), b'{"a": %s}' % value.encode()
    )
    assert (rows, errors) == ([{"a": expected}], [])


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=40), st.just(b'{"id": 3}')), max_size=8))
def test_every_value_is_a_row_or_an_error(values: list[bytes | None]) -> None:
    for schema in (
        ValueFormat("json", json.dumps(JSON).encode()),
        ValueFormat("avro", json.dumps(AVRO).encode()),
        ValueFormat.of(
            "protobuf", [(0, descriptor_set().SerializeToString())], "demo.Flight", framed=True
        ),
    ):
        rows, errors = decode(schema, *values)
        assert len(rows) + len(errors) == len(values)
        assert not any(values[index] is None for index in errors)


@pytest.mark.parametrize(
    ("value_format", "reason"),
    [
        (ValueFormat("json"), "requires a schema"),
        (ValueFormat("json", b"{"), "not JSON"),
        (ValueFormat("json", b'{"type": "array"}'), "type 'object'"),
        (
            ValueFormat(
                "json", b'{"type": "object", "properties": {"a": {"type": ["string", "integer"]}}}'
            ),
            r"\$\.a: type",
        ),
        (
            ValueFormat("json", b'{"type": "object", "properties": {"a": {"type": [["string"]]}}}'),
            r"\$\.a: type",
        ),
        (
            ValueFormat(
                "json",
                b'{"type": "object", "properties": {"a": {"type": "string"}}, "required": true}',
            ),
            r"\$: 'required' must be a list",
        ),
        (
            ValueFormat(
                "avro",
                avro_record(("x", {"type": "bytes", "logicalType": "decimal", "precision": 39})),
            ),
            r"\.x: a decimal of precision 39",
        ),
        (
            ValueFormat("avro", avro_record(("x", {"type": "bytes", "logicalType": "decimal"}))),
            r"\.x: a decimal of precision None",
        ),
        (ValueFormat("avro", avro_record(("x", "int")), framed=True), "--schema ID=FILE"),
        (
            ValueFormat("protobuf", descriptor_set().SerializeToString(), "demo.Flight", True),
            "--schema ID=FILE",
        ),
        (ValueFormat("protobuf", message_set(), "demo.Sale"), "no columns"),
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
def test_schemas_without_a_column_mapping_are_refused(
    value_format: ValueFormat, reason: str
) -> None:
    with pytest.raises(InvalidSchema, match=reason):
        ValueDecoder(value_format)


CONSTANTS: list[tuple[dict[str, Any], Any]] = [
    ({"enum": ["a", "b"]}, pa.string()),
    ({"enum": ["a", None]}, pa.string()),
    ({"const": "a"}, pa.string()),
    ({"enum": [1, -2]}, pa.int64()),
    ({"enum": [1, 2.5]}, pa.float64()),
    ({"enum": [True, False, None]}, pa.bool_()),
    ({"type": "string", "enum": ["a"]}, pa.string()),
    ({"oneOf": [{"type": "null"}, {"enum": ["a"]}]}, pa.string()),
    ({"anyOf": [{"enum": [None]}, {"const": 1}]}, pa.int64()),
    ({"enum": ["a", 1]}, None),
    ({"enum": [None]}, None),
    ({"enum": []}, None),
    ({"enum": "a"}, None),
    ({"const": {"a": 1}}, None),
]


@pytest.mark.parametrize(("schema", "column"), CONSTANTS, ids=str)
def test_json_constants_determine_the_column_type(schema: dict[str, Any], column: Any) -> None:
    text = json.dumps({"type": "object", "properties": {"x": schema}}).encode()
    if column is None:
        with pytest.raises(InvalidSchema):
            ValueDecoder(ValueFormat("json", text))
    else:
        assert ValueDecoder(ValueFormat("json", text)).schema.field("x").type == column


TEXT = {"type": "string"}
INTEGER = {"type": "integer"}
REFERRING: list[tuple[dict[str, Any], str]] = [
    ({"$ref": "#name"}, "x"),
    ({"$ref": "https://h/schemas/name"}, "x"),
    ({"$ref": "name"}, "x"),
    ({"$ref": "/schemas/name"}, "x"),
    ({"$ref": "name#"}, "x"),
    ({"$ref": "person#/$defs/inner"}, "x"),
    ({"$ref": "person#short"}, "x"),
    ({"$ref": "person"}, "{'inner': 'x', 'same': 'x', 'outer': 1}"),
    ({"$ref": "https://h/schemas/order#/$defs/inner"}, "1"),
    ({"$ref": "#/$defs/person/$defs/inner"}, "x"),
    ({"$ref": "#/anyOf/1"}, "x"),
]


@pytest.mark.parametrize(("reference", "shown"), REFERRING, ids=str)
def test_references_by_id_and_by_anchor_are_resolved(reference: dict[str, Any], shown: str) -> None:
    person = {
        "$id": "person",
        "type": "object",
        "$defs": {"inner": {**TEXT, "$anchor": "short"}},
        "properties": {
            "inner": {"$ref": "#/$defs/inner"},
            "same": {"$ref": "#short"},
            "outer": {"$ref": "order#/$defs/inner"},
        },
    }
    schema = {
        "$id": "https://h/schemas/order",
        "type": "object",
        "anyOf": [{}, TEXT],
        "$defs": {
            "name": {"$id": "name", "$anchor": "ignored", **TEXT},
            "anchored": {"$anchor": "name", **TEXT},
            "person": person,
            "inner": INTEGER,
        },
        "properties": {"x": reference, "id": INTEGER, "default": INTEGER},
    }
    value: Any = {"inner": "x", "same": "x", "outer": 1} if shown.startswith("{") else "x"
    value = 1 if shown == "1" else value
    found, errors = decoded(schema, {"x": value})
    assert (errors, str(found)) == ([], shown)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"$ref": "https://h/other"}, "'https://h/other', which is missing"),
        ({"$ref": "#nothing"}, "has no '#nothing'"),
        ({"$ref": "#/$defs/list/1"}, "has no '#/"),
        ({"$ref": "http://["}, "'http://\\[', which is missing"),
        ({"$id": "a", "$ref": "#/$defs/loop"}, "refer to each other"),
    ],
)
def test_unresolvable_references_are_refused(schema: dict[str, Any], reason: str) -> None:
    definitions = {"list": [TEXT], "loop": {"$ref": "#/$defs/loop"}}
    with pytest.raises(InvalidSchema, match=reason):
        decoded({"type": "object", "$defs": definitions, "properties": {"x": schema}}, {})


def test_id_in_every_subschema_does_not_hide_the_definitions_of_the_document() -> None:
    """The first JSON Schema generators wrote the path of each subschema as its id."""
    part = {"id": "/properties/x", "$ref": "#/definitions/text"}
    schema = {"type": "object", "definitions": {"text": TEXT}, "properties": {"x": part}}
    assert decoded(schema, {"x": "y"}) == ("y", [])


def decoded(schema: dict[str, Any], value: dict[str, Any]) -> tuple[Any, list[Any]]:
    """Return column `x` of one value, and the errors."""
    decoder = ValueDecoder(ValueFormat("json", json.dumps(schema).encode()))
    found = decoder.decode(pa.array([json.dumps(value).encode()], pa.binary()))
    return (None if found.errors else found.columns["x"][0].as_py()), found.errors


def test_objects_without_fields_cannot_become_columns() -> None:
    """Parquet does not support structs without fields, and an export would fail to write them."""
    empty = {"type": "object", "properties": {}}
    inner = {"type": "object", "properties": {"l": {"type": "array", "items": empty}}}
    record = {"type": "record", "name": "e", "fields": []}
    fields = [{"name": "m", "type": {"type": "map", "values": ["null", record]}}]
    for name, schema, path in (
        ("json", {"type": "object", "properties": {"o": inner}}, r"o\.l\[\]"),
        ("avro", {"type": "record", "name": "r", "fields": fields}, r"m\.\*"),
    ):
        columns = ValueDecoder(ValueFormat(name, json.dumps(schema).encode())).schema
        with pytest.raises(InvalidSchema, match=f"{path}: an object without fields"):
            row_schema(columns, headers=False)


def test_fields_that_differ_only_in_case_are_refused() -> None:
    """In a schema, a struct, a list and a map: DuckDB, Spark and Iceberg ignore case."""

    def refused(format_name: str, schema: bytes, fields: str, message: str = "") -> None:
        with pytest.raises(InvalidSchema, match=f"fields {fields} differ only in case"):
            ValueDecoder(ValueFormat(format_name, schema, message=message))

    both = {"type": "object", "properties": {"Id": INTEGER, "x": TEXT, "id": INTEGER}}
    for outer, path in (
        (both, ""),
        ({"type": "object", "properties": {"o": both}}, "o."),
        ({"type": "object", "properties": {"l": {"type": "array", "items": both}}}, "l."),
    ):
        refused("json", json.dumps(outer).encode(), f"{path}Id and {path}id")
    fields = [{"name": name, "type": "int"} for name in ("ID", "iD")]
    record = {"type": "record", "name": "e", "fields": fields}
    avro = {"type": "map", "values": ["null", record]}
    schema = {"type": "record", "name": "r", "fields": [{"name": "m", "type": avro}]}
    refused("avro", json.dumps(schema).encode(), "m.ID and m.iD")
    found = message_set(("user_id", 1, "INT64"), ("User_id", 2, "INT64"))
    refused("protobuf", found, "user_id and User_id", "demo.Sale")


def test_one_row_of_a_key_is_newest_in_a_batch_that_repeats_offsets() -> None:
    keys = [b"a", b"b", b"a", b"c", b"c"]
    rows = pa.table(
        {"_key": pa.array(keys, pa.binary()), "_offset": [5, 5, 6, 7, 7], "n": range(5)}
    )
    assert newest_by_key(rows).column("n").to_pylist() == [1, 2, 4]
