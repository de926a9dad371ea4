"""Send records to brokers for `penstock produce`.

Invariant: `send` returns only when every record is acknowledged according to `acks` and the
transaction, if any, is committed. After a failure, the transaction is aborted, and none of its
records becomes visible.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from penstock.base.errors import ExpectedError
from penstock.deploy.clients.kafka import Kafka, interruptible
from penstock.deploy.errors import UsageError
from penstock.deploy.interrupts import Interrupts
from penstock.deploy.output import counted, remark
from penstock.deploy.records.lines import NewRecord
from penstock.deploy.records.refusals import Refused, refusal
from penstock.protocol.client.errors import KafkaFailed

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Message, Producer

    from penstock.deploy.output import Progress

_FLUSH_S: Final = 60.0
OnAcknowledged: TypeAlias = "Callable[[Message[bytes, bytes]], None]"


@dataclass(frozen=True, slots=True)
class SendOptions:
    """rate: records per second, 0 for no limit. transactional_id: empty for no transaction.
    is_interactive: whether to wait for the acknowledgement of each record before reading the next.
    """

    topic: str
    acks: str = "all"
    compression: str = "lz4"
    transactional_id: str = ""
    rate: float = 0.0
    is_interactive: bool = False


class Sent(NamedTuple):
    """is_interrupted: whether the input was ended by Ctrl-C. topics: the topics that existed before
    the first record.
    """

    records: int
    is_interrupted: bool
    topics: Sequence[str]


def send(
    bootstrap: str,
    records: Iterable[NewRecord],
    sending: SendOptions,
    progress: "Progress",
    on_acknowledged: "OnAcknowledged | None" = None,
) -> Sent:
    """Send records, and call `on_acknowledged` for each when it is acknowledged. Raises
    KafkaFailed, BadRecord, UsageError.
    """
    from confluent_kafka import KafkaException

    kafka = Kafka(bootstrap)
    topics = [view.name for view in kafka.topics()]
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
            run = _Run(kafka, producer, sending, progress, on_acknowledged)
            count = run.send(records)
        except (ExpectedError, KeyboardInterrupt):
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
    return Sent(count, run.is_interrupted, topics)


class _Run:
    """Sends the records of one command."""

    def __init__(
        self,
        kafka: Kafka,
        producer: "Producer",
        sending: SendOptions,
        progress: "Progress",
        on_acknowledged: "OnAcknowledged | None",
    ) -> None:
        self._kafka, self._producer = kafka, producer
        self._sending, self._progress = sending, progress
        self._on_acknowledged = on_acknowledged
        self._refused: list[Refused] = []
        self._sent = 0
        self._acknowledged = 0
        self.is_interrupted = False

    def send(self, records: Iterable[NewRecord]) -> int:
        try:
            with Interrupts() as interrupts:
                self._send_all(records, interrupts)
        except KeyboardInterrupt:
            if self._sending.transactional_id:
                raise
            self.is_interrupted = True
            remark("waiting for acknowledgements; Ctrl-C again gives up")
        left = interruptible(partial(self._producer.flush, 0 if self._refused else _FLUSH_S))
        if self._refused:
            raise refusal(self._kafka, self._sending.topic, self._refused)
        if left:
            raise KafkaFailed(
                f"{left:,} of {counted(self._sent, 'record')} not acknowledged within"
                f" {_FLUSH_S:.0f} s; they may or may not be stored{self._kafka.silent.reason()}"
            )
        return self._acknowledged

    def _send_all(self, records: Iterable[NewRecord], interrupts: Interrupts) -> None:
        began = time.monotonic()
        for record in records:
            interrupts.check()
            self._produce(record)
            self._sent += 1
            if self._sending.rate:
                interruptible(partial(self._producer.poll, 0))
                time.sleep(max(0.0, began + self._sent / self._sending.rate - time.monotonic()))
            if self._sending.is_interactive:
                interruptible(partial(self._producer.flush, _FLUSH_S))
            interruptible(partial(self._producer.poll, 0))
            if self._refused:
                break

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
                interruptible(partial(self._producer.poll, 0.5))
            except OverflowError:
                raise UsageError(
                    f"partition {record.partition} or timestamp {record.timestamp_ms} of a record"
                    " is out of range"
                ) from None
            except KafkaException as error:
                raise self._kafka.failure(
                    error.args[0], f"topic {self._sending.topic!r} rejected the record"
                ) from None

    def _delivered(self, error: "KafkaError | None", message: "Message[bytes, bytes]") -> None:
        if error is not None:
            self._refused.append((error, message))
            return
        self._acknowledged += 1
        self._progress.advance()
        if self._on_acknowledged is not None:
            self._on_acknowledged(message)
