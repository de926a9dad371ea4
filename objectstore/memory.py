"""Store objects in the memory of one process, for tests, simulation and `memory:` clusters.

Invariant: results and errors are the same as with S3. Calls are atomic, because they never await;
`objectstore.faults` injects the 409 of races. Etags are quoted write numbers, unique in one store.
Not thread-safe.
"""

import sys
import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from penstock.base.buffers import Buffer
from penstock.objectstore.body import body_bytes, buffers_of, join_body
from penstock.objectstore.errors import ObjectNotFound, PreconditionFailed, RangeNotSatisfiable
from penstock.objectstore.keys import check_key
from penstock.objectstore.ports import LIST_PAGE_COUNT, Body, ObjectInfo, ObjectTail


def wall_ms() -> int:
    """Return the wall clock time, the default of `MemoryStore`. The simulator passes its own
    clock.
    """
    return time.time_ns() // 1_000_000


JOIN_BYTES_MAX: Final = 64 * 1024
"""Larger bodies are stored as the buffers that were passed (see `ports.Body`), because a copy takes
about 1 ms per MB in page faults. Smaller bodies are copied, because the buffer objects would use
more memory.
"""


@dataclass(frozen=True, slots=True)
class _Stored:
    chunks: Sequence[Buffer]
    info: ObjectInfo

    def cut(self, start: int, end: int) -> bytes:
        """Return bytes [start, end), or fewer if the object ends earlier. A chunk that is exactly
        this range is not copied.
        """
        parts: list[Buffer] = []
        at = 0
        for chunk in self.chunks:
            view = (
                chunk
                if isinstance(chunk, bytes) and start <= at and at + len(chunk) <= end
                else memoryview(chunk)
            )
            if at + len(view) > start:
                parts.append(view[max(0, start - at) : end - at])
            at += len(view)
            if at >= end:
                break
        return parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)


class MemoryStore:
    """Stores objects in a dict and their keys in a sorted list. All clients of the process share
    one instance.
    """

    def __init__(self, now_ms: Callable[[], int] = wall_ms) -> None:
        self._now_ms = now_ms
        self._objects: dict[str, _Stored] = {}
        self._keys: list[str] = []
        self._write_count = 0

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        stored = self._stored(key)
        return stored.cut(0, stored.info.size_bytes)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See ObjectStore.get_range."""
        assert start >= 0, f"range starts at {start}"
        assert length > 0, f"range of {length} bytes"
        stored = self._stored(key)
        if start >= stored.info.size_bytes:
            raise RangeNotSatisfiable(key, start)
        return stored.cut(start, start + length)

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        """See ObjectStore.get_tail."""
        assert length > 0, f"tail of {length} bytes"
        stored = self._stored(key)
        size_bytes = stored.info.size_bytes
        return ObjectTail(
            data=stored.cut(max(0, size_bytes - length), size_bytes), size_bytes=size_bytes
        )

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

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list. As in S3, each page is a snapshot, but the whole list is not."""
        at = max(bisect_left(self._keys, prefix), bisect_right(self._keys, start_after))
        left = limit or sys.maxsize
        while page := self._keys[at : at + min(LIST_PAGE_COUNT, left)]:
            infos = [self._objects[key].info for key in page if key.startswith(prefix)]
            for info in infos:
                yield info
            left -= len(infos)
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
        """Do nothing, because other clients in the process may still use the objects."""

    def _stored(self, key: str) -> _Stored:
        check_key(key)
        stored = self._objects.get(key)
        if stored is None:
            raise ObjectNotFound(key)
        return stored

    def _write(self, key: str, body: Body) -> str:
        size_bytes = body_bytes(body)
        joined = isinstance(body, bytes | bytearray | memoryview) or size_bytes <= JOIN_BYTES_MAX
        chunks = [join_body(body)] if joined else buffers_of(body)
        self._write_count += 1
        etag = f'"{self._write_count:x}"'
        if key not in self._objects:
            insort(self._keys, key)
        self._objects[key] = _Stored(chunks, ObjectInfo(key, size_bytes, etag, self._now_ms()))
        return etag
