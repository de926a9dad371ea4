"""Read the uncommitted tail of each live WAL: from its first uncommitted slot to the first hole
or fence.

Source: `stream.recovery.recoverer`, docs/design/wal.md.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from copy import copy
from typing import NamedTuple

from penstock.base.ids import StreamId, WalSequence
from penstock.base.log import get_logger
from penstock.lake.manifest.plan import TailRange
from penstock.objectstore.ports import ObjectStore
from penstock.stream.cache.block_cache import ByteLru
from penstock.stream.errors import ObjectCorrupt, WalSlotLost, WalVanished
from penstock.stream.format.decoder import ObjectIndex, is_intact
from penstock.stream.format.keys import wal_key, wal_marker_key
from penstock.stream.format.manifest.model import LiveWal
from penstock.stream.ports import IN_STORE, BrokerIncarnation, StreamRange
from penstock.stream.recovery.later_slots import SlotsBehind
from penstock.stream.recovery.salvage import BadSlot
from penstock.stream.wal.slot_reader import CacheSlot, read_slot
from penstock.stream.wal.wal_store import was_opened

_log = get_logger(__name__)

SLOTS_MAX = 10_000
"""Maximum number of uncommitted slots that are read from one WAL; brokers keep a few hundred. Later
slots become visible as soon as some of these are committed.
"""

WALK_S_MAX = 10.0
"""A walk ends after this time even if there are more slots, because a writer may be as fast as the
store. The next walk continues where it ended.
"""

LIST_BEHIND_S = 30.0
"""Interval between LISTs of slots after the end of a WAL. If the store loses a slot of a live
writer, this no longer matters once the writer has uploaded and committed the slot's data, which
happens within this time (`upload.block.max.age.ms`).
"""

READ_AHEAD_MAX = 16
GETS_IN_FLIGHT_MAX = 64
"""Maximum number of GETs in flight for all WALs together."""

BODIES_BYTES_MAX = 8 << 20
"""Size of the cache for the newest slots that were read as a whole with their index. Readers of
their records do not need a second GET.
"""


class _Slot(NamedTuple):
    sequence: WalSequence
    object_size_bytes: int
    ranges: Mapping[StreamId, StreamRange]


class _Cursor:
    """The position in one WAL, and the slots read so far."""

    def __init__(
        self, store: ObjectStore, wal: LiveWal, gets: asyncio.Semaphore, cache_slot: CacheSlot
    ) -> None:
        self._store = store
        self._cache_slot = cache_slot
        self._writer = wal.writer
        self.wal_store = wal.wal_store
        self.has_streams = wal.has_streams
        """Whether the writer may own streams, according to the newest root. Otherwise, the marker
        of its WAL may not exist yet.
        """
        self._gets = gets
        self._next = wal.first_slot
        self._ended = False
        self._window = 1
        self._behind: SlotsBehind | None = None
        self._listed_at = -LIST_BEHIND_S
        self.slots: deque[_Slot] = deque()
        self.bad_slots: list[BadSlot] = []
        """Lost or damaged slots, in order."""
        self._is_suspect = False
        """Whether the previous walk found bad slots."""

    def copy(self) -> "_Cursor":
        """Return an independent cursor that continues from here."""
        other = copy(self)
        other.slots, other.bad_slots = deque(self.slots), list(self.bad_slots)
        return other

    def forget_below(self, sequence: WalSequence) -> None:
        while self.slots and self.slots[0].sequence < sequence:
            self.slots.popleft()
        self.bad_slots = [slot for slot in self.bad_slots if slot.sequence >= sequence]
        self._next = max(self._next, sequence)

    async def advance(self) -> bool:
        """Read to the first hole or fence, or for WALK_S_MAX. Return whether there are bad slots
        that the previous walk did not find.

        Raise ObjectStoreError; the cursor is then unchanged.
        """
        before = (deque(self.slots), list(self.bad_slots), self._next) if self.bad_slots else None
        known = {slot.sequence for slot in self.bad_slots}
        try:
            await self._advance()
        except BaseException:
            if before is not None:
                self.slots, self.bad_slots, self._next = before
            raise
        return any(slot.sequence not in known for slot in self.bad_slots)

    async def _advance(self) -> None:
        self._rewind()
        found = 0
        now = asyncio.get_running_loop().time
        until = now() + WALK_S_MAX
        reads: deque[asyncio.Task[ObjectIndex | None]] = deque()
        self._behind = None
        try:
            while not self._ended and len(self.slots) < SLOTS_MAX and now() < until:
                while len(reads) < self._window:
                    reads.append(
                        asyncio.ensure_future(self._read(WalSequence(self._next + len(reads))))
                    )
                index = await self._read_checked(reads.popleft()) or await self._read_missing(
                    now(), reads
                )
                if index is None:
                    break
                if isinstance(index, BadSlot):
                    self.bad_slots.append(index)
                    if isinstance(index.error, WalVanished):
                        break
                elif index.is_fence:
                    self._ended = True
                    break
                else:
                    ranges = {part.stream_id: part for part in index.ranges}
                    self.slots.append(_Slot(self._next, index.object_size_bytes, ranges))
                self._next = WalSequence(self._next + 1)
                found += 1
                self._window = min(READ_AHEAD_MAX, self._window * 2)
        finally:
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
        self._window = min(READ_AHEAD_MAX, found + 1)
        if len(self.slots) >= SLOTS_MAX:
            _log.warning(
                "wal_tail_too_long",
                node_id=self._writer.node_id,
                node_epoch=self._writer.node_epoch,
                slot_count=SLOTS_MAX,
            )

    def key_of(self, slot: _Slot) -> str:
        return wal_key(self._writer, slot.sequence, self.wal_store)

    def bad_slot_of(self, stream_id: StreamId, end: int) -> BadSlot | None:
        """Return the first bad slot that may contain records of the stream. All of its records
        before `end` are known.

        A later slot whose range ends at or before `end` proves that the bad slot contained no
        missing records.
        """
        if not self.bad_slots:
            return None
        known = (
            slot.sequence
            for slot in self.slots
            if (part := slot.ranges.get(stream_id)) is not None and part.end_offset <= end
        )
        proved = max(known, default=-1)
        return next((slot for slot in self.bad_slots if slot.sequence > proved), None)

    def has_gap_after(self, stream_id: StreamId, end: int) -> bool:
        """Return whether a slot contains records of the stream after `end` that do not continue
        it.
        """
        parts = (slot.ranges.get(stream_id) for slot in self.slots)
        return any(part is not None and part.start_offset > end for part in parts)

    def _rewind(self) -> None:
        """Move back to the first bad slot, because it may have been restored."""
        self._is_suspect = bool(self.bad_slots)
        if self.bad_slots:
            self._next = self.bad_slots[0].sequence
            self.bad_slots.clear()
            self._ended = False
            while self.slots and self.slots[-1].sequence > self._next:
                self.slots.pop()

    async def _read_checked(
        self, read: Awaitable[ObjectIndex | None]
    ) -> ObjectIndex | BadSlot | None:
        try:
            return await read
        except ObjectCorrupt as error:
            return BadSlot(self._next, error.key, error)

    async def _read_missing(
        self, now: float, reads: Iterable[Awaitable[ObjectIndex | None]]
    ) -> ObjectIndex | BadSlot | None:
        """Read the next slot again after it was missing. Return None if nothing proves that it was
        durable.

        `reads` are reads in flight of later slots.
        """
        if self._behind is None:
            known = [
                index
                for index in await asyncio.gather(*reads, return_exceptions=True)
                if isinstance(index, ObjectIndex)
            ]
            is_proven = any(index.header.durable_below > self._next for index in known)
            if now < self._listed_at + LIST_BEHIND_S and not self._is_suspect and not is_proven:
                return None
            self._listed_at = now
            self._behind = SlotsBehind(self._store, self._writer, self._next, self.wal_store)
            await self._behind.list()
        proof = await self._behind.proof_of(self._next)
        if not proof:
            return await self._read_vanished()
        key = wal_key(self._writer, self._next, self.wal_store)
        return await self._read_checked(self._read(self._next)) or BadSlot(
            self._next, key, WalSlotLost(key, proof)
        )

    async def _read_vanished(self) -> BadSlot | None:
        """Return the next slot as lost if the WAL store has lost the marker of this WAL, otherwise
        None.
        """
        if self.wal_store == IN_STORE or not self.has_streams:
            return None
        if await was_opened(self._store, self._writer, self.wal_store):
            return None
        marker = wal_marker_key(self._writer, self.wal_store)
        return BadSlot(self._next, marker, WalVanished(marker))

    async def _read(self, sequence: WalSequence) -> ObjectIndex | None:
        async with self._gets:
            return await read_slot(
                self._store, self._writer, sequence, self.wal_store, cache_slot=self._cache_slot
            )


class WalTails:
    """The tails of all live WALs of a cluster. Each reader has one; calls of `advance` must not
    overlap.

    Invariants: only the contiguous run of slots counts. A recoverer would commit the same slots, so
    they contain everything that was acknowledged and are never reverted. A cursor only advances: a
    busy reader requests only new slots, and an idle one sends one GET per WAL and an occasional
    LIST. Slots are dropped when the manifest contains their commit. A lost or damaged slot is never
    skipped silently: `bad_slot_for` returns it for the partitions that may be affected, and the
    next walk reads it again. Readers must not write, and never fence.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._gets = asyncio.Semaphore(GETS_IN_FLIGHT_MAX)
        self._cursors: dict[BrokerIncarnation, _Cursor] = {}
        self._bodies: ByteLru[str, bytes] = ByteLru(BODIES_BYTES_MAX)

    def copy(self) -> "WalTails":
        """Return independent tails that continue from here. They share the data read so far."""
        other = copy(self)
        other._cursors = {writer: cursor.copy() for writer, cursor in self._cursors.items()}
        return other

    @property
    def slot_count(self) -> int:
        return sum(len(cursor.slots) for cursor in self._cursors.values())

    def follow(self, wals: Sequence[LiveWal]) -> None:
        """Update the live WALs from the newest manifest. WALs that are no longer listed, and slots
        below the first listed slot, are committed.
        """
        known, self._cursors = self._cursors, {}
        for wal in wals:
            cursor = known.get(wal.writer)
            if cursor is None or cursor.wal_store != wal.wal_store:
                # A WAL moves to another store only when everything below `first_slot` is committed.
                cursor = _Cursor(self._store, wal, self._gets, self._cache_slot)
            cursor.has_streams = wal.has_streams
            cursor.forget_below(wal.first_slot)
            self._cursors[wal.writer] = cursor

    async def advance(self) -> bool:
        """Read new slots of all WALs concurrently. Return whether a new bad slot was found."""
        results = await asyncio.gather(
            *(cursor.advance() for cursor in self._cursors.values()), return_exceptions=True
        )
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return any(results)

    def bad_slot_for(self, leader: int, stream_id: StreamId, end: int) -> BadSlot | None:
        """Return a bad slot that may contain records of this data stream, or None. The stream is
        known without a gap up to `end`.

        `leader` is the partition's leader in a root newer than the bad slot, or -1. Records that a
        broker has not committed are in a WAL of that broker, because a partition changes its leader
        only when everything is committed. Records after a gap identify their WAL.
        """
        for writer, cursor in self._cursors.items():
            bad = cursor.bad_slot_of(stream_id, end)
            if bad is not None and (
                leader in (-1, writer.node_id) or cursor.has_gap_after(stream_id, end)
            ):
                return bad
        return None

    def body_of(self, key: str) -> bytes | None:
        """Return the complete slot if it was small and read recently."""
        return self._bodies.get(key)

    def _cache_slot(self, key: str, index: ObjectIndex, body: bytes) -> None:
        """Cache only intact slots, because readers of a cached damaged slot could not read it
        again.
        """
        view = memoryview(body)
        if all(
            is_intact(block, view[block.position : block.position + block.size_bytes])
            for block in index.blocks()
        ):
            self._bodies.put(key, body, len(body))

    def ranges_of(self, stream_id: StreamId) -> list[TailRange]:
        """Return the ranges of one stream in all slots, whether committed or not, in no particular
        order across WALs.
        """
        found: list[TailRange] = []
        for cursor in self._cursors.values():
            for slot in cursor.slots:
                part = slot.ranges.get(stream_id)
                if part is not None:
                    key, size_bytes = cursor.key_of(slot), slot.object_size_bytes
                    found.append(
                        TailRange(
                            key,
                            size_bytes,
                            part.start_offset,
                            part.end_offset,
                            part.record_count,
                            part.size_bytes,
                            part.max_timestamp_ms,
                        )
                    )
        return found
