"""Administrators who create, delete, undelete and restore topics. They repeat their requests.

Invariant: one administrator per name, with one request at a time. A successful response is checked
immediately against the committed metadata; a request without a response may take effect later, or
never.
"""

import asyncio
from collections.abc import Coroutine
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.messages import (
    CreatePartitions,
    CreateTopics,
    DeleteTopics,
    NewPartitions,
    NewTopic,
    Status,
)
from penstock.controller.metadata.topic_configs import FORK_SOURCE, UNDELETE
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import create_partitions, create_topics, delete_topics
from tests.sim.clock_steps import ANY_TIMESTAMP
from tests.sim.connections import Connection, NoResponse
from tests.sim.control import addresses
from tests.sim.loop import Process
from tests.sim.nodes import SimBroker
from tests.sim.topic_snapshots import TopicSnapshot

if TYPE_CHECKING:
    from tests.sim.topic_life import Incarnation
    from tests.sim.world import World

_CREATE_VERSION: Final = 7
_DELETE_VERSION: Final = 6
_GROW_VERSION: Final = 3
_PARTITIONS_MAX: Final = 6
_SNAPSHOTS_MAX: Final = 4
"""Maximum number of snapshots in a run."""
_STATUS: Final = {
    ErrorCode.NONE: Status.OK,
    ErrorCode.INVALID_PARTITIONS: Status.INVALID_PARTITIONS,
    ErrorCode.TOPIC_ALREADY_EXISTS: Status.TOPIC_EXISTS,
}
"""Not included: UNKNOWN_TOPIC_ID, which proves nothing if the broker does not have the
topic yet.
"""


class TopicAdmin:
    def __init__(self, world: "World") -> None:
        self._world = world
        self._life = world.life
        self._rng = Random(f"{world.seed}/topic admin")
        self._kinds = Random(f"{world.seed}/topic admin/snapshots")
        self._process = Process("topic admin")
        self._process.network = world.network
        world.processes.append(self._process)
        self._pace_s = self._rng.choice((0.2, 0.6, 1.5))
        self._client: ControllerClient = self._process.context().run(
            lambda: ControllerClient(addresses(world.limits.controllers), rng=self._rng)
        )

    def run(self, stop: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        return [self._here(self._rule(name, stop)) for name in self._life.names]

    async def create_missing(self) -> None:
        for name in self._life.names:
            while self._world.metadata.image.topics.by_name(name) is None:
                await self._here(self._create(name))

    async def renew(self, name: str) -> None:
        """Repeat until the topic is replaced by another one of the same name."""
        old = self._find(name)
        while old is not None and not old.is_gone:
            await self._here(self._delete(old))
        await self.create_missing()

    async def revive(self, name: str) -> bool:
        """Repeat until the topic was deleted and, if possible, restored. Return whether the same
        topic exists again.
        """
        known = self._find(name)
        if known is None or not self._world.limits.controller.delete_grace_ms:
            return known is not None
        while not known.is_gone:
            await self._here(self._delete(known))
        while known.is_gone and known.frozen_s >= 0:
            await self._here(self._undelete(known))
        await self.create_missing()
        return not known.is_gone

    async def _here(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in the administrators' own process."""
        await self._world.loop.create_task(work, context=self._process.context())

    def _find(self, name: str) -> "Incarnation | None":
        return next((known for known in self._life.live if known.name == name), None)

    async def _rule(self, name: str, stop: asyncio.Event) -> None:
        while not stop.is_set():
            known = self._find(name)
            if self._life.has_snapshots and self._kinds.random() < 0.4:
                await self._use_snapshot(name, known)
            elif known is None:
                await self._undelete_or_create(name)
            elif self._rng.random() < 0.4:
                await self._delete(known)
                if known.is_gone and self._rng.random() < 0.6:
                    await self._undelete_or_create(name)
            else:
                await self._grow(known)
            await asyncio.sleep(self._pace_s * self._rng.random() * 2)

    # --- undelete ---------------------------------------------------------------------------------

    async def _undelete_or_create(self, name: str) -> None:
        frozen = [
            known
            for known in self._life.incarnations.values()
            if known.name == name and known.frozen_s >= 0
        ]
        if frozen and self._rng.random() < 0.6:
            await self._undelete(self._rng.choice((frozen[-1], self._rng.choice(frozen))))
        else:
            await self._create(name)

    async def _undelete(self, known: "Incarnation") -> None:
        """Restore a deleted topic under its name, which is not known to be taken."""
        known.is_wanted_back = True
        returns_count = known.returns_count
        configs = {UNDELETE: str(known.topic_id)}
        self._world.trace("undelete topic", known.name, known.number)
        broker = self._broker()
        if broker is None:
            request = CreateTopics(topics=[NewTopic(name=known.name, configs=dict(configs))])
            response = await self._ask_controller(
                self._client.create_topics(request, timeout_s=self._timeout_s())
            )
            status = None if response is None else response.topics[0].status
        else:
            items = [
                create_topics.CreatableTopicConfig(key, value) for key, value in configs.items()
            ]
            topic = create_topics.CreatableTopic(known.name, -1, -1, [], items)
            message = create_topics.CreateTopicsRequest(
                [topic], self._timeout_ms(), validate_only=False
            )
            response = await self._ask_broker(broker, apis.CREATE_TOPICS, _CREATE_VERSION, message)
            status = None if response is None else _status(response.topics[0])
        if status is Status.OK and known.returns_count == returns_count:
            self._world.fail(f"{known} is said to be back, the metadata do not have it")

    # --- snapshots --------------------------------------------------------------------------------

    async def put_back(self, name: str) -> None:
        """Repeat until there is a snapshot of the topic and the topic was restored from it."""
        snapshot = self._life.snapshots.note(name, self._life.live)
        while not snapshot.ends:
            await self._here(self._snapshot(snapshot))
        while (known := self._find(name)) is None or known.origin is not snapshot.origin:
            await self._here(self._restore(snapshot, known))

    async def _use_snapshot(self, name: str, known: "Incarnation | None") -> None:
        snapshots, chosen = self._life.snapshots, None
        if usable := snapshots.usable(name):
            chosen = self._kinds.choice(usable)
        kind = self._kinds.random()
        if chosen is not None and kind < 0.8:
            await self._restore(chosen, known)
        elif chosen is not None and kind < 0.87:
            await self._delete_snapshot(chosen)
        elif known is not None and len(snapshots.known) < _SNAPSHOTS_MAX:
            await self._snapshot(snapshots.note(name, self._life.live))

    async def _snapshot(self, snapshot: TopicSnapshot) -> None:
        self._world.trace("snapshot topic", snapshot.name)
        response = await self._fork(snapshot.name, snapshot.topic)
        if response is not None and _status(response) is Status.OK and not snapshot.ends:
            self._world.fail(f"{snapshot.name} is said to be there, the metadata do not have it")

    async def _restore(self, snapshot: TopicSnapshot, known: "Incarnation | None") -> None:
        """Delete the topic, and fork the snapshot under its name."""
        snapshot.is_wanted = True
        self._world.trace("restore topic", snapshot.name)
        if known is not None:
            await self._delete(known)
            if not known.is_gone:
                return
        response = await self._fork(snapshot.topic, snapshot.name)
        if response is not None and _status(response) is Status.OK:
            made = self._life.incarnations.get(response.topic_id)
            if made is None or made.origin is not snapshot.origin:
                self._world.fail(f"{snapshot.name} is said to be restored, there is {made}")

    async def _delete_snapshot(self, snapshot: TopicSnapshot) -> None:
        snapshot.is_doomed = True
        state = delete_topics.DeleteTopicState(None, snapshot.topic_id)
        message = delete_topics.DeleteTopicsRequest(topics=[state], timeout_ms=self._timeout_ms())
        if serving := self._serving():
            broker = self._kinds.choice(serving)
            await self._ask_broker(broker, apis.DELETE_TOPICS, _DELETE_VERSION, message)

    async def _fork(self, name: str, source: str) -> Any:
        """Request a fork from a broker. Return the response for the topic, or None."""
        if not (serving := self._serving()):
            await asyncio.sleep(0.1)
            return None
        configs = [create_topics.CreatableTopicConfig(FORK_SOURCE, source)]
        topic = create_topics.CreatableTopic(name, -1, -1, [], configs)
        message = create_topics.CreateTopicsRequest(
            [topic], self._timeout_ms(), validate_only=False
        )
        broker = self._kinds.choice(serving)
        # A fork waits until its source is uploaded.
        response = await self._ask_broker(broker, apis.CREATE_TOPICS, _CREATE_VERSION, message, 10)
        return None if response is None else response.topics[0]

    # --- create -----------------------------------------------------------------------------------

    async def _create(self, name: str) -> None:
        count = self._rng.randint(1, 3)
        configs = {"max.message.bytes": str(1_000_000 + len(self._life.configs[name]))}
        if self._world.graces is not None:
            configs |= ANY_TIMESTAMP
        self._life.totals[name].add(count)
        self._life.configs[name].append(configs)
        self._world.trace("create topic", name, count)
        broker = self._broker()
        if broker is None:
            request = CreateTopics(
                topics=[NewTopic(name=name, partitions=count, configs=dict(configs))]
            )
            response = await self._ask_controller(
                self._client.create_topics(request, timeout_s=self._timeout_s())
            )
            status, topic_id = (
                (None, None)
                if response is None
                else (response.topics[0].status, response.topics[0].topic_id)
            )
        else:
            items = [
                create_topics.CreatableTopicConfig(key, value) for key, value in configs.items()
            ]
            topic = create_topics.CreatableTopic(name, count, -1, [], items)
            message = create_topics.CreateTopicsRequest(
                [topic], self._timeout_ms(), validate_only=False
            )
            response = await self._ask_broker(broker, apis.CREATE_TOPICS, _CREATE_VERSION, message)
            status, topic_id = (
                (None, None)
                if response is None
                else (_status(response.topics[0]), response.topics[0].topic_id)
            )
        if status is Status.OK:
            found = (
                self._world.metadata.image.topics.by_id(topic_id) if topic_id is not None else None
            )
            if found is None or found.name != name or len(found.partitions) < count:
                self._world.fail(
                    f"topic {name} was created with {count} partitions as {topic_id}, the metadata"
                    f" have {found}"
                )
            if broker is not None and broker.image.topics.by_id(topic_id) is None:
                self._world.fail(f"{broker.process.name} created topic {name} and does not have it")

    # --- delete -----------------------------------------------------------------------------------

    async def _delete(self, known: "Incarnation") -> None:
        known.is_doomed = True
        returns_count = known.returns_count
        self._world.trace("delete topic", known.name, known.number)
        leader, _ = self._world.leader((known.name, 0), self._rng, exact=True)
        if leader is not None and not self._world.calm and self._rng.random() < 0.3:
            self._world.later(self._rng.choice((0.01, 0.05, 0.3)), self._crash, leader)
        broker = self._broker()
        if broker is None:
            request = DeleteTopics(topic_ids=[known.topic_id])
            response = await self._ask_controller(
                self._client.delete_topics(request, timeout_s=self._timeout_s())
            )
            status = None if response is None else response.items[0].status
        else:
            state = delete_topics.DeleteTopicState(None, known.topic_id)
            message = delete_topics.DeleteTopicsRequest(
                topics=[state], timeout_ms=self._timeout_ms()
            )
            response = await self._ask_broker(broker, apis.DELETE_TOPICS, _DELETE_VERSION, message)
            status = None if response is None else _status(response.responses[0])
        is_back = known.returns_count != returns_count
        if status in (Status.OK, Status.UNKNOWN_TOPIC) and not known.is_gone and not is_back:
            self._world.fail(
                f"the deletion of {known} returns {status}, but the metadata contain it"
            )
        if (
            status is Status.OK
            and broker is not None
            and not is_back
            and broker.image.topics.by_id(known.topic_id) is not None
        ):
            self._world.fail(f"{broker.process.name} deleted {known} and still has it")

    def _crash(self, broker: SimBroker) -> None:
        """Crash the broker while it may hold records that must no longer be committed."""
        if (
            broker.process.held is None
            and self._world.brokers.get(broker.node_id) is broker
            and not self._world.calm
        ):
            self._world.crash(broker, self._rng.choice((0.01, 0.5, 6.0)))

    # --- add partitions ---------------------------------------------------------------------------

    async def _grow(self, known: "Incarnation") -> None:
        total = len(known.streams) + self._rng.randint(1, 2)
        if total > _PARTITIONS_MAX:
            return
        if self._rng.random() < 0.2:
            await self._add(known, total, is_trial=True)
            return
        self._life.totals[known.name].add(total)
        await self._add(known, total)
        if self._rng.random() < 0.5:
            await self._add(known, total)

    async def _add(self, known: "Incarnation", total: int, *, is_trial: bool = False) -> None:
        before = len(known.streams)
        self._world.trace("add partitions", known.name, known.number, before, total, is_trial)
        broker = self._broker()
        if broker is None:
            request = CreatePartitions(
                topics=[NewPartitions(name=known.name, total=total)], validate_only=is_trial
            )
            response = await self._ask_controller(
                self._client.create_partitions(request, timeout_s=self._timeout_s())
            )
            status = None if response is None else response.items[0].status
        else:
            topic = create_partitions.CreatePartitionsTopic(known.name, total, None)
            message = create_partitions.CreatePartitionsRequest(
                [topic], self._timeout_ms(), is_trial
            )
            response = await self._ask_broker(
                broker, apis.CREATE_PARTITIONS, _GROW_VERSION, message
            )
            status = None if response is None else _status(response.results[0])
        requested = before if is_trial else total
        if (
            status in (Status.OK, Status.INVALID_PARTITIONS)
            and not known.is_gone
            and len(known.streams) < requested
        ):
            self._world.fail(
                f"{known} had {before} partitions and was to have {total}: {status}, it has"
                f" {len(known.streams)}"
            )
        if status is Status.OK and before >= total and not known.is_gone:
            self._world.fail(
                f"{known} had {before} partitions when it was asked to have {total}, which is"
                " returned OK"
            )

    # --- requests ---------------------------------------------------------------------------------

    def _timeout_s(self) -> float:
        return 30 if self._world.calm else self._rng.choice((0.1, 1.0, 10.0))

    def _timeout_ms(self) -> int:
        return 30_000 if self._world.calm else self._rng.choice((1_000, 10_000))

    def _broker(self) -> SimBroker | None:
        """Return the broker to send requests to, or None for the controllers."""
        serving = self._serving()
        return self._rng.choice(serving) if serving and self._rng.random() < 0.5 else None

    def _serving(self) -> list[SimBroker]:
        return [
            broker
            for _, broker in sorted(self._world.brokers.items())
            if broker.serving and not broker.process.dead
        ]

    async def _ask_controller(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Send a request; return None if it is unknown whether it was executed."""
        try:
            return await work
        except (TimeoutError, ControllerError) as error:
            self._world.trace("no response", type(error).__name__)
            await asyncio.sleep(0.1)
            return None

    async def _ask_broker(
        self, broker: SimBroker, api: Any, version: int, message: Any, patience_s: float = 0
    ) -> Any:
        """Send a request; return None if it is unknown whether it was executed. patience_s: 0 for
        any.
        """
        try:
            return await Connection(self._world, broker).send_request(
                api, version, message, patience_s or self._timeout_s() * 2
            )
        except NoResponse:
            await asyncio.sleep(0.1)
            return None


def _status(result: Any) -> Status | None:
    return _STATUS.get(ErrorCode(result.error_code))
