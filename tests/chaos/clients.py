"""Clients that run during the whole test: producers with and without idempotence, and readers.

Invariants: each client has its own thread until the end of the run, and its observations go to the
record. An error that an application would have to handle is a violation, because the clients'
deadlines are longer than any fault. Readers get every offset in order.
"""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from tests.chaos.patience import Patience
from tests.chaos.record import Record
from tests.support.history import Part
from tests.support.waiting import PATIENCE_S

OUTSTANDING_COUNT_MAX: Final = 2_000
DELIVERY_TIMEOUT_MS: Final = 300_000
_PADDING: Final = b" " + b"." * 100
IMPATIENT: Final = {
    "socket.timeout.ms": 5_000,
    "retry.backoff.ms": 50,
    "retry.backoff.max.ms": 500,
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1_000,
    "topic.metadata.refresh.interval.ms": 5_000,
    "log_level": 0,
}
READING: Final = {
    "fetch.wait.max.ms": 200,
    "fetch.error.backoff.ms": 50,
    "check.crcs": True,
    "enable.auto.offset.store": False,
    "enable.partition.eof": False,
}


STUCK_S: Final = 40.0
"""Longer than any fault and the recovery after it."""


class ClientStuck(Exception):
    """A call of the client library does not return."""


def within(limit_s: float, call: Callable[[], object]) -> None:
    """Run `call` in a thread, and abandon the thread if it takes longer than the limit. Raises
    ClientStuck, KafkaException.

    After a Metadata response without a broker, librdkafka 2.11 to 2.16 may wait for this broker
    forever, with any timeout (confluentinc/librdkafka#5511, #5456). A stuck client continues with a
    new instance, which has to succeed.
    """
    errors: list[KafkaException] = []

    def run() -> None:
        try:
            call()
        except KafkaException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        raise ClientStuck
    if errors:
        raise errors[0]


class Client(threading.Thread):
    def __init__(self, name: str, record: Record) -> None:
        super().__init__(name=name, daemon=True)
        self.record = record
        self.ending = threading.Event()

    def run(self) -> None:
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - every error that ends a client is a violation
            self.record.violate(f"{self.name} ended: {type(error).__name__}: {error}")

    def work(self) -> None:
        raise AssertionError("a subclass must implement work()")

    def end(self, patience: Patience) -> bool:
        """End the client. Return True if it ended in time."""
        self.ending.set()
        while self.is_alive() and patience.lasts():
            self.join(0.1)
        return not self.is_alive()


class SteadyProducer(Client):
    """Produces one record to each partition every `pause_s`. Names that start with "-" disable
    idempotence.
    """

    def __init__(
        self, bootstrap: str, parts: list[Part], record: Record, name: str, pause_s: float
    ) -> None:
        super().__init__(f"producer {name}", record)
        self.label = name.encode()
        self._parts = parts
        self._pause_s = pause_s
        self.sent: dict[Part, int] = dict.fromkeys(parts, 0)
        self.settled_count = 0
        self.failed: list[str] = []
        self._producer = Producer(
            {
                **IMPATIENT,
                "bootstrap.servers": bootstrap,
                "client.id": f"chaos{name}",
                "enable.idempotence": not name.startswith("-"),
                "acks": "all",
                "linger.ms": 5,
                "batch.num.messages": 50,
                "request.timeout.ms": 4_000,
                "message.timeout.ms": DELIVERY_TIMEOUT_MS,
            }
        )

    @property
    def outstanding_count(self) -> int:
        return sum(self.sent.values()) - self.settled_count

    def work(self) -> None:
        due_at = self.record.now()
        while not self.ending.is_set():
            if self.record.now() >= due_at:
                due_at = self.record.now() + self._pause_s
                if self.outstanding_count < OUTSTANDING_COUNT_MAX:
                    for part in self._parts:
                        self._send(part)
            self._producer.poll(max(due_at - self.record.now(), 0))
        while self.outstanding_count:
            self._producer.poll(0.2)

    def _send(self, part: Part) -> None:
        number = self.sent[part]
        self.sent[part] = number + 1
        identity = b"%b/%d/%d" % (self.label, part[1], number)
        self.record.sent(part, identity)

        def delivered(error: KafkaError | None, message: Any) -> None:
            self.settled_count += 1
            if error is not None:
                self.failed.append(f"{part} number {number}: {error}")
                self.record.violate(f"{self.name} is refused {identity!r}: {error}")
            else:
                # No offset: the broker recognizes the batch as a duplicate, but no longer has its
                # offset.
                offset = message.offset()
                self.record.acknowledged(part, self.label, number, -1 if offset is None else offset)

        self._producer.produce(
            part[0], identity + _PADDING, partition=part[1], on_delivery=delivered
        )


class RackWatch:
    """Counts how often a consumer with `client.rack` reads from a broker other than the leader."""

    def __init__(self, rack: str) -> None:
        self.near_count = 0
        self.settings: dict[str, Any] = {}
        if rack:
            self.settings = {
                "client.rack": rack,
                "statistics.interval.ms": 1_000,
                "stats_cb": self._look,
            }

    def _look(self, statistics: str) -> None:
        for topic in json.loads(statistics)["topics"].values():
            for partition in topic["partitions"].values():
                self.near_count += partition["broker"] not in {partition["leader"], -1}


class Reader(Client):
    """Reads partitions from the beginning, without a group."""

    def __init__(
        self, bootstrap: str, parts: list[Part], record: Record, name: str, rack: str = ""
    ) -> None:
        """rack: that of a broker which is to serve partitions of other leaders; without it, leaders
        serve.
        """
        super().__init__(f"reader {name}", record)
        self.positions: dict[Part, int] = dict.fromkeys(parts, 0)
        self.watch = RackWatch(rack)
        settings = {
            **IMPATIENT,
            **READING,
            **self.watch.settings,
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
        }
        self._consumer = Consumer({**settings, "auto.offset.reset": "error"})
        self._consumer.assign([TopicPartition(*part, OFFSET_BEGINNING) for part in parts])

    def work(self) -> None:
        while not self.ending.is_set():
            message = self._consumer.poll(0.2)
            if message is None or is_passing(message.error()):
                continue
            if message.error() is not None:
                self.record.violate(f"{self.name}: {message.error()}")
                continue
            part, offset, identity = seen(message)
            if offset != self.positions[part]:
                self.record.violate(
                    f"{self.name} is given {part} offset {offset}, {self.positions[part]} was next"
                )
            self.positions[part] = offset + 1
            self.record.read(self.name, part, offset, identity)
        with suppress(ClientStuck):
            within(STUCK_S, self._consumer.close)


def seen(message: Any) -> tuple[Part, int, bytes]:
    """Return a record's position and identity."""
    return (
        (message.topic(), message.partition()),
        message.offset(),
        message.value().partition(b" ")[0],
    )


def is_passing(error: KafkaError | None) -> bool:
    """Return whether the client retries this error on its own."""
    passing = (
        KafkaError._MAX_POLL_EXCEEDED,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._WAIT_COORD,
        KafkaError._RESOLVE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    )
    return error is not None and (error.retriable() or error.code() in passing)


def end_offsets(bootstrap: str, parts: list[Part], timeout_s: float) -> dict[Part, tuple[int, int]]:
    """Return (log start, high watermark) of each partition. Raises KafkaException after the
    timeout.
    """
    consumer = Consumer({**IMPATIENT, "bootstrap.servers": bootstrap, "group.id": "none"})
    try:
        return {
            part: consumer.get_watermark_offsets(TopicPartition(*part), timeout=timeout_s)
            for part in parts
        }
    finally:
        consumer.close()


def read_all(
    bootstrap: str, ends: dict[Part, tuple[int, int]], record: Record, patience: Patience
) -> None:
    """Read everything up to these high watermarks with a new reader; missing records are
    violations.
    """
    reader = Reader(bootstrap, list(ends), record, "at the end")
    reader.positions = {part: start for part, (start, _) in ends.items()}
    reader.start()
    while any(reader.positions[part] < end for part, (_, end) in ends.items()) and patience.lasts(
        sum(reader.positions.values())
    ):
        time.sleep(0.1)
    reader.end(Patience(PATIENCE_S))
    for part, (start, end) in ends.items():
        if reader.positions[part] < end:
            record.violate(f"{part}: read to {reader.positions[part]} of {end}, and no further")
        else:
            record.history.check_all_read(part, start, end)
