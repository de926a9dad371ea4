"""Measure the ages of metadata records with the monotonic clock of one process. Pure.

The active controller records the end of the log together with the time. A record below an end that
was recorded t seconds ago is at least t seconds old. A new leader starts with an empty timeline, so
all grace periods restart.
"""

from bisect import bisect_right

from penstock.controller.metadata.records import MetadataOffset

MOMENTS_MAX = 4_096
GAP_MAX = 1 / 64
"""The largest gap that dropping moments may leave between two others, as a fraction of their age:
4,096 moments at intervals of 1 s suffice for years.
"""


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
        gap_max = GAP_MAX
        while len(self._ends) > MOMENTS_MAX:
            self._drop_some(now_s, gap_max)
            gap_max *= 2

    def age_s(self, offset: MetadataOffset, now_s: float) -> float:
        """Return a lower bound for the seconds since the record at `offset` was committed, or 0.0
        if this is unknown or it was not committed.

        Above `MOMENTS_MAX`, moments are dropped, which reduces ages by at most `GAP_MAX`.
        """
        at = bisect_right(self._ends, offset)
        return now_s - self._times_s[at] if at < len(self._ends) else 0.0

    def _drop_some(self, now_s: float, gap_max: float) -> None:
        """Drop the moments whose neighbors are at most `gap_max` times their age apart."""
        times_s = self._times_s
        kept = [0]
        for at in range(1, len(times_s) - 1):
            later_s = times_s[at + 1]
            if later_s - times_s[kept[-1]] > gap_max * (now_s - later_s):
                kept.append(at)
        kept.append(len(times_s) - 1)
        self._ends = [self._ends[at] for at in kept]
        self._times_s = [times_s[at] for at in kept]
