"""Open, checkpoint and close partitions in batches, as requested by `PartitionManager`."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import structlog

from penstock.base.clock import WallClock
from penstock.base.errors import StreamError
from penstock.base.ids import Offset
from penstock.broker.partition.fork_point import end_inherited, inherited_transactions
from penstock.broker.partition.log import LogConfig, restore_log
from penstock.broker.partition.partition import Partition
from penstock.controller.api.errors import ControllerError
from penstock.controller.metadata.records import PartitionRecord
from penstock.stream.errors import StreamFenced
from penstock.stream.ports import OpenStream
from penstock.stream.storage import AppendEntry, Storage, StreamHandle

Steps: TypeAlias = dict[str, float]
"""Milliseconds per step, for `penstock reassign trace`."""

_log = structlog.get_logger(__name__)

BATCH_COUNT_MAX: Final = 500
"""Maximum number of partitions opened or closed with one RPC. Each has three streams, and a request
may contain 2,000.
"""
_RESTORES_AT_ONCE_COUNT: Final = 32
"""Maximum number of concurrent meta stream reads. After a clean close of many partitions, one
cached block is sufficient for most of them.
"""
_GROUP_BYTES_MAX: Final = 4 * 1024 * 1024
_CHECKPOINTS_AT_ONCE_COUNT: Final = 50
"""Checkpoints appended without yielding to the event loop, which takes 1 ms. Appending 1,000 at
once took 15 to 19 ms.
"""

_TRIMS_AT_ONCE_COUNT: Final = 8
_STREAMS_COUNT: Final = 3


@dataclass(slots=True, eq=False)
class OpenPartition:
    """A partition whose streams are open here with `record.leader_epoch`. `partition` is None until
    its log has been restored.
    """

    record: PartitionRecord
    meta: StreamHandle
    data: StreamHandle
    txn: StreamHandle
    partition: Partition | None = None
    error: Exception | None = None
    steps: Steps = field(default_factory=dict[str, float])
    """Duration of each step until the partition was served."""

    @property
    def handles(self) -> tuple[StreamHandle, StreamHandle, StreamHandle]:
        return self.meta, self.data, self.txn


class PartitionOpener:
    def __init__(self, storage: Storage, now_ms: WallClock, config: LogConfig) -> None:
        self._storage = storage
        self._now_ms = now_ms
        self._config = config
        self._restores = asyncio.Semaphore(_RESTORES_AT_ONCE_COUNT)

    async def open(
        self,
        requests: Sequence[tuple[PartitionRecord, OpenPartition | None]],
        done: Callable[[int, OpenPartition | Exception], None],
    ) -> None:
        """Open streams and restore logs.

        This takes one RPC for all partitions, then one read per partition, and after a crash also
        the headers since the last checkpoint. A failed open leaves the streams open, so that the
        next attempt continues from there and a close can release them.

        `done(position, result)` is called for each request as soon as it has a result.
        """
        began = asyncio.get_running_loop().time()
        new = [position for position, (_, existing) in enumerate(requests) if existing is None]
        open_partitions = {
            position: existing
            for position, (_, existing) in enumerate(requests)
            if existing is not None
        }
        for position, result in zip(
            new, await self._open_streams([requests[position][0] for position in new]), strict=True
        ):
            if isinstance(result, OpenPartition):
                open_partitions[position] = result
                result.steps["open"] = 1_000 * (asyncio.get_running_loop().time() - began)
            else:
                done(position, result)
        async with asyncio.TaskGroup() as restores:
            for position, open_partition in open_partitions.items():
                restores.create_task(self._restore(position, open_partition, done))

    async def _open_streams(
        self, records: Sequence[PartitionRecord]
    ) -> list[OpenPartition | Exception]:
        if not records:
            return []
        streams_to_open = [
            OpenStream(stream_id, record.leader_epoch)
            for record in records
            for stream_id in record.stream_ids
        ]
        try:
            opened = await self._storage.open_streams(streams_to_open)
        except (StreamError, ControllerError, OSError, TimeoutError) as error:
            return [error] * len(records)
        results: list[OpenPartition | Exception] = []
        unpaired: list[StreamHandle] = []
        for position, record in enumerate(records):
            streams = opened[_STREAMS_COUNT * position : _STREAMS_COUNT * (position + 1)]
            meta, data, txn = streams
            if (
                isinstance(meta, StreamHandle)
                and isinstance(data, StreamHandle)
                and isinstance(txn, StreamHandle)
            ):
                results.append(OpenPartition(record, meta, data, txn))
                continue
            unpaired += [item for item in streams if isinstance(item, StreamHandle)]
            results.append(next(item for item in streams if isinstance(item, Exception)))
        if unpaired:
            await self._storage.close_streams(unpaired)
        return results

    async def _restore(
        self,
        position: int,
        open_partition: OpenPartition,
        done: Callable[[int, OpenPartition | Exception], None],
    ) -> None:
        began = asyncio.get_running_loop().time()
        async with self._restores:
            try:
                log = await restore_log(
                    self._storage,
                    *open_partition.handles,
                    config=self._config,
                    now_ms=self._now_ms(),
                    fork=open_partition.record.fork,
                )
                partition = Partition(open_partition.record, "", log, self._storage)
                if inherited_transactions(partition):
                    await self._storage.wait_for_room()
                    end_inherited(self._storage, partition, self._now_ms())
                    # Coordinators load only the durable part of the log, which must include the
                    # markers.
                    await self._storage.flush()
            except Exception as error:  # noqa: BLE001 - passed on: `done` logs it and the open is retried
                open_partition.error = error
            else:
                open_partition.error = None
                open_partition.steps["restore"] = 1_000 * (
                    asyncio.get_running_loop().time() - began
                )
                open_partition.partition = partition
        done(position, open_partition)

    async def close(self, open_partitions: Sequence[OpenPartition]) -> Steps:
        """Close the streams, which releases the partitions. May be retried after a cancellation or
        failure.

        This takes one group with the final checkpoints of changed partitions, one flush, and one
        commit.

        Raises the error of a failed WAL, for which nothing can be released. Fenced and deleted
        streams are simply dropped.
        """
        began = asyncio.get_running_loop().time()
        await self._storage.wait_for_room()
        partitions = [
            item.partition
            for item in open_partitions
            if item.partition is not None and item.data.accepting
        ]
        self._append_checkpoints([partition for partition in partitions if partition.log.is_dirty])
        persisted = asyncio.get_running_loop().time()
        times = await self._storage.close_streams(
            [handle for item in open_partitions for handle in item.handles]
        )
        for item in open_partitions:
            if item.partition is not None:
                item.partition.stop()
        return {
            "persist": 1_000 * (persisted - began),
            "flush": 1_000 * times.flush_s,
            "commit": 1_000 * times.commit_s,
        }

    def due_checkpoints(self, partitions: Iterable[Partition]) -> list[Partition]:
        """Return the partitions that are due for a checkpoint. If the total number of dirty bytes
        has reached the limit, these are the partitions that would need the longest scans after a
        crash, until half of the limit remains. Partitions that lack an event for readers are always
        due and come first.
        """
        dirty = sorted(
            (partition for partition in partitions if partition.log.is_dirty),
            key=_dirty_bytes,
            reverse=True,
        )
        due = [partition for partition in dirty if partition.log.lacks_event]
        dirty = [partition for partition in dirty if not partition.log.lacks_event]
        left_bytes = sum(map(_dirty_bytes, dirty))
        if left_bytes >= self._config.checkpoint_bytes:
            for partition in dirty:
                if left_bytes <= self._config.checkpoint_bytes // 2:
                    break
                due.append(partition)
                left_bytes -= partition.log.dirty_bytes
        return due

    async def checkpoint(self, partitions: Sequence[Partition]) -> None:
        """Append checkpoints in a few groups, and trim meta streams that have become long."""
        try:
            await self._storage.wait_for_room()
            await self._append_in_turns(partitions)
        except StreamError as error:
            _log.warning(
                "checkpoint_failed",
                partitions=len(partitions),
                error=str(error),
                kind=type(error).__name__,
            )
            return
        limit = asyncio.Semaphore(_TRIMS_AT_ONCE_COUNT)
        async with asyncio.TaskGroup() as trims:
            for partition in partitions:
                trims.create_task(self._trim(partition, limit))

    async def checkpoint_durably(self, partition: Partition) -> None:
        """Append a checkpoint of the current state, and wait until it is durable. This takes one
        flush. Raises StreamError if the partition is closing or the WAL cannot be written.
        """
        await self._storage.wait_for_room()
        if not partition.accepts_records:
            raise StreamFenced(partition.log.data.stream_id, "the partition is closing")
        self._append_checkpoints([partition])
        await self._storage.flush()

    async def trim(self, partition: Partition, start_offset: Offset) -> None:
        """Advance the log start to `start_offset`, at most to the high watermark. Has no effect
        unless this is above the current log start. Raises StreamError, ControllerError, OSError,
        TimeoutError.
        """
        (error,) = await self.trim_all([(partition, start_offset)])
        if error is not None:
            raise error

    async def trim_all(
        self, starts: Sequence[tuple[Partition, Offset]], *, keep: bool = False
    ) -> list[Exception | None]:
        """Advance log starts. Return an error or None for each partition. This takes a single
        flush, and one RPC per partition. keep: whether the records can be restored for a while,
        which requires an upload if they are only in the WAL. Raises StreamError if the WAL cannot
        be written.

        Trimmed records cannot be scanned after a crash, so the producer state is first checkpointed
        durably.
        """
        await self._storage.wait_for_room()
        await self._append_in_turns([partition for partition, _ in starts])
        if keep and not all(self._is_committed(*start) for start in starts):
            await self._storage.upload()
        else:
            await self._storage.flush()
        limit = asyncio.Semaphore(_TRIMS_AT_ONCE_COUNT)
        return await asyncio.gather(
            *(self._trim_data(partition, start, limit, keep=keep) for partition, start in starts)
        )

    def _is_committed(self, partition: Partition, end_offset: Offset) -> bool:
        """Return whether the metadata contains everything below `end_offset`, including transaction
        events.
        """
        data, txn = partition.log.data, partition.log.txn
        return self._storage.committed_end(data.stream_id) >= end_offset and (
            self._storage.committed_end(txn.stream_id) >= min(end_offset, txn.confirmed_offset)
        )

    async def _trim_data(
        self, partition: Partition, start_offset: Offset, limit: asyncio.Semaphore, *, keep: bool
    ) -> Exception | None:
        stream = partition.log.data
        async with partition.trimming, limit:
            if start_offset <= partition.log_start_offset:
                return None
            if not partition.accepts_records:
                return StreamFenced(stream.stream_id, "the partition is closing")
            try:
                await self._storage.trim(stream, start_offset, keep=keep)
            except (StreamError, ControllerError, OSError, TimeoutError) as error:
                return error
        await self._trim(partition, limit)
        return None

    async def _append_in_turns(self, partitions: Sequence[Partition]) -> None:
        """Append the checkpoints of partitions that accept records, yielding to the event loop."""
        for at in range(0, len(partitions), _CHECKPOINTS_AT_ONCE_COUNT):
            some = partitions[at : at + _CHECKPOINTS_AT_ONCE_COUNT]
            self._append_checkpoints([partition for partition in some if partition.accepts_records])
            await asyncio.sleep(0)

    def _append_checkpoints(self, partitions: Sequence[Partition]) -> None:
        now_ms = self._now_ms()
        entries: list[AppendEntry] = []
        size_bytes = 0
        for partition in partitions:
            if partition.log.lacks_event:
                entries.append(partition.log.open_event(now_ms))
            entry = partition.log.checkpoint(now_ms)
            entries.append(entry)
            size_bytes += len(entry.payload)
            if size_bytes >= _GROUP_BYTES_MAX:
                self._storage.append(entries, _ignore_result)
                entries, size_bytes = [], 0
        if entries:
            self._storage.append(entries, _ignore_result)

    async def _trim(self, partition: Partition, limit: asyncio.Semaphore) -> None:
        log = partition.log
        async with limit:
            for handle, offset in (
                (log.meta.handle, log.meta.trim_offset),
                (log.txn, log.txn_trim_offset),
            ):
                if offset is None:
                    continue
                try:
                    await self._storage.trim(handle, offset)
                except (StreamError, ControllerError, OSError, TimeoutError) as error:
                    _log.warning(
                        "trim_failed", stream_id=handle.stream_id, offset=offset, error=str(error)
                    )


def _dirty_bytes(partition: Partition) -> int:
    return partition.log.dirty_bytes


def _ignore_result(error: Exception | None) -> None:
    """Do nothing. If a checkpoint is lost, the WAL after it is also lost, and the previous
    checkpoint remains valid.
    """
