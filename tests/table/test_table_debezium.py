"""Unwrap Debezium change events: JSON with and without the envelope schema, Avro and JSON Schema
from a registry, deletes, tombstones, and invalid events.
"""

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import fastavro
import pytest

from penstock.lake.arrow.pyarrow_untyped import pa
from penstock.lake.table.errors import InvalidSchema, InvalidTable
from penstock.lake.table.job import SyncOptions
from penstock.lake.table.registry import decoder_of, with_newest
from penstock.lake.table.values import ValueFormat
from penstock.protocol.registry.settings import RegistrySettings
from penstock.protocol.registry.wire_format import frame
from tests.support.schema_registry import SchemaRegistryServer, serving
from tests.support.table_log import Log, write_messages
from tests.support.table_runs import Run

ROW: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {"id": {"type": "integer"}, "email": {"type": "string"}},
}
ENVELOPE: dict[str, Any] = {
    "type": "object",
    "title": "Envelope",
    "definitions": {"Value": ROW},
    "properties": {
        "before": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/Value"}]},
        "after": {"oneOf": [{"type": "null"}, {"$ref": "#/definitions/Value"}]},
        "source": {"type": "object", "properties": {"db": {"type": "string"}}},
        "op": {"type": "string"},
        "ts_ms": {"oneOf": [{"type": "null"}, {"type": "integer"}]},
    },
}
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Envelope",
    "namespace": "db.users",
    "fields": [
        {
            "name": "before",
            "default": None,
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Value",
                    "fields": [
                        {"name": "id", "type": "long"},
                        {"name": "email", "type": ["null", "string"], "default": None},
                    ],
                },
            ],
        },
        {"name": "after", "type": ["null", "Value"], "default": None},
        {"name": "source", "type": {"type": "record", "name": "Source", "fields": []}},
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with serving(SchemaRegistryServer()) as server:
        yield server


def event(op: str, number: int, email: str | None = "a@b") -> dict[str, Any]:
    row = {"id": number} | ({"email": email} if email else {})
    return {
        "before": row if op in "ud" else None,
        "after": None if op in "dt" else row,
        "source": {"db": "shop"},
        "op": op,
        "ts_ms": 1,
    }


def decode(
    value_format: ValueFormat, values: list[bytes | None]
) -> tuple[list[int | None], list[int], dict[int, str]]:
    """Return the ids of rows, the indexes of deletes, and the reasons of dead letters."""
    decoder = decoder_of(with_newest(value_format._replace(unwrap="debezium")))
    assert decoder.schema.names == ["id", "email"]
    decoded = decoder.decode(pa.array(values, pa.binary()))
    ids = pa.table(decoded.columns).column("id").to_pylist()
    return ids, list(decoded.removed), dict(decoded.errors)


VALUES = [event("r", 1), event("c", 2), event("u", 2, None), event("d", 1)]
NO_ROWS: list[tuple[Any, str]] = [
    (event("t", 0), "truncated the source table"),
    ({"op": "m", "message": {"prefix": "p"}}, "op 'm' has no row"),
    ({"ddl": "CREATE TABLE x", "databaseName": "shop"}, "not a Debezium change event"),
    ({"status": "BEGIN", "id": "1", "event_count": 1}, "not a Debezium change event"),
    (event("c", 1) | {"after": None}, "has no after"),
    (event("c", 1) | {"after": {"id": "x"}}, "ValidationError"),
    ({"op": 1}, "ValidationError"),
    ([], "ValidationError"),
]


@pytest.mark.parametrize("schema", [ROW, ENVELOPE], ids=["row", "envelope"])
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_json_events_are_unwrapped(schema: dict[str, Any], is_wrapped: bool) -> None:
    def written(value: Any) -> bytes:
        wrapper: Any = {"schema": {"type": "struct", "fields": [], "op": "c"}, "payload": value}
        return json.dumps(wrapper if is_wrapped else value).encode()

    values: list[bytes | None] = [written(value) for value in VALUES]
    values += [None, written(None), *(written(value) for value, _ in NO_ROWS), b"{broken"]
    ids, removed, errors = decode(ValueFormat("json", json.dumps(schema).encode()), values)
    if is_wrapped:
        assert (ids, removed) == ([1, 2, 2, None, None, None], [3, 5])
    else:
        assert (ids, removed) == ([1, 2, 2, None, None], [3])
        assert "ValidationError" in errors.pop(5)
    assert set(errors) == set(range(6, len(values)))
    for index, (_, reason) in enumerate(NO_ROWS):
        assert reason in errors[6 + index]


@pytest.mark.parametrize("kind", ["AVRO", "JSON"])
def test_events_with_registry_schemas_are_unwrapped(
    server: SchemaRegistryServer, kind: str
) -> None:
    schema = AVRO if kind == "AVRO" else ENVELOPE
    number = server.register("t-value", {"schema": json.dumps(schema), "schemaType": kind})

    def written(value: dict[str, Any]) -> bytes:
        if kind == "JSON":
            return frame(number) + json.dumps(value).encode()
        out = io.BytesIO()
        cast("Any", fastavro).schemaless_writer(out, fastavro.parse_schema(schema), value)
        return frame(number) + out.getvalue()

    value_format = ValueFormat.registered(RegistrySettings(server.url, retry_ms=0), "t-value")
    values: list[bytes | None] = [written(value) for value in [*VALUES, event("t", 0)]]
    ids, removed, errors = decode(value_format, values)
    assert (ids, removed, list(errors)) == ([1, 2, 2, None], [3], [4])
    assert "truncated" in errors[4]


def test_null_instead_of_an_event_is_a_dead_letter(server: SchemaRegistryServer) -> None:
    server.register("t-value", {"schema": json.dumps(AVRO)})
    number = server.register("u-value", {"schema": json.dumps(["null", AVRO])})
    value_format = ValueFormat.registered(RegistrySettings(server.url, retry_ms=0), "t-value")
    ids, removed, errors = decode(value_format, [frame(number) + b"\x00"])
    assert (ids, removed) == ([], [])
    assert errors[0]


AFTER: list[Any] = [
    True,
    [],
    None,
    "row",
    {"oneOf": {"type": "null"}},
    {"anyOf": [{"type": "null"}, True]},
    {"oneOf": ["null", "row"]},
    {"oneOf": 1},
]


@pytest.mark.parametrize("after", AFTER, ids=str)
def test_envelope_without_a_row_schema_is_refused(after: Any) -> None:
    envelope = {"type": "object", "properties": {"op": {"type": "string"}, "after": after}}
    with pytest.raises(InvalidSchema, match="schema of after in Debezium's envelope"):
        decoder_of(ValueFormat("json", json.dumps(envelope).encode(), unwrap="debezium"))


def test_unsupported_schemas_and_modes_are_refused() -> None:
    plain = {"type": "record", "name": "x", "fields": [{"name": "id", "type": "long"}]}
    given = ValueFormat("avro", json.dumps(plain).encode(), unwrap="debezium")
    with pytest.raises(InvalidSchema, match="not that of Debezium's envelope"):
        decoder_of(given)
    with pytest.raises(InvalidSchema, match="values need a schema: --format"):
        decoder_of(ValueFormat(unwrap="debezium"))
    with pytest.raises(InvalidTable, match="use --mode upsert"):
        SyncOptions(value_format=given)


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> Log:
    def message(op: str, number: int, email: str) -> tuple[bytes, bytes]:
        return f'{{"id":{number}}}'.encode(), json.dumps(event(op, number, email)).encode()

    messages: list[tuple[bytes | None, bytes | None]] = [
        *(message("r", number, "first") for number in range(20)),
        *(message("u", number, "second") for number in range(10)),
        *(message("d", number, "second") for number in range(5)),
        *((f'{{"id":{number}}}'.encode(), None) for number in range(5)),
        message("c", 3, "again"),
        (None, json.dumps(event("t", 0)).encode()),
    ]
    return asyncio.run(write_messages(tmp_path_factory.mktemp("changes"), messages))


@pytest.mark.parametrize("kind", ["iceberg", "parquet"])
def test_table_contains_the_rows_of_the_source(changes: Log, tmp_path: Path, kind: str) -> None:
    run = Run(changes, tmp_path, kind)
    given = ValueFormat("json", json.dumps(ROW).encode(), unwrap="debezium")
    assert len(run.all(value_format=given, upsert=True, batch_bytes=2_000)) > 1
    rows = {row["id"]: (row["_key"], row["email"]) for row in run.rows()}
    expected = {3: "again"} | dict.fromkeys(range(5, 10), "second")
    expected |= dict.fromkeys(range(10, 20), "first")
    assert rows == {
        number: (f'{{"id":{number}}}'.encode(), email) for number, email in expected.items()
    }
    assert len(run.rows()) == len(rows)
    (letter,) = run.rows("t__dlq")
    assert "truncated" in letter["error"]
