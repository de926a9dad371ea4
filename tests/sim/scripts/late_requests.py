"""Scripts about requests that arrive after their sender has switched to a newer connection."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

from penstock.broker.coordination.internal_topics import SHARE_STATES_TOPIC
from penstock.broker.groups.classic.embedded import CONSUMER_PROTOCOL, encode_assignment
from penstock.broker.groups.share.state.model import ACKNOWLEDGED, AVAILABLE
from penstock.protocol import apis
from penstock.protocol.codecs import CODECS
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.framing import SIZE_BYTES, encode_request_frame
from penstock.protocol.gen import consumer_group_heartbeat as consumer
from penstock.protocol.gen import delete_share_group_state as deleting
from penstock.protocol.gen import initialize_share_group_state as initializing
from penstock.protocol.gen import join_group, offset_commit, sync_group
from penstock.protocol.gen import read_share_group_state as reading
from penstock.protocol.gen import share_acknowledge as acknowledging
from penstock.protocol.gen import share_fetch as fetching
from penstock.protocol.gen import share_group_heartbeat as share
from penstock.protocol.gen import streams_group_heartbeat as streams
from penstock.protocol.gen import write_share_group_state as writing
from tests.sim.checkers import Part
from tests.sim.connections import Connection, NoResponse
from tests.sim.directed import Script
from tests.sim.directed_clients import Group
from tests.sim.frames import decode_response
from tests.sim.groups import RETRIED
from tests.support.embedded import subscription

PART: Part = ("t", 0)
_BOTH: Final = frozenset({0, 1})
_TIMEOUT_S: Final = 30.0
_PAUSE_S: Final = 0.2
_REBALANCE_MS: Final = 60_000
_ACCEPT: Final = 1
_FINAL_EPOCH: Final = -1
_UNREACHABLE_S: Final = 25.0
"""Longer than a leader's attempts to write a state, and longer than a lock."""

Request = tuple[Any, int, Any]


async def deliver_late(old: Connection, request: Request) -> None:
    """Deliver a request on an abandoned connection."""
    with suppress(NoResponse):
        await old.send_request(*request, _TIMEOUT_S)


async def send_request(connection: Connection, request: Request) -> Any:
    """Send a request, repeatedly until the coordinator has loaded."""
    while True:
        response = await connection.send_request(*request, _TIMEOUT_S)
        if ErrorCode(response.error_code) not in RETRIED:
            return response
        await asyncio.sleep(_PAUSE_S)


async def connections(script: Script, count: int, group: str = "g") -> list[Connection]:
    """Return connections to the coordinator, the oldest first."""
    coordinator = await script.coordinator(group)
    return [script.world.connect(coordinator) for _ in range(count)]


def topic_id_of(script: Script, name: str = "t") -> UUID:
    topic = script.world.metadata.image.topics.by_name(name)
    assert topic is not None
    return topic.topic_id


# --- heartbeats -----------------------------------------------------------------------------------


def consumer_heartbeat(
    member_id: str,
    epoch: int,
    topic_id: UUID,
    owned: frozenset[int] | None = None,
    *,
    group: str = "g",
) -> Request:
    request = consumer.ConsumerGroupHeartbeatRequest(group, member_id, epoch)
    request.topic_partitions = None
    if epoch == 0:
        request.rebalance_timeout_ms, request.subscribed_topic_names = _REBALANCE_MS, ["t"]
        request.topic_partitions = []
    if owned is not None:
        request.topic_partitions = [consumer.TopicPartitions(topic_id, sorted(owned))]
    return apis.CONSUMER_GROUP_HEARTBEAT, 1, request


def given(response: Any) -> frozenset[int]:
    found = response.assignment
    topics = [] if found is None else found.topic_partitions
    return frozenset(index for topic in topics for index in topic.partitions)


async def repeat_the_first_heartbeat_of_a_consumer(script: Script) -> None:
    """Deliver the first heartbeat of a member again while it revokes a partition."""
    await script.create("t", (1, 1))
    topic_id = topic_id_of(script)
    old, new, other = await connections(script, 3)
    first = consumer_heartbeat("m1", 0, topic_id)
    joined = await send_request(new, first)
    assert given(joined) == _BOTH
    follower = await send_request(other, consumer_heartbeat("m2", 0, topic_id))
    epoch = joined.member_epoch
    reported = await send_request(new, consumer_heartbeat("m1", epoch, topic_id))
    kept = given(reported)
    assert len(kept) == 1
    await deliver_late(old, first)
    follower = await send_request(other, consumer_heartbeat("m2", follower.member_epoch, topic_id))
    assert not given(follower), "m2 is given a partition that m1 owns"
    await send_request(new, consumer_heartbeat("m1", epoch, topic_id, kept))
    follower = await send_request(other, consumer_heartbeat("m2", follower.member_epoch, topic_id))
    assert given(follower) == _BOTH - kept


def streams_heartbeat(
    member_id: str, epoch: int, owned: frozenset[int] | None = None, *, group: str = "g"
) -> Request:
    request = streams.StreamsGroupHeartbeatRequest(
        group,
        member_id,
        epoch,
        active_tasks=None,
        standby_tasks=None,
        warmup_tasks=None,
        client_tags=None,
        task_offsets=None,
        task_end_offsets=None,
    )
    if epoch == 0:
        request.topology = streams.Topology(0, [streams.Subtopology("0", ["t"])])
        request.rebalance_timeout_ms, request.process_id = _REBALANCE_MS, member_id
        owned = frozenset()
    if owned is not None:
        request.active_tasks = [streams.TaskIds("0", sorted(owned))] if owned else []
        request.standby_tasks = request.warmup_tasks = []
    return apis.STREAMS_GROUP_HEARTBEAT, 0, request


def tasks(response: Any) -> frozenset[int]:
    return frozenset(index for item in response.active_tasks or () for index in item.partitions)


async def repeat_the_first_heartbeat_of_a_streams_member(script: Script) -> None:
    """Deliver the first heartbeat of a streams member again while it revokes a task."""
    await script.create("t", (1, 1))
    old, new, other = await connections(script, 3)
    first = streams_heartbeat("m1", 0)
    reported = await send_request(new, first)
    while tasks(reported) != _BOTH:  # the first assignment waits for more members
        await asyncio.sleep(_PAUSE_S)
        reported = await send_request(new, streams_heartbeat("m1", reported.member_epoch))
    await send_request(new, streams_heartbeat("m1", reported.member_epoch, _BOTH))
    follower = await send_request(other, streams_heartbeat("m2", 0))
    reported = await send_request(new, streams_heartbeat("m1", reported.member_epoch))
    kept = tasks(reported)
    assert len(kept) == 1
    await deliver_late(old, first)
    follower = await send_request(other, streams_heartbeat("m2", follower.member_epoch))
    assert not tasks(follower), "m2 is given a task that m1 runs"
    await send_request(new, streams_heartbeat("m1", reported.member_epoch, kept))
    follower = await send_request(other, streams_heartbeat("m2", follower.member_epoch))
    assert tasks(follower) == _BOTH - kept


def share_heartbeat(epoch: int, *topics: str, group: str = "g") -> Request:
    request = share.ShareGroupHeartbeatRequest(group, "m1", epoch)
    request.subscribed_topic_names = list(topics) or None
    return apis.SHARE_GROUP_HEARTBEAT, 1, request


async def repeat_the_first_heartbeat_of_a_share_member(script: Script) -> None:
    """Deliver the first heartbeat of a member again after it has changed its subscription."""
    await script.create("t")
    await script.create("u")
    old, new = await connections(script, 2)
    first = share_heartbeat(0, "t")
    epoch = (await send_request(new, first)).member_epoch
    epoch = (await send_request(new, share_heartbeat(epoch, "u"))).member_epoch
    await deliver_late(old, first)
    found: set[UUID] = set()
    for _ in range(20):
        reported = await send_request(new, share_heartbeat(epoch))
        epoch = reported.member_epoch
        if reported.assignment is not None:
            found = {topic.topic_id for topic in reported.assignment.topic_partitions}
        await asyncio.sleep(_PAUSE_S)
    assert found == {topic_id_of(script, "u")}, "m1 is assigned what it subscribed to before"


# --- classic groups -------------------------------------------------------------------------------


def join(member_id: str, metadata: bytes = b"", *, group: str = "g") -> Request:
    protocol = join_group.JoinGroupRequestProtocol("range", metadata or subscription("t"))
    request = join_group.JoinGroupRequest(
        group, 60_000, _REBALANCE_MS, member_id, None, CONSUMER_PROTOCOL, [protocol]
    )
    return apis.JOIN_GROUP, 3, request


def sync(
    joined: Any, assigned: Mapping[str, frozenset[int]] | None = None, *, group: str = "g"
) -> Request:
    assignments = [
        sync_group.SyncGroupRequestAssignment(
            member_id, encode_assignment({"t": indexes}, subscription("t"))
        )
        for member_id, indexes in (assigned or {}).items()
    ]
    request = sync_group.SyncGroupRequest(
        group, joined.generation_id, joined.member_id, assignments=assignments
    )
    return apis.SYNC_GROUP, 3, request


async def join_all(
    members: Sequence[Connection], member_ids: Sequence[str], *, metadata: bytes = b""
) -> list[Any]:
    """Let members join concurrently, each on its own connection."""
    return await asyncio.gather(
        *(
            send_request(connection, join(member_id, metadata))
            for connection, member_id in zip(members, member_ids, strict=True)
        )
    )


async def repeat_a_join(script: Script) -> None:
    """Deliver a JoinGroup again while its next copy waits for another member."""
    await script.create("t")
    old, new, other, third = await connections(script, 4)
    first, second = await join_all([new, other], ["", ""])
    last = asyncio.ensure_future(send_request(third, join("")))
    await asyncio.sleep(_PAUSE_S)
    request = join(first.member_id)
    joining = asyncio.ensure_future(new.send_request(*request, _TIMEOUT_S))
    await asyncio.sleep(_PAUSE_S)
    repeated = asyncio.ensure_future(deliver_late(old, request))
    await asyncio.sleep(_PAUSE_S)
    await send_request(other, join(second.member_id))
    code = ErrorCode((await joining).error_code)
    await last
    await repeated
    assert code is ErrorCode.NONE, f"the JoinGroup that its client waits for gets {code.name}"


async def repeat_a_sync(script: Script) -> None:
    """Deliver a SyncGroup again while its next copy waits for the leader."""
    await script.create("t")
    old, new, other = await connections(script, 3)
    joined = await join_all([new, other], ["", ""])
    leader, follower = sorted(joined, key=lambda item: not item.members)
    connection, leads_on = (new, other) if follower is joined[0] else (other, new)
    if connection is other:
        old, connection = new, other
        leads_on = (await connections(script, 1))[0]
    request = sync(follower)
    syncing = asyncio.ensure_future(connection.send_request(*request, _TIMEOUT_S))
    await asyncio.sleep(_PAUSE_S)
    repeated = asyncio.ensure_future(deliver_late(old, request))
    await asyncio.sleep(_PAUSE_S)
    await send_request(
        leads_on, sync(leader, {member.member_id: _BOTH for member in leader.members})
    )
    code = ErrorCode((await syncing).error_code)
    await repeated
    assert code is ErrorCode.NONE, f"the SyncGroup that its client waits for gets {code.name}"


async def upgrade_a_classic_group(script: Script) -> None:
    """Let a member of the consumer protocol join a classic group."""
    await script.create("t", (1, 1))
    classic, modern = await connections(script, 2)
    joined = await send_request(classic, join(""))
    await send_request(classic, sync(joined, {joined.member_id: _BOTH}))
    reported = await send_request(modern, consumer_heartbeat("m2", 0, topic_id_of(script)))
    assert not given(reported), "m2 is given what a classic member owns"


async def upgrade_between_rebalances(script: Script) -> None:
    """Let a member of the consumer protocol join when another classic rebalance has started, before
    the leader has assigned the partitions that cooperative members own.
    """
    await script.create("t", (1, 1))
    classic, modern = await connections(script, 2)
    joined = await send_request(classic, join(""))
    await send_request(classic, sync(joined, {joined.member_id: _BOTH}))
    for topic in ("u", "v"):
        metadata = subscription("t", topic, owned={"t": _BOTH})
        await send_request(classic, join(joined.member_id, metadata))
    reported = await send_request(modern, consumer_heartbeat("m2", 0, topic_id_of(script)))
    assert not given(reported), "m2 is given what a classic member owns"


# --- commits --------------------------------------------------------------------------------------


def commit(script: Script, member_id: str, epoch: int, offset: int, *, group: str = "g") -> Request:
    item = offset_commit.OffsetCommitRequestPartition(PART[1], offset)
    topic = offset_commit.OffsetCommitRequestTopic(topic_id=topic_id_of(script), partitions=[item])
    request = offset_commit.OffsetCommitRequest(group, epoch, member_id, topics=[topic])
    return apis.OFFSET_COMMIT, 10, request


async def _commit_late(script: Script, member_id: str, epoch: int) -> None:
    old, new = await connections(script, 2)
    for offset in (1, 2):
        response = await new.send_request(*commit(script, member_id, epoch, offset), _TIMEOUT_S)
        assert not response.topics[0].partitions[0].error_code
    await deliver_late(old, commit(script, member_id, epoch, 1))
    offset = await Group(script).committed(PART)
    assert offset == 2, f"the committed offset goes back to {offset}"


async def commit_late_in_a_consumer_group(script: Script) -> None:
    """Deliver an OffsetCommit after the next one of the same member epoch."""
    await script.create("t")
    (member,) = await connections(script, 1)
    joined = await send_request(member, consumer_heartbeat("m1", 0, topic_id_of(script)))
    await _commit_late(script, "m1", joined.member_epoch)


async def commit_late_in_a_classic_group(script: Script) -> None:
    """Deliver an OffsetCommit after the next one of the same generation."""
    await script.create("t")
    (member,) = await connections(script, 1)
    joined = await send_request(member, join(""))
    await send_request(member, sync(joined, {joined.member_id: frozenset({0})}))
    await _commit_late(script, joined.member_id, joined.generation_id)


async def commit_over_a_pool_of_connections(script: Script) -> None:
    """Commit over two connections in turn, as kafka-go does."""
    await script.create("t")
    member_id, epoch = await _member(script)
    old, new = await connections(script, 2)
    for offset, connection in enumerate((old, new, old, new, old)):
        for _ in range(2):
            await _commit(script, connection, member_id, epoch, offset)
    assert await Group(script).committed(PART) == 4


async def commit_late_after_a_move_back(script: Script) -> None:
    """Deliver an OffsetCommit after the member has deliberately reset its offset to a lower one."""
    await script.create("t")
    member_id, epoch = await _member(script)
    old, new = await connections(script, 2)
    for offset in (5, 3):
        await _commit(script, new, member_id, epoch, offset)
    await deliver_late(old, commit(script, member_id, epoch, 4))
    offset = await Group(script).committed(PART)
    assert offset == 3, f"the committed offset goes from 3 to {offset}"


async def commit_late_during_a_commit(script: Script) -> None:
    """Deliver an OffsetCommit while a later one is being stored, whose client has disconnected."""
    await script.create("t")
    member_id, epoch = await _member(script)
    old, new = await connections(script, 2)
    await _commit(script, new, member_id, epoch, 1)
    held = script.hold((await script.coordinator("g")).node_id)
    later = asyncio.ensure_future(deliver_late(new, commit(script, member_id, epoch, 5)))
    await script.until(lambda: held.count)
    new.close()
    await asyncio.sleep(_PAUSE_S)
    late = asyncio.ensure_future(deliver_late(old, commit(script, member_id, epoch, 3)))
    await asyncio.sleep(_PAUSE_S)
    held.release()
    await late
    later.cancel()
    offset = await Group(script).committed(PART)
    assert offset == 5, f"the committed offset goes back to {offset}"


async def _member(script: Script) -> tuple[str, int]:
    (member,) = await connections(script, 1)
    joined = await send_request(member, consumer_heartbeat("m1", 0, topic_id_of(script)))
    return "m1", joined.member_epoch


async def _commit(
    script: Script, connection: Connection, member_id: str, epoch: int, offset: int
) -> None:
    request = commit(script, member_id, epoch, offset)
    response = await connection.send_request(*request, _TIMEOUT_S)
    code = ErrorCode(response.topics[0].partitions[0].error_code)
    assert code is ErrorCode.NONE, f"the commit of {offset} gets {code.name}"


# --- share sessions -------------------------------------------------------------------------------


async def _share(script: Script) -> None:
    """Create a topic with records, and the state of a share group."""
    await script.create(SHARE_STATES_TOPIC, (2,), cleanup_policy="compact")
    await script.create("t")
    await script.until_led((SHARE_STATES_TOPIC, 0), 2)
    await script.write(PART, (b"k", b"0"), (b"k", b"1"))
    assert await state_code(script, initialize(script, 1)) is ErrorCode.NONE


def share_fetch(
    script: Script, member_id: str, epoch: int = 0, *, group: str = "g", wait_ms: int = 100
) -> Request:
    topic = fetching.FetchTopic(topic_id_of(script), [fetching.FetchPartition(PART[1], [])])
    request = fetching.ShareFetchRequest(
        group,
        member_id,
        epoch,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=1 << 20,
        max_records=10,
        batch_size=10,
        topics=[] if epoch else [topic],
    )
    return apis.SHARE_FETCH, 2, request


def share_acknowledge(script: Script, epoch: int, *offsets: int, group: str = "g") -> Request:
    batches = [acknowledging.AcknowledgementBatch(at, at, [_ACCEPT]) for at in offsets]
    topic = acknowledging.AcknowledgeTopic(
        topic_id_of(script), [acknowledging.AcknowledgePartition(PART[1], batches)]
    )
    request = acknowledging.ShareAcknowledgeRequest(
        group, "m1", epoch, topics=[topic] if offsets else []
    )
    return apis.SHARE_ACKNOWLEDGE, 2, request


def acquired(response: Any) -> list[tuple[int, int]]:
    """Return offset and delivery count of each record."""
    assert not response.error_code, ErrorCode(response.error_code)
    return [
        (offset, item.delivery_count)
        for topic in response.responses
        for partition in topic.partitions
        for item in partition.acquired_records
        for offset in range(item.first_offset, item.last_offset + 1)
    ]


async def acquire(
    script: Script,
    connection: Connection,
    member_id: str,
    wait_s: float = 20.0,
    *,
    group: str = "g",
) -> list[tuple[int, int]]:
    """Start a session, and fetch until there are records, at most for a while."""
    end_s, epoch = script.world.loop.time() + wait_s, 0
    while script.world.loop.time() < end_s:
        found = acquired(
            await connection.send_request(
                *share_fetch(script, member_id, epoch, group=group), _TIMEOUT_S
            )
        )
        if found:
            return found
        epoch += 1
    return []


async def _check_held(script: Script) -> None:
    (other,) = [script.world.connect(script.broker(1))]
    found = await acquire(script, other, "m2", wait_s=0.5)
    assert not found, f"m2 is given {found}, which m1 has"


async def fetch_late_in_a_share_session(script: Script) -> None:
    """Deliver the first ShareFetch of a member again, then the end of its connection."""
    await _share(script)
    old, new = [script.world.connect(script.broker(1)) for _ in range(2)]
    assert await acquire(script, new, "m1")
    await deliver_late(old, share_fetch(script, "m1"))
    old.close()
    await _check_held(script)


async def end_a_share_session_late(script: Script) -> None:
    """Deliver the ShareAcknowledge that ends a session after the next session has started."""
    await _share(script)
    old, new = [script.world.connect(script.broker(1)) for _ in range(2)]
    assert await acquire(script, old, "m1")
    await new.send_request(*share_fetch(script, "m1"), _TIMEOUT_S)
    await deliver_late(old, share_acknowledge(script, _FINAL_EPOCH))
    await _check_held(script)


async def acknowledge_late_in_a_share_session(script: Script) -> None:
    """Deliver the ShareAcknowledge that ends a session on a connection that no session used, after
    an acknowledgment in the new session.
    """
    await _share(script)
    old, new = [script.world.connect(script.broker(1)) for _ in range(2)]
    found = await acquire(script, new, "m1")
    session = await new.send_request(*share_fetch(script, "m1"), _TIMEOUT_S)
    assert not acquired(session)
    response = await new.send_request(*share_acknowledge(script, 1, found[0][0]), _TIMEOUT_S)
    assert not response.error_code
    await deliver_late(old, share_acknowledge(script, _FINAL_EPOCH))
    await _check_held(script)


async def end_a_forgotten_share_session_late(script: Script) -> None:
    """Deliver the ShareAcknowledge that ends a session after two more sessions, the first of which
    ended with its connection.
    """
    await _share(script)
    old, between, new = [script.world.connect(script.broker(1)) for _ in range(3)]
    assert await acquire(script, old, "m1")
    await between.send_request(*share_fetch(script, "m1"), _TIMEOUT_S)
    between.close()
    await asyncio.sleep(_PAUSE_S)
    assert await acquire(script, new, "m1")
    await deliver_late(old, share_acknowledge(script, _FINAL_EPOCH))
    await _check_held(script)


async def replace_a_share_session_that_is_ending(script: Script) -> None:
    """Open the next session while the last request of the earlier one waits for the share
    coordinator.
    """
    await _share(script)
    old, new = [script.world.connect(script.broker(1)) for _ in range(2)]
    found = await acquire(script, old, "m1")
    held = script.hold(2)
    ending = asyncio.ensure_future(
        old.send_request(*share_acknowledge(script, _FINAL_EPOCH, found[0][0]), _TIMEOUT_S)
    )
    await script.until(lambda: held.count)
    await new.send_request(*share_fetch(script, "m1"), _TIMEOUT_S)
    held.release()
    assert not (await ending).error_code
    await _check_held(script)


async def open_a_share_session_as_the_earlier_one_ends(script: Script) -> None:
    """Let a connection end and the next session start in one event loop iteration. The session
    keeps the records that it acquired.
    """
    await _share(script)
    broker = script.broker(1)
    old, new = [script.world.connect(broker) for _ in range(2)]
    assert await acquire(script, old, "m1")
    offset = await script.write(PART, (b"k", b"2"))
    api, version, request = share_fetch(script, "m1")
    frame = encode_request_frame(api, version, 1, CODECS[api.key].encode_request, request)
    frame, reply = bytes(frame[SIZE_BYTES:]), asyncio.get_running_loop().create_future()
    broker.deliver(broker.on_connection_closed, old.id)
    broker.deliver(new._start, frame, reply)
    response = decode_response(api, version, await reply)
    assert acquired(response) == [(offset, 1)]
    other = script.world.connect(broker)
    await asyncio.sleep(_PAUSE_S)
    found = await acquire(script, other, "m2", wait_s=0.5)
    assert [offset for offset, _ in found] == [0, 1], f"m2 is given {found}, which m1 has"


async def fetch_while_a_share_session_ends(script: Script) -> None:
    """End a session whose ShareFetch waits for records. Another member gets the released ones."""
    await _share(script)
    old, new, other = [script.world.connect(script.broker(1)) for _ in range(3)]
    waiting = await _wait_in_a_share_session(script, old)
    await new.send_request(*share_acknowledge(script, _FINAL_EPOCH), _TIMEOUT_S)
    found = await acquire(script, other, "m2", wait_s=0.5)
    assert found == [(0, 2), (1, 2)], f"m2 is given {found}"
    assert not acquired(await waiting)


async def fetch_while_a_share_session_is_replaced(script: Script) -> None:
    """Replace a session whose ShareFetch waits for records by the member's next session."""
    await _share(script)
    old, new = [script.world.connect(script.broker(1)) for _ in range(2)]
    waiting = await _wait_in_a_share_session(script, old)
    assert not await acquire(script, new, "m1", wait_s=0.05)
    offset = await script.write(PART, (b"k", b"2"))
    found = await acquire(script, new, "m1", wait_s=0.5)
    assert found == [(offset, 1)], f"m1 is given {found}"
    assert not acquired(await waiting)


async def _wait_in_a_share_session(script: Script, old: Connection) -> "asyncio.Future[Any]":
    """Acquire everything, and let the next ShareFetch wait for records."""
    assert len(await acquire(script, old, "m1")) == 2
    request = share_fetch(script, "m1", 1, wait_ms=20_000)
    waiting = asyncio.ensure_future(old.send_request(*request, _TIMEOUT_S))
    await asyncio.sleep(_PAUSE_S)
    return waiting


async def continue_a_share_session_on_a_new_connection(script: Script) -> None:
    """Let a client detect that its connection is dead before the broker does."""
    await _share(script)
    old, new = [script.world.connect(script.broker(1)) for _ in range(2)]
    assert await acquire(script, old, "m1")
    response = await new.send_request(*share_fetch(script, "m1", 1), _TIMEOUT_S)
    assert not response.error_code
    old.close()
    await asyncio.sleep(_PAUSE_S)
    await _check_held(script)


# --- share partition states -----------------------------------------------------------------------


def initialize(script: Script, epoch: int, *, group: str = "g") -> Request:
    data = initializing.InitializeStateData(
        topic_id_of(script), [initializing.PartitionData(PART[1], epoch, 0)]
    )
    request = initializing.InitializeShareGroupStateRequest(group, [data])
    return apis.INITIALIZE_SHARE_GROUP_STATE, 0, request


def delete(script: Script, epoch: int, *, group: str = "g") -> Request:
    data = deleting.DeleteStateData(topic_id_of(script), [deleting.PartitionData(PART[1], epoch)])
    return apis.DELETE_SHARE_GROUP_STATE, 0, deleting.DeleteShareGroupStateRequest(group, [data])


def write(
    script: Script, state: int, count: int, *, offset: int = 1, epoch: int = 1, group: str = "g"
) -> Request:
    batch = writing.StateBatch(offset, offset, state, count)
    item = writing.PartitionData(PART[1], epoch, -1, 0, 0, [batch])
    data = writing.WriteStateData(topic_id_of(script), [item])
    return apis.WRITE_SHARE_GROUP_STATE, 1, writing.WriteShareGroupStateRequest(group, [data])


async def state_of(script: Script, request: Request) -> Any:
    """Send a request to the share coordinator, repeatedly until it has loaded."""
    while True:
        response = await script.send_request(script.broker(2), *request)
        found = response.results[0].partitions[0]
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if ErrorCode(found.error_code) not in RETRIED | {unknown}:
            return found
        await asyncio.sleep(_PAUSE_S)


async def state_code(script: Script, request: Request) -> ErrorCode:
    return ErrorCode((await state_of(script, request)).error_code)


async def read_state(script: Script, *, group: str = "g") -> Any:
    data = reading.ReadStateData(topic_id_of(script), [reading.PartitionData(PART[1], 0)])
    request = reading.ReadShareGroupStateRequest(group, [data])
    return await state_of(script, (apis.READ_SHARE_GROUP_STATE, 0, request))


async def delete_a_state_late(script: Script) -> None:
    """Deliver the deletion of a state again after the next group has initialized it."""
    await _share(script)
    await state_code(script, delete(script, 1))
    assert await state_code(script, initialize(script, 2)) is ErrorCode.NONE
    await state_code(script, delete(script, 1))
    code = ErrorCode((await read_state(script)).error_code)
    assert code is ErrorCode.NONE, f"the state of the next group is read with {code.name}"


async def initialize_a_state_late(script: Script) -> None:
    """Deliver the initialization of a state again after its deletion, also to a coordinator that
    has loaded in between.
    """
    await _share(script)
    await state_code(script, delete(script, 1))
    for restarts in (False, True):
        if restarts:
            await script.restart(2)
            await script.until_led((SHARE_STATES_TOPIC, 0), 2)
        await state_code(script, initialize(script, 1))
        code = ErrorCode((await read_state(script)).error_code)
        assert code is ErrorCode.INVALID_REQUEST, "the deleted group has a state"


async def release_late(script: Script) -> None:
    """Deliver the write of a released record after its acknowledgment, with a higher delivery
    count.
    """
    await _share(script)
    for state, count in ((ACKNOWLEDGED, 1), (AVAILABLE, 2)):
        assert await state_code(script, write(script, state, count)) is ErrorCode.NONE
    found = [batch.delivery_state for batch in (await read_state(script)).state_batches]
    assert found == [ACKNOWLEDGED], "an acknowledged record is available again"


async def count_deliveries_without_a_coordinator(script: Script) -> None:
    """Let locks expire while the leader cannot reach the share coordinator, then end the session,
    so that the leader loads the state again for the next one.
    """
    await _share(script)
    member, other = [script.world.connect(script.broker(1)) for _ in range(2)]
    found = await acquire(script, member, "m1")
    assert [count for _, count in found] == [1, 1]
    with script.apart(1, 2):
        await asyncio.sleep(_UNREACHABLE_S)
        member.close()
        await asyncio.sleep(_PAUSE_S)
    await asyncio.sleep(_UNREACHABLE_S)
    found = await acquire(script, other, "m2")
    assert [count for _, count in found] == [2, 2], f"the deliveries count as {found}"
