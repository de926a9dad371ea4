"""Unmodified clients administer topics, configs and groups, and create topics by using them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
)
from kafka import KafkaAdminClient, KafkaConsumer
from kafka import TopicPartition as PyTopicPartition
from kafka.admin import ConfigResource as PyConfigResource
from kafka.admin import ConfigResourceType
from kafka.admin import NewTopic as PyNewTopic
from kafka.errors import (
    GroupIdNotFoundError,
    GroupSubscribedToTopicError,
    InvalidConfigurationError,
    NoError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)

from tests.support.clients import (
    TIMEOUT_S,
    Polled,
    confluent_consumer,
    create_topic,
    produce,
    read_records,
)
from tests.support.cluster import Cluster
from tests.support.in_thread import in_thread
from tests.support.waiting import wait_until

TOPIC = "events"

pytestmark = pytest.mark.cluster(brokers=2, group_min_session_timeout_ms=500)


def admin_of(cluster: Cluster) -> AdminClient:
    return AdminClient({"bootstrap.servers": cluster.bootstrap})


def refusal_of(future: Any) -> tuple[int, str]:
    with pytest.raises(KafkaException) as caught:
        future.result(TIMEOUT_S)
    error: KafkaError = caught.value.args[0]
    return error.code(), error.str()


# --- groups ---------------------------------------------------------------------------------------


@in_thread
def test_confluent_kafka_lists_describes_alters_and_deletes_groups(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, TOPIC, 2)
    produce(cluster.bootstrap, TOPIC, [b"x"] * 10, range(2))
    admin = admin_of(cluster)
    polled = Polled(
        *(confluent_consumer(cluster.bootstrap, "g", client_id=f"c{index}") for index in range(2))
    )
    for consumer in polled.consumers:
        consumer.subscribe([TOPIC])
    polled.until_shared(1, 1)
    polled.until_count(10)
    listed = admin.list_consumer_groups().result(TIMEOUT_S)
    assert [
        (group.group_id, group.state, group.is_simple_consumer_group) for group in listed.valid
    ] == [("g", ConsumerGroupState.STABLE, False)]
    assert listed.errors == []
    group = admin.describe_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    assert (group.state, group.partition_assignor, group.coordinator.id in {0, 1}) == (
        ConsumerGroupState.STABLE,
        "range",
        True,
    )
    assert sorted(member.client_id for member in group.members) == ["c0", "c1"]
    assert {member.host for member in group.members} == {"/127.0.0.1"}
    assert sorted(
        part.partition for member in group.members for part in member.assignment.topic_partitions
    ) == [0, 1]
    assert refusal_of(admin.delete_consumer_groups(["g"])["g"])[0] == KafkaError.NON_EMPTY_GROUP
    for consumer in polled.consumers:
        consumer.close()
    wait_until(
        lambda: (
            admin.describe_consumer_groups(["g"])["g"].result(TIMEOUT_S).state
            == ConsumerGroupState.EMPTY
        )
    )
    requested = [ConsumerGroupTopicPartitions("g")]
    offsets = admin.list_consumer_group_offsets(requested)["g"].result(TIMEOUT_S).topic_partitions
    assert {(part.topic, part.partition, part.offset) for part in offsets} == {
        (TOPIC, 0, 5),
        (TOPIC, 1, 5),
    }
    rewound = [ConsumerGroupTopicPartitions("g", [TopicPartition(TOPIC, 0, 2)])]
    admin.alter_consumer_group_offsets(rewound)["g"].result(TIMEOUT_S)
    again = confluent_consumer(cluster.bootstrap, "g")
    again.subscribe([TOPIC])
    assert [message.offset() for message in read_records(again, 3)] == [2, 3, 4]
    again.close()
    admin.delete_consumer_groups(["g"])["g"].result(TIMEOUT_S)
    assert refusal_of(admin.delete_consumer_groups(["g"])["g"])[0] == KafkaError.GROUP_ID_NOT_FOUND
    assert admin.list_consumer_groups().result(TIMEOUT_S).valid == []
    assert (
        admin.describe_consumer_groups(["g"])["g"].result(TIMEOUT_S).state
        == ConsumerGroupState.DEAD
    )


@in_thread
def test_kafka_python_lists_describes_and_deletes_groups(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, TOPIC)
    produce(cluster.bootstrap, TOPIC, [b"x"] * 3)
    bootstrap = cluster.bootstrap.split(",")
    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=bootstrap,
        group_id="p",
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_S * 1_000,
    )
    assert [next(consumer).offset for _ in range(3)] == [0, 1, 2]
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    assert [group["group_id"] for group in admin.list_groups()] == ["p"]
    described = admin.describe_groups(["p"])["p"]
    assert (
        described["group_state"],
        described["protocol_type"],
        len(described["members"]),
    ) == ("Stable", "consumer", 1)
    consumer.close()
    offsets = admin.list_group_offsets("p")
    assert {(part.topic, part.partition): found.offset for part, found in offsets["p"].items()} == {
        (TOPIC, 0): 3
    }
    assert admin.delete_groups(["p"]) == {"p": "OK"}
    assert admin.delete_groups(["p"]) == {"p": "GroupIdNotFoundError"}
    assert admin.list_groups() == []
    admin.close()


@in_thread
def test_kafka_python_deletes_offsets_of_unsubscribed_topics(
    cluster: Cluster,
) -> None:
    for topic in (TOPIC, "other"):
        create_topic(cluster.bootstrap, topic)
        produce(cluster.bootstrap, topic, [b"x"] * 3)
    consumer = confluent_consumer(cluster.bootstrap, "g", enable_auto_commit=False)
    consumer.subscribe([TOPIC])
    read_records(consumer, 3)
    offsets = [TopicPartition(topic, 0, 2) for topic in (TOPIC, "other")]
    consumer.commit(offsets=offsets, asynchronous=False)

    def left() -> dict[str, int]:
        return {found.topic: found.offset for found in consumer.committed(offsets, TIMEOUT_S)}

    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    read, other, missing = (PyTopicPartition(topic, 0) for topic in (TOPIC, "other", "missing"))
    assert admin.delete_group_offsets("g", [read, other, missing]) == {
        read: GroupSubscribedToTopicError,
        other: NoError,
        missing: UnknownTopicOrPartitionError,
    }
    assert left() == {TOPIC: 2, "other": OFFSET_INVALID}
    consumer.close()
    wait_until(lambda: admin.delete_group_offsets("g", [read]) == {read: NoError})
    with pytest.raises(GroupIdNotFoundError):
        admin.delete_group_offsets("none", [read])
    admin.close()
    again = confluent_consumer(cluster.bootstrap, "g")
    assert again.committed(offsets[:1], TIMEOUT_S)[0].offset == OFFSET_INVALID
    again.close()


async def test_aiokafka_lists_and_describes_groups(cluster: Cluster) -> None:
    await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC)
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, [b"x"] * 3)
    async with AIOKafkaConsumer(
        TOPIC, bootstrap_servers=cluster.bootstrap, group_id="a", auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(TIMEOUT_S):
            assert [(await consumer.getone()).offset for _ in range(3)] == [0, 1, 2]
        await consumer.commit()
        admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await admin.start()
        try:
            assert await admin.list_consumer_groups() == [("a", "consumer")]
            (response,) = await admin.describe_consumer_groups(["a"])
            assert [(group[1], group[2]) for group in response.groups] == [("a", "Stable")]
            offsets = await admin.list_consumer_group_offsets("a")
            assert [found.offset for found in offsets.values()] == [3]
        finally:
            await admin.close()


# --- topics and configs ---------------------------------------------------------------------------


@in_thread
def test_topics_are_created_with_configs_and_described(cluster: Cluster) -> None:
    admin = admin_of(cluster)
    settings = {
        "cleanup.policy": "compact",
        "retention.ms": "-1",
        "max.message.bytes": "2000000",
        "min.insync.replicas": "1",
    }
    admin.create_topics([NewTopic(TOPIC, 3, 2, config=settings)])[TOPIC].result(TIMEOUT_S)
    resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)
    found = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    assert {name: found[name].value for name in settings} == settings
    assert not found["cleanup.policy"].is_default
    assert found["compression.type"].is_default
    assert found["compression.type"].value == "producer"
    broker = ConfigResource(ConfigResource.Type.BROKER, "0")
    assert admin.describe_configs([broker])[broker].result(TIMEOUT_S)
    missing = ConfigResource(ConfigResource.Type.TOPIC, "missing")
    assert (
        refusal_of(admin.describe_configs([missing])[missing])[0]
        == KafkaError.UNKNOWN_TOPIC_OR_PART
    )
    described = admin.list_topics(timeout=TIMEOUT_S).topics[TOPIC]
    assert sorted(described.partitions) == [0, 1, 2]


@pytest.mark.parametrize(
    ("topic", "code", "said"),
    [
        (
            NewTopic("t", 1, 1, config={"retention.mss": "5"}),
            KafkaError.INVALID_CONFIG,
            "retention.ms",
        ),
        (
            NewTopic("t", 1, 1, config={"retention.ms": "soon"}),
            KafkaError.INVALID_CONFIG,
            "retention.ms",
        ),
        (
            NewTopic("t", 1, 1, config={"cleanup.policy": "burn"}),
            KafkaError.INVALID_CONFIG,
            "compact",
        ),
        (NewTopic("t", 0, 1), KafkaError.INVALID_PARTITIONS, ""),
        (NewTopic("t", 1, 1_000), KafkaError.INVALID_REPLICATION_FACTOR, ""),
        (NewTopic("no spaces", 1, 1), KafkaError.TOPIC_EXCEPTION, ""),
        (NewTopic("n" * 250, 1, 1), KafkaError.TOPIC_EXCEPTION, ""),
    ],
    ids=[
        "unknown config",
        "not a number",
        "no such policy",
        "no partitions",
        "too many replicas",
        "bad name",
        "long name",
    ],
)
@pytest.mark.asyncio(loop_scope="module")
@in_thread
def test_invalid_topics_are_refused_with_a_reason(
    shared_cluster: Cluster, topic: NewTopic, code: int, said: str
) -> None:
    admin = admin_of(shared_cluster)
    found, reason = refusal_of(next(iter(admin.create_topics([topic]).values())))
    assert found == code
    assert said in reason
    assert admin.list_topics(timeout=TIMEOUT_S).topics == {}


@in_thread
def test_validate_only_creates_no_topic(cluster: Cluster) -> None:
    admin = admin_of(cluster)
    admin.create_topics([NewTopic(TOPIC, 1, 1)], validate_only=True)[TOPIC].result(TIMEOUT_S)
    assert admin.list_topics(timeout=TIMEOUT_S).topics == {}
    create_topic(cluster.bootstrap, TOPIC, 2)
    admin.create_partitions([NewPartitions(TOPIC, 3)], validate_only=True)[TOPIC].result(TIMEOUT_S)
    assert (
        refusal_of(admin.create_partitions([NewPartitions(TOPIC, 1)])[TOPIC])[0]
        == KafkaError.INVALID_PARTITIONS
    )
    assert len(admin.list_topics(timeout=TIMEOUT_S).topics[TOPIC].partitions) == 2
    assert (
        refusal_of(admin.delete_topics(["missing"])["missing"])[0]
        == KafkaError.UNKNOWN_TOPIC_OR_PART
    )


@in_thread
def test_kafka_python_administers_topics_and_configs(cluster: Cluster) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    admin.create_topics([PyNewTopic(TOPIC, 2, 1, topic_configs={"retention.ms": "1234"})])
    with pytest.raises(TopicAlreadyExistsError):
        admin.create_topics([PyNewTopic(TOPIC, 2, 1)])
    with pytest.raises(InvalidConfigurationError):
        admin.create_topics([PyNewTopic("other", 2, 1, topic_configs={"retention.mss": "1"})])
    described = admin.describe_configs([PyConfigResource(ConfigResourceType.TOPIC, TOPIC)])
    assert "1234" in str(described)
    admin.create_partitions({TOPIC: 5})
    (topic,) = admin.describe_topics([TOPIC])
    assert sorted(part["partition_index"] for part in topic["partitions"]) == [0, 1, 2, 3, 4]
    assert TOPIC in admin.list_topics()
    admin.delete_topics([TOPIC])
    assert TOPIC not in admin.list_topics()
    admin.close()


@in_thread
def test_segment_configs_are_stored_although_they_have_no_effect(cluster: Cluster) -> None:
    configs = {
        "segment.bytes": "1048576",
        "segment.index.bytes": "4",
        "segment.jitter.ms": "10",
        "segment.ms": "1",
    }
    admin = admin_of(cluster)
    create_topic(cluster.bootstrap, TOPIC, **configs)
    (described,) = admin.describe_configs([ConfigResource(2, TOPIC)]).values()
    found = described.result(TIMEOUT_S)
    assert {name: found[name].value for name in configs} == configs
    too_small = NewTopic("other", 1, config={"segment.bytes": "1048575"})
    code, _ = refusal_of(admin.create_topics([too_small])["other"])
    assert code == KafkaError.INVALID_CONFIG


@pytest.mark.filterwarnings("ignore:alter_configs has been deprecated")
@in_thread
def test_alter_configs_of_older_clients_replaces_all_topic_configs(cluster: Cluster) -> None:
    create_topic(cluster.bootstrap, TOPIC, retention_ms="1000000", segment_ms="2000000")
    admin = admin_of(cluster)

    def replace(**configs: str) -> None:
        named = {name.replace("_", "."): value for name, value in configs.items()}
        resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC, set_config=named)
        admin.alter_configs([resource])[resource].result(TIMEOUT_S)

    def present() -> dict[str, str]:
        resource = ConfigResource(ConfigResource.Type.TOPIC, TOPIC)
        found = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
        return {
            name: entry.value
            for name, entry in found.items()
            if entry.source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
        }

    replace(retention_ms="7000000")
    wait_until(lambda: present() == {"retention.ms": "7000000"})
    with pytest.raises(KafkaException) as caught:
        replace(retention_ms="soon")
    assert caught.value.args[0].code() == KafkaError.INVALID_CONFIG
    assert present() == {"retention.ms": "7000000"}
    replace()
    wait_until(lambda: present() == {})


@in_thread
def test_recreated_topic_is_empty_and_has_a_new_id(cluster: Cluster) -> None:
    admin = admin_of(cluster)
    for value in (b"old", b"new"):
        create_topic(cluster.bootstrap, TOPIC)
        produce(cluster.bootstrap, TOPIC, [value])
        consumer = confluent_consumer(cluster.bootstrap, "g", enable_auto_commit=False)
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        (message,) = read_records(consumer, 1)
        assert (message.offset(), message.value()) == (0, value)
        consumer.close()
        admin.delete_topics([TOPIC])[TOPIC].result(TIMEOUT_S)


# --- automatic topic creation ---------------------------------------------------------------------


@in_thread
def test_producing_to_a_missing_topic_creates_it(cluster: Cluster) -> None:
    produce(cluster.bootstrap, "born", [b"1", b"2"])
    consumer = confluent_consumer(cluster.bootstrap, "g")
    consumer.subscribe(["born"])
    assert [message.value() for message in read_records(consumer, 2)] == [b"1", b"2"]
    consumer.close()


@in_thread
def test_consumer_that_forbids_auto_creation_creates_no_topic(cluster: Cluster) -> None:
    consumer = confluent_consumer(cluster.bootstrap, "g", allow_auto_create_topics=False)
    consumer.subscribe(["missing"])
    message = consumer.poll(TIMEOUT_S)
    assert message.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    consumer.close()
    assert "missing" not in admin_of(cluster).list_topics(timeout=TIMEOUT_S).topics


async def test_auto_creation_can_be_disabled(tmp_path: Path) -> None:
    def run(bootstrap: str) -> None:
        outcomes: list[KafkaError | None] = []
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "message.timeout.ms": TIMEOUT_S * 1_000,
                "topic.metadata.propagation.max.ms": 500,
            }
        )
        producer.produce("missing", b"x", on_delivery=lambda error, _: outcomes.append(error))
        assert producer.flush(TIMEOUT_S) == 0
        assert outcomes[0] is not None
        assert outcomes[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART
        assert (
            AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=TIMEOUT_S).topics
            == {}
        )

    async with Cluster(tmp_path, auto_create_topics_enable=False) as cluster:
        await asyncio.to_thread(run, cluster.bootstrap)


def partition_counts(admin: AdminClient) -> dict[str, int]:
    return {
        name: len(topic.partitions)
        for name, topic in admin.list_topics(timeout=TIMEOUT_S).topics.items()
    }


@in_thread
def test_clients_cannot_change_internal_topics(cluster: Cluster) -> None:
    admin = admin_of(cluster)
    admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(TIMEOUT_S)
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 5)], asynchronous=False)
    Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "x"}).init_transactions(
        TIMEOUT_S
    )
    before = partition_counts(admin)
    for name in ("__consumer_offsets", "__transaction_state"):
        for client_id in ("anyone", "__admin_client"):
            errors: list[Any] = []
            producer = Producer({"bootstrap.servers": cluster.bootstrap, "client.id": client_id})
            producer.produce(
                name,
                key=b"k",
                value=b"v",
                on_delivery=lambda error, _, errors=errors: errors.append(error),
            )
            producer.flush(TIMEOUT_S)
            assert [error.code() for error in errors] == [KafkaError.TOPIC_EXCEPTION]
        assert refusal_of(admin.delete_topics([name])[name])[0] == KafkaError.TOPIC_EXCEPTION
        code, said = refusal_of(admin.create_partitions([NewPartitions(name, 64)])[name])
        assert (code, "must keep its" in said) == (KafkaError.TOPIC_EXCEPTION, True)
        for config, value in (("cleanup.policy", "delete"), ("max.message.bytes", "1")):
            change = ConfigEntry(config, value, incremental_operation=AlterConfigOpType.SET)
            resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=[change])
            assert (
                refusal_of(admin.incremental_alter_configs([resource])[resource])[0]
                == KafkaError.INVALID_CONFIG
            )
    assert partition_counts(admin) == before
    assert consumer.committed([TopicPartition(TOPIC, 0)], TIMEOUT_S)[0].offset == 5
    consumer.close()
