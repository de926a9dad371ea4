"""Scripts about topics that are forked, deleted and created again."""

import asyncio
from typing import Final

from tests.sim.directed import Script
from tests.sim.topic_offsets import TopicOffsets

_NOTHING: Final = -1
"""What a group that has committed nothing reads."""


async def compact_past_a_fork(script: Script) -> None:
    """Replace and clean a record below a fork point that the controller does not have yet, because
    the leader of another partition is paused.
    """
    await _compact_past(script, "f")


async def compact_past_a_snapshot(script: Script) -> None:
    """The same for a snapshot, which is forked later."""
    await _compact_past(script, "t@s")


async def _compact_past(script: Script, name: str) -> None:
    await script.create("t", (1, 2), cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    await script.write(("t", 0), (b"k", b"old"))
    with script.paused(2):
        forking = asyncio.ensure_future(script.fork(name, "t", by=1))
        await asyncio.sleep(0.5)  # the leader of partition 0 has named its end
        await script.write(("t", 0), (b"k", b"new"))
        await script.upload(1)
        assert await script.clean(1) == 1
        assert not forking.done()
    await forking
    if name != "f":
        await script.fork("f", name)
    found = [(record.key, record.value) for record in await script.read(("f", 0))]
    assert found[-1:] == [(b"k", b"new")], f"the fork has {found}"


async def recreate_a_topic(script: Script) -> None:
    """Commit an offset for a topic, delete it and create another one of the same name."""
    offsets = await _recreate(script)
    await offsets.check("t", _NOTHING)


async def recreate_a_topic_and_load_the_group(script: Script) -> None:
    """The same, but the coordinator has the offset from its log."""
    offsets = await _recreate(script)
    await script.restart(1)
    await script.restart(2)
    await offsets.check("t", _NOTHING)


async def _recreate(script: Script) -> TopicOffsets:
    offsets = TopicOffsets(script.world)
    await script.create("t")
    await offsets.check("t", await offsets.commit("t"))
    await script.delete("t")
    await script.create("t")
    return offsets
