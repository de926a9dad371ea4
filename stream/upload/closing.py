"""Close streams without rewriting data: one transaction commits, in place, the WAL slots with data
that is not uploaded, and closes the streams.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from penstock.base.ids import StreamId
from penstock.stream.config import StreamConfig
from penstock.stream.ports import CloseStream, CommitObjects, NewObject
from penstock.stream.stream import StreamHandle
from penstock.stream.upload.commits import CommitSequencer
from penstock.stream.upload.uploader import Uploader
from penstock.stream.wal.slots import SlotTable
from penstock.stream.wal.store_check import StoreCheck


class ClosingTimes(NamedTuple):
    """The durations of the two parts of one close, in seconds."""

    flush_s: float
    commit_s: float


class Closer:
    """Closes streams. A single RPC closes many streams, unless they have a very large number of
    ranges.
    """

    def __init__(
        self,
        config: StreamConfig,
        *,
        handles: dict[StreamId, StreamHandle],
        slots: SlotTable,
        commits: CommitSequencer,
        uploader: Uploader,
        cut: Callable[[], None],
        forget: Callable[[Iterable[StreamHandle]], None],
        check: StoreCheck,
    ) -> None:
        """cut: archives the active block and submits it to the uploader. forget: removes the
        streams from all local state. check: the check of the store that contains the slots.
        """
        self._check = check
        self._config = config
        self._handles = handles
        self._slots = slots
        self._commits = commits
        self._uploader = uploader
        self._cut = cut
        self._forget = forget

    async def close(self, handles: Sequence[StreamHandle]) -> None:
        """Commit in place and close. The caller must have rejected appends and confirmed all data.

        Streams leave the cache and the slot table while the lock of `CommitSequencer` is held, so
        that no upload in flight commits them again, and reopening a stream here starts from a clean
        state (A -> B -> A). Streams that are fenced or deleted are dropped without being closed.
        Raises WalFenced.
        """
        count = self._slots.range_count([handle.stream_id for handle in handles])
        if count and (
            count > self._config.close_in_place_ranges_max
            or not self._check.is_trusted  # the next leader might not be able to read the slots
            or self._is_wal_store_full()
        ):
            await self._upload_first()
        async with self._commits.lock:
            wanted = [handle for handle in handles if self._handles.get(handle.stream_id) is handle]
            objects = self._slots.take_in_place(
                [handle.stream_id for handle in wanted if not handle.fenced]
            )
            chunks = _chunks_of(objects, self._config)
            for chunk in chunks[:-1]:
                await self._send(chunk, wanted, [])
            most = self._config.commit_closes_max
            await self._send(chunks[-1], wanted, wanted[:most])
            for at in range(most, len(wanted), most):
                await self._send([], wanted, wanted[at : at + most])
            self._forget(wanted)

    def _is_wal_store_full(self) -> bool:
        limit = self._config.close_in_place_bytes_max
        return self._slots.are_in_wal_store and self._commits.wal_store_bytes() > limit

    async def _upload_first(self) -> None:
        """Wait until everything is uploaded, for at most `close_upload_wait_ms`. Wait without a
        time limit if the slots were written to the wrong store, because their data then exists only
        in this process.
        """
        self._cut()
        uploading = asyncio.ensure_future(self._uploader.drained())
        try:
            while True:
                wait_s = self._config.close_upload_wait_ms / 1000
                done, _ = await asyncio.wait([uploading], timeout=wait_s)
                if done or self._check.wrong is None:
                    return
        finally:
            uploading.cancel()

    async def _send(
        self,
        objects: Sequence[NewObject],
        wanted: Sequence[StreamHandle],
        closing: Sequence[StreamHandle],
    ) -> None:
        def build() -> CommitObjects:
            ours = {handle.stream_id for handle in wanted if not handle.fenced}
            return CommitObjects(
                objects=tuple(part for item in objects if (part := item.part_of(ours)) is not None),
                closes=tuple(
                    CloseStream(item.stream_id, item.epoch, item.confirmed_offset)
                    for item in closing
                    if not item.fenced
                ),
            )

        if objects or any(not handle.fenced for handle in closing):
            await self._commits.send(build)


def _chunks_of(objects: Sequence[NewObject], config: StreamConfig) -> list[list[NewObject]]:
    """Split objects into chunks within the limits of one commit, at least one chunk, in slot order.

    A single object may exceed the range limit.
    """
    chunks: list[list[NewObject]] = [[]]
    range_count = 0
    for item in objects:
        chunk = chunks[-1]
        if chunk and (
            range_count + len(item.ranges) > config.commit_ranges_max
            or len(chunk) >= config.commit_objects_max
        ):
            chunks.append([])
            chunk = chunks[-1]
            range_count = 0
        chunk.append(item)
        range_count += len(item.ranges)
    return chunks
