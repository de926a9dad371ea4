"""Generate the Grafana dashboards in `helm/penstock/dashboards`: python helm/dashboards.py
[--check]

A test checks that metrics and labels are those of `deploy.node.metrics.table`. Every query is
limited to the chosen namespace.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent / "penstock" / "dashboards"
_Json = dict[str, Any]
_DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_NAMESPACE: Final = 'namespace="$namespace"'
_WINDOW: Final = "$__rate_interval"
_MONTH_S: Final = 30 * 24 * 3_600
_WRITES: Final = 'operation=~"put|put_if_absent|put_if_match|list"'
_READS: Final = 'operation=~"get|get_range|get_tail|head"'


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. queries: (PromQL, legend). kind: Grafana's type."""

    title: str
    unit: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    width: int = 8


def of(metric: str, labels: str = "") -> str:
    return f"{metric}{{{_NAMESPACE}{',' if labels else ''}{labels}}}"


def rate(metric: str, by: str = "", labels: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} (rate({of(metric, labels)}[{_WINDOW}]))"


def quantile(q: float, metric: str, by: str = "") -> str:
    return f"histogram_quantile({q}, {rate(metric + '_bucket', f'le, {by}' if by else 'le')})"


def highest(metric: str, by: str = "", labels: str = "") -> str:
    return f"max{f' by ({by})' if by else ''} ({of(metric, labels)})"


def total(metric: str, by: str = "", labels: str = "") -> str:
    return f"sum{f' by ({by})' if by else ''} ({of(metric, labels)})"


def line(title: str, unit: str, *queries: tuple[str, str]) -> Panel:
    return Panel(title, unit, queries)


def number(title: str, unit: str, query: str, width: int = 4) -> Panel:
    return Panel(title, unit, ((query, ""),), "stat", width)


def both(metric: str, by: str = "") -> tuple[tuple[str, str], ...]:
    legend = f"{{{{{by}}}}} " if by else ""
    return (quantile(0.5, metric, by), f"{legend}p50"), (quantile(0.99, metric, by), f"{legend}p99")


def hits(metric: str) -> str:
    found = rate(metric, "pod", 'result="hit"')
    return f"{found} / {rate(metric, 'pod')}"


CLUSTER: Final = (
    number("Live brokers", "short", highest("penstock_cluster_brokers", labels='state="alive"')),
    number("Fenced brokers", "short", highest("penstock_cluster_brokers", labels='state="fenced"')),
    number(
        "Responding controllers",
        "short",
        total("up", labels='app_kubernetes_io_component="controller"'),
    ),
    number("Active controllers", "short", total("penstock_controller_leader")),
    number(
        "Partitions without a leader", "short", highest("penstock_cluster_leaderless_partitions")
    ),
    number("Partitions", "short", highest("penstock_cluster_partitions")),
    line("Produced", "Bps", (rate("penstock_broker_produced_bytes_total", "pod"), "{{pod}}")),
    line("Fetched", "Bps", (rate("penstock_broker_fetched_bytes_total", "pod"), "{{pod}}")),
    line(
        "Records",
        "cps",
        (rate("penstock_broker_produced_records_total"), "in"),
        (rate("penstock_broker_fetched_records_total"), "out"),
    ),
    line(
        "Produce latency",
        "s",
        (quantile(0.5, "penstock_broker_request_seconds", "api"), "{{api}} p50"),
        (quantile(0.99, "penstock_broker_request_seconds", "api"), "{{api}} p99"),
    ),
    line("Requests", "reqps", (rate("penstock_broker_requests_total", "api"), "{{api}}")),
    line(
        "Errors returned to clients",
        "reqps",
        (rate("penstock_broker_request_errors_total", "api, error"), "{{api}} {{error}}"),
        (
            rate("penstock_broker_batches_refused_total", "reason"),
            "refused batches: {{reason}}",
        ),
    ),
    line("CPU", "percentunit", (f"rate({of('process_cpu_seconds_total')}[{_WINDOW}])", "{{pod}}")),
    line("Memory", "bytes", (of("process_resident_memory_bytes"), "{{pod}}")),
    line(
        "Event loop lag, p99",
        "s",
        (quantile(0.99, "penstock_node_loop_lag_seconds", "pod"), "{{pod}}"),
    ),
)

BROKERS: Final = (
    line(
        "Append latency, p99",
        "s",
        (quantile(0.99, "penstock_broker_request_seconds", "pod"), "{{pod}}"),
    ),
    line("WAL: PUT of a slot", "s", *both("penstock_wal_put_seconds", "pod")),
    line(
        "WAL: slots per second",
        "ops",
        (rate("penstock_wal_put_seconds_count", "pod"), "{{pod}}"),
        (rate("penstock_wal_hedges_total", "pod"), "{{pod}} second PUTs"),
        (rate("penstock_wal_retries_total", "pod"), "{{pod}} retries"),
    ),
    line("WAL: written", "Bps", (rate("penstock_wal_written_bytes_total", "pod"), "{{pod}}")),
    line(
        "WAL: not acknowledged",
        "bytes",
        (of("penstock_wal_unacknowledged_bytes"), "{{pod}}"),
        (highest("penstock_wal_unacknowledged_limit_bytes"), "limit"),
    ),
    line(
        "WAL: age of the oldest unacknowledged append",
        "s",
        (of("penstock_wal_unacknowledged_seconds"), "{{pod}}"),
    ),
    line(
        "WAL: backlog (acknowledged, not committed)",
        "bytes",
        (of("penstock_wal_backlog_bytes"), "{{pod}}"),
        (highest("penstock_wal_backlog_limit_bytes"), "limit"),
    ),
    line("WAL: age of the backlog", "s", (of("penstock_wal_backlog_seconds"), "{{pod}}")),
    line(
        "WAL: slots in flight, slots of the backlog",
        "short",
        (of("penstock_wal_puts_in_flight"), "{{pod}} in flight"),
        (of("penstock_wal_backlog_slots"), "{{pod}} backlog"),
    ),
    line(
        "Uploads: steps, p99",
        "s",
        (quantile(0.99, "penstock_upload_step_seconds", "step"), "{{step}}"),
    ),
    line(
        "Uploads and compaction: written",
        "Bps",
        (rate("penstock_upload_written_bytes_total", "pod"), "{{pod}} uploads"),
        (rate("penstock_compaction_written_bytes_total", "pod"), "{{pod}} compaction"),
    ),
    line("Compaction: lag", "s", (of("penstock_compaction_lag_seconds"), "{{pod}}")),
    line(
        "Partitions by state", "short", (total("penstock_broker_partitions", "state"), "{{state}}")
    ),
    line(
        "Partitions led", "short", (of("penstock_broker_partitions", 'state="serving"'), "{{pod}}")
    ),
    line(
        "Opens and closes",
        "s",
        (
            quantile(0.99, "penstock_broker_partition_operation_seconds", "operation"),
            "{{operation}} p99",
        ),
        (
            rate("penstock_broker_partition_failures_total", "operation"),
            "{{operation}} failures per second",
        ),
    ),
    line("Connections", "short", (of("penstock_broker_connections"), "{{pod}}")),
    line("Log cache", "bytes", (of("penstock_log_cache_bytes"), "{{pod}}")),
    line("Block cache", "bytes", (of("penstock_block_cache_bytes"), "{{pod}}")),
    line(
        "Log cache hit ratio",
        "percentunit",
        (hits("penstock_log_cache_reads_total"), "{{pod}}"),
    ),
    line(
        "Block cache hit ratio",
        "percentunit",
        (hits("penstock_block_cache_reads_total"), "{{pod}}"),
    ),
    line(
        "Session, and seconds since the last controller message",
        "short",
        (of("penstock_broker_session"), "{{pod}} session"),
        (of("penstock_broker_metadata_silent_seconds"), "{{pod}} silent"),
    ),
    line("Groups", "short", (total("penstock_broker_groups", "state"), "{{state}}")),
    line(
        "Transactional ids", "short", (total("penstock_broker_transactions", "state"), "{{state}}")
    ),
    line("Requests in memory", "bytes", (of("penstock_broker_buffered_request_bytes"), "{{pod}}")),
)

_WRITES_A_MONTH: Final = (
    f"{rate('penstock_store_requests_total', labels=_WRITES)} * {_MONTH_S} / 1000 * $put_price"
)
_READS_A_MONTH: Final = (
    f"{rate('penstock_store_requests_total', labels=_READS)} * {_MONTH_S} / 1000 * $get_price"
)
_BYTES_A_MONTH: Final = (
    f"{highest('penstock_cluster_committed_bytes')} / 1073741824 * $storage_price"
)
STORE: Final = (
    number("USD per month: writes and lists", "currencyUSD", _WRITES_A_MONTH, 6),
    number("USD per month: reads", "currencyUSD", _READS_A_MONTH, 6),
    number("USD per month: storage", "currencyUSD", _BYTES_A_MONTH, 6),
    number("Stored", "bytes", highest("penstock_cluster_committed_bytes"), 6),
    line(
        "Requests", "reqps", (rate("penstock_store_requests_total", "operation"), "{{operation}}")
    ),
    line(
        "Failed requests",
        "reqps",
        (
            rate("penstock_store_requests_total", "operation, outcome", 'outcome!="ok"'),
            "{{operation}} {{outcome}}",
        ),
    ),
    line(
        "Latency, p50",
        "s",
        (quantile(0.5, "penstock_store_request_seconds", "operation"), "{{operation}}"),
    ),
    line(
        "Latency, p99",
        "s",
        (quantile(0.99, "penstock_store_request_seconds", "operation"), "{{operation}}"),
    ),
    line("Read", "Bps", (rate("penstock_store_read_bytes_total", "pod"), "{{pod}}")),
    line("Written", "Bps", (rate("penstock_store_written_bytes_total", "pod"), "{{pod}}")),
    line(
        "PUTs per MiB produced",
        "short",
        (
            (
                f"{rate('penstock_store_requests_total', labels=_WRITES)} /"
                f" ({rate('penstock_broker_produced_bytes_total')} / 1048576)"
            ),
            "PUTs",
        ),
    ),
    line(
        "Bytes written per byte produced",
        "short",
        (
            (
                f"{rate('penstock_store_written_bytes_total')} /"
                f" {rate('penstock_broker_produced_bytes_total')}"
            ),
            "amplification",
        ),
    ),
    line("Objects by phase", "short", (highest("penstock_cluster_objects", "phase"), "{{phase}}")),
    line(
        "Committed objects by kind",
        "short",
        (highest("penstock_cluster_committed_objects", "kind"), "{{kind}}"),
    ),
    line("Stored", "bytes", (highest("penstock_cluster_committed_bytes"), "committed objects")),
)

CONTROLLERS: Final = (
    line("Leads", "short", (of("penstock_controller_leader"), "{{pod}}")),
    line(
        "Leader known, voter",
        "short",
        (of("penstock_controller_leader_known"), "{{pod}} knows"),
        (of("penstock_controller_voter"), "{{pod}} votes"),
    ),
    line(
        "Epoch, leader changes",
        "short",
        (of("penstock_controller_epoch"), "{{pod}} epoch"),
        (of("penstock_controller_leader_changes_total"), "{{pod}} changes"),
    ),
    line(
        "Journal: fsync, p99",
        "s",
        (quantile(0.99, "penstock_controller_fsync_seconds", "pod"), "{{pod}}"),
    ),
    line("Commits", "s", *both("penstock_controller_commit_seconds")),
    line(
        "Requests",
        "reqps",
        (rate("penstock_controller_requests_total"), "done"),
        (rate("penstock_controller_requests_refused_total"), "refused"),
        (total("penstock_controller_requests_queued"), "waiting"),
    ),
    line(
        "Committed but not applied",
        "short",
        (
            (
                f"{of('penstock_controller_committed_offset')} -"
                f" {of('penstock_controller_applied_offset')}"
            ),
            "{{pod}}",
        ),
    ),
    line(
        "Records: in the journal, since the snapshot",
        "short",
        (of("penstock_controller_journal_records"), "{{pod}} journal"),
        (total("penstock_controller_snapshot_behind_records"), "since the snapshot"),
    ),
    line(
        "Backup and manifest lag",
        "s",
        (total("penstock_controller_backup_behind_seconds"), "backup"),
        (total("penstock_controller_manifest_behind_seconds"), "manifest"),
    ),
    line(
        "Backup lag in records",
        "short",
        (total("penstock_controller_backup_behind_records"), "records"),
    ),
    line(
        "Brokers",
        "short",
        (highest("penstock_cluster_brokers", "state"), "{{state}}"),
        (total("penstock_controller_sessions"), "sessions"),
        (total("penstock_controller_excluded_brokers"), "excluded"),
    ),
    line(
        "Brokers' metadata lag",
        "short",
        (of("penstock_broker_metadata_behind_records"), "{{pod}}"),
    ),
    line(
        "Partitions: moving, overdue, without a leader",
        "short",
        (highest("penstock_cluster_moves"), "moving"),
        (highest("penstock_cluster_overdue_moves"), "overdue"),
        (highest("penstock_cluster_leaderless_partitions"), "without a leader"),
    ),
    line(
        "Age of the oldest move", "s", (highest("penstock_cluster_oldest_move_seconds"), "oldest")
    ),
    line("WALs awaiting recovery", "short", (highest("penstock_cluster_wals_to_recover"), "WALs")),
    line(
        "Topics, streams",
        "short",
        (highest("penstock_cluster_topics"), "topics"),
        (highest("penstock_cluster_streams"), "streams"),
    ),
)

_PRICES: Final = {"put_price": "0.005", "get_price": "0.0004", "storage_price": "0.023"}
"""USD per 1,000 requests, and per GiB and month: list prices of S3 Standard in us-east-1. Users may
change them.
"""

DASHBOARDS: Final[dict[str, tuple[str, tuple[Panel, ...]]]] = {
    "cluster": ("Penstock: cluster", CLUSTER),
    "brokers": ("Penstock: brokers and WAL", BROKERS),
    "store": ("Penstock: object store and cost", STORE),
    "controllers": ("Penstock: controllers", CONTROLLERS),
}


def _panel(panel: Panel, number: int, x: int, y: int) -> _Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "datasource": _DATASOURCE,
        "gridPos": {"h": _height(panel), "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + at),
                "expr": query,
                **({"legendFormat": legend} if legend else {}),
            }
            for at, (query, legend) in enumerate(panel.queries)
        ],
    }


def _height(panel: Panel) -> int:
    return 4 if panel.kind == "stat" else 8


def _placed(panels: tuple[Panel, ...]) -> list[_Json]:
    found: list[_Json] = []
    x = y = row = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > 24:
            x, y, row = 0, y + row, 0
        found.append(_panel(panel, number, x, y))
        x, row = x + panel.width, max(row, _height(panel))
    return found


def _variables(name: str) -> list[_Json]:
    query = {
        "datasource": _DATASOURCE,
        "query": "label_values(penstock_node_info, namespace)",
        "refresh": 2,
    }
    found: list[_Json] = [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        {"name": "namespace", "type": "query", **query},
    ]
    if name == "store":
        found += [
            {"name": price, "type": "textbox", "query": usd, "current": {"text": usd, "value": usd}}
            for price, usd in _PRICES.items()
        ]
    return found


def generated() -> dict[Path, str]:
    """Return the content of each file."""
    return {
        HERE / f"{name}.json": (
            json.dumps(
                {
                    "uid": f"penstock-{name}",
                    "title": title,
                    "description": "Generated by helm/dashboards.py in the Penstock repository.",
                    "tags": ["penstock"],
                    "schemaVersion": 39,
                    "version": 1,
                    "refresh": "30s",
                    "time": {"from": "now-1h", "to": "now"},
                    "annotations": {"list": []},
                    "templating": {"list": _variables(name)},
                    "panels": _placed(panels),
                },
                indent=1,
            )
            + "\n"
        )
        for name, (title, panels) in DASHBOARDS.items()
    }


def main(arguments: list[str]) -> int:
    stale = [
        path for path, text in generated().items() if not path.exists() or path.read_text() != text
    ]
    if "--check" in arguments:
        for path in stale:
            sys.stderr.write(f"{path.name} is stale: run python helm/dashboards.py")
        return 1 if stale else 0
    for path, text in generated().items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
