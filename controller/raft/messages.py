"""Messages between voters, stored values, and output of the core for its driver. All are encoded as
msgpack arrays, on the wire and in the journal.
"""

from dataclasses import dataclass

import msgspec

NOBODY = -1
"""No voter has this id: no vote was granted."""


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """A controller and one of its disks (KIP-853: the directory id of a voter).

    address: host:port; empty: unknown. directory: generated for a new directory; empty: any, until
    the controller has sent it.
    """

    node_id: int
    address: str = ""
    directory: str = ""


class Members(msgspec.Struct, frozen=True, array_like=True):
    """The members of the quorum with their addresses, sorted by id. Learners receive the log and do
    not count.

    version: number of the change that resulted in this list. If two lists contain a controller with
    different disks, the one with the higher version is valid.
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
        """Return whether the controller with this disk is a voter. A disk that replaced a lost one
        is not: it may lack a promise.
        """
        return node_id in self.voters and self.endpoint(node_id).directory in {"", directory}

    def lists(self, node_id: int, directory: str) -> bool:
        """Return whether the controller, with this disk, is a voter or learner."""
        return node_id in self.everyone and self.endpoint(node_id).directory in {"", directory}


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One proposal: its records are committed together or not at all. An entry without records
    starts a leader's term or contains new members.
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
    """The start of a log: its entries follow `index`, and a snapshot contains everything
    up to it.
    """

    index: int
    term: int
    offset: int
    members: Members


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """The state that a voter must never lose."""

    term: int = 0
    vote: int = NOBODY


class Start(msgspec.Struct, frozen=True, array_like=True):
    """One start of a controller and its durable state at that time.

    number: increases with every start of a data directory. nonce: generated at the start, to
    distinguish two copies of a directory.
    """

    number: int = 0
    nonce: int = 0
    term: int = 0
    vote: int = NOBODY
    last_index: int = 0


class Promise(msgspec.Struct, frozen=True, array_like=True):
    """The promises of start `number` of the disk `directory`: see `controller.raft.promises`."""

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
    """Request a vote. pre: request a pre-vote, which changes nothing. transfer: the leader itself
    requested this election.
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

    promises: of all voters, with each heartbeat, so that followers also detect a disk that lost its
    promises.
    """

    prev_index: int
    prev_term: int
    entries: list[Entry]
    commit: int
    round: int
    sent_ms: int
    promises: tuple[Promise, ...] = ()


class AppendReply(_Message, frozen=True, array_like=True, tag=4):
    """The reply to an append. index: the log equals the leader's up to it, durably; if rejected,
    the prev_index that did not match.

    hint_index, hint_term: the last position at which a rejecting log may still agree.
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
    """The reply to a heartbeat while the disk is busy: this voter still follows the leader, but
    acknowledges no entries.
    """

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
    """Ask the receiver to campaign immediately: the leader transfers leadership."""


Message = Vote | VoteReply | Append | AppendReply | HeartbeatReply | Install | TimeoutNow


@dataclass(frozen=True, slots=True)
class Write:
    """What must be durable, in this order, before `messages` may be sent. base: the log was
    replaced by a snapshot.
    """

    hard: HardState | None
    base: Base | None
    entries: list[Entry]
    messages: list[Message]
    last_index: int
