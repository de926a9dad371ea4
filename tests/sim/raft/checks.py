"""Invariants of every run of the Raft core, with the names in Kafka's Raft simulation test.

One leader per epoch, one vote per epoch, monotonic epoch and high watermark, majority reached high
watermark, committed data consistent, linearizable reads, and one configuration: committed members
change by one voter at a time.
"""

from collections.abc import Sequence
from typing import Protocol

from penstock.controller.raft.core import RaftCore
from penstock.controller.raft.messages import Entry, Members


class Violation(AssertionError):
    """An invariant of Raft is violated."""


class Moment(Protocol):
    """The state of a run."""

    seed: int
    now_ms: int
    members: Members


class Holder(Protocol):
    """All disks that a controller has had so far."""

    def held(self, directory: str, index: int, term: int) -> bool: ...


class Checks:
    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._leaders: dict[int, tuple[int, int]] = {}
        self._votes: dict[tuple[int, str, int], int] = {}
        self.log: dict[int, Entry] = {}
        self.last_committed = 0
        self.members = moment.members
        """The newest committed members."""

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            raise Violation(f"{what} (seed {self._moment.seed}, at {self._moment.now_ms} ms)")

    def leads(self, node_id: int, incarnation: int, core: RaftCore) -> bool:
        """Return whether this leadership is new."""
        is_news = core.term not in self._leaders
        known = self._leaders.setdefault(core.term, (node_id, incarnation))
        self.check(
            known == (node_id, incarnation),
            f"one leader per epoch: {known} and {node_id, incarnation} lead {core.term}",
        )
        return is_news

    def votes_for(self, voter: int, directory: str, term: int, candidate: int) -> None:
        known = self._votes.setdefault((voter, directory, term), candidate)
        self.check(
            known == candidate,
            f"one vote per epoch: {voter} voted for {known} and {candidate} in {term}",
        )

    def committed(
        self, node_id: int, core: RaftCore, entry: Entry, disks: Sequence[Holder]
    ) -> None:
        known = self.log.setdefault(entry.index, entry)
        self.check(
            known == entry,
            f"committed data consistent: {entry.index} is {known.term} and, on {node_id},"
            f" {entry.term}",
        )
        if entry.index <= self.last_committed:
            return
        members = core.log.members
        holders = sum(
            1
            for voter in members.voters
            if disks[voter].held(members.endpoint(voter).directory, entry.index, entry.term)
        )
        self.check(
            2 * holders > len(members.voters),
            f"majority reached high watermark: {entry.index} is on {holders} disks of {members}",
        )
        self.last_committed = entry.index
        before = self.log.get(entry.index - 1)
        self.check(
            before is None or before.end_offset == entry.base_offset,
            f"offsets contiguous at {entry.index}",
        )
        if entry.members is not None:
            self._reconfigured(entry.members)

    def _reconfigured(self, members: Members) -> None:
        old, self.members = self.members, members
        self.check(
            len(set(old.voters) ^ set(members.voters)) <= 1,
            f"one configuration: {members} follow {old}",
        )
        self.check(
            members.version == old.version + 1,
            f"one configuration: version {members.version} follows {old.version}",
        )
        self.check(
            len(set(members.everyone)) == len(members.everyone),
            f"one configuration: somebody is in {members} twice",
        )

    def read_done(self, core: RaftCore, round_number: int, missing: int) -> bool:
        """Check a completed read. missing: entries committed elsewhere that this leader lacked at
        the time of the request.
        """
        if core.confirmed_round < round_number:
            return False
        self.check(missing <= 0, f"linearizable read: {missing} committed entries were not seen")
        return True
