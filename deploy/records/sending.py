"""Send records to brokers for `penstock produce`.

Invariant: returns only when every record is acknowledged as `acks` says, and a transaction is
committed; after a failure the transaction is aborted. A transaction has all records or none.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from penstock.deploy.clients.kafka import Kafka
from penstock.deploy.errors import DeployError, KafkaFailed
from penstock.deploy.records.lines import NewRecord

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

    from penstock.deploy.output import Progress

_FLUSH_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class SendOptions:
    """rate: records in a second, 0 for no limit. transactional_id: empty for no transaction."""

    topic: str
    acks: str = "all"
    compression: str = "lz4"
    transactional_id: str = ""
    rate: float = 0.0


def send(
    bootstrap: str, records: Iterable[NewRecord], sending: SendOptions, progress: "Progress"
) -> int:
    """Send records; return how many. Raises KafkaFailed, BadRecord."""
    from confluent_kafka import KafkaException

    kafka = Kafka(bootstrap)
    kafka.topics()
    is_transaction = bool(sending.transactional_id)
    options: dict[str, str | float | bool] = {
        "acks": sending.acks,
        "enable_idempotence": sending.acks == "all",
        "linger_ms": 20,
        "compression_type": sending.compression,
    }
    if is_transaction:
        options["transactional_id"] = sending.transactional_id
    producer = kafka.producer(**options)
    try:
        if is_transaction:
            producer.init_transactions(_FLUSH_S)
            producer.begin_transaction()
        try:
            sent = _Run(kafka, producer, sending, progress).send(records)
        except DeployError:
            if is_transaction:
                producer.abort_transaction(_FLUSH_S)
            raise
        if is_transaction:
            producer.commit_transaction(_FLUSH_S)
    except KafkaException as error:
        raise kafka.failure(
            error.args[0], f"transactional id {sending.transactional_id!r} failed"
        ) from None
    finally:
        producer.purge()  # after a failure
        producer.close()
    return sent


class _Run:
    """Sends the records of one command."""

    def __init__(
        self, kafka: Kafka, producer: "Producer", sending: SendOptions, progress: "Progress"
    ) -> None:
        self._kafka, self._producer = kafka, producer
        self._sending, self._progress = sending, progress
        self._refused: list[KafkaError] = []

    def send(self, records: Iterable[NewRecord]) -> int:
        topic = self._sending.topic
        began, sent = time.monotonic(), 0
        for record in records:
            self._produce(record)
            sent += 1
            if self._sending.rate:
                self._producer.poll(0)
                time.sleep(max(0.0, began + sent / self._sending.rate - time.monotonic()))
            self._producer.poll(0)
            if self._refused:
                break
        left = self._producer.flush(0 if self._refused else _FLUSH_S)
        if self._refused:
            raise self._kafka.failure(self._refused[0], f"topic {topic!r} refused a record")
        if left:
            raise KafkaFailed(
                f"{left:,} of {sent:,} records were not acknowledged within {_FLUSH_S:.0f} s; they"
                " may or may not be stored"
            )
        return sent

    def _produce(self, record: NewRecord) -> None:
        from confluent_kafka import KafkaException

        while not self._refused:
            try:
                self._producer.produce(
                    self._sending.topic,
                    record.value,
                    record.key,
                    record.partition,
                    on_delivery=self._delivered,
                    timestamp=record.timestamp_ms,
                    headers=record.headers,
                )
                return
            except BufferError:
                self._producer.poll(0.5)
            except KafkaException as error:
                raise self._kafka.failure(
                    error.args[0], f"topic {self._sending.topic!r} did not take the record"
                ) from None

    def _delivered(self, error: "KafkaError | None", _message: Any) -> None:  # noqa: ANN401 - the client's message, which is not looked at
        if error is not None:
            self._refused.append(error)
        else:
            self._progress.advance()
