"""Streams groups on two brokers, with requests over real sockets: internal topics are created,
members keep their tasks when the coordinator dies or moves, and group metadata survives the
brokers.
"""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from penstock.base.acls import Operation, ResourceType
from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import find_coordinator, streams_group_describe
from penstock.protocol.gen.streams_group_heartbeat import (
    KeyValue,
    StreamsGroupHeartbeatRequest,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from tests.support.acl_rights import allow, cluster_with_acls, set_rights
from tests.support.clients import create_topic
from tests.support.cluster import Cluster
from tests.support.coordinator_client import (
    CoordinatorClient,
    coordinator_of,
    end_coordinator,
    group_on,
)
from tests.support.host_client import HostClient
from tests.support.waiting import until, wait_until

TOPIC = "words"
GROUP = "counts"
COUNT = 4
TOPOLOGY = Topology(
    0,
    [
        Subtopology("0", [TOPIC], repartition_sink_topics=["counts-words-repartition"]),
        Subtopology(
            "1",
            state_changelog_topics=[TopicInfo("counts-store-changelog")],
            repartition_source_topics=[TopicInfo("counts-words-repartition")],
        ),
    ],
)
SETTINGS = {"group_streams_initial_rebalance_delay_ms": 0, "group_streams_num_standby_replicas": 1}
Tasks = dict[str, list[int]]

pytestmark = pytest.mark.cluster(brokers=2, **SETTINGS, topics={TOPIC: COUNT})


def first_heartbeat(member_id: str, topology: Topology = TOPOLOGY) -> StreamsGroupHeartbeatRequest:
    return StreamsGroupHeartbeatRequest(
        GROUP,
        member_id,
        0,
        rebalance_timeout_ms=60_000,
        topology=topology,
        process_id=member_id,
        task_offsets=None,
        task_end_offsets=None,
    )


class Client(CoordinatorClient):
    """Sends requests for members of the group, each in its own process."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster, GROUP)
        self.epochs: dict[str, int] = {}
        self.active: dict[str, Tasks] = {}
        self.standby: dict[str, Tasks] = {}
        self.changes_count = 0
        """Assignments that changed what members have."""

    def beat(self, member_id: str, epoch: int | None = None) -> Any:
        """Send a heartbeat with the member's tasks."""
        used = self.epochs.get(member_id, 0) if epoch is None else epoch
        if used == 0:
            self.active[member_id], self.standby[member_id] = {}, {}
        request = StreamsGroupHeartbeatRequest(
            GROUP,
            member_id,
            used,
            rebalance_timeout_ms=60_000 if used == 0 else -1,
            topology=TOPOLOGY if used == 0 else None,
            active_tasks=_sent(self.active[member_id]),
            standby_tasks=_sent(self.standby[member_id]),
            process_id=member_id,
            task_offsets=None,
            task_end_offsets=None,
        )
        response = self.send_request(
            apis.STREAMS_GROUP_HEARTBEAT, request, lambda found: found.error_code
        )
        if response.error_code == 0:
            self.epochs[member_id] = response.member_epoch
        if response.active_tasks is not None:
            before = self.active[member_id], self.standby[member_id]
            self.active[member_id] = _found(response.active_tasks)
            self.standby[member_id] = _found(response.standby_tasks)
            self.changes_count += before != (self.active[member_id], self.standby[member_id])
        return response

    def settle(self, *member_ids: str, may_expire: bool = False) -> None:
        """Send heartbeats until the members together have all tasks. may_expire: members join
        again whose session has expired between two heartbeats.
        """

        def is_settled() -> bool:
            for member_id in member_ids:
                code = self.beat(member_id).error_code
                if may_expire and code == ErrorCode.UNKNOWN_MEMBER_ID:
                    code = self.beat(member_id, 0).error_code
                assert code == 0
            return self.tasks(self.active) == ALL and len(set(self.epochs.values())) == 1

        wait_until(is_settled)

    def tasks(self, by_member: dict[str, Tasks]) -> list[tuple[str, int]]:
        return sorted(
            (key, index)
            for tasks in by_member.values()
            for key, indexes in tasks.items()
            for index in indexes
        )

    def describe(self) -> Any:
        request = streams_group_describe.StreamsGroupDescribeRequest([GROUP])
        response = self.send_request(
            apis.STREAMS_GROUP_DESCRIBE, request, lambda found: found.groups[0].error_code
        )
        return response.groups[0]


ALL = [(key, index) for key in ("0", "1") for index in range(COUNT)]


def _sent(tasks: Tasks) -> list[TaskIds]:
    return [TaskIds(*item) for item in tasks.items()]


def _found(tasks: Any) -> Tasks:
    return {item.subtopology_id: sorted(item.partitions) for item in tasks}


async def test_internal_topics_are_created_and_tasks_assigned(cluster: Cluster) -> None:
    client = Client(cluster)
    first = await asyncio.to_thread(client.beat, "a", 0)
    assert [(status.status_code, status.status_detail) for status in first.status] == [
        (3, "Internal topics are missing: counts-store-changelog, counts-words-repartition")
    ]
    assert (await asyncio.to_thread(client.describe)).group_state == "NotReady"
    await asyncio.to_thread(client.settle, "a")
    described = await asyncio.to_thread(client.describe)
    assert described.group_state == "Stable"
    assert [
        topic.partitions
        for each in described.topology.subtopologies
        for topic in (*each.repartition_source_topics, *each.state_changelog_topics)
    ] == [COUNT, COUNT]
    topics = cluster.broker.image.topics
    for name in ("counts-store-changelog", "counts-words-repartition"):
        topic = topics.by_name(name)
        assert topic is not None
        assert len(topic.partitions) == COUNT


@pytest.mark.parametrize("end", ["killed", "stopped", "moved"])
async def test_group_continues_at_another_coordinator_without_a_rebalance(
    cluster: Cluster, end: str
) -> None:
    client = Client(cluster)
    for member_id in "ab":
        assert (await asyncio.to_thread(client.beat, member_id, 0)).error_code == 0
    await asyncio.to_thread(client.settle, "a", "b")
    assert client.tasks(client.standby) == [task for task in ALL if task[0] == "1"]
    before, group = dict(client.epochs), group_on(cluster, GROUP, "streams")
    coordinator, changes_count = coordinator_of(cluster, GROUP), client.changes_count
    await end_coordinator(cluster, GROUP, end)
    await until(lambda: coordinator_of(cluster, GROUP) not in {-1, coordinator})
    for member_id in "ab" * 2:
        assert (await asyncio.to_thread(client.beat, member_id)).error_code == 0
    assert group_on(cluster, GROUP, "streams") not in {None, group}
    assert client.epochs == before
    assert client.changes_count == changes_count


async def test_silent_members_are_replaced(tmp_path: Path) -> None:
    settings = {"group_streams_session_timeout_ms": 1_000, "group_streams_heartbeat_interval_ms": 9}
    async with Cluster(tmp_path, brokers=1, **SETTINGS, **settings) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, TOPIC, COUNT)
        client = Client(cluster)
        for member_id in "ab":
            response = await asyncio.to_thread(client.beat, member_id, 0)
            assert (response.error_code, response.heartbeat_interval_ms) == (0, 9)
        await asyncio.to_thread(partial(client.settle, "a", "b", may_expire=True))
        del client.epochs["b"], client.active["b"]
        await asyncio.to_thread(partial(client.settle, "a", may_expire=True))
        client.active["b"] = {}
        response = await asyncio.to_thread(client.beat, "b", 9)
        assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


async def test_failed_creation_of_internal_topics_is_reported(cluster: Cluster) -> None:
    client = Client(cluster)
    bad = TopicInfo("counts-bad-changelog", topic_configs=[KeyValue("no.such", "1")])
    topology = Topology(0, [Subtopology("0", [TOPIC], state_changelog_topics=[bad])])

    def beat() -> str:
        request = first_heartbeat("a", topology)
        response = client.send_request(
            apis.STREAMS_GROUP_HEARTBEAT, request, lambda found: found.error_code
        )
        return str(response.status[0].status_detail)

    await asyncio.to_thread(lambda: wait_until(lambda: "Creation failed" in beat()))
    detail = await asyncio.to_thread(beat)
    assert detail.startswith("Internal topics are missing: counts-bad-changelog; Creation failed:")
    assert "no.such" in detail


async def test_internal_topics_are_created_with_the_rights_of_the_client(tmp_path: Path) -> None:
    rights = [
        allow(ResourceType.GROUP, GROUP, Operation.READ),
        allow(ResourceType.TOPIC, TOPIC, Operation.DESCRIBE),
        allow(ResourceType.TOPIC, GROUP, Operation.DESCRIBE),
    ]
    names = ("counts-store-changelog", "counts-words-repartition")
    async with cluster_with_acls(tmp_path) as cluster:
        address = cluster.bootstrap
        await asyncio.to_thread(create_topic, address, TOPIC, COUNT)

        def status() -> str:
            with HostClient(address) as client:
                find = find_coordinator.FindCoordinatorRequest(coordinator_keys=[GROUP])
                client.send_request(apis.FIND_COORDINATOR, find)
                response = client.send_request(apis.STREAMS_GROUP_HEARTBEAT, first_heartbeat("a"))
            return "".join(item["status_detail"] for item in response["status"] if item)

        def reported(*denied: str) -> bool:
            return status().endswith(f"; Unauthorized to CREATE on topics {', '.join(denied)}.")

        def check() -> None:
            set_rights(address, rights)
            wait_until(lambda: reported(*names))
            set_rights(address, [*rights, allow(ResourceType.TOPIC, names[0], Operation.CREATE)])
            wait_until(lambda: reported(names[1]))
            set_rights(address, [*rights, allow(ResourceType.TOPIC, GROUP, Operation.CREATE)])
            wait_until(lambda: "missing" not in status())

        await asyncio.to_thread(check)
        assert all(cluster.broker.image.topics.by_name(name) for name in names)


async def test_deleted_group_does_not_exist(cluster: Cluster) -> None:
    client = Client(cluster)
    await asyncio.to_thread(client.beat, "a", 0)
    assert await asyncio.to_thread(client.delete) is ErrorCode.NON_EMPTY_GROUP
    await asyncio.to_thread(client.beat, "a", -1)
    assert await asyncio.to_thread(client.delete) is ErrorCode.NONE
    assert (await asyncio.to_thread(client.describe)).error_code == ErrorCode.GROUP_ID_NOT_FOUND
