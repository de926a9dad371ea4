"""A table contains each record once, even if runs are killed, repeated or concurrent."""

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from structlog.testing import capture_logs

from penstock.base.partition_spec import DAY
from penstock.lake.table.engines import InlineEngine
from penstock.lake.table.errors import BatchExpired, CommitUnknown, RecordsLost
from penstock.lake.table.model import Commit
from penstock.lake.table.plan import Bounds
from penstock.lake.table.source import TopicSource
from penstock.lake.table.values import ValueFormat
from tests.support.table_log import SCHEMA, Log
from tests.support.table_runs import JSON, Run, Stopped, check_row


@pytest.fixture(params=["iceberg", "parquet"])
def run(request: pytest.FixtureRequest, log: Log, tmp_path: Path) -> Run:
    return Run(log, tmp_path / "warehouse", request.param)


@pytest.fixture
def native() -> Iterator[Callable[[Run], Table]]:
    """Open the run's table as other programs do."""
    with ExitStack() as catalogs:

        def opened(run: Run) -> Table:
            catalog = load_catalog("penstock", **run.warehouse.properties())
            return catalogs.enter_context(catalog).load_table("default.t")

        yield opened


def test_table_contains_all_produced_records(run: Run) -> None:
    reports = run.all()
    assert len(reports) > 2
    run.check()
    assert run.state_offsets() == reports[-1].offsets == run.ends()
    assert sum(report.rows for report in reports) == len(run.rows())
    assert [report.batch_id for report in reports] == list(range(1, len(reports) + 1))
    assert run.all() == [], "a second run must have nothing to do"


@pytest.mark.parametrize("where", ["before", "after", "rejects_after"])
def test_run_killed_around_a_commit_is_continued(run: Run, where: str) -> None:
    """The run is stopped between the files and the commit, between the commit and its
    acknowledgment, or between the commits of dead letters and rows.
    """
    count = 0

    def stop(_: Commit) -> None:
        nonlocal count
        count += 1
        if count == 2:
            raise Stopped

    with pytest.raises(Stopped):
        run.all(**{where: stop})
    run.all()
    run.check()
    assert run.state_offsets() == run.ends()
    assert run.stray_files() == set() or where != "after"


@pytest.mark.parametrize("is_stricter", [True, False])
def test_schema_change_between_two_commits_of_a_batch_loses_and_repeats_no_record(
    run: Run, is_stricter: bool
) -> None:
    """A run is killed between the commits of dead letters and of rows, and the schema changes
    before the next run.
    """
    strict = json.loads(SCHEMA)
    strict["required"].append("unknown")
    strict["properties"]["unknown"] = {"type": "integer"}
    formats = [JSON, ValueFormat("json", json.dumps(strict).encode())]
    first, then = formats if is_stricter else reversed(formats)

    def stop(_: Commit) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        run.all(value_format=first, rejects_after=stop)
    run.all(value_format=then)
    rows = [(row["_kafka_partition"], row["_offset"]) for row in run.rows()]
    letters = [(row["partition"], row["offset"]) for row in run.rows("t__dlq")]
    sent = [(record.partition, record.offset) for record in run.log.sent]
    assert sorted(rows + letters) == sorted(sent)


@pytest.mark.parametrize("landed", [True, False])
def test_outcome_of_an_unacknowledged_commit_is_looked_up(run: Run, landed: bool) -> None:
    failures: list[str] = []

    def fail(commit: Commit) -> None:
        if commit.commit_id not in failures:
            failures.append(commit.commit_id)
            raise CommitUnknown("the connection broke")

    reports = run.all(**{"after" if landed else "before": fail})
    assert len(failures) == len(reports)
    run.check()


# pyiceberg does not close a database in which another run creates tables at the same time.
@pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")
def test_concurrent_runs_share_the_work(run: Run) -> None:
    run.three_at_once(batch_bytes=15_000)
    run.check()
    assert run.state_offsets() == run.ends()
    gc.collect()  # so that the next test does not get the warnings


def test_overtaken_run_deletes_its_files(run: Run) -> None:
    """Another run commits the same offsets after this run has written its files."""
    other = Run(run.log, run.directory, run.kind)
    seen: list[Commit] = []

    def overtake(commit: Commit) -> None:
        if not seen:
            seen.append(commit)
            other.all()

    assert run.sync(before=overtake).run_batch() is None
    run.check()
    assert run.stray_files() == set()


def test_files_of_a_commit_that_left_the_table_history_are_kept(
    run: Run, native: Callable[[Run], Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is suspended after its commit, before the response. Meanwhile another run continues and
    the history of the table is shortened.
    """
    monkeypatch.setattr("penstock.lake.table.directory.WHOLE_EVERY", 2)
    other = Run(run.log, run.directory, run.kind)
    seen: list[Commit] = []

    def resume_late(commit: Commit) -> None:
        if seen:
            return
        seen.append(commit)
        assert len(other.all()) > 1
        if run.kind == "iceberg":
            table = native(run)
            current = table.metadata.current_snapshot_id
            table.maintenance.expire_snapshots().by_ids(
                [found.snapshot_id for found in table.snapshots() if found.snapshot_id != current]
            ).commit()
        raise CommitUnknown("no response")

    assert run.sync(after=resume_late).run_batch() is None
    run.check()


def test_batch_suspended_for_days_is_written_again(run: Run) -> None:
    """Maintenance has meanwhile deleted its files, because no commit references them."""
    now_s = [0.0]

    class Suspended(InlineEngine):
        def map(self, job: Any, tasks: Any) -> Iterator[Any]:
            yield from super().map(job, tasks)
            now_s[0] += 86_401
            for path in run.directory.rglob("*.parquet"):
                path.unlink()

    late = replace(run, engine=Suspended(), wall_s=lambda: now_s[0])
    with pytest.raises(BatchExpired, match="more than a day"):
        late.sync().run_batch()
    run.all()
    run.check()


def test_table_without_records_keeps_its_start_offset(run: Run) -> None:
    assert run.all(from_latest=True) == []
    assert run.state_offsets() == run.ends()
    assert run.all() == []
    assert run.rows() == []


def test_lost_records_are_reported_once(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """One partition has lost all records, one has lost some, and one has lost none."""
    assert run.all(from_latest=True) == []
    ends = run.ends()
    bounds = {
        0: Bounds(ends[0] + 7, ends[0] + 7),
        1: Bounds(ends[1] + 7, ends[1] + 9),
        2: Bounds(ends[2], ends[2]),
    }
    real = TopicSource.bounds
    monkeypatch.setattr(TopicSource, "bounds", lambda self: (real(self)[0], bounds))
    monkeypatch.setattr(TopicSource, "plan", lambda self, ranges, topic_id: [])
    with pytest.raises(RecordsLost):
        run.all()
    with capture_logs() as events:
        assert run.all(skip_lost=True) == []
    assert run.state_offsets() == {0: ends[0] + 7, 1: ends[1] + 7, 2: ends[2]}
    skipped = [event for event in events if event["event"] == "lost_records_skipped"]
    assert [(item["partition"], item["from_offset"], item["to_offset"]) for item in skipped] == [
        (0, ends[0], ends[0] + 7),
        (1, ends[1], ends[1] + 7),
    ]
    assert run.all() == [], "without the option, because nothing is lost any more"


@pytest.mark.parametrize("by_day", [False, True])
def test_upserts_keep_the_last_record_of_each_key(run: Run, by_day: bool) -> None:
    reports = run.all(upsert=True, partition_by=(DAY,) if by_day else ())
    assert len(reports) > 2
    expected = run.log.of_key()
    rows = {(row["_kafka_partition"], row["_key"]): row for row in run.rows()}
    assert len(rows) == len(run.rows())
    assert rows.keys() == expected.keys()
    for key, record in expected.items():
        assert rows[key]["_offset"] == record.offset
        check_row(rows[key], record)
    keyless = {(record.partition, record.offset) for record in run.log.sent if record.key is None}
    assert keyless <= {(row["partition"], row["offset"]) for row in run.rows("t__dlq")}


def test_upserts_survive_kills_and_concurrent_runs(run: Run) -> None:
    other = Run(run.log, run.directory, run.kind)
    seen: list[Any] = []

    def overtake(commit: Commit) -> None:
        seen.append(commit)
        if len(seen) == 2:
            assert other.sync(upsert=True).run_batch() is not None
        if len(seen) == 4:
            raise Stopped

    with pytest.raises(Stopped):
        run.all(upsert=True, before=overtake)
    run.all(upsert=True)
    assert {(row["_kafka_partition"], row["_key"]): row["_offset"] for row in run.rows()} == {
        key: record.offset for key, record in run.log.of_key().items()
    }


def test_snapshot_contains_offsets_and_batch_id(
    log: Log, tmp_path: Path, native: Callable[[Run], Table]
) -> None:
    run = Run(log, tmp_path / "warehouse", "iceberg")
    reports = run.all()
    table = native(run)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    reported = snapshot.summary.additional_properties
    assert json.loads(reported["penstock.offsets"]) == {
        "t": {str(partition): end for partition, end in run.ends().items()}
    }
    assert reported["penstock.batch-id"] == str(len(reports))
    assert len(table.metadata.snapshots) == len(reports), "each batch must be one commit"


def test_offsets_survive_other_writers_and_snapshot_expiration(
    log: Log, tmp_path: Path, native: Callable[[Run], Table]
) -> None:
    run = Run(log, tmp_path / "warehouse", "iceberg")
    assert run.sync().run_batch() is not None
    offsets = run.state_offsets()
    table = native(run)
    table.delete("_offset >= 0 AND _kafka_partition = 0")
    assert run.state_offsets() == offsets
    current = table.metadata.current_snapshot_id
    table.maintenance.expire_snapshots().by_ids(
        [found.snapshot_id for found in table.snapshots() if found.snapshot_id != current]
    ).commit()
    assert len(table.refresh().snapshots()) == 1
    assert run.state_offsets() == offsets
    run.all()
    assert run.state_offsets() == run.ends()
    rows = [(row["_kafka_partition"], row["_offset"]) for row in run.rows()]
    assert len(set(rows)) == len(rows)
    assert min(offset for partition, offset in rows if partition == 0) >= offsets[0]


def test_rolled_back_table_is_filled_again(
    log: Log, tmp_path: Path, native: Callable[[Run], Table]
) -> None:
    run = Run(log, tmp_path / "warehouse", "iceberg")
    run.all()
    table = native(run)
    first = table.snapshots()[0].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert set(run.state_offsets().values()) < set(range(300))
    run.all()
    run.check()
