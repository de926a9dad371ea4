"""The operator of the cluster, who creates topics, moves partitions and removes brokers.

No fault of the scenario affects the operator's process, but its requests may fail.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any

from penstock.base.ids import NodeId
from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.messages import (
    AlterReassignments,
    CreateTopics,
    NewTopic,
    PartitionTarget,
    RemoveBroker,
)
from tests.sim.checkers import Part
from tests.sim.control import addresses

if TYPE_CHECKING:
    from tests.sim.world import World


class Admin:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._process = world.new_process("admin")
        self.client: ControllerClient = self._process.context().run(
            lambda: ControllerClient(
                addresses(world.limits.controllers), rng=Random(f"{world.seed}/admin")
            )
        )

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start the coroutine in the operator's process."""
        loop = self._world.loop
        loop.call_soon(lambda: loop.create_task(work()), context=self._process.context())

    async def create_topics(self, topics: list[NewTopic]) -> None:
        """Create the topics with one request, as soon as a broker is registered."""
        world, request = self._world, CreateTopics(topics=topics)

        async def create() -> None:
            while world.metadata.image.topics.by_name(topics[0].name) is None:
                with suppress(TimeoutError, ControllerError):
                    await self.client.create_topics(request, timeout_s=60)
                await asyncio.sleep(0.2)

        while not world.metadata.image.nodes:  # noqa: ASYNC110 - virtual time is free
            await asyncio.sleep(0.1)
        await self.run(create)

    async def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine in the operator's process and wait until it ends."""
        await self._world.loop.create_task(work(), context=self._process.context())

    def move(self, part: Part, target: NodeId) -> None:
        """Reassign a partition to one broker, dead or alive. If that broker is the leader, cancel
        the partition's move.
        """
        self._world.trace("move", part, target)
        topic = self._world.metadata.image.topics.by_name(part[0])
        is_back = (
            topic is not None
            and part[1] < len(topic.partitions)
            and topic.partitions[part[1]].replicas[0] == target
        )
        requested = PartitionTarget(
            topic=part[0], partition=part[1], replicas=None if is_back else [target]
        )

        async def send_request() -> None:
            with suppress(TimeoutError, ControllerError):
                await self.client.alter_reassignments(
                    AlterReassignments(partitions=[requested]), timeout_s=10
                )

        self.start(send_request)

    def unregister(self, node_id: NodeId) -> None:
        """Remove a broker, dead or alive, as soon as the controller accepts it; give up
        after 10 s.
        """

        async def send_request() -> None:
            for _ in range(20):
                with suppress(TimeoutError, ControllerError):
                    await self.client.remove_broker(RemoveBroker(node_id=node_id), timeout_s=5)
                    self._world.trace("unregistered", node_id)
                    return
                await asyncio.sleep(0.5)

        self.start(send_request)
