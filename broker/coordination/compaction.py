"""Compaction of coordinator logs: append every live key again, then trim everything before the
first copy. See docs/design/groups.md.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import structlog

from penstock.broker.coordination.log import (
    CoordinatorLog,
    Done,
    KeyValue,
    LogBatch,
)
from penstock.protocol.error_codes import ErrorCode

log = structlog.get_logger(__name__)

RECORD_OVERHEAD_BYTES: Final = 100
"""Overhead of a record in addition to its key and value, in storage and load time. A small record
takes 15 to 20 us to load.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionLimits:
    log_bytes_min: int = 2 * 1024 * 1024
    """Smaller logs are not compacted, because they load in 0.2 to 0.3 s."""
    factor: int = 4
    """Compact when the log is this many times as large as its live records. With a factor of 4, one
    record is copied for every three appended.
    """
    slice_count: int = 200
    """Keys checked without yielding to the event loop, which takes about 3 ms."""
    slice_bytes: int = 256 * 1024
    """Maximum size of one batch of copies, unless a single copy is larger."""
    slices_in_flight_max: int = 8
    wait_s: float = 120.0
    """How long a pass waits for keys that have an open transaction or a record in flight. Most
    transactions end within 60 s.
    """
    retry_interval_s: float = 0.5


class Live(NamedTuple):
    """The current record of a key."""

    value: bytes
    is_open: bool = False
    """True if an open transaction may change the value."""
    includes_in_flight: bool = False
    """True if the value already includes the records in flight, so that a copy may be appended
    after them.
    """


class LiveKeys(Protocol):
    """The live keys of one partition, provided by its coordinator."""

    def keys(self) -> Iterator[bytes]:
        """Yield every live key, encoded. The state may change during the iteration, and keys that
        are added meanwhile may be missing.
        """
        ...

    def get(self, key: bytes) -> Live | None:
        """Return the value of the key, or None if the key is no longer live. The value is durable
        unless it includes records in flight.
        """
        ...


class CompactionStopped(Exception):
    """Raised when a pass cannot continue. Nothing is trimmed."""


class LogUsage:
    """The size of one partition since its log start, and the keys of its records in flight."""

    __slots__ = ("_in_flight", "due_bytes", "limits", "size_bytes")

    def __init__(self, limits: CompactionLimits) -> None:
        self.limits = limits
        self.size_bytes = 0
        self.due_bytes = limits.log_bytes_min
        """The size at which the log is compacted."""
        self._in_flight: Counter[bytes] = Counter()

    @property
    def is_due(self) -> bool:
        return self.size_bytes >= self.due_bytes

    @property
    def in_flight(self) -> Iterable[bytes]:
        """Return the keys of the records in flight."""
        return self._in_flight.keys()

    def loaded(self, batch: LogBatch) -> None:
        self.size_bytes += max(RECORD_OVERHEAD_BYTES, _size_bytes(batch.records))

    def append(self, records: Sequence[KeyValue], done: Done) -> Done:
        """Count the records as in flight. Return a callback that removes them from the count and
        calls `done`.
        """
        for key, _ in records:
            self._in_flight[key] += 1

        def settled(code: ErrorCode) -> None:
            for key, _ in records:
                self._in_flight[key] -= 1
                if not self._in_flight[key]:
                    del self._in_flight[key]
            if code is ErrorCode.NONE:
                self.size_bytes += _size_bytes(records)
            done(code)

        return settled


class CoordinatorLogCompactor:
    """One compaction pass over one partition.

    A pass ends at the stable offset of the log: everything below it is durable, outside open
    transactions and reflected in the state. It appends a copy of each live key, and trims the log
    to that offset once all copies are durable. A copy is never appended after a newer record of the
    same key unless it includes that record. A key with such a record in flight, or with an open
    transaction, is copied later, or not at all once the newer record is durable. If the leader
    changes during a pass, the copies are redundant but harmless. A pass that exceeds
    `CompactionLimits` trims nothing and is retried after the log has grown further.
    """

    def __init__(
        self, coordinator_log: CoordinatorLog, partition: int, live: LiveKeys, usage: LogUsage
    ) -> None:
        self._log = coordinator_log
        self._partition = partition
        self._live = live
        self._usage = usage
        self._limits = usage.limits
        self._outstanding: list[asyncio.Future[ErrorCode]] = []
        self._live_bytes = 0
        self._copied_count = 0
        self._copied_bytes = 0

    async def run(self) -> None:
        """Compact the log if it is large enough, and set the size for the next pass in `LogUsage`.
        Errors are logged, not raised.
        """
        usage, limits = self._usage, self._limits
        # A successful pass replaces this value below.
        usage.due_bytes = usage.size_bytes + limits.log_bytes_min
        try:
            await self._measure()
            due_bytes = max(limits.log_bytes_min, limits.factor * self._live_bytes)
            if usage.size_bytes >= due_bytes:
                await self._compact()
            usage.due_bytes = max(due_bytes, usage.size_bytes + limits.log_bytes_min)
        except Exception as error:  # noqa: BLE001 - the log is valid as before; the next pass comes when it has grown
            # A failed pass counts too, because its copies cost as much as those of a successful
            # one.
            growth_bytes = max(limits.log_bytes_min, limits.factor * self._copied_bytes)
            usage.due_bytes = usage.size_bytes + growth_bytes
            log.warning(
                "coordinator_log_compaction_failed",
                partition=self._partition,
                error=str(error),
                kind=type(error).__name__,
            )

    async def _measure(self) -> None:
        for count, key in enumerate(self._live.keys(), 1):
            found = self._live.get(key)
            if found is not None:
                self._live_bytes += _size_bytes(((key, found.value),))
            if count % self._limits.slice_count == 0:
                await asyncio.sleep(0)

    async def _compact(self) -> None:
        bounds, size_bytes = self._log.bounds(self._partition), self._usage.size_bytes
        if 2 * (bounds.stable - bounds.start) < bounds.end - bounds.start:
            raise CompactionStopped(
                f"an open transaction holds the log at {bounds.stable}; the log is"
                f" [{bounds.start}, {bounds.end})"
            )
        await self._settle(await self._copy_all())
        while self._outstanding:
            await self._settle_first()
        await self._log.trim(self._partition, bounds.stable)
        self._usage.size_bytes -= (
            size_bytes * (bounds.stable - bounds.start) // max(1, bounds.end - bounds.start)
        )
        log.info(
            "coordinator_log_compacted",
            partition=self._partition,
            start=bounds.stable,
            trimmed=bounds.stable - bounds.start,
            copied=self._copied_count,
        )

    async def _copy_all(self) -> dict[bytes, bytes]:
        """Copy the keys that can be copied now. Return the other keys with their current values."""
        postponed: dict[bytes, bytes] = {}
        copies: list[KeyValue] = []
        size_bytes = 0
        for count, key in enumerate(self._live.keys(), 1):
            found = self._live.get(key)
            if found is not None and size_bytes + len(found.value) > self._limits.slice_bytes:
                await self._append(copies)
                copies, size_bytes = [], 0
                found = self._live.get(key)  # the value may have changed in the meantime
            if found is not None and self._is_settled(key, found):
                copies.append((key, found.value))
                size_bytes += len(key) + len(found.value)
            elif found is not None:
                postponed[key] = found.value
            if count % self._limits.slice_count == 0:
                await self._append(copies)
                copies, size_bytes = [], 0
        await self._append(copies)
        return postponed

    async def _settle(self, postponed: dict[bytes, bytes]) -> None:
        """Wait until each key has a newer record or can be copied."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.wait_s
        while postponed:
            await self._copy_settled(postponed)
            if postponed and loop.time() >= deadline:
                raise CompactionStopped(
                    f"{len(postponed)} keys have had a record in flight or an open transaction for"
                    f" {self._limits.wait_s} s"
                )
            if postponed:
                await asyncio.sleep(self._limits.retry_interval_s)

    async def _copy_settled(self, postponed: dict[bytes, bytes]) -> None:
        """Copy the keys that can be copied now. Remove these keys, and those with a newer record,
        from `postponed`.
        """
        for count, (key, seen) in enumerate(list(postponed.items()), 1):
            found = self._live.get(key)
            if found is None or found.value != seen:
                del postponed[key]  # the newer record is at or after the end offset of the pass
            elif self._is_settled(key, found):
                del postponed[key]
                await self._append([(key, found.value)])
            if count % self._limits.slice_count == 0:
                await asyncio.sleep(0)

    def _is_settled(self, key: bytes, found: Live) -> bool:
        is_newest = found.includes_in_flight or key not in self._usage.in_flight
        return is_newest and not found.is_open

    async def _append(self, copies: Sequence[KeyValue]) -> None:
        """Append copies. Callers must not await between reading the values and this call."""
        if copies:
            future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
            self._outstanding.append(future)
            self._copied_count += len(copies)
            self._copied_bytes += _size_bytes(copies)

            def done(code: ErrorCode) -> None:
                if not future.done():
                    future.set_result(code)

            self._log.append(self._partition, copies, self._usage.append(copies, done))
        if len(self._outstanding) >= self._limits.slices_in_flight_max:
            await self._settle_first()
        else:
            await asyncio.sleep(0)

    async def _settle_first(self) -> None:
        code = await self._outstanding.pop(0)
        if code is not ErrorCode.NONE:
            raise CompactionStopped(f"a copy was not written: {code.name}")


def _size_bytes(records: Iterable[KeyValue]) -> int:
    return sum(RECORD_OVERHEAD_BYTES + len(key) + len(value or b"") for key, value in records)
