"""Store objects in a directory that several machines share, for WALs: on NFS, CephFS and the like.

Invariant: an object appears under its key by one link(2), after its bytes have been synced. Locks
and unnamed files are not used, because NFS lacks them. Folders are created only for keys that
require it, so that nothing is written below the mount point of a file system that is not mounted.
"""

import asyncio
import errno
import os
import stat
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Final, ParamSpec, TypeAlias, TypeVar

from penstock.base.buffers import Buffer
from penstock.base.daemon_pool import DaemonPool, PoolFull
from penstock.objectstore.body import buffers_of
from penstock.objectstore.directory_walk import walk
from penstock.objectstore.directory_write import etag_of, info_of, sync_folder, write_all
from penstock.objectstore.errors import (
    FileSystemUnsuitable,
    InvalidKey,
    ObjectNotFound,
    PreconditionFailed,
    RangeNotSatisfiable,
    Unavailable,
)
from penstock.objectstore.keys import check_key
from penstock.objectstore.mounts import mount_of, parse_mountinfo, why_unsuitable
from penstock.objectstore.ports import LIST_PAGE_COUNT, Body, ObjectInfo, ObjectTail

THREADS_MAX: Final = 16
"""Maximum number of threads, enough for a broker's PUTs (8), hedges, reads and deletes, all of
which may hang.
"""
WAITING_MAX: Final = 1_000
DEADLINE_S: Final = 30.0
"""Timeout of one call, as for a bucket. A hung call continues after it, so the outcome of a write
is unknown.
"""
_FOLDER_ATTEMPTS: Final = 8
_TEMPORARY: Final = b".penstock-"
"""Prefix of temporary files. Files whose names begin with a dot are not objects: temporary files,
NFS files (.nfs*) for deleted files that are still open, and snapshots of storage systems.
"""
_STALE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE})

_NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
_Publish: TypeAlias = Callable[[bytes, bytes], None]
"""link(2) or rename(2)."""

_P = ParamSpec("_P")
_T = TypeVar("_T")


def _always(_key: str) -> bool:
    return True


class SharedDirectoryStore:
    """Stores objects as plain files below an existing directory. The first call checks its file
    system, and any call raises FileSystemUnsuitable if the file system cannot be shared.

    `put_if_absent` is link(2), which the server executes atomically. `put_if_match` is not
    supported, because it would require locks. Times are taken from the file system. As in
    `DirectoryStore`, a key cannot be the folder of another one, and a segment has at most 255
    bytes; here, it must not begin with a dot either. Calls run in daemon threads of the store,
    because a file system whose server does not respond blocks its callers forever.
    """

    def __init__(
        self,
        directory: str,
        *,
        creates_folder: Callable[[str], bool] = _always,
        read_mounts: Callable[[], str] | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        """creates_folder: returns whether a PUT of this key creates missing folders; if not, it
        raises Unavailable. read_mounts: returns the mount table of this process. deadline_s:
        timeout of one call.
        """
        self._root = os.path.abspath(directory).encode()
        self._creates_folder = creates_folder
        self._read_mounts = read_mounts or _own_mounts
        self._deadline_s = deadline_s
        self._is_checked = False
        self._pool = DaemonPool(
            f"the file system of {directory}", threads_max=THREADS_MAX, waiting_max=WAITING_MAX
        )

    async def get(self, key: str) -> bytes:
        """See ObjectStore.get."""
        return (await self._run("get", key, self._read, key, 0, None))[0]

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """See ObjectStore.get_range."""
        assert start >= 0, f"range starts at {start}"
        assert length > 0, f"range of {length} bytes"
        data, _ = await self._run("get", key, self._read, key, start, length)
        if not data:
            raise RangeNotSatisfiable(key, start)
        return data

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        """See ObjectStore.get_tail."""
        assert length > 0, f"tail of {length} bytes"
        data, size_bytes = await self._run("get", key, self._read, key, -length, length)
        return ObjectTail(data=data, size_bytes=size_bytes)

    async def head(self, key: str) -> ObjectInfo:
        """See ObjectStore.head."""
        return await self._run("head", key, self._stat, key)

    async def put(self, key: str, body: Body) -> str:
        """See ObjectStore.put."""
        return await self._run("put", key, self._write, key, buffers_of(body), os.rename)

    async def put_if_absent(self, key: str, body: Body) -> str:
        """See ObjectStore.put_if_absent."""
        return await self._run("put", key, self._write, key, buffers_of(body), os.link)

    async def put_if_match(self, key: str, body: Body, etag: str) -> str:
        """Raise an error: conditional replacement is not supported."""
        raise InvalidKey(key, "objects of a shared directory cannot be replaced conditionally")

    async def list(
        self, prefix: str, *, start_after: str = "", limit: int = 0
    ) -> AsyncIterator[ObjectInfo]:
        """See ObjectStore.list."""
        entries = islice(
            walk(self._root, prefix.encode(), start_after.encode(), is_hidden), limit or None
        )

        def next_page() -> list[ObjectInfo]:
            return [info_of(key.decode(), found) for key, found in islice(entries, LIST_PAGE_COUNT)]

        while page := await self._run("list", prefix, next_page):
            for info in page:
                yield info

    async def delete(self, keys: Sequence[str]) -> None:
        """See ObjectStore.delete. Removes the folder of the keys if it is empty, unless it is in
        the root. The folders above it are kept, because another process may be creating one in
        them.
        """
        await self._run("delete", keys[0] if keys else "", self._delete, keys)

    async def close(self) -> None:
        """Release the threads, without waiting for calls that hang."""
        self._pool.close()

    async def _run(
        self, operation: str, key: str, call: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        checked = partial(self._checked, partial(call, *args, **kwargs))
        try:
            async with asyncio.timeout(self._deadline_s):
                return await self._pool.run(checked)
        except TimeoutError as error:
            cause = f"the file system did not respond within {self._deadline_s:g} s"
            raise Unavailable(operation, key, cause) from error
        except (OSError, PoolFull) as error:
            raise Unavailable(operation, key, str(error)) from error

    def _checked(self, call: Callable[[], _T]) -> _T:
        """Check the file system once, in a thread, because even that may hang."""
        if not self._is_checked:
            path = os.path.realpath(self._root).decode()
            if not os.path.isdir(path):
                raise FileSystemUnsuitable(path, "it does not exist: mount it, or create it")
            mount = mount_of(path, parse_mountinfo(self._read_mounts()))
            reason = None if mount is None else why_unsuitable(mount)
            if reason is not None:
                raise FileSystemUnsuitable(path, reason)
            self._is_checked = True
        return call()

    def _path(self, key: str) -> bytes:
        check_key(key)
        segments = key.encode().split(b"/")
        if any(len(segment) > 255 for segment in segments):
            raise InvalidKey(key, "a directory store allows 255 bytes per segment")
        if any(map(is_hidden, segments)):
            raise InvalidKey(key, "no segment may begin with a dot in a shared directory")
        return os.path.join(self._root, key.encode())

    def _open(self, key: str) -> int:
        try:
            descriptor = os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in _STALE:
                raise ObjectNotFound(key) from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise ObjectNotFound(key)
        return descriptor

    def _read(self, key: str, start: int, length: int | None) -> tuple[bytes, int]:
        """Return bytes from `start`, which counts from the end if it is negative, and the size."""
        descriptor = self._open(key)
        try:
            size = os.fstat(descriptor).st_size
            begin = max(0, size + start) if start < 0 else start
            end = size if length is None else min(size, begin + length)
            parts: list[bytes] = []
            while begin < end and (part := os.pread(descriptor, end - begin, begin)):
                parts.append(part)
                begin += len(part)
            return parts[0] if len(parts) == 1 else b"".join(parts), size
        finally:
            os.close(descriptor)

    def _stat(self, key: str) -> ObjectInfo:
        descriptor = self._open(key)
        try:
            return info_of(key, os.fstat(descriptor))
        finally:
            os.close(descriptor)

    def _write(self, key: str, body: Sequence[Buffer], publish: _Publish) -> str:
        path = self._path(key)
        folder = os.path.dirname(path)
        for _ in range(_FOLDER_ATTEMPTS):
            if self._creates_folder(key):
                self._make_folders(key, folder)
            try:
                return self._publish(key, path, body, publish)
            except FileNotFoundError as error:
                if not self._creates_folder(key):
                    raise Unavailable("put", key, f"its folder does not exist: {error}") from None
        raise Unavailable("put", key, "its folder keeps disappearing")

    def _publish(self, key: str, path: bytes, body: Sequence[Buffer], publish: _Publish) -> str:
        folder = os.path.dirname(path)
        temporary = os.path.join(folder, _TEMPORARY + uuid.uuid4().hex.encode())
        try:
            descriptor = os.open(
                temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644
            )
        except NotADirectoryError:
            raise _folder_conflict(key) from None
        try:
            try:
                write_all(descriptor, body)
                os.fsync(descriptor)
                found = os.fstat(descriptor)
            finally:
                os.close(descriptor)
            try:
                publish(temporary, path)
            except OSError as error:
                if error.errno in _NO_LINKS:
                    root = self._root.decode()
                    raise FileSystemUnsuitable(root, f"it has no hard links ({error})") from None
                if error.errno not in {errno.EEXIST, errno.EISDIR}:
                    raise
                if os.path.isdir(path):
                    raise _folder_conflict(key) from None
                if not _is_same(path, found):  # otherwise, only the response of link(2) was lost
                    # The object may have been written by an earlier attempt that failed to sync its
                    # name.
                    sync_folder(folder)
                    raise PreconditionFailed(key) from None
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        sync_folder(folder)
        return etag_of(found)

    def _make_folders(self, key: str, folder: bytes) -> None:
        """Create the missing folders below the root, and sync those above them."""
        if folder == self._root or os.path.isdir(folder):
            return
        if os.path.lexists(folder):
            raise _folder_conflict(key)
        parent = os.path.dirname(folder)
        self._make_folders(key, parent)
        with suppress(FileExistsError):
            os.mkdir(folder)
        sync_folder(parent)

    def _delete(self, keys: Sequence[str]) -> None:
        folders: set[bytes] = set()
        for key in keys:
            path = self._path(key)
            try:
                os.unlink(path)
            except OSError as error:
                is_object = error.errno not in _STALE and os.path.isfile(path)
                if is_object:
                    raise
                continue
            folders.add(os.path.dirname(path))
        for folder in folders:
            is_high = self._root in {folder, os.path.dirname(folder)}
            if is_high or not self._removed(folder):
                sync_folder(folder)

    def _removed(self, folder: bytes) -> bool:
        """Remove a folder that contains no objects, and the temporary files in it. No process
        writes to such a folder, because the marker of a WAL is in the WAL's folder until the WAL
        has ended.
        """
        with suppress(FileNotFoundError):
            names = os.listdir(folder)
            if not all(name.startswith(_TEMPORARY) for name in names):
                return False
            for name in names:
                with suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, name))
            try:
                os.rmdir(folder)
            except OSError as error:
                if error.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY}:
                    raise
                return False
            sync_folder(os.path.dirname(folder))
        return True


def is_hidden(name: bytes) -> bool:
    """Return whether files and folders with this name are not part of the store."""
    return name.startswith(b".")


def _own_mounts() -> str:
    """Return the mount table of this process; empty on systems without /proc."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _is_same(path: bytes, found: os.stat_result) -> bool:
    try:
        stored = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (stored.st_dev, stored.st_ino) == (found.st_dev, found.st_ino)


def _folder_conflict(key: str) -> InvalidKey:
    return InvalidKey(
        key,
        "in a shared directory a key cannot be both an object and the folder of other objects",
    )
