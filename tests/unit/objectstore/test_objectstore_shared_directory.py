"""The shared directory with several processes, with missing folders, and on other file systems."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from penstock.objectstore.errors import (
    FileSystemUnsuitable,
    ObjectNotFound,
    PreconditionFailed,
    Unavailable,
)
from penstock.objectstore.shared_directory import SharedDirectoryStore
from penstock.stream.wal.wal_store_url import creates_folder
from tests.support.child_process import killed_at_end
from tests.support.waiting import PATIENCE_S

SLOT = "wals/1/7/00000000000000000000"
MARKER = "wals/1/7/open"
EXPORT = os.environ.get("TEST_NFS_EXPORT", "")

CREATOR = """
import asyncio, sys
from penstock.objectstore.errors import PreconditionFailed
from penstock.objectstore.shared_directory import SharedDirectoryStore

async def main():
    store, won = SharedDirectoryStore(sys.argv[1]), 0
    for number in range(100):
        try:
            await store.put_if_absent(f"wals/{number:03d}", sys.argv[2].encode() * 1_000)
            won += 1
        except PreconditionFailed:
            assert len(await store.get(f"wals/{number:03d}")) == 1_000
    print(won)
    await store.close()

asyncio.run(main())
"""

HANGING = """
import asyncio, os, sys
from penstock.objectstore.shared_directory import SharedDirectoryStore

async def main():
    store = SharedDirectoryStore(sys.argv[1])
    try:
        async with asyncio.timeout(0.2):
            await store.get("pipe")
    except TimeoutError:
        print("timeout")
    await store.close()

asyncio.run(main())
"""


def wals(directory: Path) -> SharedDirectoryStore:
    return SharedDirectoryStore(str(directory), creates_folder=creates_folder)


def names(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


async def test_writing_a_slot_does_not_create_its_folder(tmp_path: Path) -> None:
    """The folder may be missing because the file system is unmounted or the WAL has ended."""
    store = wals(tmp_path)
    with pytest.raises(Unavailable, match="folder does not exist"):
        await store.put_if_absent(SLOT, b"slot")
    assert names(tmp_path) == set()
    await store.put_if_absent(MARKER, b"{}")
    await store.put_if_absent(SLOT, b"slot")
    assert names(tmp_path) == {"wals", "wals/1", "wals/1/7", MARKER, SLOT}
    mounted, away = tmp_path / "wals", tmp_path / "away"
    mounted.rename(away)
    mounted.mkdir()
    with pytest.raises(Unavailable, match="folder does not exist"):
        await store.put_if_absent("wals/1/7/00000000000000000001", b"slot")
    with pytest.raises(ObjectNotFound):
        await store.get(SLOT)
    assert names(mounted) == set()
    with pytest.raises(Unavailable, match="folder does not exist"):
        await store.put("meta/health-1", b"x")
    await store.put_if_absent("meta/probe-1", b"x")
    await store.delete(["meta/probe-1"])
    await store.put("meta/health-1", b"x")
    await store.close()


async def test_the_folder_of_a_wal_is_kept_as_long_as_its_marker(tmp_path: Path) -> None:
    store = wals(tmp_path)
    await store.put_if_absent(MARKER, b"{}")
    await store.put_if_absent(SLOT, b"slot")
    (tmp_path / "wals" / "1" / "7" / ".penstock-left-by-a-crash").write_bytes(b"x")
    await store.delete([SLOT])
    await store.put_if_absent(SLOT, b"again")
    await store.delete([SLOT, MARKER])
    assert names(tmp_path) == {"wals", "wals/1"}, "those above may get another WAL"
    with pytest.raises(Unavailable):
        await store.put_if_absent(SLOT, b"late")
    await store.close()


async def test_hidden_files_are_not_objects(tmp_path: Path) -> None:
    store = SharedDirectoryStore(str(tmp_path))
    await store.put_if_absent("wals/a", b"")
    for name in (".nfs0000000000c8f1", ".penstock-0123", ".snapshot/daily/wals/a"):
        (tmp_path / "wals" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "wals" / name).write_bytes(b"")
    assert [info.key async for info in store.list("")] == ["wals/a"]
    await store.close()


async def test_modification_times_come_from_the_file_system(tmp_path: Path) -> None:
    store = SharedDirectoryStore(str(tmp_path))
    await store.put_if_absent("a", b"")
    of_file = (tmp_path / "a").stat().st_mtime_ns // 1_000_000
    assert (await store.head("a")).modified_ms == of_file
    os.utime(tmp_path / "a", ns=(10**18, 10**18))
    assert [info.modified_ms async for info in store.list("a")] == [10**12]
    await store.close()


async def test_a_repeated_link_request_counts_as_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def twice(source: bytes, path: bytes) -> None:
        """Repeat the request as an NFS client does."""
        link(source, path)
        link(source, path)

    store = SharedDirectoryStore(str(tmp_path))
    monkeypatch.setattr(os, "link", twice)
    await store.put_if_absent("a", b"ours")
    with pytest.raises(PreconditionFailed):
        await store.put_if_absent("a", b"other")
    assert await store.get("a") == b"ours"
    await store.close()


async def test_a_key_exists_only_once_its_directory_entry_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer acknowledges an object that it finds after its own failed attempt."""
    sync, fails = os.fsync, True

    def fsync(descriptor: int) -> None:
        if fails and stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "the server is restarting")
        sync(descriptor)

    store = SharedDirectoryStore(str(tmp_path))
    monkeypatch.setattr(os, "fsync", fsync)
    for _ in range(2):
        with pytest.raises(Unavailable, match="restarting"):
            await store.put_if_absent("a", b"x")
    fails = False
    with pytest.raises(PreconditionFailed):
        await store.put_if_absent("a", b"x")
    await store.close()


@pytest.fixture(params=["directory", "nfs"])
def clients(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Path]]:
    """Return the directories of two clients of the same file system."""
    if request.param == "directory":
        yield [tmp_path, tmp_path]
        return
    if not EXPORT or os.geteuid():
        pytest.skip("needs root, and an NFS export in TEST_NFS_EXPORT (HOST:PATH)")
    options = "vers=4.2,hard,lookupcache=positive,nosharecache"
    with ExitStack() as stack:
        points = [tmp_path / "one", tmp_path / "two"]
        for point in points:
            point.mkdir()
            subprocess.run(["mount", "-t", "nfs", "-o", options, EXPORT, point], check=True)
            stack.callback(subprocess.run, ["umount", "-f", "-l", point], check=True)
        yield points


def test_each_object_is_created_by_one_of_two_processes(clients: list[Path]) -> None:
    with ExitStack() as stack:
        processes = [
            stack.enter_context(
                killed_at_end(
                    subprocess.Popen(
                        [sys.executable, "-c", CREATOR, str(point), name],
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
            )
            for point, name in zip(clients, "ab", strict=True)
        ]
        won = [int(process.communicate(timeout=PATIENCE_S)[0]) for process in processes]
    assert sum(won) == 100


async def test_writes_and_deletions_are_visible_to_other_clients(clients: list[Path]) -> None:
    one, two = map(wals, clients)
    with pytest.raises(ObjectNotFound):
        await two.head(SLOT)
    await one.put_if_absent(MARKER, b"{}")
    await one.put_if_absent(SLOT, b"slot")
    assert await two.get(SLOT) == b"slot"
    with pytest.raises(PreconditionFailed):
        await two.put_if_absent(SLOT, b"fence")
    assert [info.key async for info in two.list("wals/1/")] == [SLOT, MARKER]
    await one.delete([SLOT, MARKER])
    with pytest.raises(Unavailable):
        await two.put_if_absent("wals/1/7/00000000000000000001", b"late")
    for store in (one, two):
        await store.close()


def test_a_hanging_call_does_not_prevent_exit(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it blocks until another process opens it for writing
    done = subprocess.run(
        [sys.executable, "-c", HANGING, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (0, "timeout\n"), done.stderr


async def test_a_hanging_call_fails_at_its_deadline(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    store = SharedDirectoryStore(str(tmp_path), deadline_s=0.05)
    with pytest.raises(Unavailable, match=r"did not respond within 0\.05 s"):
        await store.get("pipe")
    store._deadline_s = PATIENCE_S
    await store.put_if_absent("a", b"")
    await store.close()


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ("30 22 0:40 / / rw - cifs //host/share rw", "use NFS or CephFS"),
        ("30 22 0:40 / / rw - nfs4 host:/ rw,vers=4.1,soft,lookupcache=pos", "with soft"),
    ],
)
async def test_other_file_systems_are_rejected(tmp_path: Path, table: str, why: str) -> None:
    store = SharedDirectoryStore(str(tmp_path), read_mounts=lambda: table)
    for call in (store.get("a"), store.put_if_absent("a", b""), store.delete(["a"])):
        with pytest.raises(FileSystemUnsuitable, match=why):
            await call
    assert names(tmp_path) == set()
    await store.close()


async def test_a_missing_directory_is_not_created(tmp_path: Path) -> None:
    store = SharedDirectoryStore(str(tmp_path / "missing"))
    with pytest.raises(FileSystemUnsuitable, match="mount it, or create it"):
        await store.put_if_absent("a", b"")
    (tmp_path / "missing").mkdir()
    await store.put_if_absent("a", b"")
    await store.close()


async def test_the_error_without_hard_links_contains_the_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: bytes, path: bytes) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    store = SharedDirectoryStore(str(tmp_path))
    with pytest.raises(FileSystemUnsuitable, match="no hard links"):
        await store.put_if_absent("a", b"")
    assert names(tmp_path) == set()
    await store.close()
