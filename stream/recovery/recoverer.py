"""Take over the WAL of a dead writer: find its last durable slot, make sure that it stays the last,
commit what is not committed yet.

Invariants: every slot below the returned end was read before the fence was put, or by the 412 that
refused it, so nothing that was ever acknowledged is left out; nothing behind the fence can ever be
acknowledged. A free slot is fenced only if nothing proves that it was
durable: each slot says which slots were durable when it was written, and a LIST shows the slots
behind a hole. A lost slot and a damaged one hold back the partitions that they may concern
(`stream.recovery.salvage`), until the slot is back or an operator accepts the loss.
Safe to repeat and to race: a fence that is there is taken as the end, slots that are committed are
skipped here and by the controller. The writer must be fenced in the metadata before (its streams'
committed ends stand still). Must not delete anything.
Source: AutoMQ `WALRecovery`; ADR 0037.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass

import structlog

from base.ids import Millis, WalSequence
from objectstore.errors import PreconditionFailed
from objectstore.ports import ObjectStore
from stream.config import StreamConfig
from stream.errors import ObjectCorrupt, WalDamaged, WalSlotLost
from stream.format.builder import fence_object
from stream.format.decoder import ObjectIndex
from stream.format.keys import wal_key
from stream.ports import BrokerIncarnation, NewObject, ObjectRole, StreamMetadata
from stream.recovery.salvage import BadSlot, Salvage
from stream.recovery.slots_behind import SlotsBehind
from stream.wal.slot_reader import Keep, read_slot

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """end: the fenced slot. committed_object_count: slots that were named in place by this call."""

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
    keep: Keep | None = None,
) -> RecoveryReport:
    """Recover from slot `start` (the committed one in the metadata) and end the WAL.

    keep: given the small slots, so that a new leader in this process need not read them again.
    Cost: one GET of at most config.recovery_tail_bytes per slot, config.recovery_read_ahead_count
    at once, one LIST beside the first of them, one PUT. Raises errors of the store and of the
    metadata, NotContiguous, and WalDamaged when partitions have to wait because slots are lost or
    damaged (all others are recovered then); after any of them call it again with the then committed
    slot.
    """
    walk = WalWalk(
        store, failed, start, recoverer=recoverer, now_ms=now_ms, config=config, keep=keep
    )
    ends = metadata.streams_owned_by(failed)
    salvage = Salvage(ends, metadata.data_streams_of(ends))
    pending: list[NewObject] = []
    range_count = object_count = committed_bytes = 0
    async for key, found in walk.slots():
        if isinstance(found, BadSlot):
            salvage.add_bad(found)
            continue
        ranges = salvage.take(walk.end, found.ranges)
        if not ranges:
            continue
        full = (
            len(pending) >= config.recovery_commit_objects_max
            or range_count + len(ranges) > config.recovery_commit_ranges_max
        )
        if pending and full:
            await metadata.commit_recovered(failed, pending, done=False, end=WalSequence(0))
            pending, range_count = [], 0
        pending.append(NewObject(None, key, ObjectRole.WAL, found.object_size_bytes, ranges))
        range_count += len(ranges)
        object_count += 1
        committed_bytes += sum(item.size_bytes for item in ranges)
    losses = list(salvage.losses(metadata.accepted_losses(failed)))
    held = [loss.stream_id for loss in losses]
    await metadata.commit_recovered(failed, pending, done=True, end=walk.end, held=held)
    if held:
        # Only now: whose WAL has ended meanwhile finds slots deleted, and is refused by the
        # controller.
        raise WalDamaged(
            tuple(dict.fromkeys(slot.key for loss in losses for slot in loss.slots)), len(held)
        )
    report = RecoveryReport(
        failed, start, walk.end, object_count, committed_bytes, walk.fenced_by_us
    )
    _log.info(
        "wal_recovered",
        node_id=failed.node_id,
        node_epoch=failed.node_epoch,
        end=walk.end,
        object_count=object_count,
    )
    return report


class WalWalk:
    """The slots of a WAL from `start` to its end, which it fences. Tails are read ahead; only the
    first free slot is ever written to.
    """

    def __init__(
        self,
        store: ObjectStore,
        failed: BrokerIncarnation,
        start: WalSequence,
        *,
        recoverer: BrokerIncarnation | None,
        now_ms: Millis,
        config: StreamConfig,
        keep: Keep | None = None,
    ) -> None:
        """recoverer: who fences; None: nobody does, it is only looked at, and the end may move
        on.
        """
        self._store = store
        self._failed = failed
        self._recoverer = recoverer
        self._now_ms = now_ms
        self._read_ahead_count = config.recovery_read_ahead_count
        self._tail_bytes = config.recovery_tail_bytes
        self._keep = keep
        self._behind = SlotsBehind(store, failed, start)
        self.end = start
        self.fenced_by_us = False

    async def slots(self) -> AsyncIterator[tuple[str, ObjectIndex | BadSlot]]:
        """(key, index) of every data slot in order, a BadSlot in place of the index of one that is
        lost or damaged.

        When it stops by itself, `end` is fenced (if somebody fences).
        """
        reads: deque[asyncio.Task[ObjectIndex | None]] = deque()
        listing = asyncio.ensure_future(self._behind.list())
        try:
            while True:
                while len(reads) < self._read_ahead_count:
                    reads.append(
                        asyncio.ensure_future(self._read(WalSequence(self.end + len(reads))))
                    )
                found = await self._sound(reads.popleft())
                if found is None:
                    await listing
                    proof = await self._behind.proof_of(self.end)
                    if proof:
                        # A writer that still runs may have filled it since it was read.
                        key = wal_key(self._failed, self.end)
                        found = await self._sound(self._read(self.end)) or BadSlot(
                            self.end, key, WalSlotLost(key, proof)
                        )
                    elif self._recoverer is None or await self._fence(self._recoverer, self.end):
                        return
                    else:
                        found = await self._sound(self._read(self.end))
                if found is None:
                    raise ObjectCorrupt(
                        wal_key(self._failed, self.end),
                        0,
                        "is taken, but not there: somebody deletes from this WAL",
                    )
                if isinstance(found, ObjectIndex) and found.is_fence:
                    return
                yield wal_key(self._failed, self.end), found
                self.end = WalSequence(self.end + 1)
        finally:
            for task in (*reads, listing):
                task.cancel()
            await asyncio.gather(*reads, listing, return_exceptions=True)

    async def _sound(self, read: Awaitable[ObjectIndex | None]) -> ObjectIndex | BadSlot | None:
        try:
            return await read
        except ObjectCorrupt as error:
            return BadSlot(self.end, wal_key(self._failed, self.end), error)

    async def _read(self, sequence: WalSequence) -> ObjectIndex | None:
        return await read_slot(
            self._store, self._failed, sequence, tail_bytes=self._tail_bytes, keep=self._keep
        )

    async def _fence(self, recoverer: BrokerIncarnation, sequence: WalSequence) -> bool:
        """Close the first free slot. False: it is not free any more, read it again. Retries inside
        the store may meet our own fence.
        """
        try:
            await self._store.put_if_absent(
                wal_key(self._failed, sequence), fence_object(recoverer, sequence, self._now_ms)
            )
        except PreconditionFailed:
            return False
        self.fenced_by_us = True
        return True
