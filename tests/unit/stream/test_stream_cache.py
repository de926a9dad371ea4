"""Caches respect their limit, load a key once at a time, and keep nothing of failed loads and
canceled waiters.
"""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import StreamId
from penstock.stream.cache.block_cache import ByteLru, LoadedValue, LoadingCache
from penstock.stream.read.read_ahead import ReadAhead


def test_the_least_recently_used_entry_is_evicted_first() -> None:
    lru: ByteLru[str, int] = ByteLru(10)
    lru.put("a", 1, 4)
    lru.put("b", 2, 4)
    assert lru.get("a") == 1
    lru.put("c", 3, 4)
    assert (lru.get("a"), lru.get("b"), lru.get("c"), lru.size_bytes) == (1, None, 3, 8)
    lru.put("huge", 4, 11)
    assert lru.get("huge") is None
    assert len(lru) == 2


def test_values_that_share_memory_are_evicted_together() -> None:
    lru: ByteLru[str, int] = ByteLru(10)
    lru.put_shared({"a": 1, "b": 2}, 6)
    lru.put("c", 3, 4)
    assert lru.get("a") == 1  # b counts as used, too
    lru.put("d", 4, 4)
    assert [lru.get(key) for key in "abcd"] == [1, 2, None, 4]
    lru.discard("a")
    assert lru.size_bytes == 10, "the memory is held by b"
    lru.put("b", 5, 1)
    assert lru.size_bytes == 5
    lru.put_shared({"e": 6, "f": 7}, 11)
    assert [lru.get(key) for key in "bdef"] == [5, 4, None, None]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("pgd"),
            st.sets(st.integers(0, 9), min_size=1, max_size=4),
            st.integers(0, 30),
        )
    )
)
def test_the_size_limit_is_never_exceeded(steps: list[tuple[str, set[int], int]]) -> None:
    lru: ByteLru[int, int] = ByteLru(50)
    for action, keys, size_bytes in steps:
        if action == "p":
            lru.put_shared(dict.fromkeys(keys, size_bytes), size_bytes)
            assert {lru.get(key) for key in keys} == {size_bytes}
        elif action == "g":
            lru.get(min(keys))
        else:
            lru.discard(min(keys))
            assert lru.get(min(keys)) is None
        lru.check_invariants()


class Loader:
    """Loads when the test says so, and counts the loads."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self, keys: Sequence[int]) -> list[LoadedValue[str]]:
        self.calls.append(list(keys))
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return [LoadedValue(f"value {key}", 10) for key in keys]


async def test_a_key_is_loaded_once_for_all_waiters() -> None:
    cache: LoadingCache[int, str] = LoadingCache(1_000)
    load = Loader()
    first = asyncio.ensure_future(cache.get_each([1, 2], load))
    second = asyncio.ensure_future(cache.get_each([2, 3], load))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert 1 in cache
    load.gate.set()
    assert await first == ["value 1", "value 2"]
    assert await second == ["value 2", "value 3"]
    assert load.calls == [[1, 2], [3]]
    assert await cache.get_each([3, 1], load) == ["value 3", "value 1"]
    assert len(load.calls) == 2
    assert cache.size_bytes == 30


async def test_a_failed_load_fails_all_waiters_and_is_not_cached() -> None:
    cache: LoadingCache[int, str] = LoadingCache(1_000)
    load = Loader()
    load.error = ValueError("lost")
    load.gate.set()
    results = await asyncio.gather(cache.get(1, load), cache.get(1, load), return_exceptions=True)
    assert [str(result) for result in results] == ["lost", "lost"]
    assert 1 not in cache
    load.error = None
    assert await cache.get(1, load) == "value 1"


async def test_a_load_may_fail_for_one_of_its_keys() -> None:
    cache: LoadingCache[int, str] = LoadingCache(1_000)

    async def load(keys: Sequence[int]) -> list[LoadedValue[str] | Exception]:
        return [
            ValueError(f"lost {key}") if key == 2 else LoadedValue(f"value {key}", 10)
            for key in keys
        ]

    found, alone = await asyncio.gather(
        cache.get_each([1, 2, 3], load), cache.get(2, load), return_exceptions=True
    )
    assert isinstance(found, list)
    assert [str(item) for item in found] == ["value 1", "lost 2", "value 3"]
    assert str(alone) == "lost 2"
    assert [key in cache for key in (1, 2, 3)] == [True, False, True]


async def test_shared_values_of_a_load_are_cached_together() -> None:
    cache: LoadingCache[int, str] = LoadingCache(40)

    async def load(keys: Sequence[int]) -> list[LoadedValue[str] | Exception]:
        return [
            ValueError(f"lost {key}")
            if key == 2
            else LoadedValue(f"value {key}", 10, is_shared=True)
            for key in keys
        ]

    await cache.get_each([1, 2, 3], load)
    assert cache.size_bytes == 20
    cache.put(4, "value 4", 30)
    assert [key in cache for key in (1, 3, 4)] == [False, False, True]


async def test_a_cancelled_waiter_does_not_affect_others() -> None:
    cache: LoadingCache[int, str] = LoadingCache(1_000)
    load = Loader()
    impatient = asyncio.ensure_future(cache.get(1, load))
    patient = asyncio.ensure_future(cache.get(1, load))
    await asyncio.sleep(0)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    load.gate.set()
    assert await patient == "value 1"
    assert len(load.calls) == 1


async def test_close_cancels_running_requests() -> None:
    cache: LoadingCache[int, str] = LoadingCache(1_000)
    load = Loader()
    waiting = asyncio.ensure_future(cache.get(1, load))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await cache.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert 1 not in cache


def test_read_ahead_follows_sequential_readers_only() -> None:
    ahead = ReadAhead(bytes_min=512, bytes_max=2_048, total_bytes_max=1 << 30, readers_max=2)
    stream = StreamId(1)
    assert ahead.on_read(stream, 0, 10, 0.0) is None
    reader = ahead.on_read(stream, 10, 20, 0.0)
    assert reader is not None
    assert reader.window_bytes == 512
    reader.ahead_from, reader.ahead_until = 20, 60
    assert ahead.on_read(stream, 20, 29, 0.0) is None  # three quarters have not been read yet
    assert ahead.on_read(stream, 29, 40, 0.0) is reader
    assert reader.window_bytes == 2_048
    reader.is_busy = True
    assert ahead.on_read(stream, 40, 90, 0.0) is None
    assert reader.window_bytes == 2_048
    assert ahead.on_read(stream, 5_000, 5_010, 0.0) is None  # a jump is a new reader
    assert ahead.on_read(StreamId(2), 0, 10, 0.0) is None
    assert len(ahead) == 2


def test_consumers_of_the_same_offsets_count_as_one_reader() -> None:
    """In each case the other reader keeps the window, and takes over when the first one stops."""
    ahead = ReadAhead(bytes_min=512, bytes_max=4_096, total_bytes_max=1 << 30, readers_max=8)
    stream = StreamId(1)
    for _ in range(2):
        assert ahead.on_read(stream, 0, 10, 0.0) is None
    reader = ahead.on_read(stream, 10, 20, 0.0)
    assert reader is not None
    reader.ahead_from, reader.ahead_until = 20, 60
    assert ahead.knows(stream, 10, 20), "another one is at 20"
    assert not ahead.knows(stream, 10, 15), "no reader is at 15"
    assert ahead.on_read(stream, 10, 20, 0.0) is None
    assert ahead.on_read(stream, 20, 25, 0.0) is None
    assert ahead.on_read(stream, 20, 25, 0.0) is None
    assert ahead.on_read(stream, 25, 50, 0.0) is reader
    assert reader.window_bytes == 2_048
    assert len(ahead) == 1


def test_when_two_readers_meet_the_window_that_is_further_ahead_is_kept() -> None:
    ahead = ReadAhead(bytes_min=512, bytes_max=4_096, total_bytes_max=1 << 30, readers_max=8)
    stream = StreamId(1)
    ahead.on_read(stream, 0, 10, 0.0)
    far = ahead.on_read(stream, 10, 40, 0.0)
    ahead.on_read(stream, 5, 15, 0.0)
    near = ahead.on_read(stream, 15, 30, 0.0)
    assert far is not None
    assert near is not None
    assert near is not far
    far.ahead_from, far.ahead_until = 40, 100
    near.ahead_from, near.ahead_until = 30, 50
    assert ahead.on_read(stream, 30, 40, 0.0) is None, "the other one is far ahead"
    assert len(ahead) == 1
    assert ahead.on_read(stream, 40, 80, 0.0) is far


def test_the_total_window_of_all_active_readers_is_limited() -> None:
    mib = 1 << 20
    ahead = ReadAhead(bytes_min=mib, bytes_max=16 * mib, total_bytes_max=16 * mib, readers_max=99)
    next_of = dict.fromkeys(map(StreamId, range(8)), 0)

    def window_bytes(stream: StreamId, now_s: float) -> int:
        """Read once; return the window of the reader, 0 without one."""
        at = next_of[stream]
        next_of[stream] = at + 1
        reader = ahead.on_read(stream, at, at + 1, now_s)
        return 0 if reader is None else reader.window_bytes

    def windows(count: int, now_s: float) -> set[int]:
        for _ in range(6):
            found = {window_bytes(StreamId(number), now_s) for number in range(count)}
        return found

    assert windows(1, 0.0) == {14 * mib}
    assert windows(2, 0.0) == {6 * mib}
    assert windows(4, 0.0) == {2 * mib}
    assert windows(8, 0.0) == {0}, "two blocks at the borders are more than the share"
    assert windows(2, 10.5) == {6 * mib}, "the others have stopped"
