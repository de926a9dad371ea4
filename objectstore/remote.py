"""Access the object store of a cloud through obstore (the Rust crate object_store).

Invariant: each HTTP request is sent once; `objectstore.retry` repeats calls and handles lost
responses. Some calls send several requests; the adapters document which. Requests run in Rust
threads; cancelling a call drops its connection. Must not be imported by `objectstore.ports`.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar, cast

import obstore

from penstock.base.buffers import Buffer
from penstock.objectstore.body import join_body
from penstock.objectstore.config import RemoteConfig
from penstock.objectstore.errors import (
    InvalidKey,
    InvalidStoreConfig,
    ObjectNotFound,
    ObjectStoreError,
    PreconditionFailed,
    RangeNotSatisfiable,
)
from penstock.objectstore.keys import check_key
from penstock.objectstore.ports import LIST_PAGE_COUNT, Body, ObjectInfo, ObjectTail
from penstock.objectstore.remote_errors import (
    CLIENT_ERRORS,
    Dialect,
    ignores_ranges,
    is_range_error,
    translate,
)
from penstock.objectstore.remote_exit import until_exit

_T = TypeVar("_T")

ONCE: Final[Any] = {
    "max_retries": 0,
    "retry_timeout": timedelta(seconds=1),
    "backoff": {
        "init_backoff": timedelta(milliseconds=1),
        "max_backoff": timedelta(milliseconds=1),
        "base": 2,
    },
}

_list: Final = cast("Any", obstore).list
"""Untyped, because its type stub requires an Arrow package."""

_HIGHEST_CHARACTER: Final = "\U0010ffff"
_DELETIONS_AT_ONCE: Final = 16
"""Maximum number of concurrent deletions of single keys. A higher number would delay other
requests.
"""


class RemoteStore(ABC):
    """Accesses the objects of one bucket. Every method may raise any retriable ObjectStoreError,
    AccessDenied and BucketNotFound. Subclasses define the client, the delete and the version
    tokens.
    """

    def __init__(self, client: Any, dialect: Dialect, connections_max: int) -> None:  # noqa: ANN401 (one of obstore's clients)
        self._client: Any = client
        self._dialect = dialect
        self._connections = asyncio.Semaphore(connections_max)

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        return (await self._get("get", key))[0]

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """See ObjectStore.get_range."""
        assert start >= 0, f"range starts at {start}"
        assert length > 0, f"range of {length} bytes"
        self._check(key)
        try:
            async with self._connections:
                # This is a view of obstore's memory, because a copy would take 0.3 ms of CPU per
                # MB.
                return memoryview(
                    await until_exit(
                        obstore.get_range_async(self._client, key, start=start, length=length)
                    )
                )
        except CLIENT_ERRORS as error:
            if is_range_error(error):
                raise RangeNotSatisfiable(key, start) from None
            raise self._translated(error, "get_range", key) from error

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        """See ObjectStore.get_tail. S3 and Google respond with 416 for a suffix of an empty object;
        some stores send the whole object.
        """
        assert length > 0, f"tail of {length} bytes"
        try:
            data, size_bytes = await self._get("get_tail", key, {"range": {"suffix": length}})
        except _TailRefused:
            data, size_bytes = await self._get("get_tail", key)
        return ObjectTail(data=data[-length:], size_bytes=size_bytes)

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectStore.head. The response to a HEAD has no body, so a missing bucket also raises
        ObjectNotFound.
        """
        self._check(key)
        return self._info(
            await self._call("head", key, lambda: obstore.head_async(self._client, key))
        )

    async def put(self, key: str, body: Body) -> str:
        """See ObjectStore.put."""
        return await self._put("put", key, body, "overwrite")

    async def put_if_absent(self, key: str, body: Body) -> str:
        """See ObjectStore.put_if_absent."""
        return await self._put("put_if_absent", key, body, "create")

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        return await self._put("put_if_match", key, body, {"e_tag": etag})

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list.

        The client can only list folders. The list of the folder starts at the first key that can
        have the prefix and ends after the last one. Each page of 1,000 keys is one request, even
        with a limit.
        """
        found = 0
        async for info in self._folder_of(prefix, max(start_after, _before(prefix))):
            if info.key.startswith(prefix):
                if info.key > start_after:
                    yield info
                    found += 1
                    if found == limit:
                        return
            elif info.key > prefix:
                return

    async def _folder_of(self, prefix: str, after: str) -> AsyncIterator[ObjectInfo]:
        """Yield the keys greater than `after` of the folder that contains all keys with the prefix,
        in the order of the store.
        """
        folder = prefix.rpartition("/")[0]
        if not (_is_path(folder) and prefix[:1] != "/"):
            return  # no key can have this prefix
        pages: AsyncIterator[list[dict[str, Any]]] = aiter(
            _list(
                self._client,
                folder or None,
                offset=after.rstrip("/") if after and _is_path(after) else None,
                chunk_size=LIST_PAGE_COUNT,
            )
        )
        while True:
            try:
                page = await self._call("list", prefix, pages.__anext__)
            except StopAsyncIteration:
                return
            for item in page:
                yield self._info(item)

    @abstractmethod
    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete."""

    async def _delete_each(self, keys: Sequence[str]) -> None:
        """Delete with one request per key, several concurrently. A failure cancels the others."""
        left = iter(keys)

        async def delete_some() -> None:
            for key in left:
                with suppress(ObjectNotFound):
                    await self._call(
                        "delete", key, partial(obstore.delete_async, self._client, key)
                    )

        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(delete_some()) for _ in keys[:_DELETIONS_AT_ONCE]]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()

    async def close(self) -> None:
        """Drop the client without waiting for calls in progress. Connections close when the last
        reference to the client is gone.
        """
        self._client = None

    def _check(self, key: str) -> None:
        check_key(key)

    def _version(self, meta: Any) -> str:  # noqa: ANN401 (one of obstore's dicts)
        """Return the port's etag from the response to a PUT, a HEAD or a LIST."""
        return cast("str", meta["e_tag"])

    def _info(self, meta: Any) -> ObjectInfo:  # noqa: ANN401 (its stubs need a package of Arrow)
        return ObjectInfo(
            meta["path"],
            meta["size"],
            self._version(meta),
            int(meta["last_modified"].timestamp() * 1_000),
        )

    async def _get(self, operation: str, key: str, options: Any = None) -> tuple[bytes, int]:  # noqa: ANN401 (obstore's GetOptions)
        """Return the bytes, and the size of the whole object. Raises an error if the connection
        ends early.
        """
        self._check(key)
        given: Any = options or {}
        try:
            async with self._connections:
                found = await until_exit(obstore.get_async(self._client, key, options=given))
                return bytes(await until_exit(found.bytes_async())), found.meta["size"]
        except CLIENT_ERRORS as error:
            if operation == "get_tail":
                if is_range_error(error):
                    return b"", 0
                if "suffix" in given.get("range", ()) and ignores_ranges(error):
                    raise _TailRefused from None
            raise self._translated(error, operation, key) from error

    async def _put(self, operation: str, key: str, body: Body, mode: Any) -> str:  # noqa: ANN401 (a union of obstore's dicts)
        self._check(key)
        put: Any = obstore.put_async
        result = await self._call(
            operation,
            key,
            lambda: put(self._client, key, join_body(body), mode=mode, use_multipart=False),
        )
        return self._version(result)

    async def _call(self, operation: str, key: str, request: Callable[[], Awaitable[_T]]) -> _T:
        """Run a request. request: called when a connection is free, because obstore sends a request
        as soon as it is created, even before it is awaited.
        """
        try:
            async with self._connections:
                return await until_exit(request())
        except CLIENT_ERRORS as error:
            raise self._translated(error, operation, key) from error

    async def _refusal(self, key: str) -> ObjectStoreError:
        """Return the error for a 412 to `put_if_match`, after a HEAD: the port, like S3, raises
        ObjectNotFound if there is no object.
        """
        try:
            await self.head(key)
        except ObjectNotFound as error:
            return error
        except ObjectStoreError:
            pass
        return PreconditionFailed(key)

    def _translated(self, error: Exception, operation: str, key: str) -> ObjectStoreError:
        return translate(error, operation, self._dialect, key)


class _TailRefused(Exception):
    """The store responded to a suffix range with the whole object."""


def make_client(client: Callable[..., Any], bucket: str, options: dict[str, Any]) -> Any:  # noqa: ANN401 (one of obstore's clients)
    """Return a client without retries. Options that are None are omitted.

    Raises InvalidStoreConfig for options that obstore does not accept, such as a malformed key.
    """
    given = {name: value for name, value in options.items() if value is not None}
    try:
        return client(bucket, retry_config=ONCE, **given)
    except CLIENT_ERRORS as error:
        raise InvalidStoreConfig(str(error).partition("\n\nDebug source")[0]) from None


def client_options(config: RemoteConfig, certificates: bytes | None = None) -> dict[str, Any]:
    """Return obstore's connection options. certificates: PEM, in addition to those of the
    system.
    """
    options: dict[str, Any] = {
        "allow_http": True,
        "connect_timeout": timedelta(milliseconds=config.connect_timeout_ms),
        "read_timeout": timedelta(milliseconds=config.read_timeout_ms),
        "timeout": timedelta(milliseconds=config.deadline_ms),
        "pool_max_idle_per_host": str(config.connections_max),
    }
    if certificates is not None:
        options["root_certificate"] = certificates
    return options


def _before(prefix: str) -> str:
    """Return a string that sorts after all keys less than the prefix, or "" if the prefix is a
    folder.
    """
    last = prefix.rpartition("/")[2]
    if not last or ord(last[-1]) <= ord("0"):
        return ""
    return prefix[:-1] + chr(ord(last[-1]) - 1) + _HIGHEST_CHARACTER


def _is_path(text: str) -> bool:
    """Return whether the client accepts this as a folder or as the position of a list."""
    if not text:
        return True
    try:
        check_key(text.rstrip("/"))
    except InvalidKey:
        return False
    return not text.endswith("//")
