"""Draw cluster faults by the weights of a scenario, and inject them until the time is over.

Must not do anything that a real cluster cannot experience.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from penstock.base.ids import NodeId
from penstock.broker.coordination.internal_topics import (
    OFFSETS_TOPIC,
    SHARE_STATES_TOPIC,
    TRANSACTIONS_TOPIC,
)
from tests.sim.checkers import Part
from tests.sim.cleaning_jobs import SimCleaningJob
from tests.sim.clock_steps import step_a_clock
from tests.sim.damage import strike_object
from tests.sim.disaster import lose_disks
from tests.sim.leaks import LEAKING
from tests.sim.network import Links
from tests.sim.nodes import COORDINATOR_PARTITIONS
from tests.sim.rewriting import SimRewriter
from tests.sim.scenarios import COORDINATED
from tests.sim.share_consumers import WORKING
from tests.sim.share_members import JOINING
from tests.sim.share_states import SHARING

if TYPE_CHECKING:
    from tests.sim.control import SimController
    from tests.sim.nodes import SimBroker
    from tests.sim.world import World

_SLOW_P99_MS_MAX = 3_000.0
"""A PUT that lands after all copies of its object were given up is outside the guarantees of the
store.
"""


class Chaos:
    paces_s = (0.3, 1.0, 3.0)
    rare_paces_s = (2.0, 6.0)
    """For scenarios in which clients must make progress between two faults."""

    def __init__(self, world: "World", weights: Mapping[str, int]) -> None:
        self._world = world
        self._rng = world.rng
        self._weights = weights

    async def run(self, duration_s: float) -> None:
        loop = self._world.loop
        end = loop.time() + duration_s
        is_rare = self._world.scenario in LEAKING
        pace_s = self._rng.choice(self.rare_paces_s if is_rare else self.paces_s)
        names, weights = list(self._weights), list(self._weights.values())
        while loop.time() < end:
            await asyncio.sleep(self._rng.random() * 2 * pace_s)
            name = self._rng.choices(names, weights)[0]
            self._world.trace("chaos", name)
            getattr(self, name)()

    def nothing(self) -> None:
        pass

    def crash(self) -> None:
        if (broker := self._running()) is not None:
            self._world.crash(broker, self._rng.choice((0.01, 0.5, 6.0)))

    def suspect(self) -> None:
        """Let the other brokers suspect a broker that lives or crashes, and redirect
        its clients.
        """
        broker, _ = self._world.leader(self._part(), self._rng, exact=True)
        if broker is None or broker.process.held is not None:
            return
        self._world.suspect(broker.me, True)
        self._later(
            self._rng.choice((0.5, 2.0, 10.0)),
            lambda peer=broker.me: self._world.suspect(peer, False),
        )
        if self._rng.random() < 0.3:
            self._world.crash(broker, self._rng.choice((0.01, 0.5, 6.0)))

    def unregister(self) -> None:
        """Crash a broker and remove it from the metadata; it restarts before or after that."""
        if (broker := self._running()) is not None:
            self._world.crash(broker, self._rng.choice((2.0, 8.0)))
            self._world.admin.unregister(broker.node_id)

    def pause(self) -> None:
        if (broker := self._running()) is not None:
            broker.process.pause()
            self._later(
                self._rng.choice((0.2, 2.0, 8.0, 15.0)),
                lambda: broker.process.resume(self._world.loop),
            )

    def replace(self) -> None:
        if (broker := self._running()) is not None:
            self._replace(broker)

    def cut(self) -> None:
        """Cut a broker off from all controllers: in both directions, only its requests, or only the
        responses.
        """
        if (broker := self._running()) is not None:
            self._cut_off(broker.process.link, self._rng.choice((0.3, 3.0, 12.0)))

    def isolate(self) -> None:
        """Cut a broker off from the controllers only; clients and the store still reach it."""
        duration_s, kind = (
            self._rng.choice((1.0, 4.0, 8.0)),
            self._rng.choice(("both", "both", "to", "from")),
        )
        broker, _ = self._world.leader(self._part(), self._rng, exact=True)
        if broker is None:
            return
        self._world.trace("isolate", broker.process.name, kind)
        for controller in self._world.controllers.values():
            if kind != "to":
                self._cut_link(broker.process.link, controller.process.link, duration_s)
            if kind != "from":
                self._cut_link(controller.process.link, broker.process.link, duration_s)

    def reject(self) -> None:
        """Put a firewall between a broker and the leading controller, or all controllers: existing
        connections are reset, new ones refused.
        """
        duration_s, at_all = self._rng.choice((1.0, 4.0, 8.0)), self._rng.random() < 0.3
        (broker, _), active = (
            self._world.leader(self._part(), self._rng, exact=True),
            self._world.active_controller(),
        )
        if broker is None or active is None:
            return
        controllers = [
            controller
            for controller in self._world.controllers.values()
            if at_all or controller is active
        ]
        for controller in controllers:
            self._world.network.reject(broker.process.link, controller.process.link)
            self._later(
                duration_s,
                lambda link=controller.process.link: self._world.network.links.admit(
                    broker.process.link, link
                ),
            )

    def cut_controller(self) -> None:
        """Cut a controller off from everything, usually the leader."""
        if (controller := self._controller()) is not None:
            self._cut_off(controller.process.link, self._rng.choice((0.3, 2.0, 8.0)))

    def split(self) -> None:
        """Cut one direction between a controller and another process."""
        controller = self._controller()
        others = [controller.process.link for controller in self._world.controllers.values()]
        others += [broker.process.link for _, broker in sorted(self._world.brokers.items())]
        if controller is not None:
            one, other = controller.process.link, self._rng.choice(others)
            self._cut_link(
                *((one, other) if self._rng.random() < 0.5 else (other, one)),
                self._rng.choice((0.5, 4.0, 10.0)),
            )

    def _cut_off(self, link: str, duration_s: float) -> None:
        self._world.trace("cut", link)
        kind = self._rng.choice(("both", "both", "to", "from"))
        if kind != "to":
            self._cut_link(link, Links.ANY, duration_s)
        if kind != "from":
            self._cut_link(Links.ANY, link, duration_s)

    def _cut_link(self, source: str, target: str, duration_s: float) -> None:
        links = self._world.network.links
        links.cut(source, target)
        self._later(duration_s, lambda: links.mend(source, target))

    def leave(self) -> None:
        if (broker := self._running()) is not None and not broker.leaving:
            broker.spawn(broker.leave)

    def move(self) -> None:
        part = self._part()
        self._world.admin.move(part, NodeId(self._rng.randint(1, self._world.limits.brokers)))

    def ping_pong(self) -> None:
        part = self._part()
        nodes = self._rng.sample(range(1, self._world.limits.brokers + 1), 2)
        pause_s = self._rng.choice((0.0, 0.05, 0.4))
        for at, node_id in enumerate((*nodes, *nodes)):
            self._later(
                pause_s * at, lambda node_id=node_id: self._world.admin.move(part, NodeId(node_id))
            )

    def _part(self) -> Part:
        parts = [*self._world.parts, *self._world.txn_parts, *self._world.life.parts]
        if self._world.scenario in COORDINATED:
            parts = [(OFFSETS_TOPIC, index) for index in range(COORDINATOR_PARTITIONS)]
        if self._world.scenario in SHARING:
            parts = [(SHARE_STATES_TOPIC, index) for index in range(COORDINATOR_PARTITIONS)]
        if self._world.scenario in WORKING:
            parts += [(SHARE_STATES_TOPIC, index) for index in range(COORDINATOR_PARTITIONS)]
        if self._world.scenario in JOINING:
            parts = [
                (name, index)
                for name in (OFFSETS_TOPIC, SHARE_STATES_TOPIC)
                for index in range(COORDINATOR_PARTITIONS)
            ]
        if self._world.txn_parts:
            parts += [
                (name, index)
                for name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
                for index in range(COORDINATOR_PARTITIONS)
            ]
        return self._rng.choice(parts)

    def haunt(self) -> None:
        """Pause a coordinator of groups or share partitions until it is declared dead, and resume
        it after it was replaced.
        """
        has_states = self._world.scenario in SHARING | WORKING
        name = SHARE_STATES_TOPIC if has_states else OFFSETS_TOPIC
        topic = self._world.metadata.image.topics.by_name(name)
        leader = (
            None
            if topic is None
            else self._world.brokers.get(self._rng.choice(topic.partitions).leader)
        )
        if leader is not None and leader.process.held is None:
            self._replace(leader)

    def expire(self) -> None:
        """Let coordinators check for expired offsets several times, ignoring the interval."""
        for delay_s in (0.0, 0.05, 0.3, 1.0):
            for _, broker in sorted(self._world.brokers.items()):
                self._later(
                    delay_s * self._rng.random(),
                    lambda broker=broker: broker.deliver(broker.expire_offsets),
                )

    def strike(self) -> None:
        """Disturb the next end of a transaction: crash its coordinator, a leader, or sometimes the
        client.
        """
        rng = self._rng
        act = rng.choice(
            (
                self._crash_at_once,
                self._crash_at_once,
                self._stop,
                self._stop,
                self._replace,
                self._move_coordinators,
            )
        )
        delay_s = rng.choice((0.01, 0.05, 0.2, 1.0)) * rng.random() * 2
        at_leader, at_both, at_client, is_slow = (
            rng.random() < share for share in (0.3, 0.3, 0.5, 0.5)
        )

        def on_end_txn(coordinator: "SimBroker", end_client: Callable[[], object]) -> None:
            leader, _ = self._world.leader(rng.choice(self._world.txn_parts), rng, exact=True)
            if is_slow and not self._world.calm:
                # Leave time between the decision and its durability.
                self._slow(coordinator, 800.0)
            if leader is not None and leader is not coordinator and at_both:
                self._later(0.0, lambda: self._hit(leader, self._crash_at_once))
                self._later(delay_s, lambda: self._hit(coordinator, self._stop))
                return
            victim = leader if leader is not None and at_leader else coordinator
            self._later(delay_s, lambda: self._hit(victim, act))
            if at_client:
                self._later(delay_s, end_client)

        self._world.on_end_txn = on_end_txn

    def _hit(self, broker: "SimBroker", act: "Callable[[SimBroker], None]") -> None:
        if broker.process.held is None and self._world.brokers.get(broker.node_id) is broker:
            self._world.trace("strike", broker.process.name)
            act(broker)

    def _crash_at_once(self, broker: "SimBroker") -> None:
        self._world.crash(broker, self._rng.choice((0.01, 0.5, 6.0)))

    def _replace(self, broker: "SimBroker") -> None:
        self._world.replace(broker)
        self._later(
            self._rng.choice((0.5, 4.0, 15.0)), lambda: broker.process.resume(self._world.loop)
        )

    def _stop(self, broker: "SimBroker") -> None:
        broker.process.pause()
        self._later(
            self._rng.choice((0.5, 4.0, 8.0, 15.0)), lambda: broker.process.resume(self._world.loop)
        )

    def _move_coordinators(self, broker: "SimBroker") -> None:
        for index in range(COORDINATOR_PARTITIONS):
            self._world.admin.move(
                (TRANSACTIONS_TOPIC, index),
                NodeId(self._rng.randint(1, self._world.limits.brokers)),
            )

    def rewrite(self) -> None:
        """Start a rewrite by an external job."""
        self._start_job(SimRewriter(self._world, len(self._world.processes)))

    def clean_outside(self) -> None:
        """Start log compaction by an external job."""
        self._start_job(SimCleaningJob(self._world, len(self._world.processes)))

    def _start_job(self, rewriter: SimRewriter) -> None:
        """Start a job; some jobs stall for a while, some die."""
        rewriter.start()
        fate, delay_s = self._rng.random(), self._rng.choice((0.05, 0.5, 2.0))
        if fate < 0.3:
            self._later(delay_s, rewriter.process.kill)
        elif fate < 0.6:
            self._later(delay_s, rewriter.process.pause)
            self._world.later(
                delay_s + self._rng.choice((1.0, 6.0, 12.0)),
                lambda: rewriter.process.resume(self._world.loop),
            )

    def strike_object(self) -> None:
        strike_object(self._world, self._rng)

    def move_compacted(self) -> None:
        compacted = self._world.compacted
        assert compacted is not None
        self._world.admin.move(
            self._rng.choice(compacted.parts),
            NodeId(self._rng.randint(1, self._world.limits.brokers)),
        )

    def trim(self) -> None:
        if (broker := self._running()) is not None and broker.serving:
            part, share = self._rng.choice(self._world.parts), self._rng.choice((0.3, 0.9, 1.0))
            broker.spawn(lambda: broker.trim(part, share))

    def delete_records(self) -> None:
        part, share = self._rng.choice(self._world.parts), self._rng.choice((0.3, 0.9, 1.0))
        broker, _ = self._world.leader(part, self._rng)
        if broker is not None and broker.process.held is None and broker.serving:
            timeout_ms = self._rng.choice((0, 1_000, 5_000))
            broker.spawn(lambda: broker.delete_records(part, share, timeout_ms))

    def slow_store(self) -> None:
        weather = self._world.weather
        weather.slow_factor = self._rng.choice((3.0, 10.0, 40.0))
        self._later(self._rng.choice((0.5, 3.0)), lambda: setattr(weather, "slow_factor", 1.0))

    def slow_broker(self) -> None:
        if (broker := self._running()) is not None:
            self._slow(broker, self._rng.choice((800.0, 3_000.0)))

    def _slow(self, broker: "SimBroker", p50_ms: float) -> None:
        store, weather = broker.raw_store, self._world.weather
        store.slow_factor = max(
            1.0, min(p50_ms / weather.p50_ms, _SLOW_P99_MS_MAX / weather.p99_ms)
        )
        self._later(self._rng.choice((2.0, 8.0)), lambda: setattr(store, "slow_factor", 1.0))

    def store_down(self) -> None:
        weather = self._world.weather
        weather.down = True
        self._later(self._rng.choice((0.1, 1.0, 6.0)), lambda: setattr(weather, "down", False))

    def slow_wal_store(self) -> None:
        weather = self._world.wal_weather
        weather.slow_factor = self._rng.choice((3.0, 10.0, 40.0))
        self._later(self._rng.choice((0.5, 3.0)), lambda: setattr(weather, "slow_factor", 1.0))

    def wal_store_down(self) -> None:
        weather = self._world.wal_weather
        weather.down = True
        long_s = self._rng.choice((6.0, 20.0))
        self._later(self._rng.choice((0.1, 1.0, long_s)), lambda: setattr(weather, "down", False))

    def crash_controller(self) -> None:
        if (controller := self._controller()) is not None:
            self._world.crash_controller(controller, self._rng.choice((0.01, 1.0, 5.0)))

    def step_clock(self) -> None:
        step_a_clock(self._world, self._rng)

    def blackout(self) -> None:
        """Kill all brokers at once."""
        for _, controller in sorted(self._world.controllers.items()):
            self._world.crash_controller(controller, self._rng.choice((0.01, 1.0, 3.0)))

    def pause_controller(self) -> None:
        if (controller := self._controller()) is not None:
            controller.process.pause()
            self._later(
                self._rng.choice((0.3, 2.0, 8.0)),
                lambda: controller.process.resume(self._world.loop),
            )

    def lose_disks(self) -> None:
        lose_disks(self._world)

    def transfer(self) -> None:
        """Let the leader transfer its leadership, and isolate it for a while."""
        world = self._world
        active = world.active_controller()
        others = [
            controller
            for _, controller in sorted(world.controllers.items())
            if controller is not active
        ]
        if (
            active is None
            or not others
            or active.process.paused
            or active.server is None
            or active.server.quorum is None
        ):
            return
        duration_s = self._rng.choice((0.0, 0.5, 1.5))

        def cut() -> None:
            for controller in others:
                self._cut_link(controller.process.link, active.process.link, duration_s)

        world.network.on_handover = cut
        active.process.context().run(active.server.quorum.transfer, self._rng.choice(others).number)

    def lose_slot(self) -> None:
        if self._world.lost_slots is not None:
            self._world.lost_slots.strike()

    def slow_disk(self) -> None:
        if (controller := self._controller()) is not None:
            controller.disk.slow_factor = self._rng.choice((10.0, 100.0))
            self._later(
                self._rng.choice((1.0, 5.0)), lambda: setattr(controller.disk, "slow_factor", 1.0)
            )

    def broken_disk(self) -> None:
        if (controller := self._controller()) is not None:
            controller.disk.failing = True

    def coup(self) -> None:
        """Fail the leading controller in the middle of a move, a recovery or a commit."""
        self._rng.choice((self.move, self.ping_pong, self.crash, self.leave, self.nothing))()
        fail = self._rng.choice(
            (
                self.crash_controller,
                self.crash_controller,
                self.pause_controller,
                self.cut_controller,
            )
        )
        self._later(self._rng.choice((0.02, 0.1, 0.5, 1.5)) * self._rng.random() * 2, fail)

    def _controller(self) -> "SimController | None":
        """Return the leading controller, or sometimes any controller."""
        running = [
            controller
            for _, controller in sorted(self._world.controllers.items())
            if controller.process.held is None
        ]
        active = self._world.active_controller()
        if active in running and self._rng.random() < 0.7:
            return active
        return self._rng.choice(running) if running else None

    def _running(self) -> "SimBroker | None":
        brokers = [
            broker
            for _, broker in sorted(self._world.brokers.items())
            if broker.process.held is None
        ]
        return self._rng.choice(brokers) if brokers else None

    def _later(self, delay_s: float, what: Callable[[], object]) -> None:
        def act() -> None:
            if not self._world.calm:
                what()

        self._world.later(delay_s, act)
