"""Requests of all connections, counted: how many were answered, with which errors, and how long
Produce and Fetch took.

Invariants: the keys are API keys and error codes, which are few; the hot path adds to integers, a
name is only looked up by who publishes.
Pure: the time comes in. Budget: 1 us for a Produce or Fetch, 0.1 us for any other request.
"""

from collections import Counter
from typing import Final

from base.histogram import LatencyHistogram
from broker.wire import apis

TIMED: Final = (apis.PRODUCE.key, apis.FETCH.key)


class RequestMeter:
    """All its numbers only grow."""

    __slots__ = ("answers", "errors", "latencies")

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        """By API key."""
        self.errors: Counter[tuple[int, int]] = Counter()
        """Answers that told of an error, by API key and error code: of one with several, the
        first.
        """
        self.latencies = {key: LatencyHistogram() for key in TIMED}
        """From the complete request to its answer, waiting for records or durability included."""

    def answered(self, api_key: int, took_s: float) -> None:
        self.answers[api_key] += 1
        latencies = self.latencies.get(api_key)
        if latencies is not None:
            latencies.observe(took_s * 1_000)

    def failed(self, api_key: int, code: int) -> None:
        """An answer tells of an error."""
        self.errors[api_key, int(code)] += 1
