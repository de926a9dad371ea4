"""Who breaks what, how often. A scenario is weights; `Chaos` draws from them until its time is over.

Must not do anything that a real cluster can not suffer.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from stream.ids import NodeId
from tests.sim.disaster import lose_disks

if TYPE_CHECKING:
    from tests.sim.nodes import SimBroker
    from tests.sim.world import World

SCENARIOS: Mapping[str, Mapping[str, int]] = {
    "calm": {"nothing": 5, "trim": 1, "move": 1},
    "crash": {"crash": 5, "slow_store": 1, "nothing": 2, "trim": 1},
    "zombie": {"pause": 4, "replace": 3, "cut": 2, "crash": 1, "slow_store": 1},
    "move": {"move": 8, "ping_pong": 4, "leave": 1, "trim": 1, "compaction": 1, "pause": 1},
    "store": {"slow_store": 3, "store_down": 3, "crash": 1, "move": 1},
    "controller": {"crash_controller": 3, "pause_controller": 2, "cut": 2, "move": 2, "crash": 1},
    "disaster": {"lose_disks": 4, "crash": 2, "pause": 1, "replace": 1, "move": 2, "ping_pong": 1, "store_down": 1, "trim": 1},
    "clock": {"cut": 6, "pause": 1, "replace": 1, "slow_store": 2, "move": 1, "nothing": 1},
    "mixed": {
        "crash": 3, "pause": 2, "replace": 2, "cut": 2, "move": 4, "ping_pong": 2, "leave": 1, "trim": 2,
        "slow_store": 2, "store_down": 1, "crash_controller": 1, "pause_controller": 1, "nothing": 2,
    },
}  # fmt: skip


WITHOUT_LEASE = frozenset({"clock"})
"""Here brokers measure time so wrongly that they never give up by themselves: only the fence in the WAL protects."""


class Chaos:
    def __init__(self, world: "World", weights: Mapping[str, int]) -> None:
        self._world = world
        self._rng = world.rng
        self._weights = {name: weight for name, weight in weights.items() if hasattr(self, name)}

    async def run(self, duration_s: float) -> None:
        loop = self._world.loop
        end = loop.time() + duration_s
        pace_s = self._rng.choice((0.3, 1.0, 3.0))
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

    def pause(self) -> None:
        if (broker := self._running()) is not None:
            broker.process.pause()
            self._later(self._rng.choice((0.2, 2.0, 8.0, 20.0)), lambda: broker.process.resume(self._world.loop))

    def replace(self) -> None:
        if (broker := self._running()) is not None:
            self._world.replace(broker)
            self._later(self._rng.choice((0.5, 4.0, 15.0)), lambda: broker.process.resume(self._world.loop))

    def cut(self) -> None:
        if (broker := self._running()) is not None:
            name = broker.process.name
            self._world.trace("cut", name)
            self._world.network.cut.add(name)
            self._later(self._rng.choice((0.3, 3.0, 12.0)), lambda: self._world.network.cut.discard(name))

    def leave(self) -> None:
        if (broker := self._running()) is not None and not broker.leaving:
            broker.spawn(broker.leave)

    def move(self) -> None:
        part = self._rng.choice(self._world.parts)
        self._world.move(part, NodeId(self._rng.randint(1, self._world.limits.brokers)))

    def ping_pong(self) -> None:
        part = self._rng.choice(self._world.parts)
        nodes = self._rng.sample(range(1, self._world.limits.brokers + 1), 2)
        pause_s = self._rng.choice((0.0, 0.05, 0.4))
        for at, node_id in enumerate((*nodes, *nodes)):
            self._later(pause_s * at, lambda node_id=node_id: self._world.move(part, NodeId(node_id)))

    def trim(self) -> None:
        if (broker := self._running()) is not None and broker.serving:
            part, share = self._rng.choice(self._world.parts), self._rng.choice((0.3, 0.9, 1.0))
            broker.spawn(lambda: broker.trim(part, share))

    def slow_store(self) -> None:
        weather = self._world.weather
        weather.slow_factor = self._rng.choice((3.0, 10.0, 40.0))
        self._later(self._rng.choice((0.5, 3.0)), lambda: setattr(weather, "slow_factor", 1.0))

    def store_down(self) -> None:
        weather = self._world.weather
        weather.down = True
        self._later(self._rng.choice((0.1, 1.0, 6.0)), lambda: setattr(weather, "down", False))

    def crash_controller(self) -> None:
        self._world.crash_controller(self._rng.choice((0.01, 1.0, 5.0)))

    def pause_controller(self) -> None:
        process = self._world.controller
        if process is not None and not process.dead:
            process.pause()
            self._later(self._rng.choice((0.3, 2.0, 8.0)), lambda: process.resume(self._world.loop))

    def lose_disks(self) -> None:
        lose_disks(self._world)

    def _running(self) -> "SimBroker | None":
        brokers = [broker for _, broker in sorted(self._world.brokers.items()) if broker.process.held is None]
        return self._rng.choice(brokers) if brokers else None

    def _later(self, delay_s: float, what: Callable[[], object]) -> None:
        def act() -> None:
            if not self._world.calm:
                what()

        self._world.later(delay_s, act)
