"""Share sessions (KIP-932): track which partitions a member of a share group fetches from this
broker.

A ShareFetch with epoch 0 opens a session, one with epoch -1 closes it. Requests in between only
contain added and removed partitions, and responses only partitions with records or errors.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from penstock.broker.coordination.connection_order import (
    MEMBERS_MAX,
    ConnectionOrder,
    LateRequest,
)
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode

FIRST_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
PARTITIONS_MAX: Final = 100_000
"""Over all sessions of a broker."""
_EPOCH_MAX: Final = 2**31 - 1
_FORMER_MAX: Final = 8


class ShareSessionKey(NamedTuple):
    group_id: str
    member_id: str


class TopicIdPartition(NamedTuple):
    topic_id: UUID
    partition: int


class ShareSessionRefused(Exception):
    """Raised if a request does not match its session."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass(slots=True)
class ShareSession:
    key: ShareSessionKey
    connection_id: int
    partitions: dict[TopicIdPartition, bool]
    """Each partition, and whether the next response must contain it even without records."""
    owner: str = ""
    """The principal and the address of the client that opened it."""
    epoch: int = FIRST_EPOCH + 1
    """The epoch of the next request."""
    former_connections: tuple[int, ...] = ()
    """Connections of the sessions that this one has replaced, which the client has abandoned."""


@dataclass(slots=True)
class ShareSessions:
    """The sessions of one broker.

    Each request has the next epoch; one with another epoch gets INVALID_SHARE_SESSION_EPOCH and
    changes nothing. A session ends with its connection. At the limit of sessions or partitions, the
    owner with the most sessions loses its oldest one to an owner with fewer, and the records of
    that member are released. Otherwise a member gets SHARE_SESSION_LIMIT_REACHED.
    """

    sessions_max: int
    partitions_max: int = PARTITIONS_MAX
    on_evicted: Callable[[ShareSession], None] = lambda _: None
    """Releases the records of an evicted session."""
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
    """Oldest sessions first."""
    _group_counts: dict[str, int] = field(default_factory=dict[str, int])
    _requests: ConnectionOrder = field(default_factory=lambda: ConnectionOrder(MEMBERS_MAX))

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: ShareSessionKey) -> ShareSession | None:
        return self._sessions.get(key)

    def has_group(self, group_id: str) -> bool:
        return group_id in self._group_counts

    def admit(self, api_key: int, key: ShareSessionKey, connection_id: int) -> None:
        """Record a request that is about to be executed. Raises LateRequest.

        A client may have a connection per API. If it opens its sessions on the connection of its
        acknowledgments, a new session shows that it has abandoned the connection of the last one.
        """
        self._requests.admit_member(api_key, *key, connection_id)
        session = self._sessions.get(key)
        if (
            session is not None
            and api_key == apis.SHARE_ACKNOWLEDGE.key
            and connection_id in session.former_connections
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

        O(1), with an eviction O(owners).
        """
        session = ShareSession(key, connection_id, dict.fromkeys(partitions, True), owner)
        replaced = self.close(key)
        if replaced is not None:
            former = (*replaced.former_connections, replaced.connection_id)
            session.former_connections = tuple(
                number for number in former if number < connection_id
            )[-_FORMER_MAX:]
        count = self.partition_count + len(session.partitions)
        if count > self.partitions_max:
            raise ShareSessionRefused(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
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
        evicted = self.close(next(iter(largest)))
        if evicted is not None:
            self.on_evicted(evicted)

    def resume(
        self,
        key: ShareSessionKey,
        epoch: int,
        added: Iterable[TopicIdPartition] = (),
        forgotten: Iterable[TopicIdPartition] = (),
    ) -> ShareSession:
        """Return the session of the next request, with added and removed partitions. A final
        request changes nothing. Raises ShareSessionRefused.
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
        return session

    def close(self, key: ShareSessionKey) -> ShareSession | None:
        """Remove a session."""
        session = self._sessions.pop(key, None)
        if session is None:
            return None
        self.partition_count -= len(session.partitions)
        keys = self._by_connection[session.connection_id]
        del keys[key]
        if not keys:
            del self._by_connection[session.connection_id]
        owned = self._by_owner[session.owner]
        del owned[key]
        if not owned:
            del self._by_owner[session.owner]
        self._group_counts[key.group_id] -= 1
        if not self._group_counts[key.group_id]:
            del self._group_counts[key.group_id]
        return session

    def close_connection(self, connection_id: int) -> list[ShareSession]:
        """Remove the sessions of a closed connection."""
        keys = list(self._by_connection.get(connection_id, ()))
        return [session for key in keys if (session := self.close(key)) is not None]
