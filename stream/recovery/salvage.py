"""Decide which parts of a WAL are usable although slots are lost or damaged. Pure. See
docs/design/wal.md.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.base.errors import StreamError
from penstock.base.ids import Offset, StreamId, WalSequence
from penstock.stream.errors import NotContiguous
from penstock.stream.ports import StreamRange


class BadSlot(NamedTuple):
    """A durable slot that cannot be read, because it is missing or its bytes are wrong."""

    sequence: WalSequence
    key: str
    error: StreamError


class Loss(NamedTuple):
    """The effect of bad slots on one data stream.

    start_offset: the first offset that is not known to exist. end_offset: the offset after the last
    one in later slots; None if no later slot contains data of the stream, in which case the bad
    slots contained an unknown number of its records, perhaps none.
    """

    stream_id: StreamId
    start_offset: Offset
    end_offset: Offset | None
    slots: tuple[BadSlot, ...]


@dataclass(slots=True)
class _Broken:
    slots: tuple[BadSlot, ...]
    seen_end: Offset


@dataclass(slots=True)
class Salvage:
    """Selects the usable ranges of a WAL. Pass every slot in order.

    A partition is unaffected only if its data stream continues without a gap after the last bad
    slot, which proves that no bad slot contained its records. The streams of all other partitions
    end before the first bad slot that may affect them, as if the writer had died there. Transaction
    events and checkpoints are in the same slot as their data, so they are never used without it.

    ends: the committed end of each stream that the writer still owns. data_of: maps each stream to
    the data stream of its partition.
    """

    ends: dict[StreamId, Offset]
    data_of: Mapping[StreamId, StreamId]
    bad_slots: list[BadSlot] = field(default_factory=list[BadSlot])
    _proved: dict[StreamId, WalSequence] = field(default_factory=dict[StreamId, WalSequence])
    """The last slot in which each data stream was contiguous."""
    _broken: dict[StreamId, _Broken] = field(default_factory=dict[StreamId, _Broken])
    _stopped: set[StreamId] = field(default_factory=set[StreamId])

    def add_bad(self, slot: BadSlot) -> None:
        self.bad_slots.append(slot)

    def take(
        self, sequence: WalSequence, ranges: tuple[StreamRange, ...]
    ) -> tuple[StreamRange, ...]:
        """Return the ranges of a good slot that may be committed. This takes O(ranges). Raises
        NotContiguous for a gap that no bad slot explains.
        """
        owned = [item for item in ranges if item.stream_id in self.ends]
        taken = [
            item
            for item in owned
            if self._is_data(item.stream_id) and self._takes_data(sequence, item)
        ]
        taken += [
            item for item in owned if not self._is_data(item.stream_id) and self._takes_other(item)
        ]
        return tuple(sorted(taken, key=_stream_id))

    def losses(self, accepted: Collection[WalSequence] = ()) -> Iterator[Loss]:
        """Yield the loss of every data stream that a bad slot affects or may affect, ignoring
        accepted slots.
        """
        for stream_id, end in sorted(self.ends.items() if self.bad_slots else ()):
            if not self._is_data(stream_id):
                continue
            broken = self._broken.get(stream_id)
            slots = tuple(self._doubts(stream_id)) if broken is None else broken.slots
            if any(slot.sequence not in accepted for slot in slots):
                yield Loss(stream_id, end, None if broken is None else broken.seen_end, slots)

    def _is_data(self, stream_id: StreamId) -> bool:
        data = self.data_of.get(stream_id, stream_id)
        return data == stream_id or data not in self.ends

    def _doubts(self, stream_id: StreamId) -> list[BadSlot]:
        since = self._proved.get(stream_id, -1)
        return [slot for slot in self.bad_slots if slot.sequence > since]

    def _takes_data(self, sequence: WalSequence, item: StreamRange) -> bool:
        broken = self._broken.get(item.stream_id)
        if broken is not None:
            broken.seen_end = max(broken.seen_end, item.end_offset)
            return False
        end = self.ends[item.stream_id]
        if item.start_offset > end:
            doubts = self._doubts(item.stream_id)
            if not doubts:
                raise NotContiguous(item.stream_id, end, item.start_offset)
            self._broken[item.stream_id] = _Broken(tuple(doubts), item.end_offset)
            return False
        self._proved[item.stream_id] = sequence
        return self._continues(item, end)

    def _takes_other(self, item: StreamRange) -> bool:
        end = self.ends[item.stream_id]
        if self.bad_slots:
            data = self.data_of[item.stream_id]
            if data in self._broken or self._doubts(data) or item.start_offset > end:
                self._stopped.add(item.stream_id)
        if item.stream_id in self._stopped:
            return False
        if item.start_offset > end:
            raise NotContiguous(item.stream_id, end, item.start_offset)
        return self._continues(item, end)

    def _continues(self, item: StreamRange, end: Offset) -> bool:
        if item.end_offset <= end:
            return False
        self.ends[item.stream_id] = item.end_offset
        return True


def _stream_id(item: StreamRange) -> StreamId:
    return item.stream_id
