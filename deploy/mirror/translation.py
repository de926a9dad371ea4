"""Translate offsets of a source to the exact offsets of a target.

Invariant: the translation of an offset is the offset in the target of the first record that has
this offset or a later one in the source. A group that continues at the target therefore reads each
unread record, and none twice. Pure.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from penstock.deploy.mirror.batches import Run


class Segment(Struct, frozen=True):
    """`count` records at consecutive offsets, from `source` in the source and from `target` in the
    target. next_source: the next source offset, after a gap if there is one.
    """

    source: int
    target: int
    count: int
    next_source: int


class OffsetMap:
    """The copied segments of one partition, in offset order."""

    __slots__ = ("_segments", "_starts")

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._segments: list[Segment] = []
        self._starts: list[int] = []
        self.extend(segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @property
    def next_source(self) -> int | None:
        """Return the next source offset; None before the first record is copied."""
        return self._segments[-1].next_source if self._segments else None

    def extend(self, segments: Iterable[Segment]) -> None:
        """Add segments. Raises ValueError if it does not follow the last one."""
        for item in segments:
            last = self._segments[-1] if self._segments else None
            if last is not None and (
                item.source < last.next_source or item.target < last.target + last.count
            ):
                raise ValueError(f"segment {item} does not follow {last}")
            if (
                last is not None
                and item.source == last.source + last.count
                and item.target == last.target + last.count
            ):
                last = Segment(last.source, last.target, last.count + item.count, item.next_source)
                self._segments[-1] = last
            else:
                self._segments.append(item)
                self._starts.append(item.source)

    def translated(self, source: int) -> int | None:
        """Return the offset in the target, or None before the first record is copied.

        An offset that is not copied yet is translated to the end of the copied records.
        """
        if not self._segments:
            return None
        at = bisect_right(self._starts, source) - 1
        if at < 0:
            return self._segments[0].target
        found = self._segments[at]
        if source < found.source + found.count:
            return found.target + source - found.source
        if at + 1 < len(self._segments):
            return self._segments[at + 1].target
        return found.target + found.count


def segments_of(runs: Iterable[Run], target: int, next_source: int) -> list[Segment]:
    """Return the segments of records that were appended at `target`, which has no gaps.

    next_source: the offset from which the mirror continues.
    """
    found: list[Segment] = []
    for run in runs:
        if found:
            found[-1] = replace(found[-1], next_source=run.source)
        found.append(Segment(run.source, target, run.count, run.source + run.count))
        target += run.count
    if found:
        found[-1] = replace(found[-1], next_source=next_source)
    return found
