"""Errors that only the S3 store can have: status codes, broken connections, headers, and the
conditions that moto really checks.
"""

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from crc32c import crc32c

from objectstore.config import S3Config
from objectstore.errors import (
    AccessDenied,
    BucketNotFound,
    ConditionalConflict,
    DeadlineExceeded,
    ObjectStoreError,
    PreconditionFailed,
    Throttled,
    Unavailable,
    UnexpectedResponse,
)
from objectstore.ports import ObjectStore
from objectstore.retry import RetryingStore, RetryPolicy
from objectstore.s3 import S3Store

BODY = bytes(range(256)) * 4_096
OK = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n'


@dataclass
class RawServer:
    """Speak just enough HTTP to send prepared answers; None closes the connection instead."""

    answers: list[bytes | None]
    requests: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    endpoint: str = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = next(
                    (
                        int(line[15:])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-length:")
                    ),
                    0,
                )
                self.requests.append(head)
                self.bodies.append(await reader.readexactly(length))
                answer = self.answers.pop(0)
                if answer is None:
                    break
                writer.write(answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def raw_store(*answers: bytes | None) -> AsyncIterator[tuple[RawServer, S3Store]]:
    raw = RawServer(list(answers))
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0, limit=1 << 20)
    raw.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    config = S3Config(
        bucket="bucket",
        endpoint=raw.endpoint,
        region="us-east-1",
        path_style=True,
        access_key="a",
        secret_key="b",
    )
    store = S3Store(replace(config, read_timeout_ms=300))
    try:
        yield raw, store
    finally:
        await store.close()
        server.close()
        await server.wait_closed()


def answer(status: int, code: str) -> bytes:
    body = (
        f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>text</Message></Error>".encode()
    )
    return (
        f"HTTP/1.1 {status} X\r\nContent-Type: application/xml\r\nContent-Length:"
        f" {len(body)}\r\n\r\n".encode()
        + body
    )


@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (503, "SlowDown", Throttled),
        (429, "TooManyRequests", Throttled),
        (503, "ServiceUnavailable", Unavailable),
        (500, "InternalError", Unavailable),
        (502, "", Unavailable),
        (400, "RequestTimeout", Unavailable),
        (409, "ConditionalRequestConflict", ConditionalConflict),
        (412, "PreconditionFailed", PreconditionFailed),
        (403, "AccessDenied", AccessDenied),
        (403, "SignatureDoesNotMatch", AccessDenied),
        (404, "NoSuchBucket", BucketNotFound),
        (400, "InvalidArgument", UnexpectedResponse),
        (501, "NotImplemented", UnexpectedResponse),
    ],
)
async def test_answers_become_errors_of_the_port(
    status: int, code: str, expected: type[ObjectStoreError]
) -> None:
    async with raw_store(answer(status, code)) as (raw, store):
        with pytest.raises(expected) as caught:
            await store.put_if_absent("k", b"v")
        assert type(caught.value) is expected
        assert len(raw.requests) == 1


def listing(*keys: str, truncated: bool) -> bytes:
    entries = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><ETag>e</ETag><LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
        for key in keys
    )
    body = (
        f"<ListBucketResult><IsTruncated>{str(truncated).lower()}</IsTruncated>"
        f"{entries}</ListBucketResult>"
    ).encode()
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n"
        % len(body)
        + body
    )


async def test_a_list_that_meets_a_deletion_is_repeated_and_goes_on_where_it_was() -> None:
    lost = answer(404, "NoSuchKey")
    async with raw_store(
        lost, listing("a", "b", truncated=True), lost, listing("c", truncated=False)
    ) as (raw, store):
        retrying = RetryingStore(store, RetryPolicy(backoff_ms=1, backoff_max_ms=1))
        assert [info.key async for info in retrying.list("p/")] == ["a", "b", "c"]
        assert [b"start-after=b" in head for head in raw.requests] == [False, False, True, True]


async def test_a_list_that_keeps_meeting_deletions_fails_at_its_deadline() -> None:
    async with raw_store(*[answer(404, "NoSuchKey")] * 1_000) as (_, store):
        retrying = RetryingStore(
            store, RetryPolicy(backoff_ms=20, backoff_max_ms=20, deadline_ms=8_000)
        )
        with pytest.raises(DeadlineExceeded, match="404 NoSuchKey"):
            await anext(retrying.list("p/"))


async def test_a_list_of_a_bucket_that_does_not_exist_is_not_repeated() -> None:
    async with raw_store(answer(404, "NoSuchBucket")) as (raw, store):
        with pytest.raises(BucketNotFound):
            await anext(RetryingStore(store).list("p/"))
        assert len(raw.requests) == 1


async def test_a_broken_kept_alive_connection_does_not_send_a_put_twice() -> None:
    async with raw_store(OK, None, OK) as (raw, store):
        await store.put("k", b"first")
        with pytest.raises(Unavailable):
            await store.put_if_absent("k", BODY)
        assert len(raw.requests) == 2
        await store.put("k", b"third")


async def test_a_silent_store_is_unavailable_after_the_read_timeout() -> None:
    async with raw_store(b"") as (_, store):
        with pytest.raises(Unavailable):
            await store.get("k")


async def test_an_unreachable_store_is_unavailable() -> None:
    async with raw_store() as (_, store):
        await store.close()
    unreachable = S3Store(
        S3Config(
            bucket="bucket",
            endpoint="http://127.0.0.1:1",
            region="x",
            access_key="a",
            secret_key="b",
        )
    )
    with pytest.raises(Unavailable):
        await unreachable.put("k", b"")
    await unreachable.close()


async def test_a_body_that_ends_early_is_unavailable_and_not_short_data() -> None:
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this"
    async with raw_store(cut) as (raw, store):
        raw.answers.append(None)
        with pytest.raises(Unavailable):
            await store.get("k")


async def test_a_store_that_ignores_ranges_is_found_out() -> None:
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789"
    async with raw_store(whole, whole) as (_, store):
        with pytest.raises(UnexpectedResponse, match="ignored the Range"):
            await store.get_range("k", 2, 3)
        tail = await store.get_tail("k", 3)
        assert (tail.data, tail.size_bytes) == (b"789", 10)


@pytest.mark.parametrize("size_bytes", [0, 100, len(BODY)])
async def test_bodies_are_sent_whole_with_a_checksum_and_unsigned(size_bytes: int) -> None:
    async with raw_store(OK) as (raw, store):
        await store.put_if_absent("k", BODY[:size_bytes])
        head = raw.requests[0].lower()
        checksum = base64.b64encode(crc32c(BODY[:size_bytes]).to_bytes(4))
        assert raw.bodies == [BODY[:size_bytes]]
        assert b"x-amz-checksum-crc32c: " + checksum.lower() in head
        assert b"x-amz-content-sha256: unsigned-payload" in head
        assert b"if-none-match: *" in head
        assert b"chunked" not in head


KEY_ID = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"sse": "AES256"}, ("AES256", None, None)),
        ({"sse": "aws:kms"}, ("aws:kms", None, None)),
        (
            {"sse": "aws:kms", "sse_kms_key_id": KEY_ID, "sse_bucket_key": True},
            ("aws:kms", KEY_ID, True),
        ),
    ],
)
async def test_every_kind_of_write_asks_for_the_encryption(
    asked: dict[str, Any], expected: tuple[object, ...], new_bucket: Callable[[], S3Config]
) -> None:
    """The server tells with a HEAD how it has encrypted an object."""
    config = replace(new_bucket(), **asked)
    store = S3Store(config)
    etag = await store.put("put", BODY)
    await store.put_if_absent("if-absent", BODY)
    await store.put_if_match("put", BODY[:10], etag)
    for key in ("put", "if-absent"):
        told = await _told(store, key)
        found = tuple(
            told.get(name) for name in ("ServerSideEncryption", "SSEKMSKeyId", "BucketKeyEnabled")
        )
        assert found == expected
    assert await store.get("put") == BODY[:10]
    with pytest.raises(PreconditionFailed):
        await store.put_if_absent("if-absent", b"")
    await store.close()
    plain = S3Store(replace(config, sse=None, sse_kms_key_id=None, sse_bucket_key=None))
    await plain.put("plain", BODY)
    assert "SSEKMSKeyId" not in await _told(plain, "plain")
    await plain.close()


async def _told(store: S3Store, key: str) -> dict[str, Any]:
    client: Any = await store._open()
    found: dict[str, Any] = await client.head_object(Bucket=store._bucket, Key=key)
    return found


@pytest.mark.parametrize("wanted", [True, False])
async def test_the_key_of_the_bucket_can_be_refused(wanted: bool) -> None:
    async with raw_store(OK) as (raw, store):
        store = S3Store(replace(store._config, sse="aws:kms", sse_bucket_key=wanted))
        await store.put("k", b"x")
        await store.close()
        header = f"x-amz-server-side-encryption-bucket-key-enabled: {str(wanted).lower()}"
        assert header.encode() in raw.requests[0].lower()


async def test_a_key_that_cannot_be_deleted_is_reported() -> None:
    body = (
        b"<?xml version='1.0'?><DeleteResult><Error><Key>k2</Key>"
        b"<Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
    )
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    async with raw_store(head + body) as (_, store):
        with pytest.raises(AccessDenied) as caught:
            await store.delete(["k1", "k2"])
        assert caught.value.key == "k2"


async def test_a_missing_bucket_teaches_how_to_make_it(new_bucket: Callable[[], S3Config]) -> None:
    store = S3Store(replace(new_bucket(), bucket="never-made"))
    calls: list[Callable[[ObjectStore], Awaitable[object]]] = [
        lambda s: s.put("k", b""),
        lambda s: s.get("k"),
        lambda s: s.delete(["k"]),
        lambda s: anext(s.list("")),
    ]
    for call in calls:
        with pytest.raises(BucketNotFound, match="aws s3api create-bucket --bucket never-made"):
            await call(store)
    await store.close()


async def test_many_concurrent_calls_share_the_connections(
    new_bucket: Callable[[], S3Config],
) -> None:
    store = S3Store(replace(new_bucket(), connections_max=4))
    await asyncio.gather(*(store.put(f"k/{number}", BODY) for number in range(12)))
    bodies = await asyncio.gather(*(store.get(f"k/{number}") for number in range(12)))
    assert all(body == BODY for body in bodies)
    await store.close()
