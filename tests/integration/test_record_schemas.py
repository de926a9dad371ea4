"""Records that do not match their topic's schema are rejected. With real brokers, clients and
Confluent serializers.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
)
from confluent_kafka.schema_registry import SchemaRegistryClient, record_subject_name_strategy
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from penstock.broker.errors import ErrorCode
from penstock.broker.partition.append import NAMED_TWICE
from penstock.controller.api.messages import CreateTopics
from penstock.controller.api.messages import NewTopic as TopicRequest
from penstock.protocol import apis
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.gen import produce
from tests.support.attacker import Attacker
from tests.support.clients import TIMEOUT_S, confluent_consumer, read_records
from tests.support.cluster import Cluster
from tests.support.schema_registry import SchemaRegistryServer, serving
from tests.support.waiting import until

NOW_MS = 1_700_000_000_000
ORDER_JSON = json.dumps(
    {
        "title": "Order",
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "customer": {"type": "object", "properties": {"age": {"type": "integer"}}},
        },
        "required": ["id"],
    }
)
ORDER_AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": "string"}],
    }
)
ORDER_PROTO = """syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order { int64 id = 1; Customer customer = 2; google.protobuf.Timestamp at = 3; }
message Customer { string name = 1; }
"""
BY_REGISTRY = {"penstock.value.schema.validation": "true"}


@pytest.fixture
def registry() -> Iterator[SchemaRegistryServer]:
    with serving(SchemaRegistryServer(user_info="broker:secret")) as registry:
        yield registry


@pytest.fixture
async def cluster(
    tmp_path: Path, registry: SchemaRegistryServer, request: pytest.FixtureRequest
) -> AsyncIterator[Cluster]:
    """Start a broker. Its registry may respond late, unless a parameter sets the timeout."""
    async with Cluster(
        tmp_path,
        schema_registry_url=registry.url,
        schema_registry_basic_auth_user_info="broker:secret",
        schema_registry_timeout_ms=getattr(request, "param", 60_000),
    ) as cluster:
        yield cluster


async def create(cluster: Cluster, topic: str, configs: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    created = admin.create_topics([NewTopic(topic, 1, config=configs)])[topic]
    await asyncio.to_thread(created.result, TIMEOUT_S)
    await cluster.until_served(topic)


async def alter(cluster: Cluster, topic: str, **values: str | None) -> None:
    """Set configs, or delete those whose value is None. Names omit the prefix `penstock.value.`."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    entries = [
        ConfigEntry(
            f"penstock.value.{name.replace('_', '.')}",
            value,
            incremental_operation=AlterConfigOpType.DELETE
            if value is None
            else AlterConfigOpType.SET,
        )
        for name, value in values.items()
    ]
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)
    changed = admin.incremental_alter_configs([resource])[resource]
    await asyncio.to_thread(changed.result, TIMEOUT_S)


async def send(
    cluster: Cluster, topic: str, *values: bytes | None, **settings: Any
) -> list[int | None]:
    """Produce the values as one batch. Return the error code of each."""

    def run() -> list[int | None]:
        errors: list[int | None] = []

        def delivered(error: KafkaError | None, _: object) -> None:
            errors.append(None if error is None else error.code())

        # flush() ends lingering, so a batch is sent only once it is full or contains all values.
        producer = Producer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "linger.ms": 5_000,
                "delivery.timeout.ms": TIMEOUT_S * 1_000,
            }
            | settings
        )
        for value in values:
            producer.produce(topic, value, b"k", on_delivery=delivered)
        producer.flush(TIMEOUT_S)
        return errors

    return await asyncio.to_thread(run)


async def values_of(cluster: Cluster, topic: str, count: int) -> list[bytes | None]:
    def run() -> list[bytes | None]:
        consumer = confluent_consumer(cluster.bootstrap, "g")
        consumer.assign([TopicPartition(topic, 0, 0)])
        found = [record.value() for record in read_records(consumer, count)]
        consumer.close()
        return found

    return await asyncio.to_thread(run)


@pytest.mark.parametrize(
    ("kind", "schema", "good", "bad", "said"),
    [
        (
            "json",
            ORDER_JSON,
            b'{"id": 1}',
            b'{"id": 1, "customer": {"age": "x"}}',
            'value.customer.age: "x" is not of type "integer" (record 2)',
        ),
        (
            "avro",
            ORDER_AVRO,
            b"\x02\x04hi",
            b"\x02\x09hi",
            "value.note: string needs -5 bytes, but 2 are left (record 2)",
        ),
        (
            "protobuf",
            ORDER_PROTO,
            b"\x08\x01\x12\x03\x0a\x01x",
            b"\x12\x02\x08\x01",
            "value.customer.name: wire type 0 is not one of string (record 2)",
        ),
    ],
    ids=["json", "avro", "protobuf"],
)
async def test_one_invalid_record_rejects_the_whole_batch(
    cluster: Cluster, kind: str, schema: str, good: bytes, bad: bytes, said: str
) -> None:
    await create(
        cluster, "t", {"penstock.value.schema": schema, "penstock.value.schema.type": kind}
    )
    assert await send(cluster, "t", good, None) == [None, None]
    assert await send(cluster, "t", good, None, bad) == [KafkaError.INVALID_RECORD] * 3
    async with Attacker.connected(cluster.broker.port) as client:
        batch = encode_batch(
            [Record(at, NOW_MS, None, value) for at, value in enumerate((good, None, bad))]
        )
        response = await client.produce("t", batch)
    assert (response.error_code, response.base_offset) == (ErrorCode.INVALID_RECORD, -1)
    assert response.error_message == said
    (found,) = response.record_errors
    assert (found.batch_index, found.batch_index_error_message) == (2, said)
    assert await send(cluster, "t", good) == [None]
    assert await values_of(cluster, "t", 3) == [good, None, good]


async def test_rejected_batch_uses_no_sequence_number(cluster: Cluster) -> None:
    """An idempotent producer sends the next batch with the sequence number of the rejected one. A
    producer that resends a batch already in the log gets its offset, even if the schema has
    changed.
    """
    await create(cluster, "t", {"penstock.value.schema": ORDER_JSON})

    def batch(value: bytes, sequence: int) -> bytes:
        record = Record(0, NOW_MS, None, value)
        return bytes(
            encode_batch([record], producer_id=5, producer_epoch=0, base_sequence=sequence)
        )

    async with Attacker.connected(cluster.broker.port) as client:
        for value, sequence, code, offset in (
            (b'{"id": 1}', 0, ErrorCode.NONE, 0),
            (b"{}", 1, ErrorCode.INVALID_RECORD, -1),
            (b'{"id": 2}', 2, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
            (b'{"id": 2}', 1, ErrorCode.NONE, 1),
        ):
            response = await client.produce("t", batch(value, sequence))
            assert (response.error_code, response.base_offset) == (code, offset), value
        await alter(cluster, "t", schema='{"type": "string"}')
        response = await client.produce("t", batch(b'{"id": 2}', 1))
        assert (response.error_code, response.base_offset) == (ErrorCode.NONE, 1)


async def test_invalid_batches_get_the_same_error_with_and_without_a_schema(
    cluster: Cluster,
) -> None:
    await create(cluster, "t", {"penstock.value.schema": ORDER_JSON})
    await create(cluster, "plain", {})
    batch = encode_batch([Record(0, NOW_MS, None, b'{"id": 1}')])
    old, damaged = bytearray(batch), bytearray(batch)
    old[16] = 1
    damaged[-1] ^= 1
    large = encode_batch([Record(0, NOW_MS, None, bytes(2 << 20))])
    async with Attacker.connected(cluster.broker.port) as client:
        for sent in (old, damaged, batch + batch, batch[:60], large):
            responses = [await client.produce(topic, sent) for topic in ("plain", "t")]
            assert responses[0].error_code != ErrorCode.NONE
            assert responses[0] == responses[1]


async def test_partition_named_twice_in_a_request_accepts_only_the_first_batch(
    cluster: Cluster,
) -> None:
    """For topics with a schema, the batches wait for validation first."""
    await create(cluster, "t", {"penstock.value.schema": ORDER_JSON})
    await create(cluster, "plain", {})
    for topic in ("plain", "t"):
        parts = [
            produce.PartitionProduceData(0, bytes(encode_batch([Record(0, NOW_MS, None, value)])))
            for value in (b'{"id": 1}', b'{"id": 2}', b'{"id": 3}')
        ]
        data = [
            produce.TopicProduceData(name=topic, partition_data=parts[:2]),
            produce.TopicProduceData(name=topic, partition_data=parts[2:]),
        ]
        request = produce.ProduceRequest(acks=-1, timeout_ms=180_000, topic_data=data)
        async with Attacker.connected(cluster.broker.port) as client:
            responses = (await client.send_request(apis.PRODUCE, 9, request)).responses
        replies = [reply for response in responses for reply in response.partition_responses]
        refused = ErrorCode.INVALID_REQUEST
        assert [reply.error_code for reply in replies] == [ErrorCode.NONE, refused, refused]
        assert replies[1].error_message == NAMED_TWICE
        assert await send(cluster, topic, b'{"id": 4}') == [None]
        assert await values_of(cluster, topic, 2) == [b'{"id": 1}', b'{"id": 4}']


async def test_batches_in_flight_keep_their_order(cluster: Cluster) -> None:
    """Validating a large batch takes longer than validating the small one after it."""
    await create(cluster, "t", {"penstock.value.schema": ORDER_JSON})
    large = json.dumps({"id": 0, "text": ["x" * 10] * 30_000}).encode()
    values = [json.dumps({"id": at}).encode() if at % 5 else large for at in range(1, 40)]
    settings = {"linger.ms": 0, "batch.num.messages": 1, "enable.idempotence": True}
    assert set(await send(cluster, "t", *values, **settings)) == {None}
    assert await values_of(cluster, "t", len(values)) == values


async def test_transactional_records_are_validated(cluster: Cluster) -> None:
    await create(cluster, "t", {"penstock.value.schema": ORDER_JSON})

    def run(value: bytes) -> None:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "x"})
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        producer.produce("t", value)
        try:
            producer.commit_transaction(TIMEOUT_S)
        except KafkaException:
            producer.abort_transaction(TIMEOUT_S)
            raise

    await asyncio.to_thread(run, b'{"id": 1}')
    with pytest.raises(KafkaException):
        await asyncio.to_thread(run, b"{}")
    await asyncio.to_thread(run, b'{"id": 2}')

    assert await values_of(cluster, "t", 2) == [b'{"id": 1}', b'{"id": 2}']


BROKEN = [
    ({"schema": '{\n"type":'}, "line 2 column 8"),
    ({"schema": '{"type": "objec"}'}, "at type"),
    ({"schema": '{"pattern": "(?=a)"}'}, "look-around"),
    ({"schema": '{"type": "recor"}', "schema_type": "avro"}, "recor"),
    ({"schema": "message A {\n x y = 1;}", "schema_type": "protobuf"}, "line 2 column 2"),
    (
        {"schema": ORDER_PROTO, "schema_type": "protobuf", "schema_message": "shop.None"},
        "shop.Order, shop.Customer",
    ),
    ({"schema": ORDER_JSON, "schema_validation": "true"}, "exclude each other"),
    ({"schema_message": "shop.Order"}, "penstock.value.schema.type=protobuf"),
    ({"schema_type": "xml"}, "json, avro, protobuf"),
]


async def test_invalid_schema_is_rejected_with_the_position_of_the_error(cluster: Cluster) -> None:
    await create(cluster, "t", {})
    for values, said in BROKEN:
        with pytest.raises(KafkaException, match=said) as refused:
            await alter(cluster, "t", **values)
        assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
        configs = {
            f"penstock.value.{name.replace('_', '.')}": text for name, text in values.items()
        }
        with pytest.raises(KafkaException, match=said) as refused:
            await create(cluster, "other", configs)
        assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert await send(cluster, "t", b"anything") == [None]


async def test_schema_can_be_changed_and_removed(cluster: Cluster) -> None:
    await create(cluster, "t", {"penstock.value.schema": ORDER_JSON})
    assert await send(cluster, "t", b'"x"') == [KafkaError.INVALID_RECORD]
    await alter(cluster, "t", schema='{"type": "string"}')
    assert await send(cluster, "t", b'"x"') == [None]
    await alter(cluster, "t", schema=None)
    assert await send(cluster, "t", b"\xff") == [None]


# --- schema registry ------------------------------------------------------------------------------


def order_class() -> Any:
    """Return the class of the second message in its file."""
    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.message_type.add(name="First")
    order = file.message_type.add(name="Order")
    order.field.add(name="id", number=1, type=3, label=1)
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def serialized(registry: SchemaRegistryServer, kind: str, topic: str, **settings: Any) -> bytes:
    """Return an order as Confluent's serializer writes it; the serializer registers the schema."""
    value: Any = {"id": 5, "note": "hi"}
    serializer: Any
    with SchemaRegistryClient(
        {"url": registry.url, "basic.auth.user.info": "broker:secret"}
    ) as client:
        if kind == "avro":
            serializer = AvroSerializer(client, ORDER_AVRO, conf=settings)
        elif kind == "json":
            # The module takes more than a second to import, in each process that collects tests.
            from confluent_kafka.schema_registry.json_schema import JSONSerializer

            serializer = JSONSerializer(ORDER_JSON, client, conf=settings)
        else:
            message = order_class()
            value = message(id=5)
            serializer = ProtobufSerializer(message, client, settings)
        return serializer(value, SerializationContext(topic, MessageField.VALUE))


@pytest.mark.parametrize("kind", ["avro", "json", "protobuf"])
async def test_records_of_confluent_serializers_are_accepted_and_others_rejected(
    cluster: Cluster, registry: SchemaRegistryServer, kind: str
) -> None:
    await create(cluster, "t", BY_REGISTRY)
    good = await asyncio.to_thread(serialized, registry, kind, "t")
    assert await send(cluster, "t", good, None, good) == [None] * 3
    elsewhere = registry.register("other-value", {"schema": '"string"'})
    head = good[:5]
    for bad, said in (
        (b"plain", "value: it does not begin with a zero byte"),
        (b"\0" + (99).to_bytes(4, "big") + good[5:], "has no schema 99"),
        (
            b"\0" + elsewhere.to_bytes(4, "big") + b"\x02x",
            "not registered under the subject t-value",
        ),
        (head + b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", "value"),
    ):
        async with Attacker.connected(cluster.broker.port) as client:
            response = await client.produce("t", encode_batch([Record(0, NOW_MS, None, bad)]))
        assert response.error_code == ErrorCode.INVALID_RECORD, (bad, response)
        assert said in response.error_message
    assert await values_of(cluster, "t", 3) == [good, None, good]


async def test_subject_name_strategies_are_supported(
    cluster: Cluster, registry: SchemaRegistryServer
) -> None:
    strategy = {"penstock.value.subject.name.strategy": "RecordNameStrategy"}
    await create(cluster, "t", BY_REGISTRY | strategy)
    settings = {"subject.name.strategy": record_subject_name_strategy}
    good = await asyncio.to_thread(lambda: serialized(registry, "avro", "t", **settings))
    by_topic = await asyncio.to_thread(serialized, registry, "avro", "u")
    assert sorted(registry.versions) == ["shop.Order", "u-value"]
    assert await send(cluster, "t", good) == [None]
    await alter(cluster, "t", subject_name_strategy="TopicRecordNameStrategy")
    assert await send(cluster, "t", by_topic) == [KafkaError.INVALID_RECORD]
    registry.register("t-shop.Order", {"schema": registry.schemas[1]["schema"]})

    async def passes() -> bool:
        return await send(cluster, "t", by_topic) == [None]

    await until(passes)


@pytest.mark.parametrize("cluster", [3_000], indirect=True)
async def test_cached_schemas_outlive_the_registry_and_unknown_ids_are_retried(
    cluster: Cluster, registry: SchemaRegistryServer
) -> None:
    """While the registry fails, a batch with an unknown schema id gets a retriable error; after the
    registry recovers, the batch is accepted.
    """
    await create(cluster, "t", BY_REGISTRY)
    known = await asyncio.to_thread(serialized, registry, "avro", "t")
    assert await send(cluster, "t", known) == [None]
    new = registry.register("t-value", {"schema": '"string"'})
    value = b"\0" + new.to_bytes(4, "big") + b"\x04hi"
    registry.fails = True
    assert await send(cluster, "t", known) == [None]
    async with Attacker.connected(cluster.broker.port) as client:

        async def is_rejected() -> bool:
            response = await client.produce("t", encode_batch([Record(0, NOW_MS, None, value)]))
            assert response.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            return "returned 500" in response.error_message

        await until(is_rejected)
        registry.fails = False
        registry.hangs.clear()
        await until(lambda: _is_asked_again(client, registry, value))
        registry.hangs.set()
    assert await send(cluster, "t", value, **{"retry.backoff.ms": 100}) == [None]


async def _is_asked_again(client: Attacker, registry: SchemaRegistryServer, value: bytes) -> bool:
    """Produce again; return whether the broker sent another request to the registry. A registry
    that does not respond counts as failed.
    """
    count = len(registry.requests)
    response = await client.produce("t", encode_batch([Record(0, NOW_MS, None, value)]))
    assert response.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    return len(registry.requests) > count


async def test_schemas_with_references_are_validated(
    cluster: Cluster, registry: SchemaRegistryServer
) -> None:
    await create(cluster, "t", BY_REGISTRY)
    money = {"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}
    bill = {"type": "record", "name": "Bill", "fields": [{"name": "total", "type": "Money"}]}
    registry.register("money", {"schema": json.dumps(money)})
    refers = {"references": [{"name": "Money", "subject": "money", "version": 1}]}
    avro = registry.register("t-value", {"schema": json.dumps(bill), **refers})
    registry.register("money.json", {"schema": '{"type": "integer"}', "schemaType": "JSON"})
    refers = {"references": [{"name": "money.json", "subject": "money.json", "version": 1}]}
    total = {"properties": {"total": {"$ref": "money.json"}}}
    by_json = registry.register(
        "t-value", {"schema": json.dumps(total), "schemaType": "JSON", **refers}
    )
    text = 'syntax = "proto3"; message Money { int64 cents = 1; }'
    registry.register("money.proto", {"schema": text, "schemaType": "PROTOBUF"})
    refers = {"references": [{"name": "shop/money.proto", "subject": "money.proto", "version": 1}]}
    text = 'syntax = "proto3"; import "shop/money.proto"; message Bill { Money total = 1; }'
    proto = registry.register("t-value", {"schema": text, "schemaType": "PROTOBUF", **refers})
    for number, good, bad in (
        (avro, b"\x0a", b""),
        (by_json, b'{"total": 5}', b'{"total": "5"}'),
        (proto, b"\0\x0a\x02\x08\x05", b"\0\x0a\x02\x10\x05"),
    ):
        head = b"\0" + number.to_bytes(4, "big")
        assert await send(cluster, "t", head + good) == [None], number
        assert await send(cluster, "t", head + bad) == [KafkaError.INVALID_RECORD], number


async def test_broker_without_a_registry_rejects_the_config(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        with pytest.raises(KafkaException, match=r"schema\.registry\.url"):
            await create(cluster, "t", BY_REGISTRY)
        message = base64.b64encode(b"not a descriptor").decode()
        with pytest.raises(KafkaException, match="Base64"):
            await create(
                cluster,
                "t",
                {"penstock.value.schema": message, "penstock.value.schema.type": "protobuf"},
            )


async def test_broker_without_the_schema_library_rejects_all_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The schema was set at another broker."""
    (tmp_path / "jsonschema_rs.py").write_text("raise ImportError(name='jsonschema_rs')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    configs = {"penstock.value.schema": "true"}
    async with Cluster(tmp_path / "cluster") as cluster:
        with pytest.raises(
            KafkaException, match=r"jsonschema_rs is missing: pip install"
        ) as refused:
            await create(cluster, "t", configs)
        assert refused.value.args[0].code() == KafkaError.INVALID_CONFIG
        request = CreateTopics(topics=[TopicRequest(name="t", configs=configs)])
        await cluster.broker.client.create_topics(request)
        await cluster.until_served("t")
        async with Attacker.connected(cluster.broker.port) as client:
            batch = encode_batch([Record(0, NOW_MS, None, b"{}")])
            response = await client.produce("t", batch)
        assert response.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
        assert "jsonschema_rs is missing" in response.error_message
        assert cluster.broker.record_checks.refused == {"unavailable": 1}
