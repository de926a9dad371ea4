"""Batches of idempotent producers that were refused for now, so that those sent right behind them
are refused alike.

A producer has up to five requests on the way. When the first is refused, because its partition is
still being opened or the WAL is full, the second may be looked at when that is over, and begins
behind a gap that this broker made. Taken (the producer is not known yet) it would pass for an
acknowledgement of both: librdkafka counts what lies before an acknowledged batch as delivered. And
`OUT_OF_ORDER_SEQUENCE_NUMBER` would be the truth and do harm: librdkafka begins a new epoch then,
in all partitions, and sends what it has no answer for once more in that epoch, where nobody can
tell that it is in the log already.

Invariant: a batch is held back only if it is ahead of the log, and sequences between the two were
refused here a short while ago, in the same epoch of its producer; every other gap is what it is,
and what is in line or was appended before is never held back. Bounded in number and time. Must not:
know why something was refused.
Source: KIP-98; librdkafka `rd_kafka_handle_idempotent_Produce_error`, `rd_kafka_dr_implicit_ack`.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from broker.partition.producer_state import SEQUENCES_COUNT, ProducerState, sequence_after
from broker.wire.error_codes import ErrorCode
from stream.batch.header import BatchHeader, parse_header
from stream.errors import BatchCorrupt

_RETENTION_MS: Final = 30_000
"""A request is no longer than this on its way: clients wait as long for an answer
(`request.timeout.ms`).
"""
_COUNT_MAX: Final = 10_000
_AHEAD_MAX: Final = 1 << 30

_Key = tuple[str, int, int]


class _Refused(NamedTuple):
    """From the first sequence that was refused to the last; at_ms: when the first one was, for the
    last time.
    """

    epoch: int
    first_sequence: int
    last_sequence: int
    at_ms: int


class RefusedBatches:
    """Of all partitions of a broker; times are of a monotonic clock. 300 bytes each, at most
    10,000; then the oldest are forgotten.
    """

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: OrderedDict[_Key, _Refused] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refused)

    def remember(
        self,
        topic_name: str,
        index: int,
        batch: BatchHeader | memoryview | None,
        code: ErrorCode,
        now_ms: int,
    ) -> None:
        """It was refused. Only what clients send again is remembered, and only batches with a
        sequence.
        """
        header = _header_of(batch) if code.retriable else None
        if header is None:
            return
        first, last = (
            header.base_sequence,
            sequence_after(header.base_sequence, header.record_count - 1),
        )
        key = (topic_name, index, header.producer_id)
        known = self._refused.get(key)
        if (
            known is not None
            and known.epoch == header.producer_epoch
            and now_ms - known.at_ms <= _RETENTION_MS
        ):
            if _precedes(known.first_sequence, first):
                first, now_ms = known.first_sequence, known.at_ms
            if _precedes(last, known.last_sequence):
                last = known.last_sequence
        self._refused[key] = _Refused(header.producer_epoch, first, last, now_ms)
        self._refused.move_to_end(key)
        if len(self._refused) > _COUNT_MAX:
            self._refused.popitem(last=False)

    def reason_to_wait(
        self, topic_name: str, index: int, batch: memoryview, producers: ProducerState, now_ms: int
    ) -> str | None:
        """Why this batch has to wait until another one came again; None: it has not."""
        header = _header_of(batch)
        if header is None:
            return None
        key = (topic_name, index, header.producer_id)
        known = self._refused.get(key)
        if (
            known is None
            or known.epoch != header.producer_epoch
            or not _precedes(known.first_sequence, header.base_sequence)
        ):
            return None
        expected = producers.expected_sequence(header.producer_id, header.producer_epoch)
        if expected is not None and not _precedes(expected, header.base_sequence):
            return None  # in line, or a repetition
        is_over = expected is not None and _precedes(known.last_sequence, expected)
        if is_over or now_ms - known.at_ms > _RETENTION_MS:
            del self._refused[key]
            return None
        producer = f"producer {header.producer_id} epoch {header.producer_epoch}"
        return (
            f"{producer}: sequence {header.base_sequence} has to wait for what was refused"
            f" before it, from {known.first_sequence} on"
        )


def _header_of(batch: BatchHeader | memoryview | None) -> BatchHeader | None:
    """None: nothing with a sequence."""
    if isinstance(batch, memoryview):
        try:
            batch = parse_header(batch)
        except BatchCorrupt:
            return None
    return (
        batch if batch is not None and batch.producer_id >= 0 and batch.base_sequence >= 0 else None
    )


def _precedes(first: int, second: int) -> bool:
    """Whether `second` comes later; sequences wrap."""
    return 0 < (second - first) % SEQUENCES_COUNT < _AHEAD_MAX
