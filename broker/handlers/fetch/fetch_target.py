"""One partition of a Fetch, with the result. Pure."""

from collections.abc import Iterable, Sequence
from typing import Final
from uuid import UUID

from penstock.base.buffers import Buffer
from penstock.base.ids import Offset
from penstock.broker.errors import ErrorCode
from penstock.broker.partition.committed_reader import CommittedPartition
from penstock.broker.partition.partition import Partition
from penstock.broker.tail.partition import TailPartition, TailView
from penstock.protocol.batch.header import batch_span
from penstock.protocol.fetch import FetchPartitionResult
from penstock.protocol.gen.fetch import FetchPartition
from penstock.protocol.topic_key import TopicKey
from penstock.stream.format.transaction_log import AbortedTransaction

NO_EPOCH: Final = -1
_NO_REPLICA: Final = -1


class FetchTarget:
    """One partition of the request, with the result so far."""

    __slots__ = (
        "_wakes_count",
        "awaits_image",
        "committed",
        "is_cold",
        "is_denied",
        "is_opening",
        "partition",
        "result",
        "size_bytes",
        "tail",
        "topic_id",
        "topic_name",
        "view",
        "wanted",
    )

    def __init__(self, key: TopicKey, wanted: FetchPartition) -> None:
        """key: the id or the name of the topic. For an id, the name is looked up in this broker's
        current image. Call `reset` before any use.
        """
        self.topic_id = key if isinstance(key, UUID) else None
        self.topic_name = None if isinstance(key, UUID) else key
        self.wanted = wanted
        self.is_denied = False

    def is_current(self) -> bool:
        """Return True if, since the partition was located, its offsets have not changed and its
        readers were not notified.
        """
        found, result = self.partition, self.result
        return (
            found is not None
            and self._wakes_count == found.wakes_count
            and result.high_watermark == found.high_watermark
            and result.last_stable_offset == found.last_stable_offset
            and result.log_start_offset == found.log_start_offset
        )

    def has_moved(self, batches_count: int) -> bool:
        """Return whether the partition or its tail has changed since it was located. batches_count:
        the number of image changes so far.
        """
        if self.tail is not None:
            return self._wakes_count != self.tail.wakes_count
        if self.awaits_image:
            return self._wakes_count != batches_count
        return self.partition is not None and not self.is_current()

    def is_led(self) -> bool:
        """Return whether the partition still has the same leader as when it was located."""
        return self.partition is not None and self._wakes_count == self.partition.wakes_count

    @property
    def is_plain(self) -> bool:
        """Return whether the result is the same for all clients that may read the topic."""
        result = self.result
        return (
            self.partition is not None
            and not self.is_cold
            and not self.is_denied
            and result.error_code == 0
            and result.preferred_read_replica == _NO_REPLICA
        )

    @property
    def ends_wait(self) -> bool:
        """Return whether the client must receive the result immediately, because it contains an
        error or names a closer broker.
        """
        result = self.result
        return result.preferred_read_replica != _NO_REPLICA or (
            result.error_code != 0 and not self.is_opening
        )

    def reset(self) -> None:
        self.partition: Partition | None = None
        self._wakes_count = 0
        self.committed: CommittedPartition | None = None
        self.tail: TailPartition | None = None
        self.view: TailView | None = None
        self.result = FetchPartitionResult(self.wanted.partition)
        self.size_bytes = 0
        self.is_opening = self.awaits_image = False
        self.is_cold = False

    def find(self, partition: Partition) -> None:
        """Set the partition that contains the records."""
        self.partition = partition
        self._wakes_count = partition.wakes_count

    def await_image(self, batches_count: int) -> None:
        """Wait for the next change of this broker's image."""
        self.awaits_image = True
        self._wakes_count = batches_count

    def follow(self, tail: TailPartition) -> None:
        """Set the tail of a partition with another leader."""
        self.tail = tail
        self._wakes_count = tail.wakes_count


def end_offset_of(records: Sequence[Buffer]) -> Offset:
    """Return the end offset of the last batch. The records must be whole batches in offset
    order.
    """
    last = records[-1]
    at = end_offset = 0
    while at < len(last):
        span = batch_span(last, at)
        at, end_offset = at + span.size_bytes, span.next_offset
    return Offset(end_offset)


def aborted_of(found: Iterable[AbortedTransaction]) -> list[tuple[int, int]]:
    return [(item.producer_id, item.first_offset) for item in found]


def check_leader_epoch(leader_epoch: int, client_epoch: int) -> ErrorCode:
    """Validate the leader epoch from the client's metadata (KIP-320). A client with a different
    epoch must refresh its metadata or wait for the broker's.
    """
    if client_epoch in (NO_EPOCH, leader_epoch):
        return ErrorCode.NONE
    return (
        ErrorCode.FENCED_LEADER_EPOCH
        if client_epoch < leader_epoch
        else ErrorCode.UNKNOWN_LEADER_EPOCH
    )
