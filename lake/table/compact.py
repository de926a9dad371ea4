"""Merge small files into large ones, possibly during an export.

Rows and offsets do not change. A rewrite conflicts with a new batch or another rewrite only if they
replace the same files; such parts are skipped. Replaced files are kept for readers of older
versions. Source: Iceberg's `rewrite_data_files`.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from penstock.lake.table.commits import commit_until_known
from penstock.lake.table.engines import Engine, new_attempt
from penstock.lake.table.errors import BatchExpired, CommitConflict
from penstock.lake.table.job import CompactionJob
from penstock.lake.table.model import DISCARD_S_MAX, FILES_S_MAX, Commit, FileEntry, TaskResult
from penstock.lake.table.plan import compaction_tasks
from penstock.lake.table.settle import versions_of
from penstock.lake.table.tables import ExportTable, delete_unused

TARGET_BYTES: Final = 256 << 20
ROUNDS_MAX: Final = 3
"""Maximum number of attempts, each based on the current table."""


@dataclass(frozen=True, slots=True)
class CompactReport:
    files_before: int
    files_after: int
    files_replaced: int = 0
    files_written: int = 0
    rows: int = 0
    duration_ms: int = 0
    conflicts: int = 0
    """The number of merges that were skipped because their files were replaced in the meantime."""


def compact(
    table: ExportTable,
    engine: Engine,
    target_bytes: int = TARGET_BYTES,
    on_files: Callable[[int], None] = lambda _: None,
    *,
    wall_s: Callable[[], float] = time.time,
) -> CompactReport:
    """Merge small files in one commit. `target_bytes` is the size of Parquet files. Raise
    CommitConflict if other writers repeatedly replace files of every merge, and BatchExpired.
    """
    began = time.monotonic()
    conflicts = 0
    for _ in range(ROUNDS_MAX):
        base = table.state()
        files = table.files()
        tasks = compaction_tasks(files, target_bytes, new_attempt())
        if not tasks:
            duration_ms = int((time.monotonic() - began) * 1_000)
            return CompactReport(len(files), len(files), duration_ms=duration_ms)
        began_s = wall_s()
        results: list[TaskResult] = []
        for result in engine.map(CompactionJob(table.place(), table.layout, target_bytes), tasks):
            results.append(result)
            on_files(result.row_count)
        if wall_s() - began_s > FILES_S_MAX:
            delete_unused(table, _added(results))
            raise BatchExpired(
                f"the compaction of table {table.name} took more than a day, so table maintenance"
                " may have removed its files: it is not committed; start it again"
            )
        while results:
            removed = [file for result in results for file in result.removed]
            added = _added(results)
            commit = Commit(
                new_attempt(),
                base,
                base.topic,
                base.topic_id,
                base.batch_id,
                base.offsets,
                added,
                removed,
            )
            if commit_until_known(table, commit, is_rewrite=True):
                return CompactReport(
                    len(files),
                    len(files) - len(removed) + len(added),
                    len(removed),
                    len(added),
                    sum(result.row_count for result in results),
                    int((time.monotonic() - began) * 1_000),
                    conflicts,
                )
            base = table.state()
            live = versions_of(table.files())
            stale = [result for result in results if not versions_of(result.removed) <= live]
            stale = stale or results
            if wall_s() - began_s <= DISCARD_S_MAX:
                delete_unused(table, _added(stale))
            conflicts += len(stale)
            results = [result for result in results if result not in stale]
    raise CommitConflict(f"other processes keep rewriting the files of table {table.name}")


def _added(results: Iterable[TaskResult]) -> list[FileEntry]:
    return [file for result in results for file in result.added]
