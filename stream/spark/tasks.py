"""What an executor does: read its slices, plan anew what is gone, leave out rows that were not asked for.

Invariants: every offset of the slices is given once, or there is an error that names it; whichever objects hold them, rows are the same.
Renewed plans are of the newest manifest and of the same stream: a topic that was deleted and created again is a loss, not other rows.
Source: `reference/spark.md` 7.3 and 7.4.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import structlog

from stream.manifest.errors import OffsetsLost, OffsetsMissing, UnknownPartition
from stream.manifest.plan import OffsetRange
from stream.reader.arrow import RecordBatch
from stream.reader.errors import ObjectGone
from stream.reader.read_sync import read_slices_sync
from stream.reader.slices import Slice
from stream.spark.cluster import REPLANS_MAX, SparkCluster
from stream.spark.errors import DataLoss
from stream.spark.filters import Pushed
from stream.spark.offsets import TopicPartition
from stream.spark.rows import chosen

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class TaskReader:
    """The same for all tasks of a query. Pickled once."""

    cluster: SparkCluster
    columns: tuple[str, ...]
    pushed: Pushed
    fail_on_data_loss: bool
    retry_interval_ms: int

    def read(self, slices: Sequence[Slice]) -> Iterator[RecordBatch]:
        """Raises ReadError (damage), DataLoss, ObjectGone if objects go faster than plans are renewed."""
        conditions, young_ms = self.pushed.of_rows, self.pushed.timestamp_from_ms
        tries = 0
        while slices:
            try:
                with closing(read_slices_sync(self.cluster.store_url, slices, self.columns, min_timestamp_ms=young_ms)) as batches:
                    for batch in batches:
                        rows = chosen(batch, conditions)
                        if rows.num_rows:
                            yield rows
                return
            except ObjectGone as gone:
                left = (gone.slice, *gone.remaining)
                tries = 1 if _has_advanced(slices, left) else tries + 1
                if tries > REPLANS_MAX:
                    raise
                if tries > 1:
                    time.sleep(self.retry_interval_ms / 1_000)
                _log.info("plan_renewed", key=gone.slice.key, slices=len(left))
            slices = self._planned_anew(left)

    def _planned_anew(self, left: Sequence[Slice]) -> list[Slice]:
        """The same offsets, in the objects that hold them now."""
        streams = {TopicPartition(part.topic, part.partition): part.stream_id for part in left}
        ranges = _ranges(left)
        while ranges:
            try:
                slices = self.cluster.plan_anew(ranges)
            except UnknownPartition as error:
                self._lost(f"Partitions of {error.topic} have been deleted: {error}.")
                ranges = [item for item in ranges if item.topic != error.topic or error.partition not in {None, item.partition}]
            except OffsetsLost as error:
                self._lost(f"Could not read records: {error}.")
                ranges = [_from(item, error) for item in ranges]
                ranges = [item for item in ranges if item.start_offset < item.end_offset]
            except OffsetsMissing as error:
                raise DataLoss(f"Could not read records: {error}.") from None
            else:
                return self._same_streams(slices, streams)
        return []

    def _same_streams(self, slices: list[Slice], streams: dict[TopicPartition, int]) -> list[Slice]:
        other = sorted({part.topic for part in slices if part.stream_id != streams[TopicPartition(part.topic, part.partition)]})
        if other:
            self._lost(f"Topics have been deleted and created again while they were read: {', '.join(other)}.")
        return [part for part in slices if part.topic not in other]

    def _lost(self, reason: str) -> None:
        if self.fail_on_data_loss:
            raise DataLoss(reason)
        _log.warning("data_loss", reason=reason)


def _has_advanced(before: Sequence[Slice], left: Sequence[Slice]) -> bool:
    return len(left) < len(before) or left[0].start_offset > before[0].start_offset


def _ranges(slices: Sequence[Slice]) -> list[OffsetRange]:
    """Slices that follow one another are one range."""
    ranges: list[OffsetRange] = []
    for part in slices:
        item = OffsetRange(part.topic, part.partition, part.start_offset, part.end_offset)
        last = ranges[-1] if ranges else None
        if last is not None and last[:2] == item[:2] and last.end_offset == item.start_offset:
            ranges[-1] = last._replace(end_offset=item.end_offset)
        else:
            ranges.append(item)
    return ranges


def _from(item: OffsetRange, error: OffsetsLost) -> OffsetRange:
    if (item.topic, item.partition) != (error.topic, error.partition):
        return item
    return item._replace(start_offset=max(item.start_offset, error.log_start))
