"""The size of a coordinator's log stays proportional to its live keys, and loading it yields to
other tasks.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from penstock.broker.coordination.compaction import CompactionLimits, Live
from penstock.broker.coordination.log import LogBatch, TopicLog
from penstock.broker.coordination.shards import LOAD_SLICE_COUNT, CoordinatorShards
from penstock.protocol.error_codes import ErrorCode
from tests.support.coordinator_log import MemoryLog
from tests.support.partition_harness import transactional
from tests.support.waiting import until

LIMITS = CompactionLimits(
    log_bytes_min=5_000,
    factor=2,
    slice_count=3,
    slices_in_flight_max=2,
    wait_s=5,
    retry_interval_s=0.01,
)


class Table:
    """A coordinator whose state is the newest value of each key. Values that start with "open"
    represent open transactions.
    """

    def __init__(self, log, limits: CompactionLimits = LIMITS) -> None:
        self.led: CoordinatorShards[dict[bytes, bytes]] = CoordinatorShards(
            log, self._load, lambda _: None, LiveTable, limits
        )
        self.loaded_count = 0

    async def open(self, partition: int = 0) -> "Table":
        self.led.opened(partition)
        while self.led.get(partition) is None:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return self

    async def _load(self, partition: int) -> dict[bytes, bytes]:
        state: dict[bytes, bytes] = {}
        async for batch in self.led.read(partition):
            self.loaded_count += len(batch.records)
            state.update({key: value for key, value in batch.records if value is not None})
        return state

    @property
    def state(self) -> dict[bytes, bytes]:
        state = self.led.get(0)
        assert state is not None
        return state

    async def put(self, key: bytes, value: bytes) -> ErrorCode:
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def done(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self.state[key] = value
            future.set_result(code)

        self.led.append(0, [(key, value)], done)
        return await future


class LiveTable:
    def __init__(self, state: dict[bytes, bytes]) -> None:
        self._state = state

    def keys(self) -> Iterator[bytes]:
        yield from list(self._state)

    def get(self, key: bytes) -> Live | None:
        value = self._state.get(key)
        return None if value is None else Live(value, value.startswith(b"open"))


async def quiet() -> None:
    for _ in range(200):
        await asyncio.sleep(0)


async def test_loading_reads_an_amount_proportional_to_the_live_keys() -> None:
    log = MemoryLog(1)
    table = await Table(log).open()
    for number in range(2_000):
        await table.put(b"key %d" % (number % 10), b"%d" % number)
    await quiet()
    table.led.close()
    again = await Table(log).open()
    assert again.state == table_of(2_000)
    assert again.loaded_count <= 100, "10 live keys, 5,000 bytes of at least 100 for each record"
    again.led.close()


def table_of(count: int) -> dict[bytes, bytes]:
    return {b"key %d" % (number % 10): b"%d" % number for number in range(count - 10, count)}


async def test_a_log_that_grew_too_long_is_compacted_after_loading() -> None:
    log = MemoryLog(1)
    log.durable[0] = [
        LogBatch([(b"key %d" % (number % 10), b"%d" % number)]) for number in range(2_000)
    ]
    table = await Table(log).open()
    await quiet()
    assert len(log.durable[0]) < 20
    assert table.state == table_of(2_000)
    table.led.close()


async def test_a_log_that_contains_only_live_keys_is_not_compacted() -> None:
    log = MemoryLog(1)
    log.durable[0] = [LogBatch([(b"key %d" % number, b"x")]) for number in range(2_000)]
    table = await Table(log).open()
    await quiet()
    assert (len(log.durable[0]), log.starts) == (2_000, {})
    table.led.close()


async def test_a_leader_that_stops_during_compaction_trims_nothing() -> None:
    log = MemoryLog(1)
    log.durable[0] = [
        LogBatch([(b"key %d" % (number % 10), b"%d" % number)]) for number in range(2_000)
    ]
    log.hold = True
    table = await Table(log).open()
    while not log.held:  # noqa: ASYNC110
        await asyncio.sleep(0)
    log.release(count=1)
    table.led.close()
    log.release()
    await quiet()
    assert log.starts == {}
    log.hold = False
    again = await Table(log, CompactionLimits()).open()
    assert again.state == table_of(2_000)
    again.led.close()


async def test_a_failed_copy_stops_the_compaction_without_trimming() -> None:
    log = MemoryLog(1)
    log.durable[0] = [
        LogBatch([(b"key %d" % (number % 10), b"%d" % number)]) for number in range(2_000)
    ]
    log.hold = True
    table = await Table(log).open()
    while not log.held:  # noqa: ASYNC110
        await asyncio.sleep(0)
    log.release(ErrorCode.COORDINATOR_NOT_AVAILABLE, count=1)
    log.hold = False
    log.release()
    await quiet()
    assert log.starts == {}
    table.led.close()


async def test_failed_compactions_append_less_than_clients() -> None:
    class Overloaded(MemoryLog):
        """Accept single records of clients, and reject copies."""

        refused_count = 0

        def append(self, partition, records, done, **options) -> None:
            if len(records) > 1:
                self.refused_count += len(records)
                done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            else:
                super().append(partition, records, done, **options)

    log = Overloaded(1)
    table = await Table(log, replace(LIMITS, log_bytes_min=500)).open()
    for number in range(1_000):
        await table.put(b"key %d" % (number % 10), b"%d" % number)
    assert 0 < log.refused_count <= 1_000 / LIMITS.factor
    table.led.close()


@pytest.mark.parametrize("ends", [True, False])
async def test_compaction_waits_for_keys_with_open_transactions(ends: bool) -> None:
    log = MemoryLog(1)
    limits = (
        LIMITS
        if ends
        else CompactionLimits(log_bytes_min=5_000, factor=2, wait_s=0, retry_interval_s=0)
    )
    log.durable[0] = [
        LogBatch([(b"key %d" % (number % 10), b"%d" % number)]) for number in range(1_999)
    ]
    log.durable[0].append(LogBatch([(b"key 0", b"open")]))
    table = await Table(log, limits).open()
    await quiet()
    assert log.starts == {}
    if ends:
        table.state[b"key 0"] = b"ended"
        log.durable[0].append(LogBatch([(b"key 0", b"ended")]))
        await until(lambda: log.starts)
        again = await Table(log, CompactionLimits()).open()
        assert again.state == table.state
        again.led.close()
    table.led.close()


async def test_loads_process_one_slice_per_event_loop_iteration() -> None:
    partitions, batches = 5, 10 * LOAD_SLICE_COUNT
    log = MemoryLog(partitions)
    log.durable = {
        partition: [LogBatch([(b"k", b"v")])] * batches for partition in range(partitions)
    }

    async def read(partition: int):
        for batch in log.durable[partition]:
            yield batch

    log.read = read  # without yielding by itself
    table = Table(log, CompactionLimits(log_bytes_min=1 << 30))
    for partition in range(partitions):
        table.led.opened(partition)
    longest = before = 0
    while any(table.led.get(partition) is None for partition in range(partitions)):
        await asyncio.sleep(0)
        longest, before = max(longest, table.loaded_count - before), table.loaded_count
    assert longest <= 2 * LOAD_SLICE_COUNT
    table.led.close()


async def test_a_large_record_gets_a_batch_of_its_own(harness) -> None:
    """The copies before it and the record together exceed `max.message.bytes` of the topic."""
    broker = await harness.leading("t", partitions=1)
    partition = await broker.opened("t")
    log = TopicLog(broker, "t")
    table = await Table(log, CompactionLimits(log_bytes_min=1 << 30)).open()
    written = {b"a": b"x" * 200_000, b"b": b"y" * 900_000}
    for key, value in [*written.items()] * 5:
        assert await table.put(key, value) is ErrorCode.NONE
    table.led.close()
    again = await Table(log, CompactionLimits(log_bytes_min=1_000)).open()
    await until(lambda: partition.log_start_offset == 10)
    assert [len(batch.records) async for batch in log.read(0)] == [1, 1]
    again.led.close()


async def test_the_next_leader_does_not_need_trimmed_records(harness) -> None:
    first, second = await harness.broker(0), await harness.broker(1)
    harness.topic("t")
    partition = await first.opened("t")
    await first.produce("t", transactional(7, 0, b"a"))
    await first.mark("t", 7, commit=True)
    await first.produce("t", transactional(8, 0, b"b"))
    log = TopicLog(first, "t")
    assert log.bounds(0) == (0, 2, 3)
    await log.trim(0, 2)
    assert (log.bounds(0), [batch.producer_id async for batch in log.read(0)]) == ((2, 2, 3), [8])
    producers = partition.log.producers.snapshot(partition.log.data.next_offset)
    await first.crash()
    await harness.fail_over(first, second)
    inherited = await second.opened("t")
    assert inherited.log.producers.snapshot(inherited.log.data.next_offset) == producers
    assert TopicLog(second, "t").bounds(0) == (2, 2, 3)
