"""An export by Spark writes the same table, from tasks in Spark's processes.

Most of the time is spent on starting these processes.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.lake.table.compact import compact
from penstock.lake.table.engines import SparkEngine
from tests.support.table_log import Log
from tests.support.table_runs import Run

pytestmark = pytest.mark.system


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkEngine]:
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path / "spark"))
    engine = SparkEngine("local[2]")
    yield engine
    engine.close()


def test_spark_writes_the_same_table(log: Log, tmp_path: Path, spark: SparkEngine) -> None:
    run = Run(log, tmp_path / "warehouse", "iceberg", engine=spark)
    reports = run.all(batch_bytes=40_000, file_bytes=6_000)
    assert max(report.files for report in reports) > 4, "a batch must need several tasks"
    run.check()
    assert run.stray_files() == set()
    rows = sorted(map(str, run.rows_of_files()))
    assert compact(run.warehouse.existing("t"), spark).files_after == 1
    assert sorted(map(str, run.rows_of_files())) == rows
