"""Detect late requests: those on a connection older than the sender's newest one (KAFKA-17754,
KIP-890).

A client that receives no response closes the connection and retries on a new one; the first request
may still arrive after that. Brokers number connections in the order in which they accept them.
"""

from collections import OrderedDict
from hashlib import blake2b
from typing import Final, TypeAlias

from penstock.broker.network.dispatcher import CannotRespond
from penstock.protocol import apis

PRODUCERS_MAX: Final = 50_000
MEMBERS_MAX: Final = 100_000
"""Maximum number of entries, of about 300 bytes each. A member has one entry per API that it
uses.
"""
STATIC_JOIN: Final = -1
"""Replaces the API key for JoinGroup and ConsumerGroupHeartbeat requests with which a static member
starts. These are tracked by instance id.
"""
NAME_CHARS_MAX: Final = 128
"""Longer names are replaced by their hashes, because clients choose them."""
Key: TypeAlias = tuple[str | bytes | int, ...]
_COMMIT: Final = apis.OFFSET_COMMIT.key


class LateRequest(CannotRespond):
    """Raised instead of executing a request that the client has abandoned. The client no longer
    reads the connection.
    """


class ConnectionOrder:
    """The newest connection of each sender.

    No client is locked out: the caller closes the connection of a `LateRequest`, and a new one is
    never late. Above `entries_max` entries, the least recently used one is dropped, so late
    requests of its sender are executed.
    """

    __slots__ = ("_entries_max", "_highest", "_newest")

    def __init__(self, entries_max: int = PRODUCERS_MAX) -> None:
        self._newest: OrderedDict[Key, int] = OrderedDict()
        self._entries_max = entries_max
        self._highest = 0
        """The newest connection of a group member."""

    def __len__(self) -> int:
        return len(self._newest)

    def admit(self, name: str, producer_id: int, producer_epoch: int, connection_id: int) -> None:
        """Record a producer request that is about to be executed. name: the producer's
        transactional id or its consumer group. Raises LateRequest.
        """
        newest = self._advance((short_name(name), producer_id, producer_epoch), connection_id)
        if connection_id < newest:
            raise LateRequest(
                f"a request for {name} of producer {producer_id} epoch {producer_epoch} is late:"
                f" its connection ({connection_id}) is older than the producer's current one"
                f" ({newest}); reconnect and retry"
            )

    def admit_member(
        self, api_key: int, group_id: str, member_id: str, connection_id: int | None
    ) -> None:
        """Record a request of a group member. Each API is tracked separately, because a client may
        use several connections. Requests without a member id or a connection (None) are never late.
        Raises LateRequest.
        """
        self._highest = max(self._highest, connection_id or 0)
        if not member_id or connection_id is None:
            return
        key = api_key, short_name(group_id), short_name(member_id)
        newest = self._advance(key, connection_id)
        if connection_id < newest:
            raise _late_of_member(api_key, group_id, member_id, connection_id, newest)

    def admit_commit(
        self,
        group_id: str,
        member_id: str,
        connection_id: int | None,
        *,
        advances: bool,
        moves_back: bool,
    ) -> None:
        """Record an OffsetCommit of a group member. A commit that only advances offsets is late
        only if the member has moved an offset back on a newer connection, because clients with a
        connection pool reuse older connections.

        advances: whether no offset moves back or is the first one of its partition. moves_back:
        whether any offset moves back. Raises LateRequest.
        """
        if not member_id or connection_id is None:
            return
        key: Key = (_COMMIT, short_name(group_id), short_name(member_id))
        back_key = (*key, "back")
        newest = self._advance(key, connection_id)
        newest_back = self._advance(back_key, 0) if back_key in self._newest else 0
        if connection_id < (newest_back if advances else newest):
            raise _late_of_member(_COMMIT, group_id, member_id, connection_id, newest)
        if moves_back:
            self._advance(back_key, connection_id)

    def end_member(self, api_key: int, group_id: str, member_id: str, connection_id: int) -> None:
        """Record that a member has left with a request of another API, so that requests of this
        API count as late on all connections that have been used before. A client may use one
        connection per API, and that of this API may be the newer one.
        """
        ended_at = max(connection_id, self._highest) + 1
        self._advance((api_key, short_name(group_id), short_name(member_id)), ended_at)

    def _advance(self, key: Key, connection_id: int) -> int:
        """Record the connection, and return the sender's newest one."""
        newest = max(connection_id, self._newest.get(key, connection_id))
        self._newest[key] = newest
        self._newest.move_to_end(key)
        if len(self._newest) > self._entries_max:
            self._newest.popitem(last=False)
        return newest


def short_name(name: str) -> str | bytes:
    """Return the name, or its hash if it is long."""
    return name if len(name) <= NAME_CHARS_MAX else blake2b(name.encode(), digest_size=16).digest()


def _late_of_member(
    api_key: int, group_id: str, member_id: str, connection_id: int, newest: int
) -> LateRequest:
    return LateRequest(
        f"a request (API {api_key}) for group {group_id} of member {member_id} is late:"
        f" its connection ({connection_id}) is older than the member's current one"
        f" ({newest}); reconnect and retry"
    )
