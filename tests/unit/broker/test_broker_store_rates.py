"""Store requests per second, from the counters of a real metered store."""

import pytest

from penstock.broker.background.store_rates import StoreRates
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.metered import MeteredStore


async def test_rates_cover_the_observed_time_and_decay() -> None:
    store = MeteredStore(MemoryStore())
    rates = StoreRates(100.0)
    for number in range(20):
        await store.put_if_absent(f"k{number}", b"12345")
    await store.get("k1")
    await store.head("k1")
    assert [info.key async for info in store.list("k1", limit=1)] == ["k1"]
    first = rates.sample(store.snapshot(), 102.0)
    assert first is not None
    assert (first.put_s, first.list_s, first.get_s, first.delete_s, first.failed_s) == (
        10.0,
        0.5,
        1.0,
        0.0,
        0.0,
    )
    assert first.written_bytes_s == 50.0
    later, last = (rates.sample(store.snapshot(), now) for now in (104.0, 164.0))
    assert later is not None
    assert 0 < later.put_s < 5.1
    assert last is not None
    assert last.put_s == pytest.approx(0.0, abs=1e-3)


async def test_counter_values_from_before_the_start_are_excluded() -> None:
    """A broker that restarts within its process keeps the counters of the store."""
    store = MeteredStore(MemoryStore())
    for number in range(1_000):
        await store.put(f"k{number}", b"")
    rates = StoreRates(100.0, store.snapshot())
    await store.put("k", b"")
    assert rates.sample(store.snapshot(), 100.01) is None
    found = rates.sample(store.snapshot(), 102.0)
    assert found is not None
    assert 0 < found.put_s < 1
