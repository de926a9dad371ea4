"""The identity of a data directory: its cluster, its disk, and whether its controller still has to
join the quorum.
"""

import fcntl
import os
from pathlib import Path
from uuid import uuid4

from penstock.controller.api.errors import DataDirInUse, InvalidConfig, JournalStateLost

_CLUSTER = "cluster_id"
_DIRECTORY = "directory_id"
_JOINING = "joining"
_JOURNAL = "journal_number"
_FORGOT = "forgot"


def new_id() -> str:
    """Return a random id of 22 letters and digits."""
    return uuid4().hex[:22]


class Identity:
    """The identity of a data directory, which is locked by its process until `close`. A directory
    belongs to one cluster permanently.

    The directory id is generated once. It distinguishes a controller that has lost its disk from
    the same controller before the loss (KIP-853). The directory also stores the number of its
    journal's newest segment, so that it rejects another journal.
    """

    def __init__(self, path: Path) -> None:
        """Lock the directory. Raises DataDirInUse."""
        self._path = path
        path.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise DataDirInUse(str(path)) from None
        self.is_new = not self._read(_CLUSTER)
        """Whether the directory did not belong to a cluster before this start."""
        self.directory_id = self._read(_DIRECTORY)

    def close(self) -> None:
        os.close(self._lock)

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, or "" if the directory does not belong to a cluster yet."""
        return self._read(_CLUSTER)

    @property
    def is_joining(self) -> bool:
        """Whether the directory was created to join a quorum and the quorum has not added it
        yet.
        """
        return bool(self._read(_JOINING))

    def claim(self, cluster_id: str, *, joins: bool) -> None:
        """Assign the directory to `cluster_id`. joins: whether a new directory will join an
        existing quorum.

        Raises InvalidConfig, and JournalStateLost if the directory was retired.
        """
        if forgot := self._read(_FORGOT):
            raise JournalStateLost(str(self), forgot)
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
        """Record that the quorum has added this controller. If it is removed later, it does not
        join again on its own.
        """
        (self._path / _JOINING).unlink(missing_ok=True)
        sync_directory(self._path)

    @property
    def journal_number(self) -> int:
        """See `controller.raft.directory.JournalOwner`. Raises JournalStateLost if the file is
        damaged.
        """
        number = self._read(_JOURNAL) or "0"
        if not number.isdecimal():
            raise JournalStateLost(str(self), f"file {_JOURNAL} contains {number[:20]!r}")
        return int(number)

    def record_journal(self, number: int) -> None:
        """See `controller.raft.directory.JournalOwner`."""
        self._write(_JOURNAL, str(number))

    def retire(self, why: str) -> None:
        """Retire a directory that has lost its promises, so that it cannot be used again. This is
        durable on return.
        """
        self._write(_FORGOT, why)

    def __str__(self) -> str:
        return str(self._path)

    def _read(self, name: str) -> str:
        path = self._path / name
        return path.read_text(errors="replace").strip() if path.exists() else ""

    def _write(self, name: str, value: str) -> None:
        written = (self._path / name).with_suffix(".new")
        with written.open("w") as file:
            file.write(value)
            file.flush()
            os.fsync(file.fileno())
        written.replace(self._path / name)
        sync_directory(self._path)


def sync_directory(directory: Path) -> None:
    """Make created, renamed and deleted file names durable."""
    file = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
