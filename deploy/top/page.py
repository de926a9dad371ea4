"""Render the page of `penstock top`.

Invariant: unknown values are dashes, never zeros. A narrow terminal shows fewer columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.table import Table

from penstock.controller.api.load_messages import StoreRequests
from penstock.deploy.admin.cost import usd_month
from penstock.deploy.output import cell, fitting_count, hidden_columns, size
from penstock.deploy.top.view import TopView

TOPICS_MAX = 20


def page(view: TopView) -> Group:
    return Group(_nodes(view), _store(view), _topics(view))


def _nodes(view: TopView) -> "_FittingTable":
    cluster = view.cluster
    title = (
        f"cluster {cluster.cluster_id}, controller {cluster.controller}, {cluster.objects:,}"
        f" objects, {size(view.stored_bytes)} committed"
    )
    rows = [
        [
            str(node.node_id),
            "fenced" if node.fenced else "alive",
            node.address,
            f"{node.leads:,}",
            _megabytes(node.bytes_in_s),
            _megabytes(node.bytes_out_s),
            _whole(node.requests_s),
            node.append_latencies(),
            "-" if node.loop_lag_ms is None else f"{node.loop_lag_ms:,.0f}",
            node.note or "-",
        ]
        for node in cluster.nodes
    ]
    names = ["node", "state", "address", "leads", "in MB/s", "out MB/s", "requests/s"]
    names += ["append p50/p99 ms", "loop lag ms", "note"]
    return _FittingTable(title, names, rows, texts=("node", "state", "address", "note"))


def _store(view: TopView) -> "_FittingTable":
    cost = view.cost
    rows = [
        [
            str(node.node_id),
            *_requests(
                node.store,
                None if node.store is None or cost.unpriced else usd_month(node.store, cost.prices),
            ),
        ]
        for node in view.cluster.nodes
        if not node.fenced
    ]
    rows.append(["all brokers", *_requests(cost.requests, cost.requests_usd_month)])
    each = (
        f"USD {cost.prices.put_usd_per_1000:g} per 1,000 PUT and LIST,"
        f" {cost.prices.get_usd_per_1000:g} per 1,000 GET"
    )
    kept = f"{size(view.stored_bytes)} stored: USD {cost.storage_usd_month:,.2f} a month more"
    names = ["node", "PUT/s", "LIST/s", "GET/s", "DELETE/s", "failed/s", "MB/s written"]
    names += ["USD/month"]
    caption = f"at this rate, {each} ({cost.prices.source}); {kept}"
    if cost.unpriced:
        caption = (
            f"no price, because requests to the WAL store {cost.unpriced} have other prices: give"
            f" averages with --put-price and --get-price; {kept} ({cost.prices.source})"
        )
    return _FittingTable("requests to the object store", names, rows, caption, texts=("node",))


def _requests(requests: StoreRequests | None, usd: float | None) -> list[str]:
    if requests is None:
        return ["-"] * 7
    rates = (
        requests.put_s,
        requests.list_s,
        requests.get_s,
        requests.delete_s,
        requests.failed_s,
        requests.written_bytes_s / 1e6,
    )
    return [*(f"{rate:,.2f}" for rate in rates), "-" if usd is None else f"{usd:,.2f}"]


def _topics(view: TopView) -> "_FittingTable":
    left = len(view.topics) - TOPICS_MAX
    rows = [
        [
            topic.name,
            f"{topic.partitions:,}",
            f"{topic.without_leader:,}",
            "-" if topic.records_s is None else f"{topic.records_s:,.0f}",
            _whole(topic.records),
            size(topic.stored_bytes),
        ]
        for topic in view.topics[:TOPICS_MAX]
    ]
    caption = f"and {left:,} more" if left > 0 else "" if view.topics else "(no topics)"
    names = ["topic", "partitions", "without leader", "records/s", "records", "committed"]
    return _FittingTable("topics, the busiest first", names, rows, caption, texts=("topic",))


@dataclass(frozen=True)
class _FittingTable:
    """A table that shows as many columns as fit on the terminal. texts: the columns with text."""

    title: str
    names: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    texts: tuple[str, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        count = fitting_count(self.names, self.rows, min(console.width, options.max_width))
        hidden = [hidden_columns(self.names[count:])] if count < len(self.names) else []
        caption = "; ".join([self.caption, *hidden] if self.caption else hidden)
        table = Table(
            title=cell(self.title),
            title_justify="left",
            header_style="bold",
            caption=cell(caption) if caption else None,
            expand=True,
        )
        for name in self.names[:count]:
            table.add_column(
                name, justify="left" if name in self.texts else "right", overflow="fold"
            )
        for row in self.rows:
            table.add_row(*map(cell, row[:count]))
        yield table


def _whole(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _megabytes(bytes_s: int | None) -> str:
    return "-" if bytes_s is None else f"{bytes_s / 1e6:,.2f}"
