"""How records are acquired; tests/property/test_share_window.py checks that none is lost or
delivered to two members at once.
"""

import pytest

from penstock.broker.groups.share.partitions.spans import ACCEPT, REJECT, RELEASE, Acknowledgement
from penstock.broker.groups.share.partitions.window import (
    AcknowledgementRefused,
    AcquireOptions,
    Bounds,
    ShareWindow,
    WindowLimits,
)
from penstock.broker.groups.share.state.model import ACKNOWLEDGED, ARCHIVED, AVAILABLE, StateBatch
from penstock.protocol.error_codes import ErrorCode

LOG = [Bounds(first, first + 10) for first in range(0, 100, 10)]


def fetch(
    window: ShareWindow,
    member: str = "a",
    *,
    records: int = 500,
    batch: int = 500,
    limit: bool = False,
    log: list[Bounds] = LOG,
) -> list[tuple[int, int, int]]:
    offset = window.next_fetch_offset
    read = [item for item in log if item.end > offset]
    options = AcquireOptions(records, batch, limit)
    found = window.acquire(member, read, offset, options, deadline=10.0)
    window.check_invariants()
    return [tuple(item) for item in found]


def acknowledge(window: ShareWindow, *items: tuple[int, int, list[int]], member: str = "a") -> None:
    changes = window.acknowledge(member, [Acknowledgement(*item) for item in items], 20.0)
    window.settle(changes, is_written=True)
    window.check_invariants()


def test_whole_batches_are_acquired_in_ranges_of_the_requested_size() -> None:
    window = ShareWindow(0, WindowLimits())
    assert fetch(window, records=5) == [(0, 9, 1)]
    assert fetch(window, records=35, batch=15) == [(10, 29, 1), (30, 49, 1)]
    assert fetch(window, records=3, limit=True) == [(50, 52, 1)]
    assert fetch(window, records=3) == [(53, 59, 1)]


def test_the_window_starts_within_a_batch() -> None:
    window = ShareWindow(4, WindowLimits())
    assert fetch(window, records=1) == [(4, 9, 1)]


def test_released_records_are_acquired_before_new_ones() -> None:
    window = ShareWindow(0, WindowLimits())
    fetch(window, records=20)
    acknowledge(window, (5, 7, [RELEASE]))
    assert window.next_fetch_offset == 5
    assert fetch(window, "b", records=10) == [(5, 7, 2), (20, 29, 1)]


def test_a_full_window_returns_only_released_records() -> None:
    window = ShareWindow(0, WindowLimits(records_max=20))
    fetch(window, records=20)
    assert not window.may_acquire
    acknowledge(window, (3, 3, [RELEASE]))
    assert window.may_acquire
    assert fetch(window, "b") == [(3, 3, 2)]
    acknowledge(window, (0, 2, [ACCEPT]))
    assert window.may_acquire
    assert fetch(window, "b") == [(20, 29, 1)]


def test_records_removed_by_log_compaction_are_skipped() -> None:
    window = ShareWindow(0, WindowLimits())
    fetch(window, records=30)
    acknowledge(window, (0, 29, [RELEASE]))
    log = [Bounds(20, 30), Bounds(50, 60)]
    assert fetch(window, log=log) == [(20, 29, 2), (30, 59, 1)]
    assert window.start_offset == 20


def test_a_gap_after_the_window_is_not_a_record() -> None:
    window = ShareWindow(0, WindowLimits())
    fetch(window, records=10)
    assert fetch(window, log=[Bounds(30, 40)]) == [(30, 39, 1)]
    acknowledge(window, (0, 9, [ACCEPT]))
    assert window.start_offset == 30


def test_records_that_fail_repeatedly_are_delivered_in_smaller_batches() -> None:
    window = ShareWindow(0, WindowLimits(deliveries_max=5))
    sizes: list[int] = []
    while found := fetch(window, records=8, log=[Bounds(0, 8)]):
        (first, last, count), *more = found
        assert not more or count < 3
        if count == 5:
            assert first == last
        sizes.append(last - first + 1)
        acknowledge(window, (first, last, [RELEASE]))
    assert sizes[:5] == [8, 8, 8, 4, 1]
    assert window.start_offset == 8


def test_a_rejected_acknowledgement_changes_nothing() -> None:
    window = ShareWindow(0, WindowLimits())
    fetch(window, records=20)
    with pytest.raises(AcknowledgementRefused) as refused:
        window.acknowledge(
            "a", [Acknowledgement(0, 9, [ACCEPT]), Acknowledgement(20, 29, [ACCEPT])], 20.0
        )
    assert refused.value.code is ErrorCode.INVALID_REQUEST
    acknowledge(window, (0, 19, [ACCEPT]))
    assert window.start_offset == 20


def test_the_draft_moves_the_start_and_contains_the_remaining_batches() -> None:
    window = ShareWindow(0, WindowLimits())
    fetch(window, records=40)
    first = window.acknowledge("a", [Acknowledgement(0, 9, [ACCEPT])], 0)
    second = window.acknowledge(
        "a",
        [Acknowledgement(20, 29, [REJECT]), Acknowledgement(30, 39, [ACCEPT] * 5 + [RELEASE] * 5)],
        0,
    )
    draft = window.draft([second, first])
    assert (draft.start_offset, draft.complete_count) == (10, 15)
    assert draft.batches == (
        StateBatch(20, 29, ARCHIVED, 1),
        StateBatch(30, 34, ACKNOWLEDGED, 1),
        StateBatch(35, 39, AVAILABLE, 1),
    )


def test_a_stored_window_is_delivered_starting_with_its_gaps() -> None:
    batches = [StateBatch(10, 19, ACKNOWLEDGED, 1), StateBatch(25, 29, AVAILABLE, 2)]
    window = ShareWindow(5, WindowLimits(), batches)
    assert window.next_fetch_offset == 5
    # Offsets from 20 on were acquired by a member when the leader failed.
    assert fetch(window) == [(5, 9, 1), (20, 24, 1), (25, 29, 3), (30, 99, 1)]


def test_adjacent_terminal_records_are_merged_into_one_span() -> None:
    window = ShareWindow(0, WindowLimits(records_max=100))
    fetch(window)
    for offset in range(1, 100):
        acknowledge(window, (offset, offset, [ACCEPT]))
    assert len(list(window.spans())) < 40
    acknowledge(window, (0, 0, [ACCEPT]))
    assert (window.start_offset, list(window.spans())) == (100, [])
