"""The object store of a simulated cluster: one in-memory bucket, and a client for each process.

Calls continue without their process: a PUT of a paused or killed process may still be stored. Calls
overtake one another by latency, and a canceled call may or may not have been executed. Faults are
those of `objectstore.faults`, drawn from the seed.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import Context
from copy import copy
from random import Random
from typing import Any, Protocol, TypeVar

import penstock.objectstore.in_order as lists
from penstock.base.ids import WalStoreId
from penstock.objectstore.body import join_body
from penstock.objectstore.errors import ObjectStoreError, Unavailable
from penstock.objectstore.faults import Fault, FaultConfig, FaultRule, FaultyStore, Latency
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import Body, ObjectInfo, ObjectTail
from penstock.stream.format.keys import WAL_STORE_ROOT, wal_root

T = TypeVar("T")
PUT_DEADLINE_S = 6.0
"""The deadline of one overwriting PUT, which every client of a real store has
(`S3Config.deadline_ms`).
"""


class BucketListener(Protocol):
    def written(self, key: str, data: bytes) -> None: ...
    def deleting(self, key: str) -> None: ...


class Gate(Protocol):
    async def pass_through(self) -> None: ...


class Bucket(MemoryStore):
    """The durable objects. It reports every change to its listener immediately."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        self.listener: BucketListener | None = None
        self.struck: dict[str, bytes] = {}
        """Original bytes of what the store has lost or damaged for a while."""
        self.returned: set[str] = set()
        """Keys that were deleted, and put again by a late copy of their PUT."""
        self._deleted: set[str] = set()

    def peek(self, key: str) -> bytes | None:
        if key in self.struck:
            return self.struck[key]
        stored = self._objects.get(key)
        return None if stored is None else stored.cut(0, stored.info.size_bytes)

    def strike(self, key: str, spoiled: bytes | None) -> None:
        """Lose an object, or change its bytes, until `restore`. The listener gets no event, and
        `peek` returns the original.
        """
        whole = self.peek(key)
        assert whole is not None
        self.struck[key] = whole
        if spoiled is not None:
            super()._write(key, spoiled)
        else:
            del self._objects[key]
            self._keys.remove(key)

    def restore(self, key: str) -> None:
        """Restore a damaged object, unless it has been deleted."""
        whole = self.struck.pop(key, None)
        if whole is not None:
            super()._write(key, whole)

    @property
    def keys(self) -> list[str]:
        return list(self._keys)

    def modified_ms(self, key: str) -> int:
        return self._objects[key].info.modified_ms

    @property
    def infos(self) -> list[ObjectInfo]:
        """Return the result of a complete LIST."""
        return [self._objects[key].info for key in self._keys]

    def _write(self, key: str, body: Body) -> str:
        etag = super()._write(key, body)
        if key in self._deleted:
            self.returned.add(key)
        if self.listener is not None:
            self.listener.written(key, join_body(body))
        return etag

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if self.listener is not None and key in self._objects:
                self.listener.deleting(key)
            self._deleted.add(key)
            self.struck.pop(key, None)
            await super().delete([key])


class DirectoryBucket(Bucket):
    """S3 Express One Zone: LIST has neither order nor start-after, so the product sorts."""

    def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        return lists.in_order(self._listed(), prefix, start_after=start_after, limit=limit)

    async def _listed(self) -> AsyncIterator[ObjectInfo]:
        found = self.infos
        Random(len(found)).shuffle(found)
        for info in found:
            yield info


class Renamed:
    """Forwards changes of a WAL store with the keys that the cluster uses for them."""

    def __init__(self, listener: BucketListener, rename: Callable[[str], str]) -> None:
        self._listener = listener
        self._rename = rename

    def written(self, key: str, data: bytes) -> None:
        self._listener.written(self._rename(key), data)

    def deleting(self, key: str) -> None:
        self._listener.deleting(self._rename(key))


class Stored:
    """The durable objects of the main store and the WAL store together."""

    def __init__(self, bucket: Bucket, wal_bucket: Bucket | None) -> None:
        self._bucket = bucket
        self._wal_bucket = wal_bucket

    def listen(self, listener: BucketListener) -> None:
        self._bucket.listener = listener
        if self._wal_bucket is not None:
            self._wal_bucket.listener = Renamed(listener, _outer)

    def peek(self, key: str) -> bytes | None:
        bucket, inner = self.find(key)
        return bucket.peek(inner)

    def modified_ms(self, key: str) -> int:
        bucket, inner = self.find(key)
        return bucket.modified_ms(inner)

    @property
    def keys(self) -> list[str]:
        wal_keys = [] if self._wal_bucket is None else map(_outer, self._wal_bucket.keys)
        return [*self._bucket.keys, *wal_keys]

    def keys_below(self, prefix: str) -> list[str]:
        return [key for key in self.keys if key.startswith(prefix)]

    def find(self, key: str) -> tuple[Bucket, str]:
        """Return the bucket of a key, and the key in that bucket."""
        if self._wal_bucket is not None and key.startswith(_WAL_ROOT):
            return self._wal_bucket, WAL_STORE_ROOT + key.removeprefix(_WAL_ROOT)
        return self._bucket, key


_WAL_ROOT = wal_root(WalStoreId(1))


def _outer(key: str) -> str:
    return _WAL_ROOT + key.removeprefix(WAL_STORE_ROOT)


class StoreWeather:
    """The state of the store, shared by all clients. The scenario changes it."""

    def __init__(
        self, rng: Random, *, fault_share: float, p50_ms: float, p99_ms: float, put_lingers_s: float
    ) -> None:
        """put_lingers_s: an overwriting PUT that its sender has given up lands within this time or
        never, on which the read grace period relies.
        """
        self.p50_ms = p50_ms
        self.p99_ms = p99_ms
        self.down = False
        self.slow_factor = 1.0
        self.put_lingers_s = put_lingers_s
        share = fault_share
        self._rules = (
            FaultRule(Fault.LOST_RESPONSE, share),
            FaultRule(Fault.THROTTLED, share, burst_count=rng.choice((1, 3))),
            FaultRule(Fault.RESET, share),
            FaultRule(Fault.CONFLICT, share / 2),
            FaultRule(Fault.TRUNCATED, share / 20),
            FaultRule(Fault.FLIPPED_BIT, share / 20),
        )
        self.faults = share > 0

    def config(self, slow_factor: float = 1.0) -> FaultConfig:
        factor = self.slow_factor * slow_factor / 2
        latency = Latency(self.p50_ms * factor, self.p99_ms * factor)
        return FaultConfig((latency,), self._rules if self.faults else ())

    def response_s(self, rng: Random) -> float:
        return (
            Latency(self.p50_ms * self.slow_factor / 2, self.p99_ms * self.slow_factor / 2).draw_ms(
                rng
            )
            / 1000
        )


class SimStore:
    """The client of one process. Implements `objectstore.ports.ObjectStore`."""

    def __init__(
        self, bucket: Bucket, weather: StoreWeather, rng: Random, trace: Callable[..., None]
    ) -> None:
        self._weather = weather
        self._rng = rng
        self._trace = trace
        self._faulty = FaultyStore(bucket, rng)
        self.slow_factor = 1.0
        """For this client only: its connection to the store is bad."""
        self.put_factor = 1.0
        """The same for conditional PUTs."""
        self.gates: dict[str, Gate] = {}
        """What calls of an operation wait for on their way to the store, in a script. By operation,
        as in "put", or by operation and root of the key, as in "put data".
        """
        self.response_gates: dict[str, Gate] = {}
        """The same for responses on their way back."""
        self._under_way: dict[int, tuple[str, asyncio.Task[None]]] = {}
        self._serial = 0

    def keep_weather(self) -> None:
        """Keep the state of this client when the weather changes."""
        self._weather = copy(self._weather)

    def mount(self, bucket: Bucket) -> None:
        """Use another bucket from now on, as after a remount."""
        self._faulty = FaultyStore(bucket, self._rng)

    def process_died(self) -> None:
        """Deliver requests in flight, or drop them."""
        for operation, task in self._under_way.values():
            self._sender_gone(operation, task)

    def _sender_gone(self, operation: str, task: "asyncio.Task[None]") -> None:
        if self._rng.random() < 0.5:
            task.cancel()
        elif operation == "put":
            task.get_loop().call_later(self._weather.put_lingers_s, task.cancel, context=Context())

    async def get(self, key: str) -> bytes:
        return await self._call("get", key, lambda: self._faulty.get(key))

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        return await self._call(
            "get_range", key, lambda: self._faulty.get_range(key, start, length)
        )

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        return await self._call("get_tail", key, lambda: self._faulty.get_tail(key, length))

    async def head(self, key: str) -> ObjectInfo:
        return await self._call("head", key, lambda: self._faulty.head(key))

    async def put(self, key: str, body: Body) -> str:
        data = join_body(body)
        try:
            async with asyncio.timeout(PUT_DEADLINE_S):
                return await self._call("put", key, lambda: self._faulty.put(key, data))
        except TimeoutError as error:
            raise Unavailable("put", key, f"no response in {PUT_DEADLINE_S} s") from error

    async def put_if_absent(self, key: str, body: Body) -> str:
        data = join_body(body)
        return await self._call("put_if_absent", key, lambda: self._faulty.put_if_absent(key, data))

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        data = join_body(body)
        return await self._call(
            "put_if_match", key, lambda: self._faulty.put_if_match(key, data, etag)
        )

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        async def collect() -> list[ObjectInfo]:
            return [
                info
                async for info in self._faulty._store.list(
                    prefix, start_after=start_after, limit=limit
                )
            ]

        for info in await self._call("list", prefix, collect):
            yield info

    async def delete(self, keys: Sequence[str]) -> None:
        requested = list(keys)
        await self._call(
            "delete", requested[0] if requested else "", lambda: self._faulty.delete(requested)
        )

    async def close(self) -> None:
        pass

    async def _call(self, operation: str, key: str, call: Callable[[], Awaitable[T]]) -> T:
        response: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._serial += 1
        serial = self._serial
        task = asyncio.get_running_loop().create_task(
            self._travel(operation, key, call, response), context=Context()
        )
        self._under_way[serial] = operation, task
        task.add_done_callback(lambda _: self._under_way.pop(serial, None))
        try:
            return await response
        except asyncio.CancelledError:
            self._sender_gone(operation, task)
            raise

    async def _travel(
        self,
        operation: str,
        key: str,
        call: Callable[[], Awaitable[Any]],
        response: "asyncio.Future[Any]",
    ) -> None:
        by_root = f"{operation} {key.partition('/')[0]}"
        if (gate := self.gates.get(operation) or self.gates.get(by_root)) is not None:
            await gate.pass_through()
        self._faulty.config = self._weather.config(
            self.slow_factor * (self.put_factor if operation == "put_if_absent" else 1.0)
        )
        self._faulty.down = self._weather.down
        try:
            result, error = await call(), None
        except ObjectStoreError as failure:
            result, error = None, failure
        self._trace("store", operation, key, type(error).__name__ if error else "ok")
        if (gate := self.response_gates.get(operation)) is not None:
            await gate.pass_through()
        await asyncio.sleep(self._weather.response_s(self._rng))
        if response.done():
            return
        if error is not None:
            response.set_exception(error)
        else:
            response.set_result(result)
