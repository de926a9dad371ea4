"""Records deleted by DeleteRecords: kept for a grace period, restored by a fork, then deleted."""

import pytest

from penstock.base.ids import Millis, Offset, StreamId
from penstock.controller.api.messages import (
    AlterConfigs,
    ConfigChange,
    ForkedPartition,
    NewTopic,
    Status,
    TopicFork,
    TrimStream,
)
from penstock.controller.disaster_recovery.plan import (
    missing_objects,
    without_missing,
    without_missing_kept,
)
from penstock.controller.managers import configs, streams
from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.controller.metadata.image import MetadataImage
from penstock.controller.metadata.kept_log import TRIMS_MAX, KeptLog
from penstock.controller.metadata.objects import ObjectPhase
from penstock.controller.metadata.records import PartitionRecord
from penstock.controller.metadata.snapshot import ImageCopy
from penstock.controller.metadata.streams import StreamState
from penstock.controller.metadata.topic_configs import DELETE_GRACE
from penstock.stream.ports import BrokerIncarnation
from tests.support.managers_cluster import ManagersCluster, part, replaced, snapshot_of, uploaded

GRACE_MS = 1_000


class Trimming(ManagersCluster):
    """One broker, and the topic "t" with three objects of ten records and its
    transaction outcomes.
    """

    def __init__(self) -> None:
        super().__init__()
        self.node: BrokerIncarnation = self.broker(1)
        self.create(NewTopic(name="t"))
        (self.source,) = self.partitions("t")
        self.open_led(self.node)
        self.data, self.txn = self.source.data_stream_id, self.source.txn_stream_id
        for number in range(3):
            self.upload(self.data, 10 * number, 10 * number + 10)
        self.upload(self.txn, 0, 30)

    @property
    def log(self) -> StreamState:
        return self.image.streams.known(self.data)

    def upload(self, stream_id: StreamId, start: int, end: int) -> None:
        (item,) = self.prepare(self.node)
        self.commit(self.node, uploaded(item, part(stream_id, start, end)))

    def cut(self, start: int, stream_id: StreamId | None = None, *, keep: bool = True) -> None:
        request = TrimStream(
            node_id=self.node.node_id,
            node_epoch=self.node.node_epoch,
            stream_id=self.data if stream_id is None else stream_id,
            epoch=self.source.leader_epoch,
            start_offset=Offset(start),
            keep=keep,
        )
        self.run(streams.trim_stream(self.image, request, self.now_ms, grace_ms=GRACE_MS))

    def wait(self, ms: int) -> None:
        """Let time pass, and run the periodic tasks."""
        self.now_ms = Millis(self.now_ms + ms)
        self.tick()

    def alter_grace(self, value: str) -> None:
        change = ConfigChange(
            resource_type=TOPIC_RESOURCE, resource_name="t", name=DELETE_GRACE, value=value
        )
        self.run(configs.alter_configs(self.image, AlterConfigs(changes=[change])))

    def kept(self) -> list[tuple[int, int]]:
        return [(entry.start_offset, entry.end_offset) for entry in self.log.kept_entries]

    def destroyed(self) -> int:
        return self.image.objects.count(ObjectPhase.DESTROYED)

    def bring_back(self, end: int, scan: int | None = None) -> PartitionRecord:
        self.create(self.request(end, scan))
        (forked,) = self.partitions("f")
        return forked

    def request(self, end: int, scan: int | None = None) -> NewTopic:
        point = ForkedPartition(
            end_offset=Offset(end),
            scan_offset=Offset(end if scan is None else scan),
            txn_end_offset=Offset(min(end, 30)),
        )
        fork = TopicFork(source_topic_id=self.source.topic_id, partitions=[point], with_kept=True)
        return NewTopic(name="f", partitions=1, fork=fork)

    def fork_of(self, forked: PartitionRecord) -> list[tuple[int, int]]:
        log = self.image.streams.known(forked.data_stream_id)
        return [(entry.start_offset, entry.end_offset) for entry in log.entries]


@pytest.fixture
def cluster() -> Trimming:
    return Trimming()


def test_readers_do_not_see_kept_records(cluster: Trimming) -> None:
    cluster.cut(25)
    assert (cluster.log.start_offset, cluster.log.kept_offset) == (25, 0)
    assert cluster.kept() == [(0, 10), (10, 20)]
    found = cluster.image.find_ranges(cluster.data, Offset(0), Offset(99), 10)
    assert [item.range.start_offset for item in found] == [20]
    cluster.wait(0)
    assert cluster.destroyed() == 0
    assert snapshot_of(cluster.image) == cluster.image


def test_a_fork_restores_the_whole_log(cluster: Trimming) -> None:
    cluster.cut(5)
    cluster.cut(25)
    forked = cluster.bring_back(30)
    assert cluster.fork_of(forked) == [(0, 10), (10, 20), (20, 30)]
    log = cluster.image.streams.known(forked.data_stream_id)
    assert (log.start_offset, log.end_offset, log.kept) == (0, 30, None)
    assert cluster.log.start_offset == 25
    cluster.wait(GRACE_MS)
    assert (cluster.log.kept, cluster.destroyed()) == (None, 0)
    assert snapshot_of(cluster.image) == cluster.image


def test_a_fork_scans_the_restored_records_for_open_transactions(cluster: Trimming) -> None:
    """A leader that does not know the open transactions at the fork point returns its log start."""
    cluster.cut(25)
    assert cluster.bring_back(30, scan=25).fork.scan_offset == 0
    cluster.delete("f")
    assert cluster.bring_back(30, scan=27).fork.scan_offset == 27


def test_transaction_outcomes_are_restored_with_the_data(cluster: Trimming) -> None:
    cluster.upload(cluster.txn, 30, 40)
    cluster.cut(25)
    cluster.cut(30, cluster.txn, keep=False)
    forked = cluster.bring_back(30)
    txn = cluster.image.streams.known(forked.txn_stream_id)
    assert (txn.start_offset, txn.end_offset) == (0, 30)
    cluster.wait(GRACE_MS)
    cluster.wait(0)
    assert cluster.image.streams.known(cluster.txn).kept is None


def test_transaction_outcomes_are_kept_only_with_data(cluster: Trimming) -> None:
    cluster.cut(25, keep=False)
    cluster.cut(25, cluster.txn)
    assert cluster.image.streams.known(cluster.txn).kept is None


def test_each_trim_has_its_own_grace_period(cluster: Trimming) -> None:
    cluster.cut(10)
    cluster.wait(GRACE_MS // 2)
    cluster.cut(20)
    cluster.wait(GRACE_MS // 2)
    assert (cluster.kept(), cluster.log.kept_offset, cluster.destroyed()) == ([(10, 20)], 10, 1)
    assert snapshot_of(cluster.image) == cluster.image
    cluster.wait(GRACE_MS // 2)
    assert (cluster.log.kept, cluster.destroyed()) == (None, 2)
    result = cluster.create(cluster.request(30), Status.INVALID_CONFIG)
    assert "no deleted records that can come back" in result.detail


def test_retention_ends_the_grace_period(cluster: Trimming) -> None:
    cluster.cut(10)
    cluster.cut(20, keep=False)
    cluster.wait(0)
    assert (cluster.log.kept, cluster.destroyed()) == (None, 2)


def test_a_topic_without_a_grace_period_keeps_nothing(cluster: Trimming) -> None:
    cluster.alter_grace("0")
    cluster.cut(10)
    assert cluster.log.kept is None


def test_a_shorter_grace_period_releases_kept_records(cluster: Trimming) -> None:
    cluster.cut(10)
    cluster.alter_grace("0")
    cluster.wait(0)
    assert (cluster.log.kept, cluster.destroyed()) == (None, 1)


def test_uncommitted_records_cannot_be_kept(cluster: Trimming) -> None:
    with pytest.raises(AssertionError, match="cannot be kept before it is committed"):
        cluster.cut(31)
    assert cluster.log.start_offset == 0
    cluster.cut(31, keep=False)
    assert cluster.log.start_offset == 31


def test_a_log_whose_records_were_all_deleted_can_be_restored(cluster: Trimming) -> None:
    cluster.cut(30)
    assert cluster.log.entries == []
    assert cluster.fork_of(cluster.bring_back(30)) == [(0, 10), (10, 20), (20, 30)]


def test_object_compaction_does_not_duplicate_trimmed_ranges(cluster: Trimming) -> None:
    sources = [
        (entry.object_id, entry.start_offset, entry.end_offset) for entry in cluster.log.entries
    ]
    cluster.cut(15)
    (item,) = cluster.prepare(cluster.node)
    cluster.commit(
        cluster.node,
        uploaded(item, part(cluster.data, 0, 30)),
        replaced=[replaced(cluster.data, *source) for source in sources],
    )
    assert cluster.fork_of(cluster.bring_back(30)) == [(0, 30)]
    cluster.upload(cluster.data, 30, 40)
    cluster.cut(35)
    assert cluster.kept() == [(0, 30)]
    assert snapshot_of(cluster.image) == cluster.image


def test_a_snapshot_is_loaded_without_copies_of_the_kept_log(cluster: Trimming) -> None:
    """Otherwise, a node would take a minute to start after 100,000 ranges were deleted."""
    cluster.cut(25)
    image = MetadataImage()
    kept: list[KeptLog | None] = []
    for record in ImageCopy.of(cluster.image).records():
        image.load([record])
        kept += [stream.kept for stream in image.streams if stream.stream_id == cluster.data]
    image.loaded(cluster.image.end_offset)
    assert kept[-1] is not None
    assert image == cluster.image
    assert len({id(item) for item in kept if item is not None and item.entries}) == 1


def test_many_trims_are_merged(cluster: Trimming) -> None:
    last = TRIMS_MAX + 10
    for start in range(1, last + 1):
        cluster.cut(start)
    kept = cluster.log.kept
    assert kept is not None
    assert [trim.end_offset for trim in kept.trims] == [*range(1, TRIMS_MAX), last]


def test_a_deleted_topic_keeps_its_deleted_records(cluster: Trimming) -> None:
    cluster.cut(25)
    cluster.delete("t", grace_ms=5 * GRACE_MS)
    cluster.wait(GRACE_MS // 2)
    assert cluster.kept() == [(0, 10), (10, 20)]
    cluster.wait(GRACE_MS)
    assert (cluster.log.kept, cluster.destroyed()) == (None, 2)


def test_recovery_drops_kept_records_if_the_store_lost_some_of_them(cluster: Trimming) -> None:
    cluster.cut(25)
    cluster.cut(20, cluster.txn)
    cluster.upload(cluster.txn, 30, 40)
    cluster.cut(30, cluster.txn)
    objects = {state.object_id for state in cluster.image.objects if state.refs}
    assert without_missing_kept(cluster.image, objects, set()) == []
    (lost, *_) = cluster.image.streams.known(cluster.txn).kept_entries
    records = without_missing_kept(cluster.image, objects - {lost.object_id}, set())
    assert {record.stream_id for record in records} == {cluster.data, cluster.txn}
    cluster.apply(records)
    assert not list(cluster.image.streams.keeping())
    assert cluster.log.start_offset == 25


def test_recovery_trims_a_log_that_lost_kept_and_readable_records(cluster: Trimming) -> None:
    cluster.cut(15)
    records = without_missing_kept(cluster.image, set(), set())
    missing = missing_objects(cluster.image, set(), set())
    assert [(gap.start_offset, gap.end_offset) for gap in missing if gap.stream_id == cluster.data]
    cluster.apply([*records, *without_missing(cluster.image, missing)[0]])
    assert (cluster.log.start_offset, cluster.log.kept) == (30, None)


def test_a_deleted_topic_releases_kept_objects(cluster: Trimming) -> None:
    cluster.cut(25)
    cluster.delete("t")
    cluster.tick()
    assert (cluster.destroyed(), list(cluster.image.streams.keeping())) == (4, [])


def test_tombstones_are_kept_as_long_as_records_of_merged_trims(cluster: Trimming) -> None:
    for start in range(1, TRIMS_MAX + 1):
        cluster.cut(start)
    keep_ms, began_ms = cluster.log.keep_ms, cluster.now_ms
    cluster.wait(GRACE_MS - 1)
    cluster.cut(TRIMS_MAX + 1)
    cluster.wait(GRACE_MS - 1)
    assert cluster.log.kept_offset < TRIMS_MAX, "a record of the first trims can be restored"
    assert GRACE_MS < cluster.now_ms - began_ms <= keep_ms
