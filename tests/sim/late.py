"""Requests that arrive late, after a newer connection was opened, and long-lived producers.

A connection may stall for longer than its client waits, as TCP does during retransmissions; its
requests then arrive late, in order. Not covered for version 1: a late request after the coordinator
moved away and back (docs/design/transactions.md).
"""

import asyncio
from collections import Counter, deque
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING, Any, Final

from penstock.base.ids import NodeId
from penstock.broker.coordination.internal_topics import (
    OFFSETS_TOPIC,
    SHARE_STATES_TOPIC,
    TRANSACTIONS_TOPIC,
)
from penstock.protocol import apis
from penstock.stream.config import StreamConfig
from tests.sim.chaos import Chaos
from tests.sim.clients import TOPIC
from tests.sim.connections import Connection
from tests.sim.groups import LATE_MEMBERS
from tests.sim.ledger import Entry
from tests.sim.limits import Limits
from tests.sim.loop import Process
from tests.sim.nodes import COORDINATOR_PARTITIONS
from tests.sim.transactional import Application, Fenced, Instance

if TYPE_CHECKING:
    from tests.sim.nodes import SimBroker
    from tests.sim.world import World

_HELD_SHARES: Final = {
    apis.WRITE_TXN_MARKERS.key: 0.35,
    apis.END_TXN.key: 0.15,
    apis.TXN_OFFSET_COMMIT.key: 0.15,
}
_HELD_SHARE: Final = 0.02
"""The share of other requests that are delayed."""
_HELD_MEMBERS_SHARES: Final = {
    apis.JOIN_GROUP.key: 0.15,
    apis.SYNC_GROUP.key: 0.15,
    apis.SHARE_FETCH.key: 0.15,
    apis.SHARE_ACKNOWLEDGE.key: 0.15,
}
_HELD_MEMBERS_SHARE: Final = 0.06
"""The share of other requests that are delayed in `LATE_MEMBERS`."""
_PATIENCE_S: Final = (0.2, 1.0)
"""How long members wait for the response to a delayed request before they send it again."""
_HELD_S: Final = (1.0, 9.0)
MARKERS_TIMEOUT_S: Final = 1.0
"""Replaces `broker.transactions.markers.REQUEST_TIMEOUT_S`, so that a copy is sent soon."""
_RETRANSMISSION_S: Final = 0.05
_MARKERS: Final = apis.WRITE_TXN_MARKERS.key.to_bytes(2, "big")


def late_limits(drawn: Limits) -> Limits:
    """Return fast limits with few steps: these bugs are between processes, and take many
    transactions to show.
    """
    stream = StreamConfig(
        wal_linger_ms=drawn.stream.wal_linger_ms,
        wal_delete_grace_ms=drawn.stream.wal_delete_grace_ms,
        block_age_max_ms=drawn.stream.block_age_max_ms,
        prepared_reuse_ms=drawn.stream.prepared_reuse_ms,
    )
    p50_ms = min(drawn.store_p50_ms, 20)
    return replace(
        drawn,
        stream=stream,
        compacting=False,
        controllers=1,
        brokers=3,
        store_p50_ms=p50_ms,
        store_p99_ms=5 * p50_ms,
        network_ms=5,
    )


class LateConnection(Connection):
    def __init__(self, world: "World", broker: "SimBroker") -> None:
        super().__init__(world, broker)
        self._rng = Random(f"{world.seed}/late/{self.id}")
        self._held_s = 0.0
        """The additional delay of the next message."""
        self._arrived: deque[tuple[Any, tuple[Any, ...]]] = deque()
        """Messages that wait until the link is healed."""
        self._senders: deque[tuple[str, ...] | None] = deque()
        """Those of the requests on their way."""

    async def send_request(self, api: Any, version: int, message: Any, timeout_s: float) -> Any:
        if not self._world.calm and self._rng.random() < self._held_share(api):
            self._held_s = self._rng.uniform(*_HELD_S)
            if self._world.scenario == LATE_MEMBERS:
                timeout_s = min(timeout_s, self._rng.uniform(*_PATIENCE_S))
        self._senders.append(_sender_of(api, message, self._link))
        return await super().send_request(api, version, message, timeout_s)

    def _held_share(self, api: Any) -> float:
        if self._world.scenario == LATE_MEMBERS:
            return _HELD_MEMBERS_SHARES.get(api.key, _HELD_MEMBERS_SHARE)
        return _HELD_SHARES.get(api.key, _HELD_SHARE)

    def _travel(self, what: Any, *args: Any) -> None:
        now_s, held_s = self._world.loop.time(), self._held_s
        self._held_s = 0.0
        self._arrival_s = max(self._arrival_s, now_s + self._world.network.delay_s() + held_s)
        self._world.later(self._arrival_s - now_s, self._pass, what, args, self._coordinators())

    def _pass(self, what: Any, args: tuple[Any, ...], coordinators: Collection[Any]) -> None:
        if self._link == "client" and self._has_changed(coordinators):
            self._is_cut = True
        self._arrived.append((what, args))
        if len(self._arrived) == 1:
            self._pump()

    def _pump(self) -> None:
        if self._world.network.links.blocked(self._link, self.broker.process.link):
            self._world.later(_RETRANSMISSION_S, self._pump)
            return
        while self._arrived:
            what, args = self._arrived.popleft()
            what(*args)

    def _arrive(self, frame: bytes, response: "asyncio.Future[Any]") -> None:
        sender = self._senders.popleft()
        if sender is not None and not self._is_cut and self.broker.serving:
            self._world.reorderings.arrived(sender, self.broker.process, self.id)
        super()._arrive(frame, response)
        if frame.startswith(_MARKERS) and self._world.on_marker is not None:
            strike, self._world.on_marker = self._world.on_marker, None
            strike(self.broker)

    def _has_changed(self, coordinators: Collection[Any]) -> bool:
        """Return whether the broker may have become a coordinator since a request was sent."""
        now = self._coordinators()
        if isinstance(now, frozenset):
            return not now.issubset(coordinators)
        return coordinators != now

    def _coordinators(self) -> Collection[Any]:
        """Return the leader epochs of all coordinator partitions, or of those that the broker
        leads.
        """
        topics = self._world.metadata.image.topics
        if self._world.scenario == LATE_MEMBERS:
            return frozenset(
                (topic.topic_id, record.partition, record.leader_epoch)
                for name in (OFFSETS_TOPIC, SHARE_STATES_TOPIC, TOPIC)
                if (topic := topics.by_name(name)) is not None
                for record in topic.partitions
                if record.leader == self.broker.node_id
            )
        found = [
            topic
            for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
            if (topic := topics.by_name(name)) is not None
        ]
        return tuple(record.leader_epoch for topic in found for record in topic.partitions)


class Reorderings:
    """Counts requests that arrive on an older connection than a later request of their sender."""

    def __init__(self) -> None:
        self.counts = Counter[str]()
        """By API."""
        self._newest: dict[tuple[tuple[str, ...], Process], int] = {}

    def arrived(self, sender: tuple[str, ...], process: Process, connection_id: int) -> None:
        newest = self._newest.get((sender, process), connection_id)
        if connection_id < newest:
            self.counts[sender[0]] += 1
        self._newest[sender, process] = max(newest, connection_id)


def _sender_of(api: Any, message: Any, link: str) -> tuple[str, ...] | None:
    """Return the API and the sender of such requests: a group member or a broker, or None for other
    clients.
    """
    group_id = getattr(message, "group_id", None) or ""
    member_id = getattr(message, "member_id", None) or ""
    return (api.name, link, group_id, member_id) if member_id or link != "client" else None


class LongLivedInstance(Instance):
    pauses_s = (0.0, 0.5, 2.0, 5.0)
    timeouts_s = (0.7, 1.5)
    renewed_share = 0.0
    is_mortal = False

    def _commits(self, entry: Entry) -> bool:
        return entry.serial % 2 == 1

    async def transact(self, *, is_last: bool = False) -> None:
        await super().transact(is_last=is_last)
        if self._rng.random() < 0.3:
            at_least = self._ledger.committed_offset
            self._ledger.saw_offset(await self.committed_offset(), at_least, 0)


class LongLivedApplication(Application):
    def __init__(self, world: "World", number: int) -> None:
        super().__init__(world, number)
        self.timeout_ms = 120_000

    async def run(self, stop: asyncio.Event) -> None:
        """Run one instance throughout, because another one would fence it."""
        instance = self.world.loop.create_task(self._instance().run(stop))
        with suppress(Fenced):
            await instance

    def _instance(self) -> Instance:
        self._instances_count += 1
        return LongLivedInstance(self, self._instances_count)


class LateChaos(Chaos):
    """Leaves time for a few transactions between two faults."""

    paces_s = (1.5, 3.0, 6.0)

    def cut_brokers(self) -> None:
        """Cut one or both directions between two brokers."""
        links = [broker.process.link for _, broker in sorted(self._world.brokers.items())]
        one, other = self._rng.sample(links, 2)
        duration_s = self._rng.choice((0.5, 4.0, 6.0, 12.0))
        self._world.trace("cut", one, other)
        self._cut_link(one, other, duration_s)
        if self._rng.random() < 0.3:
            self._cut_link(other, one, duration_s)

    def cut_coordinator(self) -> None:
        """Cut a transaction coordinator off from everything but its clients for longer than its
        session.
        """
        broker = self._leader(TRANSACTIONS_TOPIC)
        if broker is not None:
            link = broker.process.link
            self._world.trace("cut", link)
            for number in range(self._world.limits.controllers):
                other = f"c{number}"
                self._cut_link(link, other, 12.0)
                self._cut_link(other, link, 12.0)

    def move_offsets(self) -> None:
        """Change group coordinators while a transaction with offsets ends."""
        delay_s = self._rng.choice((0.0, 0.05, 0.3))
        act = self._rng.choice((self._crash_at_once, self._move_groups))

        def on_end_txn(_: "SimBroker", __: Any) -> None:
            broker = self._leader(OFFSETS_TOPIC)
            if broker is not None:
                self._later(delay_s, lambda: self._hit(broker, act))

        self._world.on_end_txn = on_end_txn

    def strike_leader(self) -> None:
        """The next broker that gets a marker stores it slowly, and crashes before it is durable."""
        delay_s = self._rng.choice((0.1, 0.3, 0.6))

        def on_marker(broker: "SimBroker") -> None:
            if not self._world.calm:
                self._slow(broker, 800.0)
                self._later(delay_s, lambda: self._hit(broker, self._crash_at_once))

        self._world.on_marker = on_marker

    def _move_groups(self, _: "SimBroker") -> None:
        for index in range(COORDINATOR_PARTITIONS):
            self._world.admin.move(
                (OFFSETS_TOPIC, index), NodeId(self._rng.randint(1, self._world.limits.brokers))
            )

    def _leader(self, topic_name: str) -> "SimBroker | None":
        topic = self._world.metadata.image.topics.by_name(topic_name)
        if topic is None:
            return None
        return self._world.brokers.get(
            topic.partitions[self._rng.randrange(COORDINATOR_PARTITIONS)].leader
        )
