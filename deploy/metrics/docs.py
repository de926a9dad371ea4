"""The table as text: `docs/reference/metrics.md`.

    python -m deploy.metrics.docs > docs/reference/metrics.md

Invariant: repeatable; the file in `docs/` is this output, byte for byte (a test compares).
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from deploy.config.definition import ROLES, Role
from deploy.metrics.table import METRICS, Metric

_HEAD: Final = """\
# Metrics

<!-- Written by `python -m deploy.metrics.docs`; do not edit. -->

A node with a `health.listener` answers `/metrics` there, in Prometheus' text format; the chart and `deploy/compose.yaml` set one.
Nothing is counted for Prometheus alone: values are read at the moment of a scrape. Besides these there are `process_*` (CPU, resident
memory, files, start) of the Prometheus client library. Labels have few values: topics, partitions and clients are none. Histograms have
buckets from 0.4 ms to 105 s, each twice as long as the one before.

Sums over brokers are the cluster's. Of controllers, `penstock_controller_*` of the kind "Leader only" is 0 on all others, so sum it;
`penstock_cluster_*` is what each controller's own image says, so take the maximum. Dashboards and alerts built on them are in
`helm/penstock/dashboards` and `helm/penstock/rules`; what to do about an alert is in [operations.md](../operations.md).
"""
_TITLES: Final[dict[tuple[Role, ...], str]] = {ROLES: "Every node", ("broker",): "Brokers", ("controller",): "Controllers"}


def markdown() -> str:
    lines = [_HEAD]
    for roles, title in _TITLES.items():
        lines += [f"## {title}", "", *_rows(metric for metric in METRICS if metric.roles == roles), ""]
    return "\n".join(lines)


def _rows(metrics: Iterable[Metric]) -> Iterator[str]:
    yield "| name | type | labels | meaning |"
    yield "|---|---|---|---|"
    for metric in metrics:
        yield f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.text} |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
