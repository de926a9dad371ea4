"""Kill drivers and Python workers of a streaming query with SIGKILL, several times with one
checkpoint. An idempotent sink must contain each row once.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from penstock.deploy.cli.compact_job import Target, plan_rewrite, rewrite_topic
from penstock.lake.rewrite.plan import PartitionPlan, RewriteOptions
from penstock.lake.table.engines import LocalEngine
from tests.support.dev_cluster import is_gone
from tests.support.spark_session import HAS_LIMITS, needs_limits
from tests.support.streaming_job import Job, start
from tests.support.streaming_queries import LIFE_S, until_begun, until_ended
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]

Row = tuple[int, int, str]


@contextmanager
def running(job: Job) -> Iterator["subprocess.Popen[bytes]"]:
    """Run one driver process. At the end, wait until its JVM has ended, so that two drivers never
    share the checkpoint.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    command = (
        sys.executable,
        "-m",
        "tests.support.streaming_job",
        msgspec.json.encode(job).decode(),
    )
    with Path(job.directory, "log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield process
        process.wait(LIFE_S)
    finally:
        process.kill()
        process.wait()
    java = Path(job.directory, f"jvm-{process.pid}")
    assert java.exists(), Path(job.directory, "log").read_text()[-3_000:]
    wait_until(lambda: is_gone(int(java.read_text())))


def run(job: Job, code: int) -> None:
    with running(job) as process:
        process.wait(LIFE_S)
    assert process.returncode == code, Path(job.directory, "log").read_text()[-3_000:]


def workers_of(driver: int) -> list[int]:
    """Return the Python workers of the driver: the children of its JVM's daemon."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and not is_gone(int(entry.name)):
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
    java = [pid for pid, parent in parents.items() if parent == driver]
    daemons = [pid for pid, parent in parents.items() if parent in java and is_daemon(pid)]
    return [pid for pid, parent in parents.items() if parent in daemons]


def is_daemon(pid: int) -> bool:
    return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()


def fill(cluster: ThreadedCluster, topic: str, numbers: Iterable[int]) -> None:
    cluster.produce(
        {"topic": topic, "partition": number % 2, "value": b"record %d" % number}
        for number in numbers
    )


def rows_in(path: Path) -> list[Row]:
    return [(partition, offset, value) for partition, offset, value in json.loads(path.read_text())]


def logged(job: Job, batch_id: int) -> dict[str, int]:
    """Return the end offsets of the batch from the query's offset log, by partition."""
    found = json.loads((job.checkpoint / "offsets" / str(batch_id)).read_text().splitlines()[2])
    return dict(found[job.topic])


@needs_limits
def test_each_row_arrives_once_if_drivers_and_workers_die(
    spark: SparkSession, cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.create("deaths", 2)
    for first in range(0, 2_000, 500):
        fill(cluster, "deaths", range(first, first + 500))
        wait_until(
            lambda known=first // 500: min(plan.object_count for plan in planned(cluster)) > known
        )
    job = Job(
        store_url=cluster.store_url, topic="deaths", directory=str(tmp_path), rows_per_batch=100
    )
    run(msgspec.structs.replace(job, die=("before", 1)), -signal.SIGKILL)
    assert sorted(path.name for path in job.out.glob("*.batch")) == ["0.batch"]
    run(msgspec.structs.replace(job, die=("after", 2)), -signal.SIGKILL)
    assert not (job.checkpoint / "commits" / "2").exists(), (
        "Spark must not have recorded the batch yet"
    )
    before = max(int(path.name.partition(".")[0]) for path in job.out.glob("*.batch"))
    compact(cluster)
    fill(cluster, "deaths", range(2_000, 2_400))
    executors_die(job, spark)
    until_ended(lambda: start(spark, job))
    check(job, spark, before)


@pytest.mark.skipif(HAS_LIMITS, reason="the other test is for versions with limits")
def test_each_row_arrives_once_if_drivers_without_limits_die(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    """Spark 4.0 and 4.1 run one micro-batch per start: after a crash, the interrupted one."""
    cluster.create("unlimited", 2)
    job = Job(
        store_url=cluster.store_url, topic="unlimited", directory=str(tmp_path), rows_per_batch=0
    )
    rows = [(number % 2, number // 2, f"record {number}") for number in range(600)]
    for first, when in ((0, "before"), (200, "after")):
        fill(cluster, "unlimited", range(first, first + 200))
        run(msgspec.structs.replace(job, die=(when, 0)), -signal.SIGKILL)
    fill(cluster, "unlimited", range(400, 600))
    run(job, 0)
    run(job, 0)
    attempts = [rows_in(path) for path in job.out.glob("0.*.attempt")]
    assert attempts == [sorted(rows[:200])] * 3
    assert rows_in(job.out / "0.batch") == sorted(rows[:200])
    assert rows_in(job.out / "1.batch") == sorted(rows[200:])


def executors_die(job: Job, spark: SparkSession) -> None:
    """Kill the Python workers in the middle of a micro-batch. The driver is this session and
    survives.
    """
    query = until_begun(
        lambda: start(spark, msgspec.structs.replace(job, gate=True)),
        lambda: bool(list(Path(job.directory).glob("waiting-*"))),
    )
    try:
        workers = workers_of(os.getpid())
        assert len(workers) >= 2, "one worker must read and one must wait"
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(LIFE_S)
    finally:
        query.stop()


def planned(cluster: ThreadedCluster) -> list[PartitionPlan]:
    """Return the plan of a bulk rewrite, which also counts the objects."""
    return plan_rewrite(Target(cluster.store_url, "", "deaths"), RewriteOptions())


def compact(cluster: ThreadedCluster) -> None:
    """Rewrite the topic, so that the next driver reads different objects."""
    report = rewrite_topic(
        Target(cluster.store_url, "", "deaths"), cluster.controller, LocalEngine(), RewriteOptions()
    )
    assert sum(item.sources_replaced for item in report.partitions) >= 2


def check(job: Job, spark: SparkSession, before: int) -> None:
    batches = {int(path.stem): rows_in(path) for path in job.out.glob("*.batch")}
    assert sorted(batches) == list(range(len(batches)))
    assert len(batches) > before + 1, "the last driver must have had rows to read"
    rows = sorted(row for found in batches.values() for row in found)
    assert rows == sorted(
        (number % 2, number // 2, f"record {number}") for number in range(2_400)
    ), "each row must arrive exactly once"
    attempts: dict[int, list[list[Row]]] = {}
    for path in job.out.glob("*.attempt"):
        attempts.setdefault(int(path.name.partition(".")[0]), []).append(rows_in(path))
    assert {1, 2} <= {batch_id for batch_id, found in attempts.items() if len(found) > 1}, (
        "batches 1 and 2 must have been replayed"
    )
    for batch_id, found in attempts.items():
        assert all(attempt == batches[batch_id] for attempt in found), (
            f"batch {batch_id} has other rows than in another attempt"
        )
    replay(job, spark, batches)


def replay(job: Job, spark: SparkSession, batches: dict[int, list[Row]]) -> None:
    """Read each batch again, using only the offset log, from the current objects."""
    starts = {"0": 0, "1": 0}
    for batch_id in sorted(batches):
        ends = logged(job, batch_id)
        bounds = {
            "startingOffsets": json.dumps({job.topic: starts}),
            "endingOffsets": json.dumps({job.topic: ends}),
        }
        options = {
            "store": job.store_url,
            "subscribe": job.topic,
            "columns": "partition,offset,value",
            **bounds,
        }
        frame = spark.read.format("penstock").options(**options).load()
        assert (
            sorted(
                (row["partition"], row["offset"], bytes(row["value"]).decode())
                for row in frame.collect()
            )
            == batches[batch_id]
        )
        starts = ends
