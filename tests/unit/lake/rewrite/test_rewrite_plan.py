"""Which objects a bulk rewrite compacts, and how much at once."""

from array import array
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from penstock.base.ids import StreamId
from penstock.lake.rewrite.plan import (
    RewriteOptions,
    cut_rounds,
    plan_topic,
    ranges_of,
    within,
)
from penstock.stream.compaction.plan import Compaction
from penstock.stream.format.manifest.model import CommittedLog, Entries
from penstock.stream.ports import OWN_STREAM, ObjectRole

TARGET = 1_000
OPTIONS = RewriteOptions(
    target_bytes=TARGET, round_bytes_max=5_000, round_objects_max=4, commit_sources_max=40
)


def entries(sizes: list[int], roles: list[int], first: int = 0) -> Entries:
    bounds = array("q", [first])
    for size in sizes:
        bounds.append(bounds[-1] + size)
    counts = array("q", sizes)
    keys = [f"k{first}/{index}" for index in range(len(sizes))]
    own = array("q", [OWN_STREAM] * len(sizes))
    return Entries(bounds, counts, counts, counts, counts, own, bytes(roles), keys)


def log_of(
    sizes: list[int], *, wal: set[int] = frozenset(), partition: int = 0, cut: int = 0
) -> CommittedLog:
    roles = [
        int(ObjectRole.WAL if index in wal else ObjectRole.STREAM) for index in range(len(sizes))
    ]
    first = entries(sizes[:cut], roles[:cut])
    return CommittedLog(
        partition,
        StreamId(partition),
        0,
        (first, entries(sizes[cut:], roles[cut:], first.end_offset)),
    )


def spans(compactions: tuple[Compaction, ...]) -> list[tuple[int, int]]:
    return [(compaction.start_offset, compaction.end_offset) for compaction in compactions]


def rewritten(log: CommittedLog, compactions: tuple[Compaction, ...]) -> CommittedLog:
    """Return the log after all commits."""
    starts = {compaction.start_offset: compaction for compaction in compactions}
    inside = {
        source.range.start_offset for compaction in compactions for source in compaction.sources[1:]
    }
    kept = [item for item in ranges_of(log) if item.range.start_offset not in inside]
    sizes = [
        starts[item.range.start_offset].size_bytes
        if item.range.start_offset in starts
        else item.range.size_bytes
        for item in kept
    ]
    wal = {
        at
        for at, item in enumerate(kept)
        if item.role == ObjectRole.WAL and item.range.start_offset not in starts
    }
    return log_of(sizes, wal=wal, partition=log.partition)


def test_small_adjacent_objects_are_merged_and_large_ones_stay() -> None:
    (plan,) = plan_topic([log_of([100, 200, 500, 100, 100, 900, 10])], OPTIONS)
    assert spans(plan.compactions) == [(0, 300), (800, 1_000)]
    assert (plan.object_count, plan.size_bytes, plan.source_count, plan.compacted_bytes) == (
        7,
        1_910,
        4,
        500,
    )


def test_ranges_in_wal_objects_are_rewritten_whatever_their_size() -> None:
    (plan,) = plan_topic([log_of([700, 700, 10], wal={1})], OPTIONS)
    assert spans(plan.compactions) == [(700, 1_410)]


@given(st.integers(0, 1 << 30), st.integers(0, 300), st.sampled_from([0.0, 0.1, 1.0]))
def test_a_plan_keeps_the_offsets_and_the_next_plan_is_empty(
    seed: int, count: int, in_wal: float
) -> None:
    dice = Random(seed)
    sizes = [dice.choice([1, 10, 100, 499, 500, 1_500]) for _ in range(count)]
    log = log_of(
        sizes,
        wal={index for index in range(count) if dice.random() < in_wal},
        cut=dice.randrange(count + 1),
    )
    (plan,) = plan_topic([log], OPTIONS)
    ranges = ranges_of(log)
    places = [
        ranges.index(source) for compaction in plan.compactions for source in compaction.sources
    ]
    assert places == sorted(set(places))
    for compaction in plan.compactions:
        assert [source.range.start_offset for source in compaction.sources[1:]] == [
            source.range.end_offset for source in compaction.sources[:-1]
        ]
        assert compaction.size_bytes <= TARGET or len(compaction.sources) == 1
        assert len(compaction.sources) > 1 or compaction.sources[0].role == ObjectRole.WAL
    after = rewritten(log, plan.compactions)
    assert sum(item.range.size_bytes for item in ranges_of(after)) == plan.size_bytes
    (again,) = plan_topic([after], OPTIONS)
    assert again.compacted_bytes <= 2 * TARGET, (
        "but for the end of the log, there is nothing left to do"
    )


@given(st.integers(0, 1 << 30))
def test_rounds_contain_the_same_compactions_within_their_limits(seed: int) -> None:
    dice = Random(seed)
    logs = [
        log_of([dice.choice([5, 100, 450]) for _ in range(dice.randrange(200))], partition=number)
        for number in range(4)
    ]
    plans = plan_topic(logs, OPTIONS)
    rounds = cut_rounds(plans, OPTIONS)
    assert [compaction for part in rounds for plan in part for compaction in plan.compactions] == [
        compaction for plan in plans for compaction in plan.compactions
    ]
    for part in rounds:
        assert part
        assert len({plan.partition for plan in part}) == len(part), "one commit each"
        assert sum(plan.compacted_bytes for plan in part) <= OPTIONS.round_bytes_max
        assert sum(len(plan.compactions) for plan in part) <= OPTIONS.round_objects_max
        assert all(plan.source_count <= OPTIONS.commit_sources_max for plan in part)


def test_plans_are_limited_to_the_available_bytes() -> None:
    plans = plan_topic([log_of([100, 200, 500, 100, 100]), log_of([5, 5], partition=1)], OPTIONS)
    assert [spans(plan.compactions) for plan in within(plans, 400)] == [[(0, 300)], []]
    assert within(plans, 1_000) == plans


def test_an_invalid_target_size_is_rejected() -> None:
    with pytest.raises(ValueError, match="target_bytes=1 is not allowed"):
        RewriteOptions(target_bytes=1)
