"""Requests with several keys wait for a loading coordinator as long as those with one key."""

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from penstock.broker.coordination.log import LogBatch
from penstock.broker.coordination.shards import LOAD_WAIT_S
from penstock.broker.groups.classic.model import GroupLimits
from penstock.broker.groups.coordinator.group_coordinator import GroupCoordinator
from penstock.broker.groups.offsets.topics import OffsetTopics
from penstock.protocol import apis
from penstock.protocol.apis import ApiSpec
from penstock.protocol.error_codes import ErrorCode
from penstock.protocol.gen import (
    consumer_group_describe,
    delete_groups,
    describe_groups,
    describe_transactions,
    offset_fetch,
)
from tests.sim.loop import VirtualLoop
from tests.support.coordinator_log import MemoryLog
from tests.support.handlers import Fixture
from tests.unit.broker.test_transactions_coordinator import CoordinatorHarness

KEYS = [f"key{number}" for number in range(20)]


def offset_fetch_request(keys: list[str]) -> object:
    groups = [offset_fetch.OffsetFetchRequestGroup(key, topics=[]) for key in keys]
    return offset_fetch.OffsetFetchRequest(groups=groups)


REQUESTS: dict[ApiSpec, tuple[int, Callable[[list[str]], object], str]] = {
    apis.DESCRIBE_TRANSACTIONS: (
        0,
        describe_transactions.DescribeTransactionsRequest,
        "transaction_states",
    ),
    apis.DESCRIBE_GROUPS: (5, describe_groups.DescribeGroupsRequest, "groups"),
    apis.CONSUMER_GROUP_DESCRIBE: (
        0,
        consumer_group_describe.ConsumerGroupDescribeRequest,
        "groups",
    ),
    apis.DELETE_GROUPS: (2, delete_groups.DeleteGroupsRequest, "results"),
    apis.OFFSET_FETCH: (8, offset_fetch_request, "groups"),
}


async def never(_: int) -> AsyncIterator[LogBatch]:
    await asyncio.Event().wait()
    yield LogBatch(0, [])


@pytest.mark.parametrize("api", REQUESTS, ids=lambda api: api.name)
def test_a_request_waits_for_all_its_keys_together(
    api: ApiSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    version, request_of, items = REQUESTS[api]

    async def scenario() -> None:
        fixture, harness = Fixture(), CoordinatorHarness()
        monkeypatch.setattr(MemoryLog, "read", lambda _, partition: never(partition))
        node = fixture.node
        node.transactions = harness.coordinator
        node.groups = GroupCoordinator(
            MemoryLog(4),
            GroupLimits(),
            now_ms=lambda: 1_000,
            new_member_id=str,
            offset_topics=OffsetTopics(lambda: fixture.image),
        )
        harness.restart()
        node.transactions = harness.coordinator
        for partition in range(4):
            node.groups.partition_opened(partition)
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        response = await fixture.send_request(api, version, request_of(KEYS))
        codes = [item.error_code for item in getattr(response, items)]
        assert codes == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * len(KEYS)
        assert loop.time() - began_s == pytest.approx(LOAD_WAIT_S, rel=0.1)
        harness.coordinator.close()
        node.groups.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(scenario())
