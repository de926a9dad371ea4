"""Record formats, templates and lines, CSV rows, and times and durations."""

import csv
import io
import json
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import fastavro
import msgspec
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from penstock.base.errors import ExpectedError
from penstock.deploy.admin import fork_offsets
from penstock.deploy.admin.groups.reset import parse_duration, parse_time, read_offsets
from penstock.deploy.cli.reset_options import ResetGoal, goal_of
from penstock.deploy.console.console import utc_time
from penstock.deploy.errors import UsageError
from penstock.deploy.output.csv_rows import encode_csv
from penstock.deploy.records.decode_worker import DecodeValue, decoded
from penstock.deploy.records.displayed_record import ShownRecord
from penstock.deploy.records.formats import (
    BadRecord,
    HexCodec,
    RecordCodec,
    RecordFormat,
    TextCodec,
    codec,
)
from penstock.deploy.records.lines import LineReader, NewRecord, parse_headers
from penstock.deploy.records.template import parse_template
from penstock.deploy.records.writer import RecordWriter
from penstock.protocol.registry.by_id import schemas_of
from penstock.protocol.registry.model import StoredSchema
from penstock.protocol.registry.settings import RegistrySettings
from tests.support.cli import run_here
from tests.support.schema_registry import SchemaRegistryServer, guid_of, serving

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "id", "type": "long"}, {"name": "who", "type": ["null", "string"]}],
    }
).encode()


class Registry:
    """A registry with one Avro schema, or with Protobuf schemas by id."""

    def __init__(self, **protobuf: str) -> None:
        self._protobuf = {int(name[1:]): text for name, text in protobuf.items()}

    def find(self, number: int) -> StoredSchema:
        if self._protobuf:
            return StoredSchema("PROTOBUF", self._protobuf[number])
        assert number == 7
        return StoredSchema("AVRO", AVRO.decode())

    def newest(self, subject: str) -> tuple[int, StoredSchema]:
        assert subject == "orders-value"
        return 7, self.find(7)


def descriptor_set() -> bytes:
    """Return a descriptor set with two messages; the second one has a nested message."""
    file = FileDescriptorProto(name="orders.proto", package="shop", syntax="proto3")
    file.message_type.add(name="First")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    item = order.nested_type.add(name="Item")
    item.field.add(name="name", number=1, type=9, label=1)
    return FileDescriptorSet(file=[file]).SerializeToString()


@pytest.mark.parametrize(
    ("requested", "text", "data"),
    [
        (RecordFormat.TEXT, "grün", "grün".encode()),
        (RecordFormat.JSON, '{"a":[1,null]}', b'{"a":[1,null]}'),
        (RecordFormat.HEX, "00ff", b"\x00\xff"),
        (RecordFormat.BASE64, "AP8=", b"\x00\xff"),
    ],
)
def test_formats_survive_a_round_trip(requested: RecordFormat, text: str, data: bytes) -> None:
    found = codec(requested)
    assert found.encode(text) == data
    shown = found.decode(data)
    assert (shown if isinstance(shown, str) else json.dumps(shown, separators=(",", ":"))) == text


@pytest.mark.parametrize("requested", [RecordFormat.JSON, RecordFormat.HEX, RecordFormat.BASE64])
def test_values_that_do_not_match_the_format_are_rejected(requested: RecordFormat) -> None:
    with pytest.raises(BadRecord, match="it is not"):
        codec(requested).encode("{no")


@pytest.mark.parametrize("registry", [None, Registry()])
def test_avro_survives_a_round_trip(registry: Registry | None) -> None:
    found = codec(
        RecordFormat.AVRO,
        schema=None if registry else AVRO,
        registry=registry,  # type: ignore[arg-type]
        subject="orders-value",
    )
    data = found.encode('{"id": 3, "who": "ada"}')
    assert data.startswith(b"\0\0\0\0\7") is bool(registry)
    assert found.decode(data) == {"id": 3, "who": "ada"}
    with pytest.raises(BadRecord):
        found.decode(data + b"x")
    with pytest.raises(BadRecord, match="does not match"):
        found.encode('{"id": "three"}')


CITY: dict[str, Any] = {"type": "record", "name": "City", "namespace": "x", "fields": []}
ADDRESS: dict[str, Any] = {
    "type": "record",
    "name": "x.Address",
    "fields": [{"name": "city", "type": "x.City"}, {"name": "street", "type": "string"}],
}
HOME: dict[str, Any] = {"city": {}, "street": "Kastanienallee"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "record", "name": "A", "fields": [{"name": "at", "type": "x.Address"}]}, HOME),
        (["x.City", "x.Address"], HOME),
        ({"type": "array", "items": "x.Address"}, HOME),
    ],
)
def test_avro_with_schema_references_survives_a_round_trip(
    schema: Any, value: dict[str, Any]
) -> None:
    """The referenced types are defined by other subjects of the registry."""
    whole: Any = value
    if isinstance(schema, dict):
        whole = {"at": value} if schema["type"] == "record" else [value, value]
    with serving(SchemaRegistryServer()) as server:
        server.register("city", {"schema": json.dumps(CITY)})
        city = {"name": "x.City", "subject": "city", "version": 1}
        server.register("address", {"schema": json.dumps(ADDRESS), "references": [city]})
        address = {"name": "x.Address", "subject": "address", "version": 1}
        server.register(
            "orders-value", {"schema": json.dumps(schema), "references": [city, address]}
        )
        registry = schemas_of(RegistrySettings(server.url))
        found = codec(RecordFormat.AVRO, registry=registry, subject="orders-value")
        data = found.encode(json.dumps(whole))
        assert found.decode(data) == whole
        server.register("orders-value", {"schema": json.dumps(schema)})
        broken = codec(RecordFormat.AVRO, registry=registry, subject="orders-value")
        with pytest.raises(UsageError, match=r"x\.(City|Address)"):
            broken.encode(json.dumps(whole))


def test_records_of_unusable_schemas_are_bad_records() -> None:
    """`--on-error skip` skips these records, but not those for which the registry fails."""
    loop = {
        "type": "record",
        "name": "Node",
        "fields": [{"name": "next", "type": ["null", "Node"]}],
    }
    proto = {"schema": ORDERS, "schemaType": "PROTOBUF"}
    with serving(SchemaRegistryServer()) as server:
        for schema in ({"schema": '"no"'}, proto, {"schema": json.dumps(loop)}):
            server.register("orders-value", schema)
        registry = schemas_of(RegistrySettings(server.url, retry_ms=0))
        found = codec(RecordFormat.AVRO, registry=registry)
        assert found.decode(b"\0\0\0\0\3\2\0") == {"next": {"next": None}}
        deep = b"\0\0\0\0\3" + b"\2" * 20_000 + b"\0"
        negative_index = b"\0\0\0\0\3\1\0"
        unusable = b"\0\0\0\0\1\0", b"\0\0\0\0\2\0", b"\0\0\0\0\x09\0"
        for data in (b"", b"{}", *unusable, deep, negative_index):
            with pytest.raises(BadRecord):
                found.decode(data)
        with pytest.raises(BadRecord):
            codec(RecordFormat.PROTOBUF, registry=registry).decode(b"\0\0\0\0\x09\0")
        server.fails = True
        with pytest.raises(ExpectedError, match="returned 500") as failed:
            found.decode(b"\0\0\0\0\x08\0")
    assert not isinstance(failed.value, BadRecord)


ORDERS = """syntax = "proto3"; package shop;
message First {}
message Order { int64 id = 1; message Item { string name = 1; } }
"""


def test_registered_protobuf_is_decoded_with_the_schema_of_its_id() -> None:
    """The schema option applies only to new records."""
    later = ORDERS.replace("int64 id = 1;", "string who = 1; int64 id = 2;")
    registry: Any = Registry(_7=ORDERS, _8=later, _9="message {")
    found = codec(
        RecordFormat.PROTOBUF,
        schema=descriptor_set(),
        message="shop.Order",
        registry=registry,
        subject="orders-value",
    )
    assert found.decode(b"\0\0\0\0\7\2\2\x08\3") == {"id": "3"}
    assert found.decode(b"\0\0\0\0\x08\2\2\x0a\1x\x10\3") == {"who": "x", "id": "3"}
    assert found.decode(b"\0\0\0\0\7\0") == {}
    for data in (b"\0\0\0\0\x09\0", b"\0\0\0\0\7\2\x12", b"\0\0\0\0\7\2\2\xff"):
        with pytest.raises(BadRecord):
            found.decode(data)


def test_protobuf_with_a_registry_needs_no_descriptor_set() -> None:
    registry: Any = Registry(_7=ORDERS)
    for message, data in (("", b"\0\0\0\0\7\0"), ("shop.Order", b"\0\0\0\0\7\2\2\x08\3")):
        found = codec(
            RecordFormat.PROTOBUF, message=message, registry=registry, subject="orders-value"
        )
        assert found.encode(json.dumps(found.decode(data))) == data
    missing = codec(
        RecordFormat.PROTOBUF, message="shop.No", registry=registry, subject="orders-value"
    )
    with pytest.raises(UsageError, match=r"shop\.No"):
        missing.encode("{}")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (float("inf"), '"Infinity"'),
        (float("-inf"), '"-Infinity"'),
        (float("nan"), '"NaN"'),
        (1.5, "1.5"),
        (-0.0, "-0.0"),
    ],
)
def test_numbers_of_avro_that_json_cannot_represent_are_strings(number: float, text: str) -> None:
    fields = [
        {"name": "one", "type": "double"},
        {"name": "some", "type": {"type": "array", "items": "float"}},
        {"name": "by_name", "type": {"type": "map", "values": ["null", "double"]}},
    ]
    schema = json.dumps({"type": "record", "name": "r", "fields": fields})
    data = io.BytesIO()
    value = {"one": number, "some": [number], "by_name": {"a": number, "b": None}}
    cast("Any", fastavro).schemaless_writer(data, json.loads(schema), value)
    wanted = f'{{"one":{text},"some":[{text}],"by_name":{{"a":{text},"b":null}}}}'
    found = codec(RecordFormat.AVRO, schema=schema.encode()).decode(data.getvalue())
    assert msgspec.json.encode(found).decode() == wanted
    shown = decoded(DecodeValue("avro", schema, (), "", False, data.getvalue(), 1_000))
    assert json.loads(shown.text) == json.loads(wanted)


@pytest.mark.parametrize(
    "text",
    ["1e400", '{"a":-1.5E+999,"b":[1e309,0.5,12345678901234567890123,"1e400"],"c":null}'],
)
def test_json_numbers_beyond_a_float_keep_their_digits(text: str) -> None:
    found = codec(RecordFormat.JSON)
    assert found.encode(text) == text.encode()
    assert msgspec.json.encode(found.decode(text.encode())).decode() == text


@pytest.mark.parametrize("text", ["[1e400,NaN]", "[1e400,Infinity]", "[1e400", "[1e400]x"])
def test_numbers_beyond_a_float_do_not_allow_other_text(text: str) -> None:
    with pytest.raises(BadRecord, match="it is not JSON"):
        codec(RecordFormat.JSON).encode(text)


def test_registered_json_is_printed_without_its_framing() -> None:
    found = codec(RecordFormat.JSON, registry=Registry())  # type: ignore[arg-type]
    assert found.decode(b'\0\0\0\0\7{"a": 1}') == found.decode(b'{"a": 1}') == {"a": 1}
    with pytest.raises(BadRecord):
        codec(RecordFormat.JSON).decode(b'\0\0\0\0\7{"a": 1}')


def test_the_schema_of_a_value_may_be_in_a_header() -> None:
    """The header contains its id or GUID, and the Protobuf message indexes. The value then has no
    framing.
    """
    with serving(SchemaRegistryServer()) as server:
        server.register("a-value", {"schema": AVRO.decode()})
        server.register("p-value", {"schema": ORDERS, "schemaType": "PROTOBUF"})
        registry = schemas_of(RegistrySettings(server.url, retry_ms=0))
        guids = [b"\1" + UUID(guid_of(number)).bytes for number in (1, 2)]
        written = io.BytesIO()
        cast("Any", fastavro).schemaless_writer(written, json.loads(AVRO), {"id": 3, "who": None})
        cases: list[tuple[RecordFormat, bytes, bytes]] = [
            (RecordFormat.AVRO, written.getvalue(), guids[0]),
            (RecordFormat.AVRO, written.getvalue(), b"\0\0\0\0\1"),
            (RecordFormat.PROTOBUF, b"\x08\3", guids[1] + b"\2\2"),
            (RecordFormat.JSON, b'{"id": 3, "who": null}', guids[0]),
        ]
        for format_, value, header in cases:
            out = io.BytesIO()
            values = codec(format_, registry=registry, subject="a-value")
            writer = RecordWriter(TextCodec(), values, out=out)
            headers = [("__value_schema_id", b"junk"), ("__value_schema_id", header), ("x", None)]
            writer.write(("t", 0, 0), 0, None, value, headers)
            assert json.loads(out.getvalue())["id"] in {3, "3"}
            if format_ is not RecordFormat.JSON:
                with pytest.raises(BadRecord, match="does not contain the id or GUID"):
                    writer.write(("t", 0, 0), 0, None, value, headers[:1])
                with pytest.raises(BadRecord):
                    writer.write(("t", 0, 0), 0, None, value, [])


@pytest.mark.parametrize("registry", [None, Registry(_7=ORDERS)])
@pytest.mark.parametrize(
    ("message", "text"), [("shop.Order", {"id": "3"}), ("shop.Order.Item", {"name": "pen"})]
)
def test_protobuf_survives_a_round_trip(
    registry: Registry | None, message: str, text: dict[str, str]
) -> None:
    found = codec(
        RecordFormat.PROTOBUF,
        schema=descriptor_set(),
        message=message,
        registry=registry,  # type: ignore[arg-type]
        subject="orders-value",
    )
    data = found.encode(json.dumps(text))
    assert data.startswith(b"\0\0\0\0\7") is bool(registry)
    assert found.decode(data) == text
    with pytest.raises(BadRecord):
        found.encode('{"other": 1}')


def test_the_error_contains_the_missing_or_invalid_schema() -> None:
    with pytest.raises(UsageError, match=r"--schema FILE.avsc or --schema-registry"):
        codec(RecordFormat.AVRO)
    with pytest.raises(UsageError, match="not an Avro schema"):
        codec(RecordFormat.AVRO, schema=b"{}")
    with pytest.raises(UsageError, match="descriptor set"):
        codec(RecordFormat.PROTOBUF, schema=b"\xff", message="a.B")
    with pytest.raises(UsageError, match="not in the descriptor set"):
        codec(RecordFormat.PROTOBUF, schema=descriptor_set(), message="shop.None")


def test_templates_use_the_format_letters_of_kcat() -> None:
    record = ShownRecord("t", 1, 2, 3, "k", '{"a":1}', [("h", "x"), ("n", None)], 1, 7)
    shown = parse_template(r"%t/%p@%o %T %k=%s [%h] %K,%S 100%%\t\\\n")
    assert shown(record) == 't/1@2 3 k={"a":1} [h=x,n=None] 1,7 100%\t\\\n'
    with pytest.raises(UsageError, match="unknown letter %x"):
        parse_template("%x")


@pytest.mark.parametrize(
    ("values", "stored"),
    [
        (codec(RecordFormat.JSON), [b'"a \\" b"', b'"{}"', b"null", b"7", b'{"a":"b"}']),
        (codec(RecordFormat.AVRO, schema=b'"string"'), [b"\x04hi", b'\x04"}']),
    ],
)
def test_values_are_printed_as_json_that_produce_reads(
    values: RecordCodec, stored: list[bytes]
) -> None:
    def printed(*, as_json: bool, template: str = "") -> list[bytes]:
        out = io.BytesIO()
        writer = RecordWriter(TextCodec(), values, as_json=as_json, template=template, out=out)
        for value in stored:
            writer.write(("t", 0, 0), 0, None, value, [])
        return out.getvalue().splitlines()

    by_line = LineReader(TextCodec(), values)
    assert printed(as_json=False, template="%s\n") == printed(as_json=False)
    for line in printed(as_json=False):
        json.loads(line)
    assert [record.value for record in by_line.records(printed(as_json=False))] == stored
    by_json = LineReader(TextCodec(), values, is_json=True)
    read = [record.value for record in by_json.records(printed(as_json=True))]
    # A record without a value is printed like JSON's null.
    assert read == [None if value == b"null" else value for value in stored]


def lines(*texts: str, keys: RecordCodec | None = None, **options: object) -> list[NewRecord]:
    reader = LineReader(keys or TextCodec(), TextCodec(), **options)  # type: ignore[arg-type]
    return list(reader.records(text.encode() for text in texts))


def test_lines_contain_keys_values_and_defaults() -> None:
    headers = parse_headers(["a=1", "b=x=y", "c"])
    assert headers == [("a", b"1"), ("b", b"x=y"), ("c", None)]
    first, second = lines("6b:v:w", "v", keys=HexCodec(), separator=":", key="00", headers=headers)
    assert first == NewRecord(b"k", b"v:w", headers)
    assert second == NewRecord(b"\0", b"v", headers)
    (record,) = lines(
        '{"key":"k","value":{"a":1},"headers":[["h","x"]],"partition":2,"timestamp_ms":5}',
        '{"value":null}',
        is_json=True,
    )[:1]
    assert record == NewRecord(b"k", b'{"a":1}', [("h", "x")], 2, 5)
    with pytest.raises(BadRecord, match="line 2: "):
        lines('{"value":"v"}', "[]", is_json=True)
    with pytest.raises(UsageError, match="NAME=VALUE"):
        parse_headers(["=x"])


@pytest.mark.parametrize(
    "line",
    [
        b'{"value":"\xff"}',
        b'{"value":"\\udcff"}',
        b'{"value":"v","key_base64":"?"}',
        b'{"value":"v","headers":[["\xff","v"]]}',
    ],
)
def test_json_that_is_not_utf_8_is_rejected(line: bytes) -> None:
    reader = LineReader(TextCodec(), TextCodec(), is_json=True)
    with pytest.raises(BadRecord, match="line 1: it is not a record"):
        list(reader.records([line]))


@pytest.mark.parametrize("requested", [RecordFormat.JSON, RecordFormat.HEX, RecordFormat.BASE64])
def test_text_that_is_not_utf_8_is_rejected(requested: RecordFormat) -> None:
    with pytest.raises(BadRecord):
        codec(requested).encode('"\udcff"')


def test_csv_output_has_a_row_for_each_object_of_the_first_list() -> None:
    document = [
        {
            "name": "a,b",
            "size": {"bytes": 3, "known": True},
            "parts": [{"id": 1, "ids": [1, 2], "none": None}, {"id": 2, "more": {"x": 1.5}}],
        },
        {"name": "empty", "parts": []},
    ]
    assert list(csv.DictReader(io.StringIO(encode_csv(document)))) == [
        {"name": "a,b", "id": "1", "ids": "1;2", "none": "", "more.x": "", "parts": ""},
        {"name": "a,b", "id": "2", "ids": "", "none": "", "more.x": "1.5", "parts": ""},
        {"name": "empty", "id": "", "ids": "", "none": "", "more.x": "", "parts": ""},
    ]
    assert encode_csv([]) == ""
    assert encode_csv({"size": {"bytes": 3, "known": True}}) == "size.bytes,size.known\n3,true\n"


def test_times_and_durations_are_parsed_like_in_kafka() -> None:
    assert parse_time("1970-01-01T00:00:01.500") == 1_500
    assert parse_time("1970-01-01T01:00:00+01:00") == 0
    assert parse_duration("P1DT2H3M4.5S") == 93_784_500
    assert parse_duration("90m") == 5_400_000
    for bad in ("", "P", "PT", "1 day", "P1Y"):
        with pytest.raises(UsageError, match="is invalid"):
            parse_duration(bad)
    with pytest.raises(UsageError, match="is invalid"):
        parse_time("yesterday")


def test_times_before_1970_are_rejected() -> None:
    """As a timestamp of ListOffsets, -1 is the end of the log: all records would be deleted."""
    for text in ("1969-12-31T23:59:59.999", "1970-01-01T00:00:00+01:00", "0001-01-01"):
        with pytest.raises(UsageError, match="before 1970"):
            parse_time(text)
    with pytest.raises(UsageError, match="since 1970"):
        utc_time("1969-12-31T23:59:59.999")


def test_durations_that_are_too_long_are_rejected() -> None:
    with pytest.raises(UsageError, match="too long"):
        parse_duration("P99999999999D")
    found = goal_of(ResetGoal(by_duration="P30000D"))
    assert found.time_ms == 0, "it begins before 1970"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b'{"partitions": [{"topic": "\xff", "partition": 0, "offset": 1}]}', "utf-8"),
        (b'{"x": ' + b"[" * 100_000, "recursion"),
        (b'{"partitions": []}', "has no offsets"),
        (
            msgspec.json.encode(
                {
                    "partitions": [
                        {"topic": "orders", "partition": at, "offset": 10**12}
                        for at in range(2_000)
                    ]
                }
            ),
            "32,767",
        ),
    ],
)
def test_unusable_files_with_the_offsets_of_a_fork_are_rejected(
    tmp_path: Path, text: bytes, problem: str
) -> None:
    path = tmp_path / "offsets.json"
    path.write_bytes(text)
    with pytest.raises(UsageError, match=problem):
        fork_offsets.read_offsets(str(path), "orders")
    path.write_text('{"partitions": [{"topic": "orders", "partition": 1, "offset": 9}]}')
    assert fork_offsets.read_offsets(str(path), "orders") == "1:9"


def test_offset_files_of_kafka_and_of_penstock_are_parsed(tmp_path: Path) -> None:
    path = tmp_path / "offsets.csv"
    for text in (
        "orders,0,5\n",
        "billing,orders,0,5\n",
        "group,topic,partition,current_offset,new_offset\nbilling,orders,0,,5\n",
    ):
        path.write_text(text)
        assert read_offsets(path) == {("orders", 0): 5}
    path.write_text("orders,0,five\n")
    with pytest.raises(UsageError, match="row 1 is not TOPIC,PARTITION,OFFSET"):
        read_offsets(path)
    path.write_text("")
    with pytest.raises(UsageError, match="has no offsets"):
        read_offsets(path)


def test_snapshots_without_a_name_are_rejected() -> None:
    done = run_here("snapshots", "create", "", "--bootstrap", "127.0.0.1:1")
    assert (done.returncode, done.stderr) == (2, "error: the name of the snapshot is empty\n")
