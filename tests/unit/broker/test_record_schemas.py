"""Validation of batches against schemas, without a broker: languages, registered
schemas, limits.
"""

import base64
import json
from io import BytesIO

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from penstock.broker.partition.record_check import RecordCheck as BatchCheck
from penstock.broker.partition.refusal import Refusal
from penstock.broker.partition.validation import TopicRules, validate_batch
from penstock.broker.schemas import messages
from penstock.broker.schemas.language import ReferencedSchema, Validator, compile_schema
from penstock.broker.schemas.messages import CheckBatch, CheckSchema, RegisteredSchema, Verdict
from penstock.broker.schemas.records import IDS_MAX, RecordCheck
from penstock.broker.schemas.rules import FieldRule, SchemaRules, schema_rules, subject_of
from penstock.controller.metadata import topic_configs
from penstock.protocol.batch.compression import Compression
from penstock.protocol.batch.records import RECORDS_SEARCHED_MAX, Record, encode_batch
from penstock.protocol.registry.model import CannotCheck, SchemaInvalid
from tests.support.record_cases import CASES

LIMIT_BYTES = 1 << 20
NOW_MS = 1_700_000_000_000
INTEGER = FieldRule("json", '{"type": "integer"}')
REGISTERED = FieldRule(strategy="TopicNameStrategy")


def check(
    rules: SchemaRules,
    *records: tuple[bytes | None, bytes | None],
    checker: RecordCheck | None = None,
    schemas: dict[int, RegisteredSchema] | None = None,
) -> Verdict:
    """Return the verdict on a batch of keys and values."""
    batch = encode_batch([Record(at, 0, *record) for at, record in enumerate(records)])
    request = CheckBatch("t", rules, memoryview(batch), LIMIT_BYTES, schemas or {})
    requested = messages.decode_request(messages.encode(request))
    response = (checker or RecordCheck()).check(requested)
    return messages.decode_verdict(messages.encode(response))


def validator(kind: str, schema: str, message: str = "") -> Validator:
    return compile_schema(kind, schema, ()).validator(message)


# --- batches --------------------------------------------------------------------------------------


def test_nulls_match_and_each_failing_field_has_its_index() -> None:
    rules = SchemaRules(INTEGER, FieldRule("json", '{"type": "string"}'))
    assert check(rules, (b"1", b'"x"'), (None, None)).kind == messages.VALID
    found = check(rules, (b"1", None), (b"x", None), (None, b"1"), (b"true", b"1"))
    assert found.kind == messages.MISMATCH
    assert [at for at, _ in found.failures] == [1, 2, 3, 3]
    assert found.message == found.failures[0][1]
    assert found.message.startswith("key: it is not JSON: ")
    assert found.failures[1] == (2, 'value: 1 is not of type "string" (record 2)')


def test_a_verdict_lists_a_limited_number_of_records() -> None:
    found = check(SchemaRules(None, INTEGER), *[(None, b"x")] * 100)
    assert [at for at, _ in found.failures] == list(range(messages.FAILURES_MAX))


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.ZSTD])
def test_unusual_records_that_kafka_accepts_can_be_checked(codec: Compression) -> None:
    """They include header keys that are not UTF-8, and nulls encoded as length -2."""
    rules = SchemaRules(FieldRule("json", '{"type": "array"}'))
    refused = {}
    for case in CASES:
        batch = memoryview(bytearray(case.batch(codec, NOW_MS)))
        topic = TopicRules.from_configs(case.configs)
        if isinstance(validate_batch(batch, topic, NOW_MS, check=BatchCheck()), Refusal):
            continue
        verdict = RecordCheck().check(CheckBatch("t", SchemaRules(), batch, LIMIT_BYTES))
        if verdict.kind != messages.VALID:
            refused[case.name] = verdict.message
        verdict = RecordCheck().check(CheckBatch("t", rules, batch, LIMIT_BYTES))
        assert verdict.kind in {messages.VALID, messages.MISMATCH}, (case.name, verdict)
    assert not refused


def test_too_many_records_are_not_decoded() -> None:
    batch = encode_batch([Record(at, 0, None, b"1") for at in range(RECORDS_SEARCHED_MAX + 1)])
    request = CheckBatch("t", SchemaRules(None, INTEGER), memoryview(batch), LIMIT_BYTES)
    assert RecordCheck().check(request).kind == messages.TOO_LARGE


def test_an_unusable_schema_rejects_all_records() -> None:
    for rule in (FieldRule("json", "{"), FieldRule("xml", "<a/>")):
        found = check(SchemaRules(None, rule), (None, None))
        assert found.kind == messages.UNAVAILABLE, rule
    found = RecordCheck().check(CheckSchema(FieldRule("json", "{")))
    assert (found.kind, found.message) == (
        messages.MISMATCH,
        "it is not JSON: Expecting property name enclosed in double quotes at line 1 column 2",
    )


def test_the_error_contains_the_missing_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jsonschema_rs", None)
    monkeypatch.delitem(
        __import__("sys").modules, "penstock.broker.schemas.json_schema", raising=False
    )
    with pytest.raises(
        CannotCheck, match=r'jsonschema_rs is missing: pip install "penstock-streams\[schemas\]"'
    ):
        compile_schema("json", "{}", ())


# --- registered schemas ---------------------------------------------------------------------------


def framed(number: int, payload: bytes = b"1") -> bytes:
    return b"\0" + number.to_bytes(4, "big") + payload


def test_unknown_ids_are_requested_once() -> None:
    rules = SchemaRules(None, REGISTERED)
    checker = RecordCheck()
    batch = [(None, framed(7)), (None, framed(9)), (None, framed(7)), (None, framed(8))]
    requested = check(rules, *batch, checker=checker)
    assert (requested.kind, requested.ids) == (messages.UNKNOWN, (7, 8, 9))
    known = RegisteredSchema("json", INTEGER.schema, (), ("t-value",))
    schemas = {7: known, 8: RegisteredSchema("json", INTEGER.schema, (), ("t-key",))}
    schemas |= {9: RegisteredSchema("")}
    found = check(rules, *batch, checker=checker, schemas=schemas)
    assert [(at, text.partition(" (")[0]) for at, text in found.failures] == [
        (1, "value: the schema registry has no schema 9"),
        (3, "value: schema 8 is not registered under the subject t-value"),
    ]
    assert check(rules, (None, framed(7)), checker=checker).kind == messages.VALID
    found = check(rules, (None, framed(7, b'"x"')), checker=checker)
    assert found.message == 'value: "x" is not of type "integer" (record 0)'
    # The registry may have received them since.
    requested = check(rules, (None, framed(8)), (None, framed(9)), checker=checker)
    assert (requested.kind, requested.ids) == (messages.UNKNOWN, (8, 9))


def test_a_batch_uses_a_limited_number_of_schemas() -> None:
    batch = [(None, framed(number)) for number in range(IDS_MAX + 1)]
    schema = RegisteredSchema("json", "true", (), ("t-value",))
    schemas = dict.fromkeys(range(IDS_MAX), schema)
    found = check(SchemaRules(None, REGISTERED), *batch, schemas=schemas)
    assert found.failures == (
        (IDS_MAX, f"value: a batch may use at most {IDS_MAX} registered schemas (record 50)"),
    )


def test_an_invalid_registered_schema_makes_the_record_invalid() -> None:
    schemas = {1: RegisteredSchema("avro", "{", (), ("t-value",))}
    found = check(SchemaRules(None, REGISTERED), (None, framed(1)), schemas=schemas)
    assert found.kind == messages.MISMATCH
    assert "schema 1: its schema cannot be read: it is not JSON" in found.message


def test_subjects_follow_the_naming_strategy() -> None:
    for strategy, subject in (
        ("TopicNameStrategy", "t-key"),
        ("RecordNameStrategy", "shop.Order"),
        ("TopicRecordNameStrategy", "t-shop.Order"),
    ):
        assert subject_of("t", "key", strategy, "shop.Order") == subject


# --- languages ------------------------------------------------------------------------------------


AVRO = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 4}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "prices", "type": {"type": "map", "values": "double"}},
        {"name": "again", "type": ["null", "Order"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "ok", "type": "boolean"},
        {"name": "blob", "type": "bytes"},
        {"name": "share", "type": "float"},
    ],
}


def order(again: object = None) -> dict[str, object]:
    return {
        "id": -3,
        "kind": "B",
        "hash": b"abcd",
        "tags": [None, "x"],
        "prices": {"p": 1.5},
        "again": again,
        "at": 5,
        "ok": True,
        "blob": b"\0\1",
        "share": 0.5,
    }


def test_avro_errors_contain_the_field_at_which_the_data_ends() -> None:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), order(order()))
    whole = stream.getvalue()
    found = validator("avro", json.dumps(AVRO))
    assert found.record_name == "shop.Order"
    assert found.problem(whole) == ""
    assert found.problem(whole + b"x") == ": 1 bytes are left over"
    paths = []
    for end in range(len(whole)):
        problem = found.problem(whole[:end])
        assert problem, end
        paths.append(problem.partition(":")[0])
    once = [".id", ".kind", ".hash", ".tags", ".tags[0]", ".tags[1]", ".prices", ".prices.p"]
    assert list(dict.fromkeys(paths))[: len(once)] == once
    assert paths[-1] == ".share"
    assert ".again.blob" in paths


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x02\x04abcd", ".kind: symbol 2 does not exist, only 0 to 1"),
        (b"\x02\x00abcd\x02\x08", ".tags[0]: branch 4 does not exist, only 0 to 1"),
        (b"\x02\x00abcd\x02\x02\x02\xff\x00", ".tags[0]: it is not UTF-8"),
        (b"\xff" * 11, ".id: it is not a number of type long"),
        (b"\x02\x00abcd\x00\x00\x00\x0a\x02", ".ok: it is not a boolean"),
    ],
)
def test_avro_errors_describe_the_problem(data: bytes, said: str) -> None:
    problem = validator("avro", json.dumps(AVRO)).problem(data)
    assert problem == said


PROTO = """
syntax = "proto2";
package shop;
message Order {
  required int64 id = 1;
  message Line { optional string text = 1; }
  repeated Line lines = 2;
  map<string, Line> by_name = 3;
  enum Kind { A = 0; }
  optional Kind kind = 4;
}
message Other { optional int32 a = 1; }
"""


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x08\x01\x12\x03\x0a\x01x", ""),
        (b"", ".id: the required field is missing"),
        (b"\x0a\x01x", ".id: the required field is missing"),
        (b"\x08\x01\x28\x01", ": the schema has no field 5"),
        (b"\x08\x01\x12\x00\x12\x02\x10\x01", ".lines[1]: the schema has no field 2"),
        (
            b"\x08\x01\x1a\x07\x0a\x01k\x12\x02\x08\x01",
            ".by_name.k.text: wire type 0 is not one of",
        ),
        (b"\x08\x01\x12\x05\x0a\x01x", ".lines: it is not Protobuf of shop.Order"),
        (b"\x08", ".id: it is not Protobuf of shop.Order"),
        (b"\xff\xff", ": it is not Protobuf of shop.Order"),
    ],
)
def test_protobuf_errors_describe_the_problem(data: bytes, said: str) -> None:
    problem = validator("protobuf", PROTO).problem(data)
    assert problem.startswith(said)
    assert bool(problem) is bool(said)


def test_protobuf_schemas_are_text_or_base64_descriptors() -> None:
    file = FileDescriptorProto(name="a.proto", package="shop", syntax="proto3")
    file.message_type.add(name="A").field.add(name="a", number=1, type=3, label=1)
    main = FileDescriptorProto(name="b.proto", syntax="proto3", dependency=["a.proto"])
    main.message_type.add(name="B").field.add(
        name="b", number=1, type=11, label=1, type_name=".shop.A"
    )
    whole = base64.b64encode(FileDescriptorSet(file=[main, file]).SerializeToString()).decode()
    assert validator("protobuf", whole, "B").problem(b"\x0a\x02\x08\x01") == ""
    assert validator("protobuf", whole, "shop.A").record_name == "shop.A"
    alone = base64.b64encode(main.SerializeToString()).decode()
    with pytest.raises(SchemaInvalid, match=r"imports a\.proto, which is missing"):
        validator("protobuf", alone)
    reference = ReferencedSchema("a.proto", base64.b64encode(file.SerializeToString()).decode())
    found = compile_schema("protobuf", alone, (reference,)).validator("")
    assert found.problem(b"\x0a\x02\x10\x01") == ".b: the schema has no field 2"
    file.dependency.append("b.proto")
    cycle = FileDescriptorSet(file=[file, main]).SerializeToString()
    with pytest.raises(SchemaInvalid, match="cycle"):
        validator("protobuf", base64.b64encode(cycle).decode())


@pytest.mark.parametrize(
    ("indexes", "name"),
    [
        (b"\0", "shop.Order"),
        (b"\x02\x02", "shop.Other"),
        (b"\x04\x00\x00", "shop.Order.Line"),
        (b"\x02\x0a", None),
        (b"\x04\x02\x00", None),
        (b"\x01", None),
        (b"\xff\xff\x03", None),
        (b"", None),
    ],
)
def test_protobuf_message_indexes_are_validated(indexes: bytes, name: str | None) -> None:
    compiled = compile_schema("protobuf", PROTO, ())
    if name is None:
        with pytest.raises(SchemaInvalid):
            compiled.framed(indexes)
    else:
        found, payload = compiled.framed(indexes + b"rest")
        assert (found.record_name, payload) == (name, b"rest")


@pytest.mark.parametrize("name", ["../x.proto", "/tmp/x.proto", "schema.proto", "a\0b", ""])
def test_schema_references_cannot_leave_their_directory(name: str) -> None:
    with pytest.raises(SchemaInvalid):
        compile_schema("protobuf", PROTO, (ReferencedSchema(name, PROTO),))


# --- configs --------------------------------------------------------------------------------------


def test_schema_rules_come_from_topic_configs() -> None:
    assert schema_rules({"retention.ms": "1"}) is None
    assert schema_rules({"penstock.key.schema": "{}"}) == SchemaRules(FieldRule("json", "{}"), None)
    registered = {"penstock.value.schema.validation": "true"}
    assert schema_rules(registered) == SchemaRules(None, REGISTERED)
    assert schema_rules({"penstock.value.schema.validation": "false"}) is None


def test_the_schema_length_is_limited_to_that_of_a_kafka_string() -> None:
    name = "penstock.value.schema"
    assert topic_configs.problem(name, "x" * 32_767) == ""
    assert "32767 characters" in topic_configs.problem(name, "x" * 32_768)
