"""Values of a transaction: its states, what is remembered of it, what the shell has to do.

Source: Kafka `transaction-coordinator` (TransactionState, TransactionMetadata); KIP-98, KIP-360.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from broker.wire.error_codes import ErrorCode

TopicPartition: TypeAlias = tuple[str, int]

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME_MS: Final = -1
EPOCH_MAX: Final = 2**15 - 1
EPOCH_LAST_GIVEN: Final = EPOCH_MAX - 1
"""The last epoch that a producer gets; the one above is left to fence it. Then the transactional id
gets another producer id.
"""


class TransactionState(IntEnum):
    """The numbers are stored: never reuse one. Kafka's 7 (PrepareEpochFence) is never stored and
    not needed: see `machine`.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6

    @property
    def label(self) -> str:
        """As DescribeTransactions and ListTransactions show it: `PrepareCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))


SETTLED: Final = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)
"""Nothing is open: a producer may be initialized, a transaction begun."""
PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""The outcome is decided; markers are being written."""


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """What one transactional id is at. All but the two `last_` fields is stored."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME_MS
    """When the first partition was added; the timeout counts from here."""
    updated_ms: int = NO_TIME_MS
    last_producer_id: int = NO_PRODUCER_ID
    """Before the last change of the producer id. For repeated requests; lost with the coordinator,
    as in Kafka.
    """
    last_producer_epoch: int = NO_EPOCH
    """Before the last bump that the producer itself asked for."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Persist:
    """Make this the record of the transactional id, then say `persisted`, or `not_persisted`; only
    then answer.
    """

    metadata: TransactionMetadata
    answer: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """The outcome is durable: tell the partitions, then say `markers_written`."""

    metadata: TransactionMetadata

    @property
    def is_commit(self) -> bool:
        return self.metadata.state is TransactionState.PREPARE_COMMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """Defaults are Kafka's `transaction.*` broker configs."""

    timeout_max_ms: int = 900_000
    partitions_max: int = 10_000
    """Of one transaction: its record, and a request of markers, stay under a megabyte with it."""
    transactions_max: int = 50_000
    """Transactional ids per partition of `__transaction_state`, about 1 KiB each; above, new ones
    are told to try again later.
    """
    id_expiration_ms: int = 7 * 24 * 3_600_000
    """`transactional.id.expiration.ms`: an id that nobody used for so long is forgotten."""
