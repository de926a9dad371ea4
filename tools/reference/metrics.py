"""Generate `docs/reference/metrics.md` from the table.

python -m tools.reference.metrics > docs/reference/metrics.md
The output is deterministic; a test compares it with the file.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Final

from penstock.deploy.node.config.definition import ROLES
from penstock.deploy.node.metrics.table import METRICS, Metric, MetricRole

_HEAD: Final = """\
# Metrics

<!-- Written by `python -m tools.reference.metrics`; do not edit. -->

A node with a `health.listener` serves `/metrics` in Prometheus' text format; the chart and `deploy/image/compose.yaml` configure it.
Values are read at the time of the scrape.
The Prometheus client library adds `process_*`: CPU, resident memory, open files, start time.
No label is a topic, partition or client, except in the metrics of table runners (`penstock table run --health-listener`), which have the topics with the largest lags, at most 1,000.
Histograms have buckets from 0.4 ms to 105 s, each twice as large as the previous one.

For cluster-wide values, sum over brokers.
Sum the `penstock_controller_*` metrics marked "Leader only", which are 0 on all controllers except the active one.
Use the maximum of `penstock_cluster_*`, which each controller reads from its own image.
Dashboards and alerts are in `helm/penstock/dashboards` and `helm/penstock/rules`; [Respond to alerts](../how-to/alerts.md) describes each alert.
"""
_TITLES: Final[dict[tuple[MetricRole, ...], str]] = {
    ROLES: "Every node",
    ("broker",): "Brokers",
    ("controller",): "Controllers",
    ("table-runner",): "Table runners",
}


def markdown() -> str:
    lines = [_HEAD]
    for roles, title in _TITLES.items():
        lines += [
            f"## {title}",
            "",
            *_rows(metric for metric in METRICS if metric.roles == roles),
            "",
        ]
    return "\n".join(lines)


def _rows(metrics: Iterable[Metric]) -> Iterator[str]:
    yield "| name | type | labels | meaning |"
    yield "|---|---|---|---|"
    for metric in metrics:
        yield f"| `{metric.name}` | {metric.kind} | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.text} |"


if __name__ == "__main__":
    sys.stdout.write(markdown())
