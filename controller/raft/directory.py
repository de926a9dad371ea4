"""Ports for the data directory of a controller: the files of the journal, the thread for blocking
calls, and the identity. The simulator implements them with slow and failing disks that lose
unsynced data.
"""

import fcntl
import os
import sys
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from penstock.controller.raft.identity import Identity, sync_directory


class AppendFile(Protocol):
    """An append-only file. `sync` makes its contents durable. Its name is durable after
    `JournalFiles.sync`. Methods raise OSError.
    """

    def append(self, data: bytes) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class JournalFiles(Protocol):
    """A directory of append-only files. Methods block, so they must be called in
    `DataDirectory.thread`. They raise OSError.
    """

    def names(self) -> list[str]: ...
    def read(self, name: str) -> bytes:
        """Return the contents of a file, which are durable."""
        ...

    def create(self, name: str) -> AppendFile: ...
    def rename(self, old: str, new: str) -> None: ...
    def remove(self, name: str) -> None: ...
    def cut(self, name: str, size_bytes: int) -> None:
        """Truncate a file durably."""
        ...

    def sync(self) -> None: ...


class JournalOwner(Protocol):
    """The journal state that the data directory stores outside the journal. Methods block and raise
    OSError, as in JournalFiles.
    """

    @property
    def directory_id(self) -> str: ...

    @property
    def journal_number(self) -> int:
        """Number of the newest segment, or 0 if there is none."""
        ...

    def record_journal(self, number: int) -> None:
        """Store the number of a new segment, which must already be durable. The number is durable
        on return.
        """
        ...


class DataDirectory(Protocol):
    """The disk and the thread of a `ControllerServer`. thread: runs blocking calls one after
    another.
    """

    @property
    def journal(self) -> JournalFiles: ...

    @property
    def thread(self) -> Executor: ...

    def open(self) -> Identity:
        """Lock the directory until the identity is closed. Raises DataDirInUse."""
        ...


class _LocalFile:
    """A file that only its owner can read, because the metadata contains the salted keys of
    users.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600
        )

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def sync(self) -> None:
        _sync_data(self._file)

    def close(self) -> None:
        os.close(self._file)


def _sync_data(file: int) -> None:
    """Write the data of a file to the disk. macOS lacks fdatasync, and its fsync leaves data in the
    cache of the drive. Source: fsync(2) of macOS.
    """
    if sys.platform == "darwin":
        fcntl.fcntl(file, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(file)


class LocalFiles:
    """Implements JournalFiles. `names` creates the directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __str__(self) -> str:
        return str(self._directory)

    def names(self) -> list[str]:
        self._directory.mkdir(parents=True, exist_ok=True)
        return [path.name for path in self._directory.iterdir()]

    def read(self, name: str) -> bytes:
        """See JournalFiles.read. The page cache may contain data that is not on the disk, because
        the last process ended before its fsync or after a failed fsync, which marks the pages as
        clean.
        """
        path = self._directory / name
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _sync_data(file)
            if sys.platform != "darwin":  # macOS has no posix_fadvise
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(file)
        return path.read_bytes()

    def create(self, name: str) -> _LocalFile:
        return _LocalFile(self._directory / name)

    def rename(self, old: str, new: str) -> None:
        (self._directory / old).rename(self._directory / new)

    def remove(self, name: str) -> None:
        (self._directory / name).unlink()

    def cut(self, name: str, size_bytes: int) -> None:
        file = os.open(self._directory / name, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(file, size_bytes)
            os.fsync(file)
        finally:
            os.close(file)

    def sync(self) -> None:
        sync_directory(self._directory)


class LocalDirectory:
    """Implements DataDirectory with the local file system."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.journal = LocalFiles(path / "journal")
        self.thread: Executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")

    def open(self) -> Identity:
        return Identity(self._path)
