"""Read the statuses of table runners from the store, and print them."""

import asyncio
import time

from penstock.deploy.output import iso_time, print_table, say
from penstock.lake.manifest.table_status import (
    ExportView,
    declares_table,
    exports_of,
    read_statuses,
)
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.url import open_store
from penstock.stream.format.manifest.model import ManifestRoot

_COLUMNS = ("topic", "table", "state", "lag", "records left", "last commit", "rows", "dead letters")
TIMEOUT_S = 60.0


def statuses_of(store_url: str, cluster_id: str) -> list[ExportView]:
    """Return the exports of all enabled topics. Raises ManifestNotFound, SeveralClusters,
    InvalidStoreUrl and the store's errors.
    """
    return asyncio.run(_statuses_of(store_url, cluster_id))


async def _statuses_of(store_url: str, cluster_id: str) -> list[ExportView]:
    store = open_store(store_url)
    try:
        async with asyncio.timeout(TIMEOUT_S):
            root = await ClusterView(store, cluster_id, uploaded_only=True).refresh()
            statuses = await read_statuses(store, root.cluster_id)
    finally:
        await store.close()
    return exports_of(enabled_in(root), statuses, time.time_ns() // 1_000_000)


def enabled_in(root: ManifestRoot) -> dict[str, str]:
    """Return the ids of topics that declare a table, except topics in snapshots."""
    return {
        topic.name: str(topic.topic_id)
        for topic in root.topics
        if declares_table(topic.name, topic.configs, is_internal=topic.is_internal)
    }


def print_statuses(exports: list[ExportView]) -> None:
    if not exports:
        say("no topic has the config penstock.table.enable=true")
        return
    print_table("table exports", _COLUMNS, [_row(export) for export in exports])
    for export in exports:
        if export.error:
            say(f"{export.topic}: {export.error}")


def _row(export: ExportView) -> tuple[object, ...]:
    if not export.runner:
        return (export.topic, "", export.state, "", "", "", "", "")
    return (
        export.topic,
        export.table,
        export.state,
        f"{export.lag_ms / 1_000:,.0f} s",
        f"{export.lag_records:,}",
        iso_time(export.commit_ms) if export.commit_ms >= 0 else "none",
        f"{export.rows:,}",
        f"{export.rejected:,}",
    )
