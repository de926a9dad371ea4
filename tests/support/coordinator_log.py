"""An in-memory internal topic for coordinators without a broker. The test decides when appends
become durable.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from penstock.broker.coordination.log import (
    Done,
    KeyValue,
    LogBatch,
    LogBounds,
    MarkerParts,
    TransactionalProducer,
)
from penstock.protocol.error_codes import ErrorCode


class MemoryLog:
    """Implement `CoordinatorLog` in memory. The log outlives its coordinators: the next coordinator
    reads the durable records.
    """

    def __init__(self, partition_count: int = 4) -> None:
        self.partition_count = partition_count
        self.foreign: set[int] = set()
        self.durable: dict[int, list[LogBatch]] = {}
        """Batches from the start of the log. Each batch takes one offset."""
        self.starts: dict[int, int] = {}
        self.held: list[tuple[int, LogBatch, Done]] = []
        self.hold = False
        self.refuses = False
        """Whether to reject appends immediately."""
        self.appended = asyncio.Event()
        self.epoch = 1
        self.can_write = True
        self.leads_alone = True

    def is_ours(self, partition: int) -> bool:
        return partition not in self.foreign

    def leader_epoch(self, partition: int) -> int:
        return self.epoch

    def end_offset(self, partition: int) -> int:
        return len(self.durable.get(partition, ())) + sum(
            held[0] == partition for held in self.held
        )

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        done: Done,
        *,
        producer: TransactionalProducer | None = None,
        markers: MarkerParts = (),
    ) -> None:
        assert not markers, "this log has no other partitions"
        self._append(
            partition, LogBatch(records, -1 if producer is None else producer.producer_id), done
        )

    def append_marker(
        self, partition: int, producer_id: int, *, committed: bool, done: Done
    ) -> None:
        """Append the marker, as the partition leader does for WriteTxnMarkers."""
        self._append(partition, LogBatch((), producer_id, committed), done)

    def _append(self, partition: int, batch: LogBatch, done: Done) -> None:
        if self.refuses:
            done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            return
        self.held.append((partition, batch, done))
        self.appended.set()
        if not self.hold:
            asyncio.get_running_loop().call_soon(self.release)

    async def holding(self, request: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Start the request; return once its record is appended but not yet durable."""
        self.hold = True
        self.appended.clear()
        task = asyncio.create_task(request)
        await self.appended.wait()
        return task

    def release(self, error: ErrorCode = ErrorCode.NONE, count: int | None = None) -> None:
        """Complete the oldest `count` appends, or all."""
        held, self.held = self.held[:count], [] if count is None else self.held[count:]
        for partition, batch, done in held:
            if error is ErrorCode.NONE:
                self.durable.setdefault(partition, []).append(batch)
            done(error)

    async def read(self, partition: int) -> AsyncIterator[LogBatch]:
        for batch in list(self.durable.get(partition, [])):
            await asyncio.sleep(0)
            yield batch

    def bounds(self, partition: int) -> LogBounds:
        start, batches = self.starts.get(partition, 0), self.durable.get(partition, [])
        opened: dict[int, int] = {}
        for at, batch in enumerate(batches):
            if batch.committed is not None:
                opened.pop(batch.producer_id, None)
            elif batch.producer_id >= 0:
                opened.setdefault(batch.producer_id, at)
        return LogBounds(
            start, start + min(opened.values(), default=len(batches)), start + len(batches)
        )

    async def trim(self, partition: int, start: int) -> None:
        assert start <= self.bounds(partition).stable
        await asyncio.sleep(0)
        del self.durable[partition][: start - self.starts.get(partition, 0)]
        self.starts[partition] = start
