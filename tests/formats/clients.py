"""What Kafka clients read from brokers, in the form of a release's expected results."""

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from penstock.protocol.batch.records import Record
from tests.formats.batches import row_json
from tests.support.clients import TIMEOUT_S


def consumed(servers: str, topic: str, partition: int = 0) -> dict[str, Any]:
    """Return a partition as read_uncommitted and read_committed consumers read it."""
    found = _read(servers, topic, partition, "read_uncommitted")
    committed = _read(servers, topic, partition, "read_committed")
    return {
        "partition": partition,
        **found,
        "last_stable_offset": committed["end_offset"],
        "committed_offsets": [row["offset"] for row in committed["rows"]],
    }


def _read(servers: str, topic: str, partition: int, isolation_level: str) -> dict[str, Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
            "fetch.wait.max.ms": 10,  # time until the end of a partition is detected
        }
    )
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), TIMEOUT_S)
    consumer.assign([TopicPartition(topic, partition, low)])
    rows: list[Record] = []
    while (message := consumer.poll(TIMEOUT_S)) is not None and message.error() is None:
        rows.append(record_of(message))
    consumer.close()
    return {"log_start": low, "end_offset": high, "rows": [row_json(row) for row in rows]}


def record_of(message: Message) -> Record:
    offset, (_, timestamp_ms) = message.offset(), message.timestamp()
    assert offset is not None
    # The type annotations of the client allow more than it returns.
    key, value, headers = _bytes(message.key()), _bytes(message.value()), message.headers()
    pairs: Iterable[Any] = headers or ()
    return Record(offset, timestamp_ms, key, value, tuple((name, item) for name, item in pairs))


def _bytes(found: bytes | str | None) -> bytes | None:
    assert not isinstance(found, str)
    return found


def committed_offsets(servers: str, group: str) -> dict[str, dict[str, int]]:
    """Return the committed offsets of a group, by topic and partition."""
    admin = AdminClient({"bootstrap.servers": servers})
    (response,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    found: dict[str, dict[str, int]] = {}
    for part in response.result(TIMEOUT_S).topic_partitions:
        found.setdefault(part.topic, {})[str(part.partition)] = part.offset
    return found
