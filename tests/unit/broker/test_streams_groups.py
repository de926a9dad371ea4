"""Streams groups at the group coordinator, over an in-memory log: joins, the first assignment,
timeouts, failover, compaction, offsets, deletion, and groups of other types.
"""

import asyncio
from random import Random
from typing import Any
from uuid import UUID

import pytest

from penstock.broker.coordination.compaction import CompactionLimits
from penstock.broker.coordination.log import TransactionalProducer
from penstock.broker.groups.classic.model import JoinRequest, Protocol
from penstock.broker.groups.common.model import GroupState, GroupType
from penstock.broker.groups.common.records import ConsumerRecordKind, decode_consumer_key
from penstock.broker.groups.consumer.model import HeartbeatRequest
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.offsets.records import CommittedOffset
from penstock.broker.groups.share.model import ShareHeartbeatRequest
from penstock.broker.groups.streams.group import StreamsGroup
from penstock.broker.groups.streams.model import (
    CLIENT_TAGS_MAX,
    Status,
    StreamsHeartbeatRequest,
    StreamsHeartbeatResult,
)
from penstock.broker.groups.streams.values import (
    InternalTopic,
    StreamsMemberState,
    Subtopology,
    Tasks,
    Topology,
)
from penstock.controller.metadata.records import TopicRecord
from penstock.protocol.error_codes import ErrorCode
from tests.support.coordinator_log import MemoryLog
from tests.support.group_coordinators import TOPOLOGY, group_of, image_with
from tests.support.waiting import until

ALL = {"0": frozenset(range(4))}
OFFSET = CommittedOffset(7, -1, "", 1_700_000_000_000)


async def send(
    coordinator: GroupCoordinator, member_id: str, epoch: int, group_id: str = "g", **fields: Any
) -> StreamsHeartbeatResult:
    await coordinator.ready(group_id)
    request = StreamsHeartbeatRequest(member_id=member_id, member_epoch=epoch, **fields)
    return await coordinator.streams.heartbeat(group_id, request)


async def join(
    coordinator: GroupCoordinator, member_id: str, **fields: Any
) -> StreamsHeartbeatResult:
    first: dict[str, Any] = {
        "topology": TOPOLOGY,
        "process_id": f"process-{member_id}",
        "rebalance_timeout_ms": 60_000,
        "active": {},
        "standby": {},
        "warmup": {},
    }
    return await send(coordinator, member_id, 0, **{**first, **fields})


async def own(
    coordinator: GroupCoordinator, member_id: str, epoch: int, tasks: Tasks, **fields: Any
) -> StreamsHeartbeatResult:
    held = {"active": tasks.active, "standby": tasks.standby, "warmup": {}}
    return await send(coordinator, member_id, epoch, **held, **fields)


def streams_of(coordinator: GroupCoordinator) -> StreamsGroup:
    streams = group_of(coordinator).streams
    assert streams is not None
    streams.check_invariants()
    return streams


async def test_the_first_member_gets_all_tasks_and_the_second_one_a_share(coordinator):
    first = await join(coordinator, "a")
    assert (first.member_epoch, first.tasks, first.statuses) == (2, Tasks(ALL), ())
    assert first.heartbeat_interval_ms == 5_000
    second = await join(coordinator, "b")
    assert (second.member_epoch, second.tasks) == (3, Tasks())
    assert streams_of(coordinator).state is GroupState.RECONCILING
    reported = await own(coordinator, "a", 2, Tasks(ALL))
    assert reported.member_epoch == 2, "it stays in its epoch until it has revoked"
    kept = reported.tasks
    assert kept is not None
    assert len(kept.active["0"]) == 2
    assert (await own(coordinator, "b", 3, Tasks())).tasks is None, "a may still have them"
    assert (await own(coordinator, "a", 2, kept)).member_epoch == 3
    got = (await own(coordinator, "b", 3, Tasks())).tasks
    assert got is not None
    assert got.active["0"] == ALL["0"] - kept.active["0"]
    assert streams_of(coordinator).state is GroupState.STABLE


async def test_the_first_assignment_waits_for_more_members(coordinators):
    coordinator = await coordinators.next(delay_ms=1_000)
    for member_id in "ab":
        result = await join(coordinator, member_id)
        assert (result.member_epoch, result.tasks) == (1, Tasks())
        assert [status for status, _ in result.statuses] == [Status.ASSIGNMENT_DELAYED]
    streams = streams_of(coordinator)
    assert streams.state is GroupState.ASSIGNING
    await until(lambda: streams.target_epoch == streams.epoch)
    for member_id in "ab":
        result = await send(coordinator, member_id, 1)
        assert result.statuses == ()
        assert result.tasks is not None
        assert len(result.tasks.active["0"]) == 2


async def test_the_next_coordinator_makes_the_first_assignment_at_once(coordinators):
    """The next coordinator ignores the initial delay."""
    coordinator = await coordinators.next(delay_ms=600_000)
    await join(coordinator, "a")
    following = await coordinators.next(delay_ms=600_000)
    assert (await send(following, "a", 1)).tasks == Tasks(ALL)


async def test_a_failover_does_not_cause_a_rebalance(coordinator, coordinators):
    await join(coordinator, "a", endpoint=("h", 1), client_tags={"zone": "z"})
    await join(coordinator, "b")
    before = streams_of(coordinator)
    following = await coordinators.next()
    restored = streams_of(following)
    assert restored is not before
    assert restored.members == before.members
    assert (restored.current, restored.topology) == (before.current, before.topology)
    assert (restored.targets, restored.target_epoch) == (before.targets, before.target_epoch)
    assert (await send(following, "b", 3)).member_epoch == 3
    assert restored.epoch == before.epoch


async def test_a_silent_member_is_removed(coordinators):
    coordinator = await coordinators.next(streams={"session_timeout_ms": 50})
    await join(coordinator, "a")
    streams = streams_of(coordinator)
    await until(lambda: not streams.members)
    assert streams.state is GroupState.EMPTY
    refused = await send(coordinator, "a", 2)
    assert refused.error is ErrorCode.UNKNOWN_MEMBER_ID
    assert refused.message == "Member a is not a member of group g."


@pytest.mark.parametrize("by_another", [False, True])
async def test_a_member_that_keeps_its_tasks_too_long_is_removed(
    coordinator, coordinators, by_another
):
    """by_another: after a coordinator failover."""
    await join(coordinator, "a", rebalance_timeout_ms=50)
    await join(coordinator, "b")
    await own(coordinator, "a", 2, Tasks(ALL))
    if by_another:
        coordinator = await coordinators.next()
    streams = streams_of(coordinator)
    await until(lambda: set(streams.members) == {"b"})
    assert (await own(coordinator, "b", 3, Tasks())).tasks == Tasks(ALL)


async def test_tasks_are_sent_again_over_another_connection(coordinator, coordinators):
    """The response that contained them may be lost. Cases: fewer tasks, more tasks, and tasks from
    a new coordinator.
    """
    await join(coordinator, "a", connection_id=1)
    assert (await send(coordinator, "a", 2, connection_id=1)).tasks is None
    await join(coordinator, "b", connection_id=1)
    kept = (await own(coordinator, "a", 2, Tasks(ALL), connection_id=1)).tasks
    assert kept is not None
    assert (await own(coordinator, "a", 2, Tasks(ALL), connection_id=2)).tasks == kept
    assert (await own(coordinator, "a", 2, Tasks(ALL), connection_id=2)).tasks is None
    await own(coordinator, "a", 2, kept, connection_id=2)
    given = (await own(coordinator, "b", 3, Tasks(), connection_id=1)).tasks
    assert given is not None
    assert (await own(coordinator, "b", 3, Tasks(), connection_id=2)).tasks == given
    assert (await send(coordinator, "b", 3, connection_id=2)).tasks is None
    following = await coordinators.next()
    assert (await own(following, "b", 3, Tasks(), connection_id=1)).tasks == given
    assert (await own(following, "b", 3, Tasks(), connection_id=1)).tasks is None


async def test_a_heartbeat_response_waits_for_durability(log, coordinator):
    joining = await log.holding(join(coordinator, "a"))
    assert not joining.done()
    log.hold = False
    log.release()
    assert (await joining).error is ErrorCode.NONE


async def test_a_group_that_was_not_written_does_not_exist(log, coordinator):
    joining = await log.holding(join(coordinator, "a"))
    log.hold = False
    log.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert (await joining).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await coordinator.ready("g")
    assert coordinator.list_groups() == []


async def test_compaction_keeps_the_records_of_streams_groups(log, coordinators):
    limits = CompactionLimits(log_bytes_min=20_000, factor=2, slice_count=3)
    coordinator = await coordinators.next(compaction=limits)
    await join(coordinator, "stays")
    for number in range(60):
        await join(coordinator, f"m{number}")
        await send(coordinator, f"m{number}", -1)
    await until(lambda: bool(log.starts))
    before = streams_of(coordinator)
    following = await coordinators.next()
    restored = streams_of(following)
    assert (restored.members, restored.topology) == (before.members, before.topology)
    assert restored.epoch == before.epoch


async def test_statuses_depend_on_the_topology(coordinator):
    topology = Topology(
        3, (Subtopology("0", ("t",), changelog_topics=(InternalTopic("changes"),)),)
    )
    result = await join(coordinator, "a", topology=topology)
    assert result.statuses == (
        (Status.MISSING_INTERNAL_TOPICS, "Internal topics are missing: changes"),
    )
    assert result.missing_topics["changes"].partitions == 4
    assert streams_of(coordinator).state is GroupState.NOT_READY
    stale = await join(coordinator, "b")
    assert stale.statuses[0][0] is Status.STALE_TOPOLOGY
    newer = await join(coordinator, "c", topology=Topology(4, topology.subtopologies))
    assert newer.message == "Topology updates are not supported yet."
    assert set(streams_of(coordinator).members) == {"a", "b"}


async def test_new_partitions_are_assigned(coordinator):
    await join(coordinator, "a")
    coordinator.topics.reset(image_with(6))
    result = await send(coordinator, "a", 2)
    assert (result.member_epoch, result.tasks) == (3, Tasks({"0": frozenset(range(6))}))


async def test_unrelated_topics_change_nothing(coordinator):
    await join(coordinator, "a")
    image = image_with(4)
    image.topics.create(TopicRecord(topic_id=UUID(int=99), name="unrelated"))
    coordinator.topics.reset(image)
    assert (await send(coordinator, "a", 2)).tasks is None
    assert streams_of(coordinator).epoch == 2


async def test_changing_the_number_of_standby_replicas_starts_an_epoch(coordinator, coordinators):
    await join(coordinator, "a")
    coordinator = await coordinators.next(streams={"standby_replicas": 1})
    assert (await send(coordinator, "a", 2)).member_epoch == 3
    assert streams_of(coordinator).current.assignment_configs == (("num.standby.replicas", "1"),)


async def test_a_shutdown_is_reported_until_the_group_is_empty(coordinator):
    await join(coordinator, "a")
    await join(coordinator, "b")
    await send(coordinator, "b", -1, is_shutdown=True)
    reported = await own(coordinator, "a", 2, Tasks(ALL))
    assert reported.statuses == (
        (
            Status.SHUTDOWN_APPLICATION,
            "Streams group member b encountered a fatal error and requested a shutdown for the"
            " entire application.",
        ),
    )
    await send(coordinator, "a", -1)
    assert (await join(coordinator, "c")).statuses == ()


async def test_members_receive_the_endpoints_of_others_for_interactive_queries(coordinator):
    first = await join(coordinator, "a", endpoint=("host-a", 1), endpoint_epoch=0)
    assert first.endpoints is not None
    again = await send(coordinator, "a", 2, endpoint_epoch=0)
    assert (again.endpoint_epoch, again.endpoints) == (0, None), "the first one is not counted"
    other_member = await join(coordinator, "b")
    assert other_member.endpoint_epoch == 0
    assert other_member.endpoints is not None
    (found,) = other_member.endpoints
    assert (found.endpoint, found.active) == (("host-a", 1), {"t": [0, 1, 2, 3]})
    reported = await own(coordinator, "a", 2, Tasks(ALL))
    assert reported.endpoint_epoch == 1
    assert reported.endpoints is not None
    assert len(reported.endpoints[0].active["t"]) == 2


# --- offsets and deletion -------------------------------------------------------------------------


async def test_commits_require_the_epoch_of_the_member_or_the_task(coordinator):
    await join(coordinator, "a")
    await join(coordinator, "b")
    kept = (await own(coordinator, "a", 2, Tasks(ALL))).tasks
    assert kept is not None
    await own(coordinator, "a", 2, kept)
    await own(coordinator, "b", 3, Tasks())
    mine, given = min(kept.active["0"]), min(ALL["0"] - kept.active["0"])

    async def commit(member_id: str, epoch: int, index: int, **fields: Any) -> ErrorCode:
        offsets = {("t", index): OFFSET}
        found = await coordinator.commit_offsets("g", member_id, None, epoch, offsets, **fields)
        return found["t", index]

    assert await commit("a", 3, mine) is ErrorCode.NONE
    assert await commit("a", 2, mine) is ErrorCode.NONE, "it has the task since epoch 2"
    assert await commit("a", 1, mine) is ErrorCode.STALE_MEMBER_EPOCH
    assert await commit("a", 4, mine) is ErrorCode.STALE_MEMBER_EPOCH
    assert await commit("a", 2, given) is ErrorCode.STALE_MEMBER_EPOCH
    assert await commit("b", 2, given) is ErrorCode.STALE_MEMBER_EPOCH, "it has it since epoch 3"
    assert await commit("b", 3, given) is ErrorCode.NONE
    assert await commit("x", 3, mine) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await commit("", -1, mine) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await commit("a", 3, mine, supports_epochs=False) is ErrorCode.UNSUPPORTED_VERSION
    producer = TransactionalProducer(1, 0)
    for member, code in (
        (("a", None, 2), ErrorCode.NONE),
        (("a", None, 1), ErrorCode.ILLEGAL_GENERATION),
        (("", None, -1), ErrorCode.NONE),
    ):
        found = await coordinator.commit_transactional_offsets(
            "g", member, producer, {("t", mine): OFFSET}
        )
        assert found["t", mine] is code, member


async def test_offset_fetches_require_the_epoch_of_the_member(coordinator):
    await join(coordinator, "a")
    assert not isinstance(coordinator.fetch_offsets("g"), ErrorCode)
    assert not isinstance(coordinator.fetch_offsets("g", "a", 2), ErrorCode)
    assert coordinator.fetch_offsets("g", "a", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert coordinator.fetch_offsets("g", "b", 2) is ErrorCode.UNKNOWN_MEMBER_ID


async def test_offsets_of_source_topics_are_kept_while_the_group_has_members(coordinator):
    await join(coordinator, "a")
    offsets = {("t", 0): OFFSET, ("x", 0): OFFSET}
    await coordinator.commit_offsets("g", "a", None, 2, offsets)
    coordinator.expire()
    assert await coordinator.delete_offsets("g", offsets) == {
        ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("x", 0): ErrorCode.NONE,
    }
    await send(coordinator, "a", -1)
    assert await coordinator.delete_offsets("g", [("t", 0)]) == {("t", 0): ErrorCode.NONE}


def tombstones_in(log: MemoryLog) -> list[ConsumerRecordKind]:
    return [
        key.kind
        for batches in log.durable.values()
        for batch in batches
        for data, value in batch.records
        if value is None and (key := decode_consumer_key(data)) is not None
    ]


async def test_only_an_empty_group_can_be_deleted_with_all_its_records(
    log, coordinator, coordinators
):
    await join(coordinator, "a")
    assert await coordinator.delete_group("g") is ErrorCode.NON_EMPTY_GROUP
    await send(coordinator, "a", -1)
    before = len(tombstones_in(log))
    assert await coordinator.delete_group("g") is ErrorCode.NONE
    assert tombstones_in(log)[before:] == [
        ConsumerRecordKind.STREAMS_TARGET_EPOCH,
        ConsumerRecordKind.STREAMS_GROUP,
        ConsumerRecordKind.STREAMS_TOPOLOGY,
    ]
    following = await coordinators.next()
    assert following.list_groups() == []


async def test_an_empty_group_without_offsets_expires(coordinator):
    await join(coordinator, "a")
    coordinator.expire()
    await send(coordinator, "a", -1)
    assert coordinator.list_groups()
    coordinator.expire()
    await until(lambda: coordinator.list_groups() == [])


# --- groups of other types ------------------------------------------------------------------------


def classic_join() -> JoinRequest:
    return JoinRequest(
        "", None, "c", "/h", 10_000, 10_000, "consumer", (Protocol("range", b"\0\0" * 5),), False
    )


async def test_an_empty_streams_group_becomes_classic_and_a_classic_one_a_streams_group(
    coordinator, coordinators
):
    await join(coordinator, "a")
    refused = await coordinator.join("g", classic_join())
    assert refused.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert coordinator.heartbeat("g", "a", None, 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert await coordinator.leave("g", [("a", None)]) == [ErrorCode.UNKNOWN_MEMBER_ID]
    await coordinator.commit_offsets("g", "a", None, 2, {("t", 0): OFFSET})
    await send(coordinator, "a", -1)
    joined = await coordinator.join("g", classic_join())
    assert joined.error is ErrorCode.NONE
    assert (await join(coordinator, "a")).message == "Group g is not a streams group."
    await coordinator.leave("g", [(joined.member_id, None)])
    assert (await join(coordinator, "b")).error is ErrorCode.NONE
    following = await coordinators.next()
    (listed,) = following.list_groups()
    assert (listed.type, listed.protocol_type) == (GroupType.STREAMS, "streams")
    assert group_of(following).record is None
    assert group_of(following).offsets.committed == {("t", 0): OFFSET}


async def test_a_group_that_changes_its_type_gets_new_timers(coordinators):
    """The timer of the former streams group would fire first, and do nothing."""
    coordinator = await coordinators.next(
        streams={"session_timeout_ms": 50}, consumer={"session_timeout_ms": 150}
    )
    await join(coordinator, "a")
    await send(coordinator, "a", -1)
    joined = await coordinator.join("g", classic_join())
    await coordinator.leave("g", [(joined.member_id, None)])
    consumer = HeartbeatRequest("m", 0, rebalance_timeout_ms=1, subscribed_names=("t",), owned={})
    assert (await coordinator.consumers.heartbeat("g", consumer, 1)).error is ErrorCode.NONE
    members = group_of(coordinator).consumer
    assert members is not None
    await until(lambda: not members.members)


async def test_requests_of_other_protocols_reject_a_streams_group(coordinator):
    await join(coordinator, "a")
    consumer = HeartbeatRequest("m", 0, rebalance_timeout_ms=1, subscribed_names=("t",), owned={})
    found = await coordinator.consumers.heartbeat("g", consumer, 1)
    assert found.message == "Group g is not a consumer group."
    share = ShareHeartbeatRequest("m", 0, subscribed_names=("t",))
    assert (await coordinator.shares.heartbeat("g", share)).message == (
        "Group g is not a share group."
    )
    assert await coordinator.consumers.describe("g") is ErrorCode.GROUP_ID_NOT_FOUND
    assert coordinator.unknown_group("g") == "Group g is not a classic group."


async def test_streams_heartbeats_reject_groups_of_other_types(coordinator):
    absent = await send(coordinator, "a", 3)
    assert absent.error is ErrorCode.GROUP_ID_NOT_FOUND
    assert absent.message == "Streams group g not found."
    assert (await send(coordinator, "a", -1)).message == "Group g not found."
    assert coordinator.list_groups() == []
    consumer = HeartbeatRequest("m", 0, rebalance_timeout_ms=1, subscribed_names=("t",), owned={})
    await coordinator.consumers.heartbeat("g", consumer, 1)
    for epoch in (3, -1):
        found = await send(coordinator, "a", epoch)
        assert (found.error, found.message) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            "Group g is not a streams group.",
        )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"instance_id": "i"}, "Static membership is not yet supported."),
        ({"has_task_offsets": True}, "TaskOffsets are not supported yet."),
        ({"has_task_end_offsets": True}, "TaskEndOffsets are not supported yet."),
        ({"warmup": {"0": frozenset({1})}}, "WarmupTasks are not supported yet."),
        ({"rack_id": " "}, "RackId can't be empty."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"active": None}, "ActiveTasks must be empty when (re-)joining."),
        ({"topology": None}, "Topology must be non-null when (re-)joining."),
        (
            {"client_tags": {str(number): "" for number in range(CLIENT_TAGS_MAX + 1)}},
            "A member has at most 100 client tags.",
        ),
    ],
)
async def test_an_invalid_join_is_rejected_and_creates_no_group(coordinator, fields, message):
    refused = await join(coordinator, "a", **fields)
    assert (refused.error, refused.message) == (ErrorCode.INVALID_REQUEST, message)
    assert coordinator.list_groups() == []


async def test_a_full_group_rejects_new_members(coordinators):
    coordinator = await coordinators.next(streams={"members_max": 1})
    await join(coordinator, "a")
    refused = await join(coordinator, "b")
    assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert (await send(coordinator, "a", 2)).error is ErrorCode.NONE


async def test_epochs_and_tasks_of_heartbeats_are_validated(coordinator):
    await join(coordinator, "a")
    for epoch in (1, 3):
        assert (await send(coordinator, "a", epoch)).error is ErrorCode.FENCED_MEMBER_EPOCH
    unknown = await own(coordinator, "a", 2, Tasks({"0": frozenset({4})}))
    assert unknown.message == (
        "Task 4 for subtopology 0 is invalid. Number of tasks for this subtopology: 4"
    )
    unknown = await own(coordinator, "a", 2, Tasks({"1": frozenset({0})}))
    assert unknown.message == "Subtopology 1 does not exist in the topology."
    coordinator.topics.reset(image_with(5))
    assert (await send(coordinator, "a", 2)).member_epoch == 3
    repeated = await own(coordinator, "a", 2, Tasks(ALL))
    assert (repeated.error, repeated.member_epoch) == (ErrorCode.NONE, 3)


async def test_the_response_that_requests_a_revocation_may_get_lost(coordinator, coordinators):
    await join(coordinator, "a")
    coordinator.topics.reset(image_with(5))
    assert (await own(coordinator, "a", 2, Tasks(ALL))).member_epoch == 3
    await join(coordinator, "b")
    assert (await own(coordinator, "a", 2, Tasks(ALL))).member_epoch == 3
    state = streams_of(coordinator).members["a"].current.state
    assert state is StreamsMemberState.UNREVOKED_TASKS
    following = await coordinators.next(partitions=5)
    requested = await own(following, "a", 2, Tasks(ALL))
    assert (requested.error, requested.member_epoch) == (ErrorCode.NONE, 3)


async def test_a_late_heartbeat_does_not_revoke_tasks(coordinator):
    """The heartbeat was sent before the member owned any task."""
    await join(coordinator, "a")
    coordinator.topics.reset(image_with(5))
    assert (await own(coordinator, "a", 2, Tasks(ALL))).member_epoch == 3
    await join(coordinator, "b")
    for _ in range(2):  # once before the coordinator requests a revocation, and once afterwards
        assert (await own(coordinator, "a", 2, Tasks())).member_epoch == 3
        state = streams_of(coordinator).members["a"].current.state
        assert state is StreamsMemberState.UNREVOKED_TASKS


async def test_tasks_are_sent_again_after_a_heartbeat_that_could_not_be_written(log, coordinator):
    await join(coordinator, "a", connection_id=1)
    coordinator.topics.reset(image_with(5))
    await own(coordinator, "a", 2, Tasks(ALL), connection_id=1)
    await join(coordinator, "b")
    await send(coordinator, "b", -1)
    log.refuses = True
    refused = await own(coordinator, "a", 2, Tasks(ALL), connection_id=2)
    assert refused.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    log.refuses = False
    again = await own(coordinator, "a", 2, Tasks(ALL), connection_id=2)
    assert again.tasks == Tasks({"0": frozenset(range(5))})
    following = await own(coordinator, "a", again.member_epoch, again.tasks, connection_id=2)
    assert following.tasks is None
    other_topology = Topology(1, (Subtopology("0", ("u",)),))
    rejected = await join(coordinator, "c", topology=other_topology)
    assert rejected.error is ErrorCode.INVALID_REQUEST
    following = await own(coordinator, "a", again.member_epoch, again.tasks, connection_id=2)
    assert following.tasks is None, "a rejected heartbeat has no effect"


@pytest.mark.parametrize("seed", range(20))
async def test_members_that_lose_several_responses_are_not_fenced(coordinator, seed):
    rng = Random(seed)
    tasks: dict[str, Tasks] = {}
    epochs: dict[str, int] = {}
    count, size = 0, 4
    for step in range(60):
        choice = rng.randrange(6)
        if choice == 0:
            size += 1
            coordinator.topics.reset(image_with(size))
        elif choice == 1 and len(tasks) < 4:
            count += 1
            joined = await join(coordinator, f"m{count}")
            tasks[f"m{count}"], epochs[f"m{count}"] = joined.tasks or Tasks(), joined.member_epoch
        elif choice == 2 and len(tasks) > 1:
            member_id = rng.choice(sorted(tasks))
            del tasks[member_id], epochs[member_id]
            await send(coordinator, member_id, -1)
        elif tasks:
            member_id = rng.choice(sorted(tasks))
            held, epoch = tasks[member_id], epochs[member_id]
            # A connection other than the last one receives all tasks again.
            result = await own(coordinator, member_id, epoch, held, connection_id=step)
            assert result.error is ErrorCode.NONE, result.message
            if rng.random() < 0.3:
                tasks[member_id] = held if result.tasks is None else result.tasks
                epochs[member_id] = result.member_epoch
        owned = [
            (key, index)
            for held in tasks.values()
            for key, indexes in held.active.items()
            for index in indexes
        ]
        assert len(owned) == len(set(owned)), "a task has two owners"


async def test_a_member_that_joins_while_the_group_expires_keeps_its_topology(
    log, coordinator, coordinators
):
    await join(coordinator, "a")
    await send(coordinator, "a", -1)
    log.hold = True
    log.appended.clear()
    coordinator.expire()
    joining = asyncio.create_task(join(coordinator, "b"))
    await log.appended.wait()
    await until(lambda: "b" in streams_of(coordinator).members)
    log.hold = False
    log.release()
    joined = await joining
    following = await coordinators.next()
    again = await send(following, "b", joined.member_epoch)
    assert (again.error, again.member_epoch) == (ErrorCode.NONE, joined.member_epoch)
