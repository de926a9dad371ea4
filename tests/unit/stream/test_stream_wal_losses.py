"""A lost or damaged slot is reported and never fenced over; unaffected streams are recovered; an
operator has to accept a loss.
"""

import pytest

from penstock.base.ids import (
    Millis,
    Offset,
    StreamId,
    WalSequence,
)
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import ObjectStore
from penstock.stream.errors import NotContiguous, ObjectCorrupt, WalDamaged
from penstock.stream.format.decoder import NeedMore, parse_tail
from penstock.stream.format.keys import wal_key
from penstock.stream.format.layout import HEADER_BYTES
from penstock.stream.ports import IN_STORE, StreamRange
from penstock.stream.recovery.salvage import BadSlot, Salvage
from tests.support.stream_storage import GatedStore, Node, Nodes, recover

STREAMS = (1, 2, 3)


def key_of(node: Node, sequence: int) -> str:
    return wal_key(node.identity, WalSequence(sequence), IN_STORE)


async def depth_of(store: ObjectStore, key: str) -> int:
    tail = await store.get_tail(key, 65_536)
    index = parse_tail(tail.data, tail.size_bytes, key)
    assert not isinstance(index, NeedMore)
    return index.header.depth


async def damage(store: ObjectStore, key: str) -> bytes:
    """Damage the object and return its previous bytes."""
    good = await store.get(key)
    await store.put(key, good[:-1] + b"?")
    return good


async def test_a_slot_contains_which_slots_were_durable_before_it(nodes: Nodes) -> None:
    memory = MemoryStore()
    gated = GatedStore(memory)
    node = nodes.start(gated, 1)
    await node.open(1)
    slots: list[str] = []
    for count in range(1, 4):
        node.append(1)
        slots = await gated.until_waiting(count)
    for key in reversed(slots):
        await gated.release(key)
    assert [await depth_of(memory, key) for key in slots] == [1, 2, 3]
    node.append(1)
    (after,) = await gated.until_waiting(1)
    await gated.release(after)
    assert await depth_of(memory, after) == 1


@pytest.mark.parametrize("read_ahead", [1, 8])
@pytest.mark.parametrize("lost", [0, 3, 9, 30])
async def test_a_lost_slot_is_not_fenced_over(nodes: Nodes, lost: int, read_ahead: int) -> None:
    store = MemoryStore()
    dead, recoverer = await nodes.crashed(store, [1] * 32)
    good = await store.get(key_of(dead, lost))
    await store.delete([key_of(dead, lost)])
    with pytest.raises(WalDamaged, match=key_of(dead, lost)):
        await recover(store, recoverer, dead, recovery_read_ahead_count=read_ahead)
    assert nodes.controller.wals[dead.identity].end is None
    assert nodes.controller.streams[StreamId(1)].opened, "nobody leads it"
    assert nodes.controller.streams[StreamId(1)].end_offset == lost
    assert (await store.get_tail(key_of(dead, 32), 100)).size_bytes == HEADER_BYTES, (
        "a zombie can acknowledge nothing more"
    )
    await store.put_if_absent(key_of(dead, lost), good)
    assert (await recover(store, recoverer, dead)).end == 32
    assert await recoverer.read_all(1) == list(range(32))


async def test_many_consecutive_lost_slots_are_reported(nodes: Nodes) -> None:
    store = MemoryStore()
    dead, recoverer = await nodes.crashed(store, [1] * 40)
    await store.delete([key_of(dead, sequence) for sequence in range(5, 35)])
    with pytest.raises(WalDamaged) as raised:
        await recover(store, recoverer, dead)
    assert raised.value.keys == tuple(key_of(dead, sequence) for sequence in range(5, 35))


@pytest.mark.parametrize("damaged", [False, True])
async def test_streams_that_continue_after_a_damaged_slot_are_recovered(
    nodes: Nodes, damaged: bool
) -> None:
    """Stream 1 is in the damaged slot; stream 2 continues after it without a gap; stream 3 ends
    before it, which proves nothing.
    """
    store = MemoryStore()
    dead, recoverer = await nodes.crashed(store, [1, 2, 3, 1, 2, 1, 2])
    bad = key_of(dead, 3)
    good = await damage(store, bad)
    if not damaged:
        await store.delete([bad])
    with pytest.raises(WalDamaged, match=bad) as raised:
        await recover(store, recoverer, dead)
    assert raised.value.stream_count == 2
    assert [nodes.controller.streams[StreamId(key)].opened for key in STREAMS] == [
        True,
        False,
        True,
    ]
    assert await recoverer.read_all(2) == [0, 1, 2]
    await recoverer.open(2, epoch=2)
    await recoverer.write(2)
    await store.put(bad, good)
    await recover(store, recoverer, dead)
    assert [await recoverer.read_all(key) for key in STREAMS] == [[0, 1, 2], [0, 1, 2, 3], [0]]
    assert nodes.controller.wals[dead.identity].end == 7


async def test_an_accepted_loss_ends_each_stream_before_it(nodes: Nodes) -> None:
    store = MemoryStore()
    dead, recoverer = await nodes.crashed(store, [1, 2, 3, 1, 2, 1, 2])
    await store.delete([key_of(dead, 3)])
    nodes.controller.accepted[dead.identity] = {WalSequence(2), WalSequence(4)}
    with pytest.raises(WalDamaged):
        await recover(store, recoverer, dead)
    nodes.controller.accepted[dead.identity] = {WalSequence(3)}
    assert (await recover(store, recoverer, dead)).end == 7
    assert [await recoverer.read_all(key) for key in STREAMS] == [[0], [0, 1, 2], [0]]
    await recoverer.open(1, 3, epoch=2)
    await recoverer.write(1)
    assert await recoverer.read_all(1) == [0, 1]


async def test_slots_in_flight_after_a_gap_do_not_prove_a_loss(nodes: Nodes) -> None:
    """The first PUT hangs and all later ones succeed, so none of them was acknowledged."""
    memory = MemoryStore()
    gated = GatedStore(memory)
    zombie, recoverer = nodes.start(gated, 1), nodes.start(memory, 2)
    await zombie.open(1)
    zombie.append(1)
    (first,) = await gated.until_waiting(1)
    for _ in range(20):
        zombie.append(1)
        slots = await gated.until_waiting(2)
        await gated.release(next(key for key in slots if key != first))
    assert zombie.acknowledged == []
    assert (await recover(memory, recoverer, zombie)).end == 0
    await gated.release(first)
    assert zombie.storage.fenced
    assert zombie.acknowledged == []


async def test_a_fence_proves_that_lower_slots_existed(nodes: Nodes) -> None:
    store = MemoryStore()
    dead, recoverer = await nodes.crashed(store, [1, 1, 1])
    recoverer.metadata.refuse("commit_recovered")
    with pytest.raises(TimeoutError):
        await recover(store, recoverer, dead)
    await store.delete([key_of(dead, 2)])
    with pytest.raises(WalDamaged, match=key_of(dead, 2)):
        await recover(store, recoverer, dead)


def part(stream_id: int, start: int, end: int) -> StreamRange:
    return StreamRange(StreamId(stream_id), Offset(start), Offset(end), end - start, 100, Millis(0))


def bad(sequence: int) -> BadSlot:
    key = f"wal/1/1/{sequence:020d}"
    return BadSlot(WalSequence(sequence), key, ObjectCorrupt(key, 0, "of a test"))


def salvage() -> Salvage:
    """Return a salvage of two partitions: data stream 1 with txn stream 2 and meta stream 3; data
    stream 4.
    """
    ends = {StreamId(key): Offset(0) for key in (1, 2, 3, 4)}
    return Salvage(ends, {StreamId(key): StreamId(1) for key in (1, 2, 3)})


def test_a_transaction_event_is_never_used_without_its_data() -> None:
    found = salvage()
    assert found.take(WalSequence(0), (part(1, 0, 5), part(2, 0, 5))) == (
        part(1, 0, 5),
        part(2, 0, 5),
    )
    found.add_bad(bad(1))
    assert found.take(WalSequence(2), (part(1, 8, 9), part(2, 5, 9))) == ()
    assert [(loss.stream_id, loss.start_offset, loss.end_offset) for loss in found.losses()] == [
        (1, 5, 9),
        (4, 0, None),
    ]


def test_a_checkpoint_is_used_only_with_its_data() -> None:
    found = salvage()
    found.add_bad(bad(0))
    assert found.take(WalSequence(1), (part(3, 0, 1), part(4, 0, 1))) == (part(4, 0, 1),)
    assert found.take(WalSequence(2), (part(1, 0, 5), part(3, 1, 2))) == (part(1, 0, 5),)
    assert found.take(WalSequence(3), (part(2, 0, 7), part(1, 5, 7))) == (
        part(1, 5, 7),
        part(2, 0, 7),
    )
    assert list(found.losses()) == [], (
        "its records are complete: a lost checkpoint costs a longer scan"
    )


def test_a_gap_that_no_damaged_slot_explains_is_an_error() -> None:
    found = salvage()
    found.add_bad(bad(0))
    assert found.take(WalSequence(1), (part(4, 0, 1),))
    with pytest.raises(NotContiguous):
        found.take(WalSequence(2), (part(4, 2, 3),))


def test_only_lost_slots_that_may_affect_a_stream_must_be_accepted() -> None:
    found = salvage()
    found.add_bad(bad(0))
    found.take(WalSequence(1), (part(4, 0, 1),))
    found.add_bad(bad(2))
    found.take(WalSequence(3), (part(1, 0, 1),))
    assert [loss.stream_id for loss in found.losses()] == [4]
    assert list(found.losses({WalSequence(2)})) == []
