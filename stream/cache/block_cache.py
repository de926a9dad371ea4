"""Cache what was read from objects, limited by bytes, and load each key once for all its waiters.

Invariant: `ByteLru` never weighs more than its limit. A key has at most one load in flight. A
waiter that gives up does not affect the others. A failed load fails its waiters and leaves nothing
behind, so that the next waiter tries again; a load may fail for some of its keys only. Must not
know what is cached.
Source: AutoMQ `DataBlockCache`.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

Load = Callable[[Sequence[K]], Awaitable[Sequence[tuple[V, int] | Exception]]]
"""Return (value, weight in bytes) or an error for each key, in the order of the keys. Raises an
error that concerns all of them.
"""


class ByteLru(Generic[K, V]):
    """Keep the most recently used values. Pure. A value heavier than the limit is not kept."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        self.discard(key)
        if size_bytes > self._bytes_max:
            return
        self._entries[key] = (value, size_bytes)
        self.size_bytes += size_bytes
        while self.size_bytes > self._bytes_max:
            _, (_, evicted_bytes) = self._entries.popitem(last=False)
            self.size_bytes -= evicted_bytes

    def discard(self, key: K) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self.size_bytes -= entry[1]

    def check_invariants(self) -> None:
        assert self.size_bytes == sum(size_bytes for _, size_bytes in self._entries.values())
        assert self.size_bytes <= self._bytes_max


class LoadingCache(Generic[K, V]):
    """A ByteLru that loads missing keys, each once at a time."""

    def __init__(self, bytes_max: int) -> None:
        self._kept: ByteLru[K, V] = ByteLru(bytes_max)
        self._flights: dict[K, asyncio.Future[V]] = {}
        self._loads: set[asyncio.Task[Sequence[tuple[V, int] | Exception]]] = set()
        self.hit_count = 0
        """Keys that were in the cache. Keys whose load was in flight count as missed."""
        self.miss_count = 0

    @property
    def size_bytes(self) -> int:
        return self._kept.size_bytes

    def __contains__(self, key: K) -> bool:
        """Return whether the key is in the cache or its load is in flight."""
        return key in self._flights or self._kept.get(key) is not None

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Cache a value that was read together with something else."""
        self._kept.put(key, value, size_bytes)

    async def get(self, key: K, load: Load[K, V]) -> V:
        """Return the value of one key. Raises what `load` raises or returns for it."""
        (found,) = await self.get_each((key,), load)
        if isinstance(found, Exception):
            raise found
        return found

    async def get_each(self, keys: Sequence[K], load: Load[K, V]) -> list[V | Exception]:
        """Return the value of each key, or its error. One call of `load` loads all keys that are
        neither cached nor in flight.
        """
        found: dict[K, V | Exception] = {}
        flights: dict[K, asyncio.Future[V]] = {}
        claimed: list[K] = []
        for key in keys:
            value = self._kept.get(key)
            if value is not None:
                found[key] = value
                continue
            flight = self._flights.get(key)
            if flight is None:
                flight = self._flights[key] = asyncio.get_running_loop().create_future()
                claimed.append(key)
            flights[key] = flight
        self.hit_count += len(found)
        self.miss_count += len(flights)
        if claimed:
            self._start(claimed, load)
        for key, flight in flights.items():
            try:
                # Shielded: if this waiter is cancelled, the load continues for the others and for
                # the cache.
                found[key] = await asyncio.shield(flight)
            except Exception as error:  # noqa: BLE001 - returned: the caller decides whether it can use the other values
                found[key] = error
        return [found[key] for key in keys]

    def _start(self, claimed: list[K], load: Load[K, V]) -> None:
        task = asyncio.ensure_future(_call(load, claimed))
        self._loads.add(task)
        task.add_done_callback(partial(self._settle, claimed))

    def _settle(
        self, claimed: list[K], task: asyncio.Task[Sequence[tuple[V, int] | Exception]]
    ) -> None:
        self._loads.discard(task)
        flights = [self._flights.pop(key) for key in claimed]
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            for flight in flights:
                flight.cancel()
        elif error is not None:
            for flight in flights:
                _fail(flight, error)
        else:
            for key, flight, loaded in zip(claimed, flights, task.result(), strict=True):
                if isinstance(loaded, Exception):
                    _fail(flight, loaded)
                    continue
                value, size_bytes = loaded
                self._kept.put(key, value, size_bytes)
                flight.set_result(value)

    async def close(self) -> None:
        """Cancel the loads in flight and wait for their end. Waiters get CancelledError."""
        loads = list(self._loads)
        for task in loads:
            task.cancel()
        await asyncio.gather(*loads, return_exceptions=True)


async def _call(load: Load[K, V], keys: list[K]) -> Sequence[tuple[V, int] | Exception]:
    return await load(keys)


def _fail(flight: asyncio.Future[V], error: BaseException) -> None:
    flight.set_exception(error)
    flight.exception()  # retrieve it, or asyncio logs it if every waiter has gone


BlockKey = tuple[str, int]
"""(object key, position of the block). Keys are never written twice with other bytes."""


class BlockCache(LoadingCache[BlockKey, bytes]):
    """Blocks whose checksums held."""
