"""Report the tail of a partition to another broker: the WAL slots instead of the records.

In the response to a Fetch with a `ReplicaState` (KIP-903), the report replaces the records, as
MessagePack. About 40 bytes per slot represent up to 8 MiB of records, which the other broker reads
from the store.
"""

from typing import Annotated, Final, TypeAlias

import msgspec

from penstock.base.buffers import Buffer
from penstock.base.ids import NodeEpoch, Offset, WalStoreId
from penstock.broker.partition.transactions import AbortedTail
from penstock.protocol.errors import WireError
from penstock.stream.format.transaction_log import AbortedTransaction
from penstock.stream.ports import IN_STORE
from penstock.stream.wal.slots import SlotRange

SLOTS_MAX: Final = 64
"""Maximum number of slots of a partition in one response. The next response continues after
them.
"""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class ReportedSlot(msgspec.Struct, array_like=True, frozen=True):
    """One range in one slot of the leader's WAL. See `SlotRange`."""

    sequence: Count
    object_size_bytes: Count
    start_offset: Count
    end_offset: Count
    record_count: Count
    size_bytes: Count
    max_timestamp_ms: int


class ReportedTail(msgspec.Struct, array_like=True, frozen=True):
    """The tail from the requested offset to `end_offset`. Records before the first slot are already
    committed.

    node_epoch: the node epoch of the leader, whose WAL contains the slots. wal_store: the store
    that contains them. aborted: (producer id, first offset, marker offset) of all transactions with
    an abort marker at `aborted_from` or later.
    """

    node_epoch: Count
    end_offset: Count
    slots: list[ReportedSlot]
    aborted_from: Count
    aborted: list[tuple[Count, Count, Count]]
    wal_store: Count = IN_STORE

    def aborted_since(self) -> AbortedTail:
        found = [
            AbortedTransaction(producer_id, first_offset, last_offset)
            for producer_id, first_offset, last_offset in self.aborted
        ]
        return AbortedTail(Offset(self.aborted_from), found)


_decoder = msgspec.msgpack.Decoder(ReportedTail)


def encode_reported_tail(
    node_epoch: NodeEpoch,
    end_offset: Offset,
    slots: list[SlotRange],
    aborted: AbortedTail,
    wal_store: WalStoreId,
) -> bytes:
    """Encode a report. slots: at most `SLOTS_MAX` slots in `wal_store`. end_offset: the end of the
    tail, if all slots fit.
    """
    reported = [
        ReportedSlot(
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
    if len(reported) == SLOTS_MAX:
        end_offset = Offset(reported[-1].end_offset)
    return msgspec.msgpack.encode(
        ReportedTail(
            node_epoch,
            end_offset,
            reported,
            aborted.offset,
            [
                (item.producer_id, item.first_offset, item.last_offset)
                for item in aborted.transactions
            ],
            wal_store,
        )
    )


def decode_reported_tail(data: Buffer) -> ReportedTail:
    """Decode a report. Raises WireError."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise WireError(f"cannot decode the tail that a broker reports: {error}") from error
