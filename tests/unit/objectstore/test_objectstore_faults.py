"""The faulty store injects the configured faults, and the meter counts requests."""

from random import Random

import pytest

from penstock.base.histogram import BUCKET_BOUNDS_MS, LatencyHistogram
from penstock.objectstore.errors import (
    AccessDenied,
    ObjectNotFound,
    PreconditionFailed,
    Throttled,
    Unavailable,
)
from penstock.objectstore.faults import (
    Fault,
    FaultConfig,
    FaultRule,
    FaultyStore,
    Latency,
    Selection,
)
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.metered import MeteredStore


async def test_a_write_takes_effect_with_a_lost_response_but_not_with_a_reset() -> None:
    memory = MemoryStore()
    store = FaultyStore(memory, Random(1))
    store.script(Fault.LOST_RESPONSE)
    with pytest.raises(Unavailable):
        await store.put("done", b"v")
    assert await memory.get("done") == b"v"
    store.script(Fault.RESET)
    with pytest.raises(Unavailable):
        await store.put("not-done", b"v")
    with pytest.raises(ObjectNotFound):
        await memory.get("not-done")


async def test_scripted_faults_affect_only_matching_calls() -> None:
    store = FaultyStore(MemoryStore(), Random(1))
    store.script(Fault.DENIED, Selection(frozenset({"put_if_absent"}), "wal/"))
    store.script(Fault.TRUNCATED)
    await store.put("wal/1", b"v" * 100)
    await store.put_if_absent("data/1", b"v")
    with pytest.raises(AccessDenied):
        await store.put_if_absent("wal/2", b"v")
    assert len(await store.get("wal/1")) < 100
    assert len(await store.get("wal/1")) == 100
    assert store.injected == {Fault.DENIED: 1, Fault.TRUNCATED: 1}


async def test_one_bit_is_flipped_in_transit_only() -> None:
    memory = MemoryStore()
    store = FaultyStore(memory, Random(2))
    await store.put("k", bytes(50))
    for read in ("get", "get_range", "get_tail"):
        store.script(Fault.FLIPPED_BIT, Selection(frozenset({read})))
    damaged = [
        await store.get("k"),
        await store.get_range("k", 0, 50),
        (await store.get_tail("k", 50)).data,
    ]
    for data in damaged:
        assert int.from_bytes(data).bit_count() == 1
    assert await memory.get("k") == bytes(50)


async def test_a_burst_affects_the_following_calls() -> None:
    store = FaultyStore(MemoryStore(), Random(5))
    store.config = FaultConfig(
        rules=(FaultRule(Fault.THROTTLED, 0.02, Selection(key_prefix="a"), burst_count=7),)
    )
    outcomes = ""
    for _ in range(1_000):
        try:
            await store.put("a", b"")
            outcomes += "."
        except Throttled:
            outcomes += "x"
    runs = [len(run) for run in outcomes.split(".") if run]
    assert runs
    assert all(run % 7 == 0 for run in runs[:-1])
    await store.put("b", b"")


async def test_the_store_is_down_until_it_is_restored() -> None:
    store = FaultyStore(MemoryStore(), Random(1))
    store.down = True
    for _ in range(3):
        with pytest.raises(Unavailable):
            await store.put("k", b"v")
    with pytest.raises(Unavailable):
        _ = [info async for info in store.list("")]
    store.down = False
    await store.put("k", b"v")


async def test_the_same_seed_results_in_the_same_faults() -> None:
    async def run(seed: int) -> tuple[str, list[float]]:
        slept_s: list[float] = []

        async def sleep(seconds: float) -> None:
            slept_s.append(seconds)

        rules = (FaultRule(Fault.RESET, 0.2), FaultRule(Fault.LOST_RESPONSE, 0.2))
        config = FaultConfig(latencies=(Latency(100, 400),), rules=rules)
        store = FaultyStore(MemoryStore(), Random(seed), config, sleep=sleep)
        outcomes = ""
        for number in range(100):
            try:
                await store.put_if_absent(f"k{number % 60}", b"")
                outcomes += "."
            except (Unavailable, PreconditionFailed) as error:
                outcomes += type(error).__name__[0]
        return outcomes, slept_s

    assert await run(1) == await run(1)
    assert await run(1) != await run(2)


def test_latencies_have_the_configured_quantiles() -> None:
    rng = Random(1)
    drawn = sorted(Latency(100, 400).draw_ms(rng) for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(100, rel=0.05)
    assert drawn[19_800] == pytest.approx(400, rel=0.1)
    assert Latency(30, 30).draw_ms(rng) == 30


async def test_the_meter_counts_calls_bytes_errors_and_time() -> None:
    now_s = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    faulty = FaultyStore(
        MemoryStore(), Random(1), FaultConfig(latencies=(Latency(10, 10),)), sleep=sleep
    )
    store = MeteredStore(faulty, clock=lambda: now_s)
    await store.put("k", [b"123", memoryview(b"45")])
    with pytest.raises(PreconditionFailed):
        await store.put_if_absent("k", b"123")
    await store.get("k")
    await store.get_range("k", 1, 2)
    await store.get_tail("k", 1)
    stats = store.snapshot()
    names = ("put", "put_if_absent", "get", "get_range", "get_tail")
    assert {name: found.count for name, found in stats.operations.items()} == dict.fromkeys(
        names, 1
    )
    assert stats.operations["put"].written_bytes == 5
    assert stats.operations["put_if_absent"].written_bytes == 0
    assert stats.operations["put_if_absent"].errors == {"PreconditionFailed": 1}
    assert [stats.operations[name].read_bytes for name in ("get", "get_range", "get_tail")] == [
        5,
        2,
        1,
    ]
    assert stats.operations["get"].latencies.max_ms == pytest.approx(10)
    await store.get("k")
    assert stats.operations["get"].count == 1


async def test_the_meter_counts_a_list_by_pages() -> None:
    memory = MemoryStore()
    for number in range(1_500):
        await memory.put(f"{number}", b"")
    store = MeteredStore(memory)
    assert len([info async for info in store.list("")]) == 1_500
    assert store.snapshot().operations["list"].count == 2


def test_the_histogram_counts_every_value_below_its_bound() -> None:
    histogram = LatencyHistogram()
    for value_ms in range(1, 1_001):
        histogram.observe(float(value_ms))
    latencies = histogram.freeze()
    assert latencies.cumulative(0, 1) == [
        (bound_ms, min(1_000, int(bound_ms))) for bound_ms in BUCKET_BOUNDS_MS
    ]
    assert (latencies.count, latencies.max_ms, latencies.sum_ms) == (1_000, 1_000, 500_500)
    histogram.observe(BUCKET_BOUNDS_MS[-1] * 10)
    assert histogram.freeze().counts[-1] == 1
