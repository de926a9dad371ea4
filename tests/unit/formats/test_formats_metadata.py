"""Run Penstock's own metadata and lease decoders on the conformance vectors."""

from typing import Any

import msgspec
import pytest

from penstock.base.ids import Millis
from penstock.controller.active.leases import LeaseBook
from penstock.controller.api.errors import BackupCorrupt, SnapshotCorrupt
from penstock.controller.backup.layout import LogObject, unpack
from penstock.controller.backup.log import BackupLog
from penstock.controller.backup.snapshots import SnapshotStore
from penstock.controller.metadata.codec import decode_record, encode_raw
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import Record
from penstock.controller.metadata.snapshot import ImageCopy
from penstock.controller.raft.messages import Base
from penstock.objectstore.memory import MemoryStore
from penstock.stream.errors import FormatUnknown
from penstock.stream.format.keys import parse_backup_key, parse_lease_key
from tests.formats.batches import BASE_MS
from tests.formats.generate import HERE
from tests.formats.metadata_objects import CLUSTER, RECORDS
from tests.unit.formats.test_formats_vectors import bucket_of, expected_of

VECTORS = sorted(path.stem for path in (HERE / "metadata").glob("*.json"))
ERRORS: dict[str, tuple[type[Exception], ...]] = {
    "newer": (FormatUnknown,),
    "damaged": (BackupCorrupt, SnapshotCorrupt),
}


def of_kind(kind: str) -> list[str]:
    return [name for name in VECTORS if vector(name)[1]["kind"] == kind]


def vector(name: str) -> tuple[bytes, dict[str, Any]]:
    return (HERE / f"metadata/{name}.bin").read_bytes(), expected_of(HERE / f"metadata/{name}.json")


async def store_of(objects: dict[str, bytes]) -> MemoryStore:
    store = MemoryStore()
    for key, data in objects.items():
        await store.put(key, data)
    return store


def plain(record: Record) -> Any:
    """Return a record in the form of the expected results."""

    def shown(value: Any) -> Any:
        if isinstance(value, bytes):
            return value.hex()
        return [shown(item) for item in value] if isinstance(value, list) else value

    (raw,) = encode_raw([record])
    return shown(msgspec.msgpack.decode(raw))


def base_of(base: Base) -> Any:
    return msgspec.json.decode(msgspec.json.encode(base))


@pytest.mark.parametrize("name", of_kind("snapshot"))
async def test_metadata_snapshot_vectors(name: str) -> None:
    data, expected = vector(name)
    snapshots = SnapshotStore(await store_of({expected["key"]: data}), CLUSTER, kept=2)
    if "error" in expected:
        with pytest.raises(ERRORS[expected["error"]]):
            await snapshots.load_newest()
        return
    loaded = await snapshots.load_newest()
    assert loaded is not None
    assert base_of(loaded.base) == [
        expected[name] for name in ("index", "term", "offset", "members")
    ]
    image = MetadataImage()
    image.apply_all(RECORDS)
    assert loaded.image == image
    found = [plain(record) for record in ImageCopy.of(loaded.image).records()]
    assert found == expected["records"]


def unpacked(data: bytes, key: str) -> LogObject:
    first = parse_backup_key(CLUSTER, key)
    assert first is not None
    return unpack(key, first, CLUSTER, data)


@pytest.mark.parametrize("name", of_kind("log"))
def test_metadata_log_object_vectors(name: str) -> None:
    data, expected = vector(name)
    if "error" in expected:
        with pytest.raises(ERRORS[expected["error"]]):
            [decode_record(raw) for raw in unpacked(data, expected["key"]).records]
        return
    found = unpacked(data, expected["key"])
    assert base_of(found.base) == [
        expected[name] for name in ("index", "term", "offset", "members")
    ]
    for field in ("first_offset", "created_ms", "cluster_id", "is_fence", "end_offset"):
        assert getattr(found, field) == expected[field]
    assert [plain(decode_record(raw)) for raw in found.records] == expected["records"]


@pytest.mark.parametrize("name", of_kind("lease"))
async def test_lease_vectors(name: str) -> None:
    data, expected = vector(name)
    if "error" not in expected:
        lease_id, serial = parse_lease_key(CLUSTER, expected["key"]) or (None, None)
        assert (str(lease_id), serial) == (expected["lease_id"], expected["serial"])
    store = await store_of({expected["key"]: data})
    # By the clock of the store, the object is younger than its manifest.
    book = LeaseBook(store, CLUSTER, now=lambda: 0.0, now_ms=lambda: Millis(BASE_MS + 1))
    assert await book.protected_from() == expected["holds_from"]


async def test_the_objects_of_the_metadata_log_form_a_chain() -> None:
    folder = HERE / "chains/metadata-log"
    expected = expected_of(folder / "expected.json")
    store = await store_of(bucket_of(folder / "bucket"))
    loaded = await SnapshotStore(store, CLUSTER, kept=2).load_newest()
    assert loaded is not None
    assert loaded.offset == expected["snapshot_offset"]
    log = BackupLog(store, CLUSTER)
    tail = await log.tail((await log.listed()).first_offsets, loaded.offset)
    found = [decode_record(raw) for raw in tail.records]
    assert [plain(record) for record in found] == expected["records_behind_the_snapshot"]
    assert tail.end == expected["end_offset"]
    assert (tail.fence is not None) == expected["ended_by_fence"]
    assert await log.end() == expected["next_history"]


def test_every_metadata_format_has_vectors() -> None:
    assert all(len(of_kind(kind)) > 3 for kind in ("snapshot", "log", "lease"))
