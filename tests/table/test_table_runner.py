"""`penstock table run` exports topics with a table config: discovery, isolation, kills, several
runners.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaException
from structlog.testing import capture_logs

from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.deploy.clients.configs import alter as alter_configs
from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.manifest.errors import TopicReplaced
from penstock.lake.table.declared import DeclaredTable, declared_tables
from penstock.lake.table.engines import LocalEngine
from penstock.lake.table.errors import TableError
from penstock.lake.table.job import SyncOptions
from penstock.lake.table.model import Commit, Layout
from penstock.lake.table.runner import (
    OpenExport,
    RunnerEvent,
    RunnerOptions,
    TableRunner,
    TopicExport,
)
from penstock.lake.table.source import TopicSource
from penstock.lake.table.sync import TableSync
from penstock.lake.table.topic_export import Exports, MaintenanceTurns
from penstock.lake.table.warehouse import Warehouse, table_name_of
from penstock.protocol.client.errors import Refused
from penstock.stream.format.manifest.model import TopicEntry
from tests.support.child_process import killed_at_end
from tests.support.ports import free_port
from tests.support.runner_kills import KILLED
from tests.support.table_log import SCHEMA as LOG_SCHEMA
from tests.support.table_log import Log
from tests.support.table_runs import SMALL, Run, Stopped
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
SCHEMA = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}})
BAD_SCHEMA = json.dumps({"type": "object", "properties": {"n": {"type": "nonsense"}}})
ENABLED = {"penstock.table.enable": "true", "penstock.table.commit.interval.ms": "1000"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedCluster]:
    with ThreadedCluster(tmp_path_factory.mktemp("cluster"), brokers=1) as started:
        yield started


@pytest.fixture
def topics(cluster: ThreadedCluster) -> Iterator[list[str]]:
    """Names of topics that the test creates. They are deleted afterwards, so that no runner of a
    later test exports them.
    """
    created: list[str] = []
    yield created
    for topic in created:
        cluster.delete(topic)
    wait_until(lambda: not any(map(cluster.has, created)))


def create(cluster: ThreadedCluster, topics: list[str], name: str, **configs: str) -> None:
    named = {f"penstock.table.{key.replace('_', '.')}": value for key, value in configs.items()}
    cluster.create(name, 1, configs=ENABLED | named)
    topics.append(name)


def alter(cluster: ThreadedCluster, topic: str, **configs: str) -> None:
    named = {f"penstock.table.{key.replace('_', '.')}": value for key, value in configs.items()}
    alter_configs(cluster.bootstrap, (TOPIC_RESOURCE, topic), named)


def produce(cluster: ThreadedCluster, topic: str, first: int, count: int) -> None:
    cluster.produce(
        {"topic": topic, "value": json.dumps({"n": number}).encode(), "key": b"k"}
        for number in range(first, first + count)
    )


def warehouse_in(directory: Path, kind: str = "iceberg") -> Warehouse:
    return Warehouse(kind=kind, location=str(directory / "warehouse"))


def rows(directory: Path, table: str, kind: str = "iceberg") -> list[dict[str, Any]]:
    """Return the rows, or none if the table does not exist."""
    try:
        return warehouse_in(directory, kind).read(table, 1 << 30).to_pylist()
    except TableError:
        return []


def offsets(directory: Path, table: str, kind: str = "iceberg") -> list[int]:
    return sorted(row["_offset"] for row in rows(directory, table, kind))


class Watched:
    """A runner in a thread, and its events."""

    def __init__(
        self,
        cluster: ThreadedCluster,
        directory: Path,
        *,
        open_export: OpenExport | None = None,
        **options: Any,
    ) -> None:
        self.events: list[RunnerEvent] = []
        source = StoreCluster(cluster.store_url)
        exports = Exports(source, warehouse_in(directory), SyncOptions())
        self.runner = TableRunner(
            source,
            open_export or exports.open,
            RunnerOptions(discovery_s=0.1, **options),
            self.events.append,
        )

    @contextmanager
    def running(self) -> Generator["Watched"]:
        thread = threading.Thread(target=self.runner.run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.runner.stop()
            thread.join(PATIENCE_S)
        assert not thread.is_alive()
        assert self.runner.state.status.stopped

    def errors(self, topic: str) -> list[str]:
        return [event.error for event in self.events if event.topic == topic and event.error]

    def kinds(self, topic: str) -> list[str]:
        return [event.kind for event in self.events if event.topic == topic]


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("partition.by", "week(n)", "bucket(N, FIELD)"),
        ("format", "delta", "iceberg, parquet"),
        ("schema", "{nonsense", "registry:SUBJECT"),
        ("commit.interval.ms", "10", "1000"),
    ],
)
def test_broker_rejects_invalid_table_configs(
    cluster: ThreadedCluster, topics: list[str], name: str, value: str, allowed: str
) -> None:
    with pytest.raises(KafkaException) as refused:
        cluster.create("refused", 1, configs={f"penstock.table.{name}": value})
    assert f"penstock.table.{name}={value!r}" in str(refused.value)
    assert allowed in str(refused.value)
    create(cluster, topics, f"altered-{name}")
    with pytest.raises(Refused, match="is not valid"):
        alter(cluster, f"altered-{name}", **{name.replace(".", "_"): value})


@pytest.mark.costly("exports four topics to both kinds of table")
def test_topics_are_discovered_and_a_failing_one_stops_no_other(
    cluster: ThreadedCluster, topics: list[str], tmp_path: Path
) -> None:
    create(cluster, topics, "plain")
    fields = "day(_timestamp), bucket(2, n)"
    create(cluster, topics, "a.json", schema=SCHEMA, partition_by=fields, format="parquet")
    create(cluster, topics, "bad", schema=BAD_SCHEMA)
    cluster.create("other", 1)
    for topic in ("plain", "a.json", "bad", "other"):
        produce(cluster, topic, 0, 5)
    with Watched(cluster, tmp_path).running() as watched:
        wait_until(lambda: offsets(tmp_path, "plain") == [0, 1, 2, 3, 4])
        wait_until(lambda: len(offsets(tmp_path, "a_json", "parquet")) == 5)
        assert sorted(row["n"] for row in rows(tmp_path, "a_json", "parquet")) == [0, 1, 2, 3, 4]
        wait_until(lambda: watched.errors("bad"))
        assert "nonsense" in watched.errors("bad")[0]
        produce(cluster, "plain", 5, 5)
        wait_until(lambda: len(offsets(tmp_path, "plain")) == 10)
        alter(cluster, "bad", schema=SCHEMA)
        wait_until(lambda: len(offsets(tmp_path, "bad")) == 5)
        create(cluster, topics, "late")
        produce(cluster, "late", 0, 3)
        wait_until(lambda: len(offsets(tmp_path, "late")) == 3)
        alter(cluster, "late", enable="false")
        wait_until(lambda: watched.kinds("late")[-1] == "removed")
        assert watched.kinds("other") == []
    states = {topic.topic: topic for topic in watched.runner.state.status.topics}
    assert {name: topic.state for name, topic in states.items()} == dict.fromkeys(
        ("plain", "a.json", "bad"), "up to date"
    )
    assert (states["plain"].rows, states["plain"].lag_records) == (10, 0)
    cluster.delete("other")


def test_recreated_topic_fails_until_it_has_another_table(
    cluster: ThreadedCluster, topics: list[str], tmp_path: Path
) -> None:
    create(cluster, topics, "twice")
    produce(cluster, "twice", 0, 5)
    with Watched(cluster, tmp_path).running() as watched:
        wait_until(lambda: len(offsets(tmp_path, "twice")) == 5)
        cluster.delete("twice")
        wait_until(lambda: watched.kinds("twice")[-1] == "removed")
        topics.remove("twice")
        create(cluster, topics, "twice")
        produce(cluster, "twice", 100, 7)
        wait_until(lambda: watched.errors("twice"))
        assert "deleted and created again" in watched.errors("twice")[0]
        assert len(offsets(tmp_path, "twice")) == 5
        alter(cluster, "twice", name="twice_2")
        wait_until(lambda: len(offsets(tmp_path, "twice_2")) == 7)
    assert [row["_offset"] for row in rows(tmp_path, "twice")] == [0, 1, 2, 3, 4]


def test_configured_masks_are_applied_or_stop_the_export(
    cluster: ThreadedCluster, topics: list[str], tmp_path: Path
) -> None:
    masks = {"masked": "n=last4, _key=null", "keyless": "n=hash", "renamed": "m=null"}
    for name, mask in masks.items():
        create(cluster, topics, name, schema=SCHEMA, mask=mask, format="parquet")
        produce(cluster, name, 0, 3)
    watched = Watched(cluster, tmp_path, once=True)
    watched.runner.run()
    found = rows(tmp_path, "masked", "parquet")
    assert [(row["n"], row["_key"]) for row in found] == [("****", None)] * 3
    assert "need a key of at least 16 bytes" in watched.errors("keyless")[0]
    assert "'m': there is no such field" in watched.errors("renamed")[0]
    assert not rows(tmp_path, "keyless", "parquet") + rows(tmp_path, "renamed", "parquet")


def test_panicking_export_frees_its_worker(
    cluster: ThreadedCluster, topics: list[str], tmp_path: Path
) -> None:
    """Rust panics, which pyiceberg may raise, are not subclasses of Exception."""

    class Panic(BaseException): ...

    for name in ("panics", "works"):
        create(cluster, topics, name)
        produce(cluster, name, 0, 3)
    source = StoreCluster(cluster.store_url)
    exports = Exports(source, warehouse_in(tmp_path, "parquet"), SyncOptions())

    def open_export(table: DeclaredTable) -> TopicExport:
        if table.topic == "panics":
            raise Panic("out of range")
        return exports.open(table)

    watched = Watched(cluster, tmp_path, workers=1, open_export=open_export)
    with watched.running():
        wait_until(lambda: "committed" in watched.kinds("works"))
    assert watched.errors("panics") == ["Panic: out of range"]


def test_runner_warns_about_another_runner_with_its_name(
    cluster: ThreadedCluster, topics: list[str], tmp_path: Path
) -> None:
    """Two runners with the same name would overwrite each other's status."""
    create(cluster, topics, "named", format="parquet")
    produce(cluster, "named", 0, 1)
    with Watched(cluster, tmp_path, name="same").running() as first:
        wait_until(lambda: "committed" in first.kinds("named"))
        for name in ("same", "other"):
            with capture_logs() as logged:
                Watched(cluster, tmp_path, name=name, once=True).runner.run()
            warned = [item["name"] for item in logged if item["event"].endswith("name_in_use")]
            assert warned == ["same"] * (name == "same")


def test_topic_recreated_during_a_batch_adds_no_rows(
    cluster: ThreadedCluster, topics: list[str], tmp_path: Path
) -> None:
    """All exports share one view, which another export may refresh at any time."""
    create(cluster, topics, "replaced")
    produce(cluster, "replaced", 0, 5)
    source = StoreCluster(cluster.store_url)

    class Recreating(TopicSource):
        def bounds(self) -> Any:
            found = super().bounds()
            cluster.delete("replaced")
            wait_until(lambda: not cluster.has("replaced"))
            cluster.create("replaced", 1)
            produce(cluster, "replaced", 100, 9)
            wait_until(lambda: TopicSource(source, "replaced").bounds()[0] != found[0])
            return found

    warehouse = warehouse_in(tmp_path, "parquet")
    tables = (warehouse.table("replaced", Layout()), warehouse.table("replaced__dlq", Layout()))
    sync = TableSync(Recreating(source, "replaced"), *tables, LocalEngine(1), SyncOptions())
    with pytest.raises(TopicReplaced):
        sync.run_batch()
    assert rows(tmp_path, "replaced", "parquet") == []


@pytest.mark.costly("three exports commit to three tables")
def test_concurrent_runners_and_a_sync_write_every_record_once(
    cluster: ThreadedCluster, topics: list[str], tmp_path: Path
) -> None:
    names = ["many-0", "many-1", "many-2"]
    for name in names:
        create(cluster, topics, name, format="parquet" if name == "many-2" else "iceberg")
    kinds = {name: "parquet" if name == "many-2" else "iceberg" for name in names}
    first, second = (Watched(cluster, tmp_path, name=name) for name in ("one", "two"))
    with first.running(), second.running():
        for start in range(0, 60, 20):
            for name in names:
                produce(cluster, name, start, 20)
            sync = TableSync(
                TopicSource(StoreCluster(cluster.store_url), "many-0"),
                warehouse_in(tmp_path).table("many_0", Layout()),
                warehouse_in(tmp_path).table("many_0__dlq", Layout()),
                LocalEngine(1),
                SyncOptions(),
            )
            while sync.run_batch() is not None:
                pass
        for name in names:
            wait_until(
                lambda name=name: len(offsets(tmp_path, table_name_of(name), kinds[name])) >= 60
            )
    for name in names:
        assert offsets(tmp_path, table_name_of(name), kinds[name]) == list(range(60))


@pytest.mark.costly("the runner that is killed is a process that loads pyiceberg")
def test_export_of_a_runner_killed_before_a_commit_is_continued(
    cluster: ThreadedCluster, topics: list[str], tmp_path: Path
) -> None:
    """The killed runner has written the data files of its second commit."""
    for name in ("killed-a", "killed-b"):
        create(cluster, topics, name)
        produce(cluster, name, 0, 30)
    given = pickle.dumps((cluster.store_url, warehouse_in(tmp_path)))
    died = subprocess.run(
        [sys.executable, "-c", KILLED],
        input=given,
        env=ENVIRONMENT,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert died.returncode == -signal.SIGKILL, died.stderr[-2_000:]
    assert len(list((tmp_path / "warehouse").rglob("*.parquet"))) == 2
    assert sum(len(offsets(tmp_path, name)) for name in ("killed_a", "killed_b")) == 30
    Watched(cluster, tmp_path, once=True).runner.run()
    for name in ("killed_a", "killed_b"):
        assert offsets(tmp_path, name) == list(range(30))


def command(name: str, directory: Path, cluster: ThreadedCluster) -> tuple[str, ...]:
    place = ("--warehouse", str(directory / "warehouse"), "--store", cluster.store_url)
    return (sys.executable, "-m", "penstock.deploy.cli", "table", name, *place)


@pytest.mark.costly("runs three commands, two of which load pyiceberg")
def test_command_exports_reports_and_stops(
    cluster: ThreadedCluster, topics: list[str], tmp_path: Path
) -> None:
    create(cluster, topics, "shown")
    create(cluster, topics, "shown-bad", schema=BAD_SCHEMA)
    produce(cluster, "shown", 0, 4)
    run = (*command("run", tmp_path, cluster), "--json")
    once = subprocess.run(
        (*run, "--once"),
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert once.returncode == 1
    assert "1 of 2 exports failed: shown-bad" in once.stderr
    events = [json.loads(line) for line in once.stdout.splitlines()]
    assert {(event["kind"], event["topic"]) for event in events} == {
        ("added", "shown"),
        ("added", "shown-bad"),
        ("committed", "shown"),
        ("failed", "shown-bad"),
    }
    port = free_port()
    with killed_at_end(
        subprocess.Popen(
            (*run, "--health-listener", f"127.0.0.1:{port}"),
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            text=True,
        )
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if json.loads(line)["kind"] == "failed":
                break
        read = {
            path: urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}").read().decode()
            for path in ("readyz", "metrics")
        }
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert read["readyz"] == "ok\n"
    assert 'penstock_tables_failing{topic="shown-bad"} 1.0' in read["metrics"]
    assert 'penstock_tables_failing{topic="shown"} 0.0' in read["metrics"]
    show = (sys.executable, "-m", "penstock.deploy.cli", "table", "status", "--json")
    status = subprocess.run(
        (*show, "--store", cluster.store_url),
        env=ENVIRONMENT,
        capture_output=True,
        timeout=PATIENCE_S,
        check=True,
    )
    exports = {item["topic"]: item for item in json.loads(status.stdout)}
    assert exports["shown"]["state"] == "not running"
    assert "nonsense" in exports["shown-bad"]["error"]


@pytest.mark.parametrize("retention_ms", [-1, 172_800_000])
def test_unused_files_are_deleted_during_an_export(
    log: Log, tmp_path: Path, retention_ms: int
) -> None:
    """Files of killed runs are deleted once they are old enough, including those of
    dead letters.
    """
    configs = {
        "penstock.table.enable": "true",
        "penstock.table.schema": LOG_SCHEMA.decode(),
        "penstock.table.orphan.retention.ms": str(retention_ms),
    }
    table = declared_tables([TopicEntry("t", UUID(int=1), 3, (), configs, False)])["t"]
    run = Run(log, tmp_path / "warehouse", "iceberg")
    stopped = run.sync(before=stop)
    with pytest.raises(Stopped):
        stopped.run_batch()
    now_s = 0.0
    turns = MaintenanceTurns(lambda: now_s)
    options = SyncOptions(batch_bytes=SMALL)
    exports = Exports(StoreCluster(log.store_url), run.warehouse, options, maintenance=turns)
    assert exports.open(table).turn().remaining
    data = run.directory / "default" / "t" / "data"
    strays = [path for path in data.rglob("*.parquet") if f"t/{path.name}" in run.stray_files()]
    assert len(strays) > 2
    old_s = time.time() - 172_801
    os.utime(strays[0], (old_s, old_s))
    now_s = 3_600.0
    assert exports.open(table).turn().remaining
    assert strays[0].exists() is (retention_ms < 0)
    assert all(path.exists() for path in strays[1:])
    while exports.open(table).turn().remaining:
        pass
    run.check()


def stop(_: Commit) -> None:
    raise Stopped


@pytest.mark.parametrize("compacts", [True, False])
def test_small_files_are_merged_during_an_export(log: Log, tmp_path: Path, compacts: bool) -> None:
    configs = {
        "penstock.table.enable": "true",
        "penstock.table.schema": LOG_SCHEMA.decode(),
        "penstock.table.format": "parquet",
        "penstock.table.compact": str(compacts).lower(),
    }
    table = declared_tables([TopicEntry("t", UUID(int=1), 3, (), configs, False)])["t"]
    run = Run(log, tmp_path / "warehouse", "parquet")
    options = SyncOptions(batch_bytes=SMALL)
    exports = Exports(StoreCluster(log.store_url), run.warehouse, options, compact_every=2)
    turns = 1
    while exports.open(table).turn().remaining:
        turns += 1
    written = run.warehouse.existing("t")
    written.state()
    assert turns > 2
    assert (len(written.files()) < 3 * turns - 3) is compacts
    run.check()
