"""Consumer groups with confluent-kafka: members subscribe, commit, join, leave and die, some with
either protocol, and a classic group survives the loss of its coordinator.
"""

import asyncio

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from tests.support.clients import (
    SHORT_SESSION_TIMEOUT_MS,
    TIMEOUT_S,
    Polled,
    Taken,
    confluent_consumer,
    create_topic,
    produce,
    protocol_consumer,
    read_records,
)
from tests.support.cluster import Cluster
from tests.support.coordinator_client import end_coordinator
from tests.support.in_thread import in_thread
from tests.support.waiting import until

TOPIC = "orders"

BOTH_PROTOCOLS = pytest.mark.parametrize("protocol", ["classic", "consumer"])

pytestmark = pytest.mark.cluster(
    brokers=2,
    group_min_session_timeout_ms=500,
    group_consumer_session_timeout_ms=30_000,
    group_consumer_heartbeat_interval_ms=200,
    topics={TOPIC: 4},
)


def values(first: int, count: int) -> list[bytes]:
    return [b"order-%d" % index for index in range(first, first + count)]


def committed(consumer: Consumer, partition: int = 0) -> int:
    return consumer.committed([TopicPartition(TOPIC, partition)], TIMEOUT_S)[0].offset


@in_thread
def test_new_member_resumes_from_the_committed_offsets(cluster: Cluster) -> None:
    produce(cluster.bootstrap, TOPIC, values(0, 10))
    first = confluent_consumer(cluster.bootstrap, "g", enable_auto_commit=False)
    assert committed(first) == OFFSET_INVALID
    first.subscribe([TOPIC])
    found = read_records(first, 6)
    assert [message.value() for message in found] == values(0, 6)
    (result,) = first.commit(message=found[-1], asynchronous=False)
    assert (result.partition, result.offset, result.error) == (0, 6, None)
    first.close()
    second = confluent_consumer(cluster.bootstrap, "g", enable_auto_commit=False)
    second.subscribe([TOPIC])
    assert [message.value() for message in read_records(second, 4)] == values(6, 4)
    second.close()
    third = confluent_consumer(cluster.bootstrap, "g")
    assert committed(third) == 6
    third.close()


@in_thread
def test_auto_commit_runs_periodically_and_on_close(cluster: Cluster) -> None:
    produce(cluster.bootstrap, TOPIC, values(0, 5))
    consumer = confluent_consumer(cluster.bootstrap, "g", auto_commit_interval_ms=100)
    observer = confluent_consumer(cluster.bootstrap, "g")
    consumer.subscribe([TOPIC])
    polled = Polled(consumer)
    polled.until_count(5)
    polled.until(lambda: committed(observer) == 5)
    consumer.close()
    produce(cluster.bootstrap, TOPIC, values(5, 5))
    closing = confluent_consumer(cluster.bootstrap, "g", auto_commit_interval_ms=60_000)
    closing.subscribe([TOPIC])
    read_records(closing, 5)
    closing.close()
    assert committed(observer) == 10
    observer.close()


@BOTH_PROTOCOLS
@in_thread
def test_members_share_partitions_and_take_over_those_of_a_leaving_member(
    cluster: Cluster, protocol: str
) -> None:
    polled = Polled(*(protocol_consumer(cluster.bootstrap, protocol, "g") for _ in range(2)))
    for consumer in polled.consumers:
        consumer.subscribe([TOPIC])
    polled.until_shared(2, 2)
    produce(cluster.bootstrap, TOPIC, values(0, 40), range(4))
    polled.until_count(40)
    assert sorted(polled.everything()) == sorted(values(0, 40))
    assert all(len(found) == 20 for found in polled.values.values())
    leaving, staying = polled.consumers
    polled.drop(leaving)
    leaving.close()
    polled.until_shared(4)
    produce(cluster.bootstrap, TOPIC, values(40, 40), range(4))
    polled.until_count(80)
    assert sorted(polled.everything()) == sorted(values(0, 80)), "each record once"
    staying.close()


@BOTH_PROTOCOLS
@in_thread
def test_partitions_of_a_dead_member_are_reassigned(cluster: Cluster, protocol: str) -> None:
    produce(cluster.bootstrap, TOPIC, values(0, 40), range(4))
    settings = {"max_poll_interval_ms": SHORT_SESSION_TIMEOUT_MS}
    if protocol == "classic":  # a session may not be longer
        settings["session_timeout_ms"] = SHORT_SESSION_TIMEOUT_MS
    polled = Polled(
        *(protocol_consumer(cluster.bootstrap, protocol, "g", **settings) for _ in range(2))
    )
    for consumer in polled.consumers:
        consumer.subscribe([TOPIC])
    polled.until_shared(2, 2)
    dead, alive = polled.consumers
    # A member that stops polling leaves the group, like one whose process has died.
    polled.drop(dead)
    polled.until_shared(4)
    polled.until(lambda: set(polled.everything()) == set(values(0, 40)))
    alive.close()
    dead.close()


@BOTH_PROTOCOLS
@in_thread
def test_static_member_restarts_without_a_rebalance(cluster: Cluster, protocol: str) -> None:
    produce(cluster.bootstrap, TOPIC, values(0, 8), range(4))
    rebalances: list[str] = []

    def member(name: str) -> Consumer:
        consumer = protocol_consumer(cluster.bootstrap, protocol, "g", group_instance_id=name)
        consumer.subscribe([TOPIC], on_assign=lambda *_: rebalances.append(name))
        return consumer

    polled = Polled(member("a"), member("b"))
    polled.until_shared(2, 2)
    polled.until_count(8)
    before, (first, second) = len(rebalances), polled.assigned()
    leaving = polled.consumers[0]
    polled.drop(leaving)
    leaving.close()
    polled.add(member("a"))
    polled.until_shared(2, 2)
    assert [sorted(parts) for parts in polled.assigned()] == [sorted(second), sorted(first)]
    assert rebalances[before:] == ["a"], "the other member noticed nothing"
    for consumer in polled.consumers:
        consumer.close()


@BOTH_PROTOCOLS
@in_thread
def test_cooperative_rebalance_moves_as_few_partitions_as_possible(
    cluster: Cluster, protocol: str
) -> None:
    taken = Taken()
    cooperative = {"partition_assignment_strategy": "cooperative-sticky"}
    settings = cooperative if protocol == "classic" else {}

    def member() -> Consumer:
        consumer = protocol_consumer(cluster.bootstrap, protocol, "g", **settings)
        return taken.subscribe(consumer, TOPIC)

    polled = Polled(member())
    polled.until_shared(4)
    polled.add(member())
    polled.until_shared(2, 2)
    assert (len(taken.revoked), taken.lost) == (2, [])
    produce(cluster.bootstrap, TOPIC, values(0, 20), range(4))
    polled.until_count(20)
    assert sorted(polled.everything()) == sorted(values(0, 20))
    for consumer in polled.consumers:
        consumer.close()


@BOTH_PROTOCOLS
@in_thread
def test_group_receives_partitions_that_are_added(cluster: Cluster, protocol: str) -> None:
    polled = Polled(protocol_consumer(cluster.bootstrap, protocol, "g"))
    polled.consumers[0].subscribe([TOPIC])
    polled.until_shared(4)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_partitions([NewPartitions(TOPIC, 6)])[TOPIC].result(TIMEOUT_S)
    produce(cluster.bootstrap, TOPIC, values(0, 12), range(6))
    polled.until_shared(6)
    polled.until_count(12)
    assert sorted(polled.everything()) == sorted(values(0, 12))
    polled.consumers[0].close()


@in_thread
def test_group_may_subscribe_before_the_topic_exists(cluster: Cluster) -> None:
    polled = Polled(confluent_consumer(cluster.bootstrap, "g"))
    polled.consumers[0].subscribe(["^late-.*"])
    reported = polled.consumers[0].poll(TIMEOUT_S)
    assert reported.error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART, (
        "librdkafka says once that nothing matches"
    )
    create_topic(cluster.bootstrap, "late-1", 2)
    produce(cluster.bootstrap, "late-1", values(0, 4), range(2))
    polled.until_count(4)
    polled.consumers[0].close()


@pytest.mark.parametrize("leave", ["killed", "stopped"])
async def test_group_continues_when_its_coordinator_dies(cluster: Cluster, leave: str) -> None:
    """The member keeps its id and generation, continues to consume, and gets the offsets that were
    committed before.
    """
    consumer = confluent_consumer(cluster.bootstrap, "g", auto_commit_interval_ms=100)
    consumer.subscribe([TOPIC])
    polled = Polled(consumer)
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(0, 20), range(4))
    await asyncio.to_thread(polled.until_count, 20)
    await asyncio.to_thread(
        polled.until, lambda: sum(committed(consumer, partition) for partition in range(4)) == 20
    )
    await end_coordinator(cluster, "g", leave)
    survivor = cluster.broker
    polling = asyncio.create_task(asyncio.to_thread(polled.until_count, 40))
    await until(
        lambda: all(
            partition.leader == survivor.node_id
            for partition in survivor.image.topics.by_name(TOPIC).partitions
        )
    )
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, values(20, 20), range(4))
    await polling
    await asyncio.to_thread(
        polled.until, lambda: sum(committed(consumer, partition) for partition in range(4)) == 40
    )
    await asyncio.to_thread(consumer.close)
    assert sorted(polled.everything()) == sorted(values(0, 40)), (
        "each record once: the member continued from its position"
    )

    def resume() -> None:
        late = confluent_consumer(cluster.bootstrap, "g")
        late.subscribe([TOPIC])
        produce(cluster.bootstrap, TOPIC, values(40, 4), range(4))
        assert sorted(message.value() for message in read_records(late, 4)) == sorted(values(40, 4))
        late.close()

    await asyncio.to_thread(resume)
