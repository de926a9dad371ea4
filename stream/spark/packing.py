"""Slices to tasks: a task costs 60 ms whatever it does, and one that is larger than the others is waited for.

Invariants: the tasks' slices are the given ones, each offset in one task; no task holds more bytes, rows or slices than allowed unless it
is one single offset; slices of an object stay together while they fit. Bytes are those in the store. Order is kept: objects as they first
appear, within them as given. Source: `reference/spark.md` 7.2; for `minPartitions` and `maxRecordsPerPartition` Spark
`KafkaOffsetRangeCalculator`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stream.reader.slices import Slice

SLICES_MAX = 1_000
"""Of one task, which is pickled and sent: about 60 bytes each."""

_SMALL = 8
"""What is smaller than 1/8 of a task is not cut to fill one up: two GETs cost more than a task that is a little smaller."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    bytes_max: int
    rows_max: int | None = None
    """Offsets of one task; None: any number."""

    tasks_min: int = 1


@dataclass(slots=True)
class _Bin:
    bytes_max: int
    rows_max: int
    slices: list[Slice] = field(default_factory=list[Slice])
    bytes: int = 0
    rows: int = 0

    def takes(self, size_bytes: int, rows: int, count: int) -> bool:
        fits = self.bytes + size_bytes <= self.bytes_max and self.rows + rows <= self.rows_max
        return fits and len(self.slices) + count <= SLICES_MAX

    def room(self, part: Slice) -> int:
        """How many offsets of it fit; at least one if nothing is there yet."""
        rows = part.end_offset - part.start_offset
        left_bytes = self.bytes_max - self.bytes
        if left_bytes < 0 or len(self.slices) >= SLICES_MAX:
            return 0
        fitting = rows * left_bytes // part.size_bytes if part.size_bytes > 0 else rows
        fitting = min(rows, fitting, self.rows_max - self.rows)
        return fitting if self.slices else max(1, fitting)

    def add(self, parts: Sequence[Slice], size_bytes: int, rows: int) -> None:
        self.slices += parts
        self.bytes += size_bytes
        self.rows += rows


def pack(slices: Sequence[Slice], limits: TaskLimits) -> list[list[Slice]]:
    """The slices of each task."""
    if not slices:
        return []
    total_bytes = sum(part.size_bytes for part in slices)
    total_rows = sum(part.end_offset - part.start_offset for part in slices)
    tasks = max(limits.tasks_min, -(-total_bytes // limits.bytes_max))
    goal_bytes = max(1, min(limits.bytes_max, total_bytes // tasks + (total_bytes % tasks > 0)))
    rows_max = min(limits.rows_max or total_rows, total_rows)
    done: list[list[Slice]] = []
    current = _Bin(goal_bytes, rows_max)
    for group in _by_object(slices):
        size_bytes, rows = sum(part.size_bytes for part in group), sum(part.end_offset - part.start_offset for part in group)
        if not current.takes(size_bytes, rows, len(group)) and current.slices and size_bytes * _SMALL <= goal_bytes:
            done.append(current.slices)
            current = _Bin(goal_bytes, rows_max)
        if current.takes(size_bytes, rows, len(group)):
            current.add(group, size_bytes, rows)
            continue
        for part in group:
            rest: Slice | None = part
            while rest is not None:
                count = current.room(rest)
                if count > 0:
                    head, rest = cut(rest, count)
                    current.add([head], head.size_bytes, head.end_offset - head.start_offset)
                if rest is not None:
                    done.append(current.slices)
                    current = _Bin(goal_bytes, rows_max)
    done.append(current.slices)
    return done


def cut(part: Slice, count: int) -> tuple[Slice, Slice | None]:
    """Its first `count` > 0 offsets, and what is left. Bytes and records are shared in proportion."""
    rows = part.end_offset - part.start_offset
    if count >= rows:
        return part, None
    middle = part.start_offset + count
    size_bytes, records = part.size_bytes * count // rows, part.record_count * count // rows
    head = replace(part, end_offset=middle, size_bytes=size_bytes, record_count=records)
    tail = replace(part, start_offset=middle, size_bytes=part.size_bytes - size_bytes, record_count=part.record_count - records)
    return head, tail


def _by_object(slices: Sequence[Slice]) -> list[list[Slice]]:
    groups: dict[str, list[Slice]] = {}
    for part in slices:
        groups.setdefault(part.key, []).append(part)
    return list(groups.values())
