"""An internal compacted topic as its coordinator sees it: led partition by partition, appended to
like any other, read once when it opens, and trimmed when what lies before an offset counts no more.

Appends take the same way as a client's produce (`PartitionAppend`): same checks, same bulk, durable
in the order of the calls. Reading gives batch by batch what is durable, with what a transaction of
a producer has to do with it: `__consumer_offsets` holds such batches.
Must not: cache anything, or know what records mean.
Source: Kafka's CoordinatorRuntime, PartitionWriter.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from base.ids import Offset
from broker.partition.append import PartitionAppend
from broker.partition.local_broker import LocalBroker
from broker.partition.log import check_advanced
from broker.partition.partition import Partition
from broker.wire.error_codes import ErrorCode
from stream.batch.control import decode_marker
from stream.batch.header import CONTROL_MASK, TRANSACTIONAL_MASK, BatchHeader, iter_headers
from stream.batch.records import Record, decode_records, encode_batch

READ_BYTES: Final = 1 << 20
"""One read while loading: about 10,000 records. `CoordinatorShards.read` gives others a turn in
between.
"""

KeyValue: TypeAlias = tuple[bytes, bytes | None]
Done: TypeAlias = Callable[[ErrorCode], None]


@dataclass(frozen=True, slots=True)
class TransactionalProducer:
    """Who appends as part of its transaction."""

    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class LogBatch:
    records: Sequence[KeyValue]
    producer_id: int = -1
    """Whose transaction the records belong to, or which the marker ends; -1: none."""
    committed: bool | None = None
    """Of a marker: how the transaction ended. It has no records."""


class LogBounds(NamedTuple):
    """Offsets of one partition, now."""

    start: int
    stable: int
    """Below it everything is durable, and every transaction has ended."""
    end: int
    """Of what is durable."""


class CoordinatorLog(Protocol):
    """The partitions of one internal topic that this broker leads."""

    @property
    def partition_count(self) -> int:
        """0 while the topic does not exist."""
        ...

    @property
    def can_write(self) -> bool:
        """False: this broker lost touch with the controllers; another one may lead all of this by
        now.
        """
        ...

    @property
    def leads_alone(self) -> bool:
        """False as soon as another broker may coordinate: what the state says may be old
        (`broker.handlers.lease`).
        """
        ...

    def is_ours(self, partition: int) -> bool:
        """Do the metadata name this broker as the leader, be the partition open yet or not?"""
        ...

    def leader_epoch(self, partition: int) -> int:
        """-1 while the partition is not open here."""
        ...

    def end_offset(self, partition: int) -> int:
        """Where the next append goes; -1 while the partition is not open here."""
        ...

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        done: Done,
        *,
        producer: TransactionalProducer | None = None,
    ) -> None:
        """One batch; `done` is called when it is durable (NONE) or cannot become so, maybe before
        this returns.
        """
        ...

    def read(self, partition: int) -> AsyncIterator[LogBatch]:
        """Everything durable, from the start, batch by batch."""
        ...

    def bounds(self, partition: int) -> LogBounds:
        """Raises NotLed."""
        ...

    async def trim(self, partition: int, start: int) -> None:
        """Let the log begin at `start`, which is at most `LogBounds.stable`. Raises NotLed, and
        errors of storage and controller.
        """
        ...


class NotLed(Exception):
    """The partition of the internal topic is not led here (any more)."""


class TopicLog:
    """Implements `CoordinatorLog` over the partitions of this node."""

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

        def settled() -> None:
            done(_for_clients(group.outcomes[0].code))

        group = PartitionAppend(settled, from_coordinator=producer is not None)
        group.run(self._node.storage, [(led, memoryview(batch))], now_ms)

    async def read(self, partition: int) -> AsyncIterator[LogBatch]:
        """From the log start to the high watermark as it is now; coordinators append nothing before
        they have loaded.

        Raises NotLed, LogInconsistent, and what `Partition.read` raises.
        """
        led = self._require_led(partition)
        offset, end_offset = led.log_start_offset, led.high_watermark
        while offset < end_offset:
            before = offset
            for view in await led.read(offset, READ_BYTES):
                data = memoryview(view)
                for at, header in iter_headers(data):
                    offset = Offset(header.next_offset)
                    yield _decode(data[at : at + header.size_bytes], header)
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
    """What a failed append means to who asked the coordinator: look for it again, or try again.
    Source: Kafka GroupMetadataManager.
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
