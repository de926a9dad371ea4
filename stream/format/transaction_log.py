"""Encode and decode the transaction events in a partition's txn stream, for its next leader and for
readers of the store. Kafka's `TransactionIndex` requires a broker.

**Offsets in the txn stream equal offsets in the data stream**, so that a search from a data offset
does not need an index.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from penstock.base.buffers import Buffer
from penstock.base.ids import Millis, Offset, StreamEpoch
from penstock.protocol.batch.errors import BatchCorrupt
from penstock.protocol.batch.records import Record, decode_records, encode_batch

NO_OFFSET: Final = Offset(-1)
_DELTA_MAX: Final = 2**31 - 1
"""The maximum last offset delta of a batch. Longer distances to the last event are covered by empty
batches.
"""


class AbortedTransaction(NamedTuple):
    """An aborted transaction: readers with `isolation.level=read_committed` skip the transactional
    batches of this producer with base offsets in [first_offset, last_offset], as with Kafka's
    `AbortedTxn`.

    last_offset: the offset of the abort marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int


class _Stored(msgspec.Struct, frozen=True, array_like=True):
    """The stored form. Add fields only at the end, with a default."""

    first_unstable_offset: int
    producer_id: int
    first_offset: int
    last_offset: int


class TransactionEvent(NamedTuple):
    """A change of the first unstable offset, an abort, or both; at most two events per transaction.

    The last stable offset at any end of the log is the one in the last event below that end, or the
    end itself. All aborted transactions that overlap [start, end) are found from `start` up to the
    first event after which no transaction that began below `end` is open.

    first_unstable_offset: the first offset of the earliest transaction that is open after the
    event, or -1 if none is open. aborted: the transaction aborted by the event.
    """

    first_unstable_offset: Offset
    aborted: AbortedTransaction | None = None


class TransactionEventAt(NamedTuple):
    """An event and its position. offset: the last offset of the data batch that caused it."""

    offset: Offset
    event: TransactionEvent

    def decides(self, end_offset: int) -> bool:
        """Return whether no transaction that began below `end_offset` is still open, so that later
        aborts do not affect it.
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
    """Return the batches [base_offset, end_offset) of the txn stream: from its end to the end of
    the data batch that caused the event. The event is the last record.

    It is appended in one group with that data batch, so readers never see one without the other.
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
    """Decode the events of one batch of the txn stream. Raises BatchCorrupt."""
    events: list[TransactionEventAt] = []
    for record in decode_records(batch):
        try:
            stored = _decode(record.value or b"")
        except msgspec.MsgspecError as error:
            raise BatchCorrupt(
                f"no valid transaction event at offset {record.offset}: {error}"
            ) from None
        aborted = AbortedTransaction(stored.producer_id, stored.first_offset, stored.last_offset)
        event = TransactionEvent(
            Offset(stored.first_unstable_offset), aborted if stored.producer_id >= 0 else None
        )
        events.append(TransactionEventAt(Offset(record.offset), event))
    return events


class AbortedWithin:
    """Collects the aborted transactions of [start, end) from events in order; the first event is at
    `start` or below.
    """

    __slots__ = ("_end_offset", "_found", "_start_offset", "is_complete")

    def __init__(self, start_offset: int, end_offset: int) -> None:
        self._start_offset = start_offset
        self._end_offset = end_offset
        self._found: list[AbortedTransaction] = []
        self.is_complete = start_offset >= end_offset
        """Whether later events cannot affect this range."""

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
