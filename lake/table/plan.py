"""Plan batches and compactions: the offsets of a batch, its tasks, and the files to merge. Pure.

A batch continues each partition where the table ended, without gaps or overlaps. Each offset is in
one task; a task contains slices of one partition, in offset order.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from penstock.lake.fetch.slices import Slice
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.spark.packing import cut
from penstock.lake.table.errors import RecordsLost
from penstock.lake.table.model import CompactionTask, FileEntry, FileTask, group_order

COMPACTION_FILES_MAX = 1_000
"""Maximum number of files to merge, because one task reads all their footers."""


_TASK_NAME = re.compile(r"(\d{5,})-\d{20}-(\d{20})-b\d")
"""Matches the beginning of a file name created by `file_tasks`: partition, first offset, end
offset, batch.
"""


class Bounds(NamedTuple):
    """The log start and the stable end of one partition."""

    start_offset: int
    end_offset: int


def lost_ranges(
    topic: str, next_offsets: Mapping[int, int], bounds: Mapping[int, Bounds]
) -> list[OffsetRange]:
    """Return the ranges that are missing from the table and no longer in the log."""
    return [
        OffsetRange(topic, partition, next_offsets[partition], bound.start_offset)
        for partition, bound in sorted(bounds.items())
        if next_offsets.get(partition, bound.start_offset) < bound.start_offset
    ]


def beyond_end(next_offsets: Mapping[int, int], bounds: Mapping[int, Bounds]) -> list[int]:
    """Return the partitions for which the table contains offsets that are not in the log."""
    return [
        partition
        for partition, bound in sorted(bounds.items())
        if next_offsets.get(partition, 0) > bound.end_offset
    ]


def wanted_ranges(
    topic: str, next_offsets: Mapping[int, int], bounds: Mapping[int, Bounds], *, skip_lost: bool
) -> list[OffsetRange]:
    """Return the ranges that are missing from the table. A new partition begins at its log start.
    Raise RecordsLost unless `skip_lost`.
    """
    ranges: list[OffsetRange] = []
    for partition, (start, end) in sorted(bounds.items()):
        position = next_offsets.get(partition, start)
        if position < start and not skip_lost:
            raise RecordsLost(
                f"{topic}-{partition}: offsets [{position}, {start}) were removed by retention"
                " before they reached the table; continue without them with --skip-lost, and"
                " retain records longer (retention.ms, retention.bytes)"
            )
        position = max(position, start)
        if position < end:
            ranges.append(OffsetRange(topic, partition, position, end))
    return ranges


def cut_batch(slices: Sequence[Slice], bytes_max: int) -> list[Slice]:
    """Return the first part of every partition, proportional to its remaining size, so that all
    reach their ends at the same time.

    Each partition's slices are in offset order. At least one offset of each partition is taken.
    """
    total_bytes = sum(part.size_bytes for part in slices)
    if total_bytes <= bytes_max:
        return list(slices)
    taken: list[Slice] = []
    for _, group in groupby(slices, key=lambda part: part.partition):
        parts = list(group)
        room = max(1, bytes_max * sum(part.size_bytes for part in parts) // total_bytes)
        for part in parts:
            head, rest = _cut(part, room)
            taken.append(head)
            room -= head.size_bytes
            if rest is not None or room <= 0:
                break
    return taken


def end_offsets(base: Mapping[int, int], slices: Iterable[Slice]) -> dict[int, int]:
    """Return the next offsets after these slices."""
    offsets = dict(base)
    for part in slices:
        offsets[part.partition] = max(part.end_offset, offsets.get(part.partition, 0))
    return offsets


def file_tasks(
    slices: Sequence[Slice],
    bytes_max: int,
    prefix: str,
    rejected: Mapping[int, Collection[int]],
    existing: Mapping[int, Sequence[FileEntry]] | None,
) -> list[FileTask]:
    """Return a task for every `bytes_max` of a partition.

    For upserts, `existing` contains the table's files by partition, and partitions are not divided.
    """
    tasks: list[FileTask] = []
    for partition, group in groupby(slices, key=lambda part: part.partition):
        whole = list(group)
        pieces = [whole] if existing is not None else _pieces(whole, bytes_max)
        for parts in pieces:
            name = f"{partition:05}-{parts[0].start_offset:020}-{parts[-1].end_offset:020}-{prefix}"
            files = tuple(existing.get(partition, ())) if existing is not None else ()
            tasks.append(
                FileTask(name, tuple(parts), frozenset(rejected.get(partition, ())), files)
            )
    return tasks


def may_contain(path: str, starts: Mapping[int, int]) -> bool:
    """Return whether a file may contain records of these partitions at or after these offsets. This
    is derived from the file name; names created by other programs and by compactions do not contain
    offsets.
    """
    found = _TASK_NAME.match(path.rpartition("/")[2])
    if found is None:
        return True
    partition, end_offset = map(int, found.groups())
    return partition in starts and end_offset > starts[partition]


def compaction_tasks(
    files: Iterable[FileEntry], target_bytes: int, prefix: str
) -> list[CompactionTask]:
    """Return tasks that merge neighboring files of one group: enough for one file of the target
    size, at least two. Only files smaller than half the target are merged.
    """
    small = sorted(
        (file for file in files if file.is_current and file.size_bytes * 2 < target_bytes),
        key=lambda file: (group_order(file.group), file.first, file.path),
    )
    tasks: list[CompactionTask] = []
    for _, neighbors in groupby(small, key=lambda file: file.group):
        run: list[FileEntry] = []
        size_bytes = 0
        for file in neighbors:
            if run and (
                size_bytes + file.size_bytes > target_bytes or len(run) == COMPACTION_FILES_MAX
            ):
                _close(run, tasks, prefix)
                run, size_bytes = [], 0
            run.append(file)
            size_bytes += file.size_bytes
        _close(run, tasks, prefix)
    return tasks


def _close(run: list[FileEntry], tasks: list[CompactionTask], prefix: str) -> None:
    if len(run) > 1:
        tasks.append(CompactionTask(f"merged-{len(tasks):05}-{prefix}", tuple(run)))


def _pieces(parts: list[Slice], bytes_max: int) -> list[list[Slice]]:
    pieces: list[list[Slice]] = []
    current: list[Slice] = []
    room = bytes_max
    for part in parts:
        rest: Slice | None = part
        while rest is not None:
            head, rest = _cut(rest, max(1, room))
            current.append(head)
            room -= head.size_bytes
            if room <= 0 or rest is not None:
                pieces.append(current)
                current, room = [], bytes_max
    return [*pieces, current] if current else pieces


def _cut(part: Slice, room_bytes: int) -> tuple[Slice, Slice | None]:
    """Return as many offsets of the slice as fit, at least one, and the remaining ones. Bytes and
    records are divided in proportion.
    """
    offsets = part.end_offset - part.start_offset
    count = (
        offsets
        if part.size_bytes <= room_bytes
        else max(1, offsets * room_bytes // part.size_bytes)
    )
    return cut(part, count)
