"""Pack slices into tasks. Each task has an overhead of 10 to 60 ms, and the largest task delays the
result.

Source for `minPartitions` and `maxRecordsPerPartition`: Spark `KafkaOffsetRangeCalculator`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from penstock.lake.fetch.slices import Slice, share

SLICES_MAX = 1_000
"""Maximum number of slices in one task. The task is pickled and sent, with about 60 bytes per
slice.
"""

_SMALL = 8
"""An object smaller than 1/8 of a task is not split to fill a task: two GETs are more expensive
than a slightly smaller task, but cheaper than another task.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskLimits:
    bytes_max: int
    rows_max: int | None = None
    """Maximum number of offsets in one task; None for no limit."""

    tasks_min: int = 1

    @property
    def rows_bound(self) -> int:
        return (1 << 63) - 1 if self.rows_max is None else self.rows_max


@dataclass(slots=True)
class _Bin:
    goal_bytes: int
    limits: TaskLimits
    slices: list[Slice] = field(default_factory=list[Slice])
    bytes: int = 0
    rows: int = 0

    def takes(self, parts: Sequence[Slice]) -> bool:
        """Return whether all of these slices fit. Small objects may exceed the goal by half of
        their size. Otherwise, every task would stay slightly below the goal, and the rest would
        require another task, and all other cores would have to wait for it.
        """
        size_bytes, rows = _size_of(parts)
        end_bytes = self.bytes + size_bytes
        near = (
            _is_small(size_bytes, self.goal_bytes)
            and end_bytes - size_bytes // 2 <= self.goal_bytes
        )
        fits = (end_bytes <= self.goal_bytes or near) and end_bytes <= self.limits.bytes_max
        return (
            fits
            and self.rows + rows <= self.limits.rows_bound
            and len(self.slices) + len(parts) <= SLICES_MAX
        )

    def room(self, part: Slice) -> int:
        """Return the number of offsets of the slice that fit; at least one if the task is empty."""
        rows = part.end_offset - part.start_offset
        left_bytes = self.goal_bytes - self.bytes
        if left_bytes < 0 or len(self.slices) >= SLICES_MAX:
            return 0
        fitting = rows * left_bytes // part.size_bytes if part.size_bytes > 0 else rows
        fitting = min(rows, fitting, self.limits.rows_bound - self.rows)
        return fitting if self.slices else max(1, fitting)

    def add(self, parts: Sequence[Slice]) -> None:
        size_bytes, rows = _size_of(parts)
        self.slices += parts
        self.bytes += size_bytes
        self.rows += rows


class _Bins:
    """The tasks being packed. Each task gets its share of the remaining bytes."""

    def __init__(self, slices: Sequence[Slice], limits: TaskLimits) -> None:
        self._left_bytes, rows = _size_of(slices)
        needed = (
            (self._left_bytes, limits.bytes_max),
            (rows, limits.rows_bound),
            (len(slices), SLICES_MAX),
        )
        self._left = max(limits.tasks_min, *(-(-total // most) for total, most in needed))
        self._limits = limits
        self.done: list[list[Slice]] = []
        self.current = self._begin()

    def may_close(self) -> bool:
        """Return whether the task is not empty and the others can accept the rest of its share."""
        return (
            bool(self.current.slices)
            and self._left_bytes - self.current.bytes <= (self._left - 1) * self._limits.bytes_max
        )

    def close(self) -> None:
        self.done.append(self.current.slices)
        self._left_bytes -= self.current.bytes
        self._left -= 1
        self.current = self._begin()

    def _begin(self) -> _Bin:
        share_bytes = -(-self._left_bytes // max(1, self._left))
        return _Bin(max(1, min(self._limits.bytes_max, share_bytes)), self._limits)


def pack(slices: Sequence[Slice], limits: TaskLimits) -> list[list[Slice]]:
    """Return the slices of each task.

    Invariants: the tasks contain the given slices, each offset in one task. No task exceeds the
    limits of bytes, rows or slices unless it has a single offset. The slices of a small object stay
    together unless that would require another task. Bytes are those in the store. The order is
    preserved: objects are in the order of first appearance, and their slices in the given order.
    """
    bins = _Bins(slices, limits)
    for group in _by_object(slices):
        if (
            not bins.current.takes(group)
            and _is_small(_size_of(group)[0], bins.current.goal_bytes)
            and bins.may_close()
        ):
            bins.close()
        if bins.current.takes(group):
            bins.current.add(group)
            continue
        for part in group:
            rest: Slice | None = part
            while rest is not None:
                count = bins.current.room(rest)
                if count > 0:
                    head, rest = cut(rest, count)
                    bins.current.add([head])
                if rest is not None:
                    bins.close()
    if bins.current.slices:
        bins.close()
    return bins.done


def _is_small(size_bytes: int, goal_bytes: int) -> bool:
    return size_bytes * _SMALL <= goal_bytes


def _size_of(slices: Iterable[Slice]) -> tuple[int, int]:
    """Return the total numbers of bytes and offsets."""
    size_bytes = rows = 0
    for part in slices:
        size_bytes += part.size_bytes
        rows += part.end_offset - part.start_offset
    return size_bytes, rows


def cut(part: Slice, count: int) -> tuple[Slice, Slice | None]:
    """Return the first `count` > 0 offsets, and the rest. Bytes and records are shared in
    proportion.
    """
    rows = part.end_offset - part.start_offset
    if count >= rows:
        return part, None
    middle = part.start_offset + count
    size_bytes, records = part.size_bytes * count // rows, share(part.record_count, count, rows)
    head = replace(part, end_offset=middle, size_bytes=size_bytes, record_count=records)
    tail = replace(
        part,
        start_offset=middle,
        size_bytes=part.size_bytes - size_bytes,
        record_count=share(part.record_count, rows - count, rows),
    )
    return head, tail


def _by_object(slices: Sequence[Slice]) -> list[list[Slice]]:
    groups: dict[str, list[Slice]] = {}
    for part in slices:
        groups.setdefault(part.key, []).append(part)
    return list(groups.values())
