"""The transaction coordinator of one broker: runs `Transaction` and keeps its state in
`__transaction_state`.

A transactional id belongs to one partition of that topic; the leader of the partition coordinates
it. Becoming leader loads the partition and continues with decided but unfinished transactions.
Where this broker leads all partitions of a transaction, its end is one group of the storage: the
markers and the record of the completed transaction (ADR 0061). Otherwise the outcome is recorded
first, and the markers are sent.
Invariants: requests are answered and markers sent only when the record of the change is durable.
Records of an id are appended one after the other. Markers carry the leader epoch of the partition,
so that those of an earlier coordinator are refused, and the serial of their transaction, so that a
late copy does not end the next one. The serial is the end of the partition's log when the outcome
was appended, or when it was loaded: it grows from transaction to transaction, regardless of clocks.
Late requests are not executed: those of version 2 have the epoch of their transaction, and others
come on an older connection than one that their producer has used since (`ConnectionOrder`).
Limits: `TransactionLimits`. A producer's request waits at most SETTLE_WAIT_S for the previous
transaction, then it gets CONCURRENT_TRANSACTIONS. Requests of brokers do not wait, because others
wait behind them.
Must not: know Kafka requests (handlers do), or how markers are sent.
Source: Kafka TransactionCoordinator, TransactionStateManager.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeAlias

import structlog

from broker.coordination.compaction import CompactionLimits, Live
from broker.coordination.connection_order import ConnectionOrder
from broker.coordination.log import CoordinatorLog, KeyValue, MarkerParts
from broker.coordination.shards import CoordinatorShards
from broker.transactions.machine import Transaction, new_transaction
from broker.transactions.markers import MarkerSender
from broker.transactions.model import (
    EPOCH_PER_TRANSACTION,
    NO_EPOCH,
    NO_PRODUCER_ID,
    PREPARED,
    Membership,
    Persist,
    ProducerIdentity,
    TopicPartition,
    TransactionLimits,
    TransactionMetadata,
    TransactionState,
    WriteMarkers,
)
from broker.transactions.records import (
    MalformedTransactionRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from broker.wire.error_codes import ErrorCode
from stream.batch.control import Marker

log = structlog.get_logger(__name__)

SETTLE_WAIT_S: Final = 1.0
"""How long a request waits for the markers of the previous transaction: one or two PUTs, less than
the retry pause of most clients.
"""
COMPLETE_RETRY_S: Final = 0.2

Outcome: TypeAlias = ErrorCode | Persist
NO_PRODUCER: Final = ProducerIdentity(NO_PRODUCER_ID, NO_EPOCH)


@dataclass(slots=True, eq=False)
class _Partition:
    """One loaded partition of `__transaction_state`."""

    index: int
    epoch: int
    loaded_end_offset: int
    """End of the log when it was loaded: the serial of transactions that were decided earlier."""
    transactions: dict[str, Transaction] = field(default_factory=dict[str, Transaction])
    waiting: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    """By transactional id: requests that wait until a record of it is durable, or failed."""


class LocalMarkers(Protocol):
    """Writes markers to partitions that this broker leads."""

    def parts(
        self, marker: Marker, partitions: Iterable[TopicPartition], version: int
    ) -> MarkerParts | None:
        """Return what to append, or None unless this broker leads all partitions and none of them
        has a marker like this one or a later one. version: of the transaction.
        """
        ...

    def written(self, marker: Marker, parts: MarkerParts) -> None:
        """Apply or drop the transaction's offsets: its markers are durable."""
        ...


class TransactionCoordinator:
    """The transaction coordinator. Call all methods on the event loop.

    now_ms: milliseconds since 1970 of a clock that never steps (`base.clock.steady`).
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
    ) -> None:
        """record_version: returns the version of new records, which the level of
        `transaction.version` allows. local: None: all markers are sent.
        """
        self._log = transactions_log
        self._markers = markers
        self._limits = limits
        self._now_ms = now_ms
        self._allocate_producer_id = allocate_producer_id
        self._tick_interval_s = tick_interval_ms / 1_000
        self._record_version = record_version
        self._local = local
        self._shards: CoordinatorShards[_Partition] = CoordinatorShards(
            transactions_log,
            self._load,
            self._unload,
            lambda state: _LiveTransactions(state, record_version),
            compaction,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._requests = ConnectionOrder()

    def reconfigure(self, *, timeout_max_ms: int, tick_interval_ms: int) -> None:
        """Use other limits: of timeouts from the next request on, of ticks after the next one."""
        self._limits = replace(self._limits, timeout_max_ms=timeout_max_ms)
        self._tick_interval_s = tick_interval_ms / 1_000

    # --- becoming and ceasing to be coordinator ---------------------------------------------------

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
        """Return the partition of `__transaction_state`, or None while the topic does not exist."""
        return self._shards.partition_of(transactional_id)

    async def _load(self, partition: int) -> _Partition:
        state = _Partition(
            partition, self._log.leader_epoch(partition), self._log.end_offset(partition)
        )
        malformed_count = 0
        async for batch in self._shards.read(partition):
            for key, value in batch.records:
                try:
                    self._replay(state, key, value)
                except MalformedTransactionRecord:
                    malformed_count += 1
        # Resume decided transactions only when this state can be found, because `done` looks for
        # it.
        asyncio.get_running_loop().call_soon(self._resume, state)
        log.info(
            "transactions_loaded",
            partition=partition,
            transactions=len(state.transactions),
            malformed=malformed_count,
        )
        return state

    def _replay(self, state: _Partition, key: bytes, value: bytes | None) -> None:
        transactional_id = decode_key(key)
        if transactional_id is None:
            return
        if value is None:
            state.transactions.pop(transactional_id, None)
        else:
            state.transactions[transactional_id] = Transaction(
                decode_value(transactional_id, value), self._limits, loaded_ms=self._now_ms()
            )

    def _resume(self, state: _Partition) -> None:
        for transaction in state.transactions.values():
            self._send_markers(state, transaction, transaction.resume(), state.loaded_end_offset)

    def _unload(self, state: _Partition) -> None:
        self._markers.forget(state.index)
        for transactional_id in list(state.waiting):
            _wake_waiting(state, transactional_id)

    # --- requests ---------------------------------------------------------------------------------

    async def init_producer_id(
        self, transactional_id: str, timeout_ms: int, expected: ProducerIdentity | None
    ) -> tuple[ErrorCode, ProducerIdentity]:
        """Give the transactional id its next epoch. Fences the previous producer and aborts its
        open transaction.

        Raises ControllerError and TimeoutError if no producer id is available.
        """
        if transactional_id == "":
            return ErrorCode.INVALID_REQUEST, NO_PRODUCER
        if not 0 < timeout_ms <= self._limits.timeout_max_ms:
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
        """Add partitions to the transaction. connection_id grows with each connection of this
        broker. Raises LateRequest.
        """
        added = frozenset(partitions)

        def step(transaction: Transaction) -> Outcome:
            self._requests.admit(
                transactional_id, producer.producer_id, producer.producer_epoch, connection_id
            )
            return transaction.add_partitions(producer, added, self._now_ms())

        return await self._submit(transactional_id, step)

    async def answer_leader(
        self, membership: Membership, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, ErrorCode]:
        """Answer the leader of partitions that has batches of the transaction: add the partitions
        to it, or say which ones it has. Does not wait for the previous transaction.
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
        """End the transaction of this epoch, for producers of version 2. Returns what the producer
        uses for its next transaction.

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
        """End the transaction. When it returns NONE the outcome is final, and the markers are being
        sent. Raises LateRequest, as `add_partitions` does.
        """

        def step(transaction: Transaction) -> Outcome:
            self._requests.admit(
                transactional_id, producer.producer_id, producer.producer_epoch, connection_id
            )
            return transaction.end(producer, committed=committed, now_ms=self._now_ms())

        return await self._submit(transactional_id, step)

    async def describe(self, transactional_id: str) -> TransactionMetadata | ErrorCode:
        await self._shards.ready(transactional_id)
        found = self._shards.find(transactional_id, is_read=True)
        if isinstance(found, ErrorCode):
            return found
        transaction = found.transactions.get(transactional_id)
        return (
            ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
            if transaction is None or transaction.is_new
            else transaction.current
        )

    def listed(self) -> list[TransactionMetadata]:
        """Return the transactions of the partitions that are loaded here."""
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
        """Run the step, again after the previous transaction has finished if it waits for that.
        Returns when its record is durable.
        """
        if transactional_id == "":
            return ErrorCode.INVALID_REQUEST
        await self._shards.ready(transactional_id)
        deadline = asyncio.get_running_loop().time() + SETTLE_WAIT_S
        while True:
            state = self._shards.find(transactional_id)
            if isinstance(state, ErrorCode):
                return state
            transaction = self._transaction(state, transactional_id, create=create)
            outcome = transaction if isinstance(transaction, ErrorCode) else step(transaction)
            if isinstance(outcome, Persist):
                assert isinstance(transaction, Transaction), "an error persists nothing"
                outcome = await self._persist(state, transaction, outcome)
            elif not self._log.leads_alone:
                # Nothing is appended, so the fence in the WAL does not protect this answer: the
                # next coordinator may know better.
                return ErrorCode.NOT_COORDINATOR
            if (
                outcome is not ErrorCode.CONCURRENT_TRANSACTIONS
                or not waits
                or not await _until_changed(state, transactional_id, deadline)
            ):
                return outcome

    def _transaction(
        self, state: _Partition, transactional_id: str, *, create: bool
    ) -> Transaction | ErrorCode:
        transaction = state.transactions.get(transactional_id)
        if transaction is not None:
            return transaction
        if not create:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if len(state.transactions) >= self._limits.transactions_max:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        transaction = state.transactions[transactional_id] = new_transaction(
            transactional_id, self._limits
        )
        return transaction

    async def _persist(
        self, state: _Partition, transaction: Transaction, persist: Persist
    ) -> ErrorCode:
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def answer(code: ErrorCode) -> None:
            if not future.done():
                future.set_result(code)

        self._append(state, transaction, persist, answer)
        return await future

    def _append(
        self,
        state: _Partition,
        transaction: Transaction,
        persist: Persist,
        answer: Callable[[ErrorCode], None],
    ) -> None:
        if persist.metadata.state in PREPARED and self._end_at_once(
            state, transaction, persist, answer
        ):
            return
        metadata = persist.metadata
        serial = self._log.end_offset(state.index)

        def done(code: ErrorCode) -> None:
            if code is ErrorCode.NONE:
                self._send_markers(state, transaction, transaction.persisted(), serial)
            else:
                transaction.not_persisted()
            if transaction.is_new or transaction.current.state is TransactionState.DEAD:
                state.transactions.pop(metadata.transactional_id, None)
            _wake_waiting(state, metadata.transactional_id)
            answer(persist.answer if code is ErrorCode.NONE else _for_clients(code))

        self._shards.append(state.index, [self._record(metadata)], done)

    def _record(self, metadata: TransactionMetadata) -> KeyValue:
        is_dead = metadata.state is TransactionState.DEAD
        value = None if is_dead else encode_value(metadata, self._record_version())
        return encode_key(metadata.transactional_id), value

    def _end_at_once(
        self,
        state: _Partition,
        transaction: Transaction,
        persist: Persist,
        answer: Callable[[ErrorCode], None],
    ) -> bool:
        """Append the markers with the record of the completed transaction. Returns False if nothing
        was appended, because they need another broker or were refused.
        """
        outcome = persist.metadata
        marker = _marker(state, outcome, self._log.end_offset(state.index))
        local = self._local
        if local is None:
            return False
        parts = local.parts(marker, outcome.partitions, outcome.client_version)
        if parts is None:
            return False
        completed = transaction.complete_at_once(outcome, self._now_ms())
        has_returned = was_refused = False

        def done(code: ErrorCode) -> None:
            nonlocal was_refused
            if code is not ErrorCode.NONE and not has_returned:
                was_refused = True
                transaction.complete_later(outcome)
                return
            if code is ErrorCode.NONE:
                transaction.persisted()
                local.written(marker, parts)
            else:
                transaction.not_persisted()
            _wake_waiting(state, outcome.transactional_id)
            answer(persist.answer if code is ErrorCode.NONE else _for_clients(code))

        self._shards.append(state.index, [self._record(completed)], done, markers=parts)
        has_returned = True
        return not was_refused

    # --- finishing decided transactions -----------------------------------------------------------

    def _send_markers(
        self, state: _Partition, transaction: Transaction, effect: WriteMarkers | None, serial: int
    ) -> None:
        if effect is None or self._shards.get(state.index) is not state:
            return
        metadata = effect.metadata
        self._markers.send(
            state.index,
            _marker(state, metadata, serial),
            metadata.partitions,
            lambda: self._complete(state, transaction),
            metadata.client_version,
        )

    def _complete(self, state: _Partition, transaction: Transaction) -> None:
        """Record that all markers are written. Retries until that is durable, because the next
        transaction of the id waits for it.
        """
        if self._shards.get(state.index) is not state:
            return

        def answer(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                asyncio.get_running_loop().call_later(
                    COMPLETE_RETRY_S, self._complete, state, transaction
                )

        self._append(state, transaction, transaction.markers_written(self._now_ms()), answer)

    def _tick_periodically(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(
            self._tick_interval_s, self._tick_periodically
        )
        self.tick()

    def tick(self) -> None:
        """Abort transactions past their timeout, and drop expired ids."""
        now_ms = self._now_ms()
        for state in self._shards.loaded():
            for transaction in list(state.transactions.values()):
                persist = transaction.tick(now_ms)
                if persist is not None:
                    self._append(state, transaction, persist, lambda code: None)


class _LiveTransactions:
    """Implements `LiveKeys`."""

    def __init__(self, state: _Partition, record_version: Callable[[], int]) -> None:
        self._transactions = state.transactions
        self._record_version = record_version

    def keys(self) -> Iterator[bytes]:
        return map(encode_key, list(self._transactions))

    def get(self, key: bytes) -> Live | None:
        transaction = self._transactions.get(decode_key(key) or "")
        if (
            transaction is None
            or transaction.is_new
            or transaction.current.state is TransactionState.DEAD
        ):
            return None
        return Live(encode_value(transaction.current, self._record_version()))


def _marker(state: _Partition, outcome: TransactionMetadata, serial: int) -> Marker:
    is_commit = outcome.state is TransactionState.PREPARE_COMMIT
    return Marker(outcome.producer_id, outcome.producer_epoch, is_commit, state.epoch, serial)


async def _until_changed(state: _Partition, transactional_id: str, deadline: float) -> bool:
    """Wait for a change of the id. Returns False at the deadline."""
    try:
        async with asyncio.timeout_at(deadline):
            await state.waiting.setdefault(transactional_id, asyncio.Event()).wait()
    except TimeoutError:
        return False
    return True


def _wake_waiting(state: _Partition, transactional_id: str) -> None:
    changed = state.waiting.pop(transactional_id, None)
    if changed is not None:
        changed.set()


def _for_clients(code: ErrorCode) -> ErrorCode:
    return (
        ErrorCode.INVALID_REQUEST
        if code in {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE}
        else code
    )
