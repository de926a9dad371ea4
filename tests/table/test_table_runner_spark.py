"""Kill an executor and the driver's JVM while `penstock table run --engine spark` writes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.lake.table.engines import InlineEngine, LargeBatchEngine
from penstock.lake.table.model import CompactionTask, FileEntry
from tests.spark.test_spark_executors import executor_of
from tests.support.child_process import killed_at_end
from tests.support.dev_cluster import is_gone
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import PATIENCE_S, wait_until
from tests.table.test_table_runner import ENABLED, ENVIRONMENT, ROOT, Watched, offsets

pytestmark = pytest.mark.system

PARTITIONS, ROWS = 4, 4_000
GATED = (sys.executable, "-m", "tests.support.runner_kills")
MASTER = "local-cluster[2,1,1024]"


def waiting(directory: Path, batch: str) -> set[int]:
    """Return the Python workers that have written the files of a task in the batch."""
    return {int(path.name.rpartition("-")[2]) for path in directory.glob(f"{batch}-waiting-*")}


@pytest.mark.long
def test_rows_arrive_once_if_an_executor_and_the_driver_die(tmp_path: Path) -> None:
    with ThreadedCluster(tmp_path / "cluster", brokers=1) as cluster:
        cluster.create("large", PARTITIONS, configs=ENABLED)
        cluster.produce(
            {"topic": "large", "partition": number % PARTITIONS, "value": b"%d" % number * 200}
            for number in range(ROWS)
        )
        place = ("--warehouse", str(tmp_path / "warehouse"), "--store", cluster.store_url)
        command = (*GATED, "table", "run", *place, "--master", MASTER, "--once", "--batch-mib", "1")
        environment = ENVIRONMENT | {"GATES": str(tmp_path), "SPARK_LOCAL_IP": "127.0.0.1"}
        with (
            (tmp_path / "log").open("wb") as log,
            killed_at_end(
                subprocess.Popen(command, env=environment, cwd=ROOT, stdout=log, stderr=log)
            ) as process,
        ):

            def run_until(is_done: Callable[[], object]) -> None:
                wait_until(lambda: process.poll() is not None or is_done())
                assert process.poll() is None, (tmp_path / "log").read_text()[-3_000:]

            run_until(lambda: waiting(tmp_path, "b1"))
            first = waiting(tmp_path, "b1")
            executor = executor_of(min(first))
            os.kill(executor, signal.SIGKILL)
            run_until(lambda: waiting(tmp_path, "b1") - first)
            assert is_gone(executor)
            (tmp_path / "go-b1").touch()
            run_until(lambda: waiting(tmp_path, "b2"))
            os.kill(driver_of(process.pid), signal.SIGKILL)
            assert process.wait(PATIENCE_S) == 1
        assert "error: the Spark application has ended: " in (tmp_path / "log").read_text()
        exported = offsets(tmp_path, "large")
        assert 0 < len(exported) < ROWS
        Watched(cluster, tmp_path, once=True).runner.run()
        assert offsets(tmp_path, "large") == sorted(number // PARTITIONS for number in range(ROWS))


def driver_of(pid: int) -> int:
    """Return the JVM that the process has started."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        fields = path.read_text().rpartition(")")
        if int(fields[2].split()[1]) == pid and fields[0].endswith("(java"):
            return int(path.parent.name)
    raise AssertionError("the process has no JVM")


def test_only_large_batches_of_several_tasks_run_in_spark() -> None:
    class Other(InlineEngine):
        def map(self, job: Any, tasks: Sequence[Any]) -> Iterator[Any]:
            return iter(["large"])

    def sized(*sizes_bytes: int) -> list[CompactionTask]:
        files = [FileEntry("f", 1, size, (), (0, 0)) for size in sizes_bytes]
        return [CompactionTask("c", (file,)) for file in files]

    engine = LargeBatchEngine(Other(), bytes_min=100)
    for sizes, expected in [
        ((99,), "small"),
        ((500,), "small"),
        ((50, 49), "small"),
        ((50, 50), "large"),
    ]:
        assert set(engine.map(lambda *_: "small", sized(*sizes))) == {expected}
