"""The parser of partition specs such as `day(_timestamp), bucket(16, user.id)`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.partition_spec import (
    FIELDS_MAX,
    TIME_TRANSFORMS,
    WIDTH_MAX,
    WIDTH_TRANSFORMS,
    InvalidPartitioning,
    PartitionField,
    parse_partition_by,
    partition_text,
)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("", []),
        (" none ", []),
        ("day", [("day", "_timestamp", 0)]),
        ("identity(day)", [("identity", "day", 0)]),
        ("year,month, day", [("identity", name, 0) for name in ("year", "month", "day")]),
        ("hour(at)", [("hour", "at", 0)]),
        ("Month( at ),BUCKET( 16 ,user.id)", [("month", "at", 0), ("bucket", "user.id", 16)]),
        ("truncate(4,_key),country", [("truncate", "_key", 4), ("identity", "country", 0)]),
        ('year("a, b(c) ""d""")', [("year", 'a, b(c) "d"', 0)]),
        ("a b", [("identity", "a b", 0)]),
        (f"bucket({WIDTH_MAX},_offset)", [("bucket", "_offset", WIDTH_MAX)]),
        ("day(at),day(other)", [("day", "at", 0), ("day", "other", 0)]),
    ],
)
def test_spec_is_parsed_into_fields(text: str, fields: list[tuple[str, str, int]]) -> None:
    assert parse_partition_by(text) == tuple(PartitionField(*field) for field in fields)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("days(at)", "transform 'days' is unknown.*year.*bucket.N, FIELD"),
        ("bucket(at)", "bucket needs a number from 1 to 2147483647, not 'at'"),
        ("bucket(at, 16)", "not 'at'"),
        ("bucket(0, at)", "not '0'"),
        (f"truncate({WIDTH_MAX + 1}, at)", "needs a number"),
        ("truncate(-1, at)", "not '-1'"),
        ("bucket(٣, at)", "needs a number"),
        ("day()", r"a field is missing before '\)'"),
        ("day(at", r"'\)' is missing"),
        ("day(at))", r"a comma is missing before '\)'"),
        ("day(a, b)", r"'\)' is missing"),
        ("a,,b", "a field is missing before ','"),
        ("a,", "a field is missing before 'the end'"),
        ('day("at)', "a quote is not closed"),
        ('""', "a name is empty"),
        ("a, A", "has A twice"),
        ("bucket(4,a), bucket(4, a)", "twice"),
        ("day(at), hour(at)", "use one transform of time"),
        (",".join(f"f{number}" for number in range(FIELDS_MAX + 1)), "more than 10"),
    ],
)
def test_invalid_spec_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidPartitioning, match=reason):
        parse_partition_by(text)


NAMES = st.sampled_from(["a", "day", "none", "a.b", "a,b", '"', " x ", "(", "é"])
FIELDS = st.builds(PartitionField, st.sampled_from(["identity", *TIME_TRANSFORMS]), NAMES) | (
    st.builds(PartitionField, st.sampled_from(WIDTH_TRANSFORMS), NAMES, st.integers(1, WIDTH_MAX))
)


@given(st.lists(FIELDS, max_size=4, unique_by=lambda field: field.column))
def test_formatted_spec_is_parsed_into_the_same_fields(
    fields: list[PartitionField],
) -> None:
    assert parse_partition_by(partition_text(fields)) == tuple(fields)
