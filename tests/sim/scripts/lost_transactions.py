"""Scripts about transactions whose records or markers are lost with a WAL store."""

import asyncio

from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.controller.metadata.image import MetadataImage
from penstock.lake.manifest.view import ClusterView
from penstock.stream.ports import IN_STORE
from tests.sim.checkers import Part
from tests.sim.directed import Script, in_cluster
from tests.sim.directed_clients import Group, Producer
from tests.sim.scripts.lost_wal_stores import (
    _is_in,
    _recover_without_the_wal_store,
    _until_abandoned,
)

PART: Part = ("t", 0)
_CHECKPOINT_S = 40.0
"""Seconds until each changed partition has a checkpoint."""


def _image(script: Script) -> MetadataImage:
    return script.world.metadata.image


async def _lose(script: Script) -> None:
    """Lose the WAL store, which broker 2 leaves, and abandon it. Return when no log
    references it.
    """
    script.world.wal_weather.down = True
    await script.until(lambda: _is_in(script, 2, IN_STORE))
    await _until_abandoned(script)
    await script.until(lambda: not any(state.refs for state in _image(script).objects.placed()))


async def _lose_with_a_broker(script: Script, *led: Part) -> None:
    """Lose the WAL store together with broker 1, whose partitions broker 2 then leads."""
    script.world.wal_weather.down = True
    script.kill(1)
    await _lose(script)
    for part in led:
        await script.until_led(part, 2)


async def _restart_on_broker_1(script: Script, part: Part) -> None:
    """Let a new start of broker 1 load a partition of broker 2."""
    broker = script.world.start_broker(1)
    await script.until(lambda: broker.serving)
    script.kill(2)
    await script.until_led(part, 1)


async def _end_in_a_lost_wal(script: Script, producer: Producer, *, commit: bool) -> None:
    """End a transaction whose records are uploaded, and lose its marker. The
    coordinator survives.
    """
    await script.create(TRANSACTIONS_TOPIC, (2,), cleanup_policy="compact")
    await script.create("t", (1,))
    await producer.begin()
    await producer.write(PART, (b"k", b"old"))
    await script.upload(1)
    await producer.end(commit=commit)
    await asyncio.sleep(1.0)
    await _lose_with_a_broker(script, PART)


@in_cluster(wal_stores=1)
async def lose_the_marker_of_a_transaction(script: Script) -> None:
    """The transaction does not hang, although its coordinator has completed it."""
    await _end_in_a_lost_wal(script, Producer(script), commit=True)
    await script.write(PART, (b"x", b"new"))
    found = await script.values(PART, committed=True)
    assert found == {b"x": b"new"}, f"read_committed consumers find {found}"


@in_cluster(wal_stores=1)
async def recover_without_the_marker_of_a_transaction(script: Script) -> None:
    """The controllers are lost as well. The coordinator still has the open transaction."""
    await script.create(TRANSACTIONS_TOPIC, (2,), cleanup_policy="compact")
    await script.create("t", (1,))
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"k", b"old"))
    for node_id in (1, 2):
        await script.upload(node_id)
    await producer.end(commit=True)
    await asyncio.sleep(1.0)
    await _recover_without_the_wal_store(script)
    await script.write(PART, (b"x", b"new"))
    found = await script.values(PART, committed=True)
    assert found == {b"x": b"new"}, f"read_committed consumers find {found}"


@in_cluster(wal_stores=1)
async def lose_the_marker_of_an_abort_and_commit(script: Script) -> None:
    """The producer's next transaction does not commit the aborted one as well."""
    producer = Producer(script)
    await _end_in_a_lost_wal(script, producer, commit=False)
    await producer.begin()
    await producer.write(PART, (b"x", b"new"))
    await producer.end(commit=True)
    await asyncio.sleep(2.0)
    found = await script.values(PART, committed=True)
    assert found == {b"x": b"new"}, f"an aborted record is committed: {found}"


async def _stage_an_offset(script: Script) -> tuple[Group, Producer]:
    """Upload the offsets of an open transaction, and an older offset of another group."""
    await script.create(TRANSACTIONS_TOPIC, (2,), cleanup_policy="compact")
    await script.create(OFFSETS_TOPIC, (1,), cleanup_policy="compact")
    await script.create("t", (2,))
    group, producer = Group(script), Producer(script)
    await Group(script, "other").commit(PART, 7)
    await producer.begin()
    await producer.stage(group, PART, 1)
    await script.upload(1)
    return group, producer


@in_cluster(wal_stores=1)
async def lose_the_marker_of_an_offset(script: Script) -> None:
    """The offset of a committed transaction is uploaded, but its marker is in a lost WAL."""
    group, producer = await _stage_an_offset(script)
    await producer.end(commit=True)
    await asyncio.sleep(1.0)
    await _lose_with_a_broker(script, (OFFSETS_TOPIC, 0))
    found = await group.committed(PART)
    assert found == -1, f"the offset of an aborted transaction is {found}"


async def _lose_a_recovered_marker(script: Script, wait_s: float) -> None:
    """Lose a marker that was recovered in place. The offsets of other groups remain, and no offset
    remains unstable.
    """
    group, producer = await _stage_an_offset(script)
    await producer.end(commit=True)
    await asyncio.sleep(1.0)
    script.kill(1)
    await script.until_led((OFFSETS_TOPIC, 0), 2)
    assert await group.committed(PART) == 1
    await _lose(script)
    await asyncio.sleep(wait_s)
    await _restart_on_broker_1(script, (OFFSETS_TOPIC, 0))
    found = await Group(script, "other").committed(PART)
    assert found == 7, f"the uploaded offset of another group is {found}"
    found = await group.committed(PART)
    assert found == -1, f"the offset of an aborted transaction is {found}"


@in_cluster(wal_stores=1)
async def lose_a_recovered_marker_of_an_offset(script: Script) -> None:
    """The next leader reads the log from the beginning."""
    await _lose_a_recovered_marker(script, 0.0)


@in_cluster(wal_stores=1)
async def lose_a_recovered_marker_below_a_checkpoint(script: Script) -> None:
    """The checkpoint contains the end of the transaction, whose marker the coordinator does not
    find.
    """
    await _lose_a_recovered_marker(script, _CHECKPOINT_S)


@in_cluster(wal_stores=1)
async def lose_a_part_of_open_offsets(script: Script) -> None:
    """A transaction that is open across a lost range commits its remaining offsets."""
    group, producer = await _stage_an_offset(script)
    await Group(script, "third").commit(PART, 3)
    script.kill(1)
    await script.until_led((OFFSETS_TOPIC, 0), 2)
    await _lose(script)
    await asyncio.sleep(_CHECKPOINT_S)
    await _restart_on_broker_1(script, (OFFSETS_TOPIC, 0))
    await producer.end(commit=True)
    await asyncio.sleep(1.0)
    found = await group.committed(PART)
    assert found == 1, f"the offset of a committed transaction is {found}"


@in_cluster(wal_stores=1)
async def lose_the_epoch_of_a_producer(script: Script) -> None:
    """The coordinator loses an epoch with which another partition has records."""
    await script.create(TRANSACTIONS_TOPIC, (1,), cleanup_policy="compact")
    await script.create("t", (2,))
    await Producer(script).begin()
    await script.upload(1)
    for value in (b"old", b"new"):
        producer = Producer(script)
        await producer.begin()
        await producer.write(PART, (value, value))
        await producer.end(commit=True)
        await asyncio.sleep(1.0)
        if value == b"old":
            await script.upload(2)
            await _lose_with_a_broker(script, (TRANSACTIONS_TOPIC, 0))
    found = await script.values(PART, committed=True)
    assert found == {b"old": b"old", b"new": b"new"}, f"an acknowledged record is missing: {found}"


@in_cluster(wal_stores=1)
async def lose_the_event_of_an_open_transaction(script: Script) -> None:
    """Readers of the bucket return no record of a transaction that is still open, although the
    event of its beginning is lost.
    """
    await script.create(TRANSACTIONS_TOPIC, (2,), cleanup_policy="compact")
    await script.create("t", (1,))
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"a", b"lost"))
    script.kill(1)
    await script.until_led(PART, 2)
    end = await producer.write(PART, (b"b", b"open")) + 1
    await script.upload(2)
    await _lose(script)
    await asyncio.sleep(10.0)
    view = ClusterView(script.world.bucket)
    await view.refresh()
    (state,) = await view.partitions(["t"], committed=True)
    stable = state.last_stable_offset
    assert stable is not None
    assert stable < end, f"the open transaction below {end} is stable up to {stable}"
