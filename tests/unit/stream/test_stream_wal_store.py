"""A WAL in a separate WAL store: a missing slot is evidence only in the right store, and a WAL that
vanished is never mistaken for an empty one.
"""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any, cast
from uuid import UUID

import pytest

from penstock.base.ids import Offset, StreamId, WalSequence, WalStoreId
from penstock.objectstore.errors import PreconditionFailed, StoreUnknown, Unavailable
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import Body, ObjectStore, ObjectTail
from penstock.stream.config import StreamConfig
from penstock.stream.errors import ObjectCorrupt, WalDamaged, WalFailed, WalFenced, WalStoreWrong
from penstock.stream.format.keys import WAL_STORE_ROOT, wal_key, wal_marker_key
from penstock.stream.ports import IN_STORE, ObjectRole, WalStoreIdentity
from penstock.stream.recovery.recoverer import RecoveryReport
from penstock.stream.wal.wal_store import (
    ConfiguredWalStore,
    WalStores,
    check_identity,
    create_identity,
    identity_of,
)
from penstock.stream.wal.wal_store_url import open_backend
from tests.support.stream_metadata import MemoryController
from tests.support.stream_storage import FAST, GatedStore, Node, recover, settle
from tests.support.waiting import PATIENCE_S, until

FIRST = WalStoreId(1)
OURS = WalStoreIdentity("c", FIRST, UUID(int=7))
SLOT_COUNT = 3


class Cluster:
    """A data store, a WAL store, and brokers whose WALs are in the WAL store."""

    def __init__(self, wals: ObjectStore) -> None:
        self.main = MemoryStore()
        self.wals = wals
        self.stores = WalStores(self.main, ConfiguredWalStore(self.wals, "memory:"))
        self.stores.follow([FIRST])
        self.controller = MemoryController()
        self.controller.create_stream(1)
        self.nodes: list[Node] = []

    def node(self, node_id: int, store: ObjectStore | None = None, **config: Any) -> Node:
        """config: differences from FAST."""
        writer = self.controller.of(node_id, 1).writer
        self.controller.wal_stores[writer] = OURS
        node = Node(
            store or self.stores.store, self.controller, node_id, config=replace(FAST, **config)
        )
        self.nodes.append(node)
        return node

    async def dead(self, slot_count: int = SLOT_COUNT) -> Node:
        """Return a broker that wrote these slots and crashed."""
        node = self.node(1)
        await node.storage.start()
        await node.open(1)
        for _ in range(slot_count):
            await node.write(1, 1)
        await node.storage.abandon()
        return node

    async def recover(self, failed: Node, stores: WalStores | None = None) -> RecoveryReport:
        store = (stores or self.stores).store
        return await recover(store, self.node(2), failed, recovery_commit_objects_max=1)

    @property
    def end_offset(self) -> int:
        return self.controller.streams[StreamId(1)].end_offset


@pytest.fixture(params=["memory", "file"])
async def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Cluster]:
    made = Cluster(MemoryStore() if request.param == "memory" else open_backend(f"file:{tmp_path}"))
    assert await create_identity(made.wals, OURS) == OURS
    yield made
    for node in made.nodes:
        await node.storage.abandon()
    await made.wals.close()


async def all_keys(store: ObjectStore) -> list[str]:
    return [info.key async for info in store.list("")]


@pytest.mark.parametrize("slot_count", [0, 1, SLOT_COUNT])
async def test_slots_and_fences_are_only_in_the_wal_store(
    cluster: Cluster, slot_count: int
) -> None:
    failed = await cluster.dead(slot_count)
    report = await cluster.recover(failed)
    assert (report.end, report.fenced_by_us) == (slot_count, True)
    assert cluster.end_offset == slot_count
    assert await all_keys(cluster.main) == []
    names = [f"1/1/{slot:020d}" for slot in range(slot_count + 1)]
    assert await all_keys(cluster.wals) == [
        f"{WAL_STORE_ROOT}{name}" for name in (*names, "1/1/open", "identity")
    ]


async def another_store(_: Cluster) -> MemoryStore:
    return MemoryStore()


async def copy_without_identity(cluster: Cluster) -> MemoryStore:
    copy = MemoryStore()
    for key in await all_keys(cluster.wals):
        await copy.put(key, await cluster.wals.get(key))
    await copy.delete([f"{WAL_STORE_ROOT}identity"])
    return copy


@pytest.mark.parametrize("mounted", [another_store, copy_without_identity])
async def test_recovery_stops_in_a_store_without_the_identity(
    cluster: Cluster, mounted: Callable[[Cluster], Awaitable[MemoryStore]]
) -> None:
    failed = await cluster.dead()
    wrong = await mounted(cluster)
    before = await all_keys(wrong)
    stores = WalStores(cluster.main, ConfiguredWalStore(wrong, "memory:"))
    stores.follow([FIRST])
    with pytest.raises(WalStoreWrong, match="has no identity object"):
        await cluster.recover(failed, stores)
    assert await all_keys(wrong) == before, "a fence was put into the wrong store"
    assert cluster.end_offset == 0, "slots in the wrong store were committed"
    assert cluster.controller.wals[failed.identity].end is None


@pytest.mark.parametrize("other", [OURS._replace(uuid=UUID(int=8)), OURS._replace(cluster_id="d")])
async def test_recovery_stops_in_another_wal_store(
    cluster: Cluster, other: WalStoreIdentity
) -> None:
    failed = await cluster.dead()
    wrong = MemoryStore()
    await create_identity(wrong, other)
    stores = WalStores(cluster.main, ConfiguredWalStore(wrong, "memory:"))
    stores.follow([FIRST])
    with pytest.raises(WalStoreWrong, match=str(other.uuid)):
        await cluster.recover(failed, stores)


async def test_recovery_stops_without_the_wal_store(cluster: Cluster) -> None:
    failed = await cluster.dead()
    with pytest.raises(StoreUnknown):
        await cluster.recover(failed, WalStores(cluster.main))


async def lose_wal(cluster: Cluster, failed: Node, *sequences: int) -> None:
    keys = [wal_key(failed.identity, WalSequence(slot), FIRST) for slot in sequences]
    await cluster.stores.store.delete([*keys, wal_marker_key(failed.identity, FIRST)])


@pytest.mark.parametrize(
    ("lost", "left"),
    [((0, 1, 2), 0), ((2,), 2), ((), SLOT_COUNT)],
    ids=["all", "newest", "marker"],
)
async def test_a_wal_without_its_marker_waits_for_an_operator(
    cluster: Cluster, lost: tuple[int, ...], left: int
) -> None:
    failed = await cluster.dead()
    await lose_wal(cluster, failed, *lost)
    with pytest.raises(WalDamaged, match="/open"):
        await cluster.recover(failed)
    wal = cluster.controller.wals[failed.identity]
    assert wal.end is None
    assert not [key for key in await all_keys(cluster.wals) if key.endswith(f"{left:020d}")], (
        "a fence was put"
    )
    cluster.controller.accepted[failed.identity] = {WalSequence(left)}
    report = await cluster.recover(failed)
    assert (report.end, report.fenced_by_us, cluster.end_offset) == (left, True, left)


async def test_a_wal_whose_writer_opened_nothing_needs_no_marker(cluster: Cluster) -> None:
    failed = cluster.node(1)
    await failed.storage.abandon()
    report = await cluster.recover(failed)
    assert (report.end, report.fenced_by_us) == (0, True)


async def test_a_broker_does_not_start_in_the_wrong_store(cluster: Cluster) -> None:
    await cluster.wals.delete([f"{WAL_STORE_ROOT}identity"])
    with pytest.raises(WalStoreWrong):
        await cluster.node(1).storage.start()
    assert await all_keys(cluster.wals) == []


async def test_an_existing_identity_is_not_replaced(cluster: Cluster) -> None:
    other = OURS._replace(uuid=UUID(int=9))
    assert await create_identity(cluster.wals, other) == OURS
    assert await identity_of(cluster.wals) == OURS


def stored_id(store_id: int) -> bytes:
    return b'{"cluster_id": "c", "store_id": %d, "uuid": "%s"}' % (store_id, b"0" * 32)


@pytest.mark.parametrize(
    "stored",
    [b"", b"{}", b"\xff", b'{"cluster_id": 1}', stored_id(0), stored_id(-1), stored_id(10**9)],
)
async def test_a_damaged_identity_is_rejected(cluster: Cluster, stored: bytes) -> None:
    await cluster.wals.put(f"{WAL_STORE_ROOT}identity", stored)
    with pytest.raises(ObjectCorrupt):
        await identity_of(cluster.wals)
    with pytest.raises(WalStoreWrong):
        await check_identity(cluster.stores.store, OURS)


async def test_requests_for_an_unknown_wal_store_are_sent_to_no_store(cluster: Cluster) -> None:
    store = cluster.stores.store
    key = wal_key(cluster.node(1).identity, WalSequence(0), WalStoreId(2))
    with pytest.raises(StoreUnknown):
        await store.get(key)
    with pytest.raises(StoreUnknown):
        await store.put_if_absent(key, b"x")
    with pytest.raises(StoreUnknown):
        await store.delete([key])
    with pytest.raises(StoreUnknown):
        _ = [info async for info in store.list(WAL_STORE_ROOT)]
    assert await all_keys(cluster.main) == []


async def test_a_delete_is_sent_to_every_store(cluster: Cluster) -> None:
    store, writer = cluster.stores.store, cluster.node(1).identity
    keys = [wal_key(writer, WalSequence(1), IN_STORE), wal_marker_key(writer, FIRST)]
    for key in keys:
        await store.put(key, b"x")
    assert [info.key async for info in store.list("wals/1/1/")] == [keys[1]]
    await store.delete(keys)
    assert await all_keys(cluster.main) == []
    assert await all_keys(cluster.wals) == [f"{WAL_STORE_ROOT}identity"]


async def test_a_hanging_file_system_stops_the_wal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wals = open_backend(f"file:{tmp_path}")
    await create_identity(wals, OURS)
    node = Cluster(wals).node(1, wal_put_attempt_ms=20, wal_put_deadline_ms=100)
    await node.storage.start()
    await node.open(1)
    responds, fsync = Event(), os.fsync

    def hang(descriptor: int) -> None:
        responds.wait(60)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", hang)
    try:
        with pytest.raises(WalFailed):
            await node.write(1)
        assert node.acknowledged == []
        await node.storage.abandon()
        await wals.close()
    finally:
        responds.set()


class LosingStore(MemoryStore):
    """A WAL store that loses the responses of slot PUTs while `is_down`, and whose identity can be
    read after `readable`.
    """

    is_down = False

    def __init__(self) -> None:
        super().__init__()
        self.readable = asyncio.Semaphore(1_000)
        self.read_count = 0

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        if key.endswith("/identity"):
            self.read_count += 1
            await self.readable.acquire()
        return await super().get_tail(key, length)

    def hold_identity(self) -> None:
        self.readable = asyncio.Semaphore(0)

    def replace_identity(self) -> None:
        self._write(f"{WAL_STORE_ROOT}identity", b"{}")

    async def put_if_absent(self, key: str, body: Body) -> str:
        if not self.is_down or key.endswith(("/open", "/identity")):
            return await super().put_if_absent(key, body)
        with suppress(PreconditionFailed):  # a retry
            await super().put_if_absent(key, body)
        raise Unavailable("put_if_absent", key, "the response is lost")


@pytest.fixture
async def losing() -> AsyncIterator[Cluster]:
    made = Cluster(LosingStore())
    assert await create_identity(made.wals, OURS) == OURS
    yield made
    for node in made.nodes:
        await node.storage.abandon()


def slot_keys(node: Node, *sequences: int, store: WalStoreId = FIRST) -> list[str]:
    return [wal_key(node.identity, WalSequence(sequence), store) for sequence in sequences]


async def test_a_wal_with_a_slot_in_doubt_can_move_away_and_back(losing: Cluster) -> None:
    cluster, node = losing, losing.node(1)
    assert isinstance(cluster.wals, LosingStore)
    await node.storage.start()
    await node.open(1)
    await node.write(1)
    cluster.wals.is_down = True
    node.append(1)
    await until(lambda: node.storage.wal.puts.retry_count)
    node.append(1)
    assert node.acknowledged == [(1, 1)]
    await node.storage.move_wal(None)
    assert node.acknowledged == [(1, 1), (1, 2), (1, 3)]
    assert (cluster.end_offset, node.storage.wal_store_id) == (3, IN_STORE)
    await node.write(1)
    first = node.storage.wal_end - 1
    assert [key for key in await all_keys(cluster.main) if key.startswith("wal/")] == slot_keys(
        node, first, store=IN_STORE
    )
    cluster.wals.is_down = False
    await node.storage.move_wal(OURS)
    await node.write(1)
    assert await node.read_all(1) == [0, 1, 2, 3, 4]
    await node.storage.abandon()
    report = await cluster.recover(node)
    assert (report.start, report.end) == (node.storage.wal_end - 1, node.storage.wal_end)
    assert cluster.end_offset == 5


async def test_moved_slots_are_acknowledged_when_the_move_is_backed_up(losing: Cluster) -> None:
    node = losing.node(1)
    assert isinstance(losing.wals, LosingStore)
    await node.storage.start()
    await node.open(1)
    losing.wals.is_down = True
    node.append(1)
    release = asyncio.Event()

    async def backed_up(_: int) -> None:
        await release.wait()

    cast("Any", node.metadata).backed_up = backed_up
    moving = asyncio.create_task(node.storage.move_wal(None))
    await until(lambda: losing.end_offset)
    node.append(1)
    await settle()
    assert node.acknowledged == []
    release.set()
    await moving
    await node.storage.flush()
    assert node.acknowledged == [(1, 1), (1, 2)]


async def test_a_fenced_broker_does_not_complete_its_move(losing: Cluster) -> None:
    node = losing.node(1)
    assert isinstance(losing.wals, LosingStore)
    await node.storage.start()
    await node.open(1)
    losing.wals.is_down = True
    node.append(1)
    losing.controller.fence(node.identity)
    with pytest.raises(WalFenced):
        await node.storage.move_wal(None)
    assert (node.acknowledged, [end for _, end, _ in node.failed]) == ([], [1])
    assert (losing.end_offset, node.storage.fenced) == (0, True)


async def test_a_wal_cannot_move_to_another_wal_store(cluster: Cluster) -> None:
    node = cluster.node(1)
    await node.storage.start()
    await node.open(1)
    with pytest.raises(WalStoreWrong):
        await node.storage.move_wal(OURS._replace(uuid=UUID(int=8)))
    await node.write(1)
    assert node.acknowledged == [(1, 1)]


async def in_doubt(cluster: Cluster) -> tuple[Node, LosingStore]:
    """Return a broker with one durable slot that waits for a read of the identity."""
    node, wals = cluster.node(1), cluster.wals
    assert isinstance(wals, LosingStore)
    await node.storage.start()
    await node.open(1)
    wals.hold_identity()
    before = wals.read_count
    wals.is_down = True
    node.append(1)
    await until(lambda: node.storage.wal.puts.retry_count)
    wals.is_down = False
    await until(lambda: wals.read_count > before)
    await until(lambda: not node.storage.wal.in_flight_count)
    return node, wals


async def test_slots_before_a_check_are_acknowledged_despite_later_doubts(losing: Cluster) -> None:
    """While every PUT is slow, a new doubt arises during each check."""
    node, wals = await in_doubt(losing)
    wals.is_down = True
    before = node.storage.wal.puts.retry_count
    node.append(1)
    await until(lambda: node.storage.wal.puts.retry_count > before)
    wals.is_down = False
    await until(lambda: not node.storage.wal.in_flight_count)
    assert node.acknowledged == []
    wals.readable.release()
    await until(lambda: node.acknowledged)
    await settle()
    assert node.acknowledged == [(1, 1)]
    wals.readable.release()
    await node.storage.flush()
    assert node.acknowledged == [(1, 1), (1, 2)]
    assert node.storage.stalled_s == 0


async def test_a_broker_is_stalled_while_it_cannot_read_the_identity(losing: Cluster) -> None:
    node, wals = await in_doubt(losing)
    await until(lambda: node.storage.stalled_s > 0)
    assert node.storage.wal.stalled_s == 0, "a PUT is going on"
    node.storage.stop_acknowledging()
    assert node.storage.stalled_s == 0, "the session is lost, not the store"
    node.storage.resume_acknowledging()
    wals.readable.release()
    wals.readable.release()
    await node.storage.flush()
    assert node.acknowledged == [(1, 1)]


async def test_an_unexpected_error_of_a_check_stops_the_storage(losing: Cluster) -> None:
    """Otherwise there would be no further check, and acknowledgements would be withheld forever."""
    node, wals = await in_doubt(losing)

    def fail() -> None:
        raise RuntimeError("a bug")

    node.check_session = fail
    wals.readable.release()
    await until(lambda: node.storage.fenced)
    assert node.acknowledged == []


@pytest.mark.parametrize(("fallback_ms", "leave_ms"), [(0, 0), (10_000, 10_000), (90_000, 60_000)])
def test_a_wal_leaves_its_store_before_it_fails(fallback_ms: int, leave_ms: int) -> None:
    config = StreamConfig(wal_fallback_after_ms=fallback_ms, wal_put_deadline_ms=120_000)
    assert config.wal_leave_after_ms == leave_ms


async def test_the_session_is_checked_after_the_store_identity(losing: Cluster) -> None:
    node, wals = await in_doubt(losing)
    is_checked = asyncio.Event()

    def lose_session() -> None:
        node.storage.stop_acknowledging()
        is_checked.set()

    node.check_session = lose_session
    wals.readable.release()
    async with asyncio.timeout(PATIENCE_S):
        await is_checked.wait()
    assert node.acknowledged == []


async def test_streams_close_without_slots_of_a_replaced_store(losing: Cluster) -> None:
    gated = GatedStore(losing.stores.store, "data/")
    node = losing.node(1, gated, close_upload_wait_ms=1)
    assert isinstance(losing.wals, LosingStore)
    await node.storage.start()
    await node.open(1)
    await node.write(1)
    losing.wals.replace_identity()
    await node.storage.check_wal_store()
    assert node.storage.wal_store_problem is not None
    closing = asyncio.create_task(node.storage.close_streams([node.handles[1]]))
    (key,) = await gated.until_waiting(1)
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not closing.done(), "committed in a store that no recovery reads"
    await gated.release(key)
    await closing
    ranges = node.metadata.objects(StreamId(1), Offset(0), Offset(1), 10)
    assert [found.key for found in ranges] == [key]


@pytest.mark.parametrize(
    ("limit_bytes", "role"), [(0, ObjectRole.STREAM), (1 << 20, ObjectRole.WAL)]
)
async def test_streams_close_by_an_upload_while_the_wal_store_is_full(
    losing: Cluster, limit_bytes: int, role: ObjectRole
) -> None:
    losing.controller.create_stream(2)
    for number in (1, 2):
        node = losing.node(number, close_in_place_bytes_max=limit_bytes)
        await node.storage.start()
        await node.open(number)
        await node.write(number)
        await node.storage.close_streams([node.handles[number]])
    roles = [losing.controller.streams[StreamId(number)].ranges[0].role for number in (1, 2)]
    assert roles == [ObjectRole.WAL, role], "the first one closes in place: the store is empty"
