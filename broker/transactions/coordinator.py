"""The transaction coordinator of one broker. A transactional id belongs to a partition of
`__transaction_state`, whose leader coordinates it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from typing import Final, TypeAlias

from penstock.broker.coordination.compaction import CompactionLimits
from penstock.broker.coordination.connection_order import ConnectionOrder
from penstock.broker.coordination.log import CoordinatorLog
from penstock.broker.transactions.machine import Transaction
from penstock.broker.transactions.markers import MarkerSender
from penstock.broker.transactions.model import (
    EPOCH_PER_TRANSACTION,
    NO_EPOCH,
    NO_PRODUCER_ID,
    Membership,
    Persist,
    ProducerIdentity,
    TopicPartition,
    TransactionLimits,
    TransactionMetadata,
    TransactionState,
)
from penstock.broker.transactions.states import LocalMarkers, TransactionStates
from penstock.protocol.error_codes import ErrorCode

SETTLE_WAIT_S: Final = 1.0
"""How long a request waits for the markers of the previous transaction. Writing them takes one or
two PUTs, which is less than the retry backoff of most clients.
"""

Outcome: TypeAlias = ErrorCode | Persist
NO_PRODUCER: Final = ProducerIdentity(NO_PRODUCER_ID, NO_EPOCH)


class TransactionCoordinator:
    """The transaction coordinator. Call all methods on the event loop.

    Requests for a transactional id are handled one at a time, and acknowledged after the record of
    their change is durable. Late requests are rejected: in version 2, by the epoch of an earlier
    transaction; in older versions, because they arrive on a connection that is not the newest one
    (`ConnectionOrder`). Producer requests wait at most SETTLE_WAIT_S for the previous transaction,
    then fail with CONCURRENT_TRANSACTIONS. Requests from brokers do not wait, because that would
    delay other requests.

    now_ms: a clock that never steps, in milliseconds since 1970 (`base.clock.steady`).
    """

    def __init__(
        self,
        transactions_log: CoordinatorLog,
        markers: MarkerSender,
        limits: TransactionLimits,
        *,
        now_ms: Callable[[], int],
        allocate_producer_id: Callable[[], Awaitable[int]],
        tick_interval_ms: int,
        record_version: Callable[[], int] = lambda: 0,
        compaction: CompactionLimits | None = None,
        local: LocalMarkers | None = None,
        may_lack_records: Callable[[], bool] = lambda: False,
    ) -> None:
        """record_version: returns the version of new records, which depends on the level of
        `transaction.version`. local: writes markers to partitions led by this broker; if None, all
        markers are sent. may_lack_records: returns whether a WAL store was abandoned, so that logs
        may lack their newest records.
        """
        self._log = transactions_log
        self._markers = markers
        self._now_ms = now_ms
        self._allocate_producer_id = allocate_producer_id
        self._tick_interval_s = tick_interval_ms / 1_000
        self._states = TransactionStates(
            transactions_log,
            markers,
            limits,
            now_ms=now_ms,
            record_version=record_version,
            compaction=compaction,
            local=local,
            may_lack_records=may_lack_records,
        )
        self._shards = self._states.shards
        self._timer: asyncio.TimerHandle | None = None
        self._requests = ConnectionOrder()

    def reconfigure(self, *, timeout_max_ms: int, tick_interval_ms: int) -> None:
        """Replace the limits. New timeouts apply to later requests, and a new interval after the
        next tick.
        """
        self._states.limits = replace(self._states.limits, timeout_max_ms=timeout_max_ms)
        self._tick_interval_s = tick_interval_ms / 1_000

    # --- leadership -------------------------------------------------------------------------------

    def partition_opened(self, partition: int) -> None:
        self._shards.opened(partition)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(
                self._tick_interval_s, self._tick_periodically
            )

    def partition_closed(self, partition: int) -> None:
        self._shards.closed(partition)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._shards.close()
        self._markers.close()

    def partition_of(self, transactional_id: str) -> int | None:
        """Return the partition of `__transaction_state`, or None if the topic does not exist."""
        return self._shards.partition_of(transactional_id)

    # --- requests ---------------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None
    ) -> tuple[ErrorCode, ProducerIdentity]:
        """Assign the next epoch to the transactional id. This fences the previous producer and
        aborts its open transaction.

        Raises ControllerError and TimeoutError if no producer id is available.
        """
        if transactional_id == "":
            return ErrorCode.INVALID_REQUEST, NO_PRODUCER
        if not 0 < timeout_ms <= self._states.limits.timeout_max_ms:
            return ErrorCode.INVALID_TRANSACTION_TIMEOUT, NO_PRODUCER
        await self._shards.ready(transactional_id)
        fresh_producer_id = None
        found = self._shards.find(transactional_id)
        if not isinstance(found, ErrorCode):
            known = found.transactions.get(transactional_id)
            if known is None or known.needs_producer_id(expected):
                fresh_producer_id = await self._allocate_producer_id()
        given = NO_PRODUCER

        def step(transaction: Transaction) -> Outcome:
            nonlocal given
            outcome = transaction.init_producer(
                timeout_ms, expected, fresh_producer_id, self._now_ms()
            )
            if isinstance(outcome, Persist):
                given = ProducerIdentity(
                    outcome.metadata.producer_id, outcome.metadata.producer_epoch
                )
            return outcome

        code = await self._submit(transactional_id, step, create=True)
        return code, given if code is ErrorCode.NONE else NO_PRODUCER

    async def add_partitions(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        *,
        connection_id: int,
    ) -> ErrorCode:
        """Add partitions to the transaction. connection_id: a number that increases with each
        connection to this broker. Raises LateRequest.
        """
        added = frozenset(partitions)

        def step(transaction: Transaction) -> Outcome:
            self._requests.admit(
                transactional_id, producer.producer_id, producer.producer_epoch, connection_id
            )
            return transaction.add_partitions(producer, added, self._now_ms())

        return await self._submit(transactional_id, step)

    async def respond_to_leader(
        self, membership: Membership, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Respond to a partition leader that has received batches of the transaction: add the
        partitions, or check that they are included. Does not wait for the previous transaction.
        """
        wanted = frozenset(partitions)
        if membership.adds:
            code = await self._submit(
                membership.transactional_id,
                lambda transaction: transaction.add_partitions(
                    membership.producer, wanted, self._now_ms(), EPOCH_PER_TRANSACTION
                ),
                waits=False,
            )
            return dict.fromkeys(wanted, code)
        missing = await self._missing(membership, wanted)
        if isinstance(missing, ErrorCode):
            return dict.fromkeys(wanted, missing)
        return {
            partition: ErrorCode.TRANSACTION_ABORTABLE if partition in missing else ErrorCode.NONE
            for partition in wanted
        }

    async def _missing(
        self, membership: Membership, wanted: frozenset[TopicPartition]
    ) -> ErrorCode | frozenset[TopicPartition]:
        missing: ErrorCode | frozenset[TopicPartition] = frozenset()

        def step(transaction: Transaction) -> Outcome:
            nonlocal missing
            missing = transaction.missing_partitions(membership.producer, wanted)
            return missing if isinstance(missing, ErrorCode) else ErrorCode.NONE

        code = await self._submit(membership.transactional_id, step, waits=False)
        return missing if code is ErrorCode.NONE else code

    async def end_epoch(
        self, transactional_id: str, producer: ProducerIdentity, *, committed: bool
    ) -> tuple[ErrorCode, ProducerIdentity]:
        """End the transaction with this epoch, for producers of version 2. Return the producer id
        and epoch for the next transaction.

        Raises ControllerError and TimeoutError if no producer id is available.
        """
        await self._shards.ready(transactional_id)
        fresh_producer_id = None
        found = self._shards.find(transactional_id)
        if not isinstance(found, ErrorCode):
            known = found.transactions.get(transactional_id)
            if known is not None and known.end_needs_producer_id:
                fresh_producer_id = await self._allocate_producer_id()
        given = NO_PRODUCER

        def step(transaction: Transaction) -> Outcome:
            nonlocal given
            outcome = transaction.end_epoch(
                producer,
                committed=committed,
                fresh_producer_id=fresh_producer_id,
                now_ms=self._now_ms(),
            )
            metadata = outcome.metadata if isinstance(outcome, Persist) else transaction.current
            given = metadata.next_producer
            return outcome

        code = await self._submit(transactional_id, step)
        return code, given if code is ErrorCode.NONE else NO_PRODUCER

    async def end(
        self,
        transactional_id: str,
        producer: ProducerIdentity,
        *,
        committed: bool,
        connection_id: int,
    ) -> ErrorCode:
        """End the transaction. When this returns NONE, the outcome is final, and the markers are
        being sent. Raises LateRequest, as `add_partitions` does.
        """

        def step(transaction: Transaction) -> Outcome:
            self._requests.admit(
                transactional_id, producer.producer_id, producer.producer_epoch, connection_id
            )
            return transaction.end(producer, committed=committed, now_ms=self._now_ms())

        return await self._submit(transactional_id, step)

    async def describe(
        self, transactional_id: str, since_s: float | None = None
    ) -> TransactionMetadata | ErrorCode:
        """since_s: see `CoordinatorShards.ready`."""
        await self._shards.ready(transactional_id, since_s)
        found = self._shards.find(transactional_id, is_read=True)
        if isinstance(found, ErrorCode):
            return found
        transaction = found.transactions.get(transactional_id)
        return (
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            if transaction is None or transaction.is_new
            else transaction.current
        )

    async def all_ready(self) -> bool:
        """See `CoordinatorShards.all_ready`."""
        return await self._shards.all_ready()

    def listed(self) -> list[TransactionMetadata]:
        """Return the transactions in the loaded partitions."""
        return [
            transaction.current
            for state in self._shards.loaded()
            for transaction in state.transactions.values()
            if not transaction.is_new and transaction.current.state is not TransactionState.DEAD
        ]

    # --- one request at a time --------------------------------------------------------------------

    async def _submit(
        self,
        transactional_id: str,
        step: Callable[[Transaction], Outcome],
        *,
        create: bool = False,
        waits: bool = True,
    ) -> ErrorCode:
        """Run the step. If it must wait for the previous transaction and `waits` is set, run it
        again after that transaction. Returns once the record is durable.
        """
        if transactional_id == "":
            return ErrorCode.INVALID_REQUEST
        await self._shards.ready(transactional_id)
        deadline = asyncio.get_running_loop().time() + SETTLE_WAIT_S
        while True:
            state = self._shards.find(transactional_id)
            if isinstance(state, ErrorCode):
                return state
            transaction = self._states.transaction(state, transactional_id, create=create)
            outcome = transaction if isinstance(transaction, ErrorCode) else step(transaction)
            if isinstance(outcome, Persist):
                assert isinstance(transaction, Transaction), "an error persists nothing"
                outcome = await self._states.persist(state, transaction, outcome)
            elif not self._log.leads_alone:
                # Nothing is appended, so WAL fencing does not protect this response, and the next
                # coordinator may decide differently.
                return ErrorCode.NOT_COORDINATOR
            if (
                outcome is not ErrorCode.CONCURRENT_TRANSACTIONS
                or not waits
                or not await state.until_changed(transactional_id, deadline)
            ):
                return outcome

    # --- timers -----------------------------------------------------------------------------------

    def _tick_periodically(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(
            self._tick_interval_s, self._tick_periodically
        )
        self.tick()

    def tick(self) -> None:
        """Abort transactions that have timed out, and drop expired transactional ids."""
        now_ms = self._now_ms()
        for state in self._shards.loaded():
            for transaction in list(state.transactions.values()):
                persist = transaction.tick(now_ms)
                if persist is not None:
                    self._states.append(state, transaction, persist, lambda code: None)
