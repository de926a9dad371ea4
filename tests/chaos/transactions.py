"""Transactional clients, each with one `transactional.id` for the whole run.

A `TransactionSender` nearly always has an open transaction. A `Transformer` consumes in a group,
produces, and commits its offsets with the transaction. Each transaction is recorded once: ok, fail
or info. After a fatal error a client continues with a new producer.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from random import Random
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)

from tests.chaos.clients import (
    IMPATIENT,
    READING,
    STUCK_S,
    Client,
    ClientStuck,
    RackWatch,
    is_passing,
    within,
)
from tests.chaos.record import Record as ChaosRecord
from tests.support.anomalies import UNKNOWN, Assign, Consumed, Outcome, Poll, Record, Write
from tests.support.history import Part

_CALL_S: Final = 10.0
"""The timeout of a library call. A call that times out is repeated."""
_TRANSACTION_TIMEOUT_MS: Final = 120_000
_ABORTED_SHARE: Final = 0.4
_INPUT_COUNT_MAX: Final = 300
_POLL_S: Final = 0.3
TRANSFORM_GROUP: Final = "chaos-transform"


@dataclass(slots=True)
class Transaction:
    """A transaction in progress."""

    number: int
    began_s: float
    sends: list[tuple[Part, bytes]] = field(default_factory=list)
    offsets: dict[bytes, int] = field(default_factory=dict)
    consumed: tuple[Consumed, ...] = ()
    commit_began_s: float = inf


class TransactionalClient(Client):
    """Runs transactions one after another.

    outputs: the partitions that it writes to. finished: the number of transactions by outcome.
    producer_count: 1 if no producer was lost.
    """

    def __init__(
        self, bootstrap: str, outputs: list[Part], record: ChaosRecord, name: str, rng: Random
    ) -> None:
        super().__init__(f"transactions {name}", record)
        self.label = name
        self.outputs = outputs
        self.rng = rng
        self.finished: Counter[Outcome] = Counter()
        self.producer_count = 0
        self.settled_s = -1.0
        """The start time of the last transaction that ended for the client."""
        self._number = 0
        self._producer: Producer | None = None
        self._stuck: list[Producer | Consumer] = []
        """Stuck instances. They are kept, because closing one may also block."""
        self._settings: dict[str, Any] = {
            **IMPATIENT,
            "bootstrap.servers": bootstrap,
            "client.id": f"chaos-{name}",
            "transactional.id": f"chaos-{name}",
            "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
            "message.timeout.ms": _TRANSACTION_TIMEOUT_MS,
            "request.timeout.ms": 4_000,
            "linger.ms": 5,
        }

    def prepare(self) -> tuple[Consumed, ...] | None:
        """Return the input of the next transaction, or None if there is none yet."""
        return ()

    def fill(self, transaction: Transaction) -> None:
        """Produce the records of the transaction."""
        raise AssertionError("a subclass must implement fill()")

    def add_offsets(self, producer: Producer, transaction: Transaction) -> None:
        """Add the consumed offsets before the commit, if any."""

    def over(self, transaction: Transaction, outcome: Outcome) -> None:
        """Handle the end of the transaction."""

    def work(self) -> None:
        while not self.ending.is_set():
            producer = self._producer or self._begin_anew()
            if producer is None:
                continue
            self._producer = producer
            consumed = self.prepare()
            if consumed is not None:
                self._transact(producer, consumed)

    def produce(self, transaction: Transaction, part: Part, more: bytes = b"") -> None:
        producer = self._producer
        assert producer is not None, "a transaction must have a producer"
        value = b"%s/%d/%d" % (self.label.encode(), transaction.number, len(transaction.sends))
        transaction.sends.append((part, value))

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None and message.offset() is not None and message.offset() >= 0:
                transaction.offsets[value] = message.offset()

        producer.produce(part[0], value + b" " + more, partition=part[1], on_delivery=delivered)
        producer.poll(0)

    def pause(self, seconds: float) -> None:
        """Keep the transaction open for a while, and serve delivery reports."""
        assert self._producer is not None
        until = self.record.now() + seconds
        while (left_s := until - self.record.now()) > 0 and not self.ending.is_set():
            self._producer.poll(min(left_s, 0.1))

    def _begin_anew(self) -> Producer | None:
        """Return a new producer that has ended its predecessor's open transaction, or None if that
        failed and the caller must retry.
        """
        producer = Producer(self._settings)
        self.producer_count += 1
        try:
            self._again(lambda: producer.init_transactions(_CALL_S))
        except KafkaException as error:
            self.record.tell(f"{self.name} cannot begin: {error}")
            self.ending.wait(0.5)
            return None
        return producer

    def _transact(self, producer: Producer, consumed: tuple[Consumed, ...]) -> None:
        self._number += 1
        transaction = Transaction(self._number, self.record.now(), consumed=consumed)
        wants_commit = self.rng.random() >= _ABORTED_SHARE
        try:
            producer.begin_transaction()
            self.fill(transaction)
            outcome = self._finish(producer, transaction, wants_commit=wants_commit)
        except KafkaException as error:
            self.record.tell(f"{self.name} number {transaction.number}: {error}")
            outcome = self._give_up(producer, transaction, error.args[0])
        except ClientStuck:
            self.record.tell(
                f"{self.name} number {transaction.number}: the client library is stuck, a new"
                " producer takes over"
            )
            self._stuck.append(producer)
            self._producer = None
            outcome = Outcome.FAIL
        self.finished[outcome] += 1
        if outcome is not Outcome.INFO:
            self.settled_s = transaction.began_s
        sends = tuple(
            Record(part, transaction.offsets.get(value, UNKNOWN), value)
            for part, value in transaction.sends
        )
        self.record.operate(
            Write(
                self.name,
                outcome,
                transaction.began_s,
                self.record.now(),
                sends,
                transaction.commit_began_s,
                group=TRANSFORM_GROUP if consumed else "",
                consumed=consumed,
            )
        )
        self.over(transaction, outcome)

    def _finish(
        self, producer: Producer, transaction: Transaction, *, wants_commit: bool
    ) -> Outcome:
        while producer.flush(1.0):
            pass
        if not wants_commit:
            self._again(lambda: producer.abort_transaction(_CALL_S))
            return Outcome.FAIL
        if transaction.consumed:
            within(STUCK_S, lambda: self._again(lambda: self.add_offsets(producer, transaction)))
        transaction.commit_began_s = self.record.now()
        self._again(lambda: producer.commit_transaction(_CALL_S))
        return Outcome.OK

    def _give_up(self, producer: Producer, transaction: Transaction, error: KafkaError) -> Outcome:
        """Abort if the library requires it, which makes the outcome certain. After a fatal error
        during a commit, the client cannot determine the outcome.
        """
        if error.txn_requires_abort():
            try:
                self._again(lambda: producer.abort_transaction(_CALL_S))
            except KafkaException as failed:
                self.record.tell(
                    f"{self.name} number {transaction.number} is not aborted: {failed}"
                )
            else:
                return Outcome.FAIL
        self._producer = None
        return Outcome.FAIL if transaction.commit_began_s == inf else Outcome.INFO

    @staticmethod
    def _again(call: Callable[[], object]) -> None:
        """Repeat the call while its error is retriable. Raises KafkaException for other errors."""
        while True:
            try:
                call()
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
            else:
                return


class TransactionSender(TransactionalClient):
    """Writes a few records at a time to some of its partitions, then commits or aborts."""

    def fill(self, transaction: Transaction) -> None:
        """Produce the records. Most transactions last for a few requests, some for longer than the
        5 s after which brokers close a connection without a response.
        """
        lasts_s = self.rng.choices((0.05, 0.5, 2.0, 6.0), (4, 3, 3, 1))[0]
        every_s = self.rng.choice((0.2, lasts_s))
        until = self.record.now() + lasts_s
        parts = self.rng.sample(self.outputs, self.rng.randint(2, len(self.outputs)))
        for part in parts:
            self.produce(transaction, part)
        while self.record.now() < until and not self.ending.is_set():
            self.pause(min(every_s, lasts_s))
            self.produce(transaction, self.rng.choice(parts))


def begin_transform_group(bootstrap: str, parts: list[Part]) -> None:
    """Commit offset 0 of each input partition, because transformers do not start without a
    committed offset.
    """
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": TRANSFORM_GROUP, "enable.auto.commit": False}
    )
    try:
        consumer.commit(offsets=[TopicPartition(*part, 0) for part in parts], asynchronous=False)
    finally:
        consumer.close()


class Transformer(TransactionalClient):
    """Writes one record for each input partition that contains the consumed offsets."""

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        outputs: list[Part],
        record: ChaosRecord,
        name: str,
        rng: Random,
    ) -> None:
        super().__init__(bootstrap, outputs, record, name, rng)
        self._topic = topic
        self._consumer_settings: dict[str, Any] = {
            **IMPATIENT,
            **READING,
            "bootstrap.servers": bootstrap,
            "client.id": f"chaos-{name}",
            "group.id": TRANSFORM_GROUP,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 1_000,
        }
        self._consumer: Consumer | None = None
        self._membership: Any = None
        """The group membership at the last assignment. It is kept, because a call on a stuck
        consumer would hold the lock of the interpreter forever.
        """
        self._polled: dict[Part, list[int]] = {}
        self._leave_at = 0.0
        self.rebalance_count = 0

    def prepare(self) -> tuple[Consumed, ...] | None:
        """Poll and return the input. Records of revoked partitions are dropped: another member gets
        them, or they are read again from the committed offset.
        """
        consumer = self._consumer or self._join()
        until = self.record.now() + _POLL_S
        while self.record.now() < until and sum(map(len, self._polled.values())) < _INPUT_COUNT_MAX:
            message = consumer.poll(_POLL_S / 3)
            if message is None or is_passing(message.error()):
                continue
            error = message.error()
            if error is not None and _lost_its_position(error):
                self.record.tell(f"{self.name} lost its position: {error}")
                self._leave()
                return None
            if error is not None:
                self.record.violate(f"{self.name}: {error}")
                continue
            self._polled.setdefault((message.topic(), message.partition()), []).append(
                message.offset()
            )
        if self.record.now() > self._leave_at:
            self._leave()
            return None
        polled, self._polled = self._polled, {}
        for part, offsets in polled.items():
            if offsets != list(range(offsets[0], offsets[-1] + 1)):
                self.record.violate(f"int-poll-skip: {self.name} polled {part} offsets {offsets}")
        return (
            tuple(Consumed(part, offsets[0], offsets[-1] + 1) for part, offsets in polled.items())
            or None
        )

    def fill(self, transaction: Transaction) -> None:
        for consumed in transaction.consumed:
            text = f"{consumed.part[0]}-{consumed.part[1]} [{consumed.first}, {consumed.end})"
            self.produce(transaction, self.rng.choice(self.outputs), text.encode())

    def add_offsets(self, producer: Producer, transaction: Transaction) -> None:
        assert self._consumer is not None, "consumed input must have a consumer"
        offsets = [
            TopicPartition(*consumed.part, consumed.end) for consumed in transaction.consumed
        ]
        producer.send_offsets_to_transaction(offsets, self._membership, _CALL_S)

    def over(self, transaction: Transaction, outcome: Outcome) -> None:
        """Consume uncommitted input again: after an abort from its first offset, after an unknown
        outcome from the committed offset.
        """
        if outcome is Outcome.OK:
            return
        assert self._consumer is not None, "consumed input must have a consumer"
        try:
            if outcome is Outcome.INFO:
                self._leave()
            for consumed in transaction.consumed if self._consumer is not None else ():
                within(
                    STUCK_S,
                    partial(self._consumer.seek, TopicPartition(*consumed.part, consumed.first)),
                )
        except ClientStuck:
            self._abandon(self._consumer)
        except KafkaException as error:  # a rebalance has revoked the partition
            self.record.tell(f"{self.name} cannot seek: {error}")
            self._leave()

    def work(self) -> None:
        super().work()
        self._leave()

    def _join(self) -> Consumer:
        def assigned(consumer: Consumer, parts: list[TopicPartition]) -> None:
            self._membership = consumer.consumer_group_metadata()
            self.rebalance_count += 1
            self.record.tell(f"{self.name} is assigned {[part.partition for part in parts]}")

        def revoked(_: Consumer, __: list[TopicPartition]) -> None:
            self._polled = {}

        self._consumer = Consumer(self._consumer_settings)
        self._consumer.subscribe([self._topic], on_assign=assigned, on_revoke=revoked)
        self._leave_at = self.record.now() + self.rng.uniform(5.0, 40.0)
        return self._consumer

    def _leave(self) -> None:
        consumer, self._consumer, self._polled = self._consumer, None, {}
        if consumer is not None:
            try:
                within(STUCK_S, consumer.close)
            except ClientStuck:
                self._abandon(consumer)

    def _abandon(self, consumer: Consumer) -> None:
        self.record.tell(f"{self.name}: its consumer is stuck, a new one takes over")
        self._stuck.append(consumer)
        self._consumer, self._polled = None, {}


def _lost_its_position(error: KafkaError) -> bool:
    """Return whether the client has treated an unstable offset as a missing one.

    librdkafka 2.10.1 does so if a partition is assigned again while it waits, with Apache Kafka 4.2
    too. An out-of-range offset has the same code but is a different error.
    """
    return error.code() == KafkaError._AUTO_OFFSET_RESET and "no previously committed" in str(error)


class CommittedReader(Client):
    """Polls partitions with read_committed from the beginning. `polled_count` counts
    the records.
    """

    def __init__(
        self, bootstrap: str, parts: list[Part], record: ChaosRecord, name: str, rack: str = ""
    ) -> None:
        """rack: that of a broker which is to serve partitions of other leaders; without it, leaders
        serve.
        """
        super().__init__(f"committed {name}", record)
        self.ends: dict[Part, int] = {}
        """The last stable offset that the reader has reached in each partition."""
        self.polled_count = 0
        self.watch = RackWatch(rack)
        settings = {
            **IMPATIENT,
            **READING,
            **self.watch.settings,
            "bootstrap.servers": bootstrap,
            "group.id": "none",
            "enable.auto.commit": False,
        }
        settings |= {
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(*part, OFFSET_BEGINNING) for part in parts])
        record.operate(Assign(self.name, tuple((part, 0) for part in parts)))

    def work(self) -> None:
        while not self.ending.is_set():
            began_s = self.record.now()
            messages = self._consumer.consume(200, 0.2)
            ended_s = self.record.now()
            records: list[Record] = []
            for message in messages:
                error = message.error()
                part: Part = (message.topic() or "", message.partition() or 0)
                if error is None:
                    records.append(
                        Record(
                            part, message.offset() or 0, (message.value() or b"").partition(b" ")[0]
                        )
                    )
                elif error.code() == KafkaError._PARTITION_EOF:
                    self.ends[part] = message.offset() or 0
                elif not is_passing(error):
                    self.record.violate(f"{self.name}: {error}")
            if records:
                self.polled_count += len(records)
                self.record.operate(Poll(self.name, began_s, ended_s, tuple(records)))
        with suppress(ClientStuck):
            within(STUCK_S, self._consumer.close)
