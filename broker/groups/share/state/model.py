"""The durable state of share partitions, and the port through which their leaders use it.

A share partition is a partition of a topic as one share group consumes it. Its state says which
records are done and how often the others were delivered; the share coordinator keeps it in
`__share_group_state`.
Must not: know how the state travels or is stored.
Source: Kafka Persister, PersisterStateBatch; KIP-932.
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
"""The delivery states that are stored, with Kafka's numbers."""

ANY_EPOCH: Final = -1
"""The caller has no epoch, and is not fenced."""
NO_START_OFFSET: Final = -1
"""The share-partition leader has to find the start offset by `share.auto.offset.reset`."""
TOPIC_ID_LENGTH: Final = 22
"""Characters of a topic id as text."""
NO_COUNT: Final = -1
"""The number of complete deliveries is not known."""


@dataclass(frozen=True, slots=True)
class SharePartitionKey:
    group_id: str
    topic_id: UUID
    partition: int

    @property
    def coordinator_key(self) -> str:
        """The key of FindCoordinator, which also selects the partition of `__share_group_state`."""
        return f"{self.group_id}:{encode_topic_id(self.topic_id)}:{self.partition}"


@dataclass(frozen=True, slots=True)
class StateBatch:
    """Records that follow one another in the log and are in the same state."""

    first_offset: int
    last_offset: int
    delivery_state: int
    delivery_count: int


@dataclass(frozen=True, slots=True)
class ShareState:
    state_epoch: int
    start_offset: int
    """The first offset that is not done; NO_START_OFFSET: not known yet."""
    leader_epoch: int
    batches: tuple[StateBatch, ...] = ()
    """In the order of their offsets, which do not overlap."""


@dataclass(frozen=True, slots=True)
class ShareStateSummary:
    state_epoch: int
    leader_epoch: int
    start_offset: int
    delivery_complete_count: int
    """Records at or behind the start offset that are done; NO_COUNT: not known."""
    deleted_epoch: int = ANY_EPOCH
    """The last epoch of a state that was deleted, if the coordinator remembers it."""


class ShareStateError(Exception):
    """Raised when the state cannot be read or written; `code` says why.

    FENCED_STATE_EPOCH, FENCED_LEADER_EPOCH: another group or leader has written since.
    UNKNOWN_TOPIC_OR_PARTITION: there is no such partition. INVALID_REQUEST: the state was not
    initialized, or the values are invalid.
    NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE: retries have not
    helped within the deadline, and a write may have happened or not.
    """

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code


class ShareStateStore(Protocol):
    """Reads and writes states. What it has written is durable. Raises ShareStateError."""

    def read(self, key: SharePartitionKey, leader_epoch: int) -> Awaitable[ShareState]:
        """Return the state for the leader of this epoch; earlier leaders are fenced from now on."""
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
        """Merge the batches into the state, which forgets what is below the start offset."""
        ...

    def initialize(
        self, key: SharePartitionKey, *, state_epoch: int, start_offset: int
    ) -> Awaitable[None]:
        """Begin a new state without batches."""
        ...

    def delete(self, key: SharePartitionKey, *, state_epoch: int = ANY_EPOCH) -> Awaitable[None]:
        """Delete the state, unless a newer group than that of this epoch has begun it
        (FENCED_STATE_EPOCH). A state that does not exist is no error.
        """
        ...

    def summary(
        self, key: SharePartitionKey, leader_epoch: int = -1
    ) -> Awaitable[ShareStateSummary]:
        """Return the state without its batches, and fence no leader."""
        ...


def encode_topic_id(topic_id: UUID) -> str:
    """Return the id as Kafka's tools show it: URL-safe base64 without padding."""
    return urlsafe_b64encode(topic_id.bytes).rstrip(b"=").decode()


def is_coordinator_key(text: str) -> bool:
    """Return True for group:topicId:partition. Only the group may be anything but empty."""
    group_id, _, rest = text.partition(":") if text.count(":") == 2 else ("", "", "")
    topic_id, _, partition = rest.partition(":")
    return bool(group_id) and len(topic_id) == TOPIC_ID_LENGTH and partition.isdecimal()
