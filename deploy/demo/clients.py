"""Run the two Kafka clients of the demo, unmodified and configured as in their documentation.

Invariant: `produce` counts records that the broker acknowledged (acks=all); `consume` counts
records that the client returned.
"""

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from penstock.base.errors import ExpectedError
from penstock.base.extras import install_hint
from penstock.deploy.demo.flights import Flight
from penstock.deploy.demo.record_count import Tally
from penstock.deploy.output import counted
from penstock.protocol.client.errors import KafkaFailed

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

SILENCE_S: Final = 120.0
"""Time without an acknowledgment or a record after which producing or consuming is considered
failed.
"""

_STEP: Final = 1_000
_PRODUCER: Final[dict[str, str | int | float | bool]] = {
    "acks": "all",
    "enable.idempotence": True,
    "compression.type": "gzip",  # the only codec that kafka-python supports without extra packages
    "compression.level": 1,
    "linger.ms": 100,
    "batch.size": 1_000_000,
    "log_level": 2,
}


def produce(
    bootstrap: str, topic: str, flights: Iterable[Flight], progress: Callable[[int], None]
) -> Tally:
    """Send the records with confluent-kafka and count those that were acknowledged. Raises
    KafkaFailed.
    """
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, **_PRODUCER})
    tally = Tally()
    refused: list[KafkaError] = []
    acknowledged = 0

    def delivered(error: "KafkaError | None", _message: Any) -> None:  # noqa: ANN401 - the client's message, which is not looked at
        nonlocal acknowledged
        if error is None:
            acknowledged += 1
        else:
            refused.append(error)

    for flight in flights:
        key, timestamp_ms, value = flight
        while True:
            try:
                producer.produce(topic, value, key, timestamp=timestamp_ms, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(0.1)
        tally.add(key, timestamp_ms, value)
        if tally.count % _STEP == 0:
            producer.poll(0)
            progress(acknowledged)
    _flush(producer.flush, lambda: progress(acknowledged))
    if refused:
        raise KafkaFailed(
            f"the brokers rejected {counted(len(refused), 'record')}, the first one because of"
            f" {refused[0].str()}"
        )
    if acknowledged != tally.count:
        raise KafkaFailed(
            f"only {acknowledged:,} of {counted(tally.count, 'record')} acknowledged, and no other"
            f" within {SILENCE_S:.0f} s"
        )
    return tally


def _flush(flush: Callable[[float], int], report: Callable[[], None]) -> None:
    left, heard_at = 0, time.monotonic()
    while (remaining := flush(0.1)) and time.monotonic() - heard_at < SILENCE_S:
        if remaining != left:
            left, heard_at = remaining, time.monotonic()
        report()
    report()


def consume(
    bootstrap: str,
    topic: str,
    expected: int,
    progress: Callable[[int], None],
    first: Callable[[], None],
) -> Tally:
    """Read with kafka-python until `expected` records have arrived, and then briefly check for
    duplicates. first: called at the first record.
    """
    try:
        from kafka import KafkaConsumer
        from kafka.errors import KafkaError as ClientError
    except ImportError:
        raise ExpectedError(
            f"the demo needs the package kafka-python: {install_hint('demo')}"
        ) from None

    consumer: Any = KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap.split(","),
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    tally = Tally()
    heard_at = time.monotonic()
    try:
        while time.monotonic() - heard_at < SILENCE_S:
            is_complete = tally.count >= expected
            batches = consumer.poll(timeout_ms=500, max_records=20_000)
            if not batches:
                if is_complete:
                    break
                continue
            if not tally.count:
                first()
            heard_at = time.monotonic()
            for records in batches.values():
                for record in records:
                    tally.add(record.key, record.timestamp, record.value)
            progress(tally.count)
    except ClientError as error:
        sent = counted(tally.count, "record")
        raise KafkaFailed(f"kafka-python failed after {sent}: {error}") from None
    finally:
        consumer.close()
    return tally
