"""Committed offsets after a topic is deleted and recreated, in Kafka and in Penstock."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from penstock.protocol import apis
from penstock.protocol.gen import offset_fetch
from tests.integration.test_undelete import delete
from tests.support.clients import TIMEOUT_S, create_topic, produce
from tests.support.cluster import Cluster
from tests.support.coordinator_client import send
from tests.support.waiting import wait_until

_NOT_READY = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
TOPIC, GROUP, STAGING = "recreated", "recreated-plain", "recreated-staged"

pytestmark = pytest.mark.cluster(auto_create_topics_enable=False)


def consumer(address: str, group: str) -> Consumer:
    return Consumer({"bootstrap.servers": address, "group.id": group, "enable.auto.commit": False})


def commit(address: str, offset: int) -> None:
    """Commit as a standalone consumer, once there is a coordinator."""
    member = consumer(address, GROUP)

    def is_committed() -> bool:
        try:
            member.commit(offsets=[TopicPartition(TOPIC, 0, offset)], asynchronous=False)
        except KafkaException as error:
            if error.args[0].code() not in _NOT_READY:
                raise
            return False
        return True

    wait_until(is_committed)
    member.close()


def fetched(address: str, group: str, *, stable: bool = False) -> list[Any]:
    """Return the offset of the topic with its error code, and the topics with offsets."""
    topic = offset_fetch.OffsetFetchRequestTopics(name=TOPIC, partition_indexes=[0])
    found: list[Any] = []
    for topics in ([topic], None):
        requested = offset_fetch.OffsetFetchRequestGroup(group, topics=topics)
        request = offset_fetch.OffsetFetchRequest(groups=[requested], require_stable=stable)
        (response,) = send(address, replace(apis.OFFSET_FETCH, max=9), request).groups
        found += [
            (item.name, part.committed_offset, part.error_code)
            for item in response.topics
            for part in item.partitions
        ]
    return found


def conversation(address: str) -> list[Any]:
    create_topic(address, TOPIC)
    produce(address, TOPIC, [b"old"] * 10)
    commit(address, 5)
    producer = Producer({"bootstrap.servers": address, "transactional.id": STAGING})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    staging = consumer(address, STAGING)
    producer.send_offsets_to_transaction(
        [TopicPartition(TOPIC, 0, 7)], staging.consumer_group_metadata(), TIMEOUT_S
    )
    seen: list[Any] = [fetched(address, GROUP), fetched(address, STAGING)]
    delete(address, TOPIC)
    wait_until(lambda: fetched(address, GROUP) == [(TOPIC, -1, 0)])
    seen.append(fetched(address, STAGING))
    create_topic(address, TOPIC)
    seen += [fetched(address, GROUP), fetched(address, STAGING)]
    producer.commit_transaction(TIMEOUT_S)
    seen += [fetched(address, GROUP, stable=True), fetched(address, STAGING, stable=True)]
    commit(address, 1)
    seen.append(fetched(address, GROUP))
    staging.close()
    delete(address, TOPIC)
    return seen


async def test_offsets_are_deleted_with_their_topic_as_in_kafka(
    peer: str, cluster: Cluster
) -> None:
    """This includes offsets that are pending in a transaction, and commits after another topic has
    taken the name.
    """
    theirs = await asyncio.to_thread(conversation, peer)
    ours = await asyncio.to_thread(conversation, cluster.bootstrap)
    assert ours == theirs
    assert theirs[-1] == [(TOPIC, 1, 0), (TOPIC, 1, 0)]
