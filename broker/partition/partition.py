"""An open partition of which this broker is the leader: who waits for its high watermark, and
whether it still takes records.

Invariants: only records below the high watermark are ever readable, and it moves only over what is
durable; the last stable offset stands still at the earliest transaction whose end is not durable.
Once `stop` was called nothing is appended any more, and everyone who waits is told at once.
Must not: talk to the controller or open anything (`PartitionManager`), or know Kafka requests
(handlers).
Source: Kafka `Partition`, `DelayedOperationPurgatory`; AutoMQ `ElasticReplicaManager`. A delayed
fetch wakes when the confirmed offset passes what it waits for.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias
from uuid import UUID

from base.buffers import Buffer
from base.ids import Offset
from broker.partition.delayed_fetch import FetchWait
from broker.partition.log import PartitionLog
from controller.metadata.records import PartitionRecord
from stream.format.transaction_log import AbortedTransaction
from stream.storage import Storage

Settled: TypeAlias = Callable[[Exception | None], None]
"""None: durable. Called once, on the loop."""


class MoveHint(Protocol):
    """Names the next leader to the producers of a partition that moves away. Implemented by
    `broker.partition.move_notice`.
    """

    def mark_announced(self, partition: "Partition") -> None:
        """An answer that names the next leader of this partition is on its way."""
        ...


class PartitionStopped(Exception):
    """This broker stopped leading the partition before the records were known to be durable. They
    may be durable all the same.
    """


class Partition:
    __slots__ = (
        "_fetch_waits",
        "_high_watermark",
        "_last_stable_offset",
        "_storage",
        "_waiting",
        "accepts_records",
        "bytes_in",
        "bytes_out",
        "index",
        "leader_epoch",
        "log",
        "notice",
        "record",
        "records_in",
        "records_out",
        "requests_count",
        "stop_error",
        "topic_id",
        "topic_name",
    )

    def __init__(
        self, record: PartitionRecord, topic_name: str, log: PartitionLog, storage: Storage
    ) -> None:
        self.record = record
        self.topic_id: UUID = record.topic_id
        self.topic_name = topic_name
        self.index = record.partition
        self.leader_epoch = record.leader_epoch
        self.log = log
        self.accepts_records = True
        self.notice: MoveHint | None = None
        """Producers are to be told of the next leader with their acknowledgements."""
        self.stop_error: Exception | None = None
        self.bytes_in = 0
        """Appended here; like the next two it only grows, and `LoadMeter` makes rates of it."""
        self.bytes_out = 0
        """Of batches in answers to fetches."""
        self.requests_count = 0
        self.records_in = 0
        self.records_out = 0
        """Offsets from where a fetch asked to the end of what it got."""
        self._storage = storage
        self._high_watermark = log.data.confirmed_offset
        self._last_stable_offset = log.transactions.last_stable(self._high_watermark)
        self._waiting: list[tuple[Offset, Settled]] = []
        self._fetch_waits: dict[FetchWait, None] = {}
        """In the order in which they came: a set would wake them in an order that no simulation can
        repeat.
        """

    @property
    def log_start_offset(self) -> Offset:
        return self.log.data.start_offset

    @property
    def high_watermark(self) -> Offset:
        """End of what is durable and may be read."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """Up to here a consumer that reads committed records may read."""
        return max(self._last_stable_offset, self.log.data.start_offset)

    @property
    def log_end_offset(self) -> Offset:
        return self.log.data.next_offset

    def advance(self, size_bytes: int) -> None:
        """The storage confirmed `size_bytes` of what was appended: wake those who wait for it."""
        before, was_stable = self._high_watermark, self._last_stable_offset
        self._high_watermark = self.log.data.confirmed_offset
        self._last_stable_offset = self.log.transactions.confirm(self._high_watermark)
        if self._fetch_waits:
            has_no_open = was_stable == before and self._last_stable_offset == self._high_watermark
            self._advance_fetch_waits(
                size_bytes, no_open=has_no_open, moved_stable=self._last_stable_offset > was_stable
            )
        if self._waiting:
            ready = [settled for offset, settled in self._waiting if offset <= self._high_watermark]
            self._waiting = [
                waiting for waiting in self._waiting if waiting[0] > self._high_watermark
            ]
            for settled in ready:
                settled(None)

    def _advance_fetch_waits(self, size_bytes: int, *, no_open: bool, moved_stable: bool) -> None:
        for wait in self._fetch_waits:
            if no_open or not wait.reads_committed:
                wait.progressed(size_bytes)
            elif moved_stable:
                wait.interrupt()

    def when_durable(self, end_offset: Offset, settled: Settled) -> None:
        """Call back when everything below `end_offset` is durable (maybe at once), or when that
        will not be known here any more.
        """
        if end_offset <= self._high_watermark:
            settled(None)
        elif self.stop_error is not None:
            settled(self.stop_error)
        else:
            self._waiting.append((end_offset, settled))

    def refuse_records(self) -> None:
        """Somebody else is to lead: append nothing more, wake the readers. What was appended may
        still be acknowledged.
        """
        self.accepts_records = False
        self.wake_readers()

    def wake_readers(self) -> None:
        """Have parked fetches look again: this broker may not be the one to answer them any
        more.
        """
        for wait in list(self._fetch_waits):
            wait.interrupt()

    def stop(self, error: Exception | None = None) -> None:
        """The end: streams are closed, or lost. Those who still wait for durability get an error
        that makes them look for the leader.
        """
        self.refuse_records()
        self.stop_error = error or PartitionStopped(
            f"{self.topic_name}-{self.index} is not led here any more"
        )
        waiting, self._waiting = self._waiting, []
        for _, settled in waiting:
            settled(self.stop_error)

    def add_fetch_wait(self, wait: FetchWait) -> None:
        self._fetch_waits[wait] = None

    def remove_fetch_wait(self, wait: FetchWait) -> None:
        self._fetch_waits.pop(wait, None)

    def read_cached(
        self, offset: Offset, max_bytes: int, *, committed: bool = False
    ) -> Sequence[Buffer] | None:
        """Whole batches from the log cache, the first one whatever its size; None if they are not
        all there.

        committed: only those below the last stable offset, which lies behind `offset`.
        """
        end_offset = self.last_stable_offset if committed else self._high_watermark
        return self._storage.read_cached(self.log.data.stream_id, offset, end_offset, max_bytes)

    async def read(
        self, offset: Offset, max_bytes: int, *, committed: bool = False
    ) -> Sequence[Buffer]:
        """Whole batches from wherever they are, the first one whatever its size. Cost: a GET or
        more if they are cold.

        Raises OffsetOutOfRange (trimmed meanwhile), and errors of the store.
        """
        end_offset = self.last_stable_offset if committed else self._high_watermark
        return await self._storage.read(self.log.data.stream_id, offset, end_offset, max_bytes)

    async def read_aborted(
        self, start_offset: Offset, end_offset: Offset
    ) -> list[AbortedTransaction]:
        """As `PartitionLog.read_aborted`."""
        return await self.log.read_aborted(self._storage, start_offset, end_offset)
