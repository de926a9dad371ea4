"""The in-flight records of one share partition: their locks, delivery counts and states (KIP-932,
KIP-1206, KIP-1222). Pure.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple

from penstock.broker.groups.share.partitions.spans import (
    ACQUIRED,
    OUTCOMES,
    RENEW,
    UNCHANGED,
    Acknowledgement,
    AcquiredRange,
    Span,
)
from penstock.broker.groups.share.state.model import ARCHIVED, AVAILABLE, StateBatch
from penstock.protocol.error_codes import ErrorCode

_THROTTLE_COUNT_MIN: Final = 2
_ALONE_FROM_LIMIT: Final = 3
"""If the delivery limit is at least this value, the last delivery attempt of a record contains only
this record.
"""
_MERGE_FROM_SPANS: Final = 32

_first = attrgetter("first")


class Bounds(NamedTuple):
    """The offsets [base, end) of a batch of the log."""

    base: int
    end: int


@dataclass(frozen=True, slots=True)
class WindowLimits:
    records_max: int = 2_000
    deliveries_max: int = 5

    @property
    def throttle_from(self) -> int:
        """Return the delivery count from which on fewer and fewer records are delivered together,
        so that one bad record does not exhaust the deliveries of its neighbors.
        """
        return max(_THROTTLE_COUNT_MIN, -(-self.deliveries_max // 2))


@dataclass(frozen=True, slots=True)
class AcquireOptions:
    records_max: int
    batch_records: int
    """Number of records per acquired range, unless a single batch is larger."""
    is_record_limit: bool = False
    """Whether `records_max` is a strict limit, for which ranges may end within batches."""


class _Acquire(NamedTuple):
    """The parameters of one acquisition: the member, the fetched batches, limits and the lock
    deadline.
    """

    member_id: str
    fetched: Sequence[Bounds]
    end: int
    options: AcquireOptions
    deadline: float

    def end_of(self, offset: int) -> int:
        """Return `offset`, rounded up to the end of its batch unless the record limit is strict."""
        if self.options.is_record_limit:
            return offset
        at = bisect_right(self.fetched, offset - 1, key=_base) - 1
        return max(offset, self.fetched[at].end) if at >= 0 else offset

    def piece_ends(self, first: int, end: int) -> list[int]:
        """Return the offsets at which to split [first, end) into ranges, including `end`. Ranges
        end at batch boundaries and have at least `batch_records` records, except for the last one.
        """
        size = self.options.batch_records
        ends: list[int] = []
        if not self.options.is_record_limit and end - first > size:
            for item in self.fetched:
                if item.base >= end:
                    break
                if item.base - first >= size:
                    ends.append(item.base)
                    first = item.base
        return [*ends, end]


class AcknowledgementRefused(Exception):
    """Raised for an invalid acknowledgment. No part of the request was applied."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass(slots=True)
class WindowChanges:
    """Spans whose new state must be written."""

    spans: list[Span] = field(default_factory=list[Span])
    is_final: bool = False
    """Whether the changes apply even if the write fails, because the locks have expired."""

    def __bool__(self) -> bool:
        return bool(self.spans)


@dataclass(frozen=True, slots=True)
class WindowDraft:
    """The state to write, from which a new leader can continue."""

    start_offset: int
    complete_count: int
    batches: tuple[StateBatch, ...]


class ShareWindow:
    """The offsets [start_offset, end_offset), as contiguous spans of records in the same state.

    All records below the window are done, and no record above it has been delivered. A record is
    locked by at most one member, and is not delivered again once it is done or has reached the
    delivery limit. A state change is invisible until its write succeeds; if the write fails, the
    records stay locked until their deadline.
    """

    __slots__ = (
        "_has_available",
        "_spans",
        "end_offset",
        "has_unstored",
        "limits",
        "start_offset",
    )

    def __init__(
        self, start_offset: int, limits: WindowLimits, batches: Iterable[StateBatch] = ()
    ) -> None:
        """batches: the stored state. Records in gaps between the batches become available, because
        they were either never delivered, or delivered to members that did not respond.
        """
        self.start_offset = self.end_offset = start_offset
        self.limits = limits
        self.has_unstored = False
        """Whether locks have expired without a successful write. A reload would restart the
        delivery counts of these records from the stored values.
        """
        self._spans: list[Span] = []
        for batch in batches:
            if batch.last_offset < self.end_offset:
                continue
            first = max(batch.first_offset, self.end_offset)
            if first > self.end_offset:
                self._spans.append(Span(self.end_offset, first, AVAILABLE, 0))
            end = batch.last_offset + 1
            self._spans.append(Span(first, end, batch.delivery_state, batch.delivery_count))
            self.end_offset = end
        self._has_available = bool(self._spans)
        self._advance()

    # --- contents ---------------------------------------------------------------------------------

    @property
    def next_fetch_offset(self) -> int:
        """Return the first offset that a member can acquire."""
        if self._has_available:
            for span in self._spans:
                if span.is_available:
                    return span.first
            self._has_available = False
        return self.end_offset

    @property
    def records_count(self) -> int:
        """Return the number of offsets in the window."""
        return self.end_offset - self.start_offset

    @property
    def may_acquire(self) -> bool:
        """Return whether the window has room for more records or contains some that can be
        delivered again.
        """
        return (
            self.records_count < self.limits.records_max or self.next_fetch_offset < self.end_offset
        )

    @property
    def next_deadline(self) -> float | None:
        """Return when the next lock expires, or None."""
        return min(
            (
                span.deadline
                for span in self._spans
                if span.state == ACQUIRED and span.target == UNCHANGED
            ),
            default=None,
        )

    def spans(self) -> Iterator[Span]:
        return iter(self._spans)

    @property
    def locked_count(self) -> int:
        """Return the number of locked records."""
        return sum(span.end - span.first for span in self._spans if span.state == ACQUIRED)

    # --- delivery ---------------------------------------------------------------------------------

    def acquire(
        self,
        member_id: str,
        fetched: Sequence[Bounds],
        fetch_offset: int,
        options: AcquireOptions,
        *,
        deadline: float,
        aborted: Sequence[Bounds] = (),
    ) -> list[AcquiredRange]:
        """Lock records for a member, from the batches that were read at `fetch_offset`.

        aborted: batches of `fetched` that are invisible to committed reads.
        """
        if not fetched:
            return []
        end = fetched[-1].end
        left = min(options.records_max, self.limits.records_max - self.records_count)
        if left <= 0:
            end = min(end, self.end_offset)
            left = min(options.records_max, self.end_offset - fetch_offset)
        if left <= 0:
            return []
        self._archive_missing(fetch_offset, fetched[0].base)
        wanted = _Acquire(member_id, fetched, end, options, deadline)
        found, left = self._acquire_again(wanted, left)
        self._advance()
        if left > 0 and end > self.end_offset:
            found += self._acquire_new(wanted, left)
        if aborted:
            found = self._archive_aborted(found, aborted)
        return [AcquiredRange(span.first, span.end - 1, span.count) for span in found]

    def _archive_missing(self, offset: int, end: int) -> None:
        """Archive records that are missing in the log because of log compaction."""
        if offset >= min(end, self.end_offset):
            return
        for span in self._within(offset, end):
            if span.is_available:
                span.state = ARCHIVED
        self._advance()

    def _acquire_again(self, wanted: "_Acquire", left: int) -> tuple[list[Span], int]:
        """Lock released records again. Return their spans and the number of records that may still
        be acquired.
        """
        found: list[Span] = []
        base = wanted.fetched[0].base
        if not self._has_available or base >= self.end_offset:
            return found, left
        for span in self._within(base, wanted.end):
            if left <= 0:
                break
            if not span.is_available:
                continue
            if span.count >= self.limits.deliveries_max:
                # The delivery limit was lowered in the meantime.
                span.state = ARCHIVED
                continue
            is_throttled = span.count >= self.limits.throttle_from
            if is_throttled and found:
                return found, 0
            end = self._end_of_acquired(span, wanted, left)
            if end < span.end:
                self._cut(bisect_right(self._spans, span.first, key=_first) - 1, end)
            span.lock(wanted.member_id, wanted.deadline)
            found.append(span)
            left = 0 if is_throttled else left - (span.end - span.first)
        return found, left

    def _end_of_acquired(self, span: Span, wanted: "_Acquire", left: int) -> int:
        """Return the end offset of the part of a span that is acquired."""
        end = span.end
        if end - span.first > left:
            end = min(end, wanted.end_of(span.first + left))
        excess = span.count - self.limits.throttle_from
        if excess >= 0:
            limit = self.limits.deliveries_max
            is_last = span.count == limit - 1 and limit >= _ALONE_FROM_LIMIT
            end = min(end, span.first + (1 if is_last else max(1, span.origin_count >> excess + 1)))
        return end

    def _acquire_new(self, wanted: "_Acquire", left: int) -> list[Span]:
        first, end = max(self.end_offset, wanted.fetched[0].base), wanted.end
        if end <= first:
            return []
        if end - first > left:
            end = min(end, wanted.end_of(first + left))
        if first > self.end_offset:
            self._pass_hole(first)
        found: list[Span] = []
        for piece_end in wanted.piece_ends(first, end):
            span = Span(first, piece_end, AVAILABLE, 0)
            span.lock(wanted.member_id, wanted.deadline)
            found.append(span)
            first = piece_end
        self._spans += found
        self.end_offset = end
        return found

    def _pass_hole(self, offset: int) -> None:
        """Advance the window over offsets that do not exist in the log."""
        if self._spans:
            self._spans.append(Span(self.end_offset, offset, ARCHIVED, 0))
        else:
            self.start_offset = offset
        self.end_offset = offset

    def _archive_aborted(self, found: Sequence[Span], aborted: Sequence[Bounds]) -> list[Span]:
        """Archive aborted records among the locked spans in `found`. Return the remaining spans."""
        kept: list[Span] = []
        for locked in found:
            for span in self._parts(locked, aborted):
                if any(item.base <= span.first < item.end for item in aborted):
                    span.state = ARCHIVED
                else:
                    kept.append(span)
        self._advance()
        return kept

    def _parts(self, locked: Span, ranges: Sequence[Bounds]) -> list[Span]:
        first, end = locked.first, locked.end
        for item in ranges:
            for offset in item:
                if first < offset < end:
                    self._cut(bisect_right(self._spans, offset, key=_first) - 1, offset)
        return list(self._within(first, end))

    # --- acknowledgments ------------------------------------------------------------------------

    def acknowledge(
        self, member_id: str, acknowledgements: Sequence[Acknowledgement], deadline: float
    ) -> WindowChanges:
        """Acknowledge records. Return the changes to write, after which the caller must call
        `settle`. Renewed locks expire at `deadline`.

        Raises AcknowledgementRefused.
        """
        changes = WindowChanges()
        renewed: list[Span] = []
        try:
            for item in acknowledgements:
                self._acknowledge(member_id, item, changes, renewed)
        except AcknowledgementRefused:
            for span in changes.spans:
                span.take_back()
            raise
        for span in renewed:
            span.deadline = deadline
        return changes

    def _acknowledge(
        self,
        member_id: str,
        item: Acknowledgement,
        changes: WindowChanges,
        renewed: list[Span],
    ) -> None:
        if item.last_offset < self.start_offset:
            return
        if not self._spans:
            raise AcknowledgementRefused(ErrorCode.INVALID_RECORD_STATE)
        if item.last_offset >= self.end_offset:
            raise AcknowledgementRefused(ErrorCode.INVALID_REQUEST)
        for first, end, kind in _runs(item):
            for span in self._within(max(first, self.start_offset), end):
                if (
                    span.state != ACQUIRED
                    or span.target != UNCHANGED
                    or span.member_id != member_id
                ):
                    raise AcknowledgementRefused(ErrorCode.INVALID_RECORD_STATE)
                if kind == RENEW:
                    renewed.append(span)
                else:
                    self._begin(span, OUTCOMES[kind])
                    changes.spans.append(span)

    def _begin(self, span: Span, state: int) -> None:
        if state == AVAILABLE and span.count >= self.limits.deliveries_max:
            state = ARCHIVED
        span.target = state

    def release(self, member_id: str) -> WindowChanges:
        """Release all records that a member has locked. Return the changes to write."""
        changes = WindowChanges()
        for span in self._spans:
            if span.state == ACQUIRED and span.target == UNCHANGED and span.member_id == member_id:
                self._begin(span, AVAILABLE)
                changes.spans.append(span)
        return changes

    def expire(self, now: float) -> WindowChanges:
        """Release the records with expired locks. Return the changes to write."""
        changes = WindowChanges(is_final=True)
        for span in self._spans:
            if span.state == ACQUIRED and span.target == UNCHANGED and span.deadline <= now:
                self._begin(span, AVAILABLE)
                changes.spans.append(span)
        return changes

    def settle(self, changes: WindowChanges, *, is_written: bool) -> None:
        """Complete changes after their write has succeeded or failed."""
        for span in changes.spans:
            if is_written or changes.is_final:
                span.finish()
                self._has_available |= span.state == AVAILABLE
                if not is_written:
                    span.unstored_count = span.count
                    self.has_unstored = True
            else:
                span.take_back()
        if is_written and self.has_unstored:
            self._record_stored()
        self._advance()
        if len(self._spans) > _MERGE_FROM_SPANS:
            self._merge()

    def _record_stored(self) -> None:
        """Record that a write has succeeded. It included everything that earlier writes failed to
        store.
        """
        self.has_unstored = False
        for span in self._spans:
            span.unstored_count = 0

    def draft(self, changes: Sequence[WindowChanges]) -> WindowDraft:
        """Return the state to write for these changes, which must be all pending changes, and for
        locks that expired earlier without a successful write.
        """
        start_offset, complete_count = self.start_offset, 0
        is_moving = True
        for span in self._spans:
            if not span.will_be_done:
                is_moving = False
            elif is_moving:
                start_offset = span.end
            else:
                complete_count += span.end - span.first
        changed = [span for item in changes for span in item.spans]
        if self.has_unstored:
            others = (span for span in self._spans if span.target == UNCHANGED)
            changed += (span for span in others if span.unstored_count)
        batches: list[StateBatch] = []
        for span in sorted(changed, key=_first):
            if span.end > start_offset:
                _add_batch(batches, span, start_offset)
        return WindowDraft(start_offset, complete_count, tuple(batches))

    # --- the log ----------------------------------------------------------------------------------

    def trim(self, log_start_offset: int) -> None:
        """Archive records below the new log start."""
        if log_start_offset <= self.start_offset:
            return
        self.start_offset = log_start_offset
        self.end_offset = max(self.end_offset, log_start_offset)
        kept = [span for span in self._spans if span.end > log_start_offset]
        if kept and kept[0].first < log_start_offset:
            kept[0].first = log_start_offset
        self._spans = kept
        self._advance()

    # --- spans ------------------------------------------------------------------------------------

    def _within(self, first: int, end: int) -> Iterator[Span]:
        """Yield the spans in [first, end). Spans at both ends are cut, unless they are being
        written.
        """
        at = max(0, bisect_right(self._spans, first, key=_first) - 1)
        while at < len(self._spans):
            span = self._spans[at]
            if span.first >= end:
                return
            at += 1
            if span.end <= first:
                continue
            if span.first < first and span.target == UNCHANGED:
                self._cut(at - 1, first)
                continue
            if span.end > end and span.target == UNCHANGED:
                self._cut(at - 1, end)
            yield span

    def _cut(self, at: int, offset: int) -> None:
        self._spans.insert(at + 1, self._spans[at].cut(offset))

    def _advance(self) -> None:
        """Advance the start offset over spans that are done."""
        done = 0
        for span in self._spans:
            if not span.is_done:
                break
            done += 1
            self.start_offset = span.end
        if done:
            del self._spans[:done]

    def _merge(self) -> None:
        """Merge neighboring spans that are done."""
        merged: list[Span] = []
        for span in self._spans:
            last = merged[-1] if merged else None
            if last is not None and last.is_done and span.is_done and last.state == span.state:
                last.end = span.end
                last.count = max(last.count, span.count)
                last.unstored_count = max(last.unstored_count, span.unstored_count)
            else:
                merged.append(span)
        self._spans = merged

    def check_invariants(self) -> None:
        offset = self.start_offset
        for span in self._spans:
            assert span.first == offset < span.end, f"{span} does not follow offset {offset}"
            assert span.count <= self.limits.deliveries_max, f"{span} was delivered too often"
            assert (span.state == ACQUIRED) == bool(span.member_id), f"{span}: who has it?"
            assert span.state == ACQUIRED or span.target == UNCHANGED, f"{span} was not locked"
            offset = span.end
        assert offset == self.end_offset, f"spans end at {offset}, not at {self.end_offset}"
        assert not (self._spans and self._spans[0].is_done), "the start offset can move"


def _add_batch(batches: list[StateBatch], span: Span, start_offset: int) -> None:
    state, count, first = span.target, span.count, max(span.first, start_offset)
    if state == UNCHANGED:
        state = AVAILABLE if span.state == ACQUIRED else span.state
        count = span.unstored_count
    last = batches[-1] if batches else None
    if (
        last is not None
        and last.last_offset + 1 == first
        and last.delivery_state == state
        and last.delivery_count == count
    ):
        first = last.first_offset
        batches.pop()
    batches.append(StateBatch(first, span.end - 1, state, count))


def _runs(item: Acknowledgement) -> Iterator[tuple[int, int, int]]:
    """Yield the ranges of consecutive offsets with the same type, as [first, end) with the type."""
    if len(item.types) == 1:
        yield item.first_offset, item.last_offset + 1, item.types[0]
        return
    first = item.first_offset
    for kind, equal in groupby(item.types):
        end = first + sum(1 for _ in equal)
        yield first, end, kind
        first = end


def _base(item: Bounds) -> int:
    return item.base
