"""The work of an executor on one task: read a range of the log, write files and report them.

A task converts each record of its slices to exactly one row or dead letter, or raises an error;
`on_error` applies to unreadable records. Files of a failed or repeated attempt are never visible,
because only its result refers to them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from penstock.base.partition_spec import PartitionField
from penstock.lake.arrow.pyarrow_untyped import Array, Table, pa, pc
from penstock.lake.arrow.renew import log_skipped
from penstock.lake.fetch.errors import ReadError
from penstock.lake.fetch.unreadable import DEAD_LETTER, RAISE, check_on_error, raise_unreadable
from penstock.lake.table.errors import InvalidTable
from penstock.lake.table.files import FilePlace, GroupedFiles
from penstock.lake.table.masks import NO_MASKS, Masking
from penstock.lake.table.model import (
    CompactionTask,
    FileEntry,
    FileTask,
    Layout,
    TaskResult,
)
from penstock.lake.table.partition_values import unfit_rows
from penstock.lake.table.registry import decoder_of
from penstock.lake.table.rows import (
    KEY,
    OFFSET,
    newest_by_key,
    read_columns,
    rows_of,
    unreadable_rows,
)
from penstock.lake.table.source import TopicSource
from penstock.lake.table.values import RAW, ValueFormat

ATTEMPT_SEPARATOR = "-a"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncOptions:
    value_format: ValueFormat = RAW
    upsert: bool = False
    partition_by: tuple[PartitionField, ...] | None = None
    """Partition fields in addition to the Kafka partition of upserts. None to use the fields of an
    existing table.
    """

    headers: bool = False
    masking: Masking = NO_MASKS
    from_latest: bool = False
    skip_lost: bool = False
    on_error: str = RAISE
    """How to handle records that cannot be read: raise, skip, or dead-letter."""

    batch_bytes: int = 1 << 30
    """Approximate size of the part of the log in one commit. Upserts keep the newest rows of each
    partition's part in memory.
    """

    file_bytes: int = 256 << 20
    """Approximate size of the part of the log in one file, and the maximum Parquet size of the
    file.
    """

    def __post_init__(self) -> None:
        check_on_error(self.on_error, DEAD_LETTER)
        if self.value_format.unwrap and not self.upsert:
            raise InvalidTable(
                f"change events of {self.value_format.unwrap} update and remove rows: use --mode"
                " upsert, or the config penstock.table.mode=upsert"
            )

    @property
    def layout(self) -> Layout:
        """The layout of the table. Upserts search for a key only in the files of its Kafka
        partition.
        """
        return Layout.of(self.partition_by, upsert=self.upsert)


@dataclass(frozen=True, slots=True)
class ExportJob:
    """The job, which all tasks of a batch share. It is pickled once."""

    source: TopicSource
    options: SyncOptions
    place: FilePlace
    rejects: FilePlace
    layout: Layout
    rejects_layout: Layout

    def __call__(self, task: FileTask, attempt: Callable[[], str]) -> TaskResult:
        name = f"{task.name}{ATTEMPT_SEPARATOR}{attempt()}"
        files = GroupedFiles(self.place, self.layout, name, self.options.file_bytes)
        rejects = GroupedFiles(self.rejects, self.rejects_layout, name, self.options.file_bytes)
        counts = [0, 0, 0]
        removed: list[FileEntry] = []
        if self.options.upsert:
            removed = self._upsert(task, files, rejects, counts)
        else:
            for rows, _ in self._read(task, rejects, counts):
                files.add(rows)
        return TaskResult(tuple(files.close()), tuple(removed), tuple(rejects.close()), *counts)

    def _read(
        self, task: FileTask, rejects: GroupedFiles, counts: list[int]
    ) -> Iterator[tuple[Table, Array]]:
        """Yield rows and offsets of deletes, add dead letters to their files, and count all of
        them.
        """
        decoder, unreadable = decoder_of(self.options.value_format), list[ReadError]()
        on_unreadable = raise_unreadable if self.options.on_error == RAISE else unreadable.append
        # Headers may contain the schema of a framed value.
        columns = read_columns(headers=self.options.headers or self.options.value_format.framed)
        fields, schema = self.layout.fields, self.place.schema
        for batch in self.source.read(task.slices, columns, on_unreadable):
            good, bad, removed = rows_of(
                batch,
                decoder,
                headers=self.options.headers,
                keyed=self.options.upsert,
                rejected=task.rejected,
                partition_column=self.layout.partition_column,
                unfit=lambda good: unfit_rows(good, fields, schema),
            )
            counts[0] += good.num_rows
            counts[1] += bad.num_rows
            self._add_unreadable(task, unreadable, rejects, counts)
            rejects.add(self.options.masking.dead_letters(bad))
            yield self.options.masking.rows(good), removed
        self._add_unreadable(task, unreadable, rejects, counts)

    def _add_unreadable(
        self, task: FileTask, errors: list[ReadError], rejects: GroupedFiles, counts: list[int]
    ) -> None:
        """Convert unreadable records to dead letters, or skip them."""
        if self.options.on_error == DEAD_LETTER:
            rows = unreadable_rows(errors, task.rejected)
            rejects.add(rows)
            counts[1] += rows.num_rows
        else:
            for error in errors:
                counts[2] += (error.end_offset or error.offset) - error.offset
                log_skipped(error)
        errors.clear()

    def _upsert(
        self, task: FileTask, files: GroupedFiles, rejects: GroupedFiles, counts: list[int]
    ) -> list[FileEntry]:
        """Write the newest row of each key, and rewrite files to remove older rows with these keys.
        Return the replaced files.
        """
        newest: Table | None = None
        dead: list[Array] = []
        for rows, gone in self._read(task, rejects, counts):
            newest = newest_by_key(rows if newest is None else pa.concat_tables([newest, rows]))
            dead.append(gone)
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
        """If the file contains any of the keys, write its other rows to a new file."""
        held = self.place.read(file, [KEY]).column(KEY).cast(pa.large_binary())
        if not pc.any(pc.is_in(held, value_set=keys)).as_py():
            return False
        rows = self.place.read(file)
        stale = pc.is_in(rows.column(KEY).cast(pa.large_binary()), value_set=keys)
        kept = rows.filter(pc.invert(stale))
        if file.is_current:
            files.add_to(file.group, kept, file.first)
        else:
            files.add(kept)
        return True


@dataclass(frozen=True, slots=True)
class CompactionJob:
    """Merge small files of one group into one, in the order of their first offsets."""

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
