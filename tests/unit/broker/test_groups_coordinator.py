"""The records of `__consumer_offsets`, and the coordinator over an in-memory log: durable state
survives a coordinator failover.
"""

import asyncio
import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.broker.coordination.log import TransactionalProducer
from penstock.broker.coordination.shards import partition_for
from penstock.broker.groups.classic.model import (
    PROTOCOLS_MAX,
    SUBSCRIPTION_BYTES_MAX,
    GroupLimits,
    JoinRequest,
    Member,
    Protocol,
    SyncRequest,
)
from penstock.broker.groups.common.model import GroupState
from penstock.broker.groups.common.records import MalformedGroupRecord
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.offsets.offsets import GroupOffsets, TopicPartition
from penstock.broker.groups.offsets.records import (
    CommittedOffset,
    GroupKey,
    GroupSnapshot,
    OffsetKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from penstock.protocol.error_codes import ErrorCode
from tests.support.coordinator_log import MemoryLog
from tests.support.group_coordinators import Coordinators, now_ms
from tests.support.waiting import PATIENCE_S


def offset(value, metadata="", committed_ms=1) -> CommittedOffset:
    return CommittedOffset(value, -1, metadata, committed_ms)


async def commit(coordinator, offsets, group_id="g"):
    """Commit as a standalone consumer."""
    return await coordinator.commit_offsets(group_id, "", None, -1, offsets)


async def stage(coordinator, offsets, group_id="g"):
    """Commit within a transaction."""
    return await coordinator.commit_transactional_offsets(group_id, ANYBODY, PRODUCER, offsets)


def complete(log, coordinator):
    """Append a commit marker, and release it."""
    at = coordinator.partition_of("g")
    log.append_marker(
        at, 7, committed=True, done=lambda _: coordinator.complete_transaction(at, 7, True)
    )
    log.release()


def committed(found: GroupOffsets | ErrorCode) -> dict[TopicPartition, CommittedOffset]:
    assert not isinstance(found, ErrorCode), found
    return found.committed


def joining(member_id: str = "") -> JoinRequest:
    return JoinRequest(
        member_id,
        None,
        "c",
        "/h",
        10_000,
        10_000,
        "consumer",
        (Protocol("range", b"sub"),),
        needs_known_member_id=False,
    )


async def test_a_coordinator_that_may_have_been_replaced_returns_no_offsets(log, coordinator):
    """The next coordinator may have newer offsets. Commits are safe here, because their responses
    wait until they are durable.
    """
    log.leads_alone = False
    key = ("t", 0)
    assert await commit(coordinator, {key: offset(7)}) == {key: ErrorCode.NONE}
    assert coordinator.fetch_offsets("g") is ErrorCode.NOT_COORDINATOR
    log.leads_alone = True
    assert committed(coordinator.fetch_offsets("g")) == {key: offset(7)}


@pytest.mark.parametrize(
    "protocols",
    [
        [Protocol(f"p{number}", b"") for number in range(PROTOCOLS_MAX + 1)],
        [Protocol("range", bytes(SUBSCRIPTION_BYTES_MAX))],
        [Protocol("r" * (SUBSCRIPTION_BYTES_MAX + 1), b"")],
    ],
    ids=["protocols", "subscription", "name"],
)
async def test_large_joins_are_rejected(coordinator, protocols):
    """Each join compares the protocols of all members on the event loop."""
    large = replace(joining(), protocols=tuple(protocols))
    assert (await coordinator.join("g", large)).error is ErrorCode.INVALID_REQUEST


async def test_offsets_are_visible_only_when_durable(log, coordinator):
    committing = await log.holding(commit(coordinator, {("t", 0): offset(7)}))
    assert committed(coordinator.fetch_offsets("g")) == {}
    log.release()
    assert await committing == {("t", 0): ErrorCode.NONE}
    assert committed(coordinator.fetch_offsets("g")) == {("t", 0): offset(7)}


async def test_a_failed_append_is_reported_and_changes_nothing(log, coordinator):
    committing = await log.holding(commit(coordinator, {("t", 0): offset(7)}))
    log.release(ErrorCode.NOT_COORDINATOR)
    assert await committing == {("t", 0): ErrorCode.NOT_COORDINATOR}
    assert committed(coordinator.fetch_offsets("g")) == {}


async def test_the_next_coordinator_loads_members_generation_and_offsets(coordinator, coordinators):
    joined = await coordinator.join("g", joining())
    synced = await coordinator.sync(
        "g",
        SyncRequest(
            joined.member_id, None, joined.generation, None, None, {joined.member_id: b"mine"}
        ),
    )
    assert synced.assignment == b"mine"
    await coordinator.commit_offsets(
        "g",
        joined.member_id,
        None,
        joined.generation,
        {("t", 1): CommittedOffset(42, 3, "note", 1)},
    )
    second = await coordinators.next()
    assert second.heartbeat("g", joined.member_id, None, joined.generation) is ErrorCode.NONE
    assert committed(second.fetch_offsets("g")) == {("t", 1): CommittedOffset(42, 3, "note", 1)}
    description = second.describe_group("g")
    assert (description.state, description.protocol) == (GroupState.STABLE, "range")


async def test_requests_wait_for_a_loading_group_but_not_for_one_of_another_broker() -> None:
    log = MemoryLog()
    here = partition_for("g", log.partition_count)
    elsewhere = next(
        name for name in "abcdefgh" if partition_for(name, log.partition_count) != here
    )
    log.foreign.add(partition_for(elsewhere, log.partition_count))
    coordinator = GroupCoordinator(log, GroupLimits(), now_ms=now_ms, new_member_id=str)
    await coordinator.ready(elsewhere)
    assert coordinator.fetch_offsets(elsewhere) is ErrorCode.NOT_COORDINATOR
    assert coordinator.fetch_offsets("g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    waiting = asyncio.create_task(coordinator.ready("g"))
    await asyncio.sleep(0)
    assert not waiting.done()
    coordinator.partition_opened(here)
    async with asyncio.timeout(PATIENCE_S):
        await waiting
    assert committed(coordinator.fetch_offsets("g")) == {}
    coordinator.partition_closed(here)
    await coordinator.ready("g")
    assert coordinator.fetch_offsets("g") is ErrorCode.NOT_COORDINATOR, (
        "closed here: at another broker soon, whatever the metadata say"
    )
    coordinator.close()


async def test_losing_the_partition_completes_waiting_members(log, coordinator):
    first = await coordinator.join("g", joining())
    waiting = asyncio.create_task(coordinator.join("g", joining()))
    await asyncio.sleep(0)
    coordinator.partition_closed(partition_for("g", log.partition_count))
    assert (await waiting).error is ErrorCode.NOT_COORDINATOR
    assert (
        coordinator.heartbeat("g", first.member_id, None, first.generation)
        is ErrorCode.NOT_COORDINATOR
    )


async def test_only_empty_groups_can_be_deleted_and_stay_deleted_after_a_reload(
    coordinator, coordinators
):
    joined = await coordinator.join("g", joining())
    assert await coordinator.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
    assert await coordinator.leave("g", [(joined.member_id, None)]) == [ErrorCode.NONE]
    await commit(coordinator, {("t", 0): offset(1)})
    assert await coordinator.delete_group("g") is ErrorCode.NONE
    assert await coordinator.delete_group("g") is ErrorCode.GROUP_ID_NOT_FOUND
    again = await coordinators.next()
    assert committed(again.fetch_offsets("g")) == {}
    assert again.list_groups() == []


async def test_empty_groups_and_offsets_past_retention_are_removed(coordinator):
    old = offset(1, committed_ms=now_ms() - GroupLimits().offsets_retention_ms - 1)
    young = offset(2, committed_ms=now_ms())
    await commit(coordinator, {("t", 0): old, ("t", 1): young})
    await commit(coordinator, {("t", 0): old}, "h")
    joined = await coordinator.join("g", joining())
    coordinator.expire()
    await coordinator.leave("g", [(joined.member_id, None)])
    await commit(coordinator, {("t", 0): young}, "i")
    coordinator.expire()
    await commit(coordinator, {("t", 0): young}, "i")
    assert {group.group_id for group in coordinator.list_groups()} == {"g", "i"}
    assert committed(coordinator.fetch_offsets("g")) == {
        ("t", 0): old,
        ("t", 1): young,
    }, "retention begins when the last member leaves"


@pytest.mark.parametrize("is_transactional", [False, True])
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a" * 4_096, ErrorCode.NONE),
        ("a" * 4_097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("\u00e9" * 4_096, ErrorCode.NONE),
        ("\u20ac" * 4_096, ErrorCode.NONE),
        ("\u20ac" * 4_097, ErrorCode.OFFSET_METADATA_TOO_LARGE),
        ("\U0001f600" * 2_048, ErrorCode.NONE),
        ("\U0001f600" * 2_049, ErrorCode.OFFSET_METADATA_TOO_LARGE),
    ],
)
async def test_metadata_length_is_measured_in_java_characters(
    coordinator, text, code, is_transactional
):
    store = stage if is_transactional else commit
    found = await store(coordinator, {("t", 0): offset(1, text)})
    assert found == {("t", 0): code}


async def test_only_offsets_with_too_long_metadata_are_rejected(coordinator):
    offsets = {("t", 0): offset(1, "x" * 5_000), ("t", 1): offset(1, "x")}
    assert await commit(coordinator, offsets) == {
        ("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ("t", 1): ErrorCode.NONE,
    }


# Known results of Java's String.hashCode; the last one is Integer.MIN_VALUE, which has no absolute
# value: Kafka uses 0.
@pytest.mark.parametrize(
    ("group_id", "positive_hash"),
    [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", 0)],
)
def test_the_partition_of_a_group_is_computed_with_javas_hash(
    group_id: str, positive_hash: int
) -> None:
    assert partition_for(group_id, 50) == positive_hash % 50


names = st.text(max_size=20)


@given(names, names, st.integers(0, 2**31 - 1), st.integers(-1, 2**63 - 1), names)
def test_offset_records_round_trip(
    group: str, topic: str, partition: int, offset: int, metadata: str
) -> None:
    key, value = OffsetKey(group, topic, partition), CommittedOffset(offset, 5, metadata, 12)
    assert decode_key(encode_offset_key(key)) == key
    assert decode_offset_value(encode_offset_value(value)) == value


@given(
    names,
    st.lists(
        st.tuples(names, st.none() | names, st.binary(max_size=20), st.binary(max_size=20)),
        max_size=4,
    ),
)
def test_group_records_round_trip(
    group: str, raw: list[tuple[str, str | None, bytes, bytes]]
) -> None:
    members = tuple(
        Member(m, i, "c", "h", 1, 2, "consumer", (Protocol("range", s),), a) for m, i, s, a in raw
    )
    value = GroupSnapshot("consumer", 3, "range", "leader", 9, members)
    assert decode_key(encode_group_key(GroupKey(group))) == GroupKey(group)
    assert decode_group_value(encode_group_value(value)) == value


@given(st.binary(max_size=60))
def test_arbitrary_bytes_raise_only_the_documented_error(data: bytes) -> None:
    for decode in (decode_key, decode_offset_value, decode_group_value):
        with contextlib.suppress(MalformedGroupRecord):
            decode(data)


PRODUCER = TransactionalProducer(7, 0)
ANYBODY = ("", None, -1)


async def test_transactional_offsets_are_visible_once_the_marker_is_durable(
    log, coordinator, coordinators
):
    """The next coordinator loads the same state from its log."""
    key, before, after = ("t", 0), offset(1), offset(9)
    await commit(coordinator, {key: before})
    assert await stage(coordinator, {key: after}) == {key: ErrorCode.NONE}
    for _ in range(2):
        offsets = coordinator.fetch_offsets("g")
        assert (offsets.committed, offsets.is_pending(key)) == ({key: before}, True)
        coordinator = await coordinators.next()
    complete(log, coordinator)
    for _ in range(2):
        offsets = coordinator.fetch_offsets("g")
        assert (offsets.committed, offsets.is_pending(key)) == ({key: after}, False)
        coordinator = await coordinators.next()


@pytest.mark.parametrize("is_reloaded", [False, True])
@pytest.mark.parametrize("is_in_flight", [False, True])
@pytest.mark.parametrize("has_committed", [False, True])
async def test_a_deleted_group_gets_no_offsets_from_a_transaction_that_ends_later(
    log, coordinator, coordinators, has_committed, is_in_flight, is_reloaded
):
    """is_in_flight: the offset of the transaction is not durable yet when the group is deleted."""
    key, other = ("t", 0), ("t", 1)
    if has_committed:
        await commit(coordinator, {key: offset(1), other: offset(2)})
    log.hold = is_in_flight
    log.appended.clear()
    staging = asyncio.create_task(stage(coordinator, {key: offset(9)}))
    await log.appended.wait()
    if not is_in_flight:
        await staging
    log.appended.clear()
    deleting = asyncio.create_task(coordinator.delete_group("g"))
    await log.appended.wait()
    log.hold = False
    log.release()
    assert await staging == {key: ErrorCode.NONE}
    assert await deleting is ErrorCode.NONE
    assert coordinator.describe_group("g").state is GroupState.DEAD
    if is_reloaded:
        coordinator = await coordinators.next()
    complete(log, coordinator)
    for _ in range(2):
        assert committed(coordinator.fetch_offsets("g")) == {}
        assert coordinator.list_groups() == []
        coordinator = await coordinators.next()


async def test_rejected_transactional_offsets_leave_nothing_in_memory():
    """No marker would ever remove it, because the transaction does not include the partition."""
    coordinators = Coordinators(log := MemoryLog(1))
    coordinator = await coordinators.next()
    log.refuses = True
    offsets = {("t", 0): offset(9)}
    for group_id in ("a", "b", "c"):
        results = await stage(coordinator, offsets, group_id)
        assert results == {("t", 0): ErrorCode.COORDINATOR_NOT_AVAILABLE}
    state = coordinator._shards.get(0)
    assert state is not None
    assert (state.groups, state.open_groups) == ({}, {})


async def test_the_empty_group_id_accepts_only_offsets_of_standalone_consumers(
    coordinator, coordinators
):
    await coordinator.ready("")
    key, value = ("t", 0), offset(1)
    invalid = ErrorCode.INVALID_GROUP_ID
    assert (await coordinator.join("", joining())).error is invalid
    request = SyncRequest("m", None, 1, "consumer", "range", {})
    assert (await coordinator.sync("", request)).error is invalid
    assert coordinator.heartbeat("", "m", None, 1) is invalid
    assert await coordinator.leave("", [("m", None)]) is invalid
    assert await coordinator.delete_offsets("", [key]) is invalid
    assert await stage(coordinator, {key: value}, "") == {key: invalid}
    assert coordinator.list_groups() == []
    assert await commit(coordinator, {key: value}, "") == {key: ErrorCode.NONE}
    assert await coordinator.commit_offsets("", "m", None, 3, {key: value}) == {
        key: ErrorCode.UNKNOWN_MEMBER_ID
    }
    coordinator = coordinators.start()
    await coordinator.ready("")
    assert committed(coordinator.fetch_offsets("")) == {key: value}
    assert await coordinator.delete_group("") is ErrorCode.NONE
    assert coordinator.list_groups() == []


async def test_a_marker_that_arrives_while_the_group_is_loading_is_not_lost(
    coordinator, coordinators
):
    key, after = ("t", 0), offset(9)
    await stage(coordinator, {key: after})
    second = coordinators.start()
    partition = second.partition_of("g")
    await asyncio.sleep(0)  # the load has started, and reads what was durable then
    second.complete_transaction(partition, 7, True)
    await second.ready("g")
    assert committed(second.fetch_offsets("g")) == {key: after}


async def test_offsets_that_could_not_be_written_are_not_pending(log, coordinator):
    committing = await log.holding(stage(coordinator, {("t", 0): offset(9)}))
    offsets = coordinator.fetch_offsets("g")
    assert offsets.is_pending(("t", 0)), "its transaction may be committed next"
    log.release(ErrorCode.INVALID_PRODUCER_EPOCH)
    assert await committing == {("t", 0): ErrorCode.INVALID_PRODUCER_EPOCH}
    assert not offsets.has_pending


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.just(0), st.sets(st.integers(0, 2), min_size=1)),
        st.tuples(st.just("stage"), st.integers(1, 3), st.sets(st.integers(0, 2), min_size=1)),
        st.tuples(st.sampled_from(["commit", "abort"]), st.integers(1, 3), st.just(set[int]())),
    ),
    max_size=30,
)


@given(steps)
def test_the_offset_appended_last_wins_regardless_of_completion_order(
    actions: list[tuple[str, int, set[int]]],
) -> None:
    offsets = GroupOffsets()
    log: list[tuple[int, int, set[int]]] = []
    """(number, producer, partitions), in the order of the log; producer 0 means no transaction."""
    decided: set[int] = set()
    for number, (action, producer, partitions) in enumerate(actions):
        value = {("t", partition): CommittedOffset(number, -1, "", 0) for partition in partitions}
        if action == "put":
            offsets.put(value)
            log.append((number, 0, partitions))
            decided.add(number)
        elif action == "stage":
            offsets.stage(producer, value).is_durable = True
            log.append((number, producer, partitions))
        else:
            offsets.complete(producer, committed=action == "commit")
            decided |= {at for at, writer, _ in log if writer == producer and action == "commit"}
            log = [entry for entry in log if entry[1] != producer or entry[0] in decided]
            log = [(at, 0 if at in decided else writer, held) for at, writer, held in log]
        for partition in range(3):
            newest = max(
                (at for at, _, held in log if at in decided and partition in held), default=None
            )
            found = offsets.committed.get(("t", partition))
            assert (None if found is None else found.offset) == newest


def test_a_marker_ends_only_earlier_durable_records() -> None:
    """An append in flight comes after the marker in the log, so it belongs to the producer's next
    transaction.
    """
    offsets, key = GroupOffsets(), ("t", 0)
    first, second = CommittedOffset(1, -1, "", 0), CommittedOffset(2, -1, "", 0)
    offsets.stage(7, {key: first}).is_durable = True
    later = offsets.stage(7, {key: second})
    assert offsets.complete(7, committed=True), "the later one is pending still"
    assert (offsets.committed, offsets.is_pending(key)) == ({key: first}, True)
    later.is_durable = True
    assert not offsets.complete(7, committed=False)
    assert (offsets.committed, offsets.has_pending) == ({key: first}, False)
