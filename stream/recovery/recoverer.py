"""Recover the WAL of a dead broker: find its last durable slot, fence the slot after it, and commit
the uncommitted slots. The controller must fence the broker first, so that the committed ends of its
streams no longer change. See docs/design/wal.md.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import structlog

from penstock.base.ids import Millis, StreamId, WalSequence
from penstock.objectstore.errors import PreconditionFailed
from penstock.objectstore.ports import ObjectStore
from penstock.stream.config import StreamConfig
from penstock.stream.errors import ObjectCorrupt, WalDamaged, WalSlotLost, WalVanished
from penstock.stream.format.builder import fence_object
from penstock.stream.format.decoder import ObjectIndex
from penstock.stream.format.keys import wal_key, wal_marker_key
from penstock.stream.ports import (
    IN_STORE,
    BrokerIncarnation,
    NewObject,
    ObjectRole,
    StreamMetadata,
    WalStoreIdentity,
)
from penstock.stream.recovery.later_slots import SlotsBehind
from penstock.stream.recovery.salvage import BadSlot, Salvage
from penstock.stream.wal.slot_reader import CacheSlot, read_slot
from penstock.stream.wal.wal_store import check_identity, was_opened, write_marker

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """The result of one recovery.

    end: the fenced slot. committed_object_count: the WAL objects that this call committed in place.
    """

    failed: BrokerIncarnation
    start: WalSequence
    end: WalSequence
    committed_object_count: int
    committed_bytes: int
    fenced_by_us: bool


async def recover_wal(
    store: ObjectStore,
    metadata: StreamMetadata,
    failed: BrokerIncarnation,
    start: WalSequence,
    *,
    recoverer: BrokerIncarnation,
    now_ms: Millis,
    config: StreamConfig,
    cache_slot: CacheSlot | None = None,
) -> RecoveryReport:
    """Recover from slot `start` (the committed one in the metadata) and end the WAL.

    Recovery may be repeated and may run concurrently: an existing fence marks the end, and both
    this function and the controller skip committed slots. A lost or damaged slot holds back the
    partitions that it may affect (`stream.recovery.salvage`), until the slot is restored or an
    operator accepts the loss.

    cache_slot: called with each slot that was read whole, so that a new leader in this process does
    not read it again. Cost: one GET of at most config.recovery_tail_bytes per slot,
    config.recovery_read_ahead_count of them concurrently, one LIST in parallel, and one PUT. In a
    WAL store, its identity is read before each commit, and before and after the PUT; if the marker
    of the WAL is missing, the first missing slot counts as lost.

    Raises NotContiguous, WalStoreWrong and errors from the store and the controller. Raises
    WalDamaged after all other partitions are recovered if some have to wait for lost or damaged
    slots. After any error, call it again with the latest committed slot.
    """
    ends = metadata.streams_owned_by(failed)
    accepted = metadata.accepted_losses(failed)
    walker = WalWalker(
        store,
        failed,
        start,
        recoverer=recoverer,
        wal_store=metadata.wal_store_of(failed),
        must_exist=bool(ends),
        accepted=accepted,
        now_ms=now_ms,
        config=config,
        cache_slot=cache_slot,
    )
    salvage = Salvage(ends, metadata.data_streams_of(ends))
    commits = _RecoveryCommits(metadata, failed, config, walker.check_store)
    # If a commit fails, stop the reads before the next attempt begins.
    async with aclosing(walker.slots()) as slots:
        async for key, found in slots:
            if isinstance(found, BadSlot):
                salvage.add_bad(found)
                continue
            ranges = salvage.take(walker.end, found.ranges)
            if ranges:
                size_bytes = found.object_size_bytes
                await commits.add(NewObject(None, key, ObjectRole.WAL, size_bytes, ranges))
    losses = list(salvage.losses(accepted))
    held = [loss.stream_id for loss in losses]
    await commits.finish(walker.end, held)
    if held:
        # Raise only after the last commit. If another recoverer has ended this WAL in the meantime,
        # slots are missing because they were deleted, and the controller has rejected the commit.
        raise WalDamaged(
            tuple(dict.fromkeys(slot.key for loss in losses for slot in loss.slots)), len(held)
        )
    report = RecoveryReport(
        failed,
        start,
        walker.end,
        commits.object_count,
        commits.committed_bytes,
        walker.fenced_by_us,
    )
    _log.info(
        "wal_recovered",
        node_id=failed.node_id,
        node_epoch=failed.node_epoch,
        end=walker.end,
        object_count=report.committed_object_count,
    )
    return report


class _RecoveryCommits:
    """Commits WAL objects in place, in slot order, with as few requests as the limits allow."""

    def __init__(
        self,
        metadata: StreamMetadata,
        failed: BrokerIncarnation,
        config: StreamConfig,
        check_store: Callable[[], Awaitable[None]],
    ) -> None:
        """check_store: raises an error if the slots were read from the wrong store."""
        self._metadata = metadata
        self._failed = failed
        self._check_store = check_store
        self._objects_max = config.recovery_commit_objects_max
        self._ranges_max = config.recovery_commit_ranges_max
        self._pending: list[NewObject] = []
        self._pending_range_count = 0
        self.object_count = 0
        self.committed_bytes = 0

    async def add(self, item: NewObject) -> None:
        """Add an object; commit the pending ones first if they fill a request."""
        full = (
            len(self._pending) >= self._objects_max
            or self._pending_range_count + len(item.ranges) > self._ranges_max
        )
        if self._pending and full:
            await self._check_store()
            await self._metadata.commit_recovered(
                self._failed, self._pending, done=False, end=WalSequence(0)
            )
            self._pending, self._pending_range_count = [], 0
        self._pending.append(item)
        self._pending_range_count += len(item.ranges)
        self.object_count += 1
        self.committed_bytes += sum(part.size_bytes for part in item.ranges)

    async def finish(self, end: WalSequence, held: Sequence[StreamId]) -> None:
        """Commit the rest and end the WAL at slot `end`; the streams in `held` stay open. The
        walker has already checked the store at that point.
        """
        await self._metadata.commit_recovered(
            self._failed, self._pending, done=True, end=end, held=held
        )


class WalWalker:
    """Reads the slots of one WAL in order from `start`, then fences the first free slot.

    Every slot below the end was read before the fence was written, or after the fence failed with
    412 (Precondition Failed), so no acknowledged slot is omitted, and nothing can be acknowledged
    after the fence. The tails of several slots are read ahead.
    """

    def __init__(
        self,
        store: ObjectStore,
        failed: BrokerIncarnation,
        start: WalSequence,
        *,
        recoverer: BrokerIncarnation | None,
        wal_store: WalStoreIdentity | None,
        must_exist: bool,
        accepted: Collection[WalSequence],
        now_ms: Millis,
        config: StreamConfig,
        cache_slot: CacheSlot | None = None,
        fence_vanished: bool = False,
    ) -> None:
        """recoverer: the writer of the fence. If None, no fence is written, and the WAL may
        continue to grow. wal_store: None for the cluster's own store. must_exist: whether the
        writer has opened streams, so that its marker must be in the WAL store. accepted: slots
        whose loss an operator has accepted. fence_vanished: whether an operator has accepted every
        loss, so that a vanished WAL is fenced as well.
        """
        self._store = store
        self._failed = failed
        self._recoverer = recoverer
        self._wal_store = wal_store
        self._wal_store_id = IN_STORE if wal_store is None else wal_store.store_id
        self._must_exist = must_exist
        self._accepted = accepted
        self._now_ms = now_ms
        self._read_ahead_count = config.recovery_read_ahead_count
        self._tail_bytes = config.recovery_tail_bytes
        self._cache_slot = cache_slot
        self._fence_vanished = fence_vanished
        self._behind = SlotsBehind(store, failed, start, self._wal_store_id)
        self.end = start
        self.fenced_by_us = False

    async def slots(self) -> AsyncGenerator[tuple[str, ObjectIndex | BadSlot]]:
        """Yield (key, index) for every data slot in order. For a lost or damaged slot, a BadSlot
        replaces the index. If the marker of the WAL vanished, slot `end` is the last one, and
        counts as lost.

        When the iteration completes, slot `end` is a fence, unless `recoverer` is None or the WAL
        vanished (see `fence_vanished`), and the store was the right one. Raises WalStoreWrong
        otherwise. A caller that may stop early must close the generator, which also stops
        read-ahead.
        """
        reads: deque[asyncio.Task[ObjectIndex | None]] = deque()
        listing = asyncio.ensure_future(self._behind.list())
        try:
            while True:
                while len(reads) < self._read_ahead_count:
                    reads.append(
                        asyncio.ensure_future(self._read(WalSequence(self.end + len(reads))))
                    )
                found = await self._index_or_bad(reads.popleft())
                if found is None:
                    await listing
                    found = await self._close_hole()
                if found is None or (isinstance(found, ObjectIndex) and found.is_fence):
                    await self.check_store()
                    return
                yield self._key(self.end), found
                if isinstance(found, BadSlot) and isinstance(found.error, WalVanished):
                    if not self._fence_vanished:
                        return
                    self._must_exist = False
                    reads.appendleft(asyncio.ensure_future(self._read(self.end)))
                    continue
                self.end = WalSequence(self.end + 1)
        finally:
            for task in (*reads, listing):
                task.cancel()
            await asyncio.gather(*reads, listing, return_exceptions=True)

    async def check_store(self) -> None:
        """Check that the slots were read from the right store, because otherwise a missing slot may
        exist. Raises WalStoreWrong.
        """
        if self._wal_store is not None:
            await check_identity(self._store, self._wal_store)

    async def _has_vanished(self) -> bool:
        """Return whether the WAL store has lost the marker, and with it perhaps the slot at `end`
        and later ones.
        """
        if self._wal_store is None or not self._must_exist or self.end in self._accepted:
            return False
        return not await was_opened(self._store, self._failed, self._wal_store_id)

    def _key(self, sequence: WalSequence) -> str:
        return wal_key(self._failed, sequence, self._wal_store_id)

    async def _close_hole(self) -> ObjectIndex | BadSlot | None:
        """Determine the state of the missing slot at `end`.

        Return None at the end of the WAL, a BadSlot for a lost slot or if the WAL vanished, and
        otherwise the index of the slot, which was written after the first read.
        """
        key = self._key(self.end)
        proof = await self._behind.proof_of(self.end)
        if proof:
            # A live writer may have filled the slot since it was read.
            return await self._index_or_bad(self._read(self.end)) or BadSlot(
                self.end, key, WalSlotLost(key, proof)
            )
        await self.check_store()
        if await self._has_vanished():
            marker = wal_marker_key(self._failed, self._wal_store_id)
            return BadSlot(self.end, marker, WalVanished(marker))
        if self._recoverer is None or await self._fence(self._recoverer, self.end):
            return None
        found = await self._index_or_bad(self._read(self.end))
        if found is None:
            raise ObjectCorrupt(
                key,
                0,
                "a PUT found the slot but a GET did not: another process deletes slots of this WAL",
            )
        return found

    async def _index_or_bad(
        self, read: Awaitable[ObjectIndex | None]
    ) -> ObjectIndex | BadSlot | None:
        try:
            return await read
        except ObjectCorrupt as error:
            return BadSlot(self.end, self._key(self.end), error)

    async def _read(self, sequence: WalSequence) -> ObjectIndex | None:
        return await read_slot(
            self._store,
            self._failed,
            sequence,
            self._wal_store_id,
            tail_bytes=self._tail_bytes,
            cache_slot=self._cache_slot,
        )

    async def _fence(self, recoverer: BrokerIncarnation, sequence: WalSequence) -> bool:
        """Fence the first free slot. Return False if it is not free and must be read again.

        A retry inside the store client may find the fence of its own first attempt. On a file
        system, the marker is written first, because this creates the WAL's folder.
        """
        if self._wal_store is not None and (not self._must_exist or sequence in self._accepted):
            await write_marker(self._store, self._failed, self._wal_store_id)
        try:
            await self._store.put_if_absent(
                self._key(sequence), fence_object(recoverer, sequence, self._now_ms)
            )
        except PreconditionFailed:
            return False
        self.fenced_by_us = True
        return True
