"""Messages between voters, stored values, and the output of the core for its driver. On the wire
and in the journal, they are encoded as msgpack arrays.
"""

from dataclasses import dataclass

import msgspec

NOBODY = -1
"""An id that no voter has. It means that no vote was granted."""


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """A controller and one of its disks (KIP-853: the directory id of a voter).

    address: host:port, or "" if unknown. directory: id generated for a new directory. Until the
    controller has sent it, it is "", which matches any disk.
    """

    node_id: int
    address: str = ""
    directory: str = ""


class Members(msgspec.Struct, frozen=True, array_like=True):
    """The members of the quorum with their addresses, sorted by id. Learners receive the log but do
    not count toward majorities.

    version: number of the change that resulted in this list. If two lists contain a controller with
    different disks, the one with the higher version is correct.
    """

    voters: tuple[int, ...]
    learners: tuple[int, ...] = ()
    endpoints: tuple[Endpoint, ...] = ()
    version: int = 0

    @property
    def everyone(self) -> tuple[int, ...]:
        return self.voters + self.learners

    def endpoint(self, node_id: int) -> Endpoint:
        """Return the endpoint of a member. It has no address and no directory if it is unknown."""
        for endpoint in self.endpoints:
            if endpoint.node_id == node_id:
                return endpoint
        return Endpoint(node_id)

    def is_voter(self, node_id: int, directory: str) -> bool:
        """Return whether the controller with this disk is a voter. A disk that replaced a lost one
        is not a voter, because it may lack promises of the lost disk.
        """
        return node_id in self.voters and self.endpoint(node_id).directory in {"", directory}

    def lists(self, node_id: int, directory: str) -> bool:
        """Return whether the controller with this disk is a voter or a learner."""
        return node_id in self.everyone and self.endpoint(node_id).directory in {"", directory}


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One proposal, whose records are committed atomically. An entry without records starts a
    leader's term or contains a new member list.
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
    """The start of a log. Entries of the log follow `index`, and a snapshot contains everything up
    to it.
    """

    index: int
    term: int
    offset: int
    members: Members


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """The state that a voter must not lose."""

    term: int = 0
    vote: int = NOBODY


class Start(msgspec.Struct, frozen=True, array_like=True):
    """One start of a controller, with its durable state at that time.

    number: increases with every start of a data directory. nonce: generated at the start, so that
    copies of a directory can be distinguished.
    """

    number: int = 0
    nonce: int = 0
    term: int = 0
    vote: int = NOBODY
    last_index: int = 0


class Promise(msgspec.Struct, frozen=True, array_like=True):
    """The promises that start `number` of the disk `directory` made: see
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
    """Request for a vote. pre: whether this requests a pre-vote, which does not change any state.
    transfer: whether the leader requested this election.
    """

    last_index: int
    last_term: int
    pre: bool = False
    transfer: bool = False


class VoteReply(_Message, frozen=True, array_like=True, tag=2):
    granted: bool
    pre: bool = False


class Append(_Message, frozen=True, array_like=True, tag=3):
    """Entries that follow (prev_index, prev_term). An append without entries is a heartbeat. round,
    sent_ms: values of the leader that the reply returns.

    promises: promises of all voters, sent with each heartbeat, so that followers can also detect a
    disk that has lost promises.
    """

    prev_index: int
    prev_term: int
    entries: list[Entry]
    commit: int
    round: int
    sent_ms: int
    promises: tuple[Promise, ...] = ()


class AppendReply(_Message, frozen=True, array_like=True, tag=4):
    """The reply to an append. index: the follower's durable log equals the leader's log up to this
    index; if the append was rejected, the prev_index that did not match.

    hint_index, hint_term: the last position at which the logs may still agree after a rejection.
    """

    index: int
    rejected: bool = False
    hint_index: int = 0
    hint_term: int = 0
    round: int = 0
    sent_ms: int = 0
    fsync_us: int = 0
    """p99 of the follower's journal writes, or 0 if unknown."""


class HeartbeatReply(_Message, frozen=True, array_like=True, tag=7):
    """The reply to a heartbeat while the disk is busy: the voter still follows the leader, but does
    not acknowledge entries.
    """

    round: int
    sent_ms: int


class Install(_Message, frozen=True, array_like=True, tag=5):
    """Request to load a snapshot at or after `index` from the store, because the leader's log
    starts after the end of the receiver's log.
    """

    index: int
    round: int
    sent_ms: int


class TimeoutNow(_Message, frozen=True, array_like=True, tag=6):
    """Asks a voter to campaign immediately, because the leader transfers leadership to it."""


Message = Vote | VoteReply | Append | AppendReply | HeartbeatReply | Install | TimeoutNow


@dataclass(frozen=True, slots=True)
class Write:
    """State that must be durable, in this order, before `messages` may be sent. base: set if a
    snapshot replaced the log.
    """

    hard: HardState | None
    base: Base | None
    entries: list[Entry]
    messages: list[Message]
    last_index: int
