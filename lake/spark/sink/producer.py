"""Send records to brokers with one librdkafka producer, until all are acknowledged or one has
failed.

Source: Kafka `KafkaProducer`, Spark `KafkaWriteTask`.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.lake.arrow.pyarrow_untyped import RecordBatch
from penstock.lake.spark.errors import InvalidOption
from penstock.lake.spark.sink.errors import ProducerFailed, WriteFailed
from penstock.lake.spark.sink.options import WriteOptions
from penstock.lake.spark.sink.rows import Record, check_rows, records

_GRACE_S: Final = 15.0
"""How long to wait for a delivery report after librdkafka's own delivery timeout."""

_POLL_S: Final = 0.1


class RecordProducer:
    """Sends records. `extra`: settings that override others, such as a transactional id. Raise
    InvalidOption for settings that librdkafka does not have.

    Invariants: `finish` returns only when every record passed to `send` is acknowledged. The first
    failure ends the work; its error contains topic, partition and reason. Memory is the producer's
    buffer (`kafka.buffer.memory`); `send` waits for room in it, with a deadline. Each record is one
    call into C, without a callback. The producer must be closed, because it has threads.
    """

    def __init__(self, options: WriteOptions, extra: Mapping[str, str] | None = None) -> None:
        self._options = options
        self._failure: WriteFailed | None = None
        self._last_error = ""
        callbacks = {
            "on_delivery": self._on_undelivered,
            "error_cb": self._on_error,
            "delivery.report.only.error": True,
        }
        try:
            self.client: Producer = Producer({**options.producer, **(extra or {}), **callbacks})
        except KafkaException as error:
            raise InvalidOption(
                f"Kafka options: {error.args[0].str()} (names are librdkafka's where Java's have no"
                " like)"
            ) from None
        self.sent_count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Drop records that are not acknowledged. There are none after `finish`."""
        with suppress(KafkaException, SystemError):
            self.client.purge()
        with suppress(KafkaException, SystemError):
            self.client.close()

    def send(self, batch: RecordBatch) -> None:
        """Send the rows of a batch. Raise InvalidRow or WriteFailed."""
        check_rows(batch, self._options.topic)
        produce = self.client.produce
        for record in records(batch, self._options.topic):
            topic, value, key, partition, timestamp_ms, headers = record
            try:
                produce(topic, value, key, partition, None, None, timestamp_ms, headers)
            except BufferError:
                self._produce_when_there_is_room(Record(*record))
            except KafkaException as error:
                raise self._refused(topic, partition, error) from None
        self.sent_count += batch.num_rows
        self.check(0)

    def finish(self) -> None:
        """Wait until all records are acknowledged. Raise WriteFailed or ProducerFailed."""
        left = self._call_client(
            self.client.flush, self._options.delivery_timeout_ms / 1_000 + _GRACE_S
        )
        self.check(0)
        if left:
            raise ProducerFailed(
                f"{left} of {self.sent_count} records were not acknowledged in time"
                f"{self._last_error}"
            )

    def check(self, wait_s: float) -> None:
        """Handle delivery reports. Raise WriteFailed or ProducerFailed."""
        self._call_client(self.client.poll, wait_s)
        if self._failure is not None:
            raise self._failure

    def forget_failures(self) -> None:
        """Clear the failures of an aborted transaction."""
        self._call_client(self.client.poll, 0)
        self._failure = None
        self.sent_count = 0

    def _produce_when_there_is_room(self, record: Record) -> None:
        deadline_s = time.monotonic() + self._options.max_block_ms / 1_000
        while time.monotonic() < deadline_s:
            self.check(_POLL_S)
            try:
                self.client.produce(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
                    None,
                    None,
                    record.timestamp_ms,
                    record.headers,
                )
            except BufferError:
                continue
            except KafkaException as error:
                raise self._refused(record.topic, record.partition, error) from None
            return
        waited = (
            f"the buffer was full for {self._options.max_block_ms} ms"
            f" (kafka.max.block.ms){self._last_error}"
        )
        raise WriteFailed(record.topic, record.partition, waited)

    def _call_client(self, call: Callable[[float], int], timeout_s: float) -> int:
        """Call a client method that runs callbacks. A fatal error is raised as an exception, or as
        Python's SystemError if the client runs a callback while that exception is set.
        """
        try:
            return call(timeout_s)
        except (KafkaException, SystemError) as error:
            raise self._failure or ProducerFailed(f"{_reason(error)}{self._last_error}") from None

    def _refused(self, topic: str, partition: int, error: KafkaException) -> WriteFailed:
        """Return the error to raise: an earlier failure if there is one, because it is the
        cause.
        """
        return self._failure or WriteFailed(
            topic, partition, f"{error.args[0].str()}{self._last_error}"
        )

    # --- called by the client, in the thread that polls -------------------------------------------

    def _on_undelivered(self, error: KafkaError | None, message: Message) -> None:
        if error is not None and self._failure is None:
            partition = message.partition()
            place = str(message.topic()), -1 if partition is None else partition
            self._failure = WriteFailed(*place, f"{error.str()}{self._last_error}")

    def _on_error(self, error: KafkaError) -> None:
        """Keep the last error, which explains missing acknowledgements."""
        self._last_error = f" ({error.str()})"


def _reason(error: BaseException) -> str:
    """Return the message of the client's exception, which may be wrapped in another exception."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, KafkaException):
        cause = cause.__cause__ or cause.__context__
    return str(error) if cause is None else cause.args[0].str()


def check_settings(options: WriteOptions) -> None:
    """Check that librdkafka accepts these settings, without contacting a broker. Raise
    InvalidOption.
    """
    transactional = {"transactional.id": "check"} if options.exactly_once else {}
    with RecordProducer(options, {**transactional, "log_level": "0"}):
        pass
