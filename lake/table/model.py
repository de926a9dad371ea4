"""Values that are planned, written and committed, and sent between driver and executors.

Invariant: offsets are Kafka's, ends are exclusive. There is no I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.base.partition_spec import IDENTITY, PartitionField
from penstock.lake.fetch.slices import Slice

PARTITION: Final = "_kafka_partition"
OLDER_PARTITION: Final = "_partition"
"""Column of the Kafka partition. Layout version 1 used `OLDER_PARTITION`, a name that Iceberg
reserves.
"""

LAYOUT_VERSION: Final = 2
"""Version of the column names. Version 1 has `OLDER_PARTITION`."""

FILES_S_MAX: Final = 86_400.0
"""Uncommitted files of this age are never committed, because maintenance may have deleted them:
Penstock's (`base.table_configs`) or Spark's `remove_orphan_files`, which refuses to delete younger
files.
"""

DISCARD_S_MAX: Final = 1_800.0
"""Files of a failed commit are not deleted after this time, which is half the shortest retention of
snapshots: an earlier attempt may have succeeded although its snapshot has expired.
"""

MISSING: Final = ("", "0")
"""Version of a table that has no commits."""

Group = tuple[Any, ...]
"""The partition values that all rows of a file share, in the order of `Layout.fields`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The partitioning of a table. With `upsert`, the Kafka partition comes first, which limits the
    files that may contain a key.

    `keeps_existing`: whether an existing table may have other fields.
    """

    fields: tuple[PartitionField, ...] = ()
    upsert: bool = False
    partition_column: str = PARTITION
    keeps_existing: bool = False

    @classmethod
    def of(
        cls,
        fields: tuple[PartitionField, ...] | None,
        *,
        upsert: bool,
    ) -> "Layout":
        """Return a layout for the mode. `fields`: None keeps the fields of an existing table."""
        partition = PartitionField(IDENTITY, PARTITION)
        others = tuple(field for field in fields or () if field != partition)
        return cls(
            (partition, *others) if upsert else fields or (),
            upsert,
            keeps_existing=fields is None,
        )

    def has_fields_of(self, other: "Layout") -> bool:
        """Return whether both layouts have the same fields, in any order."""
        return {str(field) for field in self.fields} == {
            str(field) for field in other.with_partition_column(self.partition_column).fields
        }

    def with_partition_column(self, name: str) -> "Layout":
        """Return the layout with a different name for the column of the Kafka partition."""
        fields = (
            replace(field, column=name) if field.column == self.partition_column else field
            for field in self.fields
        )
        return replace(self, fields=tuple(fields), partition_column=name)

    def partition_of(self, group: Group) -> int | None:
        """Return the Kafka partition of a group, if the table is partitioned by it."""
        partition = PartitionField(IDENTITY, self.partition_column)
        return group[self.fields.index(partition)] if partition in self.fields else None


def group_order(group: Group) -> tuple[tuple[bool, Any], ...]:
    """Return a key that sorts groups of one partitioning: nulls come first."""
    return tuple((value is not None, value) for value in group)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One data file. `native` is the representation that this type of table uses to commit and read
    it.
    """

    path: str
    row_count: int
    size_bytes: int
    group: Group
    first: tuple[int, int]
    """The lowest partition and offset in the file. Compaction merges files in this order."""

    native: Any = None
    kafka_partition: int | None = None
    """The Kafka partition of all rows, if the table is partitioned by it."""

    is_current: bool = True
    """Whether `group` belongs to the current partitioning. Otherwise the file is unchanged until an
    upsert rewrites it.
    """

    delete_paths: frozenset[str] = frozenset()
    """Files of other engines that delete rows of this file."""


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of a table. `version` changes with every commit of any writer. `offsets` are the
    next offsets of each partition. `batch_id` is 0 before the first batch.
    """

    version: str
    topic: str = ""
    topic_id: str = ""
    batch_id: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict[int, int])
    commit_ids: frozenset[str] = frozenset()
    """The ids of recent commits."""

    @property
    def exists(self) -> bool:
        return self.version not in MISSING

    def is_where(self, other: "TableState") -> bool:
        """Return whether both states contain the same batches."""
        return self.batch_id == other.batch_id and dict(self.offsets) == dict(other.offsets)


@dataclass(frozen=True, slots=True)
class Retention:
    """How long to keep versions and files that a table no longer needs, in milliseconds. None means
    forever.
    """

    versions_ms: int | None = None
    """Retention of replaced versions, which time travel and running queries need."""

    orphans_ms: int | None = None
    """Retention of files that no version references, counted from when they were written, because a
    running batch may commit them.
    """


@dataclass(frozen=True, slots=True)
class Maintained:
    """The number of removed versions (snapshots, or commits of the log) and files."""

    versions: int = 0
    files: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Commit:
    """Files to add and remove, and the new state of the table. It is committed as a whole, and only
    if the table is still in the state `base`.

    `commit_id` identifies this attempt to write a batch; it is unchanged if the commit is retried.
    """

    commit_id: str
    base: TableState
    topic: str
    topic_id: str
    batch_id: int
    offsets: Mapping[int, int]
    added: Sequence[FileEntry] = ()
    removed: Sequence[FileEntry] = ()


@dataclass(frozen=True, slots=True)
class FileTask:
    """The work of one executor: a range of one partition, in offset order.

    `existing`: files of the table that may contain replaced rows; only for upserts. `rejected`:
    offsets of dead letters that are already in the dead letter table.
    """

    name: str
    slices: tuple[Slice, ...]
    rejected: frozenset[int] = frozenset()
    existing: tuple[FileEntry, ...] = ()

    @property
    def size_bytes(self) -> int:
        return sum(part.size_bytes for part in self.slices) + sum(
            file.size_bytes for file in self.existing
        )


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Small files of one group that are merged into one."""

    name: str
    files: tuple[FileEntry, ...]

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The files of a task, and its numbers of rows, dead letters and skipped unreadable offsets."""

    added: tuple[FileEntry, ...] = ()
    removed: tuple[FileEntry, ...] = ()
    rejects: tuple[FileEntry, ...] = ()
    row_count: int = 0
    rejected_count: int = 0
    skipped_count: int = 0
