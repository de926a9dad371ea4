"""Measure the load of this broker's partitions and the latency of its appends. Pure.

The hot path only increments counters of `Partition`. The rates are computed here every few seconds.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import ceil, exp
from operator import attrgetter
from typing import Final
from uuid import UUID

from penstock.base.ids import StreamEpoch
from penstock.broker.partition.partition import Partition
from penstock.controller.api.load_messages import PARTITIONS_PER_REPORT_MAX, Load, PartitionLoad

DECAY_S: Final = 5.0
"""Time constant after which the weight of a sample has dropped to about a third. With a shorter
one, rates follow the load faster but are noisier.
"""
SAMPLES_MAX: Final = 4_096
STEP_COUNT: Final = 100


@dataclass(slots=True)
class _Rate:
    """The counters at the last sample, and decayed sums of the counts and of the observed
    seconds.
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
    """Rates of the open partitions, as decayed means over the observed time, so that a partition
    that was observed for only one second also has a rate.
    """

    def __init__(self, now: float) -> None:
        self._sampled_at = now
        self._rates: dict[tuple[UUID, int, StreamEpoch], _Rate] = {}

    def sample(
        self, partitions: Sequence[Partition], now: float
    ) -> Generator[None, None, tuple[list[PartitionLoad], Load, int]]:
        """Return the `PARTITIONS_PER_REPORT_MAX` busiest partitions, the summed load of the others,
        and the number of the others. now: monotonic seconds. A partition with load takes 4 to 8 us,
        an idle one 0.4 us. Yields after every STEP_COUNT partitions.
        """
        before, self._sampled_at = self._sampled_at, now
        elapsed_s = max(now - before, 1e-3)
        decay = exp(-elapsed_s / DECAY_S)
        rates: dict[tuple[UUID, int, StreamEpoch], _Rate] = {}
        busy: list[PartitionLoad] = []
        for number, partition in enumerate(partitions, 1):
            if number % STEP_COUNT == 0:
                yield
            key = (partition.topic_id, partition.index, partition.leader_epoch)
            rate = rates[key] = self._rates.get(key) or _Rate(before)
            if rate.is_idle and rate.seen_requests == partition.requests_count:
                continue  # true for most partitions
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
    """Return the busiest partitions, and the summed load of the others."""
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
    """The times from append to acknowledgment. Pending appends are included with their current age,
    so that a hanging store is visible immediately.
    """

    def __init__(self) -> None:
        self._waiting: dict[object, float] = {}
        self._took_s: list[float] = []

    def begin(self, append: object, now: float) -> None:
        """Start an append. This takes 0.1 us."""
        self._waiting[append] = now

    def end(self, append: object, now: float, *, counts: bool = True) -> None:
        """End an append. counts: False for a rejected append, because its duration is not that of a
        durable write.
        """
        began = self._waiting.pop(append)
        if counts and len(self._took_s) < SAMPLES_MAX:
            self._took_s.append(now - began)

    def take(self, now: float) -> tuple[float, float] | None:
        """Return (p50, p99) in milliseconds since the last call, or None if there were no
        appends.
        """
        took_s, self._took_s = self._took_s, []
        took_s.extend(now - began for began in self._waiting.values())
        if not took_s:
            return None
        took_s.sort()
        return took_s[ceil(len(took_s) * 0.5) - 1] * 1_000, took_s[
            ceil(len(took_s) * 0.99) - 1
        ] * 1_000
