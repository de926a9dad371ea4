"""Measure how long a group coordinator takes to load, and how long it blocks the event loop.

`python -m benchmarks.coordinators [commits]` writes commits of one offset each (default 200,000),
from 10 groups with 20 partitions, to an in-memory log; loads it, compacts it and loads it again.
"""

import asyncio
import sys
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence

import structlog

from penstock.broker.coordination.log import (
    Done,
    KeyValue,
    LogBatch,
    LogBounds,
    MarkerParts,
    TransactionalProducer,
    _decode,
)
from penstock.broker.groups.classic.model import GroupLimits
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.offsets.records import (
    CommittedOffset,
    OffsetKey,
    encode_offset_key,
    encode_offset_value,
)
from penstock.protocol.batch.header import parse_header
from penstock.protocol.batch.records import Record, encode_batch
from penstock.protocol.error_codes import ErrorCode

COMMITS_COUNT = 200_000
GROUPS_COUNT, PARTITIONS_COUNT = 10, 20


class Log:
    """A `CoordinatorLog` with one partition, as encoded batches."""

    partition_count = 1
    can_write = True
    leads_alone = True

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        """From the start of the log; each batch takes as many offsets as it has records."""
        self.bases: list[int] = []
        self.start = self.end = 0

    def is_ours(self, partition: int) -> bool:
        return True

    def leader_epoch(self, partition: int) -> int:
        return 1

    def end_offset(self, partition: int) -> int:
        return self.end

    def append(
        self,
        partition: int,
        records: Sequence[KeyValue],
        done: Done,
        *,
        producer: TransactionalProducer | None = None,
        markers: MarkerParts = (),
    ) -> None:
        encoded = [Record(self.end + at, 0, key, value) for at, (key, value) in enumerate(records)]
        self.batches.append(bytes(encode_batch(encoded, base_offset=self.end)))
        self.bases.append(self.end)
        self.end += len(records)
        asyncio.get_running_loop().call_soon(done, ErrorCode.NONE)

    async def read(self, partition: int) -> AsyncIterator[LogBatch]:
        for batch in list(self.batches):
            yield _decode(memoryview(batch), parse_header(batch))

    def bounds(self, partition: int) -> LogBounds:
        return LogBounds(self.start, self.end, self.end)

    async def trim(self, partition: int, start: int) -> None:
        at = bisect_left(self.bases, start)
        del self.batches[:at], self.bases[:at]
        self.start = start


class Pauses:
    """Measures the longest time between two iterations of the event loop, in CPU time of this
    process, which is independent of the machine's load.
    """

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._before = time.process_time()
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        while True:
            self._sample()
            await asyncio.sleep(0)

    def _sample(self) -> None:
        now = time.process_time()
        self._longest_s, self._before = max(self._longest_s, now - self._before), now

    def end_ms(self) -> float:
        self._task.cancel()
        self._sample()
        return 1_000 * self._longest_s


async def load(log: Log) -> GroupCoordinator:
    coordinator = GroupCoordinator(log, GroupLimits(), now_ms=lambda: 0, new_member_id=str)
    count, pauses, began, cpu = (
        log.end - log.start,
        Pauses(),
        time.perf_counter(),
        time.process_time(),
    )
    coordinator.partition_opened(0)
    while coordinator.fetch_offsets("g0") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # noqa: ASYNC110 - it is what is measured
        await asyncio.sleep(0)
    took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    print(
        f"load of {count:,} records: {took_s:.2f} s, {cpu_s:.2f} s of CPU, {count / cpu_s:,.0f} per"
        f" CPU second, longest pause {pauses.end_ms():.1f} ms"
    )
    return coordinator


async def write_commits(log: Log, count: int, *, groups: int, partitions: int) -> None:
    """Write commits of one offset each, rotating over all groups and partitions."""
    for number in range(count):
        key = encode_offset_key(
            OffsetKey(f"g{number % groups}", "orders", number // groups % partitions)
        )
        log.append(
            0, [(key, encode_offset_value(CommittedOffset(number, -1, "", 0)))], lambda _: None
        )
        if number % 10_000 == 0:
            await asyncio.sleep(0)
    await asyncio.sleep(0)


async def compact(log: Log) -> None:
    """Load the log with a coordinator and wait until it has compacted the log."""
    coordinator = await load(log)
    pauses, began, commits_end = Pauses(), time.perf_counter(), log.end
    while log.start == 0 and time.perf_counter() < began + 60:  # noqa: ASYNC110 - as above
        await asyncio.sleep(0)
    print(
        f"compaction to {log.end - log.start:,} records: {time.perf_counter() - began:.2f} s,"
        f" longest pause {pauses.end_ms():.1f} ms"
    )
    assert log.start
    assert log.end - log.start <= commits_end
    coordinator.close()


async def main(commits_count: int) -> None:
    log = Log()
    await write_commits(log, commits_count, groups=GROUPS_COUNT, partitions=PARTITIONS_COUNT)
    await compact(log)
    (await load(log)).close()


if __name__ == "__main__":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else COMMITS_COUNT))
