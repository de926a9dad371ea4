"""Tell a free slot from a lost one: what lies behind a hole says whether the hole was durable.

Invariant: a slot counts as lost only if an object proves it. A data slot names in its header how
many slots before it were not durable when it was written, so all below those were; a fence lies in
the first slot that was free, so all below it were there; and a slot that a LIST showed was there.
That a LIST does not show a slot means nothing. Cost: one LIST, and one GET if it shows something
behind a hole. Used by recovery and by readers of the tail. Source: docs/adr/0037.
"""

from bisect import bisect_left

from base.ids import WalSequence
from objectstore.ports import ObjectStore
from stream.errors import ObjectCorrupt
from stream.format.keys import parse_wal_key, wal_key, wal_prefix
from stream.ports import BrokerIncarnation
from stream.wal.slot_reader import read_slot

PROOF_READS_MAX = 8
"""Slots behind a hole that are read until one of them can be: the last one knows most."""

LISTED_MAX = 100_000
"""Slots that one LIST is asked for. Brokers keep a few hundred that are not committed."""


class SlotsBehind:
    """One look at one WAL."""

    def __init__(self, store: ObjectStore, writer: BrokerIncarnation, start: WalSequence) -> None:
        self._store = store
        self._writer = writer
        self._start = start
        self._listed: list[int] = []
        self._durable_below = WalSequence(0)
        self._proof = ""
        self._is_read = False

    async def list(self) -> None:
        """Find the slots from `start` on. Raises ObjectStoreError."""
        after = wal_key(self._writer, WalSequence(self._start - 1)) if self._start else ""
        async for info in self._store.list(
            wal_prefix(self._writer), start_after=after, limit=LISTED_MAX
        ):
            slot = parse_wal_key(info.key)
            if slot is not None and slot.writer == self._writer:
                self._listed.append(slot.sequence)

    async def proof_of(self, hole: WalSequence) -> str:
        """What proves that the slot was durable; empty: nothing does. Call `list` first. Raises
        ObjectStoreError.

        A writer that still runs may have filled it meanwhile: it is lost only if it is missing when
        it is read once more, after this.
        """
        at = bisect_left(self._listed, hole)
        if at < len(self._listed) and self._listed[at] == hole:
            return "a LIST that showed it a moment ago"
        if at < len(self._listed) and not self._is_read:
            await self._read_last(at)
        return self._proof if hole < self._durable_below else ""

    async def _read_last(self, first: int) -> None:
        self._is_read = True
        for sequence in self._listed[max(first, len(self._listed) - PROOF_READS_MAX) :][::-1]:
            try:
                index = await read_slot(self._store, self._writer, WalSequence(sequence))
            except ObjectCorrupt:
                continue
            if index is not None:
                self._durable_below = index.header.durable_below
                self._proof = f"slot {wal_key(self._writer, WalSequence(sequence))}"
                return
