"""The directory store with several processes, crashes and file system limits."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.objectstore import directory_write
from penstock.objectstore.directory import RESERVED_FOLDER, STALE_TEMPORARY_MS, DirectoryStore
from penstock.objectstore.directory_write import BLOCK_BYTES, DIRECT_BYTES_MIN, STAGING_BYTES
from penstock.objectstore.errors import InvalidKey, ObjectNotFound, PreconditionFailed, Unavailable
from tests.support.child_process import killed_at_end
from tests.support.waiting import PATIENCE_S

WRITER = """
import asyncio, sys
from penstock.objectstore.directory import DirectoryStore

async def main():
    store = DirectoryStore(sys.argv[1])
    number = 0
    while True:
        key = f"wal/{number:06d}"
        count = 2_000 if number % 2 else 100_000
        await store.put_if_absent(key, b"%06d" % number * count)
        await store.put("current", b"%06d" % number * count)
        print(number, flush=True)
        number += 1

asyncio.run(main())
"""

INCREMENTER = """
import asyncio, sys
from penstock.objectstore.directory import DirectoryStore
from penstock.objectstore.errors import PreconditionFailed

async def main():
    store = DirectoryStore(sys.argv[1])
    for _ in range(30):
        while True:
            etag = (await store.head("counter")).etag
            value = int(await store.get("counter"))
            try:
                await store.put_if_match("counter", b"%d" % (value + 1), etag)
                break
            except PreconditionFailed:
                pass
    won = 0
    for number in range(100):
        try:
            await store.put_if_absent(f"slots/{number}", sys.argv[2].encode() * 1000)
            won += 1
        except PreconditionFailed:
            pass
    print(won)

asyncio.run(main())
"""


def start(program: str, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *args], stdout=subprocess.PIPE, text=True
    )


async def test_concurrent_processes_exclude_each_other(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    await store.put("counter", b"0")
    with ExitStack() as running:
        processes = [
            running.enter_context(killed_at_end(start(INCREMENTER, str(tmp_path), name)))
            for name in "abc"
        ]
        won = [
            int((await asyncio.to_thread(process.communicate, timeout=PATIENCE_S))[0])
            for process in processes
        ]
        assert all(process.returncode == 0 for process in processes)
    assert await store.get("counter") == b"90"
    assert sum(won) == 100
    owners = Counter([(await store.get(f"slots/{number}"))[:1] for number in range(100)])
    assert sorted(owners.values()) == sorted(count for count in won if count)
    await store.close()


async def test_after_sigkill_objects_are_complete_and_no_acknowledged_one_is_lost(
    tmp_path: Path,
) -> None:
    for _round in range(3):
        directory = tmp_path / str(_round)
        with killed_at_end(start(WRITER, str(directory))) as process:
            assert process.stdout is not None
            acknowledged = -1
            while acknowledged < 5 + 7 * _round:
                acknowledged = int(await asyncio.to_thread(process.stdout.readline))
            process.send_signal(signal.SIGKILL)
            rest = (await asyncio.to_thread(process.communicate, timeout=PATIENCE_S))[0].split()
        acknowledged = int(rest[-1]) if rest else acknowledged
        store = DirectoryStore(str(directory))
        keys = [info.key async for info in store.list("wal/")]
        assert len(keys) >= acknowledged + 1
        for number, key in enumerate(keys):
            assert await store.get(key) == b"%06d" % number * (2_000 if number % 2 else 100_000)
        current = int((await store.get("current"))[:6])
        assert current >= acknowledged
        assert len(await store.get("current")) == (12_000 if current % 2 else 600_000)
        await store.close()


async def test_old_temporary_files_are_deleted_and_new_ones_kept(tmp_path: Path) -> None:
    reserved = tmp_path / ".penstock"
    reserved.mkdir()
    (reserved / "tmp-old").write_bytes(b"x")
    (reserved / "tmp-young").write_bytes(b"x")
    old_s = time.time() - STALE_TEMPORARY_MS / 1_000 - 60
    os.utime(reserved / "tmp-old", (old_s, old_s))
    store = DirectoryStore(str(tmp_path))
    assert sorted(path.name for path in reserved.iterdir()) == ["tmp-young"]
    assert [info async for info in store.list("")] == []
    assert [info async for info in store.list(".penstock/")] == []
    await store.put("k", b"")
    await store.close()
    assert [path.name for path in reserved.iterdir() if path.name.startswith("tmp-")] == [
        "tmp-young"
    ]


@pytest.mark.parametrize("has_unnamed_files", [True, False])
async def test_a_new_object_is_written_with_and_without_unnamed_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_unnamed_files: bool
) -> None:
    if not has_unnamed_files:
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)  # unsupported on macOS
    store = DirectoryStore(str(tmp_path))
    etag = await store.put_if_absent("a/b", [b"first", b" bytes"])
    with pytest.raises(PreconditionFailed):
        await store.put_if_absent("a/b", b"second")
    assert await store.get("a/b") == b"first bytes"
    assert (await store.head("a/b")).etag == etag
    assert not list((tmp_path / RESERVED_FOLDER).glob("tmp-*"))
    await store.close()


async def test_a_key_that_is_a_folder_of_another_key_is_rejected_with_a_reason(
    tmp_path: Path,
) -> None:
    store = DirectoryStore(str(tmp_path))
    await store.put("a/b", b"")
    for write in (store.put, store.put_if_absent):
        with pytest.raises(InvalidKey, match="both an object and the folder"):
            await write("a", b"")
        with pytest.raises(InvalidKey, match="both an object and the folder"):
            await write("a/b/c", b"")
    with pytest.raises(InvalidKey, match="255 bytes"):
        await store.put("é" * 200, b"")
    with pytest.raises(InvalidKey, match="is reserved for the store"):
        await store.put(".penstock/x", b"")
    await store.close()


async def test_deleting_the_last_object_of_a_folder_frees_its_name(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    await store.put("a/b/c", b"")
    await store.delete(["a/b/c", "a/b", "a"])
    await store.put("a", b"now an object")
    assert await store.get("a") == b"now an object"
    await store.close()


async def test_concurrent_writes_and_deletes_in_one_folder_succeed(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))

    async def churn(name: str) -> None:
        for _ in range(20):
            await store.put(f"folder/deep/{name}", b"x")
            await store.delete([f"folder/deep/{name}"])

    await asyncio.gather(*(churn(name) for name in "abcd"))
    assert [info async for info in store.list("")] == []
    await store.close()


async def test_a_folder_that_disappears_is_recreated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process creates the folder just before this one, and deletes it right after."""
    make, met = os.mkdir, []

    def mkdir(path: bytes, *more: Any) -> None:
        if not met:
            met.append(path)
            raise FileExistsError(path)
        make(path, *more)

    store = DirectoryStore(str(tmp_path))
    monkeypatch.setattr("penstock.objectstore.directory.os.mkdir", mkdir)
    await store.put("folder/a", b"x")
    assert met
    assert await store.get("folder/a") == b"x"
    await store.close()


async def test_etags_differ_between_writes_of_equal_size(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    etags = [await store.put("k", b"same") for _ in range(50)]
    assert len(set(etags)) == 50
    await store.close()


async def test_all_instances_see_the_same_objects(tmp_path: Path) -> None:
    first, second = DirectoryStore(str(tmp_path)), DirectoryStore(str(tmp_path))
    etag = await first.put_if_absent("a/b", b"1")
    assert (await second.head("a/b")).etag == etag
    with pytest.raises(PreconditionFailed):
        await second.put_if_absent("a/b", b"2")
    await second.delete(["a/b"])
    with pytest.raises(ObjectNotFound):
        await first.get("a/b")
    await first.close()
    await second.close()


async def test_a_failing_disk_is_reported_as_unavailable(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path / "store"))
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "store" / "k").symlink_to(tmp_path / "loop")
    with pytest.raises(Unavailable):
        await store.get("k")
    await store.close()


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize(
    "sizes",
    [
        (DIRECT_BYTES_MIN - 1,),
        (DIRECT_BYTES_MIN,),
        (STAGING_BYTES - 1, 2),
        (1, STAGING_BYTES, STAGING_BYTES, BLOCK_BYTES, 5),
        (0, STAGING_BYTES, 0),
        (BLOCK_BYTES // 2,) * 1_000,
    ],
)
async def test_bodies_of_all_sizes_are_written_unchanged(
    tmp_path: Path, sizes: tuple[int, ...], direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not direct:
        monkeypatch.setattr(directory_write, "_DIRECT", 0)
    store, rng = DirectoryStore(str(tmp_path)), Random(len(sizes))
    body = [rng.randbytes(size) for size in sizes]
    await store.put_if_absent("k", [memoryview(chunk) for chunk in body])
    assert await store.get("k") == b"".join(body)
    await store.put("k", [bytearray(chunk) for chunk in reversed(body)])
    assert await store.get("k") == b"".join(reversed(body))
    await store.close()


async def test_buffered_writes_are_used_if_the_disk_rejects_direct_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The staging buffer is not aligned, as if the disk had larger blocks."""
    area = memoryview(bytearray(STAGING_BYTES + 2 * BLOCK_BYTES))
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    start = -address % BLOCK_BYTES + 1
    unaligned = area[start : start + STAGING_BYTES]
    monkeypatch.setattr(directory_write, "_staging", lambda: unaligned)
    store, body = DirectoryStore(str(tmp_path)), Random(0).randbytes(2 * STAGING_BYTES + 7)
    await store.put("k", body)
    assert await store.get("k") == body
    await store.close()
