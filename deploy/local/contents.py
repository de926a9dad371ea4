"""Create the first topics and records of a local cluster.

Invariants: existing topics and their records are not changed, so a persistent store is seeded once.
Records are acknowledged (acks=all, idempotent) before they are counted. The functions block;
call them in a thread.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.deploy.errors import UsageError
from penstock.deploy.local.seed import SeedRecord, parse_seed
from penstock.deploy.output import counted
from penstock.protocol.client.errors import KafkaFailed

if TYPE_CHECKING:
    from confluent_kafka import Producer

_TIMEOUT_MS: Final = 30_000
_SILENCE_S: Final = 30.0
"""Time without an acknowledgement after which seeding fails."""
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class FirstContents:
    """The topics and records to create. topics: partition counts by name; other topics of the
    records have one partition. seed: file with records, or None.
    """

    topics: Mapping[str, int] = field(default_factory=dict[str, int])
    seed: Path | None = None

    def __bool__(self) -> bool:
        return bool(self.topics) or self.seed is not None

    def check(self) -> "FirstContents":
        """Return the contents with every topic that the records need. Raises UsageError for the
        first invalid line.
        """
        needed = dict(self.topics)
        for record in self.records():
            needed.setdefault(record.topic, 1)
        return FirstContents(needed, self.seed)

    def records(self) -> Iterator[SeedRecord]:
        if self.seed is None:
            return
        try:
            with self.seed.open("rb") as file:
                yield from parse_seed(file, self.topics, f"--seed-from {self.seed}")
        except OSError as error:
            raise UsageError(f"--seed-from {self.seed}: {error.strerror}") from None


def create_topics(
    bootstrap: str, topics: Mapping[str, int], *, keeps_all: bool = False
) -> set[str]:
    """Create topics and return those that did not exist. keeps_all: whether to retain records
    regardless of their age, such as seed records. Raises KafkaFailed.
    """
    from penstock.deploy.clients.wire import WireClient
    from penstock.protocol import apis
    from penstock.protocol.error_codes import ErrorCode
    from penstock.protocol.gen import create_topics as wire

    configs = [wire.CreatableTopicConfig("retention.ms", "-1")] if keeps_all else []
    wanted = [
        wire.CreatableTopic(name=name, num_partitions=count, replication_factor=-1, configs=configs)
        for name, count in topics.items()
    ]
    with WireClient(bootstrap) as client:
        request = wire.CreateTopicsRequest(topics=wanted, timeout_ms=_TIMEOUT_MS)
        response = client.send_request(apis.CREATE_TOPICS, request, wire.CreateTopicsResponse)
    for topic in response.topics:
        if topic.error_code not in {int(ErrorCode.NONE), int(ErrorCode.TOPIC_ALREADY_EXISTS)}:
            raise KafkaFailed(f"topic {topic.name!r} was not created: {topic.error_message}")
    return {topic.name for topic in response.topics if not topic.error_code}


def send(
    bootstrap: str,
    records: Iterable[SeedRecord],
    acknowledged: Callable[[], None],
    is_stopping: Callable[[], bool],
) -> int:
    """Send records and return the number acknowledged: all unless the cluster is stopping. Raises
    KafkaFailed.
    """
    from penstock.deploy.clients.kafka import Kafka

    kafka = Kafka(bootstrap)
    producer = kafka.producer(
        enable_idempotence=True, linger_ms=20, compression_type="lz4", partitioner="murmur2_random"
    )
    refused: list[Any] = []
    done = 0

    def delivered(error: object, _message: object) -> None:
        nonlocal done
        if error is not None:
            refused.append(error)
        else:
            done += 1
            acknowledged()

    sent = 0
    for record in records:
        if refused or is_stopping():
            break
        _produce(producer, record, delivered)
        sent += 1
    quiet_since, seen = time.monotonic(), -1
    while done < sent and not refused and not is_stopping():
        producer.poll(_POLL_S)
        if done != seen:
            quiet_since, seen = time.monotonic(), done
        elif time.monotonic() - quiet_since > _SILENCE_S:
            raise KafkaFailed(
                f"{sent - done:,} of {counted(sent, 'seed record')} not acknowledged within"
                f" {_SILENCE_S:.0f} s"
            )
    if refused:
        raise kafka.failure(refused[0], "a seed record was rejected")
    return done


def _produce(
    producer: "Producer", record: SeedRecord, delivered: Callable[[object, object], None]
) -> None:
    while True:
        try:
            producer.produce(
                record.topic,
                record.value,
                record.key,
                record.partition,
                on_delivery=delivered,
                timestamp=record.timestamp_ms,
                headers=list(record.headers),
            )
        except BufferError:
            producer.poll(_POLL_S)
        else:
            producer.poll(0)
            return
