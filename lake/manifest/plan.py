"""Map offsets to slices of objects."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

from penstock.lake.fetch.slices import Slice, share
from penstock.lake.manifest.errors import OffsetsLost, OffsetsMissing
from penstock.protocol.batch.header import may_be_as_young
from penstock.stream.format.manifest.model import Entries, PageRef


class OffsetRange(NamedTuple):
    """The offsets [start, end) of one partition that a reader wants."""

    topic: str
    partition: int
    start_offset: int
    end_offset: int


class TailRange(NamedTuple):
    """The range of one stream in one WAL slot."""

    key: str
    object_size_bytes: int
    start_offset: int
    end_offset: int
    record_count: int
    size_bytes: int
    max_timestamp_ms: int


class Source(NamedTuple):
    """The input of a plan for one partition.

    `runs` contains committed entries in offset order, including all that overlap the wanted range.
    `end_offset` includes the tail.
    """

    stream_id: int
    log_start: int
    end_offset: int
    runs: Sequence[Entries]
    tail: Sequence[TailRange]


def joined_tail(position: int, found: Sequence[TailRange]) -> list[TailRange]:
    """Return the WAL ranges that continue a stream at `position`, without gaps or overlaps.

    `position` is the committed end, or the log start if that is higher. Ranges after a gap are
    ignored: either they are not durable yet, or their WAL began after the manifest. The ranges are
    sorted by start, since a stream may have moved from one WAL to another.
    """
    joined: list[TailRange] = []
    for item in sorted(found, key=_start):
        if item.end_offset <= position:
            continue
        if item.start_offset > position:
            break
        joined.append(
            item if item.start_offset == position else _clipped(item, position, item.end_offset)
        )
        position = item.end_offset
    return joined


def pages_wanted(
    pages: Sequence[PageRef], wanted: OffsetRange, timestamp_from_ms: int | None
) -> list[PageRef]:
    """Return the pages that may contain a part of the range."""
    return [
        page
        for page in pages
        if page.end_offset > wanted.start_offset
        and page.start_offset < wanted.end_offset
        and _may_be_wanted(page, timestamp_from_ms)
    ]


def _may_be_wanted(item: PageRef | TailRange, timestamp_from_ms: int | None) -> bool:
    return timestamp_from_ms is None or may_be_as_young(
        item.max_timestamp_ms, item.record_count, timestamp_from_ms
    )


def plan(wanted: OffsetRange, source: Source, timestamp_from_ms: int | None = None) -> list[Slice]:
    """Return the slices that contain the wanted offsets.

    With `timestamp_from_ms`, skip objects whose records are all older. Raise OffsetsLost (below the
    log start) or OffsetsMissing (a gap, or beyond the end).

    Invariants: the slices of a partition cover [start, end) exactly once and in order, or an error
    contains the offsets. A slice never exceeds the range that was committed for its object, or that
    its WAL slot contains. Committed entries take precedence over WAL slots, which may contain the
    same offsets for a while. Only entries older than a given timestamp are skipped. There is no
    I/O. Cost: 2 us per slice.
    """
    topic, partition, start, end = wanted
    if start >= end:
        return []
    if start < source.log_start:
        raise OffsetsLost(topic, partition, start, min(end, source.log_start), source.log_start)
    if end > source.end_offset:
        raise OffsetsMissing(topic, partition, max(start, source.end_offset), end)
    cover = _Cover(wanted, source.stream_id, timestamp_from_ms)
    for run in source.runs:
        cover.take_run(run)
    for item in source.tail:
        cover.take_tail(item)
    cover.skip_to(end)
    return cover.slices


class _Cover:
    """The slices so far, and their end offset."""

    def __init__(self, wanted: OffsetRange, stream_id: int, timestamp_from_ms: int | None) -> None:
        self.slices: list[Slice] = []
        self._wanted = wanted
        self._stream_id = stream_id
        self._timestamp_from_ms = timestamp_from_ms
        self._position = wanted.start_offset

    def skip_to(self, offset: int) -> None:
        """Advance to `offset`; the offsets before it were skipped because their records are too
        old. Raise OffsetsMissing if no timestamp was given.
        """
        if offset > self._position:
            if self._timestamp_from_ms is None:
                raise OffsetsMissing(
                    self._wanted.topic, self._wanted.partition, self._position, offset
                )
            self._position = offset

    def take_run(self, run: Entries) -> None:
        """Add the slices of a run. This is one flat loop, because a partition may have 100,000
        entries.
        """
        topic, partition, _, end_offset = self._wanted
        bounds, keys, youngest_ms = run.bounds, run.keys, self._timestamp_from_ms
        if not keys or bounds[-1] <= self._position or bounds[0] >= end_offset:
            return
        self.skip_to(bounds[0])
        low = self._position
        for index in range(bisect_right(bounds, low) - 1, len(keys)):
            start, high = bounds[index], bounds[index + 1]
            end = min(high, end_offset)
            if youngest_ms is None or may_be_as_young(
                run.max_timestamps_ms[index], run.record_counts[index], youngest_ms
            ):
                count, size_bytes = run.record_counts[index], run.sizes_bytes[index]
                if end - low < high - start:
                    count, size_bytes = (
                        share(count, end - low, high - start),
                        max(1, share(size_bytes, end - low, high - start)),
                    )
                self.slices.append(
                    Slice(
                        keys[index],
                        run.object_sizes_bytes[index],
                        topic,
                        partition,
                        self._stream_id,
                        low,
                        end,
                        size_bytes,
                        count,
                        run.stored_stream_ids[index],
                    )
                )
            low = end
            if end == end_offset:
                break
        self._position = low

    def take_tail(self, item: TailRange) -> None:
        wanted = self._wanted
        if item.end_offset <= self._position or item.start_offset >= wanted.end_offset:
            return
        self.skip_to(item.start_offset)
        part = _clipped(item, self._position, min(item.end_offset, wanted.end_offset))
        self._position = part.end_offset
        if _may_be_wanted(item, self._timestamp_from_ms):
            key, size_bytes = item.key, item.object_size_bytes
            self.slices.append(
                Slice(
                    key,
                    size_bytes,
                    wanted.topic,
                    wanted.partition,
                    self._stream_id,
                    part.start_offset,
                    part.end_offset,
                    part.size_bytes,
                    part.record_count,
                )
            )


def _clipped(item: TailRange, start: int, end: int) -> TailRange:
    whole = item.end_offset - item.start_offset
    if end - start == whole:
        return item
    count, size_bytes = (
        share(item.record_count, end - start, whole),
        max(1, share(item.size_bytes, end - start, whole)),
    )
    return item._replace(
        start_offset=start, end_offset=end, record_count=count, size_bytes=size_bytes
    )


def _start(item: TailRange) -> int:
    return item.start_offset
