"""A cluster of processes whose WALs are in a second bucket, and operator commands on it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from penstock import scan, sql, topics
from penstock.base.errors import StreamError
from penstock.deploy.local.handle import LocalCluster
from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.sql.errors import SqlError
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.url import open_store
from tests.support.clients import confluent_consumer, create_topic, produce, read_records
from tests.support.console import ConsoleProcess, Response, Visitor
from tests.support.dev_cluster import DevCluster, penstock, requested
from tests.support.waiting import wait_until

pytestmark = pytest.mark.system

VALUES = [b"%d" % number for number in range(20)]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """Start a cluster whose brokers upload nothing on their own."""
    flags = ("--wal-store", "moto", "--no-console", "--set", "upload.block.max.age.ms=1h")
    with DevCluster([*flags, "--log-level", "error"]) as running:
        create_topic(running.bootstrap, "t", 4)
        produce(running.bootstrap, "t", VALUES)
        yield running


async def keys(url: str) -> list[str]:
    store = open_store(url)
    try:
        return [info.key async for info in store.list("")]
    finally:
        await store.close()


async def test_wal_slots_are_only_in_the_wal_store(cluster: LocalCluster) -> None:
    state = cluster.state()
    wals = await keys(state.wal_store_url)
    assert "wals/identity" in wals
    assert sum(key.endswith("/open") for key in wals) == 2
    assert not [key for key in await keys(state.store_url) if key.startswith("wal")]


def test_killed_brokers_are_recovered_from_the_wal_store(cluster: LocalCluster) -> None:
    killed = cluster.brokers()
    cluster.kill(killed)
    cluster.wait_for_new(killed)
    consumer = confluent_consumer(cluster.bootstrap, "g")
    try:
        consumer.assign([TopicPartition("t", number, 0) for number in range(4)])
        found = read_records(consumer, len(VALUES))
    finally:
        consumer.close()
    assert sorted(message.value() or b"" for message in found) == sorted(VALUES)


def examined(cluster: LocalCluster | None, *arguments: str) -> dict[str, Any]:
    """Return the doctor's checks by name. The command may fail because of an unrelated finding,
    such as a slow local disk.
    """
    done = penstock(cluster, "doctor", "--settle", "0", "--json", *arguments)
    return {check["name"]: check for check in json.loads(done.stdout)["checks"]}


def test_doctor_and_repair_use_the_wal_store_of_the_cluster(cluster: LocalCluster) -> None:
    checks: dict[str, Any] = {}

    def are_ok() -> bool:
        checks.update(examined(cluster))
        return checks["WALs"]["level"] == checks["objects"]["level"] == "ok"

    wait_until(are_ok)  # brokers may still recover the WALs of killed ones
    assert f"in WAL store {cluster.state().wal_store_url}" in checks["WALs"]["summary"]
    assert requested(cluster, "wal", "repair")["wals"] == []


def test_readers_of_the_tail_require_the_wal_store(cluster: LocalCluster) -> None:
    state = cluster.state()
    create_topic(cluster.bootstrap, "fresh")
    produce(cluster.bootstrap, "fresh", VALUES)
    store, wal_store = state.store_url, state.wal_store_url
    wait_until(lambda: "fresh" in {topic.name for topic in topics(store, wal_store=wal_store)})
    slices = StoreCluster(store, "", wal_store).plan([OffsetRange("fresh", 0, 0, len(VALUES))])
    assert all(part.key.startswith("wals/1/") for part in slices)
    found = scan(store, "fresh", wal_store=wal_store)
    assert found.to_table().column("value").to_pylist() == VALUES
    assert scan(store, "fresh", wal_store=wal_store, start=5).count() == len(VALUES) - 5
    count = sql("SELECT count(*) FROM fresh", store=store, wal_store=wal_store).rows()
    assert count == [(len(VALUES),)]
    assert scan(store, "fresh", tail="uploaded").offsets == {0: (0, 0)}
    uploaded = sql("SELECT count(*) FROM fresh", store=store, tail="uploaded").rows()
    assert uploaded == [(0,)]
    elsewhere = wal_store.replace("penstock-wal", "penstock-wal/elsewhere")
    for given, why in (
        ("", "wal_store="),
        (elsewhere, "has no identity object"),
        ("file:/nowhere", "it does not exist"),
    ):
        with pytest.raises((StreamError, ObjectStoreError), match=why):
            scan(store, "fresh", wal_store=given)
        with pytest.raises((StreamError, ObjectStoreError, SqlError), match=why):
            sql("SELECT * FROM fresh", store=store, wal_store=given)
        with pytest.raises((StreamError, ObjectStoreError), match=why):
            topics(store, wal_store=given)


def test_sql_compact_and_doctor_find_the_wal_store(cluster: LocalCluster) -> None:
    assert requested(cluster, "sql", "SELECT count(*) AS n FROM t") == [{"n": len(VALUES)}]
    wait_until(lambda: is_compacted(cluster, "t"))
    assert requested(cluster, "sql", "SELECT count(*) AS n FROM t") == [{"n": len(VALUES)}]
    records = examined(cluster, "--records", "5")["records"]
    assert records["level"] == "ok", records


def is_compacted(cluster: LocalCluster, topic: str) -> bool:
    """Run the command; return whether it has done all, not in conflict with the brokers."""
    done = penstock(cluster, "compact", topic)
    assert not done.returncode or "still conflicted at the end" in done.stderr, done.stderr
    return not done.returncode


def test_console_reads_the_wal_store(cluster: LocalCluster) -> None:
    state = cluster.state()
    with ConsoleProcess(cluster.state_path) as console:
        shown, counted = records_in_console(console)
    assert f"{len(VALUES)} records read" in shown.words
    assert f" n {len(VALUES)} " in counted.words, counted.words
    addresses = ("--bootstrap", state.bootstrap, "--controller", state.controller)
    arguments = (*addresses, "--store", state.store_url)
    with ConsoleProcess(cluster.state_path, *arguments) as console:
        for page in records_in_console(console):
            assert page.status == 400
            assert "Records of this cluster need its WAL store" in page.words
            assert "with --wal-store (PENSTOCK_WAL_STORE)" in page.words, page.words
            assert "Try again" not in page.words


def records_in_console(console: ConsoleProcess) -> tuple[Response, Response]:
    """Return the records page and the result page of a statement."""
    visitor = Visitor(console.url)
    fields = {"csrf": visitor.get("/sql").csrf, "query": "SELECT count(*) AS n FROM t"}
    return visitor.get("/topics/t/messages"), visitor.post("/sql", fields)


def test_wal_store_feature_is_listed(cluster: LocalCluster) -> None:
    levels = {item["name"]: item["level"] for item in requested(cluster, "features", "list")}
    assert levels["wal.store.version"] == 1


def test_commands_refuse_another_wal_store(cluster: LocalCluster) -> None:
    state = cluster.state()
    other = state.wal_store_url.replace("penstock-wal", "penstock-wal/elsewhere")
    addresses = ("--store", state.store_url, "--controller", state.controller)
    for wal_store in ((), ("--wal-store", other)):
        why = "has no identity object" if wal_store else "specify it with --wal-store"
        done = penstock(None, "wal", "repair", *addresses, *wal_store)
        assert (done.returncode, why in done.stderr) == (1, True), done.stderr
        found = examined(None, *addresses, *wal_store)["WALs"]
        assert (found["level"], why in found["summary"]) == ("unchecked", True), found
        done = penstock(
            None, "controller", "recover", "--dry-run", "--from", state.store_url, *wal_store
        )
        assert (done.returncode, why in done.stderr) == (1, True), done.stderr


def test_wal_store_may_be_a_directory(tmp_path: Path) -> None:
    url = f"file:{tmp_path}/wals"
    flags = ["--store", f"file:{tmp_path}/data", "--wal-store", url, "--no-console"]
    with DevCluster([*flags, "--log-level", "error"]) as running:
        create_topic(running.bootstrap, "t")
        produce(running.bootstrap, "t", VALUES)
        killed = running.brokers()
        running.kill(killed)
        running.wait_for_new(killed)
        consumer = confluent_consumer(running.bootstrap, "g")
        try:
            consumer.assign([TopicPartition("t", 0, 0)])
            found = read_records(consumer, len(VALUES))
        finally:
            consumer.close()
        assert [message.value() for message in found] == VALUES
        state = running.state()
        assert state.wal_store_url == url
        count = scan(state.store_url, "t", wal_store=url).count()
        assert count == len(VALUES)
        assert list((tmp_path / "wals" / "wals").glob("*/*/open"))
        assert not list((tmp_path / "data" / "objects").glob("wal*"))
