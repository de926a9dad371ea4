"""`penstock table` as a process, and exports in processes that are killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.child_process import killed_at_end
from tests.support.table_log import SCHEMA, Log
from tests.support.table_runs import Run
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}
KILLED = """
import os, pickle, signal, sys
run = pickle.load(sys.stdin.buffer)
count = 0
def die(_):
    global count
    count += 1
    if count == 2:
        os.kill(os.getpid(), signal.SIGKILL)
run.all(**{sys.argv[1]: die})
"""


def penstock(*arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock.deploy.cli", "table", *arguments]
    return subprocess.Popen(
        command,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def output_of(*arguments: str, code: int = 0) -> str:
    with killed_at_end(penstock(*arguments)) as process:
        out, err = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == code, err[-2_000:]
        return out if code == 0 else err


@pytest.mark.parametrize(
    ("kind", "where"), [("iceberg", "before"), ("iceberg", "after"), ("parquet", "after")]
)
def test_export_of_a_killed_process_is_continued_by_another(
    log: Log, tmp_path: Path, kind: str, where: str
) -> None:
    import pickle

    run = Run(log, tmp_path / "warehouse", kind)
    command = [sys.executable, "-c", KILLED, where]
    done = subprocess.run(
        command,
        input=pickle.dumps(run),
        env=ENVIRONMENT,
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr[-2_000:]
    run.all()
    run.check()
    assert run.state_offsets() == run.ends()


def test_command_syncs_compacts_and_queries(log: Log, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_bytes(SCHEMA)
    run = Run(log, tmp_path / "warehouse", "iceberg")
    place = ("--warehouse", str(run.directory))
    sync = (
        "sync",
        "t",
        "--store",
        log.store_url,
        *place,
        "--format",
        "json",
        "--schema",
        str(schema),
        "--partition-by",
        "day",
    )
    with killed_at_end(penstock(*sync, "--json", "--interval", "0.2")) as process:
        assert process.stdout is not None
        report = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130
    run.check()
    assert {int(partition): end for partition, end in report["offsets"].items()} == run.ends()
    assert report["rows"] == len(run.rows())
    assert output_of(*sync, "--once") == "up to date: 0 rows and 0 dead letters in 0 batches\n"
    assert "9 of 9 files became 3" in output_of("compact", "t", *place)
    found = json.loads(
        output_of("query", "SELECT count(*) AS c, max(_timestamp) AS last FROM t", *place, "--json")
    )
    assert found[0]["c"] == report["rows"]
    assert found[0]["last"].startswith("2026-01-03")
    numbers = "SELECT 0.001::DOUBLE AS x, 1e-9::DOUBLE AS y, 1234.5678::DOUBLE AS z, NULL AS n"
    assert {"0.001", "1e-09", "1234.5678", "NULL"} <= set(
        output_of("query", numbers, *place).split()
    )
    assert "error: --to 'delta': choose one of iceberg, parquet" in output_of(
        *sync, "--to", "delta", code=2
    )
