"""Remove a broker that will not return, over the Kafka protocol and with `penstock nodes`."""

import asyncio
import json
from pathlib import Path

import pytest

from penstock.base.errors import ExpectedError
from penstock.base.ids import NodeId
from penstock.broker.errors import ErrorCode
from penstock.controller.api.messages import CreateTopics, DeleteTopics, NewTopic
from penstock.controller.metadata.image import MetadataImage
from penstock.deploy.clients.wire import WireClient
from penstock.protocol import apis
from penstock.protocol.gen import unregister_broker as wire
from penstock.stream.config import StreamConfig
from penstock.stream.ports import ObjectRole
from tests.support.cli import Cli
from tests.support.clients import confluent_consumer, produce, read_records
from tests.support.cluster import Cluster
from tests.support.waiting import until

TOPIC, OTHER = "kept", "deleted"
COUNT = 20
GONE = NodeId(1)

# The cluster uploads nothing, so that records stay in WAL slots, and deletes objects soon.
pytestmark = pytest.mark.cluster(
    brokers=2,
    stream_config=StreamConfig(wal_linger_ms=0, block_age_max_ms=600_000),
    controller_settings={
        "read_grace_ms": 300,
        "late_put_grace_ms": 300,
        "janitor_interval_ms": 100,
        "maintenance_interval_ms": 100,
    },
    group_min_session_timeout_ms=500,
)


def unregister(cluster: Cluster, node_id: int) -> tuple[int, str | None]:
    """Send UnregisterBroker to the first broker. Return the error code and message."""
    with WireClient(f"127.0.0.1:{cluster.broker.port}") as client:
        response = client.send_request(
            apis.UNREGISTER_BROKER,
            wire.UnregisterBrokerRequest(node_id),
            wire.UnregisterBrokerResponse,
        )
    return response.error_code, response.error_message


async def fill(cluster: Cluster) -> None:
    """Write to two topics led by the broker that will die, each batch in its own slot."""
    names = (TOPIC, OTHER)
    await cluster.broker.client.create_topics(
        CreateTopics(topics=[NewTopic(name=name, assignment=[[GONE]]) for name in names])
    )
    for name in names:
        await cluster.until_served(name)
        values = [b"%d" % index for index in range(COUNT)]
        await asyncio.to_thread(produce, cluster.bootstrap, name, values)


def slots(image: MetadataImage, topic: str) -> set[str]:
    """Return the dead broker's WAL slots that contain records of the topic."""
    found = image.topics.by_name(topic)
    assert found is not None
    stream = image.streams.known(found.partitions[0].data_stream_id)
    states = [image.objects.get(entry.object_id) for entry in stream.entries]
    return {state.key for state in states if state is not None and state.role == ObjectRole.WAL}


def read(cluster: Cluster) -> list[bytes | None]:
    consumer = confluent_consumer(cluster.bootstrap, "g")
    consumer.subscribe([TOPIC])
    try:
        return [record.value() for record in read_records(consumer, COUNT)]
    finally:
        consumer.close()


async def test_recovered_broker_is_unregistered_and_its_records_are_kept(cluster: Cluster) -> None:
    await fill(cluster)
    code, message = await asyncio.to_thread(unregister, cluster, GONE)
    assert code == ErrorCode.INVALID_REQUEST
    assert message is not None
    assert message.startswith("broker 1 is alive")
    await cluster.kill_broker(GONE)

    async def is_gone() -> bool:
        code, message = await asyncio.to_thread(unregister, cluster, GONE)
        assert (code, message) == (ErrorCode.NONE, "") or code == ErrorCode.INVALID_REQUEST, message
        return code == ErrorCode.NONE

    await until(is_gone)
    image = cluster.broker.image
    assert [node.node_id for node in image.nodes] == [NodeId(0)]
    assert await asyncio.to_thread(unregister, cluster, GONE) == (
        ErrorCode.BROKER_ID_NOT_REGISTERED,
        "Broker ID 1 is not currently registered",
    )

    kept, dropped = slots(image, TOPIC), slots(image, OTHER)
    assert kept
    assert dropped - kept
    topic = image.topics.by_name(OTHER)
    assert topic is not None
    await cluster.broker.client.delete_topics(DeleteTopics(topic_ids=[topic.topic_id]))

    async def stored() -> set[str]:
        return {info.key async for info in cluster.store.list("")}

    async def is_cleaned() -> bool:
        return not (dropped - kept) & await stored()

    await until(is_cleaned)
    assert kept <= await stored()
    assert await asyncio.to_thread(read, cluster) == [b"%d" % index for index in range(COUNT)]
    image.check_invariants()


async def test_broker_is_unregistered_from_the_command_line(
    cluster: Cluster, tmp_path: Path
) -> None:
    await fill(cluster)
    cli = Cli(cluster, tmp_path)
    command = ("nodes", "unregister", "--yes", str(GONE))
    with pytest.raises(ExpectedError, match="broker 1 is alive"):
        await cli.run(*command)
    await cluster.kill_broker(GONE)

    async def is_gone() -> bool:
        try:
            done = json.loads(await cli.run(*command, "--json"))
            return done == {"node_id": GONE, "dry_run": False}
        except ExpectedError as error:
            if "broker 1 is alive" in str(error) or "the WAL of broker 1" in str(error):
                return False
            raise

    await until(is_gone)
    shown = json.loads(await cli.run("nodes", "--json"))
    assert [node["node_id"] for node in shown["nodes"]] == [0]
    with pytest.raises(ExpectedError, match="Broker ID 1 is not currently registered"):
        await cli.run(*command)
