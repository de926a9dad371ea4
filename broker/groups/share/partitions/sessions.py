"""Share sessions (KIP-932): the partitions that a member of a share group fetches from this broker.

A ShareFetch with epoch 0 opens a session, and one with epoch -1 closes it. In between, requests
contain only added and removed partitions, and responses only partitions with records or errors.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from penstock.broker.coordination.connection_order import (
    MEMBERS_MAX,
    ConnectionOrder,
    LateRequest,
    short_name,
)
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode

FIRST_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
PARTITIONS_MAX: Final = 100_000
"""Maximum number of partitions in all sessions of a broker."""
_EPOCH_MAX: Final = 2**31 - 1


class ShareSessionKey(NamedTuple):
    group_id: str
    member_id: str


_Left: TypeAlias = tuple[int, str | bytes, str | bytes]


class TopicIdPartition(NamedTuple):
    topic_id: UUID
    partition: int


class ShareSessionRefused(Exception):
    """Raised when a request does not match its session."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass(slots=True, eq=False)
class ShareSession:
    key: ShareSessionKey
    connection_id: int
    """The newest connection that carried a ShareFetch of this session. The session closes when this
    connection does.
    """
    partitions: dict[TopicIdPartition, bool]
    """For each partition, whether the next response must include it even without records."""
    owner: str = ""
    """The principal and address of the client that opened the session."""
    epoch: int = FIRST_EPOCH + 1
    """The session epoch of the next request."""


@dataclass(slots=True)
class ShareSessions:
    """The sessions of one broker.

    Each request increments the session epoch; a request with another epoch fails with
    INVALID_SHARE_SESSION_EPOCH and changes nothing. At the session or partition limit, the oldest
    session of the owner with the most sessions is evicted if the new owner has fewer, and its
    records are released. Otherwise the request fails with SHARE_SESSION_LIMIT_REACHED.
    """

    sessions_max: int
    partitions_max: int = PARTITIONS_MAX
    on_evicted: Callable[[ShareSession], None] = lambda _: None
    """Called to release the records of an evicted session."""
    partition_count: int = 0
    _sessions: dict[ShareSessionKey, ShareSession] = field(
        default_factory=dict[ShareSessionKey, ShareSession]
    )
    _by_connection: dict[int, dict[ShareSessionKey, None]] = field(
        default_factory=dict[int, dict[ShareSessionKey, None]]
    )
    _by_owner: dict[str, dict[ShareSessionKey, None]] = field(
        default_factory=dict[str, dict[ShareSessionKey, None]]
    )
    """The sessions of each owner, oldest first."""
    _group_counts: dict[str, int] = field(default_factory=dict[str, int])
    _requests: ConnectionOrder = field(default_factory=lambda: ConnectionOrder(MEMBERS_MAX))
    _left: OrderedDict[_Left, None] = field(default_factory=OrderedDict[_Left, None])
    """Still open connections that a member's session has moved away from. Only the last
    `MEMBERS_MAX` are kept.
    """

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: ShareSessionKey) -> ShareSession | None:
        return self._sessions.get(key)

    def has_group(self, group_id: str) -> bool:
        return group_id in self._group_counts

    def admit(self, api_key: int, key: ShareSessionKey, connection_id: int) -> None:
        """Record a request that is about to be executed. Raises LateRequest.

        A client may use one connection per API. If it opened its session on the connection that it
        uses for acknowledgments, and the session has since moved to a newer connection, the client
        has abandoned the old one.
        """
        self._requests.admit_member(api_key, *key, connection_id)
        session = self._sessions.get(key)
        if (
            session is not None
            and api_key == apis.SHARE_ACKNOWLEDGE.key
            and connection_id < session.connection_id
            and _left(connection_id, key) in self._left
        ):
            raise LateRequest(
                f"an acknowledgement for group {key.group_id} of member {key.member_id} is late:"
                f" its share session was replaced by one on connection {session.connection_id};"
                " reconnect and retry"
            )

    def open(
        self,
        key: ShareSessionKey,
        connection_id: int,
        partitions: Iterable[TopicIdPartition],
        owner: str = "",
    ) -> ShareSession:
        """Open a session, replacing an earlier one. Raises ShareSessionRefused.

        This takes O(1), or O(owners) if a session is evicted.
        """
        session = ShareSession(key, connection_id, dict.fromkeys(partitions, True), owner)
        replaced = self._sessions.get(key)
        count = self.partition_count + len(session.partitions)
        if replaced is not None:
            count -= len(replaced.partitions)
        if count > self.partitions_max:
            raise ShareSessionRefused(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        if replaced is not None:
            self.close(replaced)
        if len(self._sessions) >= self.sessions_max:
            self._evict_for(owner)
        self._sessions[key] = session
        self.partition_count += len(session.partitions)
        self._by_connection.setdefault(connection_id, {})[key] = None
        self._by_owner.setdefault(owner, {})[key] = None
        self._group_counts[key.group_id] = self._group_counts.get(key.group_id, 0) + 1
        return session

    def _evict_for(self, owner: str) -> None:
        """Close the oldest session of the owner with the most sessions.

        Raises ShareSessionRefused if that owner would then have fewer sessions than `owner`.
        """
        largest = max(self._by_owner.values(), key=len, default=dict[ShareSessionKey, None]())
        if len(largest) < len(self._by_owner.get(owner, ())) + 2:
            raise ShareSessionRefused(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        evicted = self._sessions[next(iter(largest))]
        self.close(evicted)
        self.on_evicted(evicted)

    def resume(
        self,
        key: ShareSessionKey,
        epoch: int,
        added: Iterable[TopicIdPartition] = (),
        forgotten: Iterable[TopicIdPartition] = (),
        connection_id: int = 0,
    ) -> ShareSession:
        """Add and remove partitions as requested, and return the session. A final request changes
        nothing. connection_id: the connection of a ShareFetch. The session moves to it if it is
        newer, because the client no longer uses the old one. Raises ShareSessionRefused.
        """
        session = self._sessions.get(key)
        if session is None:
            raise ShareSessionRefused(ErrorCode.SHARE_SESSION_NOT_FOUND)
        if epoch == FINAL_EPOCH:
            return session
        if epoch != session.epoch:
            raise ShareSessionRefused(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        before_count = len(session.partitions)
        for item in added:
            if item not in session.partitions and self.partition_count >= self.partitions_max:
                raise ShareSessionRefused(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
            session.partitions.setdefault(item, True)
        for item in forgotten:
            session.partitions.pop(item, None)
        self.partition_count += len(session.partitions) - before_count
        session.epoch = session.epoch + 1 if session.epoch < _EPOCH_MAX else FIRST_EPOCH + 1
        if connection_id > session.connection_id:
            self._move(session, connection_id)
        return session

    def _move(self, session: ShareSession, connection_id: int) -> None:
        self._leave_connection(session)
        session.connection_id = connection_id
        self._by_connection.setdefault(connection_id, {})[session.key] = None

    def _leave_connection(self, session: ShareSession) -> None:
        keys = self._by_connection[session.connection_id]
        del keys[session.key]
        if not keys:
            del self._by_connection[session.connection_id]
        left = _left(session.connection_id, session.key)
        self._left[left] = None
        self._left.move_to_end(left)
        if len(self._left) > MEMBERS_MAX:
            self._left.popitem(last=False)

    def is_open(self, session: ShareSession) -> bool:
        """Return whether the session has been neither closed nor replaced."""
        return self._sessions.get(session.key) is session

    def close(self, session: ShareSession) -> bool:
        """Remove a session. Return False if it is no longer open."""
        if not self.is_open(session):
            return False
        key = session.key
        del self._sessions[key]
        self.partition_count -= len(session.partitions)
        self._leave_connection(session)
        owned = self._by_owner[session.owner]
        del owned[key]
        if not owned:
            del self._by_owner[session.owner]
        self._group_counts[key.group_id] -= 1
        if not self._group_counts[key.group_id]:
            del self._group_counts[key.group_id]
        return True

    def close_connection(self, connection_id: int) -> list[ShareSession]:
        """Remove the sessions of a closed connection."""
        closed = [self._sessions[key] for key in self._by_connection.get(connection_id, ())]
        for session in closed:
            self.close(session)
            del self._left[_left(connection_id, session.key)]
        return closed


def _left(connection_id: int, key: ShareSessionKey) -> _Left:
    return connection_id, short_name(key.group_id), short_name(key.member_id)
