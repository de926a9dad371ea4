"""Scripts about objects that must be kept for a while, whatever wall clocks show."""

import asyncio
from random import Random
from typing import Final
from uuid import UUID

from penstock.controller.metadata.objects import ObjectPhase
from penstock.lake.manifest.leases import HeldLease
from penstock.lake.manifest.view import ClusterView
from penstock.stream.format.keys import DATA_ROOT
from tests.sim.checkers import Part
from tests.sim.clock_steps import HOUR_MS
from tests.sim.directed import Script, in_cluster
from tests.sim.limits import PREPARED_TTL_MS
from tests.sim.store import SimStore

PART: Part = ("t", 0)
_MANIFESTS_S: Final = 40.0
_LEASE_S: Final = 30.0
_WAIT_S: Final = PREPARED_TTL_MS / 1_000 / 3
_QUICK: Final = {"read_grace_ms": 1, "janitor_interval_ms": 300}


async def _create_and_upload(script: Script) -> str:
    """Create a topic whose only record is in an object, and return the object's key."""
    await script.create("t")
    await script.write(PART, (b"k", b"v"))
    await script.upload(1)
    (key,) = (key for key in script.world.bucket.keys if key.startswith(DATA_ROOT))
    return key


def _step_the_clock_of_the_controller(script: Script) -> None:
    (controller,) = script.world.controllers.values()
    controller.skew_ms += HOUR_MS


@in_cluster(**_QUICK)
async def delete_what_a_reader_holds(script: Script) -> None:
    """Delete a topic that a reader with a lease reads, and step the clock of the controller."""
    world, key = script.world, await _create_and_upload(script)
    await asyncio.sleep(5.0)
    store = SimStore(world.bucket, world.weather, Random(0), world.trace)
    root = await ClusterView(store).refresh()
    lease = HeldLease(store, root.cluster_id, UUID(int=1), "reader")
    began_s = world.loop.time()
    await lease.create(root, int(_LEASE_S * 1_000))
    await script.delete("t")
    _step_the_clock_of_the_controller(script)
    await asyncio.sleep(began_s + _LEASE_S - 1.0 - world.loop.time())
    assert key in world.bucket.keys, "an object is deleted during the lease of a reader"
    await script.until(lambda: key not in world.bucket.keys)


@in_cluster(manifest_interval_ms=int(_MANIFESTS_S * 1_000), **_QUICK)
async def delete_what_the_newest_manifest_names(script: Script) -> None:
    bucket, key = script.world.bucket, await _create_and_upload(script)
    await asyncio.sleep(_MANIFESTS_S + 1.0)
    await script.delete("t")
    await asyncio.sleep(_MANIFESTS_S / 2)
    assert key in bucket.keys, "an object is deleted that the newest manifest names"
    await script.until(lambda: key not in bucket.keys)


async def replace_a_controller_during_an_upload(script: Script) -> None:
    """Replace the controller during an upload, and step the clock of the next controller."""
    await script.create("t")
    await script.write(PART, (b"k", b"v"))
    await asyncio.sleep(2 * PREPARED_TTL_MS / 1_000)
    held, broker = script.hold(1, "put"), script.broker(1)
    uploading = script.begin(broker, broker.storage.upload)
    await script.until(lambda: held.count)
    _check_is_prepared(script)
    await script.restart_controller()
    await asyncio.sleep(_WAIT_S)
    _check_is_prepared(script)
    _step_the_clock_of_the_controller(script)
    await asyncio.sleep(_WAIT_S)
    _check_is_prepared(script)
    held.release()
    await uploading


def _check_is_prepared(script: Script) -> None:
    phases = [state.phase for state in script.world.metadata.image.objects]
    assert phases == [ObjectPhase.PREPARED], f"an upload is under way, its object is {phases}"
