"""Scripts about ranges that were committed in place in a WAL store and must leave it soon."""

import asyncio
from dataclasses import replace
from typing import Final
from unittest.mock import patch
from uuid import UUID

import penstock.controller.managers.wal_rewrites as closed_streams
from penstock.base.ids import Offset, StreamId, WalStoreId
from penstock.controller.metadata.topics import TopicState
from penstock.stream.compaction.plan import CompactionConfig
from tests.sim.checkers import Part
from tests.sim.directed import JANITOR_S, Held, Script, in_cluster

PART: Part = ("t", 0)
_REWRITTEN_S: Final = 10.0
"""Time within which ranges are rewritten, less than the interval of other compaction."""


_TERM_S: Final = 30.0
"""How long a broker keeps the job."""
_PAUSE_MAX_S: Final = 65.0
"""Time between two attempts to read from a WAL store that is down, including the attempt."""


def _wal_store_bytes(script: Script) -> int:
    return script.world.metadata.image.objects.wal_store_bytes


def _frozen(script: Script, topic_id: UUID) -> StreamId:
    """Return the data stream of a deleted topic."""
    topic = script.world.metadata.image.frozen_topics.deleted_by_id(topic_id)
    assert topic is not None
    return topic.partitions[0].data_stream_id


def _is_in_wal_store(script: Script, stream_id: StreamId) -> bool:
    return script.world.metadata.image.first_in_wal_store(stream_id) is not None


async def _check_empty(script: Script) -> None:
    """Check that soon no log references the WAL store, and that its slots are deleted."""
    await asyncio.sleep(_REWRITTEN_S)
    left = _wal_store_bytes(script)
    assert not left, f"{left} bytes are in the WAL store only"
    await asyncio.sleep(JANITOR_S)
    placed = [state.key for state in script.world.metadata.image.objects.placed()]
    assert not placed, f"{placed} stay in the WAL store"


async def _check_values(script: Script, part: Part, values: list[bytes]) -> None:
    found = [record.value for record in await script.read(part)]
    assert found == values, f"the log of {part} has {found}"


@in_cluster(wal_stores=1, compacting=1)
async def restart_all_brokers(script: Script) -> None:
    """Move the partition and kill leaders, each time with records that are not uploaded."""
    await script.create("t")
    values: list[bytes] = []

    async def write() -> None:
        values.append(b"%d" % len(values))
        await script.write(PART, (b"k", values[-1]))

    await write()
    await script.move(PART, 2)
    await write()
    assert _wal_store_bytes(script), "nothing was committed in place"
    for node_id, other in ((2, 1), (1, 2)):
        script.kill(node_id)
        await script.until_led(PART, other)
        await write()
        broker = script.world.start_broker(node_id)
        await script.until(lambda broker=broker: broker.serving)
    await _check_empty(script)
    await _check_values(script, PART, values)


async def _delete_with_ranges(script: Script, *names: str) -> list[UUID]:
    """Delete topics whose records are only in the WAL store. Return their ids."""
    for name in names:
        await script.create(name, penstock_delete_grace_ms="3600000")
        await script.write((name, 0), (b"k", b"0"))
    ids = [script.topic(name).topic_id for name in names]
    for name in names:
        await script.delete(name)
    await script.until(lambda: _wal_store_bytes(script))
    return ids


@in_cluster(wal_stores=1, compacting=1)
async def delete_and_restore_a_topic(script: Script) -> None:
    """Delete a topic and restore it. Its ranges leave the WAL store while it has no leader."""
    (topic_id,) = await _delete_with_ranges(script, "t")
    await _check_empty(script)
    await script.undelete("t", topic_id)
    await script.until(lambda: script.leader(PART))
    await _check_values(script, PART, [b"0"])


@in_cluster(wal_stores=1, compacting=1)
async def kill_the_broker_that_rewrites(script: Script) -> None:
    """Kill the broker before its PUT. Another broker gets the job."""
    held = {node_id: script.hold(node_id, "put", first=1) for node_id in (1, 2)}
    (topic_id,) = await _delete_with_ranges(script, "t")
    await script.until(lambda: any(found.count for found in held.values()))
    (worker,) = [node_id for node_id, found in held.items() if found.count]
    script.kill(worker)
    held[3 - worker].release()
    broker = script.world.start_broker(worker)
    await asyncio.sleep(_TERM_S)
    await _check_empty(script)
    await script.until(lambda: broker.serving)
    await script.undelete("t", topic_id)
    await script.until(lambda: script.leader(PART))
    await _check_values(script, PART, [b"0"])


@in_cluster(wal_stores=1, compacting=1)
async def restore_a_topic_during_a_rewrite(script: Script) -> None:
    """Ranges of another topic in the same round leave the WAL store."""
    held = [script.hold(node_id, "put data", first=1) for node_id in (1, 2)]
    first, second = await _delete_with_ranges(script, "t", "u")
    other = _frozen(script, second)
    await script.until(lambda: any(found.count for found in held))
    await script.undelete("t", first)
    await script.until(lambda: script.leader(PART))
    for found in held:
        found.release()
    await asyncio.sleep(1.0)
    assert not _is_in_wal_store(script, other), "the round was given up"
    await _check_empty(script)
    await _check_values(script, PART, [b"0"])


class _Unresponsive:
    """Delays requests until clients of the product give up."""

    async def pass_through(self) -> None:
        await asyncio.sleep(30.0)


async def _lead_ranges_of_a_lost_store(script: Script) -> None:
    """Let broker 1 lead a partition whose records are only in the WAL store, which goes down."""
    await script.create("t", leaders=(2,))
    await script.write(PART, (b"k", b"0"))
    await script.move(PART, 1)
    script.world.wal_weather.down = True
    assert _wal_store_bytes(script), "nothing was committed in place"


@in_cluster(wal_stores=1, compacting=1)
async def compact_while_the_wal_store_does_not_respond(script: Script) -> None:
    """Requests to the WAL store take 30 s to fail. Small objects in `store` are still merged in
    time.
    """
    await script.create("u")
    await _lead_ranges_of_a_lost_store(script)
    client = script.broker(1).raw_wal_store
    assert client is not None
    client.gates["get_range"] = _Unresponsive()
    await asyncio.sleep(60.0)  # the first round fails
    stream = script.topic("u").partitions[0].data_stream_id
    for _ in range(8):
        for _ in range(8):
            await script.write(("u", 0), (b"k", b"v"))
            await script.upload(1)
        await asyncio.sleep(CompactionConfig().interval_ms / 1_000 + 1)
        count = len(script.world.metadata.image.streams.known(stream).entries)
        assert count < 8, f"{count} small objects wait for the WAL store"
    client.gates.clear()
    script.world.wal_weather.down = False
    await asyncio.sleep(_PAUSE_MAX_S)
    await _check_empty(script)
    await _check_values(script, PART, [b"0"])


@in_cluster(wal_stores=1, compacting=1)
async def rewrite_after_a_long_outage(script: Script) -> None:
    """A WAL store that is down gets few requests. Once it is back, nothing waits for longer."""
    await _lead_ranges_of_a_lost_store(script)
    client = script.broker(1).raw_wal_store
    assert client is not None
    held = Held(0)
    client.gates["get_range"] = held
    await asyncio.sleep(300.0)
    assert held.count < 12, f"the WAL store got {held.count} requests in 5 minutes"
    script.world.wal_weather.down = False
    await asyncio.sleep(_PAUSE_MAX_S)
    await _check_empty(script)
    # The next ranges are rewritten at the usual interval.
    await asyncio.sleep(2 * script.world.limits.wal_return_after_s)
    wal = script.world.metadata.image.nodes.wal(script.broker(2).me)
    assert wal is not None
    assert wal.store_id == WalStoreId(1), "the WAL did not return"
    await script.move(PART, 2)
    await script.write(PART, (b"k", b"1"))
    await script.move(PART, 1)
    await _check_empty(script)
    await _check_values(script, PART, [b"0", b"1"])


@in_cluster(wal_stores=1, compacting=1)
async def rewrite_beside_a_lost_slot(script: Script) -> None:
    """Streams that cannot be rewritten do not use up all jobs. A job has one stream here."""
    for name, leader in (("t", 1), ("u", 2)):
        await script.create(name, leaders=(leader,), penstock_delete_grace_ms="3600000")
        await script.write((name, 0), (b"k", b"0"))
    topics = [script.topic(name) for name in ("t", "u")]
    with patch.object(closed_streams, "STREAMS_MAX", 1):
        for topic in topics:
            await script.delete(topic.name)
        await script.until(lambda: _ranges_in_wal_store(script, topics[0]))
        lost = [script.world.stored.find(key) for key in _ranges_in_wal_store(script, topics[0])]
        for bucket, key in lost:
            bucket.strike(key, None)
        await script.until(lambda: _ranges_in_wal_store(script, topics[1]))
        await asyncio.sleep(6 * _TERM_S)
        left = _ranges_in_wal_store(script, topics[1])
        assert not left, f"{left} wait for a slot that is lost"
        for bucket, key in lost:
            bucket.restore(key)
        await asyncio.sleep(6 * _TERM_S)
        await _check_empty(script)


def _ranges_in_wal_store(script: Script, topic: TopicState) -> set[str]:
    """Return the slots in the WAL store that contain the ranges of the topic."""
    image = script.world.metadata.image
    return {
        found.key
        for stream_id in topic.partitions[0].stream_ids
        if (start := image.first_in_wal_store(stream_id)) is not None
        for found in image.find_ranges(stream_id, start, Offset(start + 1), 1)
    }


@in_cluster(wal_stores=1, compacting=1)
async def move_beside_retained_records(script: Script) -> None:
    """Deleted records in the WAL store, which no rewrite removes, do not count toward the limit
    above which moves upload first. The limit is 0 here.
    """
    world = script.world
    world.limits = replace(
        world.limits, stream=replace(world.limits.stream, close_in_place_bytes_max=0)
    )
    for node_id in (1, 2):
        await script.restart(node_id)
    await script.create("t", penstock_delete_grace_ms="3600000")
    await script.write(PART, (b"k", b"0"))
    await script.move(PART, 2)
    topic = script.topic("t")
    assert _ranges_in_wal_store(script, topic), "nothing was committed in place"
    await script.delete_records(PART, 1)
    await asyncio.sleep(_REWRITTEN_S)
    assert not _ranges_in_wal_store(script, topic)
    assert _wal_store_bytes(script), "nothing is retained"
    await script.write(PART, (b"k", b"1"))
    await script.move(PART, 1)
    assert _ranges_in_wal_store(script, topic), "the move uploaded first"
    (found,) = await script.read(PART, start_offset=1)
    assert found.value == b"1"
