"""Broker load: rates from counters, and append durations."""

from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from penstock.base.yielding import at_once
from penstock.broker.partition.load_meter import STEP_COUNT, AppendTimes, LoadMeter
from penstock.controller.api.load_messages import PARTITIONS_PER_REPORT_MAX, Load
from tests.support.partition_harness import batch


def partition(
    index: int, *, epoch: int = 0, bytes_in: int = 0, bytes_out: int = 0, requests: int = 0
) -> Any:
    return SimpleNamespace(
        topic_id=UUID(int=1),
        index=index,
        leader_epoch=epoch,
        bytes_in=bytes_in,
        bytes_out=bytes_out,
        requests_count=requests,
    )


def test_a_steady_load_has_its_final_rate_from_the_first_sample() -> None:
    meter = LoadMeter(0.0)
    counted = partition(0)
    for now in (1.0, 2.5, 9.0):
        counted.bytes_in, counted.bytes_out, counted.requests_count = (
            int(1_000 * now),
            int(3_000 * now),
            int(10 * now),
        )
        items, rest, rest_count = at_once(meter.sample([counted], now))
        assert (items[0].load, rest, rest_count) == (Load(1_000, 3_000, 10), Load(0, 0, 0), 0)
        assert items[0].observed_ms == int(now * 1_000)


def test_a_stopped_load_decays_and_a_new_leadership_starts_at_zero() -> None:
    meter = LoadMeter(0.0)
    counted = partition(0, bytes_in=10_000)
    at_once(meter.sample([counted], 10.0))
    faded = [
        at_once(meter.sample([counted], 10.0 + later))[0][0].load.bytes_in for later in (5.0, 10.0)
    ]
    assert 1_000 > faded[0] > faded[1] > 0
    items, _, _ = at_once(meter.sample([partition(0, epoch=1, bytes_in=600)], 30.0))
    assert (items[0].load.bytes_in, items[0].observed_ms) == (60, 10_000)


def test_a_partition_that_becomes_idle_is_reported_again() -> None:
    meter = LoadMeter(0.0)
    counted = partition(0, bytes_in=10, requests=1)
    at_once(meter.sample([counted], 1.0))
    for now in range(2, 60):
        at_once(meter.sample([counted], float(now)))
    assert at_once(meter.sample([counted], 60.0))[0] == []
    counted.bytes_in, counted.requests_count = 5_010, 2
    assert at_once(meter.sample([counted], 61.0))[0][0].load.bytes_in in range(500, 5_001)


def test_a_report_lists_the_busiest_partitions_and_the_sum_of_the_rest() -> None:
    meter = LoadMeter(0.0)
    count = PARTITIONS_PER_REPORT_MAX + 5
    items, rest, rest_count = at_once(
        meter.sample([*(partition(n, bytes_in=n) for n in range(1, count + 1)), partition(0)], 1.0)
    )
    assert len(items) == PARTITIONS_PER_REPORT_MAX
    assert min(item.load.bytes_in for item in items) == 6
    assert (rest, rest_count) == (Load(1 + 2 + 3 + 4 + 5, 0, 0), 6)


@pytest.mark.parametrize("requests", [0, 1])
def test_a_report_of_many_partitions_is_built_in_steps(requests: int) -> None:
    meter = LoadMeter(0.0)
    counted = [partition(n, bytes_in=n, requests=requests) for n in range(4 * STEP_COUNT)]
    for now in (1.0, 2.0):
        assert sum(1 for _ in meter.sample(counted, now)) == 4


def test_a_pending_append_counts_with_its_age() -> None:
    times = AppendTimes()
    assert times.take(0.0) is None
    first, second, third = "first", "second", "third"
    for one in (first, second, third):
        times.begin(one, 0.0)
    times.end(first, 0.01)
    times.end(second, 0.02, counts=False)
    assert times.take(5.0) == pytest.approx((10.0, 5_000.0))
    assert times.take(6.0) == pytest.approx((6_000.0, 6_000.0))
    times.end(third, 7.0)
    assert times.take(7.0) == pytest.approx((7_000.0, 7_000.0))
    assert times.take(8.0) is None


async def test_produce_and_fetch_count_records_and_bytes(harness) -> None:
    broker = await harness.broker(1)
    harness.topic("t")
    counted = await broker.opened("t")
    size = len(batch(b"a"))
    await broker.produce("t", batch(b"a"))
    assert (counted.bytes_in, counted.bytes_out, counted.requests_count) == (size, 0, 1)
    assert broker.partitions.append_times.take(1e9) is not None
    await broker.fetch("t", 0)
    await broker.fetch("t", 1)
    assert (counted.bytes_in, counted.bytes_out, counted.requests_count) == (size, size, 3)
    assert (await broker.produce("t", b"no batch at all")).error_code
    assert (counted.bytes_in, counted.requests_count) == (size, 3)
    assert broker.partitions.append_times.take(2e9) is None, "a refusal says nothing of durability"
