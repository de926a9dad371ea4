"""Run exports to both table formats, and make tables fail or stop at chosen points."""

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.lake.arrow.cluster import StoreCluster
from penstock.lake.table.engines import Engine, LocalEngine
from penstock.lake.table.job import SyncOptions
from penstock.lake.table.model import OLDER_PARTITION, Commit, Layout
from penstock.lake.table.source import TopicSource
from penstock.lake.table.sync import BatchReport, TableSync
from penstock.lake.table.tables import ExportTable
from penstock.lake.table.values import ValueFormat
from penstock.lake.table.warehouse import Warehouse
from tests.support.table_log import SCHEMA, Log
from tests.support.waiting import PATIENCE_S

JSON = ValueFormat("json", SCHEMA)
SMALL = 20_000
"""Bytes of the log per batch. The test's topic has several batches."""


class Stopped(BaseException):
    """Simulates the end of the process. This is a BaseException, so that no handler catches it."""


class Watched:
    """A table with a hook before and after each commit."""

    def __init__(
        self, table: ExportTable, before: Callable[[Commit], None], after: Callable[[Commit], None]
    ) -> None:
        self._table = table
        self._before = before
        self._after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def commit(self, commit: Commit) -> None:
        self._before(commit)
        self._table.commit(commit)
        self._after(commit)


class OlderIcebergTable(Watched):
    """An existing table, exported with layout version 1."""

    def upgrade(self) -> None: ...

    def prepare(self, _: Any) -> None: ...


def nothing(_: Commit) -> None: ...


@dataclass
class Run:
    """One warehouse and one log."""

    log: Log
    directory: Path
    kind: str
    engine: Engine = field(default_factory=lambda: LocalEngine(2))
    catalog_name: str = "penstock"
    wall_s: Callable[[], float] = time.time

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(
            kind=self.kind, location=str(self.directory), catalog_name=self.catalog_name
        )

    def sync(
        self,
        *,
        before: Callable[[Commit], None] = nothing,
        after: Callable[[Commit], None] = nothing,
        rejects_after: Callable[[Commit], None] = nothing,
        older: bool = False,
        **options: Any,
    ) -> TableSync:
        """Export. With `older`, use layout version 1, for which an Iceberg table must exist."""
        given = SyncOptions(**({"value_format": JSON, "batch_bytes": SMALL} | options))
        layout = given.layout.with_partition_column(OLDER_PARTITION) if older else given.layout
        kind = OlderIcebergTable if older and self.kind == "iceberg" else Watched
        table = kind(self.warehouse.table("t", layout), before, after)
        rejects = Watched(
            self.warehouse.table("t__dlq", Layout(keeps_existing=True)), nothing, rejects_after
        )
        return TableSync(
            TopicSource(StoreCluster(self.log.store_url), "t"),
            table,
            rejects,
            self.engine,
            given,
            wall_s=self.wall_s,
        )

    def all(self, **options: Any) -> list[BatchReport]:
        """Export until the table contains all records."""
        sync, reports = self.sync(**options), []
        while (report := sync.run_batch()) is not None:
            reports.append(report)
        return reports

    def three_at_once(self, **options: Any) -> None:
        """Run three exports at once; raise the first error."""
        barrier = threading.Barrier(3)

        def work() -> None:
            barrier.wait(PATIENCE_S)
            self.all(**options)

        with ThreadPoolExecutor(3) as threads:
            for run in [threads.submit(work) for _ in range(3)]:
                run.result(PATIENCE_S)

    def rows(self, name: str = "t") -> list[dict[str, Any]]:
        names = {known.rpartition(".")[2] for known in self.warehouse.tables()}
        return self.warehouse.read(name, 1 << 30).to_pylist() if name in names else []

    def rows_of_files(self) -> list[dict[str, Any]]:
        """Return the rows of the data files, read directly."""
        table = self.warehouse.existing("t")
        table.state()
        return [row for file in table.files() for row in table.place().read(file).to_pylist()]

    def check(self) -> None:
        """Check that rows and dead letters equal the sent records in all fields, without
        duplicates.
        """
        rows = {(row["_kafka_partition"], row["_offset"]): row for row in self.rows()}
        rejects = {(row["partition"], row["offset"]): row for row in self.rows("t__dlq")}
        assert len(rows) == len(self.rows())
        assert len(rejects) == len(self.rows("t__dlq"))
        good = [
            record for record in self.log.sent if record.value is None or record.row is not None
        ]
        bad = [
            record for record in self.log.sent if record.value is not None and record.row is None
        ]
        assert bad
        assert rows.keys() == {(record.partition, record.offset) for record in good}
        assert rejects.keys() == {(record.partition, record.offset) for record in bad}
        for record in good:
            check_row(rows[record.partition, record.offset], record)
        for record in bad:
            reject = rejects[record.partition, record.offset]
            assert (reject["topic"], reject["key"], reject["value"]) == (
                "t",
                record.key,
                record.value,
            )
            assert "DecodeError" in reject["error"] or "ValidationError" in reject["error"]

    def stray_files(self) -> set[str]:
        """Return the names of files that no table refers to. Dead letters have the same names as
        the rows.
        """
        strays: set[str] = set()
        for name in ("t", "t__dlq"):
            table = self.warehouse.existing(name)
            table.state()
            named = {file.path.rpartition("/")[2] for file in table.files()}
            written = self.directory.rglob(f"{name}/data/**/*.parquet")
            strays |= {f"{name}/{path.name}" for path in written if path.name not in named}
        return strays

    def state_offsets(self) -> dict[int, int]:
        return dict(self.warehouse.existing("t").state().offsets)

    def ends(self) -> dict[int, int]:
        return dict(Counter(record.partition for record in self.log.sent))


@dataclass
class RestRun(Run):
    """A run with a REST catalog, whose own warehouse is the directory."""

    url: str = ""
    properties: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def warehouse(self) -> Warehouse:
        return Warehouse(
            kind=self.kind,
            location=str(self.directory),
            catalog_type="rest",
            catalog_uri=self.url,
            catalog_properties=self.properties,
        )


def check_row(row: dict[str, Any], record: Any) -> None:
    sent = record.row or {}
    assert (row["_topic"], row["_key"]) == ("t", record.key)
    assert int(row["_timestamp"].timestamp() * 1000) == record.timestamp_ms
    assert {name: row[name] for name in ("n", "name", "tags", "at")} == {
        name: sent.get(name) for name in ("n", "name", "tags", "at")
    }
