"""Topics with schema validation: the Java producer, and a third-party schema registry."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.timestamp_pb2 import Timestamp

from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.lake.table.errors import InvalidSchema
from penstock.lake.table.registry import decoder_of, with_newest
from penstock.lake.table.values import ValueFormat
from penstock.protocol.registry.by_id import schemas_of
from penstock.protocol.registry.model import RegistryError
from penstock.protocol.registry.settings import RegistrySettings
from penstock.protocol.registry.wire_format import split_frame
from tests.support.apicurio import Apicurio
from tests.support.cluster import Cluster
from tests.support.java import JavaHome
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, until

BY_REGISTRY = {"penstock.value.schema.validation": "true"}
AVRO = json.dumps({"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]})
JSON = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}})
DELIVERED_S = PATIENCE_S
COUNT, WRONG = 600, 200


async def create(cluster: Cluster, topic: str, configs: dict[str, str]) -> None:
    request = CreateTopics(topics=[NewTopic(name=topic, configs=configs)])
    response = await cluster.broker.client.create_topics(request)
    assert not response.topics[0].status, response.topics[0].detail
    await cluster.until_served(topic)


@pytest.mark.long
async def test_java_producer_reports_the_invalid_field_and_continues(
    java: JavaHome, tmp_path: Path
) -> None:
    """The idempotent producer has several batches in flight, of which one is rejected. It renumbers
    the later ones, which are then acknowledged.
    """
    java.compile(Path(__file__).parent / "clients" / "Clients.java")
    log = tmp_path / "clients.log"
    async with Cluster(tmp_path / "cluster") as cluster:
        schema = json.dumps({"type": "integer", "not": {"const": WRONG}})
        await create(cluster, "java", {"penstock.value.schema": schema})
        run = java.application("Clients", "produce", cluster.bootstrap, "java", str(COUNT), log=log)
        with run as process:
            await until(lambda: process.poll() is not None)
    lines = log.read_text().splitlines()
    errors = [line for line in lines if line.startswith("org.apache.kafka")]
    (own,) = (line for line in errors if "InvalidRecordException" in line)
    assert re.search(r"InvalidRecordException: value: .* for 200 \(record [0-9]+\)$", own), own
    assert all(line is own or "part of a batch" in line for line in errors), errors
    acknowledged = [int(line.split()[1]) for line in lines if line.startswith("acknowledged ")]
    refused = sorted(set(range(COUNT)) - set(acknowledged))
    assert len(acknowledged) + len(errors) == COUNT
    assert refused == list(range(refused[0], refused[-1] + 1)), "they are one batch"
    assert WRONG in refused
    assert acknowledged == sorted(acknowledged)
    assert acknowledged[-1] == COUNT - 1


def serialized(url: str) -> list[bytes]:
    """Return a value of each format, written by Confluent's serializers."""
    # The module takes more than a second to import, in each process that collects tests.
    from confluent_kafka.schema_registry.json_schema import JSONSerializer

    context = SerializationContext("t", MessageField.VALUE)
    values: list[Any] = []
    with SchemaRegistryClient({"url": url}) as client:
        values.append(AvroSerializer(client, AVRO)({"id": 5}, context))
        values.append(JSONSerializer(JSON, client)({"id": 5}, context))
        serializer = ProtobufSerializer(Timestamp, client, {"use.deprecated.format": False})
        values.append(serializer(Timestamp(seconds=5), context))
    return values


def send(bootstrap: str, *values: bytes) -> list[int | None]:
    """Produce each value as a batch. Return the error codes."""
    codes: list[int | None] = []
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 1})

    def delivered(error: KafkaError | None, _: object) -> None:
        codes.append(None if error is None else error.code())

    for value in values:
        producer.produce("t", value, on_delivery=delivered)
        producer.flush(DELIVERED_S)
    return codes


def check_readers(url: str, values: list[bytes]) -> None:
    """Decode values as SQL, tables and Spark do. An unknown id is an error of the value; a wrong
    registry path is an error of the registry.
    """
    settings = RegistrySettings(url, retry_ms=0)
    for value in values:
        stored = schemas_of(settings).find(split_frame(value))
        value_format = ValueFormat(
            stored.type.lower(), framed=True, registry=settings, newest=stored
        )
        unknown = b"\0\x7f\0\0\0" + value[5:]
        found = decoder_of(value_format).decode(pa.array([value, unknown], pa.binary()))
        assert [index for index, _ in found.errors] == [1]
        assert pa.table(found.columns).num_rows == 1
    newest = with_newest(ValueFormat.registered(settings, "t-value"))
    assert newest.newest is not None
    with pytest.raises(InvalidSchema, match="choose the subject"):
        with_newest(ValueFormat.registered(settings, "none-value"))
    for path in ("", "/subjects"):
        wrong = RegistrySettings(url.removesuffix("/apis/ccompat/v7") + path, retry_ms=0)
        with pytest.raises(RegistryError, match=r"no API of a schema registry|failed"):
            wrong.connect().by_id(1)


@pytest.mark.long
async def test_records_of_confluent_serializers_are_validated_with_a_third_party_registry(
    apicurio: Path, tmp_path: Path
) -> None:
    """The registry stores its schemas in the same cluster that queries it."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/apis/ccompat/v7"
    async with Cluster(tmp_path / "cluster", schema_registry_url=url) as cluster:
        registry = Apicurio(apicurio, cluster.bootstrap, tmp_path, port)
        await create(cluster, "t", BY_REGISTRY)
        with registry.start() as process:
            await asyncio.to_thread(registry.until, process, registry.is_ready)
            values = await asyncio.to_thread(serialized, url)
            assert len({value[:5] for value in values}) == 3
            assert await asyncio.to_thread(send, cluster.bootstrap, *values) == [None] * 3
            wrong = [value[:5] + b"\xff" * 12 for value in values]
            wrong += [b"plain", b"\0\0\0\xff\xff1"]
            refused = await asyncio.to_thread(send, cluster.bootstrap, *wrong)
            assert refused == [KafkaError.INVALID_RECORD] * 5
            await asyncio.to_thread(check_readers, url, values)
        # Cached schemas remain valid while the registry is unreachable.
        assert await asyncio.to_thread(send, cluster.bootstrap, *values) == [None] * 3
