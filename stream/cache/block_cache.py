"""Size-limited LRU caches. Concurrent requests for the same key share one load."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from penstock.base.buffers import Buffer

K = TypeVar("K")
V = TypeVar("V")


class LoadedValue(NamedTuple, Generic[V]):
    """A value and its weight. is_shared: whether the value shares memory with the other shared
    values of the same load, so that the memory is freed only when all of them are evicted.
    """

    value: V
    size_bytes: int
    is_shared: bool = False


Load = Callable[[Sequence[K]], Awaitable[Sequence[LoadedValue[V] | Exception]]]
"""Return a value or an error for each key, in the order of the keys. Raises errors that affect all
keys.
"""


class _Memory(Generic[K]):
    """A group of keys whose values share memory and are therefore freed together."""

    __slots__ = ("keys", "size_bytes")

    def __init__(self, keys: set[K], size_bytes: int) -> None:
        self.keys = keys
        self.size_bytes = size_bytes


class ByteLru(Generic[K, V]):
    """An LRU cache limited by total weight. Pure.

    Values that share memory count as used together and are evicted together. Values larger than the
    limit are not cached.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._entries: dict[K, tuple[V, _Memory[K]]] = {}
        self._by_use: OrderedDict[_Memory[K], None] = OrderedDict()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        if entry is None:
            return None
        self._by_use.move_to_end(entry[1])
        return entry[0]

    def put(self, key: K, value: V, size_bytes: int) -> None:
        self.put_shared({key: value}, size_bytes)

    def put_shared(self, values: Mapping[K, V], size_bytes: int) -> None:
        """Cache values that share memory. size_bytes: their total size."""
        for key in values:
            self.discard(key)
        if size_bytes > self.bytes_max or not values:
            return
        memory = _Memory(set(values), size_bytes)
        self._entries.update({key: (value, memory) for key, value in values.items()})
        self._by_use[memory] = None
        self.size_bytes += size_bytes
        while self.size_bytes > self.bytes_max:
            evicted, _ = self._by_use.popitem(last=False)
            self.size_bytes -= evicted.size_bytes
            for key in evicted.keys:
                del self._entries[key]

    def discard(self, key: K) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        memory = entry[1]
        memory.keys.discard(key)
        if not memory.keys:
            del self._by_use[memory]
            self.size_bytes -= memory.size_bytes

    def check_invariants(self) -> None:
        assert self.size_bytes == sum(memory.size_bytes for memory in self._by_use)
        assert self.size_bytes <= self.bytes_max
        held = [key for memory in self._by_use for key in memory.keys]
        assert len(held) == len(self._entries)
        assert all(key in self._entries[key][1].keys for key in held)


class LoadingCache(Generic[K, V]):
    """A ByteLru that loads missing keys, with at most one load in flight per key.

    A cancelled waiter does not affect the others. A failed load raises its error in all waiters and
    is not cached, so the next request tries again. A load may fail for only some of its keys.
    """

    def __init__(self, bytes_max: int) -> None:
        self._kept: ByteLru[K, V] = ByteLru(bytes_max)
        self._flights: dict[K, asyncio.Future[V]] = {}
        self._loads: set[asyncio.Task[Sequence[LoadedValue[V] | Exception]]] = set()
        self.hit_count = 0
        """Number of keys that were found in the cache. A key whose load is in flight counts as a
        miss.
        """
        self.miss_count = 0

    @property
    def bytes_max(self) -> int:
        return self._kept.bytes_max

    @property
    def size_bytes(self) -> int:
        return self._kept.size_bytes

    def __contains__(self, key: K) -> bool:
        """Return whether the key is cached or being loaded."""
        return key in self._flights or self._kept.get(key) is not None

    def kept(self, key: K) -> V | None:
        """Return the cached value, or None."""
        value = self._kept.get(key)
        if value is not None:
            self.hit_count += 1
        return value

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Cache a value that was loaded together with another one."""
        self._kept.put(key, value, size_bytes)

    def put_shared(self, values: Mapping[K, V], size_bytes: int) -> None:
        """Cache values that share memory. size_bytes: their total size."""
        self._kept.put_shared(values, size_bytes)

    async def get(self, key: K, load: Load[K, V]) -> V:
        """Return the value of a key. Raises the error that `load` raised or returned for the
        key.
        """
        (found,) = await self.get_each((key,), load)
        if isinstance(found, Exception):
            raise found
        return found

    async def get_each(self, keys: Sequence[K], load: Load[K, V]) -> list[V | Exception]:
        """Return the value of each key, or its error. A single call of `load` loads all keys that
        are neither cached nor in flight.
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
                # Shielded: if this waiter is cancelled, the load continues for the other waiters
                # and the cache.
                found[key] = await asyncio.shield(flight)
            except Exception as error:  # noqa: BLE001 - returned: the caller decides whether it can use the other values
                found[key] = error
        return [found[key] for key in keys]

    def _start(self, claimed: list[K], load: Load[K, V]) -> None:
        task = asyncio.ensure_future(_call(load, claimed))
        self._loads.add(task)
        task.add_done_callback(partial(self._settle, claimed))

    def _settle(
        self, claimed: list[K], task: asyncio.Task[Sequence[LoadedValue[V] | Exception]]
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
            self._keep(claimed, flights, task.result())

    def _keep(
        self,
        claimed: Sequence[K],
        flights: Sequence[asyncio.Future[V]],
        results: Sequence[LoadedValue[V] | Exception],
    ) -> None:
        shared: dict[K, V] = {}
        shared_bytes = 0
        for key, flight, loaded in zip(claimed, flights, results, strict=True):
            if isinstance(loaded, Exception):
                _fail(flight, loaded)
                continue
            if loaded.is_shared:
                shared[key] = loaded.value
                shared_bytes += loaded.size_bytes
            else:
                self._kept.put(key, loaded.value, loaded.size_bytes)
            flight.set_result(loaded.value)
        self._kept.put_shared(shared, shared_bytes)

    async def close(self) -> None:
        """Cancel the loads in flight and wait until they end. Waiters receive CancelledError."""
        loads = list(self._loads)
        for task in loads:
            task.cancel()
        await asyncio.gather(*loads, return_exceptions=True)


async def _call(load: Load[K, V], keys: list[K]) -> Sequence[LoadedValue[V] | Exception]:
    return await load(keys)


def _fail(flight: asyncio.Future[V], error: BaseException) -> None:
    flight.set_exception(error)
    flight.exception()  # retrieve it; asyncio would log it if all waiters were cancelled


BlockKey = tuple[str, int]
"""(object key, position of the block). Objects are immutable, so a key always refers to the same
bytes.
"""


class BlockCache(LoadingCache[BlockKey, Buffer]):
    """A cache of verified blocks."""
