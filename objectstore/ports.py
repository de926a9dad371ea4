"""Define the port of object storage: bytes by key, with conditional writes.

Invariant: an object appears completely or not at all, reads see all acknowledged writes, and lists
are in the order of UTF-8 bytes. Semantics and limits follow S3; errors are defined in
`objectstore.errors`. Must not import a backend, which would slow down Spark executors.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.base.buffers import Buffer

Body = Buffer | Sequence[Buffer]
"""The content of an object. A memoryview may have any element type, shape and stride; its bytes in
C order are stored. The backend concatenates a sequence at most once. The caller must not change a
buffer, even after the call has returned, because the memory store keeps it.
"""

LIST_PAGE_COUNT = 1_000
"""Number of keys in one page of a list, which is the maximum of S3. Each page is one request,
billed as a PUT.
"""

DELETE_BATCH_COUNT = 1_000
"""Number of keys in one multi-object delete, which is the maximum of S3."""

KEY_BYTES_MAX = 1_024
"""Maximum length of a key in UTF-8 bytes, as in S3."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """The metadata of an object.

    `etag` is opaque: compare it, but never parse it. On S3 it is a hash of the content: the same
    bytes have the same etag, so each `put_if_match` on a register must write different content.
    Compare an etag from `list` only with other etags from `list`: on Google Cloud Storage, these
    are hashes, whereas all other calls return generations.
    """

    key: str
    size_bytes: int
    etag: str
    modified_ms: int


@dataclass(frozen=True, slots=True)
class ObjectTail:
    """The last bytes of an object, and the size of the whole object. `data` is the whole object if
    it is shorter.
    """

    data: bytes
    size_bytes: int


class ObjectStore(Protocol):
    """Stores bytes by key. One instance serves many tasks of one event loop."""

    async def get(self, key: str) -> bytes:
        """Return the whole object. Raises ObjectNotFound."""
        ...

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Return bytes [start, start+length), or fewer if the object ends within this range; start
        >= 0, length > 0. The result may be a view, to avoid a copy.

        Raises ObjectNotFound, and RangeNotSatisfiable if the object ends at or before `start`.
        """
        ...

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        """Return the last `length` bytes, such as a footer; no bytes if the object is empty.
        `length` must be positive. Sends one request, or two if the store has no suffix ranges
        (Azure).
        """
        ...

    async def head(self, key: str) -> ObjectInfo:
        """Return the size, version and time of the object. Raises ObjectNotFound."""
        ...

    async def put(self, key: str, body: Body) -> str:
        """Write or replace the object and return its etag."""
        ...

    async def put_if_absent(self, key: str, body: Body) -> str:
        """Write the object only if the key is free, and return its etag.

        Raises PreconditionFailed if it is taken, and ConditionalConflict if another conditional
        write is in progress.
        """
        ...

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        """Replace only the version with this etag, and return the new etag.

        Raises PreconditionFailed for a different version, ObjectNotFound if there is no object, and
        ConditionalConflict in a race.
        """
        ...

    def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        """Yield objects under the prefix with keys greater than `start_after`, in the order of
        their UTF-8 bytes, at most `limit`; 0 means all.

        Pages are fetched as the iterator advances. Objects written or deleted in the meantime may
        or may not be included.
        """
        ...

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete all keys; absent keys are ignored. This is not atomic: after an error, some keys
        may have been deleted.
        """
        ...

    async def close(self) -> None:
        """Release connections and threads. The store cannot be used after this."""
        ...
