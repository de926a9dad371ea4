"""Scripts about the log of a group coordinator while some of its records are in flight."""

import asyncio
from dataclasses import replace
from typing import Final

from penstock.base.ids import NodeId
from penstock.broker.coordination.compaction import CompactionLimits
from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import delete_groups
from tests.sim.checkers import Part
from tests.sim.directed import Script
from tests.sim.directed_clients import Group, Producer

PART: Part = ("t", 0)
_APPENDED_S: Final = 0.5
"""After this time, a request has been appended and waits for the store."""


async def compact_with_a_commit_in_flight(script: Script) -> None:
    """Compact the log when one commit is durable and a later one is not."""
    world = script.world
    eager = CompactionLimits(log_bytes_min=1, factor=1, retry_interval_s=0.1)
    world.coordination = replace(world.coordination, compaction=eager)
    await script.restart(1)
    group = await _begin(script)
    other = Group(script, "other")
    await group.commit(PART, 1)
    await other.commit(PART, 1)
    await asyncio.sleep(5.0)  # until all compactions are over
    held = script.hold(1)
    commits = [world.loop.create_task(other.commit(PART, 2))]
    await asyncio.sleep(_APPENDED_S)
    commits.append(world.loop.create_task(group.commit(PART, 2)))
    await asyncio.sleep(_APPENDED_S)
    held.release(1)
    await asyncio.sleep(_APPENDED_S)
    held.release()
    await asyncio.gather(*commits)
    await asyncio.sleep(5.0)
    await script.restart(1)
    found = await group.committed(PART)
    assert found == 2, f"the offset {found} is loaded, 2 was committed"


async def delete_an_offset_in_flight(script: Script) -> None:
    """Delete an offset whose first commit is not durable yet."""
    group = await _begin(script)
    held = script.hold(1)
    commit = script.world.loop.create_task(group.commit(PART, 1))
    await asyncio.sleep(_APPENDED_S)
    deletion = script.world.loop.create_task(group.forget(PART))
    await asyncio.sleep(_APPENDED_S)
    held.release()
    await asyncio.gather(commit, deletion)
    found = await group.committed(PART)
    assert found == -1, f"the offset {found} is found after its deletion"


async def commit_while_the_group_is_deleted(script: Script) -> None:
    """Commit while the deletion of the group is not durable yet."""
    group = await _begin(script)
    await group.commit(PART, 1)
    held = script.hold(1)
    request = delete_groups.DeleteGroupsRequest([group.name])
    deletion = script.world.loop.create_task(
        script.repeat(
            group.coordinator,
            (apis.DELETE_GROUPS, 2, request),
            lambda response: response.results[0],
            done=(ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND),
        )
    )
    await asyncio.sleep(_APPENDED_S)
    commit = script.world.loop.create_task(group.commit(PART, 2))
    await asyncio.sleep(_APPENDED_S)
    held.release()
    await asyncio.gather(commit, deletion)
    found = await group.committed(PART)
    assert found == 2, f"the offset {found} is found, 2 was committed after the deletion"


async def _begin(script: Script) -> Group:
    await script.create(OFFSETS_TOPIC, (1,), cleanup_policy="compact")
    await script.create("t", (2,))
    return Group(script)


async def end_a_transaction_while_its_offsets_are_loaded(script: Script) -> None:
    """Let another broker load the group, and end the transaction before that broker has read the
    log.
    """
    await script.create(TRANSACTIONS_TOPIC, (1,), cleanup_policy="compact")
    group = await _begin(script)
    producer = Producer(script)
    await producer.begin()
    await producer.stage(group, PART, 1)
    await script.upload(1)
    reads, released = script.hold(2, "get_range"), 0
    script.world.admin.move((OFFSETS_TOPIC, 0), NodeId(2))
    moved = script.world.loop.create_task(script.until_led((OFFSETS_TOPIC, 0), 2))
    while not moved.done():  # the records that the broker reads before it leads
        if reads.count > released:
            reads.release(1)
            released += 1
        await asyncio.sleep(_APPENDED_S)
    await producer.end(commit=True)
    await asyncio.sleep(_APPENDED_S)
    reads.release()
    found = await group.committed(PART)
    assert found == 1, f"the offset {found} is found, the transaction committed 1"
