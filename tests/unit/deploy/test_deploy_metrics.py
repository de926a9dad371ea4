"""Files about metrics agree with each other and with the code, and the encoded text decodes to the
same values.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from uuid import UUID

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from penstock.base.histogram import LatencyHistogram
from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    StreamEpoch,
    StreamId,
)
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import Move, NodeRecord, PartitionRecord, TopicRecord
from penstock.deploy.node.metrics import exposition, table
from penstock.deploy.node.metrics.controller import read_brokers, read_leaders
from penstock.deploy.node.metrics.exposition import Exposition, NodeCollector, Reading
from penstock.deploy.node.metrics.store import read_store, read_wal_store
from penstock.objectstore.errors import PreconditionFailed
from penstock.objectstore.metered import StoreMeter
from penstock.stream.wal.wal_store_url import open_wal_store
from tests.support.promql import CHART, TARGET_LABELS, queries, rules
from tools.reference.metrics import markdown

ROOT = Path(__file__).parents[3]
ALERTS = (ROOT / "docs" / "how-to" / "alerts.md").read_text()
_NAME = re.compile(r"penstock(_[a-z0-9]+)+")


def anchors(text: str) -> set[str]:
    """Return the heading anchors that GitHub generates."""
    return {
        re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
        for line in text.splitlines()
        if line.startswith("#")
    }


def test_the_metrics_reference_is_up_to_date() -> None:
    """Run `make reference` after a change."""
    assert (ROOT / "docs" / "reference" / "metrics.md").read_text() == markdown()


def test_dashboards_are_up_to_date() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "helm" / "dashboards.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {path.stem for path in (CHART / "dashboards").glob("*.json")} == {
        "cluster",
        "brokers",
        "store",
        "controllers",
    }
    for path in (CHART / "dashboards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


def test_metric_names_end_with_their_unit_or_type() -> None:
    names = [metric.name for metric in table.METRICS]
    assert len(set(names)) == len(names)
    for metric in table.METRICS:
        assert _NAME.fullmatch(metric.name)
        assert metric.name.endswith("_total") is (metric.kind == "counter"), metric.name
        assert metric.name.endswith("_seconds") or metric.kind != "histogram", metric.name
        assert metric.text.endswith(".")
        unbounded = {"topic", "partition", "client", "client_id", "key", "group"}
        if metric.roles == ("table-runner",):
            unbounded -= {"topic"}  # `RunnerReader` limits their number
        assert not unbounded & set(metric.labels)


def test_queries_use_existing_metrics_and_labels() -> None:
    """This needs no cluster; `tests/integration/test_metrics.py` uses real nodes."""
    known: dict[str, set[str]] = {
        "up": set(),
        "process_cpu_seconds_total": set(),
        "process_resident_memory_bytes": set(),
        "process_open_fds": set(),
        "process_max_fds": set(),
    }
    for metric in table.METRICS:
        for suffix in ("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",):
            known[metric.name + suffix] = set(metric.labels) | (
                {"le"} if suffix == "_bucket" else set()
            )
    for query in queries():
        has = set(TARGET_LABELS)
        for name, matched in query.selectors():
            assert name in known, f"{query.where}: {name}"
            has |= known[name]
            assert matched <= known[name] | TARGET_LABELS, f"{query.where}: {name}"
        assert query.grouped() <= has, query.where
        assert query.text.count("(") == query.text.count(")"), query.where


def test_every_alert_links_to_its_runbook() -> None:
    known = anchors(ALERTS)
    alerts = [rule for rule in rules() if "alert" in rule]
    assert len(alerts) >= 15
    for alert in alerts:
        path, _, anchor = alert["annotations"]["runbook_url"].partition("#")
        assert path == "docs/how-to/alerts.md"
        assert anchor in known, alert["alert"]
        assert alert["labels"]["severity"] in {"warning", "critical"}
        assert re.search(rf"\b{alert['alert']}\b", ALERTS), (
            f"docs/how-to/alerts.md does not name {alert['alert']}"
        )
    for linked in re.findall(r"\]\(#([a-z0-9-]+)\)", ALERTS):
        assert linked in known, linked
    named = set(re.findall(r"\bPenstock[A-Z]\w+", ALERTS))
    assert named == {alert["alert"] for alert in alerts}


def test_autoscaling_uses_metrics_of_the_recording_rules() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["brokers"]["autoscaling"]["network"]["metric"] in {
        rule.get("record") for rule in rules()
    }


def encoded(*readings: Reading) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(NodeCollector({metric for metric, _, _ in readings}, lambda: readings))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_histograms_are_in_seconds_and_cumulative() -> None:
    histogram = LatencyHistogram()
    for latency_ms in (0.3, 0.5, 100, 200_000):
        histogram.observe(latency_ms)
    reported = encoded((table.WAL_PUT, (), histogram.freeze()))
    assert (
        reported["penstock_wal_put_seconds_count"]
        == reported["penstock_wal_put_seconds_bucket+Inf"]
        == 4
    )
    assert reported["penstock_wal_put_seconds_sum"] == pytest.approx(200.1008)
    assert reported["penstock_wal_put_seconds_bucket0.0004"] == 1
    assert reported["penstock_wal_put_seconds_bucket0.0008"] == 2
    assert (
        reported["penstock_wal_put_seconds_bucket0.1024"]
        == reported["penstock_wal_put_seconds_bucket104.9"]
        == 3
    )


def test_a_sample_with_wrong_labels_raises_an_error() -> None:
    assert encoded((table.REQUESTS, ("Fetch",), 3)) == {"penstock_broker_requests_totalFetch": 3}
    with pytest.raises(AssertionError, match="has labels"):
        encoded((table.REQUESTS, (), 3))


def test_moving_and_leaderless_partitions_are_distinguished() -> None:
    topic, image = UUID(int=7), MetadataImage()
    alive, fenced = (
        NodeRecord(NodeId(it), NodeEpoch(it), UUID(int=it), "", 1, "", None, fenced=it == 2)
        for it in (1, 2)
    )
    draining = NodeRecord(
        NodeId(3), NodeEpoch(3), UUID(int=3), "", 1, "", None, fenced=False, draining=True
    )

    def partition(index: int, leader: int, move: Move | None = None) -> PartitionRecord:
        first = 3 * index
        return PartitionRecord(
            topic,
            index,
            (NodeId(1), NodeId(2)),
            NodeId(leader),
            NodeEpoch(leader),
            StreamEpoch(1),
            StreamId(first),
            StreamId(first + 1),
            StreamId(first + 2),
            target_replicas=None if move is None else (NodeId(1),),
            move=move,
        )

    moves = [
        Move(NodeId(2), NodeId(1), Millis(began), Millis(deadline))
        for began, deadline in ((40_000, 50_000), (70_000, 120_000))
    ]
    image.apply_all((alive, fenced, draining, TopicRecord(topic, "orders")))
    image.apply_all(
        (
            partition(0, 1),
            partition(1, 2),
            partition(2, -1),
            partition(3, -1, moves[0]),
            partition(4, -1, moves[1]),
        )
    )
    reported = {metric: value for metric, _, value in read_leaders(image, 100_000)}
    assert reported[table.CLUSTER_PARTITIONS] == 5
    assert reported[table.LEADERLESS] == 2, "one without a leader, one whose leader is fenced"
    assert (reported[table.MOVES], reported[table.MOVES_OVERDUE], reported[table.MOVE_AGE]) == (
        2,
        1,
        60,
    )
    states = {
        labels: value for metric, labels, value in read_brokers(image) if metric is table.BROKERS
    }
    assert states == {("alive",): 1, ("fenced",): 1, ("draining",): 1}


async def test_concurrent_scrapes_share_one_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = 0

    def read() -> tuple[Reading, ...]:
        nonlocal requested
        requested += 1
        return ((table.TOPICS, (), requested),)

    shown = Exposition("controller", read)
    monkeypatch.setattr(exposition, "AGE_MAX_S", 1_000)
    texts = {(await shown.response())[2] for _ in range(10)}
    assert (requested, len(texts)) == (1, 1)
    monkeypatch.setattr(exposition, "AGE_MAX_S", -1)
    assert "penstock_cluster_topics 2.0" in (await shown.response())[2]


async def test_calls_to_the_wal_store_are_counted_separately(tmp_path: Path) -> None:
    requests, calls = StoreMeter(), StoreMeter()
    configured = open_wal_store(f"file:{tmp_path}", meter=requests, calls=calls)
    assert configured is not None
    await configured.store.put_if_absent("wals/identity", b"1")
    with pytest.raises(PreconditionFailed):
        await configured.store.put_if_absent("wals/identity", b"2")
    await configured.store.close()
    read = encoded(*read_wal_store(calls), *read_store(requests))
    for family in ("penstock_wal_store_calls_total", "penstock_store_requests_total"):
        for outcome in ("ok", "precondition_failed"):
            assert read[f"{family}put_if_absent{outcome}"] == 1, read
    assert read["penstock_wal_store_call_seconds_countput_if_absent"] == 2
