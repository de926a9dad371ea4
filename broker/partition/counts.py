"""What a broker's partitions have done so far, for its metrics: values only, made of what
partitions count themselves.

Invariant: nothing here is counted for each request; a partition that leaves hands its counts on, so
the totals only grow.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from base.histogram import LatencyHistogram
from broker.partition.partition import Partition


class Traffic(NamedTuple):
    """Of clients and coordinators, through partitions that are or were led here."""

    bytes_in: int = 0
    records_in: int = 0
    bytes_out: int = 0
    records_out: int = 0

    def with_partitions(self, partitions: Iterable[Partition]) -> "Traffic":
        """The sum. 0.3 us for each partition."""
        bytes_in, records_in, bytes_out, records_out = self
        for partition in partitions:
            bytes_in += partition.bytes_in
            records_in += partition.records_in
            bytes_out += partition.bytes_out
            records_out += partition.records_out
        return Traffic(bytes_in, records_in, bytes_out, records_out)


@dataclass(slots=True)
class OperationCounts:
    """Opens, or closes. latencies: of operations, which take many partitions at once."""

    partitions: int = 0
    failures: int = 0
    latencies: LatencyHistogram = field(default_factory=LatencyHistogram)


class PartitionStates(NamedTuple):
    """Partitions by what is the matter with them here."""

    serving: int = 0
    opening: int = 0
    closing: int = 0
    awaited: int = 0
    """To be led here when the election comes."""
    failing: int = 0
    """An open failed; the next try comes, or is under way."""
