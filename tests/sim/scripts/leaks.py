"""Scripts about slots and fences of WALs that are no longer needed."""

import asyncio
from typing import Final

from penstock.stream.format.keys import wal_prefix
from penstock.stream.ports import IN_STORE, BrokerIncarnation
from tests.sim.checkers import Part
from tests.sim.directed import JANITOR_S, Script, in_cluster

PART: Part = ("t", 0)
_DAY_MS: Final = 86_400_000
"""The minimum time for which fences are kept."""


def _wal(script: Script, writer: BrokerIncarnation) -> list[str]:
    prefix = wal_prefix(writer, IN_STORE)
    return [key for key in script.world.bucket.keys if key.startswith(prefix)]


@in_cluster(fence_kept_ms=_DAY_MS, janitor_interval_ms=300)
async def let_a_fence_grow_old(script: Script) -> None:
    """Fail over, delete the topics in the WAL, and step the clock of the controller by two days."""
    await script.create("t")
    await script.write(PART, (b"k", b"v"))
    writer, world = script.broker(1).me, script.world
    script.kill(1)
    await script.until_led(PART, 2)
    world.start_broker(1)
    await script.delete("t")
    await asyncio.sleep(JANITOR_S)
    assert len(_wal(script, writer)) == 1, f"of the WAL, {_wal(script, writer)} are left"
    # The checker does not use the controller's clock.
    world.checker.is_needed_fence = lambda _: False
    (controller,) = world.controllers.values()
    controller.skew_ms += 2 * _DAY_MS
    await asyncio.sleep(JANITOR_S)
    assert not _wal(script, writer), "an old fence is never deleted"


async def delete_topics_whose_slots_are_not_uploaded(script: Script) -> None:
    """Delete one topic before its slot is committed, and one afterwards."""
    for name in ("t", "u"):
        await script.create(name)
        await script.write((name, 0), (b"k", b"v"))
    writer = script.broker(1).me
    await script.delete("t")
    await script.move(("u", 0), 2)
    await script.delete("u")
    await asyncio.sleep(3 * JANITOR_S)
    left = _wal(script, writer)
    assert not left, f"{left} of deleted topics are never deleted"
