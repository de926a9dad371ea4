"""What other controllers' disks have promised, as far as this controller heard of it, and whether
one of them forgot. Pure.

A disk that was restored from an older copy, or that lost its last frame, still has its directory
id: it would vote a second time in a term and acknowledge the same index a second time. Its own
files cannot show that; the memory of the others does. Each start of a controller has a number that
rises with every start of its directory, and tells the state with which it began. What earlier
starts of the directory promised must be in that state. Leaders learn promises from answers and
votes and tell them to followers with each heartbeat.

Invariants: a disk that forgot nothing is never accused. Its term never falls. In one term, its log
keeps all that it acknowledged to the leader of that term. It keeps what that leader knew to be
committed for good. Memory is lost with the process: what no running controller remembers is not
noticed. Must not do I/O. Source: ADR 0033.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from controller.raft.messages import NOBODY, Promise, Start

DISKS_MAX = 64
"""Directories that are remembered; the one heard of first is forgotten. A quorum has at most five
voters.
"""


@dataclass(frozen=True, slots=True)
class Promised:
    """term: reached, durably. index: acknowledged to the leader of that term; vote: given in it.
    committed: acknowledged and committed.
    """

    term: int = 0
    index: int = 0
    committed: int = 0
    vote: int = NOBODY

    def merged(self, other: "Promised") -> "Promised":
        """Both were given."""
        committed = max(self.committed, other.committed)
        if self.term != other.term:
            newer = max(self, other, key=lambda each: each.term)
            return Promised(newer.term, newer.index, committed, newer.vote)
        return Promised(
            self.term,
            max(self.index, other.index),
            committed,
            self.vote if self.vote != NOBODY else other.vote,
        )


NOTHING = Promised()


@dataclass(slots=True)
class _Disk:
    number: int = 0
    nonce: int = 0
    before: Promised = NOTHING
    """By starts before `number`."""
    now: Promised = NOTHING


class Promises:
    """The memory of one controller."""

    def __init__(self) -> None:
        self._disks: dict[str, _Disk] = {}
        self._directory_of: dict[int, str] = {}
        """Of the controller with this id whose message is looked at now, or was last."""

    def refusal(self, member: int, directory: str, start: Start) -> str:
        """Why nothing that this start of a controller says may be counted; empty: it may. Call it
        before each of its messages counts.
        """
        disk = self._disk(directory)
        if (start.number, start.nonce) != (disk.number, disk.nonce):
            if start.number <= disk.number:
                return (
                    f"it says that this is start {start.number} of its data directory, but start"
                    f" {disk.number} was heard before"
                )
            self._restarted(disk, start.number, start.nonce)
        self._directory_of[member] = directory
        return forgotten(start, disk.before)

    def acknowledged(self, member: int, term: int, index: int, commit: int) -> None:
        """To the leader of `term`, whose commit index is `commit`."""
        self._note(member, Promised(term, index, min(index, commit)))

    def voted(self, member: int, term: int, candidate: int) -> None:
        self._note(member, Promised(term, 0, 0, candidate))

    def promises_of(self, members: Iterable[int]) -> tuple[Promise, ...]:
        """What a leader tells the others of them."""
        promises: list[Promise] = []
        for member in members:
            directory = self._directory_of.get(member)
            disk = None if directory is None else self._disks.get(directory)
            if directory is not None and disk is not None and disk.number:
                now = disk.now
                promises.append(
                    Promise(
                        directory,
                        disk.number,
                        disk.nonce,
                        now.term,
                        now.index,
                        now.committed,
                        now.vote,
                    )
                )
        return tuple(promises)

    def learn(self, promises: Iterable[Promise]) -> None:
        """What a leader told."""
        for promise in promises:
            disk = self._disk(promise.directory)
            if promise.number > disk.number:
                self._restarted(disk, promise.number, promise.nonce)
            given = Promised(promise.term, promise.index, promise.committed, promise.vote)
            if (promise.number, promise.nonce) == (disk.number, disk.nonce):
                disk.now = disk.now.merged(given)
            else:
                disk.before = disk.before.merged(given)

    def _note(self, member: int, promised: Promised) -> None:
        directory = self._directory_of.get(member)
        if directory is not None:
            disk = self._disk(directory)
            disk.now = disk.now.merged(promised)

    def _disk(self, directory: str) -> _Disk:
        disk = self._disks.get(directory)
        if disk is None:
            if len(self._disks) >= DISKS_MAX:
                del self._disks[next(iter(self._disks))]
            disk = self._disks[directory] = _Disk()
        return disk

    def _restarted(self, disk: _Disk, number: int, nonce: int) -> None:
        disk.before, disk.now = disk.before.merged(disk.now), NOTHING
        disk.number, disk.nonce = number, nonce


def forgotten(start: Start, promised: Promised) -> str:
    """What a disk that began with this state does not know of what it promised; empty: nothing."""
    if start.term < promised.term:
        return f"it had reached term {promised.term}, its journal is in term {start.term}"
    if start.term == promised.term and promised.vote not in {NOBODY, start.vote}:
        return (
            f"it voted for controller {promised.vote} in term {start.term}, its journal does not"
            " have that"
        )
    kept = (
        promised.committed
        if start.term > promised.term
        else max(promised.index, promised.committed)
    )
    if start.last_index < kept:
        return f"it acknowledged entries up to {kept}, its journal ends at {start.last_index}"
    return ""
