"""Read the committed objects of a partition with another leader.

The metadata lists the objects, and everything in them is below the leader's high watermark. Brokers
in a client's rack serve reads that would be cold on the leader, to avoid traffic between racks
(KIP-392).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.base.buffers import Buffer
from penstock.base.ids import Offset, StreamEpoch, StreamId
from penstock.broker.partition.aborted_transactions import (
    TxnStream,
    first_unstable_offset,
    read_aborted,
)
from penstock.broker.partition.partition import read_records
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.topics import (
    PartitionKey,
    PartitionMetadata,
    is_moving,
    leader_of,
)
from penstock.stream.format.transaction_log import AbortedTransaction
from penstock.stream.ports import BrokerIncarnation
from penstock.stream.storage import Storage


@dataclass(slots=True)
class CommittedReads:
    """Counters, which never decrease. sent: fetches of partitions led by this broker that were
    redirected to another broker. records, size_bytes: records and bytes read from partitions with
    other leaders.
    """

    sent: int = 0
    served: int = 0
    records: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CommittedPartition:
    """The committed part of a log at one moment, for a single read. Its log start and committed end
    may be older than those on the leader. Only the leader decides whether an offset is out of
    range.
    """

    key: PartitionKey
    leader: BrokerIncarnation
    leader_epoch: StreamEpoch
    data_stream_id: StreamId
    log_start_offset: Offset
    committed_end: Offset
    txn: TxnStream
    storage: Storage

    async def last_stable_offset(self) -> Offset:
        """Return the last stable offset of the committed part. This takes at most one GET. Raises
        the errors of `StreamReader.read`.

        Transaction events are committed together with their batches, so the newest committed event
        describes the committed log.
        """
        unstable = await first_unstable_offset(self.storage, self.txn)
        return self.committed_end if unstable is None else min(unstable, self.committed_end)

    async def read(self, offset: Offset, end_offset: Offset, max_bytes: int) -> Sequence[Buffer]:
        """Return whole batches; the first one is returned regardless of its size. Empty batches are
        skipped, as in `Partition.read`. Raises the errors of `StreamReader.read`.
        """
        return await read_records(self.storage, self.data_stream_id, offset, end_offset, max_bytes)

    async def read_aborted(
        self, start_offset: Offset, end_offset: Offset
    ) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap [start, end), by first offset."""
        return await read_aborted(self.storage, self.txn, start_offset, end_offset)


def committed_partition(
    image: MetadataImage, storage: Storage, partition: PartitionMetadata
) -> CommittedPartition | None:
    """Return the committed part of a partition. Return None if the partition has no leader, because
    clients must then look up the next one.
    """
    data = image.streams.get(partition.data_stream_id)
    txn = image.streams.get(partition.txn_stream_id)
    has_leader = not is_moving(partition) and image.nodes.is_alive(leader_of(partition))
    if not has_leader or data is None or txn is None or not data.opened:
        return None
    return CommittedPartition(
        PartitionKey(partition.topic_id, partition.partition),
        leader_of(partition),
        partition.leader_epoch,
        data.stream_id,
        data.start_offset,
        data.next_offset,
        TxnStream(txn.stream_id, txn.start_offset, txn.next_offset),
        storage,
    )
