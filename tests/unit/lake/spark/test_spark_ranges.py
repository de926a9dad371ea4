"""Which offsets are read, and every way in which some of them may get lost."""

import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.spark.errors import DataLoss, OffsetsMismatch
from penstock.lake.spark.offsets import (
    TopicPartition,
    from_json,
    parse_offsets,
    to_json,
    topic_ids_of,
)
from penstock.lake.spark.ranges import (
    Bounds,
    batch_ranges,
    check_assigned,
    check_frozen,
    matched,
    new_starts,
    resolved,
    stream_ranges,
)

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)


def fail(reason: str) -> None:
    raise DataLoss(reason)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.tuples(st.text(min_size=1, max_size=5), st.integers(0, 2_000)), st.integers(0, 1 << 62)
    )
)
def test_offsets_survive_a_json_round_trip(offsets: dict[tuple[str, int], int]) -> None:
    named = {TopicPartition(*item): offset for item, offset in offsets.items()}
    assert from_json(to_json(named)) == named
    ids = {item.topic: f"id of {number}" for number, item in enumerate(named)}
    assert from_json(to_json(named, ids)) == named
    assert parse_offsets(json.dumps(to_json(named, ids))) == (named, ids)
    assert topic_ids_of(to_json(named, ids)) == ids
    assert topic_ids_of(to_json(named)) == {}
    assert parse_offsets(json.dumps(to_json(named))) == (named, {})
    assert json.dumps(to_json(dict(reversed(named.items())))) == json.dumps(to_json(named))


def test_a_loss_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(DataLoss("Because.")))
    assert str(error).startswith(
        "Some data may have been lost because they are not available in Kafka any more;"
    )
    assert str(error).endswith("set the source option failOnDataLoss to false. Reason: Because.")


def test_specified_partitions_must_be_exactly_those_of_the_topics() -> None:
    check_assigned({A0: 1}, {A0: Bounds(0, 5)})
    for specified in ({A0: 1, A1: 1}, {}):
        with pytest.raises(
            OffsetsMismatch,
            match=r"Use -1 for latest, -2 for earliest. Specified: Set\(.*\) Assigned: Set\(a-0\)$",
        ):
            check_assigned(specified, {A0: Bounds(0, 5)})


def test_earliest_and_latest_are_resolved_to_offsets() -> None:
    bounds = {A0: Bounds(3, 9), A1: Bounds(4, 8), B0: Bounds(0, 1)}
    assert resolved({A0: -2, A1: -1, B0: 7}, bounds) == {A0: 3, A1: 8, B0: 7}
    assert matched({A0: 5, A1: None}, {A0: 1, A1: 1}, latest_if_no_match=True) == {A0: 5, A1: -1}
    with pytest.raises(OffsetsMismatch) as error:
        matched({A1: None}, {A1: 77}, latest_if_no_match=False)
    assert (
        str(error.value)
        == "No offset matched from request of topic-partition a-1 and timestamp 77."
    )


def test_a_batch_reads_existing_offsets() -> None:
    bounds = {A0: Bounds(3, 9), A1: Bounds(0, 0)}
    assert batch_ranges({A0: 3, A1: 0}, {A0: 9, A1: 0}, bounds, fail) == [OffsetRange("a", 0, 3, 9)]
    with pytest.raises(
        OffsetsMismatch,
        match=(
            "The resolved start offset 8 is greater than the resolved end offset 5 for topic a"
            " partition 0"
        ),
    ):
        batch_ranges({A0: 8}, {A0: 5}, bounds, fail)
    with pytest.raises(
        DataLoss,
        match=(
            r"Could not read records in offset \[1, 3\) for topic partition a-0: the log starts"
            r" at 3"
        ),
    ):
        batch_ranges({A0: 1}, {A0: 9}, bounds, fail)
    with pytest.raises(
        DataLoss,
        match=r"Could not read records in offset \[9, 12\) for topic partition a-0: it ends at 9",
    ):
        batch_ranges({A0: 3}, {A0: 12}, bounds, fail)


def test_losses_are_skipped_if_allowed() -> None:
    reasons: list[str] = []
    bounds = {A0: Bounds(3, 9), A1: Bounds(20, 30), B0: Bounds(2, 5)}
    start = {A0: 1, A1: 5, TopicPartition("gone", 0): 4}
    end = {A0: 12, A1: 10, B0: 4}
    assert stream_ranges(start, end, bounds, reasons.append) == [
        OffsetRange("a", 0, 3, 9),
        OffsetRange("b", 0, 2, 4),
    ]
    assert [reason.split(".")[0] for reason in reasons] == [
        "Partitions Set(gone-0) have been deleted",
        "Could not read records in offset [1, 3) for topic partition a-0: the log starts at 3",
        "Could not read records in offset [9, 12) for topic partition a-0: it ends at 9",
        "Could not read records in offset [5, 10) for topic partition a-1: the log starts at 20",
        "Added partition b-0 starts from 2 instead of 0",
    ]


@pytest.mark.parametrize(("start", "end", "reason"), [
    ({A0: 7}, {A0: 5}, "Partition a-0 offset was changed from 7 to 5. This could"),
    ({A0: 3}, {A0: 4, TopicPartition("new", 0): 4},
     r"Cannot find initial offsets for partitions Set\(new-0\). They may have been deleted."),
    ({A0: 3, A1: 3}, {A0: 4}, r"Partitions Set\(a-1\) have been deleted."),
    ({A0: 3, A1: 3}, {A0: 4, A1: 4}, r"Partitions Set\(a-1\) have been deleted."),
    ({A0: 2}, {A0: 4}, r"Could not read records in offset \[2, 3\)"),
])  # fmt: skip
def test_every_loss_fails_a_micro_batch(
    start: dict[TopicPartition, int], end: dict[TopicPartition, int], reason: str
) -> None:
    with pytest.raises(DataLoss, match=f"Reason: {reason}"):
        stream_ranges(start, end, {A0: Bounds(3, 9)}, fail)


def test_new_partitions_start_at_their_log_start() -> None:
    bounds = {A0: Bounds(0, 9), A1: Bounds(0, 4)}
    assert stream_ranges({A0: 5}, {A0: 6, A1: 4}, bounds, fail) == [
        OffsetRange("a", 0, 5, 6),
        OffsetRange("a", 1, 0, 4),
    ]
    assert new_starts({A0: 5}, {A0: Bounds(1, 9), A1: Bounds(2, 4)}) == {A0: 5, A1: 2}


@settings(deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_no_row_outside_of_the_planned_range_is_read(
    start: int, end: int, log_start: int, log_end: int
) -> None:
    for item in stream_ranges(
        {A0: start}, {A0: end}, {A0: Bounds(log_start, max(log_start, log_end))}, lambda _: None
    ):
        assert max(start, log_start) == item.start_offset < item.end_offset <= end


def test_available_now_reads_records_present_at_the_start() -> None:
    check_frozen({A0: 5}, {A0: 4}, {A0: 6, A1: 1})
    for end, latest, text in [
        (
            {A0: 4, A1: 1},
            {A0: 6},
            "should provide the same topic partitions in pre-fetched offset to end offset",
        ),
        (
            {A0: 6},
            {A0: 6},
            (
                r"lower or equal offset per each topic partition than pre-fetched offset.*Map\(a-0"
                r" -> 5\), end offset: Map\(a-0 -> 6\)"
            ),
        ),
        ({A0: 4}, {}, "have been lost during running query with Trigger.AvailableNow"),
        ({A0: 4}, {A0: 3}, "report available offset which is less than end offset"),
    ]:
        with pytest.raises(OffsetsMismatch, match=text):
            check_frozen({A0: 5}, end, latest)
