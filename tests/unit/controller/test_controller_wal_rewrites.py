"""Ranges in a WAL store without a leader: which broker rewrites them, and what the controller
accepts.
"""

from pathlib import Path

import pytest

import penstock.controller.managers.wal_rewrites as closed_streams
from penstock.base.ids import Millis, Offset, StreamId, WalSequence
from penstock.controller.active.wal_rewrites import WalRewrites
from penstock.controller.api.messages import (
    NewTopic,
    Status,
    TrimStream,
)
from penstock.controller.managers import objects, streams
from penstock.controller.metadata.wal_store_usage import rewritable_bytes, wal_store_usage
from penstock.objectstore.memory import MemoryStore
from penstock.stream.format.keys import wal_key
from penstock.stream.ports import BrokerIncarnation
from penstock.stream.wal.wal_store import ConfiguredWalStore, WalStores, create_identity
from tests.support.managers_cluster import (
    CommittedAtOnce,
    part,
    replaced,
    snapshot_of,
    uploaded,
)
from tests.support.wal_store_cluster import (
    FIRST,
    WalStoreCluster,
    slot_in_place,
    wal_registration,
)

GRACE_MS = 3_600_000


class Rewriting(WalStoreCluster):
    """Three brokers with WALs in a WAL store. A deleted topic has its records there: stream `data`,
    offsets 0 to 5 in slot 0 of broker 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = (
            self.register(wal_registration(number)) for number in (1, 2, 3)
        )
        (record,) = self.topic("t")
        self.data = record.data_stream_id
        self.open_led(self.one)
        self.commit_slot(0, self.data)
        self.slot = self.spans(self.data)[0][2]

    def commit_slot(self, sequence: int, stream_id: StreamId) -> None:
        """Commit a slot of broker 1 in place."""
        slot = slot_in_place(self.one, sequence, part(stream_id, 0, 5))
        self.commit(self.one, slot, wal=sequence + 1)

    def delete_topic(self) -> None:
        self.delete("t", grace_ms=GRACE_MS)
        self.give_up(self.one)

    def replace(
        self, node: BrokerIncarnation, status: Status = Status.OK, *, cleaned_end: int = 0
    ) -> None:
        """Replace the range of the slot."""
        (item,) = self.prepare(node) if self.image.nodes.is_alive(node) else self.prepare(self.two)
        self.commit(
            node,
            uploaded(item, part(self.data, 0, 5)),
            replaced=[replaced(self.data, self.slot, 0, 5)],
            cleaned_end=cleaned_end,
            status=status,
        )


@pytest.fixture
def cluster() -> Rewriting:
    return Rewriting()


def test_a_live_broker_moves_ranges_of_a_closed_stream(cluster: Rewriting) -> None:
    cluster.replace(cluster.two, Status.STREAM_FENCED)
    cluster.delete_topic()
    assert snapshot_of(cluster.image) == cluster.image
    cluster.image.check_invariants()
    cluster.replace(cluster.two, Status.STREAM_NOT_OPENED, cleaned_end=3)
    cluster.die(cluster.three)
    cluster.replace(cluster.three, Status.NODE_FENCED)
    assert cluster.image.objects.wal_store_bytes == 100
    cluster.replace(cluster.two)
    assert cluster.image.objects.wal_store_bytes == 0
    cluster.replace(cluster.one, Status.COMPACTED_OBJECTS_NOT_FOUND)
    cluster.image.check_invariants()


def test_only_one_broker_at_a_time_is_assigned_a_job(cluster: Rewriting) -> None:
    now = 0.0
    jobs = WalRewrites(lambda: cluster.image, lambda: now)
    assert jobs.assigned_to(cluster.one) == (), "a leader rewrites the range"
    cluster.delete_topic()
    assert jobs.assigned_to(cluster.two) == (), "searched at most once per second"
    now = 1.0
    assert jobs.assigned_to(cluster.two) == (cluster.data,)
    assert jobs.assigned_to(cluster.three) == ()
    now = 30.0
    assert jobs.assigned_to(cluster.two) == (cluster.data,)
    now = 32.0
    assert jobs.assigned_to(cluster.two) == (), "the others come first"
    assert jobs.assigned_to(cluster.three) == (cluster.data,)
    cluster.die(cluster.three)
    now = 63.0
    assert jobs.assigned_to(cluster.three) == ()
    assert jobs.assigned_to(cluster.one) == (cluster.data,)
    now = 99.0
    assert jobs.assigned_to(cluster.one) == (cluster.data,), "no other broker reports"
    cluster.replace(cluster.one)
    now = 100.0
    assert jobs.assigned_to(cluster.one) == ()


def test_each_job_starts_after_the_end_of_the_previous_one(
    cluster: Rewriting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise brokers would be assigned only streams that cannot be rewritten."""
    ids = [cluster.data]
    for sequence, name in enumerate(("u", "v"), 1):
        cluster.create(NewTopic(name=name, assignment=[[cluster.one.node_id]]))
        cluster.open_led(cluster.one)
        ids.append(cluster.partitions(name)[0].data_stream_id)
        cluster.commit_slot(sequence, ids[-1])
        cluster.delete(name, grace_ms=GRACE_MS)
    cluster.delete_topic()
    monkeypatch.setattr(closed_streams, "STREAMS_MAX", 2)
    now = 0.0
    jobs = WalRewrites(lambda: cluster.image, lambda: now)
    found = list[tuple[StreamId, ...]]()
    for worker in (cluster.two, cluster.three, cluster.two):
        found.append(jobs.assigned_to(worker))
        now += 29.0
        assert jobs.assigned_to(worker) == found[-1], "the job changes within its term"
        now += 1.0
    assert found == [(ids[0], ids[1]), (ids[2], ids[0]), (ids[1], ids[2])]


def test_slots_of_retained_deleted_records_are_counted_separately(cluster: Rewriting) -> None:
    """Rewriting does not remove them."""
    cluster.commit_slot(1, cluster.partitions("t")[0].meta_stream_id)
    assert wal_store_usage(cluster.image) == (200, 0, cluster.now_ms)
    for start, expected in ((4, (200, 0)), (5, (100, 100))):
        request = TrimStream(
            node_id=cluster.one.node_id,
            node_epoch=cluster.one.node_epoch,
            stream_id=cluster.data,
            epoch=cluster.partitions("t")[0].leader_epoch,
            start_offset=Offset(start),
            keep=True,
        )
        cluster.run(streams.trim_stream(cluster.image, request, cluster.now_ms, grace_ms=GRACE_MS))
        assert wal_store_usage(cluster.image)[:2] == expected
        assert rewritable_bytes(cluster.image) == expected[0]
        assert wal_store_usage(snapshot_of(cluster.image))[:2] == expected
    assert closed_streams.closed_in_wal_stores(cluster.image) == ()


async def test_slots_protected_by_leases_are_counted(cluster: Rewriting, tmp_path: Path) -> None:
    wals = MemoryStore()
    stores = WalStores(MemoryStore(), ConfiguredWalStore(wals, "memory:"))
    stores.follow([FIRST])
    await create_identity(wals, cluster.identity())
    cluster.replace(cluster.one)
    cluster.apply(objects.destroy_unreferenced(cluster.image, Millis(0), 10))
    state = cluster.image.objects.in_place(wal_key(cluster.one, WalSequence(0), FIRST))
    assert state is not None
    protected_from: int | None = state.since

    async def leases() -> int | None:
        return protected_from

    writer = CommittedAtOnce(cluster)
    janitor = cluster.janitor(stores, tmp_path, runtime=writer, now_ms=0, holds=[leases])
    await janitor._delete_in_wal_stores()
    assert janitor.leased_bytes == 0, "still in its grace period"
    cluster.now_s = 1e6
    await janitor._delete_in_wal_stores()
    assert (janitor.leased_bytes, cluster.image.objects.wal_store_bytes) == (100, 0)
    protected_from = None
    writer.status = Status.CONTROLLER_BUSY
    await janitor._delete_in_wal_stores()
    assert cluster.image.objects.in_place(state.key) is not None
    assert janitor.leased_bytes == 0, "the controller refused the record, and no lease protects it"
    writer.status = Status.OK
    await janitor._delete_in_wal_stores()
    assert janitor.leased_bytes == 0
    assert cluster.image.objects.in_place(state.key) is None
