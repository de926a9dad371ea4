"""The port through which every other part sees object storage: bytes by key, with conditional
writes.

Invariant: an object appears whole or not at all, reads after an acknowledged write see it, and
lists are in UTF-8 key order. Implementations keep S3's semantics exactly, the weakest common
ground. Errors are those of `objectstore.errors`.
Must not import a backend: `import objectstore.ports` has to stay cheap for Spark executors. Source:
S3 API.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from base.buffers import Buffer

Body = Buffer | Sequence[Buffer]
"""A sequence is concatenated at most once, by the backend. Buffers are handed over: nobody may
change one that was part of a body, not even after the call has returned (the memory store keeps
them).
"""

LIST_PAGE_COUNT = 1_000
"""Keys in one page of a list; S3 gives no more. Each page is one request, billed as a PUT."""

DELETE_BATCH_COUNT = 1_000
"""Keys in one multi-object delete; S3 takes no more."""

KEY_BYTES_MAX = 1_024
"""Longest key in UTF-8 bytes, as in S3."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store tells about an object without giving its bytes.

    `etag` is opaque: compare it, never parse it. On S3 it is a hash of the content: writing the
    same bytes again gives the same etag, so registers under `put_if_match` must hold something that
    is new in every write.
    """

    key: str
    size_bytes: int
    etag: str
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ObjectTail:
    """The last bytes of an object and the size of the whole; `data` is everything if the object is
    shorter.
    """

    data: bytes
    size_bytes: int


class ObjectStore(Protocol):
    """Bytes by key. One instance serves many tasks of one event loop."""

    async def get(self, key: str) -> bytes:
        """The whole object. Raises ObjectNotFound."""
        ...

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Bytes [start, start+length), fewer if the object ends inside; start >= 0, length > 0.

        Raises ObjectNotFound, and RangeNotSatisfiable if the object ends at or before `start`.
        """
        ...

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        """The last `length` > 0 bytes with one request, for footers. An empty object gives an empty
        tail.
        """
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Size, version and time of the object. Raises ObjectNotFound."""
        ...

    async def put(self, key: str, body: Body) -> str:
        """Write or replace; returns the etag."""
        ...

    async def put_if_absent(self, key: str, body: Body) -> str:
        """Write only if the key is free; returns the etag.

        Raises PreconditionFailed if it is taken, ConditionalConflict if another conditional write
        is in progress.
        """
        ...

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        """Replace only the version that has this etag; returns the new etag.

        Raises PreconditionFailed for another version, ObjectNotFound if there is none,
        ConditionalConflict in a race.
        """
        ...

    def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        """Objects under the prefix with keys greater than `start_after`, in order of their UTF-8
        bytes; at most `limit`, 0 means all.

        Pages are fetched as the iterator advances; objects written or deleted meanwhile may or may
        not be seen.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete all of them; absent keys are fine. Not atomic: after an error some may be gone."""
        ...

    async def close(self) -> None:
        """Release connections and threads. No call may follow."""
        ...
