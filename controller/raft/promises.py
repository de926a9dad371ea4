"""Track the promises of controllers' disks, and detect disks that have lost promises.

A disk that was restored from an older copy has the same directory id. It would vote twice in a term
and acknowledge the same index twice. Its own files do not reveal the loss, but the other
controllers remember its promises (docs/design/metadata.md).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.controller.raft.messages import NOBODY, Promise, Start

DISKS_MAX = 64
"""Maximum number of tracked directories. Every heartbeat uses the directories of the voters, of
which there are at most five, so only directories of replaced controllers are dropped.
"""


@dataclass(frozen=True, slots=True)
class Promised:
    """The promises recorded on one disk.

    term: durable term. index: last index acknowledged to the leader of this term. vote: vote in
    this term. committed: last index that was acknowledged and committed.
    """

    term: int = 0
    index: int = 0
    committed: int = 0
    vote: int = NOBODY

    def merged(self, other: "Promised") -> "Promised":
        """Combine two promises of one disk."""
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
    """Promises of starts before `number`."""
    now: Promised = NOTHING


class Promises:
    """The promises of all disks that one controller knows.

    Each start of a controller has a number, which increases with every start of its directory, and
    an initial state, which must contain the promises of earlier starts. Leaders collect promises
    from replies and votes, and send them to followers with each heartbeat. Promises that no running
    controller remembers cannot be checked.
    """

    def __init__(self) -> None:
        self._disks: dict[str, _Disk] = {}
        """Disks by directory id, least recently used first."""
        self._directory_of: dict[int, str] = {}
        """Directory id of each controller according to its last message."""

    def refusal(self, member: int, directory: str, start: Start) -> str:
        """Return the reason why messages of this start of a controller must not be counted, or ""
        if they may. Call this before each message is counted.
        """
        disk = self._disk(directory)
        if (start.number, start.nonce) != (disk.number, disk.nonce):
            if start.number <= disk.number:
                return (
                    f"it says that this is start {start.number} of its data directory, but a"
                    f" message of start {disk.number} arrived before"
                )
            self._restarted(disk, start.number, start.nonce)
        self._directory_of[member] = directory
        return forgotten(start, disk.before)

    def acknowledged(self, member: int, term: int, index: int, commit: int) -> None:
        """Record an acknowledgment to the leader of `term`, whose commit index is `commit`."""
        self._note(member, Promised(term, index, min(index, commit)))

    def voted(self, member: int, term: int, candidate: int) -> None:
        self._note(member, Promised(term, 0, 0, candidate))

    def promises_of(self, members: Iterable[int]) -> tuple[Promise, ...]:
        """Return the promises of `members`, which a leader sends to its followers."""
        promises: list[Promise] = []
        for member in members:
            directory = self._directory_of.get(member)
            disk = None if directory is None else self._disk(directory)
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
        """Add promises that a leader has sent."""
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
        disk = self._disks.pop(directory, None)
        if disk is None:
            if len(self._disks) >= DISKS_MAX:
                self._drop(next(iter(self._disks)))
            disk = _Disk()
        self._disks[directory] = disk
        return disk

    def _drop(self, directory: str) -> None:
        """Forget a directory, and which controllers use it. Otherwise, the promises that its
        current start makes from now on would be mistaken for promises of an earlier start, and this
        start would be rejected.
        """
        del self._disks[directory]
        self._directory_of = {
            member: known for member, known in self._directory_of.items() if known != directory
        }

    def _restarted(self, disk: _Disk, number: int, nonce: int) -> None:
        disk.before, disk.now = disk.before.merged(disk.now), NOTHING
        disk.number, disk.nonce = number, nonce


def forgotten(start: Start, promised: Promised) -> str:
    """Return a description of the promises that the initial state of a disk lacks, or "" if there
    are none. A disk that has not lost anything is never reported.
    """
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
