"""Track durable WAL slots whose data is not completely uploaded: which can be committed in place,
and which may be deleted. Pure.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from penstock.base.ids import Offset, StreamId, WalSequence
from penstock.stream.format.keys import WAL_STORE_ROOT
from penstock.stream.ports import NewObject, ObjectRole, StreamRange


@dataclass(slots=True)
class DurableSlot:
    sequence: WalSequence
    key: str
    size_bytes: int
    ranges: dict[StreamId, StreamRange]
    """Uncommitted ranges. Closing a stream removes its range."""
    in_place: bool = False


class SlotRange(NamedTuple):
    """A range that is only in a WAL slot. object_size_bytes: size of the whole slot."""

    sequence: WalSequence
    object_size_bytes: int
    range: StreamRange


class SlotTable:
    """The slots from the committed one to the acknowledged end, in order: at most a few hundred,
    because the age and size of cache blocks are limited.
    """

    def __init__(self) -> None:
        self._slots: deque[DurableSlot] = deque()

    @property
    def slot_count(self) -> int:
        return len(self._slots)

    @property
    def are_in_wal_store(self) -> bool:
        """Return whether the newest slot is in a WAL store. After a move, older slots may not
        be.
        """
        return bool(self._slots) and self._slots[-1].key.startswith(WAL_STORE_ROOT)

    def add(
        self, sequence: WalSequence, key: str, size_bytes: int, ranges: Iterable[StreamRange]
    ) -> None:
        assert not self._slots or self._slots[-1].sequence + 1 == sequence, (
            f"slot {sequence} is out of order"
        )
        self._slots.append(
            DurableSlot(sequence, key, size_bytes, {item.stream_id: item for item in ranges})
        )

    def range_count(self, stream_ids: Sequence[StreamId]) -> int:
        """Return the number of ranges that committing these streams in place adds to the
        metadata.
        """
        wanted = frozenset(stream_ids)
        return sum(len(_common(wanted, slot)) for slot in self._slots)

    def take_in_place(self, stream_ids: Sequence[StreamId]) -> list[NewObject]:
        """Return the slots with ranges of these streams as objects to commit, in slot order."""
        wanted = frozenset(stream_ids)
        objects: list[NewObject] = []
        for slot in self._slots:
            found = _common(wanted, slot)
            if found:
                slot.in_place = True
                ranges = tuple(slot.ranges[stream_id] for stream_id in sorted(found))
                objects.append(NewObject(None, slot.key, ObjectRole.WAL, slot.size_bytes, ranges))
        return objects

    def tail(self, stream_id: StreamId, offset: Offset, limit: int) -> list[SlotRange]:
        """Return the first ranges of the stream that end after `offset`, at most `limit`, in slot
        order. This takes O(slots with newer data of any stream).
        """
        found: deque[SlotRange] = deque()
        for slot in reversed(self._slots):
            part = slot.ranges.get(stream_id)
            if part is None:
                continue
            if part.end_offset <= offset:
                break
            found.appendleft(SlotRange(slot.sequence, slot.size_bytes, part))
        return list(islice(found, limit))

    def forget(self, stream_ids: Iterable[StreamId]) -> None:
        """Remove the ranges of streams that are committed or belong to another owner."""
        wanted = frozenset(stream_ids)
        for slot in self._slots:
            for stream_id in _common(wanted, slot):
                del slot.ranges[stream_id]

    def commit(self, end: WalSequence, is_object: Callable[[str], bool]) -> list[str]:
        """Mark everything below slot `end` as committed. Return the keys of slots that will never
        be referenced.

        is_object: returns whether the metadata, including this commit, contains the slot with this
        key as an object, which the controller then owns. Not every slot that was submitted for a
        commit in place is an object: the controller skips deleted streams and trimmed ranges. Slots
        below `end` are not registered later either.
        """
        keys: list[str] = []
        while self._slots and self._slots[0].sequence < end:
            slot = self._slots.popleft()
            if not (slot.in_place and is_object(slot.key)):
                keys.append(slot.key)
        return keys


def _common(wanted: frozenset[StreamId], slot: DurableSlot) -> AbstractSet[StreamId]:
    """Return the wanted streams that have ranges in the slot. Iterates over the smaller set: either
    one of 10,000 partitions closes or all of them, while each slot contains only a few streams.
    """
    if len(wanted) < len(slot.ranges):
        return wanted & slot.ranges.keys()
    return wanted.intersection(slot.ranges)
