"""Share partition states: records, merging, fences, snapshots."""

import random
from itertools import groupby, pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.groups.share.state.combining import combine
from penstock.broker.groups.share.state.machine import EncodedRecord, ShareStates
from penstock.broker.groups.share.state.model import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    NO_START_OFFSET,
    SharePartitionKey,
    ShareState,
    ShareStateError,
    ShareStateSummary,
    StateBatch,
    is_coordinator_key,
)
from penstock.broker.groups.share.state.records import (
    SNAPSHOT,
    UPDATE,
    MalformedShareRecord,
    ShareSnapshot,
    ShareUpdate,
    decode_share_key,
    decode_share_value,
    encode_share_key,
    encode_share_value,
)
from penstock.protocol.error_codes import ErrorCode

KEY = SharePartitionKey("g", UUID(int=7), 3)
OTHER = SharePartitionKey("g", UUID(int=7), 4)
BATCHES = st.builds(
    lambda first, length, state, count: StateBatch(first, first + length, state, count),
    st.integers(0, 30),
    st.integers(0, 9),
    st.sampled_from([AVAILABLE, ACKNOWLEDGED, ARCHIVED]),
    st.integers(0, 4),
)
MANY = st.lists(BATCHES, max_size=6)


def offsets(batches, start: int) -> dict[int, tuple[int, int]]:
    """Return the winning entry of each offset: (whether it is final, delivery count, delivery
    state).
    """
    found: dict[int, tuple[bool, int, int]] = {}
    for batch in batches:
        for offset in range(max(batch.first_offset, start), batch.last_offset + 1):
            is_final = batch.delivery_state != AVAILABLE
            state = (is_final, batch.delivery_count, batch.delivery_state)
            found[offset] = max(found.get(offset, state), state)
    return found


@given(MANY, MANY, st.integers(-1, 40))
def test_merging_keeps_the_winning_entry_of_each_offset(known, added, start: int) -> None:
    known = combine((), known, NO_START_OFFSET)
    combined = combine(known, added, start)
    assert offsets(combined, start) == offsets([*known, *added], start)
    for before, after in pairwise(combined):
        assert before.last_offset < after.first_offset
        are_alike = (before.delivery_count, before.delivery_state) == (
            after.delivery_count,
            after.delivery_state,
        )
        assert not are_alike or before.last_offset + 1 < after.first_offset, "neighbors are joined"
    assert combine(combined, added, start) == combined, "a repeated write changes nothing"
    assert combine((), [*known, *added], start) == combined, "in one step or two"


@given(MANY, st.integers(-1, 40), st.integers(-1, 99))
def test_records_survive_encoding_and_decoding(batches, start: int, count: int) -> None:
    snapshot = ShareSnapshot(1, 2, 3, start, count, 4, 5, tuple(batches))
    update = ShareUpdate(1, 3, start, count, tuple(batches))
    for kind, value in ((SNAPSHOT, snapshot), (UPDATE, update)):
        encoded = encode_share_value(value)
        assert decode_share_value(kind, encoded) == value
        for end in range(len(encoded)):
            with pytest.raises(MalformedShareRecord):
                decode_share_value(kind, encoded[:end])


def test_keys_contain_the_type_and_the_share_partition() -> None:
    for kind in (SNAPSHOT, UPDATE):
        assert decode_share_key(encode_share_key(KEY, kind)) == (kind, KEY)
    assert decode_share_key(b"\0\7") is None
    with pytest.raises(MalformedShareRecord):
        decode_share_key(b"\0\0\0\5")
    assert KEY.coordinator_key == "g:AAAAAAAAAAAAAAAAAAAABw:3"
    assert is_coordinator_key(KEY.coordinator_key)
    for wrong in ("", "g", "g:x:3", "g:AAAAAAAAAAAAAAAAAAAABw:-1", ":AAAAAAAAAAAAAAAAAAAABw:1"):
        assert not is_coordinator_key(wrong)


def started(updates_max: int = 500, epoch: int = 3) -> ShareStates:
    states = ShareStates(updates_max)
    states.initialize(KEY, epoch, NO_START_OFFSET, 0)
    return states


def write(states: ShareStates, *batches: StateBatch, **named: int) -> EncodedRecord:
    values = {
        "state_epoch": 3,
        "leader_epoch": 1,
        "start_offset": NO_START_OFFSET,
        "delivery_complete_count": -1,
        "now_ms": 0,
    } | named
    return states.write(KEY, batches=batches, **values)


def refused(call, *arguments, **named) -> ErrorCode:
    with pytest.raises(ShareStateError) as raised:
        call(*arguments, **named)
    return raised.value.code


def test_a_state_must_be_initialized_first() -> None:
    states = ShareStates(500)
    assert refused(write, states) is ErrorCode.INVALID_REQUEST
    assert refused(states.read, KEY, 0, 0) is ErrorCode.INVALID_REQUEST
    assert states.summary(KEY) == ShareStateSummary(0, 0, NO_START_OFFSET, -1)
    assert states.delete(KEY) == ()
    states.initialize(KEY, 3, NO_START_OFFSET, 0)
    assert states.read(KEY, 0, 0) == (ShareState(3, NO_START_OFFSET, 0), None)


def test_late_requests_of_a_deleted_group_change_nothing() -> None:
    states = started()
    records = states.delete(KEY, 7)
    assert refused(states.initialize, KEY, 7, 0, 0) is ErrorCode.FENCED_STATE_EPOCH
    assert states.summary(KEY).deleted_epoch == 7, "the next group begins a later epoch"
    states.initialize(KEY, 8, 5, 0)
    assert refused(states.delete, KEY, 7) is ErrorCode.FENCED_STATE_EPOCH
    assert states.read(KEY, 0, 0)[0].start_offset == 5
    assert states.delete(KEY, 8) != ()
    assert states.delete(KEY, 8) == (), "it is gone"
    following = started()
    for record in records:
        following.replay(*record)
    assert refused(following.initialize, KEY, 7, 0, 0) is ErrorCode.FENCED_STATE_EPOCH


def test_the_deletion_of_a_nonexistent_state_is_logged() -> None:
    """The request that initializes the state may arrive later, followed by a repeated deletion."""
    states, following = ShareStates(500), ShareStates(500)
    records = states.delete(KEY, 7)
    assert states.delete(KEY, 6) == states.delete(KEY, 7) == ()
    for record in records:
        following.replay(*record)
    assert following.summary(KEY).deleted_epoch == 7


@pytest.mark.parametrize("epoch", [None, -1, 0])
def test_a_deletion_before_the_first_epoch_is_not_logged(epoch: int | None) -> None:
    """This applies to nonexistent states, and to states that Kafka started with epoch 0."""
    states = ShareStates(500)
    for _ in range(2):
        assert (states.delete(KEY) if epoch is None else states.delete(KEY, epoch)) == ()
        assert states.summary(KEY).deleted_epoch == -1
        states.initialize(KEY, 0, 5, 0)
        assert states.read(KEY, 0, 0)[0].start_offset == 5
        assert states.delete(KEY, 0) != ()
        assert states.summary(KEY).deleted_epoch == -1


def test_a_deletion_without_an_epoch_deletes_any_state() -> None:
    states = started()
    assert states.delete(KEY) != ()
    states.initialize(KEY, 1, 0, 0)


def test_an_initialization_without_an_epoch_keeps_the_epoch() -> None:
    """Otherwise requests of earlier epochs would no longer be fenced."""
    states = started()
    write(states, StateBatch(0, 9, ACKNOWLEDGED, 1), start_offset=0)
    log = []
    for start in (5, 6):
        log.append(states.initialize(KEY, -1, start, 0))
        assert states.summary(KEY).start_offset == start
    for after in (states, replayed(log)):
        assert after.read(KEY, 1, 0)[0] == ShareState(3, 6, 1)
        assert refused(after.initialize, KEY, 2, 0, 0) is ErrorCode.FENCED_STATE_EPOCH
        assert refused(write, after, state_epoch=2) is ErrorCode.FENCED_STATE_EPOCH
        assert refused(after.delete, KEY, 2) is ErrorCode.FENCED_STATE_EPOCH
        assert after.initialize(KEY, 3, 0, 0) is None


def test_a_deleted_state_is_created_without_an_epoch_in_the_last_one() -> None:
    states = started()
    states.delete(KEY, 7)
    states.initialize(KEY, -1, 5, 0)
    assert refused(states.initialize, KEY, 6, 0, 0) is ErrorCode.FENCED_STATE_EPOCH
    assert states.read(KEY, 0, 0)[0] == ShareState(7, 5, 0)


def test_a_late_release_does_not_restore_acknowledged_records() -> None:
    """The leader could not store its delivery counts, and counts from the start."""
    states = started()
    write(states, StateBatch(5, 5, ACKNOWLEDGED, 1), StateBatch(6, 6, ARCHIVED, 1))
    write(states, StateBatch(5, 7, AVAILABLE, 3))
    assert states.read(KEY, 1, 0)[0].batches == (
        StateBatch(5, 5, ACKNOWLEDGED, 1),
        StateBatch(6, 6, ARCHIVED, 1),
        StateBatch(7, 7, AVAILABLE, 3),
    )


def test_older_leaders_and_groups_are_fenced() -> None:
    states = started()
    _, record = states.read(KEY, 5, 0)
    assert record is not None, "the new leader epoch is durable before the response"
    assert refused(states.read, KEY, 4, 0) is ErrorCode.FENCED_LEADER_EPOCH
    assert refused(write, states, leader_epoch=4) is ErrorCode.FENCED_LEADER_EPOCH
    assert refused(write, states, leader_epoch=5, state_epoch=2) is ErrorCode.FENCED_STATE_EPOCH
    assert refused(states.initialize, KEY, 2, 0, 0) is ErrorCode.FENCED_STATE_EPOCH
    write(states, leader_epoch=5, start_offset=8)
    assert states.summary(KEY) == ShareStateSummary(3, 5, 8, -1)


def test_a_leader_stays_fenced_after_a_new_initialization_and_a_restart() -> None:
    states, log = ShareStates(500), []
    log.append(states.initialize(KEY, 3, NO_START_OFFSET, 0))
    log.append(states.read(KEY, 5, 0)[1])
    log.append(states.initialize(KEY, 4, 100, 0))
    for after in (states, replayed(log), replayed(log[-1:])):
        assert refused(after.read, KEY, 4, 0) is ErrorCode.FENCED_LEADER_EPOCH
        assert after.summary(KEY).start_offset == 100


def replayed(log: list[EncodedRecord]) -> ShareStates:
    states = ShareStates(500)
    for key, value in log:
        states.replay(key, value)
    return states


def test_late_copies_of_writes_restore_nothing() -> None:
    states = started()
    write(states, StateBatch(0, 9, ACKNOWLEDGED, 1), start_offset=0)
    write(states, StateBatch(10, 19, AVAILABLE, 1), start_offset=10)
    write(states, StateBatch(0, 9, ACKNOWLEDGED, 1), start_offset=0)
    state, _ = states.read(KEY, 1, 0)
    assert (state.start_offset, state.batches) == (10, (StateBatch(10, 19, AVAILABLE, 1),))


def test_a_repeated_initialization_changes_nothing() -> None:
    states = started()
    write(states, StateBatch(0, 9, ACKNOWLEDGED, 1), start_offset=0)
    assert states.initialize(KEY, 3, NO_START_OFFSET, 0) is None
    assert states.summary(KEY).start_offset == 0
    assert states.initialize(KEY, 3, 5, 0) is None
    assert states.summary(KEY).start_offset == 0
    assert states.initialize(KEY, 4, 5, 0) is not None, "an administrator sets the offset"
    assert states.read(KEY, 1, 0)[0] == ShareState(4, 5, 1)


@pytest.mark.parametrize(
    "batch",
    [
        StateBatch(5, 4, AVAILABLE, 1),
        StateBatch(-1, 4, AVAILABLE, 1),
        StateBatch(0, 4, 1, 1),
        StateBatch(0, 4, AVAILABLE, -1),
    ],
)
def test_invalid_batches_are_rejected(batch: StateBatch) -> None:
    states = started()
    assert refused(write, states, batch) is ErrorCode.INVALID_REQUEST
    assert states.read(KEY, 0, 0)[0].batches == ()


def test_a_snapshot_is_written_after_a_number_of_updates() -> None:
    states = started(updates_max=3)
    kinds = [
        decode_share_key(write(states, StateBatch(n, n, ACKNOWLEDGED, 1))[0]) for n in range(9)
    ]
    found = [kind[0] for kind in kinds if kind is not None]
    lengths = [(kind, len(list(some))) for kind, some in groupby(found)]
    assert lengths == [(UPDATE, 3), (SNAPSHOT, 1), (UPDATE, 3), (SNAPSHOT, 1), (UPDATE, 1)]


@pytest.mark.parametrize("seed", range(20))
def test_the_log_restores_the_states(seed: int) -> None:
    """The log restores them from any snapshot on, because older records are trimmed."""
    rng = random.Random(seed)
    states, log = ShareStates(updates_max=4), []
    start, leader, epoch = 0, 0, 1
    for _ in range(60):
        key = rng.choice([KEY, OTHER])
        match rng.randrange(8):
            case 0:
                epoch += 1
                record = states.initialize(key, epoch, rng.choice([-1, start]), 0)
            case 1 if states.get(key):
                leader += 1
                record = states.read(key, leader, 0)[1]
            case 2:
                log += states.delete(key, rng.choice([-1, epoch]))
                record = None
            case _ if states.get(key):
                start += rng.randrange(3)
                first = start + rng.randrange(9)
                batch = StateBatch(first, first + rng.randrange(9), rng.choice([0, 2, 4]), 1)
                record = states.write(
                    key,
                    state_epoch=epoch,
                    leader_epoch=leader,
                    start_offset=rng.choice([-1, start]),
                    delivery_complete_count=rng.randrange(5),
                    batches=[batch],
                    now_ms=0,
                )
            case _:
                record = None
        if record is not None:
            log.append(record)
        restored = replayed(log)
        for key in (KEY, OTHER):
            assert current(restored, key) == current(states, key)
            assert current(replayed(since_snapshot(log, key)), key) == current(states, key)


def current(states: ShareStates, key: SharePartitionKey) -> ShareSnapshot | None:
    stored = states.get(key)
    return None if stored is None else stored.current


def since_snapshot(log: list[EncodedRecord], key: SharePartitionKey) -> list[EncodedRecord]:
    snapshot = encode_share_key(key, SNAPSHOT)
    at = max((at for at, record in enumerate(log) if record[0] == snapshot), default=len(log))
    return log[at:]
