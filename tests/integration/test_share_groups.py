"""Share groups on two brokers, with requests over real sockets: members keep their partitions when
the coordinator dies or moves, and a deleted group leaves no state.
"""

import asyncio
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from penstock.broker.groups.share.state.model import SharePartitionKey
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    alter_share_group_offsets,
    describe_share_group_offsets,
    share_group_heartbeat,
)
from tests.support.clients import create_topic
from tests.support.cluster import Cluster
from tests.support.coordinator_client import (
    CoordinatorClient,
    coordinator_of,
    end_coordinator,
    group_on,
)
from tests.support.waiting import until, wait_until

TOPIC = "orders"
GROUP = "g"
COUNT = 6

pytestmark = pytest.mark.cluster(brokers=2, topics={TOPIC: COUNT})


class Client(CoordinatorClient):
    """Sends requests for members of the group."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, GROUP)
        self.epochs: dict[str, int] = {}
        self.assigned: dict[str, dict[UUID, list[int]]] = {}
        self.changes_count = 0
        """Assignments that members received."""

    def beat(self, member_id: str, epoch: int | None = None) -> int:
        """Send a heartbeat. Return the error code."""
        request = share_group_heartbeat.ShareGroupHeartbeatRequest(
            GROUP, member_id, self.epochs.get(member_id, 0) if epoch is None else epoch
        )
        if request.member_epoch == 0:
            request.subscribed_topic_names = [TOPIC]
        response = self.send_request(
            apis.SHARE_GROUP_HEARTBEAT, request, lambda found: found.error_code
        )
        if response.error_code == 0:
            self.epochs[member_id] = response.member_epoch
        if response.assignment is not None:
            self.changes_count += 1
            self.assigned[member_id] = {
                topic.topic_id: sorted(topic.partitions)
                for topic in response.assignment.topic_partitions
            }
        return int(response.error_code)

    def settle(self, *member_ids: str, may_expire: bool = False) -> None:
        """Send heartbeats until the members together have all partitions. may_expire: members join
        again whose session has expired between two heartbeats.
        """

        def is_settled() -> bool:
            for member_id in member_ids:
                code = self.beat(member_id)
                if may_expire and code == ErrorCode.UNKNOWN_MEMBER_ID:
                    code = self.beat(member_id, 0)
                assert code == 0
            read = [i for name in member_ids for i in next(iter(self.assigned[name].values()), [])]
            return sorted(read) == list(range(COUNT)) and len(set(self.epochs.values())) == 1

        wait_until(is_settled)

    def offsets(self) -> dict[int, int]:
        group = describe_share_group_offsets.DescribeShareGroupOffsetsRequestGroup(GROUP, None)
        request = describe_share_group_offsets.DescribeShareGroupOffsetsRequest([group])
        response = self.send_request(
            apis.DESCRIBE_SHARE_GROUP_OFFSETS, request, lambda found: found.groups[0].error_code
        )
        return {
            part.partition_index: part.start_offset
            for topic in response.groups[0].topics
            for part in topic.partitions
        }

    def alter(self, offsets: dict[int, int]) -> None:
        topic = alter_share_group_offsets.AlterShareGroupOffsetsRequestTopic(
            TOPIC,
            [
                alter_share_group_offsets.AlterShareGroupOffsetsRequestPartition(*offset)
                for offset in offsets.items()
            ],
        )
        request = alter_share_group_offsets.AlterShareGroupOffsetsRequest(GROUP, [topic])
        response = self.send_request(
            apis.ALTER_SHARE_GROUP_OFFSETS, request, lambda found: found.error_code
        )
        assert response.error_code == 0, response
        assert not any(part.error_code for part in response.responses[0].partitions), response


@pytest.mark.parametrize("end", ["killed", "stopped", "moved"])
async def test_group_continues_at_another_coordinator_without_a_rebalance(
    cluster: Cluster, end: str
) -> None:
    client = Client(cluster)
    for member_id in "ab":
        assert await asyncio.to_thread(client.beat, member_id, 0) == 0
    await asyncio.to_thread(client.settle, "a", "b")
    before, group, coordinator = (
        dict(client.epochs),
        group_on(cluster, GROUP, "share"),
        coordinator_of(cluster, GROUP),
    )
    assigned, changes_count = dict(client.assigned), client.changes_count
    await end_coordinator(cluster, GROUP, end)
    await until(lambda: coordinator_of(cluster, GROUP) not in {-1, coordinator})
    for member_id in "ab" * 2:
        assert await asyncio.to_thread(client.beat, member_id) == 0
    assert group_on(cluster, GROUP, "share") not in {None, group}
    assert (client.epochs, client.assigned) == (before, assigned)
    assert client.changes_count == changes_count


async def test_deleted_group_leaves_no_state(cluster: Cluster) -> None:
    client = Client(cluster)
    await asyncio.to_thread(client.alter, {0: 5, 1: 0})
    assert await asyncio.to_thread(client.offsets) == {0: 5, 1: 0}
    for member_id in "ab":
        assert await asyncio.to_thread(client.beat, member_id, 0) == 0
    await asyncio.to_thread(client.settle, "a", "b")
    assert await asyncio.to_thread(client.offsets) == {0: 5, 1: 0, 2: -1, 3: -1, 4: -1, 5: -1}
    assert await asyncio.to_thread(client.delete) is ErrorCode.NON_EMPTY_GROUP
    for member_id in "ab":
        assert await asyncio.to_thread(client.beat, member_id, -1) == 0
    assert await asyncio.to_thread(client.delete) is ErrorCode.NONE
    (topic_id,) = client.assigned["a"]
    for broker in cluster.brokers.values():
        for index in range(COUNT):
            key = SharePartitionKey(GROUP, topic_id, index)
            assert (await broker.share_states.summary(key)).state_epoch == 0
    assert await asyncio.to_thread(client.offsets) == {}


async def test_silent_members_are_replaced(tmp_path: Path) -> None:
    settings = {"group_share_session_timeout_ms": 1_000, "group_share_heartbeat_interval_ms": 100}
    async with Cluster(tmp_path, brokers=1, **settings) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC, COUNT)
        client = Client(cluster)
        for member_id in "ab":
            assert await asyncio.to_thread(client.beat, member_id, 0) == 0
        await asyncio.to_thread(partial(client.settle, "a", "b", may_expire=True))
        del client.epochs["b"], client.assigned["b"]
        await asyncio.to_thread(partial(client.settle, "a", may_expire=True))
        assert await asyncio.to_thread(client.beat, "b", 9) == ErrorCode.UNKNOWN_MEMBER_ID
