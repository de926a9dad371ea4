"""Measure how fast a large classic consumer group becomes stable.

Raw protocol clients in one process, as in `benchmarks.groups`: each sends a heartbeat once per
second and rejoins when the response requires it. The group leader assigns partitions round-robin.
"""

import asyncio
import struct
import time
from dataclasses import dataclass, field
from typing import Final

from benchmarks import clients, harness
from benchmarks.groups import (
    HEARTBEAT_MS,
    MEMBERS,
    PARTITIONS,
    connect,
    until_coordinated,
)
from benchmarks.harness import Measure
from penstock.protocol import apis
from penstock.protocol.client.async_connection import AsyncConnection
from penstock.protocol.error_codes import ErrorCode, known_code
from penstock.protocol.gen import heartbeat, join_group, sync_group

_GROUP: Final = "large-classic"
_PROTOCOL: Final = "roundrobin"
_SESSION_MS: Final = 45_000
_REBALANCE_MS: Final = 60_000
_DEADLINE_S: Final = 60.0
_TOPIC: Final = clients.TOPIC.encode()
_SUBSCRIPTION: Final = struct.pack(f">hih{len(_TOPIC)}si", 0, 1, len(_TOPIC), _TOPIC, -1)
_ASSIGNMENT_AT: Final = struct.calcsize(f">hih{len(_TOPIC)}s")


@dataclass
class _Member:
    connection: AsyncConnection
    member_id: str = ""
    generation: int = -1
    owned: set[int] = field(default_factory=set[int])
    joins_count: int = 0

    async def live(self) -> None:
        """Join, send heartbeats, and rejoin when a response requires it, forever."""
        while True:
            await self._join()
            while await self._beat() is ErrorCode.NONE:
                pass

    async def _join(self) -> None:
        """Join until an assignment is received."""
        while True:
            request = join_group.JoinGroupRequest(
                _GROUP,
                _SESSION_MS,
                _REBALANCE_MS,
                self.member_id,
                protocol_type="consumer",
                protocols=[join_group.JoinGroupRequestProtocol(_PROTOCOL, _SUBSCRIPTION)],
            )
            self.joins_count += 1
            response = await self.connection.send_request(
                apis.JOIN_GROUP, request, join_group.JoinGroupResponse
            )
            self.member_id = response.member_id or self.member_id
            if response.error_code == ErrorCode.NONE and await self._sync(response):
                return
            _check(
                response.error_code,
                ErrorCode.NONE,
                ErrorCode.MEMBER_ID_REQUIRED,
                ErrorCode.REBALANCE_IN_PROGRESS,
            )

    async def _sync(self, joined: join_group.JoinGroupResponse) -> bool:
        request = sync_group.SyncGroupRequest(
            _GROUP,
            joined.generation_id,
            self.member_id,
            protocol_type="consumer",
            protocol_name=_PROTOCOL,
            assignments=_assign(joined) if joined.leader == self.member_id else [],
        )
        response = await self.connection.send_request(
            apis.SYNC_GROUP, request, sync_group.SyncGroupResponse
        )
        _check(response.error_code, ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)
        if response.error_code:
            return False
        self.generation, self.owned = joined.generation_id, _indexes(response.assignment)
        return True

    async def _beat(self) -> ErrorCode:
        await asyncio.sleep(HEARTBEAT_MS / 1000)
        request = heartbeat.HeartbeatRequest(_GROUP, self.generation, self.member_id)
        response = await self.connection.send_request(
            apis.HEARTBEAT, request, heartbeat.HeartbeatResponse
        )
        return _check(response.error_code, ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS)


def _check(code: int, *allowed: ErrorCode) -> ErrorCode:
    found = known_code(code)
    if found not in allowed:
        raise RuntimeError(f"a member of the classic group gets {found.name}")
    return found


def _assign(joined: join_group.JoinGroupResponse) -> list[sync_group.SyncGroupRequestAssignment]:
    ids = sorted(member.member_id for member in joined.members)
    return [
        sync_group.SyncGroupRequestAssignment(
            member_id, _assignment(list(range(at, PARTITIONS, len(ids))))
        )
        for at, member_id in enumerate(ids)
    ]


def _assignment(indexes: list[int]) -> bytes:
    count = len(indexes)
    return _SUBSCRIPTION[:_ASSIGNMENT_AT] + struct.pack(f">i{count}ii", count, *indexes, -1)


def _indexes(assignment: bytes) -> set[int]:
    (count,) = struct.unpack_from(">i", assignment, _ASSIGNMENT_AT)
    return set(struct.unpack_from(f">{count}i", assignment, _ASSIGNMENT_AT + 4))


async def _until_settled(members: list[_Member], began: float) -> float:
    """Return the seconds until all partitions are evenly assigned to one owner each, in one
    generation.
    """
    while True:
        sizes = [len(member.owned) for member in members]
        is_whole = set[int]().union(*(member.owned for member in members)) == set(range(PARTITIONS))
        is_even = sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1
        if is_whole and is_even and len({member.generation for member in members}) == 1:
            return time.perf_counter() - began
        if time.perf_counter() - began > _DEADLINE_S:
            raise TimeoutError(
                f"the classic group did not stabilize: {sum(sizes)} partitions assigned"
            )
        await asyncio.sleep(0.01)


async def _run(bootstrap: str) -> tuple[float, float]:
    """Return the seconds until the group is stable, and the seconds until it is stable again after
    one more member joins.
    """
    members = [_Member(await connect(bootstrap)) for _ in range(MEMBERS + 1)]
    *first, last = members
    await until_coordinated(last.connection, _GROUP)
    lives: list[asyncio.Task[None]] = []

    async def settled(joining: list[_Member], whole: list[_Member]) -> float:
        for member in joining:
            began = time.perf_counter()
            lives.append(asyncio.create_task(member.live()))
            while not member.joins_count:  # noqa: ASYNC110 - until its request is sent
                await asyncio.sleep(0)
        return await _until_settled(whole, began)

    try:
        return await settled(first, first), await settled([last], members)
    finally:
        for task in lives:
            task.cancel()
        outcomes = await asyncio.gather(*lives, return_exceptions=True)
        for member in members:
            member.connection.close()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome


def classic_groups() -> list[Measure]:
    """Let 100 members join at once, then one more."""
    with harness.server(store="memory:") as system:
        clients.create_topic(system.bootstrap, PARTITIONS)
        settled_s, joined_s = asyncio.run(_run(system.bootstrap))
    note = f"{PARTITIONS} partitions; a heartbeat each {HEARTBEAT_MS / 1000:g} s"
    what = f"classic group of {MEMBERS} members, last join to settled"
    return [
        Measure(what, settled_s, "s", 5.0, "lower", note=note),
        Measure("the same after one more member", joined_s, "s", 5.0, "lower", note=note),
    ]
