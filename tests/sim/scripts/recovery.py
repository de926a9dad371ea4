"""Scripts about a controller whose disk is lost, and recovery from the store."""

import asyncio
from contextlib import suppress

from penstock.controller.api.errors import ControllerError
from penstock.controller.api.messages import CreateTopics, NewTopic
from tests.sim.checkers import Part
from tests.sim.control import SimController
from tests.sim.directed import Held, Script
from tests.sim.disaster import recover
from tests.sim.scripts.wal import check_values, is_acknowledged

PART: Part = ("t", 0)


def _controller(script: Script) -> SimController:
    (controller,) = script.world.controllers.values()
    return controller


def _hold_backups(script: Script) -> Held:
    held = Held(None)
    _controller(script).store.gates["put_if_absent"] = held
    return held


async def _lose_the_disk(script: Script, *, is_left_running: bool = False) -> None:
    """Lose the disk of the controller, and recover. is_left_running: its process does not end."""
    world, old = script.world, _controller(script)
    world.has_disks = False
    if not is_left_running:
        world.stop_controller(old)
    recover(world)
    await script.until(lambda: world.has_disks and world.active_controller() not in {None, old})


async def delete_slots_without_a_backup(script: Script) -> None:
    """Upload a slot while backups cannot be written, and lose the disk after the broker has had
    time to delete the slot.
    """
    await script.create("t")
    await script.write(PART, (b"k", b"v"))
    _hold_backups(script)
    await script.upload(1)
    await asyncio.sleep(60.0)
    await _lose_the_disk(script)
    await check_values(script, PART, b"v")


async def create_a_topic_without_a_backup(script: Script) -> None:
    admin, has_response = script.world.admin, False
    request = CreateTopics(topics=[NewTopic(name="t", partitions=1)])

    async def create() -> None:
        nonlocal has_response
        with suppress(ControllerError, TimeoutError):
            await admin.client.create_topics(request, timeout_s=2.0)
            has_response = True

    await asyncio.sleep(1.0)
    held = _hold_backups(script)
    admin.start(create)
    await script.until(lambda: held.count)
    await asyncio.sleep(3.0)
    await _lose_the_disk(script)
    is_there = script.world.metadata.image.topics.by_name("t") is not None
    assert is_there or not has_response, "a topic was created, and is missing"


async def write_with_an_old_lease(script: Script) -> None:
    """Write to a broker without a lease that missed the recovery."""
    script.world.leases = False
    await script.create("t")
    await script.write(PART, (b"k", b"1"))
    with script.isolated(1):
        await _lose_the_disk(script)
        late = script.producing(script.broker(1), PART, script.batch((b"k", b"late")))
        assert not is_acknowledged(await late), "a leader of the old history acknowledges"
    await check_values(script, PART, b"1")


async def leave_the_old_controller_running(script: Script) -> None:
    await script.create("t")
    await _lose_the_disk(script, is_left_running=True)
    # The broker ends when it finds the recovery's fence in its WAL.
    late = script.producing(script.broker(1), PART, script.batch((b"k", b"late")))
    await script.write(PART, (b"k", b"1"))
    assert not is_acknowledged(await late), "a leader of the old history acknowledges"
    await check_values(script, PART, b"1")


async def fail_over_without_a_backup(script: Script) -> None:
    """Let another broker open a stream, and lose the disk before that is backed up."""
    await script.create("t")
    await script.write(PART, (b"k", b"1"))
    _hold_backups(script)
    script.kill(1)
    await script.until_led(PART, 2)
    await script.write(PART, (b"k", b"2"))
    await _lose_the_disk(script)
    await check_values(script, PART, b"1", b"2")
