"""Store readers with leases, during compaction and deletions by the janitor.

A reader writes a lease for the newest root and checks that the root is still the newest; everything
that it references then exists until the lease ends, by the reader's monotonic clock.
"""

import asyncio
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING
from uuid import UUID

from penstock.lake.fetch.errors import ObjectGone
from penstock.lake.manifest.errors import (
    ManifestNotFound,
    OffsetsLost,
    OffsetsMissing,
    TooManyLeases,
    UnknownPartition,
    WalWalkTooSlow,
)
from penstock.lake.manifest.leases import HeldLease
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.errors import ObjectStoreError
from penstock.stream.errors import ObjectCorrupt
from penstock.stream.format.keys import DATA_ROOT
from tests.sim.clock_steps import Held
from tests.sim.store import SimStore

if TYPE_CHECKING:
    from tests.sim.world import World

_READERS_COUNT = 2
_AGAIN = (
    ManifestNotFound,
    ObjectCorrupt,
    ObjectGone,
    ObjectStoreError,
    OffsetsLost,
    OffsetsMissing,
    TooManyLeases,
    UnknownPartition,
    WalWalkTooSlow,
)


class LeaseReader:
    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self._rng = rng = Random(f"{world.seed}/lease-reader/{number}")
        self._name = f"r{number}"
        self._store = SimStore(world.bucket, world.weather, rng, world.trace)
        assert world.graces is not None, "leases are checked there"
        self._graces = world.graces

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await asyncio.sleep(self._rng.choice((0.1, 1.0, 4.0)) * self._rng.random())
            with suppress(*_AGAIN):
                await self._pass(stop)

    async def _pass(self, stop: asyncio.Event) -> None:
        """Run one job: plan, hold, renew a few times, end."""
        rng, world = self._rng, self._world
        view = ClusterView(self._store)
        root = await view.refresh()
        keys = await self._named(view)
        if view.root is not root:
            return
        lease = HeldLease(self._store, root.cluster_id, UUID(int=rng.getrandbits(128)), self._name)
        ttl_ms = rng.choice((1_500, 4_000))
        began_s = world.loop.time()
        await lease.create(root, ttl_ms)
        if (
            await ClusterView(self._store).refresh()
        ).version != root.version or world.loop.time() >= began_s + ttl_ms / 1_000:
            await lease.release()
            return
        held = Held(self._name, keys, began_s + ttl_ms / 1_000)
        world.trace("lease", self._name, root.version, len(keys))
        self._graces.held.append(held)
        for _ in range(rng.randint(0, 8)):
            await asyncio.sleep(ttl_ms / 1_000 * rng.choice((0.3, 0.3, 0.6, 0.95)))
            if stop.is_set() or world.loop.time() >= held.until_s:
                break
            began_s = world.loop.time()
            with suppress(ObjectStoreError):
                await lease.renew(root, ttl_ms)
                held.until_s = max(held.until_s, began_s + ttl_ms / 1_000)
        if rng.random() < 0.6:
            held.until_s = 0.0
            await lease.release()

    async def _named(self, view: ClusterView) -> frozenset[str]:
        """Return the data objects that the root references; leases do not protect WAL slots."""
        topics = [topic.name for topic in view.topics()]
        states = await view.partitions(topics)
        ranges = [
            OffsetRange(state.topic, state.partition, state.log_start, state.committed_end)
            for state in states
        ]
        slices = await view.plan([item for item in ranges if item.start_offset < item.end_offset])
        return frozenset(item.key for item in slices if item.key.startswith(DATA_ROOT))


def lease_readers(world: "World", stop: asyncio.Event) -> "list[asyncio.Task[None]]":
    """Start readers only in runs in which grace periods are checked."""
    readers = [
        LeaseReader(world, number)
        for number in range(_READERS_COUNT if world.graces is not None else 0)
    ]
    return [world.loop.create_task(reader.run(stop)) for reader in readers]
