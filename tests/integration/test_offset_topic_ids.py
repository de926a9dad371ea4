"""OffsetCommit and OffsetFetch with topic ids (version 10) and DescribeGroups for nonexistent
groups (version 6), over real sockets.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from penstock.protocol import apis
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import describe_groups, find_coordinator, offset_commit, offset_fetch
from tests.support.clients import create_topic
from tests.support.cluster import Cluster
from tests.support.conversation import send_request
from tests.support.waiting import until

UNKNOWN = UUID(int=77)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as cluster:
        await asyncio.to_thread(create_topic, cluster.bootstrap, "t", 2)
        requested = find_coordinator.FindCoordinatorRequest(coordinator_keys=["g"])
        await asyncio.to_thread(send_request, cluster.bootstrap, apis.FIND_COORDINATOR, requested)
        yield cluster


def id_of(cluster: Cluster, name: str) -> UUID:
    topic = cluster.broker.image.topics.by_name(name)
    assert topic is not None
    return topic.topic_id


async def commit(cluster: Cluster, *topic_ids: UUID | None) -> list[int]:
    """Commit offset 5 for partition 1 and for a nonexistent partition. Return the error codes."""
    partitions = [offset_commit.OffsetCommitRequestPartition(index, 5) for index in (1, 9)]
    request = offset_commit.OffsetCommitRequest(
        "g",
        topics=[
            offset_commit.OffsetCommitRequestTopic(topic_id, partitions=partitions)
            for topic_id in topic_ids
        ],
    )
    response = await asyncio.to_thread(send_request, cluster.bootstrap, apis.OFFSET_COMMIT, request)
    return [part["error_code"] for topic in response["topics"] for part in topic["partitions"]]


async def fetch(cluster: Cluster, *topic_ids: UUID) -> dict[str, list[tuple[int, int, int]]]:
    """Return partition, offset and error code by topic id, for all topics if no id is given."""
    topics = [
        offset_fetch.OffsetFetchRequestTopics(topic_id, partition_indexes=[0, 1])
        for topic_id in topic_ids
    ]
    group = offset_fetch.OffsetFetchRequestGroup("g", topics=topics or None)
    request = offset_fetch.OffsetFetchRequest(groups=[group])
    response: Any = await asyncio.to_thread(
        send_request, cluster.bootstrap, apis.OFFSET_FETCH, request
    )
    (found,) = response["groups"]
    assert found["error_code"] == 0
    return {
        topic["topic_id"]: [
            (part["partition_index"], part["committed_offset"], part["error_code"])
            for part in topic["partitions"]
        ]
        for topic in found["topics"]
    }


async def test_offsets_are_committed_and_fetched_by_topic_id(cluster: Cluster) -> None:
    topic_id = id_of(cluster, "t")
    unknown = ErrorCode.UNKNOWN_TOPIC_ID

    async def is_committed() -> bool:
        codes = await commit(cluster, topic_id, UNKNOWN)
        assert codes[1:] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, unknown, unknown]
        return codes[0] == 0

    await until(is_committed)
    assert await commit(cluster, None) == [unknown, unknown]
    assert await fetch(cluster, topic_id, UNKNOWN) == {
        str(topic_id): [(0, -1, 0), (1, 5, 0)],
        str(UNKNOWN): [(0, -1, unknown), (1, -1, unknown)],
    }
    assert await fetch(cluster) == {str(topic_id): [(1, 5, 0)]}


async def test_describing_a_nonexistent_group_returns_an_error(cluster: Cluster) -> None:
    request = describe_groups.DescribeGroupsRequest(["none"])

    async def is_described() -> bool:
        response = await asyncio.to_thread(
            send_request, cluster.bootstrap, apis.DESCRIBE_GROUPS, request
        )
        (group,) = response["groups"]
        if group["error_code"] != ErrorCode.GROUP_ID_NOT_FOUND:
            return False
        assert (group["error_message"], group["group_state"]) == ("Group none not found.", "Dead")
        return True

    await until(is_described)
