"""Store URLs: which ones are accepted, and that secrets are hidden."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.objectstore.config import DirectoryConfig, MemoryConfig, S3Config
from penstock.objectstore.directory import DirectoryStore
from penstock.objectstore.errors import (
    ConditionalConflict,
    ConditionalWritesIgnored,
    DeadlineExceeded,
    InvalidStoreUrl,
    ListOrderUnsupported,
    ObjectNotFound,
    PreconditionFailed,
)
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.metered import StoreMeter
from penstock.objectstore.ports import Body, ObjectInfo
from penstock.objectstore.prefixed import PrefixedStore
from penstock.objectstore.probe import probe_conditional_writes, probe_store, probe_wal_store
from penstock.objectstore.retry import RetryingStore
from penstock.objectstore.url import location, open_store, parse_store_url, redact_url
from tests.support.ports import free_port

FULL = "s3://bucket/some/prefix/?endpoint=http://127.0.0.1:9000&region=eu-1&access_key=KEY&secret_key=s%2FECRET"


def test_urls_are_parsed() -> None:
    assert parse_store_url("memory:") == MemoryConfig()
    assert parse_store_url("file:data/x") == DirectoryConfig(directory="data/x")
    assert parse_store_url("file:///var/a%20b") == DirectoryConfig(directory="/var/a b")
    assert parse_store_url("file:/var") == DirectoryConfig(directory="/var")
    assert parse_store_url("s3://my-bucket") == S3Config(bucket="my-bucket")
    assert parse_store_url(FULL) == S3Config(
        bucket="bucket",
        prefix="some/prefix/",
        endpoint="http://127.0.0.1:9000",
        region="eu-1",
        access_key="KEY",
        secret_key="s/ECRET",
        path_style=True,
    )
    assert parse_store_url(
        "s3://bucket?endpoint=https://s3.x.org&path_style=false&connections_max=5"
    ) == S3Config(bucket="bucket", endpoint="https://s3.x.org", connections_max=5)
    assert parse_store_url(
        "s3://bucket?sse=aws:kms&sse_kms_key_id=arn:aws:kms:eu-1:1:key/k&sse_bucket_key=true"
    ) == S3Config(
        bucket="bucket",
        sse="aws:kms",
        sse_kms_key_id="arn:aws:kms:eu-1:1:key/k",
        sse_bucket_key=True,
    )


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "does not begin with"),
        ("bucket", "does not begin with"),
        ("http://bucket", "does not begin with"),
        ("memory:x", "nothing may follow"),
        ("file:", "a directory"),
        ("file://host/x", "a directory"),
        ("s3:bucket", "not a bucket name"),
        ("s3://", "not a bucket name"),
        ("s3://Bucket", "not a bucket name"),
        ("s3://user:SECRET@bucket", "not a bucket name"),
        ("s3://bucket/a//b", "not allowed"),
        ("s3://bucket/a/../b", "not allowed"),
        ("s3://bucket#SECRET-less", "%23"),
        ("s3://bucket?endpiont=http://x", "did you mean endpoint?"),
        ("s3://bucket?zzz=1", "allowed are endpoint, region"),
        ("s3://bucket?region=", "region is empty"),
        ("s3://bucket?region=a&region=b", "given twice"),
        ("s3://bucket?endpoint=127.0.0.1:9000", "http or https URL"),
        ("s3://bucket?endpoint=http://me:SECRET@host", "http or https URL"),
        ("s3://bucket?endpoint=http%3A%2F%2Fme:SECRET@host", "http or https URL"),
        ("s3://bucket?endpoint=http://h:99999", "http or https URL"),
        ("s3://bucket?connections_max=0", "from 1 to 1024"),
        ("s3://bucket?connections_max=many", "from 1 to 1024"),
        ("s3://bucket?path_style=yes", "true or false"),
        ("s3://bucket?secret_key=SECRET", "given together"),
        ("s3://bucket?sse=kms", "sse must be AES256 "),
        ("s3://bucket?sse=AES256&sse_kms_key_id=k", "sse_kms_key_id needs sse=aws:kms"),
        ("s3://bucket?sse_bucket_key=true", "sse_bucket_key needs sse=aws:kms"),
        ("s3://bucket?sse=aws:kms&sse_bucket_key=yes", "sse_bucket_key must be true or false"),
    ],
)
def test_errors_contain_advice_and_no_secrets(url: str, says: str) -> None:
    with pytest.raises(InvalidStoreUrl, match=says.replace("?", r"\?")) as caught:
        parse_store_url(url)
    assert "SECRET" not in str(caught.value).replace("SECRET-less", "")


def test_secrets_are_not_in_the_repr() -> None:
    config = parse_store_url(FULL)
    assert (
        config.redacted()
        == "s3://bucket/some/prefix?endpoint=http://127.0.0.1:9000&region=eu-1&access_key=***"
    )
    assert "ECRET" not in repr(config)
    assert "ECRET" not in redact_url(FULL)
    assert redact_url("s3://b?secret_key=x&region=y") == "s3://b?secret_key=***&region=y"
    assert parse_store_url("s3://bucket").redacted() == "s3://bucket"


LOCATIONS = ("s3://bucket", "gs://bucket", "az://acct/box", "S3://bucket", "s3a://bucket")


@pytest.mark.parametrize(
    "rest",
    [
        "?secretkey=SECRET",
        "?Secret_Key=SECRET",
        "?secret%5Fkey=SECRET",
        "?sas=sv=1%26sig=SECRET",
        "?token=SECRET&region=eu",
        "?SECRET",
        "?SECRET+/x==",
        "?account_key=a&SECRET/x==",
        "?sas_token=sv=1&spr=https&sig=SECRET",
        "?secret_key=a&SECRET&endpoint=http://h",
        "?secret_key=a#SECRET",
        "#secret_key=SECRET",
        "?region=eu;secret_key=SECRET",
        "?endpoint=https://h/?sig=SECRET",
        "?endpoint=https%3A%2F%2Fh%2F%3Fsig=SECRET",
        "?endpoint=http://me:SECRET@h",
        "?connections_max=SECRET=1",
    ],
)
def test_errors_contain_no_value_that_may_be_secret(rest: str) -> None:
    for location_ in LOCATIONS:
        with pytest.raises(InvalidStoreUrl) as caught:
            parse_store_url(location_ + rest)
        assert "SECRET" not in str(caught.value)
        assert "SECRET" not in redact_url(location_ + rest)


@pytest.mark.parametrize(
    "url", ["s3://AKIA:SE/CRET@bucket", "gs://SECRET@bucket", "az://a:SECRET@\u2100", "s3://[::1"]
)
def test_errors_contain_no_user_name(url: str) -> None:
    with pytest.raises(InvalidStoreUrl) as caught:
        parse_store_url(url)
    assert "CRET" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3://bucket/a:b@c?endpoint=http://127.0.0.1:9000&region=eu-1&deadline_ms=5",
        "s3://bucket?sse=aws:kms&sse_kms_key_id=arn:aws:kms:eu-1:1:key/k",
        "gs://bucket/x?credentials_file=/etc/key.json",
        "file:/data/what?",
        "memory:",
    ],
)
def test_public_parts_are_shown(url: str) -> None:
    assert redact_url(url) == url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/a/b?region=x&secret_key=s&access_key=a", "s3://bucket/a/b"),
        ("file:/data", "file:/data"),
        ("memory:", "memory:"),
    ],
)
def test_a_store_location_contains_no_parameters(url: str, expected: str) -> None:
    assert location(url) == expected


async def test_open_store_returns_the_right_store(tmp_path: Path) -> None:
    assert isinstance(open_store("memory:"), MemoryStore)
    assert open_store("memory:") is not open_store("memory:")
    directory = open_store(f"file:{tmp_path}/new/dir")
    assert isinstance(directory, DirectoryStore)
    await directory.close()
    assert isinstance(open_store("s3://bucket"), RetryingStore)
    assert isinstance(open_store("s3://bucket/p"), PrefixedStore)


async def test_moto_needs_no_credentials(new_bucket: Callable[[], S3Config]) -> None:
    config = new_bucket()
    store = open_store(f"s3://{config.bucket}/below?endpoint={config.endpoint}", environ={})
    await store.put("k", b"v")
    await probe_conditional_writes(store, "", "1")
    assert [info.key async for info in store.list("")] == ["k"]
    await store.close()


class IgnorantStore(MemoryStore):
    """Respond with 200 to every conditional write, as some incompatible stores do."""

    def __init__(self, ignored: str) -> None:
        super().__init__()
        self._ignored = ignored

    async def put_if_absent(self, key: str, body: Body) -> str:
        return await (
            self.put(key, body) if self._ignored == "absent" else super().put_if_absent(key, body)
        )

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        return await (
            self.put(key, body)
            if self._ignored == "match"
            else super().put_if_match(key, body, etag)
        )


@pytest.mark.parametrize("ignored", ["absent", "match"])
async def test_the_probe_detects_stores_that_ignore_conditions(ignored: str) -> None:
    store = IgnorantStore(ignored)
    with pytest.raises(ConditionalWritesIgnored, match="Amazon S3, MinIO"):
        await probe_conditional_writes(store, "meta/", "1")
    assert [info async for info in store.list("")] == []


class NaiveStore(MemoryStore):
    """Check first and write afterwards, which is correct only for one request at a time."""

    async def put_if_absent(self, key: str, body: Body) -> str:
        with suppress(ObjectNotFound):
            await self.head(key)
            raise PreconditionFailed(key)
        await asyncio.sleep(0)
        return await self.put(key, body)


class ForgetfulStore(MemoryStore):
    """Reject all but one of several concurrent writes, but keep the bytes of the last one."""

    async def put_if_absent(self, key: str, body: Body) -> str:
        try:
            return await super().put_if_absent(key, body)
        except PreconditionFailed:
            if key.endswith("-2"):
                await self.put(key, body)
            raise


class LosingStore(MemoryStore):
    """Lose the response of the successful write, so that its retry finds its own object; sometimes
    another write is in progress.
    """

    async def put_if_absent(self, key: str, body: Body) -> str:
        etag = await super().put_if_absent(key, body)
        if key.endswith("-1"):
            raise PreconditionFailed(key)
        if key.endswith("-2"):
            raise ConditionalConflict(key)
        return etag


@pytest.mark.parametrize(
    ("store", "why"),
    [(NaiveStore(), "8 of 8 PUTs of one key at once"), (ForgetfulStore(), "bytes of another PUT")],
)
async def test_the_probe_detects_stores_that_fail_under_concurrency(
    store: MemoryStore, why: str
) -> None:
    with pytest.raises(ConditionalWritesIgnored, match=why):
        await probe_conditional_writes(store, "meta/", "u")
    assert [info async for info in store.list("")] == []


class FoldersFirstStore(MemoryStore):
    """List the keys of a folder before others, as Azure does with a hierarchical namespace."""

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        found = [info async for info in super().list(prefix, start_after=start_after)]
        for info in sorted(found, key=lambda info: info.key.split("/")):
            yield info


async def test_the_probe_detects_stores_that_list_in_another_order() -> None:
    store = FoldersFirstStore()
    with pytest.raises(ListOrderUnsupported, match=r"/b, -b.*hierarchical namespace"):
        await probe_store(store, "meta/", "u")
    assert [info async for info in store.list("")] == []


async def test_a_race_without_a_winner_does_not_fail_the_probe() -> None:
    store = LosingStore()
    await probe_conditional_writes(store, "meta/", "u")
    assert [info async for info in store.list("")] == []


@pytest.mark.parametrize(
    "module",
    ["penstock.objectstore.ports", "penstock.objectstore.url", "penstock.objectstore.memory"],
)
def test_importing_ports_and_urls_imports_no_backend(module: str) -> None:
    code = (
        f"import sys, {module}; print([m for m in ('obstore', 'botocore', 'boto3')"
        " if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_probe_of_a_store_that_does_not_respond_ends_with_its_first_request() -> None:
    """Deleting the objects of the probe would take until a second deadline."""
    url = f"s3://bucket?endpoint=http://127.0.0.1:{free_port()}&region=r&access_key=k&secret_key=s"
    meter = StoreMeter()
    store = open_store(replace(parse_store_url(url), deadline_ms=200), meter=meter)
    try:
        with pytest.raises(DeadlineExceeded, match=r"put_if_absent of .* within 0\.2 s"):
            await probe_store(store, "probe/", "1")
        with pytest.raises(DeadlineExceeded, match="put_if_absent of"):
            await probe_wal_store(store, "probe/", "1")
    finally:
        await store.close()
    assert set(meter.snapshot().operations) == {"put_if_absent"}


@pytest.mark.parametrize("directory", ["file/sub", "file"])
def test_directories_that_cannot_be_created_are_reported_with_their_url(
    tmp_path: Path, directory: str
) -> None:
    (tmp_path / "file").touch()
    url = f"file:{tmp_path}/{directory}"
    with pytest.raises(InvalidStoreUrl, match=rf"'{url}' is not valid: the directory cannot be .*"):
        open_store(url)
