"""Find fork points, and abort inherited transactions in forks, in restored topics, and in
partitions whose newest records were lost with a WAL store. The source of a fork may still commit
its open transactions, but producers do not write to the fork. In the other two cases, the end of a
transaction may be missing from the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from penstock.base.ids import Millis, Offset
from penstock.broker.errors import ErrorCode, kafka_error
from penstock.broker.partition.aborted_transactions import LogInconsistent
from penstock.broker.partition.append import PartitionAppend
from penstock.broker.partition.log import PartitionLog
from penstock.broker.partition.partition import Partition
from penstock.controller.api.messages import ForkedPartition
from penstock.protocol.batch.header import iter_headers
from penstock.stream.errors import OffsetOutOfRange
from penstock.stream.format.transaction_log import NO_OFFSET, decode_events
from penstock.stream.ports import NO_OBJECT
from penstock.stream.storage import Storage

AT_END: Final = -1
_EVENTS_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class WantedPoint:
    """Where to fork a partition: before `offset`, before the first record with a timestamp of at
    least `timestamp_ms`, or at the high watermark if both are -1.
    """

    offset: int = AT_END
    timestamp_ms: int = AT_END


async def find_fork_point(
    storage: Storage, partition: Partition, wanted: WantedPoint, high_watermark: Offset
) -> ForkedPartition:
    """Return the last batch boundary at or below the requested position, with the state that the
    fork needs.

    high_watermark: upper limit for the end of the fork, which must not exceed the committed end.
    This takes a timestamp lookup and up to three reads. Raises OffsetOutOfRange for an offset
    outside the log, and the errors of `StreamReader.read`.
    """
    data = partition.log.data
    start, end, object_id = data.start_offset, high_watermark, NO_OBJECT
    if wanted.offset != AT_END:
        if not start <= wanted.offset <= high_watermark:
            raise OffsetOutOfRange(data.stream_id, Offset(wanted.offset), start, high_watermark)
        end = Offset(wanted.offset)
    elif wanted.timestamp_ms != AT_END:
        found = await storage.offset_for_timestamp(
            data.stream_id, wanted.timestamp_ms, high_watermark
        )
        end = high_watermark if found is None else found[0]
    if start < end:
        end, object_id = await storage.reader.committed_border(data.stream_id, end)
        end = max(start, end)
    epochs = [entry for entry in partition.log.epochs.entries if entry[1] < end]
    unstable, txn_end = await _unstable_at(storage, partition.log, end)
    return ForkedPartition(
        end_offset=end,
        scan_offset=min(end, unstable),
        txn_end_offset=txn_end,
        epochs=epochs,
        object_id=object_id,
    )


async def _unstable_at(
    storage: Storage, log: PartitionLog, end_offset: Offset
) -> tuple[Offset, Offset]:
    """Return the first offset of the transactions that are open at `end_offset` (`end_offset` or
    above if there are none), and the end offset of the fork's txn stream, which ends after the last
    event below `end_offset`.

    If that event has been trimmed, a transaction may have been open since before the log start.
    """
    txn, position = log.txn, min(end_offset, log.txn.confirmed_offset)
    while position > txn.start_offset:
        (chunk, *_) = await storage.reader.read(
            txn.stream_id, Offset(position - 1), Offset(position), _EVENTS_BYTES
        )
        view, before = memoryview(chunk), position
        for at, header in iter_headers(chunk):
            if header.next_offset < position:
                continue
            if header.next_offset > end_offset:
                position = Offset(header.base_offset)
                break
            events = decode_events(view[at : at + header.size_bytes])
            if events:
                unstable = events[-1].event.first_unstable_offset
                return (
                    end_offset if unstable == NO_OFFSET else unstable,
                    Offset(header.next_offset),
                )
            position = Offset(header.base_offset)
            break
        if position >= before:
            raise LogInconsistent(txn.stream_id, f"no batch begins below offset {before}")
    is_known = txn.start_offset == 0 or txn.confirmed_offset == 0
    return (end_offset if is_known else log.data.start_offset), Offset(max(position, 0))


def inherited_transactions(partition: Partition) -> Sequence[int]:
    """Return the producers with an open transaction that started before the fork, before the topic
    was deleted and restored, or before the records were lost.
    """
    fork = partition.record.fork
    end = max(
        NO_OFFSET if fork is None else fork.end_offset,
        _undeleted_offset(partition),
        partition.log.lost_end_offset,
    )
    if end <= 0:
        return ()
    return [
        producer_id
        for producer_id, first_offset in partition.log.producers.open_transactions()
        if first_offset < end
    ]


def _undeleted_offset(partition: Partition) -> int:
    """Return the offset at which the topic was restored. Return `NO_OFFSET` if it was not restored,
    or if only later records are left, because their leader has already ended the open transactions.
    """
    since = partition.record.undeleted_epoch
    for at, (epoch, start_offset) in enumerate(partition.log.epochs.entries if since >= 0 else ()):
        if epoch >= since:
            return start_offset if at or epoch == partition.leader_epoch else NO_OFFSET
    return NO_OFFSET


def end_inherited(storage: Storage, partition: Partition, now_ms: Millis) -> None:
    """Append abort markers for the transactions that were open at the fork point, when the topic
    was deleted, or when records were lost. Does not wait, because these transactions are not stable
    until the markers are durable.

    Except in a fork, the coordinator may still consider the transaction open, and the producer may
    continue it. The marker therefore fences the producer, so that it cannot write to a transaction
    that was aborted here.

    May be called each time the partition is opened. Raises KafkaError if a marker is rejected.
    """
    fences = partition.record.undeleted_epoch >= 0 or partition.log.lost_end_offset > 0
    for producer_id in inherited_transactions(partition):
        append = PartitionAppend(_ignore_settled)
        marker = partition.log.producers.abort_marker(producer_id, fences=fences)
        append.run(storage, [(partition, marker)], now_ms)
        outcome = append.outcomes[0]
        if outcome.code is not ErrorCode.NONE:
            raise kafka_error(outcome.code, outcome.message)


def _ignore_settled(_: PartitionAppend) -> None:
    """Do nothing, because the last stable offset advances with the markers."""
