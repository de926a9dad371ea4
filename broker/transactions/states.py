"""The transactions coordinated by one broker: load them, make their changes durable in
`__transaction_state`, and finish transactions with a final outcome. See
docs/design/transactions.md.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from penstock.broker.coordination.compaction import CompactionLimits, Live
from penstock.broker.coordination.log import CoordinatorLog, KeyValue, MarkerParts
from penstock.broker.coordination.shards import CoordinatorShards
from penstock.broker.transactions.machine import Transaction, new_transaction
from penstock.broker.transactions.markers import MarkerSender
from penstock.broker.transactions.model import (
    PREPARED,
    Persist,
    TopicPartition,
    TransactionLimits,
    TransactionMetadata,
    TransactionState,
    WriteMarkers,
)
from penstock.broker.transactions.records import (
    MalformedTransactionRecord,
    decode_key,
    decode_value,
    encode_key,
    encode_value,
)
from penstock.protocol.batch.control import Marker
from penstock.protocol.error_codes import ErrorCode

log = structlog.get_logger(__name__)

COMPLETE_RETRY_S: Final = 0.2


@dataclass(slots=True, eq=False)
class LoadedPartition:
    """A loaded partition of `__transaction_state`."""

    index: int
    epoch: int
    loaded_end_offset: int
    """End offset of the log when it was loaded. It is the serial of transactions whose outcome was
    appended before that.
    """
    transactions: dict[str, Transaction] = field(default_factory=dict[str, Transaction])
    waiting: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])
    """By transactional id, an event for requests that wait until a record of the id is durable or
    has failed.
    """

    async def until_changed(self, transactional_id: str, deadline: float) -> bool:
        """Wait until the transactional id changes. Return False at `deadline` (`loop.time()`)."""
        try:
            async with asyncio.timeout_at(deadline):
                await self.waiting.setdefault(transactional_id, asyncio.Event()).wait()
        except TimeoutError:
            return False
        return True

    def wake_waiting(self, transactional_id: str) -> None:
        """Wake the requests that wait for a change of the id."""
        changed = self.waiting.pop(transactional_id, None)
        if changed is not None:
            changed.set()


class LocalMarkers(Protocol):
    """Writes markers to partitions that this broker leads."""

    def parts(
        self, marker: Marker, partitions: Iterable[TopicPartition], version: int
    ) -> MarkerParts | None:
        """Return the parts to append, or None unless this broker leads all partitions and none of
        them has this marker or a later one. version: the version of the transaction.
        """
        ...

    def written(self, marker: Marker, parts: MarkerParts) -> None:
        """Commit or drop the transaction's offsets, because its markers have become durable."""
        ...


class TransactionStates:
    """The transactions of the loaded partitions. Call all methods on the event loop.

    Requests are acknowledged and markers are sent only after the record of the change is durable.
    Records of a transactional id are appended one at a time. Markers contain the leader epoch of
    the partition, so that markers of an earlier coordinator are rejected, and the serial of their
    transaction, so that a late copy cannot end the next one. The serial is the end offset of the
    partition's log when the outcome was appended, or when the log was loaded. It increases with
    every transaction, and does not depend on clocks.

    now_ms, record_version, local, may_lack_records: as in `TransactionCoordinator`. limits: may be
    replaced at any time.
    """

    def __init__(
        self,
        transactions_log: CoordinatorLog,
        markers: MarkerSender,
        limits: TransactionLimits,
        *,
        now_ms: Callable[[], int],
        record_version: Callable[[], int],
        compaction: CompactionLimits | None,
        local: LocalMarkers | None,
        may_lack_records: Callable[[], bool],
    ) -> None:
        self._log = transactions_log
        self._markers = markers
        self.limits = limits
        self._now_ms = now_ms
        self._record_version = record_version
        self._local = local
        self._may_lack_records = may_lack_records
        self.shards: CoordinatorShards[LoadedPartition] = CoordinatorShards(
            transactions_log,
            self._load,
            self._unload,
            lambda state: _LiveTransactions(state, record_version),
            compaction,
        )
        """Finds the partition of a transactional id."""

    # --- loading ----------------------------------------------------------------------------------

    async def _load(self, partition: int) -> LoadedPartition:
        state = LoadedPartition(
            partition, self._log.leader_epoch(partition), self._log.end_offset(partition)
        )
        malformed_count = 0
        async for batch in self.shards.read(partition):
            for key, value in batch.records:
                try:
                    self._replay(state, key, value)
                except MalformedTransactionRecord:
                    malformed_count += 1
        # Resume transactions with a final outcome only after this state is registered, because
        # `done` looks it up.
        asyncio.get_running_loop().call_soon(self._resume, state)
        log.info(
            "transactions_loaded",
            partition=partition,
            transactions=len(state.transactions),
            malformed=malformed_count,
        )
        return state

    def _replay(self, state: LoadedPartition, key: bytes, value: bytes | None) -> None:
        transactional_id = decode_key(key)
        if transactional_id is None:
            return
        if value is None:
            state.transactions.pop(transactional_id, None)
        else:
            state.transactions[transactional_id] = Transaction(
                decode_value(transactional_id, value),
                self.limits,
                loaded_ms=self._now_ms(),
                epochs_may_be_lost=self._may_lack_records(),
            )

    def _resume(self, state: LoadedPartition) -> None:
        for transaction in state.transactions.values():
            self._send_markers(state, transaction, transaction.resume(), state.loaded_end_offset)

    def _unload(self, state: LoadedPartition) -> None:
        self._markers.forget(state.index)
        for transactional_id in list(state.waiting):
            state.wake_waiting(transactional_id)

    # --- changes ----------------------------------------------------------------------------------

    def transaction(
        self, state: LoadedPartition, transactional_id: str, *, create: bool
    ) -> Transaction | ErrorCode:
        """Return the transaction of the id. create: whether to create it if the id is unknown."""
        transaction = state.transactions.get(transactional_id)
        if transaction is not None:
            return transaction
        if not create:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if len(state.transactions) >= self.limits.transactions_max:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        transaction = state.transactions[transactional_id] = new_transaction(
            transactional_id, self.limits
        )
        return transaction

    async def persist(
        self, state: LoadedPartition, transaction: Transaction, persist: Persist
    ) -> ErrorCode:
        """Write the change. Return the result of its request after the change is durable or
        rejected.
        """
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

        def respond(code: ErrorCode) -> None:
            if not future.done():
                future.set_result(code)

        self.append(state, transaction, persist, respond)
        return await future

    def append(
        self,
        state: LoadedPartition,
        transaction: Transaction,
        persist: Persist,
        respond: Callable[[ErrorCode], None],
    ) -> None:
        """Write the change. `respond` is called with the result, possibly before this returns. If
        this broker leads all partitions, the markers are in the same group as the record of the
        completed transaction. Otherwise, they are sent after the outcome is durable.
        """
        if persist.metadata.state in PREPARED and self._end_at_once(
            state, transaction, persist, respond
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
            state.wake_waiting(metadata.transactional_id)
            respond(persist.response if code is ErrorCode.NONE else _for_clients(code))

        self.shards.append(state.index, [self._record(metadata)], done)

    def _record(self, metadata: TransactionMetadata) -> KeyValue:
        is_dead = metadata.state is TransactionState.DEAD
        value = None if is_dead else encode_value(metadata, self._record_version())
        return encode_key(metadata.transactional_id), value

    def _end_at_once(
        self,
        state: LoadedPartition,
        transaction: Transaction,
        persist: Persist,
        respond: Callable[[ErrorCode], None],
    ) -> bool:
        """Append the markers together with the record of the completed transaction. Return False if
        nothing was appended, because another broker is needed or the append was rejected.
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
            state.wake_waiting(outcome.transactional_id)
            respond(persist.response if code is ErrorCode.NONE else _for_clients(code))

        self.shards.append(state.index, [self._record(completed)], done, markers=parts)
        has_returned = True
        return not was_refused

    # --- finishing decided transactions -----------------------------------------------------------

    def _send_markers(
        self,
        state: LoadedPartition,
        transaction: Transaction,
        effect: WriteMarkers | None,
        serial: int,
    ) -> None:
        if effect is None or self.shards.get(state.index) is not state:
            return
        metadata = effect.metadata
        self._markers.send(
            state.index,
            _marker(state, metadata, serial),
            metadata.partitions,
            lambda: self._complete(state, transaction),
            metadata.client_version,
        )

    def _complete(self, state: LoadedPartition, transaction: Transaction) -> None:
        """Record that all markers have been written, retrying until this is durable, because the
        next transaction of the id waits for it.
        """
        if self.shards.get(state.index) is not state:
            return

        def respond(code: ErrorCode) -> None:
            if code is not ErrorCode.NONE:
                asyncio.get_running_loop().call_later(
                    COMPLETE_RETRY_S, self._complete, state, transaction
                )

        self.append(state, transaction, transaction.markers_written(self._now_ms()), respond)


class _LiveTransactions:
    """Implements `LiveKeys`."""

    def __init__(self, state: LoadedPartition, record_version: Callable[[], int]) -> None:
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


def _marker(state: LoadedPartition, outcome: TransactionMetadata, serial: int) -> Marker:
    is_commit = outcome.state is TransactionState.PREPARE_COMMIT
    return Marker(outcome.producer_id, outcome.producer_epoch, is_commit, state.epoch, serial)


def _for_clients(code: ErrorCode) -> ErrorCode:
    return (
        ErrorCode.INVALID_REQUEST
        if code in {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE}
        else code
    )
