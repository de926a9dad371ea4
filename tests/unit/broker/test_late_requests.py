"""Late requests of group members have no effect: copies that the client gave up and repeated on a
newer connection.
"""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from penstock.broker.coordination.connection_order import LateRequest
from penstock.broker.groups.classic.embedded import encode_assignment
from penstock.broker.groups.classic.model import (
    Protocol,
    SyncRequest,
)
from penstock.broker.groups.common.model import NOTHING, HeartbeatRefused
from penstock.broker.groups.consumer.model import HeartbeatRequest
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.offsets.offsets import GroupOffsets
from penstock.broker.groups.offsets.records import CommittedOffset
from penstock.broker.groups.share.model import ShareHeartbeatRequest
from penstock.broker.groups.share.partitions.sessions import (
    FINAL_EPOCH,
    ShareSessionKey,
    ShareSessions,
    TopicIdPartition,
)
from penstock.broker.groups.share.state.machine import ShareStates
from penstock.broker.groups.share.state.model import ACKNOWLEDGED, SharePartitionKey, StateBatch
from penstock.broker.groups.streams.model import StreamsHeartbeatRequest
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from tests.support.embedded import subscription
from tests.support.group_coordinators import JOINING, TOPIC_ID, TOPOLOGY, group_of
from tests.unit.broker.test_consumer_coordinator import KEY, join

Send = Callable[[GroupCoordinator, str, int], Awaitable[Any]]
COMMIT = partial(CommittedOffset, leader_epoch=-1, metadata="", commit_timestamp_ms=0)
OWNER = ShareSessionKey("g", "m")
PART = TopicIdPartition(TOPIC_ID, 0)


async def consumer_joins(coordinator: GroupCoordinator, member_id: str, connection: int) -> Any:
    request = HeartbeatRequest(
        member_id, 0, rebalance_timeout_ms=60_000, owned={}, subscribed_names=("t",)
    )
    return await coordinator.consumers.heartbeat("g", request, 1, connection_id=connection)


async def streams_joins(coordinator: GroupCoordinator, member_id: str, connection: int) -> Any:
    request = StreamsHeartbeatRequest(
        member_id=member_id,
        member_epoch=0,
        topology=TOPOLOGY,
        process_id=f"process {member_id}",
        rebalance_timeout_ms=60_000,
        active={},
        standby={},
        warmup={},
    )
    return await coordinator.streams.heartbeat("g", request, connection)


async def share_joins(coordinator: GroupCoordinator, member_id: str, connection: int) -> Any:
    request = ShareHeartbeatRequest(member_id, 0, subscribed_names=("t",))
    return await coordinator.shares.heartbeat("g", request, connection)


@pytest.mark.parametrize("joins", [consumer_joins, streams_joins, share_joins])
async def test_a_late_first_heartbeat_is_rejected(coordinator, joins):
    for connection in (7, 7, 9):
        assert (await joins(coordinator, "m", connection)).error is ErrorCode.NONE
    before = dict(group_of(coordinator).modern.members)
    with pytest.raises(LateRequest, match=r"of member m is late: its connection \(8\) is older"):
        await joins(coordinator, "m", 8)
    assert group_of(coordinator).modern.members == before
    # Another member may use an older connection, and this member a new one.
    assert (await joins(coordinator, "other", 1)).error is ErrorCode.NONE
    assert (await joins(coordinator, "m", 10)).error is ErrorCode.NONE


async def static_join(coordinator: GroupCoordinator, member_id: str, connection: int) -> Any:
    request = replace(JOINING, instance_id=member_id)
    return await coordinator.join("g", request, connection)


async def leave(coordinator: GroupCoordinator, joins: Send) -> None:
    if joins is consumer_joins:
        await coordinator.consumers.heartbeat("g", HeartbeatRequest("m", -1), 1)
    elif joins is streams_joins:
        leaving = StreamsHeartbeatRequest(member_id="m", member_epoch=-1)
        await coordinator.streams.heartbeat("g", leaving)
    elif joins is share_joins:
        await coordinator.shares.heartbeat("g", ShareHeartbeatRequest("m", -1))
    else:
        await coordinator.leave("g", [("", "m")])


@pytest.mark.parametrize("joins", [consumer_joins, streams_joins, share_joins, static_join])
async def test_a_late_join_creates_no_group(coordinator, joins):
    assert (await joins(coordinator, "m", 7)).error is ErrorCode.NONE
    await leave(coordinator, joins)
    assert await coordinator.delete_group("g") is ErrorCode.NONE
    with pytest.raises(LateRequest):
        await joins(coordinator, "m", 6)
    assert coordinator.list_groups() == []


async def alters_share_offsets(
    coordinator: GroupCoordinator, member_id: str, connection: int
) -> Any:
    chosen = {TOPIC_ID: ("t", frozenset({0}))}
    with pytest.raises(HeartbeatRefused) as refused:
        await coordinator.shares.alter_offsets("g", chosen, {(TOPIC_ID, 0): 5})
    return refused.value.result


@pytest.mark.parametrize(
    "joins", [consumer_joins, streams_joins, share_joins, alters_share_offsets]
)
async def test_a_join_that_cannot_be_stored_creates_no_group(log, coordinator, joins):
    log.refuses = True
    assert (await joins(coordinator, "m", 7)).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert coordinator.list_groups() == []


async def test_members_without_an_id_are_never_late(coordinator):
    """With version 0 of ConsumerGroupHeartbeat, the coordinator chooses the id."""
    request = HeartbeatRequest(
        "", 0, rebalance_timeout_ms=60_000, owned={}, subscribed_names=("t",)
    )
    for connection in (9, 8):
        result = await coordinator.consumers.heartbeat("g", request, 0, connection_id=connection)
        assert result.error is ErrorCode.NONE
        joined = await coordinator.join("h", JOINING, connection)
        assert joined.error in {ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS}


async def test_late_join_and_sync_requests_are_rejected(coordinator):
    joined = await coordinator.join("g", JOINING, 5)
    known = replace(JOINING, member_id=joined.member_id)
    syncing = SyncRequest(joined.member_id, None, 2, "consumer", "range", {joined.member_id: b"x"})
    again = await coordinator.join("g", replace(known, protocols=(Protocol("range", b"\0\0"),)), 7)
    assert (again.error, again.generation) == (ErrorCode.NONE, 2)
    with pytest.raises(LateRequest):
        await coordinator.join("g", known, 6)
    # Each API may use its own connection.
    assert (await coordinator.sync("g", syncing, 3)).error is ErrorCode.NONE
    assert (await coordinator.sync("g", syncing, 8)).error is ErrorCode.NONE
    with pytest.raises(LateRequest):
        await coordinator.sync("g", syncing, 7)
    assert group_of(coordinator).classic.generation == 2


async def commit(
    coordinator: GroupCoordinator, member_id: str, epoch: int, offset: int, connection: int
) -> ErrorCode:
    results = await coordinator.commit_offsets(
        "g", member_id, None, epoch, {KEY: COMMIT(offset)}, connection_id=connection
    )
    return results[KEY]


async def classic_epoch(coordinator: GroupCoordinator) -> tuple[str, int]:
    joined = await coordinator.join("g", JOINING)
    syncing = SyncRequest(joined.member_id, None, 1, "consumer", "range", {joined.member_id: b"x"})
    await coordinator.sync("g", syncing)
    return joined.member_id, 1


async def consumer_epoch(coordinator: GroupCoordinator) -> tuple[str, int]:
    return "m", (await join(coordinator, "m")).member_epoch


@pytest.mark.parametrize("member_of", [classic_epoch, consumer_epoch])
async def test_a_late_commit_does_not_move_an_offset_back(coordinator, member_of):
    member_id, epoch = await member_of(coordinator)
    for offset, connection in ((10, 4), (20, 6)):
        code = await commit(coordinator, member_id, epoch, offset, connection)
        assert code is ErrorCode.NONE
    with pytest.raises(LateRequest):
        await commit(coordinator, member_id, epoch, 10, 4)
    assert coordinator.fetch_offsets("g").committed[KEY].offset == 20
    assert await commit(coordinator, member_id, epoch, 5, 6) is ErrorCode.NONE, "on purpose"


async def test_a_late_commit_that_only_advances_is_executed(coordinator):
    """Clients with a connection pool reuse older connections."""
    member_id, epoch = await consumer_epoch(coordinator)

    async def put(offset: int, connection: int, metadata: str = "", partition: int = 0) -> None:
        value = replace(COMMIT(offset), metadata=metadata)
        results = await coordinator.commit_offsets(
            "g", member_id, None, epoch, {("t", partition): value}, connection_id=connection
        )
        assert set(results.values()) == {ErrorCode.NONE}

    for offset, connection in ((10, 4), (20, 6), (20, 4), (30, 4), (40, 6)):
        await put(offset, connection)
    await put(40, 6, "new metadata")
    for offset, metadata in ((39, ""), (40, "")):
        with pytest.raises(LateRequest):
            await put(offset, 4, metadata)
    with pytest.raises(LateRequest):  # the first offset of the member may have been deleted since
        await put(50, 4, partition=1)
    await put(50, 4)
    await put(45, 6)
    with pytest.raises(LateRequest):
        await put(50, 4)
    assert coordinator.fetch_offsets("g").committed[KEY].offset == 45


@pytest.mark.parametrize("member_id", ["", "an admin client"])
async def test_commits_without_a_generation_may_move_back_on_any_connection(coordinator, member_id):
    for offset, connection in ((20, 6), (10, 4)):
        assert await commit(coordinator, member_id, -1, offset, connection) is ErrorCode.NONE
    assert coordinator.fetch_offsets("g").committed[KEY].offset == 10


@pytest.mark.parametrize("api", [apis.SHARE_FETCH, apis.SHARE_ACKNOWLEDGE])
def test_late_requests_of_a_share_session_are_rejected(api: Any) -> None:
    sessions = ShareSessions(10)
    for connection in (4, 6):
        sessions.admit(api.key, OWNER, connection)
    session = sessions.open(OWNER, 6, [PART])
    with pytest.raises(LateRequest):
        sessions.admit(api.key, OWNER, 4)
    sessions.resume(OWNER, FINAL_EPOCH)
    sessions.close(session)
    with pytest.raises(LateRequest):
        sessions.admit(api.key, OWNER, 5)
    sessions.admit(api.key, ShareSessionKey("g", ""), 6)
    sessions.admit(api.key, ShareSessionKey("g", ""), 4)


def test_an_acknowledgement_of_an_earlier_session_is_late() -> None:
    """This applies however its session ended, and whichever sessions followed."""
    sessions = ShareSessions(10)
    sessions.open(OWNER, 4, [PART])
    sessions.open(OWNER, 5, [PART])
    sessions.open(OWNER, 5, [PART])
    sessions.resume(OWNER, 1, connection_id=6)
    sessions.close(sessions.open(OWNER, 7, [PART]))
    for connection in range(8, 40):
        sessions.open(OWNER, connection, [PART])
        sessions.close_connection(connection)
    sessions.open(OWNER, 40, [PART])
    for connection in (4, 5, 6, 7):
        with pytest.raises(LateRequest, match="was replaced by one on connection 40"):
            sessions.admit(apis.SHARE_ACKNOWLEDGE.key, OWNER, connection)
    sessions.open(OWNER, 40, [PART])
    sessions.admit(apis.SHARE_ACKNOWLEDGE.key, OWNER, 40)


def test_remembered_connections_of_earlier_sessions_are_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.broker.groups.share.partitions.sessions.MEMBERS_MAX", 2)
    sessions = ShareSessions(10)
    for connection in (4, 5, 6, 7):
        sessions.open(OWNER, connection, [PART])
    sessions.admit(apis.SHARE_ACKNOWLEDGE.key, OWNER, 4)
    for connection in (5, 6):
        with pytest.raises(LateRequest):
            sessions.admit(apis.SHARE_ACKNOWLEDGE.key, OWNER, connection)


def test_acknowledgements_may_use_their_own_older_connection() -> None:
    sessions = ShareSessions(10)
    sessions.open(OWNER, 4, [PART])
    sessions.admit(apis.SHARE_ACKNOWLEDGE.key, OWNER, 3)
    sessions.open(OWNER, 6, [PART])
    sessions.admit(apis.SHARE_ACKNOWLEDGE.key, OWNER, 3)


def cooperative(*topics: str, owned: Iterable[int] = ()) -> tuple[Protocol, ...]:
    return (Protocol("cooperative-sticky", subscription(*topics, owned={"t": owned})),)


@pytest.mark.parametrize("joins_count", [0, 1, 2])
async def test_an_upgrade_before_sync_keeps_the_partitions_of_cooperative_members(
    coordinator, joins_count
):
    """A rebalance that restarts before the leader has sent assignments discards the
    earlier ones.
    """
    request = replace(JOINING, protocols=cooperative("t"))
    first = await coordinator.join("g", request)
    assigned = encode_assignment({"t": frozenset(range(4))}, subscription("t"))
    syncing = SyncRequest(
        first.member_id, None, 1, "consumer", "cooperative-sticky", {first.member_id: assigned}
    )
    assert (await coordinator.sync("g", syncing)).error is ErrorCode.NONE
    for number in range(joins_count):
        protocols = cooperative("t", f"other-{number}", owned=range(4))
        known = replace(request, member_id=first.member_id, protocols=protocols)
        assert (await coordinator.join("g", known)).generation == 2 + number
    result = await join(coordinator, "new")
    assert result.error is ErrorCode.NONE
    assert result.assignment in ({}, None), "the classic member has not given anything up"
    consumer = group_of(coordinator).consumer
    consumer.check_invariants()
    assert consumer.members[first.member_id].current.assigned == {TOPIC_ID: frozenset(range(4))}
    assert consumer.members["new"].current.assigned == NOTHING


@pytest.mark.parametrize("joins", [consumer_joins, streams_joins, share_joins])
async def test_a_join_is_late_after_a_leave_that_found_no_group(coordinator, joins):
    """The client gives up the join and leaves on a new connection."""
    if joins is consumer_joins:
        left = await coordinator.consumers.heartbeat(
            "g", HeartbeatRequest("m", -1), 1, connection_id=8
        )
    elif joins is streams_joins:
        leaving = StreamsHeartbeatRequest(member_id="m", member_epoch=-1)
        left = await coordinator.streams.heartbeat("g", leaving, 8)
    else:
        left = await coordinator.shares.heartbeat("g", ShareHeartbeatRequest("m", -1), 8)
    assert left.error is ErrorCode.GROUP_ID_NOT_FOUND
    with pytest.raises(LateRequest):
        await joins(coordinator, "m", 7)
    assert coordinator.list_groups() == []


async def test_a_join_on_another_connection_is_late_after_a_leave(coordinator):
    """franz-go sends JoinGroup and LeaveGroup on separate connections. The connection for JoinGroup
    may be the newer one.
    """
    await consumer_joins(coordinator, "m", 1)
    joining = replace(JOINING, protocols=(Protocol("range", subscription("t")),))
    joined = await coordinator.join("g", joining, 7)
    assert joined.error is ErrorCode.NONE
    known = replace(joining, member_id=joined.member_id)
    assert await coordinator.leave("g", [(joined.member_id, None)], 3) == [ErrorCode.NONE]
    with pytest.raises(LateRequest):
        await coordinator.join("g", known, 7)
    assert set(group_of(coordinator).consumer.members) == {"m"}


async def test_a_join_is_late_after_the_leave_of_a_member_that_has_not_joined_yet(coordinator):
    """The member received its id (KIP-394), gave up the second JoinGroup, and left."""
    await consumer_joins(coordinator, "m", 1)
    joining = replace(
        JOINING, protocols=(Protocol("range", subscription("t")),), needs_known_member_id=True
    )
    named = await coordinator.join("g", joining, 5)
    assert named.error is ErrorCode.MEMBER_ID_REQUIRED
    assert await coordinator.leave("g", [(named.member_id, None)], 8) == [
        ErrorCode.UNKNOWN_MEMBER_ID
    ]
    with pytest.raises(LateRequest):
        await coordinator.join("g", replace(joining, member_id=named.member_id), 7)
    assert set(group_of(coordinator).consumer.members) == {"m"}


def test_a_commit_does_not_replace_newer_metadata_that_is_being_appended() -> None:
    offsets, key = GroupOffsets(), ("t", 0)
    known = CommittedOffset(40, -1, "", 0)
    offsets.put({key: known})
    offsets.begin_append({key: replace(known, metadata="newer")})
    assert offsets.compare({key: known}) == (False, False)


def test_a_late_write_does_not_change_the_number_of_completed_deliveries() -> None:
    states, key = ShareStates(updates_max=500), SharePartitionKey("g", TOPIC_ID, 0)
    states.initialize(key, 1, 0, 0)
    first = {"state_epoch": 1, "leader_epoch": 0, "start_offset": 0, "now_ms": 0}
    late = {"delivery_complete_count": 3, "batches": [StateBatch(2, 4, ACKNOWLEDGED, 1)]}
    states.write(key, **first, **late)
    last = {"delivery_complete_count": 0, "batches": [StateBatch(0, 9, ACKNOWLEDGED, 1)]}
    states.write(key, **{**first, "start_offset": 10}, **last)
    states.write(key, **first, **late)
    assert states.summary(key).start_offset == 10
    assert states.summary(key).delivery_complete_count == 0, "nothing above 10 is done"


async def test_a_repeated_shutdown_does_not_stop_the_next_start(coordinator):
    assert (await streams_joins(coordinator, "m", 1)).error is ErrorCode.NONE
    leaving = StreamsHeartbeatRequest(member_id="m", member_epoch=-1, is_shutdown=True)
    assert (await coordinator.streams.heartbeat("g", leaving, 1)).error is ErrorCode.NONE
    # The response was lost.
    again = await coordinator.streams.heartbeat("g", leaving, 2)
    assert again.error is ErrorCode.UNKNOWN_MEMBER_ID
    started = await streams_joins(coordinator, "n", 3)
    assert started.error is ErrorCode.NONE
    assert not any("shutdown" in text for _, text in started.statuses), started.statuses
