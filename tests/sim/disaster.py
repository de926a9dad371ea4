"""All controllers lose their disks, and the real recovery rebuilds the cluster from the store.

Brokers and clients continue meanwhile, and sometimes the old controller is still running or paused.
Acknowledged records are checked as in every other run.
"""

import asyncio
from random import Random
from typing import TYPE_CHECKING

from penstock.base.errors import StreamError
from penstock.controller.api.errors import ControllerError, RecoveryRefused
from penstock.controller.backup.snapshots import SnapshotStore
from penstock.controller.disaster_recovery.recovery import Recovery
from penstock.objectstore.errors import ObjectStoreError
from penstock.objectstore.retry import RetryingStore, RetryPolicy
from penstock.stream.wal.wal_store import ConfiguredWalStore
from tests.sim.loop import Process
from tests.sim.store import SimStore

if TYPE_CHECKING:
    from tests.sim.world import World

_TRIES_MAX = 100


def lose_disks(world: "World") -> None:
    """Lose the disks while a controller runs. The controllers die with them, or are left behind."""
    running = [
        controller
        for _, controller in sorted(world.controllers.items())
        if not controller.process.dead
    ]
    if not running or not world.has_disks:
        return
    rng = world.rng
    world.has_disks = False
    fate = rng.choice(("killed", "killed", "paused", "left running"))
    world.trace("disks_lost", fate)
    for controller in running:
        # A controller that is just starting would start in the new history.
        if fate == "killed" or controller.server is None or not controller.server.port:
            world.crash_controller(controller, 0)
        elif fate == "paused":
            controller.process.pause()
    world.later(rng.choice((0.0, 0.5, 3.0)), recover, world)
    if fate == "paused":
        awake_s = rng.choice((1.0, 6.0))
        for controller in running:
            world.later(awake_s, controller.process.resume, world.loop)


def recover(world: "World", *, abandon_wal_store: bool = False) -> None:
    """Rebuild the cluster in a separate process, and start controllers of the new history."""
    process = Process(f"recovery@{world.loop.time():.3f}")
    process.network = world.network
    world.processes.append(process)
    rng = Random(f"{world.seed}/{process.name}")
    raw = SimStore(world.bucket, world.weather, rng, world.trace)
    store = RetryingStore(raw, RetryPolicy(deadline_ms=10_000), clock=world.loop.time, rng=rng)
    wal_store = world.wal_client(Random(f"{world.seed}/wal/{process.name}"))
    recovery = Recovery(
        store,
        world.limits.controller.cluster_id,
        now_ms=world.now_ms,
        voters=tuple(world.disks),
        wal_store=None if wal_store is None else ConfiguredWalStore(wal_store, "memory:"),
        abandon_wal_store=abandon_wal_store,
    )

    async def run() -> None:
        for _ in range(_TRIES_MAX):
            try:
                report = await recovery.run(force=True, accept_loss=abandon_wal_store)
            except RecoveryRefused as error:
                if "data is missing" in str(error):
                    world.fail(f"the recovery finds data missing: {error}")
                    return
            except (ControllerError, ObjectStoreError, StreamError, TimeoutError) as error:
                world.trace("recovery_failed", type(error).__name__)
            else:
                world.trace("recovered", report.backup_offset, report.range_count)
                world.later(0, lambda: world.loop.create_task(_go_on(world)))
                return
            await asyncio.sleep(0.3)
        world.fail("the recovery does not come to an end")

    world.loop.call_soon(lambda: world.loop.create_task(run()), context=process.context())


async def _go_on(world: "World") -> None:
    """Start controllers with empty disks, which start from the snapshot."""
    loaded = await SnapshotStore(
        world.bucket, world.limits.controller.cluster_id, kept=2
    ).load_newest()
    assert loaded is not None
    # Objects that an old broker prepared and put after the recovery had listed the store are kept
    # (docs/design/disaster-recovery.md).
    world.checker.forgotten_ids.append(range(loaded.image.next_object_id))
    world.rebuilt(loaded)
