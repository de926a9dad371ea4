"""Track the dense parts of a log, which have one keyed record at every offset. For these, the key
map alone shows which records remain, so a part without remaining records is not read again. Pure.
"""

from bisect import bisect_right

from penstock.base.ids import Offset


class DenseParts:
    """The dense parts of one log, added in offset order. Adjacent parts with the same leader epoch
    are merged, so their number is bounded by the number of leader changes and gaps.

    parts_max: the maximum number of tracked parts, each of which takes 64 bytes.
    """

    __slots__ = ("_ends", "_epochs", "_parts_max", "_starts")

    def __init__(self, parts_max: int = 100_000) -> None:
        self._parts_max = parts_max
        self._starts: list[Offset] = []
        self._ends: list[Offset] = []
        self._epochs: list[int] = []

    def add(self, start: Offset, end: Offset, leader_epoch: int) -> None:
        """Add a part."""
        if self._ends and self._ends[-1] == start and self._epochs[-1] == leader_epoch:
            self._ends[-1] = end
        elif len(self._starts) < self._parts_max:
            self._starts.append(start)
            self._ends.append(end)
            self._epochs.append(leader_epoch)

    def leader_epoch(self, start: Offset, end: Offset) -> int | None:
        """Return the leader epoch of [start, end); None if the range is not dense or spans several
        epochs.
        """
        at = bisect_right(self._starts, start) - 1
        return self._epochs[at] if at >= 0 and end <= self._ends[at] else None
