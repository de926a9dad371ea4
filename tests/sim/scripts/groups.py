"""Scripts about members of groups."""

import asyncio
from typing import Any

from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import streams_group_heartbeat as streams_wire
from tests.sim.connections import Connection, Unanswered
from tests.sim.directed import Script

_GROUP = "g"


async def lose_the_tasks_of_a_member(script: Script) -> None:
    """Lose the response with the first tasks of a streams member."""
    await script.create("t", (1, 1))
    first = StreamsThread(script, "a")
    for _ in range(10):  # the group waits for more members before the first assignment
        await first.beat()
        await asyncio.sleep(1.0)
    second = StreamsThread(script, "b")
    await second.beat()
    await first.beat()
    await first.beat()  # reports that it has given up its part
    with script.deaf_clients(await script.coordinator(_GROUP)):
        await second.beat(is_answered=False)
    await second.beat()
    assert second.tasks == {0, 1} - first.tasks, f"the members have {first.tasks}, {second.tasks}"


class StreamsThread:
    """A member of a streams group whose client, as Kafka's, sends what it has if that changed, or
    if a request failed.
    """

    def __init__(self, script: Script, name: str) -> None:
        self.tasks = set[int]()
        self._script = script
        self._name = name
        self._epoch = 0
        self._connection: Connection | None = None
        self._reported: set[int] | None = None

    async def beat(self, *, is_answered: bool = True) -> None:
        """Send a heartbeat. is_answered: wait for a response without an error, and take it."""
        if self._connection is None or self._connection.is_broken:
            self._connection = self._script.world.connect(await self._script.coordinator(_GROUP))
        try:
            response = await self._connection.ask(
                apis.STREAMS_GROUP_HEARTBEAT, 0, self._request(), 1.0
            )
        except Unanswered:
            assert not is_answered
            self._reported = None
            return
        assert is_answered
        assert response.error_code == ErrorCode.NONE, response.error_message
        self._epoch = response.member_epoch
        if response.active_tasks is not None:
            self.tasks = {index for item in response.active_tasks for index in item.partitions}

    def _request(self) -> Any:
        request = streams_wire.StreamsGroupHeartbeatRequest(
            _GROUP,
            self._name,
            self._epoch,
            active_tasks=None,
            standby_tasks=None,
            warmup_tasks=None,
            client_tags=None,
            task_offsets=None,
            task_end_offsets=None,
        )
        if self._epoch == 0:
            topology = streams_wire.Topology(0, [streams_wire.Subtopology("0", ["t"])])
            request.topology, request.process_id = topology, self._name
            request.rebalance_timeout_ms, request.client_tags = 60_000, []
        if self._reported != self.tasks:
            self._reported = set(self.tasks)
            held = [streams_wire.TaskIds("0", sorted(self.tasks))] if self.tasks else []
            request.active_tasks = held
            request.standby_tasks = request.warmup_tasks = []
        return request
