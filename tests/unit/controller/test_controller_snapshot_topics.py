"""Topic snapshots in the metadata: frozen forks that are created together and keep
their objects.
"""

import msgspec
import pytest

from penstock.base.ids import Offset, StreamEpoch
from penstock.controller.api.messages import (
    CreatedTopic,
    DeleteTopics,
    ForkedPartition,
    NewTopic,
    Status,
    TopicFork,
)
from penstock.controller.disaster_recovery.plan import missing_objects, without_missing
from penstock.controller.managers import deleted_topics, snapshots
from penstock.controller.metadata.frozen_topics import FrozenTopic
from penstock.controller.metadata.objects import ObjectPhase
from penstock.controller.metadata.records import GroupOffsets
from penstock.controller.metadata.topic_configs import FORK_SOURCE
from penstock.stream.ports import BrokerIncarnation
from tests.support.managers_cluster import ManagersCluster, part, snapshot_of, uploaded

GROUPS = (GroupOffsets("g", ((0, Offset(7)),)),)


class Snapping(ManagersCluster):
    """One broker, and the topics "t" and "u" with two objects of ten records each."""

    def __init__(self) -> None:
        super().__init__()
        self.node: BrokerIncarnation = self.broker(1)
        for name in ("t", "u"):
            self.create(NewTopic(name=name, configs={"retention.ms": "5"}))
        self.open_led(self.node)
        for name in ("t", "u"):
            (partition,) = self.partitions(name)
            for number in range(2):
                (item,) = self.prepare(self.node)
                ranges = part(partition.data_stream_id, 10 * number, 10 * number + 10)
                self.commit(self.node, uploaded(item, ranges))

    def request(self, name: str, /, **changes: object) -> NewTopic:
        """Return the request for `name`: a topic of a snapshot or a fork of one."""
        source = name.partition("@")[0] if "@" in name else changes.pop("source")
        assert isinstance(source, str)
        topic = self.image.topics.by_name(source) or self.image.frozen_topics.by_full_name(source)
        assert topic is not None
        point = ForkedPartition(
            end_offset=Offset(20),
            scan_offset=Offset(15),
            txn_end_offset=Offset(0),
            epochs=[(StreamEpoch(0), Offset(0))],
        )
        requested = NewTopic(
            name=name,
            configs={FORK_SOURCE: source},
            fork=TopicFork(source_topic_id=topic.topic_id, partitions=[point]),
            group_offsets=list(GROUPS) if "@" in name else [],
        )
        return msgspec.structs.replace(requested, **changes)

    def create_all(self, *requested: NewTopic, validate_only: bool = False) -> list[CreatedTopic]:
        return self.value_of(self.create_topics(requested, validate_only=validate_only)).topics

    def snapshot(self, *names: str) -> list[FrozenTopic]:
        for created in self.create_all(*map(self.request, names)):
            assert created.status == Status.OK, created.detail
        found = [self.image.frozen_topics.by_full_name(name) for name in names]
        return [topic for topic in found if topic is not None]

    def remove(self, topic: FrozenTopic) -> None:
        request = DeleteTopics(topic_ids=[topic.topic_id])
        value = self.value_of(
            deleted_topics.delete_topics(self.image, request, self.now_ms, grace_ms=1_000)
        )
        assert value.items[0].status == Status.OK


@pytest.fixture
def cluster() -> Snapping:
    return Snapping()


def test_a_snapshot_contains_configs_and_group_offsets(cluster: Snapping) -> None:
    frozen, other = cluster.snapshot("t@nightly", "u@nightly")
    assert list(cluster.image.frozen_topics) == [frozen, other]
    assert (frozen.name, frozen.snapshot, frozen.keep_ms) == ("t", "nightly", -1)
    assert frozen.since_ms == cluster.now_ms
    assert frozen.configs == {"retention.ms": "5"}
    assert frozen.group_offsets == GROUPS
    (partition,) = frozen.partitions
    assert (partition.leader, partition.leader_epoch) == (-1, 1)
    assert partition.fork is not None
    assert (partition.fork.end_offset, partition.fork.scan_offset) == (20, 15)
    cluster.tick()
    assert {topic.name for topic in cluster.image.topics} == {"t", "u"}
    assert cluster.image.frozen_topics.by_id(frozen.topic_id) is frozen
    assert snapshot_of(cluster.image) == cluster.image


def test_objects_are_kept_until_the_snapshot_and_its_forks_are_deleted(cluster: Snapping) -> None:
    (frozen,) = cluster.snapshot("t@nightly")
    held = cluster.image.streams.known(frozen.partitions[0].data_stream_id).entries.copy()
    cluster.delete("t")
    cluster.tick()
    assert cluster.image.objects.count(ObjectPhase.DESTROYED) == 0
    (created,) = cluster.create_all(cluster.request("f", source="t@nightly"))
    assert created.status == Status.OK, created.detail
    (forked,) = cluster.partitions("f")
    assert dict(cluster.image.configs.topic("f")) == {
        "retention.ms": "5",
        FORK_SOURCE: "t@nightly",
    }
    assert forked.fork is not None
    assert (forked.leader, forked.leader_epoch) == (1, 2)
    assert (forked.fork.scan_offset, forked.fork.epochs) == (15, ((0, 0),))
    entries = cluster.image.streams.known(forked.data_stream_id).entries
    assert [entry.object_id for entry in entries] == [entry.object_id for entry in held]
    cluster.remove(frozen)
    assert len(cluster.image.frozen_topics) == 0
    cluster.tick()
    assert cluster.image.objects.count(ObjectPhase.DESTROYED) == 0
    cluster.delete("f")
    cluster.tick()
    assert cluster.image.objects.count(ObjectPhase.DESTROYED) == 2


def test_all_topics_of_a_request_are_frozen_or_none(cluster: Snapping) -> None:
    bad = cluster.request("u@nightly", fork=None)
    responses = cluster.create_all(cluster.request("t@nightly"), bad, NewTopic(name="v"))
    assert [response.status for response in responses] == [Status.INVALID_REQUEST] * 2 + [Status.OK]
    assert "because of 'u@nightly'" in responses[0].detail
    assert len(cluster.image.frozen_topics) == 0
    assert cluster.image.topics.by_name("v") is not None
    responses = cluster.create_all(cluster.request("t@nightly"), validate_only=True)
    assert responses[0].status == Status.OK
    assert len(cluster.image.frozen_topics) == 0


def test_topics_cannot_be_added_to_a_snapshot(cluster: Snapping) -> None:
    cluster.snapshot("t@nightly")
    for name, text in {"t@nightly": "'t@nightly' exists", "u@nightly": "'nightly' exists"}.items():
        (response,) = cluster.create_all(cluster.request(name))
        assert response.status == Status.TOPIC_EXISTS
        assert text in response.detail


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"name": "t@"}, Status.INVALID_TOPIC_NAME),
        ({"name": "t@a@b"}, Status.INVALID_TOPIC_NAME),
        ({"name": "t@.."}, Status.INVALID_TOPIC_NAME),
        ({"name": "t@" + "s" * 101}, Status.INVALID_TOPIC_NAME),
        ({"name": "t@a b"}, Status.INVALID_TOPIC_NAME),
        ({"name": "t@00000000-0000-0000-0000-000000000007"}, Status.INVALID_TOPIC_NAME),
        ({"name": "u@s"}, Status.INVALID_CONFIG),
        ({"configs": {}}, Status.INVALID_TOPIC_NAME),
        ({"configs": {FORK_SOURCE: "t", "retention.ms": "9"}}, Status.INVALID_CONFIG),
        ({"partitions": 2}, Status.INVALID_PARTITIONS),
        ({"assignment": [[1]]}, Status.INVALID_PARTITIONS),
        ({"fork": None}, Status.INVALID_REQUEST),
        (
            {"group_offsets": [GroupOffsets("g" * snapshots.GROUP_OFFSETS_BYTES_MAX, ())]},
            Status.INVALID_REQUEST,
        ),
    ],
)
def test_invalid_snapshots_are_rejected(
    cluster: Snapping, changes: dict[str, object], status: Status
) -> None:
    (response,) = cluster.create_all(cluster.request("t@s", **changes))
    assert response.status == status, response.detail
    assert response.detail
    assert len(cluster.image.frozen_topics) == 0


def test_internal_topics_cannot_be_in_a_snapshot(cluster: Snapping) -> None:
    cluster.create(NewTopic(name="__consumer_offsets"))
    (response,) = cluster.create_all(cluster.request("__consumer_offsets@s"))
    assert (response.status, "cannot be forked" in response.detail) == (
        Status.INVALID_TOPIC_NAME,
        True,
    )


def test_partitions_of_snapshots_are_limited(
    cluster: Snapping, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "SNAPSHOT_PARTITIONS_MAX", 2)
    cluster.snapshot("t@a")
    (first, second) = cluster.create_all(cluster.request("t@b"), cluster.request("u@b"))
    assert (first.status, second.status) == (Status.PARTITION_LIMIT_REACHED,) * 2
    assert "delete snapshots" in first.detail
    cluster.snapshot("t@b")


def test_snapshots_and_forks_count_towards_the_cluster_limit(cluster: Snapping) -> None:
    cluster.partitions_max = 4
    (frozen,) = cluster.snapshot("t@a")
    first, second = cluster.create_all(cluster.request("t@b"), cluster.request("u@b"))
    assert (first.status, second.status) == (Status.PARTITION_LIMIT_REACHED,) * 2
    assert "has 3 partitions of topics and snapshots, and 2 more" in first.detail
    fork = cluster.request("fork", source="t@a")
    assert [item.status for item in cluster.create_all(fork)] == [Status.OK]
    other = cluster.request("other", source="t@a")
    assert cluster.create_all(other)[0].status == Status.PARTITION_LIMIT_REACHED
    assert snapshot_of(cluster.image).frozen_topics.snapshot_partition_count == 1
    cluster.remove(frozen)
    cluster.snapshot("u@b")


def test_a_recovery_lists_lost_records_of_a_snapshot(cluster: Snapping) -> None:
    (frozen,) = cluster.snapshot("t@nightly")
    cluster.delete("t")
    partition = frozen.partitions[0]
    first = cluster.image.streams.known(partition.data_stream_id).entries[0].object_id
    others = {state.object_id for state in cluster.image.objects if state.object_id != first}
    missing = missing_objects(cluster.image, others, frozenset())
    assert [(gap.topic, gap.start_offset, gap.end_offset) for gap in missing] == [
        ("t@nightly", 0, 10)
    ]
    records, _ = without_missing(cluster.image, missing)
    assert {record.stream_id for record in records} == {
        partition.data_stream_id,
        partition.txn_stream_id,
    }
    cluster.apply(records)
    assert snapshot_of(cluster.image) == cluster.image
