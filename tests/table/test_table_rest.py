"""Export to tables of a REST catalog over HTTP, also when answers to commits get lost or several
runs write to one table.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lake.table.query import query
from lake.table.warehouse import Warehouse
from tests.support.rest_catalog import Lost, RestCatalog, rest_catalog
from tests.support.table_log import Log
from tests.support.table_runs import Run


@dataclass
class RestRun(Run):
    url: str = ""

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(
            kind=self.kind, location=str(self.directory), catalog_type="rest", catalog_uri=self.url
        )


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[RestCatalog]:
    with rest_catalog(tmp_path / "warehouse") as started:
        yield started


@pytest.fixture
def run(log: Log, tmp_path: Path, catalog: RestCatalog) -> RestRun:
    return RestRun(log, tmp_path / "warehouse", "iceberg", url=catalog.url)


def test_a_table_of_a_rest_catalog_has_all_records(run: RestRun) -> None:
    assert len(run.all()) > 2
    run.check()
    assert run.state_offsets() == run.ends()
    assert query(run.warehouse, "SELECT count(*) AS c FROM t").to_pylist() == [
        {"c": len(run.rows())}
    ]
    assert run.all() == []


@pytest.mark.parametrize("lost", [Lost.GATEWAY_TIMEOUT, Lost.CONNECTION])
def test_a_commit_whose_answer_is_lost_counts_once(
    run: RestRun, catalog: RestCatalog, lost: Lost
) -> None:
    """Lose every second answer, beginning with the one to the creation of the table."""
    counts: dict[str, int] = {}

    def lose(name: str) -> Lost:
        counts[name] = counts.get(name, 0) + 1
        return lost if counts[name] % 2 else Lost.NOTHING

    catalog.lose = lose
    run.all()
    assert counts["t"] > 4
    catalog.lose = lambda _: Lost.NOTHING
    run.check()
    assert run.state_offsets() == run.ends()
    assert run.stray_files() == set()


def test_runs_at_the_same_time_share_the_work(run: RestRun) -> None:
    run.three_at_once()
    run.check()
    assert run.state_offsets() == run.ends()
    assert run.stray_files() == set()
