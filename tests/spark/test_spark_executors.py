"""Kill an executor and the driver's JVM with SIGKILL. No row may be lost or duplicated. Both are
separate processes here.
"""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyspark
import pytest

from tests.spark.test_spark_kills import LIFE_S, fill, rows_in, running
from tests.support.dev_cluster import is_gone
from tests.support.spark_session import needs_limits
from tests.support.streaming_job import Job
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import wait_until

EXECUTORS = "local-cluster[2,1,512]"
ROWS = 1_200


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def executor_of(worker: int) -> int:
    """Return the JVM that uses this Python worker: the parent of the daemon that forked it."""
    executor = parent_of(parent_of(worker))
    assert b"CoarseGrainedExecutorBackend" in Path(f"/proc/{executor}/cmdline").read_bytes()
    return executor


def waiting(directory: Path) -> list[int]:
    return [int(path.name.partition("-")[2]) for path in directory.glob("waiting-*")]


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Delete the work directories of executors. A local cluster creates them in the Spark
    installation regardless of the settings.
    """
    work = Path(pyspark.__file__).parent / "work"
    before = set(work.glob("app-*"))
    yield
    for left in set(work.glob("app-*")) - before:
        shutil.rmtree(left)


@needs_limits
def test_each_row_arrives_once_if_an_executor_and_the_driver_die(
    cluster: ThreadedCluster, tmp_path: Path
) -> None:
    cluster.create("jvms", 2)
    fill(cluster, "jvms", range(ROWS))
    job = Job(
        store_url=cluster.store_url,
        topic="jvms",
        directory=str(tmp_path),
        rows_per_batch=100,
        gate=True,
        hold=3,
        master=EXECUTORS,
    )
    with running(job) as process:
        java = tmp_path / f"jvm-{process.pid}"
        wait_until(lambda: process.poll() is not None or bool(waiting(tmp_path)), LIFE_S)
        first = waiting(tmp_path)
        assert first, (tmp_path / "log").read_text()[-3_000:]
        executor = executor_of(first[0])
        os.kill(executor, signal.SIGKILL)
        wait_until(
            lambda: process.poll() is not None or len(waiting(tmp_path)) > len(first), LIFE_S
        )
        assert is_gone(executor)
        (tmp_path / "go").touch()
        wait_until(
            lambda: process.poll() is not None or (tmp_path / "holding").exists(),
            LIFE_S,
        )
        os.kill(int(java.read_text()), signal.SIGKILL)
    assert process.returncode not in {0, None}, "the JVM must be killed before the job has finished"
    done = {int(path.stem) for path in job.out.glob("*.batch")}
    with running(msgspec.structs.replace(job, gate=False, hold=None, master="local[2]")) as process:
        pass
    assert process.returncode == 0, (tmp_path / "log").read_text()[-3_000:]
    batches = {int(path.stem): rows_in(path) for path in job.out.glob("*.batch")}
    assert sorted(batches) == list(range(len(batches)))
    assert len(batches) > len(done) >= 3
    rows = sorted(row for found in batches.values() for row in found)
    assert rows == sorted(
        (number % 2, number // 2, f"record {number}") for number in range(ROWS)
    ), "each row must arrive exactly once"
    for path in job.out.glob("*.attempt"):
        assert [tuple(row) for row in json.loads(path.read_text())] == batches[
            int(path.name.partition(".")[0])
        ]
