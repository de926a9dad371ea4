"""Broker configs over real sockets: settings change at runtime, for one broker or for all, and
persist across restarts.
"""

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from penstock.controller.metadata.configs import BROKER_RESOURCE, TOPIC_RESOURCE
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import create_topics, describe_producers
from tests.support.clients import TIMEOUT_S, create_topic
from tests.support.cluster import Cluster
from tests.support.conversation import alter_configs, describe_configs_of, send_request
from tests.support.in_thread import in_thread
from tests.support.waiting import PATIENCE_S, until

ALL = (BROKER_RESOURCE, "")

pytestmark = pytest.mark.cluster(brokers=2, num_partitions=1)


def address(cluster: Cluster, node_id: int) -> str:
    return f"127.0.0.1:{cluster.brokers[node_id].port}"


async def set_configs(cluster: Cluster, node_id: int | None, **values: str | None) -> None:
    """Set configs of one broker, or of all brokers (None). Underscores in names stand for dots."""
    resource = ALL if node_id is None else (BROKER_RESOURCE, str(node_id))
    named = {name.replace("_", "."): value for name, value in values.items()}
    requested = address(cluster, node_id or 0)
    assert await asyncio.to_thread(alter_configs, requested, resource, named) == (0, None)


async def test_broker_config_overrides_the_cluster_default(cluster: Cluster) -> None:
    await set_configs(cluster, None, num_partitions="3", fetch_max_bytes="2000000")
    await set_configs(cluster, 1, num_partitions="5")
    await until(lambda: [b.config.num_partitions for b in cluster.brokers.values()] == [3, 5])
    assert all(b.config.fetch_bytes_max == 2_000_000 for b in cluster.brokers.values())
    found = await asyncio.to_thread(
        describe_configs_of, address(cluster, 1), (BROKER_RESOURCE, "1"), "num.partitions"
    )
    values = [(item["value"], item["source"]) for item in found["num.partitions"]["synonyms"]]
    assert values == [("5", 2), ("3", 3), ("1", 5)]

    def create(name: str) -> int:
        admin = AdminClient({"bootstrap.servers": address(cluster, 1)})
        admin.create_topics([NewTopic(name)])[name].result(TIMEOUT_S)
        return len(admin.list_topics(name, timeout=TIMEOUT_S).topics[name].partitions)

    assert await asyncio.to_thread(create, "wide") in {3, 5}  # librdkafka may query either broker
    await set_configs(cluster, 1, num_partitions=None)
    await until(lambda: cluster.brokers[1].config.num_partitions == 3)
    await set_configs(cluster, None, num_partitions=None)
    await until(lambda: all(b.config.num_partitions == 1 for b in cluster.brokers.values()))


async def test_broker_configs_persist_across_restarts(cluster: Cluster) -> None:
    await set_configs(cluster, None, max_connections="77")
    await set_configs(cluster, 1, transaction_max_timeout_ms="60000")
    await cluster.stop_controller()
    await cluster.start_controller()
    for node_id in (0, 1):
        await cluster.stop_broker(node_id)
        await cluster.start_broker(node_id)
    configs = {node_id: broker.config for node_id, broker in cluster.brokers.items()}
    assert [configs[node_id].connections_max for node_id in (0, 1)] == [77, 77]
    assert [configs[node_id].transaction_max_timeout_ms for node_id in (0, 1)] == [900_000, 60_000]
    for node_id, source in ((0, 5), (1, 2)):
        resource = (BROKER_RESOURCE, str(node_id))
        name = "transaction.max.timeout.ms"
        found = await asyncio.to_thread(
            describe_configs_of, address(cluster, node_id), resource, name
        )
        assert found[name]["config_source"] == source


async def test_shorter_idle_timeout_closes_idle_connections(cluster: Cluster) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.brokers[0].port)
    await set_configs(cluster, 0, connections_max_idle_ms="50")
    try:
        assert await asyncio.wait_for(reader.read(), timeout=PATIENCE_S) == b""
    finally:
        writer.close()


async def test_background_tasks_use_changed_intervals(tmp_path: Path) -> None:
    """With the initial settings, neither the retention check nor the cleaner would run during the
    test.
    """
    settings = {"log_cleaner_backoff_ms": 86_400_000}
    async with Cluster(tmp_path, brokers=1, **settings) as cluster:
        broker = cluster.broker
        await set_configs(
            cluster,
            0,
            log_retention_check_interval_ms="100",
            log_cleaner_backoff_ms="100",
            compaction_interval_ms="1234",
            wal_linger_ms="123",
        )
        await until(lambda: broker.compactor.config.interval_ms == 1_234)
        assert broker.stream_config.wal_linger_ms == 123
        await asyncio.wait_for(broker.retention.interval.wait(), timeout=PATIENCE_S)
        await asyncio.wait_for(broker.cleaner.interval.wait(), timeout=PATIENCE_S)


@in_thread
def test_admin_client_alters_and_describes_broker_configs(cluster: Cluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})

    def alter(name: str, value: str) -> None:
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.BROKER, "1", incremental_configs=[entry])
        (done,) = admin.incremental_alter_configs([resource]).values()
        done.result(TIMEOUT_S)

    alter("log.cleaner.backoff.ms", "5s")
    for name, value, said in (
        ("node.id", "7", "Cannot update these configs dynamically: Set(node.id)"),
        ("no.such", "7", "there is no setting no.such"),
        ("max.connections", "0", "Invalid value 0 for configuration max.connections"),
        ("group.consumer.session.timeout.ms", "1s", "group.consumer.session.timeout.ms"),
    ):
        with pytest.raises(KafkaException, match="INVALID_REQUEST") as raised:
            alter(name, value)
        assert said in str(raised.value)
    described = admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")])
    (configs,) = (done.result(TIMEOUT_S) for done in described.values())
    assert configs["log.cleaner.backoff.ms"].value == "5000"
    assert not configs["log.cleaner.backoff.ms"].is_read_only
    assert configs["node.id"].is_read_only


async def test_unset_broker_configs_are_null_and_listeners_have_names(cluster: Cluster) -> None:
    found = await asyncio.to_thread(
        describe_configs_of, address(cluster, 0), (BROKER_RESOURCE, "0")
    )
    values = {name: (item["value"], item["config_source"]) for name, item in found.items()}
    listeners, _ = values["listeners"]
    assert all(part.startswith("PLAINTEXT://") for part in listeners.split(","))
    for name in ("advertised.listeners", "broker.rack", "ssl.keystore.location"):
        assert values[name] == (None, 5), name
        assert found[name]["synonyms"] == []
    for name in ("authorizer.class.name", "max.connections.per.ip.overrides"):
        assert values[name] == ("", 5), name


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("min.insync.replicas", "2", None),
        ("log.segment.bytes", "1073741824", None),
        ("log.preallocate", "true", None),
        ("log.flush.interval.ms", "1000", None),
        ("compression.type", "zstd", None),
        ("compression.gzip.level", "-1", None),
        ("unclean.leader.election.enable", "true", None),
        ("metric.reporters", "a.B", None),
        ("remote.log.reader.threads", "10", None),
        ("min.insync.replicas", "0", "Value must be at least 1"),
        ("compression.type", "best", "must be one of"),
        ("log.retention.ms", "1", "set retention.ms of each topic"),
        ("message.max.bytes", "1", "set max.message.bytes of each topic"),
        ("no.such", "1", "there is no setting no.such"),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_kafka_configs_without_effect_are_accepted_and_invalid_values_rejected(
    shared_cluster: Cluster, name: str, value: str, reason: str | None
) -> None:
    at = address(shared_cluster, 0)
    code, message = await asyncio.to_thread(alter_configs, at, ALL, {name: value})
    if reason is None:
        assert (code, message) == (0, None)
        found = await asyncio.to_thread(describe_configs_of, at, ALL, name)
        assert (found[name]["value"], found[name]["config_source"]) == (value, 3)
    else:
        assert code == ErrorCode.INVALID_REQUEST
        assert reason in (message or "")


async def test_topic_configs_fall_back_to_broker_configs(cluster: Cluster) -> None:
    """CreateTopics and DescribeConfigs return the same config source."""
    at, name = address(cluster, 1), "min.insync.replicas"
    request = create_topics.CreateTopicsRequest(timeout_ms=10_000, validate_only=True)
    admin = AdminClient({"bootstrap.servers": at})
    await asyncio.to_thread(admin.create_topics([NewTopic("sourced")])["sourced"].result, TIMEOUT_S)
    for common, own, expected in (
        (None, None, [("1", 5)]),
        ("2", None, [("2", 3), ("1", 5)]),
        ("2", "3", [("3", 2), ("2", 3), ("1", 5)]),
    ):
        await set_configs(cluster, None, min_insync_replicas=common)
        await set_configs(cluster, 1, min_insync_replicas=own)
        await until(lambda own=own: cluster.brokers[1].image.configs.broker("1").get(name) == own)
        request.topics = [create_topics.CreatableTopic(f"sourced-{common}-{own}", 1, 1)]
        created = await asyncio.to_thread(send_request, at, apis.CREATE_TOPICS, request)
        configs = {item["name"]: item for item in created["topics"][0]["configs"]}
        assert (configs[name]["value"], configs[name]["config_source"]) == expected[0]
        found = await asyncio.to_thread(
            describe_configs_of, at, (TOPIC_RESOURCE, "sourced"), name, "retention.ms"
        )
        synonyms = [(item["value"], item["source"]) for item in found[name]["synonyms"]]
        assert synonyms == expected
        assert (found["retention.ms"]["config_source"], found["retention.ms"]["synonyms"]) == (
            5,
            [],
        )


async def test_shorter_producer_id_expiration_applies_immediately(cluster: Cluster) -> None:
    """DeleteRecords writes a checkpoint, which drops expired producers."""
    name = "producer.id.expiration.ms"
    found = await asyncio.to_thread(
        describe_configs_of, address(cluster, 0), (BROKER_RESOURCE, "0")
    )
    assert found[name]["value"] == "86400000"

    def write() -> int:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "enable.idempotence": True})
        producer.produce("written", b"a", partition=0)
        producer.flush(TIMEOUT_S)
        requested = describe_producers.DescribeProducersRequest(
            [describe_producers.TopicRequest("written", [0])]
        )
        topic = cluster.brokers[0].image.topics.by_name("written")
        assert topic is not None
        leader = address(cluster, topic.partitions[0].leader)
        (found,) = send_request(leader, apis.DESCRIBE_PRODUCERS, requested)["topics"]
        return len(found["partitions"][0]["active_producers"])

    await asyncio.to_thread(create_topic, cluster.bootstrap, "written", 1)
    assert [await asyncio.to_thread(write) for _ in range(2)] == [1, 2]
    await set_configs(cluster, None, producer_id_expiration_ms="1")
    await until(
        lambda: all(b.config.producer_id_expiration_ms == 1 for b in cluster.brokers.values())
    )
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    part = TopicPartition("written", 0, 1)
    await asyncio.to_thread(admin.delete_records([part])[part].result, TIMEOUT_S)
    assert await asyncio.to_thread(write) == 1
