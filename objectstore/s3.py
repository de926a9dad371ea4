"""Access S3, and stores with its API, through obstore (the Rust crate object_store).

Invariant: each call is one HTTP request (per page for lists, per 1,000 keys for deletes), sent
once: `objectstore.retry` repeats it and knows what a lost answer means. Bodies are unsigned but
carry a CRC64NVME that the store checks: it protects better than TLS alone and costs 1 ms for 8 MiB,
where SHA-256 costs 5 to 20 ms. Requests run in threads of Rust; a call that is cancelled drops its
connection. Must not be imported by `objectstore.ports`.
Source: S3 API; obstore 0.12; AutoMQ AwsObjectStorage.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from datetime import timedelta
from typing import Any, Final, TypeVar, cast

import obstore
from obstore.store import S3Store as Client

from penstock.base.buffers import Buffer
from penstock.objectstore.body import join_body
from penstock.objectstore.config import S3Config
from penstock.objectstore.errors import InvalidKey, ObjectStoreError, RangeNotSatisfiable
from penstock.objectstore.keys import check_key
from penstock.objectstore.metered import StoreMeter
from penstock.objectstore.ports import (
    DELETE_BATCH_COUNT,
    LIST_PAGE_COUNT,
    Body,
    ObjectInfo,
    ObjectTail,
)
from penstock.objectstore.s3_credentials import AwsSettings
from penstock.objectstore.s3_errors import CLIENT_ERRORS, ignores_ranges, is_range_error, translate
from penstock.objectstore.s3_exit import until_exit

_T = TypeVar("_T")

_ONCE: Final[Any] = {
    "max_retries": 0,
    "retry_timeout": timedelta(seconds=1),
    "backoff": {
        "init_backoff": timedelta(milliseconds=1),
        "max_backoff": timedelta(milliseconds=1),
        "base": 2,
    },
}

_list: Final = cast("Any", obstore).list
"""Without its type, which needs a package of Arrow."""

_HIGHEST_CHARACTER: Final = "\U0010ffff"


class S3Store:
    """Access the objects of one bucket. Every method may raise any retriable ObjectStoreError,
    AccessDenied and BucketNotFound.
    """

    def __init__(self, config: S3Config, meter: StoreMeter | None = None) -> None:
        """config: the wrappers of `open_store` implement its `prefix` and `deadline_ms`. meter:
        counts each sign-in.

        Raises InvalidStoreConfig for a profile or a CA bundle that cannot be used.
        """
        self._config = config
        aws = AwsSettings(config, meter)
        self._client: Any = Client(
            config.bucket, client_options=_client_options(config, aws), **_options(config, aws)
        )
        self._connections = asyncio.Semaphore(config.connections_max)

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        return (await self._get("get", key))[0]

    async def get_range(self, key: str, start: int, length: int) -> Buffer:
        """See ObjectStore.get_range."""
        assert start >= 0, f"range starts at {start}"
        assert length > 0, f"range of {length} bytes"
        check_key(key)
        try:
            async with self._connections:
                # Copying what is in the memory of obstore would take 0.3 ms of CPU for each MB.
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
        """See ObjectStore.get_tail. S3 answers 416 for a suffix of an empty object; some stores
        answer with the whole.
        """
        assert length > 0, f"tail of {length} bytes"
        try:
            data, size_bytes = await self._get("get_tail", key, {"suffix": length})
        except _TailRefused:
            data, size_bytes = await self._get("get_tail", key)
        return ObjectTail(data=data[-length:], size_bytes=size_bytes)

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectStore.head. The response to a HEAD has no body, so a missing bucket also raises
        ObjectNotFound.
        """
        check_key(key)
        return _info(await self._call("head", key, obstore.head_async(self._client, key)))

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

        The client lists folders only, so the folder of the prefix is listed from the first key that
        can have it, and the list ends behind the last. A page has 1,000 keys also for a limit.
        """
        folder, after = prefix.rpartition("/")[0], max(start_after, _before(prefix))
        if not (_is_path(folder) and prefix[:1] != "/"):
            return  # no key has such a prefix
        found = 0
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
                page = await self._call("list", prefix, pages.__anext__())
            except StopAsyncIteration:
                return
            for item in page:
                info = _info(item)
                if info.key.startswith(prefix):
                    if info.key > start_after:
                        yield info
                        found += 1
                        if found == limit:
                            return
                elif info.key > prefix:
                    return

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete. Sends one request per 1,000 keys."""
        for key in keys:
            check_key(key)
        for start in range(0, len(keys), DELETE_BATCH_COUNT):
            batch = list(keys[start : start + DELETE_BATCH_COUNT])
            await self._call("delete", batch[0], obstore.delete_async(self._client, batch))

    async def close(self) -> None:
        """Wait for no call: their tasks end them. Connections close with the last reference."""
        self._client = None

    async def _get(self, operation: str, key: str, wanted: Any = None) -> tuple[bytes, int]:  # noqa: ANN401 (a union of obstore's dicts)
        """Return the bytes and the size of the whole object. Raises if the connection ends
        early.
        """
        check_key(key)
        options: Any = {} if wanted is None else {"range": wanted}
        try:
            async with self._connections:
                found = await until_exit(obstore.get_async(self._client, key, options=options))
                return bytes(await until_exit(found.bytes_async())), found.meta["size"]
        except CLIENT_ERRORS as error:
            if operation == "get_tail":
                if is_range_error(error):
                    return b"", 0
                if wanted is not None and ignores_ranges(error):
                    raise _TailRefused from None
            raise self._translated(error, operation, key) from error

    async def _put(self, operation: str, key: str, body: Body, mode: Any) -> str:  # noqa: ANN401 (a union of obstore's dicts)
        check_key(key)
        put: Any = obstore.put_async
        result = await self._call(
            operation, key, put(self._client, key, join_body(body), mode=mode, use_multipart=False)
        )
        return cast("str", result["e_tag"])

    async def _call(self, operation: str, key: str, request: Awaitable[_T]) -> _T:
        try:
            async with self._connections:
                return await until_exit(request)
        except CLIENT_ERRORS as error:
            raise self._translated(error, operation, key) from error

    def _translated(self, error: Exception, operation: str, key: str) -> ObjectStoreError:
        return translate(error, operation, self._config, key)


class _TailRefused(Exception):
    """The store answered a suffix range with the whole object."""


def _options(config: S3Config, aws: AwsSettings) -> dict[str, Any]:
    given = {
        "endpoint": config.endpoint,
        "region": aws.region,
        "virtual_hosted_style_request": not config.path_style,
        "unsigned_payload": True,
        "checksum_algorithm": "CRC64NVME",
        "server_side_encryption": config.sse,
        "sse_kms_key_id": config.sse_kms_key_id,
        "sse_bucket_key_enabled": config.sse_bucket_key,
        "credential_provider": aws.credentials,
        "retry_config": _ONCE,
    }
    return {name: value for name, value in given.items() if value is not None}


def _client_options(config: S3Config, aws: AwsSettings) -> Any:  # noqa: ANN401 (obstore's dict, built by name)
    options: dict[str, Any] = {
        "allow_http": True,
        "connect_timeout": timedelta(milliseconds=config.connect_timeout_ms),
        "read_timeout": timedelta(milliseconds=config.read_timeout_ms),
        "timeout": timedelta(milliseconds=config.deadline_ms),
        "pool_max_idle_per_host": str(config.connections_max),
    }
    if aws.certificates is not None:
        options["root_certificate"] = aws.certificates
    return options


def _before(prefix: str) -> str:
    """Return a text behind all keys that are less than the prefix, or "" where the prefix is a
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


def _info(meta: Any) -> ObjectInfo:  # noqa: ANN401 (its stubs need a package of Arrow)
    return ObjectInfo(
        meta["path"], meta["size"], meta["e_tag"], int(meta["last_modified"].timestamp() * 1_000)
    )
