"""Jobs on a standalone Spark cluster whose workers have only the Penstock that jobs ship to them,
and through Spark Connect.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest

from tests.spark.test_spark_executors import executor_of, parent_of
from tests.spark.test_spark_sink_once import values_of
from tests.support import spark_cluster_job, spark_connect_job
from tests.support.dev_cluster import is_gone
from tests.support.spark_standalone import (
    ROOT,
    Standalone,
    build_wheel,
    connect_server,
    environment_without_penstock,
    pack,
    start_job,
    unpack,
    until_ended,
)
from tests.support.threaded_cluster import ThreadedCluster
from tests.support.waiting import wait_until

ROWS = 1_200
LIFE_S = 900.0
"""The deadline of one job, mostly for JVMs on a busy machine."""

COUNT = """
import json, sys
from pyspark.sql import SparkSession
from penstock.spark import register

spark = SparkSession.builder.config("spark.driver.host", "127.0.0.1").getOrCreate()
register(spark)
options = {"store": sys.argv[1], "subscribe": "in"}
found = spark.read.format("penstock").options(**options).load().groupBy("partition").count()
print(json.dumps({"rows": sum(row["count"] for row in found.collect())}))
spark.stop()
"""


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with Standalone(tmp_path_factory.mktemp("standalone")) as started:
        yield started


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def source(cluster: ThreadedCluster) -> ThreadedCluster:
    """Start a cluster whose topic `in` contains records."""
    cluster.create("in", 2)
    cluster.produce(
        {"topic": "in", "partition": number % 2, "value": b"record %d" % number}
        for number in range(ROWS)
    )
    return cluster


def said(output: str) -> dict[str, Any]:
    """Return the job's output, parsed as JSON lines."""
    found: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            found |= json.loads(line)
    return found


def test_packed_environment_works_and_its_query_survives_a_worker_kill(
    standalone: Standalone, wheel: Path, source: ThreadedCluster, tmp_path: Path
) -> None:
    for topic in ("out", "totals"):
        source.create(topic, 1)
    archive = pack(wheel, tmp_path)
    driver = tmp_path / "driver"
    driver.mkdir()
    unpack(archive, driver)
    shutil.copy(spark_cluster_job.__file__, driver / "job.py")
    arguments = (standalone.url, str(archive), source.store_url, source.bootstrap)
    process = start_job(
        ("./env/bin/python", "job.py", *arguments), driver, PYSPARK_PYTHON="./env/bin/python"
    )

    def executors() -> dict[int, int]:
        """Return the executors with waiting tasks, and their workers."""
        tasks = [int(path.name.partition("-")[2]) for path in driver.glob("waiting-*")]
        found = {executor_of(task) for task in tasks if not is_gone(task)}
        return {executor: parent_of(executor) for executor in found}

    try:
        wait_until(lambda: process.poll() is not None or len(executors()) == 2, LIFE_S)
        assert process.poll() is None, (driver / "job.log").read_text()[-5_000:]
        executor, worker = executors().popitem()
        for pid in (worker, executor):
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: is_gone(executor) and is_gone(worker))
        (driver / "go").touch()
    finally:
        output = until_ended(process, driver, LIFE_S)
    found = said(output)
    assert found["rows"] == ROWS
    assert found["batches"] == [400, 400, 400], "the query must not have started again"
    for file in found["files"]:
        assert Path(file).is_relative_to(standalone.directory), (
            "executors must have found Penstock in the archive"
        )
    expected = sorted(f"record {number}" for number in range(ROWS))
    assert sorted(values_of(source, "out")) == expected, "each record must arrive exactly once"
    assert values_of(source, "totals") == ["600", "600"]
    standalone.add_worker("worker-instead")


def connected(
    source: ThreadedCluster, address: str, directory: Path, python: str | Path, *arguments: str
) -> dict[str, Any]:
    """Run a Spark Connect client and return its result. `arguments`: the topic to write to, and the
    zip to send.
    """
    places = (address, source.store_url, source.bootstrap)
    command = (python, "-P", spark_connect_job.__file__, *places, *arguments)
    found = said(until_ended(start_job(command, directory), directory, LIFE_S))
    assert found["counts"] == [[0, ROWS // 2], [1, ROWS // 2]]
    return found


def test_connect_client_needs_no_penstock_if_the_server_has_it(
    wheel: Path, source: ThreadedCluster, tmp_path: Path
) -> None:
    source.create("connected", 1)
    server = unpack(pack(wheel, tmp_path), tmp_path)
    client = environment_without_penstock(tmp_path / "plain") / "bin" / "python"
    with connect_server("local[2]", tmp_path, server) as address:
        found = connected(source, address, tmp_path, client, "connected")
    assert found["streamed"] == ROWS
    assert sorted(values_of(source, "connected")) == [f"record {number}" for number in range(6)]


@pytest.mark.long
def test_connect_session_ships_penstock_to_server_and_executors(
    standalone: Standalone, wheel: Path, source: ThreadedCluster, tmp_path: Path
) -> None:
    source.create("brought", 1)
    package = shutil.copy(wheel, tmp_path / "penstock.zip")
    plain = environment_without_penstock(tmp_path / "plain") / "bin" / "python"
    with connect_server(standalone.url, tmp_path, plain) as address:
        found = connected(source, address, tmp_path, sys.executable, "brought", str(package))
    assert "DATA_SOURCE_NOT_FOUND" in found["without"]
    assert sorted(values_of(source, "brought")) == [f"record {number}" for number in range(6)]


@pytest.mark.long
def test_py_files_require_only_pyarrow_on_executors(
    standalone: Standalone, wheel: Path, source: ThreadedCluster, tmp_path: Path
) -> None:
    """Without `--py-files` the same job fails, and the error contains the missing package. Spark
    accepts no wheels, but a wheel is also a zip.
    """
    package = shutil.copy(wheel, tmp_path / "penstock.zip")
    plain = environment_without_penstock(tmp_path / "plain") / "bin" / "python"
    job = tmp_path / "job.py"
    job.write_text(COUNT)
    submit = Path(os.environ["SPARK_HOME"], "bin", "spark-submit")
    settings = ("--master", standalone.url, "--executor-memory", "600m")
    begin = (submit, *settings, "--conf", "spark.task.maxFailures=1")
    end = (job, source.store_url)
    python = {"PYSPARK_PYTHON": str(plain), "PYSPARK_DRIVER_PYTHON": sys.executable}
    process = start_job((*begin, *end), tmp_path, **python)
    process.wait(LIFE_S)
    assert "No module named 'penstock'" in (tmp_path / "job.log").read_text()
    assert process.returncode != 0
    process = start_job((*begin, "--py-files", package, *end), tmp_path, **python)
    assert said(until_ended(process, tmp_path, LIFE_S)) == {"rows": ROWS}


@pytest.mark.long
def test_environments_packed_by_venv_pack_work(
    wheel: Path, source: ThreadedCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All steps of docs/how-to/spark-cluster.md, with packages from the index. PySpark itself comes
    from the workers' Spark.
    """
    monkeypatch.setenv("SPARK_HOME", str(Path(pyspark.__file__).parent))
    built, driver = tmp_path / "built", tmp_path / "driver"
    driver.mkdir()
    packages = (f"{wheel}[reader]", "venv-pack2")
    uv = Path(sys.executable).with_name("uv")
    for command in (
        (uv, "venv", "--python", sys.executable, built),
        (uv, "pip", "install", "--python", built, "-c", ROOT / "constraints.txt", *packages),
        (built / "bin" / "venv-pack", "-p", built, "-o", tmp_path / "env.tar.gz"),
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    unpack(tmp_path / "env.tar.gz", driver)
    (driver / "job.py").write_text(COUNT)
    archives = ("--archives", f"{tmp_path / 'env.tar.gz'}#env")
    submit = Path(os.environ["SPARK_HOME"], "bin", "spark-submit")
    python = dict.fromkeys(("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"), "./env/bin/python")
    with Standalone(tmp_path / "standalone", workers=1) as standalone:
        begin = (submit, "--master", standalone.url, "--executor-memory", "600m", *archives)
        process = start_job((*begin, "job.py", source.store_url), driver, **python)
        assert said(until_ended(process, driver, LIFE_S)) == {"rows": ROWS}


def demo(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = (
        sys.executable,
        "-P",
        "-m",
        "penstock.deploy.cli",
        "demo",
        "--spark",
        "--records",
        "20000",
    )
    return subprocess.run(
        (*command, *arguments),
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "300"},
        capture_output=True,
        text=True,
        timeout=LIFE_S,
        check=False,
    )


@pytest.mark.long
def test_demo_runs_on_a_cluster(standalone: Standalone, wheel: Path, tmp_path: Path) -> None:
    done = demo(tmp_path, "--master", standalone.url, "--archive", str(pack(wheel, tmp_path)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "demo: OK 20000 records" in done.stdout


@pytest.mark.long
def test_demo_reports_packages_that_executors_lack(standalone: Standalone, tmp_path: Path) -> None:
    """The archive does not contain Penstock, as after packing the wrong environment."""
    environment = environment_without_penstock(tmp_path / "plain")
    archive = shutil.make_archive(str(tmp_path / "plain"), "gztar", environment)
    done = demo(tmp_path, "--master", standalone.url, "--archive", archive)
    assert done.returncode == 1
    assert "demo: FAILED executors cannot run Penstock: no Penstock in /" in done.stdout
    assert "pack the environment again" in done.stdout
