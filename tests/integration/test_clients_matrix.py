"""Every client library reads the records that each library writes with each codec: keys, values,
headers, timestamps, nulls and large records.
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaException, Producer, TopicPartition
from confluent_kafka import KafkaError as ConfluentError
from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition
from kafka.codec import has_lz4, has_snappy, has_zstd
from kafka.errors import MessageSizeTooLargeError

from tests.support.clients import (
    KAFKA_PYTHON_LEAK,
    TIMEOUT_S,
    confluent_consumer,
    create_topic,
    read_records,
)
from tests.support.cluster import Cluster
from tests.support.in_thread import in_thread

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
SENT_MS = 1_700_000_000_000
FAMILIES = ["confluent", "kafka-python", "aiokafka"]
KAFKA_PYTHON_CODECS = {"none", "gzip"} | {
    name for name, has in (("snappy", has_snappy), ("lz4", has_lz4), ("zstd", has_zstd)) if has()
}
"""kafka-python requires an additional library for every other codec, with Kafka too."""


@dataclass(frozen=True)
class Sent:
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = SENT_MS


RECORDS = [
    Sent(b"key", b"value", (("a", b"1"), ("a", b"2"), ("empty", b""), ("ünï", bytes(range(256))))),
    Sent(None, b"no key", timestamp_ms=SENT_MS + 5),
    Sent(b"tombstone", None),
    Sent(b"", None, (("only", b"headers"),)),
    Sent(b"", b""),
    Sent(b"compressible", b"x" * 300_000, timestamp_ms=SENT_MS - 5),
    Sent(b"incompressible", os.urandom(200_000)),
    *(Sent(b"k%d" % index, b"v%d" % index) for index in range(200)),
]

pytestmark = [
    pytest.mark.cluster(brokers=2, group_min_session_timeout_ms=500),
    KAFKA_PYTHON_LEAK,
]


def write_confluent(bootstrap: str, topic: str, codec: str, idempotent: bool) -> None:
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": codec,
            "enable.idempotence": idempotent,
            "linger.ms": 5,
            "acks": "all",
        }
    )
    for sent in RECORDS:
        producer.produce(
            topic,
            sent.value,
            sent.key,
            partition=0,
            headers=list(sent.headers),
            timestamp=sent.timestamp_ms,
        )
    assert producer.flush(TIMEOUT_S) == 0


def write_kafka_python(bootstrap: str, topic: str, codec: str, idempotent: bool) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","),
        compression_type=None if codec == "none" else codec,
        enable_idempotence=idempotent,
        acks="all",
        linger_ms=5,
    )
    sends = [
        producer.send(
            topic,
            sent.value,
            sent.key,
            list(sent.headers),
            partition=0,
            timestamp_ms=sent.timestamp_ms,
        )
        for sent in RECORDS
    ]
    assert [send.get(TIMEOUT_S).offset for send in sends] == list(range(len(RECORDS)))
    producer.close()


async def write_aiokafka(bootstrap: str, topic: str, codec: str, idempotent: bool) -> None:
    settings = {
        "compression_type": None if codec == "none" else codec,
        "enable_idempotence": idempotent,
        "acks": "all",
        "linger_ms": 5,
    }
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, **settings) as producer:
        sends = [
            await producer.send(
                topic,
                sent.value,
                sent.key,
                0,
                timestamp_ms=sent.timestamp_ms,
                headers=list(sent.headers),
            )
            for sent in RECORDS
        ]
        assert [result.offset for result in await asyncio.gather(*sends)] == list(
            range(len(RECORDS))
        )


async def write(family: str, bootstrap: str, topic: str, codec: str, *, idempotent: bool) -> None:
    if family == "aiokafka":
        await write_aiokafka(bootstrap, topic, codec, idempotent)
    else:
        blocking = write_confluent if family == "confluent" else write_kafka_python
        await asyncio.to_thread(blocking, bootstrap, topic, codec, idempotent)


def read_confluent(bootstrap: str, topic: str) -> list[Sent]:
    consumer = confluent_consumer(bootstrap, "reader", check_crcs=True)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = read_records(consumer, len(RECORDS))
    consumer.close()
    assert [message.offset() for message in found] == list(range(len(RECORDS)))
    assert {message.timestamp()[0] for message in found} == {TIMESTAMP_CREATE_TIME}
    return [
        Sent(message.key(), message.value(), tuple(message.headers() or ()), message.timestamp()[1])
        for message in found
    ]


def read_kafka_python(bootstrap: str, topic: str) -> list[Sent]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        check_crcs=True,
        consumer_timeout_ms=TIMEOUT_S * 1_000,
    )
    partition = PyTopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning(partition)
    found = [next(consumer) for _ in RECORDS]
    consumer.close()
    assert [record.offset for record in found] == list(range(len(RECORDS)))
    return [
        Sent(record.key, record.value, tuple(record.headers), record.timestamp) for record in found
    ]


async def read_aiokafka(bootstrap: str, topic: str) -> list[Sent]:
    async with (
        AIOKafkaConsumer(bootstrap_servers=bootstrap, check_crcs=True) as consumer,
        asyncio.timeout(TIMEOUT_S),
    ):
        partition = AioTopicPartition(topic, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        found = [await consumer.getone() for _ in RECORDS]
    assert [record.offset for record in found] == list(range(len(RECORDS)))
    return [
        Sent(record.key, record.value, tuple(record.headers), record.timestamp) for record in found
    ]


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "plain"])
@pytest.mark.parametrize("family", FAMILIES)
async def test_every_client_reads_records_of_every_other_client(
    cluster: Cluster, family: str, idempotent: bool
) -> None:
    for codec in CODECS if idempotent else ["none", "gzip"]:
        if family == "kafka-python" and codec not in KAFKA_PYTHON_CODECS:
            continue
        topic = f"from-{family}-{codec}"
        await asyncio.to_thread(create_topic, cluster.bootstrap, topic)
        await write(family, cluster.bootstrap, topic, codec, idempotent=idempotent)
        assert await asyncio.to_thread(read_confluent, cluster.bootstrap, topic) == RECORDS, (
            f"{family}, {codec}, read by confluent"
        )
        assert await read_aiokafka(cluster.bootstrap, topic) == RECORDS, (
            f"{family}, {codec}, read by aiokafka"
        )
        if codec in KAFKA_PYTHON_CODECS:
            assert (
                await asyncio.to_thread(read_kafka_python, cluster.bootstrap, topic) == RECORDS
            ), f"{family}, {codec}, read by kafka-python"


@in_thread
def test_record_without_key_and_value_round_trips(cluster: Cluster) -> None:
    """Only librdkafka lets an application produce such a record."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    producer.produce("nulls", None, None)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = confluent_consumer(cluster.bootstrap, "g")
    consumer.subscribe(["nulls"])
    (message,) = read_records(consumer, 1)
    assert (message.key(), message.value()) == (None, None)
    consumer.close()


@in_thread
def test_too_large_record_fails_and_the_others_are_written(
    cluster: Cluster,
) -> None:
    create_topic(cluster.bootstrap, "small", max_message_bytes="20000")
    outcomes: list[ConfluentError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for value in (b"fits", os.urandom(30_000), b"fits too"):
        producer.produce(
            "small", value, partition=0, on_delivery=lambda error, _: outcomes.append(error)
        )
        assert producer.flush(TIMEOUT_S) == 0
    assert [error and error.code() for error in outcomes] == [
        None,
        ConfluentError.MSG_SIZE_TOO_LARGE,
        None,
    ]
    py = KafkaProducer(bootstrap_servers=cluster.bootstrap.split(","), enable_idempotence=False)
    with pytest.raises(MessageSizeTooLargeError):
        py.send("small", os.urandom(30_000), partition=0).get(TIMEOUT_S)
    assert py.send("small", b"fits", partition=0).get(TIMEOUT_S).offset == 2
    py.close()


@in_thread
def test_records_of_megabytes_are_accepted_if_the_topic_allows_them(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "large", max_message_bytes=str(12 << 20))
    large = os.urandom(10 << 20)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "message.max.bytes": 12 << 20})
    producer.produce("large", large, partition=0)
    producer.produce("large", b"after", partition=0)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = confluent_consumer(cluster.bootstrap, "g")
    consumer.subscribe(["large"])
    assert [message.value() for message in read_records(consumer, 2)] == [large, b"after"], (
        "larger than the fetch limits, yet it comes"
    )
    consumer.close()


@in_thread
def test_log_append_time_replaces_the_timestamps_of_records(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "stamped", message_timestamp_type="LogAppendTime")
    write_confluent(cluster.bootstrap, "stamped", "lz4", True)
    consumer = confluent_consumer(cluster.bootstrap, "g", check_crcs=True)
    consumer.subscribe(["stamped"])
    assert all(
        message.timestamp()[1] > SENT_MS + 10_000
        for message in read_records(consumer, len(RECORDS))
    )
    consumer.close()


@pytest.mark.parametrize("make", [lambda: b"x", lambda: None], ids=["value", "tombstone"])
@in_thread
def test_compacted_topic_rejects_records_without_keys(
    cluster: Cluster, make: Callable[[], bytes | None]
) -> None:
    create_topic(cluster.bootstrap, "table", cleanup_policy="compact")
    outcomes: list[ConfluentError | None] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for key in (b"key", None):
        producer.produce(
            "table",
            make(),
            key,
            partition=0,
            on_delivery=lambda error, _: outcomes.append(error),
        )
        assert producer.flush(TIMEOUT_S) == 0
    assert outcomes[0] is None
    assert outcomes[1] is not None
    assert outcomes[1].code() == ConfluentError.INVALID_RECORD


@in_thread
def test_produce_to_a_nonexistent_partition_fails(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, "two", 2)
    outcomes: list[ConfluentError | None] = []
    settings = {"bootstrap.servers": cluster.bootstrap, "message.timeout.ms": TIMEOUT_S * 1_000}
    producer = Producer(settings)
    try:
        producer.produce(
            "two", b"x", partition=7, on_delivery=lambda error, _: outcomes.append(error)
        )
    except KafkaException as error:
        outcomes.append(error.args[0])
    producer.flush(TIMEOUT_S)
    assert outcomes[0] is not None
    assert outcomes[0].code() == ConfluentError._UNKNOWN_PARTITION
