"""The metadata of a WAL store: it is added once, brokers prove that they use the same one, and a
cluster without one writes format 1.0 unchanged.
"""

from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from penstock.base.ids import Millis, NodeEpoch, NodeId, WalSequence, WalStoreId
from penstock.controller.active.wal_store import WalStoreRegistrar
from penstock.controller.api.messages import (
    Commit,
    FeatureUpdate,
    Status,
    UpdateFeatures,
)
from penstock.controller.managers import commits, features, nodes
from penstock.controller.managers.log_changes import slot_of
from penstock.controller.managers.result import Refused
from penstock.controller.managers.wal_stores import add_wal_store
from penstock.controller.metadata.codec import encode_record
from penstock.controller.metadata.features import (
    SUPPORTED,
    WAL_STORE,
    WAL_STORE_VERSION,
    newest_levels,
)
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.records import (
    MetadataOffset,
    WalEnded,
    WalPlaced,
    WalRecord,
)
from penstock.controller.metadata.snapshot import ImageCopy
from penstock.deploy.doctor.wal_survey import survey_wals
from penstock.objectstore.errors import StoreUnknown, Unavailable
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import ObjectTail
from penstock.stream.errors import FormatUnknown
from penstock.stream.format.manifest.codec import (
    FOOTER,
    Draft,
    decode_root,
    parse_footer,
    unpack_section,
)
from penstock.stream.format.manifest.model import LiveWal, ManifestRoot, WalStoreEntry
from penstock.stream.ports import IN_STORE, WalStoreIdentity
from penstock.stream.wal.wal_store import (
    ConfiguredWalStore,
    WalStores,
    create_identity,
    identity_of,
)
from tests.support.managers_cluster import CommittedAtOnce, ManagersCluster, slot, snapshot_of
from tests.support.wal_store_cluster import (
    DOWN,
    FIRST,
    URL,
    UUID_A,
    UUID_B,
    WITHOUT,
    WalStoreCluster,
    placement,
    slot_in_place,
    wal_registration,
)


def identity(
    uuid: UUID = UUID_A, *, cluster_id: str = "", store_id: int = FIRST
) -> WalStoreIdentity:
    return WalStoreIdentity(cluster_id, WalStoreId(store_id), uuid)


@pytest.fixture
def cluster() -> ManagersCluster:
    return ManagersCluster()


@pytest.fixture
def separate() -> WalStoreCluster:
    return WalStoreCluster()


def test_a_wal_store_requires_its_feature_level(cluster: ManagersCluster) -> None:
    cluster.apply(newest_levels())
    result = add_wal_store(cluster.image, identity(cluster_id=cluster.image.cluster_id), URL)
    assert (result.status, result.records) == (Status.INVALID_FEATURE_LEVEL, [])
    assert WAL_STORE_VERSION in result.detail


def test_adding_the_same_wal_store_again_changes_nothing(separate: WalStoreCluster) -> None:
    again = add_wal_store(separate.image, separate.identity(), URL)
    assert (again.status, again.records) == (Status.OK, [])


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (identity(UUID_B), "not in store 1"),
        (identity(UUID_A, store_id=2), "not in store 2"),
    ],
)
def test_a_cluster_has_at_most_one_wal_store(
    separate: WalStoreCluster, found: WalStoreIdentity, reason: str
) -> None:
    found = found._replace(cluster_id=separate.image.cluster_id)
    result = add_wal_store(separate.image, found, URL)
    assert (result.status, result.records) == (Status.INVALID_REQUEST, [])
    assert reason in result.detail


def test_the_wal_store_of_another_cluster_is_rejected(cluster: ManagersCluster) -> None:
    cluster.apply(newest_levels(has_wal_store=True))
    result = add_wal_store(cluster.image, identity(cluster_id="other"), URL)
    assert result.status is Status.INVALID_REQUEST
    assert "'other'" in result.detail


@pytest.mark.parametrize(
    ("uuid", "store_id", "reason"),
    [
        (UUID_B, FIRST, f"has store 1 with UUID {UUID_B}"),
        (UUID_A, WalStoreId(2), "has store 2"),
    ],
)
def test_a_broker_with_another_wal_store_is_rejected(
    separate: WalStoreCluster, uuid: UUID, store_id: WalStoreId, reason: str
) -> None:
    request = wal_registration(1, wal_store_uuid=uuid, wal_store_id=store_id)
    result = nodes.register_broker(separate.image, request)
    assert (result.status, result.records) == (Status.INVALID_REQUEST, [])
    assert reason in result.detail


def test_a_broker_that_did_not_find_the_store_identity_is_rejected(
    separate: WalStoreCluster,
) -> None:
    request = wal_registration(1, wal_store_id=IN_STORE)
    result = nodes.register_broker(separate.image, request)
    assert result.status is Status.INVALID_REQUEST
    without = nodes.register_broker(separate.image, wal_registration(1, **WITHOUT))
    assert without.status is Status.INVALID_FEATURE_LEVEL


def test_a_wal_in_a_wal_store_survives_snapshots(separate: WalStoreCluster) -> None:
    writer = separate.register(wal_registration(1))
    separate.apply(
        [WalRecord(writer.node_id, writer.node_epoch, WalSequence(7), NodeId(2), NodeEpoch(9))]
    )
    loaded = MetadataImage()
    loaded.load(ImageCopy.of(separate.image).records())
    loaded.loaded(MetadataOffset(separate.image.end_offset))
    assert loaded == separate.image
    expected = separate.identity()
    assert loaded.wal_store_of(writer) == expected
    assert loaded.wal_store_identities() == [expected]


def test_a_late_copy_of_the_request_to_move_a_wal_changes_nothing(
    separate: WalStoreCluster,
) -> None:
    writer = separate.register(wal_registration(1))

    def commit(request: Commit) -> tuple[WalStoreId, tuple[WalStoreId, ...], int]:
        result = commits.commit(separate.image, request, Millis(0))
        assert result.status is Status.OK, result.detail
        separate.apply(result.records)
        assert snapshot_of(separate.image) == separate.image
        wal = separate.image.nodes.wal(writer)
        assert wal is not None
        return wal.store_id, wal.left, wal.committed

    away, back = placement(writer, 5, IN_STORE), placement(writer, 9, FIRST, UUID_A)
    assert commit(away) == (IN_STORE, (FIRST,), 5)
    assert separate.image.wal_store_of(writer) is None
    assert commit(away) == (IN_STORE, (FIRST,), 5)
    assert commit(back) == (FIRST, (IN_STORE,), 9)
    assert commit(away) == (FIRST, (IN_STORE,), 9)
    assert commit(placement(writer, 10, IN_STORE)) == (IN_STORE, (FIRST,), 10)


@pytest.mark.parametrize(
    ("store_id", "uuid"), [(FIRST, UUID_B), (FIRST, None), (WalStoreId(2), UUID_A)]
)
def test_a_wal_cannot_move_to_another_wal_store(
    separate: WalStoreCluster, store_id: WalStoreId, uuid: UUID | None
) -> None:
    writer = separate.register(wal_registration(1))
    result = commits.commit(separate.image, placement(writer, 5, store_id, uuid), Millis(0))
    assert (result.status, result.records) == (Status.INVALID_REQUEST, [])


def test_a_wal_starts_in_the_data_store_only_while_the_wal_store_is_down(
    separate: WalStoreCluster,
) -> None:
    request = wal_registration(1, wal_store_id=IN_STORE)
    down = msgspec.structs.replace(request, wal_store_uuid=None, is_wal_store_down=True)
    result = nodes.register_broker(separate.image, down)
    assert result.status is Status.OK
    assert not [record for record in result.records if isinstance(record, WalPlaced)]
    another = msgspec.structs.replace(request, wal_store_uuid=UUID_B, is_wal_store_down=True)
    refused = nodes.register_broker(separate.image, another)
    assert refused.status is Status.INVALID_REQUEST


def test_slots_can_be_committed_only_from_the_store_of_their_wal(separate: WalStoreCluster) -> None:
    writer = separate.register(wal_registration(1))
    elsewhere = slot(writer, 3)
    with pytest.raises(Refused, match="is not a slot of the WAL"):
        slot_of(separate.image, elsewhere, writer)
    assert slot_of(separate.image, slot_in_place(writer, 3), writer) == 3


@pytest.mark.parametrize(
    ("level", "has_wal_store", "reason"),
    [
        (1, False, "Local controller 7 does not support this feature"),
        (1, True, "Broker 1 does not support this feature"),
        (2, True, "Local controller 7 only supports versions 0-1"),
    ],
)
def test_the_feature_level_requires_nodes_with_a_wal_store(
    cluster: ManagersCluster, level: int, has_wal_store: bool, reason: str
) -> None:
    cluster.apply(newest_levels())
    cluster.apply(nodes.register_broker(cluster.image, wal_registration(1, **WITHOUT)).records)
    update = FeatureUpdate(name=WAL_STORE_VERSION, level=level, type=1)
    result = features.update_features(
        cluster.image,
        UpdateFeatures(updates=[update]),
        controller_id=7,
        has_wal_store=has_wal_store,
    )
    assert result.status is Status.INVALID_FEATURE_LEVEL
    assert reason in result.detail


def test_the_feature_level_cannot_be_lowered_while_a_wal_store_is_used(
    separate: WalStoreCluster,
) -> None:
    update = FeatureUpdate(name=WAL_STORE_VERSION, level=0, type=3)
    request = UpdateFeatures(updates=[update])
    result = features.update_features(separate.image, request, controller_id=7, has_wal_store=True)
    assert result.status is Status.INVALID_FEATURE_LEVEL


def test_without_a_wal_store_the_records_are_in_format_1_0(
    cluster: ManagersCluster,
) -> None:
    assert WAL_STORE not in SUPPORTED
    assert {record.name for record in newest_levels()} == {feature.name for feature in SUPPORTED}
    request = wal_registration(1, **WITHOUT)
    result = nodes.register_broker(cluster.image, request)
    _, wal = result.records
    assert encode_record(wal).hex() == "96a377616c0101" + "00" + "ffff"
    cluster.apply(result.records)
    tags = [type(record).__name__ for record in ImageCopy.of(cluster.image).records()]
    assert WalPlaced.__name__ not in tags
    assert "WalStoreRecord" not in tags


def test_without_a_wal_store_the_manifest_is_in_format_1_0() -> None:
    wals = (LiveWal(NodeId(3), NodeEpoch(17), WalSequence(5)),)
    root = ManifestRoot("c", 4, 1, 99, Millis(0), wals, (), 60_000, {})
    tail = b"".join(Draft(1).finish(root))
    footer = parse_footer(tail, len(tail), "k")
    at = footer.root
    raw = unpack_section(tail[at.position : at.position + at.stored_bytes], at, "k")
    # the root of section 7.1 in docs/reference/formats.md, without topics
    assert raw.hex() == "99a163040163009193031105" + "90" + "cdea60" + "80"
    assert FOOTER.unpack(tail[-FOOTER.size :])[6] == 0


def test_readers_of_format_1_0_reject_a_manifest_with_a_wal_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    placed = (LiveWal(NodeId(3), NodeEpoch(17), WalSequence(5), FIRST),)
    stores = (WalStoreEntry(FIRST, UUID_A, URL),)
    whole = ManifestRoot("c", 4, 1, 99, Millis(0), placed, (), 60_000, {}, stores)
    tail = b"".join(Draft(1).finish(whole))
    footer = parse_footer(tail, len(tail), "k")
    at = footer.root
    raw = unpack_section(tail[at.position : at.position + at.stored_bytes], at, "k")
    assert decode_root(raw, footer, "k") == whole
    monkeypatch.setattr("penstock.stream.format.manifest.codec.FEATURES_KNOWN", 0)
    with pytest.raises(FormatUnknown, match="object k has required features 0x00000001"):
        parse_footer(tail, len(tail), "k")


class UnreliableStore(MemoryStore):
    """Counts reads of the store identity, which fail while the store is down."""

    def __init__(self, *, is_down: bool = False) -> None:
        super().__init__()
        self.is_down = is_down
        self.read_count = 0

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        self.read_count += 1
        if self.is_down:
            raise Unavailable("GET", key, "it is down")
        return await super().get_tail(key, length)


def registrar(cluster: ManagersCluster, store: MemoryStore) -> WalStoreRegistrar:
    stores = WalStores(MemoryStore(), ConfiguredWalStore(store, URL))
    runtime = cast("Any", CommittedAtOnce(cluster))
    return WalStoreRegistrar(runtime, stores, cluster.image.cluster_id, lambda: UUID_B)


async def test_a_new_leader_does_not_wait_for_a_listed_wal_store(
    separate: WalStoreCluster,
) -> None:
    store = UnreliableStore(is_down=True)
    await registrar(separate, store).try_first()
    assert store.read_count == 0


@pytest.mark.parametrize("has_identity", [False, True])
async def test_a_wal_store_of_an_earlier_cluster_is_not_used(
    cluster: ManagersCluster, has_identity: bool
) -> None:
    cluster.apply(newest_levels(has_wal_store=True))
    store = MemoryStore()
    earlier = identity(cluster_id=cluster.image.cluster_id)
    if has_identity:
        await create_identity(store, earlier)
    await store.put("wals/1/1/open", b"{}")
    await registrar(cluster, store).try_first()
    assert list(cluster.image.nodes.wal_stores()) == []
    assert await identity_of(store) == (earlier if has_identity else None)
    await store.delete(["wals/1/1/open"])
    await registrar(cluster, store).try_first()
    found = [listed.uuid for listed in cluster.image.nodes.wal_stores()]
    assert found == [UUID_A if has_identity else UUID_B]


async def test_the_janitor_sends_one_request_to_an_unavailable_wal_store(
    separate: WalStoreCluster, tmp_path: Path
) -> None:
    store = UnreliableStore()
    await create_identity(store, separate.identity())
    for number in (1, 2, 3):
        writer = separate.register(wal_registration(number))
        separate.apply([WalEnded(*writer, WalSequence(1))])
        await store.put(f"wals/{number}/{writer.node_epoch}/{0:020d}", b"x")
    stores = WalStores(MemoryStore(), ConfiguredWalStore(store, URL))
    stores.follow([FIRST])
    janitor = separate.janitor(stores, tmp_path)
    assert await janitor.clean_ended_wals() == 0
    separate.now_s, store.is_down, store.read_count = 1e6, True, 0
    assert (await janitor.clean_ended_wals(), store.read_count) == (0, 1)
    store.is_down = False
    assert await janitor.clean_ended_wals() == 3
    separate.now_s, store.is_down, store.read_count = 2e6, True, 0
    assert (await janitor.remove_old_wals(), store.read_count) == (0, 1)
    store.is_down = False
    assert await janitor.remove_old_wals() == 3


@pytest.mark.parametrize("places", [(IN_STORE,), (IN_STORE, FIRST)])
async def test_the_janitor_cleans_all_stores_of_a_wal(
    separate: WalStoreCluster, tmp_path: Path, places: tuple[WalStoreId, ...]
) -> None:
    wals, main = UnreliableStore(), MemoryStore()
    await create_identity(wals, separate.identity())
    writer = separate.register(wal_registration(1))
    for first, store_id in enumerate(places, 1):
        uuid = None if store_id == IN_STORE else UUID_A
        request = placement(writer, first, store_id, uuid)
        separate.apply(commits.commit(separate.image, request, Millis(0)).records)
    for store in (main, wals):
        for sequence in (0, 1):
            root = "wal" if store is main else "wals"
            await store.put(f"{root}/1/{writer.node_epoch}/{sequence:020d}", b"x")
    separate.apply([WalEnded(*writer, WalSequence(9))])
    stores = WalStores(main, ConfiguredWalStore(wals, URL))
    stores.follow([FIRST])
    janitor = separate.janitor(stores, tmp_path)
    assert await janitor.clean_ended_wals() == 0
    separate.now_s, wals.is_down = 1e6, True
    assert await janitor.clean_ended_wals() == 0
    wals.is_down = False
    await janitor.clean_ended_wals()
    assert [info.key async for info in main.list("")] == []
    assert [info.key async for info in wals.list("")] == ["wals/identity"]


async def test_the_janitor_deletes_the_marker_of_a_move_that_did_not_happen(
    separate: WalStoreCluster, tmp_path: Path
) -> None:
    wals, main = UnreliableStore(), MemoryStore()
    await create_identity(wals, separate.identity())
    writer = separate.register(wal_registration(1, **DOWN))
    separate.apply([WalEnded(*writer, WalSequence(3))])
    await wals.put(f"wals/1/{writer.node_epoch}/open", b"{}")
    stores = WalStores(main, ConfiguredWalStore(wals, URL))
    stores.follow([FIRST])
    janitor = separate.janitor(stores, tmp_path)
    await janitor.clean_ended_wals()
    separate.now_s = 1e6
    await janitor.clean_ended_wals()
    separate.now_s = 2e6
    assert await janitor.remove_old_wals() == 1
    assert [info.key async for info in wals.list("")] == ["wals/identity"]


async def test_an_inventory_without_access_to_the_wal_store_reports_it(
    separate: WalStoreCluster,
) -> None:
    separate.register(wal_registration(1))
    with pytest.raises(StoreUnknown, match="wals/1/1/"):
        await survey_wals(WalStores(MemoryStore()), separate.image)
