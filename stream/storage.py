"""The stream layer of one broker incarnation: streams, WAL, caches, upload and reads behind one
facade. Independent of Kafka.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from random import Random

import structlog

from penstock.base.buffers import Buffer
from penstock.base.clock import WallClock
from penstock.base.errors import StreamError
from penstock.base.ids import (
    Millis,
    Offset,
    StreamId,
    WalSequence,
    WalStoreId,
)
from penstock.objectstore.errors import ObjectNotFound
from penstock.objectstore.ports import ObjectStore
from penstock.stream.cache.block_cache import BlockCache
from penstock.stream.cache.log_cache import AppendEntry, CacheSegment, LogCache
from penstock.stream.config import StreamConfig
from penstock.stream.errors import (
    NotContiguous,
    StreamFenced,
    StreamNotClosed,
    WalClosed,
    WalFailed,
    WalFenced,
    WalFull,
    WalStoreWrong,
)
from penstock.stream.format.keys import wal_key
from penstock.stream.ports import (
    IN_STORE,
    BrokerIncarnation,
    OpenStream,
    StreamMetadata,
    WalStoreIdentity,
)
from penstock.stream.read.damage import DamageLog
from penstock.stream.read.object_reader import ObjectReader
from penstock.stream.read.stream_reader import StreamReader
from penstock.stream.stream import StreamHandle, refusal, restore_next_offsets
from penstock.stream.upload.closing import Closer, ClosingTimes
from penstock.stream.upload.commits import CommitSequencer
from penstock.stream.upload.move_commit import commit_move
from penstock.stream.upload.uploader import UploadCounts, Uploader
from penstock.stream.wal.append import AppendDone, MovedSlot, WalAppend, notify
from penstock.stream.wal.held import HeldSlots
from penstock.stream.wal.sender import Sender
from penstock.stream.wal.slots import SlotRange, SlotTable
from penstock.stream.wal.store_check import StoreCheck
from penstock.stream.wal.tracing import Tracing
from penstock.stream.wal.wal import DurableBulk, Wal, by_stream
from penstock.stream.wal.wal_store import open_wal

__all__ = ["AppendEntry", "Storage", "StreamHandle"]

_log = structlog.get_logger(__name__)


class Storage:
    """Owns the open streams of one (node, node epoch). Construct it inside the running loop. Its
    WAL begins at slot 0. `reader` reads streams, including those of other owners.

    `done(None)` is called in WAL order, only for durable groups, after the confirmed offsets have
    advanced and the data is in the cache. It is never called after a fence, while acknowledgments
    are held back, or for a fenced stream. Groups are accepted as a whole or not at all. `append`
    creates no tasks: it schedules at most one poll per event loop iteration.
    """

    def __init__(
        self,
        store: ObjectStore,
        metadata: StreamMetadata,
        identity: BrokerIncarnation,
        config: StreamConfig,
        *,
        now_ms: WallClock,
        rng: Random,
        on_fenced: Callable[[StreamError], None],
        check_session: Callable[[], None] = lambda: None,
        tracing: Tracing | None = None,
    ) -> None:
        """on_fenced: called once, when this broker incarnation can never acknowledge or commit
        again, because it is fenced or a slot cannot be written.

        check_session: called before each acknowledgment; calls `stop_acknowledging` if the session
        has ended, so that after a pause of the process, it does not matter which of its tasks wakes
        first.
        """
        self.tracing = tracing
        self._store = store
        self._metadata = metadata
        self._identity = identity
        self._wal_store = metadata.wal_store_of(identity)
        self._config = config
        self._on_fenced = on_fenced
        self._check_session = check_session
        self._now_ms = now_ms
        self._rng = rng
        self._loop = asyncio.get_running_loop()
        self._unacknowledged_max = config.wal_unacknowledged_bytes_max
        self._cache_max = config.log_cache_bytes_max
        self._overshoot_max = config.append_overshoot_bytes_max

        # Streams and their recent data.
        self._handles: dict[StreamId, StreamHandle] = {}
        self._cache = LogCache(config)
        self._slots = SlotTable()

        # The append path: WAL, upload, close.
        self._check = self._make_check()
        self._wal = self._new_wal()
        self._commits = CommitSequencer(metadata, config, rng, self._on_stream_fenced)
        self._uploader = self._new_uploader()
        self._closer = self._new_closer()
        self._closings: set[asyncio.Task[ClosingTimes]] = set()

        # The read path.
        self._blocks = BlockCache(config.block_cache_bytes_max)
        self._objects = ObjectReader(store, self._blocks)
        self.damage = DamageLog()
        """Damaged or missing objects found by reads in this process."""
        self.decompressed_batch_bytes_max = config.decompressed_batch_bytes_max
        self.reader = StreamReader(self._cache, metadata, self._objects, config, self.damage)
        self.cached_read_count = 0
        """Stream reads served by the log cache."""
        self.missed_read_count = 0
        """Stream reads that missed the log cache."""

        # Durable bulks that are held back while `_acknowledging` is cleared or the WAL store is not
        # trusted, and slots that are being uploaded instead of written.
        self._acknowledging = asyncio.Event()
        self._acknowledging.set()
        self._held = HeldSlots()
        self._moved: Sequence[MovedSlot] = ()
        self._moving: asyncio.Task[None] | None = None
        self._settled = asyncio.Event()
        """Set while nothing is held back and the WAL does not move."""
        self._settled.set()
        self.wal_move_count = 0

        self._room_waiters: list[asyncio.Future[None]] = []
        self._age_timer: asyncio.TimerHandle | None = None
        self._failure: StreamError | None = None

    def _make_check(self) -> StoreCheck:
        return StoreCheck(
            self._store,
            self._wal_store,
            durable_end=lambda: self._held.end,
            on_checked=self._on_checked,
            on_failed=self._fail,
        )

    @property
    def wal_store(self) -> WalStoreIdentity | None:
        """The store of the WAL, or None for the cluster's own store."""
        return self._wal_store

    @property
    def wal_store_id(self) -> WalStoreId:
        return IN_STORE if self._wal_store is None else self._wal_store.store_id

    def _new_wal(self) -> Wal:
        return Wal(
            self._store,
            self._identity,
            self._config,
            now_ms=self._now_ms,
            rng=self._rng,
            on_durable=self._on_durable,
            on_failed=self._on_wal_failed,
            wal_store=self.wal_store_id,
            on_doubt=self._check.doubt,
            tracing=self.tracing,
        )

    def _new_uploader(self) -> Uploader:
        return Uploader(
            self._store,
            self._metadata,
            self._identity,
            self._config,
            commits=self._commits,
            now_ms=self._now_ms,
            rng=self._rng,
            on_committed=self._on_block_committed,
            on_failed=self._fail,
        )

    def _new_closer(self) -> Closer:
        return Closer(
            self._config,
            handles=self._handles,
            slots=self._slots,
            commits=self._commits,
            uploader=self._uploader,
            cut=self._cut,
            forget=self._forget,
            check=self._check,
        )

    def reconfigure(self, config: StreamConfig) -> None:
        """Change the WAL settings. Only dynamic settings may differ."""
        self._config = config
        self._wal.reconfigure(config)

    # --- state ------------------------------------------------------------------------------------

    @property
    def fenced(self) -> bool:
        """Whether this broker incarnation has ended and will never acknowledge again."""
        return self._failure is not None

    @property
    def failure(self) -> StreamError | None:
        return self._failure

    @property
    def wal_store_problem(self) -> WalStoreWrong | None:
        """The reason why the WAL store is no longer the right one, or None if it is."""
        return self._check.wrong

    @property
    def stalled_s(self) -> float:
        """Seconds during which no PUT has ended or the identity of the WAL store could not be read.
        The identity is included so that an idle broker also leaves a lost WAL store.
        """
        doubtful_s = self._check.doubtful_s if self._acknowledging.is_set() else 0.0
        return max(self._wal.stalled_s, doubtful_s)

    @property
    def backlog_bytes(self) -> int:
        """Appended bytes that are not acknowledged."""
        return self._wal.unacknowledged_bytes + self._held.size_bytes

    @property
    def uncommitted_bytes(self) -> int:
        """Acknowledged bytes that are only in WAL objects, with overhead."""
        return self._cache.uncommitted_bytes

    def uncommitted_bytes_of(self, stream_id: StreamId, committed_offset: Offset) -> int:
        """Return the acknowledged bytes of one stream that are only in WAL objects, because they
        follow its committed end; without overhead.
        """
        return self._cache.uncommitted_bytes_of(stream_id, committed_offset)

    @property
    def uncommitted_s(self) -> float:
        """Age in seconds of the oldest acknowledged bytes that are only in WAL objects; 0 if there
        are none.
        """
        opened_at = self._cache.oldest_uncommitted_at
        return 0.0 if opened_at is None else max(0.0, self._loop.time() - opened_at)

    @property
    def uncommitted_slot_count(self) -> int:
        return self._slots.slot_count

    @property
    def cached_bytes(self) -> int:
        """Bytes in the log cache, with overhead."""
        return self._cache.size_bytes

    @property
    def wal(self) -> Wal:
        """The WAL, only for its metrics. Append through the storage."""
        return self._wal

    @property
    def blocks(self) -> BlockCache:
        """The block cache, for its metrics."""
        return self._blocks

    @property
    def uploads(self) -> UploadCounts:
        return self._uploader.counts

    @property
    def is_full(self) -> bool:
        """Whether a limit is reached. The caller stops reading requests until `wait_for_room`
        returns.
        """
        return (
            self._wal.unacknowledged_bytes + self._held.size_bytes >= self._unacknowledged_max
            or self._cache.uncommitted_bytes >= self._cache_max
        )

    @property
    def wal_end(self) -> WalSequence:
        return self._wal.end

    def open_handles(self) -> list[StreamHandle]:
        """Return the streams that are open here and neither closing nor fenced, which compaction
        may rewrite.
        """
        return [handle for handle in self._handles.values() if handle.accepting]

    async def wait_for_room(self) -> None:
        """Wait until the storage is not full or has failed. After a failure, appends raise the
        reason.
        """
        while self.is_full and self._failure is None:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room_waiters.append(waiter)
            await waiter

    # --- lifecycle --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Verify with one HEAD that this WAL is new: a (node, epoch) pair that was used before must
        never write again. If there is a WAL store, verify its identity and write the marker of this
        WAL before this broker owns a stream.

        Raises WalFenced, WalStoreWrong.
        """
        if self._wal_store is not None:
            await open_wal(self._store, self._identity, self._wal_store)
        try:
            await self._store.head(wal_key(self._identity, WalSequence(0), self.wal_store_id))
        except ObjectNotFound:
            return
        self._fail(WalFenced(WalSequence(0), "an earlier start with the same node epoch"))
        raise WalFenced(WalSequence(0), "an earlier start with the same node epoch")

    async def close(self, *, timeout_s: float = 30.0) -> None:
        """Flush and upload the remaining data, for at most `timeout_s`, then stop.

        Recovery reads the rest from the WAL, so a timeout or a StreamError is not raised.
        """
        if self._failure is None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.flush()
                    self._cut()
                    await self._uploader.drained()
            except (StreamError, TimeoutError) as error:
                _log.warning(
                    "storage_closed_with_data_in_wal",
                    slot_count=self._slots.slot_count,
                    error=repr(error),
                )
        await self.abandon()

    async def abandon(self) -> None:
        """Stop immediately, like a crash: unacknowledged appends fail, and nothing more is written
        or committed.
        """
        self._fail(WalClosed("the storage was closed"), notify=False)
        self._check.close()
        if self._moving is not None:
            self._moving.cancel()
            await asyncio.wait([self._moving])
        await self._wal.stopped()
        await self._uploader.stop()
        for task in self._closings:
            task.cancel()
        while self._closings:
            await asyncio.wait(self._closings)
        self.reader.close()
        await self._objects.close()

    def stop_acknowledging(self) -> None:
        """Hold back acknowledgments, because the session is lost.

        WAL slots are still written. These slots show whether this broker incarnation was fenced.
        """
        self._acknowledging.clear()

    def resume_acknowledging(self) -> None:
        """Acknowledge again. With a WAL store, its identity is read first, because another store
        may have been mounted while this process was paused.
        """
        self._acknowledging.set()
        if self._held:
            self._check.doubt()
        self._release()

    def _on_checked(self, end: int) -> None:
        self._check_session()
        self._release(end)

    def _release(self, checked_end: int = 0) -> None:
        """Acknowledge the groups that were held back. Slots below `checked_end` are known to be in
        the right store.
        """
        while self._held and self._acknowledging.is_set():
            if not self._check.is_trusted and self._held.first >= checked_end:
                break
            self._acknowledge(self._held.pop_first())
        if not self._held and not self._is_moving:
            self._settled.set()

    # --- the place of the WAL ---------------------------------------------------------------------

    async def check_wal_store(self) -> None:
        """Read the identity of the WAL store once. If it is another store, nothing is acknowledged
        until the WAL has moved.
        """
        await self._check.look()

    async def move_wal(self, target: WalStoreIdentity | None) -> None:
        """Continue the WAL in another store. target: None for the cluster's own store.

        Everything appended so far is uploaded with its offsets, including slots whose PUTs may have
        succeeded; it is acknowledged when the upload and the move are committed and backed up, so
        nothing depends on the contents of the old store. Until then, appends wait. The move
        continues if the caller is cancelled. Raises WalStoreWrong and errors of the target before
        anything changes, and the error of a failed WAL. See docs/design/wal-store-outages.md.
        """
        assert not self._is_moving, "the WAL moves already"
        if target is not None:
            await open_wal(self._store, self._identity, target)
        self._moving = self._loop.create_task(self._move_wal(target))
        await asyncio.shield(self._moving)

    @property
    def _is_moving(self) -> bool:
        return self._moving is not None and not self._moving.done()

    async def _move_wal(self, target: WalStoreIdentity | None) -> None:
        if self._failure is not None:
            raise self._failure
        self._settled.clear()
        pending = [(bulk.sequence, bulk.groups) for bulk in self._held.take_all()]
        pending += [(bulk.sequence, bulk.groups) for bulk in self._wal.suspend()]
        first = self._wal.end
        moved = [MovedSlot(at, by_stream(groups), groups) for at, groups in pending]
        self._moved = moved
        try:
            await self._upload_moved(moved)
            target = await commit_move(self._commits, self._metadata, first, target)
            self._check_session()
            while not self._acknowledging.is_set():
                await self._acknowledging.wait()
                self._check_session()
        except Exception as error:
            # The WAL cannot continue in either store.
            failure = error if isinstance(error, StreamError) else WalFailed(first, repr(error))
            self._fail(failure)
            raise failure from error
        if self._failure is not None:
            raise self._failure
        self._end_move(moved, target)

    async def _upload_moved(self, moved: Sequence[MovedSlot]) -> None:
        for slot in moved:
            owned = {key: run for key, run in slot.runs.items() if self._owns(key)}
            now = self._loop.time()
            self._cache.add(owned, WalSequence(slot.sequence + 1), now)
            if self._cache.archive_due(now):
                self._cut()
        self._cut()
        await self._uploader.drained()
        if self._failure is not None:
            raise self._failure

    def _end_move(self, moved: Sequence[MovedSlot], target: WalStoreIdentity | None) -> None:
        """Acknowledge the uploaded groups and write to the other store."""
        old_store, self._wal_store = self.wal_store_id, target
        keys = [wal_key(self._identity, slot.sequence, old_store) for slot in moved]
        self._moved = ()
        self._check.use(target)
        self.wal_move_count += 1
        for slot in moved:
            for stream_id, run in slot.runs.items():
                if self._owns(stream_id):
                    handle = self._handles[stream_id]
                    handle.confirmed_offset = handle.committed_offset = run[-1].end_offset
            for entries, done in slot.groups:
                notify(done, self._fenced_in(entries))
        self._wal.resume(self.wal_store_id)
        self._settled.set()
        self._wake_room_waiters()
        if keys:
            self._uploader.delete_after_grace(keys, self._metadata.position())
        _log.warning(
            "wal_moved", from_store=old_store, to_store=self.wal_store_id, slot_count=len(moved)
        )

    # --- streams ----------------------------------------------------------------------------------

    async def open_streams(self, requests: Sequence[OpenStream]) -> list[StreamHandle | Exception]:
        """Open streams with one RPC and return one result per request.

        For a stream that is open or closing here, the result is StreamNotClosed, and the caller
        must retry.
        """
        if self._failure is not None:
            raise self._failure
        results: list[StreamHandle | Exception] = [
            StreamNotClosed(request.stream_id) for request in requests
        ]
        wanted = [
            (at, request)
            for at, request in enumerate(requests)
            if request.stream_id not in self._handles
        ]
        opened = (
            await self._metadata.open_streams([request for _, request in wanted]) if wanted else []
        )
        for (at, request), response in zip(wanted, opened, strict=True):
            if isinstance(response, Exception):
                results[at] = response
            elif request.stream_id not in self._handles:
                handle = StreamHandle(response)
                self._handles[request.stream_id] = handle
                results[at] = handle
        return results

    async def close_streams(self, handles: Sequence[StreamHandle]) -> ClosingTimes:
        """Reject appends, make everything durable, commit it in place and close: one flush and one
        RPC.

        This continues if the caller is cancelled, because a partial close would leave the stream
        with an unknown end. Raises the error of a failed WAL.
        """
        for handle in handles:
            handle.accepting = False
        task = self._loop.create_task(self._close_streams(handles))
        self._closings.add(task)
        task.add_done_callback(self._on_closing_ended)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self._failure is not None:
                raise self._failure from None
            raise

    def _on_closing_ended(self, task: asyncio.Task[ClosingTimes]) -> None:
        self._closings.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("closing_streams_failed", error=repr(error))

    async def _close_streams(self, handles: Sequence[StreamHandle]) -> ClosingTimes:
        began = self._loop.time()
        await self.flush()
        flushed = self._loop.time()
        try:
            await self._closer.close(handles)
        except WalFenced as error:
            self._fail(error)
            raise
        return ClosingTimes(flushed - began, self._loop.time() - flushed)

    async def trim(self, handle: StreamHandle, start_offset: Offset, *, keep: bool = False) -> None:
        """Hide everything below `start_offset` from readers. Objects are deleted once all their
        contents are removed. keep: whether the removed part can be restored for a while
        (`StreamMetadata.trim_stream`).

        Even if this raises, the stream may have been trimmed: see `on_trimmed`.
        """
        await self._metadata.trim_stream(handle.stream_id, handle.epoch, start_offset, keep=keep)
        self.on_trimmed(handle.stream_id, start_offset)

    def on_trimmed(self, stream_id: StreamId, start_offset: Offset) -> None:
        """Apply the start of a stream in the metadata, which may include a trim whose response was
        lost. This has no effect if the stream is not open here.
        """
        handle = self._handles.get(stream_id)
        if handle is not None:
            handle.start_offset = max(handle.start_offset, start_offset)

    # --- writing ----------------------------------------------------------------------------------

    def append(
        self, entries: Sequence[AppendEntry], done: AppendDone, sender: Sender | None = None
    ) -> None:
        """Add one group, which becomes durable as a whole in one WAL object. sender: see
        `WalCore.append`.

        `done` is called on the loop, in WAL order, with None or the error. Entries must follow the
        `next_offset` of their streams. Raises StreamNotOpened, StreamFenced, NotContiguous,
        WalFull, WalClosed, WalFenced, or WalFailed before accepting anything. This takes 1.5 us for
        one entry, and another 1 to 2 us until its acknowledgment, in addition to the PUT.
        """
        if self._failure is not None:
            raise self._failure
        handles = self._handles
        size_bytes = 0
        for at, entry in enumerate(entries):
            handle = handles.get(entry.stream_id)
            if handle is None or not handle.accepting:
                restore_next_offsets(handles, entries[:at])
                raise refusal(entry.stream_id, handle)
            payload_bytes = len(entry.payload)
            if (
                entry.base_offset != handle.next_offset
                or entry.end_offset <= entry.base_offset
                or not payload_bytes
            ):
                restore_next_offsets(handles, entries[:at])
                raise NotContiguous(entry.stream_id, handle.next_offset, entry.base_offset)
            handle.next_offset = entry.end_offset
            size_bytes += payload_bytes
        assert size_bytes, "a group holds at least one entry"
        backlog_bytes = self._wal.unacknowledged_bytes + self._held.size_bytes + size_bytes
        if (
            backlog_bytes > self._unacknowledged_max
            or self._cache.uncommitted_bytes > self._cache_max
        ):
            self._check_room(entries, backlog_bytes)
        self._wal.append((entries, done), size_bytes, sender)

    async def flush(self) -> None:
        """Wait until everything appended so far is acknowledged. Raises the error of a failed
        WAL.
        """
        while True:
            await self._settled.wait()
            move_count = self.wal_move_count
            await self._wal.flush()
            if self._failure is not None:
                raise self._failure
            if self._settled.is_set() and move_count == self.wal_move_count:
                return

    def committed_end(self, stream_id: StreamId) -> Offset:
        """Return the committed end of the stream in the local image."""
        return self._metadata.committed_end(stream_id)

    def buffered_bytes(self, stream_id: StreamId) -> int:
        """Return the number of bytes appended to this stream since its last upload began."""
        return self._cache.buffered_bytes(stream_id)

    async def upload(self) -> None:
        """Wait until everything appended so far is committed in objects of the local image. This
        flushes the WAL and uploads the remaining data, up to the size of the log cache. Raises the
        error of a failed WAL.
        """
        await self.flush()
        self._cut()
        await self._uploader.drained()
        if self._failure is not None:
            raise self._failure

    def _check_room(self, entries: Sequence[AppendEntry], backlog_bytes: int) -> None:
        over_bytes = backlog_bytes - self._unacknowledged_max
        uncommitted_bytes = self._cache.uncommitted_bytes
        if uncommitted_bytes > self._cache_max:
            over_bytes = max(over_bytes, uncommitted_bytes - self._cache_max + backlog_bytes)
        if over_bytes > self._overshoot_max:
            restore_next_offsets(self._handles, entries)
            raise WalFull(
                backlog_bytes + uncommitted_bytes, backlog_bytes + uncommitted_bytes - over_bytes
            )

    def _on_durable(self, bulk: DurableBulk) -> None:
        self._check_session()
        if self._acknowledging.is_set() and self._check.is_trusted and not self._held:
            self._acknowledge(bulk)
        else:
            self._held.append(bulk)
            self._settled.clear()

    def _acknowledge(self, bulk: DurableBulk) -> None:
        """Acknowledge a durable slot whose predecessors are all durable: advance offsets, fill the
        cache, notify writers.
        """
        runs, ranges, fenced = bulk.runs, bulk.ranges, False
        for item in ranges:
            handle = self._handles.get(item.stream_id)
            if handle is None or handle.fenced:
                fenced = True
            else:
                handle.confirmed_offset = item.end_offset
        if fenced:
            runs = {stream_id: run for stream_id, run in runs.items() if self._owns(stream_id)}
            ranges = tuple(item for item in ranges if self._owns(item.stream_id))
        self._slots.add(bulk.sequence, bulk.key, bulk.size_bytes, ranges)
        now = self._loop.time()
        self._cache.add(runs, WalSequence(bulk.sequence + 1), now)
        if self._cache.archive_due(now):
            self._cut()
        elif self._age_timer is None:
            self._age_timer = self._loop.call_later(
                self._config.block_age_max_ms / 1000, self._on_age_timer
            )
        for entries, done in bulk.groups:
            notify(done, self._fenced_in(entries) if fenced else None)
        if self._room_waiters:
            self._wake_room_waiters()

    def _owns(self, stream_id: StreamId) -> bool:
        handle = self._handles.get(stream_id)
        return handle is not None and not handle.fenced

    def _fenced_in(self, entries: Sequence[AppendEntry]) -> StreamFenced | None:
        """Return the error of a group that contains a fenced stream.

        The group is not acknowledged, although its parts in other streams are durable: its outcome
        is unknown.
        """
        for entry in entries:
            if not self._owns(entry.stream_id):
                return StreamFenced(entry.stream_id, "another broker opened it during the append")
        return None

    # --- reading ----------------------------------------------------------------------------------

    def read_cached(
        self, stream_id: StreamId, offset: int, end_offset: int, max_bytes: int
    ) -> list[Buffer] | None:
        """Like `StreamReader.read`, but read only from the log cache. Return None if any part is
        missing from it.
        """
        found = self._cache.read(stream_id, offset, end_offset, max_bytes)
        if found is None:
            self.missed_read_count += 1
        else:
            self.cached_read_count += 1
        return found

    def cached_entries(
        self, stream_id: StreamId, start: Offset, end: Offset
    ) -> list[AppendEntry] | None:
        """Return the entries that cover [start, end) exactly, so that compaction does not have to
        read them from the store.

        Returns None if any of them is not in memory.
        """
        return self._cache.entries_of(stream_id, start, end)

    def forget_cached(self, stream_id: StreamId, end: Offset) -> None:
        """Drop the cached entries of a stream below `end`, where log compaction has removed
        records, so that later reads use the store.
        """
        self._cache.forget(stream_id, end)

    def tail(self, stream_id: StreamId, offset: Offset, limit: int) -> list[SlotRange]:
        """Return up to `limit` tail ranges of a stream that is open on this node, beginning with
        the range that contains `offset`. Earlier ranges are committed.
        """
        return self._slots.tail(stream_id, offset, limit)

    async def offset_for_timestamp(
        self, stream_id: StreamId, timestamp_ms: int, end_offset: Offset
    ) -> tuple[Offset, Millis] | None:
        """Return (offset, timestamp) of the first record below `end_offset` with at least this
        timestamp, or None.
        """
        handle = self._handles.get(stream_id)
        start_offset = Offset(0) if handle is None else handle.start_offset
        return await self.reader.offset_for_timestamp(
            stream_id, timestamp_ms, start_offset, end_offset
        )

    async def newest_timestamp(
        self, stream_id: StreamId, end_offset: Offset
    ) -> tuple[Offset, Millis] | None:
        """Return (offset, timestamp) of the first record below `end_offset` with the newest
        timestamp, or None if there are no records.
        """
        handle = self._handles.get(stream_id)
        start_offset = Offset(0) if handle is None else handle.start_offset
        return await self.reader.newest_timestamp(stream_id, start_offset, end_offset)

    # --- callbacks --------------------------------------------------------------------------------

    def _cut(self) -> None:
        if self._failure is None and (block := self._cache.archive()) is not None:
            self._uploader.submit(block)

    def _on_age_timer(self) -> None:
        self._age_timer = None
        if self._failure is not None or (active := self._cache.active) is None:
            return
        if self._cache.archive_due(self._loop.time()):
            self._cut()
        else:
            self._age_timer = self._loop.call_at(
                active.opened_at + self._config.block_age_max_ms / 1000, self._on_age_timer
            )

    def _on_block_committed(self, block: CacheSegment) -> list[str]:
        for stream_id, run in block.runs.items():
            handle = self._handles.get(stream_id)
            if handle is not None:
                # While the WAL moves, uploaded slots are confirmed only at the end of the move.
                handle.committed_offset = min(run.end_offset, handle.confirmed_offset)
        self._cache.mark_committed(block)
        self._wake_room_waiters()
        return self._slots.commit(block.end_sequence, self._metadata.has_object)

    def _on_stream_fenced(self, stream_id: StreamId) -> None:
        handle = self._handles.get(stream_id)
        if handle is not None:
            handle.accepting = False
            handle.fenced = True
        self._cache.drop([stream_id])
        self._slots.forget([stream_id])

    def _forget(self, handles: Iterable[StreamHandle]) -> None:
        stream_ids = [handle.stream_id for handle in handles]
        self._cache.drop(stream_ids)
        self._slots.forget(stream_ids)
        for handle in handles:
            handle.committed_offset = handle.confirmed_offset
            del self._handles[handle.stream_id]
        self._wake_room_waiters()

    def _on_wal_failed(self, failure: StreamError, groups: list[WalAppend]) -> None:
        held = [group for slot in self._moved for group in slot.groups]
        held += [group for bulk in self._held.take_all() for group in bulk.groups]
        self._moved = ()
        self._fail(failure)
        for _, done in (*held, *groups):
            notify(done, failure)

    def _fail(self, failure: StreamError, *, notify: bool = True) -> None:
        """Stop accepting, acknowledging and committing, forever. Idempotent."""
        if self._failure is not None:
            return
        self._failure = failure
        if self._age_timer is not None:
            self._age_timer.cancel()
            self._age_timer = None
        self._wal.fail(failure)
        self._acknowledging.set()
        self._settled.set()
        self._wake_room_waiters()
        if notify:
            _log.error("storage_fenced", error=str(failure))
            self._on_fenced(failure)

    def _wake_room_waiters(self) -> None:
        if not self._room_waiters or (self.is_full and self._failure is None):
            return
        for waiter in self._room_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._room_waiters.clear()
