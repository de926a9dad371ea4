"""Read the partitions of a Fetch that are not in the log cache.

`PartitionManager.cold_reads` limits the total bytes of all connections. A damaged object fails only
partitions whose read starts in it.
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from penstock.base.buffers import Buffer
from penstock.base.ids import Offset
from penstock.broker.errors import ErrorCode, code_of
from penstock.broker.handlers.fetch.fetch_target import FetchTarget, aborted_of, end_offset_of
from penstock.broker.partition.committed_reader import CommittedPartition
from penstock.broker.partition.partition import Partition
from penstock.broker.requests.node import Node
from penstock.broker.tail.links import SlotRead, await_report
from penstock.broker.tail.partition import TailView
from penstock.objectstore.errors import ObjectNotFound
from penstock.protocol.fetch import FetchPartitionResult
from penstock.stream.errors import ObjectCorrupt, ObjectMissing, OffsetOutOfRange

_log = structlog.get_logger(__name__)

_COLD_READ_MAX_S: Final = 30.0
"""A cold read that takes longer fails with a retriable error. Blocks that it has already read stay
cached for the retry.
"""
_COLD_READS_AT_ONCE_COUNT: Final = 8
_NO_OFFSET: Final = -1


def set_out_of_range(node: Node, result: FetchPartitionResult) -> None:
    """Set OFFSET_OUT_OF_RANGE, or a retriable error unless this broker is certain to be the only
    leader.
    """
    result.error_code = (
        ErrorCode.OFFSET_OUT_OF_RANGE if node.leads_alone() else ErrorCode.NOT_LEADER_OR_FOLLOWER
    )
    # As in Kafka, failed reads return no offsets.
    result.high_watermark = result.last_stable_offset = result.log_start_offset = _NO_OFFSET


class ColdReads:
    """The cold reads of one Fetch."""

    __slots__ = ("_follows_tails", "_node", "_reads_committed")

    def __init__(self, node: Node, *, reads_committed: bool, follows_tails: bool) -> None:
        """follows_tails: whether partitions of other leaders are also read beyond the committed
        end.
        """
        self._node = node
        self._reads_committed = reads_committed
        self._follows_tails = follows_tails

    async def read(self, cold: Sequence[FetchTarget], targets: Sequence[FetchTarget]) -> None:
        """Read the cold targets of a request. The first target with data returns at least one
        batch; other targets return only what fits into their reserved bytes.
        """
        limit = asyncio.Semaphore(_COLD_READS_AT_ONCE_COUNT)

        async def read(target: FetchTarget) -> None:
            async with limit:
                await self._read_one(target)

        async with asyncio.TaskGroup() as reads:
            for target in cold:
                reads.create_task(read(target))
        is_first = not any(target.result.records for target in targets if not target.is_cold)
        for target in cold:
            size_bytes = sum(map(len, target.result.records))
            if size_bytes > target.size_bytes and not is_first:
                target.result.records = ()
                target.result.aborted_transactions = () if self._reads_committed else None
            elif size_bytes:
                is_first = False

    async def _read_one(self, target: FetchTarget) -> None:
        partition, result = target.partition, target.result
        try:
            async with (
                asyncio.timeout(_COLD_READ_MAX_S),
                self._node.partitions.cold_reads.hold(target.size_bytes),
            ):
                if partition is None:
                    await self._read_elsewhere(target)
                else:
                    await self._read_led(target, partition)
        except OffsetOutOfRange:
            if partition is None:
                result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            elif target.wanted.fetch_offset < partition.log_start_offset:
                set_out_of_range(self._node, result)
            else:
                # The topic was deleted during the read. After this error, the client refreshes its
                # metadata; after OFFSET_OUT_OF_RANGE, it would reset its position.
                result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        except (ObjectCorrupt, ObjectMissing) as error:
            # `stream.read.stream_reader` logs the damage, once per minute and object. The leader
            # may still have the records in memory or be able to read them.
            is_led = partition is not None
            result.error_code = code_of(error) if is_led else ErrorCode.NOT_LEADER_OR_FOLLOWER
        except Exception as error:  # noqa: BLE001 - one unreadable partition must not fail the others; logged
            result.error_code = (
                ErrorCode.NOT_LEADER_OR_FOLLOWER
                if partition is None
                else ErrorCode.KAFKA_STORAGE_ERROR
            )
            _log.warning(
                "cold_read_failed",
                topic=target.topic_name,
                partition=target.wanted.partition,
                offset=target.wanted.fetch_offset,
                error=str(error),
                kind=type(error).__name__,
            )

    async def _read_led(self, target: FetchTarget, partition: Partition) -> None:
        offset, result = Offset(target.wanted.fetch_offset), target.result
        records = await partition.read(offset, target.size_bytes, committed=self._reads_committed)
        if self._reads_committed and records:
            found = await partition.read_aborted(offset, end_offset_of(records))
            result.aborted_transactions = aborted_of(found)
        result.records = records

    async def _read_elsewhere(self, target: FetchTarget) -> None:
        """Read a partition led by another broker."""
        offset, found, view = Offset(target.wanted.fetch_offset), target.committed, target.view
        assert found is not None, "nothing else is read without leading it"
        if view is None:
            await self._read_committed_part(target, found)
        elif view.ranges:
            await self._read_tail(target, view)
        else:
            end_offset = min(found.committed_end, view.end_offset)
            records = await found.read(offset, end_offset, target.size_bytes)
            await self._take_elsewhere(target, records, found, view)

    async def _read_committed_part(self, target: FetchTarget, found: CommittedPartition) -> None:
        """Read objects with committed records, without involving the leader."""
        offset, end_offset = Offset(target.wanted.fetch_offset), found.committed_end
        if self._reads_committed:
            end_offset = await found.last_stable_offset()
            target.result.last_stable_offset = end_offset
        if offset < end_offset:
            records = await found.read(offset, end_offset, target.size_bytes)
            await self._take_elsewhere(target, records, found, None)
        if target.result.records:
            return
        # Later records are in the leader's tail. The next fetch waits for a report from the leader.
        tail = self._node.tails.follow(found) if self._follows_tails else None
        if tail is None or not await await_report(tail):
            target.result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER

    async def _read_tail(self, target: FetchTarget, view: TailView) -> None:
        offset = Offset(target.wanted.fetch_offset)
        read = SlotRead(view.ranges, offset, view.end_offset, target.size_bytes)
        try:
            records = await self._node.tails.read(view.leader, read)
        except ObjectNotFound:
            return  # uploaded and deleted since: the next fetch reads objects
        if records is None:
            target.result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            return
        await self._take_elsewhere(target, records, None, view)

    async def _take_elsewhere(
        self,
        target: FetchTarget,
        records: Sequence[Buffer],
        found: CommittedPartition | None,
        view: TailView | None,
    ) -> None:
        """Set the records of the result, and their aborted transactions from the image (`found`)
        and from the leader (`view`).
        """
        if self._reads_committed and records:
            offset, end_offset = Offset(target.wanted.fetch_offset), end_offset_of(records)
            aborted = [] if found is None else await found.read_aborted(offset, end_offset)
            if view is not None:
                aborted += view.aborted_within(offset, end_offset)
            target.result.aborted_transactions = aborted_of(
                sorted(set(aborted), key=lambda item: item.first_offset)
            )
        target.result.records = records
