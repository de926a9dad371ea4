"""Render the page of `penstock top`.

Invariant: unknown values are dashes, never zeros.
"""

from rich.console import Group
from rich.table import Table

from penstock.controller.api.load_messages import StoreRequests
from penstock.deploy.admin.cost import usd_month
from penstock.deploy.admin.views import NodeView
from penstock.deploy.output import cell, size
from penstock.deploy.top.view import TopView

TOPICS_MAX = 20


def page(view: TopView) -> Group:
    return Group(_nodes(view), _store(view), _topics(view))


def _nodes(view: TopView) -> Table:
    cluster = view.cluster
    title = (
        f"cluster {cluster.cluster_id}, controller {cluster.controller}, {cluster.objects:,}"
        f" objects, {size(view.stored_bytes)} committed"
    )
    table = _table(
        title,
        ["node", "state", "address"],
        ["leads", "in MB/s", "out MB/s", "requests/s", "append p50/p99 ms", "loop lag ms"],
    )
    table.add_column("note")
    for node in cluster.nodes:
        table.add_row(
            str(node.node_id),
            "fenced" if node.fenced else "alive",
            cell(node.address),
            f"{node.leads:,}",
            _megabytes(node.bytes_in_s),
            _megabytes(node.bytes_out_s),
            _whole(node.requests_s),
            _answers(node),
            "-" if node.loop_lag_ms is None else f"{node.loop_lag_ms:,.0f}",
            cell(node.note or "-"),
        )
    return table


def _store(view: TopView) -> Table:
    cost = view.cost
    table = _table(
        "requests to the object store",
        ["node"],
        ["PUT/s", "LIST/s", "GET/s", "DELETE/s", "failed/s", "MB/s written", "USD/month"],
    )
    for node in view.cluster.nodes:
        if not node.fenced:
            table.add_row(
                str(node.node_id),
                *_requests(
                    node.store, None if node.store is None else usd_month(node.store, cost.prices)
                ),
            )
    table.add_row("all brokers", *_requests(cost.requests, cost.requests_usd_month))
    each = (
        f"USD {cost.prices.put_usd_per_1000:g} per 1,000 PUT and LIST,"
        f" {cost.prices.get_usd_per_1000:g} per 1,000 GET"
    )
    kept = f"{size(view.stored_bytes)} stored: USD {cost.storage_usd_month:,.2f} a month more"
    table.caption = cell(f"at this rate, {each} ({cost.prices.source}); {kept}")
    return table


def _requests(requests: StoreRequests | None, usd: float | None) -> list[str]:
    if requests is None or usd is None:
        return ["-"] * 7
    rates = (
        requests.put_s,
        requests.list_s,
        requests.get_s,
        requests.delete_s,
        requests.failed_s,
        requests.written_bytes_s / 1e6,
    )
    return [*(f"{rate:,.2f}" for rate in rates), f"{usd:,.2f}"]


def _topics(view: TopView) -> Table:
    left = len(view.topics) - TOPICS_MAX
    table = _table(
        "topics, the busiest first",
        ["topic"],
        ["partitions", "without leader", "records/s", "records", "committed"],
    )
    for topic in view.topics[:TOPICS_MAX]:
        rate = "-" if topic.records_s is None else f"{topic.records_s:,.0f}"
        table.add_row(
            cell(topic.name),
            f"{topic.partitions:,}",
            f"{topic.without_leader:,}",
            rate,
            _whole(topic.records),
            size(topic.stored_bytes),
        )
    table.caption = f"and {left:,} more" if left > 0 else None if view.topics else "(no topics)"
    return table


def _table(title: str, texts: list[str], numbers: list[str]) -> Table:
    table = Table(title=cell(title), title_justify="left", header_style="bold", expand=True)
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _whole(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _megabytes(bytes_s: int | None) -> str:
    return "-" if bytes_s is None else f"{bytes_s / 1e6:,.2f}"


def _answers(node: NodeView) -> str:
    return (
        "-"
        if node.append_p50_ms is None or node.append_p99_ms is None
        else f"{node.append_p50_ms:,.0f} / {node.append_p99_ms:,.0f}"
    )
