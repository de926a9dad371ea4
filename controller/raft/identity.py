"""What a data directory says about whose it is: the cluster, this very disk, and whether it still
has to join.

Invariants: a directory is used by one process (a lock file) and belongs to one cluster for good;
its directory id is drawn once, so that a controller whose disk was lost is told from the one that
it was (KIP-853). It knows the number of its journal's newest segment, so that another journal is
not taken for its own. A file is whole or not there. Source: Kafka `meta.properties`.
"""

import fcntl
import os
from pathlib import Path
from uuid import uuid4

from controller.api.errors import DataDirInUse, InvalidConfig, JournalForgot

_CLUSTER = "cluster_id"
_DIRECTORY = "directory_id"
_JOINING = "joining"
_JOURNAL = "journal_number"
_FORGOT = "forgot"


def new_id() -> str:
    """22 letters and digits."""
    return uuid4().hex[:22]


class Identity:
    """Opened by the process that uses the directory, until `close`."""

    def __init__(self, path: Path) -> None:
        """Raises DataDirInUse."""
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise DataDirInUse(str(path)) from None
        self.is_new = not self._read(_CLUSTER)
        """Nothing was kept here before this start."""
        self.directory_id = self._read(_DIRECTORY)

    def close(self) -> None:
        os.close(self._lock)

    @property
    def cluster_id(self) -> str:
        """Empty: the directory belongs to none yet."""
        return self._read(_CLUSTER)

    @property
    def is_joining(self) -> bool:
        """It was begun to join a quorum and has not been taken in yet."""
        return bool(self._read(_JOINING))

    def claim(self, cluster_id: str, *, joins: bool) -> None:
        """This directory belongs to `cluster_id` from now on. joins: a quorum that exists, if it is
        new.

        Raises InvalidConfig, and JournalForgot if an earlier start was retired.
        """
        if forgot := self._read(_FORGOT):
            raise JournalForgot(str(self), forgot)
        kept = self.cluster_id
        if kept and kept != cluster_id:
            raise InvalidConfig(
                "cluster_id", cluster_id, f"the directory {self._path} belongs to cluster {kept!r}"
            )
        if not self.directory_id:
            self.directory_id = new_id()
            self._write(_DIRECTORY, self.directory_id)
        if self.is_new and joins:
            self._write(_JOINING, cluster_id)
        if not kept:
            self._write(_CLUSTER, cluster_id)

    def joined(self) -> None:
        """The quorum has taken it in: should it be removed one day, it does not come back by
        itself.
        """
        (self._path / _JOINING).unlink(missing_ok=True)
        sync_directory(self._path)

    @property
    def journal_number(self) -> int:
        """See `controller.raft.directory.JournalOwner`."""
        return int(self._read(_JOURNAL) or 0)

    def note_journal(self, number: int) -> None:
        """See `controller.raft.directory.JournalOwner`."""
        self._write(_JOURNAL, str(number))

    def retire(self, why: str) -> None:
        """This directory has forgotten what it promised: no later start uses it. Durable when it
        returns.
        """
        self._write(_FORGOT, why)

    def __str__(self) -> str:
        return str(self._path)

    def _read(self, name: str) -> str:
        path = self._path / name
        return path.read_text().strip() if path.exists() else ""

    def _write(self, name: str, value: str) -> None:
        written = (self._path / name).with_suffix(".new")
        with written.open("w") as file:
            file.write(value)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self._path / name)
        sync_directory(self._path)


def sync_directory(directory: Path) -> None:
    """Make created, renamed and deleted names durable."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
