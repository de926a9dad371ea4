"""What became of a partition's transactions, as its txn stream says it to whoever leads it next and
to readers of the store.

**Offsets of the txn stream are those of the data stream.** An event is a batch that reaches from
the event before it to the end of the data batch that made it, with one record, at that batch's last
offset. It is appended in one group with that data batch, so no reader ever sees one without the
other, and looking from a data offset on needs no index. There is an event whenever the first
unstable offset changes (a transaction began, or the earliest one ended) and for each abort: none
for a partition without transactions, at most two for a transaction.

Invariants: events never change. The last stable offset at any end of the log is what the last event
below that end says, or the end itself. Aborted transactions that overlap [start, end) are all found
from `start` on, up to the first event after which nothing that began below `end` is open: so what a
range leaves out is a function of the range. Must not do I/O.
Source: Kafka `TransactionIndex`, `AbortedTxn`, which know no reader without a broker.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from base.buffers import Buffer
from base.ids import Millis, Offset, StreamEpoch
from stream.batch.records import Record, decode_records, encode_batch
from stream.errors import BatchCorrupt

NO_OFFSET: Final = Offset(-1)
_DELTA_MAX: Final = 2**31 - 1
"""What a batch's last offset delta can say. A longer way to the last event is covered by batches
without records.
"""


class AbortedTransaction(NamedTuple):
    """Transactional batches of this producer with base offsets in [first_offset, last_offset] are
    left out (`isolation.level`).

    last_offset: that of the abort marker. Source: Kafka `AbortedTxn`, FetchResponse
    `AbortedTransaction`.
    """

    producer_id: int
    first_offset: int
    last_offset: int


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """Fields are only ever added at the end, with a default."""

    first_unstable_offset: int
    producer_id: int
    first_offset: int
    last_offset: int


class TransactionEvent(NamedTuple):
    """first_unstable_offset: of the earliest transaction that is open after it, -1 if none is.
    aborted: by it.
    """

    first_unstable_offset: Offset
    aborted: AbortedTransaction | None = None


class TransactionEventAt(NamedTuple):
    """offset: the last one of the data batch that made it."""

    offset: Offset
    event: TransactionEvent

    def decides(self, end_offset: int) -> bool:
        """Nothing that began below `end_offset` is open any more; what is aborted later began there
        or later.
        """
        unstable = self.event.first_unstable_offset
        return self.offset + 1 >= end_offset if unstable < 0 else unstable >= end_offset


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Stored).decode


def encode_event(
    event: TransactionEvent,
    base_offset: Offset,
    end_offset: Offset,
    leader_epoch: StreamEpoch,
    now_ms: Millis,
) -> bytearray:
    """Batches [base_offset, end_offset) of the txn stream: where it ends, and the end of the data
    batch that made the event.
    """
    assert base_offset < end_offset, f"an event at [{base_offset}, {end_offset})"
    payload = bytearray()
    while end_offset - base_offset > _DELTA_MAX:
        payload += encode_batch(
            [],
            base_offset=base_offset,
            last_offset=base_offset + _DELTA_MAX - 1,
            leader_epoch=leader_epoch,
        )
        base_offset = Offset(base_offset + _DELTA_MAX)
    aborted = event.aborted or AbortedTransaction(-1, -1, -1)
    record = Record(
        end_offset - 1, now_ms, None, _encode(_Stored(event.first_unstable_offset, *aborted)), ()
    )
    payload += encode_batch([record], base_offset=base_offset, leader_epoch=leader_epoch)
    return payload


def decode_events(batch: Buffer) -> list[TransactionEventAt]:
    """Of one batch of the txn stream. Raises BatchCorrupt."""
    events: list[TransactionEventAt] = []
    for record in decode_records(batch):
        try:
            stored = _decode(record.value or b"")
        except msgspec.MsgspecError as error:
            raise BatchCorrupt(
                f"no event of a transaction at offset {record.offset}: {error}"
            ) from None
        aborted = AbortedTransaction(stored.producer_id, stored.first_offset, stored.last_offset)
        event = TransactionEvent(
            Offset(stored.first_unstable_offset), aborted if stored.producer_id >= 0 else None
        )
        events.append(TransactionEventAt(Offset(record.offset), event))
    return events


class AbortedWithin:
    """Collects what was aborted of [start, end), from events in their order, the first of them at
    `start` or below.
    """

    __slots__ = ("_end_offset", "_found", "_start_offset", "is_complete")

    def __init__(self, start_offset: int, end_offset: int) -> None:
        self._start_offset = start_offset
        self._end_offset = end_offset
        self._found: list[AbortedTransaction] = []
        self.is_complete = start_offset >= end_offset
        """No later event says anything of this range."""

    def take(self, events: Iterable[TransactionEventAt]) -> None:
        for found in events:
            if self.is_complete:
                return
            aborted = found.event.aborted
            if (
                aborted is not None
                and aborted.last_offset >= self._start_offset
                and aborted.first_offset < self._end_offset
            ):
                self._found.append(aborted)
            self.is_complete = found.decides(self._end_offset)

    def by_first_offset(self) -> list[AbortedTransaction]:
        return sorted(self._found, key=_first_offset)


def _first_offset(item: AbortedTransaction) -> int:
    return item.first_offset
