"""A store in the memory of one process, for tests, simulation and `memory:` clusters.

Invariant: exactly S3's results and errors, so that what passes here passes there: 412 on a taken key or another version, 404
for `put_if_match` of nothing, 416 behind the end, lists in key order by pages. Every call is atomic (it never awaits), so a
409 cannot arise by itself; `objectstore.faults` injects it. Etags are quoted write numbers, unique in one store.
Must not copy a body that is one `bytes`. Use it from one thread. Source: S3 API.
"""

import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from objectstore.body import join_body
from objectstore.errors import ObjectNotFound, PreconditionFailed, RangeNotSatisfiable
from objectstore.keys import check_key
from objectstore.ports import LIST_PAGE_COUNT, Body, ObjectInfo, ObjectTail


def wall_ms() -> int:
    """Wall clock time, the default of `MemoryStore`; the simulator passes its own."""
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class _Stored:
    data: bytes
    info: ObjectInfo


class MemoryStore:
    """Objects in a dict beside their sorted keys; share one instance between all clients of the process."""

    def __init__(self, now_ms: Callable[[], int] = wall_ms) -> None:
        self._now_ms = now_ms
        self._objects: dict[str, _Stored] = {}
        self._keys: list[str] = []
        self._write_count = 0

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get. Returns the stored object itself, no copy."""
        return self._stored(key).data

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See ObjectStore.get_range."""
        assert start >= 0, f"range starts at {start}"
        assert length > 0, f"range of {length} bytes"
        data = self._stored(key).data
        if start >= len(data):
            raise RangeNotSatisfiable(key, start)
        return data[start : start + length]

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        """See ObjectStore.get_tail."""
        assert length > 0, f"tail of {length} bytes"
        data = self._stored(key).data
        return ObjectTail(data=data[-length:], size_bytes=len(data))

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectStore.head."""
        return self._stored(key).info

    async def put(self, key: str, body: Body) -> str:
        """See ObjectStore.put."""
        check_key(key)
        return self._write(key, body)

    async def put_if_absent(self, key: str, body: Body) -> str:
        """See ObjectStore.put_if_absent."""
        check_key(key)
        if key in self._objects:
            raise PreconditionFailed(key)
        return self._write(key, body)

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        if self._stored(key).info.etag != etag:
            raise PreconditionFailed(key)
        return self._write(key, body)

    async def list(self, prefix: str, *, start_after: str = "") -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list. Each page is a snapshot, the whole is not, as in S3."""
        at = max(bisect_left(self._keys, prefix), bisect_right(self._keys, start_after))
        while page := self._keys[at : at + LIST_PAGE_COUNT]:
            infos = [self._objects[key].info for key in page if key.startswith(prefix)]
            for info in infos:
                yield info
            if len(infos) < len(page):
                return
            at = bisect_right(self._keys, page[-1])

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete."""
        for key in keys:
            check_key(key)
            if self._objects.pop(key, None) is not None:
                del self._keys[bisect_left(self._keys, key)]

    async def close(self) -> None:
        """Keeps the objects: other clients of the process may still use them."""

    def _stored(self, key: str) -> _Stored:
        check_key(key)
        stored = self._objects.get(key)
        if stored is None:
            raise ObjectNotFound(key)
        return stored

    def _write(self, key: str, body: Body) -> str:
        data = join_body(body)
        self._write_count += 1
        etag = f'"{self._write_count:x}"'
        if key not in self._objects:
            insort(self._keys, key)
        self._objects[key] = _Stored(data, ObjectInfo(key, len(data), etag, self._now_ms()))
        return etag
