"""An open partition on its leader: the high watermark, parked requests, and whether records are
accepted.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias
from uuid import UUID

from penstock.base.buffers import Buffer
from penstock.base.ids import Offset, StreamId
from penstock.broker.partition.delayed_fetch import FetchWait
from penstock.broker.partition.log import PartitionLog
from penstock.controller.metadata.records import PartitionRecord
from penstock.protocol.batch.header import iter_headers
from penstock.stream.format.transaction_log import AbortedTransaction
from penstock.stream.storage import Storage

Settled: TypeAlias = Callable[[Exception | None], None]
"""Called once, on the event loop. None means that the records are durable."""


class MoveHint(Protocol):
    """Announces the next leader of a moving partition to producers. Implemented by
    `broker.partition.move_notice`.
    """

    def mark_announced(self, partition: "Partition") -> None:
        """Record that a response with the next leader of this partition is being sent."""
        ...


class PartitionStopped(Exception):
    """Raised when this broker has stopped leading the partition before the outcome of a write is
    known. The records may still be durable.
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
        "checks_count",
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
        "trimming",
        "wakes_count",
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
        """Set during a move, while acknowledgments include the next leader."""
        self.stop_error: Exception | None = None
        self.bytes_in = 0
        """Bytes appended here. This counter and `bytes_out` never decrease; `LoadMeter` derives
        rates from them.
        """
        self.bytes_out = 0
        """Bytes of the batches in Fetch responses."""
        self.requests_count = 0
        self.checks_count = 0
        """Number of batches whose records are being checked before they are appended."""
        self.records_in = 0
        self.records_out = 0
        """Number of offsets from the fetch offset to the end of the returned records."""
        self.wakes_count = 0
        """Number of `wake_readers` calls. Fetches that are not parked yet use it to detect them."""
        self.trimming = asyncio.Lock()
        """Locked while the log start advances, so that it never decreases."""
        self._storage = storage
        self._high_watermark = log.data.confirmed_offset
        self._last_stable_offset = log.transactions.last_stable(self._high_watermark)
        self._waiting: list[tuple[Offset, Settled]] = []
        self._fetch_waits: dict[FetchWait, None] = {}
        """Waiting fetches in order of arrival. A set would wake them in an order that the simulator
        cannot reproduce.
        """

    @property
    def log_start_offset(self) -> Offset:
        return self.log.data.start_offset

    @property
    def high_watermark(self) -> Offset:
        """Return the end offset of the durable, readable records."""
        return self._high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """Return the offset up to which committed reads may read."""
        return max(self._last_stable_offset, self.log.data.start_offset)

    @property
    def log_end_offset(self) -> Offset:
        return self.log.data.next_offset

    def advance(self, size_bytes: int) -> None:
        """Confirm `size_bytes` of appended records as durable, and wake the requests that wait for
        them.
        """
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
        """Call `settled`, possibly immediately, when everything below `end_offset` is durable, or
        when this broker can no longer determine whether it is.
        """
        if end_offset <= self._high_watermark:
            settled(None)
        elif self.stop_error is not None:
            settled(self.stop_error)
        else:
            self._waiting.append((end_offset, settled))

    def refuse_records(self) -> None:
        """Stop accepting records, because another broker will become the leader, and wake the
        readers. Appended records may still be acknowledged.
        """
        self.accepts_records = False
        self.wake_readers()

    def wake_readers(self) -> None:
        """Make parked fetches check the partition again, because this broker may no longer be
        allowed to serve them.
        """
        self.wakes_count += 1
        for wait in list(self._fetch_waits):
            wait.interrupt()

    def stop(self, error: Exception | None = None) -> None:
        """Stop the partition, because its streams are closed or lost. Requests that wait for
        durability fail with an error that makes clients look up the leader.
        """
        self.refuse_records()
        self.stop_error = error or PartitionStopped(
            f"{self.topic_name}-{self.index} is no longer led by this broker"
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
        """Return whole batches from the log cache, including the first one regardless of its size.
        Return None if not all of them are cached.

        committed: return only batches below the last stable offset, which must be above `offset`.
        """
        end_offset = self.last_stable_offset if committed else self._high_watermark
        return self._storage.read_cached(self.log.data.stream_id, offset, end_offset, max_bytes)

    def read_loaded(
        self, offset: Offset, max_bytes: int, *, committed: bool = False
    ) -> Sequence[Buffer] | None:
        """Return whole batches of read-ahead data, or None. See `StreamReader.read_loaded`. Empty
        batches are skipped, as in `read`.
        """
        end_offset = self.last_stable_offset if committed else self._high_watermark
        found = self._storage.reader.read_loaded(
            self.log.data.stream_id, offset, end_offset, max_bytes
        )
        return None if found is None or _end_without_records(found) is not None else found

    async def read(
        self, offset: Offset, max_bytes: int, *, committed: bool = False
    ) -> Sequence[Buffer]:
        """Return whole batches from the cache or the store, including the first one regardless of
        its size. Cold reads take at least one GET.

        Empty batches, which log compaction leaves behind, are skipped if other batches follow,
        because clients that ignore empty batches would fetch the same offset again.

        Raises OffsetOutOfRange if the log was trimmed in the meantime, and the errors of the store.
        """
        end_offset = self.last_stable_offset if committed else self._high_watermark
        return await read_records(
            self._storage, self.log.data.stream_id, offset, end_offset, max_bytes
        )

    async def read_aborted(
        self, start_offset: Offset, end_offset: Offset
    ) -> list[AbortedTransaction]:
        """See `PartitionLog.read_aborted`."""
        return await self.log.read_aborted(self._storage, start_offset, end_offset)


async def read_records(
    storage: Storage, stream_id: StreamId, offset: Offset, end_offset: Offset, max_bytes: int
) -> Sequence[Buffer]:
    """Return whole batches of a data stream from the cache or the store, including the first one
    regardless of its size. See `Partition.read`.
    """
    while True:
        found = await storage.reader.read(stream_id, offset, end_offset, max_bytes)
        empty_end = _end_without_records(found)
        if empty_end is None or empty_end >= end_offset:
            return found
        offset = empty_end


def _end_without_records(found: Sequence[Buffer]) -> Offset | None:
    """Return the end offset of these batches if none of them contains a record, otherwise None."""
    end: Offset | None = None
    for chunk in found:
        for _, header in iter_headers(chunk):
            if header.record_count:
                return None
            end = Offset(header.next_offset)
    return end
