"""Acknowledged records survive a crash, for any recoverer and any number of recoveries; no broker
acknowledges after the fence.
"""

import asyncio
from random import Random

import pytest

from penstock.base.ids import Offset, StreamId, WalSequence
from penstock.objectstore.errors import Unavailable
from penstock.objectstore.faults import Fault, FaultyStore, Selection
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import ObjectTail
from penstock.stream.errors import FormatUnknown, NotContiguous, WalDamaged, WalFenced
from penstock.stream.format.decoder import parse_header
from penstock.stream.format.keys import wal_key
from penstock.stream.ports import IN_STORE, CommitObjects
from penstock.stream.recovery.recoverer import RecoveryReport, recover_wal
from tests.support.newer_formats import REQUIRED_AT, with_header_field
from tests.support.stream_storage import FAST, NOW_MS, GatedStore, Nodes, entry, recover, settle
from tests.support.waiting import until

STREAMS = (1, 2, 3)


class CountingStore(MemoryStore):
    """Count successful GETs."""

    get_count = 0

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        tail = await super().get_tail(key, length)
        self.get_count += 1
        return tail

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.get_count += 1
        return await super().get_range(key, start, length)


@pytest.mark.parametrize("uploaded_after", [None, 0, 2, 5])
@pytest.mark.parametrize("slot_count", [0, 1, 2, 7])
async def test_a_crash_at_every_slot_loses_nothing(
    nodes: Nodes, slot_count: int, uploaded_after: int | None
) -> None:
    store = MemoryStore()
    dead, recoverer = nodes.start(store, 1), nodes.start(store, 2)
    await dead.open(*STREAMS)
    for slot in range(slot_count):
        await dead.write(1 + slot % 3, 1 + slot % 2)
        if slot == uploaded_after:
            await dead.storage.upload()
    await dead.storage.abandon()
    report = await recover(store, recoverer, dead, recovery_commit_objects_max=2)
    assert report.end == slot_count
    assert report.fenced_by_us
    assert (
        report.committed_object_count == slot_count - nodes.controller.wals[dead.identity].committed
    )
    for stream_id in STREAMS:
        end = dead.handles[stream_id].confirmed_offset
        assert nodes.controller.streams[StreamId(stream_id)].end_offset == end
        assert await recoverer.read_all(stream_id) == list(range(end))
    (handle,) = await recoverer.open(1, epoch=2)
    await recoverer.write(1, 2)
    assert await recoverer.read_all(1) == list(range(handle.confirmed_offset))


async def test_recovered_small_slots_are_read_without_a_get(nodes: Nodes) -> None:
    store = CountingStore()
    dead, recoverer = nodes.start(store, 1), nodes.start(store, 2)
    await dead.open(*STREAMS)
    for slot in range(9):
        await dead.write(1 + slot % 3, 2)
    await dead.storage.abandon()
    await recover(store, recoverer, dead, cache_slot=recoverer.storage.reader.cache_object)
    await recoverer.open(*STREAMS, epoch=2)
    walked = store.get_count
    for stream_id in STREAMS:
        assert await recoverer.read_all(stream_id) == list(range(6))
    assert (walked, store.get_count) == (9, 9)


@pytest.mark.parametrize("newer_slot", [0, 2])
async def test_a_slot_of_a_newer_format_stops_the_recovery(nodes: Nodes, newer_slot: int) -> None:
    store = MemoryStore()
    dead, recoverer = await nodes.crashed(store, [1] * 3)
    key = wal_key(dead.identity, WalSequence(newer_slot), IN_STORE)
    written = await store.get(key)
    await store.put(key, with_header_field(written, REQUIRED_AT, b"\x00\x00\x00\x04"))
    with pytest.raises(FormatUnknown, match=f"{key}.*0x00000004"):
        await recover(store, recoverer, dead)
    # Nothing was skipped, and no fence marks the end of the WAL.
    slots = [info.key async for info in store.list("wal/")]
    assert len(slots) == 3
    await store.put(key, written)
    assert (await recover(store, recoverer, dead)).end == 3
    assert await recoverer.read_all(1) == [0, 1, 2]


async def test_slots_after_a_gap_are_ignored_because_they_were_never_acknowledged(
    nodes: Nodes,
) -> None:
    memory = MemoryStore()
    gated = GatedStore(memory)
    zombie, recoverer = nodes.start(gated, 1), nodes.start(memory, 2)
    await zombie.open(1)
    slots = []
    for count in range(1, 5):
        zombie.append(1)
        slots = await gated.until_waiting(count)
    await gated.release(slots[0])
    await gated.release(slots[2])
    assert zombie.acknowledged == [(1, 1)]
    report = await recover(memory, recoverer, zombie)
    assert report.end == 1
    assert await recoverer.read_all(1) == [0]
    await gated.release(slots[1])
    assert zombie.acknowledged == [(1, 1)]
    assert zombie.storage.fenced
    assert [type(error) for _, _, error in zombie.failed] == [WalFenced] * 3


async def test_a_zombie_may_acknowledge_recovered_records(nodes: Nodes) -> None:
    memory = MemoryStore()
    faulty = FaultyStore(memory, Random(3))
    zombie = nodes.start(faulty, 1, retry_backoff_ms=30, retry_backoff_max_ms=30)
    recoverer = nodes.start(memory, 2)
    await zombie.open(1)
    faulty.script(Fault.LOST_RESPONSE, Selection(frozenset({"put_if_absent"})))
    zombie.append(1)
    await until(lambda: faulty.injected[Fault.LOST_RESPONSE] == 1)
    report = await recover(memory, recoverer, zombie)
    assert report.end == 1
    await zombie.storage.flush()
    assert zombie.acknowledged == [(1, 1)]
    assert await recoverer.read_all(1) == [0]
    zombie.append(1)
    await until(lambda: zombie.storage.fenced)
    assert zombie.acknowledged == [(1, 1)]
    with pytest.raises(WalFenced):
        await zombie.metadata.commit(CommitObjects())


async def test_a_slot_that_appears_during_the_put_of_the_fence_is_recovered(nodes: Nodes) -> None:
    memory = MemoryStore()
    writer_side, recoverer_side = GatedStore(memory), GatedStore(memory)
    writer, recoverer = nodes.start(writer_side, 1), nodes.start(recoverer_side, 2)
    await writer.open(1)
    writer.append(1)
    (slot,) = await writer_side.until_waiting(1)
    recovery = asyncio.ensure_future(recover(recoverer_side, recoverer, writer))
    assert await recoverer_side.until_waiting(1) == [slot]
    await writer_side.release(slot)
    assert writer.acknowledged == [(1, 1)]
    await recoverer_side.release(slot)
    (fence,) = await recoverer_side.until_waiting(1)
    await recoverer_side.release(fence)
    assert (await recovery).end == 1
    assert await recoverer.read_all(1) == [0]


async def test_two_concurrent_recoverers_agree(nodes: Nodes) -> None:
    store = MemoryStore()
    dead, one = await nodes.crashed(store, [1, 2] * 5)
    two = nodes.start(store, 3)
    results = await asyncio.gather(
        recover(store, one, dead, recovery_commit_objects_max=1),
        recover(store, two, dead, recovery_commit_objects_max=3),
        return_exceptions=True,
    )
    reports = [result for result in results if isinstance(result, RecoveryReport)]
    assert reports
    assert all(report.end == 10 for report in reports)
    assert all(isinstance(result, RecoveryReport | WalFenced) for result in results), (
        "the slower one may learn that the WAL has ended"
    )
    assert await one.read_all(1) == list(range(5))
    assert await two.read_all(2) == list(range(5))
    assert nodes.controller.wals[dead.identity].end == 10


@pytest.mark.parametrize("lost", [False, True])
async def test_an_interrupted_recovery_is_repeated(nodes: Nodes, lost: bool) -> None:
    store = MemoryStore()
    dead, one = await nodes.crashed(store, [1, 2] * 6)
    two = nodes.start(store, 3)
    if lost:
        one.metadata.lose_reply("commit_recovered")
    else:
        one.metadata.refuse("commit_recovered")
    with pytest.raises(TimeoutError):
        await recover(store, one, dead, recovery_commit_objects_max=4)
    assert nodes.controller.wals[dead.identity].end is None
    assert (await recover(store, two, dead, recovery_commit_objects_max=5)).end == 12
    assert await two.read_all(1) == list(range(6))
    assert await two.read_all(2) == list(range(6))
    assert (await recover(store, one, dead)).committed_object_count == 0


class HoldingStore(MemoryStore):
    """Hold the reads of slots from `first` on."""

    first = 0
    begun_count = held_count = 0

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        if int(key.rsplit("/", 1)[1]) >= self.first:
            self.begun_count += 1
            self.held_count += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.held_count -= 1
        return await super().get_tail(key, length)


async def test_a_recovery_whose_commit_fails_stops_its_reads(nodes: Nodes) -> None:
    store = HoldingStore()
    dead, recoverer = await nodes.crashed(store, [1] * 6)
    store.first = 2
    recoverer.metadata.refuse("commit_recovered")
    recovering = asyncio.ensure_future(
        recover(store, recoverer, dead, recovery_commit_objects_max=1, recovery_read_ahead_count=4)
    )
    await asyncio.wait([recovering])
    assert isinstance(recovering.exception(), TimeoutError)
    assert store.begun_count > 0
    assert store.held_count == 0


async def test_only_ranges_still_owned_by_the_dead_writer_are_committed(nodes: Nodes) -> None:
    store = MemoryStore()
    dead, other = nodes.start(store, 1), nodes.start(store, 2)
    one, _ = await dead.open(1, 2)
    await dead.write(1)
    await dead.write(2)
    await dead.storage.close_streams([one])
    await other.open(1, epoch=2)
    await other.write(1)
    await dead.write(2)
    await dead.storage.abandon()
    assert (await recover(store, other, dead)).committed_object_count == 2
    assert nodes.controller.streams[StreamId(1)].opened
    assert nodes.controller.streams[StreamId(1)].end_offset == 1
    assert not nodes.controller.streams[StreamId(2)].opened
    assert await other.read_all(1) == [0, 1]
    assert await other.read_all(2) == [0, 1]


async def test_a_stream_that_moved_back_before_the_crash_is_recovered(nodes: Nodes) -> None:
    store = MemoryStore()
    dead, other = nodes.start(store, 1), nodes.start(store, 2)
    for epoch, node in ((1, dead), (2, other), (3, dead)):
        (handle,) = await node.open(1, epoch=epoch)
        await node.write(1)
        await node.write(1)
        if epoch < 3:
            await node.storage.close_streams([handle])
    await dead.storage.abandon()
    await recover(store, other, dead)
    del other.handles[1]
    assert await other.read_all(1) == [0, 1, 2, 3, 4, 5]


async def test_recovery_after_a_trim_beyond_the_committed_end(nodes: Nodes) -> None:
    store = MemoryStore()
    dead, recoverer = nodes.start(store, 1), nodes.start(store, 2)
    (handle,) = await dead.open(1)
    for _ in range(3):
        await dead.write(1, 4)
    await dead.storage.trim(handle, Offset(6))
    await dead.storage.abandon()
    await recover(store, recoverer, dead)
    assert await recoverer.read_all(1, 6) == list(range(6, 12))


async def test_a_damaged_slot_fails_the_recovery_and_commits_nothing_after_it(nodes: Nodes) -> None:
    store = MemoryStore()
    dead, recoverer = await nodes.crashed(store, [1] * 3)
    key = wal_key(dead.identity, WalSequence(1), IN_STORE)
    await store.put(key, (await store.get(key))[:-1] + b"?")
    with pytest.raises(WalDamaged, match=key):
        await recover(store, recoverer, dead)
    assert nodes.controller.streams[StreamId(1)].end_offset == 1
    assert nodes.controller.streams[StreamId(1)].opened
    assert nodes.controller.wals[dead.identity].end is None


async def test_data_damaged_in_transit_is_read_again(nodes: Nodes) -> None:
    memory = MemoryStore()
    store = FaultyStore(memory, Random(5))
    dead, recoverer = nodes.start(memory, 1), nodes.start(memory, 2)
    await dead.open(1)
    await dead.write(1)
    await dead.storage.abandon()
    store.script(Fault.FLIPPED_BIT, Selection(frozenset({"get_tail"})), count=2)
    assert (await recover(store, recoverer, dead, recovery_read_ahead_count=1)).end == 1


async def test_a_gap_in_a_stream_is_never_bridged(nodes: Nodes) -> None:
    store = MemoryStore()
    dead, recoverer = await nodes.crashed(store, [1] * 3)
    nodes.controller.fence(dead.identity)
    with pytest.raises(NotContiguous):
        await recover_wal(
            store,
            recoverer.metadata,
            dead.identity,
            WalSequence(1),
            recoverer=recoverer.identity,
            now_ms=NOW_MS,
            config=FAST,
        )


async def test_store_errors_are_raised(nodes: Nodes) -> None:
    store = FaultyStore(MemoryStore(), Random(5))
    dead, recoverer = nodes.start(store, 1), nodes.start(store, 2)
    store.down = True
    with pytest.raises(Unavailable):
        await recover(store, recoverer, dead)
    store.down = False
    assert (await recover(store, recoverer, dead)).end == 0


async def test_the_fence_contains_the_id_of_its_writer(nodes: Nodes) -> None:
    store = MemoryStore()
    dead, recoverer = nodes.start(store, 1), nodes.start(store, 2)
    await recover(store, recoverer, dead)
    data = await store.get(wal_key(dead.identity, WalSequence(0), IN_STORE))
    assert parse_header(data).writer == recoverer.identity


@pytest.mark.parametrize("seed", range(12))
async def test_acknowledged_records_survive_random_crashes_and_faults(
    nodes: Nodes, seed: int
) -> None:
    """Each of a chain of owners crashes at a random moment, on a store with random faults.
    Acknowledged records stay in order and without gaps.
    """
    rng = Random(seed)
    memory = MemoryStore()
    acknowledged = dict.fromkeys(STREAMS, 0)
    reader = nodes.start(memory, 1)
    for life in range(1, 5):
        store = FaultyStore(memory, rng)
        node = nodes.start(
            store, life, block_bytes_max=6_000, log_cache_bytes_max=60_000, wal_in_flight_max=3
        )
        handles = await node.open(*STREAMS, epoch=life)
        for handle in handles:
            assert handle.next_offset >= acknowledged[handle.stream_id]
        for _ in range(rng.randrange(40)):
            fault = rng.choice(
                [None, None, None, Fault.THROTTLED, Fault.RESET, Fault.LOST_RESPONSE]
            )
            if fault is not None and store.scripted_count < 3:
                store.script(fault, Selection(frozenset({"put_if_absent", "put"})))
            chosen = rng.sample(STREAMS, rng.randrange(1, 4))
            node.append_group(
                [
                    entry(key, node.handles[key].next_offset, rng.randrange(1, 4), size=200)
                    for key in chosen
                ]
            )
            await settle(rng.choice([0, 1, 5, 40]))
        for stream_id, end in node.acknowledged:
            acknowledged[stream_id] = max(acknowledged[stream_id], end)
        await node.storage.abandon()
        recoverer = nodes.start(memory, 100 + life)
        await recover(memory, recoverer, node, recovery_commit_objects_max=3)
        nodes.controller.check_invariants()
    for stream_id in STREAMS:
        end = nodes.controller.streams[StreamId(stream_id)].end_offset
        assert end >= acknowledged[stream_id]
        assert await reader.read_all(stream_id) == list(range(end))
