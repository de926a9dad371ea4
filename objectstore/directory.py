"""Store objects in a directory of one machine, which several processes may use concurrently.

Invariant: an object appears under its key by one atomic rename(2) or link(2), after its bytes have
been synced; the call returns after its folder has been synced. Must not be used on NFS.
Source: open(2), link(2), flock(2), rename(2).
"""

import asyncio
import errno
import fcntl
import os
import stat
import time
import uuid
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final, ParamSpec, TypeVar
from zlib import crc32

from penstock.base.buffers import Buffer
from penstock.objectstore.body import buffers_of
from penstock.objectstore.directory_walk import walk
from penstock.objectstore.directory_write import etag_of, info_of, sync_folder, write_all
from penstock.objectstore.errors import (
    InvalidKey,
    ObjectNotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    Unavailable,
)
from penstock.objectstore.keys import check_key
from penstock.objectstore.ports import LIST_PAGE_COUNT, Body, ObjectInfo, ObjectTail

RESERVED_FOLDER: Final = ".penstock"
"""Folder for temporary files and locks. It is below the root, because rename(2) and link(2) work
only within one file system.
"""

THREAD_COUNT: Final = 4
LOCK_COUNT: Final = 64
STALE_TEMPORARY_MS: Final = 24 * 3_600_000
"""Age at which the writer of a temporary file is assumed dead."""

_PUBLISH_ATTEMPTS: Final = 8
"""Maximum number of attempts. An attempt fails only if another process removes the empty folder
before it is used.
"""

_P = ParamSpec("_P")
_T = TypeVar("_T")


class DirectoryStore:
    """Stores objects as plain files. The constructor creates the directory and removes temporary
    files of dead writers.

    `put_if_absent` is link(2), which fails if the name exists. `put`, `put_if_match` and `delete`
    of one key exclude each other with flock(2), which ends with its process. Etags consist of the
    modification time, the inode and the size. Unlike on S3, a key cannot also be the folder of
    another key, and a segment of a key has at most 255 bytes. Blocking calls run in a few threads
    of the store.
    """

    def __init__(self, directory: str, *, now_ns: Callable[[], int] = time.time_ns) -> None:
        self._root = os.path.abspath(directory).encode()
        self._reserved = os.path.join(self._root, RESERVED_FOLDER.encode())
        self._now_ns = now_ns
        os.makedirs(self._reserved, exist_ok=True)
        self._remove_stale_temporaries()
        self._links_unnamed = _links_unnamed(self._reserved)
        self._threads = ThreadPoolExecutor(THREAD_COUNT, thread_name_prefix="objectstore-directory")

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        return await self._run(self._read, key, 0, None)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See ObjectStore.get_range."""
        assert start >= 0, f"range starts at {start}"
        assert length > 0, f"range of {length} bytes"
        data = await self._run(self._read, key, start, length)
        if not data:
            raise RangeNotSatisfiable(key, start)
        return data

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        """See ObjectStore.get_tail."""
        assert length > 0, f"tail of {length} bytes"
        return await self._run(self._read_tail, key, length)

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectStore.head."""
        return await self._run(self._stat, key)

    async def put(self, key: str, body: Body) -> str:
        """See ObjectStore.put."""
        return await self._run(self._replace, key, buffers_of(body), None)

    async def put_if_absent(self, key: str, body: Body) -> str:
        """See ObjectStore.put_if_absent."""
        return await self._run(self._create, key, buffers_of(body))

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        """See ObjectStore.put_if_match."""
        return await self._run(self._replace, key, buffers_of(body), etag)

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list."""
        entries = islice(
            walk(self._root, prefix.encode(), start_after.encode(), _is_reserved),
            limit or None,
        )

        def next_page() -> list[ObjectInfo]:
            return [info_of(key.decode(), stat) for key, stat in islice(entries, LIST_PAGE_COUNT)]

        while page := await self._run(next_page):
            for info in page:
                yield info

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete."""
        await self._run(self._delete, keys)

    async def close(self) -> None:
        """Wait for the calls in progress and stop the threads."""
        await asyncio.to_thread(self._threads.shutdown)

    async def _run(self, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Run a call in a thread of the pool. A full or failing disk raises Unavailable, because
        the outcome of a write is then unknown.
        """
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._threads, lambda: call(*args, **kwargs))
        except OSError as error:
            raise Unavailable(
                call.__name__.strip("_"), str(args[0]) if args else "", str(error)
            ) from error

    def _path(self, key: str) -> bytes:
        check_key(key)
        if key.split("/", 1)[0] == RESERVED_FOLDER:
            raise InvalidKey(key, f"{RESERVED_FOLDER!r} is reserved for the store")
        if any(len(segment) > 255 for segment in key.encode().split(b"/")):
            raise InvalidKey(key, "a directory store allows 255 bytes per segment")
        return os.path.join(self._root, key.encode())

    def _open(self, key: str) -> int:
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectNotFound(key) from None
        if not _is_file(os.fstat(descriptor)):
            os.close(descriptor)
            raise ObjectNotFound(key)
        return descriptor

    def _read(self, key: str, start: int, length: int | None) -> bytes:
        with os.fdopen(self._open(key), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            return _read_at(
                file.fileno(), start, size - start if length is None else min(length, size - start)
            )

    def _read_tail(self, key: str, length: int) -> ObjectTail:
        with os.fdopen(self._open(key), "rb", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            start = max(0, size - length)
            return ObjectTail(data=_read_at(file.fileno(), start, size - start), size_bytes=size)

    def _stat(self, key: str) -> ObjectInfo:
        with os.fdopen(self._open(key), "rb", buffering=0) as file:
            return info_of(key, os.fstat(file.fileno()))

    def _create(self, key: str, body: Sequence[Buffer]) -> str:
        path = self._path(key)
        if os.path.lexists(path):  # avoids a needless write; link() below decides
            raise self._taken(key, path)
        with (
            self._unnamed(body) if self._links_unnamed else self._temporary(body) as (
                source,
                etag,
            )
        ):
            try:
                self._publish(key, path, lambda: _link(source, path))
            except FileExistsError:
                raise self._taken(key, path) from None
            return etag

    def _replace(self, key: str, body: Sequence[Buffer], expected_etag: str | None) -> str:
        path = self._path(key)
        if expected_etag is not None and self._stat(key).etag != expected_etag:  # avoids the write
            raise PreconditionFailed(key)
        with self._temporary(body) as (temporary, etag), self._locked(key):
            if expected_etag is not None and self._stat(key).etag != expected_etag:
                raise PreconditionFailed(key)
            self._publish(key, path, lambda: os.rename(temporary, path))
            return etag

    def _delete(self, keys: Sequence[str]) -> None:
        folders: set[bytes] = set()
        for key in keys:
            path = self._path(key)
            try:
                with self._locked(key):
                    os.unlink(path)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
                if os.path.isfile(path):
                    raise
                continue
            folders.add(os.path.dirname(path))
        for folder in folders:
            self._prune(folder)

    def _prune(self, folder: bytes) -> None:
        """Remove empty folders upwards, and sync the first remaining folder."""
        while folder != self._root:
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                    raise
                break
            folder = os.path.dirname(folder)
        sync_folder(folder)

    def _publish(self, key: str, path: bytes, publish: Callable[[], None]) -> None:
        """Create the folders, publish the file, and sync the changed folders from the bottom up.

        A folder that another writer has just created is synced into its parent by that writer; a
        journaling file system keeps the two in order.
        """
        folder = os.path.dirname(path)
        for _ in range(_PUBLISH_ATTEMPTS):
            try:
                made = self._make_folders(folder)
                publish()
            except FileNotFoundError:
                continue  # another process has removed an empty folder
            except (NotADirectoryError, IsADirectoryError):
                raise self._folder_conflict(key) from None
            sync_folder(folder)
            for parent in made:
                sync_folder(parent)
            return
        raise Unavailable("put", key, "its directory is deleted repeatedly")

    def _make_folders(self, folder: bytes) -> Sequence[bytes]:
        """Create missing folders. Return the folders with a new entry, lowest first."""
        missing: list[bytes] = []
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for each in reversed(missing):
            try:
                os.mkdir(each)
            except FileExistsError:
                # Raises FileNotFoundError if the folder was removed again, so that the caller
                # retries.
                if not stat.S_ISDIR(os.stat(each).st_mode):
                    raise NotADirectoryError from None
        return [os.path.dirname(each) for each in missing]

    def _taken(self, key: str, path: bytes) -> Exception:
        return self._folder_conflict(key) if os.path.isdir(path) else PreconditionFailed(key)

    def _folder_conflict(self, key: str) -> InvalidKey:
        return InvalidKey(
            key,
            "in a directory store a key cannot be both an object and the folder of other objects",
        )

    @contextmanager
    def _temporary(self, body: Sequence[Buffer]) -> Generator[tuple[bytes, str]]:
        """Yield a synced temporary file with the body, and its etag. Remove the file at the end if
        it still exists.
        """
        path = _temporary_path(self._reserved)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            try:
                etag = self._write(descriptor, body)
            finally:
                os.close(descriptor)
            yield path, etag
        finally:
            with suppress(FileNotFoundError):
                os.unlink(path)

    @contextmanager
    def _unnamed(self, body: Sequence[Buffer]) -> Generator[tuple[bytes, str]]:
        """Yield the /proc path of a synced file without a name, and its etag. The file exists only
        until its descriptor is closed, which saves two directory changes per PUT.
        """
        descriptor = os.open(self._reserved, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o644)
        try:
            etag = self._write(descriptor, body)
            yield _path_of(descriptor), etag
        finally:
            os.close(descriptor)

    def _write(self, descriptor: int, body: Sequence[Buffer]) -> str:
        """Write and sync the body. Returns the etag."""
        write_all(descriptor, body)
        now_ns = self._now_ns()
        # Set explicitly, because timestamps set by the kernel have a resolution of 4 ms.
        os.utime(descriptor, ns=(now_ns, now_ns))
        os.fsync(descriptor)
        return etag_of(os.fstat(descriptor))

    @contextmanager
    def _locked(self, key: str) -> Generator[None]:
        """Hold the lock of a key, which excludes other processes and threads. Several keys share a
        lock.
        """
        name = b"lock-%02d" % (crc32(key.encode()) % LOCK_COUNT)
        descriptor = os.open(
            os.path.join(self._reserved, name), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _remove_stale_temporaries(self) -> None:
        oldest_ns = self._now_ns() - STALE_TEMPORARY_MS * 1_000_000
        with os.scandir(self._reserved) as entries:
            for entry in entries:
                try:
                    if (
                        entry.name.startswith(b"tmp-")
                        and entry.stat(follow_symlinks=False).st_mtime_ns < oldest_ns
                    ):
                        os.unlink(entry.path)
                except FileNotFoundError:
                    continue  # another process has opened the store at the same time


def _is_reserved(name: bytes) -> bool:
    return name == RESERVED_FOLDER.encode() + b"/"


def _temporary_path(folder: bytes) -> bytes:
    return os.path.join(folder, b"tmp-" + uuid.uuid4().hex.encode())


def _path_of(descriptor: int) -> bytes:
    return b"/proc/self/fd/%d" % descriptor


def _link(source: bytes, path: bytes) -> None:
    """Link a file, following a link of /proc. src_dir_fd has no effect on an absolute path, but
    without it Python would call link(2), which does not follow links.
    """
    os.link(source, path, src_dir_fd=0, follow_symlinks=True)


def _links_unnamed(folder: bytes) -> bool:
    """Return whether unnamed files can be created and linked here. This is not possible on macOS,
    on some file systems (overlayfs on old kernels), and without /proc.
    """
    if not hasattr(os, "O_TMPFILE"):
        return False
    path = _temporary_path(folder)
    try:
        descriptor = os.open(folder, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o644)
    except OSError:
        return False
    try:
        _link(_path_of(descriptor), path)
        os.unlink(path)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def _is_file(found: os.stat_result) -> bool:
    return stat.S_ISREG(found.st_mode)


def _read_at(descriptor: int, start: int, length: int) -> bytes:
    """Read up to `length` bytes, with one read(2) and without a copy, unless the kernel returns
    less, as it does above 2 GiB.
    """
    data = os.pread(descriptor, max(0, length), start)
    if len(data) >= length or not data:
        return data
    return data + _read_at(descriptor, start + len(data), length - len(data))
