"""Read a partition that another broker leads, as far as its records are in objects.

Any broker can: the metadata say which objects hold the log, and everything in them is below the
high watermark of every leader. Brokers in the rack of a client serve it what is cold for the
leader, so that these bytes do not cross racks (KIP-392).

Invariants: an answer never passes the committed end of this broker's image, and for committed reads
never the last stable offset there: the events of transactions are committed together with the
batches that cause them, so what the newest committed event says is true of the committed log. Log
start and committed end may be older than the leader's. Nothing here decides that an offset is out
of range: the leader does.
Must not: cache anything, or wait for records.
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
    """Counters; they only grow. sent: fetches of partitions led here that another broker should
    serve. records, size_bytes: of partitions that other brokers lead.
    """

    sent: int = 0
    served: int = 0
    records: int = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CommittedPartition:
    """The committed part of a log at one moment, for one read."""

    key: PartitionKey
    leader: BrokerIncarnation
    leader_epoch: StreamEpoch
    data_stream_id: StreamId
    log_start_offset: Offset
    committed_end: Offset
    txn: TxnStream
    storage: Storage

    async def last_stable_offset(self) -> Offset:
        """Return the end of what is decided in the committed part. Costs at most one GET. Raises
        the errors of `Storage.read`.
        """
        unstable = await first_unstable_offset(self.storage, self.txn)
        return self.committed_end if unstable is None else min(unstable, self.committed_end)

    async def read(self, offset: Offset, end_offset: Offset, max_bytes: int) -> Sequence[Buffer]:
        """Return whole batches, the first one regardless of its size. Passes over batches without
        records, as `Partition.read`. Raises the errors of `Storage.read`.
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
    """Return the committed part of a partition, or None while it has no leader: clients that ask
    for it then have to learn of the next one.
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
