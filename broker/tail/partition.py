"""The tail of one partition, as the leader reports it to this broker."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
    WalStoreId,
)
from penstock.broker.partition.committed_reader import CommittedPartition
from penstock.broker.partition.delayed_fetch import FetchWait
from penstock.broker.tail.reported_tail import ReportedSlot, ReportedTail
from penstock.stream.format.keys import wal_key
from penstock.stream.format.transaction_log import AbortedTransaction
from penstock.stream.ports import NO_OBJECT, BrokerIncarnation, ObjectRange, ObjectRole, StreamRange


class TailDelta(NamedTuple):
    """The changes in one response of the leader.

    ranges: new ranges at the end; if there are none, new records are already committed. has_moved,
    is_stable: whether the end offset and the last stable offset have changed.
    """

    is_first: bool = False
    ranges: Sequence[ObjectRange] = ()
    has_moved: bool = False
    is_stable: bool = False


class TailView(NamedTuple):
    """A snapshot of the readable part, for one fetch. The tail itself may change during the fetch,
    because ranges are dropped once the metadata image contains them.

    ranges: the ranges from the fetch offset on; none if the offset is committed. end_offset: the
    end of the readable part. aborted: transactions that overlap the readable part and whose markers
    may not be in the image.
    """

    leader: NodeId
    ranges: Sequence[ObjectRange]
    end_offset: Offset
    aborted: Sequence[AbortedTransaction]

    def aborted_within(self, start_offset: Offset, end_offset: Offset) -> list[AbortedTransaction]:
        """Return the aborted transactions that overlap [start, end)."""
        return [
            item
            for item in self.aborted
            if item.last_offset >= start_offset and item.first_offset < end_offset
        ]


class TailPartition:
    __slots__ = (
        "_aborted",
        "_aborted_from",
        "_fetch_waits",
        "_ranges",
        "_start_offset",
        "_starts",
        "end_offset",
        "high_watermark",
        "is_known",
        "is_over",
        "last_stable_offset",
        "leader",
        "leader_epoch",
        "log_start_offset",
        "stream_id",
        "used_at",
        "wakes_count",
    )

    def __init__(self, found: CommittedPartition, now: float) -> None:
        self.leader: BrokerIncarnation = found.leader
        self.leader_epoch: StreamEpoch = found.leader_epoch
        self.stream_id: StreamId = found.data_stream_id
        self.is_known = False
        """Whether the leader has reported the tail. Before that, all offsets are from the image."""
        self.is_over = False
        """Whether the leader refuses to send more reports or cannot be reached."""
        self.used_at = now
        """When a consumer last used the tail, in event loop seconds."""
        self.wakes_count = 0
        """Number of changes. Fetches that are not parked yet use it to detect changes."""
        self.end_offset: Offset = found.committed_end
        """The offset from which the next request to the leader starts."""
        self.high_watermark: Offset = found.committed_end
        self.last_stable_offset: Offset = found.log_start_offset
        self.log_start_offset: Offset = found.log_start_offset
        self._start_offset: Offset = found.committed_end
        self._ranges: list[ObjectRange] = []
        self._starts: list[Offset] = []
        self._aborted: dict[Offset, AbortedTransaction] = {}
        """Aborted transactions by the offset of their marker."""
        self._aborted_from: Offset = found.committed_end
        self._fetch_waits: dict[FetchWait, None] = {}

    @property
    def is_waited_for(self) -> bool:
        return bool(self._fetch_waits)

    # --- reports of the leader --------------------------------------------------------------------

    def take(
        self,
        high_watermark: int,
        last_stable_offset: int,
        log_start_offset: int,
        report: ReportedTail | None,
    ) -> TailDelta:
        """Apply a response of the leader. Return the changes to pass to `notify`. report: None if
        nothing follows `end_offset`, or if the response had no room.
        """
        if report is None and high_watermark > self.end_offset:
            # The response had no room, so it does not list the aborted transactions below these
            # offsets.
            return TailDelta()
        is_first, before, was_stable = not self.is_known, self.end_offset, self.last_stable_offset
        ranges: Sequence[ObjectRange] = ()
        if report is not None:
            ranges = self._take_slots(report)
            self._take_aborted(report)
        self.is_known = True
        self.high_watermark = Offset(high_watermark)
        self.last_stable_offset = Offset(last_stable_offset)
        self.log_start_offset = Offset(log_start_offset)
        return TailDelta(
            is_first,
            ranges,
            has_moved=self.end_offset > before,
            is_stable=self.last_stable_offset > was_stable,
        )

    def notify(self, delta: TailDelta) -> None:
        """Wake the fetches that can continue after this change."""
        if delta.is_first:
            self.wake()
            return
        self.wakes_count += 1
        size_bytes = sum(source.range.size_bytes for source in delta.ranges)
        for wait in list(self._fetch_waits):
            if wait.reads_committed:
                if delta.is_stable:
                    wait.interrupt()
            elif size_bytes:
                wait.progressed(size_bytes)
            elif delta.has_moved:
                wait.interrupt()

    def end(self) -> None:
        """Wake all fetches, because there will be no more reports."""
        self.is_over = True
        self.wake()

    def wake(self) -> None:
        self.wakes_count += 1
        for wait in list(self._fetch_waits):
            wait.interrupt()

    def forget_committed(self, committed_end: Offset) -> None:
        """Drop the ranges that the image contains."""
        count = 0
        while count < len(self._ranges) and self._ranges[count].range.end_offset <= committed_end:
            count += 1
        del self._ranges[:count]
        del self._starts[:count]
        self._start_offset = self._starts[0] if self._starts else self.end_offset
        for marker in [offset for offset in self._aborted if offset < committed_end]:
            del self._aborted[marker]

    def _take_slots(self, report: ReportedTail) -> Sequence[ObjectRange]:
        """Add the ranges after the known ones, and return them."""
        ranges = [
            self._range(report, slot) for slot in report.slots if slot.end_offset > self.end_offset
        ]
        if not ranges or ranges[0].range.start_offset != self.end_offset:
            # Records in the gap, and everything before it, were committed in the meantime.
            self._ranges.clear()
            self._starts.clear()
        self._ranges += ranges
        self._starts += [source.range.start_offset for source in ranges]
        self.end_offset = Offset(report.end_offset)
        self._start_offset = self._starts[0] if self._starts else self.end_offset
        return ranges

    def _take_aborted(self, report: ReportedTail) -> None:
        since = report.aborted_since()
        if not self.is_known or since.offset > self.high_watermark:
            # Neither report lists transactions that were aborted in between.
            self._aborted.clear()
            self._aborted_from = since.offset
        self._aborted |= {Offset(item.last_offset): item for item in since.transactions}

    def _range(self, report: ReportedTail, slot: ReportedSlot) -> ObjectRange:
        writer = BrokerIncarnation(self.leader.node_id, NodeEpoch(report.node_epoch))
        return ObjectRange(
            NO_OBJECT,
            wal_key(writer, WalSequence(slot.sequence), WalStoreId(report.wal_store)),
            ObjectRole.WAL,
            slot.object_size_bytes,
            StreamRange(
                self.stream_id,
                Offset(slot.start_offset),
                Offset(slot.end_offset),
                slot.record_count,
                slot.size_bytes,
                Millis(slot.max_timestamp_ms),
            ),
        )

    # --- reading ----------------------------------------------------------------------------------

    def covers(self, committed_end: Offset, *, committed: bool) -> bool:
        """Return whether the reports are sufficient to serve fetches. Committed reads require all
        aborted transactions with a marker at or above the committed end in the image.
        """
        return self.is_known and (not committed or self._aborted_from <= committed_end)

    def readable_end(self, *, committed: bool) -> Offset:
        """Return the end of the readable part. For committed reads, it is at most the last stable
        offset.
        """
        limit = self.last_stable_offset if committed else self.high_watermark
        return min(limit, self.end_offset)

    def view(self, offset: Offset, committed_end: Offset, *, committed: bool) -> TailView | None:
        """Return the readable part for a fetch from `offset`. Return None if there is no new
        record, or if the image does not contain the offset yet.
        """
        end_offset = self.readable_end(committed=committed)
        if offset >= end_offset:
            return None
        ranges: Sequence[ObjectRange] = ()
        if offset >= committed_end:
            if offset < self._start_offset:
                return None
            ranges = self._ranges[bisect_right(self._starts, offset) - 1 :]
        aborted = sorted(self._aborted.values(), key=_first_offset) if committed else ()
        return TailView(self.leader.node_id, ranges, end_offset, aborted)

    # --- parked fetches ---------------------------------------------------------------------------

    def add_fetch_wait(self, wait: FetchWait) -> None:
        self._fetch_waits[wait] = None

    def remove_fetch_wait(self, wait: FetchWait) -> None:
        self._fetch_waits.pop(wait, None)


def _first_offset(item: AbortedTransaction) -> int:
    return item.first_offset
