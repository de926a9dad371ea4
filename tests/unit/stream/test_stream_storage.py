"""Storage from its users' view: order of acknowledgements, fencing, failures of store and
controller, closing, reopening, reading.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from structlog.testing import capture_logs

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    Offset,
    StreamEpoch,
    StreamId,
    WalSequence,
)
from penstock.objectstore.errors import StoreUnknown, Throttled, Unavailable
from penstock.objectstore.faults import Fault, FaultyStore, Selection
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import Body
from penstock.stream.errors import (
    NotContiguous,
    OffsetOutOfRange,
    StreamFenced,
    StreamNotClosed,
    StreamNotOpened,
    WalClosed,
    WalFailed,
    WalFenced,
    WalFull,
)
from penstock.stream.format.builder import fence_object
from penstock.stream.format.keys import wal_key
from penstock.stream.ports import (
    IN_STORE,
    BrokerIncarnation,
    ObjectRole,
    OpenStream,
    PreparedObject,
)
from tests.support.newer_formats import VERSION_AT, with_header_field
from tests.support.stream_storage import GatedStore, Nodes, entry, offsets, settle
from tests.support.waiting import PATIENCE_S, until

WAL_PUTS = Selection(frozenset({"put_if_absent"}), "wal/")
OTHER = BrokerIncarnation(NodeId(9), NodeEpoch(9))


async def keys(store: MemoryStore, prefix: str) -> list[str]:
    return [info.key async for info in store.list(prefix)]


async def has_no(store: MemoryStore, prefix: str) -> bool:
    return not await keys(store, prefix)


# --- writing --------------------------------------------------------------------------------------


async def test_acknowledged_appends_can_be_read(nodes: Nodes) -> None:
    node = nodes.start()
    await node.storage.start()
    await node.open(1, 2)
    node.append_group([entry(1, 0, 3), entry(2, 0, 2), entry(1, 3, 2)])
    assert node.handles[1].next_offset == 5
    assert node.handles[1].confirmed_offset == 0
    await node.storage.flush()
    assert node.acknowledged == [(1, 3), (2, 2), (1, 5)]
    assert node.storage.wal_end == 1
    assert node.storage.backlog_bytes == 0
    cached = node.storage.read_cached(StreamId(1), 1, 5, 1 << 20)
    assert cached is not None
    assert offsets(cached) == [0, 1, 2, 3, 4]


async def test_appends_of_one_event_loop_iteration_share_a_slot(nodes: Nodes) -> None:
    node = nodes.start()
    await node.open(1, 2)
    for _ in range(50):
        node.append(1)
        node.append(2)
    await node.storage.flush()
    assert node.storage.wal_end == 1
    assert len(node.acknowledged) == 100


async def test_acknowledgements_are_in_wal_order_if_puts_complete_out_of_order(
    nodes: Nodes,
) -> None:
    store = GatedStore(MemoryStore())
    node = nodes.start(store)
    await node.open(1)
    slots = []
    for count in (1, 2, 3):
        node.append(1)
        slots = await store.until_waiting(count)
    await store.release(slots[2])
    await store.release(slots[1])
    assert node.acknowledged == []
    assert node.handles[1].confirmed_offset == 0
    await store.release(slots[0])
    assert node.acknowledged == [(1, 1), (1, 2), (1, 3)]


async def test_a_rejected_group_changes_nothing(nodes: Nodes) -> None:
    node = nodes.start()
    await node.open(1, 2)
    with pytest.raises(NotContiguous):
        node.append_group([entry(1, 0, 2), entry(2, 0), entry(1, 3)])
    with pytest.raises(StreamNotOpened):
        node.append_group([entry(1, 0, 2), entry(3, 0)])
    assert node.handles[1].next_offset == 0
    await node.write(1)
    assert node.acknowledged == [(1, 1)]


async def test_full_storage_is_announced_before_appends_are_rejected(nodes: Nodes) -> None:
    store = GatedStore(MemoryStore())
    node = nodes.start(store, wal_unacknowledged_bytes_max=10_000, append_overshoot_bytes_max=5_000)
    await node.open(1)
    while not node.storage.is_full:
        node.append(1, size=1_000)
    waiter = asyncio.ensure_future(node.storage.wait_for_room())
    while node.storage.backlog_bytes < 14_000:
        node.append(1, size=1_000)
    with pytest.raises(WalFull):
        node.append(1, size=1_000)
    assert node.storage.backlog_bytes <= 15_000
    before = node.handles[1].next_offset
    (slot,) = await store.until_waiting(1)
    await store.release(slot)
    await asyncio.wait_for(waiter, PATIENCE_S)
    node.append(1)
    (slot,) = await store.until_waiting(1)
    await store.release(slot)
    await node.storage.flush()
    assert node.handles[1].confirmed_offset == before + 1


async def test_transient_failures_and_lost_responses_keep_the_slot(nodes: Nodes) -> None:
    memory = MemoryStore()
    store = FaultyStore(memory, Random(1))
    node = nodes.start(store)
    await node.open(1)
    for fault in (Fault.THROTTLED, Fault.RESET, Fault.LOST_RESPONSE, Fault.CONFLICT):
        store.script(fault, WAL_PUTS, count=2)
        await node.write(1)
    assert [end for _, end in node.acknowledged] == [1, 2, 3, 4]
    assert len(await keys(memory, "wal/")) == 4
    assert store.scripted_count == 0


async def test_a_damaged_read_during_a_slot_comparison_is_not_a_fence(nodes: Nodes) -> None:
    store = FaultyStore(MemoryStore(), Random(1))
    node = nodes.start(store)
    await node.open(1)
    store.script(Fault.LOST_RESPONSE, WAL_PUTS)
    store.script(Fault.FLIPPED_BIT, Selection(frozenset({"get_tail"})))
    await node.write(1)
    assert node.acknowledged == [(1, 1)]
    assert not node.storage.fenced


# --- fencing --------------------------------------------------------------------------------------


async def test_a_fenced_writer_acknowledges_nothing_even_if_later_slots_are_written(
    nodes: Nodes,
) -> None:
    memory = MemoryStore()
    store = GatedStore(memory)
    node = nodes.start(store)
    await node.open(1)
    slots = []
    for count in (1, 2, 3):
        node.append(1)
        slots = await store.until_waiting(count)
    await memory.put_if_absent(slots[0], fence_object(OTHER, WalSequence(0)))
    await store.release(slots[2])
    await store.release(slots[1])
    await store.release(slots[0])
    assert node.acknowledged == []
    assert [end for _, end, _ in node.failed] == [1, 2, 3]
    assert all(isinstance(error, WalFenced) for _, _, error in node.failed)
    assert node.storage.fenced
    assert len(node.fenced_by) == 1
    with pytest.raises(WalFenced):
        node.append(1)
    with pytest.raises(WalFenced):
        await node.storage.flush()


async def test_a_fence_of_a_newer_format_fences_the_writer(nodes: Nodes) -> None:
    store = MemoryStore()
    node = nodes.start(store)
    await node.open(1)
    newer = with_header_field(fence_object(OTHER, WalSequence(0)), VERSION_AT, b"\x00\x02")
    await store.put_if_absent(wal_key(node.identity, WalSequence(0), IN_STORE), newer)
    node.append(1)
    await until(lambda: node.storage.fenced)
    assert node.acknowledged == []
    assert isinstance(node.failed[0][2], WalFenced)
    assert "format version 2" in str(node.failed[0][2])


async def test_a_slot_that_cannot_be_written_stops_the_writer(nodes: Nodes) -> None:
    store = FaultyStore(MemoryStore(), Random(1))
    node = nodes.start(store, wal_put_deadline_ms=20)
    await node.open(1)
    store.down = True
    node.append(1)
    with pytest.raises(WalFailed):
        await node.storage.flush()
    assert isinstance(node.failed[0][2], WalFailed)
    store.down = False
    await settle()
    assert await keys(MemoryStore(), "wal/") == []


async def test_an_epoch_that_was_used_before_cannot_be_started(nodes: Nodes) -> None:
    store = MemoryStore()
    first = nodes.start(store)
    second = nodes.start(store)
    await first.open(1)
    await first.write(1)
    with pytest.raises(WalFenced):
        await second.storage.start()


async def test_nothing_is_acknowledged_while_the_session_is_lost(nodes: Nodes) -> None:
    node = nodes.start()
    await node.open(1)
    node.storage.stop_acknowledging()
    node.append(1)
    await until(lambda: node.storage.wal_end == 1 and node.storage.backlog_bytes > 0)
    await settle()
    node.append(1)
    await settle()
    assert node.acknowledged == []
    assert node.handles[1].confirmed_offset == 0
    node.storage.resume_acknowledging()
    await node.storage.flush()
    assert node.acknowledged == [(1, 1), (1, 2)]
    assert node.storage.backlog_bytes == 0


async def test_the_session_is_checked_between_a_put_and_its_acknowledgement(nodes: Nodes) -> None:
    """The slot of a broker that was suspended for days may be free, because its fence has been
    deleted.
    """
    node = nodes.start()
    await node.open(1)
    node.check_session = node.storage.stop_acknowledging
    node.append(1)
    await until(lambda: node.storage.wal_end == 1 and node.storage.backlog_bytes > 0)
    await settle()
    assert node.acknowledged == []


async def test_held_appends_fail_when_the_writer_is_fenced(nodes: Nodes) -> None:
    memory = MemoryStore()
    node = nodes.start(memory)
    await node.open(1)
    node.storage.stop_acknowledging()
    node.append(1)
    await settle()
    await memory.put_if_absent(
        wal_key(node.identity, WalSequence(1), IN_STORE), fence_object(OTHER, WalSequence(1))
    )
    node.append(1)
    await until(lambda: node.storage.fenced)
    assert node.acknowledged == []
    assert [end for _, end, _ in node.failed] == [1, 2]


# --- upload ---------------------------------------------------------------------------------------


async def test_uploads_commit_in_order_and_release_the_slots(nodes: Nodes) -> None:
    store = MemoryStore()
    node = nodes.start(store, stream_object_bytes_min=2_000, wal_delete_grace_ms=0)
    await node.open(1, 2, 3)
    for _ in range(3):
        node.append_group(
            [
                entry(key, node.handles[key].next_offset, size=1_000 if key == 1 else 10)
                for key in (1, 2, 3)
            ]
        )
        await node.storage.flush()
    await node.storage.upload()
    (commit,) = nodes.controller.commits
    assert commit.wal_committed == 3
    assert sorted((item.role, len(item.ranges)) for item in commit.objects) == [
        (ObjectRole.STREAM_SET, 2),
        (ObjectRole.STREAM, 1),
    ]
    assert node.handles[1].committed_offset == 3
    assert node.storage.uncommitted_bytes == 0
    await until(lambda: has_no(store, "wal/"))
    node.storage.forget_cached(StreamId(1), Offset(3))
    node.storage.forget_cached(StreamId(2), Offset(3))
    assert await node.read_all(1) == [0, 1, 2]
    assert await node.read_all(2, 1) == [1, 2]


async def test_slots_that_the_store_did_not_delete_are_deleted_with_the_next_ones(
    nodes: Nodes,
) -> None:
    store = MemoryStore()
    faulty = FaultyStore(store, Random(1))
    node = nodes.start(faulty, wal_delete_grace_ms=0, retry_backoff_ms=1, retry_backoff_max_ms=1)
    await node.open(1)
    faulty.script(Fault.THROTTLED, Selection(operations=frozenset({"delete"})), count=5)
    await node.write(1)
    with capture_logs() as logs:
        await node.storage.upload()
        await until(lambda: "wal_slot_deletion_failed" in [event["event"] for event in logs])
    assert await keys(store, "wal/1/") == [wal_key(node.identity, WalSequence(0), IN_STORE)]
    await node.write(1)
    await node.storage.upload()
    await until(lambda: has_no(store, "wal/"))


class _EndedStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.deletes: list[list[str]] = []

    async def delete(self, keys: Sequence[str]) -> None:
        self.deletes.append([*keys])
        raise StoreUnknown(keys[0])


async def test_deleting_slots_in_an_abandoned_wal_store_is_not_retried(nodes: Nodes) -> None:
    store = _EndedStore()
    node = nodes.start(store, wal_delete_grace_ms=0)
    await node.open(1)
    for count in (1, 2):
        await node.write(1)
        await node.storage.upload()
        await until(lambda count=count: len(store.deletes) == count)
    keys_of = [wal_key(node.identity, WalSequence(number), IN_STORE) for number in (0, 1)]
    assert store.deletes == [[key] for key in keys_of]


async def test_blocks_are_committed_in_order_even_if_uploads_complete_out_of_order(
    nodes: Nodes,
) -> None:
    store = GatedStore(MemoryStore(), prefix="data/")
    node = nodes.start(store, block_bytes_max=4_000, log_cache_bytes_max=100_000)
    await node.open(1)
    for _ in range(3):
        await node.write(1, size=4_000)
    waiting = await store.until_waiting(3)
    by_number = sorted(waiting, key=lambda key: int(key.rsplit("/", 1)[1]))
    await store.release(by_number[2])
    await store.release(by_number[1])
    assert nodes.controller.commits == []
    await store.release(by_number[0])
    await node.storage.upload()
    assert [commit.wal_committed for commit in nodes.controller.commits] == [1, 2, 3]
    assert nodes.controller.streams[StreamId(1)].end_offset == 3


async def test_a_failing_controller_delays_commits_but_not_appends(nodes: Nodes) -> None:
    store = FaultyStore(MemoryStore(), Random(1))
    node = nodes.start(store)
    await node.open(1)
    await node.write(1)
    node.metadata.refuse("prepare_objects", 2)
    node.metadata.refuse("commit", 3)
    node.metadata.lose_reply("commit", 2)
    store.script(Fault.LOST_RESPONSE, Selection(frozenset({"put"}), "data/"))
    store.script(Fault.THROTTLED, Selection(frozenset({"put"}), "data/"))
    uploading = asyncio.ensure_future(node.storage.upload())
    await node.write(1)
    assert len(node.acknowledged) == 2
    await uploading
    await node.storage.upload()
    assert nodes.controller.streams[StreamId(1)].end_offset == 2
    assert node.handles[1].committed_offset == 2


@pytest.mark.parametrize("slow", ["store", "controller"])
async def test_an_upload_completes_even_if_each_step_needs_retries(
    nodes: Nodes, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FaultyStore(MemoryStore(), Random(1))
    node = nodes.start(store, upload_attempt_ms=5)
    await node.open(1)
    await node.write(1)
    prepare, put = node.metadata.prepare_objects, store.put

    async def late_prepare(count: int) -> list[PreparedObject]:
        await asyncio.sleep(0.05)
        return await prepare(count)

    async def late_put(key: str, body: Body) -> str:
        await asyncio.sleep(0.05)
        return await put(key, body)

    if slow == "store":
        monkeypatch.setattr(store, "put", late_put)
    else:
        monkeypatch.setattr(node.metadata, "prepare_objects", late_prepare)
    await asyncio.wait_for(node.storage.upload(), PATIENCE_S)
    assert nodes.controller.streams[StreamId(1)].end_offset == 1
    assert node.storage.uploads.failures["put" if slow == "store" else "prepare"] >= 2


async def test_uncommitted_bytes_cause_backpressure_if_commits_fail_for_long(nodes: Nodes) -> None:
    node = nodes.start(
        block_bytes_max=4_000, log_cache_bytes_max=20_000, append_overshoot_bytes_max=4_000
    )
    await node.open(1)
    node.metadata.commit_gate.clear()
    while not node.storage.is_full:
        await node.write(1, size=2_000)
    await node.write(1, size=2_000)
    with pytest.raises(WalFull):
        await node.write(1, size=4_000)
    waiter = asyncio.ensure_future(node.storage.wait_for_room())
    node.metadata.commit_gate.set()
    await asyncio.wait_for(waiter, PATIENCE_S)
    await node.write(1)
    assert not node.failed


async def test_a_node_fenced_by_the_controller_stops(nodes: Nodes) -> None:
    node = nodes.start()
    await node.open(1)
    await node.write(1)
    nodes.controller.fence(node.identity)
    with pytest.raises(WalFenced):
        await node.storage.upload()
    assert node.storage.fenced
    assert len(node.fenced_by) == 1
    assert nodes.controller.commits == []
    with pytest.raises(WalFenced):
        node.append(1)


async def test_a_stream_fenced_by_the_controller_does_not_delay_others(nodes: Nodes) -> None:
    node = nodes.start()
    await node.open(1, 2)
    await node.write(1)
    await node.write(2)
    nodes.controller.streams[StreamId(1)].owner = OTHER
    await node.storage.upload()
    assert nodes.controller.streams[StreamId(2)].end_offset == 1
    assert nodes.controller.streams[StreamId(1)].end_offset == 0
    assert not node.storage.fenced
    with pytest.raises(StreamFenced):
        node.append(1)
    await node.write(2)
    await node.storage.close_streams([node.handles[1], node.handles[2]])
    assert not nodes.controller.streams[StreamId(2)].opened


async def test_a_group_of_a_stream_fenced_meanwhile_is_not_acknowledged(nodes: Nodes) -> None:
    store = GatedStore(MemoryStore())
    node = nodes.start(store, block_bytes_max=1)
    await node.open(1, 2)
    node.append(1)
    (first,) = await store.until_waiting(1)
    node.append(1)
    node.append(2)
    (_, second) = await store.until_waiting(2)
    nodes.controller.streams[StreamId(1)].owner = OTHER
    await store.release(first)
    await until(lambda: not node.handles[1].accepting)
    await store.release(second)
    assert node.acknowledged == [(1, 1), (2, 1)]
    ((stream_id, end, error),) = node.failed
    assert (stream_id, end) == (1, 2)
    assert isinstance(error, StreamFenced)
    await node.storage.upload()
    assert nodes.controller.streams[StreamId(2)].end_offset == 1


# --- closing and reopening ------------------------------------------------------------------------


async def test_close_commits_in_place_and_rewrites_nothing(nodes: Nodes) -> None:
    store = MemoryStore()
    node = nodes.start(store, wal_delete_grace_ms=0)
    one, two = await node.open(1, 2)
    await node.write(1)
    await node.write(2)
    node.append(1, 3)
    await node.storage.close_streams([one])
    (commit,) = nodes.controller.commits
    assert [item.role for item in commit.objects] == [ObjectRole.WAL, ObjectRole.WAL]
    assert [close.end_offset for close in commit.closes] == [4]
    assert await keys(store, "data/") == []
    with pytest.raises(StreamNotOpened):
        node.append(1)
    reader = nodes.start(store, 2)
    assert await reader.read_all(1) == [0, 1, 2, 3]
    await node.storage.upload()
    assert two.committed_offset == 1
    await until(lambda: has_no(store, wal_key(node.identity, WalSequence(1), IN_STORE)))
    left = await keys(store, "wal/1/")
    assert left == [
        wal_key(node.identity, WalSequence(0), IN_STORE),
        wal_key(node.identity, WalSequence(2), IN_STORE),
    ]
    assert await reader.read_all(1) == [0, 1, 2, 3]


async def test_closing_a_stream_during_its_upload(nodes: Nodes) -> None:
    store = GatedStore(MemoryStore(), prefix="data/")
    node = nodes.start(store)
    one, two = await node.open(1, 2)
    await node.write(1)
    await node.write(2)
    uploading = asyncio.ensure_future(node.storage.upload())
    (data,) = await store.until_waiting(1)
    await node.write(1)
    await node.storage.close_streams([one])
    assert nodes.controller.streams[StreamId(1)].end_offset == 2
    (again,) = await node.open(1, epoch=2)
    assert again.next_offset == 2
    await node.write(1)
    await store.release(data)
    await uploading
    assert two.committed_offset == 1
    assert [item.role for item in nodes.controller.commits[-1].objects] == [ObjectRole.STREAM_SET]
    assert [part.stream_id for part in nodes.controller.commits[-1].objects[0].ranges] == [2]
    uploading = asyncio.ensure_future(node.storage.upload())
    await store.release((await store.until_waiting(1))[0])
    await uploading
    assert again.committed_offset == 3
    assert await node.read_all(1) == [0, 1, 2]


async def test_close_waits_for_a_commit_whose_outcome_is_unknown(nodes: Nodes) -> None:
    node = nodes.start()
    (one,) = await node.open(1)
    await node.write(1)
    node.metadata.lose_reply("commit", 3)
    uploading = asyncio.ensure_future(node.storage.upload())
    await settle()
    await node.write(1)
    await node.storage.close_streams([one])
    await uploading
    assert nodes.controller.streams[StreamId(1)].end_offset == 2
    assert not nodes.controller.streams[StreamId(1)].opened
    assert await node.read_all(1) == [0, 1]


@pytest.mark.parametrize("gate", ["refuse", "lose_reply"])
async def test_close_is_repeated_until_the_controller_responds(nodes: Nodes, gate: str) -> None:
    node = nodes.start()
    handles = await node.open(1, 2)
    await node.write(1)
    getattr(node.metadata, gate)("commit", 3)
    await node.storage.close_streams(handles)
    assert nodes.controller.streams[StreamId(1)].end_offset == 1
    assert not nodes.controller.streams[StreamId(1)].opened
    assert not nodes.controller.streams[StreamId(2)].opened


async def test_a_cancelled_close_continues(nodes: Nodes) -> None:
    node = nodes.start()
    (one,) = await node.open(1)
    await node.write(1)
    node.metadata.commit_gate.clear()
    closing = asyncio.ensure_future(node.storage.close_streams([one]))
    await settle()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    (result,) = await node.storage.open_streams([OpenStream(StreamId(1), StreamEpoch(2))])
    assert isinstance(result, StreamNotClosed)
    node.metadata.commit_gate.set()
    await until(lambda: not nodes.controller.streams[StreamId(1)].opened)
    await until(lambda: not node.storage.open_handles())
    (again,) = await node.open(1, epoch=2)
    assert again.next_offset == 1


async def test_a_stream_can_move_away_and_back(nodes: Nodes) -> None:
    store = MemoryStore()
    a, b = nodes.start(store, 1), nodes.start(store, 2)
    for epoch in range(1, 8):
        node = a if epoch % 2 else b
        (handle,) = await node.open(1, epoch=epoch)
        assert handle.next_offset == (epoch - 1) * 2
        await node.write(1)
        if epoch % 3 == 0:
            await node.storage.upload()
        await node.write(1)
        await node.storage.close_streams([handle])
        del node.handles[1]
    for node in (a, b):
        await node.storage.upload()
        assert await node.read_all(1) == list(range(14))


async def test_many_ranges_are_uploaded_before_a_close(nodes: Nodes) -> None:
    node = nodes.start(close_in_place_ranges_max=5)
    handles = await node.open(1, 2)
    for _ in range(4):
        node.append(1)
        node.append(2)
        await node.storage.flush()
    await node.storage.close_streams(handles)
    upload, close = nodes.controller.commits
    assert [item.role for item in upload.objects] == [ObjectRole.STREAM_SET]
    assert close.objects == ()
    assert len(close.closes) == 2


async def test_closing_more_streams_than_fit_into_one_commit(nodes: Nodes) -> None:
    node = nodes.start(commit_ranges_max=3, commit_closes_max=2)
    handles = await node.open(1, 2, 3, 4, 5)
    for _ in range(3):
        node.append_group([entry(key, node.handles[key].next_offset) for key in (1, 2, 3, 4, 5)])
        await node.storage.flush()
    await node.storage.close_streams(handles)
    assert all(
        not stream.opened and stream.end_offset == 3 for stream in nodes.controller.streams.values()
    )


async def test_an_orderly_shutdown_leaves_nothing_to_recover(nodes: Nodes) -> None:
    node = nodes.start()
    handles = await node.open(1, 2)
    await node.write(1)
    await node.write(2)
    await node.storage.close_streams(handles)
    await node.storage.close()
    assert nodes.controller.wals[node.identity].committed == node.storage.wal_end == 2
    with pytest.raises(WalClosed):
        node.append(1)


# --- reading --------------------------------------------------------------------------------------


async def test_reads_continue_from_objects_into_memory(nodes: Nodes) -> None:
    node = nodes.start()
    await node.open(1)
    for _ in range(4):
        await node.write(1, 2)
    await node.storage.upload()
    node.storage.forget_cached(StreamId(1), Offset(8))
    for _ in range(3):
        await node.write(1, 2)
    assert node.storage.read_cached(StreamId(1), 0, 14, 1 << 20) is None
    assert node.storage.read_cached(StreamId(1), 8, 14, 1 << 20)
    assert await node.read_all(1) == list(range(14))
    assert await node.read_all(1, 5) == list(range(5, 14))
    assert offsets(await node.storage.reader.read(StreamId(1), Offset(9), Offset(12), 1)) == [8, 9]
    assert await node.storage.reader.read(StreamId(1), Offset(14), Offset(14), 100) == []


async def test_reading_beyond_the_end_of_a_stream_is_an_error(nodes: Nodes) -> None:
    node = nodes.start()
    await node.open(1)
    with pytest.raises(OffsetOutOfRange):
        await node.storage.reader.read(StreamId(1), Offset(3), Offset(9), 100)


async def test_timestamps_are_found_in_objects_and_in_memory(nodes: Nodes) -> None:
    node = nodes.start()
    await node.open(1)
    for _ in range(4):
        await node.write(1, 2)
    await node.storage.upload()
    node.storage.forget_cached(StreamId(1), Offset(8))
    for _ in range(2):
        await node.write(1, 2)
    for offset in range(12):
        assert await node.storage.offset_for_timestamp(StreamId(1), 1_000 + offset, Offset(12)) == (
            offset,
            1_000 + offset,
        )
    assert await node.storage.offset_for_timestamp(StreamId(1), 5, Offset(12)) == (0, 1_000)
    assert await node.storage.offset_for_timestamp(StreamId(1), 1_012, Offset(12)) is None
    assert await node.storage.offset_for_timestamp(StreamId(1), 1_009, Offset(9)) is None


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("newest_ms", "record_count"),
    [
        pytest.param(9_999, 2, id="the newest record was clipped"),
        pytest.param(9_999, 0, id="the count was rounded down"),
    ],
)
async def test_the_maximum_timestamp_is_that_of_a_record(
    nodes: Nodes, at: int, newest_ms: int, record_count: int
) -> None:
    node = nodes.start()
    await node.open(1)
    for _ in range(2):
        await node.write(1, 2)
        await node.storage.upload()
    node.storage.forget_cached(StreamId(1), Offset(4))
    ranges = nodes.controller.streams[StreamId(1)].ranges
    ranges[at] = replace(
        ranges[at],
        range=replace(
            ranges[at].range, max_timestamp_ms=Millis(newest_ms), record_count=record_count
        ),
    )
    assert await node.storage.newest_timestamp(StreamId(1), Offset(4)) == (3, 1_003)


async def test_trimming_moves_the_start_offset(nodes: Nodes) -> None:
    node = nodes.start()
    (handle,) = await node.open(1)
    await node.write(1, 4)
    await node.storage.trim(handle, Offset(2))
    assert handle.start_offset == 2
    await node.write(1, 4)
    await node.storage.upload()
    assert nodes.controller.streams[StreamId(1)].end_offset == 8


async def test_unusual_errors_of_the_store_are_retried(nodes: Nodes) -> None:
    store = GatedStore(MemoryStore())
    node = nodes.start(store)
    await node.open(1)
    node.append(1)
    for error in (Unavailable("put", "k", "x"), Throttled("put", "k"), TimeoutError()):
        (slot,) = await store.until_waiting(1)
        await store.release(slot, error)
    (slot,) = await store.until_waiting(1)
    await store.release(slot)
    assert node.acknowledged == [(1, 1)]
