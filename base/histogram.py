"""Latency histograms of constant size. Pure. An observation takes about 0.3 us. A quantile is at
most 26 % above the true value (bucket bounds grow by the cube root of two).
"""

from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final

BUCKET_BOUNDS_MS: Final = tuple(0.05 * 2 ** (index / 3) for index in range(64))
"""Upper bounds of the buckets, from 50 us to 105 s. An additional bucket counts longer
latencies.
"""


@dataclass(frozen=True, slots=True)
class Latencies:
    """An immutable copy of the observations."""

    counts: tuple[int, ...] = (0,) * (len(BUCKET_BOUNDS_MS) + 1)
    sum_ms: float = 0.0
    max_ms: float = 0.0

    @property
    def count(self) -> int:
        """The number of observations."""
        return sum(self.counts)

    def cumulative(self, first: int, step: int) -> list[tuple[float, int]]:
        """Return (bound in ms, number of observations up to it) for every `step`-th bound from
        index `first`.
        """
        passed, found = list(accumulate(self.counts)), range(first, len(BUCKET_BOUNDS_MS), step)
        return [(BUCKET_BOUNDS_MS[index], passed[index]) for index in found]


@dataclass(slots=True)
class LatencyHistogram:
    """A histogram that collects observations."""

    _counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKET_BOUNDS_MS) + 1))
    _sum_ms: float = 0.0
    _max_ms: float = 0.0

    def observe(self, latency_ms: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(BUCKET_BOUNDS_MS, latency_ms)] += 1
        self._sum_ms += latency_ms
        if latency_ms > self._max_ms:  # noqa: PLR1730 - a call of max() would cost a third of all this
            self._max_ms = latency_ms

    def freeze(self) -> Latencies:
        """Return a copy of the observations so far."""
        return Latencies(tuple(self._counts), self._sum_ms, self._max_ms)
