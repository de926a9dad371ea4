"""What is planned, written and committed. These values travel between driver and executors.

Invariant: offsets are Kafka's, ends are exclusive. Must not do I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from penstock.lake.fetch.slices import Slice

PARTITION: Final = "_kafka_partition"
OLDER_PARTITION: Final = "_partition"
"""The column of the Kafka partition, and its name in layout version 1, which Iceberg reserves."""

LAYOUT_VERSION: Final = 2
"""The version of the names of columns. Version 1 has `OLDER_PARTITION`."""

Group = tuple[int, ...]
"""The partition values that all rows of a file share, in the order of `Layout.fields`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The partitioning of a table: by the Kafka partition, so that upserts know where a key may be,
    and by the day of the timestamp.

    Layouts that differ only in `partition_column` are equal.
    """

    by_partition: bool = False
    by_day: bool = False
    partition_column: str = field(default=PARTITION, compare=False)


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One data file. `native` is what the kind of table needs to commit and read it."""

    path: str
    row_count: int
    size_bytes: int
    group: Group
    first: tuple[int, int]
    """The lowest partition and offset in it. Compaction joins files in this order."""

    native: Any = None


@dataclass(frozen=True, slots=True)
class TableState:
    """The state of a table. `version` changes with every commit of any writer. `offsets` are the
    next ones of each partition. `batch_id` is 0 before the first batch.
    """

    version: str
    topic: str = ""
    topic_id: str = ""
    batch_id: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict[int, int])
    commit_ids: frozenset[str] = frozenset()
    """The ids of recent commits."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Files to add and remove, and the new state of the table: all of it or nothing, and only if
    the table is still as in `base`.

    `commit_id` names this attempt to write a batch; it stays the same when the commit is sent
    again.
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

    `existing` are files of the table that may hold replaced rows; only for upserts. Dead letters
    below `rejects_from` are already in their table.
    """

    name: str
    slices: tuple[Slice, ...]
    rejects_from: int
    existing: tuple[FileEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Small files of one group that become one."""

    name: str
    files: tuple[FileEntry, ...]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The files of a task, the number of records that became rows, of those in dead letter files,
    and of offsets that were skipped because they cannot be read.
    """

    added: tuple[FileEntry, ...] = ()
    removed: tuple[FileEntry, ...] = ()
    rejects: tuple[FileEntry, ...] = ()
    row_count: int = 0
    rejected_count: int = 0
    skipped_count: int = 0
