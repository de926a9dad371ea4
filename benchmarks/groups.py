"""Measure how fast a large consumer group (KIP-848) becomes stable, and how many partitions move
when a member joins.

Raw protocol clients in one process: each sends a heartbeat once per second, and immediately after
it has revoked partitions, as Kafka clients do.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks import clients, harness
from benchmarks.harness import Measure
from penstock.broker.errors import ErrorCode
from penstock.protocol import apis
from penstock.protocol.client.async_connection import AsyncConnection
from penstock.protocol.client.brokers import MOVED
from penstock.protocol.gen import consumer_group_heartbeat, find_coordinator

MEMBERS: Final = 100
PARTITIONS: Final = 500
HEARTBEAT_MS: Final = 1_000
_GROUP: Final = "large"
_DEADLINE_S: Final = 60.0


class CoordinatorLoads(Exception):
    """Raised if the coordinator has not loaded the group yet."""


@dataclass
class _Member:
    """One client. `owned` contains partition indexes of the only topic."""

    member_id: str
    connection: AsyncConnection
    topic: str = clients.TOPIC
    epoch: int = 0
    owned: set[int] = field(default_factory=set[int])
    topic_id: Any = None
    revoked_count: int = 0

    async def join(self) -> None:
        """Join as soon as the coordinator has loaded the group. Brokers return its address before
        that.
        """
        ends_at = time.perf_counter() + _DEADLINE_S
        while True:
            try:
                await self._beat(is_first=True)
            except CoordinatorLoads:
                if time.perf_counter() > ends_at:
                    raise
                await asyncio.sleep(0.05)
            else:
                return

    async def live(self) -> None:
        """Send heartbeats forever."""
        while True:
            await asyncio.sleep(HEARTBEAT_MS / 1000)
            while await self._beat():
                pass

    async def _beat(self, *, is_first: bool = False) -> bool:
        """Send a heartbeat. Return whether the member has revoked partitions."""
        owned = [consumer_group_heartbeat.TopicPartitions(self.topic_id, sorted(self.owned))]
        request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
            group_id=_GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            topic_partitions=owned if self.owned else [],
            rebalance_timeout_ms=60_000 if is_first else -1,
            subscribed_topic_names=[self.topic] if is_first else None,
        )
        response = await self.connection.send_request(
            apis.CONSUMER_GROUP_HEARTBEAT,
            request,
            consumer_group_heartbeat.ConsumerGroupHeartbeatResponse,
        )
        if response.error_code in MOVED:
            raise CoordinatorLoads(f"{self.member_id}: {ErrorCode(response.error_code).name}")
        if response.error_code:
            raise RuntimeError(f"{self.member_id}: {response.error_code} {response.error_message}")
        self.epoch = response.member_epoch
        if response.assignment is None:
            return False
        reported = {
            index for topic in response.assignment.topic_partitions for index in topic.partitions
        }
        for topic in response.assignment.topic_partitions:
            self.topic_id = topic.topic_id
        lost = self.owned - reported
        self.revoked_count += len(lost)
        self.owned = reported
        return bool(lost)


async def connect(bootstrap: str) -> AsyncConnection:
    host, _, port = bootstrap.rpartition(":")
    return await AsyncConnection.open(host, int(port))


async def until_coordinated(connection: AsyncConnection, group: str) -> None:
    request = find_coordinator.FindCoordinatorRequest(coordinator_keys=[group])
    while True:
        response = await connection.send_request(
            apis.FIND_COORDINATOR, request, find_coordinator.FindCoordinatorResponse
        )
        if response.coordinators[0].error_code == 0:
            return
        await asyncio.sleep(0.05)


async def _until_settled(members: list[_Member], partitions: int) -> float:
    """Return the seconds until all partitions are evenly assigned and all epochs are equal."""
    began = time.perf_counter()
    while True:
        sizes = [len(member.owned) for member in members]
        is_even = sum(sizes) == partitions and max(sizes) - min(sizes) <= 1
        if is_even and len({member.epoch for member in members}) == 1:
            return time.perf_counter() - began
        if time.perf_counter() - began > _DEADLINE_S:
            raise TimeoutError(f"the group did not stabilize: {sum(sizes)} partitions assigned")
        await asyncio.sleep(0.01)


async def run(
    bootstrap: str, count: int, partitions: int, topic: str = clients.TOPIC
) -> tuple[float, float, int]:
    """Let `count` members join. Return the seconds from the last join until the group is stable,
    the same after one more join, and the number of partitions that moved then.
    """
    members = [
        _Member(f"member-{number:03}", await connect(bootstrap), topic)
        for number in range(count + 1)
    ]
    *first, last = members
    await until_coordinated(last.connection, _GROUP)
    lives: list[asyncio.Task[None]] = []
    try:
        for member in first:
            await member.join()
            lives.append(asyncio.create_task(member.live()))
        settled_s = await _until_settled(first, partitions)
        before = sum(member.revoked_count for member in first)
        await last.join()
        lives.append(asyncio.create_task(last.live()))
        joined_s = await _until_settled(members, partitions)
        moved_count = sum(member.revoked_count for member in first) - before
        return settled_s, joined_s, moved_count
    finally:
        for task in lives:
            task.cancel()
        outcomes = await asyncio.gather(*lives, return_exceptions=True)
        for member in members:
            member.connection.close()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome


def groups() -> list[Measure]:
    """Let 100 members join one after another, then one more."""
    with harness.server(store="memory:") as system:
        clients.create_topic(system.bootstrap, PARTITIONS)
        settled_s, joined_s, moved_count = asyncio.run(run(system.bootstrap, MEMBERS, PARTITIONS))
    least = PARTITIONS // (MEMBERS + 1)
    note = f"{PARTITIONS} partitions; a heartbeat each {HEARTBEAT_MS / 1000:g} s"
    return [
        Measure(
            f"consumer group of {MEMBERS} members, last join to settled",
            settled_s,
            "s",
            3.0,
            "lower",
            note=note,
        ),
        Measure("the same after one more member", joined_s, "s", 3.0, "lower", note=note),
        Measure(
            "partitions that moved then",
            moved_count,
            "partitions",
            1.0,
            "lower",
            limit=least,
            note="limit: those that had to",
        ),
    ]
