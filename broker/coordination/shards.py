"""The partitions of an internal topic that this broker leads, each with its coordinator state."""

import asyncio
import contextlib
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Final, Generic, TypeVar

import structlog

from penstock.broker.coordination.compaction import (
    CompactionLimits,
    CoordinatorLogCompactor,
    LiveKeys,
    LogUsage,
)
from penstock.broker.coordination.log import (
    CoordinatorLog,
    Done,
    KeyValue,
    LogBatch,
    MarkerParts,
    TransactionalProducer,
)
from penstock.protocol.error_codes import ErrorCode

log = structlog.get_logger(__name__)

LOAD_RETRY_S: Final = 0.5
LOAD_WAIT_S: Final = 2.0
"""How long a request waits until the partition of its key is loaded. Without this wait, librdkafka
sometimes reports COORDINATOR_LOAD_IN_PROGRESS to the application.
"""
LOAD_SLICE_COUNT: Final = 200
"""Records loaded without yielding to the event loop, which takes 3 to 4 ms."""
PARTITIONS_REMEMBERED_COUNT: Final = 10_000
"""Number of keys whose partition is cached, because each request looks it up several times."""

State = TypeVar("State")


class CoordinatorShards(Generic[State]):
    """The states of the partitions that this broker leads. `load` builds the state of a partition
    from `read`, `unload` is called with each dropped state, and `live` returns the live keys of a
    state.

    A state is returned only if it is complete and no other broker can have changed it. Otherwise, a
    broker that was paused could confirm a commit that was never written. A partition is loaded at
    most once at a time, with retries until the load succeeds or this broker loses the partition.
    All loads together process one slice of `LOAD_SLICE_COUNT` records per event loop iteration.
    """

    def __init__(
        self,
        coordinator_log: CoordinatorLog,
        load: Callable[[int], Coroutine[Any, Any, State]],
        unload: Callable[[State], None],
        live: Callable[[State], LiveKeys],
        limits: CompactionLimits | None = None,
    ) -> None:
        self._log = coordinator_log
        self._load = load
        self._unload = unload
        self._live = live
        self._limits = limits or CompactionLimits()
        self._loaders: dict[int, asyncio.Task[None]] = {}
        self._compactors: dict[int, asyncio.Task[None]] = {}
        self._states: dict[int, State] = {}
        self._usages: dict[int, LogUsage] = {}
        """Log usage of each loaded or loading partition."""
        self._turn = asyncio.Lock()
        """Each load holds this lock for one event loop iteration before each slice."""
        self._released: set[int] = set()
        """Partitions that were closed here. Another broker will lead them, although the metadata
        may briefly still list this broker.
        """
        self._changed = asyncio.Event()
        """Set and replaced whenever a partition has been loaded or closed."""

    def opened(self, partition: int) -> None:
        """Load the partition, which this broker now leads."""
        self.closed(partition)
        self._released.discard(partition)
        self._loaders[partition] = asyncio.get_running_loop().create_task(
            self._load_until_done(partition)
        )

    def closed(self, partition: int) -> None:
        self._released.add(partition)
        for tasks in (self._loaders, self._compactors):
            task = tasks.pop(partition, None)
            if task is not None:
                task.cancel()
        self._usages.pop(partition, None)
        state = self._states.pop(partition, None)
        self._notify_change()
        if state is not None:
            self._unload(state)

    def close(self) -> None:
        for partition in [*self._loaders, *self._states]:
            self.closed(partition)

    def get(self, partition: int) -> State | None:
        """Return the state, or None if this broker does not lead the partition or has not loaded it
        yet.
        """
        return self._states.get(partition)

    def loaded(self) -> Iterator[State]:
        return iter(list(self._states.values()))

    def partition_of(self, key: str) -> int | None:
        """Return the partition of the key, or None while the topic does not exist."""
        count = self._log.partition_count
        return partition_for(key, count) if count > 0 else None

    def find(self, key: str, *, is_read: bool = False) -> State | ErrorCode:
        """Return the state of the partition that contains `key`, or an error code.

        is_read: whether the response depends only on the state. Such a request appends nothing, so
        WAL fencing does not protect it, and the broker must hold its lease
        (`broker.requests.lease`).
        """
        partition = self.partition_of(key)
        if partition is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        state = self._states.get(partition)
        if state is not None:
            may_respond = self._log.leads_alone if is_read else self._log.can_write
            return state if may_respond else ErrorCode.NOT_COORDINATOR
        is_ours = self._is_loading(partition)
        return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if is_ours else ErrorCode.NOT_COORDINATOR

    def _is_loading(self, partition: int) -> bool:
        return partition not in self._states and (
            partition in self._loaders
            or (partition not in self._released and self._log.is_ours(partition))
        )

    async def ready(self, key: str, since_s: float | None = None) -> None:
        """Wait up to LOAD_WAIT_S while the partition of the key is loading, because FindCoordinator
        returns this broker before the partition is loaded.

        Every request starts with this wait. It may still fail with a retriable error afterwards.
        since_s: event loop time at which a request with several keys arrived, which bounds the
        total wait; None means now.
        """
        if (
            self.partition_of(key) in self._states  # avoids a clock read
            or self.find(key) is not ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        ):
            return
        until_s = LOAD_WAIT_S + (asyncio.get_running_loop().time() if since_s is None else since_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(until_s):
                while self.find(key) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                    await self._changed.wait()

    async def all_ready(self) -> bool:
        """Wait up to LOAD_WAIT_S until no partition that this broker leads is loading. Return False
        if one still is, so that a list of all states would be incomplete.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOAD_WAIT_S):
                while any(map(self._is_loading, range(self._log.partition_count))):
                    await self._changed.wait()
                return True
        return False

    # --- the log ----------------------------------------------------------------------------------

    async def read(self, partition: int) -> AsyncIterator[LogBatch]:
        """Yield the durable batches from the log start on, for `load`, and yield to the event loop
        before each slice. Raises the errors of the log's `read`.
        """
        usage = self._usages[partition] = LogUsage(self._limits)
        left_count = 0
        async for batch in self._log.read(partition):
            if left_count <= 0:
                await self.take_turn()
                left_count = LOAD_SLICE_COUNT
            left_count -= max(1, len(batch.records))
            usage.loaded(batch)
            yield batch

    async def take_turn(self) -> None:
        """Wait for an event loop iteration in which no other load runs a slice."""
        async with self._turn:
            await asyncio.sleep(0)

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        done: Done,
        *,
        producer: TransactionalProducer | None = None,
        markers: MarkerParts = (),
    ) -> None:
        """See `CoordinatorLog.append`."""
        usage = self._usages.get(partition)
        if usage is None:
            self._log.append(partition, records, done, producer=producer, markers=markers)
            return

        def settled(code: ErrorCode) -> None:
            done(code)
            if usage.is_due:
                self._compact(partition)

        self._log.append(
            partition, records, usage.append(records, settled), producer=producer, markers=markers
        )

    def in_flight(self, partition: int) -> Iterable[bytes]:
        """Return the keys of the records that are in flight and may still fail."""
        usage = self._usages.get(partition)
        return () if usage is None else usage.in_flight

    def _compact(self, partition: int) -> None:
        state, usage = self._states.get(partition), self._usages.get(partition)
        if state is None or usage is None or partition in self._compactors:
            return
        compactor = CoordinatorLogCompactor(self._log, partition, self._live(state), usage)
        task = asyncio.get_running_loop().create_task(compactor.run())
        self._compactors[partition] = task
        task.add_done_callback(lambda _: self._compacted(partition, task))

    def _compacted(self, partition: int, task: "asyncio.Task[None]") -> None:
        if self._compactors.get(partition) is task:
            del self._compactors[partition]

    # --- loading ----------------------------------------------------------------------------------

    def _notify_change(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def _load_until_done(self, partition: int) -> None:
        while True:
            try:
                state = await self._load(partition)
            except Exception as error:  # noqa: BLE001 - whatever failed, the partition must load: log, wait, retry
                log.warning(
                    "coordinator_load_failed",
                    partition=partition,
                    error=str(error),
                    kind=type(error).__name__,
                )
                await asyncio.sleep(LOAD_RETRY_S)
                continue
            del self._loaders[partition]
            self._states[partition] = state
            self._notify_change()
            if self._usages[partition].is_due:
                self._compact(partition)
            return


@lru_cache(maxsize=PARTITIONS_REMEMBERED_COUNT)
def partition_for(key: str, partition_count: int) -> int:
    """Return the partition of the internal topic for a key: Java's String.hashCode as a
    non-negative number, modulo the partition count. All Kafka tools expect this mapping.
    """
    encoded = key.encode("utf-16-be")
    value = 0
    for unit in struct.unpack(f">{len(encoded) // 2}H", encoded):
        value = (31 * value + unit) & 0xFFFFFFFF
    signed = value - (1 << 32) if value & 0x80000000 else value
    return (0 if signed == -(1 << 31) else abs(signed)) % partition_count
