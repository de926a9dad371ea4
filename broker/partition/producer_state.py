"""What a partition remembers of idempotent producers, so that a retried batch is written once.

Per producer: its epoch and its last five batches. A batch is either next in line, a repetition of one of the five (answered with the old
offset), certainly older than those (`DUPLICATE_SEQUENCE_NUMBER`: clients take it as success without an offset), or out of order.

Invariants: `check` changes nothing, `record` is called only for what was really appended, and replaying the batch headers of the log
gives the live state. "Certainly older" is said only of sequences that were appended since the producer became known here
(`run_length`): what came before is unknown, and calling it a duplicate would lose records.
Must not: expire by record timestamps. A producer that loads last year's data is as alive as any, so the broker's clock decides.

Source: Kafka `ProducerStateManager`, `ProducerAppendInfo`; KIP-98; AutoMQ #1377, #1865.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from broker.wire.error_codes import ErrorCode
from stream.ids import Millis, Offset

CACHED_BATCHES_COUNT: Final = 5
SEQUENCES_COUNT: Final = 1 << 31
"""Sequence numbers are 0 .. 2^31-1 and wrap to 0."""
NO_PRODUCER_ID: Final = -1
_RUN_LENGTH_MAX: Final = 1 << 30


class KnownBatch(msgspec.Struct, frozen=True, array_like=True):
    """A batch that was appended. Stored in snapshots: fields are only ever added at the end."""

    base_sequence: int
    last_sequence: int
    base_offset: Offset
    end_offset: Offset


class _Producer(msgspec.Struct, array_like=True):
    """Stored in snapshots: fields are only ever added at the end."""

    producer_id: int
    epoch: int
    seen_ms: Millis
    run_length: int
    """How many sequences before the next expected one are known to be in the log, at most 2^30."""
    batches: list[KnownBatch]


class ProducerSnapshot(msgspec.Struct, frozen=True, array_like=True):
    """The state after all records below `offset`; producers in the order in which they last wrote."""

    offset: Offset
    producers: list[_Producer]


def sequence_after(sequence: int, count: int) -> int:
    """Sequence number `count` steps behind `sequence`, which wraps from 2^31-1 to 0."""
    return (sequence + count) % SEQUENCES_COUNT


class ProducerState:
    """Memory: about 1 KiB a producer, at most `producers_count_max` of them; beyond that the longest silent one is forgotten."""

    __slots__ = ("_producers", "_producers_count_max")

    def __init__(self, producers_count_max: int = 10_000) -> None:
        self._producers: dict[int, _Producer] = {}
        self._producers_count_max = producers_count_max

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._producers)

    def check(self, producer_id: int, epoch: int, base_sequence: int, record_count: int) -> KnownBatch | ErrorCode | None:
        """May this batch be appended? None: yes. A known batch: it is a repetition of that one. Changes nothing."""
        producer = self._producers.get(producer_id)
        if producer is None:
            return None
        if epoch != producer.epoch:
            if epoch < producer.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            return None if base_sequence == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        batches = producer.batches
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
    ) -> None:
        """The batch was appended at [base_offset, end_offset). Trusts that `check` said yes, as replaying the log must."""
        batch = KnownBatch(base_sequence, (base_sequence + record_count - 1) % SEQUENCES_COUNT, base_offset, end_offset)
        producer = self._producers.pop(producer_id, None)
        if producer is None:
            if len(self._producers) >= self._producers_count_max:
                del self._producers[next(iter(self._producers))]
            producer = _Producer(producer_id, epoch, now_ms, record_count, [batch])
        elif producer.epoch != epoch:
            producer = _Producer(producer_id, epoch, now_ms, record_count, [batch])
        else:
            producer.seen_ms = now_ms
            producer.run_length = min(producer.run_length + record_count, _RUN_LENGTH_MAX)
            producer.batches.append(batch)
            if len(producer.batches) > CACHED_BATCHES_COUNT:
                del producer.batches[0]
        self._producers[producer_id] = producer

    def expire(self, now_ms: Millis, silent_ms: int) -> int:
        """Forget producers that wrote nothing for `silent_ms`; returns how many. They are kept in the order of their last write."""
        count = 0
        while self._producers:
            producer_id, producer = next(iter(self._producers.items()))
            if now_ms - producer.seen_ms <= silent_ms:
                break
            del self._producers[producer_id]
            count += 1
        return count

    def snapshot(self, offset: Offset) -> ProducerSnapshot:
        """Cost: grows with the producers, about 0.5 us each to encode. Encode before the state changes again."""
        return ProducerSnapshot(offset, list(self._producers.values()))

    def restore(self, snapshot: ProducerSnapshot) -> None:
        """Replaces the state. More producers than the limit: the longest silent ones are left out."""
        kept = snapshot.producers[-self._producers_count_max :]
        self._producers = {producer.producer_id: producer for producer in kept}
