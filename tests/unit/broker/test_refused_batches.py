"""`RefusedBatches`: which batches are rejected because an earlier one was, and for how long."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import Millis, Offset
from penstock.broker.partition.producer_state import SEQUENCES_COUNT, ProducerState
from penstock.broker.partition.refused_batches import RefusedBatches
from penstock.protocol.error_codes import ErrorCode
from tests.support.partition_harness import NOW, idempotent

LATER = Millis(NOW + 30_001)


def batch(sequence, count=1, *, pid=42, epoch=0):
    return memoryview(idempotent(sequence, *[b"x"] * count, pid=pid, epoch=epoch))


def known(sequence, count=1, *, epoch=0):
    """Return the state of a producer whose last batch in the log is this one."""
    producers = ProducerState()
    producers.record(
        42, epoch, sequence, count, base_offset=Offset(0), end_offset=Offset(count), now_ms=NOW
    )
    return producers


def refused(*batches):
    found = RefusedBatches()
    for item in batches:
        found.remember("t", 0, item, ErrorCode.NOT_LEADER_OR_FOLLOWER, NOW)
    return found


@pytest.mark.parametrize("first", [5, SEQUENCES_COUNT - 1])
def test_later_batches_wait_for_the_rejected_one(first):
    """Sequence numbers wrap around."""
    at = lambda number: (first + number) % SEQUENCES_COUNT  # noqa: E731
    found = refused(batch(at(0), 2), batch(at(2)), batch(at(3)))
    log = known(at(-1))
    assert found.reason_to_wait("t", 0, batch(at(4)), log, NOW)
    assert found.reason_to_wait("t", 0, batch(at(2)), log, NOW)
    assert not found.reason_to_wait("t", 0, batch(at(0), 2), log, NOW), "the first of them"
    log = known(at(1))
    assert found.reason_to_wait("t", 0, batch(at(4)), log, NOW), "the second one is still missing"
    assert not found.reason_to_wait("t", 0, batch(at(2)), log, NOW), "in line"
    assert not found.reason_to_wait("t", 0, batch(at(0), 2), log, NOW), "a repetition"
    assert not found.reason_to_wait("t", 0, batch(at(5)), known(at(3)), NOW), (
        "a gap of the producer's own"
    )
    assert len(found) == 0


def test_other_producers_partitions_and_epochs_are_not_affected():
    found, log = refused(batch(5)), known(4)
    assert not found.reason_to_wait("t", 0, batch(6, pid=43), log, NOW)
    assert not found.reason_to_wait("t", 1, batch(6), log, NOW)
    assert not found.reason_to_wait("u", 0, batch(6), log, NOW)
    assert not found.reason_to_wait("t", 0, batch(6, epoch=1), log, NOW)
    assert found.reason_to_wait("t", 0, batch(6), ProducerState(), NOW), (
        "even where nothing is known of the producer"
    )


def test_the_first_rejected_batch_is_forgotten_if_it_is_not_retried():
    """Later rejections do not extend the time."""
    found, log = refused(batch(5)), known(4)
    found.remember("t", 0, batch(6), ErrorCode.NOT_LEADER_OR_FOLLOWER, Millis(NOW + 20_000))
    assert found.reason_to_wait("t", 0, batch(6), log, Millis(NOW + 30_000))
    assert not found.reason_to_wait("t", 0, batch(6), log, LATER)
    found.remember("t", 0, batch(5), ErrorCode.NOT_LEADER_OR_FOLLOWER, LATER)
    assert found.reason_to_wait("t", 0, batch(6), log, LATER)


def test_batches_without_a_sequence_are_ignored():
    found = refused(None, memoryview(b"no batch"), batch(-1, pid=-1))
    found.remember("t", 0, batch(5), ErrorCode.MESSAGE_TOO_LARGE, NOW)
    assert len(found) == 0, "nor a batch that is not repeated"
    assert not refused(batch(5)).reason_to_wait("t", 0, memoryview(b"no batch"), known(4), NOW)


def test_the_oldest_rejected_batches_are_dropped_at_the_limit():
    found = refused(*(batch(5, pid=pid) for pid in range(10_001)))
    assert len(found) == 10_000
    assert not found.reason_to_wait("t", 0, batch(6, pid=0), ProducerState(), NOW)


@given(st.lists(st.lists(st.booleans(), max_size=8), max_size=6))
def test_a_producer_that_retries_rejected_batches_always_makes_progress(rounds):
    """Any request may be rejected at any time, and the log accepts batches only in sequence.
    Batches that are retried in order are all appended once.
    """
    found, log, end = RefusedBatches(), ProducerState(), 0
    for refusals in [*rounds, [False] * 8]:
        for sequence, is_refused in enumerate(refusals, end):
            item = batch(sequence)
            if is_refused or found.reason_to_wait("t", 0, item, log, NOW):
                found.remember("t", 0, item, ErrorCode.NOT_LEADER_OR_FOLLOWER, NOW)
                continue
            assert log.check(42, 0, sequence, 1) is None, "a gap that the broker made"
            log.record(
                42, 0, sequence, 1, base_offset=Offset(end), end_offset=Offset(end + 1), now_ms=NOW
            )
            end += 1
    assert end >= 8
