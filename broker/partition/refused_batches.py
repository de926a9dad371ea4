"""Track rejected batches of idempotent producers, so that batches sent right after them are also
rejected. A producer has up to five requests in flight. If the first is rejected because its
partition is opening or the WAL is full, the second may arrive later, with a sequence gap. If it
were accepted, librdkafka would consider both delivered, because it assumes that everything before
an acknowledged batch has been delivered.
"""

from collections import OrderedDict
from typing import Final, NamedTuple

from penstock.broker.partition.producer_state import SEQUENCES_COUNT, ProducerState, sequence_after
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.header import BatchHeader, parse_header
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.topic_key import TopicKey

_RETENTION_MS: Final = 30_000
"""Maximum time in flight, because clients wait this long for a response (`request.timeout.ms`)."""
_COUNT_MAX: Final = 10_000
_AHEAD_MAX: Final = 1 << 30

_Key = tuple[TopicKey, int, int]


class _Refused(NamedTuple):
    """The range of rejected sequences of one producer. at_ms: when the first sequence was last
    rejected.
    """

    epoch: int
    first_sequence: int
    last_sequence: int
    at_ms: int


class RefusedBatches:
    """The rejected batches of all partitions of a broker. Times are from a monotonic clock. Each
    entry uses 300 bytes. Above 10,000 entries, the oldest are dropped.
    """

    __slots__ = ("_refused",)

    def __init__(self) -> None:
        self._refused: OrderedDict[_Key, _Refused] = OrderedDict()

    def __len__(self) -> int:
        return len(self._refused)

    def remember(
        self,
        topic: TopicKey,
        index: int,
        batch: BatchHeader | memoryview | None,
        code: ErrorCode,
        now_ms: int,
    ) -> None:
        """Record a rejected batch if it has a sequence and clients retry it. `topic` is an id if
        this broker does not know the topic's name yet.
        """
        header = _header_of(batch) if code.retriable else None
        if header is None:
            return
        first, last = (
            header.base_sequence,
            sequence_after(header.base_sequence, header.record_count - 1),
        )
        key = (topic, index, header.producer_id)
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
        self, topic: TopicKey, index: int, batch: memoryview, producers: ProducerState, now_ms: int
    ) -> str | None:
        """Return the reason why this batch must wait until an earlier one is resent, or None.

        It must wait if it is ahead of the log and the sequences in between were recently rejected
        here with the same epoch. `OUT_OF_ORDER_SEQUENCE_NUMBER` would be harmful, because
        librdkafka would then start a new epoch in all partitions and resend unacknowledged batches,
        whose duplicates could not be detected.
        """
        header = _header_of(batch)
        if header is None:
            return None
        key = (topic, index, header.producer_id)
        known = self._refused.get(key)
        if (
            known is None
            or known.epoch != header.producer_epoch
            or not _precedes(known.first_sequence, header.base_sequence)
        ):
            return None
        expected = producers.expected_sequence(header.producer_id, header.producer_epoch)
        if expected is not None and not _precedes(expected, header.base_sequence):
            return None  # the batch is in order or repeated
        is_over = expected is not None and _precedes(known.last_sequence, expected)
        if is_over or now_ms - known.at_ms > _RETENTION_MS:
            del self._refused[key]
            return None
        producer = f"producer {header.producer_id} epoch {header.producer_epoch}"
        return (
            f"{producer}: sequence {header.base_sequence} must wait for the batches rejected"
            f" before it, from {known.first_sequence} on"
        )


def _header_of(batch: BatchHeader | memoryview | None) -> BatchHeader | None:
    """Return the header of the batch, or None if it has no sequence."""
    if isinstance(batch, memoryview):
        try:
            batch = parse_header(batch)
        except BatchCorrupt:
            return None
    return (
        batch if batch is not None and batch.producer_id >= 0 and batch.base_sequence >= 0 else None
    )


def _precedes(first: int, second: int) -> bool:
    """Return True if `second` is later than `first`. Sequences wrap around."""
    return 0 < (second - first) % SEQUENCES_COUNT < _AHEAD_MAX
