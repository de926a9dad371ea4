"""Values of the classic group protocol: requests, results, and effects for the coordinator."""

from dataclasses import dataclass
from typing import Final

from penstock.protocol.error_codes import ErrorCode

SUBSCRIPTION_BYTES_MAX: Final = 1 << 20
"""Maximum size of one member's protocols and subscriptions, which are kept in memory and sent to
the leader in every rebalance.
"""
PROTOCOLS_MAX: Final = 100
"""Maximum number of protocols of one member. Clients offer only a few, and each join compares the
protocols of all members.
"""

Token = int
"""Identifies a parked request. The coordinator maps it to the waiting request."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """An assignor that a member offers, with the member's subscription as opaque bytes."""

    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinRequest:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    needs_known_member_id: bool
    """KIP-394: clients with version 4 or later must join twice, the second time with the member id
    from the first response.
    """
    understands_skip: bool = False
    """KIP-814: clients with version 9 or later support `skip_assignment`."""

    @property
    def is_too_large(self) -> bool:
        """Return whether the request exceeds a per-member limit."""
        size_bytes = sum(len(offered.name) + len(offered.metadata) for offered in self.protocols)
        return len(self.protocols) > PROTOCOLS_MAX or size_bytes > SUBSCRIPTION_BYTES_MAX


@dataclass(frozen=True, slots=True)
class JoinResult:
    error: ErrorCode = ErrorCode.NONE
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    member_id: str = ""
    members: tuple[tuple[str, str | None, bytes], ...] = ()
    """(member id, instance id, subscription) of all members; sent only to the leader."""
    skip_assignment: bool = False
    """KIP-814: the member is the leader, and must keep the current assignment."""


@dataclass(frozen=True, slots=True)
class SyncRequest:
    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol: str | None
    assignments: dict[str, bytes]


@dataclass(frozen=True, slots=True)
class SyncResult:
    error: ErrorCode = ErrorCode.NONE
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    session_deadline_ms: int = 0
    join_token: Token | None = None
    """The parked JoinGroup. While a JoinGroup or SyncGroup is parked, the session cannot expire."""
    sync_token: Token | None = None

    @property
    def is_parked(self) -> bool:
        return self.join_token is not None or self.sync_token is not None

    def metadata_for(self, protocol: str) -> bytes:
        return next(
            (offered.metadata for offered in self.protocols if offered.name == protocol), b""
        )


@dataclass(frozen=True, slots=True)
class CompleteJoin:
    """Complete a JoinGroup, which may be parked or just received."""

    token: Token
    result: JoinResult


@dataclass(frozen=True, slots=True)
class CompleteSync:
    token: Token
    result: SyncResult


@dataclass(frozen=True, slots=True)
class PersistGroup:
    """Write the group's metadata record, then call `assignment_persisted` with this generation and
    the outcome.
    """

    generation: int


Effect = CompleteJoin | CompleteSync | PersistGroup


@dataclass(slots=True)
class GroupLimits:
    """Limits of groups. The defaults are those of Kafka's `group.*` broker configs."""

    session_timeout_min_ms: int = 6_000
    session_timeout_max_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    members_max: int = 1_000
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    """How long offsets are kept after their commit or after the last member left the group,
    whichever is later.
    """
