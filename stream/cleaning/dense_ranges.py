"""Remember which parts of a log hold one record with a key at every offset, so that the key map
alone tells which of them stay.

A part that keeps none is not read again: the larger a log beside the number of its keys, the more
of its bytes.
Invariant: parts are added in the order of their offsets. Pure.
"""

from bisect import bisect_right

from penstock.base.ids import Offset


class DenseParts:
    """The dense parts of one log, joined where they touch and have the same leader epoch, so that
    there are no more than leaders, and gaps between the parts.

    parts_max: further ones are not remembered. 64 bytes each.
    """

    __slots__ = ("_ends", "_epochs", "_parts_max", "_starts")

    def __init__(self, parts_max: int = 100_000) -> None:
        self._parts_max = parts_max
        self._starts: list[Offset] = []
        self._ends: list[Offset] = []
        self._epochs: list[int] = []

    def add(self, start: Offset, end: Offset, leader_epoch: int) -> None:
        """Note a part."""
        if self._ends and self._ends[-1] == start and self._epochs[-1] == leader_epoch:
            self._ends[-1] = end
        elif len(self._starts) < self._parts_max:
            self._starts.append(start)
            self._ends.append(end)
            self._epochs.append(leader_epoch)

    def leader_epoch(self, start: Offset, end: Offset) -> int | None:
        """Return the leader epoch of [start, end), None if that is not dense or has several."""
        at = bisect_right(self._starts, start) - 1
        return self._epochs[at] if at >= 0 and end <= self._ends[at] else None
