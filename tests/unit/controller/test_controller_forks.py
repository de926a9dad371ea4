"""Forks in the metadata: shared objects, new streams, errors, and snapshots."""

import msgspec
import pytest

from penstock.base.ids import Millis, Offset, StreamEpoch
from penstock.controller.api.messages import (
    AlterConfigs,
    ConfigChange,
    ForkedPartition,
    NewTopic,
    Status,
    TopicFork,
    TrimStream,
)
from penstock.controller.api.rewrite_messages import CommitRewrite, RewriteItem, RewriteSource
from penstock.controller.managers import configs, streams
from penstock.controller.managers.log_changes import clipped
from penstock.controller.managers.rewrites import commit_rewrite
from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.controller.metadata.objects import ObjectPhase
from penstock.controller.metadata.records import PartitionRecord, RangeEntry
from penstock.controller.metadata.shared_ranges import SharedRanges
from penstock.controller.metadata.topic_configs import FORK_SOURCE, MIRROR_SOURCE, open_mirror
from penstock.stream.ports import NO_OBJECT, OWN_STREAM, BrokerIncarnation, ObjectRole
from tests.support.managers_cluster import (
    ManagersCluster,
    part,
    replaced,
    snapshot_of,
    uploaded,
)


class Forking(ManagersCluster):
    """One broker, and the topic "t" with three objects of ten records."""

    def __init__(self) -> None:
        super().__init__()
        self.node: BrokerIncarnation = self.broker(1)
        self.create(NewTopic(name="t", configs={"retention.ms": "5"}))
        (self.source,) = self.partitions("t")
        self.open_led(self.node)
        self.data = self.source.data_stream_id
        for number in range(3):
            (item,) = self.prepare(self.node)
            ranges = part(self.data, 10 * number, 10 * number + 10)
            self.commit(self.node, uploaded(item, ranges))

    def request(self, end: int, **changes: object) -> NewTopic:
        inside = self.image.streams.find(self.data, Offset(end), Offset(end + 1), 1)
        point = ForkedPartition(
            object_id=inside[0].object_id if inside else NO_OBJECT,
            end_offset=Offset(end),
            scan_offset=Offset(end),
            txn_end_offset=Offset(0),
            epochs=[(StreamEpoch(0), Offset(0))],
        )
        fork = TopicFork(source_topic_id=self.source.topic_id, partitions=[point])
        requested = NewTopic(name="f", partitions=1, fork=fork)
        return msgspec.structs.replace(requested, **changes)

    def fork(self, end: int) -> PartitionRecord:
        self.create(self.request(end))
        (forked,) = self.partitions("f")
        return forked

    def trim_to(self, partition: PartitionRecord, start: int, *, grace_ms: int = 0) -> None:
        request = TrimStream(
            node_id=self.node.node_id,
            node_epoch=self.node.node_epoch,
            stream_id=partition.data_stream_id,
            epoch=partition.leader_epoch,
            start_offset=Offset(start),
            keep=grace_ms > 0,
        )
        self.run(streams.trim_stream(self.image, request, self.now_ms, grace_ms=grace_ms))


@pytest.fixture
def cluster() -> Forking:
    return Forking()


def test_a_fork_refers_to_the_objects_below_its_end(cluster: Forking) -> None:
    cluster.trim_to(cluster.source, 13)
    forked = cluster.fork(25)
    log = cluster.image.streams.known(forked.data_stream_id)
    assert (log.start_offset, log.end_offset, log.epoch, log.opened) == (13, 25, -1, False)
    assert [(e.start_offset, e.end_offset, e.record_count, e.size_bytes) for e in log.entries] == [
        (10, 20, 10, 100),
        (20, 25, 5, 50),
    ]
    assert {entry.stored_stream_id for entry in log.entries} == {cluster.data}
    held = {entry.object_id for entry in log.entries}
    assert [state.refs for state in cluster.image.objects if state.object_id in held] == [2, 2]
    found = cluster.image.find_ranges(forked.data_stream_id, Offset(0), Offset(99), 10)
    assert [(item.range.stream_id, item.stream_id_in_object) for item in found] == [
        (forked.data_stream_id, cluster.data)
    ] * 2
    assert forked.leader_epoch == cluster.source.leader_epoch + 1
    assert forked.fork is not None
    assert (forked.fork.end_offset, forked.fork.epochs) == (25, ((0, 0),))
    assert snapshot_of(cluster.image) == cluster.image


def test_objects_are_kept_while_the_source_or_the_fork_refers_to_them(cluster: Forking) -> None:
    forked = cluster.fork(30)
    cluster.delete("t")
    cluster.tick()
    assert cluster.image.objects.count(ObjectPhase.DESTROYED) == 0
    cluster.open_led(cluster.node)
    cluster.trim_to(forked, 10)
    cluster.tick()
    assert cluster.image.objects.count(ObjectPhase.DESTROYED) == 1
    cluster.delete("f")
    cluster.tick()
    assert cluster.image.objects.count(ObjectPhase.DESTROYED) == 3


def shared(cluster: Forking) -> dict[str, int]:
    """Return the shared bytes of the only partition of each topic."""
    streams, found = cluster.image.streams, SharedRanges()
    for state in streams.sharing():
        for _ in found.learn(state):
            pass
    return {
        topic.name: found.shared_bytes(
            streams.known(cluster.partitions(topic.name)[0].data_stream_id), streams
        )
        for topic in cluster.image.topics
    }


def test_shared_bytes_are_those_also_referenced_by_another_log(cluster: Forking) -> None:
    """Every range has 100 bytes; the fork refers to two and a half ranges."""
    assert shared(cluster) == {"t": 0}
    forked = cluster.fork(25)
    assert shared(cluster) == {"t": 250, "f": 250}
    cluster.open_led(cluster.node)
    (item,) = cluster.prepare(cluster.node)
    both = part(cluster.data, 30, 40), part(forked.data_stream_id, 25, 40)
    cluster.commit(cluster.node, uploaded(item, *both))
    assert shared(cluster) == {"t": 250, "f": 250}, "an object of many topics is not shared by that"
    cluster.trim_to(cluster.source, 10)
    assert shared(cluster) == {"t": 150, "f": 150}
    cluster.delete("t")
    assert shared(cluster) == {"f": 0}


def test_retained_deleted_records_and_other_forks_count_as_sharing(cluster: Forking) -> None:
    forked = cluster.fork(30)
    cluster.open_led(cluster.node)
    cluster.trim_to(cluster.source, 20, grace_ms=1_000)
    assert shared(cluster) == {"t": 100, "f": 300}
    topic = cluster.image.topics.by_id(forked.topic_id)
    assert topic is not None
    point = ForkedPartition(end_offset=Offset(30), scan_offset=Offset(30), txn_end_offset=Offset(0))
    fork = TopicFork(source_topic_id=topic.topic_id, partitions=[point])
    cluster.create(NewTopic(name="g", partitions=1, fork=fork))
    cluster.trim_to(cluster.source, 30)
    assert shared(cluster) == {"t": 0, "f": 300, "g": 300}
    assert snapshot_of(cluster.image) == cluster.image


def test_a_partial_range_with_gaps_never_counts_one_record_per_offset() -> None:
    """A record count equal to the number of offsets means that the count is exact, so an estimate
    must be lower.
    """
    for whole in range(1, 30):
        for count in range(whole + 1):
            item = RangeEntry(1, Offset(0), Offset(whole), count, 10, Millis(0))
            for start in range(whole):
                left = clipped(item, start)
                assert (left.record_count == whole - start) == (count == whole)


def test_a_fork_inside_a_range_with_gaps_underestimates_its_records(cluster: Forking) -> None:
    """Nine of ten offsets have a record."""
    (item,) = cluster.prepare(cluster.node)
    ranges = msgspec.structs.replace(part(cluster.data, 30, 40), record_count=9)
    cluster.commit(cluster.node, uploaded(item, ranges))
    forked = cluster.fork(35)
    last = cluster.image.streams.known(forked.data_stream_id).entries[-1]
    assert (last.start_offset, last.end_offset, last.record_count) == (30, 35, 4)


def test_a_fork_of_a_fork_refers_to_the_stream_that_wrote_each_range(cluster: Forking) -> None:
    first = cluster.fork(30)
    cluster.open_led(cluster.node)
    (item,) = cluster.prepare(cluster.node)
    cluster.commit(cluster.node, uploaded(item, part(first.data_stream_id, 30, 40)))
    topic = cluster.image.topics.by_name("f")
    assert topic is not None
    point = ForkedPartition(end_offset=Offset(40), scan_offset=Offset(40), txn_end_offset=Offset(0))
    fork = TopicFork(source_topic_id=topic.topic_id, partitions=[point])
    cluster.create(NewTopic(name="g", partitions=1, fork=fork))
    (second,) = cluster.partitions("g")
    log = cluster.image.streams.known(second.data_stream_id)
    stored = [entry.stored_stream_id for entry in log.entries]
    assert stored == [cluster.data] * 3 + [first.data_stream_id]
    assert snapshot_of(cluster.image) == cluster.image


@pytest.mark.parametrize("end", [0, 30])
def test_a_fork_without_records_survives_a_snapshot(cluster: Forking, end: int) -> None:
    cluster.trim_to(cluster.source, end)
    forked = cluster.fork(end)
    log = cluster.image.streams.known(forked.data_stream_id)
    assert (log.next_offset, log.entries) == (end, [])
    assert snapshot_of(cluster.image) == cluster.image


def test_a_fork_inherits_the_configs_of_its_source(cluster: Forking) -> None:
    cluster.create(cluster.request(30, configs={"retention.bytes": "7", FORK_SOURCE: "t"}))
    assert dict(cluster.image.configs.topic("f")) == {
        "retention.ms": "5",
        "retention.bytes": "7",
        FORK_SOURCE: "t",
    }
    change = ConfigChange(
        resource_type=TOPIC_RESOURCE, resource_name="f", name=FORK_SOURCE, value="u"
    )
    value = cluster.value_of(configs.alter_configs(cluster.image, AlterConfigs(changes=[change])))
    assert value.items[0].status == Status.INVALID_CONFIG
    assert "cannot be changed" in value.items[0].detail


def test_a_fork_of_a_mirror_accepts_records_of_producers(cluster: Forking) -> None:
    change = ConfigChange(
        resource_type=TOPIC_RESOURCE, resource_name="t", name=MIRROR_SOURCE, value="cluster/id"
    )
    cluster.run(configs.alter_configs(cluster.image, AlterConfigs(changes=[change])))
    assert open_mirror(cluster.image.configs.topic("t")) == "cluster/id"
    cluster.create(cluster.request(30, configs={FORK_SOURCE: "t"}))
    assert open_mirror(cluster.image.configs.topic("f")) == ""


@pytest.mark.parametrize(
    ("end", "changes", "status"),
    [
        (31, {}, Status.OFFSET_NOT_MATCHED),
        (9, {}, Status.OFFSET_NOT_MATCHED),
        (30, {"partitions": 2}, Status.INVALID_PARTITIONS),
        (30, {"configs": {FORK_SOURCE: "other"}}, Status.UNKNOWN_TOPIC),
        (30, {"fork": None, "configs": {FORK_SOURCE: "t"}}, Status.INVALID_REQUEST),
        (30, {"name": "t"}, Status.TOPIC_EXISTS),
    ],
)
def test_forks_that_do_not_match_their_source_are_rejected(
    cluster: Forking, end: int, changes: dict[str, object], status: Status
) -> None:
    cluster.trim_to(cluster.source, 10)
    before = len(cluster.image.streams)
    cluster.create(cluster.request(end, **changes), status)
    assert len(cluster.image.streams) == before


def test_a_fork_of_a_deleted_topic_is_rejected(cluster: Forking) -> None:
    request = cluster.request(30)
    cluster.delete("t")
    cluster.create(request, Status.UNKNOWN_TOPIC)


def test_a_fork_of_a_recreated_topic_is_rejected(cluster: Forking) -> None:
    """The fork points come from the leaders of the deleted topic, and a new topic now
    has its name.
    """
    request = cluster.request(0, configs={FORK_SOURCE: "t"})
    cluster.delete("t")
    cluster.create(NewTopic(name="t"))
    cluster.create(request, Status.UNKNOWN_TOPIC)
    assert cluster.image.topics.by_name("f") is None


def test_a_fork_point_that_compaction_may_have_moved_is_rejected(cluster: Forking) -> None:
    request = cluster.request(25)
    (item,) = cluster.prepare(cluster.node)
    entry = cluster.image.streams.known(cluster.data).entries[-1]
    source = replaced(cluster.data, entry.object_id, 20, 30)
    ranges = part(cluster.data, 20, 30)
    cluster.commit(cluster.node, uploaded(item, ranges), replaced=[source])
    cluster.create(request, Status.OFFSET_NOT_MATCHED)
    cluster.create(cluster.request(25))


def clean(cluster: Forking, start: int, cleaned_end: int) -> None:
    """Replace the range of ten records at `start`."""
    (item,) = cluster.prepare(cluster.node)
    (entry,) = cluster.image.streams.find(cluster.data, Offset(start), Offset(start + 1), 1)
    source = replaced(cluster.data, entry.object_id, start, start + 10)
    new = uploaded(item, part(cluster.data, start, start + 10, records=3))
    cluster.commit(cluster.node, new, replaced=[source], cleaned_end=cleaned_end)


def clean_by_a_job(cluster: Forking, start: int) -> None:
    (item,) = cluster.prepare(cluster.node)
    (entry,) = cluster.image.streams.find(cluster.data, Offset(start), Offset(start + 1), 1)
    state = cluster.image.objects.get(entry.object_id)
    assert state is not None
    source = RewriteSource(key=state.key, start_offset=Offset(start), end_offset=Offset(start + 10))
    ranges = part(cluster.data, start, start + 10, records=3)
    new = msgspec.structs.replace(uploaded(item, ranges), role=ObjectRole.STREAM)
    request = CommitRewrite(
        stream_id=cluster.data, items=[RewriteItem(new=new, sources=[source])], is_ordered=True
    )
    cluster.run(commit_rewrite(cluster.image, request, cluster.now_ms))


@pytest.mark.parametrize(
    ("end", "cleaned_end", "status"),
    [
        (20, 30, Status.OFFSET_NOT_MATCHED),
        (20, 21, Status.OFFSET_NOT_MATCHED),
        (20, 20, Status.OK),
        (30, 30, Status.OK),
        (30, 99, Status.OK),  # the log has nothing above its end
        (20, 0, Status.OK),  # object compaction
        (0, 30, Status.OK),  # a fork without records
    ],
)
def test_a_fork_point_below_newer_compacted_records_is_rejected(
    cluster: Forking, end: int, cleaned_end: int, status: Status
) -> None:
    """A record below the fork point may have been deleted because of a newer one above it."""
    request = cluster.request(end)
    clean(cluster, 0, cleaned_end)
    cluster.image = snapshot_of(cluster.image)  # another controller is active
    clean(cluster, 10, 0)
    cluster.create(request, status)
    frozen = msgspec.structs.replace(request, name="t@s", configs={FORK_SOURCE: "t"}, partitions=-1)
    cluster.create(frozen, status)


def test_a_fork_point_below_records_compacted_by_a_job_is_rejected(cluster: Forking) -> None:
    request = cluster.request(20)
    clean_by_a_job(cluster, 0)
    cluster.create(request, Status.OFFSET_NOT_MATCHED)
    cluster.create(cluster.request(30))


def test_a_fork_of_a_fork_within_compacted_records_is_rejected(cluster: Forking) -> None:
    clean(cluster, 0, 30)
    forked = cluster.fork(30)
    (point,) = cluster.request(20).fork.partitions
    fork = TopicFork(source_topic_id=forked.topic_id, partitions=[point])
    cluster.create(NewTopic(name="g", partitions=1, fork=fork), Status.OFFSET_NOT_MATCHED)


def test_ranges_written_by_the_stream_itself_refer_to_no_other_stream(cluster: Forking) -> None:
    log = cluster.image.streams.known(cluster.data)
    assert {entry.stored_stream_id for entry in log.entries} == {OWN_STREAM}
