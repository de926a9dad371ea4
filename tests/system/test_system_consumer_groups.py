"""A consumer group (KIP-848) continues without a rebalance after its coordinator is killed."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from penstock.deploy.local.handle import LocalCluster
from tests.support.clients import TIMEOUT_S, Polled, create_topic, produce
from tests.support.dev_cluster import on_files

pytestmark = pytest.mark.system

TOPIC, GROUP = "orders", "g"
HEARTBEAT = "group.consumer.heartbeat.interval.ms=300"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with on_files(tmp_path, "--set", HEARTBEAT) as cluster:
        create_topic(cluster.bootstrap, TOPIC, 4)
        yield cluster


@pytest.mark.costly("processes start again under load")
async def test_group_continues_without_a_rebalance_after_coordinator_kills(
    cluster: LocalCluster,
) -> None:
    await asyncio.to_thread(_kill_coordinators, cluster)


def _kill_coordinators(cluster: LocalCluster) -> None:
    rebalances: list[int] = []
    polled = Polled(
        *(
            Consumer(
                {
                    "bootstrap.servers": cluster.bootstrap,
                    "group.id": GROUP,
                    "group.protocol": "consumer",
                    "auto.offset.reset": "earliest",
                    "socket.timeout.ms": 5_000,
                }
            )
            for _ in range(2)
        )
    )
    for consumer in polled.consumers:
        consumer.subscribe([TOPIC], on_assign=lambda *_: rebalances.append(1))
    polled.until_shared(2, 2)
    before, assigned = len(rebalances), polled.assigned()
    for number in range(1, 3):
        coordinator = _coordinator(cluster)
        killed = [broker for broker in cluster.brokers() if broker.node_id == coordinator]
        cluster.kill(killed)
        values = [b"%d-%d" % (number, index) for index in range(20)]
        produce(cluster.bootstrap, TOPIC, values, range(4))
        polled.until_count(20 * number)
        assert (len(rebalances), polled.assigned()) == (before, assigned)
        cluster.wait_for_new(killed)
    assert len(set(polled.everything())) == len(polled.everything()) == 40
    for consumer in polled.consumers:
        consumer.close()


def _coordinator(cluster: LocalCluster) -> int:
    """Return the node id of the group's coordinator."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    described = admin.describe_consumer_groups([GROUP])[GROUP].result(TIMEOUT_S)
    return int(described.coordinator.id)
