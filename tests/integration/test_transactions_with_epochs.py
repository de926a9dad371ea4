"""Transactions version 2 (KIP-890) over sockets: a partition joins a transaction with its first
batch, every end returns a new epoch, and late requests have no effect.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

from penstock.base.ids import NodeId
from penstock.broker.coordination.internal_topics import TRANSACTIONS_TOPIC
from penstock.broker.coordination.log import TopicLog
from penstock.broker.node import Broker
from penstock.broker.partition.partition import Partition
from penstock.broker.transactions.records import decode_key, decode_value
from penstock.controller.api.messages import AlterReassignments, PartitionTarget
from penstock.protocol import apis
from penstock.protocol.gen import api_versions, update_features
from tests.support.clients import produce
from tests.support.cluster import Cluster
from tests.support.transaction_client import TOPIC, TransactionClient, create_ledger
from tests.support.waiting import until

NAME = "teller"
T = TypeVar("T")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, brokers=2) as cluster:
        await asyncio.to_thread(create_ledger, cluster.bootstrap)
        for index in (0, 1):
            await cluster.until_served(TOPIC, index)
        yield cluster


@contextmanager
def talking(broker: Broker) -> Iterator[TransactionClient]:
    client = TransactionClient(f"127.0.0.1:{broker.port}")
    try:
        yield client
    finally:
        client.close()


async def on(broker: Broker, work: Callable[[TransactionClient], T]) -> T:
    def run() -> T:
        with talking(broker) as client:
            return work(client)

    return await asyncio.to_thread(run)


def leader(cluster: Cluster, index: int) -> Broker:
    return cluster.brokers[cluster.leader_of(TOPIC, index)]


def coordinator(cluster: Cluster) -> Broker:
    partition = cluster.broker.transactions.partition_of(NAME)
    assert partition is not None
    return cluster.brokers[cluster.leader_of(TRANSACTIONS_TOPIC, partition)]


def opened(broker: Broker, index: int) -> Partition:
    found = broker.partitions.get(TOPIC, index)
    assert isinstance(found, Partition)
    return found


def asked_count(cluster: Cluster) -> int:
    """Return how many requests leaders have sent to other brokers."""
    key = apis.ADD_PARTITIONS_TO_TXN.key
    return sum(broker.server.requests.responses[key] for broker in cluster.brokers.values())


async def begun(cluster: Cluster) -> tuple[int, int]:
    def begin(client: TransactionClient) -> tuple[int, int]:
        client.begin(NAME)
        return client.producer_id, client.epoch

    return await on(cluster.broker, begin)


def produces(
    producer: tuple[int, int], index: int, sequence: int = 0, version: int = 12
) -> Callable[[TransactionClient], str]:
    def work(client: TransactionClient) -> str:
        client.producer_id, client.epoch = producer
        return str(client.produce(NAME, index, sequence, version=version))

    return work


def ends(
    producer: tuple[int, int], *, commit: bool = True
) -> Callable[[TransactionClient], tuple[str, tuple[int, int]]]:
    def work(client: TransactionClient) -> tuple[str, tuple[int, int]]:
        client.producer_id, client.epoch = producer
        code = client.end(NAME, commit=commit)[0]
        return code, (client.producer_id, client.epoch)

    return work


async def test_leader_asks_a_remote_coordinator_once_per_partition(
    cluster: Cluster,
) -> None:
    producer = await begun(cluster)
    away = [index for index in (0, 1) if leader(cluster, index) is not coordinator(cluster)]
    before = asked_count(cluster)
    for sequence in range(4):
        for index in (0, 1):
            written = await on(leader(cluster, index), produces(producer, index, sequence))
            assert written == "NONE"
    assert asked_count(cluster) - before == len(away), "later batches are not asked about"
    assert (await on(coordinator(cluster), ends(producer)))[0] == "NONE"
    for index in (0, 1):
        partition = opened(leader(cluster, index), index)
        await until(lambda partition=partition: partition.last_stable_offset == 5)
        assert len(partition.log.verifications) == 0


async def test_non_transactional_batches_need_no_coordinator_request(cluster: Cluster) -> None:
    before = asked_count(cluster)
    await asyncio.to_thread(produce, cluster.bootstrap, TOPIC, [b"%d" % n for n in range(20)])
    assert asked_count(cluster) == before


@pytest.mark.parametrize("commit", [True, False])
async def test_late_batch_cannot_cause_a_hanging_transaction(
    cluster: Cluster, commit: bool
) -> None:
    """Late batches are sent to a partition that the transaction has written to, and to
    another one.
    """
    first = await begun(cluster)
    assert await on(leader(cluster, 0), produces(first, 0)) == "NONE"
    code, second = await on(coordinator(cluster), ends(first, commit=commit))
    assert (code, second) == ("NONE", (first[0], first[1] + 1))
    for index in (0, 1):
        late = await on(leader(cluster, index), produces(first, index, 1 - index))
        assert late == "INVALID_PRODUCER_EPOCH"
    partition = opened(leader(cluster, 0), 0)
    await until(lambda: partition.last_stable_offset == 2)
    assert opened(leader(cluster, 1), 1).last_stable_offset == 0
    assert await on(leader(cluster, 1), produces(second, 1)) == "NONE"
    assert (await on(coordinator(cluster), ends(second)))[0] == "NONE"


async def test_late_batch_of_transaction_version_1_cannot_hang_either(cluster: Cluster) -> None:
    producer = await begun(cluster)
    for index, version in ((0, 11), (1, 9)):
        code = await on(leader(cluster, index), produces(producer, index, version=version))
        assert code == ("TRANSACTION_ABORTABLE" if version == 11 else "INVALID_TXN_STATE")
        assert opened(leader(cluster, index), index).log_end_offset == 0


async def move(cluster: Cluster, *node_ids: int) -> None:
    """Move the partitions of the topic to these leaders."""
    targets = [
        PartitionTarget(topic=TOPIC, partition=index, replicas=[NodeId(node_id)])
        for index, node_id in enumerate(node_ids)
    ]
    request = AlterReassignments(partitions=targets)
    items = (await cluster.broker.client.alter_reassignments(request)).items
    assert not any(item.status for item in items), items
    for index, node_id in enumerate(node_ids):
        await until(lambda index=index, node_id=node_id: is_served(cluster, index, node_id))


def is_served(cluster: Cluster, index: int, node_id: int) -> bool:
    found = cluster.brokers[node_id].partitions.get(TOPIC, index)
    return cluster.leader_of(TOPIC, index) == node_id and isinstance(found, Partition)


async def states(cluster: Cluster) -> list[str]:
    """Return the states of the transaction in its coordinator's log, in order."""
    log = TopicLog(coordinator(cluster), TRANSACTIONS_TOPIC)
    partition = cluster.broker.transactions.partition_of(NAME)
    assert partition is not None
    return [
        decode_value(NAME, value).state.label
        async for batch in log.read(partition)
        for key, value in batch.records
        if decode_key(key) == NAME and value is not None
    ]


@pytest.mark.parametrize("is_here", [True, False])
@pytest.mark.parametrize("commit", [True, False])
async def test_transaction_ends_in_one_step_if_its_coordinator_leads_all_partitions(
    cluster: Cluster, commit: bool, is_here: bool
) -> None:
    producer = await begun(cluster)
    here = coordinator(cluster).node_id
    (elsewhere,) = cluster.brokers.keys() - {here}
    await move(cluster, here, here if is_here else elsewhere)
    for index in (0, 1):
        assert await on(leader(cluster, index), produces(producer, index)) == "NONE"
    assert (await on(coordinator(cluster), ends(producer, commit=commit)))[0] == "NONE"
    for index in (0, 1):
        partition = opened(leader(cluster, index), index)
        await until(lambda partition=partition: partition.last_stable_offset == 2)
    outcome = "Commit" if commit else "Abort"
    steps = [f"Complete{outcome}"] if is_here else [f"Prepare{outcome}", f"Complete{outcome}"]
    described = await on(coordinator(cluster), lambda client: client.describe(NAME))
    assert described[1] == steps[-1]
    assert (await states(cluster))[-len(steps) - 1 :] == ["Ongoing", *steps]


async def test_repeated_end_gets_the_same_response_from_the_next_coordinator(
    cluster: Cluster,
) -> None:
    first = await begun(cluster)
    assert await on(leader(cluster, 0), produces(first, 0)) == "NONE"
    old = coordinator(cluster)
    code, second = await on(old, ends(first))
    assert code == "NONE"
    await cluster.kill_broker(old.node_id)
    await until(lambda: coordinator_is_alive(cluster, old))
    assert await on(coordinator(cluster), ends(first)) == ("NONE", second)
    refused = await on(coordinator(cluster), ends(first, commit=False))
    assert refused[0] == "INVALID_TXN_STATE"
    await until(lambda: cluster.leader_of(TOPIC, 0) in cluster.brokers)
    served = await cluster.until_served(TOPIC, 0)
    await until(lambda: opened(served, 0).last_stable_offset == 2)


def coordinator_is_alive(cluster: Cluster, old: Broker) -> bool:
    partition = cluster.broker.transactions.partition_of(NAME)
    assert partition is not None
    leading = cluster.leader_of(TRANSACTIONS_TOPIC, partition)
    return leading in cluster.brokers and leading != old.node_id


async def test_feature_levels_survive_a_controller_restart_and_reach_every_broker(
    cluster: Cluster,
) -> None:
    def update(client: TransactionClient) -> int:
        key = update_features.FeatureUpdateKey("transaction.version", 1, 2)
        request = update_features.UpdateFeaturesRequest(feature_updates=[key])
        return int(client.send_request(apis.UPDATE_FEATURES, request)["error_code"])

    def level(client: TransactionClient) -> int:
        response = client.send_request(
            apis.API_VERSIONS, api_versions.ApiVersionsRequest("test", "1")
        )
        found = {item["name"]: item["max_version_level"] for item in response["finalized_features"]}
        return int(found["transaction.version"])

    assert await on(cluster.broker, level) == 2
    assert await on(cluster.broker, update) == 0
    await cluster.stop_controller()
    await cluster.start_controller()
    third = await cluster.start_broker(2)
    assert await on(third, level) == 1
    for broker in cluster.brokers.values():
        await until(lambda broker=broker: broker.image.features.level("transaction.version") == 1)
