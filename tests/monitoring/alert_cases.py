"""Cases for each alert of the chart: when it fires, its text, and conditions in which it does not
fire.

Series have samples every 30 s in promtool notation: `5x3` repeats 5 four times, `0+2x3` is 0, 2, 4,
6.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

STEP_S: Final = 30
_LONG: Final = 400
"""Number of samples of a series, for more than three hours."""

Series = Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class AlertCase:
    """A case of one alert. `fires_s`: when it fires; one step earlier it does not. `labels` and
    `summary`: those of the firing alert. `calm`: series close to the limits with which it never
    fires.
    """

    alert: str
    series: Series
    calm: Series
    fires_s: int
    summary: str
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    step_s: int = STEP_S


def of(metric: str, **labels: str) -> str:
    """Return the name of a series in the namespace `streams`."""
    found = {"namespace": "streams", **labels}
    matched = ",".join(f'{name}="{value}"' for name, value in found.items())
    return f"{metric}{{{matched}}}"


def steady(value: float) -> str:
    return f"{value:g}x{_LONG}"


def counting(step: float) -> str:
    return f"0+{step:g}x{_LONG}"


def node(role: str, number: int) -> str:
    """Return the series `up` of a node with the labels of the ServiceMonitor."""
    return of("up", pod=f"penstock-{role}-{number}", app_kubernetes_io_component=role)


def histogram(metric: str, counts: Mapping[str, float], **labels: str) -> Series:
    """Return histogram buckets, each increasing by a constant in each step."""
    return {of(f"{metric}_bucket", **labels, le=le): counting(step) for le, step in counts.items()}


POD: Final = "penstock-broker-0"
CONTROLLER: Final = "penstock-controller-0"


def _gauge(
    alert: str,
    metric: str,
    high: float,
    low: float,
    fires_s: int,
    summary: str,
    labels: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> AlertCase:
    """Return the case of an alert on one gauge. `more`: labels of the series only."""
    series = of(metric, **(labels or {}), **(more or {}))
    return AlertCase(
        alert=alert,
        series={series: steady(high)},
        calm={series: steady(low)},
        fires_s=fires_s,
        summary=summary,
        labels=labels or {},
    )


def _occurs(
    alert: str, metric: str, value: float, summary: str, labels: Mapping[str, str] | None = None
) -> AlertCase:
    """Return the case of an alert that fires as soon as a gauge is not 0."""
    series = of(metric, **(labels or {}))
    return AlertCase(
        alert=alert,
        series={series: f"0x2 {steady(value)}"},
        calm={series: steady(0)},
        fires_s=3 * STEP_S,
        summary=summary,
        labels=labels or {},
    )


def _open_files(count: int, *, role: str) -> Series:
    """Return series for a process of this role with open files, of 1,000 allowed."""
    labels = {"pod": POD, "app_kubernetes_io_component": role}
    return {
        of("process_open_fds", **labels): steady(count),
        of("process_max_fds", **labels): steady(1_000),
    }


NODES: Final = (
    AlertCase(
        alert="PenstockNodeDown",
        series={
            node("broker", 0): f"1x3 {steady(0)}",
            node("broker", 1): steady(1),
            node("controller", 0): steady(1),
        },
        calm={
            node("broker", 0): f"1x3 0x3 {steady(1)}",
            of("up", pod="another", app_kubernetes_io_component="web"): steady(0),
        },
        fires_s=120 + 120,
        summary=f"{POD} does not respond",
        labels={"pod": POD, "app_kubernetes_io_component": "broker"},
    ),
    AlertCase(
        alert="PenstockQuorumAtRisk",
        series={node("controller", number): steady(float(number > 0)) for number in range(3)},
        calm={node("controller", number): steady(float(number > 0)) for number in range(5)},
        fires_s=120,
        summary="The controllers of streams cannot lose another one",
    ),
    AlertCase(
        alert="PenstockEventLoopSlow",
        series=histogram(
            "penstock_node_loop_lag_seconds", {"0.5": 0, "1": 300, "+Inf": 300}, pod=POD
        ),
        calm=histogram(
            "penstock_node_loop_lag_seconds", {"0.25": 0, "0.5": 300, "+Inf": 300}, pod=POD
        ),
        fires_s=STEP_S + 600,
        summary=f"{POD} is slow: its event loop is 995ms late",
        labels={"pod": POD},
    ),
    AlertCase(
        alert="PenstockOpenFilesNearLimit",
        series=_open_files(850, role="broker"),
        calm={**_open_files(800, role="broker"), **_open_files(1_000, role="web")},
        fires_s=300,
        summary=f"{POD} uses 85% of its open file limit",
        labels={"pod": POD, "app_kubernetes_io_component": "broker"},
    ),
    AlertCase(
        alert="PenstockClientMetricsDropped",
        series={of("penstock_broker_client_metrics_dropped_total", pod=POD): counting(1)},
        calm={of("penstock_broker_client_metrics_dropped_total", pod=POD): counting(0)},
        fires_s=STEP_S + 900,
        summary=f"{POD} drops client metrics",
        labels={"pod": POD},
    ),
    AlertCase(
        alert="PenstockProducersForgotten",
        series={of("penstock_broker_producers_forgotten_total", pod=POD): counting(1)},
        calm={of("penstock_broker_producers_forgotten_total", pod=POD): counting(0)},
        fires_s=STEP_S,
        summary=f"{POD} drops producers before producer.id.expiration.ms",
        labels={"pod": POD},
    ),
)

STORE: Final = (
    AlertCase(
        alert="PenstockStoreSlow",
        series=histogram("penstock_wal_put_seconds", {"2": 0, "5": 30, "+Inf": 30}, pod=POD),
        calm=histogram("penstock_wal_put_seconds", {"1": 0, "2": 30, "+Inf": 30}, pod=POD),
        fires_s=STEP_S + 300,
        summary="The object store takes 4.97s (p99) for a WAL slot",
    ),
    AlertCase(
        alert="PenstockStoreFailing",
        series={
            of("penstock_store_requests_total", operation="put", outcome="ok"): counting(90),
            of("penstock_store_requests_total", operation="get", outcome="error"): counting(10),
        },
        calm={
            of("penstock_store_requests_total", operation="put", outcome="ok"): counting(60),
            of("penstock_store_requests_total", operation="get", outcome="not_found"): counting(35),
            of("penstock_store_requests_total", operation="get", outcome="error"): counting(5),
        },
        fires_s=STEP_S + 300,
        summary="10% of the requests to the object store fail",
    ),
    _gauge(
        "PenstockAppendsStalled",
        "penstock_wal_unacknowledged_seconds",
        12,
        10,
        60,
        f"{POD} has not acknowledged appends for 12s",
        {"pod": POD},
    ),
    AlertCase(
        alert="PenstockWalBacklog",
        series={
            of("penstock_wal_backlog_bytes", pod=POD): steady(90),
            of("penstock_wal_backlog_limit_bytes", pod=POD): steady(100),
        },
        calm={
            of("penstock_wal_backlog_bytes", pod=POD): steady(80),
            of("penstock_wal_backlog_limit_bytes", pod=POD): steady(100),
            of("penstock_wal_backlog_seconds", pod=POD): steady(600),
        },
        fires_s=300,
        summary=f"{POD} does not upload its WAL as objects in time",
        labels={"pod": POD},
    ),
    _gauge(
        "PenstockWalBacklog",
        "penstock_wal_backlog_seconds",
        601,
        600,
        300,
        f"{POD} does not upload its WAL as objects in time",
        {"pod": POD},
    ),
    AlertCase(
        alert="PenstockObjectsGrowing",
        series={of("penstock_cluster_objects", phase="committed"): "6000x287 13000x20"},
        calm={of("penstock_cluster_objects", phase="committed"): "6000x287 12000x20"},
        fires_s=24 * 3_600 + 3_600,
        summary="Objects have doubled within a day: 13000",
        step_s=300,
    ),
    AlertCase(
        alert="PenstockObjectsGrowing",
        series={of("penstock_cluster_objects", phase="committed"): "1000x287 10001x20"},
        calm={of("penstock_cluster_objects", phase="committed"): "1000x287 10000x20"},
        fires_s=24 * 3_600 + 3_600,
        summary="Objects have doubled within a day: 10001",
        step_s=300,
    ),
    _gauge(
        "PenstockCompactionBehind",
        "penstock_compaction_lag_seconds",
        3_700,
        3_600,
        900,
        f"{POD} is behind with compaction for 1h 1m 40s",
        {"pod": POD},
    ),
)

_CHANGES: Final = of("penstock_controller_leader_changes_total", pod=CONTROLLER)


def _partitions(of_topics: int, of_snapshots: int) -> Series:
    """Return the metrics of a controller whose cluster may have 1,000 partitions."""
    shown = {
        "penstock_cluster_partitions": of_topics,
        "penstock_cluster_snapshot_partitions": of_snapshots,
        "penstock_cluster_partitions_limit": 1_000,
    }
    return {of(name, pod=CONTROLLER): steady(value) for name, value in shown.items()}


CLUSTER: Final = (
    AlertCase(
        alert="PenstockNoLeader",
        series={
            of("penstock_controller_leader", pod=f"penstock-controller-{number}"): steady(0)
            for number in range(3)
        },
        calm={
            of("penstock_controller_leader", pod=f"penstock-controller-{number}"): steady(
                float(number == 0)
            )
            for number in range(3)
        },
        fires_s=30,
        summary="No controller leads",
    ),
    AlertCase(
        alert="PenstockLeaderUnsteady",
        series={_CHANGES: f"0x30 6x{_LONG}"},
        calm={_CHANGES: f"0x30 4x{_LONG}"},
        fires_s=31 * STEP_S,
        summary="The controllers have changed their leader 6 times in 15 minutes",
    ),
    AlertCase(
        alert="PenstockControllerDiskSlow",
        series=histogram(
            "penstock_controller_fsync_seconds", {"0.05": 0, "0.1": 30, "+Inf": 30}, pod=CONTROLLER
        ),
        calm=histogram(
            "penstock_controller_fsync_seconds",
            {"0.025": 0, "0.05": 30, "+Inf": 30},
            pod=CONTROLLER,
        ),
        fires_s=STEP_S + 600,
        summary=f"{CONTROLLER} takes 99.5ms (p99) to sync its journal",
        labels={"pod": CONTROLLER},
    ),
    _gauge(
        "PenstockBrokerFenced",
        "penstock_cluster_broker_fenced",
        1,
        0,
        120,
        "Broker 1 is fenced and has not returned",
        {"broker": "1"},
        {"pod": CONTROLLER},
    ),
    _gauge(
        "PenstockBrokerWithoutSession",
        "penstock_broker_session",
        0,
        1,
        60,
        f"{POD} is running without a session: it acknowledges nothing",
        {"pod": POD},
    ),
    _gauge(
        "PenstockBrokerExcluded",
        "penstock_controller_excluded_brokers",
        1,
        0,
        600,
        "1 brokers are so much slower than the others that they lead nothing",
        more={"pod": CONTROLLER},
    ),
    _gauge(
        "PenstockPartitionsWithoutLeader",
        "penstock_cluster_leaderless_partitions",
        3,
        0,
        60,
        "3 partitions have no leader",
        more={"pod": CONTROLLER},
    ),
    _gauge(
        "PenstockRecoveryStuck",
        "penstock_cluster_wals_to_recover",
        2,
        0,
        300,
        "2 WALs of dead brokers are not recovered",
        more={"pod": CONTROLLER},
    ),
    AlertCase(
        alert="PenstockPartitionsCannotOpen",
        series={of("penstock_broker_partitions", pod=POD, state="failing"): steady(2)},
        calm={
            of("penstock_broker_partitions", pod=POD, state="failing"): steady(0),
            of("penstock_broker_partitions", pod=POD, state="opening"): steady(9),
        },
        fires_s=60,
        summary=f"2 partitions that {POD} leads do not open",
        labels={"pod": POD},
    ),
    _occurs(
        "PenstockObjectsDamaged",
        "penstock_broker_damaged_objects",
        1,
        f"{POD} found 1 missing or corrupt objects",
        {"pod": POD},
    ),
    _occurs(
        "PenstockWalSlotsLost",
        "penstock_wal_lost_slots",
        4,
        "4 WAL slots with acknowledged records are lost or damaged",
    ),
    _gauge(
        "PenstockMoveStuck",
        "penstock_cluster_overdue_moves",
        1,
        0,
        120,
        "1 partitions have not completed their move",
        more={"pod": CONTROLLER},
    ),
    _gauge(
        "PenstockBackupBehind",
        "penstock_controller_backup_behind_seconds",
        400,
        300,
        300,
        "The metadata backup lacks the last 6m 40s",
        more={"pod": CONTROLLER},
    ),
    AlertCase(
        alert="PenstockPartitionsNearLimit",
        series=_partitions(700, 250),
        calm=_partitions(700, 150),
        fires_s=300,
        summary="The cluster uses 95% of its partition limit",
    ),
)

CASES: Final = (*NODES, *STORE, *CLUSTER)
