"""Store readers raise an error for a lost or damaged WAL slot only where it may affect a partition.
An old manifest is not an error.
"""

import asyncio
from array import array
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from itertools import count
from typing import Any, ParamSpec
from uuid import UUID

import pytest

from penstock.base.ids import (
    Millis,
    NodeEpoch,
    NodeId,
    StreamId,
    WalSequence,
    WalStoreId,
)
from penstock.lake.manifest.errors import EndInDoubt, OffsetsMissing, WalWalkTooSlow
from penstock.lake.manifest.plan import OffsetRange
from penstock.lake.manifest.view import ClusterView
from penstock.objectstore.errors import ObjectNotFound, Unavailable
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import ObjectTail
from penstock.protocol.batch.records import Record, encode_batch
from penstock.stream.errors import ObjectCorrupt, WalSlotLost, WalStoreWrong
from penstock.stream.format.builder import StreamRun, build_object
from penstock.stream.format.keys import manifest_key, wal_key, wal_marker_key
from penstock.stream.format.manifest.codec import Draft, encode_shard
from penstock.stream.format.manifest.model import (
    Entries,
    LiveWal,
    ManifestRoot,
    PartitionEntry,
    Shard,
    StreamEntry,
    TopicEntry,
    WalStoreEntry,
)
from penstock.stream.ports import IN_STORE, BrokerIncarnation, ObjectRole, WalStoreIdentity
from penstock.stream.wal.wal_store import create_identity
from tests.sim.loop import VirtualLoop
from tests.support.reader_objects import entry_of

P = ParamSpec("P")
ONE, TWO = BrokerIncarnation(NodeId(1), NodeEpoch(7)), BrokerIncarnation(NodeId(2), NodeEpoch(8))
GRACE_MS = 3_000
TOPICS = ("busy", "idle", "other", "idle@snapshot")
"""Each topic has one partition; stream number i has id i. Broker 1 is leader of the first two,
broker 2 of the last one.
"""


def stream(stream_id: int, committed: int) -> StreamEntry:
    return StreamEntry(stream_id, committed, committed, (), Entries.empty(committed))


def stored(stream_id: int, *runs: tuple[int, str]) -> StreamEntry:
    """Return a stream with these ranges: the end offset of each, and its object."""
    bounds = [0, *(end for end, _ in runs)]
    ones, roles = array("q", [1] * len(runs)), bytes([ObjectRole.STREAM] * len(runs))
    own = array("q", [-1] * len(runs))
    keys = [key for _, key in runs]
    entries = Entries(array("q", bounds), ones, ones, ones, ones, own, roles, keys)
    return StreamEntry(stream_id, 0, bounds[-1], (), entries)


async def publish(
    store: MemoryStore,
    version: int,
    *,
    committed: int = 0,
    first_slot: int = 0,
    leaders: tuple[int, ...] = (1, 1, 2, -1),
    wal_store: WalStoreEntry | None = None,
    has_streams: bool = True,
    busy: tuple[StreamEntry, StreamEntry] | None = None,
) -> None:
    """Publish a manifest.

    committed: the end offset of the first topic's stream. wal_store: the WAL store of broker 1.
    has_streams: broker 1 may own streams. busy: the streams of the first topic.
    """
    draft = Draft(version)
    entries: list[TopicEntry] = []
    for number, (name, leader) in enumerate(zip(TOPICS, leaders, strict=True)):
        data = stream(number, committed if number == 0 else 0)
        streams = busy if busy and not number else (data, stream(10 + number, 0))
        shard = Shard(UUID(int=number), 0, (PartitionEntry(0, leader, 0, *streams),))
        section = draft.add(encode_shard(shard))
        entries.append(TopicEntry(name, UUID(int=number), 1, (section,), {}, is_internal=False))
    store_id = IN_STORE if wal_store is None else wal_store.store_id
    wals = (
        LiveWal(*ONE, WalSequence(first_slot), store_id, has_streams),
        LiveWal(*TWO, WalSequence(0)),
    )
    wal_stores = () if wal_store is None else (wal_store,)
    root = ManifestRoot(
        "c", 1, version, version, Millis(0), wals, tuple(entries), GRACE_MS, wal_stores=wal_stores
    )
    await store.put(manifest_key("c", version), b"".join(draft.finish(root)))


def slot(writer: BrokerIncarnation, sequence: int, stream_id: int, offset: int) -> bytes:
    batch = encode_batch([Record(offset, 1_000, b"k", b"v")], base_offset=offset)
    runs = [StreamRun(StreamId(stream_id), [entry_of(batch)])]
    return b"".join(
        build_object(ObjectRole.WAL, writer, WalSequence(sequence), Millis(0), runs, depth=1).chunks
    )


WAL_STORE = WalStoreEntry(WalStoreId(1), UUID(int=9), "s3://wals")


class WalStore(MemoryStore):
    """A WAL store that is replaced by an empty one after some reads of its identity."""

    def __init__(self) -> None:
        super().__init__()
        self.reads_left = 1_000

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        if key.endswith("/identity"):
            self.reads_left -= 1
        if self.reads_left < 0:
            raise ObjectNotFound(key)
        return await super().get_tail(key, length)


async def wal_store(*, slots: int, marker: bool = True) -> WalStore:
    """Return a WAL store in which slot i of broker 1 holds record i of the first topic."""
    store = WalStore()
    identity = WalStoreIdentity("c", WAL_STORE.store_id, WAL_STORE.uuid)
    await create_identity(store, identity)
    for sequence in range(slots):
        key = wal_key(ONE, WalSequence(sequence), WAL_STORE.store_id)
        await store.put(key.replace("wals/1/", "wals/"), slot(ONE, sequence, 0, sequence))
    if marker:
        key = wal_marker_key(ONE, WAL_STORE.store_id)
        await store.put(key.replace("wals/1/", "wals/"), b"{}")
    return store


def key_of(sequence: int) -> str:
    return wal_key(ONE, WalSequence(sequence), IN_STORE)


class Store(MemoryStore):
    """before_slot: called before each read of a slot."""

    def __init__(self) -> None:
        super().__init__()
        self.before_slot: Callable[[], Awaitable[None]] | None = None

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        if key.startswith("wal/") and self.before_slot is not None:
            await self.before_slot()
        return await super().get_tail(key, length)


async def filled(slots: int = 10) -> Store:
    """Return a store in which slot i of broker 1 holds record i of the first topic, and slot i of
    broker 2 record i of the last one.
    """
    store = Store()
    for sequence in range(slots):
        await store.put(key_of(sequence), slot(ONE, sequence, 0, sequence))
        await store.put(
            wal_key(TWO, WalSequence(sequence), IN_STORE), slot(TWO, sequence, 2, sequence)
        )
    await publish(store, 1)
    return store


async def ends(view: ClusterView, *topics: str) -> list[int]:
    return [state.end_offset for state in await view.partitions(topics)]


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run the test on a loop in which sleeping takes no time: a reader that finds a bad slot waits
    for a newer manifest.
    """

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        loop = VirtualLoop()
        try:
            loop.run_until_complete(test(*args, **kwargs))
        finally:
            loop.close()

    return run


@pytest.mark.parametrize("lost", [0, 3, 8])
@virtual
async def test_a_lost_slot_is_an_error_and_not_the_end_of_the_log(lost: int) -> None:
    store = await filled()
    good = await store.get(key_of(lost))
    await store.delete([key_of(lost)])
    view = ClusterView(store)
    await view.refresh()
    for _ in range(2):
        with pytest.raises(EndInDoubt, match=key_of(lost)) as raised:
            await view.partitions(["busy"])
        assert isinstance(raised.value.error, WalSlotLost)
        assert raised.value.known_end == lost
        await view.refresh()
    assert await ends(view, "other") == [10]
    assert len(await view.plan([OffsetRange("busy", 0, 0, lost)])) == lost
    with pytest.raises(EndInDoubt):
        await view.plan([OffsetRange("busy", 0, 0, lost + 1)])
    await store.put(key_of(lost), good)
    await view.refresh()
    assert await ends(view, "busy", "idle", "other") == [10, 0, 10]


@virtual
async def test_a_damaged_slot_stops_only_affected_partitions() -> None:
    store = await filled()
    await store.put(key_of(9), (await store.get(key_of(9)))[:-1] + b"?")
    view = ClusterView(store)
    await view.refresh()
    for topic in ("busy", "idle"):
        with pytest.raises(EndInDoubt, match=key_of(9)) as raised:
            await view.partitions([topic])
        assert isinstance(raised.value.error, ObjectCorrupt)
    assert await ends(view, "other") == [10]
    assert await ends(view, "idle@snapshot") == [0], "no slot can have records of a snapshot"


@virtual
async def test_a_stream_that_continues_after_a_damaged_slot_is_not_in_doubt() -> None:
    store = await filled()
    await store.put(key_of(10), slot(ONE, 10, 1, 0))
    await store.put(key_of(11), slot(ONE, 11, 0, 10))
    await store.delete([key_of(10)])
    view = ClusterView(store)
    await view.refresh()
    assert await ends(view, "busy") == [11]
    with pytest.raises(EndInDoubt):
        await view.partitions(["idle"])


@virtual
async def test_a_partition_without_a_leader_is_in_doubt_after_a_lost_slot() -> None:
    store = await filled()
    await store.delete([key_of(4)])
    await publish(store, 2, leaders=(1, 1, -1, -1))
    view = ClusterView(store)
    await view.refresh()
    with pytest.raises(EndInDoubt, match=key_of(4)):
        await view.partitions(["other"])


@virtual
async def test_records_after_a_gap_are_in_doubt_whichever_leader_the_manifest_contains() -> None:
    store = await filled()
    await store.delete([key_of(4)])
    await publish(store, 2, leaders=(2, 1, 2, -1))
    view = ClusterView(store)
    await view.refresh()
    with pytest.raises(EndInDoubt, match=key_of(4)):
        await view.partitions(["busy"])


@virtual
async def test_a_lost_slot_newer_than_the_manifest_affects_the_leaders_of_the_next_one() -> None:
    """Broker 1 has just become leader of the last topic, and lost the only slot with
    its records.
    """
    store = await filled()
    await store.put(key_of(10), slot(ONE, 10, 2, 10))
    await store.put(key_of(11), slot(ONE, 11, 0, 10))
    await store.delete([key_of(10)])
    asyncio.get_running_loop().call_later(
        2.0, lambda: pending.append(asyncio.ensure_future(publish(store, 2, leaders=(1, 1, 1, -1))))
    )
    pending: list[asyncio.Future[None]] = []
    view = ClusterView(store)
    await view.refresh()
    with pytest.raises(EndInDoubt, match=key_of(10)):
        await view.partitions(["other"])
    assert await ends(view, "busy") == [11]


async def test_slots_in_flight_after_the_end_are_ignored() -> None:
    store = await filled(3)
    batch = encode_batch([Record(9, 1_000, b"k", b"v")], base_offset=9)
    runs = [StreamRun(StreamId(0), [entry_of(batch)])]
    built = build_object(ObjectRole.WAL, ONE, WalSequence(5), Millis(0), runs, depth=3)
    await store.put(key_of(5), b"".join(built.chunks))
    view = ClusterView(store)
    await view.refresh()
    assert await ends(view, "busy") == [3]


@virtual
async def test_slots_uploaded_during_a_slow_read_are_found_in_a_newer_manifest() -> None:
    """All slots are committed and deleted while the first one is being read, and a slow read
    finishes after their grace period.
    """
    store = await filled()

    async def upload() -> None:
        store.before_slot = None
        await publish(store, 2, committed=10, first_slot=10)
        await asyncio.sleep(GRACE_MS / 1_000 + 5)
        await store.delete([key_of(sequence) for sequence in range(10)])

    store.before_slot = upload
    view = ClusterView(store)
    await view.refresh()
    assert await ends(view, "busy") == [10]


@virtual
async def test_reads_that_are_always_too_slow_are_an_error() -> None:
    store = await filled()
    versions = count(2)

    async def wait() -> None:
        await asyncio.sleep(GRACE_MS / 1_000)
        await publish(store, next(versions))

    store.before_slot = wait
    with pytest.raises(WalWalkTooSlow, match=r"wal\.delete\.grace\.ms"):
        await ClusterView(store).refresh()


@virtual
async def test_a_slow_read_is_valid_if_nothing_was_committed_meanwhile() -> None:
    store = await filled()

    async def wait() -> None:
        store.before_slot = None
        await asyncio.sleep(GRACE_MS / 1_000 + 1)

    store.before_slot = wait
    view = ClusterView(store)
    await view.refresh()
    assert await ends(view, "busy") == [10]


@pytest.mark.parametrize("reads_left", [0, 1])
@virtual
async def test_a_view_is_unchanged_if_the_wal_store_is_replaced(reads_left: int) -> None:
    store, wals = await filled(), await wal_store(slots=3)
    await publish(store, 1, wal_store=WAL_STORE)
    view = ClusterView(store, wal_store=wals)
    await view.refresh()
    await publish(store, 2, committed=3, first_slot=3, wal_store=WAL_STORE)
    wals.reads_left = reads_left
    with pytest.raises(WalStoreWrong, match="no identity object"):
        await view.refresh()
    assert (view.root.version, await ends(view, "busy")) == (1, [3])
    assert len(await view.plan([OffsetRange("busy", 0, 0, 3)])) == 3
    wals.reads_left = 1_000
    assert (await view.refresh()).version == 2


@virtual
async def test_a_view_is_unchanged_if_reading_the_wal_fails() -> None:
    store = await filled(3)
    view = ClusterView(store)
    await view.refresh()
    await publish(store, 2, committed=3, first_slot=3)

    async def fail() -> None:
        raise Unavailable("get", "wal", "the store is down")

    store.before_slot = fail
    with pytest.raises(Unavailable):
        await view.refresh()
    assert (view.root.version, await ends(view, "busy")) == (1, [3])
    store.before_slot = None
    assert (await view.refresh()).version == 2


@pytest.mark.parametrize("leader", [1, -1])
@pytest.mark.parametrize("has_streams", [True, False])
@virtual
async def test_a_missing_marker_is_an_error_only_after_a_stream_was_opened(
    leader: int, has_streams: bool
) -> None:
    """A broker registers before it writes the marker of its WAL."""
    store, wals = await filled(0), await wal_store(slots=0, marker=False)
    leaders = (leader, 1, 2, -1)
    await publish(store, 1, leaders=leaders, wal_store=WAL_STORE, has_streams=has_streams)
    view = ClusterView(store, wal_store=wals)
    await view.refresh()
    if has_streams:
        with pytest.raises(EndInDoubt, match="is gone, which was written when this WAL"):
            await ends(view, "busy")
    else:
        assert await ends(view, "busy") == [0]


IN_WAL_STORE, IN_PLACE = "wals/1/1/7/00000000000000000004", "wal/1/7/00000000000000000004"


@pytest.mark.parametrize(
    ("data", "txn", "end"),
    [
        (((3, "data/1"), (5, "data/2")), (), 5),
        (((3, "data/1"), (5, IN_PLACE), (8, "data/2")), (), 8),
        (((3, "data/1"), (5, IN_WAL_STORE), (8, "data/2")), (), 3),
        (((3, IN_WAL_STORE),), (), 0),
        (((8, "data/1"),), ((4, "data/2"), (6, IN_WAL_STORE)), 4),
        (((3, "data/1"), (8, IN_WAL_STORE)), ((6, "data/2"),), 3),
    ],
)
@virtual
async def test_without_the_wal_store_a_partition_ends_where_it_is_uploaded(
    data: tuple[tuple[int, str], ...], txn: tuple[tuple[int, str], ...], end: int
) -> None:
    store = await filled()
    await publish(store, 1, wal_store=WAL_STORE, busy=(stored(0, *data), stored(10, *txn)))
    view = ClusterView(store, uploaded_only=True)
    await view.refresh()
    # The WAL of broker 2 is in the data store.
    assert await ends(view, "busy", "other") == [end, 10]
    slices = await view.plan([OffsetRange("busy", 0, 0, end)])
    assert not [part for part in slices if part.key == IN_WAL_STORE]
    with pytest.raises(OffsetsMissing):
        await view.plan([OffsetRange("busy", 0, 0, end + 1)])
