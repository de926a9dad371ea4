"""Replace entries of a stream's log with entries that cover exactly the same offsets
(compaction).
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from penstock.base.ids import ObjectId, Offset
from penstock.controller.api.messages import ReplacedItem, Status
from penstock.controller.managers.result import Refused
from penstock.controller.metadata.records import RangeEntry, RangesReplaced
from penstock.controller.metadata.streams import StreamState


class NewRange(NamedTuple):
    object_id: ObjectId
    part: RangeEntry


def replace_ranges(
    stream: StreamState,
    sources: Sequence[ReplacedItem],
    new: Sequence[NewRange],
    cleaned_end: Offset,
    tombstones_kept_ms: int | None = None,
) -> list[RangesReplaced]:
    """Return records that replace `sources` with `new`, or no records if all of them are trimmed.
    All of them must belong to this stream. The caller checks permissions first.

    The end of the stream does not change, and the sources must still be in the index. Only offsets
    above the start of the stream are compared, because the sources may have been trimmed in the
    meantime. cleaned_end: offset below which later records superseded the records that `new` lacks,
    or 0 if it lacks no records. tombstones_kept_ms: for how long `new` keeps tombstones, or None if
    it lacks no records.
    """
    if tombstones_kept_ms is not None:
        _check_tombstones(stream, tombstones_kept_ms)
    living = [source for source in sources if source.end_offset > stream.start_offset]
    for source in living:
        _check_source(stream, source)
    old_cover = _cover(stream, [(source.start_offset, source.end_offset) for source in living])
    replacing = [item for item in new if item.part.end_offset > stream.start_offset]
    new_cover = _cover(
        stream, [(item.part.start_offset, item.part.end_offset) for item in replacing]
    )
    if old_cover != new_cover:
        detail = (
            f"stream {stream.stream_id}: the new objects contain {new_cover}, the replaced ones"
            f" {old_cover}; they must be equal"
        )
        raise Refused(Status.COMPACTED_OBJECTS_NOT_FOUND, detail)
    removed = tuple(source.object_id for source in living)
    cleaned_end = min(cleaned_end, stream.end_offset)
    return [
        RangesReplaced(
            stream.stream_id,
            removed if index == 0 else (),
            item.object_id,
            item.part,
            cleaned_end,
        )
        for index, item in enumerate(replacing)
    ]


def _check_tombstones(stream: StreamState, kept_ms: int) -> None:
    """Check that tombstones outlive the records that DeleteRecords has removed from the log since
    the pass began. The pass does not remove outdated values from these records, so a fork that
    restores them without the tombstone of a key would bring the key back.
    """
    if kept_ms < stream.keep_ms:
        detail = (
            f"stream {stream.stream_id}: deleted records can be restored for {stream.keep_ms} ms,"
            f" and the new objects keep tombstones for {kept_ms} ms only: run log compaction again"
        )
        raise Refused(Status.COMPACTED_OBJECTS_NOT_FOUND, detail)


def _check_source(stream: StreamState, source: ReplacedItem) -> None:
    entry = stream.find(source.start_offset, source.end_offset, 1)
    found = entry[0] if entry else None
    if found is None or (found.object_id, found.start_offset, found.end_offset) != (
        source.object_id,
        source.start_offset,
        source.end_offset,
    ):
        detail = (
            f"stream {stream.stream_id}: object {source.object_id} does not hold"
            f" [{source.start_offset}, {source.end_offset}) any more"
        )
        raise Refused(Status.COMPACTED_OBJECTS_NOT_FOUND, detail)


def _cover(
    stream: StreamState, ranges: Iterable[tuple[Offset, Offset]]
) -> tuple[Offset, Offset] | None:
    """Return the offsets that the ranges cover above the start of the stream, or None if there are
    no ranges. Raises Refused for gaps and overlaps.
    """
    start: Offset | None = None
    end: Offset | None = None
    for low, high in sorted(ranges):
        if end is None:
            start = max(low, stream.start_offset)
        elif low != end:
            detail = (
                f"stream {stream.stream_id}: replaced or new ranges have a hole or overlap at"
                f" {end}..{low}"
            )
            raise Refused(Status.COMPACTED_OBJECTS_NOT_FOUND, detail)
        end = high
    return None if start is None or end is None else (start, end)
