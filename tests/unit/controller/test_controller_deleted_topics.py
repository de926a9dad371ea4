"""Deleted topics can be restored until their grace period ends; afterwards their data
is deleted.
"""

from uuid import UUID

import pytest

from penstock.base.ids import Millis, NodeId
from penstock.controller.api.messages import (
    CreatedTopic,
    ItemResult,
    NewTopic,
    Status,
)
from penstock.controller.managers.deleted_topics import PARTITIONS_PER_REQUEST_MAX, remove_deleted
from penstock.controller.metadata.frozen_topics import FrozenTopic
from penstock.controller.metadata.records import PartitionRecord
from penstock.controller.metadata.topic_configs import DELETE_GRACE, UNDELETE
from penstock.controller.metadata.topics import leader_of
from penstock.controller.metadata.wal_losses import data_streams_of
from penstock.stream.ports import BrokerIncarnation
from tests.support.managers_cluster import (
    DELETED_PARTITIONS_MAX,
    MOVE_TIMEOUT_MS,
    ManagersCluster,
    close,
    part,
    slot,
    snapshot_of,
    uploaded,
)

GRACE_MS = 60_000


class Deleting(ManagersCluster):
    """Two brokers. The first one is leader of topic `t` with ten committed records, and has it
    open.
    """

    def __init__(self) -> None:
        super().__init__()
        self.node: BrokerIncarnation = self.broker(1)
        self.create(NewTopic(name="t", configs={"retention.ms": "5"}))
        self.other: BrokerIncarnation = self.broker(2)
        self.open_led(self.node)
        (item,) = self.prepare(self.node)
        self.commit(self.node, uploaded(item, part(self.data_stream_id, 0, 10)))

    @property
    def partition(self) -> PartitionRecord:
        (topic,) = self.image.topics or list(self.image.frozen_topics)
        return topic.partitions[0]

    @property
    def data_stream_id(self) -> int:
        return self.partition.data_stream_id

    @property
    def frozen(self) -> list[FrozenTopic]:
        return list(self.image.frozen_topics.deleted())

    def undelete(self, requested: str, name: str = "t", status: Status = Status.OK) -> CreatedTopic:
        return self.create(NewTopic(name=name, configs={UNDELETE: requested}), status)

    def wait(self, ms: int) -> None:
        self.now_ms = Millis(self.now_ms + ms)
        self.tick()


@pytest.fixture
def cluster() -> Deleting:
    return Deleting()


class TestGrace:
    def test_a_deleted_topic_keeps_its_objects_during_its_grace_period(
        self, cluster: Deleting
    ) -> None:
        cluster.delete("t", GRACE_MS)
        cluster.wait(GRACE_MS - 1)
        (state,) = cluster.image.objects
        assert (state.refs, len(cluster.image.streams), len(cluster.frozen)) == (1, 3, 1)
        cluster.wait(1)
        assert (state.refs, len(cluster.image.streams), cluster.frozen) == (0, 0, [])

    @pytest.mark.parametrize(("own_ms", "kept_ms"), [("5000", 5_000), ("-1", GRACE_MS)])
    def test_a_topic_may_have_its_own_grace_period(
        self, cluster: Deleting, own_ms: str, kept_ms: int
    ) -> None:
        cluster.create(NewTopic(name="u", configs={DELETE_GRACE: own_ms}))
        cluster.delete("u", GRACE_MS)
        assert [topic.keep_ms for topic in cluster.frozen] == [kept_ms]

    def test_without_a_grace_period_topics_are_deleted_at_once(self, cluster: Deleting) -> None:
        cluster.create(NewTopic(name="u", configs={DELETE_GRACE: "0"}))
        cluster.delete("u", GRACE_MS)
        cluster.delete("t")
        assert (cluster.frozen, len(cluster.image.streams)) == ([], 0)

    def test_the_oldest_deleted_topics_are_removed_at_the_partition_limit(
        self, cluster: Deleting
    ) -> None:
        for name in ("a", "b", "c"):
            cluster.topic(name, 3)
        for name in ("b", "a", "c"):
            cluster.delete(name, GRACE_MS)
        cluster.tick()
        assert [topic.name for topic in cluster.frozen] == ["a", "c"]
        assert DELETED_PARTITIONS_MAX == 8
        assert not remove_deleted(cluster.image, cluster.age_s, 6)
        assert remove_deleted(cluster.image, cluster.age_s, 5)

    def test_removals_are_limited_per_round_and_continue(
        self, cluster: Deleting, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "penstock.controller.managers.deleted_topics.PARTITIONS_PER_REQUEST_MAX", 4
        )
        assert PARTITIONS_PER_REQUEST_MAX == 10_000
        for name in ("a", "b"):
            cluster.topic(name, 3)
            cluster.delete(name, GRACE_MS)
        cluster.now_ms = Millis(cluster.now_ms + GRACE_MS)
        counts: list[int] = []
        while records := remove_deleted(cluster.image, cluster.age_s, 100):
            counts.append(len(records))
            cluster.apply(records)
        assert counts == [10, 10]

    def test_the_grace_period_restarts_at_a_new_active_controller(self, cluster: Deleting) -> None:
        cluster.delete("t", GRACE_MS)
        cluster.wait(GRACE_MS - 1)
        cluster.timeline = type(cluster.timeline)()
        cluster.timeline.note(cluster.image.end_offset, cluster.now_ms / 1_000)
        cluster.wait(1)
        assert len(cluster.frozen) == 1
        cluster.wait(GRACE_MS)
        assert not cluster.frozen

    def test_the_streams_of_a_deleted_topic_still_belong_to_one_partition(
        self, cluster: Deleting
    ) -> None:
        """A lost WAL slot makes either all streams of a partition uncertain, or none."""
        ids = cluster.partition.stream_ids
        before = data_streams_of(cluster.image, ids)
        cluster.delete("t", GRACE_MS)
        assert data_streams_of(cluster.image, ids) == before
        assert set(before.values()) == {cluster.data_stream_id}


class TestRemovalForGood:
    def test_a_deleted_topic_is_purged_only_on_explicit_request(self, cluster: Deleting) -> None:
        """A repeated request, whose first response was lost, must not purge the topic."""
        topic_id = cluster.partition.topic_id
        assert cluster.delete_by_id(topic_id, purge=True).status == Status.UNKNOWN_TOPIC
        cluster.delete("t", GRACE_MS)
        repeated = cluster.delete_by_id(topic_id, grace_ms=GRACE_MS)
        assert (repeated.status, len(cluster.frozen)) == (Status.UNKNOWN_TOPIC, 1)
        assert cluster.delete_by_id(topic_id, purge=True).status == Status.OK
        assert (cluster.frozen, len(cluster.image.streams)) == ([], 0)
        assert cluster.delete_by_id(topic_id, purge=True).status == Status.UNKNOWN_TOPIC

    def test_a_topic_that_occurs_twice_in_a_request_is_rejected(self, cluster: Deleting) -> None:
        topic_id = cluster.partition.topic_id
        cluster.delete("t", GRACE_MS)
        found: ItemResult = cluster.delete_by_id(topic_id, topic_id, purge=True)
        assert found.status == Status.DUPLICATE_IN_REQUEST


class TestUndelete:
    def test_an_undeleted_topic_has_its_records_and_configs(self, cluster: Deleting) -> None:
        before = cluster.partition
        cluster.give_up(cluster.node)
        cluster.delete("t", GRACE_MS)
        created = cluster.undelete("t", "u")
        after = cluster.partition
        assert (created.topic_id, created.partitions) == (before.topic_id, 1)
        assert (after.stream_ids, after.replicas) == (before.stream_ids, before.replicas)
        assert after.leader_epoch == before.leader_epoch + 1 == after.undeleted_epoch
        assert leader_of(after) == cluster.node
        assert cluster.image.configs.topic("u") == {"retention.ms": "5"}
        assert cluster.spans(after.data_stream_id) == [(0, 10, 0)]
        assert not cluster.frozen
        assert snapshot_of(cluster.image) == cluster.image
        cluster.wait(GRACE_MS)
        assert len(cluster.image.streams) == 3

    def test_the_election_waits_until_the_old_leader_has_closed_its_streams(
        self, cluster: Deleting
    ) -> None:
        cluster.delete("t", GRACE_MS)
        cluster.undelete("t")
        waiting = cluster.partition
        assert (waiting.leader, waiting.leader_epoch) == (-1, 0)
        cluster.tick()
        assert cluster.partition.leader == -1
        cluster.open_one(cluster.node, cluster.data_stream_id, 1, Status.STREAM_FENCED)
        cluster.give_up(cluster.node)
        assert leader_of(cluster.partition) == cluster.node
        assert (cluster.partition.leader_epoch, cluster.partition.undeleted_epoch) == (1, 1)

    def test_streams_may_be_closed_before_the_topic_is_restored(self, cluster: Deleting) -> None:
        cluster.delete("t", GRACE_MS)
        (item,) = cluster.prepare(cluster.node)
        cluster.commit(
            cluster.node,
            uploaded(item, part(cluster.data_stream_id, 10, 15)),
            closes=[close(cluster.data_stream_id, 0, 15)],
        )
        assert cluster.end(cluster.data_stream_id) == 15
        cluster.open_one(cluster.node, cluster.data_stream_id, 0, Status.STREAM_NOT_EXIST)

    @pytest.mark.parametrize("undeleted_first", [True, False])
    def test_the_wal_of_a_dead_owner_is_recovered(
        self, cluster: Deleting, undeleted_first: bool
    ) -> None:
        cluster.delete("t", GRACE_MS)
        cluster.die(cluster.node)
        if undeleted_first:
            cluster.undelete("t")
        cluster.tick()
        late = slot(cluster.node, 1, part(cluster.data_stream_id, 10, 15))
        cluster.recover(cluster.other, cluster.node, late, end=2)
        assert cluster.end(cluster.data_stream_id) == 15
        if not undeleted_first:
            cluster.undelete("t")
        assert leader_of(cluster.partition) == cluster.other
        assert cluster.partition.leader_epoch == 1

    def test_a_leader_that_does_not_close_its_streams_is_fenced(self, cluster: Deleting) -> None:
        cluster.delete("t", GRACE_MS)
        cluster.undelete("t")
        cluster.wait(MOVE_TIMEOUT_MS)
        assert not cluster.image.nodes.is_alive(cluster.node)
        cluster.recover(cluster.other, cluster.node, end=1)
        assert leader_of(cluster.partition) == cluster.other

    def test_the_election_waits_for_a_live_broker(self, cluster: Deleting) -> None:
        cluster.give_up(cluster.node)
        cluster.delete("t", GRACE_MS)
        cluster.live.clear()
        cluster.undelete("t")
        assert cluster.partition.leader == -1
        cluster.live.add(cluster.other.node_id)
        cluster.tick()
        assert leader_of(cluster.partition) == cluster.other

    def test_the_newest_topic_with_a_name_is_restored_or_any_by_its_id(
        self, cluster: Deleting
    ) -> None:
        first = cluster.partition.topic_id
        cluster.delete("t", GRACE_MS)
        second = cluster.create(NewTopic(name="t")).topic_id
        cluster.delete("t", GRACE_MS)
        third = cluster.create(NewTopic(name="t")).topic_id
        refused = cluster.undelete("t", "t", Status.TOPIC_EXISTS)
        assert "undelete 't' under another name" in refused.detail
        assert cluster.undelete("t", "newest").topic_id == second
        assert cluster.undelete(str(first), "oldest").topic_id == first
        assert cluster.undelete("t", "none", Status.UNKNOWN_TOPIC).topic_id is None
        assert {topic.topic_id for topic in cluster.image.topics} == {first, second, third}

    def test_one_request_cannot_restore_a_topic_twice(self, cluster: Deleting) -> None:
        cluster.delete("t", GRACE_MS)
        requested = [NewTopic(name=name, configs={UNDELETE: "t"}) for name in ("u", "v")]
        value = cluster.value_of(cluster.create_topics(requested))
        found = [topic.status for topic in value.topics]
        assert found == [Status.OK, Status.DUPLICATE_IN_REQUEST]

    @pytest.mark.parametrize(
        ("change", "status"),
        [
            ({"partitions": 2}, Status.INVALID_PARTITIONS),
            ({"replication_factor": 2}, Status.INVALID_REQUEST),
            ({"assignment": [[NodeId(1)]]}, Status.INVALID_REQUEST),
            ({"configs": {UNDELETE: "t", "retention.ms": "1"}}, Status.INVALID_CONFIG),
            ({"configs": {UNDELETE: str(UUID(int=99))}}, Status.UNKNOWN_TOPIC),
            ({"name": "__consumer_offsets"}, Status.INVALID_TOPIC_NAME),
            ({"name": "a b"}, Status.INVALID_TOPIC_NAME),
        ],
    )
    def test_invalid_restorations_are_rejected(
        self, cluster: Deleting, change: dict[str, object], status: Status
    ) -> None:
        cluster.delete("t", GRACE_MS)
        requested: dict[str, object] = {"name": "t", "configs": {UNDELETE: "t"}} | change
        assert cluster.create(NewTopic(**requested), status).topic_id is None
        assert len(cluster.frozen) == 1

    def test_restored_partitions_count_towards_the_cluster_limit(self, cluster: Deleting) -> None:
        cluster.delete("t", GRACE_MS)
        cluster.partitions_max = 1
        cluster.topic("u")
        refused = cluster.undelete("t", status=Status.PARTITION_LIMIT_REACHED)
        assert "has 1 partitions" in refused.detail
        assert len(cluster.frozen) == 1
        cluster.partitions_max = 2
        cluster.undelete("t")

    def test_a_restoration_may_contain_the_partition_count(self, cluster: Deleting) -> None:
        cluster.delete("t", GRACE_MS)
        cluster.create(NewTopic(name="t", partitions=1, configs={UNDELETE: "t"}))
        assert not cluster.frozen
