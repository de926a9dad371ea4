"""Read transaction outcomes from a txn stream (`stream.format.transaction_log`)."""

from typing import Final, NamedTuple

from penstock.base.errors import StreamError
from penstock.base.ids import Offset, StreamId
from penstock.protocol.batch.header import iter_headers
from penstock.stream.format.transaction_log import (
    NO_OFFSET,
    AbortedTransaction,
    AbortedWithin,
    decode_events,
)
from penstock.stream.storage import Storage

_EVENTS_BYTES: Final = 64 * 1024


class LogInconsistent(StreamError):
    """Raised when the streams and the checkpoint contradict each other. The partition cannot be
    opened.
    """

    def __init__(self, stream_id: StreamId, what: str) -> None:
        super().__init__(f"stream {stream_id}: {what}")
        self.stream_id = stream_id


def check_advanced(stream_id: StreamId, before: Offset, after: Offset, end: Offset) -> None:
    """Check that an iteration over batches in memory has made progress, because it would otherwise
    block the event loop forever. Raises LogInconsistent.
    """
    if after <= before:
        raise LogInconsistent(
            stream_id, f"no batch begins at offset {before}, the log ends at {end}"
        )


class TxnStream(NamedTuple):
    """The readable part of a txn stream."""

    stream_id: StreamId
    start_offset: Offset
    end_offset: Offset


async def read_aborted(
    storage: Storage, txn: TxnStream, start_offset: Offset, end_offset: Offset
) -> list[AbortedTransaction]:
    """Return the aborted transactions that overlap [start, end), by first offset. This takes at
    least one cold read. Raises the errors of `StreamReader.read`.
    """
    within = AbortedWithin(start_offset, end_offset)
    offset, stop = max(start_offset, txn.start_offset), txn.end_offset
    while offset < stop and not within.is_complete:
        before = offset
        for chunk in await storage.reader.read(txn.stream_id, Offset(offset), stop, _EVENTS_BYTES):
            view = memoryview(chunk)
            for at, header in iter_headers(chunk):
                within.take(decode_events(view[at : at + header.size_bytes]))
                offset = Offset(header.next_offset)
        check_advanced(txn.stream_id, before, offset, stop)
    return within.by_first_offset()


async def first_unstable_offset(storage: Storage, txn: TxnStream) -> Offset | None:
    """Return the first offset of the earliest transaction that is open after the last event, or
    None. This takes one read of one block. Raises the errors of `StreamReader.read`.
    """
    if txn.end_offset <= txn.start_offset:
        return None
    unstable = NO_OFFSET
    last = Offset(txn.end_offset - 1)
    for chunk in await storage.reader.read(txn.stream_id, last, txn.end_offset, _EVENTS_BYTES):
        view = memoryview(chunk)
        for at, header in iter_headers(chunk):
            for found in decode_events(view[at : at + header.size_bytes]):
                unstable = found.event.first_unstable_offset
    return None if unstable == NO_OFFSET else unstable
