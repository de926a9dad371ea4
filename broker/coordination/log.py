"""An internal compacted topic, as used by its coordinator: read once when a partition opens, and
trimmed when older records become obsolete.

Appends use the same path as a client's Produce (`PartitionAppend`).
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from penstock.base.ids import Offset
from penstock.broker.partition.aborted_transactions import check_advanced
from penstock.broker.partition.append import PartitionAppend
from penstock.broker.partition.local_broker import LocalBroker
from penstock.broker.partition.partition import Partition
from penstock.broker.partition.verification import Guard
from penstock.protocol.batch.control import Marker, decode_marker
from penstock.protocol.batch.header import (
    CONTROL_MASK,
    TRANSACTIONAL_MASK,
    BatchHeader,
    iter_headers,
)
from penstock.protocol.batch.records import Record, decode_records, encode_batch
from penstock.protocol.error_codes import ErrorCode
from penstock.stream.cleaning.batches import LOST_LEADER_EPOCH

READ_BYTES: Final = 1 << 20
"""Size of one read while loading, about 10,000 records. `CoordinatorShards.read` yields to the
event loop between reads.
"""

KeyValue: TypeAlias = tuple[bytes, bytes | None]
Done: TypeAlias = Callable[[ErrorCode], None]


@dataclass(frozen=True, slots=True)
class TransactionalProducer:
    """The producer whose transaction contains the appended records."""

    producer_id: int
    producer_epoch: int
    guard: Guard | None = None
    """Checks whether the first batch of the transaction is allowed; None allows it without a
    check.
    """


@dataclass(frozen=True, slots=True)
class LogBatch:
    records: Sequence[KeyValue]
    producer_id: int = -1
    """The producer whose transaction contains the records or ends with the marker; -1 without a
    transaction.
    """
    committed: bool | None = None
    """The outcome of the transaction if this is a marker, which has no records; otherwise None."""


class LogBounds(NamedTuple):
    """Current offsets of one partition."""

    start: int
    stable: int
    """All records below this offset are durable, and no transaction that started below it is
    open.
    """
    end: int
    """End offset of the durable records."""


MarkerParts: TypeAlias = Sequence[tuple[Partition, Marker]]
"""Partitions led by this broker, each with the marker that ends a transaction in it."""


class CoordinatorLog(Protocol):
    """The partitions of one internal topic that this broker leads."""

    @property
    def partition_count(self) -> int:
        """Return the number of partitions; 0 while the topic does not exist."""
        ...

    @property
    def can_write(self) -> bool:
        """Return False if this broker has lost its session, because another broker may already lead
        the partitions.
        """
        ...

    @property
    def leads_alone(self) -> bool:
        """Return False once another broker may be the coordinator, because the state may then be
        stale (`broker.requests.lease`).
        """
        ...

    def is_ours(self, partition: int) -> bool:
        """Return True if this broker is the leader in the metadata, regardless of whether the
        partition is open.
        """
        ...

    def leader_epoch(self, partition: int) -> int:
        """Return the leader epoch; -1 while the partition is not open here."""
        ...

    def end_offset(self, partition: int) -> int:
        """Return the offset of the next append; -1 while the partition is not open here."""
        ...

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        done: Done,
        *,
        producer: TransactionalProducer | None = None,
        markers: MarkerParts = (),
    ) -> None:
        """Append one batch. `done` is called, possibly before this method returns, with NONE once
        the batch is durable, or with an error once it cannot become durable. markers: become
        durable atomically with the batch.
        """
        ...

    def read(self, partition: int) -> AsyncIterator[LogBatch]:
        """Yield the durable batches from the log start on."""
        ...

    def bounds(self, partition: int) -> LogBounds:
        """Return the current offsets of the partition. Raises NotLed."""
        ...

    async def trim(self, partition: int, start: int) -> None:
        """Advance the log start to `start`, at most to `LogBounds.stable`. Raises NotLed and the
        errors of the storage and the controller.
        """
        ...


class NotLed(Exception):
    """Raised when this broker does not (or no longer) lead the partition."""


class TopicLog:
    """Implements `CoordinatorLog` with the partitions of this node."""

    def __init__(self, node: LocalBroker, topic_name: str) -> None:
        self._node = node
        self._topic_name = topic_name

    @property
    def partition_count(self) -> int:
        topic = self._node.image.topics.by_name(self._topic_name)
        return 0 if topic is None else len(topic.partitions)

    @property
    def can_write(self) -> bool:
        return self._node.can_write()

    @property
    def leads_alone(self) -> bool:
        return self._node.leads_alone()

    def is_ours(self, partition: int) -> bool:
        topic = self._node.image.topics.by_name(self._topic_name)
        if topic is None:
            return False
        record = topic.partitions[partition]
        return (record.leader, record.leader_node_epoch) == (
            self._node.node_id,
            self._node.node_epoch,
        )

    def leader_epoch(self, partition: int) -> int:
        led = self._node.partitions.get(self._topic_name, partition)
        return int(led.leader_epoch) if isinstance(led, Partition) else -1

    def end_offset(self, partition: int) -> int:
        led = self._node.partitions.get(self._topic_name, partition)
        return int(led.log_end_offset) if isinstance(led, Partition) else -1

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        done: Done,
        *,
        producer: TransactionalProducer | None = None,
        markers: MarkerParts = (),
    ) -> None:
        led = self._node.partitions.get(self._topic_name, partition)
        if not isinstance(led, Partition) or not self._node.can_write():
            done(ErrorCode.NOT_COORDINATOR)
            return
        now_ms = self._node.now_ms()
        batch = encode_batch(
            [Record(offset, now_ms, key, value) for offset, (key, value) in enumerate(records)],
            producer_id=-1 if producer is None else producer.producer_id,
            producer_epoch=-1 if producer is None else producer.producer_epoch,
            attributes=0 if producer is None else TRANSACTIONAL_MASK,
        )

        group = PartitionAppend(
            lambda group: done(_for_clients(group.outcomes[0].code)),
            from_coordinator=producer is not None,
            guard=None if producer is None else producer.guard,
            is_whole=True,
        )
        group.run(self._node.storage, [(led, memoryview(batch)), *markers], now_ms)

    async def read(self, partition: int) -> AsyncIterator[LogBatch]:
        """Yield the batches from the log start to the current high watermark. Coordinators append
        nothing before loading is complete.

        If a range that was lost with its WAL store contained the marker of a transaction, the
        transaction is yielded as aborted, because the marker is unknown and will not be sent again.

        Raises NotLed, LogInconsistent, and the errors of `Partition.read`.
        """
        led = self._require_led(partition)
        offset, end_offset = led.log_start_offset, led.high_watermark
        unsettled = led.log.transactions.unsettled()
        begun: dict[int, int] = {}
        """The first offset of each transaction whose marker has not been read yet, by producer
        id.
        """
        while offset < end_offset:
            before = offset
            for view in await led.read(offset, READ_BYTES):
                data = memoryview(view)
                for at, header in iter_headers(data):
                    offset = Offset(header.next_offset)
                    batch = _decode(data[at : at + header.size_bytes], header)
                    if batch.committed is not None:
                        begun.pop(batch.producer_id, None)
                    elif batch.producer_id >= 0:
                        begun.setdefault(batch.producer_id, header.base_offset)
                    elif header.partition_leader_epoch == LOST_LEADER_EPOCH:
                        for ended in [item for item in begun if begun[item] not in unsettled]:
                            del begun[ended]
                            yield LogBatch((), ended, committed=False)
                    yield batch
            check_advanced(led.log.data.stream_id, before, offset, end_offset)

    def bounds(self, partition: int) -> LogBounds:
        led = self._require_led(partition)
        return LogBounds(led.log_start_offset, led.last_stable_offset, led.high_watermark)

    async def trim(self, partition: int, start: int) -> None:
        await self._node.partitions.trim(self._require_led(partition), Offset(start))

    def _require_led(self, partition: int) -> Partition:
        led = self._node.partitions.get(self._topic_name, partition)
        if not isinstance(led, Partition):
            raise NotLed(f"{self._topic_name}-{partition}: {led}")
        return led


def _decode(batch: memoryview, header: BatchHeader) -> LogBatch:
    if header.attributes & CONTROL_MASK:
        return LogBatch(
            (),
            header.producer_id,
            decode_marker(batch, header.producer_id, header.producer_epoch).committed,
        )
    records = [(record.key or b"", record.value) for record in decode_records(batch)]
    return LogBatch(records, header.producer_id if header.attributes & TRANSACTIONAL_MASK else -1)


def _for_clients(code: ErrorCode) -> ErrorCode:
    """Return the error code that makes the coordinator's client either look up the coordinator
    again or retry.
    """
    if code in {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }:
        return ErrorCode.NOT_COORDINATOR
    if code in {
        ErrorCode.NONE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    }:
        return code
    return ErrorCode.COORDINATOR_NOT_AVAILABLE
