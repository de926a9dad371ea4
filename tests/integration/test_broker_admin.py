"""Administer metadata, topics and configs with three client libraries against an in-process
cluster.
"""

import asyncio
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AioNewTopic
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic
from kafka import KafkaAdminClient

from tests.support.cluster import Cluster
from tests.support.in_thread import in_thread
from tests.support.waiting import PATIENCE_S, until, wait_until

TIMEOUT_S = PATIENCE_S

pytestmark = pytest.mark.cluster(brokers=2)


@in_thread
def test_confluent_kafka_creates_describes_and_deletes_topics(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    listed = admin.list_topics(timeout=TIMEOUT_S)
    assert sorted(listed.brokers) == [0, 1]
    assert listed.controller_id == 0
    assert {(broker.host, broker.port) for broker in listed.brokers.values()} == {
        ("127.0.0.1", broker.port) for broker in cluster.brokers.values()
    }
    admin.create_topics([NewTopic("a", 3, 1, config={"retention.ms": "1000"})])["a"].result(
        TIMEOUT_S
    )
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic("a", 3, 1)])["a"].result(TIMEOUT_S)
    # Either broker may respond, and the other one may learn of a change a moment later.
    topic = wait_until(lambda: admin.list_topics(timeout=TIMEOUT_S).topics.get("a"))
    assert sorted(topic.partitions) == [0, 1, 2]
    assert {partition.leader for partition in topic.partitions.values()} <= {0, 1}
    resource = ConfigResource(ConfigResource.Type.TOPIC, "a")
    configs = admin.describe_configs([resource])[resource].result(TIMEOUT_S)
    assert (configs["retention.ms"].value, configs["cleanup.policy"].value) == (
        "1000",
        "delete",
    )
    admin.create_partitions([NewPartitions("a", 5)])["a"].result(TIMEOUT_S)
    wait_until(lambda: len(admin.list_topics(timeout=TIMEOUT_S).topics["a"].partitions) == 5)
    assert len(admin.describe_cluster().result(TIMEOUT_S).nodes) == 2
    admin.delete_topics(["a"])["a"].result(TIMEOUT_S)
    wait_until(lambda: "a" not in admin.list_topics(timeout=TIMEOUT_S).topics)


async def test_admin_client_describes_the_quorum(cluster: Cluster) -> None:
    def look() -> dict[str, Any]:
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        try:
            return admin.describe_metadata_quorum()
        finally:
            admin.close()

    seen = await asyncio.to_thread(look)
    (partition,) = seen["topics"][0]["partitions"]
    assert (partition["partition_index"], partition["leader_id"]) == (0, 0)
    assert partition["high_watermark"] > 0
    assert [voter["replica_id"] for voter in partition["current_voters"]] == [0]
    assert partition["current_voters"][0]["log_end_offset"] >= partition["high_watermark"]
    assert not partition["observers"]
    (listener,) = seen["nodes"][0]["listeners"]
    assert cluster.controller is not None
    assert f"{listener['host']}:{listener['port']}" == cluster.controller.address


async def test_aiokafka_creates_describes_and_deletes_topics(cluster: Cluster) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)

    async def lists(topic: str, *, expected: bool = True) -> bool:
        return (topic in await admin.list_topics()) == expected

    await admin.start()
    try:
        await admin.create_topics([AioNewTopic("c", 2, 1)])
        await until(lambda: lists("c"))
        (topic,) = await admin.describe_topics(["c"])
        assert len(topic["partitions"]) == 2
        described = await admin.describe_cluster()
        assert {broker["node_id"] for broker in described["brokers"]} == {0, 1}
        await admin.delete_topics(["c"])
        await until(lambda: lists("c", expected=False))
    finally:
        await admin.close()
