"""Measure the ages of metadata records with the monotonic clock of one process. Pure.

The active controller records the end of the log, with the time. A record below an end that was
recorded t seconds ago is at least t seconds old. A new leader starts with an empty timeline, so all
grace periods restart.
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
        """Record that everything below `end` is committed at `now_s` on a monotonic clock."""
        if self._ends and end <= self._ends[-1]:
            return
        self._ends.append(end)
        self._times_s.append(now_s)
        if len(self._ends) > MOMENTS_MAX:
            half = MOMENTS_MAX // 2
            del self._ends[:half:2], self._times_s[:half:2]

    def age_s(self, offset: MetadataOffset, now_s: float) -> float:
        """Return a lower bound for the seconds since the record at `offset` was committed, or 0.0
        if this is unknown or it was not committed.

        Above `MOMENTS_MAX`, every second moment of the older half is dropped, which reduces ages by
        at most the gap.
        """
        at = bisect_right(self._ends, offset)
        return now_s - self._times_s[at] if at < len(self._ends) else 0.0
