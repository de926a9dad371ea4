"""Topics, placement, configs, keys and producer ids."""

import pytest

from penstock.base.ids import NodeEpoch, NodeId
from penstock.controller.api.messages import (
    AllocateProducerIds,
    AlterConfigs,
    ConfigChange,
    CreatePartitions,
    DeleteKeyValue,
    DeleteTopics,
    GetKeyValue,
    ItemResult,
    NewPartitions,
    NewTopic,
    PutKeyValue,
    Status,
)
from penstock.controller.managers import configs, deleted_topics, kv, producer_ids, topics
from penstock.controller.metadata.configs import TOPIC_RESOURCE
from penstock.controller.metadata.records import ConfigRecord
from tests.support.managers_cluster import ManagersCluster


@pytest.fixture
def cluster() -> ManagersCluster:
    cluster = ManagersCluster()
    for node_id in (1, 2, 3):
        cluster.broker(node_id)
    return cluster


def grow(
    cluster: ManagersCluster, *new: NewPartitions, validate_only: bool = False
) -> list[ItemResult]:
    request = CreatePartitions(topics=list(new), validate_only=validate_only)
    value = cluster.value_of(
        topics.create_partitions(
            cluster.image, request, live=cluster.live, partitions_max=cluster.partitions_max
        )
    )
    return value.items


class TestCreate:
    def test_partitions_streams_and_leaders_are_created_together(
        self, cluster: ManagersCluster
    ) -> None:
        created = cluster.create(
            NewTopic(
                name="t",
                partitions=3,
                replication_factor=2,
                configs={"retention.ms": "5", "flush.ms": None},
            )
        )
        assert (created.partitions, created.replication_factor) == (3, 2)
        partitions = cluster.partitions("t")
        assert [(p.replicas, p.leader, p.leader_epoch) for p in partitions] == [
            ((1, 2), 1, 0),
            ((2, 3), 2, 0),
            ((3, 1), 3, 0),
        ]
        assert dict(cluster.image.configs.topic("t")) == {"retention.ms": "5"}

    def test_topics_with_few_partitions_are_spread_as_well(self, cluster: ManagersCluster) -> None:
        leaders = [cluster.topic(f"t{number}")[0].leader for number in range(6)]
        assert sorted(leaders) == [1, 1, 2, 2, 3, 3]

    def test_a_topic_without_counts_uses_the_defaults(self, cluster: ManagersCluster) -> None:
        created = cluster.create(NewTopic(name="t"))
        assert (created.partitions, created.replication_factor) == (1, 3)

    @pytest.mark.parametrize("factor", [1, 2, 15])
    def test_usual_replication_factors_are_accepted_and_limited_to_the_brokers(
        self, cluster: ManagersCluster, factor: int
    ) -> None:
        assert cluster.create(
            NewTopic(name="t", partitions=1, replication_factor=factor)
        ).replication_factor == min(factor, 3)

    @pytest.mark.parametrize("factor", [0, -2, 16, 1_000])
    def test_invalid_replication_factors_are_rejected(
        self, cluster: ManagersCluster, factor: int
    ) -> None:
        cluster.create(
            NewTopic(name="t", partitions=1, replication_factor=factor),
            Status.INVALID_REPLICATION_FACTOR,
        )

    @pytest.mark.parametrize(
        ("count", "status"),
        [
            (0, Status.INVALID_PARTITIONS),
            (-2, Status.INVALID_PARTITIONS),
            (10_001, Status.PARTITION_LIMIT_REACHED),
        ],
    )
    def test_invalid_partition_counts_are_rejected(
        self, cluster: ManagersCluster, count: int, status: Status
    ) -> None:
        """Kafka 4.2 returns POLICY_VIOLATION for more than 10,000 partitions in a request."""
        cluster.create(NewTopic(name="t", partitions=count), status)

    @pytest.mark.parametrize("name", ["", ".", "..", "a b", "ä", "x" * 250, "a/b", "a\n"])
    def test_invalid_topic_names_are_rejected(self, cluster: ManagersCluster, name: str) -> None:
        cluster.create(NewTopic(name=name), Status.INVALID_TOPIC_NAME)

    def test_existing_and_repeated_names_are_rejected(self, cluster: ManagersCluster) -> None:
        cluster.topic("t")
        cluster.create(NewTopic(name="t"), Status.TOPIC_EXISTS)
        requested = [NewTopic(name=name) for name in "uvu"]
        value = cluster.value_of(cluster.create_topics(requested))
        statuses = [topic.status for topic in value.topics]
        assert statuses == [Status.DUPLICATE_IN_REQUEST, Status.OK, Status.DUPLICATE_IN_REQUEST]

    def test_validate_only_creates_nothing(self, cluster: ManagersCluster) -> None:
        result = cluster.create_topics([NewTopic(name="u", partitions=2)], validate_only=True)
        assert result.records == []
        assert result.value is not None
        assert result.value.topics[0].partitions == 2

    def test_topics_cannot_be_created_without_brokers(self) -> None:
        ManagersCluster().create(NewTopic(name="t"), Status.INVALID_REPLICATION_FACTOR)

    def test_the_error_of_an_unknown_config_suggests_the_most_similar_name(
        self, cluster: ManagersCluster
    ) -> None:
        created = cluster.create(
            NewTopic(name="t", configs={"retention.msec": "5"}), Status.INVALID_CONFIG
        )
        assert "retention.ms?" in created.detail
        assert cluster.image.topics.by_name("t") is None

    @pytest.mark.parametrize("rows", [[[]], [[1, 1]], [[1, 2], [3]], [[9]], [[1], [4]]])
    def test_invalid_assignments_are_rejected(
        self, cluster: ManagersCluster, rows: list[list[int]]
    ) -> None:
        dead = cluster.broker(4)
        cluster.die(dead)
        assignment = [[NodeId(node_id) for node_id in row] for row in rows]
        cluster.create(NewTopic(name="t", assignment=assignment), Status.INVALID_REPLICA_ASSIGNMENT)

    def test_an_assignment_cannot_be_combined_with_counts(self, cluster: ManagersCluster) -> None:
        cluster.create(
            NewTopic(name="t", partitions=1, assignment=[[NodeId(1)]]), Status.INVALID_REQUEST
        )
        cluster.create(NewTopic(name="t", assignment=[]), Status.INVALID_PARTITIONS)

    def test_the_leader_is_the_first_live_candidate(self, cluster: ManagersCluster) -> None:
        node = cluster.image.nodes.get(NodeId(3))
        assert node is not None
        cluster.live.discard(NodeId(3))
        cluster.create(NewTopic(name="t", assignment=[[NodeId(3), NodeId(2)]]))
        assert cluster.partitions("t")[0].leader == 2


class TestGrowAndDelete:
    def test_partitions_are_added_at_the_end(self, cluster: ManagersCluster) -> None:
        before = cluster.topic("t", 2)
        assert grow(cluster, NewPartitions(name="t", total=4)) == [ItemResult()]
        after = cluster.partitions("t")
        assert after[:2] == before
        assert len(after) == 4
        assert len({stream for p in after for stream in p.stream_ids}) == 12

    def test_invalid_partition_increases_are_rejected(self, cluster: ManagersCluster) -> None:
        cluster.topic("t", 2)
        one = [[NodeId(1)]]
        wrong = [
            (NewPartitions(name="u", total=4), Status.UNKNOWN_TOPIC),
            (NewPartitions(name="t", total=2), Status.INVALID_PARTITIONS),
            (NewPartitions(name="t", total=10_001), Status.PARTITION_LIMIT_REACHED),
            (NewPartitions(name="t", total=4, assignment=one), Status.INVALID_REPLICA_ASSIGNMENT),
            (
                NewPartitions(name="t", total=3, assignment=[[NodeId(9)]]),
                Status.INVALID_REPLICA_ASSIGNMENT,
            ),
        ]
        for request, status in wrong:
            assert grow(cluster, request)[0].status == status
        assert (
            grow(cluster, NewPartitions(name="t", total=3), NewPartitions(name="t", total=3))[
                0
            ].status
            == Status.DUPLICATE_IN_REQUEST
        )
        assert grow(cluster, NewPartitions(name="t", total=3), validate_only=True) == [ItemResult()]
        assert len(cluster.partitions("t")) == 2
        assert grow(cluster, NewPartitions(name="t", total=3, assignment=one)) == [ItemResult()]

    def test_deleting_a_topic_deletes_its_streams_and_configs(
        self, cluster: ManagersCluster
    ) -> None:
        created = cluster.create(NewTopic(name="t", configs={"retention.ms": "5"}))
        assert created.topic_id is not None
        request = DeleteTopics(topic_ids=[created.topic_id, created.topic_id, cluster.new_uuid()])
        value = cluster.value_of(
            deleted_topics.delete_topics(cluster.image, request, cluster.now_ms, grace_ms=0)
        )
        assert [item.status for item in value.items] == [
            Status.OK,
            Status.DUPLICATE_IN_REQUEST,
            Status.UNKNOWN_TOPIC,
        ]
        assert len(cluster.image.streams) == 0
        again = cluster.create(NewTopic(name="t"))
        assert again.topic_id != created.topic_id
        assert dict(cluster.image.configs.topic("t")) == {}
        assert cluster.partitions("t")[0].meta_stream_id == 3

    def test_a_deletion_above_the_limit_is_continued_by_the_next_request(
        self, cluster: ManagersCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(deleted_topics, "PARTITIONS_PER_REQUEST_MAX", 3)
        ids = [
            cluster.create(NewTopic(name=f"t{number}", partitions=2)).topic_id
            for number in range(2)
        ]
        request = DeleteTopics(topic_ids=[topic_id for topic_id in ids if topic_id is not None])
        value = cluster.value_of(
            deleted_topics.delete_topics(cluster.image, request, cluster.now_ms, grace_ms=0)
        )
        assert [item.status for item in value.items] == [Status.OK, Status.CONTROLLER_BUSY]


class TestPartitionLimit:
    """`max.partitions` (KIP-578)."""

    def test_topics_up_to_the_partition_limit_are_created(self, cluster: ManagersCluster) -> None:
        cluster.partitions_max = 5
        cluster.topic("t", 3)
        refused = cluster.create(NewTopic(name="u", partitions=3), Status.PARTITION_LIMIT_REACHED)
        for part in ("has 3 partitions", "3 more", "limit of 5 (max.partitions", "delete topics"):
            assert part in refused.detail
        cluster.topic("u", 2)
        cluster.create(NewTopic(name="v"), Status.PARTITION_LIMIT_REACHED)
        cluster.delete("t", grace_ms=10_000)
        cluster.topic("v", 3)

    @pytest.mark.parametrize("validate_only", [False, True])
    def test_the_topics_of_a_request_count_together_except_rejected_ones(
        self, cluster: ManagersCluster, *, validate_only: bool
    ) -> None:
        new = [
            NewTopic(name="t", partitions=2),
            NewTopic(name="a b", partitions=2),
            NewTopic(name="u", partitions=4),
            NewTopic(name="v", partitions=2),
            NewTopic(name="w", partitions=2),
        ]
        cluster.partitions_max = 5
        value = cluster.value_of(cluster.create_topics(new, validate_only=validate_only))
        assert [topic.status for topic in value.topics] == [
            Status.OK,
            Status.INVALID_TOPIC_NAME,
            Status.PARTITION_LIMIT_REACHED,
            Status.OK,
            Status.PARTITION_LIMIT_REACHED,
        ]
        assert cluster.image.topics.partition_count == (0 if validate_only else 4)

    def test_added_partitions_count_towards_the_limit(self, cluster: ManagersCluster) -> None:
        cluster.topic("t", 2)
        cluster.topic("u", 2)
        cluster.partitions_max = 6
        first, second = grow(
            cluster, NewPartitions(name="t", total=4), NewPartitions(name="u", total=3)
        )
        assert (first.status, second.status) == (Status.OK, Status.PARTITION_LIMIT_REACHED)
        assert "has 6 partitions" in second.detail
        assert [len(cluster.partitions(name)) for name in ("t", "u")] == [4, 2]

    def test_internal_topics_are_counted_but_always_created(self, cluster: ManagersCluster) -> None:
        cluster.partitions_max = 3
        cluster.topic("t", 3)
        cluster.topic("__consumer_offsets", 50)
        refused = cluster.create(NewTopic(name="u"), Status.PARTITION_LIMIT_REACHED)
        assert "has 53 partitions" in refused.detail

    def test_a_lowered_limit_deletes_nothing(self, cluster: ManagersCluster) -> None:
        cluster.topic("t", 3)
        cluster.partitions_max = 1
        cluster.create(NewTopic(name="u"), Status.PARTITION_LIMIT_REACHED)
        assert len(cluster.partitions("t")) == 3


def change(name: str, value: str | None, *, topic: str = "t", kind: int = 2) -> ConfigChange:
    return ConfigChange(resource_type=kind, resource_name=topic, name=name, value=value)


class TestConfigs:
    def alter(
        self,
        cluster: ManagersCluster,
        *changes: ConfigChange,
        validate_only: bool = False,
        records: int | None = None,
    ) -> list[Status]:
        request = AlterConfigs(changes=list(changes), validate_only=validate_only)
        value = cluster.value_of(configs.alter_configs(cluster.image, request), records=records)
        assert all(item.detail for item in value.items if item.status != Status.OK)
        return [item.status for item in value.items]

    def test_configs_are_set_changed_and_removed(self, cluster: ManagersCluster) -> None:
        cluster.topic("t")
        assert self.alter(cluster, change("retention.ms", "5"), validate_only=True, records=0) == [
            Status.OK
        ]
        assert self.alter(cluster, change("retention.ms", "5"), records=1) == [Status.OK]
        assert self.alter(cluster, change("retention.ms", "5"), records=0) == [Status.OK]
        assert cluster.image.configs.topic("t") == {"retention.ms": "5"}
        assert self.alter(cluster, change("retention.ms", None), records=1) == [Status.OK]
        assert self.alter(cluster, change("retention.ms", None), records=0) == [Status.OK]
        assert cluster.image.configs.topic("t") == {}

    def replace(
        self, cluster: ManagersCluster, topics: list[str], *changes: ConfigChange, records: int
    ) -> list[Status]:
        request = AlterConfigs(changes=list(changes), replaced_topics=topics)
        value = cluster.value_of(configs.alter_configs(cluster.image, request), records=records)
        return [item.status for item in value.items]

    def test_omitted_configs_are_reset_to_their_defaults(self, cluster: ManagersCluster) -> None:
        cluster.topic("t")
        cluster.topic("u")
        self.alter(cluster, change("retention.ms", "5"), change("segment.ms", "6"))
        kept = change("retention.ms", "5")
        assert self.replace(cluster, ["t", "u"], kept, records=1) == [Status.OK] * 3
        assert cluster.image.configs.topic("t") == {"retention.ms": "5"}
        bad = change("segment.ms", "soon")
        assert self.replace(cluster, ["t", "none"], bad, records=0) == [
            Status.INVALID_CONFIG,
            Status.INVALID_CONFIG,
            Status.UNKNOWN_TOPIC,
        ]
        assert self.replace(cluster, ["t"], records=1) == [Status.OK]
        assert cluster.image.configs.topic("t") == {}

    def test_a_fork_keeps_its_source_when_configs_are_replaced(
        self, cluster: ManagersCluster
    ) -> None:
        cluster.topic("t")
        source = "penstock.fork.source"
        cluster.apply([ConfigRecord(2, "t", source, "s"), ConfigRecord(2, "t", "segment.ms", "6")])
        assert self.replace(cluster, ["t"], records=1) == [Status.OK]
        assert cluster.image.configs.topic("t") == {source: "s"}

    def test_changes_of_a_resource_are_applied_all_or_none(self, cluster: ManagersCluster) -> None:
        cluster.topic("t")
        cluster.topic("u")
        changes = [
            change("retention.ms", "5"),
            change("retention.ms", "6", topic="u"),
            change("segment.bytes", "x"),
        ]
        assert self.alter(cluster, *changes, records=1) == [
            Status.INVALID_CONFIG,
            Status.OK,
            Status.INVALID_CONFIG,
        ]

    def test_invalid_config_changes_are_rejected(self, cluster: ManagersCluster) -> None:
        cluster.topic("t")
        assert self.alter(cluster, change("interval.ms", "5", topic="m", kind=16)) == [
            Status.INVALID_REQUEST
        ]
        assert self.alter(cluster, change("retention.ms", "5", topic="zzz")) == [
            Status.UNKNOWN_TOPIC
        ]
        assert self.alter(cluster, change("no.such", "1")) == [Status.INVALID_CONFIG]
        assert self.alter(cluster, change("retention.ms", "5", topic="a/b")) == [
            Status.INVALID_TOPIC_NAME
        ]
        assert (
            self.alter(cluster, change("retention.ms", "5"), change("retention.ms", "6"))
            == [Status.DUPLICATE_IN_REQUEST] * 2
        )

    def test_contradictory_compaction_lags_are_rejected(self, cluster: ManagersCluster) -> None:
        lags = {"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}
        created = cluster.create(NewTopic(name="t", configs=lags), Status.INVALID_CONFIG)
        assert "min.compaction.lag.ms (6)" in created.detail
        cluster.topic("t")
        low, high = change("min.compaction.lag.ms", "6"), change("max.compaction.lag.ms", "5")
        assert self.alter(cluster, low, high) == [Status.INVALID_CONFIG] * 2
        assert self.alter(cluster, low, records=1) == [Status.OK]
        assert self.alter(cluster, high) == [Status.INVALID_CONFIG]
        lower = change("min.compaction.lag.ms", None)
        assert self.alter(cluster, lower, high, records=2) == [Status.OK] * 2

    def test_a_nonexistent_config_can_be_removed(self, cluster: ManagersCluster) -> None:
        cluster.topic("t")
        assert self.alter(cluster, change("no.such", None), records=0) == [Status.OK]

    def test_values_are_stored_in_canonical_form(self, cluster: ManagersCluster) -> None:
        configs = {"cleanup.policy": " compact , compact ", "preallocate": "TRUE"}
        cluster.create(NewTopic(name="t", configs=configs))
        stored = {"cleanup.policy": "compact", "preallocate": "true"}
        assert cluster.image.configs.topic("t") == stored
        again = [change(name, value) for name, value in configs.items()]
        assert self.alter(cluster, *again, records=0) == [Status.OK] * 2
        assert self.alter(cluster, change("retention.ms", " +5 "), records=1) == [Status.OK]
        assert cluster.image.configs.topic("t") == {**stored, "retention.ms": "5"}


class TestKeysAndProducerIds:
    def test_keys_can_be_put_read_and_deleted(self, cluster: ManagersCluster) -> None:
        put = PutKeyValue(key="k", value=b"1", if_absent=True)
        for records in (1, 0):
            cluster.run(kv.put_key_value(cluster.image, put), records=records)
        other = kv.put_key_value(cluster.image, PutKeyValue(key="k", value=b"2", if_absent=True))
        assert other.status == Status.KEY_EXISTS
        assert other.value is not None
        assert other.value.value == b"1"
        cluster.run(kv.put_key_value(cluster.image, PutKeyValue(key="k", value=b"2")), records=1)
        found = cluster.run(kv.get_key_value(cluster.image, GetKeyValue(key="k")), records=0)
        assert found is not None
        assert found.value == b"2"
        cluster.run(kv.delete_key_value(cluster.image, DeleteKeyValue(key="k")), records=1)
        cluster.run(
            kv.delete_key_value(cluster.image, DeleteKeyValue(key="k")), Status.KEY_NOT_EXIST
        )

    def test_the_size_and_number_of_keys_are_limited(
        self, cluster: ManagersCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cluster.run(
            kv.put_key_value(cluster.image, PutKeyValue(key="", value=b"")), Status.INVALID_REQUEST
        )
        cluster.run(
            kv.put_key_value(cluster.image, PutKeyValue(key="k", value=b"x" * 65_537)),
            Status.INVALID_REQUEST,
        )
        monkeypatch.setattr(kv, "KEYS_MAX", 0)
        cluster.run(
            kv.put_key_value(cluster.image, PutKeyValue(key="k", value=b"x")),
            Status.INVALID_REQUEST,
        )

    def test_producer_ids_are_never_assigned_twice(self, cluster: ManagersCluster) -> None:
        node = cluster.broker(1)
        request = AllocateProducerIds(node_id=node.node_id, node_epoch=node.node_epoch)
        blocks = [
            cluster.run(producer_ids.allocate_producer_ids(cluster.image, request))
            for _ in range(2)
        ]
        assert [block.first_producer_id for block in blocks if block is not None] == [0, 1_000]
        stale = AllocateProducerIds(node_id=node.node_id, node_epoch=NodeEpoch(node.node_epoch - 1))
        cluster.run(
            producer_ids.allocate_producer_ids(cluster.image, stale), Status.NODE_EPOCH_EXPIRED
        )


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
class TestInternalTopics:
    def test_internal_topics_cannot_be_deleted(self, cluster: ManagersCluster, name: str) -> None:
        created = cluster.create(NewTopic(name=name, partitions=2))
        assert created.topic_id is not None
        item = cluster.delete_by_id(created.topic_id)
        assert (item.status, len(cluster.partitions(name))) == (Status.INVALID_TOPIC_NAME, 2)

    def test_the_partition_count_of_internal_topics_cannot_change(
        self, cluster: ManagersCluster, name: str
    ) -> None:
        cluster.create(NewTopic(name=name, partitions=2))
        request = CreatePartitions(topics=[NewPartitions(name=name, total=3)])
        (item,) = cluster.run(
            topics.create_partitions(cluster.image, request, live=cluster.live)
        ).items
        assert (item.status, len(cluster.partitions(name))) == (Status.INVALID_TOPIC_NAME, 2)

    def test_internal_topics_are_compacted_whichever_client_creates_them(
        self, cluster: ManagersCluster, name: str
    ) -> None:
        cluster.create(
            NewTopic(name=name, partitions=1, configs={"cleanup.policy": "delete"}),
            Status.INVALID_CONFIG,
        )
        cluster.create(NewTopic(name=name, partitions=1))
        assert cluster.image.configs.topic(name) == {"cleanup.policy": "compact"}

    @pytest.mark.parametrize(
        ("config", "value", "is_allowed"),
        [
            ("cleanup.policy", "delete", False),
            ("cleanup.policy", "compact,delete", False),
            ("cleanup.policy", None, False),
            ("cleanup.policy", "compact", True),
            ("max.message.bytes", "1000", False),
            ("max.message.bytes", "10000000", True),
            ("message.timestamp.after.max.ms", "0", False),
            ("retention.ms", "1000000", True),
        ],
    )
    def test_configs_that_lose_records_of_internal_topics_are_rejected(
        self, cluster: ManagersCluster, name: str, config: str, value: str | None, is_allowed: bool
    ) -> None:
        cluster.create(NewTopic(name=name, partitions=1))
        change = ConfigChange(
            resource_type=TOPIC_RESOURCE, resource_name=name, name=config, value=value
        )
        (item,) = cluster.run(
            configs.alter_configs(cluster.image, AlterConfigs(changes=[change]))
        ).items
        assert item.status is (Status.OK if is_allowed else Status.INVALID_CONFIG)
