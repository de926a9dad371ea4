"""Pruning skips only data excluded by a filter, for filters as created by DuckDB."""

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lake.fetch.times import ALL_TIMES
from penstock.lake.sql.pruning import prune_offsets, prune_times

SCHEMA = pa.schema(
    [
        ("_partition", pa.int32()),
        ("_offset", pa.int64()),
        ("_timestamp", pa.timestamp("us", "UTC")),
        ("name", pa.string()),
    ]
)
PARTITION, OFFSET, TIME, NAME = (pc.field(name) for name in SCHEMA.names)
OFFSETS = {0: (0, 100), 1: (50, 80), 2: (0, 0), 7: (10, 1_000_000)}


def at_ms(timestamp_ms: int) -> pa.Scalar:
    return pa.scalar(timestamp_ms * 1_000, pa.timestamp("us", "UTC"))


@pytest.mark.parametrize(
    ("expression", "left"),
    [
        (PARTITION == 1, {1: (50, 80)}),
        (PARTITION.isin([1, 9]), {1: (50, 80)}),
        ((OFFSET >= 20) & (OFFSET <= 30), {0: (20, 31), 7: (20, 31)}),
        (OFFSET == 77, {0: (77, 78), 1: (77, 78), 7: (77, 78)}),
        (OFFSET < 0, {}),
        (
            ((PARTITION == 0) & (OFFSET >= 91)) | ((PARTITION == 7) & (OFFSET < 15)),
            {0: (91, 100), 7: (10, 15)},
        ),
        (
            (PARTITION == 0) | (NAME == "x"),
            {k: v for k, v in OFFSETS.items() if v[0] < v[1] or k == 2},
        ),
        (NAME == "_offset", OFFSETS),
        (OFFSET.is_null(), {}),
        (~(OFFSET < 60) & OFFSET.is_valid(), {0: (60, 100), 1: (60, 80), 7: (60, 1_000_000)}),
    ],
)
def test_ranges_left_by_a_filter(
    expression: pc.Expression, left: dict[int, tuple[int, int]]
) -> None:
    found = dict(prune_offsets(expression, SCHEMA, OFFSETS))
    assert {key: value for key, value in found.items() if value[0] < value[1]} == {
        key: value for key, value in left.items() if value[0] < value[1]
    }


def test_pruning_of_thousands_of_partitions() -> None:
    offsets = dict.fromkeys(range(5_000), (0, 10))
    assert dict(prune_offsets((PARTITION == 4_321) & (OFFSET >= 4), SCHEMA, offsets)) == {
        4_321: (4, 10)
    }
    found = prune_offsets((PARTITION > 100) & (OFFSET >= 4), SCHEMA, offsets)
    assert set(found) == set(range(101, 5_000))
    assert set(found.values()) == {(4, 10)}


def test_time_bounds_of_filters() -> None:
    assert prune_times(NAME == "x", SCHEMA) == ALL_TIMES
    assert prune_times(at_ms(5) <= TIME, SCHEMA)._replace(to_ms=0) == (5, 0)
    assert prune_times((at_ms(5) <= TIME) & (at_ms(9) > TIME), SCHEMA) == (5, 8)
    inside = pa.scalar(5_400, pa.timestamp("us", "UTC"))
    assert prune_times((inside < TIME) & (at_ms(9) > TIME), SCHEMA) == (5, 8)
    none = prune_times((at_ms(9) < TIME) & (at_ms(5) > TIME), SCHEMA)
    assert none.excludes(-(1 << 40), 1 << 45)


COMPARISONS = st.sampled_from(["<", "<=", "==", ">", ">=", "!="])
LEAVES = st.tuples(st.sampled_from(["_partition", "_offset"]), COMPARISONS, st.integers(-2, 12))


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(LEAVES, lambda inner: st.tuples(st.sampled_from("&|"), inner, inner), max_leaves=5)
)
def test_no_matching_record_is_skipped(tree: object) -> None:
    def built(item: tuple) -> pc.Expression:
        if item[0] in "&|":
            one, other = built(item[1]), built(item[2])
            return one & other if item[0] == "&" else one | other
        field, value = pc.field(item[0]), item[2]
        return {
            "<": field < value,
            "<=": field <= value,
            "==": field == value,
            ">": field > value,
            ">=": field >= value,
            "!=": field != value,
        }[item[1]]

    expression = built(tree)
    rows = [(p, o) for p in range(3) for o in range(2, 9)]
    table = pa.table(
        {"_partition": pa.array([p for p, _ in rows], pa.int32()), "_offset": [o for _, o in rows]}
    )
    requested = table.filter(expression).to_pylist()
    left = prune_offsets(expression, SCHEMA, dict.fromkeys(range(3), (2, 9)))
    for row in requested:
        low, high = left[row["_partition"]]
        assert low <= row["_offset"] < high
