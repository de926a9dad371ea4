"""Scripts about three controllers that elect each other."""

from contextlib import suppress
from typing import Final

from penstock.controller.api.errors import ControllerError
from penstock.controller.api.messages import CreateTopics, NewTopic
from tests.sim.control import SimController
from tests.sim.directed import Script, in_cluster

_SLOW: Final = 50.0
_CRASHES_MAX: Final = 10


@in_cluster(controllers=3)
async def elect_with_slow_disks(script: Script) -> None:
    """Crash the leader after a record that the others synced late."""
    await script.create("first")
    for disk in script.world.disks.values():
        disk.slow_factor = _SLOW
    await script.create("second")
    await _crash(script, _leader(script))
    await script.create("third")


@in_cluster(controllers=3)
async def lead_again_after_a_record_was_lost(script: Script) -> None:
    """Let a leader that is cut off append a record, follow another leader, and lead again."""
    world = script.world
    first = _leader(script)
    pairs = [
        pair
        for other in world.controllers.values()
        if other is not first
        for pair in (
            (first.process.link, other.process.link),
            (other.process.link, first.process.link),
        )
    ]

    async def create_in_vain() -> None:
        with suppress(ControllerError, TimeoutError):
            request = CreateTopics(topics=[NewTopic(name="lost", partitions=1)])
            await world.admin.client.create_topics(request, timeout_s=0.5)

    for pair in pairs:
        world.network.links.cut(*pair)
    world.admin.start(create_in_vain)
    await script.until(lambda: world.active_controller() not in {None, first})
    for pair in pairs:
        world.network.links.mend(*pair)
    await script.create("second")
    for _ in range(_CRASHES_MAX):
        if (leader := _leader(script)) is first:
            break
        await _crash(script, leader)
    assert _leader(script) is first, "the first leader is never elected again"
    await script.create("third")


def _leader(script: Script) -> SimController:
    leader = script.world.active_controller()
    assert leader is not None
    return leader


async def _crash(script: Script, leader: SimController) -> None:
    """Crash a controller for two seconds, and wait until another one leads."""
    script.world.crash_controller(leader, 2.0)
    await script.until(lambda: script.world.active_controller() not in {None, leader})
