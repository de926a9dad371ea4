"""Values with a schema GUID in a record header, as Confluent's newer serializers write them."""

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import fastavro
import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient, header_schema_id_serializer
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from penstock.lake.arrow.columns import HEADER
from penstock.lake.table.registry import decoder_of, with_newest
from penstock.lake.table.values import ValueDecoder, ValueFormat
from penstock.protocol.registry.model import RegistryError
from penstock.protocol.registry.settings import RegistrySettings
from penstock.protocol.registry.wire_format import VALUE_HEADER, frame, indexes
from tests.support.schema_registry import SchemaRegistryServer, guid_of, serving
from tests.support.table_log import write_messages
from tests.support.table_runs import Run

ONE = [{"name": "price", "type": "long"}, {"name": "qty", "type": "long"}]
TWO = list(reversed(ONE))
ORDER = """syntax = "proto3"; package shop;
message Other { int64 a = 1; } message Order { int64 price = 1; int64 qty = 2; }"""
Header = tuple[str, bytes | None]


def avro(fields: list[dict[str, str]]) -> str:
    return json.dumps({"type": "record", "name": "Sale", "fields": fields})


def written(fields: list[dict[str, str]], **row: int) -> bytes:
    out = io.BytesIO()
    cast("Any", fastavro).schemaless_writer(out, json.loads(avro(fields)), row)
    return out.getvalue()


def guid(number: int) -> bytes:
    return b"\x01" + UUID(guid_of(number)).bytes


@pytest.fixture
def server() -> Iterator[SchemaRegistryServer]:
    with serving(SchemaRegistryServer()) as server:
        server.register("t-value", {"schema": avro(ONE)})
        server.register("t-value", {"schema": avro(TWO)})
        yield server


def format_of(server: SchemaRegistryServer, subject: str = "t-value", **given: Any) -> ValueFormat:
    return ValueFormat.registered(RegistrySettings(server.url, retry_ms=0), subject, **given)


def decode(
    decoder: ValueDecoder, *records: tuple[bytes | None, list[Header]]
) -> tuple[list[Any], dict[int, str]]:
    """Return (price, qty) of each row, and the errors."""
    values = pa.array([b"not in the slice", *(value for value, _ in records)], pa.binary())
    headers = pa.array(
        [
            [{"key": "x", "value": b"x"}],
            *([{"key": k, "value": v} for k, v in h] for _, h in records),
        ],
        pa.list_(pa.field("element", HEADER)),
    )
    found = decoder.decode(values.slice(1), headers.slice(1))
    columns = (found.columns[name].to_pylist() for name in ("price", "qty"))
    return list(zip(*columns, strict=True)), dict(found.errors)


def test_values_of_confluent_serializers_are_decoded(server: SchemaRegistryServer) -> None:
    """The values have the schema GUID in a header, and no wire format prefix."""
    records: list[tuple[bytes | None, list[Header]]] = []
    with SchemaRegistryClient({"url": server.url}) as client:
        for fields in (ONE, TWO):
            serializer = cast("Any", AvroSerializer)(
                client, avro(fields), conf={"schema.id.serializer": header_schema_id_serializer}
            )
            headers: list[Header] = [("trace", b"1")]
            context = cast("Any", SerializationContext)("t", MessageField.VALUE, headers)
            records.append((serializer({"price": 1, "qty": 2}, context), headers))
    assert [headers[1] for _, headers in records] == [
        (VALUE_HEADER, guid(number)) for number in (1, 2)
    ]
    assert decode(decoder_of(with_newest(format_of(server))), *records) == ([(1, 2)] * 2, {})


def test_header_takes_precedence_and_may_be_invalid(server: SchemaRegistryServer) -> None:
    one, two = written(ONE, price=1, qty=2), written(TWO, price=1, qty=2)
    rows, errors = decode(
        decoder_of(with_newest(format_of(server))),
        (frame(1) + one, []),
        (frame(2) + two, [("__key_schema_id", guid(1))]),
        (two, [(VALUE_HEADER, guid(2))]),
        (two, [(VALUE_HEADER, frame(2))]),
        (two, [(VALUE_HEADER, guid(1)), ("other", b""), (VALUE_HEADER, guid(2))]),
        (None, [(VALUE_HEADER, b"")]),
        (frame(2) + two, [(VALUE_HEADER, guid(2))]),
        (two, [(VALUE_HEADER, guid(7))]),
        (two, [(VALUE_HEADER, guid(2)[:-1])]),
        (two, [(VALUE_HEADER, guid(2) + b"\0")]),
        (two, [(VALUE_HEADER, b"\x02" + guid(2)[1:])]),
        (two, [(VALUE_HEADER, None)]),
        (two, [(VALUE_HEADER, b"")]),
    )
    assert rows == [(1, 2)] * 5 + [(None, None)]
    assert sorted(errors) == list(range(6, 13))
    assert "404" in errors[7]
    assert all(VALUE_HEADER in errors[index] for index in range(8, 13))


def test_protobuf_message_indexes_are_in_the_header(server: SchemaRegistryServer) -> None:
    number = server.register("p-value", {"schema": ORDER, "schemaType": "PROTOBUF"})
    decoder = decoder_of(with_newest(format_of(server, "p-value", message="shop.Order")))
    value = b"\x08\x01\x10\x02"
    rows, errors = decode(
        decoder,
        (value, [(VALUE_HEADER, guid(number) + indexes([1]))]),
        (frame(number) + indexes([1]) + value, []),
        (value, [(VALUE_HEADER, guid(number) + indexes([0]))]),
        (value, [(VALUE_HEADER, guid(number))]),
    )
    assert rows == [(1, 2)] * 2
    assert sorted(errors) == [2, 3]


def test_guid_is_refused_for_schemas_from_files() -> None:
    decoder = decoder_of(ValueFormat.of("avro", [(1, avro(ONE).encode())], framed=True))
    value = written(ONE, price=1, qty=2)
    rows, errors = decode(
        decoder, (value, [(VALUE_HEADER, frame(1))]), (value, [(VALUE_HEADER, guid(1))])
    )
    assert rows == [(1, 2)]
    assert "only these ids have schemas: 1" in errors[1]


def test_registry_without_guids_stops_the_export(server: SchemaRegistryServer) -> None:
    decoder = decoder_of(with_newest(format_of(server)))
    server.body = b"{}"
    with pytest.raises(RegistryError):
        decode(decoder, (written(TWO, price=1, qty=2), [(VALUE_HEADER, guid(2))]))


def test_table_contains_values_with_schemas_in_headers(
    server: SchemaRegistryServer, tmp_path: Path
) -> None:
    values = [written(ONE, price=1, qty=2), written(TWO, price=1, qty=2)]
    headers = [[(VALUE_HEADER, guid(number))] for number in (1, 2)]
    log = asyncio.run(write_messages(tmp_path, [(b"k", value) for value in values], headers))
    run = Run(log, tmp_path / "warehouse", "parquet")
    run.all(value_format=format_of(server))
    assert [(row["price"], row["qty"]) for row in run.rows()] == [(1, 2)] * 2
    assert "_headers" not in run.rows()[0]
    assert run.rows("t__dlq") == []
