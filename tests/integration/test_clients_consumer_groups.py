"""Groups of the consumer protocol (KIP-848) with confluent-kafka: regular expressions, upgrades and
the loss of the coordinator. test_clients_groups.py tests both protocols.
"""

import asyncio
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaError,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from penstock.protocol.error_codes import ErrorCode
from tests.support.clients import (
    TIMEOUT_S,
    Polled,
    confluent_consumer,
    create_topic,
    produce,
    protocol_consumer,
)
from tests.support.cluster import Cluster
from tests.support.coordinator_client import coordinator_of, end_coordinator, group_on
from tests.support.in_thread import in_thread
from tests.support.waiting import until

TOPIC = "orders"
GROUP = "g"

pytestmark = pytest.mark.cluster(
    brokers=2,
    group_consumer_session_timeout_ms=30_000,
    group_consumer_heartbeat_interval_ms=200,
    topics={TOPIC: 4},
)


def values(first: int, count: int) -> list[bytes]:
    return [b"order-%d" % index for index in range(first, first + count)]


def member(bootstrap: str, **settings: Any) -> Consumer:
    return protocol_consumer(bootstrap, "consumer", GROUP, **settings)


@in_thread
def test_regex_subscription_follows_created_and_deleted_topics(cluster: Cluster) -> None:
    polled = Polled(member(cluster.bootstrap))
    polled.consumers[0].subscribe(["^late-.*"])
    polled.poll()
    create_topic(cluster.bootstrap, "late-1", 2)
    create_topic(cluster.bootstrap, "early-1", 2)
    produce(cluster.bootstrap, "late-1", values(0, 4), range(2))
    polled.until_count(4)
    create_topic(cluster.bootstrap, "late-2", 1)
    polled.until_shared(3)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.delete_topics(["late-1"])["late-1"].result(TIMEOUT_S)
    polled.until_shared(1)
    polled.consumers[0].close()


@in_thread
def test_invalid_regex_is_rejected(cluster: Cluster) -> None:
    consumer = member(cluster.bootstrap)
    consumer.subscribe(["^(a)\\1"])
    codes: list[int] = []
    while not codes or codes[-1] == KafkaError._ALL_BROKERS_DOWN:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        codes.append(message.error().code())
    assert codes[-1] == KafkaError._FATAL
    assert ErrorCode.INVALID_REGULAR_EXPRESSION.message.rstrip(".") in message.error().str()
    consumer.close()


@in_thread
def test_admin_clients_list_and_describe_the_group(cluster: Cluster) -> None:
    polled = Polled(member(cluster.bootstrap))
    polled.consumers[0].subscribe([TOPIC])
    polled.until_shared(4)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    listed = admin.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(TIMEOUT_S)
    assert [(group.group_id, group.type) for group in listed.valid] == [
        (GROUP, ConsumerGroupType.CONSUMER)
    ]
    classic = admin.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result(TIMEOUT_S)
    assert classic.valid == []
    described = admin.describe_consumer_groups([GROUP])[GROUP].result(TIMEOUT_S)
    assert described.state is ConsumerGroupState.STABLE
    assert described.type is ConsumerGroupType.CONSUMER
    (only,) = described.members
    assert len(only.assignment.topic_partitions) == 4
    polled.consumers[0].close()
    admin.delete_consumer_groups([GROUP])[GROUP].result(TIMEOUT_S)
    assert admin.list_consumer_groups().result(TIMEOUT_S).valid == []


@in_thread
def test_consumer_with_manual_assignment_commits_offsets(cluster: Cluster) -> None:
    """Such a consumer sends its own member id without an epoch, also in a transaction."""
    consumer = member(cluster.bootstrap, enable_auto_commit=False)
    consumer.assign([TopicPartition(TOPIC, index) for index in range(2)])
    consumer.commit(offsets=[TopicPartition(TOPIC, 0, 3)], asynchronous=False)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": "standalone"})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.send_offsets_to_transaction(
        [TopicPartition(TOPIC, 1, 5)], consumer.consumer_group_metadata(), TIMEOUT_S
    )
    producer.commit_transaction(TIMEOUT_S)
    found = consumer.committed([TopicPartition(TOPIC, index) for index in range(2)], TIMEOUT_S)
    assert [partition.offset for partition in found] == [3, 5]
    consumer.close()


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
@in_thread
def test_live_group_is_upgraded_to_the_consumer_protocol_and_downgraded(
    cluster: Cluster, strategy: str
) -> None:
    """Classic members keep consuming while a member of the consumer protocol joins and leaves."""

    def classic() -> Consumer:
        consumer = confluent_consumer(
            cluster.bootstrap,
            GROUP,
            partition_assignment_strategy=strategy,
        )
        consumer.subscribe([TOPIC])
        return consumer

    def type_of_group() -> ConsumerGroupType:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        (group,) = admin.list_consumer_groups().result(TIMEOUT_S).valid
        return group.type

    polled = Polled(classic(), classic())
    polled.until_shared(2, 2)
    assert type_of_group() is ConsumerGroupType.CLASSIC
    newcomer = member(cluster.bootstrap)
    newcomer.subscribe([TOPIC])
    polled.add(newcomer)
    polled.until_shared(1, 1, 2)
    assert type_of_group() is ConsumerGroupType.CONSUMER
    produce(cluster.bootstrap, TOPIC, values(0, 40), range(4))
    polled.until_count(40)
    polled.drop(newcomer)
    newcomer.close()
    polled.until_shared(2, 2)
    assert type_of_group() is ConsumerGroupType.CLASSIC
    produce(cluster.bootstrap, TOPIC, values(40, 40), range(4))
    polled.until_count(80)
    assert set(polled.everything()) == set(values(0, 80))
    for consumer in polled.consumers:
        consumer.close()


@pytest.mark.parametrize("end", ["killed", "stopped", "moved"])
async def test_group_continues_at_another_coordinator_without_a_rebalance(
    cluster: Cluster, end: str
) -> None:
    """The members keep their partitions and epochs, and the group keeps its commits."""
    rebalances: list[int] = []
    polled = Polled(*(member(cluster.bootstrap, auto_commit_interval_ms=100) for _ in range(2)))
    for consumer in polled.consumers:
        consumer.subscribe([TOPIC], on_assign=lambda *_: rebalances.append(1))
    await asyncio.to_thread(polled.until_shared, 2, 2)
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(0, 20), range(4))
    await asyncio.to_thread(polled.until_count, 20)
    before, group = len(rebalances), group_on(cluster, GROUP, "consumer")
    assert group is not None
    epochs = {name: known.current.epoch for name, known in group.members.items()}
    assigned = polled.assigned()
    coordinator = coordinator_of(cluster, GROUP)
    await end_coordinator(cluster, GROUP, end)
    polling = asyncio.create_task(asyncio.to_thread(polled.until_count, 40))
    await until(lambda: coordinator_of(cluster, GROUP) not in {-1, coordinator})
    survivor = cluster.brokers[coordinator_of(cluster, GROUP)]
    if end != "moved":
        await until(
            lambda: all(
                partition.leader == survivor.node_id
                for partition in survivor.image.topics.by_name(TOPIC).partitions
            )
        )
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(20, 20), range(4))
    await polling
    # Members consume without a coordinator, so it may load the group only after all records are
    # read.
    await until(lambda: group_on(cluster, GROUP, "consumer") not in {None, group})
    restored = group_on(cluster, GROUP, "consumer")
    assert restored is not None
    assert {name: known.current.epoch for name, known in restored.members.items()} == epochs
    assert (len(rebalances), polled.assigned()) == (before, assigned)
    assert sorted(polled.everything()) == sorted(values(0, 40)), "each record once"
    for consumer in polled.consumers:
        await asyncio.to_thread(consumer.close)
