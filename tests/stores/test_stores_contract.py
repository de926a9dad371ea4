"""The contract of object stores against their servers. The unit tests hold a directory to the same
contract.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.objectstore.errors import AccessDenied, BucketNotFound
from penstock.objectstore.ports import ObjectStore
from penstock.objectstore.s3 import S3Store
from penstock.objectstore.url import open_store
from tests.support.store_servers import S3Server, StoreServer
from tests.unit.objectstore.test_objectstore_conformance import *  # noqa: F403 (the contract's tests)


@pytest.fixture
def nested_key(server: StoreServer) -> str:
    """Return a key below `a/x` where the server allows that: on versitygw and MinIO, as in a
    directory, a key cannot also be the folder of another key.
    """
    return "a/x.d/y" if server.name in {"versitygw", "minio"} else "a/x/y"


@pytest.fixture
async def store(server: StoreServer) -> AsyncIterator[ObjectStore]:
    store = server.new_store()
    yield store
    await store.close()


async def test_writers_deleters_and_lists_of_one_folder_do_not_disturb_each_other(
    server: StoreServer,
) -> None:
    """versitygw on POSIX answers a PUT into a folder that is removed with 409
    ExistingObjectIsDirectory, and a LIST that meets a removed file with 404.
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
    await churning
    assert [info async for info in store.list("")] == []
    await store.close()


async def test_the_server_refuses_other_keys_and_other_buckets(server: StoreServer) -> None:
    """The server of `penstock dev` takes any key, as it is for this machine only."""
    if not isinstance(server, S3Server):
        pytest.skip("this server accepts any credentials")
    config = server.new_bucket()
    stranger = S3Store(replace(config, secret_key="another"))
    if server.name == "moto":
        await stranger.put("k", b"")
    else:
        with pytest.raises(AccessDenied):
            await stranger.put("k", b"")
    absent = S3Store(replace(config, bucket="never-made"))
    for call in (absent.put("k", b""), absent.get("k"), anext(absent.list(""))):
        with pytest.raises(BucketNotFound, match=server.endpoint):
            await call


def test_a_controller_without_a_bucket_says_what_to_do(server: StoreServer, tmp_path: Path) -> None:
    url = server.new_url().replace("bucket-", "never-made-")
    command = [sys.executable, "-P", "-m", "penstock.deploy.cli", "controller"]
    done = subprocess.run(
        [*command, "--metadata-log-dir", str(tmp_path), "--listeners", "CONTROLLER://127.0.0.1:0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | {"PENSTOCK_STORE": url},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: bucket 'never-made-")
    if isinstance(server, S3Server):
        assert f"--endpoint-url {server.endpoint})" in done.stderr
    assert "Traceback" not in done.stderr
