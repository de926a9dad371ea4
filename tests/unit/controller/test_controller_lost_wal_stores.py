"""Abandoning a WAL store: permission, consequences, and replacement of lost ranges."""

from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from penstock.base.ids import Millis, ObjectId, Offset, StreamId, WalSequence, WalStoreId
from penstock.controller.active.dead_wals import DeadWals
from penstock.controller.active.lost_ranges import LostRanges
from penstock.controller.active.wal_store import WalStoreRegistrar, why_not_lost
from penstock.controller.api.messages import (
    AbandonWalStore,
    CommitObject,
    FeatureUpdate,
    Status,
    UpdateFeatures,
)
from penstock.controller.disaster_recovery.plan import END_UNKNOWN, gaps_of_lost_stores
from penstock.controller.managers import commits, elections, failover, features, lost_ranges, nodes
from penstock.controller.managers.log_changes import slot_of
from penstock.controller.managers.lost_ranges import objects_in
from penstock.controller.managers.result import Refused, Result
from penstock.controller.managers.wal_stores import abandon_wal_store, add_wal_store
from penstock.controller.metadata.features import (
    WAL_STORE_VERSION,
)
from penstock.controller.metadata.internal_topics import OFFSETS_TOPIC
from penstock.controller.metadata.records import StreamTrimmed, WalStoreLost, WalStoreRecord
from penstock.objectstore.errors import Unavailable
from penstock.objectstore.memory import MemoryStore
from penstock.objectstore.ports import ObjectTail
from penstock.stream.format.decoder import NeedMore, parse_tail
from penstock.stream.format.keys import wal_key
from penstock.stream.ports import IN_STORE, BrokerIncarnation
from penstock.stream.wal import wal_store
from penstock.stream.wal.wal_store import (
    ConfiguredWalStore,
    WalStores,
    create_identity,
    identity_of,
)
from tests.support.managers_cluster import (
    CommittedAtOnce,
    ManagersCluster,
    part,
    snapshot_of,
    uploaded,
)
from tests.support.wal_store_cluster import (
    DOWN,
    FIRST,
    NEW,
    OTHER_URL,
    SECOND,
    URL,
    UUID_A,
    UUID_B,
    WITHOUT,
    WalStoreCluster,
    placement,
    slot_in_place,
    wal_registration,
)


class LostStore(WalStoreCluster):
    """Broker 1 has its WAL in the WAL store, broker 2 in the cluster's store."""

    def __init__(self) -> None:
        super().__init__()
        self.one = self.register(wal_registration(1))
        self.two = self.register(wal_registration(2, **DOWN))

    def in_place(self, sequence: int, *ranges: Any) -> CommitObject:
        return slot_in_place(self.one, sequence, *ranges)

    def abandon(self, status: Status = Status.OK, *, leases_end_in_s: float = 0.0) -> str:
        request = AbandonWalStore(store_id=FIRST, uuid=UUID_A)
        result = abandon_wal_store(self.image, request, leases_end_in_s)
        self.run(result, status)
        return result.detail


@pytest.fixture
def cluster() -> LostStore:
    return LostStore()


def test_a_store_can_be_abandoned_once_and_only_without_live_brokers(cluster: LostStore) -> None:
    assert "live brokers 1 are" in cluster.abandon(Status.INVALID_REQUEST)
    cluster.die(cluster.one)
    cluster.abandon(Status.NODE_IN_USE, leases_end_in_s=0.5)
    for store_id, uuid in ((SECOND, UUID_A), (FIRST, UUID_B)):
        wrong = AbandonWalStore(store_id=store_id, uuid=uuid)
        result = abandon_wal_store(cluster.image, wrong, 0.0)
        assert (result.status, result.records) == (Status.INVALID_REQUEST, [])
        assert f"known are: 1 with UUID {UUID_A}" in result.detail
    cluster.abandon()
    before = cluster.image.end_offset
    cluster.abandon(leases_end_in_s=9.0)
    assert cluster.image.end_offset == before
    assert cluster.image.current_wal_store is None
    assert snapshot_of(cluster.image) == cluster.image


def test_a_store_is_abandoned_two_session_timeouts_after_its_last_writer_died(
    cluster: LostStore,
) -> None:
    now = 0.0
    dead = DeadWals(6_000, lambda: now)
    dead.note(cluster.image)
    cluster.die(cluster.one)
    now = 100.0
    assert dead.wait_s(cluster.image, FIRST) == 12.0
    now = 111.0
    assert dead.wait_s(cluster.image, FIRST) == 1.0
    assert dead.wait_s(cluster.image, SECOND) == 0.0
    now = 112.0
    assert dead.wait_s(cluster.image, FIRST) == 0.0


def test_an_abandoned_store_is_no_longer_used(cluster: LostStore) -> None:
    cluster.topic("t")
    cluster.open_led(cluster.one)
    cluster.die(cluster.one)
    cluster.abandon()
    image = cluster.image
    assert failover.assign_recoveries(image, cluster.live) == []
    cluster.recover(cluster.two, cluster.one, end=0, status=Status.WAL_NOT_RECOVERABLE)
    with pytest.raises(Refused, match="which was abandoned"):
        slot_of(image, cluster.in_place(0), cluster.one)
    back = placement(cluster.two, 5, FIRST, UUID_A)
    assert commits.commit(image, back, Millis(0)).status is Status.INVALID_REQUEST
    stays = msgspec.structs.replace(back, wal_store_id=IN_STORE, wal_store_uuid=None)
    assert commits.commit(image, stays, Millis(0)).status is Status.OK
    update = FeatureUpdate(name=WAL_STORE_VERSION, level=0, type=2)
    request = UpdateFeatures(updates=[update])
    lower = features.update_features(image, request, controller_id=0, has_wal_store=True)
    assert "were, in a WAL store" in lower.detail
    for number, changes in enumerate(({}, DOWN), 7):
        writer = cluster.register(wal_registration(number, **changes))
        wal = image.nodes.wal(writer)
        assert wal is not None
        assert wal.store_id == IN_STORE


def test_brokers_do_not_need_an_abandoned_wal_store(cluster: LostStore) -> None:
    request = wal_registration(3, **WITHOUT, is_without_wal_store=True)
    refused = nodes.register_broker(cluster.image, request)
    assert refused.status is Status.INVALID_FEATURE_LEVEL
    cluster.die(cluster.one)
    cluster.abandon()
    three = cluster.register(request)
    old_software = nodes.register_broker(cluster.image, wal_registration(4, **WITHOUT))
    assert old_software.status is Status.INVALID_FEATURE_LEVEL

    found = cluster.identity(SECOND, UUID_B)
    for url, identity, reason in (
        (OTHER_URL, found, "brokers 2, 3 are not configured"),
        (URL, found, "use another bucket"),
    ):
        assert reason in add_wal_store(cluster.image, identity, url).detail
    cluster.die(three)
    for number, changes in enumerate(({}, DOWN, {**NEW, "wal_store_url": URL}), 100):
        cluster.register(wal_registration(2, incarnation_id=UUID(int=number), **changes))
        assert "brokers 2 are" in add_wal_store(cluster.image, found, OTHER_URL).detail
    cluster.register(wal_registration(2, incarnation_id=UUID(int=99), **NEW))
    again = add_wal_store(cluster.image, cluster.identity(), OTHER_URL)
    assert "has ended: use an empty prefix" in again.detail
    cluster.run(add_wal_store(cluster.image, found, OTHER_URL))
    assert cluster.image.current_wal_store == found
    assert nodes.register_broker(cluster.image, request).status is Status.INVALID_FEATURE_LEVEL
    assert snapshot_of(cluster.image) == cluster.image


def test_dead_wals_end_at_their_committed_slots(cluster: LostStore) -> None:
    (record,) = cluster.topic("t")
    cluster.open_led(cluster.one)
    cluster.die(cluster.one)
    assert failover.lost_wals(cluster.image) == []
    assert failover.end_lost_wals(cluster.image, [cluster.one], Millis(0), live=cluster.live) == []
    cluster.abandon()
    lost, _ = gaps_of_lost_stores(cluster.image, {FIRST})
    assert [(gap.topic, gap.start_offset, gap.end_offset) for gap in lost] == [
        ("t", 0, END_UNKNOWN)
    ]
    assert failover.lost_wals(cluster.image) == [cluster.one]
    assert failover.end_lost_wals(cluster.image, [], Millis(0), live=cluster.live) == []
    cluster.apply(
        failover.end_lost_wals(cluster.image, [cluster.one], Millis(0), live=cluster.live)
    )
    wal = cluster.image.nodes.wal(cluster.one)
    assert wal is not None
    assert wal.end == 0
    (led,) = cluster.partitions("t")
    assert (led.leader, led.leader_epoch) == (2, record.leader_epoch + 1)
    assert led.undeleted_epoch == led.leader_epoch, "open transactions are not aborted"


def test_a_partition_that_moves_later_aborts_open_transactions(cluster: LostStore) -> None:
    """While no broker is live, a partition that was moving away from a dead broker has no leader.
    Its next leader has a later epoch than the dead one, whose transactions it aborts.
    """
    cluster.topic("t")
    cluster.open_led(cluster.one)
    cluster.move("t", 0, 2)
    for node in (cluster.one, cluster.two):
        cluster.die(node)
    cluster.abandon()
    cluster.apply(failover.end_lost_wals(cluster.image, [cluster.one], Millis(0), live=()))
    third = cluster.register(wal_registration(3, **DOWN))
    cluster.apply(elections.elect_leaderless(cluster.image, cluster.live, Millis(0)))
    (led,) = cluster.partitions("t")
    assert led.leader == third.node_id
    assert led.undeleted_epoch == led.leader_epoch, "transactions of the dead leader stay open"


def test_brokers_that_may_not_reach_the_wal_store_recover_only_if_there_are_no_others(
    cluster: LostStore,
) -> None:
    """Broker 2 has left the WAL store, perhaps because only it does not reach the store."""

    def recoverer() -> BrokerIncarnation:
        wal = cluster.image.nodes.wal(cluster.one)
        assert wal is not None
        return wal.recoverer

    cluster.topic("t")
    cluster.die(cluster.one)
    cluster.tick()
    assert recoverer() == cluster.two
    third = cluster.register(wal_registration(3))
    cluster.tick()
    assert recoverer() == third
    before = cluster.image.end_offset
    cluster.tick()
    assert cluster.image.end_offset == before
    cluster.die(third)
    cluster.tick()
    assert recoverer() == cluster.two


async def _replace_all(cluster: LostStore) -> MemoryStore:
    store = MemoryStore()
    task = LostRanges(cast("Any", CommittedAtOnce(cluster)), store, now_ms=lambda: Millis(5))
    while await task.step():
        pass
    return store


def _recovered(cluster: LostStore, *items: CommitObject) -> tuple[StreamId, ...]:
    """Let broker 2 commit slots of broker 1 in place; return the streams."""
    record = next(iter(cluster.image.topics)).partitions[0]
    cluster.die(cluster.one)
    cluster.tick()
    cluster.recover(cluster.two, cluster.one, *items, end=len(items))
    cluster.open_led(cluster.two)
    cluster.abandon()
    return record.data_stream_id, record.txn_stream_id, record.meta_stream_id


class _UnavailableAtFirst(MemoryStore):
    failures = 0

    async def get_tail(self, key: str, length: int) -> ObjectTail:
        if self.failures:
            self.failures -= 1
            raise Unavailable("GET", key, "down")
        return await super().get_tail(key, length)


@pytest.mark.parametrize(
    ("failures", "reason"),
    [
        pytest.param(None, "set wal.store on all controllers", id="not configured"),
        pytest.param(0, "is not lost", id="readable"),
        pytest.param(1, "is not lost", id="readable again"),
        pytest.param(99, "", id="down"),
    ],
)
async def test_a_store_counts_as_lost_if_it_cannot_be_read(
    cluster: LostStore, monkeypatch: pytest.MonkeyPatch, failures: int | None, reason: str
) -> None:
    monkeypatch.setattr(wal_store, "READ_INTERVAL_S", 0.0)
    identity, store = cluster.identity(), _UnavailableAtFirst()
    await create_identity(store, identity)
    stores = WalStores(MemoryStore())
    if failures is not None:
        store.failures = failures
        stores = WalStores(MemoryStore(), ConfiguredWalStore(store, URL))
        stores.follow([FIRST])
    found = await why_not_lost(stores, identity)
    assert reason in found
    assert bool(found) == bool(reason)


async def test_lost_ranges_are_replaced_by_empty_batches(cluster: LostStore) -> None:
    (record,) = cluster.topic("t")
    cluster.open_led(cluster.one)
    data, meta = record.data_stream_id, record.meta_stream_id
    (first,) = cluster.prepare(cluster.one)
    cluster.commit(cluster.one, uploaded(first, part(data, 0, 10)))
    slots = [
        cluster.in_place(0, part(data, 10, 12), part(meta, 0, 2)),
        cluster.in_place(1, part(data, 12, 15)),
    ]
    _recovered(cluster, *slots)
    (last,) = cluster.prepare(cluster.two)
    cluster.commit(
        cluster.two,
        uploaded(last, part(data, 15, 20)),
    )
    lost, removed = gaps_of_lost_stores(cluster.image, {FIRST})
    assert [(gap.start_offset, gap.end_offset) for gap in lost] == [(10, 12), (12, 15)]
    assert removed == []
    objects = cluster.image.objects
    assert (objects.wal_store_bytes, objects.wal_store_oldest_ms()) == (200, cluster.now_ms)
    store = await _replace_all(cluster)
    assert (objects.wal_store_bytes, objects.wal_store_oldest_ms()) == (0, None)
    spans = [(start, end) for start, end, _ in cluster.spans(data)]
    assert spans == [(0, 10), (10, 15), (15, 20)]
    assert cluster.spans(meta) == []
    assert not objects_in(cluster.image, {FIRST})
    (info,) = [info async for info in store.list("")]
    content = await store.get(info.key)
    index = parse_tail(content, len(content), info.key)
    assert not isinstance(index, NeedMore)
    found = [(item.stream_id, item.start_offset, item.end_offset) for item in index.ranges]
    assert found == [(data, 10, 15)]
    assert index.ranges[0].record_count == 0
    assert snapshot_of(cluster.image) == cluster.image


class _Refusing(CommittedAtOnce):
    """A runtime that rejects one type of request, for example because its queue is full."""

    def __init__(self, cluster: LostStore, name: str) -> None:
        super().__init__(cluster)
        self._refused_name = name

    async def submit(self, name: str, work: Any) -> Result[Any]:
        if name == self._refused_name:
            work(self.image, Millis(0))
            return Result(status=Status.CONTROLLER_BUSY, detail="busy")
        return await super().submit(name, work)


@pytest.mark.parametrize(
    ("name", "objects"), [("TrimLostRanges", 0), ("PrepareObjects", 0), ("ReplaceLostRanges", 1)]
)
async def test_a_rejected_change_ends_the_round(
    cluster: LostStore, name: str, objects: int
) -> None:
    (record,) = cluster.topic("t")
    cluster.open_led(cluster.one)
    _recovered(cluster, cluster.in_place(0, part(record.data_stream_id, 0, 10)))
    store = MemoryStore()
    runtime = cast("Any", _Refusing(cluster, name))
    with pytest.raises(Refused, match="busy"):
        await LostRanges(runtime, store, now_ms=lambda: Millis(5)).step()
    assert len([info async for info in store.list("")]) == objects
    assert objects_in(cluster.image, {FIRST})


async def test_the_round_ends_if_all_its_ranges_have_changed(cluster: LostStore) -> None:
    (record,) = cluster.topic("t")
    cluster.open_led(cluster.one)
    stream_id = record.data_stream_id
    _recovered(cluster, cluster.in_place(0, part(stream_id, 0, 10)))

    class Trimming(MemoryStore):
        async def put(self, key: str, body: Any) -> str:
            cluster.apply([StreamTrimmed(stream_id, Offset(10))])
            return await super().put(key, body)

    task = LostRanges(cast("Any", CommittedAtOnce(cluster)), Trimming(), now_ms=lambda: Millis(5))
    with pytest.raises(Refused):
        await task.step()
    assert not await task.step()


@pytest.mark.parametrize(("limit", "rounds"), [(1, 5), (2, 3), (3, 2), (5, 1)])
async def test_a_transaction_replaces_a_limited_number_of_entries(
    cluster: LostStore, monkeypatch: pytest.MonkeyPatch, limit: int, rounds: int
) -> None:
    monkeypatch.setattr(lost_ranges, "ENTRIES_MAX", limit)
    led = [item for item in cluster.topic("t", 3) if item.leader == cluster.one.node_id]
    cluster.open_led(cluster.one)
    one, other = (item.data_stream_id for item in led)
    slots = [
        cluster.in_place(0, part(one, 0, 10), part(other, 0, 3)),
        cluster.in_place(1, part(one, 10, 12), part(other, 3, 5)),
        cluster.in_place(2, part(one, 12, 15)),
    ]
    _recovered(cluster, *slots)
    store = await _replace_all(cluster)
    assert len([info async for info in store.list("")]) == rounds
    assert not objects_in(cluster.image, {FIRST})
    for stream_id, end in ((one, 15), (other, 5)):
        spans = [(start, stop) for start, stop, _ in cluster.spans(stream_id)]
        assert (spans[0][0], spans[-1][1]) == (0, end)
    assert snapshot_of(cluster.image) == cluster.image


async def test_data_of_a_transaction_whose_end_was_lost_is_removed(cluster: LostStore) -> None:
    (record,) = cluster.topic("t")
    cluster.open_led(cluster.one)
    data, txn = record.data_stream_id, record.txn_stream_id
    slots = [
        cluster.in_place(0, part(data, 0, 10)),
        cluster.in_place(1, part(data, 10, 12), part(txn, 0, 12)),
        cluster.in_place(2, part(data, 12, 15)),
    ]
    _recovered(cluster, *slots)
    await _replace_all(cluster)
    assert [(start, end) for start, end, _ in cluster.spans(data)] == [(12, 15)]
    assert cluster.spans(txn) == []
    stream = cluster.image.streams.known(data)
    assert (stream.start_offset, stream.end_offset) == (12, 15)
    assert cluster.image.streams.known(txn).start_offset == 12


async def test_data_of_internal_topics_is_kept(cluster: LostStore) -> None:
    (record,) = cluster.topic(OFFSETS_TOPIC)
    cluster.open_led(cluster.one)
    data, txn = record.data_stream_id, record.txn_stream_id
    (first,) = cluster.prepare(cluster.one)
    cluster.commit(cluster.one, uploaded(first, part(data, 0, 10)))
    _recovered(cluster, cluster.in_place(0, part(data, 10, 12), part(txn, 0, 12)))
    lost, removed = gaps_of_lost_stores(cluster.image, {FIRST})
    assert [(gap.start_offset, gap.end_offset) for gap in lost] == [(10, 12)]
    assert removed == []
    await _replace_all(cluster)
    assert [(start, end) for start, end, _ in cluster.spans(data)] == [(0, 10), (10, 12)]
    assert cluster.image.streams.known(txn).start_offset == 12


async def test_the_janitor_drops_objects_in_an_abandoned_store(
    cluster: LostStore, tmp_path: Path
) -> None:
    (record,) = cluster.topic("t")
    cluster.open_led(cluster.one)
    _recovered(cluster, cluster.in_place(0, part(record.data_stream_id, 0, 5)))
    main = await _replace_all(cluster)
    cluster.tick()
    state = cluster.image.objects.in_place(wal_key(cluster.one, WalSequence(0), FIRST))
    assert state is not None
    janitor = cluster.janitor(WalStores(main), tmp_path)
    cluster.now_s = 1e6
    assert await janitor.delete_destroyed(in_wal_stores=True) == 1
    assert cluster.image.objects.get(ObjectId(state.object_id)) is None
    await janitor.clean_ended_wals()
    cluster.now_s = 2e6
    assert await janitor.clean_ended_wals() == 0
    cluster.now_s = 3e6
    assert await janitor.remove_old_wals() == 1
    assert cluster.image.nodes.wal(cluster.one) is None


def registrar(cluster: LostStore, store: MemoryStore, url: str) -> WalStoreRegistrar:
    stores = WalStores(MemoryStore(), ConfiguredWalStore(store, url))
    runtime = cast("Any", CommittedAtOnce(cluster))
    return WalStoreRegistrar(runtime, stores, cluster.image.cluster_id, lambda: UUID_B)


@pytest.mark.parametrize(
    ("url", "has_identity", "expected"),
    [
        pytest.param(URL, False, [], id="an empty directory at the URL of the lost store"),
        pytest.param(URL, True, [], id="the lost store returns"),
        pytest.param(OTHER_URL, True, [], id="the lost store returns at another URL"),
        pytest.param(OTHER_URL, False, [SECOND], id="a new store"),
    ],
)
async def test_only_a_new_store_replaces_an_abandoned_one(
    cluster: LostStore, url: str, has_identity: bool, expected: list[WalStoreId]
) -> None:
    cluster.die(cluster.one)
    cluster.abandon()
    cluster.register(wal_registration(2, incarnation_id=UUID(int=99), **NEW))
    store = MemoryStore()
    if has_identity:
        await create_identity(store, cluster.identity())
    await registrar(cluster, store, url).try_first()
    assert [listed.store_id for listed in cluster.image.nodes.wal_stores()] == expected
    if not has_identity:
        assert (await identity_of(store) is not None) == bool(expected)


def test_only_an_existing_store_can_be_marked_as_lost() -> None:
    cluster = ManagersCluster()
    with pytest.raises(Exception, match="does not exist or is lost"):
        cluster.apply([WalStoreLost(FIRST)])
    cluster.apply([WalStoreRecord(FIRST, UUID_A, URL), WalStoreLost(FIRST)])
    with pytest.raises(Exception, match="does not exist or is lost"):
        cluster.apply([WalStoreLost(FIRST)])
