"""Guards decide whether the first batch of a transaction may be appended to a partition."""

import pytest

from penstock.base.ids import Millis, Offset
from penstock.broker.partition.producer_state import ProducerState
from penstock.broker.partition.verification import Admitted, Guard, Verifications
from penstock.protocol.batch.control import Marker
from penstock.protocol.error_codes import ErrorCode


def noting(seen: list[tuple[str, object]], name: str) -> Admitted:
    return lambda response: seen.append((name, response))


def test_waiting_batches_are_admitted_in_order_and_the_guard_is_removed() -> None:
    verifications, seen = Verifications(), list[tuple[str, object]]()
    guard = verifications.begin(7, 1, adds=True)
    for name in ("a", "b"):
        guard.waiting.append(noting(seen, name))
    guard.waiting.append(lambda _: seen.append(("held", verifications.holds(guard, 7, 1))))
    assert not verifications.must_verify_again(guard)
    verifications.resolve(guard, ErrorCode.NONE)
    assert seen == [("a", guard), ("b", guard), ("held", True)]
    assert not verifications.holds(guard, 7, 1)
    assert len(verifications) == 0


def test_an_error_applies_to_all_waiting_batches() -> None:
    verifications, seen = Verifications(), list[tuple[str, object]]()
    guard = verifications.begin(7, 1, adds=True)
    guard.waiting += [noting(seen, "a"), noting(seen, "b")]
    verifications.resolve(guard, ErrorCode.PRODUCER_FENCED)
    assert seen == [("a", ErrorCode.PRODUCER_FENCED), ("b", ErrorCode.PRODUCER_FENCED)]
    assert not guard.is_verified


def test_a_marker_removes_the_guards_of_its_producer() -> None:
    verifications = Verifications()
    mine = [verifications.begin(7, epoch, adds=True) for epoch in (1, 2)]
    other = verifications.begin(8, 1, adds=True)
    verifications.ended(7)
    assert not any(verifications.holds(guard, 7, guard.producer_epoch) for guard in mine)
    assert verifications.holds(other, 8, 1)


def test_an_outdated_response_causes_a_new_request() -> None:
    verifications = Verifications()
    guard = verifications.begin(7, 1, adds=True)
    verifications.ended(7)
    assert verifications.must_verify_again(guard)
    assert verifications.holds(guard, 7, 1)
    assert not verifications.must_verify_again(guard), "nothing has ended since"


@pytest.mark.parametrize("is_verified", [False, True])
def test_waiting_batches_wait_for_the_newer_verification(is_verified: bool) -> None:
    verifications, seen = Verifications(), list[tuple[str, object]]()
    old = verifications.begin(7, 1, adds=True)
    old.waiting.append(noting(seen, "first"))
    verifications.ended(7)
    new = verifications.begin(7, 1, adds=True)
    if is_verified:
        new.holders_count += 1
        verifications.resolve(new, ErrorCode.NONE)
    else:
        new.waiting.append(noting(seen, "second"))
    assert not verifications.must_verify_again(old)
    if not is_verified:
        verifications.resolve(new, ErrorCode.NONE)
    assert seen == [("first", new), ("second", new)][: 2 - is_verified]


def settle(verifications: Verifications, guard: Guard, code: ErrorCode) -> None:
    """Apply a response as the handler does, without a new verification."""
    again = code is ErrorCode.NONE and verifications.must_verify_again(guard)
    assert not again
    if guard.waiting:
        verifications.resolve(guard, code)


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.CONCURRENT_TRANSACTIONS])
@pytest.mark.parametrize("newer_first", [False, True])
@pytest.mark.parametrize("adds", [False, True], ids=["a newer version", "a marker"])
def test_no_batch_overtakes_one_that_waits_for_an_older_verification(
    adds: bool, newer_first: bool, code: ErrorCode
) -> None:
    """The second batch starts a new verification if it is the first that adds the partition, or if
    the marker of the previous transaction arrived between the two.
    """
    verifications, seen = Verifications(), list[tuple[str, object]]()
    older = verifications.begin(7, 1, adds=adds)
    older.waiting.append(noting(seen, "first"))
    if adds:
        verifications.ended(7)
        assert verifications.find(7, 1) is None
    newer = verifications.begin(7, 1, adds=True)
    newer.waiting.append(noting(seen, "second"))
    responses = [(older, code), (newer, ErrorCode.NONE)]
    for guard, response in reversed(responses) if newer_first else responses:
        settle(verifications, guard, response)
    assert seen == [("first", newer), ("second", newer)]
    assert len(verifications) == 0


def test_a_held_guard_stays_valid_until_it_is_released() -> None:
    verifications, held = Verifications(), list[Guard]()

    def hold(response: Guard | ErrorCode) -> None:
        assert isinstance(response, Guard)
        response.holders_count += 1
        held.append(response)

    guard = verifications.begin(7, 1, adds=True)
    guard.waiting += [hold, hold]
    verifications.resolve(guard, ErrorCode.NONE)
    for found in held:
        assert verifications.holds(guard, 7, 1)
        verifications.release(found)
    assert len(verifications) == 0


def test_a_guard_is_valid_for_one_producer_epoch() -> None:
    verifications = Verifications()
    guard = verifications.begin(7, 1, adds=True)
    assert not verifications.holds(guard, 7, 2)
    assert not verifications.holds(guard, 8, 1)
    assert verifications.find(7, 1) is guard
    assert verifications.find(7, 2) is None


def test_a_transaction_is_open_only_in_its_epoch() -> None:
    producers = ProducerState()
    assert not producers.is_in_transaction(7, 1)
    producers.record(
        7,
        1,
        0,
        1,
        base_offset=Offset(0),
        end_offset=Offset(1),
        now_ms=Millis(0),
        transactional=True,
    )
    assert producers.is_in_transaction(7, 1)
    assert not producers.is_in_transaction(7, 2)
    assert (producers.is_fenced(7, 0), producers.is_fenced(7, 1)) == (True, False)
    producers.record_marker(Marker(7, 2, True, 0), Millis(0))
    assert not producers.is_in_transaction(7, 1)
    assert producers.is_fenced(7, 1)
