"""The consumer group coordinator over an in-memory log: durability, failover, compaction, offsets,
and groups that change their protocol.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from penstock.base.ids import NodeEpoch, NodeId, StreamEpoch, StreamId
from penstock.broker.coordination.compaction import CompactionLimits
from penstock.broker.coordination.log import TransactionalProducer
from penstock.broker.groups.classic.embedded import decode_assignment, encode_assignment
from penstock.broker.groups.classic.model import (
    GroupLimits,
    JoinRequest,
    Protocol,
    SyncRequest,
    SyncResult,
)
from penstock.broker.groups.common.model import GroupState, GroupType, HeartbeatResult
from penstock.broker.groups.common.records import (
    ConsumerRecordKey,
    ConsumerRecordKind,
    decode_consumer_key,
    encode_consumer_key,
)
from penstock.broker.groups.common.topics import CHECKED_PER_SLICE_COUNT
from penstock.broker.groups.consumer.model import ConsumerLimits, HeartbeatRequest
from penstock.broker.groups.coordinator.descriptions import GroupDescription
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.coordinator.shard import Group
from penstock.broker.groups.offsets.records import CommittedOffset
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import PartitionRecord, TopicRecord
from penstock.protocol.error_codes import ErrorCode
from tests.support.coordinator_log import MemoryLog
from tests.support.embedded import subscription
from tests.support.waiting import until

TOPIC_ID = UUID(int=7)
KEY = ("t", 0)
OFFSET = CommittedOffset(7, -1, "", 1_700_000_000_000)


def now_ms() -> int:
    return 1_700_000_000_000 + int(asyncio.get_running_loop().time() * 1000)


def coordinator_on(
    log: MemoryLog,
    *,
    compaction: CompactionLimits | None = None,
    initial_rebalance_delay_ms: int = 0,
    **limits: Any,
) -> GroupCoordinator:
    numbers = itertools.count()
    coordinator = GroupCoordinator(
        log,
        GroupLimits(initial_rebalance_delay_ms=initial_rebalance_delay_ms),
        now_ms=now_ms,
        new_member_id=lambda prefix: f"{prefix}-{next(numbers)}",
        consumer_limits=lambda _: ConsumerLimits(**limits),
        compaction=compaction,
    )
    coordinator.topics.reset(image_with(4))
    for partition in range(log.partition_count):
        coordinator.partition_opened(partition)
    return coordinator


def image_with(partition_count: int) -> MetadataImage:
    image = MetadataImage()
    image.topics.create(TopicRecord(topic_id=TOPIC_ID, name="t"))
    for index in range(partition_count):
        image.topics.set_partition(
            PartitionRecord(
                topic_id=TOPIC_ID,
                partition=index,
                replicas=(NodeId(0),),
                leader=NodeId(0),
                leader_node_epoch=NodeEpoch(1),
                leader_epoch=StreamEpoch(0),
                meta_stream_id=StreamId(3 * index),
                data_stream_id=StreamId(3 * index + 1),
                txn_stream_id=StreamId(3 * index + 2),
            )
        )
    return image


async def send(
    coordinator: GroupCoordinator, member_id: str, epoch: int, group_id: str = "g", **fields: Any
) -> HeartbeatResult:
    await coordinator.ready(group_id)
    request = HeartbeatRequest(member_id, epoch, **fields)
    return await coordinator.consumers.heartbeat(group_id, request, version=1)


async def join(coordinator: GroupCoordinator, member_id: str, **fields: Any) -> HeartbeatResult:
    fields = {"rebalance_timeout_ms": 60_000, "owned": {}, "subscribed_names": ("t",)} | fields
    return await send(coordinator, member_id, 0, **fields)


async def other(log: MemoryLog, coordinator: GroupCoordinator, **limits: Any) -> GroupCoordinator:
    """Return the next coordinator after it has loaded the log."""
    coordinator.close()
    following = coordinator_on(log, **limits)
    await following.ready("g")
    return following


def group_of(coordinator: GroupCoordinator) -> Any:
    group = coordinator.find("g", create=False)
    assert not isinstance(group, ErrorCode), group
    return group


def live_kinds(log: MemoryLog) -> set[str]:
    """Return the types of the live records in the log."""
    live: dict[bytes, bytes | None] = {}
    for batches in log.durable.values():
        for batch in batches:
            live.update(batch.records)
    kinds: set[str] = set()
    for key, value in live.items():
        decoded = decode_consumer_key(key)
        if decoded is not None and value is not None:
            kinds.add(decoded.kind.name)
    return kinds


async def commit(
    coordinator: GroupCoordinator, member_id: str, epoch: int, **more: Any
) -> ErrorCode:
    done = await coordinator.commit_offsets("g", member_id, None, epoch, {KEY: OFFSET}, **more)
    return done[KEY]


async def test_a_response_waits_until_its_records_are_durable() -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log)
    await coordinator.ready("g")
    log.hold = True
    joining = asyncio.create_task(join(coordinator, "a"))
    await log.appended.wait()
    repeated = asyncio.create_task(send(coordinator, "a", 1, owned={}))
    describing = asyncio.create_task(coordinator.consumers.describe("g"))
    await asyncio.sleep(0)
    assert not joining.done()
    assert not repeated.done(), "it depends on the same records"
    assert not describing.done()
    log.hold = False
    log.release()
    assert (await joining).member_epoch == 1
    assert (await repeated).member_epoch == 1
    assert (await describing).epoch == 1
    coordinator.close()


async def test_a_failover_needs_no_rebalance() -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log)
    first = await join(coordinator, "a", instance_id="i")
    await join(coordinator, "b", subscribed_names=None, subscribed_regex="t.*")
    before = group_of(coordinator).consumer
    following = await other(log, coordinator)
    restored = group_of(following).consumer
    assert (restored.members, restored.targets) == (before.members, before.targets)
    assert restored.regexes == before.regexes
    assert (restored.epoch, restored.target_epoch, restored.metadata_hash) == (
        before.epoch,
        before.target_epoch,
        before.metadata_hash,
    )
    beat = await send(following, "a", first.member_epoch, owned=first.assignment)
    assert beat.error is ErrorCode.NONE
    assert group_of(following).consumer.epoch == before.epoch
    following.close()


async def test_a_failed_append_is_reported_and_rolled_back() -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log)
    await join(coordinator, "a")
    log.hold = True
    log.appended.clear()
    joining = asyncio.create_task(join(coordinator, "b"))
    await log.appended.wait()
    log.hold = False
    log.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert (await joining).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await coordinator.ready("g")
    assert set(group_of(coordinator).consumer.members) == {"a"}
    assert (await join(coordinator, "b")).member_epoch == 2
    coordinator.close()


async def test_a_member_with_version_0_gets_an_id() -> None:
    coordinator = coordinator_on(MemoryLog())
    await coordinator.ready("g")
    request = HeartbeatRequest(
        "", 0, "app", rebalance_timeout_ms=1, owned={}, subscribed_names=("t",)
    )
    result = await coordinator.consumers.heartbeat("g", request, version=0)
    assert (result.error, result.member_id) == (ErrorCode.NONE, "app-0")
    assert set(group_of(coordinator).consumer.members) == {"app-0"}
    coordinator.close()


async def test_the_expiry_of_the_last_consumer_member_downgrades_the_group() -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log, session_timeout_ms=50, heartbeat_interval_ms=10)
    await coordinator.ready("g")
    old = await classic_member(coordinator)
    await join(coordinator, "new")
    await until(lambda: coordinator.list_groups()[0].type is GroupType.CLASSIC)
    assert coordinator.heartbeat("g", old, None, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    coordinator.close()


async def test_the_removal_of_silent_members_is_durable() -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log, session_timeout_ms=50, heartbeat_interval_ms=10)
    await join(coordinator, "a")
    await until(lambda: live_kinds(log) == {"GROUP", "TARGET_EPOCH"})
    following = await other(log, coordinator)
    assert group_of(following).consumer.state is GroupState.EMPTY
    assert (await send(following, "a", 1)).error is ErrorCode.UNKNOWN_MEMBER_ID
    following.close()


async def test_sessions_restart_at_the_next_coordinator() -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log)
    await join(coordinator, "a")
    following = await other(log, coordinator, session_timeout_ms=50, heartbeat_interval_ms=10)
    await until(lambda: group_of(following).consumer.members == {})
    following.close()


async def test_commits_are_checked_against_the_member_epoch() -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log)
    await coordinator.ready("g")
    assert await commit(coordinator, "a", 1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert await commit(coordinator, "a", 1, supports_epochs=False) is ErrorCode.ILLEGAL_GENERATION
    await join(coordinator, "a")
    assert await commit(coordinator, "a", 1) is ErrorCode.NONE
    assert await commit(coordinator, "a", 0) is ErrorCode.STALE_MEMBER_EPOCH
    assert await commit(coordinator, "b", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await commit(coordinator, "", -1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await commit(coordinator, "a", 1, supports_epochs=False) is ErrorCode.UNSUPPORTED_VERSION
    assert coordinator.fetch_offsets("g", "a", 2) is ErrorCode.STALE_MEMBER_EPOCH
    assert coordinator.fetch_offsets("g", "b", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    for member in (("a", 1), (None, -1)):
        found = coordinator.fetch_offsets("g", *member)
        assert not isinstance(found, ErrorCode)
        assert found.committed == {KEY: OFFSET}
    coordinator.close()


@pytest.mark.parametrize(
    ("member", "error"),
    [
        (("a", None, 1), ErrorCode.NONE),
        (("a", None, 7), ErrorCode.ILLEGAL_GENERATION),
        (("b", None, 1), ErrorCode.UNKNOWN_MEMBER_ID),
        (("b", None, -1), ErrorCode.UNKNOWN_MEMBER_ID),
        (("", "i", -1), ErrorCode.UNKNOWN_MEMBER_ID),
        (("", None, -1), ErrorCode.NONE),
    ],
)
async def test_commits_of_transactions_are_checked(
    member: tuple[str, str | None, int], error: ErrorCode
) -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log)
    await join(coordinator, "a")
    done = await coordinator.commit_transactional_offsets(
        "g", member, TransactionalProducer(1, 0), {KEY: OFFSET}
    )
    assert done[KEY] is error
    coordinator.close()


async def test_offsets_of_subscribed_topics_are_neither_deleted_nor_expired() -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log)
    await join(coordinator, "a")
    old = CommittedOffset(1, -1, "", 0)
    offsets = {KEY: old, ("u", 0): old}
    await coordinator.commit_offsets("g", "a", None, 1, offsets)
    refused = await coordinator.delete_offsets("g", [KEY])
    assert refused == {KEY: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    coordinator.expire()
    await until(lambda: set(group_of(coordinator).offsets.committed) == {KEY})
    await send(coordinator, "a", -1)
    coordinator.expire()
    await until(lambda: coordinator.list_groups() == [])
    assert live_kinds(log) == set()
    coordinator.close()


async def test_groups_are_listed_and_deleted() -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log)
    await join(coordinator, "a")
    assert coordinator.list_groups() == [
        GroupDescription("g", GroupState.STABLE, "consumer", "", (), GroupType.CONSUMER)
    ]
    assert list(coordinator.states()) == [GroupState.STABLE]
    described = coordinator.describe_group("g")
    assert isinstance(described, GroupDescription)
    assert described.state is GroupState.DEAD, "DescribeGroups lists classic groups only"
    assert await coordinator.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
    await send(coordinator, "a", -1)
    assert await coordinator.delete_group("g") is ErrorCode.NONE
    assert coordinator.list_groups() == []
    assert await coordinator.consumers.describe("g") is ErrorCode.GROUP_ID_NOT_FOUND
    following = await other(log, coordinator)
    assert following.list_groups() == []
    following.close()


def classic_join(member_id: str = "", owned: Iterable[int] = (), **fields: Any) -> JoinRequest:
    protocols = (Protocol("cooperative", subscription("t", owned={"t": owned} if owned else {})),)
    request = JoinRequest(
        member_id,
        None,
        "c",
        "/h",
        10_000,
        10_000,
        "consumer",
        protocols,
        needs_known_member_id=False,
    )
    return replace(request, **fields)


async def classic_member(coordinator: GroupCoordinator) -> str:
    """Join a classic group that owns all partitions. Returns the member id."""
    joined = await coordinator.join("g", classic_join())
    assignment = encode_assignment({"t": frozenset(range(4))}, subscription("t"))
    synced = await sync(coordinator, joined.member_id, 1, {joined.member_id: assignment})
    assert synced.error is ErrorCode.NONE
    return joined.member_id


async def sync(
    coordinator: GroupCoordinator,
    member_id: str,
    generation: int,
    assignments: dict[str, bytes] | None = None,
) -> SyncResult:
    request = SyncRequest(member_id, None, generation, "consumer", "cooperative", assignments or {})
    return await coordinator.sync("g", request)


async def test_a_live_group_is_upgraded_and_downgraded() -> None:
    """After a failover at any step, the next coordinator loads the same group."""
    log = MemoryLog()
    coordinator = coordinator_on(log)
    await coordinator.ready("g")
    old = await classic_member(coordinator)
    assert (await join(coordinator, "new")).assignment == {}
    coordinator = await other(log, coordinator)
    assert coordinator.list_groups()[0].type is GroupType.CONSUMER
    assert coordinator.heartbeat("g", old, None, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert await commit(coordinator, old, 1, supports_epochs=False) is ErrorCode.NONE
    assert await commit(coordinator, old, 2) is ErrorCode.ILLEGAL_GENERATION
    revoking = await coordinator.join("g", classic_join(old, range(4)))
    assert (revoking.error, revoking.generation, revoking.leader) == (ErrorCode.NONE, 1, "")
    kept = decode_assignment((await sync(coordinator, old, 1)).assignment)["t"]
    assert len(kept) == 2
    coordinator = await other(log, coordinator)
    assert coordinator.heartbeat("g", old, None, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert (await coordinator.join("g", classic_join(old, kept))).generation == 2
    assert decode_assignment((await sync(coordinator, old, 2)).assignment) == {"t": kept}
    assert coordinator.heartbeat("g", old, None, 2) is ErrorCode.NONE
    gained = await send(coordinator, "new", 2, owned={})
    assert gained.assignment == {TOPIC_ID: frozenset(range(4)) - kept}
    assert (await send(coordinator, "new", -1)).error is ErrorCode.NONE
    coordinator = await other(log, coordinator)
    assert coordinator.list_groups()[0].type is GroupType.CLASSIC
    assert live_kinds(log) == set()
    assert coordinator.heartbeat("g", old, None, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = await coordinator.join("g", classic_join(old))
    assert (rejoined.generation, rejoined.leader) == (3, old)
    coordinator.close()


async def test_a_static_member_changes_its_protocol_by_restarting() -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log)
    await coordinator.ready("g")
    await join(coordinator, "a", instance_id="i")
    back = await coordinator.join("g", classic_join(instance_id="i"))
    assert (back.error, back.generation) == (ErrorCode.NONE, 1)
    assert coordinator.list_groups()[0].type is GroupType.CLASSIC
    again = await coordinator.join("g", classic_join(back.member_id, instance_id="i"))
    assert (again.generation, again.leader) == (2, back.member_id)
    following = await other(log, coordinator)
    assert (await join(following, "b", instance_id="i")).error is ErrorCode.NONE
    assert set(group_of(following).consumer.members) == {"b"}
    following.close()


async def test_waiting_classic_members_are_told_to_rejoin() -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log)
    await coordinator.ready("g")
    old = await classic_member(coordinator)
    waiting = asyncio.create_task(coordinator.join("g", classic_join(client_id="second")))
    await until(lambda: group_of(coordinator).classic.state is GroupState.PREPARING_REBALANCE)
    await join(coordinator, "new")
    assert (await waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    members = group_of(coordinator).consumer.members
    assert len(members) == 3
    assert old in members
    coordinator.close()


async def test_classic_members_have_to_join_and_sync_in_time() -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log)
    await coordinator.ready("g")
    await join(coordinator, "new")
    joined = await coordinator.join("g", classic_join(rebalance_timeout_ms=50))
    assert joined.error is ErrorCode.NONE
    await until(lambda: set(group_of(coordinator).consumer.members) == {"new"})
    coordinator.close()


@pytest.mark.parametrize(
    ("migration", "may_upgrade", "type_in_the_end"),
    [
        ("disabled", False, GroupType.CLASSIC),
        ("downgrade", False, GroupType.CLASSIC),
        ("upgrade", True, GroupType.CONSUMER),
        ("bidirectional", True, GroupType.CLASSIC),
    ],
)
async def test_the_migration_policy_decides_about_upgrades_and_downgrades(
    migration: str, may_upgrade: bool, type_in_the_end: GroupType
) -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log, migration=migration)
    await coordinator.ready("g")
    await classic_member(coordinator)
    upgrade = await join(coordinator, "new")
    if may_upgrade:
        assert upgrade.error is ErrorCode.NONE
        await send(coordinator, "new", -1)
    else:
        assert upgrade.error is ErrorCode.GROUP_ID_NOT_FOUND
        assert upgrade.message == "Group g is not a consumer group."
    assert coordinator.list_groups()[0].type is type_in_the_end
    coordinator.close()


@pytest.mark.parametrize(
    ("instance_id", "topics", "epoch"),
    [("i", ("t",), 1), ("i", ("t", "u"), 2), ("j", ("t",), 2), (None, ("t",), 2)],
)
async def test_an_upgrade_starts_an_epoch_only_if_the_group_changes(
    instance_id: str | None, topics: tuple[str, ...], epoch: int
) -> None:
    """A static member that returns with the consumer protocol changes only its own state."""
    coordinator = coordinator_on(MemoryLog())
    await coordinator.ready("g")
    joined = await coordinator.join("g", classic_join(instance_id="i"))
    assert (joined.error, joined.generation) == (ErrorCode.NONE, 1)
    upgrade = await join(coordinator, "new", instance_id=instance_id, subscribed_names=topics)
    assert (upgrade.error, upgrade.member_epoch) == (ErrorCode.NONE, epoch)
    assert group_of(coordinator).consumer.epoch == epoch
    coordinator.close()


async def test_an_upgrade_that_is_not_written_changes_nothing() -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log)
    await coordinator.ready("g")
    old = await classic_member(coordinator)
    log.hold = True
    log.appended.clear()
    joining = asyncio.create_task(join(coordinator, "new"))
    await log.appended.wait()
    log.hold = False
    log.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert (await joining).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await coordinator.ready("g")
    assert coordinator.list_groups()[0].type is GroupType.CLASSIC
    assert coordinator.heartbeat("g", old, None, 1) is ErrorCode.NONE
    coordinator.close()


async def test_an_empty_group_changes_its_protocol() -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log)
    await join(coordinator, "a")
    await commit(coordinator, "a", 1)
    refused = await coordinator.join("g", classic_join(protocol_type="connect"))
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    await send(coordinator, "a", -1)
    joined = await coordinator.join("g", classic_join())
    assert joined.error is ErrorCode.NONE
    await until(lambda: live_kinds(log) == set())
    await coordinator.leave("g", [(joined.member_id, None)])
    assert (await join(coordinator, "b")).member_epoch == 1
    following = await other(log, coordinator)
    group = group_of(following)
    assert (set(group.consumer.members), group.record) == ({"b"}, None)
    assert group.offsets.committed == {KEY: OFFSET}
    following.close()


async def test_a_change_of_the_protocol_that_the_log_rejects_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log)
    await join(coordinator, "a")
    await send(coordinator, "a", -1)
    rejected = ErrorCode.COORDINATOR_NOT_AVAILABLE
    monkeypatch.setattr(log, "append", lambda _1, _2, done, **_: done(rejected))
    refused = await coordinator.join("g", classic_join())
    monkeypatch.undo()
    assert refused.error is rejected
    assert not group_of(coordinator).classic.members
    assert group_of(coordinator).consumer.epoch == 2
    assert (await join(coordinator, "b")).member_epoch == 3
    coordinator.close()


async def test_leave_group_responses_wait_for_durability(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = MemoryLog()
    coordinator = coordinator_on(log)
    await coordinator.ready("g")
    old = await classic_member(coordinator)
    await join(coordinator, "new")
    rejected = ErrorCode.COORDINATOR_NOT_AVAILABLE
    monkeypatch.setattr(log, "append", lambda _1, _2, done, **_: done(rejected))
    assert await coordinator.leave("g", [(old, None)]) is rejected
    monkeypatch.undo()
    assert set(group_of(coordinator).consumer.members) == {old, "new"}
    log.hold = True
    leaving = asyncio.create_task(coordinator.leave("g", [(old, None)]))
    await until(lambda: bool(log.held))
    assert not leaving.done()
    log.release()
    assert await leaving == [ErrorCode.NONE]
    following = await other(log, coordinator)
    assert set(group_of(following).consumer.members) == {"new"}
    following.close()


async def test_a_classic_group_in_its_initial_delay_writes_no_further_records() -> None:
    """Its only member leaves while the first rebalance is delayed, and another member has announced
    itself.
    """
    log = MemoryLog()
    coordinator = coordinator_on(log, initial_rebalance_delay_ms=50)
    await coordinator.ready("g")
    waiting = asyncio.create_task(coordinator.join("g", classic_join()))
    await until(lambda: isinstance(coordinator.find("g", create=False), Group))
    await coordinator.leave("g", [(next(iter(group_of(coordinator).classic.members)), None)])
    assert (await waiting).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert (await join(coordinator, "a")).member_epoch == 1
    assert group_of(coordinator).classic.next_deadline_ms() is None
    following = await other(log, coordinator)
    assert group_of(following).record is None
    following.close()


async def test_a_rejected_heartbeat_creates_no_group() -> None:
    coordinator = coordinator_on(MemoryLog())
    refused = await join(coordinator, "a", subscribed_names=None, subscribed_regex="a(")
    assert refused.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert coordinator.list_groups() == []
    assert (await send(coordinator, "a", 3)).error is ErrorCode.GROUP_ID_NOT_FOUND
    coordinator.close()


async def test_compaction_keeps_the_records_of_consumer_groups() -> None:
    log = MemoryLog(1)
    limits = CompactionLimits(log_bytes_min=20_000, factor=2, slice_count=3)
    coordinator = coordinator_on(log, compaction=limits)
    await join(coordinator, "stays")
    for number in range(60):
        await join(coordinator, f"m{number}")
        await send(coordinator, f"m{number}", -1)
    await until(lambda: log.starts.get(0, 0) > 0)
    before = group_of(coordinator).consumer
    following = await other(log, coordinator)
    restored = group_of(following).consumer
    assert restored.members == before.members
    assert (restored.epoch, restored.target_epoch) == (before.epoch, before.target_epoch)
    gone = encode_consumer_key(ConsumerRecordKey(ConsumerRecordKind.MEMBER, "g", "m1"))
    assert gone not in group_of(following).consumer_records
    following.close()


async def test_matching_thousands_of_topics_yields_to_the_event_loop() -> None:
    """Each iteration of the event loop matches one slice; without slices, one iteration would match
    all.
    """
    coordinator = coordinator_on(MemoryLog(1))
    image = image_with(1)
    for number in range(5_000):
        image.topics.create(TopicRecord(topic_id=UUID(int=number + 1_000), name=f"x-{number}"))
    coordinator.topics.reset(image)
    await coordinator.ready("g")
    joining = asyncio.ensure_future(
        join(coordinator, "a", subscribed_names=(), subscribed_regex="x-1.*|t")
    )
    turns = 0
    while not joining.done():
        turns += 1
        await asyncio.sleep(0)
    assert joining.result().error is ErrorCode.NONE
    assert turns > 5
    group = coordinator.find("g", create=False)
    assert isinstance(group, Group)
    assert group.consumer is not None
    found = group.consumer.regexes["x-1.*|t"].topics
    assert len(found) == 1 + sum(str(n).startswith("1") for n in range(5_000))
    coordinator.close()


async def test_authorizing_thousands_of_topics_yields_to_the_event_loop() -> None:
    """Each iteration of the event loop checks one slice of topics that were not checked before."""
    coordinator = coordinator_on(MemoryLog(1))
    image = image_with(1)
    for number in range(5 * CHECKED_PER_SLICE_COUNT):
        image.topics.create(TopicRecord(topic_id=UUID(int=number + 1_000), name=f"x-{number}"))
    coordinator.topics.reset(image)
    await coordinator.ready("g")
    requested: dict[str, int] = {}
    turns = 0

    def may_describe(name: str) -> bool:
        requested.setdefault(name, turns)
        return name.endswith("7")

    request = HeartbeatRequest(
        "a", 0, rebalance_timeout_ms=60_000, subscribed_regex="x-.*|t", owned={}
    )
    joining = asyncio.ensure_future(coordinator.consumers.heartbeat("g", request, 1, may_describe))
    while not joining.done():
        turns += 1
        await asyncio.sleep(0)
    assert joining.result().error is ErrorCode.NONE
    assert len(requested) == 5 * CHECKED_PER_SLICE_COUNT + 1
    assert max(Counter(requested.values()).values()) == CHECKED_PER_SLICE_COUNT
    found = group_of(coordinator).consumer.regexes["x-.*|t"].topics
    assert found == {name for name in requested if name.endswith("7")}
    coordinator.close()
