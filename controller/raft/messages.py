"""Define the messages between voters, what they store on disk, and what the core hands to its
driver.

Invariant: Everything here is a value; a message names its sender, its receiver and its term. Values
are encoded as msgpack arrays, on the wire and in the journal.

Must not have behavior beyond sizes and ends. Source: Ongaro & Ousterhout, "In Search of an
Understandable Consensus Algorithm", figures 2 and 13; etcd/raft `raftpb` for pre-vote, check-quorum
and transfer.
"""

from dataclasses import dataclass

import msgspec

NOBODY = -1
"""No voter has this id: no vote was given."""


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """Locate a controller and one of its disks (KIP-853: the directory id of a voter).

    address: host:port; empty: unknown. directory: drawn when the directory is new; empty: any,
    until the controller has sent it.
    """

    node_id: int
    address: str = ""
    directory: str = ""


class Members(msgspec.Struct, frozen=True, array_like=True):
    """List the members of the quorum with their addresses, sorted by id. Learners receive the log
    and do not count.

    version: number of the change that led here. If two lists name a controller with different
    disks, the one with the higher version is right.
    """

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    version: int = 0

    @property
    def everyone(self) -> tuple[int, ...]:
        return self.voters + self.learners

    def endpoint(self, node_id: int) -> Endpoint:
        """Return the endpoint of a member; without address and directory if it is unknown."""
        for endpoint in self.endpoints:
            if endpoint.node_id == node_id:
                return endpoint
        return Endpoint(node_id)

    def is_voter(self, node_id: int, directory: str) -> bool:
        """Return whether the controller with this disk votes. A disk that replaced a lost one does
        not: it may lack a promise.
        """
        return node_id in self.voters and self.endpoint(node_id).directory in {"", directory}

    def lists(self, node_id: int, directory: str) -> bool:
        """Return whether the controller, with this disk, is a voter or learner."""
        return node_id in self.everyone and self.endpoint(node_id).directory in {"", directory}


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Hold one proposal: its records are committed together or not at all. An entry without records
    begins a leader's term or has new members.
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
    """Mark the begin of a log: its entries follow `index`, and a snapshot holds everything up to
    it.
    """

    index: int
    term: int
    offset: int
    members: Members


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """Hold what a voter must never forget."""

    term: int = 0
    vote: int = NOBODY


class Start(msgspec.Struct, frozen=True, array_like=True):
    """Describe one start of a controller and the durable state with which it began.

    number: rises with every start of a data directory. nonce: drawn at the start, to distinguish
    two copies of a directory.
    """

    number: int = 0
    nonce: int = 0
    term: int = 0
    vote: int = NOBODY
    last_index: int = 0


class Promise(msgspec.Struct, frozen=True, array_like=True):
    """Hold what start `number` of the disk `directory` has promised: see
    `controller.raft.promises`.
    """

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
    """Ask for a vote. pre: ask whether the voter would grant it, which changes nothing. transfer:
    the leader itself asked for this election.
    """

    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False


class VoteReply(_Message, frozen=True, array_like=True, tag=2):
    granted: bool
    pre: bool = False


class Append(_Message, frozen=True, array_like=True, tag=3):
    """Send entries that follow (prev_index, prev_term); without entries, a heartbeat. round,
    sent_ms: the leader's, returned in the reply.

    promises: of all voters, with each heartbeat, so that also followers notice a disk that forgot
    its own.
    """

    prev_index: int
    prev_term: int
    entries: list[Entry]
    commit: int
    round: int
    sent_ms: int
    promises: tuple[Promise, ...] = ()


class AppendReply(_Message, frozen=True, array_like=True, tag=4):
    """Answer an append. index: the log equals the leader's up to it, durably; if rejected, the
    prev_index that did not match.

    hint_index, hint_term: the last place at which a rejecting log may still agree.
    """

    index: int
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0
    round: int = 0
    sent_ms: int = 0
    fsync_us: int = 0
    """p99 of the follower's writes to its journal; 0: unknown."""


class HeartbeatReply(_Message, frozen=True, array_like=True, tag=7):
    """Answer a heartbeat while the disk is busy: this voter follows, and acknowledges no entry."""

    round: int
    sent_ms: int


class Install(_Message, frozen=True, array_like=True, tag=5):
    """Ask the receiver to load a snapshot of at least `index` from the store, because the leader's
    log begins after the end of the receiver's.
    """

    index: int
    round: int
    sent_ms: int


class TimeoutNow(_Message, frozen=True, array_like=True, tag=6):
    """Ask the receiver to hold an election at once: the leader hands over."""


Message = Vote | VoteReply | Append | AppendReply | HeartbeatReply | Install | TimeoutNow


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
