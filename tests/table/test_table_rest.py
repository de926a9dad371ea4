"""Export to tables of Apache Iceberg's REST catalog, also with lost commit responses and with
several runs on one table.
"""

from pathlib import Path

import pytest

from penstock.lake.table import commits
from penstock.lake.table.catalog import TIMEOUT
from penstock.lake.table.compact import compact
from penstock.lake.table.errors import CommitUnknown
from penstock.lake.table.model import Commit
from penstock.lake.table.query import query
from penstock.lake.table.values import ValueFormat
from tests.support.http_gateway import Asked, Fate, HttpGateway
from tests.support.rest_catalog import RestCatalog, rows_by_java
from tests.support.table_log import Log
from tests.support.table_runs import RestRun

NARROW = ValueFormat(
    "json", b'{"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}'
)


@pytest.fixture
def run(log: Log, tmp_path: Path, gateway: HttpGateway) -> RestRun:
    return RestRun(log, tmp_path / "warehouse", "iceberg", url=gateway.url)


def test_table_of_a_rest_catalog_contains_all_records(run: RestRun, catalog: RestCatalog) -> None:
    """Several runs export; pyiceberg and Iceberg's Java client read the table."""
    assert run.sync().run_batch() is not None
    assert run.sync().run_batch() is not None
    assert len(run.all()) > 1
    run.check()
    assert run.state_offsets() == run.ends()
    rows = run.rows()
    assert query(run.warehouse, "SELECT count(*) AS c FROM t").to_pylist() == [{"c": len(rows)}]
    assert rows_by_java(catalog.url, "default.t") == sorted(
        (row["_kafka_partition"], row["_offset"], row["n"]) for row in rows
    )
    assert run.all() == []


@pytest.mark.parametrize("lost", [Fate.TIMED_OUT, Fate.CUT])
def test_commit_with_a_lost_response_counts_once(
    run: RestRun, gateway: HttpGateway, lost: Fate
) -> None:
    """Every second response is lost, starting with that to the creation of the table."""
    counts: dict[str, int] = {}

    def lose(requested: Asked) -> Fate:
        if not requested.is_commit("t") and not requested.is_commit("t__dlq"):
            return Fate.FORWARDED
        counts[requested.path] = counts.get(requested.path, 0) + 1
        return lost if counts[requested.path] % 2 else Fate.FORWARDED

    gateway.decide = lose
    run.all()
    assert min(counts.values()) > 4
    gateway.decide = lambda _: Fate.FORWARDED
    run.check()
    assert run.state_offsets() == run.ends()
    assert run.stray_files() == set()


def test_concurrent_runs_share_the_work(run: RestRun) -> None:
    run.three_at_once()
    run.check()
    assert run.state_offsets() == run.ends()
    assert run.stray_files() == set()


def test_batch_continues_on_top_of_a_commit_of_another_writer(
    run: RestRun, gateway: HttpGateway
) -> None:
    assert run.sync(file_bytes=2_000).run_batch() is not None

    def interfere(commit: Commit) -> None:
        if commit.batch_id == 2 and not conflicts:
            conflicts.append(commit)
            assert compact(run.warehouse.existing("t"), run.engine).files_replaced > 0

    conflicts: list[Commit] = []
    run.all(before=interfere)
    assert conflicts
    assert 409 in gateway.statuses
    run.check()
    assert run.state_offsets() == run.ends()


@pytest.mark.parametrize("lost", [Fate.TIMED_OUT, Fate.CUT])
def test_new_columns_are_added_once_if_the_response_is_lost(
    run: RestRun, gateway: HttpGateway, lost: Fate
) -> None:
    first = run.sync(value_format=NARROW).run_batch()
    assert first is not None
    lost_responses: list[Asked] = []

    def lose(requested: Asked) -> Fate:
        if requested.is_commit("t") and not lost_responses:
            lost_responses.append(requested)
            return lost
        return Fate.FORWARDED

    gateway.decide = lose
    run.all()
    assert lost_responses
    rows = run.rows()
    assert len({(row["_kafka_partition"], row["_offset"]) for row in rows}) == len(rows)
    assert len(rows) + len(run.rows("t__dlq")) == len(run.log.sent)
    assert list(rows[0])[-4:] == ["n", "name", "tags", "at"]
    later = [row for row in rows if row["_offset"] >= first.offsets[row["_kafka_partition"]]]
    assert any(row["name"] for row in later)
    assert not any(row["name"] for row in rows if row not in later)


def test_export_waits_for_a_catalog_that_restarts_during_a_commit(
    run: RestRun, gateway: HttpGateway
) -> None:
    """The catalog cuts the response to a commit, and is then unavailable for longer than a request
    is retried.
    """
    refused: list[Asked] = []

    def restart(requested: Asked) -> Fate:
        if refused and len(refused) < 10:
            refused.append(requested)
            return Fate.UNAVAILABLE
        if requested.is_commit("t") and not refused:
            refused.append(requested)
            return Fate.CUT
        return Fate.FORWARDED

    assert run.sync().run_batch() is not None
    gateway.decide = restart
    run.all()
    assert len(refused) == 10
    run.check()
    assert run.state_offsets() == run.ends()
    assert run.stray_files() == set()


def test_commit_is_looked_up_if_the_catalog_does_not_respond(
    log: Log, tmp_path: Path, gateway: HttpGateway
) -> None:
    """The catalog executes the commit but sends no response."""
    silent: list[Asked] = []

    def be_silent(requested: Asked) -> Fate:
        if requested.is_commit("t") and len(silent) < 2:
            silent.append(requested)
            return Fate.SILENT
        return Fate.FORWARDED

    gateway.decide = be_silent
    properties = {TIMEOUT: "6"}
    run = RestRun(log, tmp_path / "warehouse", "iceberg", url=gateway.url, properties=properties)
    run.all()
    assert len(silent) == 2
    run.check()
    assert run.state_offsets() == run.ends()


def test_commit_with_an_unknown_outcome_loses_and_repeats_no_record(
    run: RestRun, gateway: HttpGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The catalog cuts the response to a commit, and is unavailable until the run gives up."""
    monkeypatch.setattr(commits, "TRIES_MAX", 2)
    gone: list[Asked] = []

    def go_away(requested: Asked) -> Fate:
        if gone or requested.is_commit("t"):
            gone.append(requested)
            return Fate.UNAVAILABLE if len(gone) > 1 else Fate.CUT
        return Fate.FORWARDED

    assert run.sync().run_batch() is not None
    gateway.decide = go_away
    with pytest.raises(CommitUnknown, match=r"table default\.t succeeded: the catalog at http"):
        run.all()
    gateway.decide = lambda _: Fate.FORWARDED
    run.all()
    run.check()
    assert run.state_offsets() == run.ends()
