"""Count requests, bytes, errors and latencies of a store per operation.

Invariant: results pass through unchanged. When wrapped by `RetryingStore`, it counts requests; when
wrapping one, it counts calls. A list counts once per page, because each page is one request. Must
not import a metrics library: `snapshot` returns values. Source: SlateDB instrumented_object_store.
"""

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from penstock.base.buffers import Buffer
from penstock.base.histogram import Latencies, LatencyHistogram
from penstock.objectstore.body import body_bytes
from penstock.objectstore.ports import LIST_PAGE_COUNT, Body, ObjectInfo, ObjectStore, ObjectTail


@dataclass(frozen=True, slots=True)
class OperationStats:
    """The totals of one operation since the store was opened. `latencies` includes failed calls."""

    count: int
    errors: Mapping[str, int]
    """Number of failed calls by the name of the error class."""
    read_bytes: int
    written_bytes: int
    """Bytes of successful calls only."""
    latencies: Latencies


@dataclass(frozen=True, slots=True)
class StoreStats:
    """The totals of all operations that were used, by the name of the port's method."""

    operations: Mapping[str, OperationStats]


class _Meter:
    """The running totals of one operation."""

    __slots__ = ("errors", "latencies", "read_bytes", "written_bytes")

    def __init__(self) -> None:
        self.errors: Counter[str] = Counter()
        self.read_bytes = 0
        self.written_bytes = 0
        self.latencies = LatencyHistogram()

    def freeze(self) -> OperationStats:
        latencies = self.latencies.freeze()
        return OperationStats(
            latencies.count, dict(self.errors), self.read_bytes, self.written_bytes, latencies
        )


class StoreMeter:
    """Collects the counts of one or several stores. It can be created before the stores."""

    def __init__(self) -> None:
        self._meters: dict[str, _Meter] = {}

    def of(self, operation: str) -> _Meter:
        """Return the counters of this operation."""
        meter = self._meters.get(operation)
        if meter is None:
            meter = self._meters[operation] = _Meter()
        return meter

    def snapshot(self) -> StoreStats:
        """Return the totals since the meter was created."""
        return StoreStats({name: meter.freeze() for name, meter in sorted(self._meters.items())})


class MeteredStore:
    """Wraps a store and counts its calls."""

    def __init__(
        self,
        store: ObjectStore,
        meter: StoreMeter | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """clock: returns seconds."""
        self._store = store
        self._clock = clock
        self._meter = meter or StoreMeter()

    def snapshot(self) -> StoreStats:
        """Return the totals since the meter was created."""
        return self._meter.snapshot()

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        with self._measured("get") as meter:
            data = await self._store.get(key)
            meter.read_bytes += len(data)
            return data

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """See ObjectStore.get_range."""
        with self._measured("get_range") as meter:
            data = await self._store.get_range(key, start, length)
            meter.read_bytes += len(data)
            return data

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        """See ObjectStore.get_tail."""
        with self._measured("get_tail") as meter:
            tail = await self._store.get_tail(key, length)
            meter.read_bytes += len(tail.data)
            return tail

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectStore.head."""
        with self._measured("head"):
            return await self._store.head(key)

    async def put(self, key: str, body: Body) -> str:
        """See ObjectStore.put."""
        with self._measured("put") as meter:
            etag = await self._store.put(key, body)
            meter.written_bytes += body_bytes(body)
            return etag

    async def put_if_absent(self, key: str, body: Body) -> str:
        """See ObjectStore.put_if_absent."""
        with self._measured("put_if_absent") as meter:
            etag = await self._store.put_if_absent(key, body)
            meter.written_bytes += body_bytes(body)
            return etag

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        with self._measured("put_if_match") as meter:
            new_etag = await self._store.put_if_match(key, body, etag)
            meter.written_bytes += body_bytes(body)
            return new_etag

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list. The latency is the wait for the first key of each page."""
        found = self._store.list(prefix, start_after=start_after, limit=limit)
        while True:
            with self._measured("list"):
                info = await anext(found, None)
            if info is None:
                return
            yield info
            for _ in range(LIST_PAGE_COUNT - 1):
                info = await anext(found, None)
                if info is None:
                    return
                yield info

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete."""
        with self._measured("delete"):
            await self._store.delete(keys)

    async def close(self) -> None:
        """Close the wrapped store."""
        await self._store.close()

    @contextmanager
    def _measured(self, operation: str) -> Generator[_Meter]:
        meter = self._meter.of(operation)
        started = self._clock()
        try:
            yield meter
        except BaseException as error:
            meter.errors[type(error).__name__] += 1
            raise
        finally:
            meter.latencies.observe((self._clock() - started) * 1_000)
