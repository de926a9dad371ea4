"""Record the bucket of a cluster as the fixture of a release, with what Kafka's consumers read from
its brokers. Every later version has to read it.

    python -m tests.formats.record_release 1.0

Run it once for each release whose formats differ from those of the last one; never change a fixture
of a release.
"""

import json
import shutil
import sys
import tempfile
import time
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from penstock import Cluster, topics
from stream.batch.records import Record
from tests.formats.batches import BASE_MS, row_json
from tests.formats.generate import HERE

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TOPICS = (
    NewTopic("orders", 2, config={"retention.ms": "-1"}),
    NewTopic("latest", 1, config={"cleanup.policy": "compact"}),
    NewTopic("stamped", 1, config={"message.timestamp.type": "LogAppendTime"}),
    NewTopic("payments", 1),
)


def produce(servers: str) -> None:
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": servers, "compression.type": codec})
        for number in range(20):
            producer.produce(
                "orders",
                f"{codec} {number}",
                None if number % 5 == 0 else f"key {number}",
                partition=number % 2,
                timestamp=BASE_MS + 1_000 * (number ^ 3),
                headers=[("codec", codec.encode()), ("none", None)] if number == 7 else None,
            )
            producer.produce("latest", f"{codec} {number}", f"key {number % 4}")
            producer.produce("stamped", f"{number}")
        assert producer.flush(30) == 0
    for number, ends in enumerate(("commit", "abort", "commit")):
        producer = Producer({"bootstrap.servers": servers, "transactional.id": f"id {number}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for value in range(3):
            producer.produce("payments", f"{ends} {value}", partition=0)
        if ends == "commit":
            producer.commit_transaction(30)
        else:
            # Otherwise the client drops what it has not sent yet.
            producer.flush(30)
            producer.abort_transaction(30)


def consumed(servers: str, topic: str, partition: int, isolation_level: str) -> dict[str, Any]:
    """Return a partition as a consumer reads it from the brokers."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": isolation_level,
        }
    )
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), 30)
    consumer.assign([TopicPartition(topic, partition, low)])
    rows: list[Record] = []
    while (message := consumer.poll(30)) is not None and message.error() is None:
        rows.append(record_of(message))
    consumer.close()
    return {"log_start": low, "end_offset": high, "rows": [row_json(row) for row in rows]}


def record_of(message: Message) -> Record:
    offset, (_, timestamp_ms) = message.offset(), message.timestamp()
    assert offset is not None
    headers = tuple((name, value) for name, value in message.headers() or ())
    return Record(offset, timestamp_ms, message.key(), message.value(), headers)  # type: ignore[arg-type]


def expected_of(cluster: Cluster) -> dict[str, Any]:
    parts = {
        (topic.topic, partition): found_in(cluster.bootstrap_servers, topic.topic, partition)
        for topic in TOPICS
        for partition in range(topic.num_partitions)
    }
    # Consumers and transactions have created the internal topics meanwhile.
    while len(known := topics(cluster.store)) < len(TOPICS) + 2:
        time.sleep(0.1)
    found = [
        {
            "name": topic.name,
            "topic_id": str(topic.topic_id),
            "configs": dict(topic.configs),
            "is_internal": topic.is_internal,
            "partitions": [
                {"partition": partition, **parts[topic.name, partition]}
                for partition in range(0 if topic.is_internal else topic.partition_count)
            ],
        }
        for topic in known
    ]
    return {"topics": found}


def found_in(servers: str, topic: str, partition: int) -> dict[str, Any]:
    found = consumed(servers, topic, partition, "read_uncommitted")
    committed = consumed(servers, topic, partition, "read_committed")
    found["last_stable_offset"] = found["end_offset"]
    found["committed_offsets"] = [row["offset"] for row in committed["rows"]]
    return found


def main(release: str) -> None:
    folder = HERE / release
    if folder.exists():
        sys.exit(f"{folder.name} exists: fixtures of releases never change")
    with tempfile.TemporaryDirectory() as scratch:
        with Cluster(brokers=2, store=f"file:{scratch}/cluster") as cluster:
            bucket, servers = cluster.store.removeprefix("file:"), cluster.bootstrap_servers
            admin = AdminClient({"bootstrap.servers": servers})
            for future in admin.create_topics(list(TOPICS)).values():
                future.result(30)
            produce(servers)
            expected = expected_of(cluster)
        hidden = shutil.ignore_patterns(".penstock")
        shutil.copytree(bucket, folder / "bucket", ignore=hidden)
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
