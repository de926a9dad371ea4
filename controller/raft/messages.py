"""What voters say to each other, what they keep on disk, and what the core hands to its driver.

Invariant: everything here is a value; a message says who sent it, to whom, and in which term.
Encoded as msgpack arrays, on the wire as in the journal. Must not hold behavior beyond sizes and
ends. Source: Ongaro & Ousterhout, "In Search of an Understandable Consensus Algorithm", figures 2
and 13; etcd/raft `raftpb` for pre-vote, check-quorum and transfer.
"""

from dataclasses import dataclass

import msgspec

NOBODY = -1
"""No voter: nobody was voted for."""


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """Where a controller is, and which of its disks is meant (KIP-853: the directory id of a
    voter).

    address: host:port, empty: not known. directory: drawn when the directory is new, empty:
    whichever, until it has told.
    """

    node_id: int
    address: str = ""
    directory: str = ""


class Members(msgspec.Struct, frozen=True, array_like=True):
    """Who is in the quorum, and where. Learners get the log and count for nothing. Everything
    sorted by id.

    version: number of the change that led here; of two that name a controller with different disks
    the higher one is right.
    """

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    version: int = 0

    @property
    def everyone(self) -> tuple[int, ...]:
        return self.voters + self.learners

    def endpoint(self, node_id: int) -> Endpoint:
        """Of a member, or of nobody in particular."""
        for endpoint in self.endpoints:
            if endpoint.node_id == node_id:
                return endpoint
        return Endpoint(node_id)

    def is_voter(self, node_id: int, directory: str) -> bool:
        """A disk that replaced a lost one does not vote: it may have promised something that it
        does not know.
        """
        return node_id in self.voters and self.endpoint(node_id).directory in {"", directory}

    def lists(self, node_id: int, directory: str) -> bool:
        """Voter or learner, with this disk."""
        return node_id in self.everyone and self.endpoint(node_id).directory in {"", directory}


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One proposal: its records are committed together or not at all. Without records: the begin of
    a leader's term, or new members.
    """

    index: int
    term: int
    base_offset: int
    """Metadata offset of the first record."""
    records: list[bytes]
    members: Members | None = None

    @property
    def end_offset(self) -> int:
        return self.base_offset + len(self.records)

    @property
    def size_bytes(self) -> int:
        return 32 + sum(map(len, self.records)) + 4 * len(self.records)


class Base(msgspec.Struct, frozen=True, array_like=True):
    """Where a log begins: its entries follow behind `index`, a snapshot holds everything up to
    it.
    """

    index: int
    term: int
    offset: int
    members: Members


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """What a voter must never forget."""

    term: int = 0
    vote: int = NOBODY


class Start(msgspec.Struct, frozen=True, array_like=True):
    """One start of a controller, and the durable state with which it began.

    number: rises with every start of a data directory. nonce: drawn at the start, tells two copies
    of a directory apart.
    """

    number: int = 0
    nonce: int = 0
    term: int = 0
    vote: int = NOBODY
    last_index: int = 0


class Promise(msgspec.Struct, frozen=True, array_like=True):
    """What start `number` of the disk `directory` has promised: see `controller.raft.promises`."""

    directory: str
    number: int
    nonce: int
    term: int
    index: int
    committed: int
    vote: int


class _Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    sender: int
    to: int
    term: int


class Vote(_Message, frozen=True, array_like=True, tag=1):
    """pre: would you vote for me in this term? It changes nothing. transfer: the leader itself
    asked for this election.
    """

    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False


class VoteReply(_Message, frozen=True, array_like=True, tag=2):
    granted: bool
    pre: bool = False


class Append(_Message, frozen=True, array_like=True, tag=3):
    """Entries behind (prev_index, prev_term); none: a heartbeat. round, sent_ms: the leader's,
    given back in the reply.

    promises: of all voters, so that others than the leader notice a disk that forgot its own; with
    each heartbeat.
    """

    prev_index: int
    prev_term: int
    entries: list[Entry]
    commit: int
    round: int
    sent_ms: int
    promises: tuple[Promise, ...] = ()


class AppendReply(_Message, frozen=True, array_like=True, tag=4):
    """index: up to which the log is the leader's, durably; if rejected, the prev_index that did not
    fit.

    hint_index, hint_term: the last place at which a rejecting log may still agree.
    """

    index: int
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0
    round: int = 0
    sent_ms: int = 0
    fsync_us: int = 0
    """p99 of the follower's writes to its journal; 0: not known."""


class Install(_Message, frozen=True, array_like=True, tag=5):
    """The log no longer reaches back to what the receiver lacks: it has to load a snapshot of at
    least `index` from the store.
    """

    index: int
    round: int
    sent_ms: int


class TimeoutNow(_Message, frozen=True, array_like=True, tag=6):
    """Hold an election at once: the leader hands over."""


Message = Vote | VoteReply | Append | AppendReply | Install | TimeoutNow


@dataclass(frozen=True, slots=True)
class Write:
    """What has to be durable, in this order, before `messages` may leave. base: the log was
    replaced by a snapshot.
    """

    hard: HardState | None
    base: Base | None
    entries: list[Entry]
    messages: list[Message]
    last_index: int
