"""What was read from objects, kept by bytes; what is being read now, read once for everybody who
wants it.

Invariant: `ByteLru` never weighs more than its limit; a key has at most one load under way; a
waiter that gives up disturbs nobody. A failed load fails its waiters and leaves nothing behind, so
the next one tries again; a load may fail for some of its keys only. Must not know what is cached.
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
"""Gets (value, weight in bytes), or what is wrong with it, for each of the keys, in their order.
Raises what is wrong with all of them.
"""


class ByteLru(Generic[K, V]):
    """Least recently used leaves first. Pure; something heavier than the whole limit is not kept at
    all.
    """

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
    """A ByteLru that loads what it misses, each key once at a time."""

    def __init__(self, bytes_max: int) -> None:
        self._kept: ByteLru[K, V] = ByteLru(bytes_max)
        self._flights: dict[K, asyncio.Future[V]] = {}
        self._loads: set[asyncio.Task[Sequence[tuple[V, int] | Exception]]] = set()
        self.hit_count = 0
        """Keys that were kept; those that were being read already count as missed."""
        self.miss_count = 0

    @property
    def size_bytes(self) -> int:
        return self._kept.size_bytes

    def __contains__(self, key: K) -> bool:
        """Kept, or on its way."""
        return key in self._flights or self._kept.get(key) is not None

    def put(self, key: K, value: V, size_bytes: int) -> None:
        """Keep what came along with something else."""
        self._kept.put(key, value, size_bytes)

    async def get(self, key: K, load: Load[K, V]) -> V:
        """Return the value of one key. Raises what `load` raises or returns for it."""
        (found,) = await self.get_each((key,), load)
        if isinstance(found, Exception):
            raise found
        return found

    async def get_each(self, keys: Sequence[K], load: Load[K, V]) -> list[V | Exception]:
        """Return the value of each key, or its error. Keys neither kept nor on their way are loaded
        by one call of `load`.
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
                # Shielded: the load goes on for the other waiters, and for the cache, when this one
                # is cancelled.
                found[key] = await asyncio.shield(flight)
            except Exception as error:  # noqa: BLE001 - returned: the caller decides what the other values are worth without it
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
        """Cancel what is under way and wait for its end; waiters get CancelledError."""
        loads = list(self._loads)
        for task in loads:
            task.cancel()
        await asyncio.gather(*loads, return_exceptions=True)


async def _call(load: Load[K, V], keys: list[K]) -> Sequence[tuple[V, int] | Exception]:
    return await load(keys)


def _fail(flight: asyncio.Future[V], error: BaseException) -> None:
    flight.set_exception(error)
    flight.exception()  # every waiter may have gone; that is no reason for asyncio to complain


BlockKey = tuple[str, int]
"""(object key, position of the block). Keys are never written twice with other bytes."""


class BlockCache(LoadingCache[BlockKey, bytes]):
    """Blocks whose checksums held."""
