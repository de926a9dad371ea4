"""Read slices to their end even if their objects are deleted in the meantime: plan missing parts
again, by offset.

Source: docs/design/manifest.md.
"""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Final

from penstock.base.errors import StreamError
from penstock.base.log import get_logger
from penstock.lake.arrow.cluster import REPLANS_MAX, StoreCluster
from penstock.lake.arrow.pyarrow_untyped import RecordBatch
from penstock.lake.arrow.read import AbortedByStream
from penstock.lake.arrow.read_sync import read_slices_sync
from penstock.lake.fetch.errors import ObjectGone, ObjectStillMissing, ReadError
from penstock.lake.fetch.limits import ReadConfig
from penstock.lake.fetch.slices import Slice
from penstock.lake.fetch.times import ALL_TIMES, TimeBounds
from penstock.lake.fetch.unreadable import OnUnreadable, raise_unreadable
from penstock.lake.manifest.errors import OffsetsLost, TopicReplaced, UnknownPartition
from penstock.lake.manifest.plan import OffsetRange

_log = get_logger(__name__)

PAUSE_MS: Final = 1_000
"""Pause between plans without progress, because the next manifest is published a second later."""

OnLoss = Callable[[StreamError], None]
"""Called for records that can no longer be read, with OffsetsLost, UnknownPartition or
TopicReplaced. If it returns, these offsets are skipped.
"""

Planner = Callable[[Sequence[OffsetRange]], list[Slice]]
AbortedLookup = Callable[[Sequence[OffsetRange]], AbortedByStream]
"""Returns the aborted transactions of every requested stream."""


def raise_loss(error: StreamError) -> None:
    """Raise the error, because losses are not tolerated."""
    raise error


def log_skipped(error: ReadError) -> None:
    """Log skipped unreadable records."""
    _log.warning(
        "records_skipped",
        topic=error.topic,
        partition=error.partition,
        from_offset=error.offset,
        to_offset=error.end_offset,
        reason=error.what,
    )


def read_renewed(
    cluster: StoreCluster,
    slices: Sequence[Slice],
    columns: Sequence[str],
    config: ReadConfig | None = None,
    *,
    committed: bool = False,
    times: TimeBounds = ALL_TIMES,
    pause_ms: int = PAUSE_MS,
    on_loss: OnLoss = raise_loss,
    bodies: Mapping[str, bytes] | None = None,
    on_unreadable: OnUnreadable = raise_unreadable,
) -> Generator[RecordBatch, None, None]:
    """Read slices like `read_slices_sync`, and plan again when objects are deleted.

    With `committed`, skip aborted transactions; slices must end at or below last stable offsets.
    Raise ObjectStillMissing if new plans do not help, OffsetsMissing, ReadError (damage), or errors
    raised by `on_unreadable`.

    Invariants: every offset of the slices is either returned once or reported in an error. Rows do
    not depend on the objects that contain them, even with `committed`: aborted transactions are
    looked up once, before anything is read, because outcomes never change. New plans use the newest
    manifest and the same streams: a recreated topic counts as a loss and never returns other rows.
    """
    aborted: AbortedByStream | None = None
    if committed:
        slices, aborted = look_up_aborted(cluster.aborted, slices, on_loss)
    backoff = ReplanBackoff(pause_ms)
    while slices:
        try:
            batches = read_slices_sync(
                cluster.store_url,
                slices,
                columns,
                aborted,
                config,
                times=times,
                bodies=bodies,
                on_unreadable=on_unreadable,
                wal_store_url=cluster.wal_store_url,
            )
            with closing(batches):
                yield from batches
            return
        except ObjectGone as gone:
            left = (gone.slice, *gone.remaining)
            backoff.take(gone, has_advanced=_has_advanced(slices, left))
        slices = replan_slices(cluster.replan, left, on_loss)


class ReplanBackoff:
    """Limits the unsuccessful new plans of one pass."""

    def __init__(self, pause_ms: int) -> None:
        self._pause_ms = pause_ms
        self._tries = 0
        self._gone_key = ""

    def take(self, gone: ObjectGone, *, has_advanced: bool) -> None:
        """Wait until it is time for the next plan. Raise ObjectStillMissing."""
        self._tries = 1 if has_advanced else self._tries + 1
        is_same, self._gone_key = gone.slice.key == self._gone_key, gone.slice.key
        if self._tries > REPLANS_MAX:
            raise ObjectStillMissing(gone.slice, self._tries, is_same=is_same) from None
        if self._tries > 1:
            time.sleep(self._pause_ms / 1_000)
        _log.info("plan_renewed", key=gone.slice.key, slices=len(gone.remaining) + 1)


def look_up_aborted(
    lookup: AbortedLookup, slices: Sequence[Slice], on_loss: OnLoss = raise_loss
) -> tuple[Sequence[Slice], AbortedByStream]:
    """Return the slices whose aborted transactions can still be determined, and these transactions.
    Raise the errors of `ClusterView.aborted`.
    """
    while slices:
        try:
            aborted = lookup(ranges_of(slices))
        except UnknownPartition as error:
            on_loss(error)
            slices = [
                part
                for part in slices
                if part.topic != error.topic or error.partition not in {None, part.partition}
            ]
        except OffsetsLost as error:
            on_loss(error)
            slices = [_trimmed_slice(part, error) for part in slices]
            slices = [part for part in slices if part.start_offset < part.end_offset]
        else:
            others = sorted({part.topic for part in slices if part.stream_id not in aborted})
            for topic in others:
                on_loss(TopicReplaced(topic))
            return [part for part in slices if part.topic not in others], aborted
    return [], {}


def replan_slices(
    plan: Planner, left: Sequence[Slice], on_loss: OnLoss = raise_loss
) -> list[Slice]:
    """Plan the offsets of slices again, in the objects that currently contain them."""
    return plan_streams(
        plan,
        ranges_of(left),
        {(part.topic, part.partition): part.stream_id for part in left},
        on_loss,
    )


def plan_streams(
    plan: Planner,
    ranges: Sequence[OffsetRange],
    streams: Mapping[tuple[str, int], int],
    on_loss: OnLoss = raise_loss,
) -> list[Slice]:
    """Return slices of exactly these streams. Raise the errors of `ClusterView.plan`."""
    while ranges:
        try:
            slices = plan(ranges)
        except UnknownPartition as error:
            on_loss(error)
            ranges = [
                item
                for item in ranges
                if item.topic != error.topic or error.partition not in {None, item.partition}
            ]
        except OffsetsLost as error:
            on_loss(error)
            ranges = [_trimmed_range(item, error) for item in ranges]
            ranges = [item for item in ranges if item.start_offset < item.end_offset]
        else:
            return _same_streams(slices, streams, on_loss)
    return []


def ranges_of(slices: Sequence[Slice]) -> list[OffsetRange]:
    """Return the ranges of slices. Adjacent slices become one range."""
    ranges: list[OffsetRange] = []
    for part in slices:
        item = OffsetRange(part.topic, part.partition, part.start_offset, part.end_offset)
        last = ranges[-1] if ranges else None
        if last is not None and last[:2] == item[:2] and last.end_offset == item.start_offset:
            ranges[-1] = last._replace(end_offset=item.end_offset)
        else:
            ranges.append(item)
    return ranges


def _same_streams(
    slices: list[Slice], streams: Mapping[tuple[str, int], int], on_loss: OnLoss
) -> list[Slice]:
    others = sorted(
        {part.topic for part in slices if part.stream_id != streams[part.topic, part.partition]}
    )
    for topic in others:
        on_loss(TopicReplaced(topic))
    return [part for part in slices if part.topic not in others]


def _has_advanced(before: Sequence[Slice], left: Sequence[Slice]) -> bool:
    return len(left) < len(before) or left[0].start_offset > before[0].start_offset


def _trimmed_slice(part: Slice, error: OffsetsLost) -> Slice:
    if (part.topic, part.partition) != (error.topic, error.partition):
        return part
    return replace(part, start_offset=max(part.start_offset, error.log_start))


def _trimmed_range(item: OffsetRange, error: OffsetsLost) -> OffsetRange:
    if (item.topic, item.partition) != (error.topic, error.partition):
        return item
    return item._replace(start_offset=max(item.start_offset, error.log_start))
