"""Scripts in which requests arrive late, during a later transaction of the producer."""

import asyncio
from contextlib import suppress
from typing import Any

from penstock.broker.coordination.internal_topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from penstock.protocol import apis
from tests.sim.connections import NoResponse
from tests.sim.directed import Script
from tests.sim.directed_clients import Group, Producer
from tests.sim.scripts.transactions import PART, create_led_apart


async def deliver_a_marker_late(script: Script) -> None:
    """Deliver the marker of a commit again during the next transaction, then abort that."""
    await create_led_apart(script)
    producer, markers = await _commit_one(script)
    await producer.write(PART, (b"k", b"open"))
    await script.send_request(script.broker(2), *markers[0])
    await producer.end(commit=False)
    await _check(script)


async def deliver_a_marker_of_an_earlier_coordinator(script: Script) -> None:
    """Deliver the marker of a commit again after another coordinator has taken over and ended
    another transaction.
    """
    await create_led_apart(script)
    producer, markers = await _commit_one(script)
    await script.move((TRANSACTIONS_TOPIC, 0), 2)
    await script.move((TRANSACTIONS_TOPIC, 0), 1)
    await producer.write(PART, (b"k", b"aborted"))
    await producer.end(commit=False)
    await producer.write(PART, (b"k", b"open"))
    await script.send_request(script.broker(2), *markers[0])
    await producer.end(commit=False)
    await _check(script)


async def _commit_one(script: Script) -> tuple[Producer, list[Any]]:
    """Return the producer, and the requests with its marker."""
    markers = script.record(apis.WRITE_TXN_MARKERS)
    producer = Producer(script)
    await producer.begin()
    await producer.write(PART, (b"k", b"v"))
    await producer.end(commit=True)
    await script.until(lambda: markers)
    return producer, markers


async def _check(script: Script) -> None:
    await script.write(PART, (b"k", b"last"))
    found = [record.value for record in await script.read(PART, committed=True)]
    assert found == [b"v", b"last"], f"readers get {found}"


async def deliver_a_marker_of_offsets_late(script: Script) -> None:
    """Deliver the marker for the offset of a commit again during the next transaction."""
    await script.create(TRANSACTIONS_TOPIC, (1,), cleanup_policy="compact")
    await script.create(OFFSETS_TOPIC, (2,), cleanup_policy="compact")
    await script.create("t")
    markers = script.record(apis.WRITE_TXN_MARKERS)
    producer, group = Producer(script), Group(script)
    await producer.begin()
    await producer.stage(group, PART, 1)
    await producer.end(commit=True)
    await script.until(lambda: markers)
    await producer.stage(group, PART, 2)
    await script.send_request(script.broker(2), *markers[0])
    found = await group.committed(PART, at=script.broker(2))
    assert found == 1, f"the offset {found} of an open transaction is committed"


async def deliver_an_end_late(script: Script) -> None:
    """Deliver a commit on an old connection after its transaction was aborted over another one, and
    the next transaction of the epoch is open.
    """
    await script.create("t")
    producer = Producer(script)
    await producer.begin()
    old = script.world.connect(await producer.coordinator())
    await producer.write(PART, (b"k", b"aborted"))
    await producer.end(commit=False)
    await producer.write(PART, (b"k", b"open"))
    with suppress(NoResponse):
        await old.send_request(*producer.ending(commit=True), 5.0)
    await asyncio.sleep(1.0)  # until the marker is written
    found = await script.values(PART, committed=True)
    assert not found, f"readers get {found} of an open transaction"
