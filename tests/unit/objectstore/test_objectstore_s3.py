"""Errors specific to the S3 store: status codes, broken connections, headers, and conditions that
moto checks.
"""

import asyncio
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from penstock.objectstore.config import S3Config
from penstock.objectstore.errors import (
    AccessDenied,
    BucketNotFound,
    ConditionalConflict,
    DeadlineExceeded,
    InvalidStoreConfig,
    ObjectStoreError,
    PreconditionFailed,
    Throttled,
    TlsFailed,
    Unavailable,
    UnexpectedResponse,
)
from penstock.objectstore.ports import LIST_PAGE_COUNT, ObjectStore
from penstock.objectstore.retry import RetryingStore, RetryPolicy
from penstock.objectstore.s3 import S3Store
from penstock.objectstore.url import open_store
from tests.support.certs import Authority, CertFiles
from tests.support.ports import free_port
from tests.support.raw_server import RawServer, error_response, raw_server
from tests.support.s3_headers import SSE_HEADERS, told_headers
from tests.support.waiting import PATIENCE_S, until

BODY = bytes(range(256)) * 4_096
OK = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\n\r\n'


@asynccontextmanager
async def raw_store(
    *responses: bytes | None, read_timeout_ms: int = 10_000
) -> AsyncIterator[tuple[RawServer, S3Store]]:
    async with raw_server(*responses) as raw:
        config = S3Config(
            bucket="bucket",
            endpoint=raw.endpoint,
            region="us-east-1",
            path_style=True,
            access_key="a",
            secret_key="b",
        )
        store = S3Store(replace(config, read_timeout_ms=read_timeout_ms))
        yield raw, store
        await store.close()


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
async def test_responses_are_mapped_to_errors_of_the_port(
    status: int, code: str, expected: type[ObjectStoreError]
) -> None:
    async with raw_store(error_response(status, code)) as (raw, store):
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
        f"{'<NextContinuationToken>t</NextContinuationToken>' if truncated else ''}"
        f"{entries}</ListBucketResult>"
    ).encode()
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n"
        % len(body)
        + body
    )


async def test_a_list_interrupted_by_a_deletion_is_resumed() -> None:
    lost = error_response(404, "NoSuchKey")
    full = [f"p/{number:04d}" for number in range(LIST_PAGE_COUNT)]
    first, last = listing(*full, truncated=True), listing("p/last", truncated=False)
    async with raw_store(lost, first, lost, last) as (raw, store):
        retrying = RetryingStore(store, RetryPolicy(backoff_ms=1, backoff_max_ms=1))
        assert [info.key async for info in retrying.list("p/")] == [*full, "p/last"]
        assert [
            (b"start-after=p%2F0999" in head, b"continuation-token=t" in head)
            for head in raw.requests
        ] == [(False, False), (False, False), (False, True), (True, False)]


async def test_a_list_repeatedly_interrupted_by_deletions_fails_at_its_deadline() -> None:
    async with raw_store(*[error_response(404, "NoSuchKey")] * 1_000) as (_, store):
        retrying = RetryingStore(
            store, RetryPolicy(backoff_ms=20, backoff_max_ms=20, deadline_ms=8_000)
        )
        with pytest.raises(DeadlineExceeded, match="404 NoSuchKey"):
            await anext(retrying.list("p/"))


async def test_a_list_of_a_nonexistent_bucket_is_not_retried() -> None:
    async with raw_store(error_response(404, "NoSuchBucket")) as (raw, store):
        with pytest.raises(BucketNotFound):
            await anext(RetryingStore(store).list("p/"))
        assert len(raw.requests) == 1


async def test_a_broken_keep_alive_connection_does_not_repeat_a_put() -> None:
    async with raw_store(OK, None, OK) as (raw, store):
        await store.put("k", b"first")
        with pytest.raises(Unavailable):
            await store.put_if_absent("k", BODY)
        assert len(raw.requests) == 2
        await store.put("k", b"third")


async def test_a_silent_store_raises_unavailable_after_the_read_timeout() -> None:
    async with raw_store(b"", read_timeout_ms=300) as (_, store):
        with pytest.raises(Unavailable, match="TimedOut"):
            await store.get("k")


async def test_an_unreachable_store_raises_unavailable() -> None:
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
    with pytest.raises(Unavailable, match="Connection refused"):
        await unreachable.put("k", b"")
    await unreachable.close()


async def test_a_truncated_body_raises_unavailable() -> None:
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this"
    async with raw_store(cut) as (raw, store):
        raw.responses.append(None)
        with pytest.raises(Unavailable):
            await store.get("k")


async def test_a_store_that_ignores_ranges_is_detected() -> None:
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n0123456789"
    async with raw_store(whole, whole, whole) as (_, store):
        with pytest.raises(UnexpectedResponse, match="ignored the Range"):
            await store.get_range("k", 2, 3)
        tail = await store.get_tail("k", 3)
        assert (tail.data, tail.size_bytes) == (b"789", 10)


@pytest.mark.parametrize(
    ("body", "checksum"),
    [(b"", b"AAAAAAAAAAA="), (b"123456789", b"rosUhgp5mIg="), (BODY, b"mH5mGVCtyts=")],
)
async def test_bodies_are_sent_unsigned_in_one_piece_with_a_checksum(
    body: bytes, checksum: bytes
) -> None:
    """The checksum of 123456789 is the one in the CRC catalog: ae8b14860a799888."""
    async with raw_store(OK) as (raw, store):
        await store.put_if_absent("k", body)
        head = raw.requests[0].lower()
        assert raw.bodies == [body]
        assert b"x-amz-checksum-crc64nvme: " + checksum.lower() in head
        assert b"x-amz-content-sha256: unsigned-payload" in head
        assert b"if-none-match: *" in head
        assert b"chunked" not in head


KEY_ID = "arn:aws:kms:us-east-1:123456789012:key/11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize(
    ("requested", "expected"),
    [
        ({"sse": "AES256"}, ("AES256", None, None)),
        ({"sse": "aws:kms"}, ("aws:kms", None, None)),
        (
            {"sse": "aws:kms", "sse_kms_key_id": KEY_ID, "sse_bucket_key": True},
            ("aws:kms", KEY_ID, "true"),
        ),
    ],
)
async def test_every_kind_of_write_requests_the_encryption(
    requested: dict[str, Any], expected: tuple[object, ...], new_bucket: Callable[[], S3Config]
) -> None:
    """The HEAD response shows how the server encrypted the object."""
    config = replace(new_bucket(), **requested)
    store = S3Store(config)
    etag = await store.put("put", BODY)
    await store.put_if_absent("if-absent", BODY)
    await store.put_if_match("put", BODY[:10], etag)
    for key in ("put", "if-absent"):
        reported = await asyncio.to_thread(told_headers, config, key)
        assert tuple(reported.get(name) for name in SSE_HEADERS) == expected
    assert await store.get("put") == BODY[:10]
    with pytest.raises(PreconditionFailed):
        await store.put_if_absent("if-absent", b"")
    await store.close()
    plain = S3Store(replace(config, sse=None, sse_kms_key_id=None, sse_bucket_key=None))
    await plain.put("plain", BODY)
    assert SSE_HEADERS[1] not in await asyncio.to_thread(told_headers, config, "plain")
    await plain.close()


@pytest.mark.parametrize("requested", [True, False])
async def test_the_bucket_key_can_be_enabled_and_disabled(requested: bool) -> None:
    async with raw_store(OK) as (raw, store):
        store = S3Store(replace(store._config, sse="aws:kms", sse_bucket_key=requested))
        await store.put("k", b"x")
        await store.close()
        header = f"x-amz-server-side-encryption-bucket-key-enabled: {str(requested).lower()}"
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


async def test_the_error_of_a_missing_bucket_says_how_to_create_it(
    new_bucket: Callable[[], S3Config],
) -> None:
    store = S3Store(replace(new_bucket(), bucket="never-made"))
    calls: list[Callable[[ObjectStore], Awaitable[object]]] = [
        lambda s: s.put("k", b""),
        lambda s: s.get("k"),
        lambda s: s.delete(["k"]),
        lambda s: anext(s.list("")),
    ]
    for call in calls:
        with pytest.raises(BucketNotFound, match=r"'never-made' .* at http://127") as caught:
            await call(store)
        assert "create-bucket --bucket never-made --endpoint-url http://127" in str(caught.value)
    await store.close()


async def test_many_concurrent_calls_share_the_connections(
    new_bucket: Callable[[], S3Config],
) -> None:
    store = S3Store(replace(new_bucket(), connections_max=4))
    await asyncio.gather(*(store.put(f"k/{number}", BODY) for number in range(12)))
    bodies = await asyncio.gather(*(store.get(f"k/{number}") for number in range(12)))
    assert all(body == BODY for body in bodies)
    await store.close()


Call = Callable[[ObjectStore], Awaitable[object]]


@pytest.mark.parametrize(
    "call",
    [
        lambda store: store.put("k", b""),
        lambda store: store.get("k"),
        lambda store: store.get_tail("k", 1),
        lambda store: store.get_range("k", 0, 1),
        lambda store: store.head("k"),
        lambda store: store.delete(["k"]),
        lambda store: anext(store.list("")),
    ],
)
async def test_no_more_requests_are_sent_than_the_limit_allows(call: Call) -> None:
    """The server holds the first request; another store detects whether it has received
    later ones.
    """
    async with raw_store(b"", *[OK] * 9) as (raw, other):
        store = S3Store(replace(other._config, connections_max=1))
        tasks = [asyncio.ensure_future(store.put("first", b""))]
        await until(lambda: raw.requests)
        tasks += [asyncio.ensure_future(call(store)) for _ in range(3)]
        for number in range(3):
            await other.put(f"other/{number}", b"")
        paths = [request.split()[1] for request in raw.requests]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()
    assert paths == [b"/bucket/first", *(b"/bucket/other/%d" % number for number in range(3))]


async def test_a_cancelled_call_drops_its_request_and_frees_its_slot() -> None:
    """The raw server holds the first request; the second one would wait for the only connection."""
    async with raw_store(b"", OK) as (raw, store):
        store = S3Store(
            replace(store._config, connections_max=1, read_timeout_ms=PATIENCE_S * 1_000)
        )
        held = asyncio.ensure_future(store.put_if_absent("k", b"1"))
        await until(lambda: raw.bodies == [b"1"])
        held.cancel()
        with pytest.raises(asyncio.CancelledError):
            await held
        assert await store.put("k", b"2") == '"e"'
        assert raw.bodies == [b"1", b"2"]
        await store.close()


def test_a_process_exits_cleanly_with_a_request_in_flight() -> None:
    """Rust threads outlive the event loop, which must neither hang nor crash the process."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        program = f"""
import asyncio, uvloop
from penstock.objectstore.url import open_store
async def main():
    store = open_store("s3://bucket?endpoint=http://127.0.0.1:{silent.getsockname()[1]}")
    calls = [asyncio.ensure_future(store.get("k")) for _ in range(8)]
    await asyncio.sleep(0.1)
    for call in calls[:4]:
        call.cancel()
    await store.close()
uvloop.run(main())
"""
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S
        )
    assert (done.returncode, done.stderr) == (0, "")


async def test_keys_of_the_url_are_not_mixed_with_those_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "environment")
    async with raw_store(OK) as (raw, store):
        await store.put("k", b"")
        assert b"Credential=a/" in raw.requests[0]
        assert b"environment" not in raw.requests[0]


@asynccontextmanager
async def tls_store(made: CertFiles | None, scheme: str = "https") -> AsyncIterator[S3Config]:
    """Return a server with this certificate; None: without TLS."""
    tls = None
    if made is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(made.certificate, made.key)

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Respond as HTTP servers do to the start of a TLS handshake."""
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    serve = refuse if tls is None else RawServer([OK]).serve
    async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls) as server:
        yield S3Config(
            bucket="bucket",
            endpoint=f"{scheme}://localhost:{server.sockets[0].getsockname()[1]}",
            region="r",
            path_style=True,
            access_key="a",
            secret_key="b",
        )


async def test_certificates_in_the_environment_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Authority(tmp_path).make("store")
    async with tls_store(made) as config:
        with pytest.raises(TlsFailed, match=r"no trusted CA signed .* AWS_CA_BUNDLE"):
            await S3Store(config).put("k", b"")
        monkeypatch.setenv("AWS_CA_BUNDLE", str(made.ca))
        await S3Store(config).put("k", b"")
    empty = tmp_path / "empty"
    empty.write_text("no certificates")
    for path, fault in (
        (tmp_path / "absent", "cannot be read"),
        (empty, "has no valid certificates"),
        (made.key, "has no valid certificates"),
    ):
        monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
        message = rf"AWS_CA_BUNDLE names .*{path.name}.*{fault}"
        with pytest.raises(InvalidStoreConfig, match=message):
            S3Store(config)


@pytest.mark.parametrize(
    ("certificate", "fault"),
    [
        ({"days": (-10, -5)}, "certificate has expired"),
        ({"days": (5, 10)}, "is not valid yet. Compare the clocks"),
        ({"hosts": ("other.example",)}, "does not name the host .* It names other.example"),
        ({"hosts": ("10.0.0.1",)}, "does not name the host"),
        (None, "the port does not use TLS. Write `http://`"),
    ],
    ids=["expired", "not yet valid", "host", "address", "plain"],
)
async def test_a_tls_fault_is_reported_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificate: dict[str, Any] | None, fault: str
) -> None:
    """This also applies to the retries of `open_store`, which take 30 s."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.file))
    made = None if certificate is None else authority.make("store", **certificate)
    async with tls_store(made) as config:
        store = open_store(config)
        with pytest.raises(TlsFailed, match=fault) as caught:
            await store.put_if_absent("k", b"")
        assert config.endpoint is not None
        assert config.endpoint in str(caught.value)
        assert not caught.value.retriable
        await store.close()


async def test_errors_of_connections_without_a_response_contain_a_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Authority(tmp_path).make("store")
    async with tls_store(made, scheme="http") as config:
        with pytest.raises(Unavailable, match="if the store uses TLS, write https://"):
            await S3Store(config).put("k", b"")
    async with tls_store(None, scheme="http") as config:
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
        with pytest.raises(Unavailable, match=r"HTTP_PROXY is set: add .* NO_PROXY"):
            await S3Store(config).put("k", b"")
