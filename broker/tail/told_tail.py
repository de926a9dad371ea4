"""What a leader tells another broker of the tail of a partition: where it is, not the records.

It takes the place of the records in the answer to a Fetch with a `ReplicaState` (KIP-903), as
MessagePack. About 40 bytes for each slot stand for up to 8 MiB, which the other broker reads from
the store.
"""

from typing import Annotated, Final, TypeAlias

import msgspec

from base.buffers import Buffer
from base.ids import NodeEpoch, Offset
from broker.partition.transactions import AbortedTail
from broker.wire.errors import WireError
from stream.format.transaction_log import AbortedTransaction
from stream.wal.slots import SlotRange

SLOTS_MAX: Final = 64
"""The most slots that an answer names for a partition. The next answer continues after them."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class ToldSlot(msgspec.Struct, array_like=True, frozen=True):
    """One range in one slot of the leader's WAL. See `SlotRange`."""

    sequence: Count
    object_size_bytes: Count
    start_offset: Count
    end_offset: Count
    record_count: Count
    size_bytes: Count
    max_timestamp_ms: int


class ToldTail(msgspec.Struct, array_like=True, frozen=True):
    """The tail from the offset of the request to `end_offset`. What is missing before the first
    slot is committed.

    node_epoch: of the leader, whose WAL has the slots. aborted: (producer id, first offset, offset
    of the marker) of all transactions that were aborted by a marker at `aborted_from` or later.
    """

    node_epoch: Count
    end_offset: Count
    slots: list[ToldSlot]
    aborted_from: Count
    aborted: list[tuple[Count, Count, Count]]

    def aborted_since(self) -> AbortedTail:
        found = [
            AbortedTransaction(producer_id, first_offset, last_offset)
            for producer_id, first_offset, last_offset in self.aborted
        ]
        return AbortedTail(Offset(self.aborted_from), found)


_decoder = msgspec.msgpack.Decoder(ToldTail)


def encode_told_tail(
    node_epoch: NodeEpoch,
    end_offset: Offset,
    slots: list[SlotRange],
    aborted: AbortedTail,
) -> bytes:
    """slots: at most `SLOTS_MAX`; end_offset: of the tail, where they are fewer."""
    told = [
        ToldSlot(
            slot.sequence,
            slot.object_size_bytes,
            slot.range.start_offset,
            slot.range.end_offset,
            slot.range.record_count,
            slot.range.size_bytes,
            slot.range.max_timestamp_ms,
        )
        for slot in slots
    ]
    if len(told) == SLOTS_MAX:
        end_offset = Offset(told[-1].end_offset)
    return msgspec.msgpack.encode(
        ToldTail(
            node_epoch,
            end_offset,
            told,
            aborted.offset,
            [
                (item.producer_id, item.first_offset, item.last_offset)
                for item in aborted.transactions
            ],
        )
    )


def decode_told_tail(data: Buffer) -> ToldTail:
    """Raises WireError."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise WireError(f"a broker tells of a tail in a way that is unknown: {error}") from error
