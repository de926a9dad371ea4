"""Schema validation returns a verdict for arbitrary bytes, and accepts what the schema libraries
write.
"""

import json
from io import BytesIO
from typing import Any

import fastavro
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.schemas.language import compile_schema
from penstock.broker.schemas.messages import MISMATCH, VALID, CheckBatch
from penstock.broker.schemas.records import RecordCheck
from penstock.broker.schemas.rules import FieldRule, SchemaRules
from penstock.protocol.batch.records import Record, encode_batch

AVRO: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "a", "type": {"type": "array", "items": ["null", "string"]}},
        {"name": "m", "type": {"type": "map", "values": "double"}},
        {"name": "n", "type": "int"},
    ],
}
PROTO = """syntax = "proto3";
message R { repeated R r = 1; string s = 2; map<int32, R> m = 3; double d = 4; bytes b = 5; }
"""
RULES = {
    "avro": FieldRule("avro", json.dumps(AVRO)),
    "json": FieldRule("json", '{"items": {"$ref": "#"}, "maxItems": 2}'),
    "protobuf": FieldRule("protobuf", PROTO),
}
CHECK = RecordCheck()
PARSED = fastavro.parse_schema(AVRO)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(kind=st.sampled_from(sorted(RULES)), values=st.lists(st.none() | st.binary(), min_size=1))
def test_arbitrary_bytes_are_accepted_or_rejected(kind: str, values: list[bytes | None]) -> None:
    batch = encode_batch([Record(at, 0, None, value) for at, value in enumerate(values)])
    rules = SchemaRules(None, RULES[kind])
    found = CHECK.check(CheckBatch("t", rules, memoryview(batch), 1 << 20))
    assert found.kind in {VALID, MISMATCH}
    assert all(values[at] is not None for at, _ in found.failures)


@given(
    tags=st.lists(st.none() | st.text()),
    prices=st.dictionaries(st.text(), st.floats()),
    number=st.integers(-(1 << 31), (1 << 31) - 1),
    cut=st.integers(1, 10),
)
def test_avro_values_match_and_their_prefixes_do_not(
    tags: list[str | None], prices: dict[str, float], number: int, cut: int
) -> None:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, PARSED, {"a": tags, "m": prices, "n": number})
    validator = compile_schema("avro", RULES["avro"].schema, ()).validator("")
    assert validator.problem(stream.getvalue()) == ""
    assert validator.problem(stream.getvalue()[:-cut]) != ""


@given(value=JSON)
def test_json_values_match_as_their_schema_requires(value: Any) -> None:
    def is_small(item: Any) -> bool:
        return not isinstance(item, list) or (len(item) <= 2 and all(map(is_small, item)))

    validator = compile_schema("json", RULES["json"].schema, ()).validator("")
    assert (validator.problem(json.dumps(value).encode()) == "") is is_small(value)
