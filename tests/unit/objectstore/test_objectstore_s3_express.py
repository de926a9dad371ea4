"""S3 Express One Zone: sessions, and LISTs without order. The server is a stand-in."""

import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from penstock.objectstore import in_order
from penstock.objectstore.config import S3Config
from penstock.objectstore.errors import (
    AccessDenied,
    BucketNotFound,
    InvalidStoreUrl,
    ListTooLong,
    PreconditionFailed,
    Unavailable,
)
from penstock.objectstore.metered import MeteredStore
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.prefixed import PrefixedStore
from penstock.objectstore.retry import RetryingStore, RetryPolicy
from penstock.objectstore.s3 import S3Store
from penstock.objectstore.s3_express import S3ExpressStore
from penstock.objectstore.url import open_store, parse_store_url
from tests.support.s3_express_server import SUFFIX, Server, Stored

URL = "s3://wals--use1-az4--x-s3"


@pytest.fixture
def config(new_directory_bucket: Callable[[], S3Config]) -> S3Config:
    return new_directory_bucket()


@pytest.fixture
async def store(config: S3Config) -> AsyncIterator[S3ExpressStore]:
    store = S3ExpressStore(config)
    yield store
    await store.close()


def fill(server: Server, config: S3Config, keys: list[str]) -> None:
    """Add objects without sending requests."""
    stored = Stored(b"x", '"1"', datetime.now(UTC))
    with server.lock:
        server.buckets[config.bucket].objects.update(dict.fromkeys(keys, stored))


def end_sessions(server: Server) -> None:
    with server.lock:
        for key, session in server.sessions.items():
            server.sessions[key] = replace(session, ends=time.monotonic())


async def listed(
    store: ObjectStore, prefix: str, start_after: str = "", limit: int = 0
) -> list[str]:
    return [info.key async for info in store.list(prefix, start_after=start_after, limit=limit)]


KEYS = [f"wals/1/7/{number:020d}" for number in range(2_500)]


async def test_pages_in_random_order_are_returned_in_order(
    s3_express: Server, config: S3Config, store: S3ExpressStore
) -> None:
    fill(s3_express, config, [*KEYS, "wals/1/70/x", "wals/2/x"])
    layers = PrefixedStore(RetryingStore(MeteredStore(store)), "wals/1/", replaced="wals/")
    assert await listed(layers, "wals/7/") == [f"wals/7/{key[9:]}" for key in KEYS]
    assert await listed(store, "wals/1/7/", KEYS[2_000], limit=2) == KEYS[2_001:2_003]
    assert await listed(store, "wals/1/7/", KEYS[-1]) == []
    assert await listed(store, "wals/1/7/" + "0" * 16) == KEYS
    assert await listed(store, "wals/1/70") == ["wals/1/70/x"]


async def test_an_incomplete_list_is_an_error(
    s3_express: Server, config: S3Config, store: S3ExpressStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This includes callers with a limit: the first keys of a page need not be the first of all."""
    monkeypatch.setattr(in_order, "LISTED_MAX", 3)
    fill(s3_express, config, KEYS[:4])
    with pytest.raises(ListTooLong, match="more than 3 objects below 'wals/1/7/'"):
        await listed(store, "wals/1/7/")
    with pytest.raises(ListTooLong):
        await listed(store, "wals/1/7/", limit=1)
    assert await listed(store, "wals/1/7/", KEYS[0]) == KEYS[1:4]


async def test_an_expired_session_is_replaced(
    s3_express: Server, config: S3Config, store: S3ExpressStore
) -> None:
    """A write with an expired session is not executed, and its retry succeeds."""
    s3_express.sessions.clear()
    retrying = RetryingStore(store, RetryPolicy(backoff_ms=1))
    await retrying.put_if_absent("wals/1/0", b"0")
    end_sessions(s3_express)
    with pytest.raises(Unavailable, match="session of S3 Express One Zone has expired"):
        await store.put_if_absent("wals/1/1", b"1")
    await retrying.put_if_absent("wals/1/1", b"1")
    with pytest.raises(PreconditionFailed):
        await retrying.put_if_absent("wals/1/1", b"2")
    assert len(s3_express.sessions) == 2


@pytest.mark.parametrize("operation", ["head", "list", "get_tail", "delete"])
async def test_every_operation_replaces_an_expired_session(
    s3_express: Server, store: S3ExpressStore, operation: str
) -> None:
    """A HEAD response contains no error code."""
    retrying = RetryingStore(store, RetryPolicy(backoff_ms=1))
    await retrying.put("a/0", b"0")
    end_sessions(s3_express)
    if operation == "head":
        assert (await retrying.head("a/0")).size_bytes == 1
    elif operation == "list":
        assert await listed(retrying, "a/") == ["a/0"]
    elif operation == "get_tail":
        assert (await retrying.get_tail("a/0", 5)).data == b"0"
    else:
        await retrying.delete(["a/0"])
        assert await listed(store, "a/") == []


async def test_rejected_sessions_are_reported(config: S3Config, s3_express: Server) -> None:
    stranger = S3ExpressStore(dataclasses.replace(config, secret_key="another"))
    with pytest.raises(AccessDenied, match="allow s3express:CreateSession"):
        await stranger.put("k", b"")
    await stranger.close()
    absent = S3ExpressStore(replace(config, bucket="absent--use1-az4--x-s3"))
    with pytest.raises(BucketNotFound, match=r"Name=use1-az4\},Bucket=\{Type=Directory"):
        await absent.put("k", b"")
    await absent.close()


async def test_the_stand_in_rejects_requests_without_a_session(config: S3Config) -> None:
    """The request uses the bucket's endpoint and valid keys, but no session."""
    plain = S3Store(
        replace(config, bucket="b", endpoint=f"https://{config.bucket}{SUFFIX}", path_style=False)
    )
    for call in (plain.put("k", b""), plain.get("k"), anext(plain.list(""))):
        with pytest.raises(AccessDenied):
            await call
    await plain.close()


async def test_opening_a_directory_bucket_url_returns_a_sorting_store(
    s3_express: Server, config: S3Config
) -> None:
    keys = "access_key=local&secret_key=local"
    store = open_store(f"s3://{config.bucket}/part?region=us-east-1&{keys}")
    fill(s3_express, config, [f"part/{key}" for key in KEYS[:50]])
    assert await listed(store, "wals/") == KEYS[:50]
    await store.close()


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s3://wals--x-s3", "has the form NAME--ZONE--x-s3"),
        ("s3://my.wals--use1-az4--x-s3", "has the form NAME--ZONE--x-s3"),
        (f"{URL}?endpoint=http://127.0.0.1:9000", "endpoint is not possible for a directory"),
        (f"{URL}?path_style=false", "path_style is not possible for a directory bucket"),
        (f"{URL}?sse=AES256", "sse is not possible for a directory bucket: S3 encrypts its"),
    ],
)
def test_urls_that_the_service_does_not_support_are_rejected(url: str, reason: str) -> None:
    with pytest.raises(InvalidStoreUrl, match=reason):
        parse_store_url(url)


def test_only_directory_buckets_have_sessions() -> None:
    def is_express(url: str) -> bool:
        config = parse_store_url(url)
        assert isinstance(config, S3Config)
        return config.is_express

    assert is_express(f"{URL}/prefix?region=us-east-1")
    assert not is_express("s3://wals-x-s3?region=us-east-1")
    assert not is_express("s3://wals--use1-az4?region=us-east-1")
