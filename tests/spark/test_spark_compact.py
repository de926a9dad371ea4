"""`penstock compact` does not change the log while clients work and drivers are killed. The cluster
runs as processes.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from penstock import scan
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.objects import ObjectPhase
from penstock.deploy.cli.compact_by_key import ByKeyJob, ByKeyLimits, plan_by_key, run_by_key
from penstock.deploy.cli.compact_job import Target, rewrite_topic
from penstock.deploy.clients.metadata import read_metadata
from penstock.lake.arrow.background import background
from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.rewrite.plan import RewriteOptions
from penstock.lake.table.engines import SparkEngine
from tests.support.ack_recorder import PacedLoad, check, read_back
from tests.support.clients import TIMEOUT_S, create_topic
from tests.support.dev_cluster import PENSTOCK, penstock
from tests.support.history import orphaned_objects
from tests.support.hurried_cluster import HurriedCluster
from tests.support.streaming_queries import LIFE_S
from tests.support.waiting import PATIENCE_S, wait_until

ROOT = Path(__file__).resolve().parents[2]
PARTITIONS = [0, 1]
MANY = 12
KILLED = """
import os, signal, sys
from penstock.lake.rewrite import job, run
from penstock.deploy.cli import compact_job as rewrite

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Dying(rewrite.ControllerRewrites):
    async def commit(self, stream_id, exchanges):
        if where == "before the commit":
            die()
        response = await super().commit(stream_id, exchanges)
        die()

where, sys.argv[1:] = sys.argv[1], sys.argv[2:]
if where == "between two objects":
    written = rewrite.RewriteJob.__call__
    rewrite.RewriteJob.__call__ = lambda *arguments: (written(*arguments), die())
rewrite.ControllerRewrites = Dying
from penstock.deploy.cli.__main__ import main
main()
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[HurriedCluster]:
    with HurriedCluster() as started:
        yield started


@dataclass(frozen=True, slots=True)
class Layout:
    """The objects that contain the committed part of a topic, and their total size."""

    objects: int
    ends: dict[int, int]
    size_bytes: int


def create(cluster: HurriedCluster, topic: str) -> None:
    assert (
        penstock(
            cluster, "topics", "create", topic, "--partitions", str(len(PARTITIONS))
        ).returncode
        == 0
    )


def layout(cluster: HurriedCluster, topic: str) -> Layout:
    async def seen() -> Layout:
        view = await StoreCluster(cluster.state().store_url).view()
        await view.refresh()
        logs = await view.committed(topic) if view.topics(topic) else []
        runs = [run for log in logs for run in log.runs]
        ends = {
            log.partition: max((run.end_offset for run in log.runs if len(run)), default=0)
            for log in logs
        }
        return Layout(sum(map(len, runs)), ends, sum(sum(run.sizes_bytes) for run in runs))

    return background().run(seen())


def many_objects(cluster: HurriedCluster, topic: str) -> Layout:
    wait_until(lambda: layout(cluster, topic).objects >= MANY)
    return layout(cluster, topic)


def compacting(
    cluster: HurriedCluster, topic: str, *arguments: str, where: str = ""
) -> "subprocess.Popen[str]":
    environment = os.environ | {
        "PENSTOCK_STATE_FILE": str(cluster.state_path),
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
    }
    command = (
        (*PENSTOCK, "compact", topic)
        if not where
        else (sys.executable, "-c", KILLED, where, "compact", topic)
    )
    return subprocess.Popen(
        (*command, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    )


def output_of(process: "subprocess.Popen[str]", code: int = 0) -> str:
    with process:
        try:
            out, err = process.communicate(timeout=LIFE_S)
        finally:
            process.kill()
    assert process.returncode == code, f"{process.returncode}: {out[-1_000:]} {err[-3_000:]}"
    return out if code == 0 else err


def scanned(cluster: HurriedCluster, topic: str) -> dict[int, list[tuple[int, int]]]:
    """Return (offset, number) of each record read from the store, in the form of `read_back`."""
    found: dict[int, list[tuple[int, int]]] = {partition: [] for partition in PARTITIONS}
    for batch in scan(cluster.state().store_url, topic, columns=["partition", "offset", "value"]):
        columns = [batch.column(name).to_pylist() for name in ("partition", "offset", "value")]
        for partition, offset, value in zip(*columns, strict=True):
            found[partition].append((offset, int(value.partition(b" ")[0])))
    return found


def is_clean(cluster: HurriedCluster) -> bool:
    """Return whether no object is in the prepared state and the metadata references every data
    object.
    """

    async def keys() -> set[str]:
        store = await background().store(cluster.state().store_url)
        return {info.key async for info in store.list("data/")}

    found = background().run(keys())

    def of(image: MetadataImage) -> bool:
        return not any(
            state.phase == ObjectPhase.PREPARED for state in image.objects
        ) and not orphaned_objects(image, found)

    return read_metadata(cluster.state().controller, of)


async def test_offsets_are_unchanged_while_producers_and_readers_work(
    spark: SparkSession, cluster: HurriedCluster
) -> None:
    """The rewrite runs in Spark executors."""
    engine = SparkEngine("")
    assert spark.getActiveSession() is not None, "the engine must run in this session"
    create(cluster, "busy")
    async with PacedLoad(cluster.bootstrap, "busy", PARTITIONS) as load:
        before = await asyncio.to_thread(many_objects, cluster, "busy")
        target, controller = (
            Target(cluster.state().store_url, "", "busy"),
            cluster.state().controller,
        )
        working = asyncio.ensure_future(
            asyncio.to_thread(rewrite_topic, target, controller, engine, RewriteOptions())
        )
        reading = asyncio.ensure_future(read_back(cluster.bootstrap, "busy", PARTITIONS))
        log, report = await reading, await working
        for records in log.values():
            assert records == [(number, number) for number in range(len(records))]
        await load.until_acknowledged(10)
    assert sum(item.sources_replaced for item in report.partitions) >= before.objects
    assert [item.objects_written for item in report.partitions] == [1, 1]
    assert (report.unresolved, report.damaged) == (0, [])
    check(load, await read_back(cluster.bootstrap, "busy", PARTITIONS))
    check(load, await asyncio.to_thread(scanned, cluster, "busy"))


async def test_killed_driver_loses_no_record_and_leaves_no_object(cluster: HurriedCluster) -> None:
    """The three cases run concurrently, because each mostly waits for the deletion of objects."""
    await asyncio.gather(
        *(
            killed(cluster, where)
            for where in ("between two objects", "before the commit", "after the commit")
        )
    )


async def killed(cluster: HurriedCluster, where: str) -> None:
    topic = where.replace(" ", "-")
    create(cluster, topic)
    async with PacedLoad(cluster.bootstrap, topic, PARTITIONS) as load:
        await asyncio.to_thread(many_objects, cluster, topic)
    ends = dict(load.sent)
    await asyncio.to_thread(wait_until, lambda: layout(cluster, topic).ends == ends)
    before = await asyncio.to_thread(layout, cluster, topic)
    await asyncio.to_thread(
        output_of, compacting(cluster, topic, "--ttl", "30", where=where), -signal.SIGKILL
    )
    assert not await asyncio.to_thread(is_clean, cluster), (
        "the killed job must leave objects to delete"
    )
    check(load, await read_back(cluster.bootstrap, topic, PARTITIONS))
    await asyncio.to_thread(wait_until, lambda: is_clean(cluster))
    check(load, await asyncio.to_thread(scanned, cluster, topic))
    reported = await asyncio.to_thread(output_of, compacting(cluster, topic))
    assert "became" in reported
    after = await asyncio.to_thread(layout, cluster, topic)
    assert (after.objects, after.ends, after.size_bytes) == (
        len(PARTITIONS),
        before.ends,
        before.size_bytes,
    )
    check(load, await read_back(cluster.bootstrap, topic, PARTITIONS))
    await asyncio.to_thread(wait_until, lambda: is_clean(cluster))


async def test_two_concurrent_compactions_lose_no_record(cluster: HurriedCluster) -> None:
    """One compaction runs with local threads and one as a Spark job."""
    create(cluster, "twice")
    async with PacedLoad(cluster.bootstrap, "twice", PARTITIONS) as load:
        await asyncio.to_thread(many_objects, cluster, "twice")
        engines = (["--engine", "local"], ["--master", "local[2]"])
        processes = [
            compacting(cluster, "twice", "--json", "--ttl", "120", *engine) for engine in engines
        ]
        reports = [json.loads(await asyncio.to_thread(output_of, process)) for process in processes]
    assert all(report["unresolved"] == 0 for report in reports)
    assert sum(
        item["objects_written"] for report in reports for item in report["partitions"]
    ) >= len(PARTITIONS)
    check(load, await read_back(cluster.bootstrap, "twice", PARTITIONS))
    check(load, await asyncio.to_thread(scanned, cluster, "twice"))
    await asyncio.to_thread(wait_until, lambda: is_clean(cluster))


def test_dry_run_changes_nothing_and_errors_include_advice(cluster: HurriedCluster) -> None:
    create(cluster, "idle")
    wait_until(lambda: layout(cluster, "idle").ends == dict.fromkeys(PARTITIONS, 0))
    plan = json.loads(output_of(compacting(cluster, "idle", "--dry-run", "--json")))
    empty = {"objects": 0, "size_bytes": 0, "sources": 0, "rewritten_bytes": 0, "new_objects": 0}
    assert plan["partitions"] == [{"partition": partition} | empty for partition in PARTITIONS]
    assert output_of(compacting(cluster, "idle")) == "idle: nothing to rewrite in 2 partitions\n"
    assert "nowhere" in output_of(compacting(cluster, "nowhere"), 1)


def test_log_is_compacted_by_key_in_spark(spark: SparkSession, cluster: HurriedCluster) -> None:
    """The topic's dirty ratio keeps brokers from compacting it. A checkpoint follows
    within 30 s.
    """
    engine = SparkEngine("")
    assert spark.getActiveSession() is not None, "the engine must run in this session"
    create_topic(
        cluster.bootstrap,
        "state",
        len(PARTITIONS),
        cleanup_policy="compact",
        min_cleanable_dirty_ratio="1",
    )
    newest: dict[tuple[int, bytes], bytes] = {}
    producer = Producer({"bootstrap.servers": cluster.bootstrap})
    for number in range(600):
        partition, key = number % len(PARTITIONS), b"%d" % (number % 14)
        newest[partition, key] = b"%d" % number
        producer.produce("state", newest[partition, key], key, partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    state = cluster.state()
    limits = ByKeyLimits(object_bytes_max=1 << 20, key_map_bytes_max=1 << 20, ttl_ms=600_000)
    job = ByKeyJob(Target(state.store_url, "", "state"), state.controller, engine, limits)
    wait_until(
        lambda: [item.log.end for item in plan_by_key(job)] == [300, 300], timeout_s=PATIENCE_S
    )
    report = run_by_key(job)
    assert [item.removed_records for item in report.partitions] == [293, 293]
    assert (report.unresolved, report.damaged) == ([], [])
    found = {
        (partition, key): value
        for batch in scan(state.store_url, "state", columns=["partition", "key", "value"])
        for partition, key, value in zip(
            *(batch.column(name).to_pylist() for name in ("partition", "key", "value")), strict=True
        )
    }
    assert found == newest
    rows = sum(batch.num_rows for batch in scan(state.store_url, "state", columns=["offset"]))
    assert rows == len(newest)
    assert not plan_by_key(job) or not any(i.removed_records for i in run_by_key(job).partitions)
