"""Port for forwarding client metrics, and its counters."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class SentCounts:
    """Outcomes of pushes."""

    sent: int = 0
    dropped: int = 0
    sent_bytes: int = 0
    waiting_bytes: int = 0
    rejected_data_points: int = 0
    """Data points that the receiver rejected."""


class MetricsSender(Protocol):
    """Forwards metrics; never blocks."""

    counts: SentCounts

    def offer(self, metrics: bytes) -> None:
        """Accept one push, as OpenTelemetry MetricsData."""
        ...

    async def run(self) -> None:
        """Send until cancelled."""
        ...
