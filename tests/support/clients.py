"""Unmodified Kafka clients with short timeouts, and loops that poll them until a condition is true.

Blocking clients are polled in one thread, several of them in turn: a consumer joins and leaves its
group only while it is polled. Every loop has a deadline, and its error shows the progress.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.waiting import PATIENCE_S

TIMEOUT_S = PATIENCE_S
SESSION_TIMEOUT_MS = 30_000
"""Members must not leave their group because a process stalls for some seconds."""
SHORT_SESSION_TIMEOUT_MS = 6_000
"""For members whose silence a test waits for."""
POLL_S = 0.05
KAFKA_PYTHON_LEAK = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
"""kafka-python 3.0.12 does not close a socket whose connection attempt it cancels."""
PATIENT_TRANSACTION = {"transaction.timeout.ms": 900_000}
"""For transactions that stay open during other steps of a test; brokers allow no longer timeout."""

GROUP_SETTINGS: dict[str, Any] = {
    "session.timeout.ms": SESSION_TIMEOUT_MS,
    "heartbeat.interval.ms": 200,
    "auto.offset.reset": "earliest",
    "fetch.wait.max.ms": 100,
    "topic.metadata.refresh.interval.ms": 500,
}

_PASSING = (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT)
"""A broker closes connections, for example when its session expires. librdkafka connects again."""


def confluent_consumer(bootstrap: str, group: str, **settings: Any) -> Consumer:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return Consumer({"bootstrap.servers": bootstrap, "group.id": group} | GROUP_SETTINGS | named)


def protocol_consumer(bootstrap: str, protocol: str, group: str, **settings: Any) -> Consumer:
    """protocol: "classic" or "consumer" (KIP-848), for which the broker has the timeouts."""
    if protocol == "classic":
        return confluent_consumer(bootstrap, group, **settings)
    named = {name.replace("_", "."): value for name, value in settings.items()}
    common = {
        name: value
        for name, value in GROUP_SETTINGS.items()
        if name not in ("session.timeout.ms", "heartbeat.interval.ms")
    }
    given = {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": protocol}
    return Consumer(given | common | named)


def create_topic(
    bootstrap: str, topic: str, partitions: int = 1, *, timeout_s: float = TIMEOUT_S, **config: str
) -> None:
    """Create a topic; retry if the broker closed the connection, as it does when its session
    expires on a slow machine.
    """
    admin = AdminClient({"bootstrap.servers": bootstrap})
    settings = {name.replace("_", "."): value for name, value in config.items()}
    requested = NewTopic(topic, partitions, config=settings)
    deadline, is_repeated = time.monotonic() + timeout_s, False
    while True:
        try:
            admin.create_topics([requested])[topic].result(timeout_s)
        except KafkaException as error:
            code = error.args[0].code()
            if is_repeated and code == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if code != KafkaError._TRANSPORT or time.monotonic() > deadline:
                raise
            is_repeated = True
        else:
            return


def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[bytes],
    partitions: Iterable[int] = (0,),
    **settings: Any,
) -> None:
    """Distribute the records evenly over the partitions, and wait until all are acknowledged."""
    failed: list[KafkaError] = []
    targets = list(partitions)
    producer = Producer(
        {"bootstrap.servers": bootstrap}
        | {name.replace("_", "."): value for name, value in settings.items()}
    )
    # Records for unknown partitions are queued separately, and the flush may send them one by one.
    producer.list_topics(topic, timeout=TIMEOUT_S)
    for index, value in enumerate(records):
        producer.produce(
            topic,
            value,
            partition=targets[index % len(targets)],
            on_delivery=lambda error, _: error and failed.append(error),
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert failed == []


class Taken:
    """The partitions that consumers lost, by revocation or because the consumers were too late."""

    def __init__(self) -> None:
        self.revoked: list[int] = []
        self.lost: list[int] = []

    def subscribe(self, consumer: Consumer, topic: str) -> Consumer:
        """Subscribe the consumer, record its revocations, and return it."""
        consumer.subscribe(
            [topic],
            on_revoke=lambda _, parts: self.revoked.extend(part.partition for part in parts),
            on_lost=lambda _, parts: self.lost.extend(part.partition for part in parts),
        )
        return consumer


class Polled:
    """Confluent consumers that are polled in turn. `values` contains the values that each consumer
    has received, in order.
    """

    def __init__(self, *consumers: Consumer) -> None:
        self.consumers = list(consumers)
        self.values: dict[Consumer, list[bytes | None]] = {consumer: [] for consumer in consumers}

    def add(self, consumer: Consumer) -> None:
        self.consumers.append(consumer)
        self.values[consumer] = []

    def drop(self, consumer: Consumer) -> None:
        """Stop polling the consumer; keep its values."""
        self.consumers.remove(consumer)

    def poll(self) -> None:
        for consumer in self.consumers:
            message = consumer.poll(POLL_S)
            if message is not None and is_record(message):
                self.values[consumer].append(message.value())

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert time.monotonic() < deadline, (
                f"assigned {self.assigned()}, polled"
                f" {[len(values) for values in self.values.values()]}"
            )
            self.poll()

    def until_count(self, count: int) -> None:
        """Poll until there are this many records in total."""
        self.until(lambda: len(self.everything()) >= count)

    def until_shared(self, *partition_counts: int) -> None:
        """Poll until the consumers own this many partitions each, in any order, and no partition
        has two owners.
        """

        def shared() -> bool:
            assigned = self.assigned()
            distinct = {partition for partitions in assigned for partition in partitions}
            counts = sorted(len(partitions) for partitions in assigned)
            return counts == sorted(partition_counts) and len(distinct) == sum(partition_counts)

        self.until(shared)

    def assigned(self) -> list[list[tuple[str, int]]]:
        return [
            [(part.topic, part.partition) for part in consumer.assignment()]
            for consumer in self.consumers
        ]

    def everything(self) -> list[bytes | None]:
        return [value for values in self.values.values() for value in values]


def checked(message: Message | None) -> Message:
    assert message is not None, "nothing came"
    assert message.error() is None, message.error()
    return message


def is_record(message: Message) -> bool:
    """Return whether it is a record, and not an error that ends by itself. Other errors fail."""
    error = message.error()
    if error is not None and error.code() in _PASSING:
        return False
    checked(message)
    return True


def read_records(consumer: Consumer, count: int, timeout_s: float = TIMEOUT_S) -> list[Message]:
    """Return the next `count` records of an assigned or subscribed consumer."""
    messages: list[Message] = []
    deadline = time.monotonic() + timeout_s
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} came"
        found = consumer.consume(count - len(messages), POLL_S)
        messages += [message for message in found if is_record(message)]
    return messages
