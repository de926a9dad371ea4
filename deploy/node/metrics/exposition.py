"""Serve `/metrics`: the reader's values at each scrape, encoded by `prometheus_client`."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from penstock.base.histogram import Latencies, LatencyHistogram
from penstock.deploy.node.health import HttpResponse, Route
from penstock.deploy.node.metrics import table
from penstock.deploy.node.metrics.table import Metric, MetricRole

Reading: TypeAlias = tuple[Metric, tuple[str, ...], float | Latencies]
"""A metric, the values of its labels, and its value."""

Reader: TypeAlias = Callable[[], Iterable[Reading]]

CONTENT_TYPE: Final = "text/plain; version=0.0.4"
AGE_MAX_S: Final = 0.25
LAG_INTERVAL_S: Final = 0.1
_FIRST_BUCKET: Final = 9
"""Index of the first bucket in `base.histogram`, 0.4 ms. From there, buckets double up to 105 s."""
_BUCKET_STEP: Final = 3

_Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily
_FAMILIES: Final = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class NodeCollector(Collector):
    """Calls the reader at each scrape."""

    def __init__(self, metrics: Iterable[Metric], read: Reader) -> None:
        self._metrics = list(metrics)
        self._read = read

    def collect(self) -> Iterator[_Family]:
        families = {
            metric: _FAMILIES[metric.kind](metric.name, metric.text, labels=metric.labels)
            for metric in self._metrics
        }
        for metric, labels, value in self._read():
            assert len(labels) == len(metric.labels), (
                f"{metric.name} has labels {metric.labels}, not {labels}"
            )
            family = families[metric]
            if isinstance(family, HistogramMetricFamily):
                assert isinstance(value, Latencies), metric.name
                family.add_metric(labels, _buckets(value), value.sum_ms / 1_000)
            else:
                assert not isinstance(value, Latencies), metric.name
                family.add_metric(labels, value)
        yield from families.values()


def _buckets(latencies: Latencies) -> list[tuple[str, float]]:
    found = [
        (f"{bound_ms / 1_000:.4g}", float(count))
        for bound_ms, count in latencies.cumulative(_FIRST_BUCKET, _BUCKET_STEP)
    ]
    return [*found, ("+Inf", float(latencies.count))]


class Exposition:
    """Metrics of one process: the reader's, the lag of its loop, and CPU and memory from
    `prometheus_client`.

    Invariants: the class does not count anything itself, so it costs nothing without scrapes. A
    metric that is not in the table for this role, or has other labels, is an error. Scrapes within
    `AGE_MAX_S` share one text, so that scrapes cannot slow a node down. Cost: about 5 ms for a
    broker, plus 0.3 us for each partition. This class must not depend on brokers or controllers.
    """

    def __init__(self, role: MetricRole, read: Reader) -> None:
        self._lag = LatencyHistogram()
        self._read = read
        self._metrics = table.of_role(role)
        self._registry = CollectorRegistry()
        self._registry.register(NodeCollector(self._metrics, self._readings))
        ProcessCollector(registry=self._registry)
        self._text = ""
        self._made_at = float("-inf")

    def _readings(self) -> Iterator[Reading]:
        yield from self._read()
        if table.NODE_LOOP_LAG in self._metrics:
            yield table.NODE_LOOP_LAG, (), self._lag.freeze()

    async def response(self) -> HttpResponse:
        now = asyncio.get_running_loop().time()
        if now - self._made_at > AGE_MAX_S:
            self._text, self._made_at = generate_latest(self._registry).decode(), now
        return HttpResponse(200, CONTENT_TYPE, self._text)

    @asynccontextmanager
    async def serve(self) -> AsyncGenerator[dict[str, Route], None]:
        """Measure the lag, and yield the routes to add."""
        watching = asyncio.get_running_loop().create_task(self._measure_lag())
        try:
            yield {"/metrics": self.response}
        finally:
            watching.cancel()
            await asyncio.wait((watching,))

    async def _measure_lag(self) -> None:
        """Measure ten times per second, which takes 50 us of CPU per second."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + LAG_INTERVAL_S
            await asyncio.sleep(LAG_INTERVAL_S)
            self._lag.observe(max(0.0, loop.time() - due) * 1_000)
