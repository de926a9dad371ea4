"""Data types of transactions: states, metadata, and effects for the coordinator."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from penstock.protocol.error_codes import ErrorCode

TopicPartition: TypeAlias = tuple[str, int]

NO_PRODUCER_ID: Final = -1
NO_EPOCH: Final = -1
NO_TIME_MS: Final = -1
EPOCH_MAX: Final = 2**15 - 1
EPOCH_LAST_GIVEN: Final = EPOCH_MAX - 1
"""The last epoch assigned to producers. The next one is reserved for fencing; after that, the
transactional id gets another producer id.
"""

EPOCH_PER_TRANSACTION: Final = 2
"""The first transaction version in which each transaction has its own epoch (KIP-890). In earlier
versions, producers keep their epoch.
"""


class TransactionState(IntEnum):
    """States of a transaction. The numbers are stored, so they must never be reused. Kafka's state
    7 (PrepareEpochFence) is not needed and never stored, because an open transaction is fenced in a
    single step, PrepareAbort with the next epoch.
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
        """Return the name used by DescribeTransactions and ListTransactions, such as
        `PrepareCommit`.
        """
        return "".join(word.capitalize() for word in self.name.split("_"))


SETTLED: Final = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)
"""States without an open transaction, in which a producer can be initialized and a transaction can
begin.
"""
PREPARED: Final = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
"""States with a final outcome whose markers are being written."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True)
class Membership:
    """A transaction in which the coordinator must verify or add partitions."""

    transactional_id: str
    producer: ProducerIdentity
    adds: bool


@dataclass(frozen=True, slots=True)
class TransactionMetadata:
    """The metadata of one transactional id. All fields except `last_producer_epoch` are stored; the
    last three are stored only in records of version 1.
    """

    transactional_id: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME_MS
    """The time at which the first partition was added, which starts the timeout."""
    updated_ms: int = NO_TIME_MS
    last_producer_epoch: int = NO_EPOCH
    """The epoch before the last increment that the producer itself requested, until the producer
    begins a transaction with the new epoch. Used to detect retries. As in Kafka, it is lost when
    the coordinator changes.
    """
    last_producer_id: int = NO_PRODUCER_ID
    """The producer id before its last change, or before the last transaction began. Used to detect
    retries.
    """
    next_producer_id: int = NO_PRODUCER_ID
    """The producer id after this transaction, if its end exhausts the epochs. The producer already
    uses this id.
    """
    client_version: int = 0
    """The transaction version of the client that began or ended the last transaction."""

    @property
    def producer(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def next_producer(self) -> ProducerIdentity:
        """Return the identity for the next transaction. It differs from `producer` only while a
        transaction that exhausts the epochs is ending.
        """
        if self.next_producer_id == NO_PRODUCER_ID:
            return self.producer
        return ProducerIdentity(self.next_producer_id, 0)


@dataclass(frozen=True, slots=True)
class Persist:
    """Append this record of the transactional id, then call `persisted` or `not_persisted`, and
    then respond.
    """

    metadata: TransactionMetadata
    response: ErrorCode = ErrorCode.NONE


@dataclass(frozen=True, slots=True)
class WriteMarkers:
    """Write the markers of a durable outcome, and then call `markers_written`."""

    metadata: TransactionMetadata

    @property
    def is_commit(self) -> bool:
        return self.metadata.state is TransactionState.PREPARE_COMMIT


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLimits:
    """Limits of transactions. Defaults are those of Kafka's `transaction.*` broker configs."""

    timeout_max_ms: int = 900_000
    partitions_max: int = 10_000
    """Maximum number of partitions in one transaction. This keeps the record and the request with
    the markers below 1 MB.
    """
    transactions_max: int = 50_000
    """Maximum number of transactional ids per partition of `__transaction_state`. Each uses about 1
    KiB. Above the limit, new ids fail with a retriable error.
    """
    id_expiration_ms: int = 7 * 24 * 3_600_000
    """`transactional.id.expiration.ms`: ids that have not been used for this long are dropped."""
