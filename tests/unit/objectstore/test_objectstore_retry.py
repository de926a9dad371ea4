"""Retries on a store that fails as configured, with a clock that advances only by sleeping."""

import asyncio
from random import Random

import pytest

from penstock.base.slow_calls import SlowCalls
from penstock.objectstore import retry
from penstock.objectstore.errors import (
    AccessDenied,
    ConditionalConflict,
    DeadlineExceeded,
    ObjectNotFound,
    PreconditionFailed,
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
from penstock.objectstore.ports import ObjectInfo
from penstock.objectstore.retry import RetryingStore, RetryPolicy


class RetryHarness:
    """A memory store with injected faults below the retries, and the seconds slept."""

    def __init__(self, policy: RetryPolicy | None = None) -> None:
        self.slept_s: list[float] = []
        self.memory = MemoryStore()
        self.faulty = FaultyStore(self.memory, Random(7), sleep=self._sleep)
        self.store = RetryingStore(
            self.faulty, policy, clock=lambda: sum(self.slept_s), sleep=self._sleep, rng=Random(8)
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)


@pytest.mark.parametrize("fault", [Fault.THROTTLED, Fault.RESET, Fault.LOST_RESPONSE])
async def test_every_operation_survives_every_retriable_fault(fault: Fault) -> None:
    harness = RetryHarness()
    harness.faulty.script(fault, count=3)
    etag = await harness.store.put_if_absent("k", [b"on", b"e"])
    harness.faulty.script(fault, count=3)
    etag = await harness.store.put_if_match("k", b"two", etag)
    harness.faulty.script(fault, count=3)
    await harness.store.put("other", b"three")
    for count in (1, 2, 3):
        harness.faulty.script(fault, count=count)
        assert await harness.store.get("k") == b"two"
        harness.faulty.script(fault, count=count)
        assert await harness.store.get_range("k", 1, 1) == b"w"
        harness.faulty.script(fault, count=count)
        assert (await harness.store.get_tail("k", 1)).data == b"o"
        harness.faulty.script(fault, count=count)
        assert (await harness.store.head("k")).etag == etag
    harness.faulty.script(fault, count=3)
    await harness.store.delete(["k"])
    with pytest.raises(ObjectNotFound):
        await harness.memory.get("k")
    assert harness.faulty.scripted_count == 0


async def test_a_lost_response_of_our_own_write_is_not_a_fence() -> None:
    harness = RetryHarness()
    harness.faulty.script(Fault.LOST_RESPONSE)
    etag = await harness.store.put_if_absent("slot", b"ours")
    assert etag == (await harness.memory.head("slot")).etag


async def test_a_fence_is_distinguished_from_a_lost_response() -> None:
    harness = RetryHarness()
    await harness.memory.put("slot", b"fence by another node")
    harness.faulty.script(Fault.RESET)
    with pytest.raises(PreconditionFailed):
        await harness.store.put_if_absent("slot", b"ours")
    await harness.memory.put("same-size", b"them")
    harness.faulty.script(Fault.RESET)
    with pytest.raises(PreconditionFailed):
        await harness.store.put_if_absent("same-size", b"ours")


async def test_the_first_412_is_raised_at_once() -> None:
    harness = RetryHarness()
    await harness.memory.put("slot", b"ours")
    with pytest.raises(PreconditionFailed):
        await harness.store.put_if_absent("slot", b"ours")
    with pytest.raises(PreconditionFailed):
        await harness.store.put_if_match("slot", b"ours", "another version")
    assert harness.slept_s == []


async def test_a_412_is_raised_after_a_response_that_rules_out_our_write() -> None:
    harness = RetryHarness()
    await harness.memory.put("slot", b"ours")
    harness.faulty.script(Fault.CONFLICT)
    harness.faulty.script(Fault.THROTTLED)
    with pytest.raises(PreconditionFailed):
        await harness.store.put_if_absent("slot", b"ours")


async def test_faults_while_comparing_are_retried() -> None:
    harness = RetryHarness()
    harness.faulty.script(Fault.LOST_RESPONSE, Selection(frozenset({"put_if_absent"})))
    harness.faulty.script(Fault.RESET, Selection(frozenset({"head"})), count=2)
    harness.faulty.script(Fault.THROTTLED, Selection(frozenset({"get"})), count=2)
    await harness.store.put_if_absent("slot", b"ours")
    assert harness.faulty.scripted_count == 0


async def test_a_swap_with_a_lost_response_that_was_overwritten_is_rejected() -> None:
    harness = RetryHarness()
    etag = await harness.memory.put("register", b"0")

    async def replace_meanwhile(_seconds: float) -> None:
        await harness.memory.put("register", b"theirs")

    harness.store = RetryingStore(harness.faulty, sleep=replace_meanwhile, rng=Random(1))
    harness.faulty.script(Fault.LOST_RESPONSE)
    with pytest.raises(PreconditionFailed):
        await harness.store.put_if_match("register", b"ours", etag)


async def test_errors_that_are_not_retriable_are_raised() -> None:
    harness = RetryHarness()
    harness.faulty.script(Fault.DENIED)
    with pytest.raises(AccessDenied):
        await harness.store.get("k")
    with pytest.raises(ObjectNotFound):
        await harness.store.get("k")
    assert harness.slept_s == []


async def test_the_deadline_ends_the_retries_and_reports_the_last_error() -> None:
    harness = RetryHarness(RetryPolicy(backoff_ms=100, backoff_max_ms=400, deadline_ms=2_000))
    harness.faulty.down = True
    with pytest.raises(DeadlineExceeded) as caught:
        await harness.store.put("k", b"v")
    assert isinstance(caught.value.last_error, Unavailable)
    assert (caught.value.operation, caught.value.key, caught.value.deadline_ms) == (
        "put",
        "k",
        2_000,
    )
    assert sum(harness.slept_s) == pytest.approx(2.0)
    assert max(harness.slept_s) <= 0.4


async def test_a_hanging_call_fails_at_the_deadline() -> None:
    async def hang(_seconds: float) -> None:
        await asyncio.Event().wait()

    faulty = FaultyStore(MemoryStore(), Random(1), sleep=hang)
    faulty.config = FaultConfig(latencies=(Latency(1, 1),))
    store = RetryingStore(faulty, RetryPolicy(deadline_ms=20))
    with pytest.raises(DeadlineExceeded):
        await store.get("k")


async def test_a_list_continues_after_the_last_key_seen() -> None:
    harness = RetryHarness()
    keys = [f"k{number:03d}" for number in range(300)]
    for key in keys:
        await harness.memory.put(key, b"")
    harness.faulty.config = FaultConfig(
        rules=(FaultRule(Fault.THROTTLED, 0.1, burst_count=2), FaultRule(Fault.LOST_RESPONSE, 0.1))
    )
    found: list[ObjectInfo] = [info async for info in harness.store.list("k")]
    assert [info.key for info in found] == keys
    assert harness.faulty.injected[Fault.LOST_RESPONSE] > 5


async def test_a_conflict_is_retried_or_raised_without_retries() -> None:
    harness = RetryHarness()
    harness.faulty.script(Fault.CONFLICT)
    with pytest.raises(ConditionalConflict):
        await harness.faulty.put_if_absent("k", b"v")
    harness.faulty.script(Fault.CONFLICT, count=2)
    await harness.store.put_if_absent("k", b"v")
    assert await harness.memory.get("k") == b"v"


@pytest.mark.parametrize("operation", ["get", "put", "list"])
async def test_a_slow_call_is_reported_with_the_name_of_the_store(
    monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    monkeypatch.setattr(retry, "SLOW_S", 0.01)
    reported: list[str] = []

    async def hang(_seconds: float) -> None:
        await asyncio.Event().wait()

    store = RetryingStore(
        FaultyStore(MemoryStore(), Random(1), FaultConfig(latencies=(Latency(1, 1),)), sleep=hang),
        RetryPolicy(deadline_ms=100),
        name="s3://b",
        on_slow=SlowCalls("s3://b", reported.append),
    )
    calls = {
        "get": lambda: store.get("k"),
        "put": lambda: store.put("k", b"v"),
        "list": lambda: anext(store.list("k")),
    }
    for _ in range(2):
        with pytest.raises(DeadlineExceeded, match=f"object store s3://b did not .* {operation}"):
            await calls[operation]()
        assert reported == ["s3://b"]


async def test_a_fast_call_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "SLOW_S", 0.01)
    store = RetryingStore(MemoryStore(), on_slow=lambda: pytest.fail("no call is slow"))
    await store.put("k", b"v")
    await asyncio.sleep(0.05)
