"""One transactional id, as a pure state machine (KIP-98, KIP-360, KIP-588, KIP-890).

Empty ─add─▶ Ongoing ─end─▶ PrepareCommit ─markers─▶ CompleteCommit ─add─▶ Ongoing ...
                └─end, timeout, a new producer─▶ PrepareAbort ─markers─▶ CompleteAbort
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from penstock.broker.transactions.model import (
    EPOCH_LAST_GIVEN,
    EPOCH_MAX,
    EPOCH_PER_TRANSACTION,
    NO_EPOCH,
    NO_PRODUCER_ID,
    NO_TIME_MS,
    PREPARED,
    SETTLED,
    Persist,
    ProducerIdentity,
    TopicPartition,
    TransactionLimits,
    TransactionMetadata,
    TransactionState,
    WriteMarkers,
)
from penstock.protocol.error_codes import ErrorCode

_VALID_NEXT: Final = {
    TransactionState.EMPTY: {
        TransactionState.EMPTY,
        TransactionState.ONGOING,
        TransactionState.PREPARE_ABORT,
        TransactionState.DEAD,
    },
    TransactionState.ONGOING: {
        TransactionState.ONGOING,
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
    },
    TransactionState.PREPARE_COMMIT: {TransactionState.COMPLETE_COMMIT},
    TransactionState.PREPARE_ABORT: {TransactionState.COMPLETE_ABORT},
    TransactionState.COMPLETE_COMMIT: {
        TransactionState.EMPTY,
        TransactionState.ONGOING,
        TransactionState.PREPARE_ABORT,
        TransactionState.DEAD,
    },
    TransactionState.COMPLETE_ABORT: {
        TransactionState.EMPTY,
        TransactionState.ONGOING,
        TransactionState.PREPARE_ABORT,
        TransactionState.DEAD,
    },
    TransactionState.DEAD: set[TransactionState](),
}


def new_transaction(transactional_id: str, limits: TransactionLimits) -> "Transaction":
    """Return the initial state of an unused transactional id. The id becomes visible with its first
    record.
    """
    metadata = TransactionMetadata(
        transactional_id, NO_PRODUCER_ID, NO_EPOCH, 0, TransactionState.EMPTY
    )
    return Transaction(metadata, limits)


class Transaction:
    """The transaction of one transactional id.

    At most one record is in flight (`pending`); until it completes, requests fail with
    CONCURRENT_TRANSACTIONS. `current` is the durable state. The outcome is final once PrepareCommit
    or PrepareAbort is durable. Markers are sent only after that, or become durable in the same
    step. An open transaction is fenced in a single step: PrepareAbort with the next epoch, which no
    producer receives. A failed record has no effect, so its epoch is used again.
    """

    __slots__ = ("_epochs_may_be_lost", "_limits", "_loaded_ms", "current", "pending")

    def __init__(
        self,
        metadata: TransactionMetadata,
        limits: TransactionLimits,
        *,
        loaded_ms: int | None = None,
        epochs_may_be_lost: bool = False,
    ) -> None:
        """loaded_ms: when the state was read from the log. The timeout of an open transaction
        restarts then, because its start time was recorded by another process, whose clock may be
        off by an hour.

        epochs_may_be_lost: whether the log may lack records. The next producer then gets a new
        producer id, because partitions may contain batches with later epochs of the old id, and
        would treat new batches as duplicates.
        """
        self._epochs_may_be_lost = epochs_may_be_lost
        self._loaded_ms = loaded_ms if metadata.state is TransactionState.ONGOING else None
        self.current = metadata
        """The durable metadata."""
        self.pending: TransactionMetadata | None = None
        self._limits = limits

    @property
    def is_new(self) -> bool:
        """Return True if there is no durable record with this transactional id."""
        return self.current.producer_epoch == NO_EPOCH

    # --- requests ---------------------------------------------------------------------------------

    def needs_producer_id(self, expected: ProducerIdentity | None) -> bool:
        """Return True if the next `init_producer` needs a new producer id, because there is none
        yet, or the epochs of the current one are exhausted or unknown.
        """
        if self.is_new:
            return True
        is_used_up = self._epochs_may_be_lost or self.current.producer_epoch >= EPOCH_LAST_GIVEN
        return is_used_up and (expected is None or self._is_current(expected))

    def init_producer(
        self,
        timeout_ms: int,
        expected: ProducerIdentity | None,
        fresh_producer_id: int | None,
        now_ms: int,
    ) -> ErrorCode | Persist:
        """Start a producer, or continue one after an error (`expected`, KIP-360). The producer's
        identity is in `current` after the record is durable.
        """
        if self.pending is not None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if expected is not None and not self._may_continue(expected):
            return ErrorCode.PRODUCER_FENCED
        if self.current.state is TransactionState.ONGOING:
            if expected is not None and not self._is_current(expected):
                # This is a late copy, because the producer has since begun a transaction with its
                # new epoch. Kafka aborts that transaction.
                return ErrorCode.PRODUCER_FENCED
            return self._persist(self._fenced(now_ms), ErrorCode.CONCURRENT_TRANSACTIONS)
        if self.current.state not in SETTLED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        given = (
            self._with_new_producer_id(expected, fresh_producer_id)
            if self.needs_producer_id(expected)
            else self._with_next_epoch(expected)
        )
        if isinstance(given, ErrorCode):
            return given
        return self._persist(
            replace(
                given,
                timeout_ms=timeout_ms,
                state=TransactionState.EMPTY,
                partitions=frozenset(),
                started_ms=NO_TIME_MS,
                updated_ms=now_ms,
            )
        )

    def _is_current(self, producer: ProducerIdentity) -> bool:
        return producer == ProducerIdentity(self.current.producer_id, self.current.producer_epoch)

    def _may_continue(self, expected: ProducerIdentity) -> bool:
        current = self.current
        if self.is_new or expected.producer_id == current.producer_id:
            return True
        return (
            expected.producer_id == current.last_producer_id
            and expected.producer_epoch >= EPOCH_LAST_GIVEN
        ) or (
            # A retry of the request that returned the current id.
            current.producer_epoch == 0
            and expected == ProducerIdentity(current.last_producer_id, current.last_producer_epoch)
        )

    def _with_new_producer_id(
        self, expected: ProducerIdentity | None, fresh_producer_id: int | None
    ) -> TransactionMetadata | ErrorCode:
        if fresh_producer_id is None:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        current = self.current
        last_epoch = current.producer_epoch if expected is not None else NO_EPOCH
        return replace(
            current,
            producer_id=fresh_producer_id,
            producer_epoch=0,
            last_producer_id=current.producer_id,
            last_producer_epoch=last_epoch,
        )

    def _with_next_epoch(
        self, expected: ProducerIdentity | None
    ) -> TransactionMetadata | ErrorCode:
        current = self.current
        if expected is None or self._is_current(expected):
            last_epoch = NO_EPOCH if expected is None else current.producer_epoch
            return replace(
                current, producer_epoch=current.producer_epoch + 1, last_producer_epoch=last_epoch
            )
        if expected.producer_epoch == current.last_producer_epoch:
            # a retry after a lost response, which may have contained a different producer id
            return current
        return ErrorCode.PRODUCER_FENCED

    def add_partitions(
        self,
        producer: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        now_ms: int,
        client_version: int = 0,
    ) -> ErrorCode | Persist:
        refusal = self._check_producer(producer)
        if refusal is not None:
            return refusal
        current = self.current
        if current.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        is_ongoing = current.state is TransactionState.ONGOING
        added = current.partitions.union(partitions)
        if is_ongoing and added == current.partitions:
            return ErrorCode.NONE
        if len(added) > self._limits.partitions_max:
            return ErrorCode.INVALID_REQUEST
        started_ms = current.started_ms if is_ongoing else now_ms
        return self._persist(
            replace(
                current,
                state=TransactionState.ONGOING,
                partitions=added,
                started_ms=started_ms,
                updated_ms=now_ms,
                # The producer uses the epoch that it received, so from now on, retries of the
                # request for that epoch are late.
                last_producer_id=current.producer_id,
                last_producer_epoch=NO_EPOCH,
                client_version=client_version,
            )
        )

    def missing_partitions(
        self, producer: ProducerIdentity, partitions: Iterable[TopicPartition]
    ) -> ErrorCode | frozenset[TopicPartition]:
        """Return the partitions that are not in the producer's open transaction. A record in flight
        does not matter, because partition leaders check again when they append.
        """
        refusal = self._check_identity(producer)
        if refusal is not None:
            return refusal
        if self.current.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        return frozenset(partitions) - self.current.partitions

    def end(
        self, producer: ProducerIdentity, *, committed: bool, now_ms: int
    ) -> ErrorCode | Persist:
        """End the transaction. The response is sent after the outcome is durable and thus final. A
        retry with the same outcome succeeds.
        """
        refusal = self._check_producer(producer)
        if refusal is not None:
            return refusal
        state = self.current.state
        prepared = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
        completed = (
            TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
        )
        if state is TransactionState.ONGOING:
            # The markers have the same epoch, regardless of the version that the producer began
            # with.
            return self._persist(
                replace(self.current, state=prepared, updated_ms=now_ms, client_version=0)
            )
        if state is completed:
            return ErrorCode.NONE
        return (
            ErrorCode.CONCURRENT_TRANSACTIONS if state is prepared else ErrorCode.INVALID_TXN_STATE
        )

    def _check_producer(self, producer: ProducerIdentity) -> ErrorCode | None:
        if self._is_ending and producer == self.current.next_producer != self.current.producer:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        refusal = self._check_identity(producer)
        if refusal is not None:
            return refusal
        return ErrorCode.CONCURRENT_TRANSACTIONS if self.pending is not None else None

    def _check_identity(self, producer: ProducerIdentity) -> ErrorCode | None:
        if producer.producer_id != self.current.producer_id or self.is_new:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if producer.producer_epoch != self.current.producer_epoch:
            return ErrorCode.PRODUCER_FENCED
        return None

    @property
    def _is_ending(self) -> bool:
        return self.current.state in PREPARED

    # --- ends with the next epoch -----------------------------------------------------------------

    @property
    def end_needs_producer_id(self) -> bool:
        """Return True if the next `end_epoch` needs a new producer id, because the epochs are
        exhausted.
        """
        return self.current.producer_epoch >= EPOCH_LAST_GIVEN

    def end_epoch(
        self,
        producer: ProducerIdentity,
        *,
        committed: bool,
        fresh_producer_id: int | None,
        now_ms: int,
    ) -> ErrorCode | Persist:
        """End the transaction with this epoch, for producers of version 2. The producer continues
        with `next_producer` in the record, or in `current` if the request is a retry.

        The record and the markers have the next epoch, so the epoch of a late request shows that
        its transaction has ended. A producer may also abort before its transaction has begun,
        because a batch may be in flight.
        """
        current = self.current
        if self.pending is not None or self._is_ending:
            # The producer may already use the identity that the pending request returned.
            return ErrorCode.CONCURRENT_TRANSACTIONS
        is_repeated = self._has_ended(producer)
        refusal = None if is_repeated else self._check_identity(producer)
        if refusal is not None:
            return refusal
        if is_repeated:
            completed = (
                TransactionState.COMPLETE_COMMIT if committed else TransactionState.COMPLETE_ABORT
            )
            return ErrorCode.NONE if current.state is completed else ErrorCode.INVALID_TXN_STATE
        has_begun = current.state is TransactionState.ONGOING
        if committed and not has_begun:
            return ErrorCode.INVALID_TXN_STATE
        next_producer_id = NO_PRODUCER_ID
        if self.end_needs_producer_id:
            if fresh_producer_id is None:
                return ErrorCode.CONCURRENT_TRANSACTIONS
            next_producer_id = fresh_producer_id
        state = TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT
        return self._persist(
            replace(
                current,
                state=state,
                producer_epoch=current.producer_epoch + 1,
                last_producer_epoch=current.producer_epoch,
                next_producer_id=next_producer_id,
                started_ms=current.started_ms if has_begun else now_ms,
                updated_ms=now_ms,
                client_version=EPOCH_PER_TRANSACTION,
            )
        )

    def _has_ended(self, producer: ProducerIdentity) -> bool:
        """Return True if the last transaction had this epoch, so that the request is a retry."""
        current = self.current
        if current.state not in {
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        }:
            return False
        if current.producer_epoch == 0:
            return producer == ProducerIdentity(current.last_producer_id, EPOCH_LAST_GIVEN)
        return (
            current.client_version >= EPOCH_PER_TRANSACTION
            and current.producer_epoch <= EPOCH_LAST_GIVEN
            and producer == ProducerIdentity(current.producer_id, current.producer_epoch - 1)
        )

    # --- time -------------------------------------------------------------------------------------

    def tick(self, now_ms: int) -> Persist | None:
        """Abort a transaction that has timed out and fence its producer, or drop an expired
        transactional id.
        """
        current = self.current
        if self.pending is not None or self.is_new:
            return None
        open_since_ms = current.started_ms if self._loaded_ms is None else self._loaded_ms
        if (
            current.state is TransactionState.ONGOING
            and now_ms > open_since_ms + current.timeout_ms
        ):
            return self._persist(self._fenced(now_ms))
        if current.state in SETTLED and now_ms > current.updated_ms + self._limits.id_expiration_ms:
            return self._persist(replace(current, state=TransactionState.DEAD, updated_ms=now_ms))
        return None

    def _fenced(self, now_ms: int) -> TransactionMetadata:
        current = self.current
        assert current.producer_epoch < EPOCH_MAX, (
            "no producer is given the last epoch, so none can have a transaction open in it"
        )
        return replace(
            current,
            producer_epoch=current.producer_epoch + 1,
            last_producer_epoch=NO_EPOCH,
            state=TransactionState.PREPARE_ABORT,
            updated_ms=now_ms,
        )

    # --- results ----------------------------------------------------------------------------------

    def persisted(self) -> WriteMarkers | None:
        assert self.pending is not None, "no record is in flight"
        if self.pending.producer_id != self.current.producer_id:
            self._epochs_may_be_lost = False
        self.current, self.pending = self.pending, None
        if self.current.state is not TransactionState.ONGOING:
            self._loaded_ms = None
        return self.resume()

    def not_persisted(self) -> None:
        self.pending = None

    def resume(self) -> WriteMarkers | None:
        """Return the markers that must be written in the durable state, or None. Also called after
        the state has been loaded.
        """
        return WriteMarkers(self.current) if self.current.state in PREPARED else None

    def markers_written(self, now_ms: int) -> Persist:
        """Complete the transaction, after all partitions have the marker or no longer exist. May be
        called again if the record could not be written.
        """
        return self._persist(_completed(self.current, now_ms))

    def complete_at_once(self, outcome: TransactionMetadata, now_ms: int) -> TransactionMetadata:
        """Replace the pending record of the outcome, which has not been appended yet, with the
        record of the completed transaction. The markers become durable together with it.
        """
        assert outcome.state in PREPARED, outcome.state.label
        self.pending = _completed(outcome, now_ms)
        return self.pending

    def complete_later(self, outcome: TransactionMetadata) -> None:
        """Undo `complete_at_once`, because the markers could not be appended."""
        self.pending = outcome

    def _persist(
        self, metadata: TransactionMetadata, response: ErrorCode = ErrorCode.NONE
    ) -> Persist:
        assert self.pending is None, f"{self.current.transactional_id}: {self.pending} is in flight"
        assert metadata.state in _VALID_NEXT[self.current.state], (
            f"{self.current.state.label} to {metadata.state.label}"
        )
        self.pending = metadata
        return Persist(metadata, response)


def _completed(outcome: TransactionMetadata, now_ms: int) -> TransactionMetadata:
    is_commit = outcome.state is TransactionState.PREPARE_COMMIT
    completed = replace(
        outcome,
        state=TransactionState.COMPLETE_COMMIT if is_commit else TransactionState.COMPLETE_ABORT,
        partitions=frozenset(),
        updated_ms=now_ms,
        producer_id=outcome.next_producer.producer_id,
        producer_epoch=outcome.next_producer.producer_epoch,
        next_producer_id=NO_PRODUCER_ID,
    )
    if outcome.next_producer_id == NO_PRODUCER_ID:
        return completed
    return replace(completed, last_producer_id=outcome.producer_id)
