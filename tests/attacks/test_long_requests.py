"""Requests that name thousands of things leave turns of the event loop to other clients."""

import asyncio
from pathlib import Path

import pytest

from broker.handlers.slices import SLICE_COUNT
from controller.api.messages import CreateTopics, NewTopic
from tests.support.attacker import Attacker
from tests.support.cluster import Cluster
from tests.support.long_requests import LONG_REQUESTS

PATIENT = {"session_timeout_ms": 60_000, "session_grace_ms": 60_000}
"""On a busy machine such requests last longer than the sessions of other tests."""

NAMED = 20_000
"""How many things a request names at most, within `REQUEST_ELEMENTS_MAX`."""

AT_ONCE = {
    "Produce",
    "Fetch",
    "ShareFetch",
    "OffsetCommit",
    "OffsetFetch",
    "LeaveGroup",
    "AddPartitionsToTxn",
    "WriteTxnMarkers",
    "DescribeLogDirs",
    "AlterReplicaLogDirs",
    "OffsetDelete",
}
"""What takes little more than decoding and encoding, or must look at everything at one moment."""

FORWARDED = {
    "TxnOffsetCommit",
    "CreatePartitions",
    "AlterPartitionReassignments",
    "AlterClientQuotas",
    "AlterUserScramCredentials",
    "AlterShareGroupOffsets",
    "FindCoordinator",
    "DeleteShareGroupOffsets",
}
"""What waits for the controller, for an internal topic or for a group: turns during that prove
nothing.
"""


@pytest.mark.parametrize("name", sorted(LONG_REQUESTS.keys() - AT_ONCE - FORWARDED))
async def test_others_get_their_turns(tmp_path: Path, name: str) -> None:
    long = LONG_REQUESTS[name]
    count = min(NAMED, long.count)
    request = long.make(count)
    turns_count = 0

    async def count_turns() -> None:
        nonlocal turns_count
        while True:
            turns_count += 1
            await asyncio.sleep(0)

    async with (
        Cluster(tmp_path, controller_settings=PATIENT) as cluster,
        Attacker.connected(cluster.broker.port) as attacker,
    ):
        await cluster.broker.client.create_topics(CreateTopics(topics=[NewTopic(name="orders")]))
        await cluster.until_served("orders")
        await attacker.ask(long.api, long.version, long.make(1))  # whatever comes first
        counting = asyncio.create_task(count_turns())
        await attacker.ask(long.api, long.version, request)
        counting.cancel()
    assert turns_count >= count // SLICE_COUNT
