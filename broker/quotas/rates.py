"""Measure a rate over sampled windows, with Kafka's arithmetic, so that clients are throttled
exactly as in Kafka (KIP-13). Pure; times are in milliseconds and never decrease.

Recording a value is O(1), or O(samples) when a sample starts or leaves the window.
"""

from dataclasses import dataclass

from penstock.controller.metadata.quotas import THROTTLE_MS_MAX


@dataclass(frozen=True, slots=True)
class Window:
    """The parameters for measuring rates. `samples` includes the current sample."""

    samples: int = 11
    size_ms: int = 1_000

    @property
    def whole_ms(self) -> int:
        return self.samples * self.size_ms


class _Sample:
    __slots__ = ("last_ms", "start_ms", "value")

    def __init__(self, now_ms: float) -> None:
        self.reset(now_ms)

    def reset(self, now_ms: float) -> None:
        self.value = 0.0
        self.start_ms = now_ms
        self.last_ms = now_ms


class Rate:
    """The sum of the values recorded in the window, per second.

    There is one more sample than the window spans, because a sample that started before the window
    is counted until its last value is older than the window. Missing samples are treated as empty,
    so that a client's first request does not cause a high rate.
    """

    __slots__ = (
        "_at",
        "_current",
        "_next_ms",
        "_oldest_ms",
        "_samples",
        "_shortest_s",
        "_sum",
        "_window",
    )

    def __init__(self, window: Window, now_ms: float) -> None:
        self._window = window
        self._shortest_s = max(window.samples - 1, 0.001) * window.size_ms / 1_000
        """Minimum duration over which a rate is measured, in seconds."""
        self._samples = [_Sample(now_ms)]
        self._current = self._samples[0]
        self._at = 0
        self._sum = 0.0
        self._oldest_ms = now_ms
        self._next_ms = now_ms + window.size_ms
        """When the current sample is complete, or the next sample leaves the window."""

    def add(self, value: float, bound: float, now_ms: float) -> int:
        """Record a value. Like `throttle_ms`, return the time until the rate has fallen to
        `bound`.
        """
        if now_ms >= self._next_ms:
            self._advance(now_ms)
        sample = self._current
        sample.value += value
        sample.last_ms = now_ms
        self._sum = total = self._sum + value
        return 0 if total <= bound * self._shortest_s else self.throttle_ms(bound, now_ms)

    def record(self, value: float, now_ms: float) -> None:
        """Record a value. A negative value reverts an earlier one."""
        self.add(value, float("inf"), now_ms)

    def measure(self, now_ms: float) -> float:
        """Return the rate per second."""
        if now_ms >= self._next_ms:
            self._settle(now_ms)
        return self._sum * 1_000 / self._elapsed_ms(now_ms)

    def throttle_ms(self, bound: float, now_ms: float) -> int:
        """Return how long to throttle: the time over which the rate was measured, times the
        relative excess; 0 if the rate is within the bound.
        """
        rate = self.measure(now_ms)
        if rate <= bound:
            return 0
        wait_ms = (rate - bound) / bound * self._elapsed_ms(now_ms)
        return round(min(wait_ms, THROTTLE_MS_MAX))

    def _elapsed_ms(self, now_ms: float) -> float:
        """Return the time over which the rate is measured: the time since the oldest sample
        started, plus missing samples.
        """
        size_ms = self._window.size_ms
        elapsed_ms = now_ms - self._oldest_ms
        missing = self._window.samples - 1 - elapsed_ms // size_ms
        if missing > 0:
            elapsed_ms += missing * size_ms
        return max(elapsed_ms, 1)

    def _advance(self, now_ms: float) -> None:
        """Start a new sample if the current one is complete. It replaces the oldest one if all
        samples are used.
        """
        if now_ms - self._current.start_ms >= self._window.size_ms:
            self._at = (self._at + 1) % (self._window.samples + 1)
            if self._at == len(self._samples):
                self._samples.append(_Sample(now_ms))
            else:
                self._samples[self._at].reset(now_ms)
        self._settle(now_ms)

    def _settle(self, now_ms: float) -> None:
        """Clear samples that have left the window, and recompute the sum."""
        whole_ms = self._window.whole_ms
        for sample in self._samples:
            if now_ms - sample.last_ms >= whole_ms:
                sample.reset(now_ms)
        self._current = self._samples[self._at]
        self._sum = sum(sample.value for sample in self._samples)
        self._oldest_ms = min(sample.start_ms for sample in self._samples)
        expires_ms = min(sample.last_ms for sample in self._samples) + whole_ms
        self._next_ms = min(expires_ms, self._current.start_ms + self._window.size_ms)
