"""Count the requests of all connections: answers, errors, and the latency of Produce and Fetch.

Invariants: the keys are API keys and error codes, so they are few. The hot path adds to integers;
only the exporter looks up names. Pure: the time is an argument. Budget: 1 us for a Produce or
Fetch, 0.1 us for any other request.
"""

from collections import Counter
from typing import Final

from penstock.base.histogram import LatencyHistogram
from penstock.protocol import apis

TIMED: Final = (apis.PRODUCE.key, apis.FETCH.key)


class RequestMeter:
    """Request counters of one broker. They only grow."""

    __slots__ = ("answers", "errors", "latencies")

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        """Answered requests by API key."""
        self.errors: Counter[tuple[int, int]] = Counter()
        """Answers with an error, by API key and error code. An answer with several errors counts
        its first one.
        """
        self.latencies = {key: LatencyHistogram() for key in TIMED}
        """Time from the complete request to its answer, including waits for records or durability.
        """

    def answered(self, api_key: int, took_s: float) -> None:
        self.answers[api_key] += 1
        latencies = self.latencies.get(api_key)
        if latencies is not None:
            latencies.observe(took_s * 1_000)

    def failed(self, api_key: int, code: int) -> None:
        """Count an answer with an error."""
        self.errors[api_key, int(code)] += 1
