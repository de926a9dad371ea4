"""Write a batch in one transaction, at most once for any number of attempts.

Source: KIP-98 (fencing), KIP-447 (offsets read after it are stable); Delta's
`txnAppId`/`txnVersion`.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from penstock.base.log import get_logger
from penstock.lake.arrow.pyarrow_untyped import RecordBatch
from penstock.lake.spark.sink.errors import StaleWrite, TransactionFailed
from penstock.lake.spark.sink.options import WriteOptions
from penstock.lake.spark.sink.producer import RecordProducer

PREFIX: Final = "penstock-spark-"
_MARKER_TOPIC: Final = "__consumer_offsets"
"""Topic of the offset that serves as the marker. Any topic would work, but this one always exists
and is never deleted.
"""

_CONNECTION: Final = (
    "bootstrap.servers",
    "security.",
    "ssl.",
    "sasl.",
    "enable.ssl.",
    "enable.sasl.",
    "https.",
    "client.",
    "socket.",
    "broker.address.",
    "reconnect.",
)
_TRIES_MAX: Final = 3
_PAUSE_S: Final = 0.2
_log = get_logger(__name__)


class WriteId(NamedTuple):
    """The identity of a write: the `name` of a series of writes, an increasing `version`, and the
    `owner` of the batch, which is empty if unknown.
    """

    name: str
    version: int
    owner: str


def is_written(found: WriteId | None, wanted: WriteId) -> bool:
    """Return whether the write was committed. `found` is the last write committed under the name.
    Raise StaleWrite if `found` is newer than `wanted` or has another owner.
    """
    if found is None or found.version < wanted.version:
        return False
    if found == wanted:
        return True
    if found.version > wanted.version:
        what = (
            f"batch {wanted.version} is older than batch {found.version}, which was committed"
            " already"
        )
    else:
        owner = found.owner or "an unknown writer"
        what = f"batch {wanted.version} was committed already by {owner}"
    raise StaleWrite(
        f"{PREFIX}{wanted.name}: {what}. The checkpoint is an old copy, or the query was "
        "restarted under a used name: writing could repeat records. Continue with the newest "
        "checkpoint, or start with another name"
    )


@dataclass(frozen=True, slots=True)
class Transaction:
    """A batch to write. If `marked` is false, no marker is used: `wanted` has neither owner nor
    version to compare, and no later attempt follows.

    Rows and a marker are committed together. The marker is a committed offset of a consumer group:
    the group is the name of the transaction, the offset is the batch number plus one, and the
    metadata is the owner of the batch. The order guarantees correctness: `init_transactions` fences
    all earlier attempts and ends their open transactions; only then is the marker read, and only
    then does a transaction begin. Therefore, a missing marker can only be added by the commit of
    this attempt. Different kinds of writes must use different names.
    """

    options: WriteOptions
    wanted: WriteId
    marked: bool = True

    def commit(self, batches: Callable[[], Iterator[RecordBatch]]) -> bool:
        """Write the batch, and return whether this call wrote it. `batches` returns the rows again
        for every attempt.

        Raise InvalidRow, WriteFailed, ProducerFailed, TransactionFailed or StaleWrite. After an
        error, the outcome may be unknown; another attempt determines it.
        """
        try:
            with RecordProducer(
                self.options, {"transactional.id": PREFIX + self.wanted.name}
            ) as producer:
                self._retried("fencing earlier attempts", producer.client.init_transactions)
                if not self.marked:
                    return self._write(producer, batches, None)
                return self._write_unless_written(producer, batches)
        except KafkaException as error:
            raise TransactionFailed(f"{self._name}: {error.args[0].str()}") from None

    def _write_unless_written(
        self, producer: RecordProducer, batches: Callable[[], Iterator[RecordBatch]]
    ) -> bool:
        settings = {
            name: value
            for name, value in self.options.producer.items()
            if name.startswith(_CONNECTION)
        }
        group = {
            "group.id": PREFIX + self.wanted.name,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        consumer = Consumer({**settings, **group})
        try:
            if is_written(self._marker(consumer), self.wanted):
                return False
            return self._write(producer, batches, consumer)
        finally:
            consumer.close()

    def _marker(self, consumer: Consumer) -> WriteId | None:
        requested = [TopicPartition(_MARKER_TOPIC, 0)]
        found = self._retried(
            "reading the marker", lambda timeout_s: consumer.committed(requested, timeout_s)
        )[0]
        if found.error is not None:
            raise TransactionFailed(f"{self._name}: the marker cannot be read: {found.error.str()}")
        return (
            None
            if found.offset < 0
            else WriteId(self.wanted.name, found.offset - 1, found.metadata or "")
        )

    def _write(
        self,
        producer: RecordProducer,
        batches: Callable[[], Iterator[RecordBatch]],
        consumer: Consumer | None,
    ) -> bool:
        """Write the batch, and start over when the coordinator requires an abort."""
        for tries_left in reversed(range(_TRIES_MAX)):
            try:
                self._write_once(producer, batches, consumer)
            except KafkaException as error:
                reason: KafkaError = error.args[0]
                if not reason.txn_requires_abort() or not self._aborted(producer) or not tries_left:
                    raise
                producer.forget_failures()
            except Exception:
                self._aborted(producer)
                raise
            else:
                return True
        raise AssertionError("the last attempt raises")

    def _aborted(self, producer: RecordProducer) -> bool:
        """Abort the transaction, and return whether that succeeded. If not, the transaction ends at
        its timeout, or when the next attempt fences this one. Raise TransactionFailed if another
        attempt fenced this one.
        """
        try:
            self._retried("the abort", producer.client.abort_transaction)
        except (KafkaException, SystemError, TransactionFailed) as error:
            if isinstance(error, KafkaException) and error.args[0].fatal():
                raise TransactionFailed(f"{self._name}: {error.args[0].str()}") from None
            _log.warning(
                "transaction_not_aborted",
                name=self.wanted.name,
                version=self.wanted.version,
                reason=str(error),
            )
            return False
        return True

    def _write_once(
        self,
        producer: RecordProducer,
        batches: Callable[[], Iterator[RecordBatch]],
        consumer: Consumer | None,
    ) -> None:
        producer.client.begin_transaction()
        for batch in batches():
            producer.send(batch)
        producer.finish()
        if consumer is not None:
            marker = TopicPartition(_MARKER_TOPIC, 0, self.wanted.version + 1, self.wanted.owner)
            group = consumer.consumer_group_metadata()
            self._retried(
                "the marker",
                lambda timeout_s: producer.client.send_offsets_to_transaction(
                    [marker], group, timeout_s
                ),
            )
        self._retried("the commit", producer.client.commit_transaction)

    def _retried(self, what: str, call: Callable[[float], Any]) -> Any:  # noqa: ANN401 - what the client's call gives
        """Retry a call until it succeeds, fails permanently, or the delivery timeout has passed.
        librdkafka resumes the same operation.
        """
        deadline_s = time.monotonic() + self.options.delivery_timeout_ms / 1_000
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                return call(max(left_s, 0))
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise
                if left_s <= _PAUSE_S:
                    raise TransactionFailed(
                        f"{self._name}: {what} was not done in time: {error.args[0].str()}"
                    ) from None
            time.sleep(_PAUSE_S)

    @property
    def _name(self) -> str:
        return f"transaction {PREFIX}{self.wanted.name}, batch {self.wanted.version}"
