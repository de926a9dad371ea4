"""Group configs over real sockets: members receive changed values in their next heartbeat response,
and the values persist across restarts.
"""

import asyncio
from typing import Any

import pytest

from penstock.controller.metadata.configs import GROUP_RESOURCE
from penstock.protocol import apis
from penstock.protocol.gen import (
    consumer_group_describe,
    consumer_group_heartbeat,
    find_coordinator,
)
from tests.support.cluster import Cluster
from tests.support.conversation import alter_configs, describe_configs_of, send_request
from tests.support.waiting import until

GROUP = (GROUP_RESOURCE, "g")
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"

pytestmark = pytest.mark.cluster(
    group_consumer_session_timeout_ms=600_000,
    group_consumer_max_session_timeout_ms=600_000,
    group_consumer_min_session_timeout_ms=500,
    group_consumer_min_heartbeat_interval_ms=100,
    topics={"t": 2},
)


async def heartbeat(cluster: Cluster, epoch: int, **fields: Any) -> Any:
    request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        "g", "member-1", epoch, **({"topic_partitions": None} | fields)
    )
    return await asyncio.to_thread(
        send_request, cluster.bootstrap, apis.CONSUMER_GROUP_HEARTBEAT, request
    )


async def join(cluster: Cluster) -> Any:
    """Join as soon as the coordinator has loaded its partition."""
    requested = find_coordinator.FindCoordinatorRequest(coordinator_keys=["g"])
    await asyncio.to_thread(send_request, cluster.bootstrap, apis.FIND_COORDINATOR, requested)
    joined: list[Any] = []

    async def has_joined() -> bool:
        joined.append(
            await heartbeat(
                cluster,
                0,
                rebalance_timeout_ms=30_000,
                subscribed_topic_names=["t"],
                topic_partitions=[],
            )
        )
        return joined[-1]["error_code"] == 0

    await until(has_joined)
    return joined[-1]


async def members(cluster: Cluster) -> int:
    request = consumer_group_describe.ConsumerGroupDescribeRequest(["g"])
    response = await asyncio.to_thread(
        send_request, cluster.bootstrap, apis.CONSUMER_GROUP_DESCRIBE, request
    )
    return len(response["groups"][0]["members"])


async def test_changed_timeouts_reach_a_member_with_its_next_heartbeat(cluster: Cluster) -> None:
    joined = await join(cluster)
    assert joined["heartbeat_interval_ms"] == 5_000
    values = {SESSION: "600", HEARTBEAT: "300"}
    outcome = await asyncio.to_thread(alter_configs, cluster.bootstrap, GROUP, values)
    assert outcome == (0, None)
    assert await members(cluster) == 1
    again = await heartbeat(cluster, joined["member_epoch"])
    assert (again["error_code"], again["heartbeat_interval_ms"]) == (0, 300)

    async def is_gone() -> bool:
        return await members(cluster) == 0

    await until(is_gone)


async def test_group_configs_persist_across_restarts(cluster: Cluster) -> None:
    outcome = await asyncio.to_thread(alter_configs, cluster.bootstrap, GROUP, {HEARTBEAT: "300"})
    assert outcome == (0, None)
    await cluster.stop_controller()
    await cluster.start_controller()
    await cluster.stop_broker(0)
    await cluster.start_broker(0)
    found = await asyncio.to_thread(describe_configs_of, cluster.bootstrap, GROUP, HEARTBEAT)
    assert (found[HEARTBEAT]["value"], found[HEARTBEAT]["config_source"]) == ("300", 8)
    assert (await join(cluster))["heartbeat_interval_ms"] == 300
