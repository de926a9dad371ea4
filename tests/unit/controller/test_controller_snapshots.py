"""Metadata snapshots in the object store are complete and verified, and a few are kept."""

import asyncio

import pytest

from penstock.controller.api.errors import SnapshotCorrupt
from penstock.controller.backup.snapshots import SnapshotStore, copy_image
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import ClusterRecord, KeyValueRecord, MetadataOffset
from penstock.controller.raft.messages import Base, Members
from penstock.objectstore.memory import MemoryStore
from penstock.stream.errors import FormatUnknown
from penstock.stream.format.keys import snapshot_key
from tests.support.newer_formats import METADATA_HEADER_BYTES, with_metadata_version

EPOCH = 3


def image(keys: int) -> MetadataImage:
    made = MetadataImage()
    made.apply_all(
        [ClusterRecord("c"), *(KeyValueRecord(f"k{number}", b"v") for number in range(keys))]
    )
    return made


async def save(snapshots: SnapshotStore, keys: int) -> MetadataImage:
    made = image(keys)
    copied, offset = copy_image(made)
    await snapshots.save(copied, Base(7, EPOCH, offset, Members((0, 1, 2))))
    return made


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def snapshots(store: MemoryStore) -> SnapshotStore:
    return SnapshotStore(store, "c", kept=2)


async def test_a_snapshot_restores_the_image(snapshots: SnapshotStore) -> None:
    assert await snapshots.load_newest() is None
    made = await save(snapshots, 5_000)
    await save(snapshots, 5_000)
    loaded = await snapshots.load_newest()
    assert loaded is not None
    assert loaded.base == Base(7, EPOCH, made.end_offset, Members((0, 1, 2)))
    assert loaded.image == made


async def test_saving_and_loading_yield_to_the_event_loop(snapshots: SnapshotStore) -> None:
    """The quorum's heartbeats share the event loop: one iteration may process only a few thousand
    of the 40,000 records.
    """
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    await save(snapshots, 40_000)
    of_saving, turns = turns, 0
    assert await snapshots.load_newest() is not None
    other.cancel()
    assert min(of_saving, turns) >= 10


async def test_damaged_snapshots_are_skipped(store: MemoryStore, snapshots: SnapshotStore) -> None:
    older = await save(snapshots, 1)
    newer = await save(snapshots, 2)
    key = snapshot_key("c", newer.end_offset, EPOCH)
    whole = await store.get(key)
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        await store.put(key, bytes(damaged))
        loaded = await snapshots.load_newest()
        assert loaded is not None
        assert loaded.image == older, f"byte {at}"
        assert loaded.passed_over is not None
        assert loaded.passed_over.key == key
    await store.put(key, whole[:5])
    loaded = await snapshots.load_newest()
    assert loaded is not None
    assert loaded.image == older


async def test_a_snapshot_in_a_newer_format_is_not_skipped(
    store: MemoryStore, snapshots: SnapshotStore
) -> None:
    """A controller that started from an older snapshot would lose the changes since then."""
    await save(snapshots, 1)
    newer = await save(snapshots, 2)
    key = snapshot_key("c", newer.end_offset, EPOCH)
    whole = await store.get(key)
    await store.put(key, with_metadata_version(whole, 3))
    with pytest.raises(FormatUnknown, match=rf"{key} has format version 3.* is not damaged"):
        await snapshots.load_newest()
    # An unknown record type stops the controller as well.
    tail = whole[METADATA_HEADER_BYTES:].replace(b"\xa7cluster", b"\xa7clunter")
    await store.put(key, with_metadata_version(whole[:METADATA_HEADER_BYTES] + tail, 2))
    with pytest.raises(FormatUnknown, match="a record 'clunter'"):
        await snapshots.load_newest()


async def test_a_damaged_response_does_not_count_as_a_damaged_snapshot(
    store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    responses: list[bytes] = []

    class Damaging(MemoryStore):
        async def get(self, key: str) -> bytes:
            responses.append(await store.get(key))
            return responses[-1][:-1] if len(responses) == 1 else responses[-1]

    await save(SnapshotStore(store, "c", kept=2), 1)
    newer = await save(SnapshotStore(store, "c", kept=2), 2)
    damaging = Damaging()
    monkeypatch.setattr(damaging, "list", store.list)
    loaded = await SnapshotStore(damaging, "c", kept=2).load_newest()
    assert loaded is not None
    assert (loaded.image, loaded.passed_over, len(responses)) == (newer, None, 2)


async def test_startup_reports_that_no_snapshot_is_intact(
    store: MemoryStore, snapshots: SnapshotStore
) -> None:
    made = await save(snapshots, 1)
    await store.put(snapshot_key("c", made.end_offset, EPOCH), b"rubbish")
    with pytest.raises(SnapshotCorrupt):
        await snapshots.load_newest()


async def test_the_newest_snapshots_are_kept_and_the_log_since_the_second_newest_one(
    store: MemoryStore, snapshots: SnapshotStore
) -> None:
    offsets: list[MetadataOffset] = []
    for keys in (1, 2, 3, 4):
        offsets.append((await save(snapshots, keys)).end_offset)
        previous = await snapshots.drop_old()
        assert previous == (offsets[-2] if len(offsets) > 1 else 0)
    assert len([info async for info in store.list("meta/c/")]) == 2
