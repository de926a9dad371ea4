"""Combine batches of states, so that each offset is in one batch at most.

Of several states of an offset, the one with the highest delivery count wins, and of those the one
with the highest delivery state. So a late copy of an old write changes nothing.
Source: Kafka PersisterStateBatchCombiner.
"""

import heapq
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

from broker.share.state import NO_START_OFFSET, StateBatch


def combine(
    known: Iterable[StateBatch], added: Iterable[StateBatch], start_offset: int
) -> tuple[StateBatch, ...]:
    """Return the batches of both in the order of their offsets, without what is below the start
    offset. Neighbors in the same state become one batch.
    """
    batches = sorted(
        _prune([*known, *added], start_offset), key=lambda batch: batch.first_offset, reverse=True
    )
    edges = sorted({edge for batch in batches for edge in _edges(batch)})
    active: list[tuple[int, int, int]] = []
    """(-delivery count, -delivery state, last offset), the winner first."""
    combined: list[StateBatch] = []
    for first, end in pairwise(edges):
        while batches and batches[-1].first_offset == first:
            batch = batches.pop()
            heapq.heappush(
                active, (-batch.delivery_count, -batch.delivery_state, batch.last_offset)
            )
        while active and active[0][2] < first:
            heapq.heappop(active)
        if active:
            count, state, _ = active[0]
            _add(combined, StateBatch(first, end - 1, -state, -count))
    return tuple(combined)


def _prune(batches: Iterable[StateBatch], start_offset: int) -> list[StateBatch]:
    if start_offset == NO_START_OFFSET:
        return list(batches)
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
