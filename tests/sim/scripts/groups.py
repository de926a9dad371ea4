"""Scripts about members of consumer groups (KIP-848), streams groups and share groups."""

import asyncio
import contextlib
from typing import Any, ClassVar, Final

from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC, SHARE_STATES_TOPIC
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    consumer_group_heartbeat,
    join_group,
    leave_group,
    offset_commit,
    share_group_heartbeat,
    streams_group_heartbeat,
    sync_group,
)
from tests.sim.checkers import Part
from tests.sim.connections import Connection, NoResponse
from tests.sim.directed import Script
from tests.sim.directed_clients import Group

PART: Part = ("t", 0)
_GROUP: Final = "g"
_ALL: Final = frozenset({0, 1})
_BEATS_MAX: Final = 80


class Member:
    """A member of a group with the two partitions of one topic. Like Kafka clients, it sends its
    partitions if they changed or a request failed.
    """

    api: ClassVar[Any]
    version: ClassVar[int]

    def __init__(self, script: Script, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.has: frozenset[int] = frozenset()
        self._script = script
        self._connection: Connection | None = None
        self._reported: frozenset[int] | None = None

    async def beat(self, timeout_s: float = 10.0) -> ErrorCode:
        """Send a heartbeat, and apply the response. Raises NoResponse."""
        if self._connection is None or self._connection.is_broken:
            self._connection = self._script.world.connect(await self._script.coordinator(_GROUP))
        request = self.request(is_full=self._reported != self.has)
        self._reported = self.has
        try:
            response = await self._connection.send_request(
                self.api, self.version, request, timeout_s
            )
        except NoResponse:
            self._reported = None
            raise
        code = ErrorCode(response.error_code)
        if code is ErrorCode.NONE:
            self.epoch = response.member_epoch
            self.take(response)
        elif code.retriable or code is ErrorCode.NOT_COORDINATOR:
            self._connection = self._reported = None
        return code

    def request(self, *, is_full: bool) -> Any:
        raise NotImplementedError

    def take(self, response: Any) -> None:
        """Apply the assignment in the response."""
        raise NotImplementedError


class Consumer(Member):
    api = apis.CONSUMER_GROUP_HEARTBEAT
    version = 1

    def request(self, *, is_full: bool) -> Any:
        request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            _GROUP, self.name, self.epoch
        )
        request.topic_partitions = None
        if self.epoch == 0:
            request.rebalance_timeout_ms, request.subscribed_topic_names = 60_000, ["t"]
        if is_full or self.epoch == 0:
            part = consumer_group_heartbeat.TopicPartitions(_topic_id(self._script), [*self.has])
            request.topic_partitions = [part] if self.has else []
        return request

    def take(self, response: Any) -> None:
        if response.assignment is not None:
            self.has = frozenset(
                index
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            )


class StreamsThread(Member):
    api = apis.STREAMS_GROUP_HEARTBEAT
    version = 0

    def request(self, *, is_full: bool) -> Any:
        wire = streams_group_heartbeat
        request = wire.StreamsGroupHeartbeatRequest(
            _GROUP,
            self.name,
            self.epoch,
            active_tasks=None,
            standby_tasks=None,
            warmup_tasks=None,
            client_tags=None,
            task_offsets=None,
            task_end_offsets=None,
        )
        if self.epoch == 0:
            request.topology = wire.Topology(0, [wire.Subtopology("0", ["t"])])
            request.process_id, request.client_tags = self.name, []
            request.rebalance_timeout_ms = 60_000
        if is_full or self.epoch == 0:
            request.active_tasks = [wire.TaskIds("0", sorted(self.has))] if self.has else []
            request.standby_tasks = request.warmup_tasks = []
        return request

    def take(self, response: Any) -> None:
        if response.active_tasks is not None:
            self.has = frozenset(
                index for item in response.active_tasks for index in item.partitions
            )


class ShareMember(Member):
    api = apis.SHARE_GROUP_HEARTBEAT
    version = 1

    def request(self, *, is_full: bool) -> Any:
        request = share_group_heartbeat.ShareGroupHeartbeatRequest(_GROUP, self.name, self.epoch)
        request.subscribed_topic_names = ["t"] if is_full or self.epoch == 0 else None
        return request

    def take(self, response: Any) -> None:
        if response.assignment is not None:
            self.has = frozenset(
                index
                for topic in response.assignment.topic_partitions
                for index in topic.partitions
            )


def _topic_id(script: Script) -> Any:
    topic = script.world.metadata.image.topics.by_name("t")
    assert topic is not None
    return topic.topic_id


async def _begin(script: Script, kind: type[Member]) -> Member:
    """Return a member that owns everything."""
    await script.create(OFFSETS_TOPIC, (1,), cleanup_policy="compact")
    await script.create("t", (1, 1))
    first = kind(script, "a")
    await _beat_until(lambda: first.has == _ALL, first)
    return first


async def _beat_until(is_done: Any, *members: Member) -> None:
    for _ in range(_BEATS_MAX):
        for member in members:
            try:
                code = await member.beat()
            except NoResponse:
                continue
            assert code is ErrorCode.NONE or code.retriable or code is ErrorCode.NOT_COORDINATOR, (
                f"member {member.name} in epoch {member.epoch} gets {code.name}"
            )
        if is_done():
            return
        await asyncio.sleep(1.0)
    raise AssertionError(f"the members have {[sorted(member.has) for member in members]}")


# --- revoked and assigned partitions --------------------------------------------------------------


async def consumers_share_partitions(script: Script) -> None:
    await _share(script, Consumer)


async def streams_threads_share_tasks(script: Script) -> None:
    await _share(script, StreamsThread)


async def _share(script: Script, kind: type[Member]) -> None:
    """Let a second member join while the first one keeps its partitions for a while."""
    first = await _begin(script, kind)
    second = kind(script, "b")
    await second.beat()
    held = first.has
    assert not second.has & held, "a second member gets what the first one has"
    connection = script.world.connect(await script.coordinator(_GROUP))
    response = await connection.send_request(
        kind.api, kind.version, first.request(is_full=False), 10.0
    )
    for _ in range(3):
        await second.beat()
        assert not second.has & held, "a second member gets what the first one has not given up"
    first.take(response)
    await _beat_until(lambda: len(first.has) == len(second.has) == 1, first, second)
    assert first.has | second.has == _ALL


# --- failures of coordinators and members ---------------------------------------------------------


async def replace_the_coordinator_of_consumers(script: Script) -> None:
    await _replace(script, Consumer)


async def replace_the_coordinator_of_streams_threads(script: Script) -> None:
    await _replace(script, StreamsThread)


async def replace_the_coordinator_of_share_members(script: Script) -> None:
    await _replace(script, ShareMember)


async def _replace(script: Script, kind: type[Member]) -> None:
    """Restart the coordinator of a group. Nothing changes for its member."""
    member = await _begin(script, kind)
    before = member.epoch, member.has
    await script.restart(1)
    beats = iter(range(5))
    await _beat_until(lambda: next(beats, None) is None, member)
    after = member.epoch, member.has
    assert after == before, f"a member was {before}, a new coordinator makes it {after}"


async def consumer_falls_silent(script: Script) -> None:
    await _fall_silent(script, Consumer)


async def streams_thread_falls_silent(script: Script) -> None:
    await _fall_silent(script, StreamsThread)


async def share_member_falls_silent(script: Script) -> None:
    first = await _begin(script, ShareMember)
    second = ShareMember(script, "b")
    await _beat_until(lambda: len(second.has) == 1, second, first)
    await _beat_until(lambda: second.has == _ALL, second)


async def share_member_hangs_up_while_it_joins(script: Script) -> None:
    """The coordinator initializes the partitions although the member has disconnected."""
    await script.create(OFFSETS_TOPIC, (1,), cleanup_policy="compact")
    await script.create("t", (1, 1))
    gate = script.hold(1)
    with contextlib.suppress(NoResponse):
        await ShareMember(script, "a").beat(timeout_s=1.0)
    await asyncio.sleep(1.0)  # until the broker has detected the closed connection
    gate.release()
    second = ShareMember(script, "b")
    await _beat_until(lambda: second.has == _ALL, second)


async def _fall_silent(script: Script, kind: type[Member]) -> None:
    """Let a member time out. Another one gets its partitions, and the first one cannot commit."""
    first, second = await _begin(script, kind), kind(script, "b")
    await _beat_until(lambda: second.has == _ALL, second)
    code = await _commit(script, first.epoch, first.name)
    assert code is not ErrorCode.NONE, "a member commits after others were given its partitions"


async def consumer_joins_while_the_store_hangs(script: Script) -> None:
    await _join_while_the_store_hangs(script, Consumer)


async def streams_thread_joins_while_the_store_hangs(script: Script) -> None:
    await _join_while_the_store_hangs(script, StreamsThread)


async def _join_while_the_store_hangs(script: Script, kind: type[Member]) -> None:
    await _begin(script, kind)
    script.hold(1)
    try:
        await kind(script, "b").beat(timeout_s=1.0)
    except NoResponse:
        return
    raise AssertionError("a heartbeat is acknowledged before the group is durable")


async def remove_a_consumer_while_the_store_hangs(script: Script) -> None:
    """Remove a member as an administrator does, while the store hangs."""
    await _begin(script, Consumer)
    connection = script.world.connect(await script.coordinator(_GROUP))
    script.hold(1)
    request = leave_group.LeaveGroupRequest(_GROUP, [leave_group.MemberIdentity("a")])
    try:
        await connection.send_request(apis.LEAVE_GROUP, 4, request, 1.0)
    except NoResponse:
        return
    raise AssertionError("a LeaveGroup is acknowledged before the group is durable")


async def share_partitions_while_their_states_are_stored(script: Script) -> None:
    """Let a share group member join while the states of its partitions are not durable."""
    await script.create(OFFSETS_TOPIC, (1,), cleanup_policy="compact")
    await script.create(SHARE_STATES_TOPIC, (2,), cleanup_policy="compact")
    await script.create("t", (1, 1))
    held, member = script.hold(2), ShareMember(script, "a")
    for _ in range(3):
        await member.beat()
        await asyncio.sleep(1.0)
    assert not member.has, f"a member has {set(member.has)} before the states are durable"
    held.release()
    await _beat_until(lambda: member.has == _ALL, member)


async def lose_the_tasks_of_a_member(script: Script) -> None:
    """Lose the response with the first tasks of a streams member."""
    first = await _begin(script, StreamsThread)
    second = StreamsThread(script, "b")
    await second.beat()
    await first.beat()
    await first.beat()  # reports that it has revoked its part
    with script.deaf_clients(await script.coordinator(_GROUP)):
        try:
            await second.beat(timeout_s=1.0)
            raise AssertionError
        except NoResponse:
            pass
    await second.beat()
    assert second.has == _ALL - first.has, f"the members have {first.has} and {second.has}"


# --- offsets of classic groups --------------------------------------------------------------------


async def load_an_offset(script: Script) -> None:
    """Restart the coordinator after a commit, and again after the offset was deleted."""
    await script.create(OFFSETS_TOPIC, (1,), cleanup_policy="compact")
    await script.create("t", (2,))
    group = Group(script)
    await group.commit(PART, 1)
    await script.restart(1)
    found = await group.committed(PART)
    assert found == 1, f"the offset {found} is loaded, 1 was committed"
    await group.forget(PART)
    await script.restart(1)
    found = await group.committed(PART)
    assert found == -1, f"the offset {found} is loaded, it was deleted"


async def commit_in_an_old_generation(script: Script) -> None:
    """Commit in a past generation of a classic group."""
    await script.create("t")
    member_id, generation = await _join_classic(script)
    code = await _commit(script, generation - 1, member_id)
    assert code is not ErrorCode.NONE, "a commit in an old generation is accepted"
    code = await _commit(script, generation, member_id)
    assert code is ErrorCode.NONE, f"a commit is refused by {code.name}"


async def delete_an_offset_of_a_subscribed_topic(script: Script) -> None:
    """Delete an offset while a classic member subscribes to its topic."""
    await script.create("t")
    member_id, generation = await _join_classic(script)
    await _commit(script, generation, member_id)
    group = Group(script, _GROUP)
    await group.forget(PART)
    found = await group.committed(PART)
    assert found == 1, f"the offset of a subscribed topic is {found}"


async def _join_classic(script: Script) -> tuple[str, int]:
    """Let a classic member join twice. Return its id and generation."""
    connection = script.world.connect(await script.coordinator(_GROUP))
    # ConsumerProtocolSubscription, version 0
    subscription = (
        b"\0\0" + (1).to_bytes(4, "big") + b"\0\1t" + (-1).to_bytes(4, "big", signed=True)
    )
    member_id, generation = "", -1
    for _ in range(3):
        request = join_group.JoinGroupRequest(
            _GROUP,
            10_000,
            10_000,
            member_id,
            None,
            "consumer",
            [join_group.JoinGroupRequestProtocol("range", subscription)],
        )
        joined = await connection.send_request(apis.JOIN_GROUP, 5, request, 30.0)
        member_id, generation = joined.member_id, joined.generation_id
        if joined.error_code == ErrorCode.NONE:
            assignments = [sync_group.SyncGroupRequestAssignment(member_id, b"")]
            syncing = sync_group.SyncGroupRequest(
                _GROUP, generation, member_id, assignments=assignments
            )
            await connection.send_request(apis.SYNC_GROUP, 3, syncing, 10.0)
    return member_id, generation


async def _commit(script: Script, epoch: int, member_id: str) -> ErrorCode:
    item = offset_commit.OffsetCommitRequestPartition(PART[1], 1)
    topic = offset_commit.OffsetCommitRequestTopic(name=PART[0], partitions=[item])
    request = offset_commit.OffsetCommitRequest(_GROUP, epoch, member_id, topics=[topic])
    coordinator = await script.coordinator(_GROUP)
    response = await script.send_request(coordinator, apis.OFFSET_COMMIT, 9, request)
    return ErrorCode(response.topics[0].partitions[0].error_code)
