"""The object store contract on all stores that can run here."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.objectstore.azure import AzureStore
from penstock.objectstore.config import AzureConfig, GcsConfig, S3Config
from penstock.objectstore.errors import (
    AccessDenied,
    BucketNotFound,
    ObjectNotFound,
    PreconditionFailed,
)
from penstock.objectstore.gcs import GcsStore
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.remote import RemoteStore
from penstock.objectstore.s3 import S3Store
from penstock.objectstore.url import open_store
from tests.support.store_servers import S3_EXPRESS, S3Server, StoreServer
from tests.support.waiting import PATIENCE_S
from tests.unit.objectstore.test_objectstore_conformance import *  # noqa: F403 (the contract's tests)


@pytest.fixture
def nested_key(server: StoreServer) -> str:
    """Return a key below `a/x` where the server allows that. On versitygw, MinIO and SeaweedFS, as
    in a directory, a key cannot also be a prefix folder of another key. For S3 Express this is
    unknown.
    """
    folders = {"versitygw", "minio", "seaweedfs", "file", S3_EXPRESS}
    return "a/x.d/y" if server.name in folders else "a/x/y"


@pytest.fixture
def folder_error(server: StoreServer) -> type[Exception]:
    """Return the error of a conditional PUT at the path of a folder."""
    return PreconditionFailed if server.name == "seaweedfs" else ObjectNotFound


@pytest.fixture
async def store(server: StoreServer) -> AsyncIterator[ObjectStore]:
    store = server.new_store()
    yield store
    await store.close()


async def test_concurrent_writes_deletes_and_lists_of_one_folder_do_not_fail(
    server: StoreServer,
) -> None:
    """versitygw on POSIX responds with 409 ExistingObjectIsDirectory to a PUT into a folder that is
    being removed, and with 404 to a LIST that encounters a removed file.
    """
    store = open_store(server.new_url())

    async def churn(name: str) -> None:
        for number in range(40):
            key = f"folder/{name}/{number % 2}"
            await store.put(key, b"x")
            await store.delete([key])

    churning = asyncio.gather(*(churn(name) for name in "abcd"))
    while not churning.done():
        assert all([info.key.startswith("folder/") async for info in store.list("folder/")])
        await asyncio.sleep(0)  # a list of the memory store never waits
    await churning
    assert [info async for info in store.list("")] == []
    await store.close()


async def test_server_rejects_another_access_key(server: StoreServer) -> None:
    """moto and the Google stand-in accept any key, because they are local only."""
    config = server.new_config()
    stranger: RemoteStore
    match config:
        case S3Config():
            stranger = S3Store(replace(config, secret_key="another"))
        case AzureConfig():
            stranger = AzureStore(replace(config, account_key="YW5vdGhlcg=="))
        case GcsConfig():
            stranger = GcsStore(config)
        case _:
            raise AssertionError(config)
    if server.name in {"moto", "gcs"}:
        await stranger.put("k", b"")
    else:
        with pytest.raises(AccessDenied):
            await stranger.put("k", b"")
    await stranger.close()


async def test_missing_bucket_is_reported(server: StoreServer) -> None:
    config = server.new_config()
    absent: RemoteStore
    match config:
        case S3Config():
            absent = S3Store(replace(config, bucket=config.bucket.replace("bucket", "never-made")))
        case AzureConfig():
            absent = AzureStore(replace(config, container="never-made"))
        case GcsConfig():
            absent = GcsStore(replace(config, bucket="never-made"))
        case _:
            raise AssertionError(config)
    for call in (absent.put("k", b""), absent.get("k"), anext(absent.list(""))):
        with pytest.raises(BucketNotFound, match=server.endpoint):
            await call
    await absent.close()


def test_controller_without_a_bucket_prints_how_to_create_it(
    server: StoreServer, tmp_path: Path
) -> None:
    server.new_config()  # skips stores without buckets
    if server.name == S3_EXPRESS:
        pytest.skip("controllers start without the WAL store")
    url = server.new_url().replace("bucket-", "never-made-")
    command = [sys.executable, "-P", "-m", "penstock.deploy.cli", "controller"]
    done = subprocess.run(
        [*command, "--metadata-log-dir", str(tmp_path), "--listeners", "CONTROLLER://127.0.0.1:0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
        env=os.environ | {"PENSTOCK_STORE": url},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: bucket 'never-made-")
    if isinstance(server, S3Server):
        assert f"--endpoint-url {server.endpoint})" in done.stderr
    assert "Traceback" not in done.stderr
