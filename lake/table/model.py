"""Values that are planned, written and committed, and sent between driver and executors.

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
    """One data file. `native` is the representation with which this kind of table commits and reads
    it.
    """

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
    next offsets of each partition. `batch_id` is 0 before the first batch.
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
    """Files to add and remove, and the new state of the table: committed as a whole, and only if
    the table is still in the state `base`.

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

    `existing` are files of the table that may contain replaced rows; only for upserts. Dead letters
    below `rejects_from` are already in their table.
    """

    name: str
    slices: tuple[Slice, ...]
    rejects_from: int
    existing: tuple[FileEntry, ...] = ()


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Small files of one group that are merged into one."""

    name: str
    files: tuple[FileEntry, ...]


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The files of a task, and its number of rows, dead letters, and skipped unreadable offsets."""

    added: tuple[FileEntry, ...] = ()
    removed: tuple[FileEntry, ...] = ()
    rejects: tuple[FileEntry, ...] = ()
    row_count: int = 0
    rejected_count: int = 0
    skipped_count: int = 0
