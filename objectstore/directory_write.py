"""Write the bytes of a new file. Most of a large file is written with O_DIRECT.

Invariant: the file contains exactly the buffers, in order; nothing is durable before fsync(2).
Allocating page cache takes longer than writing to the disk (docs/design/object-stores.md). Must not
be used for files that other processes write. Source: open(2), "O_DIRECT".
"""

import errno
import fcntl
import mmap
import os
import threading
from collections.abc import Sequence
from typing import Final

from penstock.base.buffers import Buffer
from penstock.objectstore.body import body_bytes
from penstock.objectstore.ports import ObjectInfo

DIRECT_BYTES_MIN: Final = 256 * 1024
"""Smaller bodies are written through the page cache, as are the last bytes of larger bodies, and
all bytes on file systems without O_DIRECT.
"""

STAGING_BYTES: Final = 2 << 20
"""Size of a thread's aligned buffer, and of one write."""

BLOCK_BYTES: Final = 4_096
"""Alignment of direct writes, the largest sector size of disks."""

_DIRECT: Final = getattr(os, "O_DIRECT", 0)

_threads = threading.local()


def write_all(descriptor: int, body: Sequence[Buffer]) -> None:
    """Write the buffers to an empty file. Raises OSError."""
    if body_bytes(body) < DIRECT_BYTES_MIN or not _set_direct(descriptor):
        for buffer in body:
            _write(descriptor, memoryview(buffer))
        return
    staging, used = _staging(), 0
    for buffer in body:
        view = memoryview(buffer)
        while view:
            count = min(len(view), STAGING_BYTES - used)
            staging[used : used + count] = view[:count]
            view, used = view[count:], used + count
            if used == STAGING_BYTES:
                _write(descriptor, staging)
                used = 0
    whole = used - used % BLOCK_BYTES
    _write(descriptor, staging[:whole])
    _set_buffered(descriptor)
    _write(descriptor, staging[whole:used])


def _staging() -> memoryview:
    """Return the buffer of this thread. It is a memory map, because memory maps are
    page-aligned.
    """
    view: memoryview | None = getattr(_threads, "staging", None)
    if view is None:
        view = _threads.staging = memoryview(mmap.mmap(-1, STAGING_BYTES))
    return view


def _set_direct(descriptor: int) -> bool:
    """Enable O_DIRECT. Return False if the file system (tmpfs) or the system (macOS) does not
    support it.
    """
    if not _DIRECT:
        return False
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | _DIRECT)
    except OSError:
        return False
    return True


def _set_buffered(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~_DIRECT)


def _write(descriptor: int, view: memoryview) -> None:
    """Write all bytes. On a disk with larger blocks, or after a short write, the page cache is
    used.
    """
    while view:
        try:
            view = view[os.write(descriptor, view) :]
        except OSError as error:
            if error.errno != errno.EINVAL or not _is_direct(descriptor):
                raise
            _set_buffered(descriptor)


def _is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & _DIRECT)


def info_of(key: str, found: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, found.st_size, etag_of(found), found.st_mtime_ns // 1_000_000)


def etag_of(found: os.stat_result) -> str:
    return f'"{found.st_mtime_ns:x}-{found.st_ino:x}-{found.st_size:x}"'


def sync_folder(folder: bytes) -> None:
    """Make created and removed names durable. Do nothing if the folder no longer exists."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
