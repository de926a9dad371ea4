"""Share group states on two brokers over real sockets: states are read and written on whichever
broker coordinates them, and survive the loss of the coordinator.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import pytest

from penstock.base.acls import CLUSTER_NAME, Operation, PatternType, Permission, ResourceType
from penstock.base.principal import ANONYMOUS
from penstock.broker.coordination.internal_topics import (
    OFFSETS_TOPIC,
    SHARE_STATES_TOPIC,
    ensure_topic,
)
from penstock.broker.groups.share.model import ShareHeartbeatRequest
from penstock.broker.groups.share.state.model import (
    ACKNOWLEDGED,
    NO_START_OFFSET,
    SharePartitionKey,
    ShareStateError,
    StateBatch,
)
from penstock.broker.node import Broker
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.messages import CreateAcls
from penstock.controller.metadata.records import AclEntry
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import delete_share_group_state
from penstock.protocol.request_limits import elements_max
from tests.support.clients import create_topic
from tests.support.cluster import Cluster
from tests.support.conversation import send_request
from tests.support.coordinator_client import group_on
from tests.support.waiting import until

TOPIC = "orders"
GROUP = "g"
COUNT = 12


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """Start a cluster in which brokers have only the rights of ClusterAction."""
    security = SecurityConfig(authorizer="StandardAuthorizer", allow_everyone_if_no_acl_found=True)
    async with Cluster(tmp_path, brokers=2, security=security) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC, COUNT)
        acls = [
            _acl(ResourceType.CLUSTER, CLUSTER_NAME, str(ANONYMOUS), Operation.CLUSTER_ACTION),
            *(
                _acl(kind, "*", "User:nobody", Operation.ALL)
                for kind in (ResourceType.GROUP, ResourceType.TOPIC)
            ),
        ]
        client = cluster.broker.client
        await client.create_acls(CreateAcls(acls=acls))
        await until(lambda: all(len(broker.image.acls) == 3 for broker in cluster.brokers.values()))
        yield cluster


def _acl(kind: ResourceType, name: str, principal: str, operation: Operation) -> AclEntry:
    return AclEntry(kind, PatternType.LITERAL, name, principal, "*", operation, Permission.ALLOW)


def topic_id(cluster: Cluster) -> UUID:
    topic = cluster.broker.image.topics.by_name(TOPIC)
    assert topic is not None
    return topic.topic_id


def keys(cluster: Cluster) -> list[SharePartitionKey]:
    return [SharePartitionKey(GROUP, topic_id(cluster), index) for index in range(COUNT)]


def leaders(cluster: Cluster, broker: Broker) -> set[int]:
    """Return the node ids of the brokers that coordinate the share partitions."""
    return {
        cluster.leader_of(
            SHARE_STATES_TOPIC, broker.share_coordinator.partition_of(key.coordinator_key) or 0
        )
        for key in keys(cluster)
    }


async def write(broker: Broker, key: SharePartitionKey, offset: int, leader_epoch: int = 1) -> None:
    await broker.share_states.write(
        key,
        state_epoch=1,
        leader_epoch=leader_epoch,
        start_offset=offset,
        delivery_complete_count=1,
        batches=[StateBatch(offset + 1, offset + 1, ACKNOWLEDGED, 1)],
    )


async def initialize(broker: Broker, cluster: Cluster) -> None:
    await asyncio.gather(
        *(
            broker.share_states.initialize(key, state_epoch=1, start_offset=NO_START_OFFSET)
            for key in keys(cluster)
        )
    )


async def test_every_broker_reads_and_writes_all_states(cluster: Cluster) -> None:
    first, second = cluster.brokers.values()
    await initialize(first, cluster)
    assert leaders(cluster, first) == {first.node_id, second.node_id}
    await asyncio.gather(*(write(first, key, index) for index, key in enumerate(keys(cluster))))
    for broker in (first, second):
        states = await asyncio.gather(*(broker.share_states.read(k, 2) for k in keys(cluster)))
        for index, state in enumerate(states):
            assert (state.start_offset, state.leader_epoch) == (index, 2)
            assert state.batches == (StateBatch(index + 1, index + 1, ACKNOWLEDGED, 1),)
    for key in keys(cluster):
        with pytest.raises(ShareStateError) as raised:
            await write(second, key, 0)
        assert raised.value.code is ErrorCode.FENCED_LEADER_EPOCH
    await asyncio.gather(*(second.share_states.delete(key) for key in keys(cluster)))
    found = await asyncio.gather(*(first.share_states.summary(key) for key in keys(cluster)))
    assert {summary.start_offset for summary in found} == {NO_START_OFFSET}


async def test_combined_write_requests_stay_within_the_element_limit(cluster: Cluster) -> None:
    """Each write contains half as many batches as a request may contain elements, and all writes
    wait for the same connections.
    """
    first, second = cluster.brokers.values()
    await initialize(first, cluster)
    assert leaders(cluster, first) == {first.node_id, second.node_id}
    count = elements_max(apis.WRITE_SHARE_GROUP_STATE.key) // 2
    batches = [StateBatch(2 * at, 2 * at, ACKNOWLEDGED, 1) for at in range(count)]
    await asyncio.gather(
        *(
            first.share_states.write(
                key,
                state_epoch=1,
                leader_epoch=1,
                start_offset=0,
                delivery_complete_count=1,
                batches=batches,
            )
            for key in keys(cluster)
        )
    )
    states = await asyncio.gather(*(first.share_states.read(key, 1) for key in keys(cluster)))
    assert {len(state.batches) for state in states} == {count}


@pytest.mark.parametrize("end", ["killed", "stopped"])
async def test_writes_continue_when_the_coordinator_dies(cluster: Cluster, end: str) -> None:
    """The new coordinator has every acknowledged write."""
    survivor, other = cluster.brokers.values()
    await initialize(survivor, cluster)
    confirmed: dict[int, int] = {}
    is_over = asyncio.Event()

    async def use(index: int) -> None:
        offset = 0
        while not is_over.is_set() or confirmed.get(index, 0) < 5:
            offset += 1
            await write(survivor, keys(cluster)[index], offset)
            confirmed[index] = offset

    users = [asyncio.create_task(use(index)) for index in range(COUNT)]
    await until(lambda: len(confirmed) == COUNT)
    if end == "killed":
        await cluster.kill_broker(other.node_id)
    else:
        await cluster.stop_broker(other.node_id)
    await until(lambda: leaders(cluster, survivor) == {survivor.node_id})
    before = dict(confirmed)
    await until(lambda: all(confirmed[index] > before[index] for index in before))
    is_over.set()
    await asyncio.gather(*users)
    for index, key in enumerate(keys(cluster)):
        state = await survivor.share_states.read(key, 1)
        assert state.start_offset == confirmed[index]


def is_initialized(cluster: Cluster) -> bool:
    share = group_on(cluster, GROUP, "share")
    return share is not None and bool(share.partitions.initialized)


def coordinator(cluster: Cluster) -> Broker:
    partition = cluster.broker.groups.partition_of(GROUP) or 0
    return cluster.brokers[cluster.leader_of(OFFSETS_TOPIC, partition)]


async def beat(cluster: Cluster, member_id: str, epoch: int) -> int:
    """Send heartbeats until the coordinator responds. Return the member epoch."""
    names = (TOPIC,) if epoch == 0 else None
    request = ShareHeartbeatRequest(member_id, epoch, subscribed_names=names)
    while True:
        broker = coordinator(cluster)
        await broker.groups.ready(GROUP)
        result = await broker.groups.shares.heartbeat(GROUP, request)
        if result.error is ErrorCode.NONE:
            return result.member_epoch
        assert result.error.retriable, result


async def test_group_continues_at_another_coordinator_and_its_deletion_deletes_states(
    cluster: Cluster,
) -> None:
    """The next coordinator has the members, assignments and initialized states; a deleted group
    leaves no state.
    """
    await ensure_topic(cluster.broker, OFFSETS_TOPIC)
    await until(lambda: cluster.leader_of(OFFSETS_TOPIC, 0) >= 0)
    epochs = {name: await beat(cluster, name, 0) for name in "ab"}
    await until(lambda: is_initialized(cluster))
    for _ in range(2):
        for name in epochs:
            epochs[name] = await beat(cluster, name, epochs[name])
    before = group_on(cluster, GROUP, "share")
    assert before is not None
    await cluster.stop_broker(coordinator(cluster).node_id)
    await until(lambda: group_on(cluster, GROUP, "share") not in {None, before})
    after = group_on(cluster, GROUP, "share")
    assert after is not None
    assert (after.members, after.epoch) == (before.members, before.epoch)
    assert {name: await beat(cluster, name, epochs[name]) for name in epochs} == epochs
    broker = coordinator(cluster)
    for name in epochs:
        await beat(cluster, name, -1)
    summary = await broker.share_states.summary(keys(cluster)[0])
    assert summary.state_epoch > 0
    assert await broker.groups.delete_group(GROUP) is ErrorCode.NONE
    for key in keys(cluster):
        assert (await broker.share_states.summary(key)).state_epoch == 0


async def delete_without_epoch(broker: Broker, *requested: SharePartitionKey) -> set[ErrorCode]:
    """Delete states as Kafka's requests do, without an epoch. Return the error codes."""
    partitions = [delete_share_group_state.PartitionData(key.partition) for key in requested]
    data = delete_share_group_state.DeleteStateData(requested[0].topic_id, partitions)
    request = delete_share_group_state.DeleteShareGroupStateRequest(GROUP, [data])
    address = f"127.0.0.1:{broker.port}"
    response = await asyncio.to_thread(
        send_request, address, apis.DELETE_SHARE_GROUP_STATE, request
    )
    return {ErrorCode(found["error_code"]) for found in response["results"][0]["partitions"]}


async def test_delete_without_an_epoch_keeps_states_of_existing_groups(cluster: Cluster) -> None:
    """States and group may be coordinated by different brokers."""
    await ensure_topic(cluster.broker, OFFSETS_TOPIC)
    await until(lambda: cluster.leader_of(OFFSETS_TOPIC, 0) >= 0)
    epoch = await beat(cluster, "a", 0)
    await until(lambda: is_initialized(cluster))
    first = cluster.broker
    assert leaders(cluster, first) == set(cluster.brokers)
    by_broker = {
        broker: [key for key in keys(cluster) if _coordinates(cluster, broker, key)]
        for broker in cluster.brokers.values()
    }
    for wanted_epoch in (epoch, -1):  # first with a member in the group, then without
        await beat(cluster, "a", wanted_epoch)
        for broker, requested in by_broker.items():
            assert await delete_without_epoch(broker, *requested) == {ErrorCode.INVALID_REQUEST}
        for key in keys(cluster):
            assert (await first.share_states.summary(key)).state_epoch > 0
    assert await coordinator(cluster).groups.delete_group(GROUP) is ErrorCode.NONE
    for broker, requested in by_broker.items():
        for key in requested:  # left over from an earlier group with the same id
            await first.share_states.initialize(key, state_epoch=9, start_offset=5)
        assert await delete_without_epoch(broker, *requested) == {ErrorCode.NONE}
        for key in requested:
            assert (await first.share_states.summary(key)).start_offset == NO_START_OFFSET


def _coordinates(cluster: Cluster, broker: Broker, key: SharePartitionKey) -> bool:
    index = broker.share_coordinator.partition_of(key.coordinator_key) or 0
    return cluster.leader_of(SHARE_STATES_TOPIC, index) == broker.node_id
