"""A controller's disk in virtual time: slow, failing, and losing unsynced data in a crash.

A crash keeps synced data and an arbitrary prefix of the rest, torn or filled with zeros. One job
runs at a time. Implements `controller.raft.directory.DataDirectory`; `durable` is what a restart
would read.
"""

import asyncio
import errno
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from dataclasses import dataclass
from random import Random
from typing import Any

from penstock.controller.raft.identity import _JOURNAL, Identity
from penstock.controller.raft.journal import Recovered, parse_frame
from penstock.controller.raft.messages import HardState
from tests.sim.loop import Process

_SEEK_S = 0.0001


class _Inode:
    __slots__ = ("data", "parsed_bytes", "synced_bytes")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        self.synced_bytes = len(data)
        self.parsed_bytes = 0


@dataclass(frozen=True, slots=True)
class _Names:
    names: dict[str, _Inode]
    synced: bool


@dataclass(frozen=True, slots=True)
class _Noted:
    """The number of the journal's newest segment, stored beside the journal."""

    number: str


_Operation = tuple[_Inode, int] | _Names | _Noted
"""A file synced up to a length, the names at that time, or a note."""


@dataclass(frozen=True, slots=True)
class DiskCopy:
    """The contents of a copy of the volume."""

    files: dict[str, bytes]
    identity: dict[str, str]


class Disk:
    """The data that survives controller processes. The scenario changes slow_factor and failing."""

    def __init__(self, rng: Random, sync_ms: float) -> None:
        self._rng = rng
        self._sync_ms = sync_ms
        self.slow_factor = 1.0
        self.failing = False
        self.identity: dict[str, str] = {}
        self._durable_note = ""
        self.names: dict[str, _Inode] = {}
        self._durable_names: dict[str, _Inode] = {}
        self._unsynced_names: list[dict[str, _Inode]] = []
        self._under_way: list[_Operation] = []
        """Operations of the running job, in order; they take effect when it ends."""
        self.durable = Recovered()
        self.forgot: Recovered | None = None
        """What it held before the disk was replaced: an acknowledgement of that may still be in
        flight, and counts.
        """

    def holds(self, index: int, term: int) -> bool:
        """Return whether the entry would exist after a crash, or would have existed before the disk
        was replaced.
        """
        return any(
            held is not None and _holds(held, index, term) for held in (self.durable, self.forgot)
        )

    def has_voted(self, vote: HardState) -> bool:
        return self.durable.hard.term > vote.term or self.durable.hard == vote

    def delay_s(self) -> float:
        """Return the duration of the last job."""
        syncs_count = sum(
            not isinstance(operation, _Names) or operation.synced for operation in self._under_way
        )
        return _SEEK_S + syncs_count * self._sync_ms * self.slow_factor * self._rng.random() / 1000

    def complete(self) -> None:
        """End the job."""
        self._carry_out(len(self._under_way))

    def crash(self) -> None:
        """Lose power or kill the process: an arbitrary prefix of the running job takes effect."""
        self._carry_out(self._rng.randint(0, len(self._under_way)))
        states = [self._durable_names, *self._unsynced_names]
        self.names = dict(states[self._rng.randrange(len(states))])
        self._unsynced_names.clear()
        for inode in self.names.values():
            self._tear(inode)
        self._durable_names = dict(self.names)
        self.identity[_JOURNAL] = self._durable_note
        self._read_again()

    def copy(self) -> DiskCopy:
        """Copy the durable data."""
        files = {
            name: bytes(inode.data[: inode.synced_bytes])
            for name, inode in self._durable_names.items()
        }
        return DiskCopy(files, self.identity | {_JOURNAL: self._durable_note})

    def restore(self, files: dict[str, bytes], identity: dict[str, str]) -> None:
        """Replace the files that a crash left."""
        self.forgot = self.durable
        self.names = {name: _Inode(data) for name, data in files.items()}
        self._durable_names = dict(self.names)
        self.identity = dict(identity)
        self._durable_note = self.identity.get(_JOURNAL, "")
        self._read_again()

    def sync_file(self, inode: _Inode) -> None:
        self._under_way.append((inode, len(inode.data)))

    def record_journal(self, number: str) -> None:
        self.identity[_JOURNAL] = number
        self._under_way.append(_Noted(number))

    def note_names(self, *, synced: bool) -> None:
        """Record that a name was added, removed or changed. synced: all names become durable."""
        self._under_way.append(_Names(dict(self.names), synced))

    def _carry_out(self, count: int) -> None:
        for operation in self._under_way[:count]:
            if isinstance(operation, _Noted):
                self._durable_note = operation.number
            elif not isinstance(operation, _Names):
                inode, size_bytes = operation
                inode.synced_bytes = max(inode.synced_bytes, size_bytes)
                self._parse(inode)
            elif operation.synced:
                self._durable_names = operation.names
                self._unsynced_names.clear()
            else:
                self._unsynced_names.append(operation.names)
        self._under_way.clear()

    def _tear(self, inode: _Inode) -> None:
        unsynced_bytes = len(inode.data) - inode.synced_bytes
        if unsynced_bytes:
            kept = inode.synced_bytes + self._rng.randint(0, unsynced_bytes)
            zeros = len(inode.data) - kept if self._rng.random() < 0.3 else 0
            inode.data[kept:] = bytes(zeros)
        inode.synced_bytes = len(inode.data)

    def _parse(self, inode: _Inode) -> None:
        data = memoryview(bytes(inode.data[inode.parsed_bytes : inode.synced_bytes]))
        at = 0
        while at < len(data) and not isinstance(parsed := parse_frame(data, at), str):
            self.durable.replay(parsed[0])
            at += parsed[1]
        inode.parsed_bytes += at

    def _read_again(self) -> None:
        self.durable = Recovered()
        for name in sorted(name for name in self.names if name.endswith(".journal")):
            self.names[name].parsed_bytes = 0
            self._parse(self.names[name])


def _holds(held: Recovered, index: int, term: int) -> bool:
    at = index - held.base.index
    return at <= 0 or (at <= len(held.entries) and held.entries[at - 1].term == term)


class _File:
    def __init__(self, disk: Disk, inode: _Inode) -> None:
        self._disk = disk
        self._inode = inode

    def append(self, data: bytes) -> None:
        self._inode.data += data

    def sync(self) -> None:
        if self._disk.failing:
            self._disk.failing = False
            raise OSError(errno.EIO, "the disk failed")
        self._disk.sync_file(self._inode)

    def close(self) -> None:
        pass


class _Files:
    """Implements `controller.raft.directory.JournalFiles`."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __str__(self) -> str:
        return "journal"

    def names(self) -> list[str]:
        return list(self._disk.names)

    def read(self, name: str) -> bytes:
        return bytes(self._disk.names[name].data)

    def create(self, name: str) -> _File:
        inode = self._disk.names[name] = _Inode()
        self._disk.note_names(synced=False)
        return _File(self._disk, inode)

    def rename(self, old: str, new: str) -> None:
        self._disk.names[new] = self._disk.names.pop(old)
        self._disk.note_names(synced=False)

    def remove(self, name: str) -> None:
        del self._disk.names[name]
        self._disk.note_names(synced=False)

    def cut(self, name: str, size_bytes: int) -> None:
        inode = self._disk.names[name]
        del inode.data[size_bytes:]
        inode.synced_bytes = inode.parsed_bytes = min(inode.synced_bytes, size_bytes)

    def sync(self) -> None:
        self._disk.note_names(synced=True)


class _Thread(Executor):
    """Runs work for `VirtualLoop.run_in_executor`. A stopped process starts no work; work that has
    started finishes without it.
    """

    def __init__(self, disk: Disk, process: Process) -> None:
        self._disk = disk
        self._process = process
        self._waiting: deque[tuple[Callable[..., Any], tuple[Any, ...], asyncio.Future[Any]]] = (
            deque()
        )
        self._busy = False

    def begin(self, work: Callable[..., Any], *args: Any) -> "asyncio.Future[Any]":
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, args, response))
        if not self._busy:
            self._busy = True
            self._next()
        return response

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        pass

    def _next(self) -> None:
        work, args, response = self._waiting.popleft()
        result, error = None, None
        try:
            result = work(*args)
        except Exception as failure:  # noqa: BLE001 - as an executor does
            error = failure
        asyncio.get_running_loop().call_later(
            self._disk.delay_s(), self._done, response, result, error, context=Context()
        )

    def _done(self, response: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
        if self._process.dead:
            return
        self._disk.complete()
        if not response.done():
            if error is None:
                response.set_result(result)
            else:
                response.set_exception(error)
        self._busy = bool(self._waiting)
        if self._busy:
            asyncio.get_running_loop().call_soon(self._next, context=self._process.context())


class _Identity(Identity):
    """The identity on the disk, which is durable immediately."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.is_new = not self.cluster_id
        self.directory_id = self._read("directory_id")

    def __str__(self) -> str:
        return "directory"

    def close(self) -> None:
        pass

    def joined(self) -> None:
        self._disk.identity.pop("joining", None)

    def record_journal(self, number: int) -> None:
        self._disk.record_journal(str(number))

    def _read(self, name: str) -> str:
        return self._disk.identity.get(name, "")

    def _write(self, name: str, value: str) -> None:
        self._disk.identity[name] = value


class SimDirectory:
    """The disk as one process sees it."""

    def __init__(self, disk: Disk, process: Process) -> None:
        self._disk = disk
        self.journal = _Files(disk)
        self.thread: Executor = _Thread(disk, process)

    def open(self) -> Identity:
        return _Identity(self._disk)
