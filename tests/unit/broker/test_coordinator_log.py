"""A walk over a coordinator's log ends, whatever the storage gives: it shares the event loop with
everybody.
"""

import asyncio

import pytest

from broker.coordination.log import TopicLog
from broker.partition.log import LogInconsistent
from tests.unit.broker.partition_world import World, batch, transactional


@pytest.fixture
async def world():
    world = World()
    world.brokers = [await world.broker(1)]
    world.topic("t")
    yield world
    await asyncio.gather(*(broker.close() for broker in world.brokers))


async def nothing(*_):
    return []


async def test_what_was_appended_is_read_and_a_read_that_gives_nothing_is_an_error(
    world, monkeypatch
):
    broker = world.brokers[0]
    await broker.opened("t")
    for value in (b"a", b"b"):
        await broker.produce("t", batch(value))
    log = TopicLog(broker, "t")
    assert [record[1] async for found in log.read(0) for record in found.records] == [b"a", b"b"]
    monkeypatch.setattr(broker.storage, "read", nothing)
    with pytest.raises(LogInconsistent, match="no batch begins at offset 0, the log ends at 2"):
        [found async for found in log.read(0)]


async def test_events_of_transactions_that_are_not_there_are_an_error(world, monkeypatch):
    broker = world.brokers[0]
    partition = await broker.opened("t")
    await broker.produce("t", transactional(7, 0, b"a"))
    await broker.mark("t", 7, commit=False)
    end_offset = partition.high_watermark
    assert [found.producer_id for found in await partition.read_aborted(0, end_offset)] == [7]
    monkeypatch.setattr(broker.storage, "read", nothing)
    with pytest.raises(LogInconsistent, match="no batch begins at offset 0"):
        await partition.read_aborted(0, end_offset)
