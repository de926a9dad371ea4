"""The state of idempotent and transactional producers in a partition, which detects duplicate
batches and fences old producers.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from penstock.base.ids import Millis, Offset
from penstock.protocol.batch.control import NO_SERIAL, Marker
from penstock.protocol.error_codes import ErrorCode

CACHED_BATCHES_COUNT: Final = 5
SEQUENCES_COUNT: Final = 1 << 31
"""Sequence numbers are in the range 0 to 2^31-1 and wrap to 0."""
NO_PRODUCER_ID: Final = -1
NO_SEQUENCE: Final = -1
PRODUCER_EPOCH_MAX: Final = (1 << 15) - 1
PRODUCERS_COUNT_MAX: Final = 100_000
_RUN_LENGTH_MAX: Final = 1 << 30


class KnownBatch(msgspec.Struct, frozen=True, array_like=True):
    """An appended batch. It is stored in snapshots, so fields may only be added at the end."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset
    end_offset: Offset
    append_time_ms: int = -1
    """The timestamp of the records with LogAppendTime, otherwise -1."""


class _Producer(msgspec.Struct, array_like=True):
    """The state of one producer. It is stored in snapshots, so fields may only be added at the
    end.
    """

    producer_id: int
    epoch: int
    seen_ms: Millis
    run_length: int
    """Number of sequences immediately before the next expected one that are known to be in the log,
    at most 2^30.
    """
    batches: list[KnownBatch]
    """The last batches of this epoch. Empty after a marker with a new epoch, and for coordinators,
    whose batches have no sequences.
    """
    transaction_first_offset: int = -1
    """First offset of the open transaction, or -1."""
    coordinator_epoch: int = -1
    """Coordinator epoch of the last marker."""
    ended_serial: int = NO_SERIAL
    """The highest serial of the markers with that coordinator epoch."""
    last_timestamp_ms: int = -1
    """The newest timestamp in the last batch or marker, or -1 if unknown. Used only by
    DescribeProducers.
    """


class ActiveProducer(NamedTuple):
    """A tracked producer, as listed by DescribeProducers. Fields that are not set are -1."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


class _ProducerHead(msgspec.Struct, array_like=True, gc=False):
    """The leading fields of a stored `_Producer`, which are sufficient to decide whether to decode
    it.
    """

    producer_id: int
    epoch: int
    seen_ms: Millis
    run_length: int
    batches: Raw
    transaction_first_offset: int = -1


_encode_producer = msgspec.msgpack.Encoder().encode
_decode_producer = msgspec.msgpack.Decoder(_Producer).decode
_decode_head = msgspec.msgpack.Decoder(_ProducerHead).decode


def _decode_producer_or_same(producer: _Producer | bytes) -> _Producer:
    return _decode_producer(producer) if isinstance(producer, bytes) else producer


def _unpacked(producer: _Producer | bytes | None) -> _Producer | None:
    return _decode_producer(producer) if isinstance(producer, bytes) else producer


class ProducerCounts(NamedTuple):
    """Counts of the producers tracked by a broker. in_one_partition: the maximum in any partition.
    dropped: producers that were removed because of the limit.
    """

    total: int
    in_one_partition: int
    dropped: int


class ProducerSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state after all records below `offset`. Producers are encoded `_Producer` objects,
    ordered by their last write.
    """

    offset: Offset
    producers: list[Raw]


def sequence_after(sequence: int, count: int) -> int:
    """Return the sequence number `count` after `sequence`, wrapping from 2^31-1 to 0."""
    return (sequence + count) % SEQUENCES_COUNT


class ProducerState:
    """The producers of one partition. If there are more than `producers_count_max`, the one that
    has been inactive longest is dropped and counted in `dropped_count`.

    Replaying the batch headers of the log restores the live state. Producers expire according to
    the broker's clock, not record timestamps, because a producer that loads last year's data is
    active. A producer with an open transaction never expires, because the transaction could then
    not be ended.

    A producer that has not written since the last checkpoint is kept in encoded form, which uses
    0.3 KiB instead of up to 1 KiB and does not need to be encoded again for the next checkpoint.
    """

    __slots__ = ("_producers", "_producers_count_max", "dropped_count")

    def __init__(self, producers_count_max: int = PRODUCERS_COUNT_MAX) -> None:
        self._producers: dict[int, _Producer | bytes] = {}
        self._producers_count_max = producers_count_max
        self.dropped_count = 0

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._producers)

    def _get(self, producer_id: int) -> _Producer | None:
        return _unpacked(self._producers.get(producer_id))

    def check(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        record_count: int,
        *,
        transactional: bool = False,
    ) -> KnownBatch | ErrorCode | None:
        """Check whether this batch may be appended. Return None if so, the known batch if it is
        repeated, or an error code. Has no side effects.

        A batch is either the next one, a repetition of one of the last five (acknowledged with the
        old offset), certainly older (`DUPLICATE_SEQUENCE_NUMBER`, which clients treat as success
        without an offset), or out of order. A sequence is "certainly older" only if it was appended
        while the producer was tracked (`run_length`), because treating others as duplicates could
        lose records.

        base_sequence: -1 for batches from a coordinator on this broker, which are always in order.
        """
        producer = self._get(producer_id)
        if producer is None:
            return None
        if epoch < producer.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        verdict = (
            None
            if base_sequence == NO_SEQUENCE
            else _check_sequence(producer, epoch, base_sequence, record_count)
        )
        if verdict is None and not transactional and producer.transaction_first_offset >= 0:
            return ErrorCode.INVALID_TXN_STATE
        return verdict

    def is_in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Return True if the producer has an open transaction with this epoch in this partition."""
        producer = self._get(producer_id)
        return (
            producer is not None
            and producer.transaction_first_offset >= 0
            and producer.epoch == epoch
        )

    def is_fenced(self, producer_id: int, epoch: int) -> bool:
        """Return True if the producer has written to this partition with a newer epoch."""
        producer = self._get(producer_id)
        return producer is not None and epoch < producer.epoch

    def is_known(self, producer_id: int) -> bool:
        return producer_id in self._producers

    def expected_sequence(self, producer_id: int, epoch: int) -> int | None:
        """Return the base sequence of the producer's next batch, or None for an unknown
        producer.
        """
        producer = self._get(producer_id)
        if producer is None:
            return None
        return (
            sequence_after(producer.batches[-1].last_sequence, 1)
            if epoch == producer.epoch and producer.batches
            else 0
        )

    def check_marker(self, marker: Marker) -> ErrorCode | None:
        """Check whether this marker may be appended. Return an error code or None. A marker without
        an open transaction is a harmless repetition.
        """
        producer = self._get(marker.producer_id)
        if producer is None:
            return None
        if marker.producer_epoch < producer.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return (
            ErrorCode.TRANSACTION_COORDINATOR_FENCED
            if marker.coordinator_epoch < producer.coordinator_epoch
            else None
        )

    def is_repeated(self, marker: Marker) -> bool:
        """Return True if this transaction, or a later one of the producer, has already ended here.
        Call this only for markers that `check_marker` accepts.

        A coordinator resends a marker when the response is late, and the first copy may arrive
        while the next transaction is open. It is sufficient to compare serials within one
        coordinator epoch: `check_marker` rejects copies from earlier coordinators, and a later
        coordinator sends the marker of each unfinished transaction before the transactional id
        starts another one.
        """
        producer = self._get(marker.producer_id)
        if (
            producer is None
            or marker.serial <= NO_SERIAL
            or marker.coordinator_epoch != producer.coordinator_epoch
        ):
            return False
        return marker.serial <= producer.ended_serial

    def open_transactions(self) -> list[tuple[int, Offset]]:
        """Return (producer id, first offset) of the open transactions, in no particular order."""
        return [
            (producer.producer_id, Offset(producer.transaction_first_offset))
            for producer in self._producers.values()
            if isinstance(producer, _Producer) and producer.transaction_first_offset >= 0
        ]

    def active(self) -> list[ActiveProducer]:
        """Return the producers, ordered by their last write."""
        return [
            ActiveProducer(
                producer.producer_id,
                producer.epoch,
                producer.batches[-1].last_sequence if producer.batches else NO_SEQUENCE,
                producer.last_timestamp_ms,
                producer.coordinator_epoch,
                producer.transaction_first_offset,
            )
            for producer in map(_decode_producer_or_same, self._producers.values())
        ]

    def is_ended_by_next_epoch(self, marker: Marker) -> bool:
        """Return True if the marker must be rejected, because it does not have a later epoch than
        the transaction that is open here. Transactions of version 2 (KIP-890) end with the next
        epoch.
        """
        producer = self._get(marker.producer_id)
        if producer is None or producer.transaction_first_offset < 0:
            return False
        return marker.producer_epoch <= producer.epoch

    def record(
        self,
        producer_id: int,
        epoch: int,
        base_sequence: int,
        record_count: int,
        *,
        base_offset: Offset,
        end_offset: Offset,
        now_ms: Millis,
        timestamp_ms: int = -1,
        append_time_ms: int = -1,
        transactional: bool = False,
    ) -> None:
        """Record the batch at [base_offset, end_offset). It is not checked again, because `check`
        has accepted it or it is replayed from the log.
        """
        producer = _unpacked(self._producers.pop(producer_id, None))
        if producer is None or producer.epoch != epoch:
            producer = self._new_or_next_epoch(producer, producer_id, epoch)
        producer.seen_ms, producer.last_timestamp_ms = now_ms, timestamp_ms
        self._producers[producer_id] = producer
        if base_sequence != NO_SEQUENCE:
            batch = KnownBatch(
                base_sequence,
                (base_sequence + record_count - 1) % SEQUENCES_COUNT,
                base_offset,
                end_offset,
                append_time_ms,
            )
            producer.run_length = min(producer.run_length + record_count, _RUN_LENGTH_MAX)
            producer.batches.append(batch)
            if len(producer.batches) > CACHED_BATCHES_COUNT:
                del producer.batches[0]
        if transactional and producer.transaction_first_offset < 0:
            producer.transaction_first_offset = base_offset

    def record_marker(self, marker: Marker, now_ms: Millis, timestamp_ms: int = -1) -> None:
        """Record an appended marker. Its epoch fences older epochs, even if the producer has never
        written to this partition.
        """
        producer = _unpacked(self._producers.pop(marker.producer_id, None))
        if producer is None or producer.epoch != marker.producer_epoch:
            producer = self._new_or_next_epoch(producer, marker.producer_id, marker.producer_epoch)
        producer.seen_ms, producer.last_timestamp_ms = now_ms, timestamp_ms
        self._producers[marker.producer_id] = producer
        producer.transaction_first_offset = -1
        if marker.coordinator_epoch > producer.coordinator_epoch:
            producer.coordinator_epoch, producer.ended_serial = (
                marker.coordinator_epoch,
                marker.serial,
            )
        else:
            producer.ended_serial = max(producer.ended_serial, marker.serial)

    def expire(self, now_ms: Millis, silent_ms: int) -> int:
        """Drop producers that have not written for `silent_ms`. Return their number. Producers are
        ordered by their last write.
        """
        silent: list[int] = []
        for producer_id, stored in self._producers.items():
            producer = _decode_producer_or_same(stored)
            if now_ms - producer.seen_ms <= silent_ms:
                break
            if producer.transaction_first_offset < 0:
                silent.append(producer_id)
        for producer_id in silent:
            del self._producers[producer_id]
        return len(silent)

    def abort_marker(self, producer_id: int, *, fences: bool = False) -> Marker:
        """Return a marker that aborts the producer's open transaction without its coordinator.

        fences: whether the marker has the next epoch, so that the producer is rejected until it has
        aborted its transaction and received that epoch.
        """
        producer = _decode_producer_or_same(self._producers[producer_id])
        epoch = min(producer.epoch + fences, PRODUCER_EPOCH_MAX)
        return Marker(producer_id, epoch, False, max(producer.coordinator_epoch, 0))

    def leave_source(self) -> None:
        """Keep only the state that a fork inherits: the open transactions, which it must abort.
        Their producers have no sequences in the fork.
        """
        for producer_id, producer in list(self._producers.items()):
            if isinstance(producer, bytes) or producer.transaction_first_offset < 0:
                del self._producers[producer_id]
            else:
                producer.run_length, producer.batches = 0, []

    def snapshot(self, offset: Offset) -> ProducerSnapshot:
        """Return the state, which must be encoded before it changes again. Producers that have
        written since the last snapshot take about 0.5 us each, all others 0.1 us.
        """
        for producer_id, producer in self._producers.items():
            # Replacing a value preserves the order.
            if isinstance(producer, _Producer) and producer.transaction_first_offset < 0:
                self._producers[producer_id] = _encode_producer(producer)
        return ProducerSnapshot(
            offset,
            [
                Raw(producer) if isinstance(producer, bytes) else Raw(_encode_producer(producer))
                for producer in self._producers.values()
            ],
        )

    def restore(self, snapshot: ProducerSnapshot) -> None:
        """Replace the state. If there are more producers than the limit, those that have been
        inactive longest are dropped.
        """
        self._producers = {}
        for stored in snapshot.producers:
            head = _decode_head(stored)
            is_open = head.transaction_first_offset >= 0
            # Copy the bytes, because a reference would keep the whole checkpoint in memory.
            self._producers[head.producer_id] = (
                _decode_producer(stored) if is_open else bytes(stored)
            )
        while len(self._producers) > self._producers_count_max and self._forget_one():
            pass

    def _new_or_next_epoch(
        self, before: _Producer | None, producer_id: int, epoch: int
    ) -> _Producer:
        """Return the state of a new producer, or of an existing one with a new epoch. The caller
        must insert it at the end, because this producer has written last.
        """
        if before is not None:
            kept = before.transaction_first_offset, before.coordinator_epoch, before.ended_serial
            return _Producer(producer_id, epoch, before.seen_ms, 0, [], *kept)
        if len(self._producers) >= self._producers_count_max:
            self._forget_one()
        return _Producer(producer_id, epoch, Millis(0), 0, [])

    def _forget_one(self) -> bool:
        """Drop the producer that has been inactive longest and has no open transaction. Return
        False if all of them have one. The limit on open transactions is lower than the limit on
        producers.
        """
        for producer_id, producer in self._producers.items():
            if isinstance(producer, bytes) or producer.transaction_first_offset < 0:
                del self._producers[producer_id]
                self.dropped_count += 1
                return True
        return False


def _check_sequence(
    producer: _Producer, epoch: int, base_sequence: int, record_count: int
) -> KnownBatch | ErrorCode | None:
    """Check the sequence of a batch whose epoch is not older than the producer's. The sequences of
    a new epoch, or of an epoch without batches here, start at 0.
    """
    batches = producer.batches
    if epoch != producer.epoch or not batches:
        return None if base_sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    expected = (batches[-1].last_sequence + 1) % SEQUENCES_COUNT
    if base_sequence == expected:
        return None
    last_sequence = (base_sequence + record_count - 1) % SEQUENCES_COUNT
    for batch in reversed(batches):
        if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
            return batch
    behind = (expected - base_sequence) % SEQUENCES_COUNT
    if record_count <= behind <= producer.run_length:
        return ErrorCode.DUPLICATE_SEQUENCE_NUMBER
    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
