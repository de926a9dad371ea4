"""Distinguish free slots from lost ones: the slots after a hole show whether it was durable.

A slot counts as lost only if an object proves that it was durable: the header of a data slot states
which earlier slots were durable, a fence is in the first free slot, and a slot in a LIST existed.
Absence from a LIST proves nothing. See docs/design/wal.md.
"""

from bisect import bisect_left

from penstock.base.ids import WalSequence, WalStoreId
from penstock.objectstore.ports import ObjectStore
from penstock.stream.errors import ObjectCorrupt
from penstock.stream.format.keys import parse_wal_key, wal_key, wal_prefix
from penstock.stream.ports import BrokerIncarnation
from penstock.stream.wal.slot_reader import read_slot

PROOF_READS_MAX = 8
"""Maximum number of slots after a hole that are tried until one is readable. The last slot is tried
first, because it proves the most.
"""

LISTED_MAX = 100_000
"""Maximum number of slots in one LIST. Brokers have a few hundred uncommitted slots."""


class SlotsBehind:
    """The slots of one WAL, as returned by one LIST."""

    def __init__(
        self,
        store: ObjectStore,
        writer: BrokerIncarnation,
        start: WalSequence,
        wal_store: WalStoreId,
    ) -> None:
        self._store = store
        self._writer = writer
        self._wal_store = wal_store
        self._start = start
        self._listed: list[int] = []
        self._durable_below = WalSequence(0)
        self._proof = ""
        self._is_read = False

    async def list(self) -> None:
        """List the slots from `start`. Raises ObjectStoreError."""
        after = self._key(self._start - 1) if self._start else ""
        async for info in self._store.list(
            wal_prefix(self._writer, self._wal_store), start_after=after, limit=LISTED_MAX
        ):
            slot = parse_wal_key(info.key)
            if slot is not None and slot.writer == self._writer:
                self._listed.append(slot.sequence)

    async def proof_of(self, hole: WalSequence) -> str:
        """Return the proof that the slot was durable, or "" if there is none. Call `list` first.
        Raises ObjectStoreError.

        A live writer may have filled the slot in the meantime: it is lost only if it is still
        missing when it is read again after this call.
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
                index = await read_slot(
                    self._store, self._writer, WalSequence(sequence), self._wal_store
                )
            except ObjectCorrupt:
                continue
            if index is not None:
                self._durable_below = index.header.durable_below
                self._proof = f"slot {self._key(sequence)}"
                return

    def _key(self, sequence: int) -> str:
        return wal_key(self._writer, WalSequence(sequence), self._wal_store)
