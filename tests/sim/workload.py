"""All clients of one run: their work during the faults, and their checks afterwards."""

import asyncio
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from penstock.controller.metadata.records import PartitionRecord
from tests.sim import scenarios
from tests.sim.clients import TOPIC, Consumer, Producer
from tests.sim.consumer_groups import ConsumerGroups
from tests.sim.groups import Groups
from tests.sim.leasing import lease_readers
from tests.sim.offsets import Offsets
from tests.sim.pipelined import PipelinedProducer
from tests.sim.share_members import ShareMembers
from tests.sim.share_states import ShareClients
from tests.sim.streams_members import StreamsMembers
from tests.sim.topic_life import TopicClients
from tests.sim.transactions import Transactions

if TYPE_CHECKING:
    from tests.sim.world import World


class Workload:
    """The clients of one run. Must be created after the topics."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._producers = [
            Producer(world, number, idempotent=number > 0)
            for number in range(world.limits.producers + 1)
        ]
        self._consumers = [Consumer(world, number) for number in range(2)]
        self._pipelined = [
            PipelinedProducer(world, number)
            for number in range(2 if world.scenario in scenarios.PIPELINED else 0)
        ]
        self._transactions = Transactions(world)
        self._offsets = Offsets(world)
        self._groups = Groups(world, is_on=world.scenario in scenarios.GROUPED)
        self._consumer_groups = ConsumerGroups(world)
        self._share_clients = ShareClients(world)
        self._share_members = ShareMembers(world)
        self._streams_members = StreamsMembers(world)
        self._topics = TopicClients(world)

    async def start(self) -> None:
        """Start all clients. Those of groups and compacted logs begin when these are usable."""
        world, stop = self._world, self._stop
        self._run(producer.run(stop) for producer in (*self._producers, *self._pipelined))
        self._run(consumer.run(stop) for consumer in self._consumers)
        self._run(self._transactions.run(stop))
        self._run(self._offsets.run(stop))
        self._tasks += lease_readers(world, stop)
        for clients in (self._groups, self._consumer_groups, self._streams_members, self._topics):
            self._run(clients.run(stop))
        for ready in (self._groups.ready, self._share_clients.ready, world.share_consumers.ready):
            # Nodes crash meanwhile, and some stores do not retry, so recoveries restart.
            await world.within("not every group can be used", ready(), patience=4)
        for clients in (self._share_clients, self._share_members, world.share_consumers):
            self._run(clients.run(stop))
        if world.lost_slots is not None:
            self._run(world.lost_slots.run(stop))
        if world.compacted is not None:
            await world.within("not every compacted log is writable", world.compacted.ready())
            self._run(world.compacted.run(stop))
        self._run(world.acl_admins.run(stop))
        if world.forks is not None:
            self._run(world.forks.run(stop))

    def _run(self, works: Iterable[Coroutine[Any, Any, None]]) -> None:
        self._tasks += [self._world.loop.create_task(work) for work in works]

    async def end(self) -> None:
        """Stop all clients, and wait for their pending responses."""
        self._stop.set()
        # A fork waits until its source is uploaded, which takes long with the smallest limits.
        await self._world.within(
            "clients got no response",
            asyncio.gather(*self._tasks),
            patience=1 if self._world.forks is None else 2,
        )

    async def check(self) -> None:
        """Use everything once more, and compare it with earlier observations of clients."""
        world = self._world
        await world.within(
            "not every partition is writable", self._producers[-1].write(world.parts)
        )
        world.phase("written")
        await world.within("not everything can be read", self._read_all(9))
        await world.within(
            "not every transaction is over and can be read", self._transactions.check()
        )
        await world.within("not every group can be read and committed to", self._groups.check())
        await world.within("not every consumer group settles", self._consumer_groups.check())
        await world.within("not every streams group settles", self._streams_members.check())
        await world.within("not every share state can be read", self._share_clients.check())
        await world.within("not every record is worked off", world.share_consumers.check())
        await world.within("not every share group settles", self._share_members.check())
        await world.within("not every topic can be used", self._topics.check())
        await world.within("not every broker has the ACLs", world.acl_admins.check())
        if world.compacted is not None:
            await world.within("not every compacted log can be read", world.compacted.check())
        if world.forks is not None:
            await world.within("not every fork can be read", world.forks.check())
        await world.within("not every move ends", self._moves_end())
        await world.within("not every log can be read", self._offsets.check())

    async def check_cleaned(self) -> None:
        """Read everything again after unneeded objects are deleted."""
        world = self._world
        await world.within("not everything can be read after the clean-up", self._read_all(10))
        await world.within("not every topic is clean and can be read", self._topics.check_cleaned())
        if world.compacted is not None:
            await world.within(
                "not every compacted log can be read after the clean-up",
                world.compacted.check_cleaned(),
                patience=2,
            )
        if world.forks is not None:
            await world.within("not every fork can be read", world.forks.check())
        for producer in self._pipelined:
            producer.check_order()

    async def _read_all(self, number: int) -> None:
        """Read every partition from beginning to end with a new consumer."""
        world = self._world
        acked = {part: world.checker.acked(part) for part in world.parts}
        consumer = Consumer(world, number)
        while not all(consumer.has_read(part) for part in world.parts):
            await consumer.poll(10, exact=True)
            await asyncio.sleep(0.05)
        for part in world.parts:
            world.checker.check_all_read(
                part, consumer.starts[part], consumer.watermarks[part], acked[part]
            )

    async def _moves_end(self) -> None:
        while any(  # noqa: ASYNC110
            record.move is not None and record.target_replicas is not None
            for record in self._partitions()
        ):
            await asyncio.sleep(0.5)

    def _partitions(self) -> list[PartitionRecord]:
        image, names = self._world.metadata.image, (TOPIC, *self._world.life.names)
        topics = [image.topics.by_name(name) for name in names]
        return [record for topic in topics if topic is not None for record in topic.partitions]
