"""Show how each client connects: one line at the start of `penstock dev`, a whole program from
`penstock snippets CLIENT`.

Invariant: pure. The Python programs run as printed; tests run them.
"""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Snippet:
    """Texts for one client, with BOOTSTRAP, TOPIC and STORE as placeholders."""

    line: str
    program: str


SNIPPETS: Final[dict[str, Snippet]] = {
    "confluent-kafka": Snippet(
        'Producer({"bootstrap.servers": "BOOTSTRAP"})',
        """\
from confluent_kafka import Consumer, Producer

producer = Producer({"bootstrap.servers": "BOOTSTRAP"})
producer.produce("TOPIC", "hello", key="k")
producer.flush()

consumer = Consumer(
    {"bootstrap.servers": "BOOTSTRAP", "group.id": "me", "auto.offset.reset": "earliest"}
)
consumer.subscribe(["TOPIC"])
message = consumer.poll(10)
print(message.key(), message.value())
consumer.close()
""",
    ),
    "kafka-python": Snippet(
        'KafkaProducer(bootstrap_servers="BOOTSTRAP".split(","))',
        """\
from kafka import KafkaConsumer, KafkaProducer

producer = KafkaProducer(bootstrap_servers="BOOTSTRAP".split(","))
producer.send("TOPIC", b"hello", key=b"k")
producer.flush()
producer.close()

consumer = KafkaConsumer(
    "TOPIC",
    bootstrap_servers="BOOTSTRAP".split(","),
    group_id="me",
    auto_offset_reset="earliest",
)
message = next(consumer)
print(message.key, message.value)
consumer.close()
""",
    ),
    "aiokafka": Snippet(
        'AIOKafkaProducer(bootstrap_servers="BOOTSTRAP")',
        """\
import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer


async def main() -> None:
    async with AIOKafkaProducer(bootstrap_servers="BOOTSTRAP") as producer:
        await producer.send_and_wait("TOPIC", b"hello", key=b"k")
    async with AIOKafkaConsumer(
        "TOPIC", bootstrap_servers="BOOTSTRAP", group_id="me", auto_offset_reset="earliest"
    ) as consumer:
        message = await consumer.getone()
        print(message.key, message.value)


asyncio.run(main())
""",
    ),
    "kcat": Snippet(
        "kcat -b BOOTSTRAP -t TOPIC -C -o beginning -e",
        """\
echo 'k:hello' | kcat -b BOOTSTRAP -t TOPIC -P -K :
kcat -b BOOTSTRAP -t TOPIC -C -o beginning -e -K :
""",
    ),
    "java": Snippet(
        "bootstrap.servers=BOOTSTRAP",
        """\
# client.properties for any Java client, as in
# kafka-console-producer.sh --producer.config client.properties
bootstrap.servers=BOOTSTRAP
acks=all
enable.idempotence=true
key.serializer=org.apache.kafka.common.serialization.StringSerializer
value.serializer=org.apache.kafka.common.serialization.StringSerializer
key.deserializer=org.apache.kafka.common.serialization.StringDeserializer
value.deserializer=org.apache.kafka.common.serialization.StringDeserializer
auto.offset.reset=earliest
""",
    ),
    "spark": Snippet(
        'spark.read.format("penstock").option("store", "STORE").option("subscribe",'
        ' "TOPIC").load()',
        """\
# Install with: pip install ".[spark]" in a checkout of Penstock.
# Spark reads the objects, not the brokers. A store in memory cannot be read from another process.
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
records = spark.read.format("penstock").option("store", "STORE").option("subscribe", "TOPIC").load()
records.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "partition", "offset").show()
""",
    ),
}


def filled(text: str, *, bootstrap: str, topic: str, store: str) -> str:
    return text.replace("BOOTSTRAP", bootstrap).replace("TOPIC", topic).replace("STORE", store)


def lines(*, bootstrap: str, topic: str, store: str) -> list[str]:
    """Return one line for each client, without Spark if other processes cannot read the store."""
    shown = {
        name: snippet
        for name, snippet in SNIPPETS.items()
        if name != "spark" or not store.startswith("memory")
    }
    return [
        f"{name:<16} {filled(snippet.line, bootstrap=bootstrap, topic=topic, store=store)}"
        for name, snippet in shown.items()
    ]
