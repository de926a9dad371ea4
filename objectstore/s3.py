"""Access S3, and stores with its API, through aiobotocore.

Invariant: each call is one HTTP request (per page for lists, per 1,000 keys for deletes), sent
once: `objectstore.retry` repeats it and knows what a lost answer means. Bodies are unsigned but
carry a CRC32C that the store checks: it protects better than TLS alone and costs 1 ms for 8 MiB,
where SHA-256 costs 20 ms and more. The client is created on first use, because that needs the
running loop. Must not be imported by `objectstore.ports`: botocore takes 40 MB of memory.
Source: S3 API; AutoMQ AwsObjectStorage.
"""

import asyncio
import base64
import struct
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from crc32c import crc32c

from objectstore.body import join_body
from objectstore.config import S3Config
from objectstore.errors import RangeNotSatisfiable, UnexpectedResponse
from objectstore.keys import check_key
from objectstore.ports import DELETE_BATCH_COUNT, LIST_PAGE_COUNT, Body, ObjectInfo, ObjectTail
from objectstore.s3_errors import NETWORK_ERRORS, from_answer, is_range_error, translate
from objectstore.s3_http import SendOnceSession

if TYPE_CHECKING:
    from types_aiobotocore_s3 import S3Client
    from types_aiobotocore_s3.type_defs import ObjectTypeDef

_DELETE_STATUS = {"AccessDenied": 403, "NoSuchBucket": 404}
"""HTTP statuses of codes: failures of single keys come inside a 200."""

_CRC = struct.Struct(">I")


class _RangeBehindEnd(Exception):
    """416."""


class S3Store:
    """Access the objects of one bucket. Every method may raise any retriable ObjectStoreError,
    AccessDenied and BucketNotFound.
    """

    def __init__(self, config: S3Config) -> None:
        """config: the wrappers of `open_store` implement its `prefix` and `deadline_ms`."""
        self._config = config
        self._bucket = config.bucket
        self._encryption = _encryption(config)
        self._resources = AsyncExitStack()
        self._client: S3Client | None = None
        self._opening = asyncio.Lock()

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        data, _ = await self._get("get", key)
        return data

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See ObjectStore.get_range."""
        assert start >= 0, f"range starts at {start}"
        assert length > 0, f"range of {length} bytes"
        try:
            data, content_range = await self._get(
                "get_range", key, f"bytes={start}-{start + length - 1}"
            )
        except _RangeBehindEnd:
            raise RangeNotSatisfiable(key, start) from None
        if content_range is None:
            raise UnexpectedResponse("get_range", key, "200", "the store ignored the Range header")
        return data

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        """See ObjectStore.get_tail. S3 answers 416 for a suffix of an empty object."""
        assert length > 0, f"tail of {length} bytes"
        try:
            data, content_range = await self._get("get_tail", key, f"bytes=-{length}")
        except _RangeBehindEnd:
            return ObjectTail(data=b"", size_bytes=0)
        if content_range is None:
            return ObjectTail(data=data[-length:], size_bytes=len(data))
        return ObjectTail(data=data, size_bytes=int(content_range.rpartition("/")[2]))

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectStore.head. The response to a HEAD has no body, so a missing bucket also raises
        ObjectNotFound.
        """
        check_key(key)
        client = self._client or await self._open()
        try:
            response = await client.head_object(Bucket=self._bucket, Key=key)
        except NETWORK_ERRORS as error:
            raise translate(error, "head", self._bucket, key) from error
        return ObjectInfo(
            key, response["ContentLength"], response["ETag"], _epoch_ms(response["LastModified"])
        )

    async def put(self, key: str, body: Body) -> str:
        """See ObjectStore.put."""
        return await self._put("put", key, body, {})

    async def put_if_absent(self, key: str, body: Body) -> str:
        """See ObjectStore.put_if_absent."""
        return await self._put("put_if_absent", key, body, {"IfNoneMatch": "*"})

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        return await self._put("put_if_match", key, body, {"IfMatch": etag})

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list."""
        client = self._client or await self._open()
        after, left = start_after, limit or sys.maxsize
        while True:
            page_count = min(LIST_PAGE_COUNT, left)
            # Some stores refuse an empty StartAfter.
            position: Any = {"StartAfter": after} if after else {}
            try:
                page = await client.list_objects_v2(
                    Bucket=self._bucket, Prefix=prefix, MaxKeys=page_count, **position
                )
            except NETWORK_ERRORS as error:
                raise translate(error, "list", self._bucket, prefix) from error
            infos = [_info(item) for item in page.get("Contents", ())]
            for info in infos:
                yield info
            left -= len(infos)
            if not page["IsTruncated"] or not infos or left == 0:
                return
            after = infos[-1].key

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete. Sends one request per 1,000 keys."""
        for key in keys:
            check_key(key)
        client = self._client or await self._open()
        for start in range(0, len(keys), DELETE_BATCH_COUNT):
            batch = keys[start : start + DELETE_BATCH_COUNT]
            try:
                response = await client.delete_objects(
                    Bucket=self._bucket,
                    Delete={"Objects": [{"Key": key} for key in batch], "Quiet": True},
                )
            except NETWORK_ERRORS as error:
                raise translate(error, "delete", self._bucket, batch[0]) from error
            for failed in response.get("Errors", ()):
                key, code, message = (
                    failed.get("Key", ""),
                    failed.get("Code", ""),
                    failed.get("Message", ""),
                )
                raise from_answer(
                    _DELETE_STATUS.get(code, 500),
                    code,
                    message,
                    operation="delete",
                    bucket=self._bucket,
                    key=key,
                )

    async def close(self) -> None:
        """Close all connections."""
        self._client = None
        await self._resources.aclose()

    async def _get(
        self, operation: str, key: str, wanted: str | None = None
    ) -> tuple[bytes, str | None]:
        """Return the bytes and the Content-Range. Raises if the connection ends early."""
        check_key(key)
        client = self._client or await self._open()
        range_header: Any = {} if wanted is None else {"Range": wanted}
        try:
            response = await client.get_object(Bucket=self._bucket, Key=key, **range_header)
            async with response["Body"] as stream:
                data = await stream.read()
        except NETWORK_ERRORS as error:
            if is_range_error(error):
                raise _RangeBehindEnd from error
            raise translate(error, operation, self._bucket, key) from error
        return data, cast("dict[str, Any]", response).get("ContentRange")

    async def _put(self, operation: str, key: str, body: Body, condition: dict[str, str]) -> str:
        check_key(key)
        client = self._client or await self._open()
        data = join_body(body)
        checksum = base64.b64encode(_CRC.pack(crc32c(data))).decode()
        # The stubs type each parameter by name, not a dict of them.
        more: Any = self._encryption | condition
        try:
            response = await client.put_object(
                Bucket=self._bucket, Key=key, Body=data, ChecksumCRC32C=checksum, **more
            )
        except NETWORK_ERRORS as error:
            raise translate(error, operation, self._bucket, key) from error
        return response["ETag"]

    async def _open(self) -> "S3Client":
        async with self._opening:
            client = self._client
            if client is None:
                config = self._config
                # Any: a type checker takes minutes for the overloads of all AWS services.
                session: Any = get_session()
                context = session.create_client(
                    "s3",
                    region_name=config.region,
                    endpoint_url=config.endpoint,
                    aws_access_key_id=config.access_key,
                    aws_secret_access_key=config.secret_key,
                    aws_session_token=config.session_token,
                    config=_client_config(config),
                )
                client = self._client = cast(
                    "S3Client", await self._resources.enter_async_context(context)
                )
            return client


def _client_config(config: S3Config) -> AioConfig:
    return AioConfig(
        http_session_cls=SendOnceSession,
        max_pool_connections=config.connections_max,
        connect_timeout=config.connect_timeout_ms / 1_000,
        read_timeout=config.read_timeout_ms / 1_000,
        retries={"total_max_attempts": 1, "mode": "standard"},
        signature_version="s3v4",
        s3={
            "addressing_style": "path" if config.path_style else "auto",
            "payload_signing_enabled": False,
        },
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        parameter_validation=False,
    )


def _encryption(config: S3Config) -> dict[str, Any]:
    """Return the parameters of a write that say how the object is encrypted."""
    given = {
        "ServerSideEncryption": config.sse,
        "SSEKMSKeyId": config.sse_kms_key_id,
        "BucketKeyEnabled": config.sse_bucket_key,
    }
    return {name: value for name, value in given.items() if value is not None}


def _info(item: "ObjectTypeDef") -> ObjectInfo:
    """Return one entry of a list page. The stubs declare fields optional that S3 always sends."""
    fields = cast("dict[str, Any]", item)
    return ObjectInfo(
        fields["Key"], fields["Size"], fields["ETag"], _epoch_ms(fields["LastModified"])
    )


def _epoch_ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1_000)
