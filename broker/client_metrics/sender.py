"""Send the metrics of clients on: the port that a broker needs, and its counts."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class SentCounts:
    """What became of the pushes."""

    sent: int = 0
    dropped: int = 0
    sent_bytes: int = 0
    waiting_bytes: int = 0
    rejected_data_points: int = 0
    """Of pushes that were sent."""


class MetricsSender(Protocol):
    """Send metrics on; never block."""

    counts: SentCounts

    def offer(self, metrics: bytes) -> None:
        """Take one push: MetricsData of OpenTelemetry."""
        ...

    async def run(self) -> None:
        """Send until cancelled."""
        ...
