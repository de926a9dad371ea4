"""OffsetDelete at the coordinator: which offsets may be deleted. `test_groups_races` covers
concurrent requests. The expected responses are those of Kafka 4.2; tests/interop compares both.
"""

import asyncio

import pytest

from penstock.broker.groups.classic.model import JoinRequest, Protocol, SyncRequest
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.offsets.offsets import GroupOffsets, TopicPartition
from penstock.broker.groups.offsets.records import CommittedOffset
from penstock.protocol.error_codes import ErrorCode
from tests.support.coordinator_log import MemoryLog
from tests.support.embedded import subscription

NOW_MS = 1_700_000_000_000
KEYS: list[TopicPartition] = [("read", 0), ("read", 1), ("other", 0)]


async def commit(coordinator: GroupCoordinator) -> None:
    offsets = {key: CommittedOffset(5, -1, "", NOW_MS) for key in KEYS}
    results = await coordinator.commit_offsets("g", "", None, -1, offsets)
    assert set(results.values()) == {ErrorCode.NONE}


async def join(coordinator: GroupCoordinator, metadata: bytes, kind: str = "consumer") -> str:
    """Let a member join and sync. Returns its id."""
    protocols = (Protocol("range", metadata), Protocol("sticky", metadata))
    joined = await coordinator.join(
        "g", JoinRequest("", None, "c", "/h", 10_000, 10_000, kind, protocols, False, False)
    )
    assert joined.error is ErrorCode.NONE
    synced = await coordinator.sync(
        "g", SyncRequest(joined.member_id, None, joined.generation, None, None, {})
    )
    assert synced.error is ErrorCode.NONE
    return joined.member_id


def left(coordinator: GroupCoordinator) -> set[TopicPartition]:
    found = coordinator.fetch_offsets("g")
    assert isinstance(found, GroupOffsets)
    return set(found.committed)


async def test_offsets_of_a_group_without_members_can_be_deleted(
    coordinator: GroupCoordinator, log: MemoryLog
) -> None:
    await commit(coordinator)
    requested = [("read", 0), ("read", 0), ("read", 7)]
    assert await coordinator.delete_offsets("g", requested) == dict.fromkeys(
        requested, ErrorCode.NONE
    )
    assert left(coordinator) == {("read", 1), ("other", 0)}
    appended = log.end_offset(0)
    assert await coordinator.delete_offsets("g", requested) == dict.fromkeys(
        requested, ErrorCode.NONE
    )
    assert log.end_offset(0) == appended, "nothing was left to delete"
    assert await coordinator.delete_offsets("g", []) == {}


async def test_offsets_of_a_subscribed_topic_cannot_be_deleted(
    coordinator: GroupCoordinator,
) -> None:
    await commit(coordinator)
    member = await join(coordinator, subscription("read"))
    assert await coordinator.delete_offsets("g", KEYS) == {
        ("read", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("read", 1): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("other", 0): ErrorCode.NONE,
    }
    assert left(coordinator) == {("read", 0), ("read", 1)}
    await coordinator.leave("g", [(member, None)])
    assert await coordinator.delete_offsets("g", KEYS) == dict.fromkeys(KEYS, ErrorCode.NONE)
    assert left(coordinator) == set()


@pytest.mark.parametrize("metadata", [b"", b"\0\1", subscription("read")[:-12]], ids=len)
async def test_a_member_without_subscription_metadata_protects_all_offsets(
    coordinator: GroupCoordinator, metadata: bytes
) -> None:
    await commit(coordinator)
    await join(coordinator, metadata)
    subscribed = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    assert await coordinator.delete_offsets("g", KEYS) == dict.fromkeys(KEYS, subscribed)


async def test_members_of_other_protocol_types_protect_all_offsets(
    coordinator: GroupCoordinator,
) -> None:
    await commit(coordinator)
    await join(coordinator, subscription("read"), "connect")
    assert await coordinator.delete_offsets("g", KEYS) is ErrorCode.NON_EMPTY_GROUP
    assert left(coordinator) == set(KEYS)


async def test_nonexistent_groups_are_an_error(coordinator: GroupCoordinator) -> None:
    await coordinator.ready("none")
    assert await coordinator.delete_offsets("none", KEYS) is ErrorCode.GROUP_ID_NOT_FOUND
    assert await coordinator.delete_offsets("", KEYS) is ErrorCode.INVALID_GROUP_ID


async def test_a_coordinator_that_may_have_been_replaced_does_not_report_missing_groups(
    coordinator: GroupCoordinator, log: MemoryLog
) -> None:
    await commit(coordinator)
    log.leads_alone = False
    assert await coordinator.delete_offsets("g", KEYS) is ErrorCode.NOT_COORDINATOR
    assert await coordinator.delete_offsets("none", KEYS) is ErrorCode.NOT_COORDINATOR


async def test_offsets_stay_if_their_tombstone_could_not_be_written(
    coordinator: GroupCoordinator, log: MemoryLog
) -> None:
    await commit(coordinator)
    log.hold = True
    deletion = asyncio.create_task(coordinator.delete_offsets("g", KEYS))
    await asyncio.sleep(0)
    log.release(ErrorCode.NOT_COORDINATOR)
    assert await deletion is ErrorCode.NOT_COORDINATOR
    assert left(coordinator) == set(KEYS)
