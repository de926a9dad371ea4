"""The course of one run: start the cluster, let clients use it during the faults of the scenario,
end the faults, and check that it serves everything and that nothing unreferenced is left.
"""

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING

from penstock.controller.api.client import ControllerClient
from penstock.controller.api.errors import ControllerError
from penstock.controller.api.follower import MetadataFollower
from penstock.controller.api.messages import GetKeyValue, NewTopic, PutKeyValue
from tests.sim import scenarios
from tests.sim.chaos import Chaos
from tests.sim.clients import TOPIC
from tests.sim.clock_steps import ANY_TIMESTAMP
from tests.sim.compacted import COMPACT_TOPIC
from tests.sim.control import addresses
from tests.sim.late import LateChaos
from tests.sim.leaks import LEAKING, check_leaks
from tests.sim.limits import LATE_PUT_GRACE_MS, PREPARED_TTL_MS, QUIET_LIMIT_S
from tests.sim.loads import LoadChaos
from tests.sim.rollback import RollbackChaos, wander
from tests.sim.transactional import PARTITIONS, TXN_TOPIC
from tests.sim.workload import Workload

if TYPE_CHECKING:
    from tests.sim.world import World

_CHAOS = {"late": LateChaos, "loads": LoadChaos, "rollback": RollbackChaos}


class Run:
    def __init__(self, world: "World") -> None:
        self._world = world

    async def live(self) -> None:
        """Run from start to end. Fails with `World.fail`."""
        world = self._world
        for number in range(world.limits.controllers):
            world.start_controller(number)
        for node_id in range(1, world.limits.brokers + 1):
            world.start_broker(node_id)
        watching = world.loop.create_task(self._watch())
        self._watch_as_observer()
        await world.admin.create_topics(self._topics())
        world.phase("ready")
        workload = Workload(world)
        await workload.start()
        if world.scenario in scenarios.ROLLED_BACK:
            context = world.new_process("wanderer").context()
            context.run(lambda: world.loop.create_task(wander(world)))
        chaos = _CHAOS.get(world.scenario, Chaos)
        await chaos(world, scenarios.weights_of(world.scenario, world.seed)).run(world.chaos_s)
        self._calm_down()
        world.phase("calm")
        await workload.end()
        world.phase("idle")
        await workload.check()
        world.phase("cleaning")
        await self._clean()
        if world.scenario in LEAKING:
            # The janitor checks 20 WALs per round, and an hour has a thousand broker starts.
            await check_leaks(world, max(QUIET_LIMIT_S, world.chaos_s / 4))
        world.phase("end")
        watching.cancel()
        world.checker.check_metadata()
        await workload.check_cleaned()

    def _topics(self) -> list[NewTopic]:
        world = self._world
        common = {} if world.graces is None else ANY_TIMESTAMP
        configs = {} if world.log_starts is None else world.log_starts.configs
        topics = [
            NewTopic(name=TOPIC, partitions=world.limits.partitions, configs={**common, **configs})
        ]
        if world.txn_parts:
            topics.append(NewTopic(name=TXN_TOPIC, partitions=PARTITIONS, configs={**common}))
        if world.compacted is not None:
            parts, configs = len(world.compacted.parts), {**common, **world.compacted.configs}
            topics.append(NewTopic(name=COMPACT_TOPIC, partitions=parts, configs=configs))
        return topics

    def _watch_as_observer(self) -> None:
        """Follow the committed records without a session, from any controller that serves them, and
        read the state.
        """
        world = self._world
        process = world.new_process("observer")

        async def follow() -> None:
            rng = Random(f"{world.seed}/observer")
            client = ControllerClient(
                rng.sample(addresses(world.limits.controllers), world.limits.controllers), rng=rng
            )
            await MetadataFollower(client, None, rng=rng).start(QUIET_LIMIT_S)
            if world.scenario in scenarios.READING:
                await self._write_and_read(rng)

        process.context().run(lambda: world.loop.create_task(follow()))

    async def _write_and_read(self, rng: Random) -> None:
        """Write and read: the writer asks any broker for the leader, the reader a known one."""
        known = addresses(self._world.limits.controllers)
        writer, reader = ControllerClient(known, rng=rng), ControllerClient(known, rng=rng)
        while not self._world.is_over:
            writer.redirect(rng.choice(known))
            with suppress(TimeoutError, ControllerError):
                await writer.put_key_value(PutKeyValue(key="k", value=b"v"), timeout_s=1)
            with suppress(TimeoutError, ControllerError):
                await reader.get_key_value(GetKeyValue(key="k"), timeout_s=1)
            await asyncio.sleep(rng.uniform(0.1, 0.8))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1)
            try:
                self._world.checker.check_metadata()
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
                self._world.fail(f"the metadata is broken: {error}")

    def _calm_down(self) -> None:
        """End the faults: resume paused processes and start dead ones."""
        world = self._world
        world.trace("calm")
        world.calm = True
        for peer in sorted(world.suspected):
            world.suspect(peer, False)
        for weather in (world.weather, world.wal_weather):
            weather.faults = weather.down = False
            weather.slow_factor = 1.0
        world.network.lossy = 0.0
        world.network.links.mend_all()
        for disk in world.disks.values():
            disk.slow_factor, disk.failing = 1.0, False
        for broker in world.brokers.values():
            broker.raw_store.slow_factor = 1.0
        for process in world.processes:
            process.resume(world.loop)

    async def _clean(self) -> None:
        """Wait until unreferenced objects are deleted. Uncommitted ones are deleted so late that
        only every twentieth run waits for them.
        """
        world = self._world
        is_patient = world.rng.random() < 0.05 or world.scenario in LEAKING
        await asyncio.sleep(self._grace_s() if is_patient else 1)
        # With tiny limits, compaction rewrites hundreds of slots, one stream after another.
        end = world.loop.time() + 5 * QUIET_LIMIT_S
        while (orphans := world.checker.orphans(prepared=is_patient)) and world.loop.time() < end:  # noqa: ASYNC110 - virtual time is free
            await asyncio.sleep(0.5)
        if orphans:
            world.fail(f"objects are left over: {orphans[:5]}")

    def _grace_s(self) -> float:
        limits = self._world.limits
        stream, config = limits.stream, limits.controller
        graces_ms = (
            stream.block_age_max_ms
            + stream.wal_delete_grace_ms
            + 3 * config.read_grace_ms
            + 4 * config.janitor_interval_ms
        )
        graces_ms += 2 * limits.skew_ms
        return (
            PREPARED_TTL_MS
            + LATE_PUT_GRACE_MS
            + graces_ms
            + 4 * config.maintenance_interval_ms
            + 20 * limits.store_p99_ms
        ) / 1000 + 10
