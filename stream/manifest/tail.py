"""What lies in WALs and is not committed yet: each live WAL walked from its first uncommitted slot to the first hole or fence.

Invariants: only the contiguous run of slots counts (DESIGN 5): it is what a recoverer would take, so what was acknowledged is in it, and
what is in it is never taken back. A cursor goes forward only, so a running reader asks for new slots alone, and one that is idle costs one
GET a WAL. Slots are forgotten when the manifest says that they are committed. Must not write: readers never fence.
Source: DESIGN.md 5, `stream.recovery`.
"""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from objectstore.log import get_logger
from objectstore.ports import ObjectStore
from stream.block_cache import ByteLru
from stream.format.reader import ObjectIndex, is_intact
from stream.ids import StreamId, WalSequence
from stream.keys import wal_key
from stream.manifest.model import LiveWal
from stream.manifest.plan import TailRange
from stream.ports import StreamRange, WalIdentity
from stream.wal.slot_reader import Keep, read_slot

_log = get_logger()

SLOTS_MAX = 10_000
"""Uncommitted slots of one WAL that are looked at; brokers keep a few hundred. What lies behind shows as soon as some are committed."""

WALK_S_MAX = 10.0
"""One walk ends after this even if there is more: a writer may be as fast as the store. The next walk goes on from there."""

READ_AHEAD_MAX = 16
GETS_IN_FLIGHT_MAX = 64
"""Over all WALs."""

BODIES_BYTES_MAX = 8 << 20
"""Of slots that came whole with their index, the newest are kept for who reads what was found: a second GET costs as much as the first."""


class _Slot(NamedTuple):
    sequence: WalSequence
    object_size_bytes: int
    ranges: Mapping[StreamId, StreamRange]


class _Cursor:
    """One WAL, as far as it was walked."""

    def __init__(self, store: ObjectStore, wal: LiveWal, gets: asyncio.Semaphore, keep: Keep) -> None:
        self._store = store
        self._keep = keep
        self._writer = wal.writer
        self._gets = gets
        self._next = wal.first_slot
        self._ended = False
        self._window = 1
        self.slots: deque[_Slot] = deque()

    def forget_below(self, sequence: WalSequence) -> None:
        while self.slots and self.slots[0].sequence < sequence:
            self.slots.popleft()
        self._next = max(self._next, sequence)

    async def advance(self) -> None:
        """Read to the first hole or fence, or for WALK_S_MAX. Raises ObjectStoreError, ObjectCorrupt; what was read until then is kept."""
        reads: deque[asyncio.Task[ObjectIndex | None]] = deque()
        found = 0
        now = asyncio.get_running_loop().time
        until = now() + WALK_S_MAX
        try:
            while not self._ended and len(self.slots) < SLOTS_MAX and now() < until:
                while len(reads) < self._window:
                    reads.append(asyncio.ensure_future(self._read(WalSequence(self._next + len(reads)))))
                index = await reads.popleft()
                if index is None:
                    break
                if index.is_fence:
                    self._ended = True
                    break
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
            _log.warning("wal_tail_too_long", node_id=self._writer.node_id, node_epoch=self._writer.node_epoch, slot_count=SLOTS_MAX)

    def key_of(self, slot: _Slot) -> str:
        return wal_key(self._writer, slot.sequence)

    async def _read(self, sequence: WalSequence) -> ObjectIndex | None:
        async with self._gets:
            return await read_slot(self._store, self._writer, sequence, keep=self._keep)


class WalTails:
    """The tails of all live WALs of a cluster. One per reader; `advance` is not to be called twice at once."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._gets = asyncio.Semaphore(GETS_IN_FLIGHT_MAX)
        self._cursors: dict[WalIdentity, _Cursor] = {}
        self._bodies: ByteLru[str, bytes] = ByteLru(BODIES_BYTES_MAX)

    @property
    def slot_count(self) -> int:
        return sum(len(cursor.slots) for cursor in self._cursors.values())

    def follow(self, wals: Sequence[LiveWal]) -> None:
        """As the newest manifest has it: what ended is committed, and so is what lies below the first slots."""
        known, self._cursors = self._cursors, {}
        for wal in wals:
            cursor = known.get(wal.writer) or _Cursor(self._store, wal, self._gets, self._keep)
            cursor.forget_below(wal.first_slot)
            self._cursors[wal.writer] = cursor

    async def advance(self) -> None:
        """Read what is new in each of them, all at once."""
        results = await asyncio.gather(*(cursor.advance() for cursor in self._cursors.values()), return_exceptions=True)
        for result in results:
            if result is not None:
                raise result

    def body_of(self, key: str) -> bytes | None:
        """All of a slot, if it was small and is not long ago."""
        return self._bodies.get(key)

    def _keep(self, key: str, index: ObjectIndex, body: bytes) -> None:
        """Only what is intact: who reads it later could not ask the store again."""
        view = memoryview(body)
        if all(is_intact(block, view[block.position : block.position + block.size_bytes]) for block in index.blocks()):
            self._bodies.put(key, body, len(body))

    def ranges_of(self, stream_id: StreamId) -> list[TailRange]:
        """What the slots hold of one stream, committed or not, in no particular order across WALs."""
        found: list[TailRange] = []
        for cursor in self._cursors.values():
            for slot in cursor.slots:
                part = slot.ranges.get(stream_id)
                if part is not None:
                    key, size_bytes = cursor.key_of(slot), slot.object_size_bytes
                    found.append(
                        TailRange(
                            key, size_bytes, part.start_offset, part.end_offset, part.record_count, part.size_bytes, part.max_timestamp_ms
                        )
                    )
        return found
