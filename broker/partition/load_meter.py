"""How much goes through this broker's partitions, and how long its appends take.

The hot path only adds to plain integers of `Partition`; what they mean is computed here every few
seconds. Invariants: a rate is the decayed mean of the time that was watched, so that a partition
seen for one second has a rate as well, only a less certain one; at most `PARTITIONS_PER_REPORT_MAX`
partitions are named, the busiest, and the rest is summed; samples are bounded. Pure: the time comes
in.
Source: Cruise Control's metrics reporter; the load averages of Unix.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import nlargest
from math import ceil, exp
from operator import attrgetter
from typing import Final
from uuid import UUID

from base.ids import StreamEpoch
from broker.partition.partition import Partition
from controller.api.load_messages import PARTITIONS_PER_REPORT_MAX, Load, PartitionLoad

DECAY_S: Final = 5.0
"""What is so old counts for a third. Shorter follows the load sooner and takes its noise for
news.
"""
SAMPLES_MAX: Final = 4_096


@dataclass(slots=True)
class _Rate:
    """Counters when they were last looked at, and decayed sums of what was counted and of the
    seconds in which it was.
    """

    since: float
    seconds: float = 0.0
    seen_in: int = 0
    seen_out: int = 0
    seen_requests: int = 0
    bytes_in: float = 0.0
    bytes_out: float = 0.0
    requests: float = 0.0

    is_idle: bool = False

    def add(self, partition: Partition, elapsed_s: float, decay: float) -> None:
        self.seconds = self.seconds * decay + elapsed_s
        self.bytes_in = self.bytes_in * decay + partition.bytes_in - self.seen_in
        self.bytes_out = self.bytes_out * decay + partition.bytes_out - self.seen_out
        self.requests = self.requests * decay + partition.requests_count - self.seen_requests
        self.seen_in, self.seen_out, self.seen_requests = (
            partition.bytes_in,
            partition.bytes_out,
            partition.requests_count,
        )

    def load(self) -> Load:
        return Load(
            round(self.bytes_in / self.seconds),
            round(self.bytes_out / self.seconds),
            round(self.requests / self.seconds),
        )


class LoadMeter:
    """Rates of the partitions that are open here."""

    def __init__(self, now: float) -> None:
        self._sampled_at = now
        self._rates: dict[tuple[UUID, int, StreamEpoch], _Rate] = {}

    def sample(
        self, partitions: Iterable[Partition], now: float
    ) -> tuple[list[PartitionLoad], Load, int]:
        """(the busiest, the sum of the others, their number). now: monotonic seconds.
        O(partitions), 4 us for each that has a load and 0.4 us for the others.
        """
        before, self._sampled_at = self._sampled_at, now
        elapsed_s = max(now - before, 1e-3)
        decay = exp(-elapsed_s / DECAY_S)
        rates: dict[tuple[UUID, int, StreamEpoch], _Rate] = {}
        busy: list[PartitionLoad] = []
        for partition in partitions:
            key = (partition.topic_id, partition.index, partition.leader_epoch)
            rate = rates[key] = self._rates.get(key) or _Rate(before)
            if rate.is_idle and rate.seen_requests == partition.requests_count:
                continue  # most of ten thousand partitions
            rate.add(partition, elapsed_s, decay)
            load = rate.load()
            rate.is_idle = not any(load)
            if not rate.is_idle:
                observed_ms = int((now - rate.since) * 1_000)
                busy.append(
                    PartitionLoad(
                        topic_id=key[0],
                        partition=key[1],
                        leader_epoch=key[2],
                        load=load,
                        observed_ms=observed_ms,
                    )
                )
        self._rates = rates
        named, rest = _busiest(busy)
        return named, rest, len(rates) - len(named)


def _busiest(busy: list[PartitionLoad]) -> tuple[list[PartitionLoad], Load]:
    """Return the busiest partitions and the summed load of the others."""
    if len(busy) <= PARTITIONS_PER_REPORT_MAX:
        return busy, Load(0, 0, 0)
    named = nlargest(
        PARTITIONS_PER_REPORT_MAX, busy, key=lambda item: item.load.bytes_in + item.load.bytes_out
    )
    chosen = {(item.topic_id, item.partition) for item in named}
    rest = [item.load for item in busy if (item.topic_id, item.partition) not in chosen]
    return named, _sum(rest)


def _sum(loads: list[Load]) -> Load:
    return Load(*(sum(map(attrgetter(name), loads)) for name in Load._fields))


class AppendTimes:
    """From append to acknowledgement. What still waits counts with its age: a store that hangs
    shows at once.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, float] = {}
        self._next = 0
        self._took_s: list[float] = []

    def begin(self, now: float) -> int:
        """Returns what `end` wants. 0.1 us."""
        number = self._next = self._next + 1
        self._waiting[number] = now
        return number

    def end(self, number: int, now: float, *, counts: bool = True) -> None:
        """counts: False for an append that was refused, which says nothing of durability."""
        began = self._waiting.pop(number)
        if counts and len(self._took_s) < SAMPLES_MAX:
            self._took_s.append(now - began)

    def take(self, now: float) -> tuple[float, float] | None:
        """(p50, p99) in milliseconds since the last call; None: nothing was appended."""
        took_s, self._took_s = self._took_s, []
        took_s.extend(now - began for began in self._waiting.values())
        if not took_s:
            return None
        took_s.sort()
        return took_s[ceil(len(took_s) * 0.5) - 1] * 1_000, took_s[
            ceil(len(took_s) * 0.99) - 1
        ] * 1_000
