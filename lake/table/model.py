"""What is planned, written and committed. Values only; they travel between driver and executors.

Invariant: offsets are Kafka's, ends are exclusive. Must not do I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lake.fetch.slices import Slice

Group = tuple[int, ...]
"""The partition values that all rows of a file share, in the order of `Layout.fields`."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a table is partitioned: by the Kafka partition, so that upserts know where a key may be,
    and by the day of the timestamp.
    """

    by_partition: bool = False
    by_day: bool = False


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One data file. native: what the kind of table needs to name it in a commit and to read it."""

    path: str
    row_count: int
    size_bytes: int
    group: Group
    first: tuple[int, int]
    """Lowest partition and offset in it: the order in which compaction joins files."""

    native: Any = None


@dataclass(frozen=True, slots=True)
class TableState:
    """version: changes with every commit, whoever made it. offsets: the next of each partition.
    batch_id: 0 before the first batch.
    """

    version: str
    topic: str = ""
    topic_id: str = ""
    batch_id: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict[int, int])
    commit_ids: frozenset[str] = frozenset()
    """Of recent commits."""


@dataclass(frozen=True, slots=True)
class Commit:
    """Files in and out, and what the table says afterwards; all of it or nothing, and only if the
    table is still as in `base`.

    commit_id: of this attempt to write a batch; it stays the same when the commit is sent again.
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
    """What one executor does in one go: a stretch of one partition, in offset order.

    existing: files of the table that may hold rows which this stretch replaces; only for upserts.
    rejects_from: rows below are in the dead letter table already.
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
    """row_count: records that became rows; rejected_count: records in the dead letter files."""

    added: tuple[FileEntry, ...] = ()
    removed: tuple[FileEntry, ...] = ()
    rejects: tuple[FileEntry, ...] = ()
    row_count: int = 0
    rejected_count: int = 0
