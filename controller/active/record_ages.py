"""Measure ages of metadata records by the monotonic clock of one process.

The active controller notes where the log ends, and when. A record below an end that was noted t
seconds ago is at least t seconds old; no wall clock is read or compared. A new leader begins with
an empty timeline, so that every grace begins again.

Invariant: An age is never greater than the true one. Limits: `MOMENTS_MAX` moments; beyond, the
older half keeps every second one, which makes ages smaller by at most the gap. Pure: the time is a
parameter.
"""

from bisect import bisect_right

from penstock.controller.metadata.records import MetadataOffset

MOMENTS_MAX = 4_096


class Timeline:
    __slots__ = ("_ends", "_times_s")

    def __init__(self) -> None:
        self._ends: list[MetadataOffset] = []
        self._times_s: list[float] = []

    def __len__(self) -> int:
        return len(self._ends)

    def note(self, end: MetadataOffset, now_s: float) -> None:
        """Note that everything below `end` is committed at `now_s`, of a monotonic clock."""
        if self._ends and end <= self._ends[-1]:
            return
        self._ends.append(end)
        self._times_s.append(now_s)
        if len(self._ends) > MOMENTS_MAX:
            half = MOMENTS_MAX // 2
            del self._ends[:half:2], self._times_s[:half:2]

    def age_s(self, offset: MetadataOffset, now_s: float) -> float:
        """Return for how many seconds at least the record at `offset` has been committed. 0.0:
        unknown, or not committed.
        """
        at = bisect_right(self._ends, offset)
        return now_s - self._times_s[at] if at < len(self._ends) else 0.0
