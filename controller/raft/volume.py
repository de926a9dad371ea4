"""Decide when a leader with a slow disk transfers leadership, and to which voter.

Every acknowledgment by the leader waits for its own disk, and clients notice delays of more than
half a heartbeat.
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

SAMPLES_MAX = 256
SAMPLES_MIN = 10
"""Minimum number of writes for computing a p99."""

AGE_MS_MAX = 30_000
SLOW_COUNT_MIN = 3
"""Minimum number of writes that must exceed the limit."""

HOLD_ELECTIONS = 2
PAUSE_ELECTIONS = 5
COOL_DOWN_ELECTIONS = 30
"""Durations in election timeouts: how long the disk must be slow, the pause after leadership is
gained, and the pause after a transfer.
"""


class FsyncWindow:
    """The latencies of the last durable writes."""

    def __init__(self) -> None:
        self._samples: deque[tuple[int, int]] = deque()
        self._ordered: list[int] = []

    def add(self, took_us: int, now_ms: int) -> None:
        self._samples.append((now_ms, took_us))
        insort(self._ordered, took_us)
        while len(self._samples) > SAMPLES_MAX or self._samples[0][0] < now_ms - AGE_MS_MAX:
            _, gone_us = self._samples.popleft()
            del self._ordered[bisect_left(self._ordered, gone_us)]

    @property
    def p99_us(self) -> int:
        """p99 in microseconds, or 0 if unknown."""
        count = len(self._ordered)
        return self._ordered[-(-99 * count // 100) - 1] if count >= SAMPLES_MIN else 0

    def is_beyond(self, limit_us: int) -> bool:
        return self.p99_us > limit_us and self._ordered[-SLOW_COUNT_MIN] > limit_us


@dataclass(frozen=True, slots=True)
class Candidate:
    """A voter that has responded within the election timeout."""

    node_id: int
    match: int
    fsync_us: int


class SlowVolume:
    """Decides whether one controller should transfer leadership. One object serves all terms in
    which the controller leads. A leader transfers leadership only if its disk has been slow for a
    while, and only to a follower whose fsync p99 is at most half of the limit. After a transfer,
    and after leadership is gained, there is a pause before the next transfer, so that leadership
    does not alternate between two slow disks.
    """

    def __init__(self, limit_us: int, election_ms: int) -> None:
        self._limit_us = limit_us
        self._election_ms = election_ms
        self._slow_since_ms: int | None = None
        self._not_before_ms = 0

    def gained(self, now_ms: int) -> None:
        """Record that this controller has become the leader."""
        self._slow_since_ms = None
        self._not_before_ms = max(self._not_before_ms, now_ms + PAUSE_ELECTIONS * self._election_ms)

    def target(self, now_ms: int, own: FsyncWindow, candidates: Iterable[Candidate]) -> int | None:
        """Return the voter to which leadership should be transferred, or None. Among the voters
        with a fast disk, the one with the longest log is selected.
        """
        if not self._is_slow(now_ms, own) or now_ms < self._not_before_ms:
            return None
        good = [each for each in candidates if 0 < each.fsync_us <= self._limit_us // 2]
        if not good:
            return None
        self._not_before_ms = now_ms + COOL_DOWN_ELECTIONS * self._election_ms
        return max(good, key=lambda each: (each.match, -each.fsync_us, -each.node_id)).node_id

    def _is_slow(self, now_ms: int, own: FsyncWindow) -> bool:
        """Return whether the disk has been slow long enough. It counts as slow above the limit, and
        as fast again at half of the limit.
        """
        if own.is_beyond(self._limit_us):
            self._slow_since_ms = now_ms if self._slow_since_ms is None else self._slow_since_ms
        elif own.p99_us <= self._limit_us // 2:
            self._slow_since_ms = None
        return (
            self._slow_since_ms is not None
            and now_ms - self._slow_since_ms >= HOLD_ELECTIONS * self._election_ms
        )
