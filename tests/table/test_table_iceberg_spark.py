"""Exported tables in Spark 4.1 with the Iceberg runtime: queries, DML, file rewrites, snapshot
expiration, time travel and incremental reads, also for tables with layout version 1.
"""

import time
from pathlib import Path
from typing import Any

import pytest

from penstock.base.partition_spec import (
    DAY,
    IDENTITY,
    TIME_TRANSFORMS,
    PartitionField,
    parse_partition_by,
    partition_text,
)
from penstock.lake.table.model import OLDER_PARTITION, PARTITION, Retention
from tests.support.iceberg_spark import SparkSql, spark_sql
from tests.support.partitioned_rows import PARTITIONINGS, ROWS, write_table
from tests.support.table_log import DAY_MS, Log
from tests.support.table_runs import Run
from tests.table.test_table_upgrade import create_older

pytestmark = pytest.mark.long

MODES: dict[str, dict[str, Any]] = {
    "append": {},
    "upsert": {"upsert": True},
    "by_day": {"partition_by": (DAY,)},
}
POSITION = f"{PARTITION}, _offset"


def count(sql: SparkSql, rows: str) -> int:
    return int(sql(f"SELECT count(*) AS c FROM {rows}")[0]["c"])


def snapshots(sql: SparkSql, table: str) -> list[int]:
    found = sql(f"SELECT snapshot_id FROM {table}.snapshots ORDER BY committed_at")
    return [row["snapshot_id"] for row in found]


def test_spark_queries_and_changes_exported_tables(log: Log, tmp_path: Path) -> None:
    runs = {name: Run(log, tmp_path / name, "iceberg", catalog_name=name) for name in MODES}
    for name, run in runs.items():
        create_older(run, **MODES[name])
        for _ in range(2):
            assert run.sync(older=True, **MODES[name]).run_batch() is not None
    with spark_sql({name: run.directory for name, run in runs.items()}) as sql:
        for name, run in runs.items():
            with pytest.raises(AssertionError, match="conflict with names reserved"):
                sql(f"SELECT * FROM {name}.default.t")
            assert run.sync(**MODES[name]).run_batch() is not None
            sql(f"REFRESH TABLE {name}.default.t")
            check_reads(sql, f"{name}.default.t", run, has_appends=name != "upsert")
            check_changes(sql, name, run)
            sql(f"UPDATE {name}.default.t SET name = 'again' WHERE name = 'updated'")
            run.all(**MODES[name])
            check_maintenance(sql, f"{name}.default.t", run)
            sql(f"REFRESH TABLE {name}.default.t")
            assert count(sql, f"{name}.default.t") == len(run.rows())
            assert run.state_offsets() == run.ends()


def test_partition_values_equal_those_of_spark(tmp_path: Path) -> None:
    """Compares the partition of every row with Spark's transforms. Spark has no `time` type."""
    names: list[tuple[str, tuple[PartitionField, ...]]] = []
    for number, spec in enumerate(PARTITIONINGS):
        fields = tuple(field for field in parse_partition_by(spec) if field.column != "time")
        name, spec = f"t{number}", partition_text(fields)
        write_table("iceberg", tmp_path, name, spec, without="time", catalog_name="p")
        names.append((f"p.default.{name}", fields))
    with spark_sql({"p": tmp_path}) as sql:
        for table, fields in names:
            assert count(sql, table) == len(ROWS)
            for field in fields:
                wrong = f"{table} WHERE NOT (_partition.`{field.name}` <=> {spark_value(field)})"
                assert count(sql, wrong) == 0, field
            sql(f"DELETE FROM {table} WHERE {spark_value(fields[0])} IS NULL")


def spark_value(field: PartitionField) -> str:
    if field.transform == IDENTITY:
        return field.column
    name = f"{field.transform}s" if field.transform in TIME_TRANSFORMS else field.transform
    width = f"{field.width}, " if field.width else ""
    return f"p.system.{name}({width}{field.column})"


def check_reads(sql: SparkSql, table: str, run: Run, *, has_appends: bool) -> None:
    rows = run.rows()
    found = sql(f"SELECT * FROM {table}")
    places = {(row[PARTITION], row["_offset"]) for row in found}
    assert places == {(row[PARTITION], row["_offset"]) for row in rows}
    assert len(found) == len(rows)
    first, second, third = snapshots(sql, table)
    sql(f"ALTER TABLE {table} CREATE BRANCH earlier AS OF VERSION {first}")
    earlier = sql(f"SELECT {POSITION} FROM {table} VERSION AS OF 'earlier'")
    assert earlier
    assert count(sql, f"{table} VERSION AS OF {third}") == len(rows)
    with pytest.raises(AssertionError, match=OLDER_PARTITION):
        sql(f"SELECT * FROM {table} VERSION AS OF {first}")
    if has_appends:
        sql(f"incremental {table} {first} {third}")
        assert count(sql, "incremental") == len(rows) - len(earlier)
    assert second != third


def check_maintenance(sql: SparkSql, table: str, run: Run) -> None:
    """Maintain a table that Spark has changed, with files and a tag written by Spark."""
    sql(f"REFRESH TABLE {table}")
    first, rows = snapshots(sql, table)[0], len(run.rows())
    sql(f"ALTER TABLE {table} CREATE TAG kept AS OF VERSION {first}")
    tagged = count(sql, f"{table} VERSION AS OF 'kept'")
    at_ms = time.time_ns() // 1_000_000 + 3 * DAY_MS
    removed = run.warehouse.existing("t").maintain(Retention(DAY_MS, 2 * DAY_MS), at_ms)
    assert removed.files > 0
    sql(f"REFRESH TABLE {table}")
    assert first in snapshots(sql, table)
    assert count(sql, f"{table} VERSION AS OF 'kept'") == tagged
    assert len(sql(f"SELECT * FROM {table}")) == rows


def check_changes(sql: SparkSql, name: str, run: Run) -> None:
    table = f"{name}.default.t"
    total = count(sql, table)
    updated, merged, deleted = (
        f"{PARTITION} = {row[PARTITION]} AND _offset = {row['_offset']}"
        for row in sql(f"SELECT {POSITION} FROM {table} ORDER BY {POSITION} LIMIT 3")
    )
    sql(f"UPDATE {table} SET name = 'updated' WHERE {updated}")
    sql(
        f"MERGE INTO {table} AS t USING (SELECT {POSITION} FROM {table} WHERE {merged}) AS s"
        f" ON t.{PARTITION} = s.{PARTITION} AND t._offset = s._offset"
        " WHEN MATCHED THEN UPDATE SET name = 'merged'"
    )
    sql(f"DELETE FROM {table} WHERE {deleted}")
    names = sql(f"SELECT name FROM {table} WHERE name IN ('updated', 'merged') ORDER BY name")
    assert [row["name"] for row in names] == ["merged", "updated"]
    assert count(sql, table) == total - 1
    sql(
        f"CALL {name}.system.rewrite_data_files(table => 'default.t',"
        " options => map('rewrite-all', 'true'))"
    )
    sql(f"ALTER TABLE {table} DROP BRANCH earlier")
    sql(
        f"CALL {name}.system.expire_snapshots(table => 'default.t', retain_last => 1,"
        " older_than => TIMESTAMP '2100-01-01 00:00:00')"
    )
    assert len(snapshots(sql, table)) == 1
    assert count(sql, table) == total - 1
    assert len(run.rows()) == total - 1
