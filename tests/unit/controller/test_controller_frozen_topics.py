"""Frozen topics are not listed, and keep the objects of their ranges."""

from uuid import UUID

import pytest

from penstock.base.ids import Millis, NodeId, Offset, StreamId
from penstock.controller.api.messages import NewTopic
from penstock.controller.metadata.errors import InvariantBroken
from penstock.controller.metadata.frozen_topics import FrozenTopic
from penstock.controller.metadata.records import (
    FrozenTopicRecord,
    FrozenTopicRemoved,
    MetadataOffset,
    PartitionRecord,
    Record,
    StreamCreated,
    StreamForked,
    StreamRemoved,
    TopicDeleted,
    TopicUndeleted,
)
from penstock.controller.metadata.topics import PartitionKey
from penstock.stream.ports import BrokerIncarnation
from tests.support.managers_cluster import ManagersCluster, part, snapshot_of, uploaded

SNAPSHOT_ID = UUID(int=77)


class Freezing(ManagersCluster):
    """One broker, and the topic "t" with one object of ten records."""

    def __init__(self) -> None:
        super().__init__()
        self.node: BrokerIncarnation = self.broker(1)
        self.create(NewTopic(name="t", configs={"retention.ms": "5"}))
        (self.partition,) = self.partitions("t")
        self.open_led(self.node)
        (item,) = self.prepare(self.node)
        self.commit(self.node, uploaded(item, part(self.partition.data_stream_id, 0, 10)))

    def delete(self) -> FrozenTopic:
        self.apply([TopicDeleted(self.partition.topic_id, Millis(7), 1_000, MetadataOffset(0))])
        (frozen,) = self.image.frozen_topics.deleted()
        return frozen

    def snapshot(self, name: str = "nightly") -> FrozenTopic:
        first = self.image.next_stream_id
        ids = [StreamId(first + more) for more in range(3)]
        data = self.partition.data_stream_id
        self.apply(
            [
                FrozenTopicRecord(
                    SNAPSHOT_ID, "t", name, (("a", "b"),), Millis(9), -1, MetadataOffset(0)
                ),
                PartitionRecord(SNAPSHOT_ID, 0, (NodeId(1),), -1, -1, 0, *ids),
                *(
                    StreamCreated(stream_id, SNAPSHOT_ID, 0, kind)
                    for stream_id, kind in zip(ids, ("meta", "data", "txn"), strict=True)
                ),
                StreamForked(ids[1], data, Offset(10)),
            ]
        )
        frozen = self.image.frozen_topics.by_full_name(f"t@{name}")
        assert frozen is not None
        return frozen

    def remove(self, frozen: FrozenTopic) -> None:
        records: list[Record] = [
            StreamRemoved(stream_id)
            for partition in frozen.partitions
            for stream_id in partition.stream_ids
        ]
        self.apply([*records, FrozenTopicRemoved(frozen.topic_id)])


@pytest.fixture
def cluster() -> Freezing:
    return Freezing()


def test_a_deleted_topic_keeps_its_streams_and_frees_its_name(cluster: Freezing) -> None:
    stream_ids = {stream.stream_id for stream in cluster.image.streams}
    frozen = cluster.delete()
    image = cluster.image
    assert image.topics.by_name("t") is None
    assert image.topics.partition(PartitionKey(frozen.topic_id, 0)) is None
    assert not image.topics.leaders()
    assert not image.configs.topic("t")
    assert {stream.stream_id for stream in image.streams} == stream_ids
    assert (frozen.name, frozen.configs, frozen.keep_ms) == ("t", {"retention.ms": "5"}, 1_000)
    assert image.frozen_topics.by_full_name(f"t@{frozen.topic_id}") is frozen
    cluster.create(NewTopic(name="t"))
    assert snapshot_of(image) == image


def test_an_undeleted_topic_keeps_its_contents(cluster: Freezing) -> None:
    cluster.delete()
    cluster.apply([TopicUndeleted(cluster.partition.topic_id, "u"), cluster.partition])
    topic = cluster.image.topics.by_name("u")
    assert topic is not None
    assert topic.partitions == [cluster.partition]
    assert cluster.image.configs.topic("u") == {"retention.ms": "5"}
    assert not len(cluster.image.frozen_topics)
    assert snapshot_of(cluster.image) == cluster.image


def test_objects_are_kept_until_the_last_frozen_topic_is_removed(cluster: Freezing) -> None:
    snapshot, deleted = cluster.snapshot(), cluster.delete()
    (state,) = cluster.image.objects
    assert state.refs == 2
    assert (snapshot.full_name, snapshot.is_deleted) == ("t@nightly", False)
    assert cluster.image.frozen_topics.by_id(SNAPSHOT_ID) is snapshot
    assert snapshot_of(cluster.image) == cluster.image
    cluster.remove(deleted)
    assert state.refs == 1
    cluster.remove(snapshot)
    assert state.refs == 0
    assert not list(cluster.image.streams)


def test_a_snapshot_topic_cannot_be_undeleted(cluster: Freezing) -> None:
    cluster.snapshot()
    with pytest.raises(InvariantBroken, match="was never deleted"):
        cluster.apply([TopicUndeleted(SNAPSHOT_ID, "t2")])


def test_frozen_partitions_have_no_leader(cluster: Freezing) -> None:
    cluster.snapshot()
    led = PartitionRecord(SNAPSHOT_ID, 1, (NodeId(1),), 1, 1, 0, *(StreamId(9),) * 3)
    with pytest.raises(InvariantBroken, match="does not fit the frozen topic t@nightly"):
        cluster.apply([led])
