"""Planted bugs in transaction and group coordinators, for `tests.sim.mutants`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import penstock.broker.transactions.machine as machine
import penstock.broker.transactions.markers as markers
from penstock.broker.coordination.log import LogBatch, TopicLog, _decode
from penstock.broker.groups.offsets.offsets import GroupOffsets
from penstock.broker.handlers import txn_markers, verification
from penstock.broker.handlers.txn_markers import LedMarkers
from penstock.broker.partition.partition import Partition
from penstock.broker.transactions.machine import Transaction
from penstock.broker.transactions.markers import MarkerSender
from penstock.broker.transactions.model import (
    EPOCH_PER_TRANSACTION,
    PREPARED,
    Persist,
    TransactionState,
)
from penstock.broker.transactions.states import TransactionStates
from penstock.protocol.batch.control import Marker
from penstock.protocol.batch.header import iter_headers
from penstock.protocol.error_codes import ErrorCode

Patch = tuple[Any, str, Any]


def _end_acknowledged_before_it_is_durable() -> list[Patch]:
    real = TransactionStates.persist

    async def persist(
        self: TransactionStates, state: Any, transaction: Transaction, requested: Any
    ) -> ErrorCode:
        if requested.metadata.state not in PREPARED:
            return await real(self, state, transaction, requested)
        self.append(state, transaction, requested, lambda _: None)
        await asyncio.sleep(0)
        return requested.response

    return [(TransactionStates, "persist", persist)]


def _complete_before_the_markers() -> list[Patch]:
    def send(
        self: MarkerSender,
        coordinator_partition: int,
        marker: Marker,
        partitions: Any,
        done: Callable[[], None],
        version: int = 0,
    ) -> None:
        real(self, coordinator_partition, marker, partitions, lambda: None, version)
        done()

    real = MarkerSender.send
    return [(MarkerSender, "send", send)]


def _refused_markers_count() -> list[Patch]:
    """A former leader of the partition is treated as one that has nothing to end."""
    return [(markers, "_SETTLED", markers._SETTLED | {ErrorCode.NOT_LEADER_OR_FOLLOWER})]


def _decided_transactions_not_resumed() -> list[Patch]:
    return [(TransactionStates, "_resume", lambda _self, _state: None)]


def _open_transactions_not_loaded() -> list[Patch]:
    real = TransactionStates._replay

    def replay(self: TransactionStates, state: Any, key: bytes, value: bytes | None) -> None:
        real(self, state, key, value)
        for name, transaction in state.transactions.items():
            if transaction.current.state is TransactionState.ONGOING:
                settled = replace(
                    transaction.current, state=TransactionState.EMPTY, partitions=frozenset()
                )
                state.transactions[name] = Transaction(settled, self.limits)

    return [(TransactionStates, "_replay", replay)]


def _first_batch_of_each_piece_is_loaded() -> list[Patch]:
    """Only the first batch is loaded of each piece returned by a read, which may
    contain several.
    """

    async def read(self: TopicLog, partition: int) -> AsyncIterator[LogBatch]:
        led: Any = self._node.partitions.get(self._topic_name, partition)
        offset, end_offset = led.log_start_offset, led.high_watermark
        while offset < end_offset:
            for piece in await led.read(offset, 1 << 20):
                headers = [header for _, header in iter_headers(piece)]
                offset = headers[-1].next_offset
                yield _decode(memoryview(piece)[: headers[0].size_bytes], headers[0])

    return [(TopicLog, "read", read)]


def _epoch_kept_by_a_new_instance() -> list[Patch]:
    real = Transaction._with_next_epoch

    def bumped(self: Transaction, expected: Any) -> Any:
        return (
            self.current
            if expected is None and self.current.producer_epoch >= 0
            else real(self, expected)
        )

    return [(Transaction, "_with_next_epoch", bumped)]


def _epoch_kept_by_a_fence() -> list[Patch]:
    """An open transaction is aborted in the epoch of its current writer."""

    def fenced(self: Transaction, now_ms: int) -> Any:
        return replace(self.current, state=TransactionState.PREPARE_ABORT, updated_ms=now_ms)

    return [(Transaction, "_fenced", fenced)]


def _timeout_aborts_what_is_decided() -> list[Patch]:
    real = Transaction.tick
    allowed = {
        **machine._VALID_NEXT,
        TransactionState.PREPARE_COMMIT: {
            TransactionState.COMPLETE_COMMIT,
            TransactionState.PREPARE_ABORT,
        },
    }

    def tick(self: Transaction, now_ms: int) -> Any:
        current = self.current
        is_late = self.pending is None and now_ms > current.started_ms + current.timeout_ms
        if is_late and current.state is TransactionState.PREPARE_COMMIT:
            return self._persist(self._fenced(now_ms))
        return real(self, now_ms)

    return [(machine, "_VALID_NEXT", allowed), (Transaction, "tick", tick)]


def _offsets_count_before_the_marker() -> list[Patch]:
    real = GroupOffsets.stage

    def stage(self: GroupOffsets, producer_id: int, offsets: Any) -> Any:
        self.committed.update(offsets)
        return real(self, producer_id, offsets)

    return [(GroupOffsets, "stage", stage)]


def _markers_sent_before_the_decision_is_durable() -> list[Patch]:
    real = TransactionStates.append

    def append(
        self: TransactionStates,
        state: Any,
        transaction: Transaction,
        persist: Any,
        response: Any,
    ) -> None:
        metadata, serial = persist.metadata, self._log.end_offset(state.index)
        real(self, state, transaction, persist, response)
        if metadata.state in PREPARED:
            early = Marker(
                metadata.producer_id,
                metadata.producer_epoch,
                metadata.state is TransactionState.PREPARE_COMMIT,
                state.epoch,
                serial,
            )
            self._markers.send(
                state.index, early, metadata.partitions, lambda: None, metadata.client_version
            )

    return [(TransactionStates, "append", append)]


def _epoch_kept_by_the_end() -> list[Patch]:
    """A transaction of version 2 ends in its own epoch; the producer gets the next one."""
    real = Transaction.end_epoch

    def end_epoch(self: Transaction, *args: Any, **options: Any) -> Any:
        outcome = real(self, *args, **options)
        if isinstance(outcome, Persist):
            self.pending = replace(outcome.metadata, producer_epoch=self.current.producer_epoch)
        return outcome

    return [(Transaction, "end_epoch", end_epoch)]


def _appended_before_the_coordinator_knows() -> list[Patch]:
    """The leader asks the coordinator, but does not wait for the response."""
    real = verification.send_request

    def send_request(
        node: Any,
        transactional_id: str,
        partition: Any,
        producer: Any,
        admitted: Any,
        *,
        adds: bool,
    ) -> None:
        real(node, transactional_id, partition, producer, lambda _: None, adds=adds)
        guard = partition.log.verifications.find(producer.producer_id, producer.producer_epoch)
        admitted(guard)

    return [(verification, "send_request", send_request)]


def _end_repeated_with_another_epoch() -> list[Patch]:
    """A repeated end is executed again, so the producer gets the epoch after the next."""
    real = Transaction.end_epoch

    def end_epoch(self: Transaction, producer: Any, **options: Any) -> Any:
        if self.pending is None and self._has_ended(producer) and not options["committed"]:
            producer = self.current.producer
        return real(self, producer, **options)

    return [(Transaction, "end_epoch", end_epoch)]


def _end_repeated_is_refused() -> list[Patch]:
    return [(Transaction, "_has_ended", lambda _self, _producer: False)]


def _fenced_ends_are_repetitions() -> list[Patch]:
    """The epoch before the current one counts as ended by its producer, although a new instance has
    taken the next one.
    """
    real = Transaction._has_ended

    def has_ended(self: Transaction, producer: Any) -> bool:
        before = self.current
        self.current = replace(before, client_version=EPOCH_PER_TRANSACTION)
        try:
            return real(self, producer)
        finally:
            self.current = before

    return [(Transaction, "_has_ended", has_ended)]


def _partitions_elsewhere_get_no_marker() -> list[Patch]:
    """An end in one step treats the partitions that this broker leads as all of them."""
    real = LedMarkers.parts

    def parts(self: LedMarkers, marker: Marker, partitions: Any, version: int) -> Any:
        here = [
            key
            for key in partitions
            if isinstance(txn_markers.led_partition(self._node, key), Partition)
        ]
        return real(self, marker, here, version)

    return [(LedMarkers, "parts", parts)]


TRANSACTION_MUTANTS: dict[str, Callable[[], list[Patch]]] = {
    "end_acknowledged_before_it_is_durable": _end_acknowledged_before_it_is_durable,
    "complete_before_the_markers": _complete_before_the_markers,
    "refused_markers_count": _refused_markers_count,
    "decided_transactions_not_resumed": _decided_transactions_not_resumed,
    "open_transactions_not_loaded": _open_transactions_not_loaded,
    "first_batch_of_each_piece_is_loaded": _first_batch_of_each_piece_is_loaded,
    "epoch_kept_by_a_new_instance": _epoch_kept_by_a_new_instance,
    "epoch_kept_by_a_fence": _epoch_kept_by_a_fence,
    "timeout_aborts_what_is_decided": _timeout_aborts_what_is_decided,
    "offsets_count_before_the_marker": _offsets_count_before_the_marker,
    "markers_sent_before_the_decision_is_durable": _markers_sent_before_the_decision_is_durable,
    "epoch_kept_by_the_end": _epoch_kept_by_the_end,
    "appended_before_the_coordinator_knows": _appended_before_the_coordinator_knows,
    "end_repeated_with_another_epoch": _end_repeated_with_another_epoch,
    "end_repeated_is_refused": _end_repeated_is_refused,
    "fenced_ends_are_repetitions": _fenced_ends_are_repetitions,
    "partitions_elsewhere_get_no_marker": _partitions_elsewhere_get_no_marker,
}
