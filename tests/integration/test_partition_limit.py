"""The partition limit of a cluster (`max.partitions`) as unmodified clients see it."""

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import KafkaAdminClient
from kafka.admin import NewTopic as PyNewTopic
from kafka.errors import PolicyViolationError

from penstock.controller.main import ControllerHealth
from penstock.deploy.node.metrics import table
from penstock.deploy.node.metrics.controller import ControllerReader
from tests.support.clients import TIMEOUT_S, confluent_consumer, create_topic, produce, read_records
from tests.support.cluster import Cluster

LIMIT = 4
HINT = "the limit of 4 (max.partitions of the controllers): delete topics"


def use(bootstrap: str) -> None:
    create_topic(bootstrap, "t", 3)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for futures in (
        admin.create_topics([NewTopic("u", 2)]),
        admin.create_topics([NewTopic("u", 2)], validate_only=True),
        admin.create_partitions([NewPartitions("t", 5)]),
    ):
        ((_, future),) = futures.items()
        with pytest.raises(KafkaException) as caught:
            future.result(TIMEOUT_S)
        error = caught.value.args[0]
        assert error.code() == KafkaError.POLICY_VIOLATION
        assert "has 3 partitions of topics and snapshots" in error.str()
        assert HINT in error.str()
    python = KafkaAdminClient(bootstrap_servers=bootstrap)
    with pytest.raises(PolicyViolationError, match=r"max\.partitions"):
        python.create_topics([PyNewTopic("u", 2, 1)])
    python.close()

    produce(bootstrap, "born", [b"by use"])
    producer = Producer({"bootstrap.servers": bootstrap})
    error = producer.list_topics("unborn", TIMEOUT_S).topics["unborn"].error
    assert error.code() == KafkaError.POLICY_VIOLATION
    topics = admin.list_topics(timeout=TIMEOUT_S).topics
    assert {name: len(topic.partitions) for name, topic in topics.items()} == {"t": 3, "born": 1}

    consumer = confluent_consumer(bootstrap, "g")  # its group requires __consumer_offsets
    consumer.subscribe(["born"])
    assert [message.value() for message in read_records(consumer, 1)] == [b"by use"]
    consumer.close()


async def test_clients_cannot_create_partitions_beyond_the_limit(tmp_path: Path) -> None:
    settings = {"partitions_max": LIMIT}
    async with Cluster(
        tmp_path, controller_settings=settings, group_min_session_timeout_ms=1_000
    ) as cluster:
        await asyncio.to_thread(use, cluster.bootstrap)
        assert cluster.controller is not None
        health = ControllerHealth(cluster.controller)
        reported = {metric: value for metric, _, value in ControllerReader(health)()}
        counted = reported[table.CLUSTER_PARTITIONS], reported[table.SNAPSHOT_PARTITIONS]
        assert counted == (LIMIT + 4, 0), "with __consumer_offsets"
        assert reported[table.PARTITIONS_LIMIT] == LIMIT
