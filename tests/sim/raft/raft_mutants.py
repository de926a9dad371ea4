"""Bugs planted in the core, to test the simulator."""

from collections.abc import Callable

from penstock.controller.raft import membership
from penstock.controller.raft.core import RaftCore, Role
from penstock.controller.raft.messages import (
    NOBODY,
    Append,
    AppendReply,
    Base,
    Entry,
    HardState,
    Members,
    Write,
)
from tests.sim.raft.raft_world import CoreType, Disk, Knobs


def stage_figure_8(node_id: int, disk: Disk) -> None:
    """Figure 8 (b): 0 and 1 have an entry of term 1, and 4 has another entry of term 2 at its
    index; random faults can do the rest.
    """
    disk.entries = [Entry(1, 1, 0, [])]
    if node_id in {0, 1}:
        disk.entries.append(Entry(2, 1, 0, [b"x"]))
        disk.hard = HardState(1, 0)
    else:
        disk.hard = HardState(2, 4)
    if node_id == 4:
        disk.entries.append(Entry(2, 2, 0, []))


class VoteNotDurable:
    """M1: terms and votes never reach the disk."""

    def __call__(self, write: Write) -> Write:
        return Write(None, write.base, write.entries, write.messages, write.last_index)


class CommitsOldTerms(RaftCore):
    """M2, Raft's figure 8: an entry of an earlier term is committed by counting replicas."""

    def _may_commit(self, index: int) -> bool:
        return True


class AcknowledgesEarly(RaftCore):
    """M3: an append is acknowledged before it is on the disk."""

    def _reply(self, reply: AppendReply) -> None:
        self._messages.append(reply)


class VotesForAnybody(RaftCore):
    """M4: votes ignore the candidate's log."""

    def _is_up_to_date(self, request: object) -> bool:
        return True


class AlwaysTruncates(RaftCore):
    """M5: an append truncates the log after its entries even if they match."""

    def _on_append(self, append: Append) -> None:
        if append.prev_index >= self.commit and self.log.matches(
            append.prev_index, append.prev_term
        ):
            self.log.truncate(append.prev_index + 1)
        super()._on_append(append)


class CountsUnsynced(RaftCore):
    """M6: the leader counts its own log before it is on the disk."""

    def take_write(self) -> Write | None:
        write = super().take_write()
        if write is not None:
            self.log.persisted(write.last_index)
        return write


class ReadsStale(RaftCore):
    """M7: a read is served without a round to the other voters."""

    @property
    def confirmed_round(self) -> int:
        return self._round


class VotesTwice(RaftCore):
    """M8: a vote is forgotten when the election is over in the same term."""

    def _reset_election_timer(self) -> None:
        super()._reset_election_timer()
        if self.role is Role.FOLLOWER:
            self.vote = NOBODY


class SnapshotWithoutTerm(RaftCore):
    """M9: a snapshot is installed with the follower's current term."""

    def installed(self, base: Base) -> None:
        super().installed(Base(base.index, self.term, base.offset, base.members))


class ChangesOverlap(RaftCore):
    """M10: members change before the previous change is committed."""

    def propose_members(self, members: Members) -> str | None:
        why = membership.refusal(
            self.log.members, members, is_pending=False, has_committed_in_term=True
        )
        if why is None:
            self.propose([], members)
        return why


class PromotesTwice(RaftCore):
    """M11: a learner that becomes a voter counts twice."""

    def propose_members(self, members: Members) -> str | None:
        new = [voter for voter in members.voters if voter not in self.log.members.voters]
        why = super().propose_members(members)
        if why is None and new:
            at = self.log.last_index
            entry = self.log.slice(at, 1, 1)[0]
            twice = Members(
                tuple(sorted((*members.voters, *new))),
                members.learners,
                members.endpoints,
                members.version,
            )
            self.log.truncate(at)
            self.log.append(Entry(at, entry.term, entry.base_offset, [], twice))
        return why


class VotesForOldDisk(RaftCore):
    """M12: any disk with the id votes, and receivers do not check the sender's disk."""

    @property
    def is_voter(self) -> bool:
        return self.id in self.log.members.voters


class HeartbeatsWaitForDisk(RaftCore):
    """M13: a follower responds to heartbeats only when its disk is idle. Costs leaderships, not
    records.
    """

    def _respond_to_heartbeat(self, message: object) -> None:
        pass


CHANGING = Knobs(voters=3, change=0.3, crash=0.03, partition=0.05, propose=0.9)
LOSING = Knobs(
    voters=3,
    change=0.1,
    disk_loss=0.1,
    crash=0.05,
    partition=0.05,
    fsync_ms_max=100,
    propose=0.9,
    snapshot=0.05,
)

MUTANTS: dict[str, tuple[CoreType, Callable[[Write], Write] | None, Knobs | None]] = {
    "M1 vote not durable": (RaftCore, VoteNotDurable(), None),
    "M3 acknowledges before fsync": (AcknowledgesEarly, None, None),
    "M4 votes for anybody": (VotesForAnybody, None, None),
    "M5 always truncates": (AlwaysTruncates, None, None),
    "M6 leader counts its unsynced log": (CountsUnsynced, None, None),
    "M7 stale reads": (
        ReadsStale,
        None,
        Knobs(drop=0.0, duplicate=0.0, crash=0.0, partition=0.0, pause=0.02, propose=0.9),
    ),
    "M8 votes twice": (VotesTwice, None, None),
    "M10 membership overlap": (ChangesOverlap, None, CHANGING),
    "M11 double promotion": (PromotesTwice, None, CHANGING),
    "M9 snapshot with a wrong term": (
        SnapshotWithoutTerm,
        None,
        Knobs(snapshot=0.2, crash=0.06, partition=0.08, propose=0.9),
    ),
}
