"""Floods of group ids, transactional ids and share sessions: each table has a limit and a metric.
Existing members are still served; new ones get a retriable error.
"""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from penstock.broker.errors import ErrorCode
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.transactions.model import TransactionLimits
from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.deploy.node.metrics import table
from penstock.protocol import apis
from penstock.protocol.gen import (
    consumer_group_heartbeat,
    find_coordinator,
    init_producer_id,
    join_group,
    offset_commit,
    share_fetch,
    share_group_heartbeat,
)
from tests.integration.test_metrics_states import of_broker
from tests.support.attacker import Attacker
from tests.support.cluster import Cluster
from tests.support.waiting import until

LIMIT = 20
FLOOD = 3 * LIMIT
FULL = ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.fixture
async def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """A cluster whose internal topics have one partition each, with room for LIMIT entries."""
    monkeypatch.setattr(f"{GroupCoordinator.__module__}.GROUPS_MAX", LIMIT)
    defaults: dict[str, int] = TransactionLimits.__init__.__kwdefaults__  # type: ignore[assignment]
    monkeypatch.setitem(defaults, "transactions_max", LIMIT)
    settings = {
        "offsets_topic_num_partitions": 1,
        "transaction_state_log_num_partitions": 1,
        "group_share_max_share_sessions": LIMIT,
        "group_min_session_timeout_ms": 100,
    }
    async with Cluster(tmp_path, **settings) as cluster:
        topics = [NewTopic(name="orders", partitions=1)]
        await cluster.broker.client.create_topics(CreateTopics(topics=topics))
        await cluster.until_served("orders")
        yield cluster


async def coordinated(client: Attacker, kind: int, key: str) -> None:
    request = find_coordinator.FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])

    async def is_found() -> bool:
        response = await client.send_request(apis.FIND_COORDINATOR, 4, request)
        return not response.coordinators[0].error_code

    await until(is_found)


def count_of(cluster: Cluster, metric: table.Metric) -> int:
    found = of_broker(cluster.broker).items()
    return sum(
        int(value)
        for (reported, _), value in found
        if reported is metric and isinstance(value, (int, float))
    )


def join(group_id: str, *, session_ms: int = 300_000) -> tuple[apis.ApiSpec, int, Any]:
    protocols = [join_group.JoinGroupRequestProtocol("range", b"")]
    request = join_group.JoinGroupRequest(
        group_id, session_ms, 300_000, protocol_type="consumer", protocols=protocols
    )
    return apis.JOIN_GROUP, 9, request


def beat(group_id: str, member_id: str, epoch: int = 0) -> tuple[apis.ApiSpec, int, Any]:
    request = consumer_group_heartbeat.ConsumerGroupHeartbeatRequest(
        group_id,
        member_id,
        epoch,
        rebalance_timeout_ms=1_000,
        subscribed_topic_names=["orders"],
        topic_partitions=[],
    )
    return apis.CONSUMER_GROUP_HEARTBEAT, 1, request


def share_beat(group_id: str) -> tuple[apis.ApiSpec, int, Any]:
    request = share_group_heartbeat.ShareGroupHeartbeatRequest(
        group_id, str(uuid4()), 0, subscribed_topic_names=["orders"]
    )
    return apis.SHARE_GROUP_HEARTBEAT, 1, request


def commit(group_id: str, metadata: str = "") -> tuple[apis.ApiSpec, int, Any]:
    partition = offset_commit.OffsetCommitRequestPartition(0, 1, committed_metadata=metadata)
    topic = offset_commit.OffsetCommitRequestTopic(name="orders", partitions=[partition])
    return apis.OFFSET_COMMIT, 8, offset_commit.OffsetCommitRequest(group_id, topics=[topic])


WAYS: dict[str, Callable[[str], tuple[apis.ApiSpec, int, Any]]] = {
    "join": join,
    "heartbeat": lambda group_id: beat(group_id, str(uuid4())),
    "share heartbeat": share_beat,
    "commit": commit,
}


def code_of(response: Any) -> int:
    return (
        response.topics[0].partitions[0].error_code
        if hasattr(response, "topics")
        else (response.error_code)
    )


@pytest.mark.parametrize("way", WAYS)
async def test_existing_members_are_served_during_a_flood_of_group_ids(
    cluster: Cluster, way: str
) -> None:
    port = cluster.broker.port
    async with Attacker.connected(port) as client, Attacker.connected(port) as flood:
        await coordinated(client, 0, "mine")
        joined = await client.send_request(*beat("mine", "me"))
        assert joined.error_code == 0
        codes = [code_of(await flood.send_request(*WAYS[way](f"{way}-{n}"))) for n in range(FLOOD)]
        assert codes.count(FULL) == FLOOD - LIMIT + 1, codes
        assert codes[-1] == FULL
        assert count_of(cluster, table.GROUPS) == LIMIT
        kept = await client.send_request(*beat("mine", "me", joined.member_epoch))
        assert kept.error_code == 0
        second = await client.send_request(*beat("mine", "another of us"))
        assert second.error_code == 0, "the group has room"


async def test_groups_without_members_are_evicted(cluster: Cluster) -> None:
    """The first request of each group is refused, or its only member does not return."""
    async with Attacker.connected(cluster.broker.port) as client:
        await coordinated(client, 0, "mine")
        for number in range(FLOOD):
            await client.send_request(*join(f"refused-{number}", session_ms=1))
        assert count_of(cluster, table.GROUPS) == 0
        for number in range(FLOOD):
            response = await client.send_request(*commit(f"refused-{number}", metadata="x" * 5_000))
            assert code_of(response) == ErrorCode.OFFSET_METADATA_TOO_LARGE
        assert count_of(cluster, table.GROUPS) == 0
        for number in range(FLOOD):
            await client.send_request(*join(f"left-{number}", session_ms=100))
        await until(lambda: count_of(cluster, table.GROUPS) == 0)
        assert (await client.send_request(*beat("mine", "me"))).error_code == 0


async def test_existing_producers_are_served_during_a_flood_of_transactional_ids(
    cluster: Cluster,
) -> None:
    def init(transactional_id: str) -> tuple[apis.ApiSpec, int, Any]:
        request = init_producer_id.InitProducerIdRequest(transactional_id, 60_000)
        return apis.INIT_PRODUCER_ID, 4, request

    async with Attacker.connected(cluster.broker.port) as client:
        await coordinated(client, 1, "mine")
        first = await client.send_request(*init("mine"))
        assert first.error_code == 0
        codes = [(await client.send_request(*init(f"id-{n}"))).error_code for n in range(FLOOD)]
        assert codes == [0] * (LIMIT - 1) + [FULL] * (FLOOD - LIMIT + 1)
        assert count_of(cluster, table.TRANSACTIONS) == LIMIT
        again = await client.send_request(*init("mine"))
        assert (again.error_code, again.producer_epoch) == (0, first.producer_epoch + 1)


async def test_existing_members_are_served_during_a_flood_of_share_sessions(
    cluster: Cluster,
) -> None:
    topic = cluster.broker.image.topics.by_name("orders")
    assert topic is not None

    def fetch(member_id: str, epoch: int = 0) -> tuple[apis.ApiSpec, int, Any]:
        topics = [share_fetch.FetchTopic(topic.topic_id, [share_fetch.FetchPartition(0)])]
        request = share_fetch.ShareFetchRequest(
            "g", member_id, epoch, max_records=1, batch_size=1, topics=[] if epoch else topics
        )
        return apis.SHARE_FETCH, 1, request

    port = cluster.broker.port
    async with Attacker.connected(port, "127.0.0.3") as client:
        await coordinated(client, 0, "g")
        assert (await client.send_request(*share_beat("g"))).error_code == 0
        mine = str(uuid4())
        assert (await client.send_request(*fetch(mine))).error_code == 0
        async with Attacker.connected(port) as flood:
            codes = [
                (await flood.send_request(*fetch(str(uuid4())))).error_code for _ in range(FLOOD)
            ]
            reached = ErrorCode.SHARE_SESSION_LIMIT_REACHED
            assert codes == [0] * (LIMIT - 1) + [reached] * (FLOOD - LIMIT + 1)
            assert count_of(cluster, table.SHARE_SESSIONS) == LIMIT
            for epoch in (1, 2):
                assert (await client.send_request(*fetch(mine, epoch))).error_code == 0
            async with Attacker.connected(port, "127.0.0.2") as other:
                assert (await other.send_request(*fetch(str(uuid4())))).error_code == 0
                assert count_of(cluster, table.SHARE_SESSIONS) == LIMIT
        await until(lambda: count_of(cluster, table.SHARE_SESSIONS) == 1)
        assert (await client.send_request(*fetch(str(uuid4())))).error_code == 0
