"""Packing, rate limits and filters lose no offsets, duplicate none, and respect their limits."""

import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from penstock.lake.arrow.lookup import first_not_before
from penstock.lake.arrow.pyarrow_untyped import pa
from penstock.lake.fetch.slices import Slice
from penstock.lake.fetch.times import ALL_TIMES, TimeBounds
from penstock.lake.spark.filters import Condition, Pushed
from penstock.lake.spark.limits import limit_bytes, limit_rows, must_wait
from penstock.lake.spark.offsets import TopicPartition
from penstock.lake.spark.packing import SLICES_MAX, TaskLimits, pack
from penstock.lake.spark.pushdown import split_filters
from penstock.lake.spark.rows import filter_rows
from penstock.lake.spark.tasks import BODIES_BYTES_MAX, task_of
from tests.support.waiting import PATIENCE_S

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


@st.composite
def planned(draw: st.DrawFn) -> list[Slice]:
    """Draw slices as in a plan: partition by partition, in offset order, several partitions per
    object.
    """
    slices: list[Slice] = []
    for partition in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, 100))
        for number in range(draw(st.integers(0, 6))):
            end = start + draw(st.integers(1, 200))
            size_bytes = draw(st.integers(0, 5_000))
            slices.append(
                Slice(
                    f"o{number}",
                    1 << 20,
                    "t",
                    partition,
                    partition,
                    start,
                    end,
                    size_bytes,
                    end - start,
                )
            )
            start = end
    return slices


def offsets_of(slices: Sequence[Slice]) -> list[tuple[int, str, int]]:
    return sorted(
        (part.partition, part.key, offset)
        for part in slices
        for offset in range(part.start_offset, part.end_offset)
    )


@settings(deadline=None)
@given(planned(), st.integers(1, 8_000), st.none() | st.integers(1, 300), st.integers(1, 12))
def test_each_offset_is_in_exactly_one_task(
    slices: list[Slice], bytes_max: int, rows_max: int | None, tasks_min: int
) -> None:
    tasks = pack(slices, TaskLimits(bytes_max=bytes_max, rows_max=rows_max, tasks_min=tasks_min))
    assert offsets_of([part for task in tasks for part in task]) == offsets_of(slices)
    assert sum(part.size_bytes for task in tasks for part in task) == sum(
        part.size_bytes for part in slices
    )
    rows = [sum(part.end_offset - part.start_offset for part in task) for task in tasks]
    for task, count in zip(tasks, rows, strict=True):
        assert task
        assert sum(part.size_bytes for part in task) <= bytes_max or count == 1
        assert rows_max is None or count <= rows_max
    offset_bytes_max = max(
        (part.size_bytes / (part.end_offset - part.start_offset) for part in slices), default=0
    )
    total_bytes = sum(part.size_bytes for part in slices)
    # Bytes are integers, and offsets are not divisible.
    if total_bytes > tasks_min**2 and offset_bytes_max * tasks_min * 4 < total_bytes:
        assert len(tasks) >= tasks_min


def test_tasks_have_equal_sizes_and_their_number_is_minimal() -> None:
    slices = [
        Slice(f"o{number}", 1 << 20, "t", 0, 0, number * 100, number * 100 + 100, 1_000, 100)
        for number in range(64)
    ]
    slices += [Slice("big", 1 << 30, "t", 1, 1, 0, 100_000, 1_000_000, 100_000)]
    sizes = [
        sum(part.size_bytes for part in task)
        for task in pack(slices, TaskLimits(bytes_max=100_000))
    ]
    assert len(sizes) <= 13
    assert max(sizes) <= 1.2 * sorted(sizes)[1], "the last one may be small"
    assert len(pack(slices, TaskLimits(bytes_max=1 << 30))) == 1
    assert len(pack(slices, TaskLimits(bytes_max=1 << 30, tasks_min=8))) == 8


def test_small_objects_do_not_result_in_an_additional_task() -> None:
    """1,690 objects of 10 to 40 bytes that cannot be split: filling 16 tasks to their limit would
    leave a little for a 17th.
    """
    sizes = [10 + number * 7 % 31 for number in range(1_690)]
    slices = [
        Slice(f"o{number}", 1 << 20, "t", 0, 0, number, number + 1, size, 1)
        for number, size in enumerate(sizes)
    ]
    limit_bytes = sum(sizes) * 21 // 20 // 16
    tasks = [
        sum(part.size_bytes for part in task)
        for task in pack(slices, TaskLimits(bytes_max=limit_bytes))
    ]
    assert len(tasks) == 16
    assert max(tasks) <= limit_bytes
    assert max(tasks) <= 1.02 * min(tasks)


@given(st.lists(st.integers(1, 12), min_size=200, max_size=300), st.integers(2, 16))
def test_the_number_of_tasks_is_as_low_as_the_bytes_allow(sizes: list[int], count: int) -> None:
    slices = [
        Slice(f"o{number}", 1 << 20, "t", 0, 0, number, number + size, size, size)
        for number, size in enumerate(sizes)
    ]
    limit_bytes = -(-sum(sizes) // count)
    assert len(pack(slices, TaskLimits(bytes_max=limit_bytes))) == -(-sum(sizes) // limit_bytes)


def test_a_pickled_task_is_small() -> None:
    slices = [
        Slice(f"o{number}", 100, "t", 0, 0, number, number + 1, 10, 1)
        for number in range(2 * SLICES_MAX + 1)
    ]
    assert [len(task) for task in pack(slices, TaskLimits(bytes_max=1 << 30))] == [
        667,
        667,
        667,
    ], f"at most {SLICES_MAX}, and even"


def test_slices_of_an_object_are_read_together() -> None:
    slices = [
        Slice(f"o{number}", 9_000, "t", partition, partition, number, number + 1, 10, 1)
        for partition in range(3)
        for number in range(50)
    ]
    tasks = pack(slices, TaskLimits(bytes_max=400))
    assert all(
        len(
            {task for task, parts in enumerate(tasks) for part in parts if part.key == f"o{number}"}
        )
        == 1
        for number in range(50)
    )


# --- limits ---------------------------------------------------------------------------------------


def test_row_limits_are_divided_as_by_kafkas_source() -> None:
    start, latest = {A0: 0, A1: 10, B0: 7}, {A0: 100, A1: 310, B0: 7}
    assert limit_rows(40, start, latest) == {A0: 10, A1: 40, B0: 7}
    assert limit_rows(1, start, latest) == {A0: 1, A1: 11, B0: 7}, "small partitions do not starve"
    assert limit_rows(400, start, latest) == latest


offsets = st.dictionaries(
    st.sampled_from([A0, A1, B0]), st.tuples(st.integers(0, 500), st.integers(0, 500))
)


def test_a_task_includes_completely_read_slots_while_there_is_space() -> None:
    slices = [
        Slice(f"o{number}", 1 << 20, "t", partition, partition, 0, 9, 5, 9)
        for number in range(4)
        for partition in range(2)
    ]
    half = bytes(BODIES_BYTES_MAX // 2)
    task = task_of(slices[2:], {"o0": b"", "o1": half, "o2": half + b"1", "o3": half})
    assert task.slices == tuple(slices[2:])
    assert task.bodies == {"o1": half, "o3": half}
    assert task_of(slices, {}).bodies == {}


@settings(deadline=None)
@given(offsets, st.integers(1, 2_000))
def test_every_limit_eventually_reads_everything(
    spans: dict[TopicPartition, tuple[int, int]], rows_max: int
) -> None:
    start, latest = (
        {item: low for item, (low, _) in spans.items()},
        {item: low + more for item, (low, more) in spans.items()},
    )
    for _ in range(1_501):
        if start == latest:
            break
        end = limit_rows(rows_max, start, latest)
        assert all(start[item] <= end[item] <= latest[item] for item in latest)
        assert all(end[item] > start[item] for item in latest if latest[item] > start[item])
        assert sum(end.values()) - sum(start.values()) <= rows_max + len(latest), (
            "each a row at least"
        )
        start = end
    assert start == latest


@settings(deadline=None)
@given(planned(), st.integers(1, 20_000))
def test_byte_limits_use_the_positions_in_the_slices(slices: list[Slice], bytes_max: int) -> None:
    by_partition: dict[TopicPartition, list[Slice]] = {}
    for part in slices:
        by_partition.setdefault(TopicPartition("t", part.partition), []).append(part)
    latest = {item: parts[-1].end_offset for item, parts in by_partition.items()}
    end = limit_bytes(bytes_max, by_partition, latest)
    taken_bytes = 0.0
    for item, parts in by_partition.items():
        assert parts[0].start_offset < end[item] <= latest[item]
        for part in parts:
            inside = max(0, min(end[item], part.end_offset) - part.start_offset)
            taken_bytes += part.size_bytes * inside / (part.end_offset - part.start_offset)
    assert taken_bytes <= bytes_max + 5_000 * len(by_partition), (
        "an offset of each partition at least"
    )


def test_waiting_for_more_rows_is_limited() -> None:
    assert must_wait(9, 10, 899_999, 900_000)
    assert not must_wait(9, 10, 900_000, 900_000)
    assert not must_wait(10, 10, 0, 900_000)
    assert not must_wait(0, 10, float("inf"), 900_000), "the first micro-batch"


# --- filters --------------------------------------------------------------------------------------

T0 = datetime(2026, 1, 2, 3, 4, 5, 600_000, UTC)
T0_US = 1_767_323_045_600_000


def test_which_filters_are_pushed_down_and_which_are_left_to_spark() -> None:
    mine: list[Filter] = [
        EqualTo(("topic",), "a"),
        In(("topic",), ("a", "b")),
        Not(EqualTo(("partition",), 3)),
        GreaterThan(("offset",), 5),
        LessThanOrEqual(("timestamp",), T0),
        IsNotNull(("offset",)),
        Not(In(("offset",), (7, 8))),
    ]
    theirs: list[Filter] = [
        EqualTo(("key",), b"k"), StringContains(("topic",), "a"), GreaterThan(("topic",), "a"),
        EqualTo(("timestamp",), T0.replace(tzinfo=None)),
        EqualTo(("headers", "key"), "a"), Not(IsNotNull(("offset",))), EqualTo(("offset",), None),
    ]  # fmt: skip
    conditions, left = split_filters([*theirs, *mine])
    assert [id(item) for item in left] == [id(item) for item in theirs]
    assert conditions == [
        Condition("topic", "=", "a"),
        Condition("topic", "in", ("a", "b")),
        Condition("partition", "=", 3, negated=True),
        Condition("offset", ">", 5),
        Condition("timestamp", "<=", T0_US),
        Condition("offset", "in", (7, 8), negated=True),
    ]


def test_filters_skip_partitions_offsets_and_objects() -> None:
    pushed = Pushed(
        (
            Condition("topic", "in", ("a", "b")),
            Condition("partition", "<", 2),
            Condition("topic", "=", "b", negated=True),
        )
    )
    assert [
        pushed.selects(*item) for item in [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0)]
    ] == [True, True, False, False, False]
    assert Pushed(
        (Condition("timestamp", ">", T0_US + 999), Condition("timestamp", ">=", 5))
    ).times == TimeBounds(T0_US // 1_000 + 1)
    assert Pushed((Condition("timestamp", "<", T0_US),)).times == TimeBounds(
        to_ms=T0_US // 1_000 - 1
    )
    assert Pushed((Condition("timestamp", "<=", T0_US),)).times == TimeBounds(to_ms=T0_US // 1_000)
    assert Pushed((Condition("timestamp", ">=", 5, negated=True),)).times == TimeBounds(to_ms=0)
    assert Pushed((Condition("offset", "<", 5),)).times == ALL_TIMES
    assert Pushed((Condition("offset", "in", ()),)).offsets(0, 10) == (0, 0)


conditions = st.builds(
    Condition,
    st.sampled_from(["offset", "timestamp"]),
    st.sampled_from(["=", "<", "<=", ">", ">="]),
    st.integers(-2, 32),
    st.booleans(),
) | st.builds(
    Condition,
    st.sampled_from(["offset", "timestamp"]),
    st.just("in"),
    st.lists(st.integers(-2, 32), max_size=4).map(tuple),
    st.booleans(),
)


def holds(item: Condition, have: int) -> bool:
    value: Any = item.value
    found = {
        "=": lambda: have == value,
        "<": lambda: have < value,
        "<=": lambda: have <= value,
        ">": lambda: have > value,
        ">=": lambda: have >= value,
        "in": lambda: have in value,
    }[item.operator]()
    return found != item.negated


@settings(deadline=None)
@given(st.lists(conditions, max_size=4))
def test_pruned_and_filtered_rows_match_the_conditions(
    given_conditions: list[Condition],
) -> None:
    """Row i has offset i and timestamp 30 - i, in microseconds."""
    pushed = Pushed(tuple(given_conditions))
    low, high = pushed.offsets(0, 31)
    times = pushed.times
    kept = [
        row
        for row in range(low, max(low, high))
        if not times.excludes((30 - row) // 1_000, (30 - row) // 1_000)
    ]
    batch = pa.record_batch(
        {
            "offset": pa.array(kept, pa.int64()),
            "timestamp": pa.array([30 - row for row in kept], pa.timestamp("us", tz="UTC")),
        }
    )
    expected = [
        row
        for row in range(31)
        if all(
            holds(item, row if item.column == "offset" else 30 - row) for item in given_conditions
        )
    ]
    assert filter_rows(batch, pushed.of_rows).column("offset").to_pylist() == expected


@pytest.mark.parametrize(("timestamp_ms", "index"), [(0, 0), (5, 1), (6, 3), (9, 3), (10, None)])
def test_the_first_row_not_before_a_timestamp_is_found(
    timestamp_ms: int, index: int | None
) -> None:
    column = pa.array([value * 1_000 for value in (4, 5, 3, 9, 8)], pa.timestamp("us", tz="UTC"))
    assert first_not_before(column, timestamp_ms) == index


def test_between_is_handled_as_two_conditions() -> None:
    assert split_filters([LessThan(("offset",), 4), GreaterThanOrEqual(("offset",), 2)])[0] == [
        Condition("offset", "<", 4),
        Condition("offset", ">=", 2),
    ]


def test_schemas_of_named_columns_do_not_import_arrow() -> None:
    """Spark starts a Python process for this every time."""
    code = (
        "import sys; sys.modules['pyarrow'] = sys.modules['numpy'] = sys.modules['numba'] = None;"
        " import pyspark_penstock as found\nprint(found.DefaultSource({'store': 's3://b',"
        " 'subscribe': 't', 'columns': 'offset,value'}).schema().simpleString())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert done.stdout.strip() == "struct<offset:bigint,value:binary>"
