"""Records of `__consumer_offsets`, and the coordinator over an in-memory offsets log: what is durable survives a change of coordinator."""

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.groups.coordinator import GroupCoordinator, KeyValue
from broker.groups.model import GroupLimits, GroupState, JoinRequest, Member, Protocol, SyncRequest
from broker.groups.records import (
    CommittedOffset,
    GroupKey,
    GroupSnapshot,
    MalformedGroupRecord,
    OffsetKey,
    decode_group_value,
    decode_key,
    decode_offset_value,
    encode_group_key,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
    partition_for,
)
from broker.wire.error_codes import ErrorCode


class MemoryOffsetsLog:
    """Holds back durability until told, as a store does."""

    def __init__(self) -> None:
        self.partition_count = 4
        self.foreign: set[int] = set()
        self.durable: dict[int, list[Sequence[KeyValue]]] = {}
        self.held: list[tuple[int, Sequence[KeyValue], Callable[[ErrorCode], None]]] = []
        self.hold = False
        self.appended = asyncio.Event()

    def is_ours(self, partition: int) -> bool:
        return partition not in self.foreign

    def append(self, partition: int, records: Sequence[KeyValue], done: Callable[[ErrorCode], None]) -> None:
        self.held.append((partition, records, done))
        self.appended.set()
        if not self.hold:
            asyncio.get_running_loop().call_soon(self.release)

    def release(self, error: ErrorCode = ErrorCode.NONE) -> None:
        held, self.held = self.held, []
        for partition, records, done in held:
            if error is ErrorCode.NONE:
                self.durable.setdefault(partition, []).append(records)
            done(error)

    async def read(self, partition: int) -> AsyncIterator[Sequence[KeyValue]]:
        for batch in list(self.durable.get(partition, [])):
            await asyncio.sleep(0)
            yield batch


def now_ms() -> int:
    return 1_700_000_000_000 + int(asyncio.get_running_loop().time() * 1000)


def coordinator_on(log: MemoryOffsetsLog) -> GroupCoordinator:
    numbers = itertools.count()
    coordinator = GroupCoordinator(
        log,
        GroupLimits(initial_rebalance_delay_ms=0),
        now_ms=now_ms,
        new_member_id=lambda prefix: f"{prefix}-{next(numbers)}",
    )
    for partition in range(log.partition_count):
        coordinator.partition_opened(partition)
    return coordinator


async def loaded(coordinator: GroupCoordinator, group_id: str = "g") -> None:
    async with asyncio.timeout(5):
        while coordinator.fetch_offsets(group_id) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:  # noqa: ASYNC110
            await asyncio.sleep(0)


def joining(member_id: str = "") -> JoinRequest:
    return JoinRequest(member_id, None, "c", "/h", 10_000, 10_000, "consumer", (Protocol("range", b"sub"),), needs_known_member_id=False)


async def test_offsets_are_visible_only_when_durable() -> None:
    log = MemoryOffsetsLog()
    coordinator = coordinator_on(log)
    await loaded(coordinator)
    log.hold = True
    log.appended.clear()
    commit = asyncio.create_task(coordinator.commit_offsets("g", "", None, -1, {("t", 0): CommittedOffset(7, -1, "", 1)}))
    await log.appended.wait()
    assert coordinator.fetch_offsets("g") == {}
    log.release()
    assert await commit == {("t", 0): ErrorCode.NONE}
    assert coordinator.fetch_offsets("g") == {("t", 0): CommittedOffset(7, -1, "", 1)}
    coordinator.close()


async def test_failed_append_is_told_and_changes_nothing() -> None:
    log = MemoryOffsetsLog()
    coordinator = coordinator_on(log)
    await loaded(coordinator)
    log.hold = True
    log.appended.clear()
    commit = asyncio.create_task(coordinator.commit_offsets("g", "", None, -1, {("t", 0): CommittedOffset(7, -1, "", 1)}))
    await log.appended.wait()
    log.release(ErrorCode.NOT_COORDINATOR)
    assert await commit == {("t", 0): ErrorCode.NOT_COORDINATOR}
    assert coordinator.fetch_offsets("g") == {}
    coordinator.close()


async def test_next_coordinator_finds_members_generation_and_offsets() -> None:
    log = MemoryOffsetsLog()
    first = coordinator_on(log)
    await loaded(first)
    joined = await first.join("g", joining())
    synced = await first.sync("g", SyncRequest(joined.member_id, None, joined.generation, None, None, {joined.member_id: b"mine"}))
    assert synced.assignment == b"mine"
    await first.commit_offsets("g", joined.member_id, None, joined.generation, {("t", 1): CommittedOffset(42, 3, "note", 1)})
    first.close()

    second = coordinator_on(log)
    await loaded(second)
    assert second.heartbeat("g", joined.member_id, None, joined.generation) is ErrorCode.NONE
    assert second.fetch_offsets("g") == {("t", 1): CommittedOffset(42, 3, "note", 1)}
    description = second.describe_group("g")
    assert not isinstance(description, ErrorCode)
    assert (description.state, description.protocol) == (GroupState.STABLE, "range")
    second.close()


async def test_requests_wait_for_a_group_on_its_way_here_and_not_for_one_that_is_elsewhere() -> None:
    log = MemoryOffsetsLog()
    here = partition_for("g", log.partition_count)
    elsewhere = next(name for name in "abcdefgh" if partition_for(name, log.partition_count) != here)
    log.foreign.add(partition_for(elsewhere, log.partition_count))
    coordinator = GroupCoordinator(log, GroupLimits(), now_ms=now_ms, new_member_id=str)
    await coordinator.ready(elsewhere)
    assert coordinator.fetch_offsets(elsewhere) is ErrorCode.NOT_COORDINATOR
    assert coordinator.fetch_offsets("g") is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    waiting = asyncio.create_task(coordinator.ready("g"))
    await asyncio.sleep(0)
    assert not waiting.done()
    coordinator.partition_opened(here)
    async with asyncio.timeout(5):
        await waiting
    assert coordinator.fetch_offsets("g") == {}
    coordinator.partition_closed(here)
    await coordinator.ready("g")
    assert coordinator.fetch_offsets("g") is ErrorCode.NOT_COORDINATOR, "closed here: at another broker soon, whatever the metadata say"
    coordinator.close()


async def test_losing_the_partition_answers_who_waits() -> None:
    log = MemoryOffsetsLog()
    coordinator = coordinator_on(log)
    await loaded(coordinator)
    first = await coordinator.join("g", joining())
    waiting = asyncio.create_task(coordinator.join("g", joining()))
    await asyncio.sleep(0)
    coordinator.partition_closed(partition_for("g", log.partition_count))
    assert (await waiting).error is ErrorCode.NOT_COORDINATOR
    assert coordinator.heartbeat("g", first.member_id, None, first.generation) is ErrorCode.NOT_COORDINATOR
    coordinator.close()


async def test_delete_needs_an_empty_group_and_survives_a_reload() -> None:
    log = MemoryOffsetsLog()
    coordinator = coordinator_on(log)
    await loaded(coordinator)
    joined = await coordinator.join("g", joining())
    assert await coordinator.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
    assert coordinator.leave("g", [(joined.member_id, None)]) == [ErrorCode.NONE]
    await coordinator.commit_offsets("g", "", None, -1, {("t", 0): CommittedOffset(1, -1, "", 1)})
    assert await coordinator.delete_group("g") is ErrorCode.NONE
    assert await coordinator.delete_group("g") is ErrorCode.GROUP_ID_NOT_FOUND
    coordinator.close()
    again = coordinator_on(log)
    await loaded(again)
    assert again.fetch_offsets("g") == {}
    assert again.list_groups() == []
    again.close()


async def test_groups_without_members_and_offsets_past_retention_are_forgotten() -> None:
    log = MemoryOffsetsLog()
    coordinator = coordinator_on(log)
    await loaded(coordinator)
    old, young = CommittedOffset(1, -1, "", now_ms() - GroupLimits().offsets_retention_ms - 1), CommittedOffset(2, -1, "", now_ms())
    await coordinator.commit_offsets("g", "", None, -1, {("t", 0): old, ("t", 1): young})
    await coordinator.commit_offsets("h", "", None, -1, {("t", 0): old})
    joined = await coordinator.join("g", joining())
    coordinator.expire()
    coordinator.leave("g", [(joined.member_id, None)])
    await coordinator.commit_offsets("i", "", None, -1, {("t", 0): young})
    coordinator.expire()
    await coordinator.commit_offsets("i", "", None, -1, {("t", 0): young})
    assert {group.group_id for group in coordinator.list_groups()} == {"g", "i"}
    assert coordinator.fetch_offsets("g") == {("t", 0): old, ("t", 1): young}, "retention begins when the last member leaves"
    coordinator.close()


async def test_too_long_metadata_is_refused_alone() -> None:
    log = MemoryOffsetsLog()
    coordinator = coordinator_on(log)
    await loaded(coordinator)
    offsets = {("t", 0): CommittedOffset(1, -1, "x" * 5_000, 1), ("t", 1): CommittedOffset(1, -1, "x", 1)}
    assert await coordinator.commit_offsets("g", "", None, -1, offsets) == {
        ("t", 0): ErrorCode.OFFSET_METADATA_TOO_LARGE,
        ("t", 1): ErrorCode.NONE,
    }
    coordinator.close()


# Well known values of Java's String.hashCode; the last one is Integer.MIN_VALUE, which has no absolute value: Kafka takes 0.
@pytest.mark.parametrize(("group_id", "positive_hash"), [("", 0), ("a", 97), ("hello", 99162322), ("polygenelubricants", 0)])
def test_partition_for_is_javas_hash(group_id: str, positive_hash: int) -> None:
    assert partition_for(group_id, 50) == positive_hash % 50


names = st.text(max_size=20)


@given(names, names, st.integers(0, 2**31 - 1), st.integers(-1, 2**63 - 1), names)
def test_offset_records_round_trip(group: str, topic: str, partition: int, offset: int, metadata: str) -> None:
    key, value = OffsetKey(group, topic, partition), CommittedOffset(offset, 5, metadata, 12)
    assert decode_key(encode_offset_key(key)) == key
    assert decode_offset_value(encode_offset_value(value)) == value


@given(names, st.lists(st.tuples(names, st.none() | names, st.binary(max_size=20), st.binary(max_size=20)), max_size=4))
def test_group_records_round_trip(group: str, raw: list[tuple[str, str | None, bytes, bytes]]) -> None:
    members = tuple(Member(m, i, "c", "h", 1, 2, "consumer", (Protocol("range", s),), a) for m, i, s, a in raw)
    value = GroupSnapshot("consumer", 3, "range", "leader", 9, members)
    assert decode_key(encode_group_key(GroupKey(group))) == GroupKey(group)
    assert decode_group_value(encode_group_value(value)) == value


@given(st.binary(max_size=60))
def test_foreign_bytes_raise_nothing_else(data: bytes) -> None:
    for decode in (decode_key, decode_offset_value, decode_group_value):
        with contextlib.suppress(MalformedGroupRecord):
            decode(data)
