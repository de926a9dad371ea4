"""The records page decodes Avro and Protobuf with the schemas in topic configs or a registry.
Values that it cannot decode are shown as bytes, with the reason.
"""

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro as _fastavro
import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.console.decoding import FAILURES_MAX, SchemaCache, TopicDecoder
from penstock.deploy.local.handle import LocalCluster
from penstock.deploy.records.decode_process import DecodeProcess
from penstock.protocol.registry.settings import RegistrySettings
from tests.support.browser import axe_problems
from tests.support.console import ConsoleProcess, produce
from tests.support.schema_registry import SchemaRegistryServer, guid_of, serving
from tests.support.waiting import wait_until

fastavro: Any = _fastavro
PAYMENT: dict[str, Any] = {
    "type": "record",
    "name": "Payment",
    "fields": [
        {"name": "amount", "type": "long"},
        {"name": "payer", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
PROTO = """syntax = "proto3";
package shop;
message Outer { message Click { int64 at = 1; string page = 2; } }
"""
CLICK = b"\x08\x2a\x12\x05/cart"
"""Protobuf value of `at: 42, page: /cart`."""
NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}
DEPTH = 200_000
"""Nesting depth of a value that overflows the decoder's stack."""


def avro(schema: dict[str, Any], value: dict[str, Any]) -> bytes:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def framed(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + data


@pytest.fixture(scope="module")
def registry() -> Iterator[SchemaRegistryServer]:
    server = SchemaRegistryServer()
    with serving(server):
        yield server


@pytest.fixture(scope="module")
def records(cluster: LocalCluster, registry: SchemaRegistryServer) -> None:
    """Three topics: with an Avro schema, with a Protobuf schema, and with registry schemas."""
    kafka = Kafka(cluster.bootstrap)
    for name, configs in (
        ("payments", {"type": "avro", "": json.dumps(PAYMENT)}),
        ("visits", {"type": "protobuf", "": PROTO, "message": "shop.Outer.Click"}),
    ):
        settings = {
            ".".join(filter(None, ("penstock.value.schema", key))): value
            for key, value in configs.items()
        }
        kafka.create_topic(name, 1, -1, settings)
    kafka.create_topic("registered", 1, -1, {})
    payment = avro(PAYMENT, {"amount": 1_250, "payer": "Ada", "at": 1_700_000_000_000})
    produce(cluster.bootstrap, "payments", [payment], key="p-1")
    produce(cluster.bootstrap, "visits", [CLICK])
    referring = {**NODE, "name": "Bill", "fields": [{"name": "payment", "type": "Payment"}]}
    registry.register("payment", {"schema": json.dumps(PAYMENT)})
    bill = registry.register(
        "bill",
        {
            "schema": json.dumps(referring),
            "references": [{"name": "Payment", "subject": "payment", "version": 1}],
        },
    )
    click = registry.register("click", {"schema": PROTO, "schemaType": "PROTOBUF"})
    node = registry.register("node", {"schema": json.dumps(NODE)})
    produce(
        cluster.bootstrap,
        "registered",
        [
            framed(bill, payment),
            framed(click, b"\x04\x00\x00" + CLICK),
            framed(bill, payment[:-9]),
            framed(node, b"\x02" * DEPTH + b"\x00"),
            framed(99, payment),
            framed(bill, payment),
        ],
    )


@pytest.fixture(scope="module")
def reader(
    cluster: LocalCluster, registry: SchemaRegistryServer, records: None
) -> Iterator[ConsoleProcess]:
    with ConsoleProcess(cluster.state_path, "--schema-registry", registry.url) as console:
        yield console


def shown(chrome: Chrome, console: ConsoleProcess, topic: str) -> list[str]:
    """Open all records; return the text of each, the oldest first. Waits until the manifest
    contains a new topic.
    """

    def records() -> list[WebElement]:
        chrome.get(f"{console.url}/topics/{topic}/messages?start=earliest")
        return chrome.find_elements(By.CSS_SELECTOR, "details.record")

    found = wait_until(records)
    for record in found:
        record.find_element(By.TAG_NAME, "summary").click()
    return [record.text for record in found]


def test_records_are_decoded_with_the_topic_configs(
    chrome: Chrome, reader: ConsoleProcess, axe: Path
) -> None:
    (payment,) = shown(chrome, reader, "payments")
    assert '"amount": 1250,\n' in payment
    assert '"at": "2023-11-14T22:13:20Z"' in payment
    assert "Avro, by the topic's schema" in payment
    assert axe_problems(chrome, axe) == []
    (visit,) = shown(chrome, reader, "visits")
    assert '"page": "/cart"' in visit
    assert "Protobuf, by the topic's schema" in visit


def test_records_are_decoded_with_a_registry(chrome: Chrome, reader: ConsoleProcess) -> None:
    """A record that is not Avro, crashes the decoder process or has an unknown schema is shown as
    bytes; the others are decoded.
    """
    bill, click, short, nested, unknown, last = shown(chrome, reader, "registered")
    assert '"payer": "Ada"' in bill
    assert "Avro, schema 2" in bill
    assert '"at": "42"' in click
    assert "Protobuf, schema 3" in click
    assert "not decoded (Avro, schema 2): value.payment" in short
    assert "000000" in short
    assert "stack (SIGSEGV)" in nested
    assert "returned 404 for GET /schemas/ids/99" in unknown
    assert '"payer": "Ada"' in last


@pytest.mark.usefixtures("records")
def test_schema_id_is_shown_without_a_registry(chrome: Chrome, console: ConsoleProcess) -> None:
    for text in shown(chrome, console, "registered"):
        assert "may begin with schema id" in text


def test_records_that_crash_the_decoder_do_not_delay_a_page_for_long() -> None:
    """After three crashes the rest of the page is shown as bytes; the next page starts afresh."""
    configs = {"penstock.value.schema": json.dumps(NODE), "penstock.value.schema.type": "avro"}
    process = DecodeProcess()
    try:
        nested = b"\x02" * DEPTH + b"\x00"
        decoder = TopicDecoder(configs, SchemaCache(None), process)
        notes = [decoder.show("value", nested).note for _ in range(FAILURES_MAX + 1)]
        assert [("SIGSEGV" in note) for note in notes] == [True] * FAILURES_MAX + [False]
        assert "other records on this page exceeded the limits" in notes[-1]
        found = TopicDecoder(configs, SchemaCache(None), process).show("value", b"\x02\x00")
        assert (found.kind, found.text) == ("avro", '{\n  "next": {\n    "next": null\n  }\n}')
    finally:
        process.close()


def test_failing_registry_is_queried_once_per_page() -> None:
    with serving(SchemaRegistryServer()) as registry:
        registry.fails = True
        decoder = TopicDecoder({}, SchemaCache(RegistrySettings(registry.url)), DecodeProcess())
        shown = [decoder.show("value", framed(number, CLICK)) for number in (1, 2, 1)]
    assert registry.requests == ["GET /schemas/ids/1"]
    assert {(view.kind, "returned 500" in view.note) for view in shown} == {("hex", True)}


def test_schema_id_is_read_from_a_header() -> None:
    value = avro(PAYMENT, {"amount": 5, "payer": "Ada", "at": 0})
    process = DecodeProcess()
    try:
        with serving(SchemaRegistryServer()) as registry:
            registry.register("payment", {"schema": json.dumps(PAYMENT)})
            registry.register("click", {"schema": PROTO, "schemaType": "PROTOBUF"})
            registry.register("json", {"schema": "{}", "schemaType": "JSON"})
            guids = [b"\x01" + UUID(guid_of(number)).bytes for number in (1, 2, 3)]
            decoder = TopicDecoder({}, SchemaCache(RegistrySettings(registry.url)), process)
            shown = [
                decoder.show("value", *record)
                for record in (
                    (value, guids[0]),
                    (CLICK, guids[1] + b"\x04\x00\x00"),
                    (b'{"a": 1}', guids[2]),
                    (value, b"junk"),
                )
            ]
    finally:
        process.close()
    assert [view.size_bytes for view in shown] == [len(value), len(CLICK), 8, len(value)]
    assert '"payer": "Ada"' in shown[0].text
    assert shown[0].note == f"Avro, schema {guid_of(1)}"
    assert '"page": "/cart"' in shown[1].text
    assert shown[2].note == f"JSON, schema {guid_of(3)}"
    assert "does not contain the id or GUID of a schema" in shown[3].note
