"""Decode values with schemas from a registry: which become rows, which become errors, and which
failures of the registry stop the export.
"""

import io
import json
import pickle
import ssl
import struct
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from penstock.lake.table.errors import InvalidSchema
from penstock.lake.table.registry import decoder_of, with_newest
from penstock.lake.table.values import ValueFormat
from penstock.protocol.registry import by_id
from penstock.protocol.registry.by_id import SchemasById
from penstock.protocol.registry.client import SchemaRegistry
from penstock.protocol.registry.model import (
    NotRegistered,
    RegistryError,
    RegistrySettingInvalid,
    RegistryUnavailable,
)
from penstock.protocol.registry.settings import (
    RegistrySettings,
    read_settings,
    registry_settings,
    settings_of_environment,
)
from penstock.protocol.registry.wire_format import frame
from tests.support.certs import Authority
from tests.support.schema_registry import SchemaRegistryServer, serving

PLACE = {"type": "record", "name": "x.Place", "fields": [{"name": "city", "type": "string"}]}
ONE = [{"name": "price", "type": "long"}, {"name": "qty", "type": "long"}]
TWO = [*reversed(ONE), {"name": "at", "type": ["null", "x.Place"], "default": None}]
ITEM = 'syntax = "proto3"; package shop; message Item { string name = 1; }'
ORDER = """syntax = "proto3"; package shop; import "item.proto";
message Other {} message Order { int64 price = 1; Item item = 2; }"""
LATER = ORDER.replace("int64 price = 1;", "string note = 1; int64 price = 3;")
NAME = '{"$defs": {"name": {"oneOf": [{"type": "null"}, {"type": "string"}]}}}'


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with serving(SchemaRegistryServer()) as server:
        yield server


def avro(fields: list[dict[str, Any]], name: str = "Sale") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": fields}


def referring(name: str) -> dict[str, Any]:
    return {"references": [{"name": name, "subject": name, "version": 1}]}


def written(schema: dict[str, Any], row: dict[str, Any]) -> bytes:
    out, named = io.BytesIO(), {}
    fastavro.parse_schema(PLACE, named_schemas=named)
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, named_schemas=named), row)
    return out.getvalue()


def settings(server: SchemaRegistryServer, **more: Any) -> RegistrySettings:
    return RegistrySettings(server.url, retry_ms=0, **more)


def decode(
    value_format: ValueFormat, *values: bytes
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Return rows, and the reasons of dead letters."""
    decoder = decoder_of(pickle.loads(pickle.dumps(with_newest(value_format))))
    decoded = decoder.decode(pa.array(values, pa.binary()))
    return pa.table(decoded.columns).to_pylist(), dict(decoded.errors)


def test_avro_values_are_decoded(server: SchemaRegistryServer) -> None:
    server.register("x.Place", {"schema": json.dumps(PLACE)})
    one = server.register("t-value", {"schema": json.dumps(avro(ONE))})
    other = server.register("t-value", {"schema": json.dumps(avro(ONE, "Other"))})
    text = server.register("t-value", {"schema": '"string"'})
    broken = server.register("t-value", {"schema": '{"type": "reco'})
    json_id = server.register("t-value", {"schema": "{}", "schemaType": "JSON"})
    two = {"schema": json.dumps(avro(TWO)), **referring("x.Place")}
    two_id = server.register("t-value", two)
    row = {"price": 1, "qty": 2}
    place = row | {"at": {"city": "Oslo"}}
    value_format = ValueFormat.registered(settings(server), "t-value")
    old = written(avro(ONE), row)
    values = [frame(one) + old, frame(two_id) + written(avro(TWO), place)]
    ids = [other, text, broken, json_id, 99]
    rows, errors = decode(value_format, *values, *(frame(number) + old for number in ids), old)
    assert rows == [row | {"at": None}, place]
    reasons = [errors[2 + at] for at in range(len(ids))]
    for reason, said in zip(
        reasons,
        ("Schema mismatch", "must be an Avro record", "not an Avro schema", "of type JSON", "404"),
        strict=True,
    ):
        assert said in reason
    assert "magic byte" in errors[7]
    requests = len(server.requests)
    decode(value_format, *values)
    assert len(server.requests) == requests + 2, "the newest schema and its reference, no others"
    fixed = ValueFormat.registered(
        settings(server), "", name="avro", schema=json.dumps(avro(ONE)).encode()
    )
    assert decode(fixed, *values) == ([row, row], {})


def test_protobuf_values_are_decoded(server: SchemaRegistryServer) -> None:
    server.register("item.proto", {"schema": ITEM, "schemaType": "PROTOBUF"})
    kind = {"schemaType": "PROTOBUF", **referring("item.proto")}
    one = server.register("t-value", {"schema": ORDER, **kind})
    two = server.register("t-value", {"schema": LATER, **kind})
    first = b"\x08\3\x12\3\x0a\1x"
    second = b"\x0a\1n\x12\3\x0a\1x\x18\3"
    value_format = ValueFormat.registered(settings(server), "t-value", "shop.Order")
    rows, errors = decode(
        value_format,
        frame(one) + b"\2\2" + first,
        frame(two) + b"\2\2" + second,
        frame(one) + b"\0",
        frame(1) + b"\0",
    )
    row = {"price": 3, "item": {"name": "x"}}
    assert rows == [row | {"note": ""}, row | {"note": "n"}]
    assert "another message" in errors[2]
    assert "no message 'shop.Order'" in errors[3]
    with pytest.raises(InvalidSchema, match=r"no message 'shop\.Item'"):
        decode(value_format._replace(message="shop.Item"))


@pytest.mark.parametrize(
    ("one", "two", "value"),
    [("int32", "Item", b"\x10\1"), ("google.protobuf.Timestamp", "Item", b"\x12\2\x08\1")],
)
def test_maps_whose_values_change_their_type_are_errors(
    server: SchemaRegistryServer, one: str, two: str, value: bytes
) -> None:
    def register(kind: str) -> int:
        text = f"""syntax = "proto3"; import "google/protobuf/timestamp.proto";
        message Order {{ map<int32, {kind}> items = 1; }} message Item {{ int64 seconds = 1; }}"""
        return server.register("t-value", {"schemaType": "PROTOBUF", "schema": text})

    first, second = register(one), register(two)
    values = [frame(first) + b"\0\x0a" + bytes([len(value) + 2]) + b"\x08\5" + value]
    values.append(frame(second) + b"\0\x0a\6\x08\5\x12\2\x08\7")
    rows, errors = decode(ValueFormat.registered(settings(server), "t-value"), *values)
    assert rows == [{"items": [(5, {"seconds": 7})]}]
    assert "field items has another type" in errors[0]


def test_doubles_beyond_the_range_of_a_float_column_are_errors(
    server: SchemaRegistryServer,
) -> None:
    def register(kind: str) -> int:
        text = f'syntax = "proto3"; message M {{ {kind} a = 1; repeated {kind} b = 2; }}'
        return server.register("t-value", {"schemaType": "PROTOBUF", "schema": text})

    head = frame(register("double")) + b"\0"
    register("float")
    large, small = struct.pack("<d", 1e300), struct.pack("<d", 0.5)
    rows, errors = decode(
        ValueFormat.registered(settings(server), "t-value"),
        head + b"\x09" + large,
        head + b"\x12\x08" + large,
        head + b"\x09" + small + b"\x12\x08" + small,
    )
    assert rows == [{"a": 0.5, "b": [0.5]}]
    assert [errors[index].partition(":")[0] for index in (0, 1)] == ["OverflowError"] * 2


def test_json_values_are_decoded(server: SchemaRegistryServer) -> None:
    server.register("name.json", {"schema": NAME, "schemaType": "JSON"})
    properties = {
        "n": {"type": "integer"},
        "who": {"$ref": "name.json#/$defs/name"},
        "more": {"type": "array", "items": {"$ref": "#/definitions/part"}},
    }
    part = {"type": "object", "properties": {"who": {"$ref": "name.json#/$defs/name"}}}
    schema = {"type": "object", "properties": properties, "definitions": {"part": part}}
    number = server.register(
        "t-value",
        {"schema": json.dumps(schema), "schemaType": "JSON", **referring("name.json")},
    )
    value_format = ValueFormat.registered(settings(server), "t-value")
    value = b'{"n": 1, "who": null, "more": [{"who": "ada"}]}'
    rows, errors = decode(value_format, frame(number) + value, frame(77) + value, value)
    assert rows == [{"n": 1, "who": None, "more": [{"who": "ada"}]}]
    assert "404" in errors[1]
    assert "magic byte" in errors[2]


def test_json_schemas_of_confluent_serializers_are_accepted_and_deep_nesting_is_an_error() -> None:
    null = {"type": "null", "title": "Not included"}
    properties = {
        "name": {"oneOf": [null, {"type": "string"}]},
        "kind": {"anyOf": [{"type": "integer"}, null]},
        "rate": {"type": "number", "format": "float"},
    }
    schema = json.dumps({"type": "object", "properties": properties}).encode()
    rows, errors = decode(
        ValueFormat("json", schema),
        b'{"name": null, "kind": 1, "rate": 0.5}',
        b'{"name": "x", "other": ' + b"[" * 50_000 + b"]" * 50_000 + b"}",
        b'{"rate": 1e300}',
    )
    assert rows == [{"name": None, "kind": 1, "rate": 0.5}]
    assert "RecursionError" in errors[1]
    assert "3.4" in errors[2]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"$ref": "#/definitions/a", "definitions": {"a": {"$ref": "#"}}}, "refer to each other"),
        ({"$ref": "other.json"}, "'other.json', which is missing"),
        ({"$ref": "#/no"}, "has no '#/no'"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}}, "contain themselves"),
        ({"type": "object", "properties": {"a": {"anyOf": [{}, {}]}}}, "a choice of types"),
        (
            {
                "type": "object",
                "properties": {"a": {"$ref": "#/definitions/d0"}},
                "definitions": {
                    f"d{at}": {
                        "type": "object",
                        "properties": {
                            name: {"$ref": f"#/definitions/d{at + 1}"} for name in ("a", "b")
                        },
                    }
                    for at in range(30)
                }
                | {"d30": {"type": "string"}},
            },
            "cannot become a column",
        ),
    ],
)
def test_json_schemas_without_columns_are_refused(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidSchema, match=said):
        decode(ValueFormat("json", json.dumps(schema).encode()))


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}


@pytest.mark.parametrize(
    ("one", "other", "value", "shown"),
    [
        (MILLIS, MICROS, 1_000, "1970-01-01 00:00:01+00:00"),
        (MICROS, MILLIS, 1_000_000, "1970-01-01 00:00:01+00:00"),
        (DATE, ["null", DATE], 1, "1970-01-02"),
        ("long", MILLIS, 1_000, ""),
        (MILLIS, "long", 1_000, ""),
        ({"type": "long", "logicalType": "timestamp-nanos"}, MICROS, 1_000, ""),
        (DATE, MILLIS, 1, ""),
        ({"type": "array", "items": "int"}, {"type": "array", "items": MILLIS}, [1], ""),
        (["null", "long"], ["null", MILLIS], 1, ""),
        ({"type": "map", "values": "long"}, {"type": "map", "values": MILLIS}, {"a": 1}, ""),
    ],
)
def test_times_keep_their_unit_or_are_refused(one: Any, other: Any, value: Any, shown: str) -> None:
    writer, reader = (avro([{"name": "x", "type": kind}]) for kind in (one, other))
    by_ids = [(1, json.dumps(writer).encode()), (None, json.dumps(reader).encode())]
    value_format = ValueFormat.of("avro", by_ids, framed=True)
    rows, errors = decode(value_format, frame(1) + written(writer, {"x": value}))
    if shown:
        assert [str(row["x"]) for row in rows] == [shown]
    else:
        assert "cannot become" in errors[0]


@pytest.mark.parametrize("fixed", [False, True])
def test_avro_decimals_with_more_digits_than_their_schema_allows_are_not_rounded(
    fixed: bool,
) -> None:
    base = {"type": "fixed", "name": "D", "size": 3} if fixed else {"type": "bytes"}
    base["logicalType"] = "decimal"
    one, two = (
        json.dumps(avro([{"name": "d", "type": base | {"precision": digits, "scale": 2}}])).encode()
        for digits in (4, 6)
    )
    value = (123_456).to_bytes(3, "big")
    rows, errors = decode(
        ValueFormat.of("avro", [(1, one), (2, two)], framed=True),
        frame(1) + (value if fixed else b"\6" + value),
    )
    assert (rows, errors) == ([{"d": Decimal("1234.56")}], {})


def test_avro_defaults_have_the_type_of_their_field() -> None:
    inner = avro([{"name": "b", "type": "bytes"}, {"name": "t", "type": MILLIS}], "Inner")
    added = [
        {"name": "t", "type": MILLIS, "default": 1_000},
        {"name": "b", "type": ["bytes", "null"], "default": "\u00ff"},
        {"name": "d", "type": DECIMAL, "default": "\u0001\u0000"},
        {"name": "i", "type": inner, "default": {"b": "\u0080", "t": 2_000}},
        {"name": "l", "type": {"type": "array", "items": MILLIS}, "default": [3_000]},
        {"name": "m", "type": {"type": "map", "values": "bytes"}, "default": {"k": "\u00fe"}},
        {"name": "n", "type": ["null", "string"], "default": None},
    ]
    by_ids = [
        (1, json.dumps(avro([])).encode()),
        (None, json.dumps(avro(added)).encode()),
    ]
    rows, errors = decode(ValueFormat.of("avro", by_ids, framed=True), frame(1))
    assert not errors
    (row,) = rows
    assert (row["b"], row["i"]["b"], dict(row["m"])) == (b"\xff", b"\x80", {"k": b"\xfe"})
    assert [moment.second for moment in (row["t"], row["i"]["t"], row["l"][0])] == [1, 2, 3]
    assert (str(row["d"]), row["n"]) == ("2.56", None)


def test_defaults_of_nested_fields_and_of_other_union_branches_are_applied() -> None:
    inner = avro(
        [
            {"name": "b", "type": "bytes", "default": "\u00ff"},
            {"name": "t", "type": ["null", MILLIS], "default": 1_000},
            {"name": "s", "type": "string"},
        ],
        "Inner",
    )
    added = [
        {"name": "one", "type": inner, "default": {"s": "x"}},
        {"name": "all", "type": {"type": "array", "items": "Inner"}, "default": [{"s": "y"}]},
        {"name": "null", "type": ["null", "bytes"], "default": "\u00fe"},
    ]
    by_ids = [
        (1, json.dumps(avro([])).encode()),
        (None, json.dumps(avro(added)).encode()),
    ]
    rows, errors = decode(ValueFormat.of("avro", by_ids, framed=True), frame(1))
    assert not errors
    (row,) = rows
    (second,) = row["all"]
    assert (row["one"].pop("s"), second.pop("s"), row["null"]) == ("x", "y", b"\xfe")
    assert second == row["one"]
    assert (second["b"], second["t"].timestamp()) == (b"\xff", 1)
    broken = avro([{"name": "b", "type": "bytes", "default": "\u0100"}])
    with pytest.raises(InvalidSchema, match="default"):
        decode(ValueFormat("avro", json.dumps(broken).encode()))


@pytest.mark.parametrize(
    ("written_names", "aliases", "value"),
    [
        (["old", "new"], ["old"], "new"),
        (["new", "old"], ["old"], "new"),
        (["older", "old"], ["old", "older"], "old"),
        (["other", "old"], ["other", "old"], "old"),
    ],
)
def test_field_name_takes_precedence_over_its_aliases(
    written_names: list[str], aliases: list[str], value: str
) -> None:
    """While a field is being renamed, values may contain both names. `other` is a column, too."""
    string = {"type": "string", "default": ""}
    fields = [{"name": "new", "aliases": aliases, **string}, {"name": "other", **string}]
    schemas = [
        avro([{"name": "in", "type": {"type": "array", "items": avro(inner, "In")}}])
        for inner in ([{"name": name, "type": "string"} for name in written_names], fields)
    ]
    row = {"in": [{name: name for name in written_names}]}
    by_ids = [(1, json.dumps(schemas[0]).encode()), (None, json.dumps(schemas[1]).encode())]
    rows, errors = decode(
        ValueFormat.of("avro", by_ids, framed=True), frame(1) + written(schemas[0], row)
    )
    assert not errors
    assert rows[0]["in"][0]["new"] == value


@pytest.mark.parametrize(
    "nested",
    [["null", "Sale"], {"type": "array", "items": "Sale"}, {"type": "map", "values": "Sale"}],
)
def test_endlessly_nested_values_are_errors(nested: Any) -> None:
    """On such values, fastavro's compiled reader would crash the process."""
    writer = avro([{"name": "n", "type": "int"}, {"name": "next", "type": nested}])
    by_ids = [
        (1, json.dumps(writer).encode()),
        (None, json.dumps(avro([{"name": "n", "type": "int"}])).encode()),
    ]
    value_format = ValueFormat.of("avro", by_ids, framed=True)
    level = b"\2\2\0" if isinstance(nested, dict) and "values" in nested else b"\2\2"
    rows, errors = decode(value_format, frame(1) + b"\2\0", frame(1) + level * 50_000)
    assert rows == [{"n": 1}]
    assert "RecursionError" in errors[1]


def test_references_with_two_names_and_to_deleted_subjects_are_resolved(
    server: SchemaRegistryServer,
) -> None:
    server.register("item", {"schema": ITEM, "schemaType": "PROTOBUF"})
    mid = 'syntax = "proto3"; package shop; import "lib/item.proto"; message Mid { Item item = 1; }'
    lib, same = ({"name": n, "subject": "item", "version": 1} for n in ("lib/item.proto", "a.json"))
    server.register("mid", {"schema": mid, "schemaType": "PROTOBUF", "references": [lib]})
    text = 'syntax = "proto3"; package shop; import "mid.proto"; message Order { Mid mid = 1; }'
    references = [same, {"name": "mid.proto", "subject": "mid", "version": 1}]
    body = {"schema": text, "schemaType": "PROTOBUF", "references": references}
    number = server.register("t-value", body)
    server.deleted |= {"item", "mid"}
    found = settings(server).connect().by_id(number)
    assert sorted(found.references) == [
        ("a.json", ITEM),
        ("lib/item.proto", ITEM),
        ("mid.proto", mid),
    ]


@pytest.mark.parametrize(
    ("fault", "said", "error"),
    [
        ({"fails": True}, "returned 500", RegistryUnavailable),
        ({"body": b"<html>"}, "failed", RegistryError),
        ({"authorization": "Bearer other"}, "returned 401", RegistryError),
        ({"base": "/wrong"}, "no API of a schema registry", RegistryError),
    ],
)
def test_failing_registry_creates_no_dead_letters(
    server: SchemaRegistryServer, fault: dict[str, Any], said: str, error: type[Exception]
) -> None:
    number = server.register("t-value", {"schema": json.dumps(avro(ONE))})
    given = settings(server, token="a-token")
    server.authorization = "Bearer a-token"
    value_format = with_newest(ValueFormat.registered(given, "t-value"))
    by_id.schemas_of.cache_clear()
    if "base" in fault:
        wrong = RegistrySettings(server.url + fault.pop("base"), token="a-token", retry_ms=0)
        value_format = value_format._replace(registry=wrong)
    for name, value in fault.items():
        setattr(server, name, value)
    decoder = decoder_of(value_format)
    with pytest.raises(error, match=said) as failed:
        decoder.decode(pa.array([frame(number) + b"\2\4"], pa.binary()))
    assert isinstance(failed.value, RegistryUnavailable) is (error is RegistryUnavailable)
    assert "a-token" not in str(failed.value) + repr(value_format)


def test_id_that_was_registered_later_is_requested_again_for_later_records(
    server: SchemaRegistryServer,
) -> None:
    """Otherwise, valid records would become dead letters for 30 s after another process or a
    corrupt record used their id.
    """
    server.register("t-value", {"schema": json.dumps(avro(ONE))})
    value_format = with_newest(ValueFormat.registered(settings(server), "t-value"))
    values = pa.array([frame(2) + b"\2\4"], pa.binary())
    early = decoder_of(value_format)
    assert "404" in early.decode(values).errors[0][1]
    requests = len(server.requests)
    assert early.decode(values).errors
    assert len(server.requests) == requests, "each decoder only requests it once"
    later = {"schema": json.dumps(avro([*reversed(ONE)]))}
    assert server.register("t-value", later) == 2
    found = decoder_of(value_format).decode(values)
    assert (found.errors, pa.table(found.columns).to_pylist()) == ([], [{"price": 2, "qty": 1}])


def test_subjects_of_a_context_need_its_url(server: SchemaRegistryServer) -> None:
    """Ids refer to the default context, unless the URL contains another one."""
    server.register(":.ctx:t-value", {"schema": json.dumps(avro(ONE))})
    value_format = ValueFormat.registered(settings(server), ":.ctx:t-value")
    with pytest.raises(RegistryError, match=rf"{server.url}/contexts/\.ctx .*'t-value'"):
        with_newest(value_format)


def test_export_waits_for_a_registry_outage(server: SchemaRegistryServer) -> None:
    number = server.register("t-value", {"schema": '"string"'})
    pauses: list[float] = []
    now_s = 0.0

    def sleep(pause_s: float) -> None:
        nonlocal now_s
        pauses.append(pause_s)
        now_s += pause_s
        server.fails = len(pauses) < 3

    server.fails = True
    schemas = SchemasById(settings(server).connect(), 5.0, lambda: now_s, sleep)
    assert schemas.find(number).text == '"string"'
    assert len(pauses) == 3
    server.authorization = "Basic other"
    with pytest.raises(RegistryError, match="refuses the credentials"):
        schemas.find(2)
    assert len(pauses) == 3, "a refusal is final"
    server.authorization = None
    with pytest.raises(NotRegistered):
        schemas.find(2)
    requests = len(server.requests)
    with pytest.raises(NotRegistered):
        schemas.find(2)
    assert len(server.requests) == requests
    now_s += by_id.UNKNOWN_S
    assert server.register("t-value", {"schema": '"int"'}) == 2
    assert schemas.find(2).text == '"int"'


def test_schema_cache_is_bounded(
    server: SchemaRegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ['"string"', '"int"', '"long"']
    numbers = [server.register("t-value", {"schema": text}) for text in texts]
    for name, most in (("CACHED_COUNT_MAX", 2), ("CACHED_CHARS_MAX", 12)):
        schemas = SchemasById(settings(server).connect(), 0)
        monkeypatch.setattr(by_id, name, most)
        for number in (*numbers, numbers[2]):
            schemas.find(number)
        requests = len(server.requests)
        schemas.find(numbers[0])
        assert len(server.requests) == requests + 1


def test_client_certificates_and_private_certificate_authorities_are_supported(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path / "ours")
    files, own = authority.make("registry"), authority.make("reader")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.ca)
    context.verify_mode = ssl.CERT_REQUIRED
    config = tmp_path / "registry.properties"
    with serving(SchemaRegistryServer(), context) as server:
        server.register("t-value", {"schema": '"string"'})
        lines = [
            f"schema.registry.url={server.url}",
            f"schema.registry.ssl.truststore.location={files.ca}",
            f"ssl.certificate.location={own.certificate}",
            f"ssl.key.location={own.key}",
            "retry.ms=0",
        ]
        config.write_text("\n".join(["# a comment", *lines]))
        found = settings_of_environment({"PENSTOCK_SCHEMA_REGISTRY_CONFIG": str(config)})
        assert found is not None
        assert found.connect().by_id(1).text == '"string"'
        without = RegistrySettings(server.url, ca=str(files.ca), retry_ms=0)
        with pytest.raises(RegistryError):
            without.connect().by_id(1)
        with pytest.raises(RegistryError, match="no trusted CA") as refused:
            RegistrySettings(server.url).connect().by_id(1)
        assert not isinstance(refused.value, RegistryUnavailable)


OAUTH = {
    "url": "http://h",
    "bearer.auth.issuer.endpoint.url": "http://i/token",
    "bearer.auth.client.id": "client",
    "bearer.auth.client.secret": "hunter2",
}


def with_oauth(server: SchemaRegistryServer, **given: str) -> dict[str, str]:
    named = {f"bearer.auth.{name.replace('_', '.')}": value for name, value in given.items()}
    own = {"url": server.url, "bearer.auth.issuer.endpoint.url": f"{server.url}/token"}
    return OAUTH | own | {"bearer.auth.credentials.source": "OAUTHBEARER"} | named


def connected(given: dict[str, str]) -> SchemaRegistry:
    settings = registry_settings(given)
    assert settings is not None
    assert "hunter" not in f"{settings!r} {settings}"
    return settings.connect()


def test_token_is_requested_once_and_again_when_it_expires(
    server: SchemaRegistryServer,
) -> None:
    server.register("t-value", {"schema": '"string"'})
    given = {"scope": "read schemas", "logical_cluster": "lsrc-1", "identity_pool_id": "pool-1"}
    registry = connected(with_oauth(server, **given))
    for _ in range(3):
        assert registry.by_id(1).text == '"string"'
    assert server.tokens == ["grant_type=client_credentials&scope=read+schemas"]
    assert server.headers["target-sr-cluster"] == "lsrc-1"
    assert server.headers["confluent-identity-pool-id"] == "pool-1"
    server.token_life_s = 0
    server.authorization = "Bearer revoked"
    for _ in range(3):
        assert registry.by_id(1).text == '"string"'
    assert len(server.tokens) == 4


@pytest.mark.parametrize(
    ("status", "secret", "kind", "reason"),
    [
        (503, "hunter2", RegistryUnavailable, "/token returned 503"),
        (429, "hunter2", RegistryUnavailable, "/token returned 429"),
        (400, "hunter2", RegistryError, "400: it refuses the client id"),
        (200, "hunter3", RegistryError, "401: it refuses the client id"),
        (302, "hunter2", RegistryError, "/token returned 302"),
    ],
)
def test_token_endpoint_errors_are_reported_without_the_secret(
    server: SchemaRegistryServer, status: int, secret: str, kind: type[Exception], reason: str
) -> None:
    server.token_status = status
    registry = connected(with_oauth(server, client_secret=secret))
    with pytest.raises(kind, match=reason) as refused:
        registry.by_id(1)
    assert type(refused.value) is kind
    assert "hunter" not in str(refused.value)
    assert server.requests == ["POST /token"], "the registry must not get a request"


def test_registry_that_rejects_new_tokens_is_asked_twice(server: SchemaRegistryServer) -> None:
    registry = connected(with_oauth(server))
    server.accepts_tokens = False
    with pytest.raises(RegistryError, match="returned 401") as refused:
        registry.by_id(1)
    assert "token-" not in str(refused.value)
    assert len(server.tokens) == 2


@pytest.mark.parametrize(
    "response", [b"", b"{}", b"[]", b'{"access_token": ""}', b'{"access_token": "a\\nb"}']
)
def test_invalid_token_responses_are_errors(server: SchemaRegistryServer, response: bytes) -> None:
    server.token_body = response
    with pytest.raises(RegistryError, match="token") as refused:
        connected(with_oauth(server)).by_id(1)
    assert not isinstance(refused.value, RegistryUnavailable)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"url": "ftp://h"}, "http://HOST:PORT"),
        ({"url": "http://h:99999"}, "http://HOST:PORT"),
        ({"url": "http://u:hunter2@h\n"}, "http://HOST:PORT"),
        ({"url": "http://h", "bearer.auth.token": "hunter2\n"}, "characters that HTTP forbids"),
        (
            {"url": "http://h", "bearer.auth.token": "hunter2", "basic.auth.user.info": "hunter2"},
            "a bearer token, a token endpoint, or a user",
        ),
        ({"url": "http://h", "basic.auth.user": "hunter2"}, "'basic.auth.user' is unknown"),
        ({"url": "http://h", "ssl.truststore.type": "JKS"}, "'JKS' is not supported: PEM"),
        ({"url": "http://h", "bearer.auth.credentials.source": "X"}, "STATIC_TOKEN or OAUTHBEARER"),
        ({"url": "http://h", "bearer.auth.credentials.source": "OAUTHBEARER"}, "OAUTHBEARER needs"),
        ({"url": "http://h", "bearer.auth.client.secret": "hunter2"}, "OAUTHBEARER needs"),
        ({"url": "http://h", "bearer.auth.issuer.endpoint.url": "http://i"}, "OAUTHBEARER needs"),
        (OAUTH | {"bearer.auth.issuer.endpoint.url": "file:/i"}, r"endpoint\.url: http://HOST"),
        (OAUTH | {"bearer.auth.token": "hunter2"}, "a bearer token, a token endpoint, or a user"),
        (OAUTH | {"basic.auth.user.info": "u:hunter2"}, "a token endpoint, or a user"),
        (OAUTH | {"bearer.auth.logical.cluster": "a\nb"}, "header target-sr-cluster"),
        ({"url": "http://h", "ssl.ca.location": "/no/such.pem"}, r"PEM files /no/such\.pem"),
        ({"url": "http://h", "retry.ms": "x"}, "milliseconds"),
        ({"basic.auth.user.info": "u:hunter2"}, r"need schema\.registry\.url"),
    ],
)
def test_invalid_registry_settings_are_refused(given: dict[str, str], said: str) -> None:
    with pytest.raises(RegistrySettingInvalid, match=said) as refused:
        registry_settings(given)
    assert "hunter" not in str(refused.value)


def test_registry_settings_are_parsed_without_showing_secrets(tmp_path: Path) -> None:
    assert registry_settings({}) is None
    assert read_settings(None) is None
    found = registry_settings(
        {
            "schema.registry.url": "http://a",
            "schema.registry.basic.auth.user.info": "u:secret",
            "basic.auth.credentials.source": "USER_INFO",
        },
        "http://u:secret@b",
    )
    assert found is not None
    assert (found.url, found.user_info) == ("http://u:secret@b", "u:secret")
    assert "secret" not in f"{found!r} {found}"
    shared = tmp_path / "client.properties"
    lines = [
        "bootstrap.servers=a:9092",
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\",
        '  username="u" password="secret";',
        "key.serializer=io.confluent.kafka.serializers.KafkaAvroSerializer",
        "ssl.truststore.location=/kafka.jks",
        "ssl.truststore.type=JKS",
        "request.timeout.ms=-1",
        "schema.registry.url=http://a",
        "basic.auth.credentials.source=USER_INFO",
        "basic.auth.user.info=u:secret",
    ]
    shared.write_text("\n".join(lines))
    assert read_settings(shared) == RegistrySettings("http://a", "u:secret")
    shared.write_text("bearer.auth.token secret")
    with pytest.raises(RegistrySettingInvalid, match="line 1 is not name=value") as refused:
        read_settings(shared)
    assert "secret" not in str(refused.value)
    with pytest.raises(RegistrySettingInvalid, match="No such file"):
        read_settings(tmp_path / "none")
