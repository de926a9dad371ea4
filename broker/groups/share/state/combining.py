"""Merge state batches, so that each offset is in at most one batch.

If an offset has several states, a final one (acknowledged or archived) wins, then the one with the
highest delivery count, then the one with the highest delivery state. A late copy of an old write
therefore changes nothing. Kafka compares only the delivery count.
"""

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise

from penstock.broker.groups.share.state.model import AVAILABLE, StateBatch


def combine(
    known: Sequence[StateBatch], added: Sequence[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """Merge both sequences of batches in offset order, and drop offsets below the start offset.
    Neighboring batches in the same state become one batch.

    known: a previous result of `combine`. Only its batches next to `added` are processed. An
    unknown start offset (-1) is below all offsets.
    """
    known = known[bisect_left(known, start_offset, key=lambda batch: batch.last_offset) :]
    known = (*_prune(known[:1], start_offset), *known[1:])
    begin, end = _near(known, added)
    middle = _combine_all([*known[begin:end], *_prune(added, start_offset)])
    return (*known[:begin], *middle, *known[end:])


def _near(known: Sequence[StateBatch], added: Sequence[StateBatch]) -> tuple[int, int]:
    """Return the known batches that overlap or touch the range of the added batches."""
    if not added:
        return 0, 0
    first = min(batch.first_offset for batch in added)
    last = max(batch.last_offset for batch in added)
    begin = bisect_left(known, first - 1, key=lambda batch: batch.last_offset)
    end = bisect_right(known, last + 1, key=lambda batch: batch.first_offset)
    return begin, max(begin, end)


def _combine_all(unsorted: Iterable[StateBatch]) -> list[StateBatch]:
    batches = sorted(unsorted, key=lambda batch: batch.first_offset, reverse=True)
    edges = sorted({edge for batch in batches for edge in _edges(batch)})
    active: list[tuple[bool, int, int, int]] = []
    """A heap of (may be delivered, -delivery count, -delivery state, last offset), with the winning
    state first.
    """
    combined: list[StateBatch] = []
    for first, end in pairwise(edges):
        while batches and batches[-1].first_offset == first:
            batch = batches.pop()
            heapq.heappush(
                active,
                (
                    batch.delivery_state == AVAILABLE,
                    -batch.delivery_count,
                    -batch.delivery_state,
                    batch.last_offset,
                ),
            )
        while active and active[0][3] < first:
            heapq.heappop(active)
        if active:
            _, count, state, _ = active[0]
            _add(combined, StateBatch(first, end - 1, -state, -count))
    return combined


def _prune(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    return [
        batch if batch.first_offset >= start_offset else replace(batch, first_offset=start_offset)
        for batch in batches
        if batch.last_offset >= start_offset
    ]


def _edges(batch: StateBatch) -> tuple[int, int]:
    return batch.first_offset, batch.last_offset + 1


def _add(combined: list[StateBatch], batch: StateBatch) -> None:
    last = combined[-1] if combined else None
    if (
        last is not None
        and last.last_offset + 1 == batch.first_offset
        and (last.delivery_state, last.delivery_count)
        == (batch.delivery_state, batch.delivery_count)
    ):
        combined[-1] = replace(last, last_offset=batch.last_offset)
    else:
        combined.append(batch)
