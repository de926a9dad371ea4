"""Table maintenance expires snapshots and deletes unused files, also during exports, after kills,
and in tables that other engines have changed.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyiceberg.table.maintenance import MaintenanceTable
from typer.testing import CliRunner, Result

from penstock.deploy.cli.app import app
from penstock.lake.table.compact import compact
from penstock.lake.table.errors import BatchExpired, InvalidTable
from penstock.lake.table.model import Commit, Maintained, Retention
from tests.support.table_log import Log
from tests.support.table_runs import Run

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
SHORT = Retention(HOUR_MS, 2 * DAY_MS)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.fixture(params=["iceberg", "parquet"])
def run(request: pytest.FixtureRequest, log: Log, tmp_path: Path) -> Run:
    return Run(log, tmp_path / "warehouse", request.param)


@pytest.fixture
def iceberg(log: Log, tmp_path: Path) -> Run:
    return Run(log, tmp_path / "warehouse", "iceberg")


@pytest.fixture
def native() -> Iterator[Callable[[Run], Table]]:
    """Open the run's table as other programs do."""
    with ExitStack() as catalogs:

        def opened(run: Run) -> Table:
            catalog = load_catalog("penstock", **run.warehouse.properties())
            return catalogs.enter_context(catalog).load_table("default.t")

        yield opened


def maintain(
    run: Run, *, days: float = 10, retention: Retention = SHORT, **named: Any
) -> Maintained:
    """Maintain the table and its dead letters at a time some days from now. Return the result for
    the table.
    """
    at_ms = now_ms() + round(days * DAY_MS)
    run.warehouse.existing("t__dlq").maintain(retention, at_ms, **named)
    return run.warehouse.existing("t").maintain(retention, at_ms, **named)


def names_of(snapshots: Iterator[Any] | list[Any]) -> list[int]:
    return [snapshot.snapshot_id for snapshot in snapshots]


def stored(run: Run) -> set[Path]:
    return {path for path in run.directory.rglob("*") if path.is_file()}


def test_maintenance_leaves_only_files_of_the_table(run: Run) -> None:
    reports = run.all(upsert=True)
    assert len(reports) > 2
    compact(run.warehouse.existing("t"), run.engine)
    rows, offsets, unused = run.rows(), run.state_offsets(), run.stray_files()
    assert unused
    before = stored(run)
    shown = maintain(run, dry_run=True)
    assert stored(run) == before, "a dry run must not delete anything"
    assert maintain(run) == shown
    assert shown.files >= len(unused)
    assert shown.bytes > 0
    assert run.stray_files() == set()
    assert run.rows() == rows
    assert run.state_offsets() == offsets == run.ends()
    assert run.all(upsert=True) == []
    assert maintain(run) == Maintained(), "nothing is left to do"


def test_snapshots_within_the_retention_can_be_read(
    iceberg: Run, native: Callable[[Run], Table]
) -> None:
    """The snapshot that is current at the start of the retention period is older than that."""
    reports = iceberg.all(upsert=True, batch_bytes=15_000)
    table = native(iceberg)
    snapshots = table.snapshots()
    assert len(snapshots) == len(reports) > 4
    rows = {snapshot.snapshot_id: rows_at(table, snapshot.snapshot_id) for snapshot in snapshots}
    at_ms = snapshots[3].timestamp_ms - 1 + HOUR_MS
    removed = iceberg.warehouse.existing("t").maintain(replace(SHORT, orphans_ms=None), at_ms)
    assert removed.versions == 2
    maintain(iceberg, retention=Retention(None, 2 * DAY_MS))
    kept = table.refresh().snapshots()
    assert names_of(kept) == names_of(snapshots[2:])
    assert {found: rows_at(table, found) for found in names_of(kept)} == {
        found: rows[found] for found in names_of(kept)
    }


def rows_at(table: Table, snapshot_id: int) -> list[tuple[int, int]]:
    found = table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return sorted((row["_kafka_partition"], row["_offset"]) for row in found)


def test_files_of_a_running_batch_are_kept(run: Run) -> None:
    """Maintenance runs between the files of each batch and its commit, with a clock that is more
    than a day ahead.
    """
    other = Run(run.log, run.directory, run.kind)
    strays: list[int] = []

    def interrupt(_: Commit) -> None:
        strays.append(len(run.stray_files()))
        if len(strays) > 1:
            maintain(other, days=1.9)
            assert len(run.stray_files()) >= strays[-1]

    run.all(before=interrupt)
    assert len(strays) > 2
    assert all(strays)
    run.check()
    assert run.state_offsets() == run.ends()


def test_interrupted_maintenance_is_continued(iceberg: Run) -> None:
    """The maintenance is interrupted once after the commit, and once after it has deleted some of
    the files.
    """
    iceberg.all(upsert=True)
    expected = maintain(iceberg, dry_run=True)
    maintain(iceberg, retention=Retention(HOUR_MS, None))
    assert maintain(iceberg, dry_run=True).files == expected.files
    rows = iceberg.rows()
    some = sorted(iceberg.stray_files())[::2]
    assert some
    for name in some:
        next(iceberg.directory.rglob(name.replace("/", "/data/**/"))).unlink()
    assert iceberg.rows() == rows
    assert 0 < maintain(iceberg).files < expected.files
    assert iceberg.stray_files() == set()
    assert iceberg.rows() == rows


def test_export_continues_during_maintenance_by_another_process(iceberg: Run) -> None:
    other = Run(iceberg.log, iceberg.directory, iceberg.kind)

    def maintained(_: Commit) -> None:
        if iceberg.warehouse.existing("t").state().exists:
            maintain(other, retention=Retention(HOUR_MS, None))

    assert len(iceberg.all(before=maintained)) > 2
    iceberg.check()
    assert iceberg.state_offsets() == iceberg.ends()


@pytest.mark.parametrize("late_s", [0, 1_801])
def test_overtaken_run_deletes_its_files_only_if_no_snapshot_can_have_expired(
    iceberg: Run, late_s: int
) -> None:
    """Otherwise the commit may have succeeded without a response, its snapshot may have expired,
    and other snapshots may contain its files.
    """
    passed_s = [0.0]
    late = replace(iceberg, wall_s=lambda: time.time() + passed_s[0])
    seen: list[Commit] = []

    def overtaken(commit: Commit) -> None:
        if not seen:
            seen.append(commit)
            iceberg.all()
            passed_s[0] = late_s

    assert late.sync(before=overtaken).run_batch() is None
    assert bool(iceberg.stray_files()) is bool(late_s)
    iceberg.check()


def test_compaction_longer_than_a_day_is_not_committed(iceberg: Run) -> None:
    iceberg.sync().run_batch()
    iceberg.sync().run_batch()
    rows, days = iceberg.rows(), iter((0, DAY_MS / 1_000 + 1))
    with pytest.raises(BatchExpired, match="more than a day"):
        compact(iceberg.warehouse.existing("t"), iceberg.engine, wall_s=lambda: next(days))
    assert iceberg.rows() == rows
    assert iceberg.stray_files() == set()


def test_log_of_a_parquet_table_is_truncated_before_a_complete_commit(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.lake.table.directory.WHOLE_EVERY", 3)
    run = Run(log, tmp_path / "warehouse", "parquet")

    def versions() -> list[int]:
        found = (run.directory / "t" / "_penstock_log").iterdir()
        return sorted(int(path.stem) for path in found)

    for count in range(1, 8):
        run.sync(batch_bytes=6_000).run_batch()
        maintain(run)
        assert versions() == list(range(count // 3 * 3 or 1, count + 1))
        monkeypatch.setattr("penstock.lake.table.directory._commits", {})  # as in a new process
    run.all()
    run.check()
    assert run.state_offsets() == run.ends()


def expire_all(table: Table, *kept: int) -> None:
    """Expire all snapshots but the current one and `kept`, as Spark does."""
    current = table.refresh().metadata.current_snapshot_id
    gone = [found for found in names_of(table.snapshots()) if found not in (current, *kept)]
    MaintenanceTable(table).expire_snapshots().by_ids(gone).commit()


def test_tag_on_an_older_batch_does_not_hide_the_exported_offsets(
    iceberg: Run, native: Callable[[Run], Table]
) -> None:
    """Other engines have changed the table and expired all batches except the tagged one."""
    iceberg.sync().run_batch()
    table = native(iceberg)
    tagged = names_of(table.snapshots())[0]
    table.manage_snapshots().create_tag(tagged, "month_end").commit()
    iceberg.all()
    offsets = iceberg.state_offsets()
    for partition in (0, 1):
        table.refresh().delete(f"_offset = 3 AND _kafka_partition = {partition}")
    expire_all(table, tagged)
    assert iceberg.state_offsets() == offsets
    assert iceberg.all() == []
    maintain(iceberg)
    assert iceberg.state_offsets() == offsets
    assert tagged in names_of(table.refresh().snapshots())
    assert rows_at(table, tagged)


def test_newest_batch_is_kept_below_the_changes_of_other_engines(
    iceberg: Run, native: Callable[[Run], Table]
) -> None:
    iceberg.sync().run_batch()
    offsets = iceberg.state_offsets()
    table = native(iceberg)
    newest = table.metadata.current_snapshot_id
    for partition in (0, 1):
        table.refresh().delete(f"_offset = 3 AND _kafka_partition = {partition}")
    maintain(iceberg)
    assert newest == names_of(table.refresh().snapshots())[0]
    assert len(table.snapshots()) == 3
    assert iceberg.state_offsets() == offsets


def test_rolled_back_table_is_filled_again_after_maintenance(
    iceberg: Run, native: Callable[[Run], Table]
) -> None:
    """The table properties contain the offsets before the rollback."""
    iceberg.sync().run_batch()
    first = iceberg.state_offsets()
    iceberg.all()
    table = native(iceberg)
    table.manage_snapshots().rollback_to_snapshot(names_of(table.snapshots())[0]).commit()
    table.refresh().delete("_offset = 0 AND _kafka_partition = 0")
    maintain(iceberg)
    assert iceberg.state_offsets() == first
    iceberg.all()
    assert iceberg.state_offsets() == iceberg.ends()
    assert len(iceberg.rows()) == len({str(row) for row in iceberg.rows()})


def test_table_rolled_back_to_before_the_export_keeps_its_snapshots(
    iceberg: Run, native: Callable[[Run], Table]
) -> None:
    """Otherwise the export would continue at the offsets in the table properties."""
    iceberg.sync().run_batch()
    table = native(iceberg)
    table.append(table.scan().to_arrow().slice(0, 0))
    other = names_of(table.refresh().snapshots())[-1]
    iceberg.sync().run_batch()
    table.refresh().manage_snapshots().rollback_to_snapshot(other).commit()
    expire_all(table, *names_of(table.refresh().snapshots())[2:])
    assert iceberg.state_offsets() == {}, "no snapshot records where the table ends"
    maintain(iceberg)
    assert iceberg.state_offsets() == {}


def test_branches_and_table_properties_extend_the_retention(
    iceberg: Run, native: Callable[[Run], Table]
) -> None:
    iceberg.all(batch_bytes=15_000)
    table = native(iceberg)
    snapshots = names_of(table.snapshots())
    assert len(snapshots) > 4
    with table.manage_snapshots() as changes:
        changes.create_branch(snapshots[1], "audit", min_snapshots_to_keep=2)
    rows = rows_at(table, snapshots[0])
    with table.refresh().transaction() as change:
        change.set_properties({"history.expire.max-snapshot-age-ms": str(11 * DAY_MS)})
    assert maintain(iceberg).versions == 0
    with table.refresh().transaction() as change:
        change.set_properties(
            {
                "history.expire.max-snapshot-age-ms": "1",
                "history.expire.min-snapshots-to-keep": "3",
            }
        )
    maintain(iceberg)
    assert set(names_of(table.refresh().snapshots())) == {*snapshots[:2], *snapshots[-3:]}
    assert rows_at(table, snapshots[0]) == rows


def test_files_are_kept_if_gc_enabled_is_false(
    iceberg: Run, native: Callable[[Run], Table]
) -> None:
    for _ in range(2):
        iceberg.sync(upsert=True).run_batch()
    with native(iceberg).transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    before = iceberg.stray_files()
    assert before
    assert maintain(iceberg).files == 0
    assert iceberg.stray_files() == before


def test_files_with_other_path_forms_and_unknown_files_are_kept(
    iceberg: Run, native: Callable[[Run], Table]
) -> None:
    """Engines write `file:/path` and `file:///path`, and keep their own files in the table's
    folder.
    """
    iceberg.sync().run_batch()
    iceberg.sync().run_batch()
    table = native(iceberg)
    rows = iceberg.rows()
    path = next((iceberg.directory / "default" / "t" / "data").rglob("*.parquet"))
    copy = path.with_name("from-spark.parquet")
    copy.write_bytes(path.read_bytes())
    table.add_files([f"file:{copy}"])
    hint = iceberg.directory / "default" / "t" / "metadata" / "version-hint.text"
    for other in (hint, path.with_name("_SUCCESS"), path.with_name(".part.parquet")):
        other.write_bytes(b"1")
    assert len(iceberg.rows()) > len(rows)
    before = stored(iceberg)
    maintain(iceberg)
    assert {path.suffix for path in before - stored(iceberg)} == {".avro"}
    assert len(iceberg.rows()) > len(rows)


def test_dry_run_reports_what_the_command_deletes(iceberg: Run) -> None:
    """The files are still too new to be deleted."""
    iceberg.sync().run_batch()
    arguments = ("table", "maintain", "t", "--warehouse", str(iceberg.directory))
    shown = invoke(*arguments, "--dry-run", "--json")
    assert json.loads(shown.stdout) == {"versions": 0, "files": 0, "bytes": 0}
    assert invoke(*arguments).stdout == "t: 0 versions and 0 files (0 B) removed\n"
    for flag in ("--snapshot-hours=0.9", "--orphan-hours=47", "--orphan-hours=-1"):
        refused = invoke(*arguments, flag)
        assert refused.exit_code != 0
        assert flag.partition("=")[0] in f"{refused.exception}{refused.output}"


def invoke(*arguments: str) -> Result:
    with patch("penstock.deploy.node.logs.to_stderr"):
        return CliRunner().invoke(app, arguments)


def test_missing_table_is_an_error(run: Run) -> None:
    with pytest.raises(InvalidTable, match="does not exist"):
        run.warehouse.existing("t").maintain(SHORT, now_ms())
