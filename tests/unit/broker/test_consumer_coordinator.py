"""The consumer group coordinator over an in-memory log: durability, failover, compaction, offsets,
and groups that change their protocol.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from penstock.broker.coordination.compaction import CompactionLimits
from penstock.broker.coordination.log import TransactionalProducer
from penstock.broker.groups.classic.embedded import decode_assignment, encode_assignment
from penstock.broker.groups.classic.model import (
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
from penstock.broker.groups.consumer.model import HeartbeatRequest
from penstock.broker.groups.coordinator.descriptions import GroupDescription
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.coordinator.shard import Group
from penstock.broker.groups.offsets.records import CommittedOffset
from penstock.controller.metadata.records import TopicRecord
from penstock.protocol.error_codes import ErrorCode
from tests.support.coordinator_log import MemoryLog
from tests.support.embedded import subscription
from tests.support.group_coordinators import TOPIC_ID, group_of, image_with
from tests.support.waiting import until

KEY = ("t", 0)
OFFSET = CommittedOffset(7, -1, "", 1_700_000_000_000)


async def send(
    coordinator: GroupCoordinator, member_id: str, epoch: int, group_id: str = "g", **fields: Any
) -> HeartbeatResult:
    await coordinator.ready(group_id)
    request = HeartbeatRequest(member_id, epoch, **fields)
    return await coordinator.consumers.heartbeat(group_id, request, version=1)


async def join(coordinator: GroupCoordinator, member_id: str, **fields: Any) -> HeartbeatResult:
    fields = {"rebalance_timeout_ms": 60_000, "owned": {}, "subscribed_names": ("t",)} | fields
    return await send(coordinator, member_id, 0, **fields)


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


async def test_a_response_waits_until_its_records_are_durable(log, coordinator):
    joining = await log.holding(join(coordinator, "a"))
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


async def test_a_failover_needs_no_rebalance(coordinator, coordinators):
    first = await join(coordinator, "a", instance_id="i")
    await join(coordinator, "b", subscribed_names=None, subscribed_regex="t.*")
    before = group_of(coordinator).consumer
    following = await coordinators.next()
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


async def test_a_failed_append_is_reported_and_rolled_back(log, coordinator):
    await join(coordinator, "a")
    joining = await log.holding(join(coordinator, "b"))
    log.hold = False
    log.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert (await joining).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await coordinator.ready("g")
    assert set(group_of(coordinator).consumer.members) == {"a"}
    assert (await join(coordinator, "b")).member_epoch == 2


async def test_a_member_with_version_0_gets_an_id(coordinator):
    request = HeartbeatRequest(
        "", 0, "app", rebalance_timeout_ms=1, owned={}, subscribed_names=("t",)
    )
    result = await coordinator.consumers.heartbeat("g", request, version=0)
    assert (result.error, result.member_id) == (ErrorCode.NONE, "app-0")
    assert set(group_of(coordinator).consumer.members) == {"app-0"}


async def test_the_expiry_of_the_last_consumer_member_downgrades_the_group(coordinators):
    coordinator = await coordinators.next(
        consumer={"session_timeout_ms": 50, "heartbeat_interval_ms": 10}
    )
    old = await classic_member(coordinator)
    await join(coordinator, "new")
    await until(lambda: coordinator.list_groups()[0].type is GroupType.CLASSIC)
    assert coordinator.heartbeat("g", old, None, 2) is ErrorCode.REBALANCE_IN_PROGRESS


async def test_the_removal_of_silent_members_is_durable(log, coordinators):
    coordinator = await coordinators.next(
        consumer={"session_timeout_ms": 50, "heartbeat_interval_ms": 10}
    )
    await join(coordinator, "a")
    await until(lambda: live_kinds(log) == {"GROUP", "TARGET_EPOCH"})
    following = await coordinators.next()
    assert group_of(following).consumer.state is GroupState.EMPTY
    assert (await send(following, "a", 1)).error is ErrorCode.UNKNOWN_MEMBER_ID


async def test_sessions_restart_at_the_next_coordinator(coordinator, coordinators):
    await join(coordinator, "a")
    following = await coordinators.next(
        consumer={"session_timeout_ms": 50, "heartbeat_interval_ms": 10}
    )
    await until(lambda: group_of(following).consumer.members == {})


async def test_commits_are_checked_against_the_member_epoch(coordinator):
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
async def test_commits_of_transactions_are_checked(coordinator, member, error):
    await join(coordinator, "a")
    done = await coordinator.commit_transactional_offsets(
        "g", member, TransactionalProducer(1, 0), {KEY: OFFSET}
    )
    assert done[KEY] is error


async def test_offsets_of_subscribed_topics_are_neither_deleted_nor_expired(log, coordinator):
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


async def test_groups_are_listed_and_deleted(states, coordinator, coordinators):
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
    following = await coordinators.next()
    assert following.list_groups() == []


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


async def test_a_live_group_is_upgraded_and_downgraded(log, coordinator, coordinators):
    """After a failover at any step, the next coordinator loads the same group."""
    old = await classic_member(coordinator)
    assert (await join(coordinator, "new")).assignment == {}
    coordinator = await coordinators.next()
    assert coordinator.list_groups()[0].type is GroupType.CONSUMER
    assert coordinator.heartbeat("g", old, None, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert await commit(coordinator, old, 1, supports_epochs=False) is ErrorCode.NONE
    assert await commit(coordinator, old, 2) is ErrorCode.ILLEGAL_GENERATION
    revoking = await coordinator.join("g", classic_join(old, range(4)))
    assert (revoking.error, revoking.generation, revoking.leader) == (ErrorCode.NONE, 1, "")
    kept = decode_assignment((await sync(coordinator, old, 1)).assignment)["t"]
    assert len(kept) == 2
    coordinator = await coordinators.next()
    assert coordinator.heartbeat("g", old, None, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    assert (await coordinator.join("g", classic_join(old, kept))).generation == 2
    assert decode_assignment((await sync(coordinator, old, 2)).assignment) == {"t": kept}
    assert coordinator.heartbeat("g", old, None, 2) is ErrorCode.NONE
    gained = await send(coordinator, "new", 2, owned={})
    assert gained.assignment == {TOPIC_ID: frozenset(range(4)) - kept}
    assert (await send(coordinator, "new", -1)).error is ErrorCode.NONE
    coordinator = await coordinators.next()
    assert coordinator.list_groups()[0].type is GroupType.CLASSIC
    assert live_kinds(log) == set()
    assert coordinator.heartbeat("g", old, None, 2) is ErrorCode.REBALANCE_IN_PROGRESS
    rejoined = await coordinator.join("g", classic_join(old))
    assert (rejoined.generation, rejoined.leader) == (3, old)


async def test_a_static_member_changes_its_protocol_by_restarting(coordinator, coordinators):
    await join(coordinator, "a", instance_id="i")
    back = await coordinator.join("g", classic_join(instance_id="i"))
    assert (back.error, back.generation) == (ErrorCode.NONE, 1)
    assert coordinator.list_groups()[0].type is GroupType.CLASSIC
    again = await coordinator.join("g", classic_join(back.member_id, instance_id="i"))
    assert (again.generation, again.leader) == (2, back.member_id)
    following = await coordinators.next()
    assert (await join(following, "b", instance_id="i")).error is ErrorCode.NONE
    assert set(group_of(following).consumer.members) == {"b"}


async def test_waiting_classic_members_are_told_to_rejoin(coordinator):
    old = await classic_member(coordinator)
    waiting = asyncio.create_task(coordinator.join("g", classic_join(client_id="second")))
    await until(lambda: group_of(coordinator).classic.state is GroupState.PREPARING_REBALANCE)
    await join(coordinator, "new")
    assert (await waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    members = group_of(coordinator).consumer.members
    assert len(members) == 3
    assert old in members


async def test_classic_members_have_to_join_and_sync_in_time(coordinator):
    await join(coordinator, "new")
    joined = await coordinator.join("g", classic_join(rebalance_timeout_ms=50))
    assert joined.error is ErrorCode.NONE
    await until(lambda: set(group_of(coordinator).consumer.members) == {"new"})


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
    coordinators, migration, may_upgrade, type_in_the_end
):
    coordinator = await coordinators.next(consumer={"migration": migration})
    await classic_member(coordinator)
    upgrade = await join(coordinator, "new")
    if may_upgrade:
        assert upgrade.error is ErrorCode.NONE
        await send(coordinator, "new", -1)
    else:
        assert upgrade.error is ErrorCode.GROUP_ID_NOT_FOUND
        assert upgrade.message == "Group g is not a consumer group."
    assert coordinator.list_groups()[0].type is type_in_the_end


@pytest.mark.parametrize(
    ("instance_id", "topics", "epoch"),
    [("i", ("t",), 1), ("i", ("t", "u"), 2), ("j", ("t",), 2), (None, ("t",), 2)],
)
async def test_an_upgrade_starts_an_epoch_only_if_the_group_changes(
    coordinator, instance_id, topics, epoch
):
    """A static member that returns with the consumer protocol changes only its own state."""
    joined = await coordinator.join("g", classic_join(instance_id="i"))
    assert (joined.error, joined.generation) == (ErrorCode.NONE, 1)
    upgrade = await join(coordinator, "new", instance_id=instance_id, subscribed_names=topics)
    assert (upgrade.error, upgrade.member_epoch) == (ErrorCode.NONE, epoch)
    assert group_of(coordinator).consumer.epoch == epoch


async def test_an_upgrade_that_is_not_written_changes_nothing(log, coordinator):
    old = await classic_member(coordinator)
    joining = await log.holding(join(coordinator, "new"))
    log.hold = False
    log.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert (await joining).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await coordinator.ready("g")
    assert coordinator.list_groups()[0].type is GroupType.CLASSIC
    assert coordinator.heartbeat("g", old, None, 1) is ErrorCode.NONE


async def test_an_empty_group_changes_its_protocol(log, coordinator, coordinators):
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
    following = await coordinators.next()
    group = group_of(following)
    assert (set(group.consumer.members), group.record) == ({"b"}, None)
    assert group.offsets.committed == {KEY: OFFSET}


async def test_a_change_of_the_protocol_that_the_log_rejects_changes_nothing(
    log, coordinator, monkeypatch
):
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


async def test_leave_group_responses_wait_for_durability(
    log, coordinator, coordinators, monkeypatch
):
    old = await classic_member(coordinator)
    await join(coordinator, "new")
    rejected = ErrorCode.COORDINATOR_NOT_AVAILABLE
    monkeypatch.setattr(log, "append", lambda _1, _2, done, **_: done(rejected))
    assert await coordinator.leave("g", [(old, None)]) is rejected
    monkeypatch.undo()
    assert set(group_of(coordinator).consumer.members) == {old, "new"}
    leaving = await log.holding(coordinator.leave("g", [(old, None)]))
    assert not leaving.done()
    log.release()
    assert await leaving == [ErrorCode.NONE]
    following = await coordinators.next()
    assert set(group_of(following).consumer.members) == {"new"}


async def test_a_classic_group_in_its_initial_delay_writes_no_further_records(coordinators):
    """Its only member leaves while the first rebalance is delayed, and another member has announced
    itself.
    """
    coordinator = await coordinators.next(delay_ms=600_000)
    waiting = asyncio.create_task(coordinator.join("g", classic_join()))
    await until(lambda: isinstance(coordinator.find("g", create=False), Group))
    await coordinator.leave("g", [(next(iter(group_of(coordinator).classic.members)), None)])
    assert (await waiting).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert (await join(coordinator, "a")).member_epoch == 1
    assert group_of(coordinator).classic.next_deadline_ms() is None
    following = await coordinators.next()
    assert group_of(following).record is None


async def test_a_rejected_heartbeat_creates_no_group(coordinator):
    refused = await join(coordinator, "a", subscribed_names=None, subscribed_regex="a(")
    assert refused.error is ErrorCode.INVALID_REGULAR_EXPRESSION
    assert coordinator.list_groups() == []
    assert (await send(coordinator, "a", 3)).error is ErrorCode.GROUP_ID_NOT_FOUND


async def test_compaction_keeps_the_records_of_consumer_groups(log, coordinators):
    limits = CompactionLimits(log_bytes_min=20_000, factor=2, slice_count=3)
    coordinator = await coordinators.next(compaction=limits)
    await join(coordinator, "stays")
    for number in range(60):
        await join(coordinator, f"m{number}")
        await send(coordinator, f"m{number}", -1)
    await until(lambda: bool(log.starts))
    before = group_of(coordinator).consumer
    following = await coordinators.next()
    restored = group_of(following).consumer
    assert restored.members == before.members
    assert (restored.epoch, restored.target_epoch) == (before.epoch, before.target_epoch)
    gone = encode_consumer_key(ConsumerRecordKey(ConsumerRecordKind.MEMBER, "g", "m1"))
    assert gone not in group_of(following).consumer_records


async def test_matching_thousands_of_topics_yields_to_the_event_loop(coordinator):
    """Each iteration of the event loop matches one slice; without slices, one iteration would match
    all.
    """
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


async def test_authorizing_thousands_of_topics_yields_to_the_event_loop(coordinator):
    """Each iteration of the event loop checks one slice of topics that were not checked before."""
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
