"""Run `penstock mirror` as a process, and compare the contents of two clusters."""

import os
import subprocess
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.support.clients import TIMEOUT_S
from tests.support.dev_cluster import PENSTOCK
from tests.support.waiting import PATIENCE_S, wait_until


class Copied(NamedTuple):
    """A record as seen by read_committed consumers."""

    offset: int
    timestamp: tuple[int, int]
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, str | bytes | None], ...]


def mirror_command(source: str, target: str, *arguments: str) -> list[str]:
    return [*PENSTOCK, "mirror", *arguments, "--from", source, "--bootstrap", target]


def mirrored(source: str, target: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run one command until it exits."""
    return subprocess.run(
        mirror_command(source, target, *arguments),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@contextmanager
def running_mirror(
    source: str, target: str, log: Path, *arguments: str
) -> Generator["subprocess.Popen[bytes]"]:
    """Run a mirror until the block ends, then kill it. log: the file for its output."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            mirror_command(source, target, "--interval", "1", *arguments),
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(os.environ),
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def records_of(address: str, topic: str, partitions: int) -> dict[int, list[Copied]]:
    """Return all committed records of each partition, up to the end at the time of the call."""
    return {index: list(_records(address, topic, index)) for index in range(partitions)}


def _records(address: str, topic: str, index: int) -> Iterator[Copied]:
    settings: dict[str, Any] = {
        "bootstrap.servers": address,
        "group.id": "compares",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        "topic.metadata.refresh.interval.ms": 500,
    }
    consumer = Consumer(settings)
    try:
        start, _ = consumer.get_watermark_offsets(TopicPartition(topic, index), TIMEOUT_S)
        consumer.assign([TopicPartition(topic, index, start)])
        while True:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None, f"no end of {topic}-{index} after {TIMEOUT_S} s"
            error = message.error()
            if error is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return
                raise KafkaException(error)
            headers = tuple(message.headers() or ())
            offset = message.offset()
            assert offset is not None
            yield Copied(offset, message.timestamp(), message.key(), message.value(), headers)
    finally:
        consumer.close()


def watermarks(address: str, topic: str, partitions: int) -> list[tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "compares"})
    try:
        return [
            consumer.get_watermark_offsets(TopicPartition(topic, index), TIMEOUT_S)
            for index in range(partitions)
        ]
    finally:
        consumer.close()


def without_offsets(found: Mapping[int, list[Copied]]) -> dict[int, list[Copied]]:
    return {
        index: [record._replace(offset=at) for at, record in enumerate(records)]
        for index, records in found.items()
    }


def commit_offsets(address: str, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
    """Set the offsets of a group as soon as it has a coordinator, which Kafka creates on
    request.
    """
    admin: Any = AdminClient({"bootstrap.servers": address})
    parts = [TopicPartition(*key, offset) for key, offset in offsets.items()]

    def are_set() -> bool:
        request = ConsumerGroupTopicPartitions(group, parts)
        with suppress(KafkaException):
            done = admin.alter_consumer_group_offsets([request])[group].result(TIMEOUT_S)
            return all(part.error is None for part in done.topic_partitions or [])
        return False

    wait_until(are_set)


def committed(address: str, group: str) -> dict[tuple[str, int], int]:
    admin: Any = AdminClient({"bootstrap.servers": address})
    request = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([request])[group].result(TIMEOUT_S)
    return {(part.topic, part.partition): part.offset for part in found.topic_partitions or []}
