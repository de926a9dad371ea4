"""Keep what the charts of the overview show: one sample every two seconds.

Invariant: pure. Memory: `SAMPLES_MAX` samples of about 200 bytes.
"""

from collections import deque
from typing import Final

import msgspec

from penstock.deploy.top.view import TopView

INTERVAL_S: Final = 2.0
"""Brokers report their loads as often."""

SAMPLES_MAX: Final = 450
"""A quarter of an hour."""


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one moment. None: not known. Rates are per second, append_*_ms those of the
    slowest broker.
    """

    at_ms: int
    bytes_in: int
    bytes_out: int
    requests: int
    records: float | None
    append_p50_ms: float | None
    append_p99_ms: float | None
    put: float | None
    get: float | None
    list_: float | None = msgspec.field(name="list")
    usd_month: float | None


def sample_of(view: TopView, at_ms: int) -> Sample:
    nodes = [node for node in view.cluster.nodes if not node.fenced]
    requests = view.cost.requests
    rates = [topic.records_s for topic in view.topics if topic.records_s is not None]
    return Sample(
        at_ms=at_ms,
        bytes_in=sum(node.bytes_in_s for node in nodes),
        bytes_out=sum(node.bytes_out_s for node in nodes),
        requests=sum(node.requests_s for node in nodes),
        records=sum(rates) if rates else None,
        append_p50_ms=_slowest([node.append_p50_ms for node in nodes]),
        append_p99_ms=_slowest([node.append_p99_ms for node in nodes]),
        put=None if requests is None else requests.put_s,
        get=None if requests is None else requests.get_s,
        list_=None if requests is None else requests.list_s,
        usd_month=view.cost.requests_usd_month,
    )


class Samples:
    """The samples of the last quarter of an hour, the oldest first."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=SAMPLES_MAX)

    def add(self, sample: Sample) -> None:
        self._samples.append(sample)

    def all(self) -> list[Sample]:
        return list(self._samples)


def _slowest(values: list[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)
