"""Write batches of a topic to a table: read the table's offsets, plan, run tasks, commit.

All state between batches is in the table, so a run may stop at any point, and several may run
concurrently. Dead letters are committed first, with their own offsets. `--from latest` applies to
the first run, which commits the offsets where the table begins.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from penstock.base.log import get_logger
from penstock.lake.arrow.pyarrow_untyped import Schema
from penstock.lake.fetch.slices import Slice
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.table.commits import commit_until_known
from penstock.lake.table.engines import Engine, new_attempt
from penstock.lake.table.errors import (
    BatchExpired,
    CommitConflict,
    OtherTopic,
    TableAhead,
)
from penstock.lake.table.job import ExportJob, SyncOptions
from penstock.lake.table.model import (
    DISCARD_S_MAX,
    FILES_S_MAX,
    PARTITION,
    Commit,
    FileEntry,
    FileTask,
    TableState,
    TaskResult,
)
from penstock.lake.table.partition_values import check_partition_fields
from penstock.lake.table.plan import (
    Bounds,
    beyond_end,
    cut_batch,
    end_offsets,
    file_tasks,
    lost_ranges,
    may_contain,
    wanted_ranges,
)
from penstock.lake.table.registry import decoder_of, with_newest
from penstock.lake.table.rows import REJECTS, row_schema
from penstock.lake.table.source import TopicSource
from penstock.lake.table.tables import ExportTable, delete_unused

_log = get_logger(__name__)

REPLANS_MAX: Final = 20
"""Maximum number of consecutive batches that another run may commit first. The other run makes
progress, so this one may then stop.
"""
AHEAD_READS: Final = 3
AHEAD_READ_INTERVAL_S: Final = 2.0
PARTITIONS_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class BatchReport:
    """The result of one batch, and the offsets of the table after the batch."""

    batch_id: int
    rows: int
    rejected: int
    skipped: int
    """Number of offsets whose records could not be read and were skipped."""

    files: int
    files_replaced: int
    parquet_bytes: int
    log_bytes: int
    offsets: dict[int, int]
    remaining: int
    """Number of known offsets that were not exported."""

    duration_ms: int


class _Overtaken(Exception):
    """Another run has committed first, so plan again."""


class TableSync:
    """Exports a topic to a table and its dead letters to `rejects`. `on_files` receives the number
    of records of each finished task.
    """

    def __init__(
        self,
        source: TopicSource,
        table: ExportTable,
        rejects: ExportTable,
        engine: Engine,
        options: SyncOptions,
        *,
        on_files: Callable[[int], None] = lambda _: None,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """Raise InvalidSchema for an invalid value format."""
        self._source = source
        self._table = table
        self._rejects = rejects
        self._engine = engine
        self._options = options
        self._on_files = on_files
        self._wall_s = wall_s
        self._value_format = options.value_format
        self._refresh_schema()

    def _refresh_schema(self) -> None:
        """Use the columns of the newest schema in the registry, if there is a registry. Raise
        InvalidSchema, RegistryError.
        """
        self._value_format = with_newest(self._options.value_format)
        self._values = decoder_of(self._value_format).schema
        self._masked(row_schema(self._values, headers=self._options.headers), PARTITION)

    def run_batch(self) -> BatchReport | None:
        """Write one batch. Return None if the table is up to date. Raise TableError, the reader's
        errors, ManifestNotFound or the store's errors.
        """
        began = time.monotonic()
        for _ in range(REPLANS_MAX):
            try:
                return self._try_batch(began)
            except _Overtaken:
                continue
        raise CommitConflict(
            f"another run keeps committing to table {self._table.name}: leave the export to it"
        )

    def _try_batch(self, began: float) -> BatchReport | None:
        """Raise _Overtaken if another run committed first."""
        base = self._table.state()
        if not base.batch_id:
            check_partition_fields(self._table.layout.fields, self._row_schema())
        topic_id, bounds = self._bounds_of(self._table, base)
        if not base.batch_id and self._options.from_latest:
            ends = {partition: bound.end_offset for partition, bound in bounds.items()}
            base = self._commit_offsets(base, topic_id, ends)
        ranges = wanted_ranges(
            self._source.topic, base.offsets, bounds, skip_lost=self._options.skip_lost
        )
        lost = lost_ranges(self._source.topic, base.offsets, bounds)
        if lost:
            base = self._skip(base, topic_id, lost)
        slices = cut_batch(self._source.plan(ranges, topic_id), self._options.batch_bytes)
        if not slices:
            return None
        if self._options.value_format.registry is not None:
            self._refresh_schema()  # this includes schemas of records written since the last batch
        base = self._prepare(base)
        known = self._prepare_rejects(topic_id, bounds)
        began_s = self._wall_s()
        results = self._run_tasks(self._tasks(base, known, slices))
        if self._wall_s() - began_s > FILES_S_MAX:
            self._discard(results)
            raise BatchExpired(
                f"the batch for table {self._table.name} took more than a day, so table maintenance"
                " may have removed its files, and it is not committed: reduce --batch-mib, unless"
                " the process was suspended"
            )
        if not self._commit_rejects(known, topic_id, results, slices):
            self._discard(results)
            raise _Overtaken
        # Include empty partitions, so that records lost before the next batch are detected.
        starts = {partition: bound.start_offset for partition, bound in bounds.items()}
        offsets = end_offsets(starts | dict(base.offsets), slices)
        added = [file for result in results for file in result.added]
        removed = [file for result in results for file in result.removed]
        commit = self._commit_of(base, topic_id, offsets, added, removed)
        if not commit_until_known(self._table, commit):
            if self._wall_s() - began_s <= DISCARD_S_MAX:
                self._discard(results)
            raise _Overtaken
        _log.info(
            "batch_committed",
            table=self._table.name,
            batch_id=commit.batch_id,
            files=len(commit.added),
        )
        return _report(commit, results, slices, _remaining(commit.offsets, bounds), began)

    def _bounds_of(self, table: ExportTable, state: TableState) -> tuple[str, Mapping[int, Bounds]]:
        """Return the topic's id and the bounds of its partitions. Raise OtherTopic, or TableAhead
        if the log has lost records: new records at their offsets would never be exported.
        """
        ahead = ""
        for number in range(AHEAD_READS):
            if number:
                time.sleep(AHEAD_READ_INTERVAL_S)  # the store may be a lagging replica
            topic_id, bounds = self._source.bounds()
            self._check_topic(table, state, topic_id)
            partitions = beyond_end(state.offsets, bounds)
            if not partitions:
                return topic_id, bounds
            ahead = ", ".join(
                f"partition {partition} up to offset {state.offsets[partition]}, where the log ends"
                f" at {bounds[partition].end_offset}"
                for partition in partitions[:PARTITIONS_NAMED_MAX]
            )
        raise TableAhead(
            f"table {table.name} contains records of topic {self._source.topic!r} that the log has"
            f" lost: {ahead}. Their offsets are used again for other records, so export the topic"
            " to another table with `--table NAME`, or drop the table and its dead letter table"
        )

    def _prepare_rejects(self, topic_id: str, bounds: Mapping[int, Bounds]) -> TableState:
        known = self._rejects.state()
        # Check this before any change, because this may be the table of another topic.
        self._check_topic(self._rejects, known, topic_id)
        if beyond_end(known.offsets, bounds):
            self._bounds_of(self._rejects, known)
        self._rejects.prepare(REJECTS)
        return known

    def _check_topic(self, table: ExportTable, state: TableState, topic_id: str) -> None:
        """Raise OtherTopic if the table or its dead letters contain another topic, whose offsets
        are meaningless for this one.
        """
        if state.topic_id and state.topic_id != topic_id:
            topic = self._source.topic
            raise OtherTopic(table.name, topic, topic_id, state.topic, state.topic_id)

    def _prepare(self, base: TableState) -> TableState:
        """Upgrade the layout and add missing columns, each in a separate commit, and return the
        resulting state. Raise _Overtaken if the offsets have changed.
        """
        self._table.upgrade()
        self._table.prepare(self._row_schema())
        found = self._table.state()
        if not found.is_where(base):
            raise _Overtaken
        return found

    def _row_schema(self) -> Schema:
        column = self._table.layout.partition_column
        return self._masked(
            row_schema(self._values, headers=self._options.headers, partition_column=column), column
        )

    def _masked(self, schema: Schema, partition_column: str) -> Schema:
        """Return the masked schema. Raise InvalidTable for a mask that does not apply."""
        return self._options.masking.schema(
            schema, partition_column=partition_column, keyed=self._options.upsert
        )

    def _commit_offsets(
        self, base: TableState, topic_id: str, offsets: Mapping[int, int]
    ) -> TableState:
        """Commit offsets without rows, and return the resulting state. Raise _Overtaken."""
        commit = self._commit_of(self._prepare(base), topic_id, offsets)
        if not commit_until_known(self._table, commit):
            raise _Overtaken
        return self._table.state()

    def _skip(self, base: TableState, topic_id: str, lost: list[OffsetRange]) -> TableState:
        """Commit that the table continues after lost records, so that later runs do not report them
        again.
        """
        offsets = dict(base.offsets) | {item.partition: item.end_offset for item in lost}
        state = self._commit_offsets(base, topic_id, offsets)
        for item in lost:
            _log.warning(
                "lost_records_skipped",
                table=self._table.name,
                topic=item.topic,
                partition=item.partition,
                from_offset=item.start_offset,
                to_offset=item.end_offset,
            )
        return state

    def _tasks(self, base: TableState, known: TableState, slices: list[Slice]) -> list[FileTask]:
        existing: dict[int, list[FileEntry]] | None = None
        if self._options.upsert:
            existing = {}
            for file in self._table.files():
                if file.kafka_partition is not None:
                    existing.setdefault(file.kafka_partition, []).append(file)
        rejected = self._rejected(known, slices)
        return file_tasks(
            slices, self._options.file_bytes, f"b{base.batch_id + 1}", rejected, existing
        )

    def _rejected(self, known: TableState, slices: list[Slice]) -> dict[int, set[int]]:
        """Return, by partition, the offsets of dead letters in these slices that were committed by
        a run that ended without committing the rows. That run may have used a different schema.
        """
        starts: dict[int, int] = {}
        for part in slices:
            if part.start_offset < known.offsets.get(part.partition, 0):
                starts.setdefault(part.partition, part.start_offset)
        found: dict[int, set[int]] = {partition: set() for partition in starts}
        for file in self._rejects.files() if starts else ():
            if not may_contain(file.path, starts):
                continue
            rows = self._rejects.place().read(file, ["partition", "offset"])
            for partition, offset in zip(
                rows.column("partition").to_pylist(), rows.column("offset").to_pylist(), strict=True
            ):
                if partition in starts and offset >= starts[partition]:
                    found[partition].add(offset)
        return found

    def _run_tasks(self, tasks: list[FileTask]) -> list[TaskResult]:
        job = ExportJob(
            self._source,
            replace(self._options, value_format=self._value_format),
            self._table.place(),
            self._rejects.place(),
            self._table.layout,
            self._rejects.layout,
        )
        results: list[TaskResult] = []
        try:
            for result in self._engine.map(job, tasks):
                results.append(result)
                self._on_files(result.row_count + result.rejected_count)
        except Exception:
            self._discard(results)
            raise
        return results

    def _commit_rejects(
        self, known: TableState, topic_id: str, results: list[TaskResult], slices: list[Slice]
    ) -> bool:
        added = [file for result in results for file in result.rejects]
        if not added:
            return True
        ends = end_offsets({}, slices)
        offsets = dict(known.offsets) | {
            partition: max(end, known.offsets.get(partition, 0)) for partition, end in ends.items()
        }
        commit = self._commit_of(self._rejects.state(), topic_id, offsets, added)
        return commit.base.is_where(known) and commit_until_known(self._rejects, commit)

    def _commit_of(
        self,
        base: TableState,
        topic_id: str,
        offsets: Mapping[int, int],
        added: Sequence[FileEntry] = (),
        removed: Sequence[FileEntry] = (),
    ) -> Commit:
        return Commit(
            new_attempt(),
            base,
            self._source.topic,
            topic_id,
            base.batch_id + 1,
            offsets,
            added,
            removed,
        )

    def _discard(self, results: list[TaskResult]) -> None:
        """Delete files that no commit references now or later. Dead letters may have been committed
        although the rows were not.
        """
        self._rejects.state()
        delete_unused(self._table, [file for result in results for file in result.added])
        delete_unused(self._rejects, [file for result in results for file in result.rejects])


def _remaining(offsets: Mapping[int, int], bounds: Mapping[int, Bounds]) -> int:
    return sum(
        max(0, bound.end_offset - offsets.get(partition, bound.start_offset))
        for partition, bound in bounds.items()
    )


def _report(
    commit: Commit, results: list[TaskResult], slices: list[Slice], remaining: int, began: float
) -> BatchReport:
    return BatchReport(
        commit.batch_id,
        sum(result.row_count for result in results),
        sum(result.rejected_count for result in results),
        sum(result.skipped_count for result in results),
        len(commit.added),
        len(commit.removed),
        sum(file.size_bytes for file in commit.added),
        sum(part.size_bytes for part in slices),
        dict(commit.offsets),
        remaining,
        int((time.monotonic() - began) * 1_000),
    )
