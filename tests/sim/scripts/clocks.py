"""Scripts about wall clocks that step by an hour during a timed operation."""

import asyncio

from tests.sim.checkers import Part
from tests.sim.clock_steps import HOUR_MS
from tests.sim.directed import Script
from tests.sim.directed_clients import Producer
from tests.sim.scripts.transactions import check_committed, create_led_apart

PART: Part = ("t", 0)


async def step_the_clock_of_a_coordinator(script: Script) -> None:
    """Step the clock of a coordinator during a transaction."""
    await create_led_apart(script)
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"k", b"v"))
    script.broker(1).skew_ms += HOUR_MS
    await asyncio.sleep(15.0)
    await producer.end(commit=True)
    await check_committed(script)


async def step_the_clock_of_the_controller_during_a_move(script: Script) -> None:
    """Step the controller's clock while the source of a move cannot write its last record."""
    await script.create("t")
    source, held = script.broker(1), script.hold(1)
    writing = script.producing(source, PART, script.batch((b"k", b"v")))
    await script.until(lambda: held.count)
    moving = script.world.loop.create_task(script.move(PART, 2))
    await asyncio.sleep(0.5)
    (controller,) = script.world.controllers.values()
    controller.skew_ms += HOUR_MS
    await asyncio.sleep(2.0)
    assert not source.follower.fenced, "the source of a move is fenced"
    held.release()
    await asyncio.gather(moving, writing)
