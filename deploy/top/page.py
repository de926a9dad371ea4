"""The page of `penstock top`.

Invariant: what is not known is a dash, never a zero.
"""

from rich.console import Group
from rich.table import Table

from deploy.output import size
from deploy.top.view import TopView
from deploy.views import NodeView

TOPICS_MAX = 20


def page(view: TopView) -> Group:
    return Group(_nodes(view), _topics(view))


def _nodes(view: TopView) -> Table:
    cluster = view.cluster
    title = (
        f"cluster {cluster.cluster_id}, controller {cluster.controller}, {cluster.objects:,} objects, {size(view.stored_bytes)} committed"
    )
    table = _table(title, ["node", "is", "address"], ["leads", "in MB/s", "out MB/s", "requests/s", "append p50/p99 ms", "loop lag ms"])
    table.add_column("note")
    for node in cluster.nodes:
        table.add_row(
            str(node.node_id),
            "fenced" if node.fenced else "alive",
            node.address,
            f"{node.leads:,}",
            f"{node.bytes_in_s / 1e6:,.2f}",
            f"{node.bytes_out_s / 1e6:,.2f}",
            f"{node.requests_s:,}",
            _answers(node),
            "-" if node.loop_lag_ms is None else f"{node.loop_lag_ms:,.0f}",
            node.note or "-",
        )
    return table


def _topics(view: TopView) -> Table:
    left = len(view.topics) - TOPICS_MAX
    table = _table("topics, the busiest first", ["topic"], ["partitions", "without leader", "records/s", "records", "committed"])
    for topic in view.topics[:TOPICS_MAX]:
        rate = "-" if topic.records_s is None else f"{topic.records_s:,.0f}"
        table.add_row(
            topic.name, f"{topic.partitions:,}", f"{topic.without_leader:,}", rate, f"{topic.records:,}", size(topic.stored_bytes)
        )
    table.caption = f"and {left:,} more" if left > 0 else None if view.topics else "(no topics)"
    return table


def _table(title: str, texts: list[str], numbers: list[str]) -> Table:
    table = Table(title=title, title_justify="left", header_style="bold", expand=True)
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _answers(node: NodeView) -> str:
    return "-" if node.append_p50_ms is None or node.append_p99_ms is None else f"{node.append_p50_ms:,.0f} / {node.append_p99_ms:,.0f}"
