"""The work of an executor on one task: read a range of the log, write files, and report them. The
same code runs in a thread and in Spark.

Invariants: a task turns each offset of its slices into exactly one row or dead letter, or raises.
Only its result names the files it wrote, so files of a failed or repeated attempt are never
visible. Bytes stay in the executor: a result has some hundred bytes per file.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.lake.arrow.pyarrow_untyped import Array, pa
from penstock.lake.table.files import FilePlace, GroupedFiles
from penstock.lake.table.model import (
    CompactionTask,
    FileEntry,
    FileTask,
    Layout,
    TaskResult,
)
from penstock.lake.table.pyarrow_untyped import Table, pc
from penstock.lake.table.rows import (
    KEY,
    OFFSET,
    newest_by_key,
    read_columns,
    rows_of,
    tombstones,
)
from penstock.lake.table.source import TopicSource
from penstock.lake.table.values import ValueDecoder, ValueFormat

ATTEMPT_SEPARATOR = "-a"


@dataclass(frozen=True, slots=True)
class ExportJob:
    """The same for all tasks of a batch; pickled once."""

    source: TopicSource
    value_format: ValueFormat
    place: FilePlace
    rejects: FilePlace
    layout: Layout
    upsert: bool
    headers: bool
    file_bytes: int

    def __call__(self, task: FileTask, attempt: Callable[[], str]) -> TaskResult:
        name = f"{task.name}{ATTEMPT_SEPARATOR}{attempt()}"
        files = GroupedFiles(self.place, self.layout, name, self.file_bytes)
        rejects = GroupedFiles(self.rejects, Layout(), name, self.file_bytes)
        counts = [0, 0]
        removed: list[FileEntry] = []
        if self.upsert:
            removed = self._upsert(task, files, rejects, counts)
        else:
            for rows, bad, _ in self._read(task, counts):
                files.add(rows)
                rejects.add(bad)
        return TaskResult(
            tuple(files.close()), tuple(removed), tuple(rejects.close()), counts[0], counts[1]
        )

    def _read(self, task: FileTask, counts: list[int]) -> Iterator[tuple[Table, Table, Array]]:
        """Yield rows, dead letters, and offsets of tombstones, and count them."""
        decoder = ValueDecoder(self.value_format)
        for batch in self.source.read(task.slices, read_columns(headers=self.headers)):
            good, bad = rows_of(
                batch,
                decoder,
                headers=self.headers,
                keyed=self.upsert,
                rejects_from=task.rejects_from,
            )
            counts[0] += good.num_rows
            counts[1] += bad.num_rows
            yield good, bad, tombstones(batch)

    def _upsert(
        self, task: FileTask, files: GroupedFiles, rejects: GroupedFiles, counts: list[int]
    ) -> list[FileEntry]:
        """Write the newest row of each key, and rewrite files without older rows of those keys.
        Return the replaced files.
        """
        newest: Table | None = None
        dead: list[Array] = []
        for rows, bad, gone in self._read(task, counts):
            newest = newest_by_key(rows if newest is None else pa.concat_tables([newest, rows]))
            dead.append(gone)
            rejects.add(bad)
        if newest is None or not newest.num_rows:
            return []
        keys = pa.chunked_array(
            [chunk.cast(pa.large_binary()) for chunk in newest.column(KEY).chunks],
            pa.large_binary(),
        )
        removed = [file for file in task.existing if self._drop_keys(file, keys, files)]
        files.add(
            newest.filter(
                pc.invert(
                    pc.is_in(newest.column(OFFSET), value_set=pa.chunked_array(dead, pa.int64()))
                )
            )
        )
        return removed

    def _drop_keys(self, file: FileEntry, keys: Array, files: GroupedFiles) -> bool:
        """Write the file's other rows if it has any of the keys."""
        held = self.place.read(file, [KEY]).column(KEY).cast(pa.large_binary())
        if not pc.any(pc.is_in(held, value_set=keys)).as_py():
            return False
        rows = self.place.read(file)
        stale = pc.is_in(rows.column(KEY).cast(pa.large_binary()), value_set=keys)
        files.add_to(file.group, rows.filter(pc.invert(stale)), file.first)
        return True


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """Join small files of one group into one, in the order of their first offsets."""

    place: FilePlace
    layout: Layout
    file_bytes: int

    def __call__(self, task: CompactionTask, attempt: Callable[[], str]) -> TaskResult:
        files = GroupedFiles(
            self.place, self.layout, f"{task.name}{ATTEMPT_SEPARATOR}{attempt()}", self.file_bytes
        )
        row_count = 0
        for file in task.files:
            rows = self.place.read(file)
            row_count += rows.num_rows
            files.add_to(file.group, rows, file.first)
        return TaskResult(tuple(files.close()), task.files, (), row_count)
