"""The durable state of share partitions (KIP-932), and the port through which their leaders access
it.

A share partition is a partition as consumed by one share group. Its state lists which records are
done, and the delivery counts of the others.
"""

from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from uuid import UUID

from penstock.protocol.error_codes import ErrorCode

AVAILABLE: Final = 0
ACKNOWLEDGED: Final = 2
ARCHIVED: Final = 4
"""The stored delivery states, with Kafka's numbers."""

ANY_EPOCH: Final = -1
"""Sent by callers without an epoch, which are not fenced."""
NO_START_OFFSET: Final = -1
"""The share-partition leader must derive the start offset from `share.auto.offset.reset`."""
TOPIC_ID_LENGTH: Final = 22
"""Length of a topic id in text form."""
NO_COUNT: Final = -1
"""The number of completed deliveries is unknown."""


@dataclass(frozen=True, slots=True)
class SharePartitionKey:
    group_id: str
    topic_id: UUID
    partition: int

    @property
    def coordinator_key(self) -> str:
        """The key for FindCoordinator, which also selects the partition of
        `__share_group_state`.
        """
        return f"{self.group_id}:{encode_topic_id(self.topic_id)}:{self.partition}"


@dataclass(frozen=True, slots=True)
class StateBatch:
    """Consecutive records in the same state."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


@dataclass(frozen=True, slots=True)
class ShareState:
    state_epoch: int
    start_offset: int
    """The first offset that is not done, or NO_START_OFFSET if it is not known yet."""
    leader_epoch: int
    batches: tuple[StateBatch, ...] = ()
    """In offset order, without overlaps."""


@dataclass(frozen=True, slots=True)
class ShareStateSummary:
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    """Number of done records at or after the start offset, or NO_COUNT if unknown."""
    deleted_epoch: int = ANY_EPOCH
    """The last epoch of a deleted state, if the coordinator remembers it."""


class ShareStateError(Exception):
    """Raised when a state cannot be read or written. `code` is one of:

    FENCED_STATE_EPOCH, FENCED_LEADER_EPOCH: a newer group or leader has written the state.
    UNKNOWN_TOPIC_OR_PARTITION: the partition does not exist. INVALID_REQUEST: the state was not
    initialized, or the values are invalid. NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
    COORDINATOR_NOT_AVAILABLE: all retries until the deadline have failed, and the outcome of a
    write is unknown.
    """

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code


class ShareStateStore(Protocol):
    """Reads and writes states. Writes return after they are durable. All methods raise
    ShareStateError.
    """

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Awaitable[ShareState]:
        """Return the state for the leader with this epoch, and fence earlier leaders."""
        ...

    def write(
        self,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> Awaitable[None]:
        """Merge the batches into the state, and drop batches below the start offset."""
        ...

    def initialize(
        self, key: SharePartitionKey, *, state_epoch: int, start_offset: int
    ) -> Awaitable[None]:
        """Create a new state without batches."""
        ...

    def delete(self, key: SharePartitionKey, *, state_epoch: int = ANY_EPOCH) -> Awaitable[None]:
        """Delete the state. Fails with FENCED_STATE_EPOCH if a group with a newer epoch has created
        it. A missing state is not an error.
        """
        ...

    def summary(
        self, key: SharePartitionKey, leader_epoch: int = -1
    ) -> Awaitable[ShareStateSummary]:
        """Return the state without its batches, and without fencing a leader."""
        ...


def encode_topic_id(topic_id: UUID) -> str:
    """Return the id as Kafka tools display it, in URL-safe base64 without padding."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def is_coordinator_key(text: str) -> bool:
    """Return True if the key has the form group:topicId:partition. The group may be any non-empty
    string.
    """
    group_id, _, rest = text.partition(":") if text.count(":") == 2 else ("", "", "")
    topic_id, _, partition = rest.partition(":")
    return bool(group_id) and len(topic_id) == TOPIC_ID_LENGTH and partition.isdecimal()
