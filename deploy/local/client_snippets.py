"""Connection settings for each client: one line at the start of `penstock dev`, a complete program
from `penstock snippets CLIENT`.

Invariant: pure. The Python programs run as printed; tests run them.
"""

import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from penstock.deploy.clients.security import PLAINTEXT, ClientSecurity
from penstock.deploy.local import client_dialects
from penstock.objectstore.url_parameters import redact_url

_LINE_CHARACTERS_MAX: Final = 88
_PLACEHOLDER: Final = re.compile(
    r"BOOTSTRAP|TOPIC|STORE| KCAT|\nJAVA|LIBRDKAFKA|KAFKA_PYTHON|AIOKAFKA"
)


@dataclass(frozen=True, slots=True)
class Snippet:
    """Templates for one client, with uppercase words as placeholders: see `filled`. package: the
    Python package that the program imports.
    """

    line: str
    program: str
    package: str = ""


SNIPPETS: Final[dict[str, Snippet]] = {
    "confluent-kafka": Snippet(
        "Producer(LIBRDKAFKA)",
        """\
# pip install confluent-kafka; save this as example.py: confluent_kafka.py would import itself.
from confluent_kafka import Consumer, Producer

cluster = LIBRDKAFKA
producer = Producer(cluster)
producer.produce("TOPIC", "hello", key="k")
producer.flush()

consumer = Consumer({**cluster, "group.id": "me", "auto.offset.reset": "earliest"})
consumer.subscribe(["TOPIC"])
message = consumer.poll(10)
print(message.key(), message.value())
consumer.close()
""",
        "confluent_kafka",
    ),
    "kafka-python": Snippet(
        "KafkaProducer(**KAFKA_PYTHON)",
        """\
# pip install kafka-python; save this as example.py: kafka.py would import itself.
from kafka import KafkaConsumer, KafkaProducer

cluster = KAFKA_PYTHON
producer = KafkaProducer(**cluster)
producer.send("TOPIC", b"hello", key=b"k")
producer.flush()
producer.close()

consumer = KafkaConsumer("TOPIC", group_id="me", auto_offset_reset="earliest", **cluster)
message = next(consumer)
print(message.key, message.value)
consumer.close()
""",
        "kafka",
    ),
    "aiokafka": Snippet(
        "AIOKafkaProducer(**AIOKAFKA)",
        """\
# pip install aiokafka; save this as example.py: aiokafka.py would import itself.
import asyncio

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.helpers import create_ssl_context


async def main() -> None:
    cluster = AIOKAFKA
    async with AIOKafkaProducer(**cluster) as producer:
        await producer.send_and_wait("TOPIC", b"hello", key=b"k")
    async with AIOKafkaConsumer(
        "TOPIC", group_id="me", auto_offset_reset="earliest", **cluster
    ) as consumer:
        message = await consumer.getone()
        print(message.key, message.value)


asyncio.run(main())
""",
        "aiokafka",
    ),
    "kcat": Snippet(
        "kcat -b BOOTSTRAP KCAT -t TOPIC -C -o beginning -e",
        """\
echo 'k:hello' | kcat -b BOOTSTRAP KCAT -t TOPIC -P -K :
kcat -b BOOTSTRAP KCAT -t TOPIC -C -o beginning -e -K :
""",
    ),
    "java": Snippet(
        "bootstrap.servers=BOOTSTRAP\nJAVA",
        """\
# client.properties for any Java client, as in
# kafka-console-producer.sh --command-config client.properties
bootstrap.servers=BOOTSTRAP
JAVA
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
# Install with: pip install "penstock-streams[spark]"
# Spark reads the store, not the brokers. `penstock dev` without --store keeps the store in memory:
# run this program before you stop it, or start it with --store file:DIR.
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
records = spark.read.format("penstock").option("store", "STORE").option("subscribe", "TOPIC").load()
records.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "partition", "offset").show()
""",
        "pyspark",
    ),
}


def filled(
    text: str,
    *,
    bootstrap: str,
    topic: str,
    store: str,
    security: ClientSecurity = PLAINTEXT,
    is_line: bool = False,
) -> str:
    """Return the text with its placeholders replaced. security: how clients connect. is_line:
    whether to keep mappings and properties on one line.
    """
    if not security.protocol.has_tls:
        text = text.replace("from aiokafka.helpers import create_ssl_context\n", "")
    properties = security.properties()
    options = [f" -X {shlex.quote(f'{name}={value}')}" for name, value in properties.items()]
    separator = ", " if is_line else "\n"
    java, python, aiokafka = {}, {}, {}
    if security != PLAINTEXT:
        java = client_dialects.java(security)
        python = _code(client_dialects.kafka_python(security))
        aiokafka = _code(client_dialects.aiokafka(security))
    if tls := client_dialects.aiokafka_tls(security):
        files = ", ".join(f"{name}={value}" for name, value in _code(tls).items())
        aiokafka["ssl_context"] = f"create_ssl_context({files})"
    address = json.dumps(bootstrap)
    python = {"bootstrap_servers": f'{address}.split(",")'} | python
    aiokafka = {"bootstrap_servers": address} | aiokafka
    values = {
        "BOOTSTRAP": bootstrap,
        "TOPIC": topic,
        "STORE": store,
        " KCAT": "".join(options),
        "\nJAVA": "".join(f"{separator}{name}={value}" for name, value in java.items()),
        "LIBRDKAFKA": _mapping({"bootstrap.servers": address} | _code(properties), is_line=is_line),
        "KAFKA_PYTHON": _mapping(python, is_line=is_line),
        "AIOKAFKA": _mapping(aiokafka, is_line=is_line, indent="    "),
    }
    return _PLACEHOLDER.sub(lambda found: values[found[0]], text)


def _code(settings: Mapping[str, object]) -> dict[str, str]:
    return {
        name: json.dumps(value) if isinstance(value, str) else repr(value)
        for name, value in settings.items()
    }


def _mapping(code: Mapping[str, str], *, is_line: bool, indent: str = "") -> str:
    """Return the code of a dict. code: the code of each value by key."""
    items = [f'"{name}": {value}' for name, value in code.items()]
    line = f"{{{', '.join(items)}}}"
    if is_line or len(line) + len(indent) + len("cluster = ") <= _LINE_CHARACTERS_MAX:
        return line
    body = "".join(f"{indent}    {item},\n" for item in items)
    return f"{{\n{body}{indent}}}"


def is_readable(store: str) -> bool:
    """Return whether other processes can read a store."""
    return not store.startswith("memory")


def lines(
    *,
    bootstrap: str,
    topic: str,
    store: str,
    security: ClientSecurity = PLAINTEXT,
    hides_secrets: bool = False,
) -> list[str]:
    """Return one line for each client, without Spark if other processes cannot read the store.
    hides_secrets: whether to show `***` instead of passwords and keys.
    """
    if hides_secrets:
        security, store = security.redacted(), redact_url(store)
    return [
        f"{name:<16} "
        + filled(
            snippet.line,
            bootstrap=bootstrap,
            topic=topic,
            store=store,
            security=security,
            is_line=True,
        )
        for name, snippet in SNIPPETS.items()
        if name != "spark" or is_readable(store)
    ]
