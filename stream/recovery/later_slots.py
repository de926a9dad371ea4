"""Tell a free slot from a lost one: the slots after a hole show whether the hole was durable.

Invariant: a slot counts as lost only if an object proves it. The header of a data slot says how
many slots before it were not durable when it was written; all below those were. A fence lies in the
first free slot, so all slots below it existed. A slot that a LIST showed existed. A slot that a
LIST does not show proves nothing. Cost: one LIST, and one GET if the LIST shows a slot after a
hole. Recovery and the readers of the tail use this module. Source: docs/design/wal.md.
"""

from bisect import bisect_left

from penstock.base.ids import WalSequence
from penstock.objectstore.ports import ObjectStore
from penstock.stream.errors import ObjectCorrupt
from penstock.stream.format.keys import parse_wal_key, wal_key, wal_prefix
from penstock.stream.ports import BrokerIncarnation
from penstock.stream.wal.slot_reader import read_slot

PROOF_READS_MAX = 8
"""How many slots after a hole are tried until one can be read; the last slot proves most."""

LISTED_MAX = 100_000
"""The limit of one LIST. Brokers have a few hundred slots that are not committed."""


class SlotsBehind:
    """The slots of one WAL, as one LIST showed them."""

    def __init__(self, store: ObjectStore, writer: BrokerIncarnation, start: WalSequence) -> None:
        self._store = store
        self._writer = writer
        self._start = start
        self._listed: list[int] = []
        self._durable_below = WalSequence(0)
        self._proof = ""
        self._is_read = False

    async def list(self) -> None:
        """List the slots from `start`. Raises ObjectStoreError."""
        after = wal_key(self._writer, WalSequence(self._start - 1)) if self._start else ""
        async for info in self._store.list(
            wal_prefix(self._writer), start_after=after, limit=LISTED_MAX
        ):
            slot = parse_wal_key(info.key)
            if slot is not None and slot.writer == self._writer:
                self._listed.append(slot.sequence)

    async def proof_of(self, hole: WalSequence) -> str:
        """Return what proves that the slot was durable, or "" without a proof. Call `list` first.
        Raises ObjectStoreError.

        A live writer may have filled the slot meanwhile: it is lost only if it is still missing
        when it is read again after this call.
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
