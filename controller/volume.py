"""One controller's disk: files of the journal, who may use them, and the thread that waits for them.

Invariants: `sync` of a file makes its bytes durable, `sync` of the directory its names; nothing else is promised after a crash. One process
per directory (a lock file). A port, so that the simulator can be slow, fail and lose what was not synced. Must not know frames.
"""

import fcntl
import os
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from typing import Protocol
from uuid import uuid4

from controller.errors import DataDirInUse, InvalidConfig


class AppendFile(Protocol):
    """A file that is written at its end only. Raises OSError."""

    def append(self, data: bytes) -> None: ...
    def sync(self) -> None: ...
    def close(self) -> None: ...


class JournalFiles(Protocol):
    """A directory of append-only files. Blocking: call it from the volume's thread. Raises OSError."""

    def names(self) -> list[str]: ...
    def read(self, name: str) -> bytes: ...
    def create(self, name: str) -> AppendFile: ...
    def rename(self, old: str, new: str) -> None: ...
    def remove(self, name: str) -> None: ...
    def cut(self, name: str, size_bytes: int) -> None:
        """Shorten a file, durably."""
        ...

    def sync(self) -> None: ...


class Volume(Protocol):
    """What `ControllerServer` needs of its machine. thread: runs one piece of blocking work after another."""

    @property
    def journal(self) -> JournalFiles: ...

    @property
    def thread(self) -> Executor: ...

    def lock(self) -> None: ...
    def unlock(self) -> None: ...

    def cluster_id(self, configured: str) -> str:
        """As configured, else as kept, else a new one; kept from then on. Raises InvalidConfig if both are there and differ."""
        ...


class _LocalFile:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def append(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._file, view) :]

    def sync(self) -> None:
        os.fdatasync(self._file)

    def close(self) -> None:
        os.close(self._file)


class LocalFiles:
    """Implements JournalFiles. The directory is made when it is looked into."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __str__(self) -> str:
        return str(self._directory)

    def names(self) -> list[str]:
        self._directory.mkdir(parents=True, exist_ok=True)
        return [path.name for path in self._directory.iterdir()]

    def read(self, name: str) -> bytes:
        return (self._directory / name).read_bytes()

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
        _sync_directory(self._directory)


class LocalVolume:
    """Implements Volume in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: int | None = None
        self.journal = LocalFiles(directory / "journal")
        self.thread: Executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="journal")

    def lock(self) -> None:
        """Raises DataDirInUse."""
        self._directory.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise DataDirInUse(str(self._directory)) from None
        self._lock = lock

    def unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def cluster_id(self, configured: str) -> str:
        path = self._directory / "cluster_id"
        kept = path.read_text().strip() if path.exists() else ""
        if kept and configured and kept != configured:
            raise InvalidConfig("cluster_id", configured, f"the directory {self._directory} belongs to cluster {kept!r}")
        cluster_id = kept or configured or uuid4().hex[:22]
        if not kept:
            written = path.with_suffix(".new")
            with written.open("w") as file:
                file.write(cluster_id)
                file.flush()
                os.fsync(file.fileno())
            written.replace(path)
            _sync_directory(self._directory)
        return cluster_id


def _sync_directory(directory: Path) -> None:
    """Make created, renamed and deleted names durable."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
