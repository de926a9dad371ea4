"""Compute the record counts of topics, and the rates of new records, from end offsets.

Invariant: pure. A rate compares two measurements of one partition, and a partition that was not
measured keeps its last values, so a leader that does not respond, or returns, changes neither
counts nor rates of the topic. Unknown values are None, never 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

from penstock.deploy.top.offsets import Measured
from penstock.deploy.top.view import Stored, TopicCount

RATE_S: Final = 5.0
"""Age at which the rate of a partition stops counting towards the cluster's total."""


class _Seen(NamedTuple):
    """rate: records per second since the previous measurement; None if there was none."""

    end: int
    at_s: float
    rate: float | None


@dataclass(slots=True)
class _Topic:
    topic_id: UUID | None
    partitions: dict[int, _Seen]

    def measured(self, ends: Mapping[int, int], at_s: float) -> None:
        for index, end in ends.items():
            before = self.partitions.get(index)
            rate = None
            if before is not None and at_s <= before.at_s:
                continue  # a late response of a former leader
            if before is not None and end >= before.end:
                rate = (end - before.end) / (at_s - before.at_s)
            self.partitions[index] = _Seen(end, at_s, rate)

    def rates(self) -> list[float]:
        """Return the known rates of all partitions."""
        return [seen.rate for seen in self.partitions.values() if seen.rate is not None]

    def count(self, stored: Stored, now_s: float) -> TopicCount:
        known = self.partitions
        rates = self.rates()
        return TopicCount(
            sum(max(0, seen.end - stored.starts.get(index, 0)) for index, seen in known.items())
            if len(known) >= stored.partitions
            else None,
            sum(rates) if rates and len(rates) >= stored.led else None,
            now_s - min((seen.at_s for seen in known.values()), default=now_s),
        )


class RecordCounts:
    """Keeps the last end offset of each partition of topics that exist."""

    def __init__(self) -> None:
        self._topics: dict[str, _Topic] = {}
        self.records_s: float | None = None
        """Records written to all topics per second; None while a leader does not respond."""

    def add(
        self, stored: Mapping[str, Stored], measured: Sequence[Measured], now_s: float
    ) -> Mapping[str, TopicCount]:
        """Add the measurements of brokers, and return the counts of all topics."""
        self._topics = {name: self._known(name, topic.topic_id) for name, topic in stored.items()}
        for found in measured:
            for name, ends in found.ends.items():
                if (topic := self._topics.get(name)) is not None:
                    topic.measured(ends, found.requested_at)
        self.records_s = self._total(stored, now_s - RATE_S)
        return {name: self._topics[name].count(topic, now_s) for name, topic in stored.items()}

    def ends(self, name: str) -> Mapping[int, int]:
        """Return the last known end offsets of a topic by partition."""
        topic = self._topics.get(name)
        return {} if topic is None else {at: seen.end for at, seen in topic.partitions.items()}

    def _total(self, stored: Mapping[str, Stored], since_s: float) -> float | None:
        rates: list[float] = []
        for name, topic in self._topics.items():
            recent = [seen for seen in topic.partitions.values() if seen.at_s >= since_s]
            if len(recent) < min(len(topic.partitions), stored[name].led):
                return None
            rates += [seen.rate for seen in recent if seen.rate is not None]
        return sum(rates) if rates else None

    def _known(self, name: str, topic_id: UUID | None) -> _Topic:
        """Return the known state of a topic, which is empty if the topic was recreated."""
        known = self._topics.get(name)
        return known if known and known.topic_id == topic_id else _Topic(topic_id, {})
