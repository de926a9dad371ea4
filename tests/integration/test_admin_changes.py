"""Every change that a client makes is recorded in the audit log."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from penstock.base.acls import STANDARD_AUTHORIZER
from penstock.broker.errors import ErrorCode
from penstock.broker.security.config import SecurityConfig
from penstock.controller.api.messages import CreateTopics, NewTopic
from penstock.protocol import apis
from penstock.protocol.gen import alter_share_group_offsets as altering
from penstock.protocol.gen import delete_share_group_offsets as deleting
from penstock.protocol.gen import elect_leaders, find_coordinator, offset_commit, offset_delete
from penstock.protocol.gen import write_txn_markers as ending
from tests.support.attacker import Attacker
from tests.support.clients import TIMEOUT_S
from tests.support.cluster import Cluster

_UNREADY = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
}
SECURITY = SecurityConfig(authorizer=STANDARD_AUTHORIZER, super_users="User:ANONYMOUS")


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, security=SECURITY) as cluster:
        topics = [NewTopic(name="orders", partitions=2)]
        await cluster.broker.client.create_topics(CreateTopics(topics=topics))
        await cluster.until_served("orders", 1)
        yield cluster


async def _changes(
    client: Attacker, api: apis.ApiSpec, version: int, request: object
) -> tuple[Any, list[tuple[str, list[str]]]]:
    """Return the response and its audit log entry. Repeats the request while the coordinator's
    internal topic is being created.
    """
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            with capture_logs() as logs:
                response = await client.send_request(api, version, request)
            if not _UNREADY & _codes(response):
                break
            await asyncio.sleep(0.05)
    lines = [line for line in logs if line["event"] == "admin_change"]
    assert {line["principal"] for line in lines} <= {"User:ANONYMOUS"}
    return response, [(line["change"], line["resources"]) for line in lines]


def _codes(response: Any) -> set[int]:
    """Return the error codes in a response, at any depth."""
    found = {getattr(response, "error_code", 0)}
    for name in ("coordinators", "topics", "partitions", "responses"):
        for item in getattr(response, name, ()):
            found |= _codes(item)
    return found


async def test_offset_commits_and_leader_elections_are_audited(cluster: Cluster) -> None:
    async with Attacker.connected(cluster.broker.port) as client:
        find = find_coordinator.FindCoordinatorRequest(coordinator_keys=["g", "s"])
        await _changes(client, apis.FIND_COORDINATOR, 4, find)
        commit = offset_commit.OffsetCommitRequest(
            "g",
            topics=[
                offset_commit.OffsetCommitRequestTopic(
                    name="orders", partitions=[offset_commit.OffsetCommitRequestPartition(1)]
                )
            ],
        )
        response, found = await _changes(client, apis.OFFSET_COMMIT, 8, commit)
        assert response.topics[0].partitions[0].error_code == 0
        assert found == [], "consumers do that all the time"
        delete = offset_delete.OffsetDeleteRequest(
            "g",
            [
                offset_delete.OffsetDeleteRequestTopic(
                    "orders", [offset_delete.OffsetDeleteRequestPartition(1)]
                )
            ],
        )
        response, found = await _changes(client, apis.OFFSET_DELETE, 0, delete)
        assert response.topics[0].partitions[0].error_code == 0
        assert found == [("offsets_deleted", ["g: orders"])]
        alter = altering.AlterShareGroupOffsetsRequest(
            "s",
            [
                altering.AlterShareGroupOffsetsRequestTopic(
                    "orders", [altering.AlterShareGroupOffsetsRequestPartition(0, 0)]
                )
            ],
        )
        response, found = await _changes(client, apis.ALTER_SHARE_GROUP_OFFSETS, 0, alter)
        assert response.responses[0].partitions[0].error_code == 0, response
        assert found == [("share_offsets_altered", ["s: orders"])]
        remove = deleting.DeleteShareGroupOffsetsRequest(
            "s", [deleting.DeleteShareGroupOffsetsRequestTopic("orders")]
        )
        response, found = await _changes(client, apis.DELETE_SHARE_GROUP_OFFSETS, 0, remove)
        assert response.responses[0].error_code == 0, response
        assert found == [("share_offsets_deleted", ["s: orders"])]
        elect = elect_leaders.ElectLeadersRequest(0, None, 10_000)
        response, found = await _changes(client, apis.ELECT_LEADERS, 2, elect)
        assert (response.error_code, found) == (0, []), "each leader is the preferred one"


async def test_transactions_ended_by_an_administrator_are_audited(cluster: Cluster) -> None:
    async with Attacker.connected(cluster.broker.port) as client:
        topics = [ending.WritableTxnMarkerTopic("orders", [1, 9])]
        marker = ending.WritableTxnMarker(5, 3, transaction_result=False, topics=topics)
        for serial, expected in (
            (-1, [("transactions_ended", ["aborted producer 5 epoch 3 in orders-1"])]),
            (1, []),  # from a coordinator
        ):
            request = ending.WriteTxnMarkersRequest(
                [msgspec.structs.replace(marker, serial=serial)]
            )
            _, found = await _changes(client, apis.WRITE_TXN_MARKERS, 1, request)
            assert found == expected
