"""Totals over a broker's partitions for metrics, computed from counters of the partitions, so that
nothing is counted per request here. The counters of closed partitions are added to a sum, so that
totals never decrease.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock.base.histogram import LatencyHistogram
from penstock.broker.partition.partition import Partition


class Traffic(NamedTuple):
    """Traffic of clients and coordinators through partitions that this broker leads or has led."""

    bytes_in: int = 0
    records_in: int = 0
    bytes_out: int = 0
    records_out: int = 0

    def with_partitions(self, partitions: Iterable[Partition]) -> "Traffic":
        """Return the sum including these partitions. This takes 0.3 us per partition."""
        bytes_in, records_in, bytes_out, records_out = self
        for partition in partitions:
            bytes_in += partition.bytes_in
            records_in += partition.records_in
            bytes_out += partition.bytes_out
            records_out += partition.records_out
        return Traffic(bytes_in, records_in, bytes_out, records_out)


@dataclass(slots=True)
class OperationCounts:
    """Counts of open or close operations. latencies: durations of operations, each of which handles
    many partitions.
    """

    partitions: int = 0
    failures: int = 0
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)


class PartitionStates(NamedTuple):
    """Number of partitions in each state."""

    serving: int = 0
    opening: int = 0
    closing: int = 0
    awaited: int = 0
    """Partitions that this broker will lead after the next election."""
    failing: int = 0
    """Partitions that have failed to open. The next attempt is pending or running."""
