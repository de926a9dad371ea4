"""Classic groups: members that join, commit and stall, simple consumers, and administrators.

They find the coordinator through any broker and keep one connection to it. The outcome of a request
without a response is unknown; it is not retried. `OffsetHistory` and `Generations` check the
responses.
"""

import asyncio
import contextlib
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    delete_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from tests.sim.checkers import Part
from tests.sim.connections import Connection, NoResponse
from tests.sim.offset_history import Change, Generations, OffsetHistory

if TYPE_CHECKING:
    from tests.sim.world import World

LATE_MEMBERS: Final = "late_members"
"""A scenario in which requests of members of all group types arrive late."""
_MEMBERS_COUNT: Final = 3
_COMMITTERS_COUNT: Final = 4
_PAUSE_SHARE: Final = 0.03
_LATE_READS_MAX: Final = 8
_LATE_TIMEOUT_S: Final = 20.0
_KEYS_MAX: Final = 3
_REFUSALS: Final = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}
)
"""Responses that prove that nothing was written."""
_NOT_DELETED: Final = frozenset(
    {
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
)
_FIND_AGAIN: Final = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
RETRIED: Final = _FIND_AGAIN | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
_NOT_KNOWN_YET: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class ConsumerGroup:
    """The state of one group as its clients see it."""

    def __init__(self, world: "World", name: str) -> None:
        self.name = name
        self.parts = world.parts[:_KEYS_MAX]
        kept_s = (world.coordination.groups.offsets_retention_ms - 2 * world.limits.skew_ms) / 1_000
        self.offsets = {
            part: OffsetHistory(f"{name} {part}", kept_s, world.fail) for part in self.parts
        }
        self.generations = Generations(name, world.fail)
        self.quiet_until_s = 0.0
        """No committer commits before this time."""


class Asker:
    """A client with a connection to the coordinator of a group, or of another key."""

    KEY_TYPE = 0
    FIND_VERSION = 4

    def __init__(self, world: "World", group: Any, name: str) -> None:
        self.world = world
        self.group = group
        self.name = name
        self.rng = Random(f"{world.seed}/{name}")
        self._connection: Connection | None = None
        self._pending: dict[tuple[Part, str, int], list[Change]] = {}
        """Commits of a member in an epoch, since its last one with a response."""

    async def send_request(
        self,
        api: Any,
        version: int,
        request: Any,
        code_of: Callable[[Any], int],
        timeout_s: float | None = None,
        connection: Connection | None = None,
    ) -> Any:
        """Return the response, with any error code. Raises NoResponse."""
        connection = connection or await self._coordinator()
        try:
            response = await connection.send_request(
                api, version, request, timeout_s or self.rng.choice((0.7, 0.7, 2.0, 10.0))
            )
        except NoResponse:
            self._connection = None
            raise
        code = ErrorCode(code_of(response))
        self.world.trace("told", self.name, api.name, code.name)
        if code in _FIND_AGAIN:
            self._connection = None
        return response

    async def _coordinator(self) -> Connection:
        """Connect to the coordinator. Raises NoResponse."""
        if self._connection is not None and not self._connection.is_broken:
            return self._connection
        world, rng = self.world, self.rng
        await asyncio.sleep(rng.uniform(0.02, 0.2))
        requested = rng.choice(
            [broker for _, broker in sorted(world.brokers.items())] + world.zombies[-1:]
        )
        request = find_coordinator.FindCoordinatorRequest(
            key_type=self.KEY_TYPE, coordinator_keys=[self.group.name]
        )
        response = await Connection(world, requested).send_request(
            apis.FIND_COORDINATOR, self.FIND_VERSION, request, 2.0
        )
        if not response.coordinators or response.coordinators[0].error_code:
            raise NoResponse
        node_id = response.coordinators[0].node_id
        old = [zombie for zombie in world.zombies if zombie.node_id == node_id]
        found = (
            old[-1] if old and not world.calm and rng.random() < 0.3 else world.brokers.get(node_id)
        )
        if found is None:
            raise NoResponse
        self._connection = world.connect(found)
        return self._connection

    def now_s(self) -> float:
        return self.world.loop.time()

    async def commit(
        self,
        parts: list[Part],
        member_id: str = "",
        generation: int = -1,
        *,
        behind: dict[Part, Change] | None = None,
        version: int = 7,
        refusals: frozenset[ErrorCode] = _REFUSALS,
    ) -> ErrorCode:
        """Commit a new offset of each partition and return the response. behind: deletions that
        were just sent over this connection. refusals: responses that prove that nothing was
        written. Raises NoResponse.
        """
        changes = {part: self.group.offsets[part].commit(self.now_s()) for part in parts}
        by_topic: dict[str, list[Any]] = {}
        for (topic, index), change in changes.items():
            by_topic.setdefault(topic, []).append(
                offset_commit.OffsetCommitRequestPartition(index, change.value)
            )
        topics = [
            offset_commit.OffsetCommitRequestTopic(name=topic, partitions=items)
            for topic, items in by_topic.items()
        ]
        request = offset_commit.OffsetCommitRequest(
            self.group.name, generation, member_id, topics=topics
        )
        if generation >= 0:
            self._note_sent(changes, member_id, generation)
        response = await self.send_request(
            apis.OFFSET_COMMIT,
            version,
            request,
            lambda response: max(
                item.error_code for topic in response.topics for item in topic.partitions
            ),
        )
        codes = {
            (topic.name, item.partition_index): ErrorCode(item.error_code)
            for topic in response.topics
            for item in topic.partitions
        }
        for part, change in changes.items():
            change.follows = None if behind is None else behind[part]
            self._judge(change, codes[part], refusals=refusals)
        code = max(codes.values())
        if code is not ErrorCode.NONE and code not in RETRIED | refusals | {_NOT_KNOWN_YET}:
            self.world.fail(f"{self.name} commits in order and gets {code.name}")
        return code

    def _note_sent(self, changes: dict[Part, Change], member_id: str, generation: int) -> None:
        """Record which commits without a response precede these: they were abandoned with their
        connections.
        """
        for part, change in changes.items():
            earlier = self._pending.setdefault((part, member_id, generation), [])
            for item in earlier:
                item.next_of_member = item.next_of_member or change
            earlier[:] = [change]

    def _judge(self, change: Change, code: ErrorCode, *, refusals: frozenset[ErrorCode]) -> None:
        if code is ErrorCode.NONE:
            change.ended_s = self.now_s()
        elif code in refusals:
            change.is_refused = True

    async def read(self, timeout_s: float | None = None) -> bool:
        """Read every offset of the group. Return False if the coordinator cannot respond. Raises
        NoResponse.
        """
        by_topic: dict[str, list[int]] = {}
        for topic, index in self.group.parts:
            by_topic.setdefault(topic, []).append(index)
        topics = [
            offset_fetch.OffsetFetchRequestTopics(None, topic, items)
            for topic, items in by_topic.items()
        ]
        request = offset_fetch.OffsetFetchRequest(
            groups=[offset_fetch.OffsetFetchRequestGroup(self.group.name, topics=topics)]
        )
        began_s = self.now_s()
        connection = await self._coordinator()
        response = await self.send_request(
            apis.OFFSET_FETCH,
            8,
            request,
            lambda response: int(response.groups[0].error_code),
            timeout_s,
            connection,
        )
        if connection.broker in self.world.zombies:
            # A process that was replaced while still running may lag by one session timeout, so the
            # member was not fenced for its silence.
            began_s -= self.world.limits.controller.session_timeout_ms / 1_000
        found = response.groups[0]
        if found.error_code:
            return False
        for topic in found.topics:
            for item in topic.partitions:
                self.group.offsets[topic.name, item.partition_index].read(
                    item.committed_offset, began_s, self.now_s()
                )
        return True

    async def delete(self, changes: dict[Part, Change] | None = None) -> None:
        """Delete the group. Raises NoResponse."""
        changes = changes or self.deletions()
        request = delete_groups.DeleteGroupsRequest([self.group.name])
        response = await self.send_request(
            apis.DELETE_GROUPS, 2, request, lambda response: int(response.results[0].error_code)
        )
        code = ErrorCode(response.results[0].error_code)
        for change in changes.values():
            self._judge(
                change,
                code,
                refusals=frozenset({ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND}),
            )

    def deletions(self) -> dict[Part, Change]:
        return {part: history.delete(self.now_s()) for part, history in self.group.offsets.items()}


class Member(Asker):
    """A member that joins, commits, sometimes stalls, and leaves."""

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            try:
                await self._live(stop)
            except NoResponse:
                await asyncio.sleep(self.rng.uniform(0.02, 0.3))

    async def _live(self, stop: asyncio.Event) -> None:
        member_id, former = "", None
        end_s = self.now_s() + self.rng.choice((2.0, 6.0, 20.0))
        while not stop.is_set() and self.now_s() < end_s:
            joined = await self._join(member_id)
            member_id = (
                joined.member_id
                if joined.error_code in {ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED}
                else ""
            )
            if joined.error_code:
                await asyncio.sleep(self.rng.uniform(0.02, 0.2))
                continue
            joined_s = self.now_s()
            mine = await self._sync(joined)
            if mine is None:
                continue
            if former is not None and self.rng.random() < 0.5:
                # A thread commits before it learns of the rebalance.
                await self._commit(member_id, *former)
            await self._consume(stop, end_s, member_id, joined.generation_id, joined_s, mine)
            former = (joined.generation_id, joined_s, mine)
        if member_id and self.rng.random() < 0.7:
            request = leave_group.LeaveGroupRequest(
                self.group.name, [leave_group.MemberIdentity(member_id)]
            )
            await self.send_request(
                apis.LEAVE_GROUP, 4, request, lambda response: int(response.error_code)
            )

    async def _join(self, member_id: str) -> Any:
        protocols = [join_group.JoinGroupRequestProtocol("range", b"subscription")]
        request = join_group.JoinGroupRequest(
            self.group.name,
            self.world.coordination.session_ms,
            3_000,
            member_id,
            None,
            "consumer",
            protocols,
        )
        return await self.send_request(apis.JOIN_GROUP, 5, request, _code_at_top, timeout_s=6.0)

    async def _sync(self, joined: Any) -> list[Part] | None:
        """Return the partitions assigned to this member, or None if the group has moved on."""
        assignments: list[Any] = []
        members = [member.member_id for member in joined.members]
        for at, member_id in enumerate(members):
            mine = [index for index in range(len(self.group.parts)) if index % len(members) == at]
            assignments.append(sync_group.SyncGroupRequestAssignment(member_id, bytes(mine)))
        request = sync_group.SyncGroupRequest(
            self.group.name, joined.generation_id, joined.member_id, assignments=assignments
        )
        began_s = self.now_s()
        response = await self.send_request(apis.SYNC_GROUP, 3, request, _code_at_top, timeout_s=6.0)
        if response.error_code:
            return None
        self.group.generations.synced(began_s, self.now_s(), joined.generation_id)
        return [self.group.parts[index] for index in bytes(response.assignment)]

    async def _consume(
        self,
        stop: asyncio.Event,
        end_s: float,
        member_id: str,
        generation: int,
        joined_s: float,
        mine: list[Part],
    ) -> None:
        """Consume and commit until the group rebalances."""
        rng = self.rng
        while not stop.is_set() and self.now_s() < end_s:
            await asyncio.sleep(
                rng.choice(
                    (rng.uniform(0.02, 0.3),) * 12
                    + (self.world.coordination.session_ms / 1_000 + 1,)
                )
            )
            if mine and rng.random() < 0.7:
                code = await self._commit(member_id, generation, joined_s, mine)
            else:
                request = heartbeat.HeartbeatRequest(self.group.name, generation, member_id)
                response = await self.send_request(apis.HEARTBEAT, 3, request, _code_at_top)
                code = ErrorCode(response.error_code)
            if code in _REFUSALS:
                return

    async def _commit(
        self, member_id: str, generation: int, joined_s: float, parts: list[Part]
    ) -> ErrorCode:
        if not parts:
            return ErrorCode.NONE
        began_s = self.now_s()
        code = await self.commit(parts, member_id, generation)
        if code is ErrorCode.NONE:
            self.group.generations.committed(joined_s, generation, began_s)
        return code


class Committer(Asker):
    """Commits without membership, as Spark and Flink do. Sometimes all committers pause until
    offsets expire.
    """

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            parts = self.rng.sample(self.group.parts, self.rng.randint(1, len(self.group.parts)))
            with contextlib.suppress(NoResponse):
                await self.commit(parts)
            if self.rng.random() < _PAUSE_SHARE and self.now_s() > self.group.quiet_until_s:
                self.group.quiet_until_s = (
                    self.now_s() + self.world.coordination.groups.offsets_retention_ms / 1_000 + 0.5
                )
            await self._pause()

    async def _pause(self) -> None:
        wait_s = self.group.quiet_until_s - self.now_s()
        await asyncio.sleep(max(0.0, wait_s) + self.rng.uniform(0, 0.2))
        if wait_s > 0 and not self.world.calm:
            for _ in range(3):
                for _, broker in sorted(self.world.brokers.items()):
                    self.world.later(
                        self.rng.uniform(0, 0.2), broker.deliver, broker.expire_offsets
                    )


class Reader(Asker):
    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            with contextlib.suppress(NoResponse):
                await self.read()
            await asyncio.sleep(self.rng.uniform(0, 0.3))


class LateReader(Reader):
    """Uses any broker as the coordinator, including a stopped or replaced one, and waits long for
    its response.
    """

    async def run(self, stop: asyncio.Event) -> None:
        reads: list[asyncio.Task[None]] = []
        while not stop.is_set():
            reads = [read for read in reads if not read.done()]
            if len(reads) < _LATE_READS_MAX:
                reads.append(self.world.loop.create_task(self._read_late()))
            await asyncio.sleep(self.rng.uniform(0.1, 0.5))
        await asyncio.gather(*reads)

    async def _read_late(self) -> None:
        with contextlib.suppress(NoResponse):
            await self.read(_LATE_TIMEOUT_S)

    async def _coordinator(self) -> Connection:
        world = self.world
        return Connection(
            world,
            self.rng.choice(
                [broker for _, broker in sorted(world.brokers.items())] + 3 * world.zombies[-2:]
            ),
        )


class Deleter(Asker):
    """Deletes the group, and sometimes commits right after that without awaiting the response."""

    def __init__(self, world: "World", group: ConsumerGroup, name: str, *, commits: bool) -> None:
        super().__init__(world, group, name)
        self._commits = commits

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.sleep(self.rng.choice((0.5, 3.0, 6.0)))
            with contextlib.suppress(NoResponse):
                if self._commits and self.rng.random() < 0.7:
                    await self._delete_and_commit()
                else:
                    await self.delete()

    async def _delete_and_commit(self) -> None:
        await self._coordinator()
        deletions = self.deletions()
        outcomes = await asyncio.gather(
            self.delete(deletions),
            self.commit(self.group.parts, behind=deletions),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


class OffsetDeleter(Asker):
    """Deletes the offsets of some partitions (OffsetDelete), which is refused while members
    subscribe to them.
    """

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.sleep(self.rng.choice((0.2, 1.0, 4.0)))
            with contextlib.suppress(NoResponse):
                await self._delete()

    async def _delete(self) -> None:
        parts = self.rng.sample(self.group.parts, self.rng.randint(1, len(self.group.parts)))
        began_s = self.now_s()
        changes = {part: self.group.offsets[part].delete(began_s) for part in parts}
        by_topic: dict[str, list[Any]] = {}
        for topic, index in parts:
            by_topic.setdefault(topic, []).append(offset_delete.OffsetDeleteRequestPartition(index))
        topics = [
            offset_delete.OffsetDeleteRequestTopic(name, items) for name, items in by_topic.items()
        ]
        request = offset_delete.OffsetDeleteRequest(self.group.name, topics)
        connection = await self._coordinator()
        response = await self.send_request(
            apis.OFFSET_DELETE, 0, request, _code_at_top, connection=connection
        )
        codes = {
            (topic.name, item.partition_index): ErrorCode(item.error_code)
            for topic in response.topics
            for item in topic.partitions
        }
        for part, change in changes.items():
            code = codes.get(part, ErrorCode(response.error_code))
            self._judge(change, code, refusals=_NOT_DELETED)
            if code not in RETRIED | _NOT_DELETED | {ErrorCode.NONE}:
                self.world.fail(f"{self.name} gets {code.name}")
        # A replaced process may return old data, unless it wrote.
        if ErrorCode.NONE in codes.values() and connection.broker not in self.world.zombies:
            self.group.generations.offsets_deleted(began_s, self.now_s())


class Groups:
    """One group with members and one with committers only, each with readers, a client that deletes
    the group, and one that deletes offsets.
    """

    def __init__(self, world: "World", *, is_on: bool) -> None:
        self._world = world
        self._actors: list[Any] = []
        self._groups: list[ConsumerGroup] = []
        if not is_on:
            return
        subscribed, alone = self._groups = [ConsumerGroup(world, "g0"), ConsumerGroup(world, "s1")]
        self._actors += [
            Member(world, subscribed, f"member{number}") for number in range(_MEMBERS_COUNT)
        ]
        self._actors += [
            Committer(world, alone, f"committer{number}") for number in range(_COMMITTERS_COUNT)
        ]
        for group in self._groups:
            self._actors += [
                Reader(world, group, f"reader {group.name}"),
                LateReader(world, group, f"late reader {group.name}"),
                OffsetDeleter(world, group, f"offset deleter {group.name}"),
            ]
            self._actors.append(
                Deleter(world, group, f"deleter {group.name}", commits=group is alone)
            )

    def run(self, stop: asyncio.Event) -> list[Any]:
        return [actor.run(stop) for actor in self._actors]

    async def ready(self) -> None:
        """Wait until there are coordinators to disturb."""
        for group in self._groups:
            asker = Asker(self._world, group, f"first {group.name}")
            await _until(asker.read)

    async def check(self) -> None:
        """Check that every group can be read and committed to, and that coordinators that load the
        logs again return the same.
        """
        askers = [Asker(self._world, group, f"checker {group.name}") for group in self._groups]
        for asker in askers:
            await _until(asker.read)
        if self._groups:
            crash_coordinators(self._world)
        for asker in askers:
            await _until(asker.read)
            await _until(lambda asker=asker: _commits(asker))
            await _until(asker.read)
            self._world.trace(
                "offsets",
                asker.group.name,
                [len(history.commits) for history in asker.group.offsets.values()],
            )


def crash_coordinators(world: "World") -> None:
    topic = world.metadata.image.topics.by_name(OFFSETS_TOPIC)
    for node_id in sorted(
        {record.leader for record in topic.partitions} if topic is not None else ()
    ):
        if node_id in world.brokers:
            world.crash(world.brokers[node_id], 0.01)


async def _commits(asker: Asker) -> bool:
    return await asker.commit(asker.group.parts) is ErrorCode.NONE


async def _until(act: Callable[[], Any]) -> None:
    while True:
        try:
            if await act():
                return
        except NoResponse:
            pass
        await asyncio.sleep(0.2)


def _code_at_top(response: Any) -> int:
    return int(response.error_code)
